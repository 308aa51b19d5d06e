"""What engines with pages of tokens share: a rank's bytes a token, windows that stop, state beside them.

SGLang and TensorRT-LLM differ in how they split memory among these, not in what a page holds.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from msgspec.structs import replace

from kvplan.documents import BytesAt, CacheGroup, EngineValue, EstimateOptions, Finding, KvCost, LayerCache, Model
from kvplan.engines.layout import entry_bytes, grouped, is_windowed, stages, state_bytes, whole
from kvplan.engines.none import NoneLayout
from kvplan.errors import KvplanError

FP8_LATENT = "fp8_ds_mla"


def rank_heads(heads: int, tp: int, engine: str) -> int:
    """KV heads on each rank: an even share, or one copy each beyond the head count. Raises KvplanError for neither."""
    if heads % tp and tp % heads:
        raise KvplanError(f"--tp {tp} neither divides {heads} KV heads nor is a multiple of them: {engine} refuses it")
    return max(1, heads // tp)


def check_heads(model: Model, tp: int, engine: str) -> None:
    """Raise KvplanError where KV heads or query heads cannot be dealt out evenly, which no engine takes."""
    for group in grouped(model):
        if group.cache.kind in ("full", "sliding", "chunked") and group.cache.v_dim:
            rank_heads(group.cache.heads, tp, engine)
    heads = model.num_attention_heads
    if heads and heads % tp:
        raise KvplanError(f"--tp {tp} does not divide {heads} query heads: {engine} refuses it")


@dataclass(frozen=True, slots=True)
class Share:
    """What one rank of one stage keeps: bytes a token that never stop, of windows by length, and of each sequence."""

    growing: Fraction
    windows: tuple[tuple[int, Fraction], ...]
    fixed: int

    def held(self, tokens: int, page: int) -> int:
        """Bytes of one sequence of `tokens` tokens, in whole pages."""
        size = self.growing * pages(tokens, page) + self.fixed
        size += sum(each * pages(min(tokens, window), page) for window, each in self.windows)
        return whole(size)


def pages(tokens: int, page: int) -> int:
    """Tokens rounded up to whole pages."""
    return -(-tokens // page) * page


@dataclass(frozen=True)
class PagedLayout:
    """One model in an engine with pages. `stored_dtype` names the slot format; `windows` whether windows free pages."""

    model: Model
    options: EstimateOptions
    kv_dtype: str
    stored_dtype: str
    block_tokens: int
    windows: bool
    engine: str
    state_dtype: str = "fp32"

    @cached_property
    def _logical(self) -> NoneLayout:
        return NoneLayout(self.model, self.options, self.stored_dtype)

    @property
    def groups(self) -> tuple[CacheGroup, ...]:
        """Kinds of layers in bytes, whole model, one copy."""
        return self._logical.groups

    def _token_bytes(self, cache: LayerCache) -> Fraction:
        """Bytes of one token in one layer on one rank."""
        whole_heads = cache.kind in ("latent", "indexer")
        heads = cache.heads if whole_heads else rank_heads(cache.heads, self.options.parallel.tp, self.engine)
        return entry_bytes(cache, self.stored_dtype, heads)

    def _share(self, stage: Model) -> Share:
        growing, fixed, windows = Fraction(), 0, dict[int, Fraction]()
        for group in grouped(stage):
            cache = group.cache
            tensors = [(tensor, self.options.parallel.tp) for tensor in cache.state]
            fixed += group.layers * sum(state_bytes(one, self.model.dtype, tp, self.state_dtype) for one, tp in tensors)
            if not cache.k_dim:
                continue
            each = group.layers * self._token_bytes(cache)
            if cache.kind == "cross":
                fixed += whole(each * pages(self._logical.encoder_tokens(cache), self.block_tokens))
            elif is_windowed(cache.kind) and self.windows:
                length = cache.window_tokens or 0
                windows[length] = windows.get(length, Fraction()) + each
            else:
                growing += each
        return Share(growing, tuple(windows.items()), fixed)

    @cached_property
    def shares(self) -> list[Share]:
        """Each stage's share."""
        return [self._share(stage) for stage in stages(self.model, self.options.parallel.pp)]

    @cached_property
    def cost(self) -> KvCost:
        """What caching costs: the slots alone, and on the fullest rank with copies and whole pages."""
        page = self.block_tokens
        settled = [
            share.fixed + whole(sum((each * pages(window, page) for window, each in share.windows), Fraction()))
            for share in self.shares
        ]
        stored = sum((share.growing + sum(each for _, each in share.windows) for share in self.shares), Fraction())
        return replace(
            self._logical.cost,
            bytes_per_token_per_gpu=whole(max(share.growing for share in self.shares)),
            bytes_per_sequence_per_gpu=max(settled),
            offload_bytes_per_token=whole(stored * self._copies),
        )

    @property
    def _copies(self) -> int:
        """How often a tier stores a rank's bytes; a latent that all ranks hold alike is still stored by each."""
        return self.options.parallel.tp

    def bytes_at(self, tokens: int, sequences: int) -> BytesAt:
        """Bytes of `sequences` sequences, all ranks together; nothing is reserved beyond the pages in use."""
        steady = sum(share.held(tokens, self.block_tokens) for share in self.shares)
        off = sum(share.held(tokens, self.block_tokens) for share in dataclasses.replace(self, windows=False).shares)
        times = sequences * self.options.parallel.tp
        return BytesAt(
            tokens=tokens,
            sequences=sequences,
            steady_bytes=steady * times,
            admission_bytes=steady * times,
            hybrid_off_bytes=off * times,
        )

    def sequences_held(self, kv_bytes: int, tokens: int) -> float:
        """Sequences of `tokens` tokens in `kv_bytes` on the fullest rank."""
        need = max(share.held(tokens, self.block_tokens) for share in self.shares)
        return kv_bytes / need if need else 0.0

    def tokens_held(self, kv_bytes: int, tokens: int) -> int:
        """Cached tokens in `kv_bytes` on the fullest rank, in sequences of `tokens` tokens."""
        return int(self.sequences_held(kv_bytes, tokens) * tokens)

    def view(self, kv_bytes: int | None, tokens: int | None) -> Mapping[str, EngineValue]:
        """The page and the bytes of one token on one rank."""
        return {
            "tokens_per_block": self.block_tokens,
            "kv_cache_dtype": self.stored_dtype,
            "bytes_per_block": whole(max(share.growing for share in self.shares) * self.block_tokens),
        }

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """Copied heads, and windows that are held in full."""
        found = [finding for finding in self._logical.findings if finding.code != "state-dtype"]
        caches = [group.cache for group in grouped(self.model)]
        heads = [cache.heads for cache in caches if cache.v_dim and cache.kind != "cross"]
        tp = self.options.parallel.tp
        if heads and tp > min(heads):
            text = f"--tp {tp} exceeds {min(heads)} KV heads: each is stored {tp // min(heads)} times"
            found.append(Finding(severity="info", code="heads-copied", text=text))
        if not self.windows and any(is_windowed(cache.kind) for cache in caches):
            text = f"{self.engine} keeps the windows of {self.model.ref.model_type} in full, as long as the sequence"
            found.append(Finding(severity="warning", code="windows-in-full", text=text))
        return tuple(found)


def checked(model: Model, options: EstimateOptions, engine: str) -> None:
    """Raises KvplanError for shapes and sizes that no paged layout here describes."""
    check_heads(model, options.parallel.tp, engine)
    if options.parallel.dcp > 1:
        raise KvplanError(f"--dcp is not laid out for {engine}: use --engine vllm, or leave it at 1")
    if any(group.cache.tokens_per_entry > 1 for group in grouped(model)):
        raise KvplanError(
            f"{engine}'s cache for {model.ref.model_type} has a shape that is not laid out here: use --engine vllm"
        )
    if options.block_tokens is not None and options.block_tokens < 1:
        raise KvplanError(f"--block-tokens is {options.block_tokens}: at least 1")
