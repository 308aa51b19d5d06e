"""An observation's pictures: hits, bytes and queues from page to page."""

from __future__ import annotations

from kvplan.documents import Observation
from kvplan.page import Axis, Figure, Plot, Rule, Section, Series
from kvplan.units import show_percent, show_rate

_X = Axis(title="time since the first page", unit="s")


def section(seen: Observation) -> tuple[Section, ...]:
    """The section of pictures; none of fewer than three intervals."""
    if len(seen.moments) < 3:
        return ()
    figures = [figure for figure in (_ratio_figure(seen), _rate_figure(seen), _queue_figure(seen)) if figure]
    return (Section(name="time", heading="Over time", blocks=tuple(figures)),) if figures else ()


def _points(seen: Observation, name: str) -> tuple[tuple[float, float], ...]:
    """What was gained over an interval, from its start on; a gauge where it was read, at the end of one."""
    if name in ("running", "waiting"):
        pairs = [(one.from_s + one.span_s, getattr(one, name)) for one in seen.moments]
    else:
        last = seen.moments[-1]
        pairs = [(one.from_s, getattr(one, name)) for one in seen.moments]
        pairs.append((last.from_s + last.span_s, getattr(last, name)))
    return tuple((at, float(value)) for at, value in pairs if value is not None)


def _ratio_figure(seen: Observation) -> Figure | None:
    points = _points(seen, "hit_ratio")
    if len(points) < 2:
        return None
    planned = next((one for one in seen.beside_plan if one.what == "hits, all tiers"), None)
    rules = [Rule(axis="y", value=planned.planned, label="planned")] if planned is not None else []
    if seen.hit_ratio is not None:
        rules.append(Rule(axis="y", value=seen.hit_ratio, label="whole window", role="faint"))
    chart = Plot(
        x=_X,
        y=Axis(title="hit ratio", unit="ratio", domain=(0.0, 1.0)),
        series=(Series(name="hit ratio", points=points, role="main", style="step"),),
        rules=tuple(rules),
    )
    low, high = min(y for _, y in points), max(y for _, y in points)
    return Figure(
        name="hit-ratio",
        title="Hit ratio",
        reading="Of the prompt tokens that came between two pages.",
        alt=f"Hit ratio between pages, from {show_percent(low)} to {show_percent(high)}.",
        charts=(chart,),
        plot=True,
    )


def _rate_figure(seen: Observation) -> Figure | None:
    lines = [
        Series(name=name, points=points, role=role, style="step")  # type: ignore[arg-type]
        for name, field, role in (("stored", "store_bytes_per_s", "host"), ("loaded", "load_bytes_per_s", "gpu"))
        if len(points := _points(seen, field)) > 1
    ]
    if not lines:
        return None
    most = max(y for line in lines for _, y in line.points)
    return Figure(
        name="rates",
        title="Bytes moved",
        reading="Across the GPU's border, over each interval, copies and pauses alike.",
        alt=f"Bytes stored and loaded a second between pages, at most {show_rate(most)}.",
        charts=(Plot(x=_X, y=Axis(title="rate", unit="bytes_per_s"), series=tuple(lines)),),
    )


def _queue_figure(seen: Observation) -> Figure | None:
    lines = [
        Series(name=field, points=points, role=role, style="step")  # type: ignore[arg-type]
        for field, role in (("running", "main"), ("waiting", "danger"))
        if len(points := _points(seen, field)) > 1
    ]
    if not lines:
        return None
    most = max(y for line in lines for _, y in line.points)
    return Figure(
        name="queue",
        title="Requests in the engines",
        reading="As each page found them.",
        alt=f"Requests running and waiting at each page, at most {most:,.0f}.",
        charts=(Plot(x=_X, y=Axis(title="requests", unit="count"), series=tuple(lines)),),
    )
