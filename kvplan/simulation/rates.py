"""The highest rate that still meets the target time to first token, by bisection on a geometric scale."""

from __future__ import annotations

import math
from collections.abc import Callable

from kvplan.documents import SustainableRate

SHARE = 0.9
SPAN = 4.0  # the first guess is tried from a fourth of it to four times it


def search(
    p90_at: Callable[[float], float | None], guess: float, slo_s: float, points: int, requests: int
) -> SustainableRate:
    """Bisect between guess / 4 and guess * 4; `p90_at` plays the schedule at a rate and gives p90 TTFT."""
    low, high = math.log(guess / SPAN), math.log(guess * SPAN)
    holds, fails = None, None
    for _ in range(points):
        middle = (low + high) / 2
        p90 = p90_at(math.exp(middle))
        if p90 is not None and p90 <= slo_s:
            low = middle
            holds = math.exp(middle)
        else:
            high = middle
            fails = math.exp(middle)
    return SustainableRate(
        slo_ttft_s=slo_s, share=SHARE, requests=requests, points=points, requests_per_s=holds, fails_at=fails
    )
