"""One folder's drive: what direct I/O really carries, at the sizes and depths that serving engines use.

The scratch file is written whole before anything is read, every block can be checked, and the result says whether the
I/O was proven to reach the device. See docs/probing.md for the method and the traps it avoids.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from kvplan.documents import Disk, Finding, Link
from kvplan.errors import KvplanError
from kvplan.files import reason
from kvplan.probing import blockdev, directio, disk_io, scratch
from kvplan.probing.disk_verdict import Evidence, Verdict, verdict
from kvplan.progress import Progress, silent
from kvplan.units import GiB, KiB, MiB, show_bytes, show_rate

GRANULES = (128 * KiB, 1 * MiB, 4 * MiB)
DEPTHS = (1, 4, 16)
_FILL_GRANULE, _FILL_DEPTH, _FILL_TAG = 4 * MiB, 4, 1
_FILE = 2 * GiB
_SMALLEST_FILE = 64 * MiB
_CELL_S = 2.0
_SHORTEST_CELL_S = 0.02
# The share of the time given to writing the file and to reading it back; a slow drive gets a smaller file instead.
_FILL_SHARE, _CHECK_SHARE = 0.25, 0.15
# A cell needs at least two rounds of its threads to say anything about a rate.
_ROUNDS = 2
_METHOD = "{threads}, {call}, {how}, {order}, data verified"


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One point of the sweep; `limit_bytes` bounds what a write cell may write."""

    direction: Literal["read", "write"]
    granule: int
    depth: int
    limit_bytes: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskPlan:
    """What probing one folder will do: at most `write_bytes` into a file of `file_bytes`, in about `seconds`."""

    folder: scratch.Folder
    file_bytes: int
    write_bytes: int
    seconds: float
    cells: tuple[Cell, ...]
    left_out: tuple[Cell, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskResult:
    """Links measured on one folder, facts of its drive, and how much was written to it."""

    disk: Disk
    links: tuple[Link, ...]
    written_bytes: int
    findings: tuple[Finding, ...]


def plan(
    path: Path, *, seconds: float, write_bytes: int, file_bytes: int | None = None, granules: tuple[int, ...] = ()
) -> DiskPlan:
    """Decide what to do in `path`, without writing anything.

    Raises KvplanError where the folder cannot be probed or the budgets are too small.
    """
    folder = scratch.look(path)
    sizes = tuple(sorted({*GRANULES, *(_round_up(size, scratch.PAGE) for size in granules)}))
    size = _file_size(folder, write_bytes, file_bytes, max(sizes))
    cells = [Cell(direction="read", granule=granule, depth=depth) for granule in sizes for depth in DEPTHS]
    cells += _write_cells(sizes, max(0, write_bytes - size))
    fits = [cell for cell in cells if cell.depth <= size // cell.granule and _enough(cell)]
    return DiskPlan(
        folder=folder,
        file_bytes=size,
        write_bytes=size + sum(cell.limit_bytes or 0 for cell in fits),
        seconds=seconds,
        cells=tuple(fits),
        left_out=tuple(cell for cell in cells if cell not in fits),
    )


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step


def _file_size(folder: scratch.Folder, write_bytes: int, wanted: int | None, largest: int) -> int:
    """Bytes of the scratch file: as asked, else 2 GiB or what the write budget and the free space allow."""
    if wanted is None:
        room = min(folder.room_bytes, write_bytes // 4)
        deep = _round_up(largest * max(DEPTHS), _FILL_GRANULE)
        size = max(_SMALLEST_FILE, min(max(_FILE, deep), room))
    else:
        size = max(wanted, _SMALLEST_FILE)
    size = size // _FILL_GRANULE * _FILL_GRANULE
    if size > write_bytes:
        message = f"a write budget of {show_bytes(write_bytes)} does not cover a scratch file of {show_bytes(size)}"
        raise KvplanError(f"{folder.path}: {message}: allow more, at best four times that")
    scratch.check_room(folder, size)
    return size


def _write_cells(sizes: tuple[int, ...], budget: int) -> list[Cell]:
    """Write cells with the budget shared out; the large and deep ones need more to reach their rate."""
    shapes = [(granule, depth, max(granule * depth, 16 * MiB)) for granule in sizes for depth in DEPTHS]
    total = sum(weight for _, _, weight in shapes)
    return [
        Cell(direction="write", granule=granule, depth=depth, limit_bytes=budget * weight // total)
        for granule, depth, weight in shapes
    ]


def _enough(cell: Cell) -> bool:
    return cell.limit_bytes is None or cell.limit_bytes >= _ROUNDS * cell.granule * cell.depth


def measure(todo: DiskPlan, *, seed: int = 0, progress: Progress = silent) -> DiskResult:
    """Write, read and verify a scratch file as planned.

    Raises KvplanError where the folder vanishes, the space runs out or the drive fails. Nothing is left behind,
    whatever happens.
    """
    with _explained(todo.folder), scratch.scratch_file(todo.folder, todo.file_bytes) as file:
        return _Run(todo, file, seed, progress).result()


@contextmanager
def _explained(folder: scratch.Folder) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise KvplanError(f"{folder.path}: the probe could not go on: {reason(error)}") from None


class _Run:
    """One folder being measured: the open file, the clock, and what has been seen so far."""

    def __init__(self, todo: DiskPlan, file: scratch.Scratch, seed: int, progress: Progress) -> None:
        self.todo, self.file, self.seed, self.progress = todo, file, seed, progress
        self.fd = file.descriptor
        self.began = time.monotonic()
        self.evidence = Evidence(
            direct=file.direct,
            alignment=directio.statx(self.fd),
            not_a_drive=blockdev.not_a_drive(todo.folder.device),
        )
        self.evidence.before = directio.moved(todo.folder.device)
        self.filled = disk_io.Pattern(seed, _FILL_TAG, _FILL_GRANULE)
        self.size = todo.file_bytes
        self.done: list[tuple[Cell, disk_io.Done]] = []

    def result(self) -> DiskResult:
        """Fill, check, sweep, judge."""
        first = self._fill()
        self.evidence.extents = directio.extents(self.fd, self.size)
        self._check()
        for position, cell in enumerate(self._cells()):
            scratch.check_still_there(self.todo.folder)
            self.done.append((cell, self._sweep(cell, position)))
        self.evidence.after = directio.moved(self.todo.folder.device)
        judged = verdict(self.evidence, self.todo.folder.mount)
        links = [self._link(cell, done, judged.flags) for cell, done in self.done]
        links.insert(0, self._first_write(first, judged.flags))
        return DiskResult(
            disk=self._disk(judged),
            links=tuple(links),
            written_bytes=self.evidence.written_bytes,
            findings=self._findings(judged, links),
        )

    def _left_s(self) -> float:
        return self.todo.seconds - (time.monotonic() - self.began)

    def _say(self, what: str, share: float | None, rate: float | None = None) -> None:
        tail = "" if rate is None else f": {show_rate(rate)}"
        self.progress(f"{self.todo.folder.path}: {what}{tail}", share)

    def _job(self, job: disk_io.Job, what: str, share: float | None) -> disk_io.Done:
        """Run one job and book what it moved."""
        self._say(what, share)
        done = disk_io.run(self.fd, job, lambda rate: self._say(what, share, rate))
        evidence = self.evidence
        if job.direction == "write":
            evidence.written_bytes += done.moved_bytes
        else:
            evidence.read_bytes += done.moved_bytes
        evidence.checked_bytes += done.checked_bytes
        evidence.wrong_pages += done.wrong_pages
        self._settle_cache()
        self._say(what, share, done.rates.mean_bytes_per_s)
        return done

    def _settle_cache(self) -> None:
        """Count cached pages; where I/O is buffered, drop them so that at least the next read starts from the drive."""
        self.evidence.saw_cache(directio.cached_pages(self.fd, self.size))
        if not self.file.direct:
            os.fdatasync(self.fd)
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def _whole(self, direction: Literal["read", "write"], seconds: float, limit: int) -> disk_io.Job:
        return disk_io.Job(
            direction=direction,
            granule=_FILL_GRANULE,
            depth=_FILL_DEPTH,
            file_bytes=limit,
            seconds=seconds,
            pattern=self.filled,
            sequential=True,
            check=direction == "read",
        )

    def _fill(self) -> disk_io.Done:
        """Write the file from its start; a drive too slow for all of it in time gets a shorter file."""
        seconds = max(1.0, self.todo.seconds * _FILL_SHARE)
        done = self._job(self._whole("write", seconds, self.size), f"writing {show_bytes(self.size)}", 0.0)
        if done.moved_bytes < min(self.size, _SMALLEST_FILE):
            raise KvplanError(
                f"{self.todo.folder.path}: wrote only {show_bytes(done.moved_bytes)} in {seconds:.0f} s: "
                "too slow to measure in this time: give a longer budget"
            )
        if done.moved_bytes < self.size:
            self.size = done.moved_bytes
            os.ftruncate(self.fd, self.size)
        return done

    def _check(self) -> None:
        seconds = max(0.5, self.todo.seconds * _CHECK_SHARE)
        self._job(self._whole("read", seconds, self.size), "checking what was written", 0.05)

    def _cells(self) -> list[Cell]:
        """The planned cells that this file allows: it may have come out short, or want coarser steps than some."""
        cells = [cell for cell in self.todo.cells if cell.depth <= self.size // cell.granule]
        return [cell for cell in cells if cell.granule % self.file.alignment == 0]

    def _sweep(self, cell: Cell, position: int) -> disk_io.Done:
        cells = len(self._cells())
        tag = _FILL_TAG + 1 + position
        writes = cell.direction == "write"
        pattern = disk_io.Pattern(self.seed, tag, cell.granule) if writes else self.filled
        job = disk_io.Job(
            direction=cell.direction,
            granule=cell.granule,
            depth=cell.depth,
            file_bytes=self.size,
            seconds=min(_CELL_S, max(_SHORTEST_CELL_S, self._left_s() / (cells - position))),
            pattern=pattern,
            limit=None if cell.limit_bytes is None else cell.limit_bytes // cell.granule,
            seed=self.seed + position,
        )
        what = f"{cell.direction} {show_bytes(cell.granule)} x {cell.depth}"
        done = self._job(job, what, 0.1 + 0.9 * position / cells)
        if writes:
            count, wrong = disk_io.read_back(self.fd, pattern, done.touched)
            self.evidence.read_bytes += count
            self.evidence.checked_bytes += count
            self.evidence.wrong_pages += wrong
        return done

    def _link(self, cell: Cell, done: disk_io.Done, flags: tuple[str, ...], order: str = "random order") -> Link:
        disk, rates = f"disk:{self.todo.folder.path}", done.rates
        read = cell.direction == "read"
        return Link(
            source=disk if read else "host",
            target="host" if read else disk,
            direction=cell.direction,
            granule_bytes=cell.granule,
            depth=cell.depth,
            samples=rates.samples,
            p5_bytes_per_s=rates.p5_bytes_per_s,
            p50_bytes_per_s=rates.p50_bytes_per_s,
            p95_bytes_per_s=rates.p95_bytes_per_s,
            p50_latency_s=rates.p50_latency_s,
            p99_latency_s=rates.p99_latency_s,
            method=_METHOD.format(
                threads="1 thread" if cell.depth == 1 else f"{cell.depth} threads",
                call="preadv" if read else "pwritev",
                how="O_DIRECT" if self.file.direct else "buffered",
                order=order if read else f"{order}, overwriting" if order == "random order" else order,
            ),
            cpu_s_per_gb=done.cpu_s_per_gb,
            flags=flags if rates.steady else (*flags, "not-steady"),
        )

    def _first_write(self, done: disk_io.Done, flags: tuple[str, ...]) -> Link:
        """Writing into space never written before, which an engine's file pays once and steady use never does."""
        cell = Cell(direction="write", granule=_FILL_GRANULE, depth=_FILL_DEPTH)
        how = "reserved" if self.file.reserved else "sparse"
        return self._link(cell, done, ("first-write", *flags), f"in order, first write into {how} space")

    def _disk(self, judged: Verdict) -> Disk:
        folder = self.todo.folder
        members = blockdev.drives(folder.device)
        rotational = {member.rotational for member in members}
        return Disk(
            path=str(folder.path),
            filesystem=folder.mount.kind if folder.mount else "unknown",
            device=folder.mount.source if folder.mount else "unknown",
            total_bytes=folder.total_bytes,
            free_bytes=folder.free_bytes,
            direct=judged.direct,
            proof=judged.proof,
            model=", ".join(sorted({member.model for member in members if member.model})) or None,
            rotational=rotational.pop() if len(rotational) == 1 else None,
            members=members,
            scratch_bytes=self.size,
            flags=judged.flags,
        )

    def _findings(self, judged: Verdict, links: list[Link]) -> tuple[Finding, ...]:
        """What a reader should know of this folder's figures beyond the figures."""
        path, found = self.todo.folder.path, []

        def say(severity: Literal["info", "warning", "error"], code: str, text: str) -> None:
            found.append(Finding(severity=severity, code=code, text=f"{path}: {text}"))

        if self.evidence.wrong_pages:
            pages, checked = self.evidence.wrong_pages, show_bytes(self.evidence.checked_bytes)
            say("error", "disk-corrupt", f"{pages} pages in {checked} checked were not what was written: distrust it")
        if judged.missing:
            why = "; ".join(judged.missing)
            say("warning", "disk-not-proven-direct", f"not proven that I/O reaches the drive: {why}")
        if self.size < self.todo.file_bytes:
            sizes = f"{show_bytes(self.size)} instead of {show_bytes(self.todo.file_bytes)}"
            say("warning", "disk-slow", f"so slow that the scratch file was cut to {sizes}")
        missing = (*self.todo.left_out, *(cell for cell in self.todo.cells if cell not in self._cells()))
        if missing:
            cells = ", ".join(f"{cell.direction} {show_bytes(cell.granule)} x {cell.depth}" for cell in missing)
            say("info", "disk-cells-left-out", f"not measured, for want of write budget or file size: {cells}")
        if any("not-steady" in link.flags for link in links):
            say(
                "warning", "disk-not-steady", "slowed down while it was measured: a longer run may find it slower still"
            )
        if self.todo.folder.device == os.stat("/").st_dev:
            say("info", "disk-system-drive", "is on the drive of the root file system, which other programs use too")
        return tuple(found)
