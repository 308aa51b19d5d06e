"""From start and end times of single transfers to rates over windows and latency percentiles."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

WINDOW_S = 0.1
_MIN_WINDOWS = 10
# A link that ends a cell this much slower than it began has not been measured in its steady state.
_SLOWED = 0.8
_LONG_ENOUGH_S = 0.5  # to tell slowing down from a moment's disturbance


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """One cell: rates over its windows, latencies over its transfers, `steady` False where it visibly slowed down."""

    samples: int
    p5_bytes_per_s: float
    p50_bytes_per_s: float
    p95_bytes_per_s: float
    mean_bytes_per_s: float
    p50_latency_s: float
    p95_latency_s: float
    p99_latency_s: float
    steady: bool


def window_rates(
    start: NDArray[Any], end: NDArray[Any], size: float, begin: float, finish: float, count: int | None = None
) -> NDArray[np.float64]:
    """Bytes per second in equal windows of [begin, finish) seconds; a transfer of `size` bytes is spread over its time.

    Windows are about WINDOW_S wide, at least ten, or `count` of them. Spreading keeps a window meaningful that is
    shorter than one transfer.
    """
    count = count or max(_MIN_WINDOWS, round((finish - begin) / WINDOW_S))
    edges = np.linspace(begin, finish, count + 1)
    # Bytes moved before time t = sum over transfers of size * clip((t - start) / duration): piecewise linear in t,
    # with slope +size/duration at each start and the same off again at each end.
    duration = np.maximum(end - start, 1e-9)
    slope = size / duration
    times = np.concatenate([start, start + duration])
    steps = np.concatenate([slope, -slope])
    order = np.argsort(times, kind="stable")
    times, rate = times[order], np.cumsum(steps[order])
    moved = np.concatenate([[0.0], np.cumsum(rate[:-1] * np.diff(times))])
    at_edges = np.interp(edges, times, moved, left=0.0, right=moved[-1])
    return np.asarray(np.diff(at_edges) / np.diff(edges), dtype=np.float64)


def slowed(rates: NDArray[np.float64]) -> bool:
    """Whether the last third of the windows is clearly below the first: in the middle and with no overlap at all."""
    third = max(1, len(rates) // 3)
    first, last = rates[:third], rates[-third:]
    return bool(np.median(last) < _SLOWED * np.median(first) and last.max() < first.min())


def summarise(start: NDArray[Any], end: NDArray[Any], size: int, begin: float, finish: float) -> Rates:
    """Rates in the windows of [begin, finish) and latency percentiles of all transfers of `size` bytes; times in s."""
    rates = window_rates(start, end, size, begin, finish)
    p5, p50, p95 = np.percentile(rates, [5, 50, 95])
    # A time that occurred and that so many kept to, as fio counts: between two of few, the tail would look shorter.
    latency50, latency95, latency99 = np.percentile(end - start, [50, 95, 99], method="inverted_cdf")
    return Rates(
        samples=len(start),
        p5_bytes_per_s=float(p5),
        p50_bytes_per_s=float(p50),
        p95_bytes_per_s=float(p95),
        mean_bytes_per_s=float(rates.mean()),
        p50_latency_s=float(latency50),
        p95_latency_s=float(latency95),
        p99_latency_s=float(latency99),
        steady=finish - begin < _LONG_ENOUGH_S or not slowed(rates),
    )
