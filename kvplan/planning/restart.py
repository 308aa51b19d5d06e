"""What a restart of the engine costs: which tiers start empty, how long they fill, and what is lost until then."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from kvplan.documents import WarmUp
from kvplan.planning.choice import Option, Outcome
from kvplan.planning.facts import Facts
from kvplan.planning.recompute import whole_value
from kvplan.units import show_duration

_WHY = {
    "gpu": "GPU memory starts empty",
    "host": "the host tier belongs to the engine's process and starts empty",
    "disk": "the engine removes its files and starts empty",
}


def warm_ups(facts: Facts, outcome: Outcome) -> tuple[WarmUp, ...]:
    """One row for each tier of the recommendation. Filling takes what is stored; at most that time's gain is lost."""
    gpu_hits = whole_value(outcome.base.low, facts.prefill) * facts.demand.per_hour
    computed = (facts.demand.input_tokens - outcome.base.low.hit_tokens) * facts.demand.per_hour
    rows = [_row(facts, "gpu", outcome.base.tokens, computed, gpu_hits, survives=False)]
    rows += list(_tiers(facts, outcome))
    return tuple(rows)


def _tiers(facts: Facts, outcome: Outcome) -> Iterator[WarmUp]:
    if outcome.host:
        yield _tier(facts, "host", outcome.host, survives=False)
    if outcome.disk:
        behind = facts.profile.disk_survives == "behind-host" and outcome.host is not None
        yield _tier(facts, "disk", outcome.disk, survives=behind)


def _tier(facts: Facts, name: Literal["host", "disk"], option: Option, *, survives: bool) -> WarmUp:
    return _row(facts, name, option.tokens, option.stored_tokens, option.net_s, survives=survives)


def _row(
    facts: Facts, tier: Literal["gpu", "host", "disk"], tokens: int, stored: float, gain_s: float, *, survives: bool
) -> WarmUp:
    if survives:
        why = f"{facts.profile.name} finds its files again, provided every process hashes blocks alike"
        return WarmUp(tier=tier, survives=True, fill_s=0.0, lost_gpu_s=0.0, why=why)
    fill = tokens / stored * 3600 if stored else None
    lost = None if fill is None else gain_s * fill / 3600
    span = facts.workload.span_s or 0.0
    why = _WHY[tier]
    if fill is not None and fill > span:
        why += f"; the log spans {show_duration(span)} only, so this is extrapolated"
    return WarmUp(tier=tier, survives=False, fill_s=fill, lost_gpu_s=lost, why=why)
