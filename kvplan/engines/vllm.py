"""vLLM's KV layout: pages of a block, groups of layers that share them, and what admission reserves.

One pool serves every layer: layers are put in groups of equal size, and every layer's page of one block is made the
same number of bytes. A block of the pool costs the pages of one group; a request takes blocks in every group. The
rules are vLLM 0.32's; docs/bytes.md states them and what they were checked against.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property

from kvplan.documents import BytesAt, CacheGroup, EstimateOptions, Finding, KvCost, LayerCache, Model
from kvplan.engines.layout import entry_bits, grouped, is_windowed, resolve_dtype, state_bytes, whole
from kvplan.engines.none import NoneLayout
from kvplan.errors import KvplanError

BLOCK_TOKENS = 16
SPARSE_BLOCK_TOKENS = 64  # sparse latent attention reads pages of 64 tokens
BATCHED_TOKENS = 8192
FP8_LATENT_SLOT = 656  # fp8_ds_mla: 512 B of fp8 latent, 16 B of scales, 128 B of bf16 rotary key
FP8_LATENT_WIDTHS = (576, 64)
STATE_BLOCKS = {"mamba2": 3}  # state blocks a request holds so that prefixes can be reused; other recurrences 2
MERGE_BELOW = 1.25  # kinds whose counts differ by less share the larger count, with padding slots
IGNORE_FP8 = frozenset({"falcon"})  # model code that hands no cache settings to its attention layers


@dataclass(frozen=True, slots=True)
class Pages:
    """Layers of one rank whose pages are alike: `bytes` for a block of `tokens` tokens."""

    cache: LayerCache
    layers: int
    tokens: int
    bytes: int


@dataclass(frozen=True, slots=True)
class Pool:
    """The block pool of one rank: `block_bytes` buys one block of any group; `groups` is how many groups a kind has."""

    block_bytes: int
    kinds: tuple[tuple[Pages, int], ...]


def rank_heads(heads: int, tp: int) -> int:
    """KV heads on each rank: an even share, or one copy each beyond the head count. Raises KvplanError for neither."""
    if heads % tp and tp % heads:
        raise KvplanError(f"--tp {tp} neither divides {heads} KV heads nor is a multiple of them: vLLM refuses it")
    return max(1, heads // tp)


def stages(model: Model, pp: int) -> list[Model]:
    """The layers of each pipeline stage: equal counts, a remainder going to the stages just before the last."""
    count = len(model.order)
    if pp > count:
        raise KvplanError(f"--pp {pp} for {count} layers: at most one stage a layer")
    sizes = [count // pp] * pp
    for extra in range(count % pp):
        sizes[-2 - extra] += 1
    ends = [sum(sizes[: stage + 1]) for stage in range(pp)]
    return [replace(model, order=model.order[end - size : end]) for end, size in zip(ends, sizes, strict=True)]


@dataclass(frozen=True)
class VllmLayout:
    """One model in vLLM."""

    model: Model
    options: EstimateOptions
    kv_dtype: str

    @cached_property
    def _logical(self) -> NoneLayout:
        return NoneLayout(self.model, self.options, self.kv_dtype)

    @cached_property
    def _sparse(self) -> bool:
        return any(group.cache.kind == "indexer" for group in grouped(self.model))

    @cached_property
    def stored_dtype(self) -> str:
        """The dtype as vLLM names it: sparse latent attention in fp8 has a slot format of its own."""
        return "fp8_ds_mla" if self.kv_dtype == "fp8" and self._sparse else self.kv_dtype

    @property
    def block_tokens(self) -> int:
        """Tokens of one block: as asked, raised where sparse attention or a recurrent state needs more."""
        return self._block_tokens

    @cached_property
    def _block_tokens(self) -> int:
        asked = self.options.block_tokens or BLOCK_TOKENS
        caches = [group.cache for group in grouped(self.model)]
        if self._sparse:
            step = max(SPARSE_BLOCK_TOKENS, *(cache.selects_tokens for cache in caches))
            asked = -(-asked // step) * step
        states = max((self._state_bytes(cache) for cache in caches), default=0)
        widest = max((self._slot_bytes(cache) for cache in caches if cache.k_dim), default=Fraction(0))
        if not states or not widest:
            return asked
        needed = whole(Fraction(states) / widest)
        return max(asked, -(-needed // BLOCK_TOKENS) * BLOCK_TOKENS)

    def _slot_bytes(self, cache: LayerCache) -> Fraction:
        """Bytes of one token in one layer on one rank."""
        if cache.kind == "latent" and self.stored_dtype == "fp8_ds_mla":
            return Fraction(FP8_LATENT_SLOT)
        heads = cache.heads if cache.kind in ("latent", "indexer") else rank_heads(cache.heads, self._tp)
        return Fraction(entry_bits(cache, self.kv_dtype, heads), 8)

    def _state_bytes(self, cache: LayerCache) -> int:
        return sum(state_bytes(tensor, self.model.dtype, self._tp, self.model.dtype) for tensor in cache.state)

    @property
    def _tp(self) -> int:
        return self.options.parallel.tp

    def _pages(self, stage: Model, *, hybrid: bool) -> list[Pages]:
        """The kinds of pages of one stage's rank, alike ones together, all of one size where states are among them."""
        found: dict[tuple[object, ...], Pages] = {}
        mixed = any(not is_windowed(group.cache.kind) for group in grouped(stage))
        for group in grouped(stage):
            cache = group.cache
            if is_windowed(cache.kind) and mixed and not hybrid:
                cache = replace(cache, kind="full", window_tokens=None)
            size = whole(self._slot_bytes(cache) * self.block_tokens) if cache.k_dim else self._state_bytes(cache)
            alike = (cache.kind, cache.window_tokens, size)
            before = found[alike].layers if alike in found else 0
            found[alike] = Pages(cache, before + group.layers, self.block_tokens, size)
        return list(found.values())

    def _pool(self, stage: Model, *, hybrid: bool) -> Pool:
        """How one stage's rank spends a block. Layers that all grow alike make one group, whatever their pages."""
        kinds = self._pages(stage, hybrid=hybrid)
        if not kinds:
            return Pool(0, ())
        if len({(kind.cache.kind in ("full", "latent", "indexer"), kind.cache.window_tokens) for kind in kinds}) == 1:
            return Pool(sum(kind.layers * kind.bytes for kind in kinds), ((kinds[0], 1),))
        widest = max(kind.bytes for kind in kinds)
        evened = []
        for kind in kinds:
            stretch = 1 if kind.cache.kind == "recurrent" else widest // kind.bytes
            if kind.cache.kind != "recurrent" and widest % kind.bytes:
                raise KvplanError(
                    f"vLLM's pages of {kind.bytes} B and {widest} B cannot share a pool: not laid out yet"
                )
            evened.append(replace(kind, tokens=kind.tokens * stretch, bytes=widest))
        counts = [kind.layers for kind in evened]
        size = max(counts) if max(counts) < MERGE_BELOW * min(counts) else min(counts)
        return Pool(size * widest, tuple((kind, -(-kind.layers // size)) for kind in evened))

    @cached_property
    def _pools(self) -> list[Pool]:
        return [self._pool(stage, hybrid=self.options.hybrid_manager) for stage in self._stages]

    @cached_property
    def _stages(self) -> list[Model]:
        return stages(self.model, self.options.parallel.pp)

    @cached_property
    def _in_flight(self) -> int:
        """Tokens that may be scheduled beyond those a window still needs: two steps where scheduling runs ahead."""
        batched = self.options.max_num_batched_tokens or BATCHED_TOKENS
        return batched * (2 if self.options.async_scheduling else 1)

    def _blocks(self, kind: Pages, tokens: int, *, admitted: bool) -> int:
        """Blocks that one request of `tokens` tokens takes in one group of a kind."""
        cache, window = kind.cache, kind.cache.window_tokens or tokens
        if cache.kind == "recurrent":
            return STATE_BLOCKS.get(cache.recurrence or "", 2) if admitted and self.options.prefix_caching else 1
        if cache.kind == "cross":
            steady = self._logical.encoder_tokens(cache)
            most = max(steady, self.options.max_num_batched_tokens or BATCHED_TOKENS)
            return -(-(most if admitted else steady) // kind.tokens)
        if not is_windowed(cache.kind):
            return -(-tokens // (kind.tokens * self.options.parallel.dcp))
        if not admitted:
            return -(-min(window, tokens) // kind.tokens)
        if cache.kind == "chunked":
            return -(-min(window + self._in_flight, tokens) // kind.tokens)
        return -(-min(window - 1 + self._in_flight, tokens) // kind.tokens) + 1

    def _request_blocks(self, pool: Pool, tokens: int, *, admitted: bool) -> int:
        return sum(groups * self._blocks(kind, tokens, admitted=admitted) for kind, groups in pool.kinds)

    @property
    def groups(self) -> tuple[CacheGroup, ...]:
        """Kinds of layers in bytes, whole model, one copy: what the model needs, before pages and ranks."""
        return self._logical.groups

    @cached_property
    def cost(self) -> KvCost:
        """What caching costs: the model's own need, and on the fullest rank with padding and copies."""
        growth = [Fraction() for _ in self._pools]
        settled, stored = [0 for _ in self._pools], Fraction()
        for place, pool in enumerate(self._pools):
            for kind, groups in pool.kinds:
                share = Fraction(groups * pool.block_bytes, kind.tokens * self.options.parallel.dcp)
                stored += share if kind.cache.kind != "cross" else 0
                if is_windowed(kind.cache.kind) or kind.cache.kind in ("recurrent", "cross"):
                    longest = kind.cache.window_tokens or 1
                    settled[place] += groups * pool.block_bytes * self._blocks(kind, longest, admitted=False)
                else:
                    growth[place] += share
        return replace(
            self._logical.cost,
            bytes_per_token_per_gpu=whole(max(growth)),
            bytes_per_sequence_per_gpu=max(settled),
            offload_bytes_per_token=whole(stored * self._copies),
        )

    @cached_property
    def _copies(self) -> int:
        """How often a tier stores a rank's bytes: once a rank, or once where every rank holds the same latent."""
        parallel = self.options.parallel
        latent = all(group.cache.kind in ("latent", "indexer") for group in grouped(self.model))
        return 1 if latent and parallel.pp == 1 and parallel.dcp == 1 else parallel.tp

    def bytes_at(self, tokens: int, sequences: int) -> BytesAt:
        """Bytes of `sequences` sequences of `tokens` tokens, all ranks together, in whole blocks."""
        steady, admitted, off = (
            sum(pool.block_bytes * self._request_blocks(pool, tokens, admitted=taken) for pool in pools)
            for pools, taken in ((self._pools, False), (self._pools, True), (self._off, True))
        )
        times = sequences * self._tp
        return BytesAt(
            tokens=tokens,
            sequences=sequences,
            steady_bytes=steady * times,
            admission_bytes=admitted * times,
            hybrid_off_bytes=off * times,
        )

    @cached_property
    def _off(self) -> list[Pool]:
        """The pools without the hybrid manager; a recurrent state cannot do without it."""
        if any(group.cache.kind == "recurrent" for group in grouped(self.model)):
            return self._pools
        return [self._pool(stage, hybrid=False) for stage in self._stages]

    def _num_blocks(self, kv_bytes: int) -> int:
        return min((kv_bytes // pool.block_bytes for pool in self._pools if pool.block_bytes), default=0)

    def sequences_held(self, kv_bytes: int, tokens: int) -> float:
        """Requests of `tokens` tokens admitted at once: blocks of the pool over blocks of a request."""
        need = max(self._request_blocks(pool, tokens, admitted=True) for pool in self._pools)
        return self._num_blocks(kv_bytes) / need if need else 0.0

    def tokens_held(self, kv_bytes: int, tokens: int) -> int:
        """Tokens of requests of `tokens` tokens that are admitted at once."""
        return int(self.sequences_held(kv_bytes, tokens) * tokens)

    def view(self, kv_bytes: int | None, tokens: int | None) -> Mapping[str, int | float | str | None]:
        """What the start-up lines of vLLM say."""
        found: dict[str, int | float | str | None] = {
            "block_tokens": self.block_tokens,
            "kv_cache_dtype": self.stored_dtype,
            "bytes_per_block": max(pool.block_bytes for pool in self._pools),
        }
        if kv_bytes is not None and tokens:
            found["num_blocks"] = self._num_blocks(kv_bytes)
            found["max_model_len"] = tokens
            found["kv_cache_size_tokens"] = self.tokens_held(kv_bytes, tokens)
            found["max_concurrency"] = self.sequences_held(kv_bytes, tokens)
        return found

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Blocks larger than asked for, heads that are copied, dtypes that are not obeyed."""
        found = [finding for finding in self._logical.findings if finding.code != "state-dtype"]
        asked = self.options.block_tokens or BLOCK_TOKENS
        if self.block_tokens != asked:
            text = f"blocks are {self.block_tokens} tokens, not {asked}: prompts shorter than that are never reused"
            found.append(Finding(severity="warning", code="block-raised", text=text))
        heads = [
            group.cache.heads for group in grouped(self.model) if group.cache.kind in ("full", "sliding", "chunked")
        ]
        if heads and self._tp > min(heads):
            text = f"--tp {self._tp} exceeds {min(heads)} KV heads: each is stored {self._tp // min(heads)} times"
            found.append(Finding(severity="info", code="heads-copied", text=text))
        return tuple(found)


@dataclass(frozen=True)
class VllmEngine:
    """vLLM."""

    name: str = "vllm"

    def lay_out(self, model: Model, options: EstimateOptions) -> VllmLayout:
        """vLLM's layout. Raises KvplanError for what vLLM refuses, and for caches whose layout is not known here."""
        kinds = {group.cache.kind for group in grouped(model)}
        if any(group.cache.tokens_per_entry > 1 for group in grouped(model)):
            kind = model.ref.model_type
            raise KvplanError(f"vLLM's layout of the compressed cache of {kind} is not known here: use --engine none")
        if "recurrent" in kinds and not options.hybrid_manager:
            raise KvplanError("vLLM needs its hybrid KV cache manager for recurrent layers: leave it on")
        parallel = options.parallel
        if parallel.dcp > 1:
            if parallel.tp % parallel.dcp:
                raise KvplanError(f"--dcp {parallel.dcp} does not divide --tp {parallel.tp}")
            if kinds - {"full", "latent", "indexer"}:
                raise KvplanError("--dcp works on full and latent attention only, this model has other layers too")
        dtype = resolve_dtype(model, options)
        if dtype == "fp8" and model.ref.model_type in IGNORE_FP8:
            dtype = model.dtype
        return VllmLayout(model, options, dtype)


ENGINE = VllmEngine()
