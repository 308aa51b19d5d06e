"""How an engine lays a model's caches out in memory: what every engine answers, and the arithmetic they share.

An engine is a module of this package with an `ENGINE`. Its `lay_out` turns the facts of a model and the user's options
into a `Layout`, which knows what one token and one sequence cost in that engine and what a budget holds. Everything in
which engines differ lives behind this interface; estimate.py only composes the document.
"""

from __future__ import annotations

import importlib
import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Protocol

from msgspec.structs import replace

from kvplan.documents import (
    BytesAt,
    CacheGroup,
    EngineValue,
    EstimateOptions,
    Finding,
    KvCost,
    LayerCache,
    LayerKind,
    Model,
    StateTensor,
)
from kvplan.engines.slots import (
    COMPRESSED_SLOT,
    COMPRESSED_WIDTH,
    FORMATS,
    INDEX_SCALE_GROUP,
    LATENT_SLOTS,
    LATENT_WIDTHS,
)
from kvplan.errors import KvplanError

MODULES = {
    "none": "kvplan.engines.none",
    "transformers": "kvplan.engines.transformers",
    "vllm": "kvplan.engines.vllm",
    "sglang": "kvplan.engines.sglang",
    "llama.cpp": "kvplan.engines.llamacpp",
    "tensorrt-llm": "kvplan.engines.tensorrt_llm",
}
ALIASES = {"llamacpp": "llama.cpp", "trtllm": "tensorrt-llm", "trt-llm": "tensorrt-llm", "hf": "transformers"}

# What an engine does where one sequence of its context does not fit in its cache.
TOO_SHORT = {
    "vllm": ": vLLM does not start so",
    "sglang": ": SGLang refuses longer requests",
    "tensorrt-llm": ": TensorRT-LLM takes shorter ones only",
}

# Bits of one element of each KV dtype that needs no scales beside it.
ELEMENT_BITS = {"bf16": 16, "fp16": 16, "fp32": 32, "fp8": 8}
SPELLINGS = {
    "bfloat16": "bf16",
    "float16": "fp16",
    "half": "fp16",
    "float32": "fp32",
    "float": "fp32",
    "fp8_e4m3": "fp8",
    "fp8_e5m2": "fp8",
}


class Layout(Protocol):
    """One model in one engine with one set of options. All byte counts are exact for what they say."""

    @property
    def kv_dtype(self) -> str:
        """The KV dtype, resolved."""
        ...

    @property
    def block_tokens(self) -> int:
        """Tokens of one block, resolved; 1 where the engine has none."""
        ...

    @property
    def groups(self) -> tuple[CacheGroup, ...]:
        """Kinds of layers in bytes, whole model, one copy."""
        ...

    @property
    def cost(self) -> KvCost:
        """What caching costs; `bytes_at` empty."""
        ...

    @property
    def findings(self) -> tuple[Finding, ...]:
        """What a reader should know of this layout."""
        ...

    def bytes_at(self, tokens: int, sequences: int) -> BytesAt:
        """Bytes of `sequences` sequences of `tokens` tokens, all ranks of one replica together."""
        ...

    def sequences_held(self, kv_bytes: int, tokens: int) -> float:
        """Sequences of `tokens` tokens that `kv_bytes` on the fullest rank admit at once."""
        ...

    def tokens_held(self, kv_bytes: int, tokens: int) -> int:
        """Cached tokens that `kv_bytes` on the fullest rank hold, in sequences of `tokens` tokens."""
        ...

    def view(self, kv_bytes: int | None, tokens: int | None) -> Mapping[str, EngineValue]:
        """What the engine itself would print, for a budget and a context length where they are known."""
        ...


class Engine(Protocol):
    """One serving system."""

    @property
    def name(self) -> str:
        """As --engine takes it."""
        ...

    def lay_out(self, model: Model, options: EstimateOptions) -> Layout:
        """The layout of a model. Raises KvplanError for what this engine cannot do, naming the option or the layer."""
        ...


def canonical(name: str) -> str:
    """An engine's own name for a name that people also write."""
    return ALIASES.get(name.lower(), name)


def engine(name: str) -> Engine:
    """The engine of a name. Raises KvplanError with the names known."""
    if name not in MODULES:
        raise KvplanError(f"unknown engine {name!r}: kvplan lays out caches for {', '.join(MODULES)}")
    found: Engine = importlib.import_module(MODULES[name]).ENGINE
    return found


def version(name: str) -> str:
    """The version of an engine whose rules its module has; "" without an engine."""
    return str(getattr(importlib.import_module(MODULES[name]), "VERSION", ""))


def resolve_dtype(model: Model, options: EstimateOptions, known: Collection[str] = ELEMENT_BITS) -> str:
    """The KV dtype asked for, or with "auto" the checkpoint's own scheme, else the model's dtype.

    Raises KvplanError with the names `known` to the engine for any other.
    """
    asked = options.kv_dtype.lower()
    if asked == "auto":
        return model.kv_dtype or model.dtype
    name = SPELLINGS.get(asked, asked)
    if name not in known:
        names = ", ".join(["auto", *known, *SPELLINGS])
        raise KvplanError(f"engine {options.engine} has no KV dtype {options.kv_dtype!r} (known: {names})")
    return name


@dataclass(frozen=True, slots=True)
class Group:
    """The layers of a model whose caches are alike: one cache, and how many layers keep it."""

    cache: LayerCache
    layers: int


def grouped(model: Model) -> tuple[Group, ...]:
    """Every distinct cache with the number of layers that keep it, in the order first met."""
    found: dict[LayerCache, int] = {}
    for layer, times in model.counted():
        for cache in layer.caches:
            found[cache] = found.get(cache, 0) + times
    return tuple(Group(cache, layers) for cache, layers in found.items())


def entry_bytes(cache: LayerCache, dtype: str, heads: int | None = None) -> Fraction:
    """Bytes of one entry in a slot format: K and V of every head, scales and padding of the format included.

    A slot that the architecture itself fixes wins over the format. Raises KvplanError where the format has none.
    """
    if cache.slot_bytes is not None:
        return Fraction(cache.slot_bytes)
    if not cache.k_dim:
        return Fraction(0)
    if dtype in LATENT_SLOTS:
        return Fraction(_packed_latent(cache, dtype))
    return (cache.heads if heads is None else heads) * FORMATS[dtype](cache.k_dim, cache.v_dim)


def _packed_latent(cache: LayerCache, dtype: str) -> int:
    """The one opaque slot of a latent. DeepSeek-V4 keeps its index keys beside it in fp8 with their scales."""
    if cache.kind == "indexer":
        return cache.k_dim + 4 * -(-cache.k_dim // INDEX_SCALE_GROUP)
    if (cache.k_dim, cache.rope_dim) == LATENT_WIDTHS:
        return LATENT_SLOTS[dtype]
    if cache.k_dim == COMPRESSED_WIDTH and not cache.v_dim and dtype == "fp8_ds_mla":
        return COMPRESSED_SLOT
    raise KvplanError(
        f"KV dtype {dtype} is a slot for latents of 512 and a rotary key of 64, which these layers are not"
    )


def bytes_per_token(cache: LayerCache, dtype: str, heads: int | None = None) -> Fraction:
    """Growth per cached token of one layer, exact: compressed caches add an entry every few tokens."""
    return entry_bytes(cache, dtype, heads) / cache.tokens_per_entry


def state_bytes(tensor: StateTensor, dtype: str, tp: int = 1, undecided: str = "fp32") -> int:
    """Bytes of one state tensor on one of `tp` ranks.

    `dtype` is the model's, which convolutions and buffers follow; `undecided` is what the engine takes for a
    recurrence whose config states none.
    """
    kept = tensor.dtype or (undecided if tensor.role == "state" else dtype)
    rows = tensor.shape[0]
    if tensor.split and tp > 1:
        rows = sum(max(1, -(-units // tp)) * width for units, width in tensor.split)
    return rows * math.prod(tensor.shape[1:]) * ELEMENT_BITS[kept] // 8


def whole(size: Fraction) -> int:
    """A byte count rounded up."""
    return -(-size.numerator // size.denominator)


def stages(model: Model, pp: int) -> list[Model]:
    """The layers of each pipeline stage: equal counts, a remainder going to the stages just before the last.

    The layers that speculative decoding adds run on the last stage.
    """
    drafts = {place for place, layer in enumerate(model.layers) if any(cache.draft for cache in layer.caches)}
    main = tuple(place for place in model.order if place not in drafts)
    added = tuple(place for place in model.order if place in drafts)
    if pp > len(main):
        raise KvplanError(f"--pp {pp} for {len(main)} layers: at most one stage a layer")
    sizes = [len(main) // pp] * pp
    for extra in range(len(main) % pp):
        sizes[-2 - extra] += 1
    ends = [sum(sizes[: stage + 1]) for stage in range(pp)]
    cut = [main[end - size : end] for end, size in zip(ends, sizes, strict=True)]
    return [replace(model, order=part) for part in [*cut[:-1], cut[-1] + added]]


def shares(groups: Sequence[CacheGroup]) -> tuple[int, int]:
    """What one more token of a long sequence costs in these groups, and what the sequence holds besides."""
    growing = [group for group in groups if group.window_tokens is None and group.kind != "cross"]
    return sum(group.bytes_per_token for group in growing), sum(group.bytes_per_sequence for group in groups)


def is_windowed(kind: LayerKind) -> bool:
    """Whether a cache stops growing at its window."""
    return kind in ("sliding", "chunked")


def describe(group: Group, dtype: str) -> str:
    """The arithmetic of one group in words: '32 layers x 8 heads x (128 + 128) x 2 B'."""
    cache = group.cache
    parts = [f"{group.layers} layers"]
    if cache.slot_bytes is not None or (dtype in LATENT_SLOTS and cache.k_dim):
        parts.append(f"{entry_bytes(cache, dtype)} B")
    elif cache.k_dim and dtype not in ELEMENT_BITS:
        parts += [f"{cache.heads} heads", f"{FORMATS[dtype](cache.k_dim, cache.v_dim)} B"]
    elif cache.k_dim:
        width = f"({cache.k_dim} + {cache.v_dim})" if cache.v_dim else f"{cache.k_dim}"
        parts += [f"{cache.heads} heads"] * bool(cache.v_dim) + [width, f"{ELEMENT_BITS[dtype] // 8} B"]
    text = " x ".join(parts) + (f" every {cache.tokens_per_entry} tokens" if cache.tokens_per_entry > 1 else "")
    if cache.window_tokens is not None:
        text += f", at most {cache.window_tokens} tokens"
    if cache.kind == "cross":
        text += f", {cache.fixed_tokens} encoder positions" if cache.fixed_tokens else ", every encoder position"
    if cache.state:
        text += "; " * bool(cache.k_dim) or " x "
        text += " + ".join(f"{tensor.role} {' x '.join(map(str, tensor.shape))}" for tensor in cache.state)
    return text
