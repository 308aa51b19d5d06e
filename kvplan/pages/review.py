"""Several plans in one review: side by side first, then each with everything that belongs to it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import replace

from msgspec.structs import replace as changed

from kvplan.documents import Document, Finding, Plan, Simulation
from kvplan.errors import KvplanError
from kvplan.page import Axis, Block, Figure, Page, Plot, Role, Row, Section, Series
from kvplan.pages import parts
from kvplan.pages import plan as one_plan
from kvplan.pages import simulation as one_simulation
from kvplan.units import show_bytes, show_duration, show_percent

_ROLES: tuple[Role, ...] = ("main", "second", "third", "fourth", "muted", "danger")
# What tells plans apart, said in a name only where it differs between them; the model is always said.
_TRAITS: tuple[Callable[[Plan], str], ...] = (
    lambda plan: plan.inputs.estimate.data.kv_dtype,
    lambda plan: parts.parallel(plan.inputs.estimate.data.parallel),
    lambda plan: plan.inputs.estimate.data.engine,
    lambda plan: "" if plan.inputs.gpu is None else plan.inputs.gpu.name,
    lambda plan: _host(plan),
    lambda plan: parts.plural(plan.policy.replicas, "replica"),
)


def page(documents: Sequence[Document[Plan]]) -> Page:
    """The review of several plans, in the order given."""
    plans = [document.data for document in documents]
    names = labels(plans)
    sections = [_overview(plans, names), *_shared(plans, names)]
    for number, (document, name) in enumerate(zip(documents, names, strict=True), 1):
        sections += [_own(section, number, name) for section in one_plan.page(document).sections]
    return Page(
        kind="kvplan.review",
        title=f"KV cache review of {len(plans)} plans",
        lead=_lead(plans),
        origin="; ".join(dict.fromkeys(parts.origin(document) for document in documents)),
        sections=tuple(sections),
    )


def with_simulations(page: Page, plans: Sequence[Plan], simulations: Sequence[Document[Simulation]]) -> Page:
    """The review with its plans' simulations before its policy, or at its end. Raises KvplanError for another's."""
    sections: list[Section] = []
    for number, document in enumerate(simulations, 1):
        plan = _plan_of(document.data, plans)
        document = _told(document, plan)
        sections += [
            _played(section, number if len(simulations) > 1 else None, document)
            for section in one_simulation.page(document, plan.policy.growth).sections
        ]
    names = [section.name for section in page.sections]
    place = names.index("policy") if "policy" in names else len(names)
    origin = "; ".join(dict.fromkeys((page.origin, *(parts.origin(one) for one in simulations))))
    return replace(page, origin=origin, sections=(*page.sections[:place], *sections, *page.sections[place:]))


def _plan_of(simulation: Simulation, plans: Sequence[Plan]) -> Plan:
    """The plan that was played, or else the first of its model; an engine given by figures is the first plan's."""
    played = simulation.model
    if played is None:
        return plans[0]
    models = [plan.inputs.estimate.data.model for plan in plans]
    found = [p for p, m in zip(plans, models, strict=True) if m.config_sha256 == played.config_sha256]
    if not found:
        names = ", ".join(dict.fromkeys(parts.model_name(model) for model in models))
        raise KvplanError(
            f"the simulation is of {parts.model_name(played)}, and the review of {names}: name the plan that was played"
        )
    return next((plan for plan in found if not _apart(simulation, plan)), found[0])


def _apart(simulation: Simulation, plan: Plan) -> list[str]:
    """Where the engine that was played is not the plan's: what a simulation takes from its plan and no option sets."""
    engine, estimate = simulation.engine, plan.inputs.estimate.data
    pairs: tuple[tuple[str, float, float], ...] = (
        ("replicas", engine.replicas, plan.policy.replicas * max(1, estimate.parallel.dp)),
        ("bytes a token", engine.tier_bytes_per_token, max(1, estimate.kv.offload_bytes_per_token)),
        ("seconds to compute a token", engine.a_s_per_token, plan.prefill.a_s_per_token),
    )
    return [f"{what} {played:.4g}, planned {planned:.4g}" for what, played, planned in pairs if played != planned]


def _told(document: Document[Simulation], plan: Plan) -> Document[Simulation]:
    """With a warning where another plan of the same model was played."""
    simulation = document.data
    apart = [] if simulation.model is None else _apart(simulation, plan)
    if not apart:
        return document
    text = f"another plan of this model was played: {'; '.join(apart)}; play this plan to compare"
    finding = Finding(severity="warning", code="another-plan", text=text)
    return changed(document, data=changed(simulation, findings=(finding, *simulation.findings)))


_HEADLINES = ("arms", "rates")  # of a simulation, for a review's first screen


def _played(section: Section, number: int | None, document: Document[Simulation]) -> Section:
    """A section of a simulation in a review: its names apart from the plan's, its headlines first."""
    mark = "simulation" if number is None else f"simulation-{number}"
    blocks = tuple(
        replace(block, name=f"{mark}-{block.name}") if isinstance(block, Figure) else block for block in section.blocks
    )
    heads = section.name in _HEADLINES
    words = {"arms": f"Simulation: {document.data.requests:,} requests played in every arm"}
    first = section.heading.split(maxsplit=1)[0]
    plain = section.heading if first.isupper() else section.heading[0].lower() + section.heading[1:]
    heading = words.get(section.name, f"Simulation: {plain}")
    return replace(section, name=f"{mark}-{section.name}", heading=heading, blocks=blocks, first=heads, listed=heads)


def labels(plans: Sequence[Plan]) -> list[str]:
    """A name for each plan: its model, then whatever tells it from the others, then a number."""
    telling = [trait for trait in _TRAITS if len({trait(plan) for plan in plans}) > 1]
    names = []
    for plan in plans:
        words = [parts.model_name(plan.inputs.estimate.data.model), *(trait(plan) for trait in telling)]
        names.append(", ".join(word for word in words if word))
    seen: Counter[str] = Counter()
    for index, name in enumerate(names):
        seen[name] += 1
        if names.count(name) > 1:
            names[index] = f"{name} ({seen[name]})"
    return names


def _host(plan: Plan) -> str:
    probe = plan.inputs.probe
    if probe is None:
        return "no probe"
    return f"{probe.data.host.cpu} with {show_bytes(probe.data.host.memory_total_bytes)}"


def _lead(plans: Sequence[Plan]) -> str:
    given = Counter(plan.verdict for plan in plans)
    words = {"nothing": "no tier", "host": "a host tier", "disk": "a disk tier", "host+disk": "a host and a disk tier"}
    line = ", ".join(f"{count} with {words[verdict]}" for verdict, count in given.items())
    broken = sum(any(not limit.ok for limit in plan.limits) for plan in plans)
    return f"{len(plans)} plans: {line}; {f'{broken} exceed a limit' if broken else 'every limit holds'}."


def _own(section: Section, number: int, name: str) -> Section:
    """A section of one plan among several: its name and its figures' names get the plan's number."""
    blocks = tuple(
        replace(block, name=f"plan-{number}-{block.name}") if isinstance(block, Figure) else block
        for block in section.blocks
    )
    decides = section.name == "decision"
    return replace(
        section,
        name=f"plan-{number}-{section.name}",
        heading=name if decides else f"{name}: {section.heading}",
        blocks=blocks,
        first=decides,
        listed=decides,
    )


# ------------------------------------------------------------------------------------------------ overview


def _overview(plans: Sequence[Plan], names: Sequence[str]) -> Section:
    rows = [_row(plan, name) for plan, name in zip(plans, names, strict=True)]
    columns = "plan|->replicas|>GPU|>host memory|>disk|>hits|>GPU busy|>GPU time saved|-grade|exceeds"
    blocks: list[Block] = [parts.table(columns, rows), *_figure(plans, names)]
    reading = "Sizes are for one replica; GPU time is prefill, an hour of one replica."
    return Section(name="overview", heading="Side by side", reading=reading, blocks=tuple(blocks), first=True)


def _row(plan: Plan, name: str) -> Row:
    budgets, benefit = plan.budgets, plan.benefit
    broken = [limit.name for limit in plan.limits if not limit.ok]
    cells = (
        name,
        f"{plan.policy.replicas:,}",
        parts.bytes_or_none(budgets.gpu.bytes),
        parts.bytes_or_none(budgets.host.requested_bytes),
        parts.bytes_or_none(budgets.disk.requested_bytes),
        show_percent(budgets.disk.hit_ratio),
        show_percent(benefit.gpu_busy_ratio_on),
        show_duration(benefit.gpu_s_per_hour_saved),
        plan.confidence.grade,
        ", ".join(broken),
    )
    return Row(cells=cells, tone="bad" if broken else "plain")


def _figure(plans: Sequence[Plan], names: Sequence[str]) -> tuple[Figure, ...]:
    """What each size of host memory saves, one line a plan, as far as there are colours to tell them apart."""
    series: list[Series] = []
    for plan, name in zip(plans, names, strict=True):
        points = sorted(
            (float(one.bytes), one.net_s_per_hour) for one in plan.curve if one.tier == "host" and one.bytes
        )
        if len(points) > 1:
            series.append(Series(name=name, points=tuple(points), role=_ROLES[len(series) % len(_ROLES)]))
    if not series or len(series) > len(_ROLES):
        return ()
    plot = Plot(
        x=Axis(title="host memory, one replica", unit="bytes", log=True),
        y=Axis(title="GPU time saved an hour", unit="s"),
        series=tuple(series),
    )
    most, size, name = max((y, x, one.name) for one in series for x, y in one.points)
    reading = f"Most is saved by {name}: {show_duration(most)} an hour with {show_bytes(size)}."
    if most <= 0:
        reading = "No size saves GPU time in any plan."
    alt = f"GPU time saved an hour against host memory, one line a plan. {reading}"
    return (Figure(name="plans", title="What host memory saves", reading=reading, alt=alt, charts=(plot,)),)


def _shared(plans: Sequence[Plan], names: Sequence[str]) -> tuple[Section, ...]:
    """Plans made for the same host: what they would take of its memory if all of them ran there."""
    groups: list[list[int]] = []
    for index, plan in enumerate(plans):
        if plan.inputs.probe is None:
            continue
        same = next((group for group in groups if _same_host(plans[group[0]], plan)), None)
        if same is None:
            groups.append([index])
        else:
            same.append(index)
    blocks = [_sum(plans, names, group) for group in groups if len(group) > 1]
    if not blocks:
        return ()
    reading = "Each plan was made as if it had the host to itself; one replica of each together would take this much."
    return (Section(name="one-host", heading="On one host", reading=reading, blocks=tuple(blocks), first=True),)


def _same_host(one: Plan, other: Plan) -> bool:
    probes = one.inputs.probe, other.inputs.probe
    return probes[0] is not None and probes[1] is not None and probes[0].data.host == probes[1].data.host


def _sum(plans: Sequence[Plan], names: Sequence[str], group: Sequence[int]) -> Block:
    sizes = [plans[index].budgets.host.requested_bytes for index in group]
    rows = [Row(cells=(names[index], parts.bytes_or_none(size))) for index, size in zip(group, sizes, strict=True)]
    probe = plans[group[0]].inputs.probe
    usable = probe.data.host.usable_memory_bytes if probe is not None else 0
    over = sum(sizes) > usable
    rows.append(Row(cells=("together", show_bytes(sum(sizes))), strong=True, tone="bad" if over else "plain"))
    rows.append(Row(cells=("usable memory of the host, before anything else takes its part", show_bytes(usable))))
    return parts.table("plan|>host memory for the KV cache", rows, title=_host(plans[group[0]]))
