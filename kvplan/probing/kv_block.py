"""How a model's cache comes to a disk, from its estimate: what the engines' cells of a drive's probe move."""

from __future__ import annotations

from kvplan.documents import Estimate, KvBlock
from kvplan.errors import KvplanError

_CHUNK_TOKENS = 256  # what LMCache keeps in a file


def kv_block(estimate: Estimate) -> KvBlock:
    """One rank's block and chunk: as many pieces as the rank has layers that keep something of every token.

    Raises KvplanError where the model keeps nothing per token.
    """
    parallel, per_token = estimate.parallel, bytes_per_token(estimate)
    layers = sum(group.layers for group in estimate.groups if group.bytes_per_token)
    tokens = max(1, estimate.block_tokens)
    pieces = -(-layers // max(1, parallel.pp))
    return KvBlock(
        block_bytes=tokens * per_token,
        pieces=pieces,
        chunk_bytes=_CHUNK_TOKENS * per_token,
        source=f"{tokens} tokens of {estimate.model.id}, {pieces} layers, one of {parallel.gpus} ranks",
    )


def bytes_per_token(estimate: Estimate) -> int:
    """Bytes of a token on the fullest rank: what it keeps, or its share of what a tier would store.

    Raises KvplanError where the model keeps nothing per token.
    """
    kv = estimate.kv
    found = max(kv.bytes_per_token_per_gpu, -(-kv.offload_bytes_per_token // max(1, estimate.parallel.gpus)))
    if not found or not any(group.bytes_per_token and group.layers for group in estimate.groups):
        raise KvplanError(f"{estimate.model.id} keeps nothing per token: it has no block to measure")
    return found
