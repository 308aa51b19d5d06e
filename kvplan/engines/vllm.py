"""vLLM's KV layout: pages of a block, groups of layers that share them, and what admission reserves.

One pool serves every layer: layers are put in groups of equal size, and every layer's page of one block is made the
same number of bytes. A block of the pool costs the pages of one group; a request takes blocks in every group. The
rules are vLLM 0.32's; docs/engines.md states them and what they were checked against.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from msgspec.structs import replace

from kvplan.documents import (
    BytesAt,
    CacheGroup,
    EngineValue,
    EstimateOptions,
    Finding,
    KvCost,
    LayerCache,
    Model,
    PageKind,
)
from kvplan.engines.layout import entry_bytes, grouped, is_windowed, resolve_dtype, stages, state_bytes, whole
from kvplan.engines.none import NoneLayout
from kvplan.engines.paged import check_heads, rank_heads
from kvplan.engines.slots import FORMATS, LATENT_SLOTS
from kvplan.engines.vllm_pages import (
    COMPRESSED_BLOCK,
    GROWING,
    Pages,
    Pool,
    compressed_pages,
    hybrid_block,
    merged,
    packed_pool,
    paddable,
    pool,
    stretched_block,
)
from kvplan.errors import KvplanError

VERSION = "0.32"
BLOCK_TOKENS = 16
SPARSE_BLOCK_TOKENS = 64  # sparse latent attention reads pages of 64 tokens
BATCHED_TOKENS = 8192
STATE_BLOCKS = {"mamba2": 3}  # state blocks a request holds so that prefixes can be reused; other recurrences 2
IGNORE_FP8 = frozenset({"falcon"})  # model code that hands no cache settings to its attention layers
PLAIN = ("bf16", "fp16", "fp32")
# Model types whose plans were held against vLLM's own; plain full attention needs no such proof.
CHECKED = frozenset(
    {"deepseek_v3", "deepseek_v32", "deepseek_v4", "falcon", "gemma2", "gemma3_text", "gemma3n_text", "gemma4_text"}
    | {"glm_moe_dsa", "gpt_oss", "jamba", "kimi_k2", "llama4_text", "minimax_m3_vl_text", "mistral", "mixtral"}
    | {"nemotron_h", "phi3", "qwen3_5_moe_text", "qwen3_5_text", "qwen3_next", "whisper"}
)
BOUNDARY_LAYERS = 4  # TurboQuant leaves the first two and the last two layers of a plain model unquantised


def stored_as(model: Model, dtype: str) -> str:
    """The dtype as vLLM stores it: sparse and compressed latents in 8 bits have slot formats of their own."""
    caches = [group.cache for group in grouped(model)]
    if any(cache.tokens_per_entry > 1 for cache in caches):
        if dtype not in (*PLAIN, "fp8", "fp8_ds_mla"):
            raise KvplanError(f"vLLM stores {model.ref.model_type} in fp8_ds_mla, not {dtype}")
        return "fp8_ds_mla"
    sparse = any(cache.kind == "indexer" for cache in caches) and any(cache.kind == "latent" for cache in caches)
    if dtype in LATENT_SLOTS and not sparse:
        raise KvplanError(f"KV dtype {dtype} is a slot of sparse latent attention, which this model does not use")
    if sparse:
        return dtype if dtype in (*PLAIN, *LATENT_SLOTS) else "fp8_ds_mla"
    if dtype.startswith(("turboquant", "nvfp4")) and any(cache.kind in ("latent", "indexer") for cache in caches):
        raise KvplanError(f"KV dtype {dtype} has no slot for a latent (known: {', '.join(LATENT_SLOTS)})")
    if dtype.startswith("turboquant") and any(is_windowed(cache.kind) for cache in caches):
        raise KvplanError(f"KV dtype {dtype} is laid out here for full attention only, this model has windows")
    return dtype


@dataclass(frozen=True)
class VllmLayout:
    """One model in vLLM; `kv_dtype` is as asked or resolved, `stored_dtype` as vLLM stores it."""

    model: Model
    options: EstimateOptions
    kv_dtype: str
    stored_dtype: str

    @cached_property
    def _logical(self) -> NoneLayout:
        return NoneLayout(self.model, self.options, self.stored_dtype)

    @cached_property
    def _caches(self) -> list[LayerCache]:
        return [group.cache for group in grouped(self.model)]

    @cached_property
    def _compressed(self) -> bool:
        return any(cache.tokens_per_entry > 1 for cache in self._caches)

    @property
    def _tp(self) -> int:
        return self.options.parallel.tp

    @cached_property
    def _skipped(self) -> frozenset[int]:
        """Layers, by place, whose cache stays in the model's dtype: as many as asked at both ends."""
        asked = self.options.kv_skip_layers
        if asked is None:
            hybrid = any(cache.kind == "recurrent" for cache in self._caches)
            asked = BOUNDARY_LAYERS if self.stored_dtype.startswith("turboquant") and not hybrid else 0
        drafts = [any(cache.draft for cache in layer.caches) for layer in self.model.layers]
        count = sum(not drafts[kind] for kind in self.model.order)
        first = min(-(-asked // 2), count)
        return frozenset([*range(first), *range(max(first, count - asked // 2), count)])

    @cached_property
    def block_tokens(self) -> int:
        """Tokens of one block: as asked, raised where kernels, a recurrent state or unquantised layers need more."""
        asked = self.options.block_tokens or BLOCK_TOKENS
        if self._compressed:
            return -(-asked // COMPRESSED_BLOCK) * COMPRESSED_BLOCK
        latent = any(cache.kind == "latent" for cache in self._caches)
        if any(cache.kind == "indexer" for cache in self._caches):
            step = max(SPARSE_BLOCK_TOKENS, *(cache.selects_tokens for cache in self._caches))
            asked = -(-asked // step) * step
        states = max((self._state_bytes(cache) for cache in self._caches), default=0)
        slots = [self._slot_bytes(cache) for cache in self._caches if cache.k_dim]
        if states and slots:
            asked = hybrid_block(states, max(slots), asked, latent)
        if self._skipped and slots:
            plain = max(self._slot_bytes(cache, self.model.dtype) for cache in self._caches if cache.k_dim)
            asked = max(asked, stretched_block(plain, max(slots), asked))
        return asked

    def _slot_bytes(self, cache: LayerCache, dtype: str | None = None) -> Fraction:
        """Bytes of one token in one layer on one rank."""
        heads = cache.heads if cache.kind in ("latent", "indexer") else rank_heads(cache.heads, self._tp, "vLLM")
        return entry_bytes(cache, dtype or self.stored_dtype, heads)

    def _state_bytes(self, cache: LayerCache) -> int:
        """Bytes of the recurrent state of one layer on one rank; open groups of compressed caches are no such state."""
        if cache.kind != "recurrent":
            return 0
        return sum(state_bytes(tensor, self.model.dtype, self._tp, self.model.dtype) for tensor in cache.state)

    @property
    def _state_tokens(self) -> int:
        """Tokens that one state block stands for: a block where prefixes are cached, else the whole sequence."""
        if self.options.prefix_caching:
            return self.block_tokens
        lengths = [n for n in (self.options.max_model_len, self.model.ref.max_context_tokens) if n]
        return min(lengths, default=self.block_tokens)

    def _state_page(self, cache: LayerCache) -> int:
        """Bytes of a page that holds one state: no less than an attention page of the same block."""
        size = self._state_bytes(cache)
        widest = max((self._slot_bytes(other) for other in self._caches if other.k_dim), default=Fraction(0))
        return max(size, whole(widest * self.block_tokens)) if size else 0

    def _pages(self, stage: Model, dtype: str, *, hybrid: bool) -> list[Pages]:
        """The pages of one stage's layers that are stored in one dtype."""
        mixed = any(not is_windowed(cache.kind) for cache in self._caches)
        found = []
        for group in grouped(stage):
            cache = group.cache
            if self._compressed:
                found += compressed_pages(cache, group.layers, self.block_tokens)
                continue
            if is_windowed(cache.kind) and mixed and not hybrid:
                cache = replace(cache, kind="full", window_tokens=None)
            size = self._state_page(cache) or whole(self._slot_bytes(cache, dtype) * self.block_tokens)
            found.append(
                Pages(
                    kind=cache.kind,
                    layers=group.layers,
                    tokens=self._state_tokens if cache.kind == "recurrent" else self.block_tokens,
                    bytes=size,
                    window=cache.window_tokens,
                    recurrence=cache.recurrence,
                    positions=self._logical.encoder_tokens(cache) if cache.kind == "cross" else None,
                )
            )
        return found

    def _kinds(self, stage: tuple[Model, Model], *, hybrid: bool) -> list[Pages]:
        """The kinds of pages of one stage: its quantised layers', and those of layers left in the model's dtype."""
        packed, plain = stage
        kinds = self._pages(packed, self.stored_dtype, hybrid=hybrid)
        return merged(kinds + self._pages(plain, self.model.dtype, hybrid=hybrid))

    def _pool(self, stage: tuple[Model, Model], *, hybrid: bool) -> Pool:
        kinds = self._kinds(stage, hybrid=hybrid)
        if self._compressed:
            return packed_pool(kinds)
        if hybrid and self._windows_beside_latents and not paddable(kinds):
            kinds = self._kinds(stage, hybrid=False)  # vLLM then allocates windows as if they were full attention
        return pool(kinds)

    @cached_property
    def _windows_beside_latents(self) -> bool:
        return any(is_windowed(cache.kind) and cache.v_dim for cache in self._caches) and any(
            cache.kind == "latent" for cache in self._caches
        )

    @cached_property
    def _stages(self) -> list[tuple[Model, Model]]:
        """The layers of each stage in two parts: those that are quantised, and those left in the model's dtype."""
        cut, place = [], 0
        for stage in stages(self.model, self.options.parallel.pp):
            places = {place + index: kind for index, kind in enumerate(stage.order)}
            place += len(places)
            kept = tuple(kind for index, kind in places.items() if index not in self._skipped)
            skipped = tuple(kind for index, kind in places.items() if index in self._skipped)
            cut.append((replace(stage, order=kept), replace(stage, order=skipped)))
        return cut

    @cached_property
    def _pools(self) -> list[Pool]:
        return [self._pool(stage, hybrid=self.options.hybrid_manager) for stage in self._stages]

    @cached_property
    def _off(self) -> list[Pool]:
        """The pools without the hybrid manager, which recurrent states and compressed caches cannot do without."""
        if self._compressed or any(cache.kind == "recurrent" for cache in self._caches):
            return self._pools
        return [self._pool(stage, hybrid=False) for stage in self._stages]

    @cached_property
    def _in_flight(self) -> int:
        """Tokens that may be scheduled beyond those a window still needs: two steps where scheduling runs ahead."""
        batched = self.options.max_num_batched_tokens or BATCHED_TOKENS
        return batched * (2 if self.options.async_scheduling else 1)

    def _blocks(self, kind: Pages, tokens: int, *, admitted: bool) -> int:
        """Blocks that one request of `tokens` tokens takes in one group of a kind."""
        window = kind.window or tokens
        if kind.kind == "recurrent":
            return STATE_BLOCKS.get(kind.recurrence or "", 2) if admitted and self.options.prefix_caching else 1
        if kind.kind == "cross":
            steady = kind.positions or 0
            most = max(steady, self.options.max_num_batched_tokens or BATCHED_TOKENS)
            return -(-(most if admitted else steady) // kind.tokens)
        if not is_windowed(kind.kind):
            return -(-tokens // (kind.tokens * self.options.parallel.dcp))
        if not admitted:
            return -(-min(window, tokens) // kind.tokens)
        if kind.kind == "chunked":
            return -(-min(window + self._in_flight, tokens) // kind.tokens)
        return -(-min(window - 1 + self._in_flight, tokens) // kind.tokens) + 1

    def _request_blocks(self, blocks: Pool, tokens: int, *, admitted: bool) -> int:
        return sum(groups * self._blocks(kind, tokens, admitted=admitted) for kind, groups in blocks.kinds)

    @property
    def groups(self) -> tuple[CacheGroup, ...]:
        """Kinds of layers in bytes, whole model, one copy: the slots, before pages and ranks."""
        return self._logical.groups

    @cached_property
    def cost(self) -> KvCost:
        """What caching costs: the slots alone, and on the fullest rank with padding and copies."""
        growth = [Fraction() for _ in self._pools]
        settled, stored = [0 for _ in self._pools], Fraction()
        for place, blocks in enumerate(self._pools):
            for kind, groups in blocks.kinds:
                share = Fraction(groups * blocks.block_bytes, kind.tokens * self.options.parallel.dcp)
                if kind.kind in GROWING:
                    growth[place] += share
                else:
                    longest = kind.window or 1
                    settled[place] += groups * blocks.block_bytes * self._blocks(kind, longest, admitted=False)
                # A tier is handed every window's blocks too, but of a compressor's state only checkpoints.
                stored += share if kind.kind in GROWING or not (self._compressed or kind.kind == "cross") else 0
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
        latent = all(cache.kind in ("latent", "indexer") for cache in self._caches) or self._compressed
        return 1 if latent and parallel.pp == 1 and parallel.dcp == 1 else parallel.tp

    def bytes_at(self, tokens: int, sequences: int) -> BytesAt:
        """Bytes of `sequences` sequences of `tokens` tokens, all ranks together, in whole blocks."""
        steady, admitted, off = (
            sum(blocks.block_bytes * self._request_blocks(blocks, tokens, admitted=taken) for blocks in pools)
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

    def _num_blocks(self, kv_bytes: int) -> int:
        return min((kv_bytes // blocks.block_bytes for blocks in self._pools if blocks.block_bytes), default=0)

    def sequences_held(self, kv_bytes: int, tokens: int) -> float:
        """Requests of `tokens` tokens admitted at once: blocks of the pool over blocks of a request."""
        need = max(self._request_blocks(blocks, tokens, admitted=True) for blocks in self._pools)
        return self._num_blocks(kv_bytes) / need if need else 0.0

    def tokens_held(self, kv_bytes: int, tokens: int) -> int:
        """Tokens of requests of `tokens` tokens that are admitted at once."""
        return int(self.sequences_held(kv_bytes, tokens) * tokens)

    def view(self, kv_bytes: int | None, tokens: int | None) -> Mapping[str, EngineValue]:
        """What the start-up lines of vLLM say."""
        found: dict[str, EngineValue] = {
            "block_tokens": self.block_tokens,
            "kv_cache_dtype": self.stored_dtype,
            "bytes_per_block": max(blocks.block_bytes for blocks in self._pools),
            "pages": self._page_kinds,
        }
        if kv_bytes is not None and tokens:
            found["num_blocks"] = self._num_blocks(kv_bytes)
            found["max_model_len"] = tokens
            found["kv_cache_size_tokens"] = self.tokens_held(kv_bytes, tokens)
            found["max_concurrency"] = self.sequences_held(kv_bytes, tokens)
        return found

    @cached_property
    def _page_kinds(self) -> tuple[PageKind, ...]:
        """The pages of the first stage's rank, before kinds are made alike."""
        kinds = self._kinds(self._stages[0], hybrid=self.options.hybrid_manager)
        return tuple(
            PageKind(
                kind=kind.kind,
                layers=kind.layers,
                block_tokens=kind.tokens,
                page_bytes=kind.bytes,
                window_tokens=kind.window,
            )
            for kind in kinds
        )

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Blocks larger than asked for, heads that are copied, dtypes that are not obeyed."""
        found = [finding for finding in self._logical.findings if finding.code != "state-dtype"]
        wished = self.options.block_tokens or BLOCK_TOKENS
        if self.block_tokens != wished:
            found.append(self._raised(wished))
        heads = [cache.heads for cache in self._caches if cache.kind in ("full", "sliding", "chunked") and cache.v_dim]
        if heads and self._tp > min(heads):
            text = f"--tp {self._tp} exceeds {min(heads)} KV heads: each is stored {self._tp // min(heads)} times"
            found.append(Finding(severity="info", code="heads-copied", text=text))
        if self.model.ref.model_type not in CHECKED and any(cache.kind != "full" for cache in self._caches):
            text = f"model type {self.model.ref.model_type} is not among those whose plans were held against vLLM's own"
            found.append(Finding(severity="info", code="general-rules", text=f"{text}: its general rules are applied"))
        if any(cache.draft for cache in self._caches) and any(cache.kind == "recurrent" for cache in self._caches):
            text = "each speculative token holds one more state block of every request, which is not counted"
            found.append(Finding(severity="warning", code="speculative-state", text=text))
        if self.model.ref.model_type in IGNORE_FP8 and self.options.kv_dtype.startswith("fp8"):
            asked, kept = self.options.kv_dtype, self.kv_dtype
            text = f"vLLM's code for {self.model.ref.model_type} does not obey --kv-dtype {asked}: it keeps {kept}"
            found.append(Finding(severity="warning", code="dtype-ignored", text=text))
        if self._skipped:
            text = f"{len(self._skipped)} layers at both ends keep {self.model.dtype}, not {self.stored_dtype}"
            found.append(Finding(severity="info", code="layers-skipped", text=text))
        return tuple(found)

    def _raised(self, asked: int) -> Finding:
        longest = self.options.max_model_len or self.model.ref.max_context_tokens
        text = f"blocks are {self.block_tokens} tokens, not {asked}: prompts shorter than that are never reused"
        if longest is not None and self.block_tokens >= longest:
            text = f"blocks are {self.block_tokens} tokens, as long as the longest sequence: no prefix is ever reused"
        elif self._compressed and self.options.block_tokens is not None:
            text += f"; vLLM {VERSION} given --block-size {asked} for this model does not start"
        return Finding(severity="warning", code="block-raised", text=text)


@dataclass(frozen=True)
class VllmEngine:
    """vLLM."""

    name: str = "vllm"

    def lay_out(self, model: Model, options: EstimateOptions) -> VllmLayout:
        """vLLM's layout. Raises KvplanError for what vLLM refuses, and for caches whose layout is not known here."""
        kinds = {group.cache.kind for group in grouped(model)}
        compressed = any(group.cache.tokens_per_entry > 1 for group in grouped(model))
        if ("recurrent" in kinds or compressed) and not options.hybrid_manager:
            what = "compressed caches" if compressed else "recurrent layers"
            raise KvplanError(f"vLLM needs its hybrid KV cache manager for {what}: leave it on")
        check_heads(model, options.parallel.tp, "vLLM")
        if options.parallel.dcp > 1:
            if kinds - set(GROWING) or compressed:
                raise KvplanError("--dcp works on full and latent attention only, this model has other layers too")
            _check_dcp(model, options)
        dtype = resolve_dtype(model, options, (*FORMATS, *LATENT_SLOTS))
        if dtype == "fp8" and model.ref.model_type in IGNORE_FP8:
            dtype = model.dtype
        return VllmLayout(model, options, dtype, stored_as(model, dtype))


def _check_dcp(model: Model, options: EstimateOptions) -> None:
    """Raise KvplanError where ranks that share a sequence's tokens would not all hold the same heads."""
    tp, dcp = options.parallel.tp, options.parallel.dcp
    if tp % dcp:
        raise KvplanError(f"--dcp {dcp} does not divide --tp {tp}")
    heads = max((group.cache.heads for group in grouped(model) if group.cache.kind == "full"), default=1)
    if tp < dcp * heads:
        raise KvplanError(
            f"--dcp {dcp} with --tp {tp} and {heads} KV heads: vLLM refuses it, since only ranks that hold copies of a "
            f"head can share its tokens: --tp {dcp * heads} at least"
        )


ENGINE = VllmEngine()
