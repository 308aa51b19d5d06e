"""The pieces in which engines move an estimate's cache over the host link: what a plan looks for in a probe."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan.documents import Estimate, KvMove, KvPieces
from kvplan.engines.profiles import Move, Profile, layers_of, profile
from kvplan.probing.kv_block import bytes_per_token

# Of sequences, whose length only a log tells: lengths a factor of four apart, so that one is near any.
_SEQUENCES = tuple(4**n for n in range(3, 9))


def kv_moves(estimate: Estimate) -> tuple[KvMove, ...]:
    """The pieces of the estimate's engine and of each offload layer in it; of every engine where it has none.

    Nothing for an engine without planning rules. Raises KvplanError where the model keeps nothing per token.
    """
    found: dict[tuple[KvPieces, KvPieces, bool], list[str]] = {}
    for engine, offload in layers_of(estimate.engine):
        name = engine if offload == "native" else f"{engine} with {offload}"
        for load, store, pageable in _of(estimate, profile(engine, offload)):
            names = found.setdefault((load, store, pageable), [])
            if name not in names:
                names.append(name)
    return tuple(
        KvMove(load=load, store=store, pageable=pageable, source=", ".join(names))
        for (load, store, pageable), names in found.items()
    )


def _of(estimate: Estimate, rules: Profile) -> Iterator[tuple[KvPieces, KvPieces, bool]]:
    """Loads and stores of one engine: one pair, or one for each length where its pieces grow with sequences."""
    per_token = bytes_per_token(estimate)
    spans = (rules.load.span, rules.store.span)
    for length in _SEQUENCES if "sequence" in spans else _SEQUENCES[:1]:
        load, store = (_pieces(move, estimate, rules, per_token, length) for move in (rules.load, rules.store))
        yield load, store, rules.load.pageable or rules.store.pageable


def _pieces(move: Move, estimate: Estimate, rules: Profile, per_token: int, sequence: int) -> KvPieces:
    block = rules.block_tokens if estimate.engine == "none" else max(1, estimate.block_tokens)
    spans = {"token": 1, "block": block, "chunk": rules.tier_chunk_tokens or block, "sequence": sequence}
    piece = move.piece_bytes(estimate, per_token, spans[move.span])
    return KvPieces(piece_bytes=piece, mechanism=move.by(piece))
