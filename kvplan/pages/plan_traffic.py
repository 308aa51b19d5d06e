"""What a plan moves over its links and writes to its drive, and what a restart loses."""

from __future__ import annotations

from itertools import chain

from kvplan.documents import Alternative, Limit, Plan
from kvplan.page import Axis, Block, Fact, Facts, Figure, Part, Plot, Role, Rule, Section, Series, Stack
from kvplan.pages import parts
from kvplan.pages.parts import fact
from kvplan.units import show_bytes, show_duration, show_percent, show_rate

_USED: tuple[tuple[str, Role], ...] = (("host", "host"), ("disk", "disk"))


def recommended(plan: Plan) -> Alternative | None:
    """The recommendation among the alternatives."""
    return next((one for one in plan.alternatives if one.name == "recommended"), None)


def traffic(plan: Plan) -> tuple[Section, ...]:
    """Link and endurance budget of the tiers in use."""
    chosen = recommended(plan)
    if chosen is None or not (chosen.stored_bytes_per_hour or chosen.loaded_bytes_per_hour):
        return ()
    limits = {limit.name: limit for limit in plan.limits}
    blocks: list[Block] = [Facts(items=_facts(plan, chosen, limits)), *_over_time(plan, chosen), *_use(plan, limits)]
    reading = "A link that is busy most of the time makes loads wait for each other; a drive wears with every write."
    return (Section(name="links", heading="Links and drives", reading=reading, blocks=tuple(blocks)),)


def _facts(plan: Plan, chosen: Alternative, limits: dict[str, Limit]) -> tuple[Fact, ...]:
    stored, loaded = chosen.stored_bytes_per_hour, chosen.loaded_bytes_per_hour
    facts = [
        fact("loaded", show_rate(loaded / 3600), f"{show_bytes(loaded)} an hour, one replica"),
        fact("stored", show_rate(stored / 3600), f"{show_bytes(stored)} an hour, {_times(stored, loaded)}"),
    ]
    worn = limits.get("disk endurance")
    if worn is not None and plan.budgets.disk.requested_bytes:
        facts.append(fact("the drive lasts", show_duration(worn.limit), worn.why, worn.provenance))
    return tuple(facts)


def _times(stored: float, loaded: float) -> str:
    return f"{stored / loaded:,.1f} times what is loaded" if loaded else "and nothing is loaded"


def _over_time(plan: Plan, chosen: Alternative) -> tuple[Figure, ...]:
    """Loads and stores along the log, spread as the arrivals are, against what the links carry."""
    slots = [one for one in plan.inputs.workload.data.load if one.width_s > 0]
    total = sum(one.input_tokens for one in slots)
    if len(slots) < 2 or not total:
        return ()
    mean = total / sum(one.width_s for one in slots)
    share = [(one.start_s, one.input_tokens / one.width_s / mean) for one in slots]
    end = slots[-1].start_s + slots[-1].width_s
    series = []
    ways: tuple[tuple[str, float, Role], ...] = (
        ("loads", chosen.loaded_bytes_per_hour, "main"),
        ("stores", chosen.stored_bytes_per_hour, "second"),
    )
    for name, volume, role in ways:
        points = [(at, part * volume / 3600) for at, part in share if part and volume]
        if points:
            series.append(Series(name=name, points=(*points, (end, points[-1][1])), role=role, style="step"))
    gpus = plan.inputs.estimate.data.parallel.gpus
    rules = tuple(
        Rule(axis="y", value=one.link_bytes_per_s * gpus, label=f"{parts.TIERS[tier]} link, loads", role=role)
        for tier, role in _USED
        if getattr(plan.budgets, tier).requested_bytes
        for one in [row for row in plan.break_even if row.tier == tier][-1:]
    )
    plot = Plot(
        x=Axis(title="time in the log", unit="s", domain=(slots[0].start_s, end)),
        y=Axis(title="bytes a second, one replica", unit="bytes_per_s", log=True),
        series=tuple(series),
        rules=rules,
        height=200,
    )
    most = max(chain.from_iterable(((y, one.name) for _, y in one.points) for one in series))
    reading = (
        f"At most {show_rate(most[0])} ({most[1]})"
        + "".join(f"; the {rule.label.removesuffix(', loads')} carries {show_rate(rule.value)}" for rule in rules)
        + ". Spread over the log as its arrivals are."
    )
    alt = f"Bytes loaded and stored a second along the log, against what the links carry. {reading}"
    return (Figure(name="traffic", title="Loads and stores over time", reading=reading, alt=alt, charts=(plot,)),)


def _use(plan: Plan, limits: dict[str, Limit]) -> tuple[Figure, ...]:
    """How busy each link is in the busiest stretch, against the share that may be."""
    bars = []
    for tier, role in _USED:
        limit = limits.get(f"{tier} link use")
        if limit is None or not getattr(plan.budgets, tier).requested_bytes or not limit.needed:
            continue
        idle = max(0.0, 1.0 - limit.needed)
        drawn = (Part(name="busy", value=limit.needed, role=role), Part(name="idle", value=idle, role="faint"))
        name = f"Link to {parts.TIERS[tier]}, busiest stretch"
        bars.append(Stack(title=name, unit="ratio", parts=tuple(p for p in drawn if p.value), limit=limit.limit))
    if not bars:
        return ()
    reading = " ".join(f"{bar.title}: {show_percent(bar.parts[0].value)} of the time." for bar in bars)
    alt = f"Bars of how busy each link is. {reading}"
    return (Figure(name="link-use", title="How busy the links are", reading=reading, alt=alt, charts=tuple(bars)),)


# ------------------------------------------------------------------------------------------------ restarts


def restart(plan: Plan) -> tuple[Section, ...]:
    """Cold start, the loss of a tier, and where the memory lies."""
    blocks: list[Block] = []
    if plan.warm_up:
        rows = [
            (
                parts.TIERS[one.tier],
                "yes" if one.survives else "no",
                parts.seconds_or_unknown(one.fill_s),
                parts.seconds_or_unknown(one.lost_gpu_s),
                one.why,
            )
            for one in plan.warm_up
        ]
        columns = "tier|survives|>fills again in|>GPU time lost, at most|why"
        blocks.append(parts.table(columns, rows, title="After a restart of the engine"))
    if plan.verdict != "nothing":
        blocks.append(Facts(items=_without(plan)))
    if len(plan.numa) > 1:
        nodes = [
            (
                f"{one.node}",
                show_bytes(one.bytes) if one.bytes else parts.NONE,
                show_bytes(one.available_bytes),
                ", ".join(f"gpu{index}" for index in one.gpus),
            )
            for one in plan.numa
        ]
        blocks.append(parts.table("NUMA node|>taken|>available|GPUs", nodes, title="Where the host memory lies"))
    if not blocks:
        return ()
    reading = "What is lost when the engine restarts or a tier fails; then the plan without a tier is what is left."
    return (Section(name="restart", heading="Risks and cold start", reading=reading, blocks=tuple(blocks)),)


def _without(plan: Plan) -> tuple[Fact, ...]:
    benefit = plan.benefit
    nothing = next((one for one in plan.alternatives if one.name == "nothing"), None)
    busy = benefit.gpu_busy_ratio_off
    facts = [
        fact(
            "GPU busy if every tier is lost",
            show_percent(busy),
            f"{show_percent(benefit.gpu_busy_ratio_on)} with them" + ("; more than there is" if busy > 1 else ""),
        )
    ]
    if nothing is not None:
        facts.append(fact("hits then", show_percent(nothing.hit_ratio), "the GPU cache alone"))
    return tuple(facts)
