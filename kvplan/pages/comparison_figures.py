"""Pictures of a comparison: both distributions, the change of each request, and the runs one after the other."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.documents import LiveComparison
from kvplan.page import Axis, Bins, Figure, Plot, Role, Rule, Series
from kvplan.units import show_duration, show_percent

_POINTS = 200
_DOTS = 1500
_BINS = 40
_COLOURS: dict[str, Role] = {"off": "second", "on": "main"}


def by_request(data: LiveComparison) -> tuple[Figure, ...]:
    """What became of single requests."""
    return (_distributions(data), _changes(data), *_cached(data))


def _distributions(data: LiveComparison) -> Figure:
    off, on = ([getattr(point, name) for point in data.points] for name in ("ttft_off_s", "ttft_on_s"))
    lowest, highest = min(*off, *on), max(*off, *on)
    plot = Plot(
        x=Axis(title="time to first token", unit="s", log=lowest > 0 and highest > 10 * lowest),
        y=Axis(title="share of requests", unit="ratio", domain=(0.0, 1.0)),
        series=tuple(
            Series(name=name, points=_shares(values), role=_COLOURS[name], style="step")
            for name, values in (("off", off), ("on", on))
        ),
    )
    return Figure(
        name="ttft",
        title="Time to first token",
        reading="The share of requests whose first token came within a time; further left is sooner.",
        alt=(
            f"Share of requests by time to first token: off has its median at {show_duration(data.off.ttft.p50)} and "
            f"its 90th percentile at {show_duration(data.off.ttft.p90)}, on at {show_duration(data.on.ttft.p50)} and "
            f"{show_duration(data.on.ttft.p90)}."
        ),
        charts=(plot,),
        plot=True,
    )


def _shares(values: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """An empirical distribution at up to some hundred of its values."""
    ordered = sorted(values)
    ranks = sorted({round(i * (len(ordered) - 1) / (_POINTS - 1)) for i in range(_POINTS)})
    return tuple((ordered[rank], (rank + 1) / len(ordered)) for rank in ranks)


def _changes(data: LiveComparison) -> Figure:
    changes = sorted(point.ttft_on_s - point.ttft_off_s for point in data.points)
    cut = len(changes) // 100  # the outermost hundredth at each end would squeeze all others into one bin
    low, high = changes[cut], changes[-1 - cut]
    width = (high - low) / _BINS or 1e-6
    counts = [0] * _BINS
    for change in changes:
        if low <= change <= high:
            counts[min(_BINS - 1, int((change - low) / width))] += 1
    bins = tuple((low + i * width, low + (i + 1) * width, float(count)) for i, count in enumerate(counts))
    mean = data.paired.ttft_change_s
    rules = (Rule(axis="x", value=mean.value, label="mean", role="main"), Rule(axis="x", value=0.0, label="no change"))
    plot = Plot(
        x=Axis(
            title="TTFT on less off", unit="s", domain=(min(low, 0.0, mean.value), max(low + _BINS * width, mean.value))
        ),
        y=Axis(title="requests", unit="count"),
        bins=(Bins(name="requests", bins=bins, role="muted"),),
        rules=rules,
    )
    return Figure(
        name="changes",
        title="Change of each request",
        reading="Left of zero a request had its first token earlier with offload; 1 % at each end is cut.",
        alt=(
            f"Requests by the change of their time to first token; the mean is {show_duration(mean.value)}, and "
            f"{show_percent(data.paired.faster_ratio)} were earlier with offload."
        ),
        charts=(plot,),
    )


def _cached(data: LiveComparison) -> tuple[Figure, ...]:
    """Change of TTFT against change of cached tokens: whether what was saved explains the gain."""
    step = max(1, len(data.points) // _DOTS)
    dots = [
        (point.cached_tokens_on - point.cached_tokens_off, point.ttft_on_s - point.ttft_off_s)
        for point in data.points[::step]
        if point.cached_tokens_on is not None and point.cached_tokens_off is not None
    ]
    if not dots:
        return ()
    plot = Plot(
        x=Axis(title="cached tokens, on less off", unit="length"),
        y=Axis(title="TTFT on less off", unit="s"),
        series=(Series(name="requests", points=tuple(sorted(dots)), role="main", style="dots"),),
        rules=(Rule(axis="y", value=0.0, label="no change"),),
    )
    share = f" (1 request in {step})" if step > 1 else ""
    figure = Figure(
        name="cached",
        title="What was cached, and what it saved",
        reading=f"Requests further right had more of their prompt cached with offload; lower is sooner{share}.",
        alt="Change of the time to first token of each request against the change of its cached tokens.",
        charts=(plot,),
    )
    return (figure,)


def in_turn(data: LiveComparison) -> tuple[Figure, ...]:
    """The runs one after the other; two have nothing to show."""
    if len(data.runs) < 3:
        return ()
    runs = list(enumerate(data.runs, 1))
    plot = Plot(
        x=Axis(title="run", unit="count", domain=(0.5, len(runs) + 0.5)),
        y=Axis(title="mean TTFT", unit="s"),
        series=tuple(
            Series(
                name=arm,
                points=tuple((float(number), run.ttft.mean) for number, run in runs if run.arm == arm),
                role=_COLOURS[arm],
                style="dots",
            )
            for arm in ("off", "on")
        ),
    )
    means = ", ".join(f"{run.arm} {show_duration(run.ttft.mean)}" for _, run in runs)
    figure = Figure(
        name="in-turn",
        title="Run after run",
        reading="Dots of one arm at one height: time changed nothing by itself.",
        alt=f"Mean time to first token of the runs in turn: {means}.",
        charts=(plot,),
    )
    return (figure,)
