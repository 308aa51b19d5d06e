"""The plan's sentences: the decision that a reviewer signs, and why each tier is or is not given memory."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from kvplan.documents import Limit
from kvplan.planning.choice import Case, Level, Option, Outcome, Tier, best_of
from kvplan.planning.economics import break_even_length
from kvplan.planning.facts import Facts
from kvplan.units import show_bytes, show_duration, show_percent, show_tokens

WIDE = 0.01


def decision(facts: Facts, case: Case, outcome: Outcome) -> str:
    """One or two sentences that name the sizes, the gain and the reason."""
    each = "" if facts.replicas == 1 else " for each replica"
    given = [
        f"{_size(option)} of {'host memory' if tier.name == 'host' else 'disk'}"
        for tier, option in ((case.host, outcome.host), (case.disk, outcome.disk))
        if tier and option
    ]
    if not given:
        return f"Nothing: give no host memory and no disk to the KV cache. {_first_up(no_tier(facts, case, outcome))}."
    low, high, after = (one.hit_ratio for one in (outcome.base.low, outcome.base.high, outcome.level.low))
    before = show_percent(low) if high - low < WIDE else f"between {show_percent(low)} and {show_percent(high)}"
    share = outcome.net_s / outcome.busy_s if outcome.busy_s else 0.0
    return (
        f"Give {' and '.join(given)} to the KV cache{each}. Hits rise from {before} to at least "
        f"{show_percent(after)} of input tokens, which spares each replica {show_duration(outcome.net_s)} of prefill "
        f"an hour ({show_percent(share)} of it) after loads and stores are paid."
    )


def settled_first(text: str, limits: Iterable[Limit]) -> str:
    """The decision, behind what must be settled before it where a limit does not hold."""
    broken = [limit.name for limit in limits if not limit.ok]
    if not broken:
        return text
    return f"Settle first: {', '.join(broken)} (see the limits). Then {text[:1].lower()}{text[1:]}"


def why_host(facts: Facts, case: Case, outcome: Outcome) -> str:
    """Why the host tier gets what it gets."""
    return _why(facts, case, _Side(case.host, outcome.host, outcome.host_options, outcome.base, "host memory"))


def why_disk(facts: Facts, case: Case, outcome: Outcome) -> str:
    """Why the disk tier gets what it gets."""
    nearer = outcome.host.level if outcome.host else outcome.base
    return _why(facts, case, _Side(case.disk, outcome.disk, outcome.disk_options, nearer, "disk"))


def no_tier(facts: Facts, case: Case, outcome: Outcome) -> str:
    """Why nothing is recommended: the reason of the tier that came nearest."""
    if case.host or not case.disk:
        return why_host(facts, case, outcome)
    return why_disk(facts, case, outcome)


@dataclass(frozen=True, slots=True)
class _Side:
    """One tier, the size chosen of it, every size considered, and what is held nearer to the GPU."""

    tier: Tier | None
    option: Option | None
    sizes: tuple[Option, ...]
    nearer: Level
    name: str


def _why(facts: Facts, case: Case, side: _Side) -> str:
    tier, option, name = side.tier, side.option, side.name
    if option:
        return (
            f"{_size(option)} gain {show_duration(option.net_s)} of GPU time an hour: {show_duration(option.saved_s)} "
            f"of recomputing less {show_duration(option.load_s)} of loads and {show_duration(option.store_s)} of stores"
        )
    if tier is None:
        return _absent(facts, name)
    if not facts.workload.curve or not facts.workload.ceiling_hit_ratio:
        return "the log reuses no prefix"
    pays = break_even_length(case.prefill, tier.path)
    if math.isinf(pays):
        return f"recomputing is quicker than loading from {name} at every length"
    return _unpaid(facts, tier, side, pays)


def _unpaid(facts: Facts, tier: Tier, side: _Side, pays: float) -> str:
    """Why no size of a tier that exists was chosen; loading from it pays from `pays` tokens on."""
    sizes, name = side.sizes, side.name
    if not sizes:
        room = f" ({show_bytes(tier.limit_bytes)} available)" if tier.limit_bytes is not None else ""
        return f"no size of {name} fits{room}"
    if not any(option.loaded_tokens for option in sizes):
        if any(option.level.low.hit_ratio > side.nearer.high.hit_ratio for option in sizes):
            return (
                f"loading from {name} is quicker than recomputing from {show_tokens(math.ceil(pays))} tokens on, and "
                f"what {_size(sizes[-1])} would add are shorter prefixes"
            )
        inside = "repeats what is held nearer to the GPU and " if tier.inclusive else ""
        return f"{name} up to {_size(sizes[-1])} {inside}adds no reuse that the log shows{_restricted(facts)}"
    best = best_of(sizes)
    if best is None:
        return f"every size of {name} is refused: {sizes[-1].refused}"
    if best.net_s <= 0:
        return f"loads and stores of {name} cost more than the recomputing they avoid"
    return (
        f"the best size of {name} gains {show_duration(best.net_s)} of GPU time an hour, under the "
        f"{show_percent(facts.policy.minimum_gain_ratio)} of prefill time that the policy asks for"
    )


def _restricted(facts: Facts) -> str:
    """The rules of the policy under which the log shows reuse at all; empty without any."""
    policy = facts.policy
    rules = [
        *(["no block shared"] if policy.share == "none" else []),
        *([f"blocks kept {show_duration(policy.ttl_s)} at most"] if policy.ttl_s is not None else []),
        *([f"a restart every {show_duration(policy.restart_every_s)}"] if policy.restart_every_s is not None else []),
    ]
    return f" with {' and '.join(rules)}" if rules else ""


def _absent(facts: Facts, name: str) -> str:
    if name == "disk":
        if facts.policy.forbid_disk:
            return "the policy forbids persistent storage"
        return "no usable measurement of a drive: run `kvplan probe --disk DIR` on the target"
    if facts.policy.forbid_host:
        return "the policy forbids a host tier"
    return "the host link is unknown: give --gpu NAME, --host-link, or a probe of the GPU host"


def _size(option: Option) -> str:
    return show_bytes(option.requested).replace(".00 GiB", " GiB")


def _first_up(text: str) -> str:
    return text[:1].upper() + text[1:]
