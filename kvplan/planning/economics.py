"""What a reused prefix is worth: recomputing it against loading it, at every capacity of the hit curve.

Recomputing tokens [p, n) costs t0 + a(n - p) + b(n² - p²) seconds. Loading p tokens costs l + p k / B seconds at k
bytes a token and B bytes a second per GPU. All of this is arithmetic on documents; docs/planning.md derives it.
"""

from __future__ import annotations

import bisect
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from kvplan.documents import BreakEven, CurvePoint, Prefill, PrefixClass

TIE = 1.2
ZERO = CurvePoint(
    capacity_blocks=0,
    capacity_tokens=0,
    hit_blocks=0,
    hit_tokens=0,
    hit_ratio=0.0,
    hit_requests=0,
    reused_prefix_tokens_sq=0,
    fill_time_s=0.0,
)


class Curve:
    """A hit curve that answers with exact points only, so that no hit is promised that was not replayed."""

    def __init__(self, points: Sequence[CurvePoint]) -> None:
        self.points = tuple(sorted(points, key=lambda point: point.capacity_tokens))
        self._capacities = [point.capacity_tokens for point in self.points]

    def below(self, tokens: float) -> CurvePoint:
        """The exact point at or below a capacity: at least these hits are certain there."""
        index = bisect.bisect_right(self._capacities, tokens) - 1
        return self.points[index] if index >= 0 else ZERO

    def above(self, tokens: float) -> CurvePoint:
        """The exact point at or above a capacity: no more hits are possible there (the last one past the end)."""
        if not self.points:
            return ZERO
        return self.points[min(bisect.bisect_left(self._capacities, tokens), len(self.points) - 1)]


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadPath:
    """How long a tier takes to bring KV back: `latency_s` once a load, `s_per_token` for each token of a replica."""

    s_per_token: float
    latency_s: float = 0.0

    def seconds(self, tokens: float) -> float:
        """Seconds to load `tokens` tokens as one prefix."""
        return self.latency_s + tokens * self.s_per_token


@dataclass(frozen=True, slots=True, kw_only=True)
class Worth:
    """Sums over a log: seconds of recomputing that loads avoid, seconds the loads take, tokens they bring."""

    saved_s: float = 0.0
    load_s: float = 0.0
    tokens: int = 0

    @property
    def net_s(self) -> float:
        """Seconds saved after paying for the loads."""
        return self.saved_s - self.load_s


def break_even_length(prefill: Prefill, path: LoadPath) -> float:
    """The shortest prefix that is loaded no slower than it is recomputed; infinity where none is.

    The least p > 0 with a p + b p² >= l + s p. The step cost t0 is paid either way, since a request with a hit still
    computes at least its last token.
    """
    slope = prefill.a_s_per_token - path.s_per_token
    b, latency = prefill.b_s_per_token_sq, path.latency_s
    root = math.sqrt(slope * slope + 4 * b * latency)
    if slope > 0:  # this form of the root loses no digits where b is small
        return 2 * latency / (slope + root)
    if b:
        return (root - slope) / (2 * b)
    return math.inf if slope or latency else 0.0


def break_even_rate(prefill: Prefill, kv_bytes_per_token: float, tokens: int) -> float:
    """Bytes a second at which loading a whole prefix takes as long as recomputing it: k p / (t0 + a p + b p²)."""
    return kv_bytes_per_token * tokens / prefill.seconds(tokens)


def verdict(recompute_s: float, load_s: float) -> Literal["load", "recompute", "measure"]:
    """Which is quicker; within 20 % of each other only a measurement can tell."""
    if load_s * TIE < recompute_s:
        return "load"
    return "recompute" if recompute_s * TIE < load_s else "measure"


def break_even_row(
    tier: Literal["host", "disk"],
    tokens: int,
    prefill: Prefill,
    path: LoadPath,
    kv_bytes_per_token: float,
    store_bytes_per_s: float | None = None,
) -> BreakEven:
    """One line of the break-even table; the rates are per GPU, as `kv_bytes_per_token` is."""
    recompute_s, load_s = prefill.seconds(tokens), path.seconds(tokens)
    return BreakEven(
        tier=tier,
        prefix_tokens=tokens,
        recompute_s=recompute_s,
        load_s=load_s,
        break_even_bytes_per_s=break_even_rate(prefill, kv_bytes_per_token, tokens),
        link_bytes_per_s=kv_bytes_per_token / path.s_per_token if path.s_per_token else math.inf,
        verdict=verdict(recompute_s, load_s),
        store_bytes_per_s=store_bytes_per_s,
    )


def _classes(point: CurvePoint) -> tuple[PrefixClass, ...]:
    """A point's hits by prefix length; one class without a bound where the workload did not split them."""
    if point.prefixes or not point.hit_tokens:
        return point.prefixes
    whole = PrefixClass(
        at_most_tokens=point.hit_tokens,
        requests=point.hit_requests,
        tokens=point.hit_tokens,
        tokens_sq=point.reused_prefix_tokens_sq,
    )
    return (whole,)


def worth(upper: CurvePoint, lower: CurvePoint, prefill: Prefill, path: LoadPath, block_tokens: int) -> Worth:
    """Gain of holding what `upper` holds where what `lower` holds is already nearer, for the whole log.

    With v(p) = a p + b p² - s p, a request whose nearer tier has p and this one has q gains max(0, v(q) - v(p)) less
    the latency of a load. Only prefixes longer than the root of v are loaded: v is negative below it and rises above
    it. So Σ v(q) over those classes of `upper` less Σ v(p) over the same classes of `lower` is exact where every prefix
    is loaded, and otherwise never above the true gain. Each load is charged its latency; there are at most as many
    loads as requests with a hit, or new blocks.
    """
    threshold = break_even_length(prefill, LoadPath(s_per_token=path.s_per_token))
    tokens = square = requests = 0
    for sign, point in ((1, upper), (-1, lower)):
        for part in _classes(point):
            if part.at_most_tokens > threshold:
                tokens += sign * part.tokens
                square += sign * part.tokens_sq
                requests += part.requests if sign == 1 else 0
    if tokens <= 0:
        return Worth()
    loads = min(requests, math.ceil(tokens / block_tokens))
    return Worth(
        saved_s=prefill.a_s_per_token * tokens + prefill.b_s_per_token_sq * square,
        load_s=path.s_per_token * tokens + path.latency_s * loads,
        tokens=tokens,
    )


def busy_s(requests: int, tokens: float, tokens_sq: float, hits: CurvePoint, prefill: Prefill) -> float:
    """GPU seconds the whole log's prefill takes with these hits: t0 N + a Σ(n - p) + b Σ(n² - p²)."""
    return (
        prefill.t0_s * requests
        + prefill.a_s_per_token * (tokens - hits.hit_tokens)
        + prefill.b_s_per_token_sq * (tokens_sq - hits.reused_prefix_tokens_sq)
    )
