"""The three budgets, itemised so that every byte of a limit is accounted for."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvplan.documents import Budget, BudgetItem, Provenance
from kvplan.planning.choice import Case, Option, Outcome, Tier
from kvplan.planning.economics import Curve, LoadPath
from kvplan.planning.facts import Facts
from kvplan.units import GiB, show_bytes, show_percent

SYSTEM_SHARE = 0.05
SYSTEM_FLOOR = 2 * GiB
DISK_SHARE = 0.85
ASSUMED_DRIVE_WRITES = 5 * 365


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRoom:
    """Memory of one GPU: usable = weights + overhead + active + reusable + rest, unless the first three exceed it."""

    usable: int
    weights: int
    overhead: int
    active: int
    reusable: int
    rest: int
    tokens: int

    @property
    def needed(self) -> int:
        """What must be there before any block can be kept for reuse."""
        return self.weights + self.overhead + self.active

    @property
    def fits(self) -> bool:
        """Whether weights, overhead and active requests fit at all."""
        return self.needed <= self.usable


def gpu_room(facts: Facts, growth: float | None = None) -> GpuRoom:
    """How one GPU's memory divides at a growth of the log's demand (the policy's own where None)."""
    usable = facts.profile.usable_bytes(
        facts.gpu_total.value, facts.utilization, facts.weights.value, facts.overhead.value
    )
    active = active_bytes(facts, facts.policy.growth if growth is None else growth)
    left = usable - facts.weights.value - facts.overhead.value - active
    block = facts.chunk_tokens * facts.bytes_per_token_per_gpu
    blocks = max(0, left // block - facts.profile.null_blocks)
    return GpuRoom(
        usable=usable,
        weights=facts.weights.value,
        overhead=facts.overhead.value,
        active=active,
        reusable=blocks * block,
        rest=max(0, left) - blocks * block,
        tokens=blocks * facts.chunk_tokens,
    )


def active_bytes(facts: Facts, growth: float) -> int:
    """Bytes that running requests hold on one GPU at the policy's percentile of the log, partial blocks included."""
    tokens, requests = active(facts)
    share = growth / facts.replicas
    kv = facts.estimate.kv
    held = tokens + requests * (facts.chunk_tokens - 1)
    return math.ceil(held * share * kv.bytes_per_token_per_gpu + requests * share * kv.bytes_per_sequence_per_gpu)


def active(facts: Facts) -> tuple[float, float]:
    """Tokens and requests in flight over the whole log, at the policy's percentile."""
    tokens, requests = facts.workload.active_tokens, facts.workload.active_requests
    name = facts.policy.active_percentile
    return (getattr(tokens, name) if tokens else 0.0), (getattr(requests, name) if requests else 0.0)


def gpu_budget(facts: Facts, room: GpuRoom, outcome: Outcome) -> Budget:
    """Reusable blocks on the GPUs of one replica."""
    gpus = facts.gpus
    on = "" if gpus == 1 else f", {gpus} GPUs of one replica"
    service = facts.workload.service
    rows: list[tuple[str, int, Provenance, str]] = [
        ("weights", room.weights, facts.weights.provenance, facts.weights.source + on),
        ("engine overhead", room.overhead, facts.overhead.provenance, facts.overhead.source + on),
        (
            "active requests",
            room.active,
            "measured" if service and service.provenance == "measured" else "assumed",
            f"{facts.policy.active_percentile} of active tokens in the log, growth {facts.policy.growth:g}{on}",
        ),
        ("reusable blocks", room.reusable, facts.gpu_total.provenance, "what is left, in whole blocks" + on),
        ("less than a block", room.rest, facts.gpu_total.provenance, "rounding, and blocks the engine reserves" + on),
    ]
    low = outcome.base.low
    if room.fits:
        why = f"{show_bytes(room.usable)} usable a GPU less weights, overhead and active requests"
    else:
        why = f"weights, overhead and active requests need {show_bytes(room.needed)} of {show_bytes(room.usable)} a GPU"
    return Budget(
        bytes=room.reusable * gpus,
        requested_bytes=room.usable * gpus,
        usable_bytes=(room.reusable + room.active) * gpus,
        tokens=room.tokens,
        hit_ratio=low.hit_ratio,
        why=why,
        limit_bytes=room.usable * gpus,
        items=tuple(
            BudgetItem(name=name, bytes=size * gpus, provenance=provenance, why=why)
            for name, size, provenance, why in rows
            if size or name == "reusable blocks"
        ),
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRoom:
    """One replica's share of a host's memory. `limit` None: nothing is known of the host."""

    limit: int | None
    system: int
    processes: int
    headroom: int

    @property
    def available(self) -> int | None:
        """What the KV cache may take at most."""
        if self.limit is None:
            return None
        return max(0, self.limit - self.system - self.processes - self.headroom)


def host_room(facts: Facts) -> HostRoom:
    """What a host leaves for the cache after the system, the engine's processes and the headroom asked for."""
    rules, memory = facts.profile, facts.host_memory
    limit = memory.value // facts.on_host if memory else None
    return HostRoom(
        limit=limit,
        system=max(SYSTEM_FLOOR // facts.on_host, math.ceil((limit or 0) * SYSTEM_SHARE)),
        processes=rules.worker_bytes * facts.gpus + rules.front_end_bytes,
        headroom=math.ceil((limit or 0) * facts.policy.headroom_ratio),
    )


def host_budget(facts: Facts, room: HostRoom, tier: Tier | None, outcome: Outcome, why: str) -> Budget:
    """Host memory of one replica: requested, usable and effective bytes, and every item of its share of the host."""
    option = outcome.host
    requested = option.requested if option else 0
    cost = tier.cost(requested) if tier else 0
    items = _host_items(facts, room, requested, cost) if room.limit is not None else ()
    return Budget(
        bytes=_effective(facts, outcome.base.tokens, option, tier),
        requested_bytes=requested,
        usable_bytes=option.tokens * tier.bytes_per_token if option and tier else 0,
        tokens=option.tokens if option else 0,
        hit_ratio=option.level.low.hit_ratio if option else outcome.base.low.hit_ratio,
        why=why,
        limit_bytes=room.limit,
        items=items,
    )


def _effective(facts: Facts, nearer: int, option: Option | None, tier: Tier | None) -> int:
    """Bytes of a tier that add reuse: an inclusive one repeats what the nearer tiers hold."""
    if option is None or tier is None:
        return 0
    return max(0, option.tokens - (nearer if tier.inclusive else 0)) * facts.offload_bytes_per_token


def _host_items(facts: Facts, room: HostRoom, requested: int, cost: int) -> tuple[BudgetItem, ...]:
    memory = facts.host_memory
    known: Provenance = memory.provenance if memory else "assumed"
    rules = facts.profile
    rows: list[tuple[str, int, Provenance, str]] = [
        (
            "operating system and page cache",
            room.system,
            "assumed",
            f"{SYSTEM_SHARE:.0%} of the memory, at least 2 GiB",
        ),
        (
            "engine processes",
            room.processes,
            "assumed",
            f"{show_bytes(rules.worker_bytes)} a GPU worker and {show_bytes(rules.front_end_bytes)} for the front end",
        ),
        ("KV cache", requested, known, f"what {rules.name} is told to take"),
        ("lost to rounding", cost - requested, "published", "page-locked tensors are rounded up to a power of two"),
        ("headroom", room.headroom, "configured", f"{show_percent(facts.policy.headroom_ratio)} is never given away"),
    ]
    taken = sum(size for _, size, _, _ in rows)
    rows.append(("free", max(0, (room.limit or 0) - taken), known, "left over"))
    rows = [row for row in rows if row[1] or row[0] in ("KV cache", "free")]
    return tuple(BudgetItem(name=name, bytes=size, provenance=origin, why=why) for name, size, origin, why in rows)


def disk_budget(facts: Facts, tier: Tier | None, outcome: Outcome, why: str) -> Budget:
    """Disk space of one replica, and what its drive has free."""
    option = outcome.disk
    nearer = outcome.host.level.tokens if outcome.host else outcome.base.tokens
    rates = facts.disk_link
    free = rates.disk.free_bytes // facts.on_host if rates and rates.disk else None
    requested = option.requested if option else 0
    items = (
        ("KV cache", requested, "files of the disk tier"),
        ("left free", max(0, (free or 0) - requested), "free now; a drive is never filled beyond 85 % of it"),
    )
    return Budget(
        bytes=_effective(facts, nearer, option, tier),
        requested_bytes=requested,
        usable_bytes=option.tokens * tier.bytes_per_token if option and tier else 0,
        tokens=option.tokens if option else 0,
        hit_ratio=outcome.level.low.hit_ratio,
        why=why,
        limit_bytes=free,
        items=tuple(BudgetItem(name=name, bytes=size, provenance="measured", why=text) for name, size, text in items)
        if free is not None
        else (),
    )


def host_tier(facts: Facts, room: HostRoom) -> Tier | None:
    """The host tier as the engine would use it; None where it is forbidden, without a known link or without room."""
    rates, rules = facts.host_link, facts.profile
    if facts.policy.forbid_host or rates is None:
        return None
    per_gpu = facts.bytes_per_token_per_gpu
    return Tier(
        name="host",
        path=LoadPath(s_per_token=per_gpu / rates.load_bytes_per_s, latency_s=rates.latency_s),
        store_s_per_token=per_gpu / rates.store_bytes_per_s,
        bytes_per_token=facts.offload_bytes_per_token,
        chunk_tokens=facts.chunk_tokens,
        step_bytes=rules.host_unit_bytes * (facts.gpus if rules.host_scope == "rank" else 1),
        limit_bytes=room.available,
        inclusive=rules.inclusive,
        padded_pieces=facts.gpus if rules.padded_tensors else 0,
    )


def disk_tier(facts: Facts) -> Tier | None:
    """The disk tier over the measured drive; None where it is forbidden or no usable drive was measured."""
    rates = facts.disk_link
    if facts.policy.forbid_disk or rates is None or rates.disk is None:
        return None
    stored = facts.offload_bytes_per_token * facts.on_host
    link = facts.bytes_per_token_per_gpu / facts.host_link.load_bytes_per_s if facts.host_link else 0.0
    free = int(rates.disk.free_bytes * DISK_SHARE) // facts.on_host
    cap = facts.policy.disk_bytes
    rated = rates.disk.rated_endurance_bytes
    return Tier(
        name="disk",
        path=LoadPath(s_per_token=max(stored / rates.load_bytes_per_s, link), latency_s=rates.latency_s),
        store_s_per_token=stored / rates.store_bytes_per_s,
        bytes_per_token=facts.offload_bytes_per_token,
        chunk_tokens=facts.chunk_tokens,
        step_bytes=GiB * facts.gpus,
        limit_bytes=free if cap is None else min(free, cap),
        shared_path=True,
        lifetime_bytes=(rates.disk.total_bytes * ASSUMED_DRIVE_WRITES if rated is None else rated) // facts.on_host,
        minimum_life_s=facts.policy.minimum_disk_life_s,
    )


def kept_curve(facts: Facts) -> Curve:
    """The part of the hit curve that a tier can use under the retention policy.

    A cache that drops what was not used for longer than it takes to fill holds no more than it took in by then.
    """
    ttl, workload = facts.policy.ttl_s, facts.workload
    if ttl is None or (workload.ttl_s is not None and workload.ttl_s <= ttl):
        return Curve(workload.curve)
    span = workload.span_s or 0.0
    return Curve(
        [point for point in workload.curve if (span if point.fill_time_s is None else point.fill_time_s) <= ttl]
    )


def case_of(facts: Facts, room: GpuRoom, host: HostRoom) -> Case:
    """The choice to be made."""
    return Case(
        curve=Curve(facts.workload.curve),
        kept=kept_curve(facts),
        demand=facts.demand,
        prefill=facts.prefill,
        gpu_tokens=room.tokens,
        host=host_tier(facts, host),
        disk=disk_tier(facts),
        tolerance=facts.policy.tolerance_ratio,
        minimum_gain=facts.policy.minimum_gain_ratio,
    )
