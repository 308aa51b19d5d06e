"""GPU, host and disk budgets for the KV cache: one Estimate, one Workload, what a probe measured, and a Policy.

`make` resolves the inputs (planning/facts.py), divides the memory (budgets.py), values every size of every tier on the
exact hit curve (economics.py, choice.py) and writes down the choice with its limits, sensitivities and evidence. The
method and its assumptions are in docs/planning.md. Pure Python on documents: no array library is loaded.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Literal

from kvplan.documents import (
    Alternative,
    Benefit,
    BreakEven,
    Budgets,
    Document,
    Estimate,
    Finding,
    GpuSpec,
    Plan,
    PlanInputs,
    Policy,
    Probe,
    TierPoint,
    Workload,
)
from kvplan.engines.flags import Given, texts
from kvplan.planning.budgets import (
    GpuRoom,
    HostRoom,
    case_of,
    disk_budget,
    gpu_budget,
    gpu_room,
    host_budget,
    host_room,
)
from kvplan.planning.choice import Case, Option, Outcome, Tier, knee, solve
from kvplan.planning.confidence import confidence, evidence
from kvplan.planning.economics import break_even_row
from kvplan.planning.facts import Facts, gather
from kvplan.planning.limits import limits
from kvplan.planning.sensitivity import changes, sensitivities
from kvplan.planning.wording import WIDE, decision, exceeded, no_tier, why_disk, why_host
from kvplan.units import show_bytes, show_duration, show_percent, show_tokens

BREAK_EVEN_TOKENS = (2048, 8192, 32_768, 131_072)

Verdict = Literal["nothing", "host", "disk", "host+disk"]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Result:
    """A plan in the making."""

    facts: Facts
    gpu: GpuRoom
    host: HostRoom
    case: Case
    outcome: Outcome


def make(
    estimate: Document[Estimate],
    workload: Document[Workload],
    probe: Document[Probe] | None,
    gpu: GpuSpec | None,
    policy: Policy,
) -> Plan:
    """Plan one replica's three budgets.

    A plan comes out even where weights or running requests do not fit: then a limit is not ok. Raises KvplanError
    naming what is missing where no GPU memory, weights, prefill cost, time span or request is known.
    """
    facts = gather(estimate, workload, probe, gpu, policy)
    room, host = gpu_room(facts), host_room(facts)
    case = case_of(facts, room, host)
    made = _Result(facts=facts, gpu=room, host=host, case=case, outcome=solve(case))
    bounds = limits(facts, room, host, (case.host, case.disk), made.outcome)
    return Plan(
        decision=decision(facts, case, made.outcome) + exceeded(bounds),
        verdict=_verdict(made.outcome),
        inputs=PlanInputs(estimate=estimate, workload=workload, probe=probe, gpu=gpu),
        policy=policy,
        prefill=facts.prefill,
        budgets=_budgets(made),
        alternatives=_alternatives(made),
        break_even=_break_even(made),
        curve=(*_points(made, "host"), *_points(made, "disk")),
        benefit=_benefit(made),
        limits=bounds,
        sensitivity=sensitivities(facts, case),
        config=_config(made),
        confidence=confidence(facts),
        evidence=evidence(facts),
        findings=(*facts.findings, *_findings(made)),
    )


def capacities(
    estimate: Document[Estimate],
    workload: Document[Workload],
    probe: Document[Probe] | None,
    gpu: GpuSpec | None,
    policy: Policy,
) -> tuple[int, ...]:
    """Capacities in tokens of the log at which its hit curve should be exact for this plan, the GPU cache's own.

    A workload profiled again with these as `capacity_tokens` leaves nothing to the curve's steps. Raises as `make`.
    """
    facts = gather(estimate, workload, probe, gpu, policy)
    case = case_of(facts, gpu_room(facts), host_room(facts))
    moved = (case, *(moved for _, _, moved in changes(facts, case)))
    return tuple(sorted({int(one.gpu_tokens * one.demand.log_tokens_per_token) for one in moved} - {0}))


def _verdict(outcome: Outcome) -> Verdict:
    if outcome.host:
        return "host+disk" if outcome.disk else "host"
    return "disk" if outcome.disk else "nothing"


def _budgets(made: _Result) -> Budgets:
    facts, outcome = made.facts, made.outcome
    return Budgets(
        gpu=gpu_budget(facts, made.gpu, outcome),
        host=host_budget(facts, made.host, made.case.host, outcome, why_host(facts, made.case, outcome)),
        disk=disk_budget(facts, made.case.disk, outcome, why_disk(facts, made.case, outcome)),
    )


def _alternatives(made: _Result) -> tuple[Alternative, ...]:
    """Nothing and the recommendation, then the knee and the largest size of the first tier that could be had."""
    outcome, case = made.outcome, made.case
    nothing = _alternative("nothing", None, None, made, "the GPU cache alone")
    why = (
        "the smallest size within the tolerance of the best"
        if outcome.host or outcome.disk
        else no_tier(made.facts, case, outcome)
    )
    found = [nothing, _alternative("recommended", outcome.host, outcome.disk, made, why)]
    tier, sizes = (case.host, outcome.host_options) if case.host else (case.disk, outcome.disk_options)
    if tier is None or not sizes:
        return (*found, _alternative("largest", None, None, made, no_tier(made.facts, case, outcome)))
    bend = knee(sizes)
    if bend:
        found.append(_one_tier("knee", tier, bend, made, "where each further byte begins to bring less"))
    return (*found, _one_tier("largest", tier, sizes[-1], made, "the largest size that was considered"))


def _one_tier(name: Literal["knee", "largest"], tier: Tier, option: Option, made: _Result, why: str) -> Alternative:
    text = f"refused: {option.refused}" if option.refused else why
    host, disk = (option, None) if tier.name == "host" else (None, option)
    return _alternative(name, host, disk, made, text)


def _alternative(
    name: Literal["nothing", "recommended", "knee", "largest"],
    host: Option | None,
    disk: Option | None,
    made: _Result,
    why: str,
) -> Alternative:
    used = [option for option in (host, disk) if option]
    kv = made.facts.offload_bytes_per_token
    low = used[-1].level.low if used else made.outcome.base.low
    return Alternative(
        name=name,
        host_bytes=host.requested if host else 0,
        disk_bytes=disk.requested if disk else 0,
        hit_ratio=low.hit_ratio,
        saved_s_per_hour=sum(option.saved_s for option in used),
        load_s_per_hour=sum(option.load_s for option in used),
        store_s_per_hour=sum(option.store_s for option in used),
        net_s_per_hour=sum(option.net_s for option in used),
        stored_bytes_per_hour=sum(option.stored_tokens for option in used) * kv,
        loaded_bytes_per_hour=sum(option.loaded_tokens for option in used) * kv,
        feasible=not any(option.refused for option in used),
        why=why,
    )


def _break_even(made: _Result) -> tuple[BreakEven, ...]:
    """Rows at four prefix lengths, those beyond the model's context left out; rates are per GPU."""
    facts = made.facts
    longest = facts.estimate.model.max_context_tokens or BREAK_EVEN_TOKENS[-1]
    lengths = [tokens for tokens in BREAK_EVEN_TOKENS if tokens <= longest] or [longest]
    share = facts.offload_bytes_per_token / facts.gpus
    sides = ((made.case.host, float(facts.bytes_per_token_per_gpu)), (made.case.disk, share))
    return tuple(
        break_even_row(tier.name, tokens, facts.prefill, tier.path, kv)
        for tier, kv in sides
        if tier
        for tokens in lengths
    )


def _points(made: _Result, name: Literal["host", "disk"]) -> tuple[TierPoint, ...]:
    outcome = made.outcome
    found = outcome.host_options if name == "host" else outcome.disk_options
    return tuple(
        TierPoint(
            tier=name,
            bytes=option.requested,
            tokens=option.tokens,
            hit_ratio=option.level.low.hit_ratio,
            net_s_per_hour=option.net_s,
        )
        for option in found
    )


def _benefit(made: _Result) -> Benefit:
    """GPU time by prefill alone: decoding is not counted, so the ratios are shares of prefill time."""
    outcome = made.outcome
    net, busy = outcome.net_s, outcome.busy_s
    share = min(0.99, net / busy) if busy > 0 else 0.0
    return Benefit(
        gpu_s_per_hour_saved=net,
        gpu_busy_ratio_off=busy / 3600,
        gpu_busy_ratio_on=(busy - net) / 3600,
        capacity_gain_ratio=1 / (1 - share) - 1,
    )


def _config(made: _Result) -> dict[str, str]:
    facts, outcome = made.facts, made.outcome
    drive = facts.disk_link.disk if facts.disk_link else None
    given = Given(
        host_bytes=outcome.host.requested if outcome.host else 0,
        disk_bytes=outcome.disk.requested if outcome.disk else 0,
        ranks=facts.gpus,
        latent=any(group.kind == "latent" for group in facts.estimate.groups),
        block_tokens=facts.chunk_tokens,
        utilization=facts.utilization,
        disk_path=drive.path if drive else None,
    )
    return texts(facts.profile.name, given)


def _findings(made: _Result) -> list[Finding]:
    found = []
    if not made.gpu.fits:
        text = (
            f"weights, overhead and active requests need {show_bytes(made.gpu.needed)} of "
            f"{show_bytes(made.gpu.usable)} a GPU: use more GPUs a replica, more replicas, or a smaller KV dtype"
        )
        found.append(Finding(severity="error", code="gpu-does-not-fit", text=text))
    found += _bracket(made)
    found += _given_up(made)
    longest = made.facts.prefill.max_measured_tokens
    if longest and made.facts.workload.input_lengths.max > longest:
        text = f"prefill was measured up to {show_tokens(longest)} tokens; longer prompts are extrapolated"
        found.append(Finding(severity="warning", code="prefill-extrapolated", text=text))
    return found


def _bracket(made: _Result) -> list[Finding]:
    """Say so where the curve has no exact point near the GPU's size, which makes the promised gain too small."""
    base = made.outcome.base
    gap = base.high.hit_ratio - base.low.hit_ratio
    if gap < WIDE:
        return []
    log = round(base.tokens * made.case.demand.log_tokens_per_token)
    text = (
        f"the hit curve has no exact point between {show_tokens(base.low.capacity_tokens)} and "
        f"{show_tokens(base.high.capacity_tokens)} tokens, where the GPU cache lies: its hit ratio is between "
        f"{show_percent(base.low.hit_ratio)} and {show_percent(base.high.hit_ratio)}, and gains are counted above the "
        f"second. `kvplan workload … --capacity-tokens {log}` settles it"
    )
    return [Finding(severity="warning", code="curve-bracket", text=text)]


def _given_up(made: _Result) -> list[Finding]:
    """What each restriction of the policy costs: the same plan without it."""
    policy = made.facts.policy
    without = (
        ("disk-forbidden", "forbidding disks", policy.forbid_disk, replace(policy, forbid_disk=False)),
        ("host-forbidden", "forbidding a host tier", policy.forbid_host, replace(policy, forbid_host=False)),
        ("ttl-cost", "the time to live", policy.ttl_s is not None, replace(policy, ttl_s=None)),
    )
    found = []
    for code, what, applies, other in without:
        if applies:
            free = solve(case_of(replace(made.facts, policy=other), made.gpu, made.host))
            hits = max(0.0, free.level.low.hit_ratio - made.outcome.level.low.hit_ratio)
            gain = show_duration(max(0.0, free.net_s - made.outcome.net_s))
            text = f"{what} gives up {show_percent(hits)} of input tokens in hits and {gain} of GPU time an hour"
            found.append(Finding(severity="info", code=code, text=text))
    return found
