"""A plan beside others: its alternatives, the same plan with an input changed, and an earlier plan."""

from __future__ import annotations

from kvplan.documents import Alternative, Changed, Plan, WhatIf
from kvplan.page import Block, Decision, Row, Section, Table
from kvplan.pages import parts
from kvplan.units import show_bytes, show_duration, show_percent


def alternatives(plan: Plan) -> Section:
    """Nothing, the recommendation, the knee and the largest, each with its arithmetic."""
    sums = [_alternative(one) for one in plan.alternatives]
    columns = "option|>host memory|>disk|>hits|>recompute saved|>loading|>storing|>net"
    held = any(one.hold_s_per_hour for one in plan.alternatives)
    reasons = [
        (
            one.name,
            show_bytes(one.stored_bytes_per_hour),
            show_bytes(one.loaded_bytes_per_hour),
            show_duration(one.hold_s_per_hour) if held else "",
            one.why,
        )
        for one in plan.alternatives
    ]
    reading = (
        "GPU time an hour against no tier at all: what recomputing would have cost, less what loading and storing cost."
    )
    traffic = ">stored an hour|>loaded an hour|>GPU time that the memory's price buys|why"
    blocks = (
        parts.table(columns, sums),
        parts.table(f"option|{traffic}", reasons, title="Traffic and reasons", short=()),
    )
    return Section(name="alternatives", heading="Alternatives", reading=reading, blocks=blocks, first=True)


def _alternative(one: Alternative) -> Row:
    cells = (
        one.name if one.feasible else f"{one.name} (not feasible)",
        parts.bytes_or_none(one.host_bytes),
        parts.bytes_or_none(one.disk_bytes),
        show_percent(one.hit_ratio),
        show_duration(one.saved_s_per_hour),
        show_duration(one.load_s_per_hour),
        show_duration(one.store_s_per_hour),
        show_duration(one.net_s_per_hour),
    )
    return Row(cells=cells, strong=one.name == "recommended", tone="plain" if one.feasible else "warning")


def what_if(plan: Plan) -> tuple[Section, ...]:
    """The plan made again with some of its inputs changed."""
    if not plan.what_if:
        return ()
    reading = "The same plan made again with the inputs changed as the first column says."
    block = _rows(plan.what_if)
    return (Section(name="what-if", heading="What if", reading=reading, blocks=(block,), first=True),)


def _rows(rows: tuple[WhatIf, ...], title: str = "") -> Table:
    columns = "change|>GPU|>host memory|>disk|>hits|>GPU busy|>GPU time saved|-grade|exceeds"
    cells = [
        Row(
            cells=(
                one.change,
                parts.bytes_or_none(one.gpu_bytes),
                parts.bytes_or_none(one.host_bytes),
                parts.bytes_or_none(one.disk_bytes),
                show_percent(one.hit_ratio),
                show_percent(one.gpu_busy_ratio),
                show_duration(one.net_s_per_hour),
                one.grade,
                ", ".join(one.limits),
            ),
            strong=index == 0,
            tone="bad" if one.limits else "plain",
        )
        for index, one in enumerate(rows)
    ]
    return parts.table(columns, cells, title=title)


def against(plan: Plan) -> tuple[Section, ...]:
    """What moved since an earlier plan, and which input moved it."""
    earlier = plan.against
    if earlier is None:
        return ()
    first, dot, rest = earlier.decision.partition(". ")
    notes = (("Made", earlier.created),)
    blocks: list[Block] = [Decision(headline=f"Then: {first}{dot.strip()}", tone="plain", text=rest, notes=notes)]
    if earlier.results:
        blocks.append(_changes("What changed", earlier.results))
    if len(earlier.causes) > 2:
        blocks.append(_rows(earlier.causes, title="Why: the earlier plan with one new input at a time"))
    if earlier.inputs:
        blocks.append(_changes("Inputs that differ", earlier.inputs))
    reading = _moved(plan)
    return (
        Section(name="against", heading="Since the earlier plan", reading=reading, blocks=tuple(blocks), first=True),
    )


def _changes(title: str, rows: tuple[Changed, ...]) -> Table:
    return parts.table("what|then|now", [(one.what, one.before, one.after) for one in rows], title=title)


def _moved(plan: Plan) -> str:
    earlier = plan.against
    if earlier is None or not (earlier.results or earlier.inputs):
        return "Nothing differs: the same inputs, the same plan."
    results, inputs = parts.plural(len(earlier.results), "figure"), parts.plural(len(earlier.inputs), "input")
    if not earlier.results:
        return f"The recommendation stands, though {inputs} differ."
    causes = earlier.causes[1:-1]
    base = earlier.causes[0] if earlier.causes else None
    line = f"{results} moved and {inputs} differ."
    if base is None or not causes:
        return line
    most = max(causes, key=lambda one: abs(one.net_s_per_hour - base.net_s_per_hour))
    if most.net_s_per_hour == base.net_s_per_hour:
        return f"{line} No single input moves the GPU time saved."
    ends = f"from {show_duration(base.net_s_per_hour)} to {show_duration(most.net_s_per_hour)} an hour"
    return f"{line} {most.change[:1].upper()}{most.change[1:]} takes the GPU time saved {ends}."
