"""How a model's cache comes to a disk, from its estimate: what the engines' cells of a drive's probe move."""

from __future__ import annotations

from kvplan.documents import Estimate, KvBlock
from kvplan.errors import KvplanError

_CHUNK_TOKENS = 256  # what LMCache keeps in a file


def kv_block(estimate: Estimate) -> KvBlock:
    """One rank's block and chunk: as many pieces as the rank has layers that keep something of every token.

    Raises KvplanError where the model keeps nothing per token.
    """
    kv, parallel = estimate.kv, estimate.parallel
    per_token = max(kv.bytes_per_token_per_gpu, -(-kv.offload_bytes_per_token // max(1, parallel.gpus)))
    layers = sum(group.layers for group in estimate.groups if group.bytes_per_token)
    if not per_token or not layers:
        raise KvplanError(f"{estimate.model.id} keeps nothing per token: it has no block to measure")
    tokens = max(1, estimate.block_tokens)
    pieces = -(-layers // max(1, parallel.pp))
    return KvBlock(
        block_bytes=tokens * per_token,
        pieces=pieces,
        chunk_bytes=_CHUNK_TOKENS * per_token,
        source=f"{tokens} tokens of {estimate.model.id}, {pieces} layers, one of {parallel.gpus} ranks",
    )
