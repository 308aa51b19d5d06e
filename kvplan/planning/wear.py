"""How many bytes a drive may still be written, from what it says of itself or from a stated assumption."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.documents import Disk, Provenance

ASSUMED_DRIVE_WRITES = 5 * 365


@dataclass(frozen=True, slots=True, kw_only=True)
class Endurance:
    """Bytes that may still be written, and where that is known from."""

    left: int
    provenance: Provenance
    source: str


def endurance(disk: Disk) -> Endurance:
    """A drive's rated writes less those it has had; one drive write a day for five years where it states no rating."""
    members = disk.members
    ratings = [member.rated_endurance_bytes for member in members if member.rated_endurance_bytes is not None]
    rated = disk.rated_endurance_bytes
    if rated is None and ratings and len(ratings) == len(members):
        rated = sum(ratings)
    provenance: Provenance = "measured" if rated is not None else "assumed"
    source = "its rated writes" if rated is not None else "one drive write a day for five years, assumed"
    total = disk.total_bytes * ASSUMED_DRIVE_WRITES if rated is None else rated
    used = [member.used_ratio for member in members if member.used_ratio is not None]
    written = [member.lifetime_written_bytes for member in members if member.lifetime_written_bytes is not None]
    if used:
        left, already = int(total * max(0.0, 1 - max(used))), f", {max(used):.0%} of its life used"
    elif written:
        left, already = max(0, total - sum(written)), ", less what it has had"
    else:
        left, already = total, ""
    return Endurance(left=left, provenance=provenance, source=source + already)
