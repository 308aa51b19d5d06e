"""The pieces in which serving engines move a model's KV cache: one layer's share of one block, whole or keys alone."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.documents import LayerCache, Model

BLOCK_TOKENS = 16
_BYTES = {"bf16": 2, "fp16": 2, "fp32": 4, "fp8": 1, "int8": 1}
_PAGED = ("full", "sliding", "chunked", "latent", "indexer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fragment:
    """One size of piece: `bytes` of it lie together, and a block of the whole model has `pieces` of them."""

    bytes: int
    pieces: int
    what: str


def fragments(model: Model, *, block_tokens: int = BLOCK_TOKENS, tp: int = 1) -> tuple[Fragment, ...]:
    """The pieces of one block of `block_tokens` tokens on one of `tp` ranks, smallest first.

    Keys and values of a layer lie apart in most layouts of engines (two pieces a layer), latents and indexer keys do
    not.
    """
    element = _BYTES.get(model.kv_dtype or model.dtype, 2)
    found: dict[tuple[int, str], int] = {}
    for layer, times in model.counted():
        for cache in layer.caches:
            if cache.kind in _PAGED:
                key = (_piece(cache, block_tokens, tp, element), _what(cache))
                found[key] = found.get(key, 0) + times * (2 if cache.v_dim else 1)
    return tuple(Fragment(bytes=size, pieces=n, what=what) for (size, what), n in sorted(found.items()) if size)


def _piece(cache: LayerCache, block_tokens: int, tp: int, element: int) -> int:
    entries = -(-block_tokens // max(1, cache.tokens_per_entry))
    if cache.slot_bytes is not None:
        return entries * cache.slot_bytes
    heads = max(1, cache.heads // tp) if cache.v_dim else 1
    return entries * heads * cache.k_dim * element


def _what(cache: LayerCache) -> str:
    return "keys or values of one layer" if cache.v_dim else f"{cache.kind} cache of one layer"
