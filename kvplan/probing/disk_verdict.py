"""Whether I/O to a file was proven to reach its drive: the evidence gathered while measuring, and the verdict."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

from kvplan.probing import blockdev, directio
from kvplan.units import show_bytes

# Block counters may lag a little; what a page cache saved is far more than this.
_COUNTED = 0.95

Direct = Literal["proven", "unproven", "no"]


@dataclass(slots=True)
class Evidence:
    """What was seen while measuring, from which the verdict on directness is drawn."""

    direct: bool
    alignment: directio.Statx
    extents: directio.Extents | None = None
    cached_pages: int | None = 0
    read_bytes: int = 0
    written_bytes: int = 0
    checked_bytes: int = 0
    wrong_pages: int = 0
    not_a_drive: str | None = None
    memory: str | None = None
    before: directio.Moved | None = None
    after: directio.Moved | None = None

    def saw_cache(self, pages: int | None) -> None:
        """Remember the most pages ever seen in the cache; one unknown makes all unknown."""
        known = pages is not None and self.cached_pages is not None
        self.cached_pages = max(self.cached_pages or 0, pages or 0) if known else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """The answer, the evidence in words, the part of it that is missing or against, and flags for every link."""

    direct: Direct
    proof: tuple[str, ...]
    missing: tuple[str, ...]
    flags: tuple[str, ...]


def verdict(evidence: Evidence, mount: blockdev.Mount | None) -> Verdict:
    """Judge. Proven needs all of: the kernel promises direct I/O (DIOALIGN), no page of the file was ever cached, the
    storage counters account for what was moved, every byte read had been written, and the device is a drive.
    """
    proofs = [_promise(evidence), _cache(evidence), _counters(evidence), _written(evidence)]
    if mount is not None and mount.remote:
        proofs.append((False, f"{mount.kind} is a file system on another machine or in user space"))
    if evidence.memory:
        proofs.append((False, f"{evidence.memory} is memory, not a drive"))
    if evidence.not_a_drive:
        proofs.append((False, evidence.not_a_drive))
    missing = tuple(text for good, text in proofs if not good)
    direct: Direct = "unproven" if missing else "proven"
    return Verdict(
        direct=direct if evidence.direct else "no",
        proof=tuple(text for _, text in proofs),
        missing=missing,
        flags=tuple(_flags(evidence, mount, bool(missing))),
    )


def _flags(evidence: Evidence, mount: blockdev.Mount | None, missing: bool) -> Iterator[str]:
    if not evidence.direct or evidence.cached_pages:
        yield "page-cache"
    elif missing:
        yield "unproven-direct"
    if evidence.extents is not None and not evidence.extents.whole:
        yield "unwritten"
    if evidence.wrong_pages:
        yield "corrupt"
    if mount is not None and mount.remote:
        yield "network"
    if evidence.memory:
        yield "memory"


def _promise(evidence: Evidence) -> tuple[bool, str]:
    memory, offset = evidence.alignment.memory_align, evidence.alignment.offset_align
    if not evidence.direct:
        return False, "the file system refuses O_DIRECT"
    if offset is None:
        return False, "the kernel does not say whether this file system does direct I/O (no statx DIOALIGN)"
    if not offset:
        return False, "the kernel says that this file gets no direct I/O (statx DIOALIGN 0)"
    return True, f"direct I/O aligned to {memory} B in memory and {offset} B in the file (statx DIOALIGN)"


def _cache(evidence: Evidence) -> tuple[bool, str]:
    pages = evidence.cached_pages
    if pages is None:
        return False, "cached pages could not be counted (no cachestat, no mincore)"
    return pages == 0, f"{pages} pages of the file in the page cache, at most, after each cell"


def _counters(evidence: Evidence) -> tuple[bool, str]:
    """Whether the counters of the device, or of this process where the device has none, show the bytes moved."""
    before, after = evidence.before, evidence.after
    if before is None or after is None:
        return False, "nothing counted the transfers"
    pairs = (
        ("block device", before.device_read, after.device_read, before.device_written, after.device_written),
        ("process", before.process_read, after.process_read, before.process_written, after.process_written),
    )
    for name, read0, read1, written0, written1 in pairs:
        if read0 is not None and read1 is not None and written0 is not None and written1 is not None:
            read = (read1 - read0) / max(1, evidence.read_bytes)
            written = (written1 - written0) / max(1, evidence.written_bytes)
            text = f"counters of the {name} show {read:.0%} of the bytes read and {written:.0%} of those written"
            return min(read, written) >= _COUNTED, text
    return False, "neither the device nor the kernel counts this process's transfers"


def _written(evidence: Evidence) -> tuple[bool, str]:
    extents = evidence.extents
    if extents is None:
        return False, "the file system does not tell which extents are written (no FIEMAP)"
    if not extents.whole:
        missing = show_bytes(extents.hole_bytes + extents.unwritten_bytes)
        return False, f"{missing} of the file were never written: reading them does not reach the drive (FIEMAP)"
    packed = f", {show_bytes(extents.encoded_bytes)} of it encoded" if extents.encoded_bytes else ""
    return True, f"every extent was written before it was read (FIEMAP){packed}"
