"""Timed transfers to and from one open file: `depth` threads, each with one transfer in flight and its own buffer.

This is what serving engines do (a thread a transfer, preadv and pwritev), and it needs nothing that a container might
forbid. Content is incompressible and names its own place, so that every transfer can be checked.
"""

from __future__ import annotations

import errno
import itertools
import os
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol

import numpy as np
from numpy.typing import NDArray

from kvplan.probing.interrupts import join_all
from kvplan.probing.pattern import Buffer, Pattern, Views
from kvplan.probing.timing import Rates, summarise
from kvplan.units import GB

_LISTEN_S = 0.25
# Of a mixed job's transfers, one in so many writes: caches are read more than they are written.
WRITE_EVERY = 3

Listener = Callable[[float], None]
Direction = Literal["read", "write", "mixed"]


class Side(Protocol):
    """How one thread moves blocks in one direction: prepared before the clock, moved under it."""

    def prepare(self, index: int) -> None:
        """Make block `index` ready to be moved."""

    def move(self, index: int) -> int:
        """Move it; bytes moved."""

    def wrong_pages(self, index: int) -> int:
        """Pages of block `index`, moved last, that are not what they must be."""


MakeSide = Callable[["Job", bool], Side]


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One cell: what to transfer, for how long at most, and how many transfers at most.

    Blocks lie in [start_bytes, file_bytes) of the file. Random order visits every one of them once before any again,
    and no two threads visit the same one; sequential order goes through them once, or round and round up to `limit`. A
    mixed job reads in the first half of its range, and writes `written` in the second, one transfer in three.
    `pieces` buffers make up one block, moved by one call, or by one call each if `separate`. `sync` follows each
    write by fdatasync. `check` compares every block that was read, between the timed transfers.
    """

    direction: Direction
    granule: int
    depth: int
    file_bytes: int
    seconds: float
    pattern: Pattern
    start_bytes: int = 0
    written: Pattern | None = None
    pieces: int = 1
    separate: bool = False
    sync: bool = False
    sequential: bool = False
    limit: int | None = None
    seed: int = 0
    check: bool = False
    make_side: MakeSide | None = None

    @property
    def blocks(self) -> range:
        """Numbers of the whole granules in range, counted from the start of the file."""
        return range(-(-self.start_bytes // self.granule), self.file_bytes // self.granule)

    def half(self, writes: bool) -> range:
        """The blocks of one direction: all of them, or in a mixed job its half."""
        if self.direction != "mixed":
            return self.blocks
        middle = len(self.blocks) // 2
        return self.blocks[middle:] if writes else self.blocks[:middle]


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a job did: `touched` are blocks written last, `wrong_pages` of `checked_bytes` did not verify.

    `start_s` and `end_s` are of single transfers, thread by thread, from the start of the job; `until_s` is when the
    first thread had no more to do.
    """

    rates: Rates
    transfers: int
    moved_bytes: int
    written_bytes: int
    cpu_s_per_gb: float
    touched: tuple[int, ...]
    checked_bytes: int
    wrong_pages: int
    start_s: NDArray[np.float64]
    end_s: NDArray[np.float64]
    until_s: float

    @property
    def read_bytes(self) -> int:
        """What of `moved_bytes` was read."""
        return self.moved_bytes - self.written_bytes


class _Read:
    """Reads blocks of a file into a buffer of its own."""

    def __init__(self, descriptor: int, job: Job) -> None:
        self.descriptor, self.job = descriptor, job
        self.buffer = Buffer(job.granule, job.pieces)
        self.views = self.buffer.views[0]

    def prepare(self, index: int) -> None:
        """Nothing to do."""

    def move(self, index: int) -> int:
        """One call, or one a piece."""
        at = index * self.job.granule
        if self.job.separate:
            return sum(os.preadv(self.descriptor, (view,), offset) for view, offset in _places(self.views, at))
        return os.preadv(self.descriptor, self.views, at)

    def wrong_pages(self, index: int) -> int:
        """Pages that are not what was written."""
        return self.job.pattern.wrong_pages(self.buffer.content(), index * self.job.granule)


class _Write:
    """Writes blocks of a file from a buffer of its own."""

    def __init__(self, descriptor: int, job: Job) -> None:
        self.descriptor, self.job = descriptor, job
        _, self.block = (job.written or job.pattern).writer(job.pieces)
        self.views: Views = ()

    def prepare(self, index: int) -> None:
        """Stamp the block with its place."""
        self.views = self.block(index)

    def move(self, index: int) -> int:
        """One call, or one a piece; and fdatasync where that is part of it."""
        at = index * self.job.granule
        if self.job.separate:
            count = sum(os.pwritev(self.descriptor, (view,), offset) for view, offset in _places(self.views, at))
        else:
            count = os.pwritev(self.descriptor, self.views, at)
        if self.job.sync:
            os.fdatasync(self.descriptor)
        return count

    def wrong_pages(self, index: int) -> int:
        """Unknown until it is read back: see `read_back`."""
        return 0


def _places(views: Views, at: int) -> Iterator[tuple[memoryview, int]]:
    for view in views:
        yield view, at
        at += len(view)


@dataclass(slots=True)
class _Shared:
    """What the threads of one job share, and with those of the job beside it: start, stop, and a common count."""

    job: Job
    go: threading.Event
    stop: threading.Event
    ended: threading.Semaphore
    tickets: Iterator[int] = field(default_factory=itertools.count)
    deadline_ns: int = 0


class _Worker(threading.Thread):
    """One thread: a side for each direction that its job has, and what it moved when."""

    def __init__(self, shared: _Shared, make: MakeSide, lane: int) -> None:
        super().__init__(name="kvplan-disk", daemon=True)
        self.shared = shared
        job = shared.job
        self.read = make(job, False) if job.direction != "write" else None
        self.write = make(job, True) if job.direction != "read" else None
        self.orders = {writes: _order(job, writes, lane) for writes in (False, True)}
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.blocks: dict[bool, list[int]] = {False: [], True: []}
        self.checked = 0
        self.wrong = 0
        self.error: BaseException | None = None

    def run(self) -> None:
        try:
            self.shared.go.wait()
            self._transfer()
        except BaseException as error:
            self.error = error
            self.shared.stop.set()
        finally:
            self.shared.ended.release()

    def _transfer(self) -> None:
        shared, job, clock = self.shared, self.shared.job, time.perf_counter_ns
        blocks = job.blocks
        limit = len(blocks) if job.sequential and job.limit is None else job.limit
        for ticket in shared.tickets:
            # A thread that wakes late still does one: a side that moved nothing would have no rate.
            if (self.ends and shared.stop.is_set()) or (limit is not None and ticket >= limit):
                return
            writes = self.read is None or (self.write is not None and ticket % WRITE_EVERY == 0)
            side = self.write if writes else self.read
            assert side is not None
            index = blocks[ticket % len(blocks)] if job.sequential else next(self.orders[writes])
            side.prepare(index)
            start = clock()
            count = side.move(index)
            end = clock()
            if count != job.granule:
                raise OSError(errno.EIO, f"{job.direction} of {job.granule} bytes moved only {count}")
            self.starts.append(start)
            self.ends.append(end)
            self.blocks[writes].append(index)
            if job.check:
                self.verify(index)
            if end >= shared.deadline_ns:
                return

    def verify(self, index: int) -> None:
        """Compare the reading side's buffer with what block `index` must hold."""
        if self.read is not None:
            self.checked += self.shared.job.granule
            self.wrong += self.read.wrong_pages(index)

    def verify_last(self) -> None:
        """Compare the last block read, where nothing was compared on the way."""
        if self.blocks[False] and not self.shared.job.check:
            self.verify(self.blocks[False][-1])


def _order(job: Job, writes: bool, lane: int) -> Iterator[int]:
    """The blocks of one thread in random order, round and round."""
    blocks = job.half(writes)
    chosen = np.random.default_rng((job.seed, writes)).permutation(len(blocks))[lane :: job.depth]
    return itertools.cycle((chosen + blocks.start).tolist())


def run(descriptor: int, job: Job, listen: Listener) -> Done:
    """Do one job. `listen` hears the bytes per second so far, a few times a second.

    Raises the OSError of the first transfer that fails. Whatever ends it, an interrupt included, no thread outlives it.
    """
    return run_together(descriptor, (job,), listen)[0]


def run_together(
    descriptor: int, jobs: Sequence[Job], listen: Listener, enough: Callable[[float, int], bool] | None = None
) -> tuple[Done, ...]:
    """Do several jobs at the same time, until the first of them ends: while one rests, the others run alone.

    `enough` hears seconds and bytes so far, a few times a second, and may end it. Otherwise as `run`.
    """
    go, stop, ended = threading.Event(), threading.Event(), threading.Semaphore(0)
    crews = []
    for job in jobs:
        shared = _Shared(job=job, go=go, stop=stop, ended=ended)
        make = job.make_side or _in_file(descriptor)
        crews.append([_Worker(shared, make, lane) for lane in range(job.depth)])
    workers = [worker for crew in crews for worker in crew]
    try:
        for worker in workers:
            worker.start()
        cpu, begin = time.process_time(), time.perf_counter_ns()
        for worker in workers:
            worker.shared.deadline_ns = begin + int(worker.shared.job.seconds * 1e9)
        go.set()
        _wait(workers, ended, begin, listen, enough)
        cpu = time.process_time() - cpu
    finally:
        stop.set()
        go.set()
        join_all(workers)  # the descriptor is closed after this
    for worker in workers:
        if worker.error is not None:
            raise worker.error
    return _collect_all(crews, begin, cpu)


def _in_file(descriptor: int) -> MakeSide:
    return lambda job, writes: _Write(descriptor, job) if writes else _Read(descriptor, job)


def _wait(
    workers: list[_Worker],
    ended: threading.Semaphore,
    begin: int,
    listen: Listener,
    enough: Callable[[float, int], bool] | None,
) -> None:
    left = len(workers)
    together = len({id(worker.shared) for worker in workers}) > 1
    while left:
        if ended.acquire(timeout=_LISTEN_S):
            left -= 1
            if together:
                workers[0].shared.stop.set()
            continue
        moved = sum(len(worker.ends) * worker.shared.job.granule for worker in workers)
        elapsed = (time.perf_counter_ns() - begin) / 1e9
        listen(moved / elapsed)
        if enough is not None and enough(elapsed, moved):
            workers[0].shared.stop.set()


def _collect_all(crews: list[list[_Worker]], begin: int, cpu: float) -> tuple[Done, ...]:
    # Rates count while all threads had a transfer in flight: up to the moment the first one had no more to do.
    until = min(worker.ends[-1] for crew in crews for worker in crew if worker.ends)
    moved = sum(len(worker.ends) * worker.shared.job.granule for crew in crews for worker in crew)
    return tuple(_collect(crew, begin, until, cpu / (moved / GB)) for crew in crews)


def _collect(workers: list[_Worker], begin: int, until: int, cpu_s_per_gb: float) -> Done:
    granule = workers[0].shared.job.granule
    for worker in workers:
        worker.verify_last()
    starts = _seconds([at for worker in workers for at in worker.starts], begin)
    ends = _seconds([at for worker in workers for at in worker.ends], begin)
    until_s = (until - begin) / 1e9
    return Done(
        rates=summarise(starts, ends, granule, float(starts.min()), until_s),
        transfers=len(ends),
        moved_bytes=len(ends) * granule,
        written_bytes=sum(len(worker.blocks[True]) for worker in workers) * granule,
        cpu_s_per_gb=cpu_s_per_gb,
        touched=tuple(index for worker in workers for index in worker.blocks[True][-4:]),
        checked_bytes=sum(worker.checked for worker in workers),
        wrong_pages=sum(worker.wrong for worker in workers),
        start_s=starts,
        end_s=ends,
        until_s=until_s,
    )


def _seconds(at: list[int], begin: int) -> NDArray[np.float64]:
    return (np.array(at, dtype=np.int64) - begin) / 1e9


def read_back(descriptor: int, pattern: Pattern, blocks: tuple[int, ...]) -> tuple[int, int]:
    """(bytes read, wrong pages) of some blocks just written in `pattern`."""
    wrong = 0
    unique = sorted(set(blocks))
    buffer = Buffer(pattern.granule)
    for index in unique:
        if os.preadv(descriptor, buffer.views[0], index * pattern.granule) != pattern.granule:
            raise OSError(errno.EIO, "short read")
        wrong += pattern.wrong_pages(buffer.content(), index * pattern.granule)
    return len(unique) * pattern.granule, wrong
