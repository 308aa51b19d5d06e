"""Whether a long write has come down to the rate that it keeps: a drive's fast cache hides what follows."""

from __future__ import annotations

import numpy as np

from kvplan.probing.disk_io import Done
from kvplan.probing.timing import window_rates
from kvplan.units import GB

# Averages over so many windows of a second must agree within this, one after another, to call a rate steady.
_WINDOW_S = 1.0
_AVERAGED = 3
_AGREE = 0.05
# Fast caches of client drives take tens of gigabytes: before this a rate that holds has proved nothing.
_LEAST_BYTES = 20 * GB


def moving_averages(rates: list[float]) -> list[float]:
    """Averages of each window with the two before it."""
    return [sum(rates[end - _AVERAGED : end]) / _AVERAGED for end in range(_AVERAGED, len(rates) + 1)]


def steady(rates: list[float]) -> bool:
    """Whether the last three moving averages agree within 5 %."""
    averages = moving_averages(rates)[-_AVERAGED:]
    return len(averages) == _AVERAGED and max(averages) <= (1 + _AGREE) * min(averages)


class Steadiness:
    """Hears seconds and bytes written so far, and says when to stop."""

    def __init__(self) -> None:
        self.edges = [(0.0, 0)]

    def rates(self) -> list[float]:
        """Bytes per second in windows of about a second."""
        pairs = zip(self.edges, self.edges[1:], strict=False)
        return [(moved - before) / (now - then) for (then, before), (now, moved) in pairs]

    def enough(self, elapsed_s: float, moved: int) -> bool:
        """Whether enough was written, and the rate is steady."""
        if elapsed_s - self.edges[-1][0] >= _WINDOW_S:
            self.edges.append((elapsed_s, moved))
        return moved >= _LEAST_BYTES and steady(self.rates())

    def held(self, done: Done) -> bool:
        """Whether the rate was steady when the write ended, over windows of a second or a ninth of a shorter write."""
        count = max(2 * _AVERAGED - 1, round(done.until_s / _WINDOW_S))
        size = done.moved_bytes / done.transfers
        return steady(window_rates(done.start_s, done.end_s, size, 0.0, done.until_s, count).tolist())


def first_and_last_second(done: Done) -> tuple[float, float] | None:
    """Bytes per second in the first and in the last second; None of a job that took less than two."""
    if done.until_s < 2 * _WINDOW_S:
        return None
    size = done.moved_bytes / done.transfers
    first = window_rates(done.start_s, done.end_s, size, 0.0, _WINDOW_S, 1)
    last = window_rates(done.start_s, done.end_s, size, done.until_s - _WINDOW_S, done.until_s, 1)
    return float(np.mean(first)), float(np.mean(last))
