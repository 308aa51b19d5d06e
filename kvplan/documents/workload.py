"""What a request log reuses."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from kvplan.documents.common import Count, Finding, Provenance, Ratio, Seconds, Tokens


class LogSource(msgspec.Struct, frozen=True, kw_only=True):
    """One log file as read: `skipped` lines were bad and left out because the user allowed it."""

    name: str
    format: str
    sha256: str
    requests: Count
    skipped: Count = 0


class CurvePoint(msgspec.Struct, frozen=True, kw_only=True):
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


class PrefixClass(msgspec.Struct, frozen=True, kw_only=True):
    """Requests whose reused prefix is at most `at_most_tokens` long (and longer than the class before)."""

    at_most_tokens: Tokens
    requests: Count
    tokens: Tokens
    tokens_sq: Count


class Interval(msgspec.Struct, frozen=True, kw_only=True):
    """Token-weighted reuse intervals: `tokens` were reused at most `at_most_s` after their last use."""

    at_most_s: Seconds
    tokens: Tokens


class WorkingSet(msgspec.Struct, frozen=True, kw_only=True):
    """Denning working set: distinct tokens referenced in a sliding window of `window_s` seconds.

    The mean is over the log's span, the maximum over the moments just after an arrival.
    """

    window_s: Seconds
    mean_tokens: Tokens
    max_tokens: Tokens


class Percentiles(msgspec.Struct, frozen=True, kw_only=True):
    """Percentiles of a quantity over time (active tokens) or over requests (lengths)."""

    p50: float
    p95: float
    p99: float
    max: float
    mean: float | None = None


class ServiceModel(msgspec.Struct, frozen=True, kw_only=True):
    """How long a request was held to be active: measured durations in the log, or a stated model."""

    provenance: Provenance
    prefill_tokens_per_s: float | None = None
    decode_s_per_token: float | None = None
    source: str = ""


class Tenant(msgspec.Struct, frozen=True, kw_only=True):
    """One tenant's share; `isolated_hit_tokens` is what it would reuse if it shared with nobody (infinite cache)."""

    tenant: str
    requests: Count
    input_tokens: Tokens
    hit_tokens: Tokens
    isolated_hit_tokens: Tokens


class Load(msgspec.Struct, frozen=True, kw_only=True):
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


class Drift(msgspec.Struct, frozen=True, kw_only=True):
    """Requests that ought to share a prefix and diverge: where, why, and what it costs.

    `kind` is the class (docs/workload.md lists them), `position_tokens` the median place to a block, `requests` those
    that diverge. `lost_tokens` is what an infinite cache would hit more if they did not, `gain_ratio` the same over the
    log's input tokens. `variants` counts the log's requests by which of the differing texts they have, the most used
    first, at most 20; empty where that is not known or lies in no head.
    """

    kind: str
    position_tokens: Tokens
    requests: Count
    lost_tokens: Tokens
    fix: str
    gain_ratio: Ratio | None = None
    variants: tuple[Count, ...] = ()


class Hits(msgspec.Struct, frozen=True, kw_only=True):
    """Hits of a cache of `capacity_blocks` blocks over a whole log or a named part; the ratio is by input tokens."""

    capacity_blocks: Count
    hit_requests: Count
    hit_blocks: Count
    hit_tokens: Tokens
    hit_ratio: Ratio


class HitRates(msgspec.Struct, frozen=True, kw_only=True):
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


class PolicyCurve(msgspec.Struct, frozen=True, kw_only=True):
    """Hits under another replacement policy at chosen capacities, cold start; all evict leaves only."""

    policy: str
    points: tuple[Hits, ...]


class Isolation(msgspec.Struct, frozen=True, kw_only=True):
    """What is lost if tenants share nothing: hits and blocks of an infinite cache, and the curve of one LRU pool."""

    hit_tokens: Tokens
    isolated_hit_tokens: Tokens
    blocks: Count
    isolated_blocks: Count
    curve: tuple[Hits, ...]


class Granularity(msgspec.Struct, frozen=True, kw_only=True):
    """Hits of an infinite cache that reuses whole granules of so many tokens only, last token computed.

    A granule is a larger block, or the distance between the checkpoints that a model with recurrent state keeps.
    """

    granule_tokens: Tokens
    hit_tokens: Tokens
    hit_ratio: Ratio


class Replicas(msgspec.Struct, frozen=True, kw_only=True):
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


class Tier(msgspec.Struct, frozen=True, kw_only=True):
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


class SharedPrefix(msgspec.Struct, frozen=True, kw_only=True):
    """A stretch of prompt, from its first to its last token, that the same `requests` requests share.

    `saved_tokens` is what an infinite cache saves with it, `first_request` the first request that has it, from 0.
    """

    from_tokens: Tokens
    to_tokens: Tokens
    requests: Count
    saved_tokens: Tokens
    first_request: Count


class HotSet(msgspec.Struct, frozen=True, kw_only=True):
    """The fewest blocks that give `hit_share_ratio` of the block hits of an infinite cache."""

    hit_share_ratio: Ratio
    blocks: Count


class ReuseSource(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens whose last use was by `who`: the same session, the same tenant, another tenant, or unknown."""

    who: Literal["same session", "same tenant", "another tenant", "unknown"]
    tokens: Tokens


class Arrivals(msgspec.Struct, frozen=True, kw_only=True):
    """What arrived in one hour of the day (UTC) over the whole log, where time stamps are dates."""

    hour: Annotated[int, msgspec.Meta(ge=0, le=23)]
    requests: Count
    input_tokens: Tokens


class SampledPoint(msgspec.Struct, frozen=True, kw_only=True):
    """Block and token hit ratios of an LRU cache, estimated, with the standard error of the block hit ratio."""

    capacity_blocks: Count
    block_hit_ratio: Ratio
    token_hit_ratio: Ratio
    standard_error_ratio: Ratio


class Sampling(msgspec.Struct, frozen=True, kw_only=True):
    """A curve from a sample of the blocks: the hottest ones all, one in 1 / `rate` of the others.

    The error is measured: the sample is split into `samples` that share no block but the hot ones, and each gives a
    curve of its own. `unique_blocks` are counted to about 0.2 %; `ceiling_hit_ratio` follows, by tokens.
    """

    rate: Ratio
    samples: Count
    hot_blocks: Count
    block_references: Count
    sampled_references: Count
    unique_blocks: Count
    ceiling_hit_ratio: Ratio
    points: tuple[SampledPoint, ...]


class Comparison(msgspec.Struct, frozen=True, kw_only=True):
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


class Workload(msgspec.Struct, frozen=True, kw_only=True):
    """What a request log reuses, in tokens, free of any model. See docs/workload.md for each definition.

    `novel_tokens` are the input tokens that even an infinite cache has to compute, `one_off_tokens_ratio` the share of
    them that nothing ever reuses. `input_tokens_sq` is the sum over requests of (input tokens)², for the quadratic part
    of prefill time. With `ttl_s` set, the curve is that of an LRU cache that also drops what was not used
    for so long; the two ceilings, the intervals, the tenants and the what-ifs are free of it. What needs time stamps
    is None or empty where the log has none. A log of lengths only says nothing of reuse: then there is no curve, and
    the tokens and ratios that speak of reuse are None. So they are where only a sample of the blocks was read: then
    `sampled` holds the curve, with its error, and nothing else is said of reuse.

    `cold` counts every request from an empty cache, `warm` (and `warm_curve`) only the later ones while the earlier
    warm the cache. `without_one_off` is LRU that does not store the blocks that are never used again.
    `prompt_end_hit_ratio` is the ceiling where a model's state is kept only at the ends of prompts,
    `decoded_ceiling_hit_ratio` an upper bound of the ceiling where decoded blocks are cached too, and
    `decoded_hit_ratio` that ceiling as later prompts really render the answers in the log (None: it holds none).
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
    decoded_hit_ratio: Ratio | None = None
    replicas: tuple[Replicas, ...] = ()
    tiers: tuple[Tier, ...] = ()
    compared: Comparison | None = None
    sampled: Sampling | None = None
    drift: tuple[Drift, ...] = ()
    findings: tuple[Finding, ...] = ()
