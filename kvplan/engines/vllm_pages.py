"""vLLM's pages and pools: what one block of one layer takes, and which layers share a block table.

Layers whose pages are alike make a kind. One pool of blocks serves every kind: kinds are cut into groups, a block is
as wide as the widest group, and a request takes blocks in every group. The rules are those of vLLM 0.32.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from kvplan.documents import LayerCache, LayerKind, Recurrence
from kvplan.engines.layout import is_windowed, whole
from kvplan.engines.slots import COMPRESSED_SLOT, INDEX_SCALE_GROUP
from kvplan.errors import KvplanError

MERGE_BELOW = 1.5  # kinds whose counts differ by less share the larger count, with padding slots
GROWING = ("full", "latent", "indexer")

# DeepSeek-V4: every page is padded to the stride of the decode kernel; windows and compressor states have blocks of
# their own, so that a state page takes about as much as a page of latents.
ALIGNMENT = 576
COMPRESSED_BLOCK = 256
WINDOW_BLOCK = 64
OVERLAPPING = 4  # the ratio whose groups overlap: their state spans two groups and is twice as wide
STATE_BLOCKS = {OVERLAPPING: 4, 128: 8}
STATE_ELEMENT_BYTES = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class Pages:
    """Layers of one rank whose pages are alike: `bytes` for a block of `tokens` tokens."""

    kind: LayerKind
    layers: int
    tokens: int
    bytes: int
    window: int | None = None
    recurrence: Recurrence | None = None
    positions: int | None = None

    @property
    def alike(self) -> tuple[object, ...]:
        """What layers of one kind have in common."""
        return (self.kind, self.window, self.tokens, self.bytes, self.recurrence, self.positions)


@dataclass(frozen=True, slots=True)
class Pool:
    """The block pool of one rank: `block_bytes` buys one block of any group; each kind is cut into some groups."""

    block_bytes: int
    kinds: tuple[tuple[Pages, int], ...]


def merged(pages: Sequence[Pages]) -> list[Pages]:
    """Alike pages as one kind, in the order first met."""
    found: dict[tuple[object, ...], Pages] = {}
    for page in pages:
        before = found.get(page.alike)
        found[page.alike] = page if before is None else replace(page, layers=before.layers + page.layers)
    return list(found.values())


def compressed_pages(cache: LayerCache, layers: int, block: int) -> list[Pages]:
    """Pages of one kind of DeepSeek-V4 cache: a window, or compressed entries with the compressor's own state."""
    if is_windowed(cache.kind):
        size = _aligned(WINDOW_BLOCK * COMPRESSED_SLOT)
        return [Pages(kind="sliding", layers=layers, tokens=WINDOW_BLOCK, bytes=size, window=cache.window_tokens)]
    ratio = cache.tokens_per_entry
    if ratio not in STATE_BLOCKS:
        raise KvplanError(f"vLLM compresses {' or '.join(map(str, STATE_BLOCKS))} tokens into one entry, not {ratio}")
    slot = cache.k_dim + 4 * -(-cache.k_dim // INDEX_SCALE_GROUP) if cache.kind == "indexer" else COMPRESSED_SLOT
    spans = 2 if ratio == OVERLAPPING else 1
    tokens = STATE_BLOCKS[ratio]
    state = _aligned(tokens * 2 * spans * cache.k_dim * STATE_ELEMENT_BYTES)
    return [
        Pages(kind=cache.kind, layers=layers, tokens=block, bytes=_aligned(block // ratio * slot)),
        Pages(kind="sliding", layers=layers, tokens=tokens, bytes=state, window=spans * ratio),
    ]


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT


def uniform(kinds: Sequence[Pages]) -> bool:
    """Whether all layers always need the same number of blocks, and so can share one block table."""
    if len({kind.tokens for kind in kinds}) > 1:
        return False
    if all(kind.kind in GROWING for kind in kinds):
        return True
    first = kinds[0]
    return all((kind.kind, kind.window) == (first.kind, first.window) for kind in kinds) and (
        first.kind != "recurrent" or len(kinds) == 1
    )


def packed_pool(kinds: Sequence[Pages]) -> Pool:
    """The pool where pages of any size lie side by side in a block (DeepSeek-V4).

    Kinds that need the same blocks share a table. Tables that mix page sizes stay whole; the others are split evenly
    so that all cover about as many layers, which keeps the widest from setting the size of every block.
    """
    tables: list[list[Pages]] = []
    for kind in kinds:
        home = next((table for table in tables if uniform([*table, kind])), None)
        if home is None:
            tables.append([kind])
        else:
            home.append(kind)
    balanced = [table for table in tables if len({kind.layers for kind in table}) == 1]
    floor = max((table[0].layers for table in balanced if len(table) > 1), default=0)
    repeats = _least_padding([table[0].layers for table in balanced], floor) if floor else 0
    groups, widest = [], 0
    for table in tables:
        count = -(-table[0].layers // repeats) if repeats and table in balanced else 1
        widest = max(widest, sum(-(-kind.layers // count) * kind.bytes for kind in table))
        groups.append((table[0], count))
    return Pool(widest, tuple(groups))


def _least_padding(counts: Sequence[int], least: int) -> int:
    """The group size of at least `least` to which `counts` round up with the least padding; the larger of equals."""
    sizes = range(least, max(counts) + 1)
    return min(reversed(sizes), key=lambda size: sum(-count % size for count in counts))


def pool(kinds: Sequence[Pages]) -> Pool:
    """The pool where every layer's page of a block is made the same number of bytes.

    Raises KvplanError where vLLM cannot: pages of a latent cannot be padded.
    """
    if not kinds:
        return Pool(0, ())
    if uniform(kinds):
        return Pool(sum(kind.layers * kind.bytes for kind in kinds), ((kinds[0], 1),))
    evened = [_stretched(kind, max(other.bytes for other in kinds)) for kind in kinds]
    counts = [kind.layers for kind in evened]
    size = max(counts) if max(counts) < MERGE_BELOW * min(counts) else min(counts)
    return Pool(size * evened[0].bytes, tuple((kind, -(-kind.layers // size)) for kind in evened))


def paddable(kinds: Sequence[Pages]) -> bool:
    """Whether every page can be brought to the size of the widest."""
    widest = max((kind.bytes for kind in kinds), default=0)
    return all(kind.kind not in ("latent", "indexer") or widest % kind.bytes == 0 for kind in kinds)


def _stretched(kind: Pages, widest: int) -> Pages:
    """The kind with pages of `widest` bytes: a longer block where that comes out even, else padding."""
    if kind.kind != "recurrent" and widest % kind.bytes == 0:
        return replace(kind, tokens=kind.tokens * (widest // kind.bytes), bytes=widest)
    if kind.kind in ("latent", "indexer"):
        raise KvplanError(f"vLLM cannot pad pages of a latent: {kind.bytes} B do not divide {widest} B")
    return replace(kind, bytes=widest)


def hybrid_block(state_bytes: int, token_bytes: Fraction, asked: int, latent: bool) -> int:
    """Tokens of a block whose attention page holds the state of one recurrent layer.

    A multiple of the block asked for and of the kernels' own 16, or 128 where attention is latent.
    """
    step = max(16, asked, 128 if latent else 0)
    needed = whole(Fraction(state_bytes) / (step * token_bytes)) * step
    return max(asked, needed)


def stretched_block(plain_bytes: Fraction, packed_bytes: Fraction, asked: int) -> int:
    """Tokens of a block where some layers stay unquantised: a packed page covers 16 tokens of theirs."""
    step = max(16, asked)
    return step * whole(16 * plain_bytes / (step * packed_bytes))
