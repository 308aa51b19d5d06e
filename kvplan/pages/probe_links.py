"""The links of a probe: quickest of each route, by granule, as engines move data, by other means, and every cell."""

from __future__ import annotations

from kvplan.documents import Link, Probe
from kvplan.page import Axis, Figure, Plot, Role, Row, Section, Series
from kvplan.pages import parts
from kvplan.units import show_bytes, show_duration, show_rate

_ROLES: tuple[Role, ...] = ("main", "second", "third", "fourth", "muted", "danger")
_COMPARISON = "comparison"
WORDS = {"read": "disk read", "write": "disk write", "h2d": "host to GPU", "d2h": "GPU to host", "mixed": "both ways"}


def _row(link: Link, whole: bool) -> Row:
    cells = [
        f"{link.source} → {link.target}",
        WORDS[link.direction],
        show_bytes(link.granule_bytes),
        f"{link.depth}",
        show_rate(link.p50_bytes_per_s),
        f"{show_rate(link.p5_bytes_per_s)} to {show_rate(link.p95_bytes_per_s)}",
        show_duration(link.p50_latency_s),
        show_duration(link.p99_latency_s),
    ]
    if whole:
        cpu = "" if link.cpu_s_per_gb is None else f"{link.cpu_s_per_gb:.3g}"
        p95 = "" if link.p95_latency_s is None else show_duration(link.p95_latency_s)
        cells += [p95, f"{link.samples:,}", cpu, "" if link.concurrent == "none" else link.concurrent, link.method]
    cells.append(", ".join(link.flags))
    return Row(cells=tuple(cells), tone="warning" if set(link.flags) - {_COMPARISON} else "plain")


def is_plain(link: Link) -> bool:
    """One size at one depth in one direction, as the sweep measures; no engine's shape, no other means."""
    return link.preset is None and link.direction != "mixed" and _COMPARISON not in link.flags


_COLUMNS = "route|-what|>granule|>depth|>median|->p5 to p95|>latency p50|>p99"


def quickest(probe: Probe) -> tuple[Section, ...]:
    """The quickest cell of each route: what fits on a first screen."""
    links = [link for link in probe.links if is_plain(link)]
    routes = dict.fromkeys((link.source, link.target, link.direction) for link in links)
    fastest = [
        max(
            (link for link in links if (link.source, link.target, link.direction) == route),
            key=lambda link: (not link.flags, link.concurrent == "none", link.p50_bytes_per_s),
        )
        for route in routes
    ]
    if not fastest:
        return ()
    block = parts.table(f"{_COLUMNS}|not to be trusted because", [_row(link, False) for link in fastest])
    reading = "Each route at its quickest granule and depth; the granule an engine uses may be slower."
    return (Section(name="links", heading="What the links carry", reading=reading, blocks=(block,), first=True),)


def cells(probe: Probe) -> tuple[Section, ...]:
    """Every measurement in full."""
    if not probe.links:
        return ()
    columns = f"{_COLUMNS}|>latency p95|>samples|>CPU s/GB|meanwhile|method|not to be trusted because"
    block = parts.table(columns, [_row(link, True) for link in probe.links])
    return (Section(name="cells", heading="Every measurement", blocks=(block,)),)


def engines(probe: Probe) -> tuple[Section, ...]:
    """Cells that move data as one engine does, both directions as they meet there."""
    shaped = [link for link in probe.links if link.preset]
    if not shaped:
        return ()
    rows = [
        Row(
            cells=(
                link.preset or "",
                *_row(link, False).cells[1:5],
                *_row(link, False).cells[6:8],
                "alone" if link.concurrent == "none" else link.concurrent,
                ", ".join(link.flags),
            ),
            tone="warning" if link.flags else "plain",
        )
        for link in shaped
    ]
    columns = "shape|what|>granule|>depth|>median|>latency p50|>p99|meanwhile|not to be trusted because"
    reading = (
        "The same threads, sizes and calls as the engine's; its other work is not there to slow them, so expect less."
    )
    return (
        Section(
            name="engines",
            heading="As serving engines do it",
            reading=reading,
            blocks=(parts.table(columns, rows),),
            first=True,
        ),
    )


def means(probe: Probe) -> tuple[Section, ...]:
    """Other means beside the plain cell of the same size, depth and direction."""
    rows = []
    for link in probe.links:
        if _COMPARISON not in link.flags:
            continue
        plain = next((one for one in probe.links if is_plain(one) and _same_shape(one, link)), None)
        if plain is None:
            plain = next((one for one in probe.links if one.preset and not one.flags and _same_shape(one, link)), None)
        against = f"{link.p50_bytes_per_s / plain.p50_bytes_per_s:.2f}" if plain and plain.p50_bytes_per_s else ""
        cpu = "" if link.cpu_s_per_gb is None else f"{link.cpu_s_per_gb:.3g}"
        shape = f"{show_bytes(link.granule_bytes)} x {link.depth}"
        rows.append((WORDS[link.direction], shape, show_rate(link.p50_bytes_per_s), against, cpu, link.method))
    if not rows:
        return ()
    columns = "what|>granule x depth|>median|>times the plain cell|>CPU s/GB|-method"
    reading = "Other ways to move the same data: for comparison, no plan rests on them."
    return (Section(name="means", heading="By other means", reading=reading, blocks=(parts.table(columns, rows),)),)


def _same_shape(one: Link, two: Link) -> bool:
    ends = (one.source, one.target, one.direction, one.granule_bytes, one.depth, one.concurrent)
    return ends == (two.source, two.target, two.direction, two.granule_bytes, two.depth, two.concurrent)


def throughput(probe: Probe) -> tuple[Section, ...]:
    """A figure of each drive and GPU: median by granule, a line for each direction and depth."""
    media = (("disk", ("read", "write")), ("gpu", ("h2d", "d2h")))
    figures: list[Figure] = []
    for medium, directions in media:
        links = [link for link in probe.links if link.direction in directions and is_plain(link)]
        for end in dict.fromkeys(_far_end(link) for link in links):
            cells = [link for link in links if _far_end(link) == end and link.concurrent == "none" and not link.flags]
            if cells:
                figures.append(_throughput_figure(f"throughput-{medium}-{len(figures) + 1}", end, cells))
    if not figures:
        return ()
    reading = "Median of each measurement: small pieces waste a link, deep queues win some of it back."
    return (Section(name="throughput", heading="Throughput by granule", reading=reading, blocks=tuple(figures)),)


def _far_end(link: Link) -> str:
    return link.target if link.source == "host" else link.source


def _throughput_figure(name: str, end: str, cells: list[Link]) -> Figure:
    groups = dict.fromkeys((link.direction, link.depth) for link in cells)
    series = tuple(
        Series(
            name=f"{WORDS[direction]}, depth {depth}",
            points=tuple(
                sorted(
                    (float(c.granule_bytes), c.p50_bytes_per_s)
                    for c in cells
                    if (c.direction, c.depth) == (direction, depth)
                )
            ),
            role=_ROLES[index % len(_ROLES)],
            style="line",
        )
        for index, (direction, depth) in enumerate(groups)
    )
    top = max(cells, key=lambda link: link.p50_bytes_per_s)
    how = f"{WORDS[top.direction]}, pieces of {show_bytes(top.granule_bytes)}, {top.depth} in flight"
    reading = f"{end}: at most {show_rate(top.p50_bytes_per_s)} ({how})."
    plot = Plot(
        x=Axis(title="granule", unit="bytes", log=True),
        y=Axis(title="median throughput", unit="bytes_per_s"),
        series=series,
    )
    return Figure(
        name=name,
        title=f"{end} by granule",
        reading=reading,
        alt=f"Median throughput against granule for each direction and depth. {reading}",
        charts=(plot,),
    )
