"""An observation for people: what servers counted, and beside a plan, whether it holds."""

from __future__ import annotations

from kvplan.documents import (
    Document,
    GaugeRead,
    MetricSource,
    Observation,
    PlanCheck,
    QuantileRead,
    TierHits,
    TierTransfer,
    Waiting,
)
from kvplan.page import Block, Decision, Fact, Page, Row, Section, Text, Tone
from kvplan.pages import observation_time, parts
from kvplan.units import show_bytes, show_duration, show_percent, show_rate, show_tokens

_TIERS = {**parts.TIERS, "all": "all tiers", "remote": "remote store", "external": "any tier below the GPU"}
_MISSING = "-"


def page(document: Document[Observation]) -> Page:
    """What a person wants to see of an observation."""
    seen = document.data
    sections = (
        _answer(seen),
        *_beside(seen),
        *parts.findings(seen.findings),
        _hits(seen),
        *_transfers(seen),
        *_waits(seen),
        *_ages(seen),
        *observation_time.section(seen),
        *_losses(seen),
        *_gauges(seen),
        *_configured(seen),
        _sources(seen),
    )
    return Page(
        kind=document.kind,
        title=_title(seen),
        lead=_lead(seen),
        origin=parts.origin(document),
        sections=sections,
    )


def _title(seen: Observation) -> str:
    models = dict.fromkeys(name for system in seen.systems for name in system.models)
    names = ", ".join(system.title for system in seen.systems)
    return f"{names}, observed" + (f": {', '.join(models)}" if models else "")


def _over(seen: Observation) -> str:
    """'over 10 min' or 'since the server started'."""
    if seen.since_start:
        since = "since the server started" if len(seen.sources) == 1 else "since the servers started"
        return since if seen.span_s is None else f"{since} ({show_duration(seen.span_s)} ago)"
    return "between the pages" if seen.span_s is None else f"over {show_duration(seen.span_s)}"


def _lead(seen: Observation) -> str:
    if seen.prompt_tokens == 0:
        return f"No prompt came {_over(seen)}: there is nothing to know hits from."
    if seen.hit_ratio is None or seen.prompt_tokens is None:
        computed = seen.computed_tokens
        known = "" if computed is None else f" {show_tokens(computed)} prompt tokens were computed."
        return f"Hits are not known {_over(seen)}.{known}"
    what = "tokens looked up" if seen.computed_tokens is None else "prompt tokens"
    return f"{show_percent(seen.hit_ratio)} of {show_tokens(seen.prompt_tokens)} {what} hit, {_over(seen)}."


def _answer(seen: Observation) -> Section:
    gravest = {finding.severity for finding in seen.findings}
    tone: Tone = "bad" if "error" in gravest else "warning" if "warning" in gravest else "good"
    differ = [one for one in seen.beside_plan if not one.agrees]
    if seen.plan is not None and differ and tone == "good":
        tone = "warning"
    text = ""
    if seen.plan is not None:
        agreed = f"{len(seen.beside_plan) - len(differ)} of {len(seen.beside_plan)} figures agree with the plan"
        text = f"{agreed}: {seen.plan}"
    engines = sum(system.engines for system in seen.systems[:1])
    facts = [parts.fact("engines", f"{engines:,}")]
    if seen.requests is not None:
        pace = "" if not seen.span_s else f"{seen.requests / seen.span_s:.3g}/s"
        facts.append(parts.fact("requests ended", f"{seen.requests:,}", pace))
    if seen.computed_tokens is not None:
        pace = "" if not seen.span_s else f"{show_tokens(seen.computed_tokens / seen.span_s)}/s"
        facts.append(parts.fact("prompt tokens computed", show_tokens(seen.computed_tokens), pace))
    facts += [_first_token(one) for one in seen.waits if one.what == "time to first token"]
    block = Decision(headline=_lead(seen), tone=tone, text=text, facts=tuple(facts))
    return Section(name="answer", heading="What was seen", blocks=(block,), first=True, listed=False)


def _first_token(one: Waiting) -> Fact:
    read = next((q for q in one.quantiles if q.q == 0.9), None)
    return parts.fact("p90 time to first token", _quantile(read), f"of {one.count:,}")


def _beside(seen: Observation) -> tuple[Section, ...]:
    if not seen.beside_plan:
        return ()
    rows = [_check(one) for one in seen.beside_plan]
    reading = "Hits agree within 5 points, sizes within 5 %, rates and lengths within 25 %, links within half."
    blocks: list[Block] = [parts.table("figure|>planned|>observed|>difference|verdict", rows)]
    whys = _whys(seen)
    if whys:
        blocks.append(parts.table("where it differs|why that may be, likeliest first", whys))
    return (Section(name="plan", heading="Beside the plan", reading=reading, blocks=tuple(blocks), first=True),)


def _whys(seen: Observation) -> list[tuple[str, str]]:
    """Each reason once, under the first figure that it explains: all tiers' hits differ for the same ones, unless some
    are higher and others lower.
    """
    told: dict[str, str] = {}
    hits = [one for one in seen.beside_plan if one.unit == "ratio" and not one.agrees and one.observed is not None]
    alike = len({(one.observed or 0.0) > one.planned for one in hits}) < 2
    for one in seen.beside_plan:
        name = "hits" if one.unit == "ratio" and alike else one.what
        for why in one.why:
            told.setdefault(why, name)
    names = list(told.values())
    return [
        (name if index == 0 or names[index - 1] != name else "", why) for index, (why, name) in enumerate(told.items())
    ]


def _check(one: PlanCheck) -> Row:
    if one.observed is None:
        cells = (one.what, _value(one.planned, one.unit), "not seen", "", "differs")
        return Row(cells=cells, tone="warning")
    apart = one.observed - one.planned
    if one.unit == "ratio":
        difference = f"{apart * 100:+.1f} points"
    else:
        difference = f"{apart / one.planned * 100:+.0f} %" if one.planned else "more than none"
    verdict = "agrees" if one.agrees else "differs"
    cells = (one.what, _value(one.planned, one.unit), _value(one.observed, one.unit), difference, verdict)
    return Row(cells=cells, tone="good" if one.agrees else "warning")


def _value(value: float, unit: str) -> str:
    match unit:
        case "bytes":
            return show_bytes(value)
        case "bytes_per_s":
            return show_rate(value)
        case "ratio":
            return show_percent(value)
        case "s":
            return show_duration(value)
        case "per_s":
            return f"{value:.3g}/s"
        case _:
            return show_tokens(value)


# ----------------------------------------------------------------------------------------- hits, transfers, waits


def _hits(seen: Observation) -> Section:
    names = {system.name: system.title for system in seen.systems}
    rows = [_tier(one, names[one.system]) for one in seen.hits if one.tier in ("all", "gpu") or _used(one)]
    notes = [f"{system.title} does not count {text}" for system in seen.systems for text in system.uncounted]
    blocks = (
        (parts.table("tier|>hits|>hit tokens|>of|->asked of this tier|counted by|-`made of", rows),) if rows else ()
    )
    reading = "Shares of all prompt tokens, so tiers of one system add up." if rows else ""
    if not rows and not notes:
        reading = "These pages do not tell them."
    text = (Text(text="; ".join(notes) + "."),) if notes else ()
    return Section(name="hits", heading="Hits by tier", reading=reading, blocks=(*blocks, *text), first=True)


def _used(one: TierHits) -> bool:
    """Whether a tier below the GPU had or was asked for anything: some systems count tiers that they do not have."""
    return bool(one.hit_tokens or one.asked_tokens)


def _tier(one: TierHits, title: str) -> Row:
    name = _TIERS[one.tier] + (f" ({one.note})" if one.note else "")
    ratio = parts.UNKNOWN if one.hit_ratio is None else show_percent(one.hit_ratio)
    of = parts.UNKNOWN if one.of_tokens is None else show_tokens(one.of_tokens)
    cells = (name, ratio, show_tokens(one.hit_tokens), of)
    asked = "" if one.asked_tokens is None else show_tokens(one.asked_tokens)
    return Row(cells=(*cells, asked, title, one.formula), strong=one.tier == "all")


def _transfers(seen: Observation) -> tuple[Section, ...]:
    rows = [_transfer(one) for one in seen.transfers]
    if not rows:
        return ()
    reading = "While they run: bytes over the time that copies took. A copy: that time over the number of copies."
    if any(one.derived for one in seen.transfers):
        reading += " Counts with ≈ come from bytes and the pool's geometry."
    columns = "copies|>blocks|>tokens|>bytes|>while they run|>a copy|>over the window|->single copies, p10 / p50 / p90"
    block = parts.table(columns, rows)
    return (Section(name="transfers", heading="Offloaded and reused", reading=reading, blocks=(block,), first=True),)


def _transfer(one: TierTransfer) -> tuple[str, ...]:
    spread = "" if one.spread_bytes_per_s is None else " / ".join(map(show_rate, one.spread_bytes_per_s))

    def about(name: str) -> str:
        return "≈ " if name in one.derived else ""

    return (
        f"{_TIERS[one.source] if one.source != 'external' else 'the tier'} to "
        f"{_TIERS[one.target] if one.target != 'external' else 'the tier'} ({one.way})",
        _MISSING if one.blocks is None else about("blocks") + f"{one.blocks:,}",
        _MISSING if one.tokens is None else about("tokens") + show_tokens(one.tokens),
        _MISSING if one.bytes is None else show_bytes(one.bytes),
        _MISSING if one.busy_bytes_per_s is None else show_rate(one.busy_bytes_per_s),
        _MISSING if one.busy_s is None or not one.operations else show_duration(one.busy_s / one.operations),
        _MISSING if one.mean_bytes_per_s is None else show_rate(one.mean_bytes_per_s),
        spread,
    )


def _waits(seen: Observation) -> tuple[Section, ...]:
    rows = [_times(one) for one in seen.waits if not one.age]
    if not rows:
        return ()
    reading = "In brackets where the true quantile lies: the histogram's bucket, or closer where the mean says so."
    block = parts.table("what|>observed|>mean|>p50|>p90|>p99|-`metric", rows)
    return (Section(name="waits", heading="Waits and added latency", reading=reading, blocks=(block,), first=True),)


def _ages(seen: Observation) -> tuple[Section, ...]:
    rows = [_times(one) for one in seen.waits if one.age]
    if not rows:
        return ()
    reading = (
        "A cached block that comes back later than it is kept was kept for nothing: what a time to live should be."
    )
    block = parts.table("what|>observed|>mean|>p50|>p90|>p99|-`metric", rows)
    return (Section(name="ages", heading="How long blocks are kept", reading=reading, blocks=(block,)),)


def _times(one: Waiting) -> tuple[str, ...]:
    reads = [next((q for q in one.quantiles if q.q == wanted), None) for wanted in (0.5, 0.9, 0.99)]
    return (one.what, f"{one.count:,}", parts.seconds_or_unknown(one.mean_s), *map(_quantile, reads), one.metric)


def _quantile(read: QuantileRead | None) -> str:
    if read is None:
        return parts.UNKNOWN
    if read.high_s is None:
        return f"above {show_duration(read.low_s)}"
    return f"{show_duration(read.value_s)} ({show_duration(read.low_s)} to {show_duration(read.high_s)})"


# ------------------------------------------------------------------------------------------------ the rest


def _losses(seen: Observation) -> tuple[Section, ...]:
    rows = [(_TIERS[one.tier], one.what, one.reason, f"{one.amount:,}", one.unit, one.metric) for one in seen.losses]
    if not rows:
        return ()
    block = parts.table("tier|what|reason|>how many|of what|-`metric", rows)
    return (Section(name="losses", heading="Evicted, refused, failed", blocks=(block,)),)


def _gauges(seen: Observation) -> tuple[Section, ...]:
    rows = [(one.what, *_gauge(one), one.note, one.metric) for one in seen.gauges]
    if not rows:
        return ()
    block = parts.table("gauge|>mean|>lowest|>highest|>last|note|-`metric", rows)
    reading = "Gauges are read when a page is: what rises and falls between pages is not seen."
    return (Section(name="gauges", heading="Gauges", reading=reading, blocks=(block,)),)


def _gauge(one: GaugeRead) -> tuple[str, ...]:
    show = {"bytes": show_bytes, "ratio": show_percent, "tokens": show_tokens}.get(one.unit, _plain)
    return tuple(show(value) for value in (one.mean, one.low, one.high, one.last))


def _plain(value: float) -> str:
    return f"{value:,.4g}"


def _configured(seen: Observation) -> tuple[Section, ...]:
    rows = []
    for one in seen.configured:
        text = show_bytes(one.value) if one.unit == "bytes" and one.value is not None else one.text
        rows.append((one.what, text, "" if one.engines == 1 else f"each of {one.engines:,}", one.metric))
    if not rows:
        return ()
    block = parts.table("setting|>value|engines|-`metric", rows)
    return (Section(name="configured", heading="As configured", blocks=(block,)),)


def _sources(seen: Observation) -> Section:
    rows = [_source(one) for one in seen.sources]
    block = parts.table("`source|systems|>pages|>missed|>cut|>restarts", rows)
    evidence = [Row(cells=(one.what, one.value, one.provenance, one.source)) for one in seen.evidence]
    table = parts.table("what|value|?from|source", evidence)
    return Section(name="sources", heading="Where it was read", blocks=(block, table))


def _source(one: MetricSource) -> tuple[str, ...]:
    counts = (one.pages, one.missed, one.cut, one.restarts)
    return (one.where, ", ".join(one.systems), *(f"{count:,}" for count in counts))
