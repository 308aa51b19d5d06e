"""GPU, host and disk budgets for the KV cache: one Estimate, one Workload, what a probe measured, and a Policy.

`make` resolves the inputs (planning/facts.py), divides the memory (budgets.py), values every size of every tier on the
exact hit curve (curves.py, economics.py, choice.py) and writes down the choice with its limits, sensitivities and
evidence; `what_if` and `against` set other plans beside it. The method and its assumptions are in docs/planning.md.
Pure Python on documents: no array library is loaded.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

from msgspec.structs import replace

from kvplan.documents import (
    Alternative,
    Benefit,
    BreakEven,
    Budgets,
    Cost,
    Document,
    EngineSettings,
    Estimate,
    GpuSpec,
    KeepFor,
    Plan,
    PlanInputs,
    Policy,
    Prices,
    Probe,
    TierPoint,
    Workload,
)
from kvplan.engines.configs.given import given
from kvplan.engines.flags import texts
from kvplan.planning.beside import compared, row
from kvplan.planning.budgets import disk_budget, gpu_budget, host_budget
from kvplan.planning.choice import Option, Outcome, Tier, knee
from kvplan.planning.confidence import confidence, evidence
from kvplan.planning.drive import is_stated
from kvplan.planning.economics import break_even_row
from kvplan.planning.facts import Facts
from kvplan.planning.findings import findings, policy_costs
from kvplan.planning.limits import limits
from kvplan.planning.money import HOURS_PER_MONTH, cost, keep_for, priced
from kvplan.planning.placement import by_node
from kvplan.planning.restart import warm_ups
from kvplan.planning.sensitivity import changes, sensitivities
from kvplan.planning.solved import Solved, solved
from kvplan.planning.variants import vary
from kvplan.planning.wording import decision, no_tier, settled_first, why_disk, why_host

BREAK_EVEN_TOKENS = (2048, 8192, 32_768, 131_072)

Verdict = Literal["nothing", "host", "disk", "host+disk"]


def make(
    estimate: Document[Estimate],
    workload: Document[Workload],
    probe: Document[Probe] | None,
    gpu: GpuSpec | None,
    policy: Policy,
    prices: Prices | None = None,
) -> Plan:
    """Plan one replica's three budgets.

    A plan comes out even where weights or running requests do not fit: then a limit is not ok. Without prices no
    dollars are said. Raises KvplanError naming what is missing where no GPU memory, weights, prefill cost, time span,
    request, tenant or price is known that the policy needs.
    """
    return _make(PlanInputs(estimate=estimate, workload=workload, probe=probe, gpu=gpu, prices=prices), policy)


def _make(inputs: PlanInputs, policy: Policy) -> Plan:
    made = solved(inputs, policy)
    facts, outcome = made.facts, made.outcome
    numa = by_node(facts, made.host_cost)
    bounds = limits(facts, made.gpu, made.host, made.tiers, outcome, numa)
    given_up = policy_costs(made)
    settings, budgets = _settings(facts), _budgets(made)
    return Plan(
        decision=settled_first(decision(facts, made.case, outcome), bounds),
        verdict=_verdict(outcome),
        inputs=inputs,
        policy=policy,
        prefill=facts.prefill,
        budgets=budgets,
        alternatives=_alternatives(made),
        break_even=_break_even(made),
        curve=(*_points(made, "host"), *_points(made, "disk")),
        benefit=_benefit(made),
        limits=bounds,
        sensitivity=sensitivities(made),
        config=_config(made, settings, budgets),
        confidence=confidence(facts),
        evidence=evidence(facts),
        policy_costs=given_up,
        costs=_costs(made),
        keep_for=_keep_for(made),
        warm_up=warm_ups(facts, outcome),
        numa=numa if made.host_cost else (),
        settings=settings,
        findings=(*facts.findings, *findings(made, given_up, numa)),
    )


def what_if(plan: Plan, changes: Iterable[str]) -> Plan:
    """The plan with one row for each of `changes`, such as 'kv-dtype=fp8,gpu=h200-141gb', behind its own.

    Raises UsageError naming a key that does not exist, KvplanError where the documents do not tell what it needs.
    """
    rows = [row("this plan", plan)]
    rows += [row(text, _make(*vary(plan.inputs, plan.policy, text))) for text in changes]
    return replace(plan, what_if=tuple(rows))


def against(plan: Plan, old: Document[Plan]) -> Plan:
    """The plan with an earlier one beside it: what moved, which inputs differ, and what each alone would have moved."""
    return replace(plan, against=compared(plan, old, _make))


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
    made = solved(PlanInputs(estimate=estimate, workload=workload, probe=probe, gpu=gpu), policy)
    moved = (made.case, *(moved for _, _, moved in changes(made)))
    return tuple(sorted({int(one.gpu_tokens * one.demand.log_tokens_per_token) for one in moved} - {0}))


def _verdict(outcome: Outcome) -> Verdict:
    if outcome.host:
        return "host+disk" if outcome.disk else "host"
    return "disk" if outcome.disk else "nothing"


def _budgets(made: Solved) -> Budgets:
    facts, outcome = made.facts, made.outcome
    return Budgets(
        gpu=gpu_budget(facts, made.gpu, outcome),
        host=host_budget(facts, made.host, made.case.host, outcome, why_host(facts, made.case, outcome)),
        disk=disk_budget(facts, made.case.disk, outcome, why_disk(facts, made.case, outcome)),
    )


def _alternatives(made: Solved) -> tuple[Alternative, ...]:
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


def _one_tier(name: Literal["knee", "largest"], tier: Tier, option: Option, made: Solved, why: str) -> Alternative:
    text = f"refused: {option.refused}" if option.refused else why
    host, disk = (option, None) if tier.name == "host" else (None, option)
    return _alternative(name, host, disk, made, text)


def _alternative(
    name: Literal["nothing", "recommended", "knee", "largest"],
    host: Option | None,
    disk: Option | None,
    made: Solved,
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
        hold_s_per_hour=sum(option.hold_s for option in used),
        stored_bytes_per_hour=sum(option.stored_tokens for option in used) * kv,
        loaded_bytes_per_hour=sum(option.loaded_tokens for option in used) * kv,
        feasible=not any(option.refused for option in used),
        why=why,
    )


def _break_even(made: Solved) -> tuple[BreakEven, ...]:
    """Rows at four prefix lengths, those beyond the model's context left out; rates are per GPU."""
    facts = made.facts
    share = facts.offload_bytes_per_token / facts.gpus
    link = facts.host_link
    stores = link.store_bytes_per_s if link and link.provenance == "measured" else None
    sides = ((made.case.host, float(facts.bytes_per_token_per_gpu), stores), (made.case.disk, share, None))
    return tuple(
        break_even_row(tier.name, tokens, facts.prefill, tier.path, kv, stored)
        for tier, kv, stored in sides
        if tier
        for tokens in _lengths(facts)
    )


def _lengths(facts: Facts) -> list[int]:
    longest = facts.estimate.model.max_context_tokens or BREAK_EVEN_TOKENS[-1]
    return [tokens for tokens in BREAK_EVEN_TOKENS if tokens <= longest] or [longest]


def _points(made: Solved, name: Literal["host", "disk"]) -> tuple[TierPoint, ...]:
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


def _benefit(made: Solved) -> Benefit:
    """GPU time by prefill alone: decoding is not counted, so the ratios are shares of prefill time."""
    outcome = made.outcome
    net, busy = outcome.net_s, outcome.busy_s
    share = min(0.99, net / busy) if busy > 0 else 0.0
    prices, gpus = made.facts.prices, made.facts.gpus
    return Benefit(
        gpu_s_per_hour_saved=net,
        gpu_busy_ratio_off=busy / 3600,
        gpu_busy_ratio_on=(busy - net) / 3600,
        capacity_gain_ratio=1 / (1 - share) - 1,
        usd_per_hour=net / 3600 * gpus * prices.gpu_usd_per_hour if prices else None,
        gpu_hours_per_month=net / 3600 * gpus * made.facts.replicas * HOURS_PER_MONTH,
    )


def _settings(facts: Facts) -> EngineSettings:
    drive = facts.disk_link.disk if facts.disk_link else None
    return EngineSettings(
        engine=facts.profile.name,
        offload=facts.policy.offload,
        ranks=facts.gpus,
        on_host=facts.on_host,
        block_tokens=facts.chunk_tokens,
        utilization=facts.utilization,
        disk_path=drive.path if drive and not is_stated(drive) else None,
        host_known=facts.machine is not None,
    )


def _config(made: Solved, settings: EngineSettings, budgets: Budgets) -> dict[str, str]:
    facts = made.facts
    hidden = facts.profile.ignores_salt if facts.policy.share != "all" else ()
    found = texts(
        settings.engine, given(settings, facts.estimate, facts.policy, budgets, facts.probe), settings.offload
    )
    return {name: text for name, text in found.items() if name not in hidden}


def _costs(made: Solved) -> tuple[Cost, ...]:
    """One line a view of the money that every tier has a price for."""
    prices = made.facts.prices
    if prices is None:
        return ()
    policy = made.facts.policy
    return tuple(
        cost(made.facts, view, made.tiers, made.outcome, solved(made.inputs, replace(policy, price_view=view)).outcome)
        for view in priced(prices, made.tiers)
    )


def _keep_for(made: Solved) -> tuple[KeepFor, ...]:
    facts = made.facts
    prices = facts.prices
    if prices is None:
        return ()
    found = (
        keep_for(prices, tier.name, view, tokens, facts.gpus, facts.prefill, tier.path, tier.bytes_per_token)
        for tier in made.tiers
        if tier
        for view in priced(prices, (tier,))
        if view != "owned"
        for tokens in _lengths(facts)
    )
    return tuple(one for one in found if one)
