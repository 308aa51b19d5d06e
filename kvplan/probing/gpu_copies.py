"""Timed and verified copies between host memory and one GPU: one direction alone, or beside the opposite one.

A train is one pass over a buffer in pieces of one size, timed by marks in the device's own stream. Before every timed
train its source gets a pattern never used before, and after it every word of the target is compared, so a copy that
was reported done but did not happen is seen as surely as a flipped bit.
"""

from __future__ import annotations

import math
import time
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvplan.documents import KvPieces
from kvplan.probing.cuda import Gpu, HostArray, fill_host, wrong_host_words
from kvplan.probing.mechanisms import Direction, Mechanism

_BATCH = 8  # copies queued on one stream before the other gets its turn
_AGREE, _AGREEING, _UNSETTLED = 0.02, 3, 0.1
_FEWEST_TRAINS, _MOST_TRAINS = 5, 40
_FEWEST_SINGLES, _MOST_SINGLES = 5, 200
_MOST_PIECES = 16384  # of one train
_TWICE, _MOST_REPEATS = 2, 64  # of the opposite lane's train during one of this lane's
_MARGIN = 1.25  # by which the opposite lane should outlast this one, as no two trains are alike
_MOST_LONGER = 8  # times a train of the opposite lane that this lane's may be
_WARM_SHARE, _SINGLES_SHARE = 0.3, 0.2


@dataclass(frozen=True, slots=True, kw_only=True)
class Lane:
    """One direction with a host buffer, device memory of the same size and a stream of its own."""

    direction: Direction
    host: HostArray
    memory: Any
    stream: Any


@dataclass(slots=True, kw_only=True)
class Seen:
    """What a cell showed: bytes per second of each train, seconds of each single copy, and what was wrong with it."""

    rates: list[float] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    copies: int = 0
    wrong_words: int = 0
    settled: bool = True
    concurrent: bool = True


class Copies:
    """Copies of one piece size in one lane, beside those of `opposite` where one is given.

    `most` bytes of the lane are used where a piece is not longer; None is all of it. `against` are the pieces of the
    opposite lane; None are such as these, one call each.
    """

    def __init__(
        self,
        gpu: Gpu,
        lane: Lane,
        granule: int,
        opposite: Lane | None,
        base: NDArray[np.uint64],
        random: np.random.Generator,
        mechanism: Mechanism = "loop",
        most: int | None = None,
        against: KvPieces | None = None,
    ) -> None:
        self.gpu, self.granule = gpu, granule
        theirs = against or KvPieces(piece_bytes=granule, mechanism="loop")
        self.opposite = opposite = None if opposite is None else _short(opposite, theirs.piece_bytes, most)
        if opposite is not None:
            most = min(most or len(lane.host), _MOST_LONGER * len(opposite.host))
        self.lane = lane = _short(lane, granule, most)
        self.base, self.random = base, random
        self.pieces = gpu.prepare(lane.direction, lane.host, lane.memory, granule, mechanism)
        self.count = -(-len(lane.host) // granule)
        # Single copies: those that lie in order, or where one call moves all of them, a call for the first alone.
        self.singles = (
            self.pieces[: len(lane.host) // granule]
            if mechanism == "loop"
            else gpu.prepare(lane.direction, lane.host[:granule], lane.memory[:granule], granule, mechanism)
        )
        self.beside = (
            gpu.prepare(opposite.direction, opposite.host, opposite.memory, theirs.piece_bytes, theirs.mechanism)
            if opposite is not None
            else ()
        )
        self.repeats = _TWICE if opposite is None else -(-_TWICE * len(lane.host) // len(opposite.host))
        # One by one, pieces of both lanes are queued in turn. Where one call queues a whole train, half of what the
        # opposite lane has to do is there before, so that it never waits for this thread.
        self.ahead = 1 if mechanism == theirs.mechanism == "loop" else None

    def measure(self, seconds: float) -> Seen:
        """Warm up, time trains, then single copies, in about `seconds`; never fewer of each than a figure needs."""
        seen = Seen()
        self._warm(seconds * _WARM_SHARE, seen)
        self._trains(seconds * (1 - _WARM_SHARE - _SINGLES_SHARE), seen)
        self._singles(seconds * _SINGLES_SHARE, seen)
        return seen

    def load(self, trains: int) -> None:
        """Queue some trains and return while they run."""
        for _ in range(trains):
            self.gpu.submit(self.lane.stream, self.pieces)

    def _train(self) -> tuple[float, float]:
        """Seconds of one train, and how many times as long the opposite lane was at work, which starts first."""
        gpu, mine = self.gpu, self.lane.stream
        behind = deque(_batches(self.beside) * self.repeats)
        theirs = self.opposite.stream if self.opposite is not None else None
        for _ in range(min(self.ahead or -(-len(behind) // 2), len(behind))):
            gpu.submit(theirs, behind.popleft())
        start = gpu.mark(mine)
        for batch in _batches(self.pieces):
            gpu.submit(mine, batch)
            if behind:
                gpu.submit(theirs, behind.popleft())
        end = gpu.mark(mine)
        while behind:
            gpu.submit(theirs, behind.popleft())
        if theirs is None:
            return gpu.seconds(start, end), math.inf
        last = gpu.mark(theirs)
        gpu.wait(theirs)
        seconds = gpu.seconds(start, end)
        return seconds, gpu.seconds(start, last) / max(seconds, 1e-9)

    def _more_beside(self, lasted: float, wanted: float) -> bool:
        """Whether the opposite lane did not last as wanted and now gets twice the work."""
        if lasted >= wanted or self.repeats >= _MOST_REPEATS:
            return False
        self.repeats = min(2 * self.repeats, _MOST_REPEATS)
        return True

    def _warm(self, seconds: float, seen: Seen) -> None:
        """Copy until trains agree: clocks, power states and a link that idled at a lower speed take time to come up.

        An opposite lane that ended before this one, or little later, gets twice the work.
        """
        until = time.monotonic() + seconds
        times: list[float] = []
        while True:
            took, lasted = self._train()
            if self._more_beside(lasted, _MARGIN):
                times.clear()
                continue
            times.append(took)
            last = times[-_AGREEING:]
            spread = max(last) / max(min(last), 1e-9) - 1
            if len(last) == _AGREEING and (spread <= _AGREE or time.monotonic() >= until):
                seen.settled = spread <= _UNSETTLED
                return

    def _trains(self, seconds: float, seen: Seen) -> None:
        until = time.monotonic() + seconds
        size = len(self.lane.host)
        while len(seen.rates) < _FEWEST_TRAINS or (len(seen.rates) < _MOST_TRAINS and time.monotonic() < until):
            key = self.refresh()
            took, lasted = self._train()
            seen.wrong_words += self.wrong_words(key, size)
            seen.copies += self.count
            if self._more_beside(lasted, 1.0):
                continue  # part of it ran alone: no rate of both at once
            seen.concurrent &= lasted >= 1
            seen.rates.append(size / took)

    def _singles(self, seconds: float, seen: Seen) -> None:
        """One copy at a time, from submitting it to knowing that it is done: what a lone block load waits for."""
        until = time.monotonic() + seconds
        while len(seen.latencies) < _FEWEST_SINGLES or time.monotonic() < until:
            key = self.refresh()
            count = 0
            for piece in self.singles[: _MOST_SINGLES - len(seen.latencies)]:
                began = time.perf_counter()
                self.gpu.submit(self.lane.stream, (piece,))
                self.gpu.wait(self.lane.stream)
                seen.latencies.append(time.perf_counter() - began)
                count += 1
                if len(seen.latencies) >= _FEWEST_SINGLES and time.monotonic() >= until:
                    break
            seen.wrong_words += self.wrong_words(key, count * self.granule)
            seen.copies += count
            if len(seen.latencies) >= _MOST_SINGLES:
                return

    def refresh(self) -> int:
        """Give the source a pattern that was never there before, so that what the target still holds is wrong."""
        key = int(self.random.integers(1, 1 << 64, dtype=np.uint64))
        if self.lane.direction == "h2d":
            fill_host(self.lane.host, self.base, key)
        else:
            self.gpu.fill(self.lane.memory, key)
        return key

    def wrong_words(self, key: int, size: int | None = None) -> int:
        """Words of the target that differ from the source's pattern, compared on the target's own side."""
        size = len(self.lane.host) if size is None else size
        if self.lane.direction == "h2d":
            return self.gpu.wrong_words(self.lane.memory, key, size)
        return wrong_host_words(self.lane.host[:size], self.base, key)


def _short(lane: Lane, granule: int, most: int | None) -> Lane:
    """The lane's beginning, as long as a train of pieces of this size needs to be: small ones take their time each."""
    size = min(len(lane.host), granule * _MOST_PIECES, max(most or len(lane.host), granule))
    return replace(lane, host=lane.host[:size], memory=lane.memory[:size])


def _batches(pieces: Sequence[Any]) -> list[Sequence[Any]]:
    return [pieces[at : at + _BATCH] for at in range(0, len(pieces), _BATCH)]
