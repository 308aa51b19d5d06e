"""What a reader of the plan should know beside its figures, and what each restriction of the policy gives up."""

from __future__ import annotations

import math
from collections.abc import Iterator

from msgspec.structs import replace

from kvplan.documents import Finding, NodeBytes, Policy, PolicyCost
from kvplan.planning.budgets import side_bytes_per_token
from kvplan.planning.choice import Option
from kvplan.planning.longest import longest_finding
from kvplan.planning.solved import Solved, solved
from kvplan.planning.wording import WIDE
from kvplan.units import GiB, show_bytes, show_duration, show_percent, show_tokens

GPUS_OF_A_HOST = 8
ONE_PIECE_LIMIT = 200 * GiB
_IDLE = 0.2  # below this share of prefill a replica has time to spare at any usual target of use


def policy_costs(made: Solved) -> tuple[PolicyCost, ...]:
    """What each restriction of the policy gives up: the same plan made again without it."""
    policy = made.facts.policy
    without: tuple[tuple[str, bool, Policy], ...] = (
        ("forbidding disks", policy.forbid_disk, replace(policy, forbid_disk=False)),
        ("forbidding a host tier", policy.forbid_host, replace(policy, forbid_host=False)),
        ("the time to live", policy.ttl_s is not None, replace(policy, ttl_s=None)),
        (_sharing(policy), policy.share != "all", replace(policy, share="all")),
        (_routing(policy), _spread(made), replace(policy, routing="affinity")),
        ("restarts", policy.restart_every_s is not None, replace(policy, restart_every_s=None)),
    )
    return tuple(_policy_cost(made, what, other) for what, applies, other in without if applies)


def _sharing(policy: Policy) -> str:
    return "keeping tenants apart" if policy.share == "tenant" else "sharing no cached block"


def _spread(made: Solved) -> bool:
    return made.facts.policy.routing != "affinity" and made.facts.replicas > 1


def _routing(policy: Policy) -> str:
    return "routing by session" if policy.routing == "session" else "routing by round robin"


def _policy_cost(made: Solved, what: str, other: Policy) -> PolicyCost:
    free = solved(made.inputs, other)
    hits = max(0.0, free.outcome.level.low.hit_ratio - made.outcome.level.low.hit_ratio)
    tokens = hits * made.facts.demand.input_tokens * made.facts.demand.per_hour
    gain = max(0.0, _busy(made) - _busy(free))
    text = f"{what} gives up {show_percent(hits)} of input tokens in hits and {show_duration(gain)} of GPU time an hour"
    if what == "the time to live" and made.facts.workload.ttl_s is not None:
        text += ", beside what the TTL in the workload's own curve does, which only a profile without it can tell"
    return PolicyCost(policy=what, hit_ratio=hits, hit_tokens_per_hour=tokens, gpu_s_per_hour=gain, why=text)


def _busy(made: Solved) -> float:
    return made.outcome.busy_s - made.outcome.net_s


def findings(made: Solved, costs: tuple[PolicyCost, ...], numa: tuple[NodeBytes, ...]) -> tuple[Finding, ...]:
    """Every finding of the plan itself; those of its inputs come before them."""
    return (
        *_fit(made),
        *longest_finding(made.facts, made.gpu),
        *_reuse_off(made),
        *_bracket(made),
        *_idle(made),
        *(Finding(severity="info", code=_CODES[cost.policy], text=cost.why) for cost in costs),
        *_extrapolated(made),
        *_disk(made),
        *_wear(made),
        *_expansion(made),
        *_one_host(made),
        *_over_hosts(made),
        *_crowded(made),
        *_pinning(made, numa),
        *_isolation(made),
    )


_CODES = {
    "forbidding disks": "disk-forbidden",
    "forbidding a host tier": "host-forbidden",
    "the time to live": "ttl-cost",
    "keeping tenants apart": "isolation-cost",
    "sharing no cached block": "isolation-cost",
    "routing by round robin": "routing-cost",
    "routing by session": "routing-cost",
    "restarts": "restart-cost",
}


def _fit(made: Solved) -> Iterator[Finding]:
    if made.gpu.fits:
        return
    held, less, room = "active requests", "more replicas", made.gpu.usable - made.gpu.weights - made.gpu.overhead
    if made.gpu.context is not None:
        held, less = "the context", "a smaller --ctx-size"
    elif room > 0:
        less = f"{math.ceil(made.facts.replicas * made.gpu.active / room)} replicas or more"
    text = (
        f"weights, overhead and {held} need {show_bytes(made.gpu.needed)} of {show_bytes(made.gpu.usable)} a GPU: use "
        f"more GPUs a replica, {less}, or a smaller KV dtype"
    )
    yield Finding(severity="error", code="gpu-does-not-fit", text=text)


def _reuse_off(made: Solved) -> Iterator[Finding]:
    """Where the engine was told to find no prefix again, which this plan counts on."""
    if not made.facts.estimate.switches.prefix_caching:
        text = (
            "the estimate was made with --no-prefix-caching: the engine then reuses nothing on the GPU, and this plan "
            "counts hits there. Make the estimate without it"
        )
        yield Finding(severity="warning", code="prefix-caching-off", text=text)


def _bracket(made: Solved) -> Iterator[Finding]:
    """Say so where the curve has no exact point near the GPU's size, which makes the promised gain too small."""
    base = made.outcome.base
    if base.high.hit_ratio - base.low.hit_ratio < WIDE:
        return
    log = round(base.tokens * made.case.demand.log_tokens_per_token)
    text = (
        f"the hit curve has no exact point between {show_tokens(base.low.capacity_tokens)} and "
        f"{show_tokens(base.high.capacity_tokens)} tokens, where the GPU cache lies: its hit ratio is between "
        f"{show_percent(base.low.hit_ratio)} and {show_percent(base.high.hit_ratio)}, and gains are counted above the "
        f"second. `kvplan workload … --capacity-tokens {log}` settles it"
    )
    yield Finding(severity="warning", code="curve-bracket", text=text)


def _idle(made: Solved) -> Iterator[Finding]:
    """Say so where GPU time is saved that nobody misses: it then shortens waits and is worth no hardware."""
    busy = made.outcome.busy_s / 3600
    if busy < _IDLE and made.outcome.net_s > 0:
        text = (
            f"prefill keeps a replica's GPUs busy {show_percent(busy)} of the time: what is saved shortens the wait "
            "for a first token, and frees no GPU until there is more demand or fewer replicas"
        )
        yield Finding(severity="info", code="gpu-time-spare", text=text)


def _extrapolated(made: Solved) -> Iterator[Finding]:
    longest = made.facts.prefill.max_measured_tokens
    if longest and made.facts.workload.input_lengths.max > longest:
        text = f"prefill was measured up to {show_tokens(longest)} tokens; longer prompts are extrapolated"
        yield Finding(severity="warning", code="prefill-extrapolated", text=text)


def _disk(made: Solved) -> Iterator[Finding]:
    """What a disk tier needs of its operator: an evictor where the engine has none, one hash seed everywhere."""
    if not made.outcome.disk:
        return
    if made.facts.profile.disk_survives == "behind-host" and made.outcome.host:
        text = (
            f"{made.facts.profile.name} never deletes from this tier: without an evictor the folder outgrows "
            f"{show_bytes(made.outcome.disk.requested)} and fills the drive"
        )
        yield Finding(severity="warning", code="disk-evictor", text=text)
    text = (
        "block hashes must agree between processes and after a restart: set PYTHONHASHSEED to one value on every "
        "engine, or stores land and nothing is ever found. Hits across restarts are not counted on"
    )
    yield Finding(severity="warning", code="hash-seed", text=text)


def _wear(made: Solved) -> Iterator[Finding]:
    """Where writing everything would wear a drive out too soon: what admission on second use would change."""
    disk, policy = made.case.disk, made.facts.policy
    if disk is None or policy.disk_admission == "second-use":
        return
    found = made.outcome.disk_options
    worn = [option for option in found if _too_soon(option, disk.minimum_life_s) and option.net_s > 0]
    if not worn:
        return
    other = solved(made.inputs, replace(policy, disk_admission="second-use", minimum_disk_life_s=0.0)).outcome
    later = next((option for option in other.disk_options if option.requested == worn[-1].requested), None)
    if later is None or worn[-1].life_s is None:
        return
    days = "never" if later.life_s is None else f"in {later.life_s / 86400:,.0f} days"
    text = (
        f"storing everything that is computed wears the drive out in {worn[-1].life_s / 86400:,.1f} days; storing what "
        f"is computed a second time, {days}, for at least {show_duration(max(0.0, later.net_s))} of GPU time an hour. "
        "Where your offload layer can admit on second use, plan with --disk-admission second-use"
    )
    yield Finding(severity="warning", code="write-wear", text=text)


def _too_soon(option: Option, least_s: float) -> bool:
    return option.life_s is not None and option.life_s < least_s


def _expansion(made: Solved) -> Iterator[Finding]:
    """Layouts of several kinds of layer have been stored in several times their bytes: say how to see it."""
    option, groups = made.outcome.host, made.facts.estimate.groups
    if option is None or made.facts.policy.expansion != 1 or len({group.kind for group in groups}) < 2:
        return
    text = (
        f"{show_bytes(option.requested)} of host memory hold {show_tokens(option.tokens)} tokens as the estimate lays "
        "them out; hybrid models have taken several times that in offload layers. Check the engine's own count after "
        "it started, and where it is lower plan again with --expansion"
    )
    yield Finding(severity="warning", code="expansion-unverified", text=text)


def _one_host(made: Solved) -> Iterator[Finding]:
    """Where nobody said how many replicas share a host: all of them on one is the careful case, and a rare one."""
    facts = made.facts
    known = facts.policy.replicas_per_host or (facts.probe and facts.probe.host.gpus)
    if facts.on_host > 1 and not known:
        text = (
            f"all {facts.on_host} replicas are taken to share one host, its memory and its drive: say with "
            "--replicas-per-host how many do"
        )
        yield Finding(severity="warning", code="one-host-assumed", text=text)


def _over_hosts(made: Solved) -> Iterator[Finding]:
    """Where one replica has more GPUs than a host: its host memory is then on several, each with its ranks' share."""
    facts = made.facts
    seen = len(facts.probe.host.gpus) if facts.probe else 0
    most = seen or GPUS_OF_A_HOST
    if facts.gpus > most:
        where = "the probed host has" if seen else "hosts mostly have"
        text = (
            f"one replica has {facts.gpus} GPUs and {where} {most}: host memory is planned as if one host held all of "
            "it; on several, each gives its ranks' share, and what is planned beside the cache is there on each"
        )
        yield Finding(severity="warning", code="replica-spans-hosts", text=text)


def _crowded(made: Solved) -> Iterator[Finding]:
    room = made.host
    if room.limit is not None and room.taken > room.limit:
        text = (
            f"the system, the engine and what else is stated need {show_bytes(room.taken)} of host memory, before any "
            f"cache, and one replica's share of the host is {show_bytes(room.limit)}"
        )
        yield Finding(severity="warning", code="host-too-small", text=text)


def _pinning(made: Solved, numa: tuple[NodeBytes, ...]) -> Iterator[Finding]:
    each = made.host_cost // made.facts.gpus
    if made.facts.profile.one_piece and each > ONE_PIECE_LIMIT:
        text = (
            f"{show_bytes(each)} in one page-locked piece a rank: platforms have refused 200 GiB and more in one call; "
            "watch the engine's start for it"
        )
        yield Finding(severity="warning", code="pin-piece", text=text)
    if made.outcome.host and side_bytes_per_token(made.facts):
        text = (
            f"{made.facts.profile.name}'s size flag counts the main KV cache only: indexer and draft pools come on top "
            "and are in the host budget"
        )
        yield Finding(severity="info", code="side-pools", text=text)
    for node in numa if len(numa) > 1 else ():
        if node.bytes > node.available_bytes:
            text = (
                f"{show_bytes(node.bytes)} belong on NUMA node {node.node}, which has "
                f"{show_bytes(node.available_bytes)}: the rest crosses the link between sockets, which was not measured"
            )
            yield Finding(severity="warning", code="numa-spill", text=text)


def _isolation(made: Solved) -> Iterator[Finding]:
    """Layers that are known to mix tenants are not configured where tenants are to be kept apart."""
    rules, policy = made.facts.profile, made.facts.policy
    if policy.share == "all" or not (made.outcome.host or made.outcome.disk) or not rules.ignores_salt:
        return
    text = (
        f"no flags for {', '.join(rules.ignores_salt)}: tiers of theirs have returned one tenant's blocks to another; "
        "send a cache salt per tenant, and test it"
    )
    yield Finding(severity="warning", code="salt-ignored", text=text)
