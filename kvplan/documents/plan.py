"""GPU, host and disk budgets, and the arithmetic that led there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from kvplan.documents.common import (
    Bytes,
    Count,
    Document,
    Evidence,
    Finding,
    GpuSpec,
    Provenance,
    Rate,
    Ratio,
    Seconds,
    Tokens,
)
from kvplan.documents.estimate import Estimate
from kvplan.documents.probe import Prefill, Probe
from kvplan.documents.workload import Workload

PriceView = Literal["owned", "bought", "rented"]


class Prices(msgspec.Struct, frozen=True, kw_only=True):
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


class Reserve(msgspec.Struct, frozen=True, kw_only=True):
    """Host memory of one replica that something else takes, as the operator states it, in place of an assumption."""

    name: str
    bytes: Bytes


class Policy(msgspec.Struct, frozen=True, kw_only=True):
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


class BudgetItem(msgspec.Struct, frozen=True, kw_only=True):
    """One line of a budget."""

    name: str
    bytes: Bytes
    provenance: Provenance
    why: str


class Budget(msgspec.Struct, frozen=True, kw_only=True):
    """Memory of one tier for reusable KV cache: what to set, what it holds, and the hit ratio up to and with it.

    `requested_bytes` is what the flag says, `usable_bytes` what the engine can fill, `bytes` what adds reuse beyond
    the tiers above (an inclusive tier repeats what the GPU holds). `items` account for all of `limit_bytes`, and where
    they need more than that, for `missing_bytes` on top: no other figure is ever above the limit.
    """

    bytes: Bytes
    requested_bytes: Bytes
    usable_bytes: Bytes
    tokens: Tokens
    hit_ratio: Ratio
    why: str
    limit_bytes: Bytes | None = None
    missing_bytes: Bytes = 0
    items: tuple[BudgetItem, ...] = ()


class Budgets(msgspec.Struct, frozen=True, kw_only=True):
    """The three budgets: reusable blocks on the GPUs of one replica, in host memory, on disk."""

    gpu: Budget
    host: Budget
    disk: Budget


class Alternative(msgspec.Struct, frozen=True, kw_only=True):
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


class BreakEven(msgspec.Struct, frozen=True, kw_only=True):
    """Recomputing against loading a prefix of `prefix_tokens`; `verdict` allows 20 % for a tie.

    Rates are per GPU. `store_bytes_per_s` is what stores reach on a measured host link, None where none was measured.
    """

    tier: Literal["host", "disk"]
    prefix_tokens: Tokens
    recompute_s: Seconds
    load_s: Seconds
    break_even_bytes_per_s: Rate
    link_bytes_per_s: Rate
    verdict: Literal["load", "recompute", "measure"]
    store_bytes_per_s: Rate | None = None


class TierPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One point of the benefit curve: a tier of `bytes` beside the GPU cache."""

    tier: Literal["host", "disk"]
    bytes: Bytes
    tokens: Tokens
    hit_ratio: Ratio
    net_s_per_hour: float


class Benefit(msgspec.Struct, frozen=True, kw_only=True):
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


class Limit(msgspec.Struct, frozen=True, kw_only=True):
    """A bound of the machine or the policy, and what the plan needs of it."""

    name: str
    limit: float
    needed: float
    unit: Literal["bytes", "bytes_per_s", "s", "ratio"]
    ok: bool
    why: str
    provenance: Provenance


class Sensitivity(msgspec.Struct, frozen=True, kw_only=True):
    """How the recommendation moves when one input does."""

    what: str
    change: str
    host_bytes: Bytes
    disk_bytes: Bytes
    net_s_per_hour: float


class PolicyCost(msgspec.Struct, frozen=True, kw_only=True):
    """What one restriction of the policy gives up, as the difference to the same plan without it, for one replica."""

    policy: str
    hit_ratio: Ratio
    hit_tokens_per_hour: float
    gpu_s_per_hour: float
    why: str


class Cost(msgspec.Struct, frozen=True, kw_only=True):
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


class KeepFor(msgspec.Struct, frozen=True, kw_only=True):
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


class WarmUp(msgspec.Struct, frozen=True, kw_only=True):
    """A restart of the engine: whether a tier survives it, how long it takes to fill again, what that costs at most."""

    tier: Literal["gpu", "host", "disk"]
    survives: bool
    fill_s: Seconds | None
    lost_gpu_s: float | None
    why: str


class NodeBytes(msgspec.Struct, frozen=True, kw_only=True):
    """Host memory that the plan takes on one NUMA node, all replicas of the host together."""

    node: Count
    bytes: Bytes
    available_bytes: Bytes
    gpus: tuple[Count, ...]


class WhatIf(msgspec.Struct, frozen=True, kw_only=True):
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


class Changed(msgspec.Struct, frozen=True, kw_only=True):
    """One input or figure that differs from an earlier plan, as printed."""

    what: str
    before: str
    after: str


class Against(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier plan beside this one.

    `results` are the figures that moved, `inputs` every input that differs, and `causes` the earlier plan made again
    with one of its inputs replaced by the new one at a time: what that alone would have changed.
    """

    created: str
    decision: str
    results: tuple[Changed, ...]
    inputs: tuple[Changed, ...]
    causes: tuple[WhatIf, ...]


class Confidence(msgspec.Struct, frozen=True, kw_only=True):
    """A: links measured, a week of logs, live A/B. B: links measured and logs. C: any default or assumed input."""

    grade: Literal["A", "B", "C"]
    reasons: tuple[str, ...]
    raise_by: tuple[str, ...]


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """The engine that a plan is for, as it resolved it: what configurations are written from.

    One replica has `ranks`, and `on_host` of them share a host. `disk_path` is the folder whose drive was planned with;
    `host_known` says whether the probed host is the one planned for.
    """

    engine: str
    offload: str
    ranks: Count
    on_host: Count
    block_tokens: Tokens
    utilization: Ratio
    disk_path: str | None = None
    host_known: bool = False


class PlanInputs(msgspec.Struct, frozen=True, kw_only=True):
    """The whole documents a plan was made from, so that one file is enough to render and to check it."""

    estimate: Document[Estimate]
    workload: Document[Workload]
    probe: Document[Probe] | None = None
    gpu: GpuSpec | None = None
    prices: Prices | None = None


class Plan(msgspec.Struct, frozen=True, kw_only=True):
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
    settings: EngineSettings | None = None
    findings: tuple[Finding, ...] = ()
