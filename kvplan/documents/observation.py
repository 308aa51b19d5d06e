"""What running servers counted over a while, beside what a plan said."""

from __future__ import annotations

from typing import Annotated, Literal

import msgspec

from kvplan.documents.common import Bytes, Count, Evidence, Finding, Rate, Ratio, Seconds, Tokens

Where = Literal["all", "gpu", "host", "disk", "remote", "external"]


class MetricSource(msgspec.Struct, frozen=True, kw_only=True):
    """Where pages came from: an address, a file, or one target of a Prometheus server.

    `missed` rounds gave no page, for the `reason` last heard; `cut` pages ended within a line.
    """

    where: str
    systems: tuple[str, ...]
    pages: Count
    missed: Count = 0
    cut: Count = 0
    restarts: Count = 0
    reason: str | None = None


class ServingSystem(msgspec.Struct, frozen=True, kw_only=True):
    """A serving system that was found, how many engines of it, and the models they serve."""

    name: str
    title: str
    engines: Count
    models: tuple[str, ...]
    uncounted: tuple[str, ...] = ()


class TierHits(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens found in one tier, of the tokens of all prompts; `all` is every tier together.

    `asked_tokens` is what this tier was asked for: what the tiers above did not have. `formula` names the metrics.
    """

    system: str
    tier: Where
    hit_tokens: Tokens
    of_tokens: Tokens | None
    hit_ratio: Ratio | None
    formula: str
    asked_tokens: Tokens | None = None
    note: str = ""


class TierTransfer(msgspec.Struct, frozen=True, kw_only=True):
    """Copies between two tiers. `busy_s` is time in which copies ran, summed over workers.

    `busy_bytes_per_s` is bytes over that time, what a link carries while it works (with `spread`, where single
    transfers are counted, the 10th, 50th and 90th percentile instead); `mean_bytes_per_s` is bytes over the window.
    `derived` are counts worked out from bytes and the pool's own geometry, which the system does not keep itself.
    """

    system: str
    way: Literal["store", "load"]
    source: Where
    target: Where
    bytes: Bytes | None = None
    tokens: Tokens | None = None
    blocks: Count | None = None
    operations: Count | None = None
    busy_s: Seconds | None = None
    busy_bytes_per_s: Rate | None = None
    mean_bytes_per_s: Rate | None = None
    spread_bytes_per_s: tuple[Rate, Rate, Rate] | None = None
    derived: tuple[str, ...] = ()


class QuantileRead(msgspec.Struct, frozen=True, kw_only=True):
    """A quantile of a histogram and what it lies in: `low_s` < it <= `high_s` (None: beyond the last limit).

    Bounds are those of its bucket, or closer where the mean allows no more.
    """

    q: Ratio
    value_s: Seconds
    low_s: Seconds
    high_s: Seconds | None


class Waiting(msgspec.Struct, frozen=True, kw_only=True):
    """A histogram of times over the window: how many, their mean, and quantiles with their bounds.

    `age`: not what requests wait for, but how long cached blocks live, rest or are missed.
    """

    system: str
    what: str
    count: Count
    mean_s: Seconds | None
    quantiles: tuple[QuantileRead, ...]
    metric: str
    age: bool = False


class GaugeRead(msgspec.Struct, frozen=True, kw_only=True):
    """A gauge over the pages: engines together, as each was read."""

    system: str
    what: str
    unit: str
    mean: float
    low: float
    high: float
    last: float
    metric: str
    note: str = ""


class TierLoss(msgspec.Struct, frozen=True, kw_only=True):
    """Cached data that went or was never kept, with the reason that the system counts it under."""

    system: str
    tier: Where
    what: Literal["evicted", "refused", "failed", "preempted"]
    reason: str
    amount: Count
    unit: str
    metric: str


class Configured(msgspec.Struct, frozen=True, kw_only=True):
    """One setting as the server states it: `value` of one engine where it is a number, `text` as printed."""

    system: str
    key: str
    what: str
    text: str
    unit: str
    value: float | None
    engines: Count
    metric: str


class PlanCheck(msgspec.Struct, frozen=True, kw_only=True):
    """One figure beside what the plan said of it; `observed` None where no page shows it. `why`: likeliest first."""

    what: str
    unit: Literal["ratio", "bytes", "bytes_per_s", "tokens", "s", "per_s", "blocks"]
    planned: float
    observed: float | None
    agrees: bool
    why: tuple[str, ...] = ()


class Moment(msgspec.Struct, frozen=True, kw_only=True):
    """One interval between two pages, `from_s` seconds after the first page, all systems together. None: not counted.

    `running` and `waiting` are as the page at its end found them.
    """

    from_s: Seconds
    span_s: Seconds
    hit_ratio: Ratio | None = None
    prompt_tokens: Tokens | None = None
    store_bytes_per_s: Rate | None = None
    load_bytes_per_s: Rate | None = None
    running: Annotated[float, msgspec.Meta(ge=0)] | None = None
    waiting: Annotated[float, msgspec.Meta(ge=0)] | None = None


class Observation(msgspec.Struct, frozen=True, kw_only=True):
    """What running servers counted over `span_s` seconds (None: the pages do not say how far apart they are).

    `since_start`: one page of each was read, and figures are totals since the server started. `prompt_tokens` is what
    was asked (of a cache without its engine: looked up), `computed_tokens` what of it was computed, `requests` those
    that ended.
    """

    sources: tuple[MetricSource, ...]
    systems: tuple[ServingSystem, ...]
    span_s: Seconds | None
    rounds: Count
    since_start: bool
    hit_ratio: Ratio | None
    prompt_tokens: Tokens | None
    computed_tokens: Tokens | None
    requests: Count | None
    hits: tuple[TierHits, ...]
    transfers: tuple[TierTransfer, ...]
    waits: tuple[Waiting, ...]
    gauges: tuple[GaugeRead, ...]
    losses: tuple[TierLoss, ...]
    configured: tuple[Configured, ...]
    moments: tuple[Moment, ...]
    beside_plan: tuple[PlanCheck, ...] = ()
    plan: str | None = None
    evidence: tuple[Evidence, ...] = ()
    findings: tuple[Finding, ...] = ()
