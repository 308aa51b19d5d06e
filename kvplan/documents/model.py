"""What each layer of a model keeps."""

from __future__ import annotations

from typing import Literal

import msgspec

from kvplan.documents.common import Bytes, Count, Finding, LayerKind, Provenance, Recurrence, Tokens


class ModelRef(msgspec.Struct, frozen=True, kw_only=True):
    """Which model: `id` as the user named it, `source` how it was found, `config_sha256` of the bytes read."""

    id: str
    source: Literal["hub", "path", "gguf", "catalogue"]
    model_type: str
    config_sha256: str
    max_context_tokens: Tokens | None = None
    revision: str | None = None
    date: str | None = None


class StateTensor(msgspec.Struct, frozen=True, kw_only=True):
    """One tensor of fixed size that a layer keeps per sequence, whatever the length.

    `role` is "conv" (the last kernel - 1 input columns of a causal convolution, shape (channels, columns)), "state"
    (what a recurrence carries on), "buffer" (tokens that wait to be compressed, or the token before, in the model's
    dtype) or "overlap" (the closed group that the next one overlaps); for compressed caches both are (tokens of a
    group, channels). `dtype` is None where the config does not say: then the engine decides, and engines differ.
    `split` says how tensor parallelism deals the first axis out: parts as (units, rows of a unit), each rank taking
    its share of the units and at least one; empty means that every rank holds the whole tensor.
    """

    role: Literal["conv", "state", "buffer", "overlap"]
    shape: tuple[Count, ...]
    dtype: str | None = None
    split: tuple[tuple[Count, Count], ...] = ()


class LayerCache(msgspec.Struct, frozen=True, kw_only=True):
    """One cache of one layer, per sequence: a part that grows with tokens, a fixed part, or both.

    Growing part, in elements of the KV dtype per entry: `heads * (k_dim + v_dim)` for attention (`heads` KV heads of
    the whole model, before tensor parallelism); `k_dim` alone for latent and indexer caches (`heads` 1, `v_dim` 0).
    One entry is kept per `tokens_per_entry` tokens (1 but for compressed caches), up to `window_tokens` where one is
    set. `rope_dim` is the share of `k_dim` that carries the position in a latent. `slot_bytes` is set where the
    architecture itself fixes the bytes of an entry, whatever the KV dtype (an indexer key in fp8 with its scale). An
    indexer picks `selects_tokens` neighbours at a time, which bounds the block size from below.
    Cross attention holds `fixed_tokens` entries, the encoder's positions; None means as many as the encoder is given.
    `prefix_tokens` entries come before the prompt's own (prompt tuning, conditioning). `copied_heads` is set where the
    reference code copies KV heads before it stores them, which no serving engine does. `draft` marks the cache of a
    layer that speculative decoding adds; a group of such caches is of kind "draft".
    `state` lists tensors of fixed size; `recurrence` says what makes them, since engines lay each out in its own way.
    `keys` names the config keys that said so, class defaults marked.
    """

    kind: LayerKind
    heads: Count = 0
    k_dim: Count = 0
    v_dim: Count = 0
    rope_dim: Count = 0
    tokens_per_entry: Count = 1
    window_tokens: Tokens | None = None
    fixed_tokens: Tokens | None = None
    prefix_tokens: Tokens = 0
    copied_heads: Count = 0
    draft: bool = False
    slot_bytes: Bytes | None = None
    selects_tokens: Count = 1
    state: tuple[StateTensor, ...] = ()
    recurrence: Recurrence | None = None
    keys: tuple[str, ...] = ()


class Layer(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of decoder layer: the caches it keeps of its own.

    None where it only maps (an MLP or expert block) or reads another layer's cache; `note` says which.
    """

    caches: tuple[LayerCache, ...] = ()
    note: str = ""


class Compute(msgspec.Struct, frozen=True, kw_only=True):
    """What prefill costs: `linear_flops_per_token` and `attention_flops_per_token_sq`.

    Prefilling n tokens from nothing takes linear * n + attention * n² floating point operations
    (2 per multiply-add, causal half counted; windows shorter than n move from the square to the linear term).
    """

    linear_flops_per_token: float
    attention_flops_per_token_sq: float
    provenance: Provenance
    source: str


class Weights(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of the checkpoint as stored, `bytes_per_gpu` on the fullest rank; `params` None where unknown.

    `experts_bytes` are those of routed experts, `embedding_bytes` and `head_bytes` those of the first and the last
    stage alone (a head that is the embedding has none of its own); None where the source does not tell them apart.
    """

    bytes: Bytes
    bytes_per_gpu: Bytes
    params: Count | None
    provenance: Provenance
    source: str
    experts_bytes: Bytes | None = None
    embedding_bytes: Bytes | None = None
    head_bytes: Bytes | None = None


class Model(msgspec.Struct, frozen=True, kw_only=True):
    """A model as the cache sees it: `layers` are its distinct kinds of layer, `order` says which kind each layer is.

    `order[i]` indexes `layers` for the i-th layer in order of execution, which grouping, pipeline stages and sharing
    depend on; a model that runs a layer twice with two caches lists it twice, so `len(order)` may exceed
    `num_layers`. `dtype` is the checkpoint's (bf16, fp16, fp32); `kv_dtype` is set where the checkpoint asks for
    another KV dtype than its own. `weights` and `compute` are whole-model; None where the architecture is not counted.
    `draft` lists the layers that predict further tokens (multi-token prediction), one by one: they hold memory only
    where speculative decoding uses them, and are not in `order` until with_draft (model.py) puts them there.
    """

    ref: ModelRef
    dtype: str
    layers: tuple[Layer, ...]
    order: tuple[Count, ...]
    num_layers: Count
    vocab_size: Count | None = None
    hidden_size: Count | None = None
    num_attention_heads: Count | None = None
    kv_dtype: str | None = None
    weights: Weights | None = None
    compute: Compute | None = None
    draft: tuple[Layer, ...] = ()
    findings: tuple[Finding, ...] = ()

    def counted(self) -> tuple[tuple[Layer, int], ...]:
        """Each kind of layer that occurs in `order`, with the number of layers of it, in the order first met."""
        return tuple((layer, times) for i, layer in enumerate(self.layers) if (times := self.order.count(i)))


class CatalogueModel(msgspec.Struct, frozen=True, kw_only=True):
    """One line of the built-in catalogue of models: where its facts are published, and when they were read."""

    name: str
    hub_id: str
    source: str
    date: str
    params: Count | None = None
    max_context_tokens: Tokens | None = None
