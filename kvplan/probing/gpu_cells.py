"""What is measured between host memory and a GPU: sizes of pieces, directions, kinds of memory, mechanisms."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.probing.mechanisms import Direction, Mechanism
from kvplan.units import KiB, MiB, show_bytes

GRANULES = (64 * KiB, 256 * KiB, 1 * MiB, 4 * MiB, 16 * MiB, 64 * MiB)
OPPOSITE = "opposite direction"
ALL_GPUS = "all GPUs"
BOTH_WAYS: tuple[Direction, ...] = ("h2d", "d2h")
# Smaller pieces are bound by submitting them one by one, whatever runs in the other direction.
_DUPLEX_FROM = 1 * MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One point of the sweep."""

    direction: Direction
    granule: int
    pinned: bool = True
    duplex: bool = False
    mechanism: Mechanism = "loop"

    @property
    def words(self) -> str:
        """The cell for a person: 'h2d 1.00 MiB beside the opposite direction'."""
        memory = "" if self.pinned else " pageable"
        memory += "" if self.mechanism == "loop" else f" by {self.mechanism}"
        return f"{self.direction} {show_bytes(self.granule)}{memory}" + (f" beside the {OPPOSITE}" * self.duplex)


def cells(extra: tuple[int, ...], buffer: int, mechanisms: tuple[Mechanism, ...] = ("loop",)) -> tuple[Cell, ...]:
    """The sweep over a buffer: page-locked at every size, both directions at once, and pageable at a few sizes.

    Sizes asked for, such as a model's pieces, also go through every other mechanism that the GPU has: last, since
    these are the ones that a driver may refuse.
    """
    asked = {-(-size // 8) * 8 for size in extra}  # whole 8-byte words, in which copies are verified
    sizes = sorted(size for size in {*GRANULES, *asked, buffer} if size <= buffer)
    together = [size for size in sizes if size >= _DUPLEX_FROM or size in asked]
    pageable = sorted({min(_DUPLEX_FROM, buffer), buffer})
    return (
        *(Cell(direction=way, granule=size) for size in reversed(sizes) for way in BOTH_WAYS),
        *(Cell(direction=way, granule=size, duplex=True) for size in reversed(together) for way in BOTH_WAYS),
        *(Cell(direction=way, granule=size, pinned=False) for size in reversed(pageable) for way in BOTH_WAYS),
        *(
            Cell(direction=way, granule=size, mechanism=mechanism)
            for mechanism in mechanisms
            if mechanism != "loop"
            for size in sorted(asked & set(sizes))
            for way in BOTH_WAYS
        ),
    )
