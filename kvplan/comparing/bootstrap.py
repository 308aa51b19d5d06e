"""Intervals of paired differences: sessions are drawn anew with replacement, all their requests together.

Requests of one session share its prompt and its fortune: drawing single requests would make intervals too narrow.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan.documents import Estimated

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]

SHARE = 0.95
_CELLS = 4_000_000  # of one table of resamples, so that memory stays small


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Resampler:
    """`resamples` draws of as many sessions as there are, from a fixed `seed`. `session` numbers them by request."""

    session: Ints
    resamples: int
    seed: int

    @property
    def sessions(self) -> int:
        """How many there are."""
        return int(self.session.max()) + 1

    def mean(self, values: Floats) -> Estimated:
        """The mean of a figure over requests."""
        return self.ratio(values, np.ones_like(values))

    def ratio(self, above: Floats, below: Floats) -> Estimated:
        """The sum of one figure over that of another."""
        tops, bottoms = (np.bincount(self.session, column, self.sessions) for column in (above, below))
        return self._estimated(float(above.sum() / below.sum()), lambda drawn: (drawn @ tops) / (drawn @ bottoms))

    def median(self, values: Floats) -> Estimated:
        """The median of a figure over requests, the lower one of two."""
        order = np.argsort(values, kind="stable")
        ordered, owner = values[order], self.session[order]

        def medians(drawn: Floats) -> Floats:
            weight = np.cumsum(drawn[:, owner], axis=1)
            at = (weight * 2 < weight[:, -1:]).sum(axis=1)
            return np.asarray(ordered[at], np.float64)

        return self._estimated(float(ordered[(len(ordered) - 1) // 2]), medians)

    def _estimated(self, value: float, statistic: Callable[[Floats], Floats]) -> Estimated:
        random = np.random.Generator(np.random.PCG64(self.seed))
        step = max(1, _CELLS // max(self.sessions, len(self.session)))
        found = []
        for start in range(0, self.resamples, step):
            count = min(step, self.resamples - start)
            drawn = random.multinomial(self.sessions, np.full(self.sessions, 1 / self.sessions), count)
            found.append(statistic(drawn.astype(np.float64)))
        low, high = np.quantile(np.concatenate(found), [(1 - SHARE) / 2, (1 + SHARE) / 2])
        return Estimated(value=value, low=float(low), high=float(high))
