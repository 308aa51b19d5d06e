"""Pieces that the pages share."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import PurePath
from typing import Any

from kvplan.documents import Document, Finding, ModelRef, Parallel, Percentiles, Provenance
from kvplan.page import Column, Fact, Findings, Row, Section, Table
from kvplan.render.scales import show
from kvplan.units import show_bytes, show_duration, show_percent, show_tokens

UNKNOWN = "unknown"
NONE = "none"
TIERS = {"gpu": "GPU", "host": "host memory", "disk": "disk"}


def table(
    columns: str, rows: Iterable[Sequence[str] | Row], title: str = "", short: Iterable[Row] | None = None
) -> Table:
    """A table from column titles divided by '|'.

    Marks before a title: '>' for numbers, '`' for code, '?' for provenance badges, before them '-' for a detail.
    """
    return Table(
        columns=tuple(_column(head) for head in columns.split("|")),
        rows=tuple(row if isinstance(row, Row) else Row(cells=tuple(row)) for row in rows),
        title=title,
        short=None if short is None else tuple(short),
    )


def _column(head: str) -> Column:
    detail, head = head.startswith("-"), head.removeprefix("-")
    match head[:1]:
        case ">":
            return Column(title=head[1:], kind="number", detail=detail)
        case "`":
            return Column(title=head[1:], kind="code", detail=detail)
        case "?":
            return Column(title=head[1:], kind="provenance", detail=detail)
        case _:
            return Column(title=head, detail=detail)


def origin(document: Document[Any]) -> str:
    """'kvplan 0.1.0, 2026-11-20T09:00:00Z'."""
    return f"kvplan {document.kvplan}, {document.created}"


def findings(items: tuple[Finding, ...], first: bool = True) -> tuple[Section, ...]:
    """The section of findings, gravest first; none where there are none."""
    if not items:
        return ()
    order = {"error": 0, "warning": 1, "info": 2}
    ranked = tuple(sorted(items, key=lambda item: order[item.severity]))
    return (Section(name="findings", heading="Findings", blocks=(Findings(items=ranked),), first=first),)


def parallel(parallel: Parallel) -> str:
    """'tp 4, pp 2', or 'one GPU'."""
    sizes = {"tp": parallel.tp, "pp": parallel.pp, "dp": parallel.dp, "dcp": parallel.dcp}
    return ", ".join(f"{name} {size}" for name, size in sizes.items() if size > 1) or "one GPU"


def model_name(model: ModelRef) -> str:
    """A model's name for a heading: its id, or where it was read from files the last word of their path."""
    if model.source not in ("path", "gguf"):
        return model.id
    path = PurePath(model.id)
    last = path.parent if path.name == "config.json" and path.parent.name else path
    return last.name.removesuffix(".json").removesuffix(".gguf") or model.id


def model_source(model: ModelRef) -> str:
    """Where the model's description was read, as exactly as the document knows."""
    place = {"hub": "Hugging Face Hub", "path": "local files", "gguf": "GGUF file", "catalogue": "built-in catalogue"}
    revision = f", revision {model.revision}" if model.revision else ""
    return f"{place[model.source]}{revision}, config sha256 {model.config_sha256[:12]}"


def bytes_or_unknown(count: float | None) -> str:
    """Bytes, or the word for not knowing."""
    return UNKNOWN if count is None else show_bytes(count)


def bytes_or_none(count: float) -> str:
    """Bytes, or the word for giving nothing."""
    return show_bytes(count) if count else NONE


def dollars(amount: float) -> str:
    """'$1,234.50', '$0.0203', '-$0.10'."""
    return show(amount, "usd")


def seconds_or_unknown(seconds: float | None) -> str:
    """A duration, or the word for not knowing."""
    return UNKNOWN if seconds is None else show_duration(seconds)


def percentiles(name: str, values: Percentiles | None) -> tuple[str, ...]:
    """A table row: name, mean, p50, p95, p99, max."""
    if values is None:
        return (name, *[UNKNOWN] * 5)
    centre = UNKNOWN if values.mean is None else show_tokens(values.mean)
    return (name, centre, *(show_tokens(value) for value in (values.p50, values.p95, values.p99, values.max)))


def plural(count: int, noun: str) -> str:
    """'1 request', '2,000 requests'."""
    return f"{count:,} {noun}" + ("" if count == 1 else "s")


def fact(label: str, value: str, note: str = "", provenance: Provenance | None = None) -> Fact:
    """One figure that stands on its own."""
    return Fact(label=label, value=value, note=note, provenance=provenance)


def percent(ratio: float | None) -> str:
    """A ratio as a percentage, or the word for unknown."""
    return UNKNOWN if ratio is None else show_percent(ratio)
