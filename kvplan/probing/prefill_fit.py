"""From measured prefills to the three numbers that a plan works with."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import combinations

import numpy as np

from kvplan.documents import PrefillPoint

# Of fits that are equally good, as with one point all are, the one proportional to tokens is the least surprising.
_ORDER = (1, 2, 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Fit:
    """t0 + a * (n - p) + b * (n² - p²) seconds, none of them negative, and measured time over fitted time at worst.

    `worst` is the largest |fitted / measured - 1|; `low` and `high` are the least and the largest measured / fitted.
    """

    t0: float
    a: float
    b: float
    worst: float
    low: float
    high: float


def fit(points: Sequence[PrefillPoint]) -> Fit:
    """The non-negative numbers with the least sum of squared relative errors over the points, at least one."""
    new = np.array([float(point.tokens) for point in points])
    old = np.array([float(point.prefix_tokens) for point in points])
    seconds = np.array([point.seconds for point in points])
    columns = np.stack([np.ones_like(new), new, (old + new) ** 2 - old**2], axis=1) / seconds[:, None]
    best = _least(columns)
    ratios = columns @ best
    return Fit(
        t0=float(best[0]),
        a=float(best[1]),
        b=float(best[2]),
        worst=float(np.abs(ratios - 1).max()),
        low=float((1 / ratios).min()),
        high=float((1 / ratios).max()),
    )


def _least(columns: np.ndarray) -> np.ndarray:
    """argmin |columns x - 1| over x >= 0. With three numbers, trying every set of zeros is exact."""
    ones = np.ones(len(columns))
    scale = np.linalg.norm(columns, axis=0)
    best, least = np.zeros(3), np.inf
    for size in (1, 2, 3):
        for chosen in map(list, combinations(_ORDER, size)):
            part, *_ = np.linalg.lstsq(columns[:, chosen] / scale[chosen], ones, rcond=None)
            if (part < 0).any():
                continue
            x = np.zeros(3)
            x[chosen] = part / scale[chosen]
            error = float(np.square(columns @ x - 1).sum())
            if error < least * (1 - 1e-9):
                best, least = x, error
    return best
