"""Configurations for people: what a plan becomes in a serving system, and what an existing one reserves."""

from __future__ import annotations

from kvplan.documents import ConfigCheck, Document, Export, Knob
from kvplan.page import Code, Fact, Facts, Page, Section
from kvplan.pages import parts
from kvplan.units import show_bytes

NO_LIMIT = "no limit"


def page(document: Document[Export]) -> Page:
    """A plan's texts for one system, each size in bytes of the host."""
    made = document.data
    facts = (
        Fact(label="host memory", value=_size(made.host_taken_bytes), note=f"of {show_bytes(made.host_bytes)} planned"),
        Fact(label="disk", value=_size(made.disk_taken_bytes), note=f"of {show_bytes(made.disk_bytes)} planned"),
        Fact(label="for", value=made.floor),
    )
    texts = tuple(Code(title=one.name, text=one.text) for one in made.parts)
    return Page(
        kind=document.kind,
        title=f"The plan in {made.system}",
        lead=f"{parts.plural(len(made.parts), 'text')} for {made.floor}.",
        origin=parts.origin(document),
        sections=(
            Section(name="summary", heading="At a glance", blocks=(Facts(items=facts),), first=True),
            Section(name="texts", heading="To paste", blocks=texts, first=True),
            _knobs(made.knobs),
            *parts.findings(made.findings),
        ),
    )


def check_page(document: Document[ConfigCheck]) -> Page:
    """What a configuration reserves on a host, beside what it may."""
    found = document.data
    rows = (
        ("host memory", _size(found.host_bytes), _size(found.host_limit_bytes, "not said")),
        ("disk", _size(found.disk_bytes), _size(found.disk_limit_bytes, "not said")),
    )
    ranks = "" if found.ranks is None else f", {parts.plural(found.ranks, 'rank')} an engine"
    against = f"; held against {found.against}" if found.against else ""
    over = [one for one in found.findings if one.severity == "error"]
    lead = f"It reserves {_size(found.host_bytes)} of host memory and {_size(found.disk_bytes)} of disk."
    return Page(
        kind=document.kind,
        title=f"What {found.source} reserves on a host",
        lead=f"{lead} {over[0].text}." if over else lead,
        origin=parts.origin(document),
        sections=(
            Section(
                name="summary",
                heading="On one host",
                reading=f"As {found.system} reads it{ranks}{against}.",
                blocks=(parts.table("|>reserved|>may be", rows),),
                first=True,
            ),
            _knobs(found.knobs),
            *parts.findings(found.findings),
        ),
    )


def _size(size: int | None, nothing: str = NO_LIMIT) -> str:
    return nothing if size is None else parts.bytes_or_none(size)


def _knobs(knobs: tuple[Knob, ...]) -> Section:
    """Each size as it is written, and what it comes to."""
    rows = [
        (
            one.name,
            f"{one.written} {one.unit}".strip(),
            one.scope if one.bytes is not None else "",
            f"{one.times}" if one.bytes is not None else "",
            NO_LIMIT if one.bytes is None else f"{one.bytes:,}",
            one.tier,
            one.why,
        )
        for one in knobs
    ]
    table = parts.table("`setting|>value|of one|>times|>bytes on the host|tier|note", rows)
    return Section(name="sizes", heading="Sizes", blocks=(table,), first=True)
