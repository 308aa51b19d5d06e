"""What is measured on a drive: the sweep over sizes and depths, shapes of serving engines, and rows to compare with.

One table of cells; how each is run is told by its fields. Facts of the engines' shapes are dated: vLLM 0.32,
LMCache 0.5.6 (November 2026).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Literal

from kvplan.documents import KvBlock
from kvplan.probing.block_files import MOST_FILES
from kvplan.probing.pattern import PAGE
from kvplan.probing.queued_io import QUEUES
from kvplan.units import KiB, MiB, show_bytes

GRANULES = (128 * KiB, 1 * MiB, 2 * MiB, 4 * MiB)
DEPTHS = (1, 8, 32)
_AGAIN = (1 * MiB, 8)  # the shape that is read early and late
COMPARISON = "comparison"
# Without a model: a block of 16 tokens of a 32-layer GQA model with 8 KV heads of 128 in bfloat16.
TYPICAL = KvBlock(
    block_bytes=2 * MiB, pieces=32, chunk_bytes=32 * MiB, source="16 tokens of a 32-layer model, 64 KiB a layer"
)
# A cell needs at least two rounds of its threads to say anything about a rate.
_ROUNDS = 2
_ENOUGH = 16  # times its weight: more bytes than that tell no more of a cell
_MOST_PIECES = 1024  # IOV_MAX


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One point. `limit_bytes` bounds what it may write; a share of the write budget proportional to `weight`.

    `both` reads and writes at the same time, `depth` transfers in flight each way. `pieces` buffers make up a block,
    moved by one call, or one call each if `separate`. `files` keeps every block in a file of its own. `queue` moves
    them over one of the kernel's queues instead of threads. `sync` follows each write by fdatasync. `sustained` writes
    in order until the rate holds. `again` repeats an earlier cell. `preset` is the engine whose shape it is.
    """

    direction: Literal["read", "write", "mixed", "both"]
    granule: int
    depth: int
    weight: int = 0
    limit_bytes: int | None = None
    pieces: int = 1
    separate: bool = False
    sync: bool = False
    files: bool = False
    sustained: bool = False
    again: bool = False
    queue: str | None = None
    preset: str | None = None

    @property
    def writes(self) -> bool:
        """Whether it writes anything."""
        return self.direction != "read"

    @property
    def comparison(self) -> bool:
        """Whether it stands beside the figures to plan with, and is none of them."""
        return self.separate or self.sync or self.again or self.queue is not None

    @property
    def file_count(self) -> int:
        """Files it needs, half to read and half to write, each half at least as many as are in flight."""
        if not self.files:
            return 0
        wanted = (self.limit_bytes or 0) // 2 // self.granule
        return max(2 * self.depth, min(MOST_FILES, wanted))

    @property
    def enough(self) -> bool:
        """Whether its share of the write budget lets it say something."""
        if self.limit_bytes is None:
            return True
        return self.limit_bytes >= (self.file_count + _ROUNDS * self.depth) * self.granule

    @property
    def blocks(self) -> int:
        """Blocks of the scratch file that it needs."""
        if self.files:
            return 0
        return self.depth * (2 if self.direction in ("mixed", "both") or self.again else 1)

    def __str__(self) -> str:
        way = "read beside write" if self.direction == "both" else self.direction
        name = f"{way} {show_bytes(self.granule)} x {self.depth}"
        marks = [
            self.preset,
            f"{self.pieces} pieces" if self.pieces > 1 else None,
            "separate calls" if self.separate else None,
            "fdatasync" if self.sync else None,
            self.queue,
            "again" if self.again else None,
        ]
        return " ".join([name, *(f"({mark})" for mark in marks if mark)])


def sweep(sizes: Iterable[int], direction: Literal["read", "write"]) -> list[Cell]:
    """Every size at every depth; large and deep writes need more bytes to reach their rate."""
    return [
        Cell(
            direction=direction,
            granule=size,
            depth=depth,
            weight=max(size * depth, 16 * MiB) if direction == "write" else 0,
        )
        for size in sizes
        for depth in DEPTHS
    ]


def engine_cells(kv: KvBlock) -> list[Cell]:
    """Shapes of serving engines' disk tiers, loads and stores at the same time."""
    block, pieces = whole_pages(kv)
    chunk = -(-kv.chunk_bytes // PAGE) * PAGE
    vector = Cell(direction="read", granule=block, depth=1, pieces=pieces, preset="vllm-disk")
    return [
        vector,
        replace(vector, separate=True, preset=None),
        replace(vector, direction="both", weight=24 * MiB),
        Cell(direction="both", granule=block, depth=16, files=True, preset="vllm-fs", weight=max(48 * MiB, 24 * block)),
        Cell(direction="both", granule=chunk, depth=1, files=True, preset="lmcache", weight=max(48 * MiB, 2 * chunk)),
    ]


def whole_pages(kv: KvBlock) -> tuple[int, int]:
    """(bytes, pieces) of a block whose pieces are padded to whole pages, as direct I/O wants them."""
    pieces = min(kv.pieces, _MOST_PIECES)
    return -(-kv.block_bytes // pieces // PAGE) * PAGE * pieces, pieces


def other_cells() -> list[Cell]:
    """Reads and writes that meet on the drive, and the same transfers by other means."""
    duplex = Cell(direction="both", granule=1 * MiB, depth=4, weight=24 * MiB)
    queued = [
        Cell(direction=direction, granule=1 * MiB, depth=16, queue=queue, weight=8 * MiB if direction == "write" else 0)
        for direction in ("read", "write")
        for queue in QUEUES
    ]
    return [
        duplex,
        replace(duplex, direction="mixed", weight=12 * MiB),
        *queued,
        Cell(direction="write", granule=1 * MiB, depth=1, sync=True, weight=8 * MiB),
    ]


def all_cells(sizes: tuple[int, ...], kv: KvBlock | None, sweep_only: bool) -> list[Cell]:
    """Every cell in the order run: what needs the file as first written goes before what overwrites it."""
    reads, writes = sweep(sizes, "read"), sweep(sizes, "write")
    if sweep_only:
        return [*reads, *writes]
    others = [*engine_cells(kv or TYPICAL), *other_cells()]
    pure = [cell for cell in others if not cell.writes]
    meeting = [cell for cell in others if cell.direction in ("both", "mixed")]
    overwriting = [cell for cell in others if cell.direction == "write"]
    again = replace(next(cell for cell in reads if (cell.granule, cell.depth) == _AGAIN), again=True)
    sustained = Cell(direction="write", granule=4 * MiB, depth=4, sustained=True, preset="sustained", weight=96 * MiB)
    return [*reads, *pure, *meeting, again, *writes, *overwriting, sustained]


def within(cells: list[Cell], seconds: float, cost: Callable[[Cell], float]) -> list[Cell]:
    """The cells that fit into so many seconds, in their order; those that are only compared with go first."""
    kept = set[int]()
    for place in sorted(range(len(cells)), key=lambda place: (_rank(cells[place]), place)):
        seconds -= cost(cells[place])
        if seconds < 0:
            break
        kept.add(place)
    return [cell for place, cell in enumerate(cells) if place in kept]


def _rank(cell: Cell) -> int:
    """0 for what a plan cannot do without, 4 for what it never reads."""
    if cell.comparison:
        return 4
    if cell.sustained or cell.direction == "mixed":
        return 3
    if cell.direction == "both" or cell.preset:
        return 1 if cell.preset else 3
    return 0 if cell.depth not in (DEPTHS[0], DEPTHS[-1]) else 2


def share_out(cells: list[Cell], budget: int) -> list[Cell]:
    """The cells with the write budget shared out among those that write.

    A long write, where there is one, gets what the others have no use for: it is the one that goes beyond fast caches.
    """
    total = sum(cell.weight for cell in cells)
    long = any(cell.sustained for cell in cells)
    shares = {
        cell: min(budget * cell.weight // total, _ENOUGH * cell.weight) if long else budget * cell.weight // total
        for cell in cells
        if cell.writes and not cell.sustained
    }
    left = budget - sum(shares.values())
    return [replace(cell, limit_bytes=shares.get(cell, left)) if cell.writes else cell for cell in cells]
