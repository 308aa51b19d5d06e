"""The pictures of a simulation: what each arm sustains, who waits, how tiers fill."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import cycle

from kvplan.documents import ArmResult, LoadPoint, Simulation, Slice
from kvplan.page import Axis, Bar, Bars, Figure, Plot, Role, Rule, Series
from kvplan.render.scales import brief, show
from kvplan.units import show_duration, show_percent

_ROLES: tuple[Role, ...] = ("main", "second", "third", "fourth")
_NEAR = 1.6  # rates up to so many times the highest sustained one are drawn: beyond, a queue grows with the log
FAULTS = {
    "restart": "restart",
    "tier-lost": "tier lost",
    "link": "slower link",
    "load-failure": "loads fail",
    "worker-gone": "worker gone",
    "scan": "scan",
    "churn": "churn",
}


def _coloured(arms: Sequence[ArmResult]) -> Iterator[tuple[ArmResult, Role]]:
    """The first arm in grey, what it is compared with in colours."""
    colours = cycle(_ROLES)
    for number, one in enumerate(arms):
        yield one, next(colours) if number else "muted"


def _happened(simulation: Simulation) -> tuple[Rule, ...]:
    """Faults as lines across a plot over time."""
    return tuple(
        Rule(axis="x", value=fault.at_s, label=FAULTS[fault.kind], role="danger")
        for fault in simulation.faults
        if fault.kind in FAULTS
    )


# -------------------------------------------------------------------------------------------------- rates


def rates(simulation: Simulation) -> tuple[Figure, ...]:
    """The rate that each arm sustains, with what it may be on a real server."""
    bars = []
    for one, role in _coloured(simulation.arms):
        found = one.sustainable
        if found is not None and found.requests_per_s is not None:
            known = found.low_per_s is not None and found.high_per_s is not None
            interval = (found.low_per_s or 0.0, found.high_per_s or 0.0) if known else None
            bars.append(Bar(name=one.arm.name, value=found.requests_per_s, role=role, interval=interval))
    first = simulation.arms[0].sustainable
    if not bars or first is None:
        return ()
    target = show_duration(first.slo_ttft_s)
    most = max(bars, key=lambda bar: bar.value)
    reading = f"Arm {most.name} sustains {show(most.value, 'per_s')}."
    if first.requests_per_s and most.value != first.requests_per_s:
        gain = most.value / first.requests_per_s - 1
        reading = f"Arm {most.name} sustains {show_percent(gain)} more than {simulation.arms[0].arm.name}."
    if any(bar.interval for bar in bars):
        low, high = simulation.time_low_ratio, simulation.time_high_ratio
        reading += f" Intervals: the rates if true times were {high:.2f} to {low:.2f} times the modelled."
    chart = Bars(title=f"requests a second with p90 TTFT within {target}", unit="per_s", bars=tuple(bars))
    words = ", ".join(f"{bar.name} {show(bar.value, 'per_s')}" for bar in bars)
    alt = f"Bars of the highest rate at which 90 % of requests have their first token within {target}: {words}."
    title = f"What each arm sustains (p90 TTFT within {target})"
    return (Figure(name="sustained", title=title, reading=reading, alt=alt, charts=(chart,), plot=True),)


def headroom(simulation: Simulation, growth: float) -> tuple[Figure, ...]:
    """Rate against p90 TTFT in each arm, the target, today's rate and the one that is planned for."""
    sustained = [one.sustainable for one in simulation.arms if one.sustainable is not None]
    most = max((one.requests_per_s or 0.0 for one in sustained), default=0.0)
    series = []
    for one, role in _coloured(simulation.arms):
        points = [point for point in _rate_points(one) if point[0] <= _NEAR * most]
        if len(points) > 1:
            series.append(Series(name=one.arm.name, points=tuple(points), role=role))
    if not series or not sustained:
        return ()
    target = sustained[0].slo_ttft_s
    rules = [Rule(axis="y", value=target, label=f"target {show_duration(target)}", role="danger")]
    today = None if simulation.requests_per_s is None else simulation.requests_per_s / simulation.rate_scale
    reading = "A rate holds where its curve is below the target."
    if today is not None and today > _NEAR * most:
        reading = f"The log's own {show(today, 'per_s')} lies beyond: no arm sustains it."
    elif today is not None:
        rules.append(Rule(axis="x", value=today, label=f"the log {show(today, 'per_s')}", role="muted"))
        reading = f"The log has {show(today, 'per_s')}: headroom is from there to where a curve crosses the target."
    if today is not None and growth != 1:
        planned = f"planned {show(today * growth, 'per_s')}"
        if today * growth <= _NEAR * most:
            rules.append(Rule(axis="x", value=today * growth, label=planned, role="muted"))
        reading += f" The plan is for {growth:g} times the log's demand, {show(today * growth, 'per_s')}."
    plot = Plot(
        x=Axis(title="requests a second", unit="per_s"),
        y=Axis(title="p90 TTFT", unit="s", log=True),
        series=tuple(series),
        rules=tuple(rules),
        height=260,
    )
    alt = f"p90 TTFT against the rate of arrivals, one curve an arm, with the target of {show_duration(target)}."
    return (Figure(name="headroom", title="Load and latency", reading=reading, alt=alt, charts=(plot,)),)


def _rate_points(one: ArmResult) -> list[tuple[float, float]]:
    """All rates that an arm was played at, with their p90 TTFT."""
    tried = one.sustainable.tried if one.sustainable else ()
    points = {point.requests_per_s: point.ttft_p90_s for point in tried if point.ttft_p90_s}
    for load in one.loads:
        p90 = next((point.seconds for point in load.ttft if point.share == 0.9), None)
        if p90:
            points[load.requests_per_s] = p90
    return sorted(points.items())


# ---------------------------------------------------------------------------------------------------- TTFT


def ttft(simulation: Simulation) -> tuple[Figure, ...]:
    """Distributions of TTFT in every arm at the same three rates."""
    first, *others = simulation.arms
    if not first.loads or first.sustainable is None:
        return ()
    seconds = [point.seconds for one in simulation.arms for load in one.loads for point in load.ttft if point.seconds]
    if not seconds:
        return ()
    span = (min(seconds), max(max(seconds), first.sustainable.slo_ttft_s))
    plots = []
    for number, load in enumerate(first.loads):
        where = f"at {show(load.requests_per_s, 'per_s')} ({load.load_ratio * 100:.0f} % load)"
        series = tuple(
            Series(name=one.arm.name, points=_curve(one.loads[number]), role=role)
            for one, role in _coloured(simulation.arms)
            if number < len(one.loads)
        )
        target = first.sustainable.slo_ttft_s
        plots.append(
            Plot(
                x=Axis(title="time to first token", unit="s", log=True, domain=span),
                y=Axis(title=f"share answered by then {where}", unit="ratio", domain=(0.0, 1.0)),
                series=series,
                rules=(Rule(axis="x", value=target, label=f"target {show_duration(target)}", role="danger"),),
                height=170,
            )
        )
    reading = _halves(first, others)
    alt = f"Shares of requests by time to first token in {len(plots)} plots, one a load, one curve an arm. {reading}"
    title = "Who waits how long at the same rate"
    return (Figure(name="ttft", title=title, reading=reading, alt=alt, charts=tuple(plots)),)


def _curve(load: LoadPoint) -> tuple[tuple[float, float], ...]:
    return tuple((point.seconds, point.share) for point in load.ttft)


def _halves(first: ArmResult, others: Sequence[ArmResult]) -> str:
    """Medians and p90 of the first two arms at the highest load."""
    named = [
        (one.arm.name, {point.share: point.seconds for point in one.loads[-1].ttft}) for one in (first, *others[:1])
    ]
    words = [
        f"{name} {show_duration(times[0.5])} (p50) and {show_duration(times[0.9])} (p90)"
        for name, times in named
        if 0.5 in times and 0.9 in times
    ]
    return f"At {first.loads[-1].load_ratio * 100:.0f} % load: {'; '.join(words)}."


# -------------------------------------------------------------------------------------------------- tiers


def occupancy(simulation: Simulation) -> tuple[Figure, ...]:
    """Host memory held over time, and what was given up, in the arms that have any."""
    arms = [(one, role) for one, role in _coloured(simulation.arms) if one.arm.host_bytes and one.timeline]
    if not arms:
        return ()
    held = tuple(
        Series(name=one.arm.name, points=_steps(one.timeline, "host_bytes"), role=role, style="step")
        for one, role in arms
    )
    given_up = tuple(
        Series(name=one.arm.name, points=_rate(one.timeline), role=role, style="step") for one, role in arms
    )
    replicas = simulation.engine.replicas
    sizes = {one.arm.host_bytes * replicas: role for one, role in arms}
    ends = [
        Rule(axis="y", value=float(size), label=f"room for {brief(size, 'bytes')}", role=role)
        for size, role in sizes.items()
        if size <= 4 * max(part.host_bytes for one, _ in arms for part in one.timeline)
    ]
    time = Axis(title="time since the first arrival", unit="s", domain=(0.0, held[0].points[-1][0] or 1.0))
    happened = _happened(simulation)
    charts = [
        Plot(x=time, y=Axis(title="KV cache in host memory", unit="bytes"), series=held, rules=(*ends, *happened))
    ]
    if any(y for series in given_up for _, y in series.points):
        y = Axis(title="given up by host memory", unit="bytes_per_s")
        charts.append(Plot(x=time, y=y, series=given_up, rules=happened, height=150))
    words = []
    for one, _ in arms:
        full = next((tier.full_at_s for tier in one.tiers if tier.tier == "host"), None)
        words.append(f"{one.arm.name} {'never' if full is None else f'after {show_duration(full)}'}")
    reading = f"Full: {', '.join(words)}."
    alt = f"Host memory held over time, one curve an arm, and below what it gave up. {reading}"
    return (Figure(name="occupancy", title="How host memory fills", reading=reading, alt=alt, charts=tuple(charts)),)


def _steps(timeline: Sequence[Slice], what: str) -> tuple[tuple[float, float], ...]:
    """A quantity that is known at the end of each part, from an empty start."""
    ends = [part.from_s for part in timeline[1:]]
    ends.append(2 * timeline[-1].from_s - timeline[-2].from_s if len(timeline) > 1 else timeline[-1].from_s)
    return ((0.0, 0.0), *((end, float(getattr(part, what))) for end, part in zip(ends, timeline, strict=True)))


def _rate(timeline: Sequence[Slice]) -> tuple[tuple[float, float], ...]:
    """Bytes given up a second in each part."""
    width = timeline[1].from_s - timeline[0].from_s if len(timeline) > 1 else 1.0
    rates = [(part.from_s, (part.host_removed_bytes or 0) / width if width else 0.0) for part in timeline]
    return (*rates, (rates[-1][0] + width, rates[-1][1]))


def cold_start(simulation: Simulation) -> tuple[Figure, ...]:
    """Hits over time, from empty tiers on."""
    series = []
    for one, role in _coloured(simulation.arms):
        points = tuple((part.from_s, part.hit_ratio) for part in one.timeline if part.requests)
        if len(points) > 1:
            series.append(Series(name=one.arm.name, points=points, role=role))
    if not series:
        return ()
    plot = Plot(
        x=Axis(title="time since the first arrival", unit="s"),
        y=Axis(title="hit ratio (share of input tokens)", unit="ratio"),
        series=tuple(series),
        rules=_happened(simulation),
    )
    last = simulation.arms[min(1, len(simulation.arms) - 1)]
    begin, end = last.slices[0].hit_ratio, last.slices[-1].hit_ratio
    reading = (
        f"All tiers begin empty: arm {last.arm.name} hits {show_percent(begin)} in the first tenth of the time and "
        f"{show_percent(end)} in the last."
    )
    alt = f"Hit ratio over time, one curve an arm. {reading}"
    return (Figure(name="cold-start", title="Cold start", reading=reading, alt=alt, charts=(plot,)),)
