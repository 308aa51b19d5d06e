"""A plan for people: the decision first, then the arithmetic behind it, then everything needed to check it."""

from __future__ import annotations

from dataclasses import replace

from kvplan.documents import Budget, Document, Limit, Plan
from kvplan.page import Block, Code, Decision, Fact, Facts, Page, Row, Section, Text, Tone
from kvplan.pages import (
    parts,
    plan_figures,
    plan_inputs,
    plan_money,
    plan_options,
    plan_policy,
    plan_traffic,
    workload_figures,
)
from kvplan.pages.probe import prefill_facts
from kvplan.render.scales import show
from kvplan.units import show_bytes, show_duration, show_percent, show_tokens

_GRADES = {
    "A": "links measured, a week of logs, a live comparison",
    "B": "links measured, and logs",
    "C": "an assumed or default input decides",
}


def page(document: Document[Plan]) -> Page:
    """The review document of one plan."""
    plan = document.data
    sections = (
        _decision(plan),
        *plan_options.against(plan),
        _budgets(plan),
        plan_options.alternatives(plan),
        *plan_options.what_if(plan),
        *parts.findings(plan.findings),
        _limits(plan),
        _config(plan),
        _hits(plan),
        _benefit(plan),
        _break_even(plan),
        *_demand(plan),
        *plan_traffic.traffic(plan),
        *plan_money.money(plan),
        *_sensitivity(plan),
        plan_policy.ledger(plan),
        *plan_traffic.restart(plan),
        _confidence(plan),
        _evidence(plan),
        plan_inputs.inputs(plan),
        plan_inputs.reproduce(plan),
    )
    return Page(
        kind=document.kind,
        title=f"KV cache review: {parts.model_name(plan.inputs.estimate.data.model)}",
        lead=plan.decision,
        origin=parts.origin(document),
        sections=sections,
    )


# ------------------------------------------------------------------------------------------------ decision


def _tone(plan: Plan) -> Tone:
    if any(not limit.ok for limit in plan.limits) or any(one.severity == "error" for one in plan.findings):
        return "bad"
    if any(one.severity == "warning" for one in plan.findings):
        return "warning"
    return "plain" if plan.verdict == "nothing" else "good"


def _decision(plan: Plan) -> Section:
    facts = [_budget_fact(name, getattr(plan.budgets, name)) for name in parts.TIERS]
    facts.append(_gain(plan))
    facts.append(Fact(label="confidence", value=plan.confidence.grade, note=_GRADES[plan.confidence.grade]))
    broken = [limit.name for limit in plan.limits if not limit.ok]
    notes = []
    if broken:
        notes.append(("Exceeds", ", ".join(broken)))
    notes.append(("What would flip it", _flips(plan)))
    if plan.confidence.raise_by:
        notes.append(("Raise confidence by", "; ".join(plan.confidence.raise_by)))
    first, dot, rest = plan.decision.partition(". ")
    block = Decision(headline=first + dot.strip(), text=rest, tone=_tone(plan), facts=tuple(facts), notes=tuple(notes))
    return Section(name="decision", heading="Decision", blocks=(block,), first=True)


def _budget_fact(name: str, budget: Budget) -> Fact:
    if name != "gpu" and not budget.requested_bytes:
        return Fact(label=parts.TIERS[name], value="none", note=budget.why)
    if not budget.bytes and name == "gpu":
        note = "nothing is left for reusable blocks"
        if budget.missing_bytes:
            note += f": {show_bytes(budget.missing_bytes)} are missing for what runs"
        return Fact(label=parts.TIERS[name], value=parts.NONE, note=note)
    size = budget.bytes if name == "gpu" else budget.requested_bytes
    note = f"{show_tokens(budget.tokens)} tokens, hits {show_percent(budget.hit_ratio)} with it"
    return Fact(label=parts.TIERS[name], value=show_bytes(size), note=note)


def _gain(plan: Plan) -> Fact:
    benefit = plan.benefit
    note = f"busy {show_percent(benefit.gpu_busy_ratio_off)} without, {show_percent(benefit.gpu_busy_ratio_on)} with"
    return Fact(label="GPU time saved", value=f"{show_duration(benefit.gpu_s_per_hour_saved)} an hour", note=note)


def _flips(plan: Plan) -> str:
    """Which tested changes of one input change whether a tier is wanted at all."""
    wanted = {"host": plan.budgets.host.requested_bytes > 0, "disk": plan.budgets.disk.requested_bytes > 0}
    flips = []
    for one in plan.sensitivity:
        for tier, size in (("host", one.host_bytes), ("disk", one.disk_bytes)):
            if (size > 0) != wanted[tier]:
                flips.append(f"{one.what} {one.change}: {'with' if size else 'without'} {parts.TIERS[tier]}")
    if flips:
        return "; ".join(flips)
    return "none of the changes tested below" if plan.sensitivity else "not tested"


# ------------------------------------------------------------------------------------------------- budgets


def _budgets(plan: Plan) -> Section:
    tiers = {name: getattr(plan.budgets, name) for name in parts.TIERS}
    rows = [_budget_row(name, budget) for name, budget in tiers.items()]
    plain = all(one.usable_bytes == one.requested_bytes for name, one in tiers.items() if name != "gpu")
    columns = f"tier|>set|{'-' if plain else ''}>usable|>adds to the tiers above|->limit|>tokens|>hits up to here|-why"
    items = [
        (parts.TIERS[name], item.name, show_bytes(item.bytes), item.provenance, item.why)
        for name, budget in tiers.items()
        for item in budget.items
        if item.bytes or name == "gpu"
    ]
    blocks: list[Block] = [*plan_figures.budgets(plan), parts.table(columns, rows)]
    if items:
        blocks.append(parts.table("tier|part|>size|?from|why", items, title="Every byte", short=()))
    return Section(name="budgets", heading="Three budgets", blocks=tuple(blocks), first=True)


def _budget_row(name: str, budget: Budget) -> tuple[str, ...]:
    limit = parts.bytes_or_unknown(budget.limit_bytes)
    if name != "gpu" and not budget.requested_bytes:
        return (parts.TIERS[name], parts.NONE, "", "", limit, "", "", budget.why)
    return (
        parts.TIERS[name],
        show_bytes(budget.requested_bytes),
        show_bytes(budget.usable_bytes),
        parts.bytes_or_none(budget.bytes),
        limit,
        show_tokens(budget.tokens),
        show_percent(budget.hit_ratio),
        budget.why,
    )


def _limits(plan: Plan) -> Section:
    ranked = sorted(plan.limits, key=lambda one: (one.ok, not one.needed))  # broken first, what is not touched last
    rows = [_limit(one) for one in ranked]
    touched = [row for row, one in zip(rows, ranked, strict=True) if one.needed or not one.ok]
    short = [row if row.tone == "bad" else replace(row, cells=(*row.cells[:-1], "")) for row in touched]
    broken = sum(not one.ok for one in plan.limits)
    reading = f"{parts.plural(broken, 'limit')} exceeded." if broken else "Every limit holds."
    block = parts.table("limit|>needed|>allowed|->used|holds|-?from|why", rows, short=short)
    return Section(name="limits", heading="Limits", reading=reading, blocks=(block,), first=True)


def _limit(one: Limit) -> Row:
    used = show_percent(one.needed / one.limit) if one.limit and one.needed else ""
    cells = (
        one.name,
        show(one.needed, one.unit) if one.needed else parts.NONE,
        show(one.limit, one.unit),
        used,
        "yes" if one.ok else "NO",
        one.provenance,
        one.why,
    )
    return Row(cells=cells, tone="plain" if one.ok else "bad")


def _config(plan: Plan) -> Section:
    blocks: tuple[Block, ...] = tuple(Code(text=text, title=engine) for engine, text in plan.config.items())
    return Section(
        name="config",
        heading="Flags to paste",
        blocks=blocks or (Text(text="No flag changes anything: nothing is to be set."),),
        first=True,
    )


# ------------------------------------------------------------------------------------- the arithmetic shown


def _hits(plan: Plan) -> Section:
    reading = workload_figures.lead(plan.inputs.workload.data)
    return Section(name="hits", heading="Hits against capacity", reading=reading, blocks=plan_figures.hits(plan))


def _benefit(plan: Plan) -> Section:
    benefit = plan.benefit
    facts = [
        _gain(plan),
        Fact(
            label="capacity gain",
            value=show_percent(benefit.capacity_gain_ratio),
            note="more requests for the same GPU time",
        ),
    ]
    if benefit.sustainable_rate_off is not None and benefit.sustainable_rate_on is not None:
        change = f"{benefit.sustainable_rate_off:,.3g}/s to {benefit.sustainable_rate_on:,.3g}/s"
        facts.append(
            Fact(label="sustainable requests, one replica", value=change, note="without and with the recommendation")
        )
    if benefit.gpu_hours_per_month is not None:
        hours = f"{benefit.gpu_hours_per_month:,.0f} a month"
        facts.append(Fact(label="GPU hours freed", value=hours, note="all replicas together, 730 hours a month"))
    if benefit.usd_per_hour is not None:
        worth = f"{parts.dollars(benefit.usd_per_hour)} an hour"
        facts.append(Fact(label="worth", value=worth, note="one replica, at the prices given, memory not yet paid"))
    reading = "The size past which more memory saves no more GPU time is the one to buy."
    blocks: tuple[Block, ...] = (Facts(items=tuple(facts)), *plan_figures.benefit(plan))
    return Section(name="benefit", heading="What it gains", reading=reading, blocks=blocks)


def _break_even(plan: Plan) -> Section:
    rows = [
        Row(
            cells=(
                parts.TIERS[one.tier],
                f"{one.prefix_tokens:,}",
                show_duration(one.recompute_s),
                show_duration(one.load_s),
                show(one.break_even_bytes_per_s, "bytes_per_s"),
                show(one.link_bytes_per_s, "bytes_per_s"),
                one.verdict,
            ),
            tone="warning" if one.verdict == "recompute" else "plain",
        )
        for one in plan.break_even
    ]
    columns = "tier|>prefix tokens|>recompute|>load|>break-even rate|>link rate|quicker"
    blocks: list[Block] = [Facts(items=prefill_facts(plan.prefill)), *plan_figures.break_even(plan)]
    if rows:
        blocks.append(parts.table(columns, rows))
    reading = "A tier pays for a prefix only where loading it is quicker than computing it again."
    return Section(name="break-even", heading="Load or recompute", reading=reading, blocks=tuple(blocks))


def _demand(plan: Plan) -> tuple[Section, ...]:
    blocks = (*plan_figures.intervals(plan), *workload_figures.load(plan.inputs.workload.data))
    if not blocks:
        return ()
    reading = "A tier helps the reuse that comes back before the tier has filled and its blocks are overwritten."
    return (Section(name="demand", heading="The demand", reading=reading, blocks=blocks),)


def _sensitivity(plan: Plan) -> tuple[Section, ...]:
    if not plan.sensitivity:
        return ()
    rows = [
        (
            one.what,
            one.change,
            parts.bytes_or_none(one.host_bytes),
            parts.bytes_or_none(one.disk_bytes),
            show_duration(one.net_s_per_hour),
        )
        for one in plan.sensitivity
    ]
    columns = "input|change|>host memory then|>disk then|>GPU time saved an hour"
    reading = f"What would flip the decision: {_flips(plan)}."
    blocks: tuple[Block, ...] = (*plan_figures.tornado(plan), parts.table(columns, rows))
    return (Section(name="sensitivity", heading="If an input is wrong", reading=reading, blocks=blocks),)


# -------------------------------------------------------------------------------------------------- checks


def _confidence(plan: Plan) -> Section:
    confidence = plan.confidence
    rows = [("because", reason) for reason in confidence.reasons] + [
        ("raise it by", step) for step in confidence.raise_by
    ]
    reading = f"Grade {confidence.grade}: {_GRADES[confidence.grade]}."
    return Section(name="confidence", heading="Confidence", reading=reading, blocks=(parts.table("|", rows),))


def _evidence(plan: Plan) -> Section:
    rows = [(one.what, one.value, one.provenance, one.source, (one.date or "")[:10]) for one in plan.evidence]
    reading = "Every input to the decision, and where it came from."
    block = parts.table("what|value|?from|source|date", rows)
    return Section(name="evidence", heading="Evidence", reading=reading, blocks=(block,))
