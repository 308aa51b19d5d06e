"""What a probe of the host says of loading: how fast one reader reads the drive on end, how much memory there is."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan.documents import Document, Link, Probe
from kvplan.errors import KvplanError
from kvplan.files import load
from kvplan.units import show_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Probed:
    """Figures of one probe: the sequential read of one drive (None: no drive was measured), and host memory."""

    source: str
    read_bytes_per_s: float | None
    cell: str
    ram_bytes: int


def probed(path: Path, drive: str | None) -> Probed:
    """Read a probe document. Weights are read by one reader on end, so the rate is the median of the largest pieces
    at depth 1, of cells that nothing else ran beside and no flag warns of.

    Raises KvplanError for another kind of document, for a drive that it does not hold and for several with none named.
    """
    document: Document[Any] = load(path)
    if document.kind != "kvplan.probe":
        raise KvplanError(f"{path} is a {document.kind}, not a probe")
    probe: Probe = document.data
    links = [link for link in probe.links if _counts(link)]
    folders = sorted({link.source.removeprefix("disk:") for link in links})
    if drive is not None:
        if drive not in folders:
            held = ", ".join(folders) or "none"
            raise KvplanError(f"{path}: no clean read of drive {drive!r} (those that it holds: {held})")
        links = [link for link in links if link.source == f"disk:{drive}"]
    elif len(folders) > 1:
        raise KvplanError(f"{path} holds several drives: name one as drive: {', '.join(folders)}")
    best = max(links, key=lambda link: link.granule_bytes, default=None)
    pieces = "" if best is None else f"{best.source.removeprefix('disk:')}, {show_bytes(best.granule_bytes)} pieces"
    return Probed(
        source=path.name,
        read_bytes_per_s=None if best is None else best.p50_bytes_per_s,
        cell=pieces,
        ram_bytes=probe.host.usable_memory_bytes,
    )


def _counts(link: Link) -> bool:
    plain = link.preset is None and link.concurrent == "none" and not link.flags
    return link.source.startswith("disk:") and link.direction == "read" and link.depth == 1 and plain
