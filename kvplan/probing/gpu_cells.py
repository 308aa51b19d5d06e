"""What is measured between host memory and a GPU: sizes of pieces, directions, kinds of memory, mechanisms."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

from kvplan.documents import KvMove, KvPieces
from kvplan.probing.mechanisms import Direction, Mechanism
from kvplan.units import KiB, MiB, show_bytes

GRANULES = (64 * KiB, 256 * KiB, 1 * MiB, 4 * MiB, 16 * MiB, 64 * MiB)
OPPOSITE = "opposite direction"
ALL_GPUS = "all GPUs"
BOTH_WAYS: tuple[Direction, ...] = ("h2d", "d2h")
# Smaller pieces are bound by submitting them one by one, whatever runs in the other direction.
_DUPLEX_FROM = 1 * MiB
_WORD = 8  # bytes in which copies are verified


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One point of the sweep.

    `duplex` runs beside the opposite direction, in the pieces and by the mechanism of `beside`; None is as this one.
    """

    direction: Direction
    granule: int
    pinned: bool = True
    duplex: bool = False
    mechanism: Mechanism = "loop"
    beside: KvPieces | None = field(default=None, compare=False)

    @property
    def words(self) -> str:
        """The cell for a person: 'h2d 1.00 MiB beside the opposite direction'."""
        memory = "" if self.pinned else " pageable"
        memory += "" if self.mechanism == "loop" else f" by {self.mechanism}"
        return f"{self.direction} {show_bytes(self.granule)}{memory}" + (f" beside the {OPPOSITE}" * self.duplex)


def cells(
    extra: tuple[int, ...],
    buffer: int,
    mechanisms: tuple[Mechanism, ...] = ("loop",),
    moves: tuple[KvMove, ...] = (),
) -> tuple[Cell, ...]:
    """The sweep over a buffer: page-locked at every size, both directions at once, and pageable at a few sizes.

    Sizes asked for, such as a model's pieces, also go through every other mechanism that the GPU has, and the pieces of
    `moves` through their own: last, since these are the ones that a driver may refuse, and alone before both at once,
    so that a refusal shows where it belongs.
    """
    asked = {whole_words(size) for size in extra}
    sizes = sorted(size for size in {*GRANULES, *asked, buffer} if size <= buffer)
    together = [size for size in sizes if size >= _DUPLEX_FROM or size in asked]
    pageable = sorted({min(_DUPLEX_FROM, buffer), buffer})
    others = [name for name in mechanisms if name != "loop"]
    mine = [_available(move, buffer, mechanisms) for move in moves]
    locked = [move for move in mine if not move.pageable]
    found = (
        *(Cell(direction=way, granule=size) for size in reversed(sizes) for way in BOTH_WAYS),
        *(Cell(direction=way, granule=size, duplex=True) for size in reversed(together) for way in BOTH_WAYS),
        *(Cell(direction=way, granule=size, pinned=False) for size in reversed(pageable) for way in BOTH_WAYS),
        *(cell for move in mine if move.pageable for cell in _ways(move, pinned=False)),
        *(cell for move in locked for cell in _ways(move, plain=True)),
        *(cell for move in locked for cell in _ways(move)),
        *(
            Cell(direction=way, granule=size, mechanism=name, duplex=duplex, beside=_same(size, name, duplex))
            for duplex in (False, True)
            for name in others
            for size in sorted(asked & set(sizes))
            for way in BOTH_WAYS
        ),
        *(cell for move in locked for cell in _ways(move, duplex=True)),
    )
    return tuple(dict.fromkeys(found))


def _same(size: int, mechanism: Mechanism, duplex: bool) -> KvPieces | None:
    return KvPieces(piece_bytes=size, mechanism=mechanism) if duplex else None


def whole_words(size: int) -> int:
    """The next size that copies can be verified in."""
    return -(-size // _WORD) * _WORD


def shapes(moves: Sequence[KvMove]) -> tuple[tuple[Mechanism, int, Direction], ...]:
    """(mechanism, piece, direction) of everything that moves page-locked memory, once each."""
    found = [
        (pieces.mechanism, whole_words(pieces.piece_bytes), way)
        for move in moves
        if not move.pageable
        for way, pieces in _both(move)
    ]
    return tuple(dict.fromkeys(found))


def _both(move: KvMove) -> tuple[tuple[Direction, KvPieces], ...]:
    return (("h2d", move.load), ("d2h", move.store))


def _ways(move: KvMove, *, pinned: bool = True, plain: bool = False, duplex: bool = False) -> Iterator[Cell]:
    """A cell for loads and one for stores; `plain`: by one call a piece, in case that a driver refuses more."""
    for (way, pieces), (_, other) in zip(_both(move), reversed(_both(move)), strict=True):
        yield Cell(
            direction=way,
            granule=pieces.piece_bytes,
            pinned=pinned,
            duplex=duplex,
            mechanism="loop" if plain or not pinned else pieces.mechanism,
            beside=other if duplex else None,
        )


def _available(move: KvMove, buffer: int, mechanisms: tuple[Mechanism, ...]) -> KvMove:
    """The move in pieces that fit a buffer, by one call a piece where this host has no other mechanism."""

    def fit(pieces: KvPieces) -> KvPieces:
        size = min(whole_words(pieces.piece_bytes), buffer)
        return KvPieces(piece_bytes=size, mechanism=pieces.mechanism if pieces.mechanism in mechanisms else "loop")

    return KvMove(load=fit(move.load), store=fit(move.store), source=move.source, pageable=move.pageable)
