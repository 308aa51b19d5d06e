"""A plan for people: the decision first, then the arithmetic behind it, then everything needed to check it."""

from __future__ import annotations

from dataclasses import replace

from kvplan.documents import Alternative, Budget, Document, Limit, Plan
from kvplan.page import Block, Code, Decision, Fact, Facts, Page, Row, Section, Text, Tone
from kvplan.pages import parts, plan_figures, plan_inputs, workload_figures
from kvplan.pages.probe import prefill_facts
from kvplan.render.scales import show
from kvplan.units import show_bytes, show_duration, show_percent, show_tokens

_TIERS = ("gpu", "host", "disk")
_NAMES = {"gpu": "GPU", "host": "host memory", "disk": "disk"}
_GRADES = {
    "A": "links measured, a week of logs, a live comparison",
    "B": "links measured, and logs",
    "C": "an assumed or default input decides",
}


def page(document: Document[Plan]) -> Page:
    """The review document of one plan."""
    plan = document.data
    model = plan.inputs.estimate.data.model.id
    sections = (
        _decision(plan),
        _budgets(plan),
        _alternatives(plan),
        *parts.findings(plan.findings),
        _limits(plan),
        _config(plan),
        _hits(plan),
        _benefit(plan),
        _break_even(plan),
        *_demand(plan),
        *_sensitivity(plan),
        _confidence(plan),
        _evidence(plan),
        plan_inputs.inputs(plan),
        plan_inputs.reproduce(plan),
    )
    return Page(
        kind=document.kind,
        title=f"KV cache review: {model}",
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
    facts = [_budget_fact(name, getattr(plan.budgets, name)) for name in _TIERS]
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
        return Fact(label=_NAMES[name], value="none", note=budget.why)
    size = budget.bytes if name == "gpu" else budget.requested_bytes
    note = f"{show_tokens(budget.tokens)} tokens, hits {show_percent(budget.hit_ratio)} with it"
    return Fact(label=_NAMES[name], value=show_bytes(size), note=note)


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
                flips.append(f"{one.what} {one.change}: {'with' if size else 'without'} {_NAMES[tier]}")
    if flips:
        return "; ".join(flips)
    return "none of the changes tested below" if plan.sensitivity else "not tested"


# ------------------------------------------------------------------------------------------------- budgets


def _budgets(plan: Plan) -> Section:
    rows = []
    for name in _TIERS:
        budget = getattr(plan.budgets, name)
        rows.append(
            (
                _NAMES[name],
                show_bytes(budget.requested_bytes),
                show_bytes(budget.usable_bytes),
                show_bytes(budget.bytes),
                parts.bytes_or_unknown(budget.limit_bytes),
                show_tokens(budget.tokens),
                show_percent(budget.hit_ratio),
                budget.why,
            )
        )
    columns = "tier|>set|>usable|>adds to the tiers above|>limit|>tokens|>hits up to here|why"
    items = [
        (_NAMES[name], item.name, show_bytes(item.bytes), item.provenance, item.why)
        for name in _TIERS
        for item in getattr(plan.budgets, name).items
    ]
    blocks: list[Block] = [*plan_figures.budgets(plan), parts.table(columns, rows)]
    if items:
        blocks.append(parts.table("tier|part|>size|?from|why", items, title="Every byte", short=()))
    return Section(name="budgets", heading="Three budgets", blocks=tuple(blocks), first=True)


def _alternatives(plan: Plan) -> Section:
    sums = [_alternative(one) for one in plan.alternatives]
    columns = "option|>host memory|>disk|>hits|>recompute saved|>loading|>storing|>net"
    reasons = [
        (one.name, show_bytes(one.stored_bytes_per_hour), show_bytes(one.loaded_bytes_per_hour), one.why)
        for one in plan.alternatives
    ]
    reading = (
        "GPU time an hour against no tier at all: what recomputing would have cost, less what loading and storing cost."
    )
    blocks = (
        parts.table(columns, sums),
        parts.table("option|>stored an hour|>loaded an hour|why", reasons, title="Traffic and reasons", short=()),
    )
    return Section(name="alternatives", heading="Alternatives", reading=reading, blocks=blocks, first=True)


def _alternative(one: Alternative) -> Row:
    cells = (
        one.name if one.feasible else f"{one.name} (not feasible)",
        show_bytes(one.host_bytes) if one.host_bytes else "none",
        show_bytes(one.disk_bytes) if one.disk_bytes else "none",
        show_percent(one.hit_ratio),
        show_duration(one.saved_s_per_hour),
        show_duration(one.load_s_per_hour),
        show_duration(one.store_s_per_hour),
        show_duration(one.net_s_per_hour),
    )
    return Row(cells=cells, strong=one.name == "recommended", tone="plain" if one.feasible else "warning")


def _limits(plan: Plan) -> Section:
    rows = [_limit(one) for one in plan.limits]
    short = [row if row.tone == "bad" else replace(row, cells=(*row.cells[:-1], "")) for row in rows]
    broken = sum(not one.ok for one in plan.limits)
    reading = f"{parts.plural(broken, 'limit')} exceeded." if broken else "Every limit holds."
    block = parts.table("limit|>needed|>allowed|->used|holds|-?from|why", rows, short=short)
    return Section(name="limits", heading="Limits", reading=reading, blocks=(block,), first=True)


def _limit(one: Limit) -> Row:
    used = show_percent(one.needed / one.limit) if one.limit else ""
    cells = (
        one.name,
        show(one.needed, one.unit),
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
    if benefit.usd_per_hour is not None:
        facts.append(Fact(label="worth", value=f"${benefit.usd_per_hour:,.2f} an hour", note="at the prices given"))
    reading = "The size past which more memory saves no more GPU time is the one to buy."
    blocks: tuple[Block, ...] = (Facts(items=tuple(facts)), *plan_figures.benefit(plan))
    return Section(name="benefit", heading="What it gains", reading=reading, blocks=blocks)


def _break_even(plan: Plan) -> Section:
    rows = [
        Row(
            cells=(
                _NAMES[one.tier],
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
            show_bytes(one.host_bytes) if one.host_bytes else "none",
            show_bytes(one.disk_bytes) if one.disk_bytes else "none",
            show_duration(one.net_s_per_hour),
        )
        for one in plan.sensitivity
    ]
    columns = "input|change|>host memory then|>disk then|>GPU time saved an hour"
    reading = f"What would flip the decision: {_flips(plan)}."
    blocks = (plan_figures.tornado(plan), parts.table(columns, rows))
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
    rows = [(one.what, one.value, one.provenance, one.source, one.date or "") for one in plan.evidence]
    reading = "Every input to the decision, and where it came from."
    block = parts.table("what|value|?from|source|date", rows)
    return Section(name="evidence", heading="Evidence", reading=reading, blocks=(block,))
