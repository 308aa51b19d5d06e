"""A job done by one thread over one of the kernel's queues instead of by `depth` threads: see kernel_queues."""

from __future__ import annotations

import errno
import functools
import os
import time
from collections.abc import Callable, Sequence

import numpy as np

from kvplan.probing.disk_io import Done, Job, Listener
from kvplan.probing.kernel_queues import Aio, Queue, UnavailableError, Uring, io_uring_forbidden
from kvplan.probing.pattern import Buffer, Views
from kvplan.probing.timing import summarise
from kvplan.units import GB

_LISTEN_S = 0.25

Open = Callable[[int, Sequence[Buffer], int, bool], Queue]
QUEUES: dict[str, Open] = {
    "libaio": Aio,
    "io_uring": Uring,
    "io_uring, registered buffers": functools.partial(Uring, fixed=True),
}


def run(descriptor: int, job: Job, name: str, listen: Listener) -> Done:
    """Do a read or write job over the queue `name`, `depth` transfers in flight, one thread.

    Raises UnavailableError where the kernel or the container does not offer it, OSError where a transfer fails.
    """
    return _Loop(descriptor, job, name).run(listen)


class _Loop:
    """One job in flight: a buffer, a block and a start time for each slot of the queue."""

    def __init__(self, descriptor: int, job: Job, name: str) -> None:
        self.job = job
        self.writes = job.direction == "write"
        self.made = [job.pattern.writer() for _ in range(job.depth)] if self.writes else []
        self.buffers = [buffer for buffer, _ in self.made] or [Buffer(job.granule) for _ in range(job.depth)]
        try:
            self.queue = QUEUES[name](descriptor, self.buffers, job.granule, self.writes)
        except UnavailableError as error:
            forbidden = io_uring_forbidden() if "uring" in name else None
            raise UnavailableError(forbidden or str(error)) from None
        self.order = np.random.default_rng((job.seed, self.writes)).permutation(len(job.blocks)) + job.blocks.start
        self.next = 0
        self.block = [-1] * job.depth
        self.began = [0] * job.depth
        self.starts: list[int] = []
        self.ends: list[int] = []
        self.touched: list[int] = []

    def run(self, listen: Listener) -> Done:
        """Keep every slot busy until time or transfers are used up, then wait for the last."""
        try:
            cpu, begin = time.process_time(), time.perf_counter_ns()
            until = self._keep_busy(begin, listen)
            cpu = time.process_time() - cpu
        finally:
            self.queue.close()
        return self._done(begin, until, cpu)

    def _keep_busy(self, begin: int, listen: Listener) -> int:
        job, clock = self.job, time.perf_counter_ns
        deadline, heard, until = begin + int(job.seconds * 1e9), begin, 0
        for slot in range(job.depth):
            self._submit(slot)
        flying = job.depth
        while flying:
            finished = self.queue.wait()
            now = clock()
            for slot, count in finished:
                self._finish(slot, count, now)
                if now < deadline and (job.limit is None or self.next < job.limit):
                    self._submit(slot)
                else:
                    flying -= 1
                    until = until or now
            if now - heard > _LISTEN_S * 1e9:
                heard = now
                listen(len(self.ends) * job.granule / ((now - begin) / 1e9))
        return until

    def _submit(self, slot: int) -> None:
        index = int(self.order[self.next % len(self.order)])
        self.next += 1
        self.block[slot] = index
        if self.writes:
            self._stamp(slot, index)
        self.began[slot] = time.perf_counter_ns()
        self.queue.submit(slot, index * self.job.granule)

    def _stamp(self, slot: int, index: int) -> None:
        """The queue knows the start of a slot's buffer only, so a pattern of several slots uses the first."""
        views: Views = self.made[slot][1](index)
        if views is not self.buffers[slot].views[0]:
            raise ValueError("blocks smaller than the pattern's period cannot be queued")

    def _finish(self, slot: int, count: int, now: int) -> None:
        if count < 0:
            raise OSError(-count, os.strerror(-count))
        if count != self.job.granule:
            raise OSError(errno.EIO, f"{self.job.direction} of {self.job.granule} bytes moved only {count}")
        self.starts.append(self.began[slot])
        self.ends.append(now)
        self.touched.append(self.block[slot])

    def _done(self, begin: int, until: int, cpu: float) -> Done:
        granule, moved = self.job.granule, len(self.ends) * self.job.granule
        starts = (np.array(self.starts, dtype=np.int64) - begin) / 1e9
        ends = (np.array(self.ends, dtype=np.int64) - begin) / 1e9
        wrong = 0
        if not self.writes:
            for buffer, index in zip(self.buffers, self.block, strict=True):
                wrong += self.job.pattern.wrong_pages(buffer.content(), index * granule)
        return Done(
            rates=summarise(starts, ends, granule, float(starts.min()), (until - begin) / 1e9),
            transfers=len(self.ends),
            moved_bytes=moved,
            written_bytes=moved if self.writes else 0,
            cpu_s_per_gb=cpu / (moved / GB),
            touched=tuple(self.touched[-4 * self.job.depth :]) if self.writes else (),
            checked_bytes=0 if self.writes else len(self.buffers) * granule,
            wrong_pages=wrong,
            start_s=starts,
            end_s=ends,
            until_s=(until - begin) / 1e9,
        )
