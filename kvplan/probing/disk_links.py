"""From what a cell did to the links of the document, and the words for how it was done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvplan.documents import BlockDevice, Link
from kvplan.probing.disk_cells import COMPARISON, Cell
from kvplan.probing.disk_runner import Outcome
from kvplan.probing.memory_copy import CACHE_SHARE
from kvplan.units import show_bytes

# Measured rates may exceed a link's nominal one by rounding only; what is above came from a cache.
_ABOVE = 1.02


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """Bytes per second that no drive here can exceed: what its PCI Express links carry, and half of what this host
    copies in memory. None is unknown.
    """

    link: float | None = None
    memory: float | None = None


def bounds(members: Sequence[BlockDevice], memory_copy: float | None) -> Bounds:
    """The bounds of a folder on these drives."""
    return Bounds(link=link_limit(members), memory=None if memory_copy is None else memory_copy * CACHE_SHARE)


def link(path: str, outcome: Outcome, *, direct: bool, flags: Sequence[str], most: Bounds) -> Link:
    """One direction of one cell as a link of the folder `path`."""
    cell, done, rates = outcome.cell, outcome.done, outcome.done.rates
    disk = f"disk:{path}"
    writes = outcome.direction == "write"
    return Link(
        source="host" if writes else disk,
        target=disk if writes else "host",
        direction=outcome.direction,
        granule_bytes=cell.granule,
        depth=cell.depth,
        samples=rates.samples,
        p5_bytes_per_s=rates.p5_bytes_per_s,
        p50_bytes_per_s=rates.p50_bytes_per_s,
        p95_bytes_per_s=rates.p95_bytes_per_s,
        p50_latency_s=rates.p50_latency_s,
        p95_latency_s=rates.p95_latency_s,
        p99_latency_s=rates.p99_latency_s,
        method=", ".join(_method(outcome, direct)),
        concurrent="opposite direction" if outcome.beside else "none",
        cpu_s_per_gb=done.cpu_s_per_gb,
        preset=cell.preset,
        flags=tuple(dict.fromkeys([*flags, *_flags(outcome, most)])),
    )


def _flags(outcome: Outcome, most: Bounds) -> Iterator[str]:
    if not outcome.done.rates.steady or not outcome.held:
        yield "not-steady"
    if outcome.cell.comparison:
        yield COMPARISON
    rate = outcome.done.rates.p50_bytes_per_s
    if most.link is not None and rate > _ABOVE * most.link:
        yield "above-link"
    if most.memory is not None and rate > most.memory:
        yield "above-memory"


def link_limit(members: Sequence[BlockDevice]) -> float | None:
    """Bytes per second that the PCI Express links of all drives carry together; None where one is unknown."""
    known = [member.link_bytes_per_s for member in members if member.link_bytes_per_s is not None]
    return sum(known) if known and len(known) == len(members) else None


def _method(outcome: Outcome, direct: bool) -> Iterator[str]:
    cell = outcome.cell
    yield "1 thread" if cell.depth == 1 or cell.queue else f"{cell.depth} threads"
    yield cell.queue or {"read": "preadv", "write": "pwritev", "mixed": "two preadv to one pwritev"}[outcome.direction]
    yield "O_DIRECT" if direct else "buffered"
    yield from _shape(cell)
    if cell.files:
        yield "opened and closed each time" if outcome.direction == "read" else "a new file replaces the old"
    elif cell.sustained:
        yield f"in order, round and round, {show_bytes(outcome.done.moved_bytes)} written"
    else:
        yield "random order" if outcome.direction == "read" else "random order, overwriting"
    if cell.again:
        yield "measured again later"
    yield "data verified"


def _shape(cell: Cell) -> Iterator[str]:
    if cell.pieces > 1:
        how = "a call each" if cell.separate else "one call for all"
        yield f"{cell.pieces} scattered pieces of {show_bytes(cell.granule // cell.pieces)}, {how}"
    if cell.files:
        yield f"a nameless file for each block, {cell.file_count} files"
    if cell.sync:
        yield "fdatasync after each"
