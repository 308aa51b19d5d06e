"""One folder's drive: what direct I/O really carries, at the sizes and depths that serving engines use.

The scratch file is written whole before anything is read, every block can be checked, and the result says whether the
I/O was proven to reach the device. See docs/probing.md for the method and the traps it avoids.
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from kvplan.documents import Disk, Finding, KvBlock, Link
from kvplan.errors import KvplanError
from kvplan.files import reason
from kvplan.probing import (
    blockdev,
    directio,
    disk_cells,
    disk_io,
    disk_links,
    memory_copy,
    neighbours,
    nvme,
    scratch,
)
from kvplan.probing.disk_cells import Cell
from kvplan.probing.disk_findings import Facts, findings
from kvplan.probing.disk_runner import FILL_TAG, NotHereError, Outcome, Runner
from kvplan.probing.disk_verdict import Evidence, Verdict, verdict
from kvplan.probing.pattern import Pattern
from kvplan.progress import Progress, silent
from kvplan.units import GiB, MiB, show_bytes

_FILL_GRANULE, _FILL_DEPTH = 4 * MiB, 4
_FILE = 2 * GiB
_SMALLEST_FILE = 64 * MiB
LEAST_S = 5.0  # less time says nothing of a drive: writing and checking the file take 2 s of it
_CELL_S = 2.0
_SHORTEST_CELL_S = 0.02
# What a cell takes besides what it is given, until some were seen: last transfers, files made, what was written read.
_BESIDE_READ_S, _BESIDE_WRITE_S = 0.05, 0.3
# The share of the time kept for the long write at the end.
_SUSTAINED_SHARE = 0.1
# The share of the time given to writing the file and to reading it back; a slow drive gets a smaller file instead.
_FILL_SHARE, _CHECK_SHARE = 0.25, 0.15
_SHORTEST_FILL_S = 1.0


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
    path: Path,
    *,
    seconds: float,
    write_bytes: int,
    file_bytes: int | None = None,
    granules: tuple[int, ...] = (),
    kv: KvBlock | None = None,
    sweep_only: bool = False,
) -> DiskPlan:
    """Decide what to do in `path`, without writing anything.

    Raises KvplanError where the folder cannot be probed or the budgets are too small.
    """
    folder = scratch.look(path)
    wanted = {*disk_cells.GRANULES, *granules, *([disk_cells.whole_pages(kv)[0]] if kv else [])}
    sizes = tuple(sorted({_round_up(size, scratch.PAGE) for size in wanted}))
    size = _file_size(folder, write_bytes, file_bytes, max(sizes))
    _check_granules(folder, granules, size)
    every, room = disk_cells.all_cells(sizes, kv, sweep_only), folder.room_bytes - size
    too_large = [cell for cell in every if cell.blocks > size // cell.granule]  # they take nothing from the others
    cells = disk_cells.share_out([cell for cell in every if cell not in too_large], max(0, write_bytes - size))
    fits = [cell for cell in cells if cell.enough and cell.file_count * cell.granule <= room]
    return DiskPlan(
        folder=folder,
        file_bytes=size,
        write_bytes=size + sum(cell.limit_bytes or 0 for cell in fits),
        seconds=seconds,
        cells=tuple(fits),
        left_out=(*too_large, *(cell for cell in cells if cell not in fits)),
    )


def _check_granules(folder: scratch.Folder, granules: tuple[int, ...], size: int) -> None:
    """Raises KvplanError for a size that was asked for and that the scratch file holds not even once."""
    largest = max(granules, default=0)
    if largest > size:
        raise KvplanError(
            f"{folder.path}: --granule {show_bytes(largest)} is more than the scratch file of {show_bytes(size)}: "
            "give a smaller one, or a --write-budget (and free space) of four times as much at least"
        )


def _round_up(size: int, step: int) -> int:
    return -(-size // step) * step


def _file_size(folder: scratch.Folder, write_bytes: int, wanted: int | None, largest: int) -> int:
    """Bytes of the scratch file: as asked, else 2 GiB or what the write budget and the free space allow."""
    if wanted is None:
        room = min(folder.room_bytes, write_bytes // 4)
        deep = _round_up(largest * max(disk_cells.DEPTHS), _FILL_GRANULE)
        size = max(_SMALLEST_FILE, min(max(_FILE, deep), room))
    else:
        size = max(wanted, _SMALLEST_FILE)
    size = size // _FILL_GRANULE * _FILL_GRANULE
    if size > write_bytes:
        message = f"a write budget of {show_bytes(write_bytes)} does not cover a scratch file of {show_bytes(size)}"
        raise KvplanError(f"{folder.path}: {message}: allow more, at best four times that")
    scratch.check_room(folder, size)
    return size


def measure(todo: DiskPlan, *, memory_bytes: int = GiB, seed: int = 0, progress: Progress = silent) -> DiskResult:
    """Write, read and verify a scratch file as planned, on a host that has `memory_bytes` of memory to use.

    Raises KvplanError where the folder vanishes, the space runs out or the drive fails. Nothing is left behind,
    whatever happens.
    """
    with _explained(todo.folder), scratch.scratch_file(todo.folder, todo.file_bytes) as file:
        return _Run(todo, file, memory_bytes, seed, progress).result()


@contextmanager
def _explained(folder: scratch.Folder) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise KvplanError(f"{folder.path}: the probe could not go on: {reason(error)}") from None


class _Run:
    """One folder being measured: the open file, the clock, and what has been seen so far."""

    def __init__(self, todo: DiskPlan, file: scratch.Scratch, memory_bytes: int, seed: int, progress: Progress) -> None:
        self.todo, self.file, self.progress = todo, file, progress
        self.fd = file.descriptor
        self.began = time.monotonic()
        self.evidence = Evidence(
            direct=file.direct,
            alignment=directio.statx(self.fd),
            not_a_drive=blockdev.not_a_drive(todo.folder.device),
            memory=todo.folder.memory,
        )
        self.evidence.before = directio.moved(todo.folder.device)
        self.members = nvme.with_wear(blockdev.drives(todo.folder.device))
        self.met = neighbours.look(todo.folder.device)
        self._say("copying in memory, to hold the drive against", 0.0)
        self.copied = memory_copy.bytes_per_s(memory_bytes)
        self.most = disk_links.bounds(self.members, self.copied)
        self.runner = Runner(todo.folder, file, self.evidence, seed, self._say)
        self.filled = Pattern(seed, FILL_TAG, _FILL_GRANULE)
        self.size = todo.file_bytes
        self.outcomes: list[Outcome] = []
        self.not_here: dict[str, list[Cell]] = {}
        self.late: list[Cell] = []

    def result(self) -> DiskResult:
        """Fill, check, sweep, judge."""
        first = self._fill()
        self.evidence.extents = directio.extents(self.fd, self.size)
        self._check()
        self._sweeps()
        self.evidence.after = directio.moved(self.todo.folder.device)
        judged = verdict(self.evidence, self.todo.folder.mount)
        others = neighbours.between(
            self.met,
            neighbours.look(self.todo.folder.device),
            self.evidence.read_bytes,
            self.evidence.written_bytes,
        )
        links = [self._link(outcome, judged.flags) for outcome in self.outcomes]
        links.insert(0, self._first_write(first, judged.flags))
        return DiskResult(
            disk=self._disk(judged),
            links=tuple(links),
            written_bytes=self.evidence.written_bytes,
            findings=self._findings(judged, links, others),
        )

    def _left_s(self) -> float:
        return self.todo.seconds - (time.monotonic() - self.began)

    def _say(self, what: str, share: float | None) -> None:
        self.progress(f"{self.todo.folder.path}: {what}", share)

    def _whole(self, direction: Literal["read", "write"], seconds: float) -> disk_io.Job:
        return disk_io.Job(
            direction=direction,
            granule=_FILL_GRANULE,
            depth=_FILL_DEPTH,
            file_bytes=self.size,
            seconds=seconds,
            pattern=self.filled,
            sequential=True,
            check=direction == "read",
        )

    def _fill(self) -> disk_io.Done:
        """Write the file from its start; a drive too slow for all of it in time gets a shorter file."""
        seconds = max(_SHORTEST_FILL_S, self.todo.seconds * _FILL_SHARE)
        done = self.runner.job(self._whole("write", seconds), f"writing {show_bytes(self.size)}", 0.0)
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
        self.runner.job(self._whole("read", seconds), "checking what was written", 0.05)

    def _cells(self) -> list[Cell]:
        """The planned cells that this file allows: it may have come out short, or want coarser steps than some."""
        cells = [cell for cell in self.todo.cells if cell.blocks <= self.size // cell.granule]
        return [cell for cell in cells if cell.granule // cell.pieces % self.file.alignment == 0]

    def _sweeps(self) -> None:
        """The cells one after another; where they take longer than they measure, the less important are left out."""
        cells = waiting = self._cells()
        until = self.began + max(self.todo.seconds, LEAST_S)
        beside = {False: [_BESIDE_READ_S], True: [_BESIDE_WRITE_S]}  # of cells that write and of those that do not

        def cost(cell: Cell) -> float:
            return _SHORTEST_CELL_S + statistics.median(beside[cell.writes])

        while waiting:
            kept = disk_cells.within(waiting, until - time.monotonic(), cost)
            self.late += [cell for cell in waiting if cell not in kept]
            if not kept:
                return
            scratch.check_still_there(self.todo.folder)
            cell, *waiting = kept
            given, began = self._given_s(kept, sum(map(cost, kept))), time.monotonic()
            self._sweep(cell, given, 1.0 - 0.9 * len(kept) / len(cells))
            beside[cell.writes].append(max(0.0, time.monotonic() - began - given))

    def _given_s(self, cells: list[Cell], least_s: float) -> float:
        """Seconds for the first of the cells left, which take `least_s` anyway; a long write has all that are left."""
        seconds = self._left_s()
        if not cells[0].sustained:
            kept = self.todo.seconds * _SUSTAINED_SHARE if cells[-1].sustained else 0.0
            seconds = min(_CELL_S, _SHORTEST_CELL_S + (seconds - kept - least_s) / len(cells))
        return max(_SHORTEST_CELL_S, seconds)

    def _sweep(self, cell: Cell, seconds: float, share: float) -> None:
        try:
            self.outcomes += self.runner.run(cell, self.size, self.filled, seconds, share)
        except NotHereError as why:
            self.not_here.setdefault(str(why), []).append(cell)

    def _link(self, outcome: Outcome, flags: tuple[str, ...]) -> Link:
        path, direct = str(self.todo.folder.path), self.file.direct
        return disk_links.link(path, outcome, direct=direct, flags=flags, most=self.most)

    def _first_write(self, done: disk_io.Done, flags: tuple[str, ...]) -> Link:
        """Writing into space never written before, which an engine's file pays once and steady use never does."""
        cell = Cell(direction="write", granule=_FILL_GRANULE, depth=_FILL_DEPTH)
        link = self._link(Outcome(cell=cell, direction="write", done=done), ("first-write", *flags))
        how = "reserved" if self.file.reserved else "sparse"
        return replace(
            link, method=link.method.replace("random order, overwriting", f"in order, first write into {how} space")
        )

    def _disk(self, judged: Verdict) -> Disk:
        folder, members = self.todo.folder, self.members
        rotational = {member.rotational for member in members}
        # What several drives endure together depends on how data is spread over them: mirrors write everything twice.
        rated = members[0].rated_endurance_bytes if len(members) == 1 else None
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
            rated_endurance_bytes=rated,
            members=members,
            scratch_bytes=self.size,
            memory_copy_bytes_per_s=self.copied,
            flags=judged.flags,
        )

    def _findings(self, judged: Verdict, links: list[Link], others: neighbours.Others | None) -> tuple[Finding, ...]:
        return findings(
            Facts(
                folder=self.todo.folder,
                evidence=self.evidence,
                judged=judged,
                members=self.members,
                planned_bytes=self.todo.file_bytes,
                measured_bytes=self.size,
                left_out=(*self.todo.left_out, *(cell for cell in self.todo.cells if cell not in self._cells())),
                late=tuple(self.late),
                not_here=self.not_here,
                outcomes=self.outcomes,
                links=links,
                most=self.most,
                others=others,
            )
        )
