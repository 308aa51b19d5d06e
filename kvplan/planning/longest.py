"""One sequence of the whole context beside the KV cache: an engine that cannot hold it does not start, or cuts."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from kvplan.documents import Finding, Limit
from kvplan.engines.layout import TOO_SHORT
from kvplan.planning.budgets import GpuRoom
from kvplan.planning.facts import Facts
from kvplan.units import show_bytes

NAME = "longest sequence"


@dataclass(frozen=True, slots=True)
class Longest:
    """One sequence of `tokens`, the most that the engine is told to take: bytes on one GPU, and what holds them there.

    `fits` tokens, in whole blocks, are the most that would go in.
    """

    tokens: int
    needed: int
    cache: int
    fits: int


def longest(facts: Facts, room: GpuRoom) -> Longest | None:
    """None where no context is known, or the engine does not ask that one such sequence fits."""
    estimate = facts.estimate
    kv, tokens = estimate.kv, estimate.max_model_len or estimate.model.max_context_tokens
    each, own = kv.bytes_per_token_per_gpu, kv.bytes_per_sequence_per_gpu
    if tokens is None or facts.profile.name not in TOO_SHORT or not each:
        return None
    block = facts.chunk_tokens
    fits = max(0, room.cache - own) // each // block * block
    return Longest(tokens=tokens, needed=own + tokens * each, cache=room.cache, fits=fits)


def longest_limit(facts: Facts, room: GpuRoom) -> Iterator[Limit]:
    """The bound that what a GPU has left for KV cache sets to one sequence."""
    one = longest(facts, room)
    if one is None:
        return
    held = one.needed <= one.cache
    yield Limit(
        name=NAME,
        limit=float(one.cache),
        needed=float(one.needed),
        unit="bytes",
        ok=held,
        why=(
            f"one sequence of {one.tokens:,} tokens, in what a GPU has left for KV cache"
            f"{'' if held else TOO_SHORT[facts.profile.name]}"
        ),
        provenance=facts.gpu_total.provenance,
    )


def longest_finding(facts: Facts, room: GpuRoom) -> Iterator[Finding]:
    """What to do where one sequence of the whole context does not fit."""
    one = longest(facts, room)
    if one is None or one.needed <= one.cache:
        return
    text = (
        f"one sequence of {one.tokens:,} tokens needs {show_bytes(one.needed)} of KV cache on a GPU, and "
        f"{show_bytes(one.cache)} are left{TOO_SHORT[facts.profile.name]}. Make the estimate with "
        f"--max-model-len, at most {one.fits:,}, or more GPUs"
    )
    yield Finding(severity="error", code="context-does-not-fit", text=text)
