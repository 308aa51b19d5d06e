"""Everything that crosses a stage border.

Each stage takes and returns frozen dataclasses from this module and nothing else; a document is one of
them in an envelope, saved as one JSON file. Names carry the unit (`_bytes`, `_tokens`, `_s`,
`_bytes_per_s`, `_ratio`), numbers are in base units, integers stay integers, and `None` means unknown,
never zero. Fields are only ever added; a change of meaning raises the schema number (see files.py, which reads
and writes them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any, Generic, Literal, TypeAlias, TypeVar

import msgspec

if TYPE_CHECKING:  # NumPy costs a tenth of a second that the readers of finished documents need not pay
    import numpy as np
    from numpy.typing import NDArray

    IntArray: TypeAlias = NDArray[np.integer[Any]]
    FloatArray: TypeAlias = NDArray[np.floating[Any]]

Bytes = Annotated[int, msgspec.Meta(ge=0, description="bytes")]
Tokens = Annotated[int, msgspec.Meta(ge=0, description="tokens")]
Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0, description="seconds")]
Ratio = Annotated[float, msgspec.Meta(ge=0, le=1, description="0..1")]
Rate = Annotated[float, msgspec.Meta(ge=0, description="bytes per second")]

Provenance = Literal["measured", "configured", "published", "assumed", "default"]
Severity = Literal["info", "warning", "error"]
LayerKind = Literal["full", "sliding", "chunked", "latent", "indexer", "recurrent", "cross", "draft"]
Recurrence = Literal[
    "mamba1", "mamba2", "delta", "kimi-delta", "lightning", "short-conv", "rg-lru", "rwkv", "mlstm", "cca"
]


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """Something a reader should know: `code` is stable and for scripts, `text` is for people."""

    severity: Severity
    code: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """One input to a conclusion: what it is, its value as printed, and where it came from."""

    what: str
    value: str
    provenance: Provenance
    source: str
    date: str | None = None


# ---------------------------------------------------------------------------------------------- model


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRef:
    """Which model: `id` as the user named it, `source` how it was found, `config_sha256` of the bytes read."""

    id: str
    source: Literal["hub", "path", "gguf", "catalogue"]
    model_type: str
    config_sha256: str
    max_context_tokens: Tokens | None = None
    revision: str | None = None
    date: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTensor:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCache:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Layer:
    """One kind of decoder layer: the caches it keeps of its own.

    None where it only maps (an MLP or expert block) or reads another layer's cache; `note` says which.
    """

    caches: tuple[LayerCache, ...] = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """What prefill costs: `linear_flops_per_token` and `attention_flops_per_token_sq`.

    Prefilling n tokens from nothing takes linear * n + attention * n² floating point operations
    (2 per multiply-add, causal half counted; windows shorter than n move from the square to the linear term).
    """

    linear_flops_per_token: float
    attention_flops_per_token_sq: float
    provenance: Provenance
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Weights:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class CatalogueModel:
    """One line of the built-in catalogue of models: where its facts are published, and when they were read."""

    name: str
    hub_id: str
    source: str
    date: str
    params: Count | None = None
    max_context_tokens: Tokens | None = None


# ---------------------------------------------------------------------------------------------- estimate


@dataclass(frozen=True, slots=True, kw_only=True)
class Parallel:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LlamaCppOptions:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class EstimateOptions:
    """What the user asks of an estimate; None leaves the engine's own default.

    `kv_memory_bytes` is what is left for the cache on each rank; else it follows from the GPU. `utilization` is the
    engine's own memory fraction in its own meaning. `encoder_tokens` is the length of the encoder's input where the
    model sets no fixed one. `kv_skip_layers` layers, half of them at each end, keep the model's dtype.
    """

    engine: str = "none"
    kv_dtype: str = "auto"
    parallel: Parallel = field(default_factory=Parallel)
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
    llama_cpp: LlamaCppOptions = field(default_factory=LlamaCppOptions)


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheGroup:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class BytesAt:
    """Bytes of `sequences` sequences of `tokens` tokens: in steady use, as admitted, with the hybrid manager off."""

    tokens: Tokens
    sequences: Count
    steady_bytes: Bytes
    admission_bytes: Bytes
    hybrid_off_bytes: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Growth:
    """One stretch of the curve of bytes against length: a sequence of `from_tokens` tokens holds `bytes_at_start`.

    From there each token adds `bytes_per_token`, up to `to_tokens`, where a window is full (None: for ever).
    """

    from_tokens: Tokens
    to_tokens: Tokens | None
    bytes_per_token: Bytes
    bytes_at_start: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCost:
    """What caching costs. See docs/bytes.md for each definition."""

    bytes_per_token: Bytes
    bytes_per_sequence: Bytes
    bytes_per_token_per_gpu: Bytes
    bytes_per_sequence_per_gpu: Bytes
    offload_bytes_per_token: Bytes
    bytes_at: tuple[BytesAt, ...] = ()
    growth: tuple[Growth, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Concurrency:
    """Sequences of `context_tokens` that the KV memory holds at once."""

    context_tokens: Tokens
    sequences: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuMemory:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class PageKind:
    """Layers of one rank whose pages are alike: `page_bytes` for a block of `block_tokens` tokens of one layer."""

    kind: LayerKind
    layers: Count
    block_tokens: Tokens
    page_bytes: Bytes
    window_tokens: Tokens | None = None


EngineValue: TypeAlias = int | float | str | tuple[PageKind, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class MixClass:
    """Requests of one length of a workload: `share` of them are no longer than `tokens`, input and output together.

    `bytes` is what one such request holds, all ranks together; `sequences` how many the KV memory admits at once.
    """

    share: Ratio
    tokens: Tokens
    bytes: Bytes
    sequences: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MixLoad:
    """What was in the engine at once, `share` of the time no more: requests, their tokens, and the bytes these hold."""

    share: Ratio
    requests: float
    tokens: float
    bytes: Bytes
    fits: bool | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthMix:
    """What the requests of a workload need, length by length; `mean_bytes_at_most` bounds the mean over all of them."""

    requests: Count
    classes: tuple[MixClass, ...]
    mean_bytes_at_most: Bytes
    loads: tuple[MixLoad, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class MediaTokens:
    """Tokens that one image, or one second of audio, adds to a request; None where the configs do not say."""

    kind: Literal["image", "audio"]
    count: float
    tokens_each: float | None
    tokens: Tokens | None
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class LogPoint:
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


@dataclass(frozen=True, slots=True, kw_only=True)
class LogFit:
    """What start-up lines say a request costs on one rank: a fixed part, and a slope a token."""

    engine: str
    points: tuple[LogPoint, ...]
    bytes_per_token: float
    bytes_per_sequence: float
    worst_relative_error: float
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """What one token and one sequence cost in bytes, in the engine that will hold them.

    `engine_view` holds that engine's own figures under its own names, `engine_version` the version whose rules apply.
    """

    model: ModelRef
    engine: str
    kv_dtype: str
    parallel: Parallel
    block_tokens: Tokens
    groups: tuple[CacheGroup, ...]
    kv: KvCost
    weights: Weights | None = None
    memory: GpuMemory | None = None
    compute: Compute | None = None
    mix: LengthMix | None = None
    media: tuple[MediaTokens, ...] = ()
    log: LogFit | None = None
    engine_view: Mapping[str, EngineValue] = field(default_factory=dict)
    engine_version: str = ""
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimates:
    """Several models side by side, under the same options."""

    estimates: Annotated[tuple[Estimate, ...], msgspec.Meta(min_length=1)]


# ---------------------------------------------------------------------------------------------- requests


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Requests:
    """A request log as one table, ordered by arrival; never saved, so it holds NumPy arrays.

    Request r has blocks `blocks[offsets[r]:offsets[r + 1]]`: dense ids from 0, each naming a whole prefix (one
    parent, one depth), `block_tokens` tokens each. The last one holds only the remainder of `input_tokens[r]` where
    `input_tokens[r]` is less than `blocks * block_tokens`; a tail without a block (full blocks only) is never reused.
    `output_tokens` is 0 and `duration_s` NaN where the log does not say; `time_s` is NaN for every request where the
    log has no time stamps (the order is then the file's). `tenant` and `session` index `tenants` and count from 0;
    -1 means the log names none. Where `hashed` is false the log has lengths only: there are no blocks, `block_tokens`
    is 1, and what it reuses is not known, which is not zero.
    """

    block_tokens: int
    time_s: FloatArray
    input_tokens: IntArray
    output_tokens: IntArray
    duration_s: FloatArray
    offsets: IntArray
    blocks: IntArray
    tenant: IntArray
    session: IntArray
    tenants: tuple[str, ...]
    sources: tuple[LogSource, ...]
    findings: tuple[Finding, ...] = ()
    hashed: bool = True


# ---------------------------------------------------------------------------------------------- workload


@dataclass(frozen=True, slots=True, kw_only=True)
class LogSource:
    """One log file as read: `skipped` lines were bad and left out because the user allowed it."""

    name: str
    format: str
    sha256: str
    requests: Count
    skipped: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """Hits of an LRU prefix cache of `capacity_blocks` blocks, cold start, whole log (and the workload's TTL, if any).

    `hit_ratio` is `hit_tokens` over the log's input tokens. `hit_requests` had at least one block hit.
    `reused_prefix_tokens_sq` is the sum over requests of (hit prefix in tokens)², for the quadratic part of
    recompute time. `fill_time_s` is how long novel blocks take to fill the cache (None: the log never fills it).
    `prefixes` splits the hits by prefix length, so that loading can be compared with recomputing per length.
    """

    capacity_blocks: Count
    capacity_tokens: Tokens
    hit_blocks: Count
    hit_tokens: Tokens
    hit_ratio: Ratio
    hit_requests: Count
    reused_prefix_tokens_sq: Count
    fill_time_s: Seconds | None = None
    prefixes: tuple[PrefixClass, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixClass:
    """Requests whose reused prefix is at most `at_most_tokens` long (and longer than the class before)."""

    at_most_tokens: Tokens
    requests: Count
    tokens: Tokens
    tokens_sq: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """Token-weighted reuse intervals: `tokens` were reused at most `at_most_s` after their last use."""

    at_most_s: Seconds
    tokens: Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkingSet:
    """Denning working set: distinct tokens referenced in a sliding window of `window_s` seconds.

    The mean is over the log's span, the maximum over the moments just after an arrival.
    """

    window_s: Seconds
    mean_tokens: Tokens
    max_tokens: Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Percentiles:
    """Percentiles of a quantity over time (active tokens) or over requests (lengths)."""

    p50: float
    p95: float
    p99: float
    max: float
    mean: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ServiceModel:
    """How long a request was held to be active: measured durations in the log, or a stated model."""

    provenance: Provenance
    prefill_tokens_per_s: float | None = None
    decode_s_per_token: float | None = None
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Tenant:
    """One tenant's share; `isolated_hit_tokens` is what it would reuse if it shared with nobody (infinite cache)."""

    tenant: str
    requests: Count
    input_tokens: Tokens
    hit_tokens: Tokens
    isolated_hit_tokens: Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """A stretch of the log: requests and tokens that arrived in [start_s, start_s + width_s), from the first arrival.

    `active_tokens` is the most held by requests in flight at once in the stretch; `working_set_tokens` are the
    distinct tokens referenced in the workload's `load_window_s` up to the stretch's end, None for a log of lengths.
    """

    start_s: Seconds
    width_s: Seconds
    requests: Count
    input_tokens: Tokens
    output_tokens: Tokens
    active_tokens: Tokens = 0
    working_set_tokens: Tokens | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """Requests that ought to share a prefix and diverge: where, why, and what it costs.

    `lost_tokens` is what an infinite cache would hit more if they did not diverge there.
    """

    kind: str
    position_tokens: Tokens
    requests: Count
    lost_tokens: Tokens
    fix: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """Hits of a cache of `capacity_blocks` blocks over a whole log or a named part; the ratio is by input tokens."""

    capacity_blocks: Count
    hit_requests: Count
    hit_blocks: Count
    hit_tokens: Tokens
    hit_ratio: Ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class HitRates:
    """What an infinite cache hits of one set of requests, by each definition in use, each with its own denominator.

    `token_hit_ratio` is hit tokens over input tokens, `block_hit_ratio` hit blocks over block references,
    `request_any_hit_ratio` requests with at least one block hit over requests. `measured_from` is the first request
    counted, from 0; those before it only warm the cache.
    """

    measured_from: Count
    requests: Count
    block_references: Count
    input_tokens: Tokens
    hit_requests: Count
    hit_blocks: Count
    hit_tokens: Tokens
    token_hit_ratio: Ratio
    block_hit_ratio: Ratio
    request_any_hit_ratio: Ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCurve:
    """Hits under another replacement policy at chosen capacities, cold start; all evict leaves only."""

    policy: str
    points: tuple[Hits, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Isolation:
    """What is lost if tenants share nothing: hits and blocks of an infinite cache, and the curve of one LRU pool."""

    hit_tokens: Tokens
    isolated_hit_tokens: Tokens
    blocks: Count
    isolated_blocks: Count
    curve: tuple[Hits, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Granularity:
    """Hits of an infinite cache that reuses whole granules of so many tokens only, last token computed.

    A granule is a larger block, or the distance between the checkpoints that a model with recurrent state keeps.
    """

    granule_tokens: Tokens
    hit_tokens: Tokens
    hit_ratio: Ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Replicas:
    """The log spread over `replicas` servers, each with a cache of its own; capacities are those of one server.

    `ceiling` is for infinite caches. `load_imbalance` is the input tokens of the busiest server over the mean of all,
    `computed_imbalance` the same for the tokens that are left to compute under the ceiling.
    """

    replicas: Count
    routing: str
    ceiling: Hits
    load_imbalance: float
    computed_imbalance: float
    curve: tuple[Hits, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """What one tier of a stack of LRU caches adds, and what is written into it over the whole log, cold start.

    Inclusive: every tier holds what it has room for, whatever is above it. Exclusive: a tier takes what the one above
    drops, and a hit moves the block back to the top.
    """

    arrangement: Literal["inclusive", "exclusive"]
    level: Count
    capacity_blocks: Count
    hit_blocks: Count
    hit_tokens: Tokens
    written_blocks: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedPrefix:
    """A stretch of prompt, from its first to its last token, that the same `requests` requests share.

    `saved_tokens` is what an infinite cache saves with it, `first_request` the first request that has it, from 0.
    """

    from_tokens: Tokens
    to_tokens: Tokens
    requests: Count
    saved_tokens: Tokens
    first_request: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class HotSet:
    """The fewest blocks that give `hit_share_ratio` of the block hits of an infinite cache."""

    hit_share_ratio: Ratio
    blocks: Count


@dataclass(frozen=True, slots=True, kw_only=True)
class ReuseSource:
    """Tokens whose last use was by `who`: the same session, the same tenant, another tenant, or unknown."""

    who: Literal["same session", "same tenant", "another tenant", "unknown"]
    tokens: Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Arrivals:
    """What arrived in one hour of the day over the whole log: UTC where time stamps are dates, else from its start."""

    hour: Annotated[int, msgspec.Meta(ge=0, le=23)]
    requests: Count
    input_tokens: Tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledPoint:
    """Block and token hit ratios of an LRU cache, estimated, with the standard error of the block hit ratio."""

    capacity_blocks: Count
    block_hit_ratio: Ratio
    token_hit_ratio: Ratio
    standard_error_ratio: Ratio


@dataclass(frozen=True, slots=True, kw_only=True)
class Sampling:
    """A curve from a sample of the blocks: the hottest ones all, one in 1 / `rate` of the others.

    The error is measured: the sample is split into `samples` that share no block but the hot ones, and each gives a
    curve of its own.
    """

    rate: Ratio
    samples: Count
    hot_blocks: Count
    block_references: Count
    sampled_references: Count
    points: tuple[SampledPoint, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """The earlier period that this workload is held against, by its own figures.

    `known_hit_ratio` is the share of the later period's input tokens that an infinite cache hits that is warm from the
    earlier one, to hold against the later one's own ceiling, which starts cold; None where it cannot be known, as the
    two logs do not follow each other in time.
    """

    sources: tuple[LogSource, ...]
    requests: Count
    span_s: Seconds | None
    input_tokens: Tokens
    output_tokens: Tokens
    input_lengths: Percentiles
    ceiling_hit_ratio: Ratio
    known_hit_ratio: Ratio | None
    curve: tuple[Hits, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """What a request log reuses, in tokens, free of any model. See docs/workload.md for each definition.

    `novel_tokens` are the input tokens that even an infinite cache has to compute, `one_off_tokens_ratio` the share of
    them that nothing ever reuses. `input_tokens_sq` is the sum over requests of (input tokens)², for the quadratic part
    of prefill time. With `ttl_s` set, the curve is that of an LRU cache that also drops what was not used
    for so long; the two ceilings, the intervals, the tenants and the what-ifs are free of it. What needs time stamps
    is None or empty where the log has none. A log of lengths only says nothing of reuse: then there is no curve, and
    the tokens and ratios that speak of reuse are None.

    `cold` counts every request from an empty cache, `warm` (and `warm_curve`) only the later ones while the earlier
    warm the cache. `without_one_off` is LRU that does not store the blocks that are never used again.
    `prompt_end_hit_ratio` is the ceiling where a model's state is kept only at the ends of prompts,
    `decoded_ceiling_hit_ratio` an upper bound of the ceiling where decoded blocks are cached too.
    """

    sources: tuple[LogSource, ...]
    requests: Count
    span_s: Seconds | None
    block_tokens: Tokens
    input_tokens: Tokens
    output_tokens: Tokens
    novel_tokens: Tokens | None
    block_references: Count
    unique_blocks: Count
    ceiling_hit_ratio: Ratio | None
    engine_hit_ratio: Ratio | None
    one_off_tokens_ratio: Ratio | None
    curve: tuple[CurvePoint, ...]
    active_tokens: Percentiles | None
    active_requests: Percentiles | None
    service: ServiceModel | None
    input_lengths: Percentiles
    output_lengths: Percentiles
    input_tokens_sq: Count | None = None
    ttl_s: Seconds | None = None
    load_window_s: Seconds | None = None
    cold: HitRates | None = None
    warm: HitRates | None = None
    warm_curve: tuple[Hits, ...] = ()
    optimal: tuple[CurvePoint, ...] = ()
    policies: tuple[PolicyCurve, ...] = ()
    reuse_intervals: tuple[Interval, ...] = ()
    reused_prefix_lengths: tuple[PrefixClass, ...] = ()
    working_set: tuple[WorkingSet, ...] = ()
    load: tuple[Load, ...] = ()
    arrivals: tuple[Arrivals, ...] = ()
    tenants: tuple[Tenant, ...] = ()
    isolation: Isolation | None = None
    reused_from: tuple[ReuseSource, ...] = ()
    top_prefixes: tuple[SharedPrefix, ...] = ()
    hot_set: tuple[HotSet, ...] = ()
    without_one_off: tuple[Hits, ...] = ()
    granularities: tuple[Granularity, ...] = ()
    prompt_end_hit_ratio: Ratio | None = None
    decoded_ceiling_hit_ratio: Ratio | None = None
    replicas: tuple[Replicas, ...] = ()
    tiers: tuple[Tier, ...] = ()
    compared: Comparison | None = None
    drift: tuple[Drift, ...] = ()
    findings: tuple[Finding, ...] = ()


# ---------------------------------------------------------------------------------------------- probe


@dataclass(frozen=True, slots=True, kw_only=True)
class KvBlock:
    """How a model's cache comes in pieces on a disk: a block of `block_bytes` from `pieces` tensors, one a layer.

    `chunk_bytes` are the 256 tokens that some tiers keep in a file. `source` says what they are of.
    """

    block_bytes: Bytes
    pieces: Count
    chunk_bytes: Bytes
    source: str


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelConfig:
    """A model with its config's own JSON as published, from which it can be built."""

    model: Model
    raw: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeOptions:
    """What to measure and what it may cost. `only` picks the parts (probe.PARTS); empty means all that is there.

    `disks` are folders, one a drive. `granule_bytes` adds sizes to the sweep, such as the bytes of one KV block.
    `file_bytes` fixes the size of the scratch file; None chooses it from the write budget and the free space. `kv`
    shapes the engines' cells; None takes a typical model. `sweep_only` leaves those and the comparisons out.
    `allow_memory` measures a folder that lies in memory (tmpfs) instead of refusing it; every cell is flagged.
    `model` is what to measure the prefill of, at `prefill_tokens` (none: lengths that double), here or, where `server`
    is the address of an OpenAI-compatible server, on that server.
    """

    disks: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    budget_s: Seconds = 60.0
    write_budget_bytes: Bytes = 8 * 1024**3
    file_bytes: Bytes | None = None
    granule_bytes: tuple[int, ...] = ()
    kv: KvBlock | None = None
    sweep_only: bool = False
    allow_memory: bool = False
    model: ModelConfig | None = None
    server: str | None = None
    prefill_tokens: tuple[int, ...] = ()
    seed: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class NumaNode:
    """One memory node of the host."""

    node: Count
    total_bytes: Bytes
    free_bytes: Bytes
    cpus: str


@dataclass(frozen=True, slots=True, kw_only=True)
class CgroupLevel:
    """Memory limit of one cgroup on the path from the process to the root; None means no limit at this level."""

    path: str
    limit_bytes: Bytes | None
    current_bytes: Bytes | None
    reclaimable_bytes: Bytes | None


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuDevice:
    """One GPU as its driver describes it; None is unknown, never a guess."""

    index: Count
    name: str
    total_bytes: Bytes
    free_bytes: Bytes
    pci: str | None = None
    numa_node: int | None = None
    link_generation: int | None = None
    link_width: int | None = None
    max_link_generation: int | None = None
    max_link_width: int | None = None
    driver: str | None = None
    compute_capability: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Host:
    """What the machine is and what it allows. `usable_memory_bytes` honours every cgroup level and clean page cache.

    `cores` are those this process may run on. `memlock_bytes` is the soft limit of mlock, None where there is none; it
    does not bound what CUDA page-locks. `container` names the kind (docker, kubernetes, wsl2, …), None where nothing
    tells of one. `gpu_status` says in words what was found, and why where nothing was.
    """

    system: str
    kernel: str
    cpu: str
    cores: Count
    memory_total_bytes: Bytes
    memory_available_bytes: Bytes
    usable_memory_bytes: Bytes
    container: str | None = None
    cgroups: tuple[CgroupLevel, ...] = ()
    memlock_bytes: Bytes | None = None
    shm_total_bytes: Bytes | None = None
    shm_free_bytes: Bytes | None = None
    numa: tuple[NumaNode, ...] = ()
    gpus: tuple[GpuDevice, ...] = ()
    gpu_status: str = "no GPU"


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One measured cell of one link: `granule_bytes` a piece, `depth` pieces in flight.

    `source` and `target` are "host", "gpu<index>" or "disk:<folder>". Rates are percentiles over the cell's windows of
    time (disk) or trains of copies (GPU), latencies over single transfers; `samples` transfers were timed in all. GPU
    cells have depth 1: one stream, whose copies run one after another. `concurrent` names what else ran at the same
    time ("none", "opposite direction", "decode", …). `preset` names the engine whose way of moving data it is
    ("vllm-disk", "vllm-fs", "lmcache"; "sustained" for a long write; "batch" and "gather" for GPU pieces moved by one
    call or by a kernel), None a plain cell. `flags` say why a planner must not trust the cell ("page-cache",
    "unproven-direct", "first-write", "pageable", "remote-node", "not-steady", "corrupt", "comparison", …); an empty
    list is a clean measurement.
    """

    source: str
    target: str
    direction: Literal["read", "write", "h2d", "d2h", "mixed"]
    granule_bytes: Bytes
    depth: Count
    samples: Count
    p5_bytes_per_s: Rate
    p50_bytes_per_s: Rate
    p95_bytes_per_s: Rate
    p50_latency_s: Seconds
    p99_latency_s: Seconds
    method: str
    concurrent: str = "none"
    cpu_s_per_gb: float | None = None
    p95_latency_s: Seconds | None = None
    preset: str | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class BlockDevice:
    """One physical or virtual drive under a folder, as sysfs describes it; None is unknown.

    `link` is the PCI Express link as it runs, `max_link` the fastest it could, `bridges` the ports above it, the root
    first. `used_ratio` and `lifetime_written_bytes` are what an NVMe drive says of its own wear, and
    `rated_endurance_bytes` what it says may be written in its life. They need the right to ask the drive.
    """

    name: str
    size_bytes: Bytes | None = None
    model: str | None = None
    rotational: bool | None = None
    pci: str | None = None
    link: str | None = None
    max_link: str | None = None
    link_bytes_per_s: Rate | None = None
    bridges: tuple[str, ...] = ()
    numa_node: int | None = None
    scheduler: str | None = None
    requests: Count | None = None
    max_io_bytes: Bytes | None = None
    max_segments: Count | None = None
    logical_block_bytes: Bytes | None = None
    used_ratio: float | None = None
    lifetime_written_bytes: Bytes | None = None
    rated_endurance_bytes: Bytes | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """One folder's drive: what it is, how much is free, and whether I/O to it was proven to bypass the page cache.

    `device` is what the folder is mounted from, `members` the drives below it (several under RAID or LVM).
    `scratch_bytes` is the size of the file that was measured.
    """

    path: str
    filesystem: str
    device: str
    total_bytes: Bytes
    free_bytes: Bytes
    direct: Literal["proven", "unproven", "no"]
    proof: tuple[str, ...] = ()
    model: str | None = None
    rotational: bool | None = None
    rated_endurance_bytes: Bytes | None = None
    members: tuple[BlockDevice, ...] = ()
    scratch_bytes: Bytes | None = None
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pinning:
    """What page-locking host memory for one GPU gave: all of `requested_bytes`, or `pinned_bytes` and why no more.

    `largest_bytes` is the largest single registration that worked. `touch_s` is what first touch of `requested_bytes`
    took, `register_s` what page-locking `pinned_bytes` of them took.
    """

    gpu: Count
    requested_bytes: Bytes
    pinned_bytes: Bytes
    largest_bytes: Bytes
    touch_s: Seconds
    register_s: Seconds
    stopped: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Contention:
    """Copies of `granule_bytes` pieces beside a decode-like load on one GPU: what each takes from the other.

    `steps` steps ran while copies did. `load` says what a step was. Flags as for links.
    """

    gpu: Count
    direction: Literal["h2d", "d2h"]
    mechanism: str
    granule_bytes: Bytes
    copy_alone_bytes_per_s: Rate
    copy_loaded_bytes_per_s: Rate
    step_alone_p50_s: Seconds
    step_alone_p99_s: Seconds
    step_loaded_p50_s: Seconds
    step_loaded_p99_s: Seconds
    steps: Count
    load: str
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Pipeline:
    """Blocks between one GPU and one drive through `slots` page-locked buffers: "store" to the drive, "load" from it.

    Rates of each stage alone, of one block after another (`serial`), and of both stages at once (`overlapped`), whose
    share of the slower stage is `overlap_ratio`.
    """

    gpu: Count
    disk: str
    direction: Literal["store", "load"]
    slots: Count
    block_bytes: Bytes
    blocks: Count
    copy_bytes_per_s: Rate
    disk_bytes_per_s: Rate
    serial_bytes_per_s: Rate
    overlapped_bytes_per_s: Rate
    overlap_ratio: float
    flags: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefillPoint:
    """One measured prefill: `tokens` new tokens behind `prefix_tokens` cached ones took `seconds`."""

    tokens: Tokens
    prefix_tokens: Tokens
    seconds: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefill:
    """Recompute cost of tokens [p, n): t0 + a * (n - p) + b * (n² - p²) seconds of one replica's GPUs.

    `low_ratio` and `high_ratio` bound the true time as multiples of this; `worst_relative_error` is that of the fit
    over `points`. `gpus` is how many GPUs ran it together: None for a processor, or where a server does not say.
    """

    model: str
    device: str
    t0_s: Seconds
    a_s_per_token: Seconds
    b_s_per_token_sq: Seconds
    provenance: Provenance
    source: str
    points: tuple[PrefillPoint, ...] = ()
    worst_relative_error: float | None = None
    low_ratio: float = 1.0
    high_ratio: float = 1.0
    max_measured_tokens: Tokens | None = None
    gpus: Count | None = None

    def seconds(self, tokens: float, prefix: float = 0) -> float:
        """Seconds to prefill `tokens` tokens of which the first `prefix` are cached."""
        new, square = tokens - prefix, tokens**2 - prefix**2
        return self.t0_s + self.a_s_per_token * new + self.b_s_per_token_sq * square


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Measurements of one host."""

    host: Host
    links: tuple[Link, ...] = ()
    capacity: tuple[Disk, ...] = ()
    pinning: tuple[Pinning, ...] = ()
    prefill: tuple[Prefill, ...] = ()
    contention: tuple[Contention, ...] = ()
    pipeline: tuple[Pipeline, ...] = ()
    written_bytes: Bytes = 0
    wall_s: Seconds = 0.0
    findings: tuple[Finding, ...] = ()


# ---------------------------------------------------------------------------------------------- plan


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSpec:
    """A GPU of the catalogue: published facts with their source and date.

    `prefill_efficiency` is the (low, middle, high) share of `flops` that real servers reach in prefill.
    """

    name: str
    memory_bytes: Bytes
    memory_bytes_per_s: Rate
    flops: Mapping[str, float]
    link_bytes_per_s: Rate
    achievable_link_bytes_per_s: Rate
    prefill_efficiency: tuple[float, float, float]
    source: str
    date: str
    aliases: tuple[str, ...] = ()


PriceView = Literal["owned", "bought", "rented"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prices:
    """Prices that the user confirmed, in US dollars; GB are 10^9 bytes. None: not given, and nothing is said with it.

    Bought memory and drives are worn over their life; `disk_writes_per_day` is how often a drive may be written whole
    each day of its life.
    """

    date: str
    source: str
    gpu_usd_per_hour: float
    memory_usd_per_gb: float | None = None
    memory_life_s: Seconds | None = None
    memory_usd_per_gb_hour: float | None = None
    disk_usd_per_gb: float | None = None
    disk_life_s: Seconds | None = None
    disk_usd_per_gb_hour: float | None = None
    disk_writes_per_day: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Reserve:
    """Host memory of one replica that something else takes, as the operator states it, in place of an assumption."""

    name: str
    bytes: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """What the operator allows and wants; every default is stated in the plan's evidence.

    `engine` rules where the estimate is engine-free, `offload` names the layer in it that keeps the tiers.
    `gpu_memory_utilization` None is the engine's own default. `growth` multiplies the log's demand. A tier is refused
    below `minimum_gain_ratio` of the GPU's prefill time, and the smallest size within `tolerance_ratio` of the best
    is taken. `host_memory_bytes` replaces what the probe found usable (never above it), `headroom_ratio` of it stays
    free, `reserves` state what else takes of it. `replicas` share the log as `routing` says, `replicas_per_host` of
    them on one host (None: as many as its GPUs hold). `share` says whose cached blocks a request may reuse:
    everybody's, its own tenant's, nobody's. The engine restarts every `restart_every_s` (None: not in the log's
    time). `host_link_bytes_per_s` is per GPU. A tier takes `expansion` times the bytes that the estimate states. A
    disk tier has to leave the drive `minimum_disk_life_s` of rated writes, holds what is computed or, with "second-
    use", what is computed again, and may count `disk_own_bytes` of its folder as its own. `price_view` says what
    memory costs when a size is chosen: nothing, its price over its life, or its rent.
    """

    engine: str = "vllm"
    gpu_memory_utilization: Ratio | None = None
    active_percentile: Literal["p50", "p95", "p99", "max"] = "p99"
    growth: Annotated[float, msgspec.Meta(gt=0)] = 1.0
    headroom_ratio: Ratio = 0.1
    tolerance_ratio: Ratio = 0.02
    minimum_gain_ratio: Ratio = 0.02
    host_memory_bytes: Bytes | None = None
    disk_bytes: Bytes | None = None
    forbid_disk: bool = False
    forbid_host: bool = False
    ttl_s: Seconds | None = None
    slo_ttft_s: Seconds | None = None
    replicas: Count = 1
    replicas_per_host: Count | None = None
    host_link_bytes_per_s: Rate | None = None
    allow_flagged_links: bool = False
    minimum_disk_life_s: Seconds = 31_536_000.0
    routing: Literal["affinity", "session", "round-robin"] = "affinity"
    share: Literal["all", "tenant", "none"] = "all"
    restart_every_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    expansion: Annotated[float, msgspec.Meta(ge=1)] = 1.0
    disk_admission: Literal["all", "second-use"] = "all"
    disk_own_bytes: Bytes = 0
    reserves: tuple[Reserve, ...] = ()
    offload: Literal["native", "lmcache", "lmcache-server"] = "native"
    price_view: PriceView = "owned"


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetItem:
    """One line of a budget."""

    name: str
    bytes: Bytes
    provenance: Provenance
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Budget:
    """Memory of one tier for reusable KV cache: what to set, what it holds, and the hit ratio up to and with it.

    `requested_bytes` is what the flag says, `usable_bytes` what the engine can fill, `bytes` what adds reuse beyond
    the tiers above (an inclusive tier repeats what the GPU holds). `items` account for all of `limit_bytes`.
    """

    bytes: Bytes
    requested_bytes: Bytes
    usable_bytes: Bytes
    tokens: Tokens
    hit_ratio: Ratio
    why: str
    limit_bytes: Bytes | None = None
    items: tuple[BudgetItem, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Budgets:
    """The three budgets: reusable blocks on the GPUs of one replica, in host memory, on disk."""

    gpu: Budget
    host: Budget
    disk: Budget


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """One option with its arithmetic: GPU seconds an hour that recomputing would cost more than with no tier at all.

    `hold_s_per_hour` is what the memory costs, as GPU time that the same money buys, under the policy's price view.
    """

    name: Literal["nothing", "recommended", "knee", "largest"]
    host_bytes: Bytes
    disk_bytes: Bytes
    hit_ratio: Ratio
    saved_s_per_hour: float
    load_s_per_hour: float
    store_s_per_hour: float
    net_s_per_hour: float
    stored_bytes_per_hour: float
    loaded_bytes_per_hour: float
    feasible: bool
    why: str
    hold_s_per_hour: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class BreakEven:
    """Recomputing against loading a prefix of `prefix_tokens`; `verdict` allows 20 % for a tie."""

    tier: Literal["host", "disk"]
    prefix_tokens: Tokens
    recompute_s: Seconds
    load_s: Seconds
    break_even_bytes_per_s: Rate
    link_bytes_per_s: Rate
    verdict: Literal["load", "recompute", "measure"]


@dataclass(frozen=True, slots=True, kw_only=True)
class TierPoint:
    """One point of the benefit curve: a tier of `bytes` beside the GPU cache."""

    tier: Literal["host", "disk"]
    bytes: Bytes
    tokens: Tokens
    hit_ratio: Ratio
    net_s_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Benefit:
    """What the recommendation gains over nothing. Rates are requests per second one replica can sustain.

    `gpu_hours_per_month` are freed on all replicas together (730 hours a month), `usd_per_hour` is what the GPU time
    that one replica frees costs at the price given, before memory is paid.
    """

    gpu_s_per_hour_saved: float
    gpu_busy_ratio_off: float
    gpu_busy_ratio_on: float
    capacity_gain_ratio: float
    sustainable_rate_off: float | None = None
    sustainable_rate_on: float | None = None
    usd_per_hour: float | None = None
    gpu_hours_per_month: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Limit:
    """A bound of the machine or the policy, and what the plan needs of it."""

    name: str
    limit: float
    needed: float
    unit: Literal["bytes", "bytes_per_s", "s", "ratio"]
    ok: bool
    why: str
    provenance: Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class Sensitivity:
    """How the recommendation moves when one input does."""

    what: str
    change: str
    host_bytes: Bytes
    disk_bytes: Bytes
    net_s_per_hour: float


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyCost:
    """What one restriction of the policy gives up, as the difference to the same plan without it, for one replica."""

    policy: str
    hit_ratio: Ratio
    hit_tokens_per_hour: float
    gpu_s_per_hour: float
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    """One view of the money, for one replica an hour; prefill alone, decoding is not counted.

    `gpu` is the GPU time that the recommendation frees, `hold` what its memory and space cost, `wear` what its writes
    take of a bought drive beyond that. The last two sizes are what this view alone would choose.
    """

    view: PriceView
    gpu_usd_per_hour: float
    hold_usd_per_hour: float
    wear_usd_per_hour: float
    net_usd_per_hour: float
    usd_per_million_input_tokens_off: float
    usd_per_million_input_tokens_on: float
    best_host_bytes: Bytes
    best_disk_bytes: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepFor:
    """Break-even reuse interval: a prefix that is reused sooner than `interval_s` is cheaper kept than recomputed.

    None: it may be kept for ever, since keeping costs nothing; 0: never, since loading costs more than recomputing.
    `write_ratio` is what writing it once wears off a bought drive, over what recomputing it once costs.
    """

    tier: Literal["host", "disk"]
    view: PriceView
    prefix_tokens: Tokens
    recompute_usd_per_million_tokens: float
    interval_s: float | None
    write_ratio: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WarmUp:
    """A restart of the engine: whether a tier survives it, how long it takes to fill again, what that costs at most."""

    tier: Literal["gpu", "host", "disk"]
    survives: bool
    fill_s: Seconds | None
    lost_gpu_s: float | None
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeBytes:
    """Host memory that the plan takes on one NUMA node, all replicas of the host together."""

    node: Count
    bytes: Bytes
    available_bytes: Bytes
    gpus: tuple[Count, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class WhatIf:
    """The plan made again with some inputs changed; `limits` names those that do not hold then."""

    change: str
    verdict: Literal["nothing", "host", "disk", "host+disk"]
    gpu_bytes: Bytes
    host_bytes: Bytes
    disk_bytes: Bytes
    hit_ratio: Ratio
    gpu_busy_ratio: float
    net_s_per_hour: float
    grade: Literal["A", "B", "C"]
    limits: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Changed:
    """One input or figure that differs from an earlier plan, as printed."""

    what: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Against:
    """An earlier plan beside this one.

    `results` are the figures that moved, `inputs` every input that differs, and `causes` the earlier plan made again
    with one of its inputs replaced by the new one at a time: what that alone would have changed.
    """

    created: str
    decision: str
    results: tuple[Changed, ...]
    inputs: tuple[Changed, ...]
    causes: tuple[WhatIf, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Confidence:
    """A: links measured, a week of logs, live A/B. B: links measured and logs. C: any default or assumed input."""

    grade: Literal["A", "B", "C"]
    reasons: tuple[str, ...]
    raise_by: tuple[str, ...]


T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class Document(Generic[T]):
    """One stage's result in its envelope: `schema` is the version of the kind, `kvplan` the tool's version."""

    kind: str
    schema: int
    kvplan: str
    created: str
    data: T


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanInputs:
    """The whole documents a plan was made from, so that one file is enough to render and to check it."""

    estimate: Document[Estimate]
    workload: Document[Workload]
    probe: Document[Probe] | None = None
    gpu: GpuSpec | None = None
    prices: Prices | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """GPU, host and disk budgets, with the arithmetic that led there."""

    decision: str
    verdict: Literal["nothing", "host", "disk", "host+disk"]
    inputs: PlanInputs
    policy: Policy
    prefill: Prefill
    budgets: Budgets
    alternatives: tuple[Alternative, ...]
    break_even: tuple[BreakEven, ...]
    curve: tuple[TierPoint, ...]
    benefit: Benefit
    limits: tuple[Limit, ...]
    sensitivity: tuple[Sensitivity, ...]
    config: Mapping[str, str]
    confidence: Confidence
    evidence: tuple[Evidence, ...]
    policy_costs: tuple[PolicyCost, ...] = ()
    costs: tuple[Cost, ...] = ()
    keep_for: tuple[KeepFor, ...] = ()
    warm_up: tuple[WarmUp, ...] = ()
    numa: tuple[NodeBytes, ...] = ()
    what_if: tuple[WhatIf, ...] = ()
    against: Against | None = None
    findings: tuple[Finding, ...] = ()


# ---------------------------------------------------------------------------------------------- simulation


@dataclass(frozen=True, slots=True, kw_only=True)
class Arm:
    """One way to run the same schedule: tier sizes of one replica and what rules them.

    `store` says when a block is copied to the host: when it is complete or when the GPU drops it. `in_flight` says what
    a request does about a prefix that another one is still computing or loading: compute it again, or wait. A host
    block that nobody used for `ttl_s` is dropped, on every tier.
    """

    name: str
    host_bytes: Bytes = 0
    disk_bytes: Bytes = 0
    policy: Literal["lru", "arc"] = "lru"
    admission: Literal["all", "second-use"] = "all"
    disk_admission: Literal["all", "second-use"] = "all"
    store: Literal["write-through", "on-eviction"] = "write-through"
    ttl_s: Seconds | None = None
    share: Literal["all", "tenant", "none"] = "all"
    in_flight: Literal["recompute", "wait"] = "recompute"
    host_link_bytes_per_s: Annotated[float, msgspec.Meta(gt=0)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """Something that happens `at_s` seconds after the first arrival, to every replica, in every arm alike.

    restart: the engine is away for `value` seconds and its GPU cache is gone; tiers in `survives` keep their blocks.
    tier-lost: `tier` loses every block and takes no more. link: the link of `tier` runs at `value` times its rate from
    then on. load-failure: the share `value` of loads fails from then on. client-gone: request `request` is given up.
    """

    at_s: Seconds
    kind: Literal["restart", "tier-lost", "link", "load-failure", "client-gone"]
    tier: Literal["host", "disk"] = "host"
    value: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    survives: tuple[Literal["host", "disk"], ...] = ()
    request: Count | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LinkModel:
    """A link that carries one transfer after the other in each direction: `latency_s` each, then its bytes."""

    load_bytes_per_s: Rate
    store_bytes_per_s: Rate
    latency_s: Seconds = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineModel:
    """One replica as the simulation sees it. Tiers and links move `tier_bytes_per_token`, of all ranks together.

    A step takes t0 + max(a * tokens + b * sum of chunk * (2 * context + chunk), `weights_s`) + cached tokens read by
    decoding * `kv_s_per_token` seconds, with t0, a and b of recomputing.
    """

    kv_tokens: Tokens
    block_tokens: Tokens
    tier_bytes_per_token: Bytes
    t0_s: Seconds
    a_s_per_token: Seconds
    b_s_per_token_sq: Seconds
    weights_s: Seconds
    kv_s_per_token: Seconds
    max_num_batched_tokens: Count = 8192
    max_num_seqs: Count = 256
    replicas: Count = 1
    routing: Literal["affinity", "session", "round-robin"] = "affinity"
    host_link: LinkModel | None = None
    disk_link: LinkModel | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Spread:
    """Mean and nearest-rank percentiles of a time."""

    mean: Seconds
    p50: Seconds
    p90: Seconds
    p99: Seconds
    max: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class TierUse:
    """What one tier did, all replicas together; removals by reason. The GPU neither loads nor stores by itself.

    `blocks` are in the tier at the end: `inserted_blocks` less all removals.
    """

    tier: Literal["gpu", "host", "disk"]
    capacity_blocks: Count
    hit_tokens: Tokens
    blocks: Count
    inserted_blocks: Count
    removed_blocks: Mapping[str, int]
    refused_blocks: Mapping[str, int]
    loaded_bytes: Bytes = 0
    stored_bytes: Bytes = 0
    load_busy_ratio: Ratio = 0.0
    store_busy_ratio: Ratio = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """Requests that arrived from `from_s` on, a tenth of the schedule: how a cold start warms and a fault shows."""

    from_s: Seconds
    requests: Count
    hit_ratio: Ratio
    ttft_p90_s: Seconds | None
    host_bytes: Bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class SustainableRate:
    """The highest rate found at which `share` of requests have their first token within `slo_ttft_s`.

    Between `requests_per_s` and `fails_at`, the lowest rate that failed. `requests_per_s` None: no rate tried held;
    `fails_at` None: every rate tried held, and the true one is higher.
    """

    slo_ttft_s: Seconds
    share: Ratio
    requests: Count
    points: Count
    requests_per_s: float | None
    fails_at: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ArmResult:
    """What became of the schedule in one arm. `completed` + `cancelled` (by reason) are all that were submitted.

    `hit_ratio` is hit tokens at first admission over the input tokens of all requests admitted, in every arm alike.
    """

    arm: Arm
    submitted: Count
    completed: Count
    cancelled: Mapping[str, int]
    input_tokens: Tokens
    hit_ratio: Ratio
    ttft: Spread | None
    queue_wait: Spread | None
    load_wait: Spread | None
    mean_in_system: float
    makespan_s: Seconds
    gpu_busy_ratio: Ratio
    prefill_tokens: Tokens
    steps: Count
    preemptions: Count
    failed_loads: Count
    tiers: tuple[TierUse, ...]
    slices: tuple[Slice, ...]
    sustainable: SustainableRate | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Simulation:
    """One schedule, played in several arms by the same model.

    True times are expected between `time_low_ratio` and `time_high_ratio` times those stated; differences between arms
    share most of that error. `rate_scale` is how much faster than logged the requests arrive.
    """

    sources: tuple[LogSource, ...]
    model: ModelRef
    engine: EngineModel
    requests: Count
    rate_scale: float
    requests_per_s: float
    arms: tuple[ArmResult, ...]
    faults: tuple[Fault, ...]
    time_low_ratio: float
    time_high_ratio: float
    band: str
    not_modelled: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    findings: tuple[Finding, ...] = ()


# ---------------------------------------------------------------------------------------------- residency


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidentModel:
    """One model of several that share a machine: what it takes while loaded, and how long loading takes.

    `kv_bytes` is the KV cache and `compute_bytes` everything else that is not weights. `load_s` and `warm_load_s`,
    where given, stand for what the read rate would say. Models of one `group` are loaded and evicted together; a
    `pinned` one is never evicted once loaded.
    """

    name: str
    weights_bytes: Bytes
    kv_bytes: Bytes = 0
    compute_bytes: Bytes = 0
    load_s: Seconds | None = None
    warm_load_s: Seconds | None = None
    stop_s: Seconds = 0.0
    group: str | None = None
    pinned: bool = False
    kv_bytes_per_token: Bytes | None = None
    prefill_tokens_per_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    decode_tokens_per_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    path: str | None = None

    @property
    def total_bytes(self) -> int:
        """Bytes the model takes while it is loaded."""
        return self.weights_bytes + self.kv_bytes + self.compute_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What the models share. `memory_bytes` is where they are loaded, `ram_bytes` the host memory that files are read
    through, of which `host_kv_bytes` are taken by a KV tier and `reserved_bytes` by everything else.

    `pattern_ratio` is the share of the sequential `read_bytes_per_s` that loading reaches: 0.67 through mmap, 1.0
    direct. Direct reads leave nothing in the page cache. `warm_bytes_per_s` is the rate from the page cache.
    """

    memory_bytes: Bytes
    read_bytes_per_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    pattern: Literal["mmap", "direct"] = "mmap"
    pattern_ratio: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    warm_bytes_per_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    ram_bytes: Bytes | None = None
    host_kv_bytes: Bytes = 0
    reserved_bytes: Bytes = 0
    kv_save_bytes_per_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    kv_restore_bytes_per_s: Annotated[float, msgspec.Meta(gt=0)] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencyPolicy:
    """Who leaves when not every model fits.

    `max_models` counts models and ignores bytes, as llama.cpp's router does; `budget_bytes` admits on bytes; either,
    both or neither. `protect_busy` False evicts the least recently used model whatever it is doing. An idle model is
    unloaded `keep_alive_s` after its last completion, or after its last request came in where `keep_alive_from` is
    "request". With `batch_wait_s` no model is evicted for a queued one that has waited less, and one that has waited
    longer closes a busy model to new requests until it is idle.

    What-ifs on the count of requests in flight that eviction and keep-alive go by: "leaks" never counts down every
    `miscount_every`-th request, "misses" never counts it up.
    """

    name: str
    max_models: Annotated[int, msgspec.Meta(ge=1)] | None = None
    budget_bytes: Bytes | None = None
    protect_busy: bool = True
    keep_alive_s: Seconds | None = None
    keep_alive_from: Literal["completion", "request"] = "completion"
    batch_wait_s: Seconds | None = None
    busy_count: Literal["exact", "leaks", "misses"] = "exact"
    miscount_every: Annotated[int, msgspec.Meta(ge=1)] = 1
    kv_on_swap: Literal["lost", "saved"] = "lost"
    sleep_after_s: Seconds | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class WaitSpread:
    """Nearest-rank percentiles of the time from arrival to the start of service, over the requests served."""

    requests: Count
    mean: Seconds
    p50: Seconds
    p95: Seconds
    p99: Seconds
    max: Seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelResidency:
    """What became of one model's requests: served, interrupted, left (their client timed out), unserved at the end.

    `refused_busy` is how often it was passed over as a victim because it was busy.
    """

    name: str
    requests: Count
    served: Count
    interrupted: Count
    left: Count
    unserved: Count
    loads: Count
    cold_loads: Count
    evictions: Mapping[str, int]
    refused_busy: Count
    resident_s: Seconds
    busy_s: Seconds
    loading_s: Seconds
    reprefill_s: Seconds
    restore_s: Seconds
    wait: WaitSpread | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidencySpan:
    """One stretch of one model's time in one state."""

    model: str
    state: Literal["loading", "ready", "busy", "sleeping", "stopping"]
    from_s: float
    to_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Swap:
    """One eviction: who left, why, and for whom (None: for nobody, its time was up)."""

    at_s: float
    model: str
    reason: Literal["lru", "lru-busy", "lru-loading", "keep-alive"]
    wanted_by: str | None
    interrupted: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyRun:
    """The whole log under one policy. `served` + `interrupted` + `left` + `unserved` are all requests.

    `over_memory_loads` are loads that a count of models let through though their bytes exceed the machine's: a real
    engine fails there. `spans` and `swaps` are the first ones, `spans_total` and `swaps_total` count them all.
    `wait_percentiles_s` are the waits at 0, 1, … 100 % of the requests served.
    """

    policy: ResidencyPolicy
    requests: Count
    served: Count
    interrupted: Count
    left: Count
    unserved: Count
    loads: Count
    evictions: Mapping[str, int]
    refused_busy: Count
    loading_s: Seconds
    reprefill_s: Seconds
    restore_s: Seconds
    save_s: Seconds
    service_s: Seconds
    makespan_s: Seconds
    peak_bytes: Bytes
    peak_models: Count
    over_memory_loads: Count
    wait: WaitSpread | None
    models: tuple[ModelResidency, ...]
    wait_percentiles_s: tuple[Seconds, ...] = ()
    spans: tuple[ResidencySpan, ...] = ()
    spans_total: Count = 0
    swaps: tuple[Swap, ...] = ()
    swaps_total: Count = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CoAccess:
    """`models` in order of requests; `ratios[a][b]` is the share of a's requests that b's follow within `window_s`."""

    window_s: Seconds
    models: tuple[str, ...]
    ratios: tuple[tuple[Ratio, ...], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """One value of the limit that was searched. `fits` is whether the largest models it admits fit the machine."""

    value: Count
    fits: bool
    loads: Count
    interrupted: Count
    unserved: Count
    mean_wait_s: Seconds | None
    p95_wait_s: Seconds | None


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitSearch:
    """The limits tried on the first `requests` requests, and the smallest within 1 % of the shortest mean wait.

    `best` None: none fits. Runs with interrupted or unserved requests are taken only where there is no other.
    """

    unit: Literal["models", "bytes"]
    requests: Count
    candidates: tuple[Candidate, ...]
    best: Count | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedMemory:
    """Host memory and its claimants. `page_cache_bytes` is what is left to keep weight files warm in.

    `every_swap_cold`: weights of all models and the KV tier exceed it, so no load is counted on to be warm; None where
    the machine's host memory is not known, and then every load is taken as cold.
    """

    ram_bytes: Bytes | None
    host_kv_bytes: Bytes
    reserved_bytes: Bytes
    weights_bytes: Bytes
    page_cache_bytes: Bytes | None
    every_swap_cold: bool | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Residency:
    """Several models on one machine: one log, played under several policies; the first is the one asked for."""

    machine: Machine
    resident_models: tuple[ResidentModel, ...]
    log: str
    requests: Count
    runs: Annotated[tuple[PolicyRun, ...], msgspec.Meta(min_length=1)]
    co_access: CoAccess
    shared: SharedMemory
    search: LimitSearch | None
    config: Mapping[str, str]
    evidence: tuple[Evidence, ...]
    not_modelled: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
