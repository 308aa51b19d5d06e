"""The pictures of a plan."""

from __future__ import annotations

import math
from collections.abc import Iterable
from itertools import cycle, pairwise

from kvplan.documents import BreakEven, Budget, Plan
from kvplan.page import Axis, Figure, Part, Plot, Role, Rule, Series, Stack, Swing, Tornado
from kvplan.pages import parts, workload_figures
from kvplan.render.scales import brief, show
from kvplan.units import show_bytes, show_duration, show_percent

# What the planner calls the pieces of a budget; whatever it names anew takes the next colour that is left.
_PARTS: dict[str, Role] = {
    "KV cache": "main",
    "reusable blocks": "main",
    "active requests": "third",
    "weights": "fourth",
    "operating system and page cache": "fourth",
    "engine overhead": "second",
    "engine processes": "second",
    "lost to rounding": "danger",
    "headroom": "muted",
    "free": "faint",
    "left free": "faint",
    "less than a block": "faint",
    "outside the context": "faint",
    "rest of the context": "muted",
}
_CACHE = ("KV cache", "reusable blocks")
_SLIVER = 0.01  # of a bar: what is thinner is drawn together with its like; the table has every part
_SPARE: tuple[Role, ...] = ("third", "recompute", "disk", "muted", "host")
_TIERS: tuple[tuple[str, Role], ...] = (("host", "host"), ("disk", "disk"))
_EDGE = 1.06  # room at both ends of the break-even chart, so that its outermost dots are whole


# ------------------------------------------------------------------------------------------------- budgets


def budgets(plan: Plan) -> tuple[Figure, ...]:
    """One bar a tier, each on its own scale: what its memory is for, and the limit."""
    tiers = plan.budgets
    named = (("GPUs of one replica", tiers.gpu), ("Host memory of one replica", tiers.host), ("Disk", tiers.disk))
    bars = tuple(_bar(name, budget) for name, budget in named if budget.requested_bytes and budget.items)
    if not bars:
        return ()
    kept = (("GPU", tiers.gpu.bytes), ("host memory", tiers.host.requested_bytes), ("disk", tiers.disk.requested_bytes))
    sizes = (f"{name} {show_bytes(size) if size else 'none'}" for name, size in kept)
    reading = f"For reusable KV cache: {', '.join(sizes)}."
    alt = " ".join(
        f"{bar.title}: " + ", ".join(f"{part.name} {show_bytes(part.value)}" for part in bar.parts) + "."
        for bar in bars
    )
    return (Figure(name="budgets", title="Where the memory goes", reading=reading, alt=alt, charts=bars, plot=True),)


def _bar(name: str, budget: Budget) -> Stack:
    spare = cycle(_SPARE)
    total = sum(item.bytes for item in budget.items)
    small = [item for item in budget.items if 0 < item.bytes < _SLIVER * total]
    shown = [item for item in budget.items if item.bytes and (item not in small or len(small) < 2)]
    drawn = [
        Part(name=item.name, value=float(item.bytes), role=_PARTS[item.name] if item.name in _PARTS else next(spare))
        for item in shown
    ]
    if len(small) > 1:
        rest = Part(name=f"{len(small)} small parts", value=float(sum(item.bytes for item in small)), role="third")
        drawn.insert(next((n for n, item in enumerate(shown) if item.name in _CACHE), len(drawn)), rest)
    limit = None if budget.limit_bytes is None else float(budget.limit_bytes)
    return Stack(title=name, unit="bytes", parts=tuple(drawn), limit=limit)


# ---------------------------------------------------------------------------------------------------- hits


def reach(plan: Plan) -> dict[Role, float]:
    """Tokens that all replicas hold up to and with each tier in use: what an inclusive tier repeats counts once."""
    per_token = plan.inputs.estimate.data.kv.offload_bytes_per_token
    total = float(plan.budgets.gpu.tokens)
    tokens: dict[Role, float] = {"gpu": total * plan.policy.replicas}
    tiers: tuple[tuple[Role, Budget], ...] = (("host", plan.budgets.host), ("disk", plan.budgets.disk))
    for name, budget in tiers:
        if budget.bytes and per_token:
            total += budget.bytes / per_token
            tokens[name] = total * plan.policy.replicas
    return tokens


def hits(plan: Plan) -> tuple[Figure, ...]:
    """The log's hit curve with the end of every tier, the knee and the longest time that policy allows on it."""
    workload = plan.inputs.workload.data
    if not workload.curve:
        return ()
    ends = reach(plan)
    labels = {"gpu": "GPU", "host": "+ host memory", "disk": "+ disk"}
    marks: list[tuple[str, float, Role]] = [(labels[name], tokens, name) for name, tokens in ends.items()]
    knee = _knee_tokens(plan, ends)
    if knee is not None:
        marks.append(("knee", knee, "muted"))
    held = None if plan.policy.ttl_s is None else workload_figures.filled_by(workload, plan.policy.ttl_s)
    if held is not None and plan.policy.ttl_s is not None:
        marks.append((f"full after the TTL of {show_duration(plan.policy.ttl_s)}", held, "danger"))
    last = plan.budgets.disk if "disk" in ends else plan.budgets.host if "host" in ends else plan.budgets.gpu
    alone, chosen = show_percent(plan.budgets.gpu.hit_ratio), show_percent(last.hit_ratio)
    ceiling = parts.percent(workload.ceiling_hit_ratio)
    reading = f"GPU alone {alone}, with the recommendation {chosen}, an infinite cache {ceiling}."
    best = workload_figures.optimal_ratio(workload, max(ends.values()))
    if best is not None:
        reading += f" The best replacement policy there is would reach {show_percent(best)} in the same space."
    return (workload_figures.hit_ratio(workload, tuple(marks), reading),)


def _knee(plan: Plan) -> int | None:
    """Bytes of the host tier at its knee, where that is another size than the one recommended."""
    knee = next((one for one in plan.alternatives if one.name == "knee" and one.host_bytes), None)
    return None if knee is None or knee.host_bytes == plan.budgets.host.requested_bytes else knee.host_bytes


def _knee_tokens(plan: Plan, ends: dict[Role, float]) -> float | None:
    """Where the knee lies on the log's curve: as far below the end of the host tier as its pool is smaller."""
    size = _knee(plan)
    if size is None or "host" not in ends:
        return None
    pool = {one.bytes: one.tokens for one in plan.curve if one.tier == "host"}
    if size not in pool:
        return None
    return ends["host"] - (plan.budgets.host.tokens - pool[size]) * plan.policy.replicas


# ------------------------------------------------------------------------------------------------- benefit


def benefit(plan: Plan) -> tuple[Figure, ...]:
    """Net GPU time saved by each size of each tier, with the recommended one marked."""
    series, rules = [], []
    sizes = {"host": plan.budgets.host.requested_bytes, "disk": plan.budgets.disk.requested_bytes}
    for tier, role in _TIERS:
        points = tuple(sorted((float(p.bytes), p.net_s_per_hour) for p in plan.curve if p.tier == tier))
        if points:
            series.append(Series(name=parts.TIERS[tier], points=points, role=role))
            if sizes[tier]:
                label = f"recommended {brief(sizes[tier], 'bytes')}"
                rules.append(Rule(axis="x", value=float(sizes[tier]), label=label, role=role))
    if not series:
        return ()
    knee = _knee(plan)
    if knee is not None:
        rules.append(Rule(axis="x", value=float(knee), label=f"knee {brief(knee, 'bytes')}", role="muted"))
    plot = Plot(
        x=Axis(title="size of the tier", unit="bytes", log=True),
        y=Axis(title="GPU time saved an hour", unit="s"),
        series=tuple(series),
        rules=tuple(rules),
    )
    most, size, name = max((y, x, one.name) for one in series for x, y in one.points)
    reading = f"The most any size saves is {show_duration(most)} an hour ({name}, {show_bytes(size)})."
    if most <= 0:
        reading = "No size saves GPU time."
    alt = f"Net GPU time saved an hour against the size of each tier. {reading}"
    return (Figure(name="benefit", title="Benefit against size", reading=reading, alt=alt, charts=(plot,)),)


# ---------------------------------------------------------------------------------------------- break-even


def break_even(plan: Plan) -> tuple[Figure, ...]:
    """Recomputing against loading by prefix length, over the prefixes that this log really reuses."""
    if not plan.break_even:
        return ()
    classes = plan.inputs.workload.data.reused_prefix_lengths
    edges = [one.at_most_tokens * share for one in classes for share in (0.5, 1.0)]
    lengths = [float(one.prefix_tokens) for one in plan.break_even] + edges
    low, high = min(lengths), max(lengths)
    x = Axis(title="prefix in tokens", unit="length", log=True, domain=(low / _EDGE, high * _EDGE))
    recompute = tuple((n, plan.prefill.seconds(n)) for n in _between(low, high))
    series = [Series(name="recompute", points=recompute, role="recompute")]
    measured = tuple((float(p.tokens), p.seconds) for p in plan.prefill.points if p.prefix_tokens == 0)
    if measured:
        series.append(Series(name="recompute, measured", points=measured, role="recompute", style="dots"))
    rules = []
    for tier, role in _TIERS:
        rows = sorted((one for one in plan.break_even if one.tier == tier), key=lambda one: one.prefix_tokens)
        points = tuple((float(row.prefix_tokens), row.load_s) for row in rows)
        if points:
            series.append(Series(name=f"load from {parts.TIERS[tier]}", points=points, role=role))
        crossing = _crossing(rows)
        if crossing is not None:
            label = f"{parts.TIERS[tier]} pays from {crossing:,.0f} tokens"
            rules.append(Rule(axis="x", value=crossing, label=label, role=role))
    time = Axis(title="time", unit="s", log=True)
    times = Plot(x=x, y=time, series=tuple(series), rules=tuple(rules), height=260)
    charts = (times, workload_figures.prefix_plot(classes, x, 110)) if classes else (times,)
    reading = " ".join(line for tier, _ in _TIERS if (line := _reading(plan.break_even, tier)))
    alt = f"Time to recompute and to load a prefix against its length. {reading}"
    return (Figure(name="break-even", title="Load or recompute", reading=reading, alt=alt, charts=charts),)


def _between(low: float, high: float, steps: int = 48) -> list[float]:
    return [low * (high / low) ** (index / steps) for index in range(steps + 1)] if high > low else [low]


def _crossing(rows: list[BreakEven]) -> float | None:
    """Where loading becomes the quicker way, between two lengths of the table, on logarithmic axes."""
    timed = [one for one in rows if one.load_s > 0 and one.recompute_s > 0]
    for before, after in pairwise(timed):
        first, second = math.log(before.load_s / before.recompute_s), math.log(after.load_s / after.recompute_s)
        if first > 0 >= second:
            share = first / (first - second)
            return float(before.prefix_tokens * (after.prefix_tokens / before.prefix_tokens) ** share)
    return None


def _reading(rows: Iterable[BreakEven], tier: str) -> str:
    mine = [one for one in rows if one.tier == tier]
    quicker = [one for one in mine if one.load_s < one.recompute_s]
    loading = f"Loading from {parts.TIERS[tier]}"
    if not mine:
        return ""
    if len(quicker) == len(mine):
        return f"{loading} is quicker than recomputing at every length shown."
    if not quicker:
        return f"{loading} is never quicker than recomputing."
    crossing = _crossing(sorted(mine, key=lambda one: one.prefix_tokens))
    if crossing is None:
        return f"{loading} is quicker than recomputing at {len(quicker)} of {len(mine)} lengths."
    return f"{loading} is quicker than recomputing from about {crossing:,.0f} tokens."


# -------------------------------------------------------------------------------------------------- demand


def intervals(plan: Plan) -> tuple[Figure, ...]:
    """Reuse intervals with the time that each tier takes to fill, and the longest time that policy allows."""
    workload = plan.inputs.workload.data
    if not workload.reuse_intervals or not workload.span_s:
        return ()
    labels = {"gpu": "GPU", "host": "with host memory", "disk": "with disk"}
    last = workload.reuse_intervals[-1].at_most_s
    rules = []
    for name, tokens in reach(plan).items():
        fills = workload_figures.fill_time(workload, tokens)
        if fills is not None and 0 < fills <= last:
            rules.append(Rule(axis="x", value=fills, label=f"{labels[name]}: {show_duration(fills)}", role=name))
    if plan.policy.ttl_s:
        label = f"TTL {show_duration(plan.policy.ttl_s)}"
        rules.append(Rule(axis="x", value=plan.policy.ttl_s, label=label, role="danger"))
    return workload_figures.intervals(workload, tuple(rules))


# --------------------------------------------------------------------------------------------- sensitivity


def tornado(plan: Plan) -> tuple[Figure, ...]:
    """Benefit and recommended size when one input at a time moves, the widest swing on top."""
    saved = _swings(plan, {"net": plan.benefit.gpu_s_per_hour_saved})
    sizes = {"host": float(plan.budgets.host.requested_bytes), "disk": float(plan.budgets.disk.requested_bytes)}
    charts = [Tornado(title="GPU time saved an hour", unit="s", base=plan.benefit.gpu_s_per_hour_saved, swings=saved)]
    for tier, size in sizes.items():
        swings = _swings(plan, {tier: size})
        if swings:
            title = f"{parts.TIERS[tier]} recommended"
            charts.append(Tornado(title=title, unit="bytes", base=size, swings=swings))
    drawn = tuple(chart for chart in charts if chart.swings)
    if not drawn:
        return ()
    still = sorted({one.what for one in plan.sensitivity} - {one.name for chart in drawn for one in chart.swings})
    reading = " ".join(_widest(chart) for chart in drawn)
    if still:
        reading += f" Without effect: {', '.join(still)}."
    alt = f"Tornado charts of {' and of '.join(chart.title for chart in drawn)}. {reading}"
    return (Figure(name="sensitivity", title="One input at a time", reading=reading, alt=alt, charts=drawn),)


def _widest(chart: Tornado) -> str:
    top = chart.swings[0]
    ends = [(top.low, top.low_label), (top.high, top.high_label)]
    span = " to ".join(f"{show(value, chart.unit)} ({label})" for value, label in ends)
    return f"{chart.title[:1].upper()}{chart.title[1:]}: {top.name} moves it most, {span}."


def _swings(plan: Plan, of: dict[str, float]) -> tuple[Swing, ...]:
    """What each input does to one outcome, in order of how far it moves it; those that do not move it are left out."""
    ((field, base),) = of.items()
    tested: dict[str, list[tuple[str, float]]] = {}
    for one in plan.sensitivity:
        value = {"net": one.net_s_per_hour, "host": float(one.host_bytes), "disk": float(one.disk_bytes)}[field]
        tested.setdefault(one.what, []).append((one.change, value))
    swings = []
    for what, ends in tested.items():
        (low_label, low), (high_label, high) = ends[0], ends[-1] if len(ends) > 1 else ("as planned", base)
        if low != base or high != base:
            swings.append(Swing(name=what, low=low, high=high, low_label=low_label, high_label=high_label))
    return tuple(sorted(swings, key=lambda swing: -max(abs(swing.low - base), abs(swing.high - base))))
