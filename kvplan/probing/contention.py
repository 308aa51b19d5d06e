"""Copies beside decoding: what each takes from the other.

Steps and trains of copies run on streams of their own. All their times are read from marks against one common start,
and only what ran while both were busy counts.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import numpy as np

from kvplan.documents import Contention
from kvplan.probing.cuda import DecodeLoad, Gpu
from kvplan.probing.gpu_copies import Copies

STEPS = 2000  # enough that the 99th percentile has twenty steps above it
FEWEST = 200
_TURN = 16  # steps queued between two looks at the clock
_AHEAD = 2  # turns that may be queued and not yet done
_WARM = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class _Spans:
    """Start and end of single pieces of work of one stream, seconds since the common start."""

    start: np.ndarray
    end: np.ndarray

    def within(self, begin: float, finish: float) -> _Spans:
        """Those wholly inside [begin, finish]."""
        inside = (self.start >= begin) & (self.end <= finish)
        return _Spans(start=self.start[inside], end=self.end[inside])


def measure(
    gpu: Gpu, index: int, copies: Copies, load: DecodeLoad, *, mechanism: str, seconds: float, steps: int = STEPS
) -> Contention:
    """Steps alone, copies alone, both together, in about `seconds`; every word of the last copies is compared."""
    for _ in range(_WARM):
        gpu.step(load)
    gpu.wait(load.stream)
    until = time.monotonic() + seconds / 3
    steps_alone = _steps(gpu, load, steps, until)
    until = time.monotonic() + seconds / 3
    trains_alone = _trains(gpu, copies, until)
    step_s, train_s = float(np.median(steps_alone)), float(np.median(trains_alone))
    until = time.monotonic() + seconds / 3
    stepped, copied, wrong = _together(gpu, copies, load, steps, max(1, round(_TURN * step_s / train_s * 2)), until)
    begin, finish = max(stepped.start[0], copied.start[0]), min(stepped.end[-1], copied.end[-1])
    disturbed, loaded = stepped.within(begin, finish), copied.within(begin, finish)
    enough = len(disturbed.start) >= FEWEST and len(loaded.start) > 0
    if not len(disturbed.start) or not len(loaded.start):
        disturbed, loaded = stepped, copied
    times = disturbed.end - disturbed.start
    size, span = len(copies.lane.host), float(loaded.end[-1] - loaded.start[0])
    flags = (*(("corrupt",) if wrong else ()), *(() if enough else ("not-concurrent",)))
    return Contention(
        gpu=index,
        direction=copies.lane.direction,
        mechanism=mechanism,
        granule_bytes=copies.granule,
        copy_alone_bytes_per_s=size / train_s,
        copy_loaded_bytes_per_s=size * len(loaded.start) / span,
        step_alone_p50_s=step_s,
        step_alone_p99_s=float(np.percentile(steps_alone, 99)),
        step_loaded_p50_s=float(np.median(times)),
        step_loaded_p99_s=float(np.percentile(times, 99)),
        steps=len(times),
        load=f"{load.words}, {load.step_bytes / step_s / 1e9:.0f} GB/s of device memory alone",
        flags=flags,
    )


def _steps(gpu: Gpu, load: DecodeLoad, steps: int, until: float) -> np.ndarray:
    """Seconds of each step, without anything else running."""
    marks = [gpu.mark(load.stream)]
    while len(marks) <= steps and (len(marks) <= FEWEST or time.monotonic() < until):
        for _ in range(_TURN):
            gpu.step(load)
            marks.append(gpu.mark(load.stream))
        gpu.wait(load.stream)
    return _between(gpu, marks)


def _trains(gpu: Gpu, copies: Copies, until: float) -> np.ndarray:
    """Seconds of each train of copies, without anything else running."""
    stream, marks = copies.lane.stream, []
    copies.load(1)
    marks.append(gpu.mark(stream))
    while len(marks) <= 5 or time.monotonic() < until:
        copies.load(1)
        marks.append(gpu.mark(stream))
        gpu.wait(stream)
        if len(marks) > 200:
            break
    return _between(gpu, marks)


def _together(
    gpu: Gpu, copies: Copies, load: DecodeLoad, steps: int, trains: int, until: float
) -> tuple[_Spans, _Spans, int]:
    """Both at once, each kept a little ahead of the device, then the last train's words compared."""
    stream = copies.lane.stream
    key = copies.refresh()
    common = gpu.mark(load.stream)
    gpu.wait(load.stream)
    stepped, copied = [gpu.mark(load.stream)], [gpu.mark(stream)]
    turns: list[Any] = []
    while len(stepped) <= steps and (len(stepped) <= FEWEST or time.monotonic() < until):
        for _ in range(trains):
            copies.load(1)
            copied.append(gpu.mark(stream))
        for _ in range(_TURN):
            gpu.step(load)
            stepped.append(gpu.mark(load.stream))
        turns.append(stepped[-1])
        if len(turns) > _AHEAD:
            gpu.seconds(common, turns[-_AHEAD - 1])  # waits for it
    gpu.wait(load.stream)
    gpu.wait(stream)
    return _spans(gpu, common, stepped), _spans(gpu, common, copied), copies.wrong_words(key)


def _between(gpu: Gpu, marks: Sequence[Any]) -> np.ndarray:
    return np.array([gpu.seconds(a, b) for a, b in pairwise(marks)])


def _spans(gpu: Gpu, common: Any, marks: Sequence[Any]) -> _Spans:
    at = np.array([gpu.seconds(common, mark) for mark in marks])
    return _Spans(start=at[:-1], end=at[1:])
