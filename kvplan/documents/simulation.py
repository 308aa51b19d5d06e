"""One schedule played with offload off and on."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from kvplan.documents.common import Bytes, Count, Evidence, Finding, Rate, Ratio, Seconds, Tokens
from kvplan.documents.model import ModelRef
from kvplan.documents.workload import LogSource


class Arm(msgspec.Struct, frozen=True, kw_only=True):
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


class Fault(msgspec.Struct, frozen=True, kw_only=True):
    """Something that happens `at_s` seconds after the first arrival, to every replica, in every arm alike.

    restart: the engine is away for `value` seconds and its GPU cache is gone; tiers in `survives` keep their blocks.
    tier-lost: `tier` loses every block and takes no more. link: the link of `tier` runs at `value` times its rate from
    then on. load-failure: the share `value` of loads fails from then on. client-gone: request `request` is given up.
    worker-gone: replica `value` (from 0) leaves for good, and whoever was inside asks another one. scan: `value`
    requests as long as the log's, whose blocks nobody shares, come on top at the log's mean rate. churn: every block
    that is asked for from then on is new, as if all conversations and all shared starts were others.
    """

    at_s: Seconds
    kind: Literal["restart", "tier-lost", "link", "load-failure", "client-gone", "worker-gone", "scan", "churn"]
    tier: Literal["host", "disk"] = "host"
    value: Annotated[float, msgspec.Meta(ge=0)] = 0.0
    survives: tuple[Literal["host", "disk"], ...] = ()
    request: Count | None = None


class Loop(msgspec.Struct, frozen=True, kw_only=True):
    """Whether arrivals wait for answers.

    open: requests come when the log has them, whatever the engine does. sessions (closed): a later turn of a
    conversation comes when the turn before was answered and its time to think is over. concurrency (closed):
    `concurrency` clients send the log's requests in order, each its next one when its last one is over.
    """

    kind: Literal["open", "sessions", "concurrency"] = "open"
    concurrency: Count | None = None


class LinkModel(msgspec.Struct, frozen=True, kw_only=True):
    """A link that carries one transfer after the other in each direction: `latency_s` each, then its bytes."""

    load_bytes_per_s: Rate
    store_bytes_per_s: Rate
    latency_s: Seconds = 0.0


class Slots(msgspec.Struct, frozen=True, kw_only=True):
    """An engine that keeps whole prompts in `count` slots instead of blocks: llama.cpp.

    A sequence has at most `context_tokens`. With `unified` all slots share the engine's cells, else each has its part.
    A slot is taken for what it shares with a prompt if that is more than `similarity` of the prompt. With `save_idle`
    idle slots are copied to the host tier whenever a request starts.
    """

    count: Annotated[int, msgspec.Meta(ge=1)]
    context_tokens: Tokens
    unified: bool = False
    similarity: Ratio = 0.1
    save_idle: bool = True


class EngineModel(msgspec.Struct, frozen=True, kw_only=True):
    """One replica as the simulation sees it. Tiers and links move `tier_bytes_per_token`, of all ranks together.

    A step takes t0 + max(a * tokens + b * sum of chunk * (2 * context + chunk), `weights_s`) + cached tokens read by
    decoding * `kv_s_per_token` seconds, with t0, a and b of recomputing. `output_blocks` says what becomes of the full
    blocks of answers: free at once (forget), cached until their turn comes, with nobody to ask for them (keep), or
    cached under the names that the log's next prompt has for them, which is an upper bound (reuse). With
    `same_step_hits` a request may use blocks that the step it begins in is about to compute. With `slots` there is no
    cache of blocks: `kv_tokens` are the cells of all slots, and blocks only name what prompts have in common.
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
    output_blocks: Literal["forget", "keep", "reuse"] = "forget"
    same_step_hits: bool = False
    host_link: LinkModel | None = None
    disk_link: LinkModel | None = None
    slots: Slots | None = None


class Spread(msgspec.Struct, frozen=True, kw_only=True):
    """Mean and nearest-rank percentiles of a time."""

    mean: Seconds
    p50: Seconds
    p90: Seconds
    p99: Seconds
    max: Seconds


class TierUse(msgspec.Struct, frozen=True, kw_only=True):
    """What one tier did, all replicas together; removals by reason. The GPU neither loads nor stores by itself.

    `blocks` are in the tier at the end: `inserted_blocks` less all removals. Of those that left and of those that are
    still there, so many were never hit while they were there. `full_at_s` is when the tier first gave one up for room.
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
    removed_never_hit_blocks: Count | None = None
    kept_never_hit_blocks: Count | None = None
    full_at_s: Seconds | None = None


class Slice(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that arrived from `from_s` on: how a cold start warms and a fault shows.

    `host_bytes` and `disk_bytes` are held at its end, `host_removed_bytes` left the host within it.
    """

    from_s: Seconds
    requests: Count
    hit_ratio: Ratio
    ttft_p90_s: Seconds | None
    host_bytes: Bytes
    host_removed_bytes: Bytes | None = None
    disk_bytes: Bytes | None = None


class Phase(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that arrived from `from_s` until the next phase.

    cold: all tiers began empty. full: the largest tier has given up its first block. Others: after a fault of that
    kind; scan-over: after the last request of a scan.
    """

    name: str
    from_s: Seconds
    requests: Count
    hit_ratio: Ratio
    ttft_p50_s: Seconds | None
    ttft_p90_s: Seconds | None


class Quantile(msgspec.Struct, frozen=True, kw_only=True):
    """The share `share` of values is at most `seconds` (nearest rank)."""

    share: Ratio
    seconds: Seconds


class LoadPoint(msgspec.Struct, frozen=True, kw_only=True):
    """The schedule at the share `load_ratio` of the rate that the first arm sustains: the same rate in every arm."""

    load_ratio: Ratio
    requests_per_s: float
    hit_ratio: Ratio
    gpu_busy_ratio: Ratio
    ttft: tuple[Quantile, ...]


class RatePoint(msgspec.Struct, frozen=True, kw_only=True):
    """One rate that was tried; `ttft_p90_s` None: nobody had a first token."""

    requests_per_s: float
    ttft_p90_s: Seconds | None
    holds: bool


class SustainableRate(msgspec.Struct, frozen=True, kw_only=True):
    """The highest rate found at which `share` of requests have their first token within `slo_ttft_s`.

    Between `requests_per_s` and `fails_at`, the lowest rate that failed. `requests_per_s` None: no rate tried held;
    `fails_at` None: every rate tried held, and the true one is higher. `tried` are all rates played, in their order.
    `low_per_s` and `high_per_s` are where the target would be met if true times were `time_high_ratio` and
    `time_low_ratio` times those modelled, between the rates tried; None where that lies beyond them.
    """

    slo_ttft_s: Seconds
    share: Ratio
    requests: Count
    points: Count
    requests_per_s: float | None
    fails_at: float | None
    low_per_s: float | None = None
    high_per_s: float | None = None
    tried: tuple[RatePoint, ...] = ()


class ArmResult(msgspec.Struct, frozen=True, kw_only=True):
    """What became of the schedule in one arm. `completed` + `cancelled` (by reason) are all that were submitted.

    `slices` are tenths of the schedule's time, `timeline` the same finer. `loads` are there where a rate was searched.
    `hit_ratio` is hit tokens at first admission over the input tokens of all requests admitted, in every arm alike.
    `backlog` requests were still waiting for their first admission when the last one arrived.
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
    completed_per_s: float | None = None
    backlog: Count | None = None
    timeline: tuple[Slice, ...] = ()
    phases: tuple[Phase, ...] = ()
    sustainable: SustainableRate | None = None
    loads: tuple[LoadPoint, ...] = ()


class Simulation(msgspec.Struct, frozen=True, kw_only=True):
    """One schedule, played in several arms by the same model.

    True times are expected between `time_low_ratio` and `time_high_ratio` times those stated; differences between arms
    share most of that error. `rate_scale` is how much faster than logged the requests arrive, `requests_per_s` the rate
    that this makes, None where arrivals do not follow the log. Of them `follow_ups` waited for an answer, in a closed
    loop of sessions. `model` is None where the engine was given by its figures.
    """

    sources: tuple[LogSource, ...]
    model: ModelRef | None
    engine: EngineModel
    requests: Count
    rate_scale: float
    requests_per_s: float | None
    arms: Annotated[tuple[ArmResult, ...], msgspec.Meta(min_length=1)]
    faults: tuple[Fault, ...]
    time_low_ratio: float
    time_high_ratio: float
    band: str
    not_modelled: tuple[str, ...]
    evidence: tuple[Evidence, ...]
    loop: Loop = Loop()
    follow_ups: Count = 0
    findings: tuple[Finding, ...] = ()
