"""Timed transfers to and from one open file: `depth` threads, each with one transfer in flight and its own buffer.

This is what serving engines do (a thread a transfer, preadv and pwritev), and it needs nothing that a container might
forbid. Content is incompressible and names its own place, so that every transfer can be checked.
"""

from __future__ import annotations

import contextlib
import errno
import itertools
import mmap
import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from kvplan.probing.timing import Rates, summarise
from kvplan.units import GB, KiB

PAGE = 4096
_WORDS = PAGE // 8
# A thread's buffer: longer than what lz4 looks back, and as small as that, since a buffer that falls out of the CPU's
# cache slows down virtual drives whose host copies the data.
_PERIOD = 128 * KiB
_TAG_SHIFT = 40  # a tag above, the page number (up to 4 PiB) below
_LISTEN_S = 0.25

Listener = Callable[[float], None]


class Pattern:
    """Content of a file: random words repeated every `period` bytes, each page opened by a word `tag` | page number.

    Pages are pairwise different (no deduplication), cannot be compressed, and tell where and by whom they were written.
    """

    def __init__(self, seed: int, tag: int, granule: int) -> None:
        self.granule = granule
        self.slots = -(-_PERIOD // granule)
        self.pages = granule // PAGE
        self._tag = tag << _TAG_SHIFT
        words = self.slots * granule // 8
        self._body = np.random.default_rng((seed, tag)).integers(0, 1 << 64, words, dtype=np.uint64).reshape(-1, _WORDS)
        self._numbers = np.arange(self.pages, dtype=np.uint64)

    def writer(self) -> tuple[mmap.mmap, Callable[[int], memoryview]]:
        """An aligned buffer and a function that makes it hold block i: all that costs is one vector of page numbers."""
        area = mmap.mmap(-1, self._body.nbytes)
        rows = np.frombuffer(area, dtype=np.uint64).reshape(-1, _WORDS)
        rows[:] = self._body
        stamps = [rows[slot * self.pages : (slot + 1) * self.pages, 0] for slot in range(self.slots)]
        whole = memoryview(area)
        views = [whole[slot * self.granule : (slot + 1) * self.granule] for slot in range(self.slots)]

        def block(index: int) -> memoryview:
            slot = index % self.slots
            np.add(self._numbers, np.uint64(self._tag + index * self.pages), out=stamps[slot])
            return views[slot]

        return area, block

    def wrong_pages(self, data: Any, offset: int) -> int:
        """Pages of `data`, read at byte `offset`, that differ from what was written there."""
        rows = np.frombuffer(data, dtype=np.uint64).reshape(-1, _WORDS)
        pages = np.arange(offset // PAGE, offset // PAGE + len(rows), dtype=np.uint64)
        first = int(pages[0]) % len(self._body)
        inside = first + len(rows) <= len(self._body)
        body = self._body[first : first + len(rows)] if inside else self._body[pages % np.uint64(len(self._body))]
        good = (rows[:, 0] == pages + np.uint64(self._tag)) & (rows[:, 1:] == body[:, 1:]).all(axis=1)
        return int(len(rows) - np.count_nonzero(good))


@dataclass(frozen=True, slots=True, kw_only=True)
class Job:
    """One cell: what to transfer, for how long at most, and how many transfers at most.

    Random order visits every block of the file once before any again, and no two threads visit the same one; sequential
    order goes through the file once. `check` compares every block that was read, between the timed transfers.
    """

    direction: Literal["read", "write"]
    granule: int
    depth: int
    file_bytes: int
    seconds: float
    pattern: Pattern
    sequential: bool = False
    limit: int | None = None
    seed: int = 0
    check: bool = False

    @property
    def blocks(self) -> int:
        """Whole granules in the file."""
        return self.file_bytes // self.granule


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """What a job did: `touched` are the blocks transferred last, `wrong_pages` of `checked_bytes` did not verify."""

    rates: Rates
    transfers: int
    moved_bytes: int
    cpu_s_per_gb: float
    touched: tuple[int, ...]
    checked_bytes: int
    wrong_pages: int


@dataclass(slots=True)
class _Shared:
    """What the threads of one job share: a start signal, a stop signal and a common count of transfers."""

    descriptor: int
    job: Job
    tickets: Iterator[int]
    go: threading.Event = field(default_factory=threading.Event)
    stop: threading.Event = field(default_factory=threading.Event)
    ended: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(0))
    deadline_ns: int = 0


class _Worker(threading.Thread):
    def __init__(self, shared: _Shared, order: Iterator[int]) -> None:
        super().__init__(name="kvplan-disk", daemon=True)
        self.shared = shared
        self.order = order
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.blocks: list[int] = []
        self.checked = 0
        self.wrong = 0
        self.error: BaseException | None = None
        self.block: Callable[[int], memoryview] | None = None
        if shared.job.direction == "write":
            self.area, self.block = shared.job.pattern.writer()
        else:
            self.area = mmap.mmap(-1, shared.job.granule)
            self.area.write(bytes(shared.job.granule))  # first touch now, not under the clock

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
        shared, job = self.shared, self.shared.job
        descriptor, granule, clock = shared.descriptor, job.granule, time.perf_counter_ns
        limit = job.blocks if job.sequential else job.limit
        target = memoryview(self.area)
        for ticket in shared.tickets:
            if shared.stop.is_set() or (limit is not None and ticket >= limit):
                return
            index = ticket if job.sequential else next(self.order)
            data = target if self.block is None else self.block(index)
            start = clock()
            if self.block is None:
                count = os.preadv(descriptor, (data,), index * granule)
            else:
                count = os.pwritev(descriptor, (data,), index * granule)
            end = clock()
            if count != granule:
                raise OSError(errno.EIO, f"{job.direction} of {granule} bytes moved only {count}")
            self.starts.append(start)
            self.ends.append(end)
            self.blocks.append(index)
            if job.check:
                self.verify(index)
            if end >= shared.deadline_ns:
                return

    def verify(self, index: int) -> None:
        """Compare the buffer with what block `index` must hold."""
        granule = self.shared.job.granule
        self.checked += granule
        self.wrong += self.shared.job.pattern.wrong_pages(self.area, index * granule)


def run(descriptor: int, job: Job, listen: Listener) -> Done:
    """Do one job. `listen` hears the bytes per second so far, a few times a second.

    Raises the OSError of the first transfer that fails. Whatever ends it, an interrupt included, no thread outlives it.
    """
    shared = _Shared(descriptor=descriptor, job=job, tickets=itertools.count())
    order = np.random.default_rng(job.seed).permutation(job.blocks)
    workers = [_Worker(shared, itertools.cycle(order[lane :: job.depth].tolist())) for lane in range(job.depth)]
    try:
        for worker in workers:
            worker.start()
        cpu, begin = time.process_time(), time.perf_counter_ns()
        shared.deadline_ns = begin + int(job.seconds * 1e9)
        shared.go.set()
        _wait(shared, workers, begin, listen)
        cpu = time.process_time() - cpu
    finally:
        shared.stop.set()
        shared.go.set()
        _join(workers)
    for worker in workers:
        if worker.error is not None:
            raise worker.error
    return _collect(job, workers, begin, cpu)


def _wait(shared: _Shared, workers: list[_Worker], begin: int, listen: Listener) -> None:
    left = len(workers)
    while left:
        if shared.ended.acquire(timeout=_LISTEN_S):
            left -= 1
            continue
        moved = sum(len(worker.ends) for worker in workers) * shared.job.granule
        listen(moved / ((time.perf_counter_ns() - begin) / 1e9))


def _join(workers: list[_Worker]) -> None:
    """Wait for every thread that started, whatever a user presses meanwhile: the descriptor is closed after this."""
    for worker in workers:
        while worker.ident is not None and worker.is_alive():
            with contextlib.suppress(KeyboardInterrupt):
                worker.join()


def _collect(job: Job, workers: list[_Worker], begin: int, cpu: float) -> Done:
    if job.direction == "read" and not job.check:
        for worker in workers:
            if worker.blocks:
                worker.verify(worker.blocks[-1])
    starts = _seconds([at for worker in workers for at in worker.starts], begin)
    ends = _seconds([at for worker in workers for at in worker.ends], begin)
    # Rates count while all threads had a transfer in flight: up to the moment the first one had no more to do.
    last = [worker.ends[-1] for worker in workers if worker.ends]
    moved = len(ends) * job.granule
    return Done(
        rates=summarise(starts, ends, job.granule, 0.0, (min(last) - begin) / 1e9),
        transfers=len(ends),
        moved_bytes=moved,
        cpu_s_per_gb=cpu / (moved / GB),
        touched=tuple(index for worker in workers for index in worker.blocks[-4:]),
        checked_bytes=sum(worker.checked for worker in workers),
        wrong_pages=sum(worker.wrong for worker in workers),
    )


def _seconds(at: list[int], begin: int) -> NDArray[np.float64]:
    return (np.array(at, dtype=np.int64) - begin) / 1e9


def read_back(descriptor: int, pattern: Pattern, blocks: tuple[int, ...]) -> tuple[int, int]:
    """(bytes read, wrong pages) of some blocks just written in `pattern`."""
    wrong = 0
    unique = sorted(set(blocks))
    with mmap.mmap(-1, pattern.granule) as area:
        for index in unique:
            view = memoryview(area)
            if os.preadv(descriptor, (view,), index * pattern.granule) != pattern.granule:
                raise OSError(errno.EIO, "short read")
            wrong += pattern.wrong_pages(view, index * pattern.granule)
            view.release()
    return len(unique) * pattern.granule, wrong
