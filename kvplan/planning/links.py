"""Which measured cell speaks for a tier's link: the engine's granule, clean, contended where that was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from kvplan.documents import Disk, Finding, Link, Probe, Provenance

OPPOSITE = "opposite direction"
COMPARISON = "comparison"
SUSTAINED = "sustained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What one link carries in each direction, in bytes a second, and where that is known from."""

    load_bytes_per_s: float
    store_bytes_per_s: float
    latency_s: float
    provenance: Provenance
    source: str
    disk: Disk | None = None


def nearest(cells: Iterable[Link], granule: int, depth: int) -> Link | None:
    """The cell nearest to a granule; of equals the contended, then the nearest in depth, then the slowest."""
    return min(
        cells,
        key=lambda cell: (
            abs(math.log(cell.granule_bytes / granule)) if cell.granule_bytes else math.inf,
            cell.concurrent != OPPOSITE,
            abs(cell.depth - depth),
            cell.p50_bytes_per_s,
        ),
        default=None,
    )


def clean(cells: Iterable[Link], allow_flagged: bool) -> list[Link]:
    """Cells a plan may use: quiet or contended by the opposite direction only, and not flagged unless allowed."""
    return [
        cell
        for cell in cells
        if cell.concurrent in ("none", OPPOSITE)
        and cell.p50_bytes_per_s > 0
        and COMPARISON not in cell.flags
        and (allow_flagged or not cell.flags)
    ]


def host_rates(probe: Probe, granule: int, allow_flagged: bool) -> tuple[Rates | None, list[Finding]]:
    """Host link of the slowest GPU that was measured, per GPU; None where no usable pair of cells is there."""
    measured = [cell for cell in probe.links if cell.direction in ("h2d", "d2h")]
    usable = clean(measured, allow_flagged)
    slowest = []
    for direction in ("h2d", "d2h"):
        ends = {cell.target if direction == "h2d" else cell.source for cell in usable if cell.direction == direction}
        of_gpus = [
            nearest(
                [cell for cell in usable if end in (cell.source, cell.target) and cell.direction == direction],
                granule,
                1,
            )
            for end in sorted(ends)
        ]
        slowest.append(min((cell for cell in of_gpus if cell), key=lambda cell: cell.p50_bytes_per_s, default=None))
    load, store = slowest
    if load is None or store is None:
        return None, _refused("host link", measured)
    return _measured(load, store), []


def disk_rates(
    probe: Probe, granule: int, depth: int, allow_flagged: bool, preset: str | None
) -> tuple[Rates | None, list[Finding]]:
    """The quickest drive that was measured in both directions; None where none is usable.

    Cells shaped as the engine moves data (`preset`) speak before plain ones; a long write bounds the rate of stores.
    """
    measured = [cell for cell in probe.links if cell.direction in ("read", "write")]
    found = []
    for disk in probe.capacity:
        mine = [cell for cell in measured if f"disk:{disk.path}" in (cell.source, cell.target)]
        usable = clean(mine, allow_flagged) if allow_flagged or not disk.flags else []
        load, store = (_shaped(usable, direction, granule, depth, preset) for direction in ("read", "write"))
        if load and store:
            long = [cell for cell in usable if cell.direction == "write" and cell.preset == SUSTAINED]
            found.append(_measured(load, min([store, *long], key=lambda cell: cell.p50_bytes_per_s), disk))
    best = max(found, key=lambda rates: rates.load_bytes_per_s, default=None)
    return best, [] if best else _refused("disk", measured, *probe.capacity)


def _shaped(cells: list[Link], direction: str, granule: int, depth: int, preset: str | None) -> Link | None:
    """The cell of the engine's own shape, else the plain cell nearest to its granule."""
    mine = [cell for cell in cells if cell.direction == direction]
    alike = [cell for cell in mine if preset is not None and cell.preset == preset]
    return nearest(alike or [cell for cell in mine if cell.preset is None], granule, depth)


def _measured(load: Link, store: Link, disk: Disk | None = None) -> Rates:
    shape = f", as {load.preset} moves them" if load.preset else ""
    beside = "" if load.concurrent == "none" else f", beside {load.concurrent}"
    return Rates(
        load_bytes_per_s=load.p50_bytes_per_s,
        store_bytes_per_s=store.p50_bytes_per_s,
        latency_s=load.p50_latency_s,
        provenance="measured",
        source=f"{load.source} to {load.target}, {load.granule_bytes:,} B a piece, depth {load.depth}{beside}{shape}",
        disk=disk,
    )


def _refused(what: str, measured: list[Link], *disks: Disk) -> list[Finding]:
    marked = [*(cell.flags for cell in measured), *(disk.flags for disk in disks)]
    flags = sorted({flag for some in marked for flag in some} - {COMPARISON})
    if not measured or not flags:
        return []
    text = f"every measured cell of the {what} is flagged ({', '.join(flags)}) and was not used"
    return [Finding(severity="warning", code="link-flagged", text=text)]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreShare:
    """GPU time lost for each second that stores take on the host link, and where that is known from."""

    ratio: float
    provenance: Provenance
    source: str


ASSUMED_SHARE = StoreShare(
    ratio=0.5,
    provenance="assumed",
    source="published slowdowns of 1.5 % to 6.4 % where nothing was reused, see docs/planning.md",
)


def store_share(probe: Probe | None, granule: int, rates: Rates | None, allow_flagged: bool) -> StoreShare:
    """What copies to the host take from a decode-like load, on the GPU where it is most; assumed where not measured.

    In a second of copying at the rate under load, the share 1 - alone / loaded of a step's progress is lost.
    """
    cells = [
        one
        for one in (probe.contention if probe else ())
        if one.direction == "d2h" and one.copy_loaded_bytes_per_s > 0 and one.step_loaded_p50_s > 0
        if allow_flagged or not one.flags
    ]
    if not cells or rates is None or rates.provenance != "measured":
        return ASSUMED_SHARE
    near = min(abs(math.log(max(1, one.granule_bytes) / granule)) for one in cells)
    alike = [one for one in cells if abs(math.log(max(1, one.granule_bytes) / granule)) == near]
    lost, worst = max(
        (
            (
                rates.store_bytes_per_s
                / one.copy_loaded_bytes_per_s
                * max(0.0, 1 - one.step_alone_p50_s / one.step_loaded_p50_s),
                one,
            )
            for one in alike
        ),
        key=lambda pair: pair[0],
    )
    source = f"copies of {worst.granule_bytes:,} B from GPU {worst.gpu} beside {worst.load}, {worst.mechanism}"
    return StoreShare(ratio=min(1.0, lost), provenance="measured", source=source)
