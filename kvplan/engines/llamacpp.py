"""llama.cpp: one context, allocated whole at start: cells for every slot, a K and a V tensor for every layer.

Nothing grows at run time and there are no blocks. A cell holds one token of one layer; windows have cells of their
own. The rules are those of llama.cpp 0c1e570; docs/engines.md states them and what they were checked against.
"""

from __future__ import annotations

import dataclasses
import math
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
    Layer,
    LayerCache,
    Model,
)
from kvplan.engines.layout import Group, grouped, is_windowed, shares, stages, whole
from kvplan.engines.slots import GGML, ggml_row, ggml_type
from kvplan.errors import KvplanError

VERSION = "0c1e570 (0.5.0-dev, October 2026)"
CELLS = 256  # cells are padded to a multiple of this, for every stream
STATE_BYTES = 4  # recurrent state and convolutions are kept in f32, whatever the model says

RECURRENCES = (None, "mamba1", "mamba2", "delta", "kimi-delta", "lightning", "short-conv")

# Model types whose windows a converted file keeps; in all others llama.cpp attends over every token.
KEEPS_WINDOWS = frozenset(
    {"gemma2", "gemma3_text", "gemma3n_text", "gemma4_text", "gpt_oss", "llama4_text", "cohere2", "cohere2_moe"}
    | {"olmo3", "exaone4", "exaone_moe", "afmoe", "smallthinker", "mimo_v2", "mimo_v2_flash", "step3p5", "step3p7"}
    | {"laguna", "granite_swa", "plamo3", "mellum"}
)


@dataclass(frozen=True, slots=True)
class Context:
    """The cells of one context: `streams` streams of `cells`, and windows of `window(w)` cells each."""

    slots: int
    streams: int
    cells: int
    ubatch: int
    unified: bool
    swa_full: bool

    def window(self, tokens: int) -> int:
        """Cells of a window: every sequence's where they share a stream, and one micro-batch on top."""
        if self.swa_full:
            return self.cells
        wanted = tokens * (self.slots if self.unified else 1) + self.ubatch
        return padded(min(self.cells, wanted))


def padded(tokens: int) -> int:
    """A number of cells as allocated."""
    return -(-tokens // CELLS) * CELLS


@dataclass(frozen=True)
class LlamaCppLayout:
    """One model in llama.cpp."""

    model: Model
    options: EstimateOptions
    type_k: str
    type_v: str
    block_tokens: int = 1

    @property
    def kv_dtype(self) -> str:
        """One type, or K's and V's where they differ."""
        return self.type_k if self.type_k == self.type_v else f"{self.type_k} keys, {self.type_v} values"

    @cached_property
    def _groups(self) -> tuple[Group, ...]:
        return grouped(self.model)

    @cached_property
    def _widest_value(self) -> int:
        """Elements that every V row has where attention is not fused: those of the widest layer."""
        rows = [group.cache.heads * group.cache.v_dim for group in self._groups]
        return max(rows, default=0)

    def _row(self, cache: LayerCache) -> int:
        """Bytes of one cell of one layer: K, and V where the layer keeps one."""
        if not cache.k_dim:
            return 0
        size = ggml_row(self.type_k, cache.heads * cache.k_dim)
        if cache.v_dim:
            flash = self.options.llama_cpp.flash_attention
            size += ggml_row(self.type_v, cache.heads * cache.v_dim if flash else self._widest_value)
        return size

    @staticmethod
    def _state(cache: LayerCache) -> int:
        return sum(math.prod(tensor.shape) for tensor in cache.state) * STATE_BYTES

    def _context(self, tokens: int, slots: int) -> Context:
        """The context of `tokens` tokens in all, shared by `slots` sequences."""
        asked = self.options.llama_cpp
        total = padded(tokens)
        cells = total if asked.unified else padded(total // slots)
        return Context(slots, 1 if asked.unified else slots, cells, asked.ubatch, asked.unified, asked.swa_full)

    def _bytes(self, context: Context, groups: tuple[Group, ...] | None = None) -> int:
        """What a context takes, all layers of `groups` together."""
        size = 0
        for group in self._groups if groups is None else groups:
            cache = group.cache
            windowed = is_windowed(cache.kind) and cache.window_tokens is not None
            cells = context.window(cache.window_tokens or 0) if windowed else context.cells
            size += group.layers * self._row(cache) * cells * context.streams
            size += group.layers * self._state(cache) * max(1, context.slots)
        return size

    @cached_property
    def groups(self) -> tuple[CacheGroup, ...]:
        """Kinds of layers in bytes as stored; a full window is its tokens, without the micro-batch."""
        return tuple(
            CacheGroup(
                kind="draft" if group.cache.draft else group.cache.kind,
                layers=group.layers,
                bytes_per_token=group.layers * self._row(group.cache),
                bytes_per_sequence=group.layers
                * (self._row(group.cache) * (group.cache.window_tokens or 0) + self._state(group.cache)),
                window_tokens=group.cache.window_tokens,
                arithmetic=self._arithmetic(group),
                keys=group.cache.keys,
            )
            for group in self._groups
        )

    def _arithmetic(self, group: Group) -> str:
        cache, parts = group.cache, []
        for side, width, kind in (("K", cache.k_dim, self.type_k), ("V", cache.v_dim, self.type_v)):
            if width:
                elements, size = GGML[kind]
                each = f"{size} B" if elements == 1 else f"{size} B / {elements}"
                parts.append(f"{side} {cache.heads} x {width} x {each}")
        text = f"{group.layers} layers x ({' + '.join(parts)})" if parts else f"{group.layers} layers"
        if cache.window_tokens is not None:
            text += f", at most {cache.window_tokens} tokens and one micro-batch"
        if cache.state:
            shapes = " + ".join(f"{tensor.role} {' x '.join(map(str, tensor.shape))}" for tensor in cache.state)
            text += f"{'; ' if parts else ' x '}({shapes}) x {STATE_BYTES} B a slot"
        return text

    @cached_property
    def _parts(self) -> list[tuple[Group, ...]]:
        """The layers of each GPU."""
        return [grouped(stage) for stage in stages(self.model, self.options.parallel.pp)]

    @cached_property
    def cost(self) -> KvCost:
        """Growth and fixed part of one sequence; over several GPUs whole layers are dealt out."""
        token, sequence = shares(self.groups)
        each = [
            shares(dataclasses.replace(self, model=stage).groups)
            for stage in stages(self.model, self.options.parallel.pp)
        ]
        return KvCost(
            bytes_per_token=token,
            bytes_per_sequence=sequence,
            bytes_per_token_per_gpu=max(part[0] for part in each),
            bytes_per_sequence_per_gpu=max(part[1] for part in each),
            offload_bytes_per_token=sum(group.bytes_per_token for group in self.groups),
        )

    def bytes_at(self, tokens: int, sequences: int) -> BytesAt:
        """Bytes in use, and what a context with a slot for each of these sequences allocates."""
        steady = Fraction()
        for group in self._groups:
            held = min(tokens, group.cache.window_tokens) if group.cache.window_tokens is not None else tokens
            steady += group.layers * (self._row(group.cache) * held + self._state(group.cache))
        context = self._context(tokens * sequences, sequences)
        return BytesAt(
            tokens=tokens,
            sequences=sequences,
            steady_bytes=whole(steady) * sequences,
            admission_bytes=self._bytes(context),
            hybrid_off_bytes=self._bytes(dataclasses.replace(context, swa_full=True)),
        )

    def sequences_held(self, kv_bytes: int, tokens: int) -> float:
        """Slots of `tokens` tokens whose context fits."""
        need = max(
            self._bytes(dataclasses.replace(self._context(tokens, 1), unified=False), part) for part in self._parts
        )
        return kv_bytes / need if need else 0.0

    def tokens_held(self, kv_bytes: int, tokens: int) -> int:
        """Tokens of such slots."""
        return int(self.sequences_held(kv_bytes, tokens) * tokens)

    def view(self, kv_bytes: int | None, tokens: int | None) -> Mapping[str, EngineValue]:
        """The sizes that llama.cpp logs when it makes the context asked for."""
        asked = self.options.llama_cpp
        total = asked.ctx_size or (tokens or 0) * asked.slots
        if not total:
            return {"type_k": self.type_k, "type_v": self.type_v}
        context = self._context(total, asked.slots)
        found: dict[str, EngineValue] = {
            "type_k": self.type_k,
            "type_v": self.type_v,
            "n_ctx": context.cells * context.streams,
            "n_ctx_seq": context.cells,
            "n_seq_max": context.slots,
            "cells": context.cells * context.streams,
            "context_bytes": self._bytes(context),
        }
        windows = {group.cache.window_tokens for group in self._groups if is_windowed(group.cache.kind)}
        if windows:
            found["window_cells"] = max(context.window(window or 0) for window in windows) * context.streams
        return found

    @cached_property
    def findings(self) -> tuple[Finding, ...]:
        """What differs from other engines, and what is not counted."""
        found = []
        if not self._groups:
            text = "no layer of this model keeps a cache of its own"
            found.append(Finding(severity="warning", code="no-cache", text=text))
        if any(group.cache.kind == "latent" for group in self._groups):
            text = "the latent is stored as it is, K only, as files converted since April 2025 have it"
            text += "; older files hold expanded heads and take many times as much"
            found.append(Finding(severity="info", code="latent-stored", text=text))
        if self.type_k not in ("f32", "f16", "bf16"):
            text = "buffers that unpack a quantised cache while computing are not counted"
            found.append(Finding(severity="info", code="compute-buffer", text=text))
        if self.options.llama_cpp.slots > 1 and self.options.llama_cpp.unified:
            text = "slots share one stream of cells: each may take the whole context, and together they may want more"
            found.append(Finding(severity="warning", code="slots-share", text=text))
        return tuple(found)


@dataclass(frozen=True)
class LlamaCppEngine:
    """llama.cpp."""

    name: str = "llama.cpp"

    def lay_out(self, model: Model, options: EstimateOptions) -> LlamaCppLayout:
        """llama.cpp's layout. Raises KvplanError for what it refuses, and for caches that are not laid out here."""
        asked, parallel = options.llama_cpp, options.parallel
        if parallel.tp > 1 or parallel.dcp > 1:
            raise KvplanError("llama.cpp deals whole layers to its GPUs: use --pp, not --tp or --dcp")
        if options.block_tokens not in (None, 1):
            raise KvplanError("llama.cpp has no blocks: leave --block-tokens out")
        for name, count in (("--parallel", asked.slots), ("--ubatch", asked.ubatch)):
            if count < 1:
                raise KvplanError(f"{name} is {count}: at least 1")
        kinds = {group.cache.kind for group in grouped(model)}
        odd = any(group.cache.recurrence not in RECURRENCES for group in grouped(model))
        if odd or any(group.cache.tokens_per_entry > 1 for group in grouped(model)) or "cross" in kinds:
            kind = model.ref.model_type
            raise KvplanError(f"llama.cpp's cache for {kind} has a shape that is not laid out here: use --engine none")
        type_k, type_v = self._types(options)
        layout = LlamaCppLayout(as_converted(model), options, type_k, type_v)
        self._check(layout)
        return layout

    @staticmethod
    def _types(options: EstimateOptions) -> tuple[str, str]:
        both = "f16" if options.kv_dtype.lower() == "auto" else ggml_type(options.kv_dtype, "--kv-dtype")
        asked = options.llama_cpp
        return (
            both if asked.type_k is None else ggml_type(asked.type_k, "--cache-type-k"),
            both if asked.type_v is None else ggml_type(asked.type_v, "--cache-type-v"),
        )

    @staticmethod
    def _check(layout: LlamaCppLayout) -> None:
        """llama.cpp's own checks at start."""
        keeps_values = any(group.cache.v_dim for group in grouped(layout.model))
        if GGML[layout.type_v][0] > 1 and keeps_values and not layout.options.llama_cpp.flash_attention:
            raise KvplanError(f"--cache-type-v {layout.type_v} needs flash attention: llama.cpp refuses it without")
        latent = any(group.cache.kind == "latent" for group in grouped(layout.model))
        if latent and layout.type_k != layout.type_v:
            raise KvplanError(
                f"llama.cpp refuses K in {layout.type_k} and V in {layout.type_v} for a latent: set both alike"
            )
        for group in grouped(layout.model):
            for side, width, kind in (("k", group.cache.k_dim, layout.type_k), ("v", group.cache.v_dim, layout.type_v)):
                size = GGML[kind][0]
                if width % size:
                    text = f"--cache-type-{side} {kind} packs {size} elements, which does not divide heads of {width}"
                    raise KvplanError(text)


def as_converted(model: Model) -> Model:
    """The model as a converted file describes it: windows only where llama.cpp reads them; index keys in the K type."""
    keep = model.ref.source == "gguf" or model.ref.model_type in KEEPS_WINDOWS
    return replace(model, layers=tuple(_converted(layer, keep) for layer in model.layers))


def _converted(layer: Layer, keep_windows: bool) -> Layer:
    kept = []
    for cache in layer.caches:
        if cache.slot_bytes is not None:
            cache = replace(cache, slot_bytes=None)
        if is_windowed(cache.kind) and not keep_windows:
            cache = replace(cache, kind="full", window_tokens=None)
        kept.append(cache)
    return replace(layer, caches=tuple(kept))


ENGINE = LlamaCppEngine()
