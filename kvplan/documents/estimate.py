"""What one token and one sequence cost in bytes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal, TypeAlias

import msgspec

from kvplan.documents.common import Bytes, Count, Finding, GpuSpec, LayerKind, Provenance, Ratio, Tokens
from kvplan.documents.model import Compute, ModelRef, Weights


class Parallel(msgspec.Struct, frozen=True, kw_only=True):
    """How one replica is spread: tensor, pipeline, data and decode-context parallel sizes.

    With `expert_parallel` the experts are dealt over the ranks of all `dp` data-parallel engines together.
    """

    tp: Count = 1
    pp: Count = 1
    dp: Count = 1
    dcp: Count = 1
    expert_parallel: bool = False

    @property
    def gpus(self) -> int:
        """GPUs of one replica."""
        return self.tp * self.pp


class LlamaCppOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What llama.cpp allocates its context by; None leaves its own default.

    `ctx_size` counts the tokens of all `slots` together. `unified` shares one stream of cells among them.
    """

    ctx_size: Tokens | None = None
    slots: Count = 1
    type_k: str | None = None
    type_v: str | None = None
    unified: bool = False
    swa_full: bool = False
    ubatch: Count = 512
    flash_attention: bool = True


class EstimateOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What the user asks of an estimate; None leaves the engine's own default.

    `kv_memory_bytes` is what is left for the cache on each rank; else it follows from the GPU. `utilization` is the
    engine's own memory fraction in its own meaning. `encoder_tokens` is the length of the encoder's input where the
    model sets no fixed one. `kv_skip_layers` layers, half of them at each end, keep the model's dtype. `draft` is
    for the engine's flags alone, as the model has its layers already: `mtp:N`, `ngram` or the name of a draft model.
    """

    engine: str = "none"
    kv_dtype: str = "auto"
    parallel: Parallel = msgspec.field(default_factory=Parallel)
    block_tokens: Tokens | None = None
    max_model_len: Tokens | None = None
    at: tuple[Tokens, ...] = ()
    sequences: Count = 1
    gpu: GpuSpec | None = None
    gpu_memory_bytes: Bytes | None = None
    kv_memory_bytes: Bytes | None = None
    utilization: Ratio | None = None
    overhead_bytes: Bytes | None = None
    max_num_batched_tokens: Tokens | None = None
    hybrid_manager: bool = True
    async_scheduling: bool = True
    prefix_caching: bool = True
    encoder_tokens: Tokens | None = None
    kv_skip_layers: Count | None = None
    draft: str | None = None
    llama_cpp: LlamaCppOptions = msgspec.field(default_factory=LlamaCppOptions)


class Switches(msgspec.Struct, frozen=True, kw_only=True):
    """What the estimate was told of the engine and has no other field for: flags and configurations carry it on.

    Each as EstimateOptions has it; a default is the engine's own.
    """

    block_tokens: Tokens | None = None
    max_num_batched_tokens: Tokens | None = None
    hybrid_manager: bool = True
    async_scheduling: bool = True
    prefix_caching: bool = True
    draft: str | None = None
    utilization: Ratio | None = None
    llama_cpp: LlamaCppOptions = msgspec.field(default_factory=LlamaCppOptions)


class CacheGroup(msgspec.Struct, frozen=True, kw_only=True):
    """One kind of layer in bytes, whole model, one copy.

    `bytes_per_token` is the growth per cached token while the sequence is shorter than `window_tokens`
    (for ever where there is no window); `bytes_per_sequence` is what a long sequence holds that does not grow:
    a full window, recurrent state, cross attention.
    """

    kind: LayerKind
    layers: Count
    bytes_per_token: Bytes
    bytes_per_sequence: Bytes
    window_tokens: Tokens | None = None
    arithmetic: str = ""
    keys: tuple[str, ...] = ()


class BytesAt(msgspec.Struct, frozen=True, kw_only=True):
    """Bytes of `sequences` sequences of `tokens` tokens: in steady use, as admitted, with the hybrid manager off."""

    tokens: Tokens
    sequences: Count
    steady_bytes: Bytes
    admission_bytes: Bytes
    hybrid_off_bytes: Bytes


class Growth(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of the curve of bytes against length: a sequence of `from_tokens` tokens holds `bytes_at_start`.

    From there each token adds `bytes_per_token`, up to `to_tokens`, where a window is full (None: for ever).
    """

    from_tokens: Tokens
    to_tokens: Tokens | None
    bytes_per_token: Bytes
    bytes_at_start: Bytes


class KvCost(msgspec.Struct, frozen=True, kw_only=True):
    """What caching costs. See docs/bytes.md for each definition."""

    bytes_per_token: Bytes
    bytes_per_sequence: Bytes
    bytes_per_token_per_gpu: Bytes
    bytes_per_sequence_per_gpu: Bytes
    offload_bytes_per_token: Bytes
    bytes_at: tuple[BytesAt, ...] = ()
    growth: tuple[Growth, ...] = ()


class Concurrency(msgspec.Struct, frozen=True, kw_only=True):
    """Sequences of `context_tokens` that the KV memory holds at once."""

    context_tokens: Tokens
    sequences: float


class GpuMemory(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU's memory: usable = weights + overhead + kv; total - usable is left alone.

    Where the user stated only what is left for the cache, the rest is None.
    """

    gpu: str
    total_bytes: Bytes | None
    usable_bytes: Bytes | None
    weights_bytes: Bytes | None
    overhead_bytes: Bytes | None
    kv_bytes: Bytes
    kv_tokens: Tokens
    overhead_provenance: Provenance = "assumed"
    overhead_source: str = ""
    max_concurrency: tuple[Concurrency, ...] = ()


class PageKind(msgspec.Struct, frozen=True, kw_only=True):
    """Layers of one rank whose pages are alike: `page_bytes` for a block of `block_tokens` tokens of one layer."""

    kind: LayerKind
    layers: Count
    block_tokens: Tokens
    page_bytes: Bytes
    window_tokens: Tokens | None = None


EngineValue: TypeAlias = int | float | str | tuple[PageKind, ...] | None


class MixClass(msgspec.Struct, frozen=True, kw_only=True):
    """Requests of one length of a workload: `share` of them are no longer than `tokens`, input and output together.

    `bytes` is what one such request holds, all ranks together; `sequences` how many the KV memory admits at once.
    """

    share: Ratio
    tokens: Tokens
    bytes: Bytes
    sequences: float | None = None


class MixLoad(msgspec.Struct, frozen=True, kw_only=True):
    """What was in the engine at once, `share` of the time no more: requests, their tokens, and the bytes these hold."""

    share: Ratio
    requests: float
    tokens: float
    bytes: Bytes
    fits: bool | None = None


class LengthMix(msgspec.Struct, frozen=True, kw_only=True):
    """What the requests of a workload need, length by length; `mean_bytes_at_most` bounds the mean over all of them."""

    requests: Count
    classes: tuple[MixClass, ...]
    mean_bytes_at_most: Bytes
    loads: tuple[MixLoad, ...] = ()


class MediaTokens(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens that one image, or one second of audio, adds to a request; None where the configs do not say."""

    kind: Literal["image", "audio"]
    count: float
    tokens_each: float | None
    tokens: Tokens | None
    source: str


class LogPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One start of an engine as its log says: `pool_bytes` of one rank hold `tokens` in requests of `context_tokens`.

    `stated_tokens` is the log's own token figure where its concurrency says another; `expected_tokens` what this
    estimate says for the same pool and length.
    """

    source: str
    context_tokens: Tokens
    tokens: Tokens
    pool_bytes: Bytes
    stated_tokens: Tokens | None = None
    expected_tokens: Tokens | None = None


class LogFit(msgspec.Struct, frozen=True, kw_only=True):
    """What start-up lines say a request costs on one rank: a fixed part, and a slope a token."""

    engine: str
    points: tuple[LogPoint, ...]
    bytes_per_token: float
    bytes_per_sequence: float
    worst_relative_error: float
    findings: tuple[Finding, ...] = ()


class Estimate(msgspec.Struct, frozen=True, kw_only=True):
    """What one token and one sequence cost in bytes, in the engine that will hold them.

    `engine_view` holds that engine's own figures under its own names, `engine_version` the version whose rules apply.
    `max_model_len` is the longest sequence that the engine is told to accept; None: whatever the model's config says.
    """

    model: ModelRef
    engine: str
    kv_dtype: str
    parallel: Parallel
    block_tokens: Tokens
    max_model_len: Tokens | None = None
    groups: tuple[CacheGroup, ...]
    kv: KvCost
    weights: Weights | None = None
    memory: GpuMemory | None = None
    compute: Compute | None = None
    mix: LengthMix | None = None
    media: tuple[MediaTokens, ...] = ()
    log: LogFit | None = None
    switches: Switches = msgspec.field(default_factory=Switches)
    engine_view: Mapping[str, EngineValue] = msgspec.field(default_factory=dict)
    engine_version: str = ""
    findings: tuple[Finding, ...] = ()


class Estimates(msgspec.Struct, frozen=True, kw_only=True):
    """Several models side by side, under the same options."""

    estimates: Annotated[tuple[Estimate, ...], msgspec.Meta(min_length=1)]
