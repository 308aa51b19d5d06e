"""A workload for people: how much of the log repeats, and how large a cache must be to catch it."""

from __future__ import annotations

import math

from kvplan.documents import CurvePoint, Document, SampledPoint, Workload
from kvplan.page import Block, Fact, Facts, Page, Row, Section
from kvplan.pages import parts, workload_figures, workload_whatif
from kvplan.pages.parts import fact
from kvplan.units import show_duration, show_percent, show_tokens

_SHORT_ROWS = 10


def page(document: Document[Workload]) -> Page:
    """What a person wants to see of a workload."""
    workload = document.data
    sections = (
        _summary(workload),
        *_curve(workload),
        *_sampled(workload),
        *workload_whatif.compared(workload),
        *parts.findings(workload.findings),
        *_drift(workload),
        *workload_whatif.starts(workload),
        *_reuse(workload),
        *workload_whatif.sharing(workload),
        *workload_whatif.otherwise(workload),
        *_over_time(workload),
        _lengths(workload),
        *_tenants(workload),
        _evidence(workload),
    )
    names = ", ".join(source.name for source in workload.sources)
    does = "reuses" if workload.curve or workload.sampled else "asks for"
    return Page(
        kind=document.kind,
        title=f"What {names} {does}" if names else f"What the log {does}",
        lead=workload_figures.lead(workload),
        origin=parts.origin(document),
        sections=sections,
    )


def _summary(workload: Workload) -> Section:
    tokens = f"{show_tokens(workload.output_tokens)} output"
    if workload.novel_tokens is not None:
        tokens = f"{show_tokens(workload.novel_tokens)} of them new; {tokens}"
    facts = [
        *_ratios(workload, "ceiling_hit_ratio", "ceiling", "infinite cache, cold start, by tokens"),
        *_ratios(workload, "engine_hit_ratio", "ceiling under the engine's rule", "full blocks, last token computed"),
        fact("requests", f"{workload.requests:,}", _pace(workload), "measured"),
        fact("input tokens", show_tokens(workload.input_tokens), tokens, "measured"),
        *_ratios(
            workload,
            "one_off_tokens_ratio",
            "new tokens never used again",
            "of all new tokens: keeping them helps nobody",
        ),
    ]
    active, service = workload.active_tokens, workload.service
    if active is not None and service is not None:
        facts.append(
            fact(
                "active tokens, p99", show_tokens(active.p99), f"at most {show_tokens(active.max)}", service.provenance
            )
        )
    return Section(name="summary", heading="At a glance", blocks=(Facts(items=tuple(facts)),), first=True)


def _ratios(workload: Workload, field: str, name: str, note: str) -> list[Fact]:
    """One ratio of the log, or nothing where a log of lengths cannot say it."""
    ratio = getattr(workload, field)
    return [] if ratio is None else [fact(name, show_percent(ratio), note, "measured")]


def _pace(workload: Workload) -> str:
    if workload.span_s is None:
        return "the log has no time stamps"
    rate = f", {workload.requests / workload.span_s:,.3g}/s" if workload.span_s else ""
    return f"in {show_duration(workload.span_s)}{rate}"


# --------------------------------------------------------------------------------------------------- curve


def _curve(workload: Workload) -> tuple[Section, ...]:
    if not workload.curve:
        return ()
    best = workload_figures.nearly_all(workload)
    timed = workload.span_s is not None
    rows = [_point_row(point, workload, point is best, timed) for point in workload.curve]
    low, high = workload_figures.rising(workload.curve) or (0.0, math.inf)
    worth = [point for point in workload.curve if low <= point.capacity_tokens <= high]
    kept = {id(point) for point in _spread(worth)} | {id(best)}
    short = [row for row, point in zip(rows, workload.curve, strict=True) if id(point) in kept]
    columns = ">blocks|>tokens|>hit ratio|>of the ceiling|>requests hit|>fills in"
    reading = f"LRU over blocks of {workload.block_tokens} tokens, cold start, the whole log."
    if workload.ttl_s is not None:
        reading += f" Blocks not used for {show_duration(workload.ttl_s)} are dropped."
    blocks = (workload_figures.hit_ratio(workload), parts.table(columns, rows, short=short))
    return (Section(name="curve", heading="Hits against capacity", reading=reading, blocks=blocks, first=True),)


def _sampled(workload: Workload) -> tuple[Section, ...]:
    """The curve of a sample, with twice its standard error on either side."""
    sampled = workload.sampled
    if sampled is None:
        return ()
    rows = [_sampled_row(one, workload.block_tokens) for one in sampled.points]
    least = sampled.points[-1].token_hit_ratio / _SHORT_ROWS if sampled.points else 0.0
    rising = [row for row, one in zip(rows, sampled.points, strict=True) if one.token_hit_ratio >= least]
    step = max(1, -(-len(rising) // _SHORT_ROWS))
    short = [row for i, row in enumerate(rising) if i % step == 0 or row is rising[-1]]
    table = parts.table(">blocks|>tokens|>hit ratio|>of blocks|>two standard errors", rows, short=short)
    reading = "LRU, cold start, the whole log, estimated from a sample of its blocks; the errors are measured on it."
    blocks = (workload_figures.sampled(workload, sampled), table)
    return (Section(name="sampled", heading="Hits against capacity", reading=reading, blocks=blocks, first=True),)


def _sampled_row(one: SampledPoint, block_tokens: int) -> Row:
    cells = (
        f"{one.capacity_blocks:,}",
        show_tokens(one.capacity_blocks * block_tokens),
        show_percent(one.token_hit_ratio),
        show_percent(one.block_hit_ratio),
        f"± {200 * one.standard_error_ratio:.2f} points",
    )
    return Row(cells=cells)


def _point_row(point: CurvePoint, workload: Workload, strong: bool, timed: bool) -> Row:
    share = point.hit_ratio / workload.ceiling_hit_ratio if workload.ceiling_hit_ratio else 0.0
    never = "not in this log" if timed else ""
    cells = (
        f"{point.capacity_blocks:,}",
        show_tokens(point.capacity_tokens),
        show_percent(point.hit_ratio),
        show_percent(share),
        f"{point.hit_requests:,}",
        never if point.fill_time_s is None else show_duration(point.fill_time_s),
    )
    return Row(cells=cells, strong=strong)


def _spread(points: list[CurvePoint]) -> list[CurvePoint]:
    """At most ten points, from first to last, for a short table."""
    if len(points) <= _SHORT_ROWS:
        return points
    last = len(points) - 1
    return [points[round(index * last / (_SHORT_ROWS - 1))] for index in range(_SHORT_ROWS)]


# ---------------------------------------------------------------------------------------- reuse, time, tenants


def _reuse(workload: Workload) -> tuple[Section, ...]:
    figures = (*workload_figures.intervals(workload), *workload_figures.prefixes(workload))
    if not figures:
        return ()
    reading = "A cache must keep a block at least until its next use; long prefixes repay loading best."
    return (Section(name="reuse", heading="When and what is reused", reading=reading, blocks=figures),)


def _over_time(workload: Workload) -> tuple[Section, ...]:
    blocks: list[Block] = [*workload_figures.load(workload)]
    if workload.working_set:
        rows = [
            (show_duration(one.window_s), show_tokens(one.mean_tokens), show_tokens(one.max_tokens))
            for one in workload.working_set
        ]
        blocks.append(parts.table(">window|>mean tokens|>most tokens", rows, title="Working set"))
    blocks += workload_whatif.arrivals(workload)
    if not blocks:
        return ()
    reading = "The working set is what a window of time touches; active tokens belong to requests in flight."
    return (Section(name="time", heading="Over time", reading=reading, blocks=tuple(blocks)),)


def _lengths(workload: Workload) -> Section:
    rows = [
        parts.percentiles("input tokens a request", workload.input_lengths),
        parts.percentiles("output tokens a request", workload.output_lengths),
        parts.percentiles("active tokens", workload.active_tokens),
        parts.percentiles("active requests", workload.active_requests),
    ]
    return Section(
        name="lengths", heading="Lengths and load", blocks=(parts.table("|>mean|>p50|>p95|>p99|>max", rows),)
    )


def _tenants(workload: Workload) -> tuple[Section, ...]:
    if len(workload.tenants) < 2:
        return ()
    rows = [
        (
            one.tenant,
            f"{one.requests:,}",
            show_tokens(one.input_tokens),
            show_tokens(one.hit_tokens),
            show_tokens(one.isolated_hit_tokens),
        )
        for one in workload.tenants
    ]
    columns = "tenant|>requests|>input tokens|>hits, sharing|>hits, alone"
    reading = "Tokens that an infinite cache would hit: shared by all tenants, and with each keeping to its own."
    return (Section(name="tenants", heading="Tenants", reading=reading, blocks=(parts.table(columns, rows),)),)


def _drift(workload: Workload) -> tuple[Section, ...]:
    if not workload.drift:
        return ()
    rows = [
        (
            one.kind,
            f"{one.position_tokens:,}",
            f"{one.requests:,}",
            show_tokens(one.lost_tokens),
            parts.UNKNOWN if one.gain_ratio is None else show_percent(one.gain_ratio),
            f"{len(one.variants)}" if one.variants else "",
            one.fix,
        )
        for one in workload.drift
    ]
    columns = "what diverges|>at token|>requests|>tokens lost|>of the input|>variants|what to do"
    block = parts.table(columns, rows)
    return (Section(name="drift", heading="Prefixes that ought to match", blocks=(block,), first=True),)


def _evidence(workload: Workload) -> Section:
    logs = [
        (one.name, one.format, f"{one.requests:,}", f"{one.skipped:,}", one.sha256[:12]) for one in workload.sources
    ]
    blocks = f"{workload.block_references:,} references, {workload.block_tokens} tokens a block"
    facts: list[Fact] = [fact("distinct blocks", f"{workload.unique_blocks:,}", blocks, "measured")]
    service = workload.service
    if service is not None:
        model = []
        if service.prefill_tokens_per_s is not None:
            model.append(f"prefill {show_tokens(service.prefill_tokens_per_s)} tokens/s")
        if service.decode_s_per_token is not None:
            model.append(f"decode {show_duration(service.decode_s_per_token)} a token")
        held = ", ".join(model) or "durations in the log"
        facts.append(fact("a request was held to be active for", held, service.source, service.provenance))
    listed = parts.table("log|format|>requests|>lines left out|`sha256", logs)
    return Section(name="evidence", heading="Where the figures come from", blocks=(listed, Facts(items=tuple(facts))))
