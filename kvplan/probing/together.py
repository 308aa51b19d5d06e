"""All GPUs at once: what each link carries while the others are as busy, and which of them share a way to memory."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvplan.probing.gpu_copies import Copies

_TRAINS, _TURN = 8, 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Shared:
    """One GPU's rates while all copied: of each train inside the time in which all were busy; words that were wrong."""

    rates: tuple[float, ...]
    wrong_words: int


def root_of(pci: str | None, root: str = "/") -> str | None:
    """The PCI root that a device hangs from ('pci0000:40'), as sysfs has it; None where that is unknown."""
    if pci is None:
        return None
    path = os.path.realpath(os.path.join(root, "sys/bus/pci/devices", pci))
    return next((part for part in path.split(os.sep) if part.startswith("pci") and ":" in part), None)


def measure(copies: Sequence[Copies], seconds: float) -> tuple[Shared, ...]:
    """Every GPU copies in trains for about `seconds`, queued in turn by this one thread; one entry a GPU, in order.

    Only trains that ran while every other GPU was copying too count. Host clocks bound that time, since the marks of
    one GPU say nothing of another's.
    """
    keys = [one.refresh() for one in copies]
    for one in copies:
        one.load(1)
    for one in copies:
        one.gpu.wait(one.lane.stream)
    marks: list[list[Any]] = [[one.gpu.mark(one.lane.stream)] for one in copies]
    until, rounds = time.monotonic() + seconds, 0
    while rounds < _TRAINS or time.monotonic() < until:
        for one, mine in zip(copies, marks, strict=True):
            for _ in range(_TURN):
                one.load(1)
                mine.append(one.gpu.mark(one.lane.stream))
        rounds += 1
        for one, mine in zip(copies, marks, strict=True):  # never more than two rounds queued
            if rounds > 1:
                one.gpu.seconds(mine[0], mine[-_TURN - 1])
    for one in copies:
        one.gpu.wait(one.lane.stream)
    at = [np.array([one.gpu.seconds(mine[0], mark) for mark in mine]) for one, mine in zip(copies, marks, strict=True)]
    common = min(float(times[-1]) for times in at)
    return tuple(
        Shared(rates=_rates(times, common, len(one.lane.host)), wrong_words=one.wrong_words(key))
        for one, times, key in zip(copies, at, keys, strict=True)
    )


def _rates(times: np.ndarray, common: float, size: int) -> tuple[float, ...]:
    inside = times[1:] <= common
    lengths = np.diff(times)[inside] if inside.any() else np.diff(times)
    return tuple(float(rate) for rate in size / np.maximum(lengths, 1e-9))
