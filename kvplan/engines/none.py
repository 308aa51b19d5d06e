"""No engine: what a model must keep, with full windows, no blocks, no padding and no copies."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from kvplan.documents import BytesAt, CacheGroup, EstimateOptions, Finding, KvCost, LayerCache, Model
from kvplan.engines.layout import (
    Group,
    bytes_per_token,
    describe,
    grouped,
    is_windowed,
    resolve_dtype,
    state_bytes,
    whole,
)
from kvplan.errors import KvplanError


@dataclass(frozen=True)
class NoneLayout:
    """The logical need of a model."""

    model: Model
    options: EstimateOptions
    kv_dtype: str
    block_tokens: int = 1

    @cached_property
    def _groups(self) -> tuple[Group, ...]:
        return grouped(self.model)

    def _growth(self, group: Group) -> Fraction:
        return group.layers * bytes_per_token(group.cache, self.kv_dtype)

    def _fixed(self, group: Group) -> int:
        """State, a prefix, and what the encoder left, of one sequence whatever its length."""
        kept = group.layers * sum(state_bytes(tensor, self.model.dtype) for tensor in group.cache.state)
        entries = self.encoder_tokens(group.cache) if group.cache.kind == "cross" else group.cache.prefix_tokens
        return kept + int(self._growth(group) * entries)

    def encoder_tokens(self, cache: LayerCache) -> int:
        """Positions that cross attention holds: what the model pads to, or what the user states."""
        given, limit = self.options.encoder_tokens, cache.fixed_tokens
        if given is None:
            return limit or 0
        return given if limit is None else min(given, limit)

    def _held(self, group: Group, tokens: int, *, capped: bool = True) -> Fraction:
        """Bytes of one sequence in one group."""
        cache = group.cache
        if cache.kind == "cross":
            return Fraction(self._fixed(group))
        limit = cache.window_tokens if capped and cache.window_tokens is not None else tokens
        entries = min(tokens, limit) // cache.tokens_per_entry
        return self._growth(group) * cache.tokens_per_entry * entries + self._fixed(group)

    @cached_property
    def groups(self) -> tuple[CacheGroup, ...]:
        """Kinds of layers in bytes, whole model, one copy."""
        return tuple(
            CacheGroup(
                kind="draft" if group.cache.draft else group.cache.kind,
                layers=group.layers,
                bytes_per_token=0 if group.cache.kind == "cross" else whole(self._growth(group)),
                bytes_per_sequence=self._settled(group),
                window_tokens=group.cache.window_tokens,
                arithmetic=describe(group, self.kv_dtype),
                keys=group.cache.keys,
            )
            for group in self._groups
        )

    def _settled(self, group: Group) -> int:
        """What one long sequence holds in a group that does not grow any more."""
        window = group.cache.window_tokens
        return whole(self._held(group, window) if window is not None else Fraction(self._fixed(group)))

    @cached_property
    def cost(self) -> KvCost:
        """What caching costs; an even share is all that can be said per GPU without an engine."""
        growing = [group for group in self._groups if not is_windowed(group.cache.kind) and group.cache.kind != "cross"]
        token = whole(sum((self._growth(group) for group in growing), Fraction()))
        sequence = sum(self._settled(group) for group in self._groups)
        stored = sum((self._growth(group) for group in self._groups if group.cache.kind != "cross"), Fraction())
        gpus = self.options.parallel.gpus
        return KvCost(
            bytes_per_token=token,
            bytes_per_sequence=sequence,
            bytes_per_token_per_gpu=-(-token // gpus),
            bytes_per_sequence_per_gpu=-(-sequence // gpus),
            offload_bytes_per_token=whole(stored),
        )

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Where the model leaves two honest answers."""
        found = []
        if not self._groups:
            text = "no layer of this model keeps a cache of its own"
            found.append(Finding(severity="warning", code="no-cache", text=text))
        states = [tensor for group in self._groups for tensor in group.cache.state if tensor.role == "state"]
        if any(tensor.dtype is None for tensor in states):
            text = "the config states no dtype for the recurrent state: counted in fp32, as reference code keeps it"
            found.append(Finding(severity="info", code="state-dtype", text=text))
        crosses = [group for group in self._groups if group.cache.kind == "cross" and not group.cache.fixed_tokens]
        if crosses and self.options.encoder_tokens is None:
            each = whole(sum((self._growth(group) for group in crosses), Fraction()))
            text = (
                f"cross attention holds {each:,} B per encoder token, and the config sets no encoder length: left out"
            )
            found.append(Finding(severity="warning", code="encoder-length", text=text))
        return tuple(found)

    def bytes_at(self, tokens: int, sequences: int) -> BytesAt:
        """Bytes of `sequences` sequences; without an engine nothing is reserved, so admission equals steady use."""
        steady = whole(sum((self._held(group, tokens) for group in self._groups), Fraction()))
        full = whole(sum((self._held(group, tokens, capped=False) for group in self._groups), Fraction()))
        return BytesAt(
            tokens=tokens,
            sequences=sequences,
            steady_bytes=steady * sequences,
            admission_bytes=steady * sequences,
            hybrid_off_bytes=full * sequences,
        )

    def sequences_held(self, kv_bytes: int, tokens: int) -> float:
        """Sequences of `tokens` tokens in `kv_bytes` a GPU."""
        need = self.bytes_at(tokens, 1).steady_bytes
        return kv_bytes * self.options.parallel.gpus / need if need else 0.0

    def tokens_held(self, kv_bytes: int, tokens: int) -> int:
        """Tokens in `kv_bytes` a GPU, in sequences of `tokens` tokens."""
        return int(self.sequences_held(kv_bytes, tokens) * tokens)

    def view(self, kv_bytes: int | None, tokens: int | None) -> Mapping[str, int | float | str | None]:
        """There is no engine to print anything."""
        return {}


@dataclass(frozen=True)
class NoneEngine:
    """The logical need."""

    name: str = "none"

    def lay_out(self, model: Model, options: EstimateOptions) -> NoneLayout:
        """The logical need of a model in the KV dtype asked for."""
        if options.block_tokens not in (None, 1):
            raise KvplanError("--block-tokens needs an engine: without one there are no blocks")
        return NoneLayout(model, options, resolve_dtype(model, options))


ENGINE = NoneEngine()
