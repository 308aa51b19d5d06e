"""Which measured cell speaks for a tier's link: the engine's granule, clean, contended where that was measured."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from kvplan.documents import Disk, Estimate, Finding, Link, Probe, Provenance
from kvplan.engines.profiles import MECHANISMS, Mechanism, Move, Profile
from kvplan.units import MiB, show_rate

FAR = 2  # a cell with pieces this many times the engine's says little of them
LARGE = MiB  # from here on public measurements of large copies hold

OPPOSITE = "opposite direction"
PAGEABLE = "pageable"
COMPARISON = "comparison"
SUSTAINED = "sustained"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rates:
    """What one link carries in each direction, in bytes a second, and where that is known from.

    `as_moved`: it was measured in the engine's own pieces and by its own mechanism.
    """

    load_bytes_per_s: float
    store_bytes_per_s: float
    latency_s: float
    provenance: Provenance
    source: str
    disk: Disk | None = None
    as_moved: bool = False


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Shape:
    """How one direction of the host link is really used: pieces of `piece` bytes, and the mechanism that moves them."""

    piece: int
    mechanism: Mechanism = "loop"
    words: str = "one piece"
    pageable: bool = False
    source: str = ""

    @property
    def text(self) -> str:
        """The shape for a person."""
        memory = " from pageable memory" if self.pageable else ""
        return f"{self.piece:,} B ({self.words}) by {MECHANISMS[self.mechanism]}{memory}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Chosen:
    """The measured cell that stands for a shape, its rate, and where the rate is bounded by the other direction."""

    cell: Link
    rate: float
    bounded: bool


def shape(move: Move, estimate: Estimate, per_token: int, rules: Profile, sequence_tokens: int) -> Shape:
    """The pieces of one direction for a model: `per_token` bytes of a token on one GPU, sequences of a mean length."""
    block = rules.block_tokens if estimate.engine == "none" else max(1, estimate.block_tokens)
    spans = {"token": 1, "block": block, "chunk": rules.tier_chunk_tokens or block, "sequence": max(1, sequence_tokens)}
    piece = move.piece_bytes(estimate, per_token, spans[move.span])
    return Shape(piece=piece, mechanism=move.by(piece), words=move.words, pageable=move.pageable, source=move.source)


def host_rates(probe: Probe, load: Shape, store: Shape, allow_flagged: bool) -> tuple[Rates | None, list[Finding]]:
    """Host link of the slowest GPU that was measured, per GPU; None where no usable pair of cells is there.

    Cells of the shape's mechanism at the nearest piece; where it was not measured, plain cells nearest to that piece.
    """
    measured = [cell for cell in probe.links if cell.direction in ("h2d", "d2h")]
    found = [
        _slowest([cell for cell in measured if cell.direction == way], shape, allow_flagged)
        for way, shape in (("h2d", load), ("d2h", store))
    ]
    if found[0] is None or found[1] is None:
        return None, _refused("host link", measured)
    said = [*_gaps("loads", load, found[0]), *_gaps("stores", store, found[1])]
    rates = Rates(
        load_bytes_per_s=found[0].rate,
        store_bytes_per_s=found[1].rate,
        latency_s=found[0].cell.p50_latency_s,
        provenance="measured",
        source=f"loads {_told(found[0])}; stores {_told(found[1])}",
        as_moved=not said,
    )
    return rates, said


def _slowest(cells: list[Link], shape: Shape, allow_flagged: bool) -> Chosen | None:
    """Of the cells that stand for a shape on each GPU, the slowest."""
    ends = {end for cell in cells for end in (cell.source, cell.target)} - {"host"}
    of_gpus = [
        _chosen([cell for cell in cells if end in (cell.source, cell.target)], shape, allow_flagged)
        for end in sorted(ends)
    ]
    return min((one for one in of_gpus if one), key=lambda one: one.rate, default=None)


def _chosen(cells: list[Link], shape: Shape, allow_flagged: bool) -> Chosen | None:
    """The cell of one direction of one GPU that stands for a shape.

    Of the shape's mechanism, unless its nearest cell is far from the piece and a plain one is nearer: what one call a
    piece carries errs on the careful side. A mechanism measured alone carries no more than plain copies of any size
    carry beside the opposite direction.
    """
    usable = clean(cells, allow_flagged)
    plain = [cell for cell in usable if cell.preset is None]
    preset = None if shape.mechanism == "loop" else shape.mechanism
    alike = [cell for cell in usable if preset is not None and cell.preset == preset]
    if shape.pageable:
        pageable = [cell for cell in cells if cell.flags == (PAGEABLE,) and cell.preset is None]
        alike = [cell for cell in clean(pageable, True) if cell.concurrent == "none"]
    own, other = nearest(alike, shape.piece, 1), nearest(plain, shape.piece, 1)
    far = own and not shape.pageable and _distance(own, shape) > FAR
    cell = other if own is None or (far and other and _distance(other, shape) < _distance(own, shape)) else own
    if cell is None:
        return None
    beside = [one.p50_bytes_per_s for one in plain if one.concurrent == OPPOSITE]
    bounded = cell.concurrent == "none" and bool(beside) and max(beside) < cell.p50_bytes_per_s
    return Chosen(cell=cell, rate=max(beside) if bounded else cell.p50_bytes_per_s, bounded=bounded)


def _distance(cell: Link, shape: Shape) -> float:
    """How many times one is the other, 1 where a cell has the very piece."""
    larger, smaller = max(cell.granule_bytes, shape.piece), min(cell.granule_bytes, shape.piece)
    return larger / smaller if smaller else math.inf


def _gaps(verb: str, shape: Shape, chosen: Chosen) -> Iterator[Finding]:
    """What was not measured as the engine moves it: another mechanism or memory, or a piece far below the cell's."""
    cell = chosen.cell
    preset = None if shape.mechanism == "loop" else shape.mechanism
    if cell.preset != preset:
        text = (
            f"{verb} move pieces of {shape.text}, of which the probe has no clean cell near: the plan takes "
            f"plain copies of {cell.granule_bytes:,} B, one call each; probe with the model's estimate to measure it"
        )
        yield Finding(severity="info", code="link-mechanism", text=text)
    if shape.pageable and PAGEABLE not in cell.flags:
        text = (
            f"{verb} move pieces of {shape.text}, and only page-locked copies were measured: expect less than "
            f"{show_rate(chosen.rate)}"
        )
        yield Finding(severity="warning", code="link-pageable", text=text)
    if cell.granule_bytes > FAR * shape.piece and shape.piece < LARGE:
        least = chosen.rate * shape.piece / cell.granule_bytes
        text = (
            f"{verb} move pieces of {shape.text}, and the nearest measured is {cell.granule_bytes:,} B: the "
            f"plan takes its {show_rate(chosen.rate)}, and it may be as little as {show_rate(least)}; probe with "
            f"--granule {shape.piece}"
        )
        yield Finding(severity="warning", code="link-piece", text=text)


def _told(chosen: Chosen) -> str:
    cell = chosen.cell
    means = {str(name): words for name, words in MECHANISMS.items()}.get(cell.preset or "loop", cell.preset)
    beside = "alone" if cell.concurrent == "none" else f"beside the {cell.concurrent}"
    bound = ", bounded by what copies carry beside the opposite direction" if chosen.bounded else ""
    flags = f", {', '.join(cell.flags)}" if cell.flags else ""
    return f"{cell.source} to {cell.target}, {cell.granule_bytes:,} B a piece by {means}, {beside}{bound}{flags}"


def published_pieces(load: Shape, rate: float) -> list[Finding]:
    """What a published rate of large copies leaves open for an engine that moves smaller pieces."""
    if load.pageable:
        text = f"loads move pieces of {load.text}, and {show_rate(rate)} is what page-locked copies reach: expect less"
        return [Finding(severity="warning", code="link-pageable", text=text)]
    if load.piece >= LARGE:
        return []
    text = (
        f"the host link's {show_rate(rate)} is what large copies reach, and loads move pieces of {load.text}, which "
        "can carry much less: probe the GPU host with the model's estimate"
    )
    return [Finding(severity="info", code="link-large-copies", text=text)]


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


def _measured(load: Link, store: Link, disk: Disk) -> Rates:
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


def store_share(probe: Probe | None, store: Shape, rates: Rates | None, allow_flagged: bool) -> StoreShare:
    """What copies to the host take from a decode-like load, on the GPU where it is most; assumed where not measured.

    The mechanism and the piece of stores speak, where they were measured.

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
    cells = [one for one in cells if one.mechanism == store.mechanism] or cells
    near = min(abs(math.log(max(1, one.granule_bytes) / store.piece)) for one in cells)
    alike = [one for one in cells if abs(math.log(max(1, one.granule_bytes) / store.piece)) == near]
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
