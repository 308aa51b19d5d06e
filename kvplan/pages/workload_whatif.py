"""What else a workload says: cold and warm, who shares what, and the log looked at otherwise."""

from __future__ import annotations

from kvplan.documents import Hits, Replicas, Workload
from kvplan.page import Block, Section
from kvplan.pages import parts
from kvplan.units import show_duration, show_percent, show_tokens

_LEAST_SHARE = 0.001  # a shared prefix that saves less of the input is left out


def starts(workload: Workload) -> tuple[Section, ...]:
    """The ceiling by each definition of a hit rate, over the whole log and over its warm part."""
    rows = []
    for name, rates in (("cold", workload.cold), ("warm", workload.warm)):
        if rates is not None:
            rows.append(
                (
                    f"{name}, requests {rates.measured_from + 1:,} to {rates.measured_from + rates.requests:,}",
                    f"{show_percent(rates.token_hit_ratio)} of {show_tokens(rates.input_tokens)}",
                    f"{show_percent(rates.block_hit_ratio)} of {rates.block_references:,}",
                    f"{show_percent(rates.request_any_hit_ratio)} of {rates.requests:,}",
                )
            )
    if not rows:
        return ()
    reading = (
        "Hits of an infinite cache. Cold: from an empty cache, every request counts. "
        "Warm: the earlier requests only fill the cache."
    )
    columns = "start|>input tokens hit|>blocks hit|>requests with any hit"
    return (Section(name="rates", heading="Hit rates", reading=reading, blocks=(parts.table(columns, rows),)),)


def sharing(workload: Workload) -> tuple[Section, ...]:
    """The prefixes that save most, the hot set, and who used a block last."""
    blocks: list[Block] = []
    least = _LEAST_SHARE * workload.input_tokens
    rows = [
        (
            f"{one.from_tokens:,} to {one.to_tokens:,}",
            f"{one.requests:,}",
            show_tokens(one.saved_tokens),
            f"{one.first_request + 1:,}",
        )
        for one in workload.top_prefixes
        if one.saved_tokens >= least
    ]
    if rows:
        title = "Stretches of prompt that save most"
        blocks.append(parts.table("tokens of the prompt|>requests|>tokens saved|>first request", rows, title=title))
    if workload.hot_set:
        hot = [
            (show_percent(one.hit_share_ratio), f"{one.blocks:,}", show_tokens(one.blocks * workload.block_tokens))
            for one in workload.hot_set
        ]
        blocks.append(parts.table(">share of all hits|>hottest blocks|>tokens", hot, title="Hot set"))
    if len(workload.reused_from) > 1:
        whole = sum(one.tokens for one in workload.reused_from)
        who = [(one.who, show_tokens(one.tokens), show_percent(one.tokens / whole)) for one in workload.reused_from]
        blocks.append(parts.table("last used by|>tokens|>share", who, title="Whose blocks are reused"))
    if not blocks:
        return ()
    reading = "Hits of an infinite cache, by what is shared."
    return (Section(name="sharing", heading="What is shared", reading=reading, blocks=tuple(blocks)),)


def otherwise(workload: Workload) -> tuple[Section, ...]:
    """Policies, isolation, replicas, tiers and granules."""
    blocks = [
        *_policies(workload),
        *_isolation(workload),
        *_replicas(workload),
        *_tiers(workload),
        *_granules(workload),
    ]
    if not blocks:
        return ()
    reading = "The same log, cold start, in other caches. Exact, unless called a bound."
    return (Section(name="otherwise", heading="What if", reading=reading, blocks=tuple(blocks)),)


def _policies(workload: Workload) -> list[Block]:
    lru = {point.capacity_blocks: point.hit_ratio for point in workload.curve}
    columns: list[tuple[str, dict[int, float]]] = [
        *((one.policy.upper(), _ratios(one.points)) for one in workload.policies),
        *((("optimal", {p.capacity_blocks: p.hit_ratio for p in workload.optimal}),) if workload.optimal else ()),
        *((("LRU without one-off blocks", _ratios(workload.without_one_off)),) if workload.without_one_off else ()),
    ]
    capacities = sorted({capacity for _, ratios in columns for capacity in ratios} & set(lru))
    rows = [
        (
            f"{capacity:,}",
            show_tokens(capacity * workload.block_tokens),
            show_percent(lru[capacity]),
            *(show_percent(ratios[capacity]) if capacity in ratios else "" for _, ratios in columns),
        )
        for capacity in capacities
    ]
    head = "|".join([">blocks", ">tokens", ">LRU", *(f">{name}" for name, _ in columns)])
    return [parts.table(head, rows, title="Replacement policies, hit ratio")] if rows else []


def _ratios(points: tuple[Hits, ...]) -> dict[int, float]:
    return {point.capacity_blocks: point.hit_ratio for point in points}


def _isolation(workload: Workload) -> list[Block]:
    one = workload.isolation
    if one is None:
        return []
    rows = [
        ("shared", show_percent(one.hit_tokens / max(1, workload.input_tokens)), f"{one.blocks:,}"),
        ("apart", show_percent(one.isolated_hit_tokens / max(1, workload.input_tokens)), f"{one.isolated_blocks:,}"),
    ]
    return [parts.table("tenants|>ceiling|>blocks stored", rows, title="Tenants kept apart")]


def _replicas(workload: Workload) -> list[Block]:
    rows = [_spread(one, workload) for one in workload.replicas]
    if not rows:
        return []
    count = workload.replicas[0].replicas
    title = f"{count} servers, each with a cache of its own"
    columns = "routing|>ceiling|>at the middle capacity|>busiest server, input|>busiest server, to compute"
    return [parts.table(columns, rows, title=title)]


def _spread(one: Replicas, workload: Workload) -> tuple[str, ...]:
    middle = one.curve[len(one.curve) // 2] if one.curve else one.ceiling
    size = show_tokens(middle.capacity_blocks * workload.block_tokens)
    return (
        one.routing,
        show_percent(one.ceiling.hit_ratio),
        f"{show_percent(middle.hit_ratio)} with {size} each",
        f"{one.load_imbalance:.2f} × mean",
        f"{one.computed_imbalance:.2f} × mean",
    )


def _tiers(workload: Workload) -> list[Block]:
    rows = [
        (
            one.arrangement,
            f"{one.level}",
            show_tokens(one.capacity_blocks * workload.block_tokens),
            show_percent(one.hit_tokens / max(1, workload.input_tokens)),
            show_tokens(one.written_blocks * workload.block_tokens),
        )
        for one in workload.tiers
    ]
    return [parts.table("tiers|>level|>tokens|>adds|>tokens written, at most", rows, title="Tiers")] if rows else []


def _granules(workload: Workload) -> list[Block]:
    rows = [
        (f"whole granules of {one.granule_tokens:,} tokens", show_percent(one.hit_ratio))
        for one in workload.granularities
    ]
    if workload.prompt_end_hit_ratio is not None:
        rows.append(("state kept at the ends of prompts only", show_percent(workload.prompt_end_hit_ratio)))
    if workload.decoded_hit_ratio is not None:
        rows.append(("decoded blocks cached too, as answers come back", show_percent(workload.decoded_hit_ratio)))
    if workload.decoded_ceiling_hit_ratio is not None:
        rows.append(("decoded blocks cached too, at most", show_percent(workload.decoded_ceiling_hit_ratio)))
    title = "Infinite cache, last token computed: larger blocks, or state checkpoints so far apart"
    return [parts.table("reuse|>hit ratio", rows, title=title)] if rows else []


def compared(workload: Workload) -> tuple[Section, ...]:
    """An earlier period beside this one."""
    before = workload.compared
    if before is None:
        return ()
    rows = [
        ("requests", f"{before.requests:,}", f"{workload.requests:,}"),
        ("span", _span(before.span_s), _span(workload.span_s)),
        ("input tokens", show_tokens(before.input_tokens), show_tokens(workload.input_tokens)),
        ("output tokens", show_tokens(before.output_tokens), show_tokens(workload.output_tokens)),
        ("input tokens a request, p50", f"{before.input_lengths.p50:,.0f}", f"{workload.input_lengths.p50:,.0f}"),
        ("ceiling", show_percent(before.ceiling_hit_ratio), parts.percent(workload.ceiling_hit_ratio)),
    ]
    if before.known_hit_ratio is not None:
        rows.append(("ceiling, warm from the earlier period", "", show_percent(before.known_hit_ratio)))
    now = {point.capacity_blocks: point.hit_ratio for point in workload.curve}
    for point in before.curve[:: max(1, len(before.curve) // 8)]:
        size = show_tokens(point.capacity_blocks * workload.block_tokens)
        rows.append(
            (f"hits with {size} tokens", show_percent(point.hit_ratio), show_percent(now[point.capacity_blocks]))
        )
    table = parts.table("|>earlier period|>this one", rows)
    return (Section(name="compared", heading="Against the earlier period", blocks=(table,), first=True),)


def _span(span_s: float | None) -> str:
    return parts.UNKNOWN if span_s is None else show_duration(span_s)


def arrivals(workload: Workload) -> list[Block]:
    """Requests and tokens by hour of the day."""
    rows = [(f"{one.hour}", f"{one.requests:,}", show_tokens(one.input_tokens)) for one in workload.arrivals]
    return [parts.table(">hour|>requests|>input tokens", rows, title="By hour of the day")] if rows else []
