"""Several models on one machine."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Literal

import msgspec

from kvplan.documents.common import Bytes, Count, Evidence, Finding, Ratio, Seconds


class ResidentModel(msgspec.Struct, frozen=True, kw_only=True):
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


class Machine(msgspec.Struct, frozen=True, kw_only=True):
    """What the models share. `memory_bytes` is where they are loaded, `ram_bytes` the host memory that files are read
    through, of which `host_kv_bytes` are taken by a KV tier and `reserved_bytes` by everything else.

    `unified` says that both are one: models are loaded into the host memory itself, beside the KV tier and the reserve.
    `pattern_ratio` is the share of the sequential `read_bytes_per_s` that loading reaches: 0.67 through mmap, 1.0
    direct. Direct reads leave nothing in the page cache. `warm_bytes_per_s` is the rate from the page cache.
    `read_source` and `ram_source` name the probe that measured them; None: the list says them.
    """

    memory_bytes: Bytes
    unified: bool = False
    read_bytes_per_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    pattern: Literal["mmap", "direct"] = "mmap"
    pattern_ratio: Annotated[float, msgspec.Meta(gt=0, le=1)] | None = None
    warm_bytes_per_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    ram_bytes: Bytes | None = None
    host_kv_bytes: Bytes = 0
    reserved_bytes: Bytes = 0
    kv_save_bytes_per_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    kv_restore_bytes_per_s: Annotated[float, msgspec.Meta(gt=0)] | None = None
    read_source: str | None = None
    ram_source: str | None = None

    @property
    def models_bytes(self) -> int:
        """Bytes that models may take: the memory, of a unified one what the KV tier and the reserve leave."""
        taken = self.host_kv_bytes + self.reserved_bytes if self.unified else 0
        return max(0, self.memory_bytes - taken)

    @property
    def host_bytes(self) -> int | None:
        """Host memory, however it is called; None where the machine's is not known."""
        return self.memory_bytes if self.unified else self.ram_bytes


class ResidencyPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """Who leaves when not every model fits.

    `max_models` counts models and ignores bytes, as llama.cpp's router does; `budget_bytes` admits on bytes; either,
    both or neither. `protect_busy` False evicts the least recently used model whatever it is doing. An idle model is
    unloaded `keep_alive_s` after its last completion, or after its last request came in where `keep_alive_from` is
    "request". With `batch_wait_s` no model is evicted for a queued one that has waited less, and one that has waited
    longer closes a busy model to new requests until it is idle.

    What-ifs on the count of requests in flight that eviction and keep-alive go by: "leaks" never counts down every
    `miscount_every`-th request, "misses" never counts it up, "stale" learns of every start and end `stale_s` late.
    """

    name: str
    max_models: Annotated[int, msgspec.Meta(ge=1)] | None = None
    budget_bytes: Bytes | None = None
    protect_busy: bool = True
    keep_alive_s: Seconds | None = None
    keep_alive_from: Literal["completion", "request"] = "completion"
    batch_wait_s: Seconds | None = None
    busy_count: Literal["exact", "leaks", "misses", "stale"] = "exact"
    miscount_every: Annotated[int, msgspec.Meta(ge=1)] = 1
    stale_s: Seconds = 0.0
    kv_on_swap: Literal["lost", "saved"] = "lost"
    sleep_after_s: Seconds | None = None


class WaitSpread(msgspec.Struct, frozen=True, kw_only=True):
    """Nearest-rank percentiles of the time from arrival to the start of service, over the requests served."""

    requests: Count
    mean: Seconds
    p50: Seconds
    p95: Seconds
    p99: Seconds
    max: Seconds


class ModelResidency(msgspec.Struct, frozen=True, kw_only=True):
    """What became of one model's requests: served, interrupted, left (their client timed out), unserved at the end.

    `refused_busy` is how often it was passed over as a victim because it was busy; `held_idle_s` are the seconds in
    which it was idle and a wrong count said busy. `cold_loads` are the loads that took what a first one takes.
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
    held_idle_s: Seconds = 0.0


class ResidencySpan(msgspec.Struct, frozen=True, kw_only=True):
    """One stretch of one model's time in one state."""

    model: str
    state: Literal["loading", "ready", "busy", "sleeping", "stopping"]
    from_s: float
    to_s: float


class Swap(msgspec.Struct, frozen=True, kw_only=True):
    """One eviction: who left, why, and for whom (None: for nobody, its time was up)."""

    at_s: float
    model: str
    reason: Literal["lru", "lru-busy", "lru-loading", "keep-alive"]
    wanted_by: str | None
    interrupted: Count = 0


class PolicyRun(msgspec.Struct, frozen=True, kw_only=True):
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
    held_idle_s: Seconds = 0.0


class CoAccess(msgspec.Struct, frozen=True, kw_only=True):
    """`models` in order of requests; `ratios[a][b]` is the share of a's requests that b's follow within `window_s`."""

    window_s: Seconds
    models: tuple[str, ...]
    ratios: tuple[tuple[Ratio, ...], ...]


class Candidate(msgspec.Struct, frozen=True, kw_only=True):
    """One value of the limit that was searched. `fits` is whether the largest models it admits fit the machine."""

    value: Count
    fits: bool
    loads: Count
    interrupted: Count
    unserved: Count
    mean_wait_s: Seconds | None
    p95_wait_s: Seconds | None


class LimitSearch(msgspec.Struct, frozen=True, kw_only=True):
    """The limits tried on the first `requests` requests, and the smallest within 1 % of the shortest mean wait.

    `best` None: none fits. Runs with interrupted or unserved requests are taken only where there is no other.
    """

    unit: Literal["models", "bytes"]
    requests: Count
    candidates: tuple[Candidate, ...]
    best: Count | None


class SharedMemory(msgspec.Struct, frozen=True, kw_only=True):
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


class SplitPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One division of the host memory. Rates are seconds for an hour of the log's time.

    `host_kv_bytes` is one replica's tier, as the plan's flag says; `page_cache_bytes` what weight files may keep, and
    `models_bytes` what models may be loaded into. `kv_saved_s_per_hour` is the plan's, for all replicas of the host;
    `net_s_per_hour` is that less loading and re-prefilling. `harm` counts requests cut or never served, and loads
    beyond memory.
    """

    host_kv_bytes: Bytes
    page_cache_bytes: Bytes
    models_bytes: Bytes
    every_swap_cold: bool
    kv_saved_s_per_hour: float
    loads: Count
    loading_s_per_hour: float
    reprefill_s_per_hour: float
    net_s_per_hour: float
    p95_wait_s: Seconds | None
    harm: Count = 0


class MemorySplit(msgspec.Struct, frozen=True, kw_only=True):
    """One host memory between a plan's KV tier and the models: every size on the plan's curve, played.

    `best_bytes` has the least harm and then the most net seconds, the smallest tier among equals; `plan_bytes` is what
    the plan takes for itself. `requests` of the log were played, over `span_s`.
    """

    host_bytes: Bytes
    reserved_bytes: Bytes
    replicas: Count
    requests: Count
    span_s: Seconds
    points: Annotated[tuple[SplitPoint, ...], msgspec.Meta(min_length=1)]
    best_bytes: Bytes
    plan_bytes: Bytes
    why: str
    assumed: tuple[str, ...]

    @property
    def best(self) -> SplitPoint:
        """The point that is chosen."""
        return next(point for point in self.points if point.host_kv_bytes == self.best_bytes)


class Residency(msgspec.Struct, frozen=True, kw_only=True):
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
    split: MemorySplit | None = None
    not_modelled: tuple[str, ...] = ()
    findings: tuple[Finding, ...] = ()
