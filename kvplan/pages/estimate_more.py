"""Parts of an estimate's page that only some estimates have, a fit of start-up lines alone, and models side by side."""

from __future__ import annotations

from collections.abc import Callable

from kvplan.documents import Document, Estimate, Estimates, LogFit
from kvplan.page import Block, Fact, Facts, Page, Section
from kvplan.pages import parts
from kvplan.units import show_bytes, show_exact, show_tokens


def growth(estimate: Estimate) -> tuple[Section, ...]:
    """The slope below and above each window; left out where the curve is one straight line."""
    stretches = estimate.kv.growth
    if len(stretches) < 2:
        return ()
    rows = [
        (
            f"{one.from_tokens:,}",
            "for ever" if one.to_tokens is None else f"{one.to_tokens:,}",
            show_exact(one.bytes_per_token),
            show_exact(one.bytes_at_start),
        )
        for one in stretches
    ]
    block = parts.table(">from tokens|>to tokens|>each token adds|>held at the start", rows)
    reading = "One sequence, whole model, one copy: each window that fills takes its layers out of the growth."
    return (Section(name="slopes", heading="Slope by slope", reading=reading, blocks=(block,), first=True),)


def mix(estimate: Estimate) -> tuple[Section, ...]:
    """What the requests of a workload need."""
    found = estimate.mix
    if found is None:
        return ()
    rows = [
        (
            f"{one.share:.0%}",
            f"{one.tokens:,}",
            show_bytes(one.bytes),
            parts.UNKNOWN if one.sequences is None else f"{one.sequences:,.2f}",
        )
        for one in found.classes
    ]
    columns = ">of requests are at most|>tokens, in and out|>bytes of one|>of these at once"
    blocks: list[Block] = [parts.table(columns, rows, title="Length by length")]
    if found.loads:
        loads = [
            (
                f"{one.share:.0%}",
                f"{one.requests:,.0f}",
                f"{one.tokens:,.0f}",
                show_bytes(one.bytes),
                parts.UNKNOWN if one.fits is None else "yes" if one.fits else "no",
            )
            for one in found.loads
        ]
        columns = ">of the time at most|>requests active|>tokens active|>bytes of them|fits"
        blocks.append(parts.table(columns, loads, title="Together, as the log has them"))
    reading = f"Of {parts.plural(found.requests, 'request')}; one holds {show_bytes(found.mean_bytes_at_most)} or less"
    reading += " on average."
    return (
        Section(
            name="mix", heading="What the workload's lengths need", reading=reading, blocks=tuple(blocks), first=True
        ),
    )


def media(estimate: Estimate) -> tuple[Section, ...]:
    """Tokens of images and audio."""
    rows = [
        (
            one.kind,
            f"{one.count:g}" + (" s" if one.kind == "audio" else ""),
            parts.UNKNOWN if one.tokens_each is None else f"{one.tokens_each:g}",
            parts.UNKNOWN if one.tokens is None else f"{one.tokens:,}",
            one.source,
        )
        for one in estimate.media
    ]
    if not rows:
        return ()
    block = parts.table("input|>how much|>tokens each|>tokens|from", rows)
    return (Section(name="media", heading="Images and audio", blocks=(block,), first=True),)


def log(estimate: Estimate) -> tuple[Section, ...]:
    """Start-up lines against this estimate."""
    return () if estimate.log is None else _fit(estimate.log)


def _fit(fit: LogFit) -> tuple[Section, ...]:
    facts = (
        Fact(
            label="each token", value=show_exact(round(fit.bytes_per_token)), note="on one rank", provenance="measured"
        ),
        Fact(
            label="each request besides",
            value=show_bytes(fit.bytes_per_sequence),
            note="windows, state, what admission reserves",
            provenance="measured",
        ),
        Fact(label="worst error of the fit", value=f"{fit.worst_relative_error:.2%}"),
    )
    rows = [
        (
            one.source,
            f"{one.context_tokens:,}",
            show_bytes(one.pool_bytes),
            f"{one.tokens:,}",
            "" if one.stated_tokens is None else f"{one.stated_tokens:,}",
            "" if one.expected_tokens is None else f"{one.expected_tokens:,}",
        )
        for one in fit.points
    ]
    columns = "log|>sequence tokens|>pool of a rank|>tokens held|>its token line|>expected here"
    reading = f"Bytes of a request on one rank of {fit.engine}, fitted to {parts.plural(len(fit.points), 'start')}."
    return (
        Section(
            name="log",
            heading="What the start-up lines say",
            reading=reading,
            blocks=(Facts(items=facts), parts.table(columns, rows)),
            first=True,
        ),
    )


def fit_page(document: Document[LogFit]) -> Page:
    """A fit of start-up lines, without a model to hold it against."""
    fit = document.data
    return Page(
        kind=document.kind,
        title=f"What a request costs in {fit.engine}",
        lead=f"{show_exact(round(fit.bytes_per_token))} a token and {show_bytes(fit.bytes_per_sequence)} a request.",
        origin=parts.origin(document),
        sections=(*_fit(fit), *parts.findings(fit.findings)),
    )


_LINES: tuple[tuple[str, Callable[[Estimate], str]], ...] = (
    ("per cached token", lambda one: show_exact(one.kv.bytes_per_token)),
    ("per sequence besides", lambda one: show_bytes(one.kv.bytes_per_sequence)),
    ("per token on the fullest GPU", lambda one: show_exact(one.kv.bytes_per_token_per_gpu)),
    ("per token in a tier, all ranks", lambda one: show_exact(one.kv.offload_bytes_per_token)),
    ("longest sequence", lambda one: _tokens(one.model.max_context_tokens)),
    ("KV dtype", lambda one: one.kv_dtype),
    ("tokens of a block", lambda one: f"{one.block_tokens:,}"),
    ("weights", lambda one: parts.bytes_or_unknown(one.weights.bytes if one.weights else None)),
    (
        "weights on the fullest GPU",
        lambda one: parts.bytes_or_unknown(one.weights.bytes_per_gpu if one.weights else None),
    ),
    ("KV memory of one GPU", lambda one: parts.bytes_or_unknown(one.memory.kv_bytes if one.memory else None)),
    ("tokens that fit", lambda one: _tokens(one.memory.kv_tokens if one.memory else None)),
)


def _tokens(count: int | None) -> str:
    return parts.UNKNOWN if count is None else show_tokens(count)


def side_by_side(document: Document[Estimates]) -> Page:
    """Several models under the same options, one column each."""
    found = document.data.estimates
    titles = "figure|>" + "|>".join(one.model.id.replace("|", "/") for one in found)
    rows = [(name, *(show(one) for one in found)) for name, show in _LINES]
    lengths = [at.tokens for at in found[0].kv.bytes_at]
    prices = [
        (f"{found[0].kv.bytes_at[place].sequences:,} x {tokens:,} tokens, {what}", *(pick(one, place) for one in found))
        for place, tokens in enumerate(lengths)
        for what, pick in (("in use", _steady), ("as admitted", _admitted))
    ]
    blocks: list[Block] = [parts.table(titles, rows)]
    if prices:
        blocks.append(parts.table(titles, prices, title="At the lengths asked for"))
    engine = found[0].engine + (f" {found[0].engine_version}" if found[0].engine_version else "")
    cheapest = min(found, key=lambda one: (one.kv.bytes_per_token, one.kv.bytes_per_sequence))
    return Page(
        kind=document.kind,
        title=f"{len(found)} models side by side",
        lead=f"The least growth: {cheapest.model.id}, {show_exact(cheapest.kv.bytes_per_token)} a token.",
        origin=parts.origin(document),
        sections=(
            Section(
                name="models",
                heading="Side by side",
                reading=f"Engine {engine}, {parts.parallel(found[0].parallel)}.",
                blocks=tuple(blocks),
                first=True,
            ),
            *(
                Section(
                    name=f"findings-{place}",
                    heading=one.model.id,
                    blocks=parts.findings(one.findings)[0].blocks,
                    first=True,
                )
                for place, one in enumerate(found)
                if one.findings
            ),
        ),
    )


def _steady(one: Estimate, place: int) -> str:
    return show_bytes(one.kv.bytes_at[place].steady_bytes)


def _admitted(one: Estimate, place: int) -> str:
    return show_bytes(one.kv.bytes_at[place].admission_bytes)
