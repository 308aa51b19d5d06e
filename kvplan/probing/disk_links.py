"""From what a cell did to the links of the document, and the words for how it was done."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from kvplan.documents import BlockDevice, Link
from kvplan.probing.disk_cells import COMPARISON, Cell
from kvplan.probing.disk_runner import Outcome
from kvplan.units import show_bytes

# Measured rates may exceed a link's nominal one by rounding only; what is above came from a cache.
_ABOVE = 1.02


def link(path: str, outcome: Outcome, *, direct: bool, flags: Sequence[str], members: Sequence[BlockDevice]) -> Link:
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
        flags=tuple(dict.fromkeys([*flags, *_flags(outcome, members)])),
    )


def _flags(outcome: Outcome, members: Sequence[BlockDevice]) -> Iterator[str]:
    if not outcome.done.rates.steady or not outcome.held:
        yield "not-steady"
    if outcome.cell.comparison:
        yield COMPARISON
    limit = link_limit(members)
    if limit is not None and outcome.done.rates.p50_bytes_per_s > _ABOVE * limit:
        yield "above-link"


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
