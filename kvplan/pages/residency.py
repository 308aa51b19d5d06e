"""Several models on one machine, for people: who waited, who left and why, what to set."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.documents import (
    Document,
    LimitSearch,
    MemorySplit,
    ModelResidency,
    PolicyRun,
    Residency,
    ResidencySpan,
    WaitSpread,
)
from kvplan.page import Axis, Block, Code, Fact, Facts, Figure, Page, Plot, Row, Rule, Section, Series, Text
from kvplan.page import Role as Colour
from kvplan.pages import parts
from kvplan.units import show_bytes, show_duration, show_percent

LANES = 8  # models of the timeline
DRAWN = 160  # stretches of it: more of them are a grey band, and no step can be told from the next
SWAPS = 20  # evictions listed
WHY = {
    "lru": "least recently used, idle",
    "lru-busy": "least recently used, busy",
    "lru-loading": "least recently used, loading",
    "keep-alive": "idle for its keep-alive time",
}
# How high a lane's line stands in each state; on the ground the model is not loaded.
HEIGHTS = {"stopping": 0.1, "sleeping": 0.1, "loading": 0.22, "ready": 0.4, "busy": 0.62}
COLOURS: tuple[Colour, ...] = ("main", "second", "third", "fourth")


def page(document: Document[Residency]) -> Page:
    """What a person wants to see of a residency."""
    data = document.data
    run = data.runs[0]
    sections = (
        _summary(data, run),
        *parts.findings(data.findings),
        _models(run),
        *_compared(data.runs),
        *_searched(data.search),
        *_waiting(data.runs),
        *_timeline(data, run),
        *_evictions(run),
        _together(data),
        _shared(data),
        _config(data),
        _evidence(data),
    )
    return Page(
        kind=document.kind,
        title=f"{parts.plural(len(data.resident_models), 'model')} on {show_bytes(data.machine.memory_bytes)}",
        lead=_lead(run),
        origin=parts.origin(document),
        sections=sections,
    )


def _lead(run: PolicyRun) -> str:
    wait = "nobody was served" if run.wait is None else f"waits p95 {show_duration(run.wait.p95)}"
    cut = f"{run.interrupted:,} interrupted"
    loads, requests = parts.plural(run.loads, "load"), parts.plural(run.requests, "request")
    return f"{run.policy.name}: {requests}, {loads}, {cut}, {wait}."


def _summary(data: Residency, run: PolicyRun) -> Section:
    wait = run.wait
    left = f"{run.left:,} left before they were served, {run.unserved:,} never were"
    facts = [
        Fact(label="served", value=f"{run.served:,} of {run.requests:,}", note=left),
        Fact(label="interrupted", value=f"{run.interrupted:,}", note="answers or loads cut by an eviction"),
        Fact(label="loads", value=f"{run.loads:,}", note=f"{show_duration(run.loading_s)} of loading"),
        Fact(label="evictions", value=f"{sum(run.evictions.values()):,}", note=_reasons(run)),
        Fact(label="refused: busy", value=f"{run.refused_busy:,}", note="times a model at work was passed over"),
        Fact(
            label="made good",
            value=show_duration(run.reprefill_s + run.restore_s + run.save_s),
            note=f"re-prefill {show_duration(run.reprefill_s)}, KV moved {show_duration(run.restore_s + run.save_s)}",
        ),
        Fact(
            label="most at once",
            value=show_bytes(run.peak_bytes),
            note=f"{parts.plural(run.peak_models, 'model')} of {show_bytes(data.machine.memory_bytes)}",
        ),
    ]
    if wait is not None:
        facts.insert(
            1, Fact(label="wait", value=f"p95 {show_duration(wait.p95)}", note=f"mean {show_duration(wait.mean)}")
        )
    return Section(name="summary", heading="At a glance", blocks=(Facts(items=tuple(facts)),), first=True)


def _reasons(run: PolicyRun) -> str:
    return "; ".join(f"{times:,} {WHY[reason]}" for reason, times in run.evictions.items()) or "nobody had to leave"


def _waits(wait: WaitSpread | None) -> tuple[str, ...]:
    if wait is None:
        return (parts.UNKNOWN,) * 4
    return tuple(show_duration(value) for value in (wait.p50, wait.p95, wait.p99, wait.max))


def _models(run: PolicyRun) -> Section:
    titles = "model|>requests|>wait p50|>p95|>p99|->longest|>loads|->cold|>evicted|->refused: busy|>interrupted|->left"
    columns = parts.table(titles, [_model(one) for one in run.models])
    reading = "A wait is from a request's arrival to the start of its service."
    return Section(name="models", heading="By model", blocks=(columns,), reading=reading, first=True)


def _model(one: ModelResidency) -> Row:
    cells = (
        one.name,
        f"{one.requests:,}",
        *_waits(one.wait),
        f"{one.loads:,}",
        f"{one.cold_loads:,}",
        f"{sum(one.evictions.values()):,}",
        f"{one.refused_busy:,}",
        f"{one.interrupted:,}",
        f"{one.left:,}",
    )
    return Row(cells=cells, tone="bad" if one.interrupted or one.unserved else "plain")


def _compared(runs: Sequence[PolicyRun]) -> tuple[Section, ...]:
    if len(runs) < 2:
        return ()
    rows = []
    for run in runs:
        waits = _waits(run.wait)
        rows.append(
            Row(
                cells=(
                    run.policy.name,
                    f"{run.served:,}",
                    f"{run.interrupted:,}",
                    f"{run.unserved:,}",
                    f"{run.loads:,}",
                    show_duration(run.loading_s),
                    show_duration(run.held_idle_s),
                    waits[0],
                    waits[1],
                    show_bytes(run.peak_bytes),
                ),
                strong=run is runs[0],
            )
        )
    titles = "policy|>served|>interrupted|>unserved|>loads|>loading|->held idle|>wait p50|>p95|->most at once"
    reading = "The same log under each. Held idle: time in which a model did nothing and a wrong count kept it."
    blocks: tuple[Block, ...] = (parts.table(titles, rows),)
    return (Section(name="policies", heading="Policies side by side", blocks=blocks, reading=reading, first=True),)


def _searched(search: LimitSearch | None) -> tuple[Section, ...]:
    if search is None:
        return ()
    rows = [
        Row(
            cells=(
                _limit(search, one.value),
                "yes" if one.fits else "no",
                f"{one.loads:,}",
                parts.seconds_or_unknown(one.mean_wait_s),
                parts.seconds_or_unknown(one.p95_wait_s),
                f"{one.interrupted + one.unserved:,}",
            ),
            strong=one.value == search.best,
        )
        for one in search.candidates
    ]
    best = "none of them fits" if search.best is None else f"best: {_limit(search, search.best)}"
    part = f"On the first {parts.plural(search.requests, 'request')}"
    reading = f"{part}; {best}, the smallest within 1 % of the shortest mean wait."
    table = parts.table("limit|fits|>loads|>mean wait|>p95|>cut or unserved", rows)
    return (Section(name="search", heading="Best limit", blocks=(table,), reading=reading),)


def _limit(search: LimitSearch, value: int) -> str:
    return show_bytes(value) if search.unit == "bytes" else parts.plural(value, "model")


def _timeline(data: Residency, run: PolicyRun) -> tuple[Section, ...]:
    """A lane a model, whose line stands as high as its state."""
    shown = sorted(run.models, key=lambda one: -one.requests)[:LANES]
    lanes = {one.name: len(shown) - place for place, one in enumerate(shown)}
    known = sorted((span for span in run.spans if span.model in lanes), key=lambda span: span.from_s)
    if not known:
        return ()
    spans = known[:DRAWN]
    end = max(span.to_s for span in known) if len(spans) == len(known) else spans[-1].from_s
    series = [
        _lane(name, float(lane), spans, end, COLOURS[place % len(COLOURS)])
        for place, (name, lane) in enumerate(lanes.items())
    ]
    rules = tuple(Rule(axis="y", value=float(lane), label=name) for name, lane in lanes.items())
    y = Axis(title="model, from the top", unit="count", domain=(0.7, len(shown) + 0.8))
    x = Axis(title="time", unit="s", domain=(0.0, max(end, 1e-9)))
    plot = Plot(x=x, y=y, series=tuple(series), rules=rules, height=20 + 46 * len(shown))
    whole = len(spans) == len(known) and run.spans_total <= len(run.spans)
    part = "" if whole else f" The first {show_duration(end)} of {show_duration(run.makespan_s)}."
    ground = (
        "A lane a model: on the ground it is not loaded, then stopping or sleeping, loading, ready, busy at the top."
    )
    figure = Figure(
        name="residency",
        title="Where each model stands",
        reading=ground + part,
        alt=f"States of {parts.plural(len(shown), 'model')} over {show_duration(end)}; the table lists the first.",
        charts=(plot,),
    )
    rows = [(s.model, s.state, show_duration(s.from_s), show_duration(s.to_s)) for s in known[:SWAPS]]
    table = parts.table("model|state|>from|>to", rows, title="First stretches")
    return (Section(name="timeline", heading="Timeline", blocks=(figure, table)),)


def _lane(name: str, lane: float, spans: Sequence[ResidencySpan], end: float, colour: Colour) -> Series:
    points = [(0.0, lane)]
    for span in sorted((span for span in spans if span.model == name), key=lambda span: span.from_s):
        if points[-1][0] == span.from_s:
            points.pop()  # it goes on from one state to the next, and was not unloaded in between
        points += [(span.from_s, lane + HEIGHTS[span.state]), (min(span.to_s, end), lane)]
    return Series(name=name, points=(*points, (end, points[-1][1])), role=colour, style="step")


def _waiting(runs: Sequence[PolicyRun]) -> tuple[Section, ...]:
    """How long requests waited: the share that waited at most so long, under each policy."""
    series = [
        Series(
            name=run.policy.name,
            points=tuple((wait, percent / 100) for percent, wait in enumerate(run.wait_percentiles_s)),
            role=colour,
            style="step",
        )
        for run, colour in zip(runs, COLOURS, strict=False)
        if run.wait_percentiles_s
    ]
    more = [run.policy.name for run in runs[len(COLOURS) :] if run.wait_percentiles_s]
    drawn = [one.points for one in series]
    longest = max((points[-1][0] for points in drawn), default=0.0)
    if not longest:
        return ()
    most = max(points[-2][0] for points in drawn)  # 99 % of them
    cut = 0 < most < longest / 1.5
    x = Axis(title="wait", unit="s", domain=(0.0, most if cut else longest))
    y = Axis(title="requests that waited at most so long", unit="ratio", domain=(0.0, 1.0))
    figure = Figure(
        name="waits",
        title="How long requests waited",
        reading=(
            "Higher and further left is better, of the requests served; it begins at the share that did not wait."
            + (f" The longest, {show_duration(longest)}, is not shown." if cut else "")
            + (f" Not drawn: {', '.join(more)}." if more else "")
        ),
        alt=f"Distribution of waits, the longest {show_duration(longest)}; percentiles are in the table by model.",
        charts=(Plot(x=x, y=y, series=tuple(series)),),
    )
    return (Section(name="waits", heading="Waits", blocks=(figure,)),)


def _evictions(run: PolicyRun) -> tuple[Section, ...]:
    if not run.swaps_total:
        return ()
    rows = [
        Row(
            cells=(
                show_duration(swap.at_s),
                swap.model,
                WHY[swap.reason],
                swap.wanted_by or "nobody",
                f"{swap.interrupted:,}",
            ),
            tone="bad" if swap.interrupted else "plain",
        )
        for swap in run.swaps[:SWAPS]
    ]
    table = parts.table(">at|model|why|made room for|>interrupted", rows)
    reading = f"The first {len(rows)} of {run.swaps_total:,}."
    return (Section(name="evictions", heading="Evictions", blocks=(table,), reading=reading),)


def _together(data: Residency) -> Section:
    names = data.co_access.models
    rows = [
        (name, *(show_percent(ratio) for ratio in ratios))
        for name, ratios in zip(names, data.co_access.ratios, strict=True)
    ]
    table = parts.table("|".join(["requests for", *(f">{name.replace('|', '/')}" for name in names)]), rows)
    reading = (
        f"How many are followed within {show_duration(data.co_access.window_s)} by a request for the column's model."
    )
    return Section(name="together", heading="Asked for together", blocks=(table,), reading=reading)


def _shared(data: Residency) -> Section:
    shared = data.shared
    rows = [
        ("host memory", parts.bytes_or_unknown(shared.ram_bytes)),
        ("host KV tier", parts.bytes_or_none(shared.host_kv_bytes)),
        ("reserved", parts.bytes_or_none(shared.reserved_bytes)),
        ("left for the page cache", parts.bytes_or_unknown(shared.page_cache_bytes)),
        ("weights of all models", show_bytes(shared.weights_bytes)),
    ]
    run = data.runs[0]
    cold = data.machine.pattern == "direct" or (
        run.loads > sum(one.loads > 0 for one in run.models) and all(one.loads == one.cold_loads for one in run.models)
    )
    words = {
        True: "Every load is cold.",
        False: "There is room for the files, yet every load is cold." if cold else "A load after the first is warm.",
        None: "Every load is taken as cold.",
    }
    blocks: tuple[Block, ...] = (parts.table("|>bytes", rows), *(() if data.split is None else _split(data.split)))
    return Section(name="memory", heading="One host memory", blocks=blocks, reading=words[shared.every_swap_cold])


def _split(split: MemorySplit) -> tuple[Block, ...]:
    """Every size of the KV tier that was weighed: what it spares, what it costs the models, what is left of it."""
    rows = [
        Row(
            cells=(
                parts.bytes_or_none(one.host_kv_bytes),
                show_bytes(one.page_cache_bytes),
                "every" if one.every_swap_cold else "the first",
                show_duration(one.kv_saved_s_per_hour),
                f"{one.loads:,}",
                show_duration(one.loading_s_per_hour),
                show_duration(one.reprefill_s_per_hour),
                show_duration(one.net_s_per_hour),
                f"{one.harm:,}",
            ),
            strong=one.host_kv_bytes == split.best_bytes,
            tone="bad" if one.harm else "plain",
        )
        for one in split.points
    ]
    titles = "KV tier|>page cache|load cold|>spared an hour|->loads|>loading an hour|->re-prefill|>net|->cut or beyond"
    played = f"{parts.plural(split.requests, 'request')} over {show_duration(split.span_s)}"
    title = f"Every size on the plan's curve, with {played} played beside it"
    return (
        Text(text=split.why),
        *((_split_figure(split),) if len(split.points) > 1 else ()),
        parts.table(titles, rows, title=title),
        *(Text(text=sentence) for sentence in split.assumed),
    )


def _split_figure(split: MemorySplit) -> Figure:
    points = split.points
    spared = tuple((float(one.host_kv_bytes), one.kv_saved_s_per_hour) for one in points)
    lost = tuple((float(one.host_kv_bytes), one.kv_saved_s_per_hour - one.net_s_per_hour) for one in points)
    net = tuple((float(one.host_kv_bytes), one.net_s_per_hour) for one in points)
    series = (
        Series(name="spared by the KV tier", points=spared, role="second", style="step"),
        Series(name="lost to loading and re-prefilling", points=lost, role="third", style="step"),
        Series(name="net", points=net, role="main", style="step"),
    )
    chosen = Rule(axis="x", value=float(split.best_bytes), label="chosen")
    x, y = Axis(title="KV tier of one replica", unit="bytes"), Axis(title="seconds an hour", unit="s")
    best = split.best
    return Figure(
        name="split",
        title="One memory, two claimants",
        reading="The tier is chosen where the net is highest.",
        alt=(
            f"Net seconds an hour by size of the KV tier, highest at {show_bytes(split.best_bytes)} with "
            f"{show_duration(best.net_s_per_hour)}; the table has every size."
        ),
        charts=(Plot(x=x, y=y, series=series, rules=(chosen,)),),
    )


def _config(data: Residency) -> Section:
    blocks = tuple(Code(title=name, text=text) for name, text in data.config.items())
    return Section(name="config", heading="What to set", blocks=blocks)


def _evidence(data: Residency) -> Section:
    rows = [(one.what, one.value, one.provenance, one.source) for one in data.evidence]
    table = parts.table("what|>value|?provenance|source", rows)
    limits = tuple(Text(text=sentence) for sentence in data.not_modelled)
    return Section(name="evidence", heading="Where the figures come from", blocks=(table, *limits))
