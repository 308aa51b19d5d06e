"""transformers: the cache that a forward pass of Hugging Face transformers really returns.

Checked against 5.24, tensor by tensor (docs/bytes.md). The cache has the dtype that the model runs in and grows by
concatenation: no blocks, no pool, nothing reserved. Where it differs from what a model must keep: windows hold one
token less, convolutions one column more, recurrent states are fp32 in most families, Falcon's new decoder stores its
heads already copied, and what is dropped after prefill is held until the first step of decoding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction

from msgspec.structs import replace

from kvplan.documents import BytesAt, EstimateOptions, Finding, Layer, LayerCache, Model, StateTensor
from kvplan.engines.layout import ELEMENT_BITS, SPELLINGS, Group, is_windowed, whole
from kvplan.engines.none import NoneLayout
from kvplan.errors import KvplanError

VERSION = "5.24"
DTYPES = ("bf16", "fp16", "fp32")

# Families whose recurrent state has the dtype of the model; all others keep fp32 whatever the config says.
STATE_AS_MODEL = frozenset({"minimax", "xlstm", "zaya"})
# Families that keep kernel - 1 columns of a convolution; all others keep a whole kernel.
SHORT_CONV = frozenset({"recurrent_gemma", "zaya"})
# Families that compute in fp32, wholly or in one part, whatever dtype the model is loaded in.
CONV_FP32 = frozenset({"inkling_text"})
INDEXER_FP32 = frozenset({"dots3_note_text"})
# Families whose layers with a plain window store values apart, though they are the keys.
VALUES_APART = frozenset({"deepseek_v4"})


@dataclass(frozen=True)
class TransformersLayout(NoneLayout):
    """One model in transformers; `model` has its caches as transformers stores them."""

    def _held(self, group: Group, tokens: int, *, capped: bool = True) -> Fraction:
        """Bytes of one sequence in one group: compressed caches hold their open group token by token."""
        cache = group.cache
        if cache.tokens_per_entry == 1:
            return super()._held(group, tokens, capped=capped)
        return self._compressed(group, tokens, prefilled=not capped)

    def _compressed(self, group: Group, tokens: int, *, prefilled: bool) -> Fraction:
        """Closed groups as one entry each; the open group's tokens, or after a prefill all of which they are a view."""
        cache = group.cache
        size = tokens // cache.tokens_per_entry * cache.k_dim * ELEMENT_BITS[self.kv_dtype] // 8
        for tensor in cache.state:
            length, channels = tensor.shape
            if tensor.role == "overlap":
                rows = length if tokens >= length else 0
            else:
                rows = tokens if prefilled else tokens % length
            size += rows * channels * ELEMENT_BITS[tensor.dtype or self.kv_dtype] // 8
        return Fraction(group.layers * size)

    def bytes_at(self, tokens: int, sequences: int) -> BytesAt:
        """Bytes of `sequences` sequences: `steady` what the cache's tensors hold, `admission` what prefill leaves.

        A window's tensor is a view of all it was given until the first step of decoding copies it.
        """
        held = super().bytes_at(tokens, sequences)
        return replace(held, admission_bytes=self._prefilled(tokens) * sequences)

    def _prefilled(self, tokens: int) -> int:
        """Bytes of the storages behind the tensors after a prefill in one piece."""
        return whole(sum((self._held(group, tokens, capped=False) for group in self._groups), Fraction()))

    def sequences_held(self, kv_bytes: int, tokens: int) -> float:
        """Sequences of `tokens` tokens whose prefill fits in `kv_bytes` a GPU."""
        need = self._prefilled(tokens)
        return kv_bytes * self.options.parallel.gpus / need if need else 0.0

    def view(self, kv_bytes: int | None, tokens: int | None) -> Mapping[str, int | float | str | None]:
        """What the tensors of the returned cache hold at a context length, and the storages behind them."""
        found: dict[str, int | float | str | None] = {"transformers": VERSION, "cache_dtype": self.kv_dtype}
        if tokens:
            found["cache_bytes"] = self.bytes_at(tokens, 1).steady_bytes
            found["storage_bytes_after_prefill"] = self._prefilled(tokens)
        return found

    @property
    def findings(self) -> tuple[Finding, ...]:
        """Where the model leaves two honest answers; the state's dtype is none here."""
        return tuple(finding for finding in super().findings if finding.code != "state-dtype")


@dataclass(frozen=True)
class TransformersEngine:
    """Hugging Face transformers, with its dynamic cache."""

    name: str = "transformers"

    def lay_out(self, model: Model, options: EstimateOptions) -> TransformersLayout:
        """The cache that a forward pass returns. Raises KvplanError for options that transformers does not have."""
        if options.block_tokens not in (None, 1):
            raise KvplanError("transformers has no blocks: leave --block-tokens out")
        if options.parallel.gpus > 1 or options.parallel.dcp > 1:
            raise KvplanError("transformers keeps one cache in one process: leave --tp, --pp and --dcp at 1")
        dtype = _dtype(model, options)
        how = Storage(model.ref.model_type, dtype, not any(note.code == "dtype-assumed" for note in model.findings))
        layers = tuple(how.layer(layer) for layer in model.layers)
        return TransformersLayout(replace(model, dtype=dtype, layers=layers), options, dtype)


def _dtype(model: Model, options: EstimateOptions) -> str:
    """The dtype that the model runs in: its cache has no other."""
    asked = options.kv_dtype.lower()
    name = model.dtype if asked == "auto" else SPELLINGS.get(asked, asked)
    if name not in DTYPES:
        raise KvplanError(
            f"transformers' cache has the dtype that the model runs in, not {options.kv_dtype!r}"
            f" (one of auto, {', '.join(DTYPES)})"
        )
    return name


@dataclass(frozen=True)
class Storage:
    """How transformers stores the caches of one family run in one dtype.

    `loaded`: the config states its dtype, as checkpoints do, so the model is loaded and keeps its few fp32 weights;
    a bare config is built and cast as a whole. Where a bias in fp32 is added to what is cached, the two differ.
    """

    model_type: str
    dtype: str
    loaded: bool

    def layer(self, layer: Layer) -> Layer:
        """One kind of layer as stored."""
        caches = layer.caches
        if len(caches) == 1 and self.model_type in VALUES_APART:
            caches = (replace(caches[0], v_dim=caches[0].k_dim),)
        return replace(layer, caches=tuple(self.cache(cache) for cache in caches))

    def cache(self, cache: LayerCache) -> LayerCache:
        """One cache: a token less of a window, copied heads, index keys in the dtype of the cache."""
        window, kind = cache.window_tokens, cache.kind
        if is_windowed(kind) and window is not None:
            # A window of one token is cut with [-0:], which keeps everything.
            kind, window = (kind, window - 1) if window > 1 else ("full", None)
        wide = cache.kind == "indexer" and self.model_type in INDEXER_FP32
        return replace(
            cache,
            kind=kind,
            window_tokens=window,
            heads=cache.copied_heads or cache.heads,
            slot_bytes=4 * cache.k_dim if wide else None,
            state=tuple(part for tensor in cache.state for part in self.state(tensor)),
        )

    def state(self, tensor: StateTensor) -> tuple[StateTensor, ...]:
        """One state tensor: a whole kernel of columns, recurrent states in fp32, gates apart from what they gate."""
        if tensor.role == "conv":
            channels, columns = tensor.shape
            columns += self.model_type not in SHORT_CONV
            dtype = "fp32" if self.model_type in CONV_FP32 else self.dtype
            return (replace(tensor, shape=(channels, columns), dtype=dtype),)
        if tensor.role == "state":
            return (replace(tensor, dtype=self.dtype if self.model_type in STATE_AS_MODEL else "fp32"),)
        if tensor.role == "overlap":
            group, channels = tensor.shape
            half = replace(tensor, shape=(group, channels // 2), dtype=self.dtype)
            return (half, replace(half, dtype="fp32") if self.loaded else half)
        return (replace(tensor, dtype=self.dtype),)


ENGINE = TransformersEngine()
