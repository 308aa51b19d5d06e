"""Runs one cell of a drive's probe: chooses the way, moves the data, checks it, and books it as evidence."""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from dataclasses import dataclass, replace

from kvplan.probing import block_files, directio, disk_io, queued_io, scratch
from kvplan.probing.disk_cells import Cell
from kvplan.probing.disk_verdict import Evidence
from kvplan.probing.kernel_queues import UnavailableError
from kvplan.probing.pattern import Pattern
from kvplan.probing.steadiness import Steadiness
from kvplan.units import show_bytes, show_rate

FILL_TAG = 1
_NO_NAMELESS_FILES = (errno.EOPNOTSUPP, errno.EISDIR, errno.EINVAL, errno.ENOSYS)

Say = Callable[[str, float | None], None]


class NotHereError(Exception):
    """This kernel, container or file system cannot do the cell: why, in words."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """What one direction of a cell did; `beside` if the other ran at the same time, `held` if its rate did hold."""

    cell: Cell
    direction: disk_io.Direction
    done: disk_io.Done
    beside: bool = False
    held: bool = True


class Runner:
    """One open scratch file, its content as first written, and the evidence gathered."""

    def __init__(self, folder: scratch.Folder, file: scratch.Scratch, evidence: Evidence, seed: int, say: Say) -> None:
        self.folder, self.file, self.evidence, self.seed, self.say = folder, file, evidence, seed, say
        self.fd = file.descriptor
        self.tag = FILL_TAG

    def run(self, cell: Cell, size: int, filled: Pattern, seconds: float, share: float) -> list[Outcome]:
        """Do a cell on the first `size` bytes of the file. Raises NotHereError where it cannot be done here."""
        self.tag += 1
        base = disk_io.Job(
            direction="read",
            granule=cell.granule,
            depth=cell.depth,
            file_bytes=size,
            seconds=seconds,
            pattern=filled,
            pieces=cell.pieces,
            separate=cell.separate,
            seed=self.seed + self.tag,
        )
        if cell.files:
            return self._files(cell, base, share)
        if cell.queue:
            return self._queue(cell, base, share)
        if cell.direction == "both":
            return self._both(cell, base, share)
        if cell.sustained:
            return self._sustained(cell, base, share)
        if cell.direction == "read":
            # By now only the first half is as first written.
            job = replace(base, file_bytes=size // 2) if cell.again else base
            return [Outcome(cell=cell, direction="read", done=self.job(job, str(cell), share))]
        return [self._write(cell, base, share)]

    def job(self, job: disk_io.Job, what: str, share: float | None) -> disk_io.Done:
        """Run one job and book what it moved."""
        self.say(what, share)
        done = disk_io.run(self.fd, job, lambda rate: self.say(f"{what}: {show_rate(rate)}", share))
        self.book(done)
        self.say(f"{what}: {show_rate(done.rates.mean_bytes_per_s)}", share)
        return done

    def book(self, *jobs: disk_io.Done, cached: int | None = 0) -> None:
        """Add to the evidence what was moved and checked, and what of it is cached."""
        evidence = self.evidence
        for done in jobs:
            evidence.written_bytes += done.written_bytes
            evidence.read_bytes += done.read_bytes
            evidence.checked_bytes += done.checked_bytes
            evidence.wrong_pages += done.wrong_pages
        evidence.saw_cache(cached)
        evidence.saw_cache(directio.cached_pages(self.fd, os.fstat(self.fd).st_size))
        if not self.file.direct:
            # Buffered: at least the next read starts from the drive.
            os.fdatasync(self.fd)
            os.posix_fadvise(self.fd, 0, 0, os.POSIX_FADV_DONTNEED)

    def _pattern(self, granule: int) -> Pattern:
        return Pattern(self.seed, self.tag, granule)

    def _read_back(self, pattern: Pattern, touched: tuple[int, ...]) -> None:
        self._checked(*disk_io.read_back(self.fd, pattern, touched))

    def _checked(self, count: int, wrong: int) -> None:
        self.evidence.read_bytes += count
        self.evidence.checked_bytes += count
        self.evidence.wrong_pages += wrong

    def _write(self, cell: Cell, base: disk_io.Job, share: float) -> Outcome:
        """Overwrite, alone or between reads."""
        pattern = self._pattern(cell.granule)
        mixed = cell.direction == "mixed"
        writes = (cell.limit_bytes or 0) // cell.granule
        job = replace(
            base,
            direction="mixed" if mixed else "write",
            pattern=base.pattern if mixed else pattern,
            written=pattern if mixed else None,
            limit=writes * disk_io.WRITE_EVERY if mixed else writes,
            sync=cell.sync,
        )
        done = self.job(job, str(cell), share)
        self._read_back(pattern, done.touched)
        return Outcome(cell=cell, direction=job.direction, done=done)

    def _both(self, cell: Cell, base: disk_io.Job, share: float) -> list[Outcome]:
        """Reads in the first half of the file beside writes in the second."""
        pattern, middle = self._pattern(cell.granule), base.file_bytes // 2
        reads = replace(base, file_bytes=middle)
        writes = replace(
            base,
            direction="write",
            start_bytes=middle,
            pattern=pattern,
            limit=(cell.limit_bytes or 0) // cell.granule,
        )
        outcomes = self._together(cell, self.fd, reads, writes, share)
        self.book(*(outcome.done for outcome in outcomes))
        self._read_back(pattern, outcomes[1].done.touched)
        return outcomes

    def _together(
        self, cell: Cell, descriptor: int, reads: disk_io.Job, writes: disk_io.Job, share: float
    ) -> list[Outcome]:
        self.say(str(cell), share)
        pair = disk_io.run_together(
            descriptor, (reads, writes), lambda rate: self.say(f"{cell}: {show_rate(rate)}", share)
        )
        rates = " and ".join(show_rate(done.rates.mean_bytes_per_s) for done in pair)
        self.say(f"{cell}: {rates}", share)
        return [
            Outcome(cell=cell, direction=job.direction, done=done, beside=True)
            for job, done in zip((reads, writes), pair, strict=True)
        ]

    def _files(self, cell: Cell, base: disk_io.Job, share: float) -> list[Outcome]:
        """Loads from files of the first half of the blocks beside stores that replace those of the second."""
        pattern, count = self._pattern(cell.granule), cell.file_count
        with block_files.block_files(self.folder.path, pattern, self.file.direct) as files:
            self.say(f"{cell}: writing {count} files", share)
            try:
                files.fill(count)
            except OSError as error:
                if error.errno in _NO_NAMELESS_FILES:
                    raise NotHereError("the file system has no nameless files (O_TMPFILE)") from None
                raise
            finally:
                self.evidence.written_bytes += len(files.files) * cell.granule
            half = count // 2 * cell.granule
            limit = (cell.limit_bytes or 0) // cell.granule - count
            reads = replace(base, file_bytes=half, pattern=pattern, make_side=files.side)
            writes = replace(reads, direction="write", start_bytes=half, file_bytes=count * cell.granule, limit=limit)
            outcomes = self._together(cell, self.fd, reads, writes, share)
            self.book(*(outcome.done for outcome in outcomes), cached=files.cached_pages())
            self._checked(*files.read_back(outcomes[1].done.touched))
        return outcomes

    def _queue(self, cell: Cell, base: disk_io.Job, share: float) -> list[Outcome]:
        """The same transfers over one of the kernel's queues."""
        assert cell.queue is not None
        writes = cell.direction == "write"
        pattern = self._pattern(cell.granule) if writes else base.pattern
        limit = (cell.limit_bytes or 0) // cell.granule if writes else None
        job = replace(base, direction="write" if writes else "read", pattern=pattern, limit=limit)
        self.say(str(cell), share)
        try:
            done = queued_io.run(self.fd, job, cell.queue, lambda rate: self.say(f"{cell}: {show_rate(rate)}", share))
        except UnavailableError as error:
            raise NotHereError(str(error)) from None
        self.book(done)
        if writes:
            self._read_back(pattern, done.touched)
        return [Outcome(cell=cell, direction=job.direction, done=done)]

    def _sustained(self, cell: Cell, base: disk_io.Job, share: float) -> list[Outcome]:
        """Write in order, round and round, until the rate holds or time or budget ends."""
        pattern, steady = self._pattern(cell.granule), Steadiness()
        what = f"writing on until the rate holds, {show_bytes(cell.limit_bytes or 0)} at most"
        job = replace(
            base,
            direction="write",
            pattern=pattern,
            sequential=True,
            limit=(cell.limit_bytes or 0) // cell.granule,
        )
        self.say(what, share)
        (done,) = disk_io.run_together(
            self.fd, (job,), lambda rate: self.say(f"{what}: {show_rate(rate)}", share), steady.enough
        )
        self.book(done)
        self._read_back(pattern, done.touched)
        return [Outcome(cell=cell, direction="write", done=done, held=steady.held(done))]
