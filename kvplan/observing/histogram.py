"""Quantiles of a Prometheus histogram over a window, each with the bucket it must lie in."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

from kvplan.engines.metrics.system import pick
from kvplan.observing.recording import Recording, Series


@dataclass(frozen=True, slots=True)
class Quantile:
    """The value that a share `q` of observations stay under: `low` < it <= `high`, `value` by a straight line between.

    `high` None: it lies above the histogram's last limit, nothing bounds it, and `value` is that limit.
    """

    q: float
    value: float
    low: float
    high: float | None


@dataclass(frozen=True, slots=True)
class Histogram:
    """What a window added: `buckets` are (upper limit, observations up to it), the last limit infinite."""

    count: float
    sum: float | None
    buckets: tuple[tuple[float, float], ...]

    @property
    def mean(self) -> float | None:
        """The mean observation."""
        return None if self.sum is None or not self.count else self.sum / self.count

    def quantile(self, q: float) -> Quantile | None:
        """As Prometheus' histogram_quantile: within a bucket observations are taken to be spread evenly.

        The mean may bound it closer than the bucket: of what is not negative, a share 1 - q cannot lie above
        mean / (1 - q), or it alone would add up to more than all. That tells 29 µs from a first bucket of 0.3 s.
        """
        if not self.buckets or not self.buckets[-1][1]:
            return None
        rank = q * self.buckets[-1][1]
        low, below = 0.0, 0.0
        for limit, up_to in self.buckets:
            if up_to >= rank and up_to > below:
                most = self._bound(q)
                if math.isinf(limit):
                    return Quantile(q, low, low, most if most is not None and most > low else None)
                low = min(low, limit)  # a first bucket at or below zero has no width
                share = (rank - below) / (up_to - below)
                high = limit if most is None else max(low, min(limit, most))
                return Quantile(q, low + (high - low) * share, low, high)
            low, below = limit, up_to
        return None

    def _bound(self, q: float) -> float | None:
        """The most that the mean allows a quantile of non-negative observations to be."""
        return None if self.mean is None or self.mean < 0 or q >= 1 else self.mean / (1 - q)


def read(recording: Recording, names: Sequence[str]) -> Histogram | None:
    """The histogram's increase over all rounds, its series added; None where none of `names` is on a page.

    Where sources have other limits than each other (other versions), only limits that all of them have are kept.
    """
    name = next((name for name in names if recording.has(pick(f"{name}_bucket"))), None)
    if name is None:
        return None
    groups: dict[tuple[object, ...], dict[float, float]] = {}
    for one in recording.series(pick(f"{name}_bucket")):
        limit = _limit(one)
        if limit is not None:
            kept = tuple(sorted((k, v) for k, v in one.labels.items() if k != "le"))
            groups.setdefault((one.track, kept), {})[limit] = recording.gain(one)
    if not groups:
        return None
    shared = sorted(set.intersection(*(set(buckets) for buckets in groups.values())))
    summed = [(limit, math.fsum(buckets[limit] for buckets in groups.values())) for limit in shared]
    count = recording.increase((pick(f"{name}_count"),))
    most = max((up_to for _, up_to in summed), default=0.0)
    return Histogram(
        count=most if count is None else count,
        sum=recording.increase((pick(f"{name}_sum"),)),
        buckets=tuple(_rising(summed)),
    )


def _limit(one: Series) -> float | None:
    """The upper limit of a bucket; None where there is none that times and rates can have: such a bucket is damaged."""
    try:
        limit = float(one.labels["le"])
    except (KeyError, ValueError):
        return None
    return limit if limit >= 0 else None


def _rising(buckets: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """Counts up to a limit never fall; a page read while the server counted may show that they do by one."""
    rising: list[tuple[float, float]] = []
    most = 0.0
    for limit, up_to in buckets:
        most = max(most, up_to)
        rising.append((limit, most))
    return rising
