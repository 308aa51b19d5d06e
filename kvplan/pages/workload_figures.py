"""The pictures of a workload, which a plan shows too."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from kvplan.documents import CurvePoint, Interval, PrefixClass, Sampling, Workload
from kvplan.page import Axis, Bins, Figure, Marks, Plot, Role, Rule, Series
from kvplan.pages import parts
from kvplan.render.scales import ROUND_TIMES
from kvplan.units import show_duration, show_percent, show_tokens

_MOST_MARKS = 8
_NEARLY = 0.9  # a cache that catches this share of what any cache could catch is called nearly all


def nearly_all(workload: Workload) -> CurvePoint | None:
    """The smallest measured capacity that catches nine tenths of the ceiling."""
    wanted = _NEARLY * (workload.ceiling_hit_ratio or 0.0)  # without a ceiling there is no curve either
    return next((point for point in workload.curve if point.hit_ratio >= wanted), None)


def lead(workload: Workload) -> str:
    """The workload in one line."""
    if workload.sampled is not None:
        ceiling = show_percent(workload.sampled.ceiling_hit_ratio)
        return f"At best about {ceiling} of the input tokens can come from a cache, by a sample of the blocks."
    if workload.ceiling_hit_ratio is None:
        return "It has lengths only: what it asks for and when, not what it reuses."
    if workload.ceiling_hit_ratio == 0:
        return "No request repeats another's beginning: no cache of any size would help."
    line = f"At best {show_percent(workload.ceiling_hit_ratio)} of the input tokens can come from a cache"
    point = nearly_all(workload)
    if point is None:
        return f"{line}; no capacity of the curve reaches nine tenths of that."
    return f"{line}; {show_tokens(point.capacity_tokens)} tokens of cache catch {show_percent(point.hit_ratio)}."


def hit_ratio(workload: Workload, ends: tuple[tuple[str, float, Role], ...] = (), reading: str = "") -> Figure:
    """The hit curve. `ends` are capacities in tokens to mark on it: name, tokens, role."""
    series = [Series(name="LRU", points=_ratios(workload.curve), role="main")]
    if workload.optimal:
        series.append(Series(name="optimal policy", points=_ratios(workload.optimal), role="third", style="thin"))
    best = nearly_all(workload)
    if not ends and best is not None:
        ends = (("nine tenths of the ceiling", float(best.capacity_tokens), "third"),)
    rules = [Rule(axis="x", value=tokens, label=name, role=role) for name, tokens, role in ends if tokens > 0]
    if workload.ceiling_hit_ratio is not None:
        rules.append(Rule(axis="y", value=workload.ceiling_hit_ratio, label="infinite cache"))
    span = rising(workload.curve, [tokens for _, tokens, _ in ends if tokens > 0])
    plot = Plot(
        x=Axis(title="capacity in tokens", unit="tokens", log=True, domain=span),
        y=Axis(title="hit ratio (share of input tokens)", unit="ratio"),
        series=tuple(series),
        rules=tuple(rules),
        above=_fills(workload, span),
        height=280,
    )
    first, last = workload.curve[0], workload.curve[-1]
    alt = (
        f"Hit ratio rises from {show_percent(first.hit_ratio)} at {show_tokens(first.capacity_tokens)} tokens "
        f"to {show_percent(last.hit_ratio)} at {show_tokens(last.capacity_tokens)} tokens."
    )
    return Figure(
        name="hit-ratio",
        title="Hit ratio against capacity",
        reading=reading or _shares(workload),
        alt=alt,
        charts=(plot,),
        plot=True,
    )


def filled_by(workload: Workload, time_s: float) -> float | None:
    """Tokens of the cache that is full after `time_s` of the log, between points of its curve; None beyond them."""
    return _between([(time, tokens) for tokens, time in _fill_times(workload)], time_s)


def fill_time(workload: Workload, tokens: float) -> float | None:
    """Seconds in which what a cache of `tokens` tokens has to compute fills it; None where the log does not say."""
    return _between(_fill_times(workload), tokens)


def optimal_ratio(workload: Workload, tokens: float) -> float | None:
    """Hits of the optimal policy in a cache of `tokens` tokens, between two of its points; None beyond them."""
    return _between(sorted((float(one.capacity_tokens), one.hit_ratio) for one in workload.optimal), tokens)


def _fill_times(workload: Workload) -> list[tuple[float, float]]:
    points = sorted((float(one.capacity_tokens), one.fill_time_s) for one in workload.curve if one.fill_time_s)
    return [(0.0, 0.0), *points] if points else []


def _between(points: list[tuple[float, float]], wanted: float) -> float | None:
    for (x1, y1), (x2, y2) in pairwise(points):
        if x1 <= wanted <= x2:
            return y1 + (y2 - y1) * ((wanted - x1) / (x2 - x1) if x2 > x1 else 0.0)
    return None


def _fills(workload: Workload, span: tuple[float, float] | None) -> Marks | None:
    """The capacities of a curve read as the time in which a cache of that size fills."""
    low, high = span or (0.0, float("inf"))
    found = [(filled_by(workload, time), name) for time, name in ROUND_TIMES]
    marks = [(tokens, name) for tokens, name in found if tokens is not None and max(low, 1.0) <= tokens <= high]
    if len(marks) < 2:
        return None
    return Marks(title="full after", marks=tuple(marks[:: -(-len(marks) // _MOST_MARKS)]))


def rising(curve: tuple[CurvePoint, ...], marked: Sequence[float] = ()) -> tuple[float, float] | None:
    """The capacities worth a picture: from where hits begin to rise, and whatever is marked on it."""
    points = [point for point in curve if point.capacity_tokens > 0]
    if len(points) < 3:
        return None
    flat = points[0].hit_ratio + 0.02 * (points[-1].hit_ratio - points[0].hit_ratio)
    level = [point for point in points if point.hit_ratio <= flat]
    low, high = float(level[-1].capacity_tokens), float(points[-1].capacity_tokens)
    return (min([low, *marked]), max([high, *marked])) if low < high else None


def _shares(workload: Workload) -> str:
    """What half and nine tenths of the ceiling take."""
    wanted = [share * (workload.ceiling_hit_ratio or 0.0) for share in (0.5, _NEARLY)]
    sizes = [next((p.capacity_tokens for p in workload.curve if p.hit_ratio >= ratio), None) for ratio in wanted]
    half, most = ("more than the curve shows" if size is None else f"{show_tokens(size)} tokens" for size in sizes)
    return f"Half of the ceiling takes {half}, nine tenths take {most}."


def sampled(workload: Workload, sample: Sampling) -> Figure:
    """The hit curve of a sample."""
    points = tuple((float(one.capacity_blocks * workload.block_tokens), one.token_hit_ratio) for one in sample.points)
    rule = Rule(axis="y", value=sample.ceiling_hit_ratio, label="infinite cache, about")
    plot = Plot(
        x=Axis(title="capacity in tokens", unit="tokens", log=True),
        y=Axis(title="hit ratio (share of input tokens)", unit="ratio"),
        series=(Series(name="LRU, sampled", points=points, role="main"),),
        rules=(rule,),
        height=280,
    )
    return Figure(
        name="sampled-hit-ratio",
        title="Hit ratio against capacity, from a sample",
        reading="",
        alt=_first_last(sample),
        charts=(plot,),
        plot=True,
    )


def _first_last(sample: Sampling) -> str:
    if not sample.points:
        return "No capacity was measured."
    return (
        f"Hit ratio rises from {show_percent(sample.points[0].token_hit_ratio)} to "
        f"{show_percent(sample.points[-1].token_hit_ratio)}."
    )


def _ratios(curve: tuple[CurvePoint, ...]) -> tuple[tuple[float, float], ...]:
    return tuple((float(point.capacity_tokens), point.hit_ratio) for point in curve)


def intervals(workload: Workload, rules: tuple[Rule, ...] = ()) -> tuple[Figure, ...]:
    """How long tokens wait for their next use, as a histogram; `rules` are times to compare with."""
    ladder = workload.reuse_intervals
    if not ladder or not ladder[-1].tokens:
        return ()
    edges = [(0.0, 0), *((one.at_most_s, one.tokens) for one in ladder if one.at_most_s > 0)]
    bins = tuple((low, high, float(after - before)) for (low, before), (high, after) in pairwise(edges))
    total = ladder[-1].tokens
    half, most = (show_duration(_reaching(ladder, share * total)) for share in (0.5, 0.9))
    reading = f"Half of all reuse comes within {half} of the last use, nine tenths within {most}."
    plot = Plot(
        x=Axis(title="time since the last use", unit="s", log=True),
        y=Axis(title="tokens reused", unit="tokens"),
        bins=(Bins(name="tokens reused", bins=bins),),
        rules=rules,
        height=220,
    )
    alt = f"Histogram of reuse intervals by tokens. {reading}"
    return (Figure(name="reuse-intervals", title="Reuse intervals", reading=reading, alt=alt, charts=(plot,)),)


def _reaching(ladder: tuple[Interval, ...], wanted: float) -> float:
    return next((one.at_most_s for one in ladder if one.tokens >= wanted), ladder[-1].at_most_s)


def prefix_plot(classes: tuple[PrefixClass, ...], x: Axis, height: int) -> Plot:
    """Reused tokens by the length of the prefix that they belong to."""
    edges = [classes[0].at_most_tokens / 2, *(float(one.at_most_tokens) for one in classes)]
    bins = tuple(
        (max(low, high / 2), high, float(one.tokens)) for (low, high), one in zip(pairwise(edges), classes, strict=True)
    )
    return Plot(
        x=x,
        y=Axis(title="tokens reused", unit="tokens"),
        bins=(Bins(name="tokens reused", bins=bins, role="muted"),),
        height=height,
    )


def prefixes(workload: Workload) -> tuple[Figure, ...]:
    """How long the reused prefixes are."""
    classes = workload.reused_prefix_lengths
    if not classes:
        return ()
    busiest = max(classes, key=lambda one: one.tokens)
    count = parts.plural(busiest.requests, "request")
    reading = f"Most reused tokens lie in prefixes of up to {busiest.at_most_tokens:,} tokens ({count})."
    plot = prefix_plot(classes, Axis(title="reused prefix in tokens", unit="length", log=True), 200)
    alt = f"Histogram of reused prefix lengths by tokens. {reading}"
    return (Figure(name="prefix-lengths", title="Reused prefixes", reading=reading, alt=alt, charts=(plot,)),)


def load(workload: Workload) -> tuple[Figure, ...]:
    """Arrivals, active tokens and working set along the log."""
    slots = [one for one in workload.load if one.width_s > 0]
    if not slots:
        return ()
    arrivals = tuple((one.start_s, one.start_s + one.width_s, one.input_tokens / one.width_s) for one in slots)
    x = Axis(title="time in the log", unit="s", domain=(arrivals[0][0], arrivals[-1][1]))
    middle = [(one.start_s + one.width_s / 2, one) for one in slots]
    touched = tuple((at, float(one.working_set_tokens)) for at, one in middle if one.working_set_tokens is not None)
    active = tuple((at, float(one.active_tokens)) for at, one in middle)
    window = f", last {show_duration(workload.load_window_s)}" if workload.load_window_s else ""
    rate = Plot(
        x=x,
        y=Axis(title="input tokens a second", unit="tokens"),
        bins=(Bins(name="input tokens a second", bins=arrivals),),
        height=140,
    )
    held = Plot(
        x=x,
        y=Axis(title="tokens", unit="tokens"),
        series=(
            *([Series(name=f"working set{window}", points=touched, role="third")] if touched else []),
            Series(name="active tokens", points=active, role="second"),
        ),
        height=180,
    )
    start, _, most = max(arrivals, key=lambda one: one[2])
    when = "at the start of the log" if start == 0 else f"{show_duration(start)} into the log"
    reading = f"The busiest stretch brings {show_tokens(most)} input tokens a second, {when}."
    held_by = "working set and active tokens" if touched else "and active tokens"
    alt = f"Input tokens a second, {held_by} over the log. {reading}"
    return (Figure(name="load", title="Load over time", reading=reading, alt=alt, charts=(rate, held)),)
