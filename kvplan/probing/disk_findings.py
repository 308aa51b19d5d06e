"""What a reader should know of a drive's figures beyond the figures."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvplan.documents import BlockDevice, Finding, Link
from kvplan.probing.disk_cells import Cell
from kvplan.probing.disk_links import Bounds
from kvplan.probing.disk_runner import Outcome
from kvplan.probing.disk_verdict import Evidence, Verdict
from kvplan.probing.neighbours import Others
from kvplan.probing.scratch import Folder
from kvplan.probing.steadiness import first_and_last_second
from kvplan.units import show_bytes, show_rate

# A drive or a cloud's limiter that gives a fifth less later than at first is not what it looked like.
_FELL = 0.8
_WORN = 0.8
_MUCH = 0.1  # of the probe's own transfers, by others: enough to bend the figures


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that is known of one folder when it has been measured."""

    folder: Folder
    evidence: Evidence
    judged: Verdict
    members: Sequence[BlockDevice]
    planned_bytes: int
    measured_bytes: int
    left_out: Sequence[Cell]
    late: Sequence[Cell]
    not_here: Mapping[str, Sequence[Cell]]
    outcomes: Sequence[Outcome]
    links: Sequence[Link]
    most: Bounds
    others: Others | None = None


def findings(facts: Facts) -> tuple[Finding, ...]:
    """Errors first, then what to distrust, then what was left out."""
    found = [*_errors(facts), *_doubts(facts), *_falls(facts), *_members(facts), *_missing(facts), *_notes(facts)]
    path = facts.folder.path
    return tuple(Finding(severity=one.severity, code=one.code, text=f"{path}: {one.text}") for one in found)


def _errors(facts: Facts) -> Iterator[Finding]:
    evidence = facts.evidence
    if evidence.wrong_pages:
        text = (
            f"{evidence.wrong_pages} pages in {show_bytes(evidence.checked_bytes)} checked were not what was written: "
            "distrust it"
        )
        yield Finding(severity="error", code="disk-corrupt", text=text)


def _doubts(facts: Facts) -> Iterator[Finding]:
    if facts.folder.memory:
        text = (
            f"is in memory ({facts.folder.memory}): what was measured is no drive, and a plan will not take it for one"
        )
        yield Finding(severity="warning", code="disk-in-memory", text=text)
    elif facts.judged.missing:
        text = f"not proven that I/O reaches the drive: {'; '.join(facts.judged.missing)}"
        yield Finding(severity="warning", code="disk-not-proven-direct", text=text)
    if facts.measured_bytes < facts.planned_bytes:
        sizes = f"{show_bytes(facts.measured_bytes)} instead of {show_bytes(facts.planned_bytes)}"
        yield Finding(severity="warning", code="disk-slow", text=f"so slow that the scratch file was cut to {sizes}")
    if any("not-steady" in link.flags for link in facts.links if link.preset != "sustained"):
        text = "slowed down while it was measured: a longer run may find it slower still"
        yield Finding(severity="warning", code="disk-not-steady", text=text)
    yield from _too_quick(facts)
    if facts.others is not None:
        yield _shared(facts.others)


def _too_quick(facts: Facts) -> Iterator[Finding]:
    """Rates that no drive here can have."""
    for flag, most, what in (
        ("above-link", facts.most.link, "what its PCI Express link carries"),
        ("above-memory", facts.most.memory, "half of what this host copies in memory"),
    ):
        if most is not None and any(flag in link.flags for link in facts.links):
            text = f"measured above {what} ({show_rate(most)}): a cache answered, not the drive"
            yield Finding(severity="warning", code=f"disk-{flag}", text=text)


def _shared(others: Others) -> Finding:
    moved = f"others read {show_bytes(others.read_bytes)} and wrote {show_bytes(others.written_bytes)} on its drive"
    text = f"{moved} while it was measured, {others.share:.0%} of what the probe moved"
    if others.busiest:
        names = ", ".join(f"{name} {show_bytes(size)}" for name, size in others.busiest)
        text += f"; on any drive meanwhile: {names}"
    return Finding(severity="warning" if others.share >= _MUCH else "info", code="disk-shared", text=text)


def _falls(facts: Facts) -> Iterator[Finding]:
    """A rate that did not last: within the long write, or between the same reads earlier and later."""
    for outcome in facts.outcomes:
        if outcome.cell.sustained:
            yield from _sustained(outcome)
        if outcome.cell.again:
            yield from _again(outcome, facts.outcomes)


def _sustained(outcome: Outcome) -> Iterator[Finding]:
    done, ends = outcome.done, first_and_last_second(outcome.done)
    written = f"after {show_bytes(done.moved_bytes)} in {done.until_s:.1f} s"
    if ends is not None and ends[1] < _FELL * ends[0]:
        text = (
            f"writing fell from {show_rate(ends[0])} in the first second to {show_rate(ends[1])} in the last, {written}"
        )
        yield Finding(severity="warning", code="disk-write-fell", text=f"{text}: a fast cache or a limiter ran out")
    if not outcome.held:
        text = f"the rate of a long write had not settled {written}: give a larger --write-budget and --budget"
        yield Finding(severity="info", code="disk-write-not-settled", text=text)


def _again(later: Outcome, outcomes: Sequence[Outcome]) -> Iterator[Finding]:
    shape = (later.cell.granule, later.cell.depth)
    for first in outcomes:
        plain = first.cell.direction == "read" and not first.cell.comparison and first.cell.preset is None
        if plain and (first.cell.granule, first.cell.depth) == shape:
            before, after = first.done.rates.p50_bytes_per_s, later.done.rates.p50_bytes_per_s
            if after < _FELL * before:
                text = f"the same reads gave {show_rate(before)} at first and {show_rate(after)} later: "
                why = "something else used the drive, or a limiter throttles it"
                yield Finding(severity="warning", code="disk-read-fell", text=text + why)


def _members(facts: Facts) -> Iterator[Finding]:
    for drive in facts.members:
        if drive.link and drive.max_link and drive.link != drive.max_link:
            text = f"{drive.name} runs at {drive.link}, and could at {drive.max_link}"
            yield Finding(severity="warning", code="disk-link-downgraded", text=text)
        if drive.used_ratio is not None and drive.used_ratio >= _WORN:
            text = f"{drive.name} says that {drive.used_ratio:.0%} of its rated life is used"
            yield Finding(severity="warning", code="disk-worn", text=text)


def _missing(facts: Facts) -> Iterator[Finding]:
    if facts.left_out:
        cells = ", ".join(str(cell) for cell in facts.left_out)
        text = f"not measured, for want of write budget, space or file size: {cells}"
        yield Finding(severity="info", code="disk-cells-left-out", text=text)
    if facts.late:
        cells = ", ".join(str(cell) for cell in facts.late)
        text = f"not measured, for want of time (give a longer --budget): {cells}"
        yield Finding(severity="info", code="disk-cells-late", text=text)
    for why, absent in facts.not_here.items():
        text = f"not available here ({why}): {', '.join(str(cell) for cell in absent)}"
        yield Finding(severity="info", code="disk-cells-not-here", text=text)


def _notes(facts: Facts) -> Iterator[Finding]:
    if facts.folder.device == os.stat("/").st_dev:
        text = "is on the drive of the root file system, which other programs use too"
        yield Finding(severity="info", code="disk-system-drive", text=text)
