"""What is measured of requests: percentiles, times to first token, hits."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvplan.documents import Quantile, Spread
from kvplan.simulation.live import Live

CURVE = (0.01, 0.05, *(step / 20 for step in range(2, 19)), 0.92, 0.94, 0.95, 0.96, 0.97, 0.98, 0.99, 1.0)


def quantile(ordered: Sequence[float], share: float) -> float:
    """Nearest-rank percentile of ascending values."""
    return ordered[max(0, -(-int(len(ordered) * share * 1000) // 1000) - 1)]


def spread(values: Iterable[float]) -> Spread | None:
    """Mean and percentiles; None of nothing."""
    ordered = sorted(values)
    if not ordered:
        return None
    p50, p90, p99 = (quantile(ordered, share) for share in (0.5, 0.9, 0.99))
    return Spread(mean=sum(ordered) / len(ordered), p50=p50, p90=p90, p99=p99, max=ordered[-1])


def ttfts(requests: Iterable[Live]) -> list[float]:
    """Seconds from arrival to the first token, of those that had one."""
    return [one.first_token_at - one.arrived_at for one in requests if one.first_token_at is not None]


def hit_ratio(admitted: Sequence[Live]) -> float:
    """Input tokens that requests did not have to compute when they were first admitted, over all of theirs."""
    inputs = sum(one.input_tokens for one in admitted)
    return sum(sum(one.hits) for one in admitted) / inputs if inputs else 0.0


def curve(values: Iterable[float]) -> tuple[Quantile, ...]:
    """The distribution of values at fixed shares; nothing of nothing."""
    ordered = sorted(values)
    return tuple(Quantile(share=share, seconds=quantile(ordered, share)) for share in CURVE) if ordered else ()
