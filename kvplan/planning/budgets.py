"""The three budgets, itemised so that every byte of a limit is accounted for."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvplan.documents import Budget, BudgetItem, Provenance
from kvplan.planning.choice import Case, Option, Outcome, Tier
from kvplan.planning.drive import DISK_SHARE, is_stated
from kvplan.planning.economics import LoadPath
from kvplan.planning.facts import Facts
from kvplan.planning.hostroom import HostRoom
from kvplan.planning.money import hold_s_per_byte, wear_s_per_token
from kvplan.planning.wear import endurance
from kvplan.units import GiB, show_bytes, show_percent


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuRoom:
    """Memory of one GPU: usable = weights + overhead + active + reusable + rest, unless the first three exceed it.

    `context` is the cache of an engine that allocates it whole at start, whatever else is free; None where it takes
    what is left. Requests that do not go into it wait for it: `active` is what they hold there.
    """

    usable: int
    weights: int
    overhead: int
    active: int
    reusable: int
    rest: int
    tokens: int
    context: int | None = None

    @property
    def needed(self) -> int:
        """What must be there before any block can be kept for reuse."""
        return self.weights + self.overhead + (self.active if self.context is None else self.context)

    @property
    def held(self) -> str:
        """What must be there beside weights and overhead, in words."""
        return f"active requests {show_bytes(self.active)}" if self.context is None else self._context

    @property
    def _context(self) -> str:
        return f"a context of {show_bytes(self.context or 0)}"

    @property
    def missing(self) -> int:
        """What must be there beyond what is usable."""
        return max(0, self.needed - self.usable)

    @property
    def fits(self) -> bool:
        """Whether weights, overhead and active requests fit at all."""
        return not self.missing

    @property
    def cache(self) -> int:
        """What the engine can fill with KV cache, of active requests and reusable blocks together."""
        return min(self.active + self.reusable, max(0, self.usable - self.weights - self.overhead))


def gpu_room(facts: Facts, growth: float | None = None) -> GpuRoom:
    """How one GPU's memory divides at a growth of the log's demand (the policy's own where None)."""
    usable = facts.profile.usable_bytes(
        facts.gpu_total.value, facts.utilization, facts.weights.value, facts.overhead.value
    )
    active = active_bytes(facts, facts.policy.growth if growth is None else growth)
    context = context_bytes(facts)
    if context is not None:
        active = min(active, context)
    left = usable - facts.weights.value - facts.overhead.value - active
    block = facts.chunk_tokens * facts.bytes_per_token_per_gpu
    own = left
    if context is not None:  # all of it must fit, and no more of the GPU is used
        fits = left >= context - active
        own, left = (context - active, left) if fits else (0, context - active)
    blocks = max(0, own // block - facts.profile.null_blocks)
    return GpuRoom(
        usable=usable,
        weights=facts.weights.value,
        overhead=facts.overhead.value,
        active=active,
        reusable=blocks * block,
        rest=max(0, left) - blocks * block,
        tokens=blocks * facts.chunk_tokens,
        context=context,
    )


def context_bytes(facts: Facts) -> int | None:
    """Bytes on one GPU of a context that is allocated whole at start, as the estimate has it; else None."""
    whole = facts.estimate.engine_view.get("context_bytes")
    return -(-whole // facts.gpus) if isinstance(whole, int) and whole else None


def active_bytes(facts: Facts, growth: float) -> int:
    """Bytes that running requests hold on one GPU at the policy's percentile of the log, partial blocks included."""
    tokens, requests = facts.active
    share = growth / facts.replicas
    kv = facts.estimate.kv
    held = tokens + requests * (facts.chunk_tokens - 1)
    return math.ceil(held * share * kv.bytes_per_token_per_gpu + requests * share * kv.bytes_per_sequence_per_gpu)


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
        _rest(room, facts.gpu_total.provenance, on),
    ]
    low = outcome.base.low
    if room.context is not None and room.fits:
        why = f"{room.held} a GPU, as the estimate has it, less active requests"
    elif room.fits:
        why = f"{show_bytes(room.usable)} usable a GPU less weights, overhead and active requests"
    else:
        held = "active requests" if room.context is None else "the context"
        why = f"weights, overhead and {held} need {show_bytes(room.needed)} of {show_bytes(room.usable)} a GPU"
    return Budget(
        bytes=room.reusable * gpus,
        requested_bytes=room.usable * gpus,
        usable_bytes=room.cache * gpus,
        tokens=room.tokens,
        hit_ratio=low.hit_ratio,
        why=why,
        limit_bytes=room.usable * gpus,
        missing_bytes=room.missing * gpus,
        items=tuple(
            BudgetItem(name=name, bytes=size * gpus, provenance=provenance, why=why)
            for name, size, provenance, why in rows
            if size or name == "reusable blocks"
        ),
    )


def _rest(room: GpuRoom, provenance: Provenance, on: str) -> tuple[str, int, Provenance, str]:
    if room.context is None:
        return "less than a block", room.rest, provenance, "rounding, and blocks the engine reserves" + on
    if room.fits:
        return "outside the context", room.rest, "configured", "the engine allocates its context at start, no more" + on
    return "rest of the context", room.rest, "configured", "allocated at start, whether it is used or not" + on


def host_budget(facts: Facts, room: HostRoom, tier: Tier | None, outcome: Outcome, why: str) -> Budget:
    """Host memory of one replica: requested, usable and effective bytes, and every item of its share of the host."""
    option = outcome.host
    requested = option.requested if option else 0
    main = facts.offload_bytes_per_token - side_bytes_per_token(facts)
    items = _host_items(facts, room, tier, requested) if room.limit is not None else ()
    return Budget(
        bytes=_added_tokens(outcome.base.tokens, option, tier) * main,
        requested_bytes=requested,
        usable_bytes=option.tokens * main if option else 0,
        tokens=option.tokens if option else 0,
        hit_ratio=option.level.low.hit_ratio if option else outcome.base.low.hit_ratio,
        why=why,
        limit_bytes=room.limit,
        items=items,
    )


def _added_tokens(nearer: int, option: Option | None, tier: Tier | None) -> int:
    """Tokens of a tier that add reuse: an inclusive one repeats what the nearer tiers hold."""
    if option is None or tier is None:
        return 0
    return max(0, option.tokens - (nearer if tier.inclusive else 0))


def _host_items(facts: Facts, room: HostRoom, tier: Tier | None, requested: int) -> tuple[BudgetItem, ...]:
    memory = facts.host_memory
    known: Provenance = memory.provenance if memory else "assumed"
    lost = tier.padded(requested) - requested if tier else 0
    beside = tier.beside(requested) if tier else 0
    headroom = f"{show_percent(facts.policy.headroom_ratio)} is never given away"
    rows: list[tuple[str, int, Provenance, str]] = [
        *((part.name, part.bytes, part.provenance, part.why) for part in room.parts),
        ("KV cache", requested, known, f"what {facts.profile.name} is told to take, page-locked"),
        ("lost to rounding", lost, "published", "page-locked tensors are rounded up to a power of two"),
        ("indexer and draft pools", beside, "published", f"{facts.profile.name} takes them on top of its size flag"),
        ("headroom", room.headroom, "configured", headroom),
    ]
    taken = sum(size for _, size, _, _ in rows)
    rows.append(("free", max(0, (room.limit or 0) - taken), known, "left over"))
    rows = [row for row in rows if row[1] or row[0] in ("KV cache", "free")]
    return tuple(BudgetItem(name=name, bytes=size, provenance=origin, why=why) for name, size, origin, why in rows)


def disk_budget(facts: Facts, tier: Tier | None, outcome: Outcome, why: str) -> Budget:
    """Disk space of one replica, and what its drive has free or holds of an earlier cache."""
    option = outcome.disk
    nearer = outcome.host.level.tokens if outcome.host else outcome.base.tokens
    free = disk_room(facts)
    requested = option.requested if option else 0
    drive = facts.disk_link.disk if facts.disk_link else None
    stated = drive is not None and is_stated(drive)
    left = "of the drive as stated" if stated else "free now"
    items = (
        ("KV cache", requested, "files of the disk tier"),
        ("left free", max(0, (free or 0) - requested), f"{left}; a drive is never filled beyond 85 % of it"),
    )
    origin: Provenance = "configured" if stated else "measured"
    return Budget(
        bytes=_added_tokens(nearer, option, tier) * facts.offload_bytes_per_token,
        requested_bytes=requested,
        usable_bytes=option.tokens * facts.offload_bytes_per_token if option else 0,
        tokens=option.tokens if option else 0,
        hit_ratio=outcome.level.low.hit_ratio,
        why=why,
        limit_bytes=free,
        items=tuple(BudgetItem(name=name, bytes=size, provenance=origin, why=text) for name, size, text in items)
        if free is not None
        else (),
    )


def disk_room(facts: Facts) -> int | None:
    """Bytes one replica could use of its drive: what is free, and what an earlier cache in the folder holds."""
    rates = facts.disk_link
    if rates is None or rates.disk is None:
        return None
    return (rates.disk.free_bytes + facts.policy.disk_own_bytes) // facts.on_host


def host_tier(facts: Facts, room: HostRoom) -> Tier | None:
    """The host tier as the engine would use it; None where it is forbidden, without a known link or without room."""
    rates, rules = facts.host_link, facts.profile
    if facts.policy.forbid_host or rates is None:
        return None
    per_gpu = facts.bytes_per_token_per_gpu
    beside = side_bytes_per_token(facts)
    return Tier(
        name="host",
        path=LoadPath(s_per_token=per_gpu / rates.load_bytes_per_s, latency_s=rates.latency_s),
        store_s_per_token=per_gpu / rates.store_bytes_per_s,
        bytes_per_token=_expanded(facts, facts.offload_bytes_per_token - beside),
        chunk_tokens=facts.tier_chunk_tokens,
        step_bytes=rules.host_unit_bytes * (facts.ranks_that_store if rules.host_scope == "rank" else 1),
        limit_bytes=room.available,
        inclusive=rules.inclusive,
        padded_pieces=facts.gpus if rules.padded_tensors else 0,
        beside_bytes_per_token=beside,
        fill_percent=rules.fill_percent,
        store_share=facts.store_share.ratio,
        hold_s_per_byte=hold_s_per_byte(facts, "host", facts.policy.price_view),
    )


def side_bytes_per_token(facts: Facts) -> int:
    """Bytes of a stored token that the engine keeps in pools of their own, beside what its size flag counts."""
    if not facts.profile.side_pools:
        return 0
    groups = facts.estimate.groups
    side = sum(group.bytes_per_token for group in groups if group.kind in ("indexer", "draft"))
    whole = sum(group.bytes_per_token for group in groups)
    return facts.offload_bytes_per_token * side // whole if whole else 0


def _expanded(facts: Facts, size: int) -> int:
    return math.ceil(size * facts.policy.expansion)


def disk_tier(facts: Facts) -> Tier | None:
    """The disk tier over the measured drive; None where it is forbidden or no usable drive was measured."""
    rates, room = facts.disk_link, disk_room(facts)
    if facts.policy.forbid_disk or rates is None or rates.disk is None or room is None:
        return None
    stored, written = facts.offload_bytes_per_token * facts.on_host, _expanded(facts, facts.offload_bytes_per_token)
    link = facts.bytes_per_token_per_gpu / facts.host_link.load_bytes_per_s if facts.host_link else 0.0
    free, cap = int(room * DISK_SHARE), facts.policy.disk_bytes
    return Tier(
        name="disk",
        path=LoadPath(s_per_token=max(stored / rates.load_bytes_per_s, link), latency_s=rates.latency_s),
        store_s_per_token=stored / rates.store_bytes_per_s,
        bytes_per_token=written,
        chunk_tokens=facts.tier_chunk_tokens,
        step_bytes=GiB * facts.gpus,
        limit_bytes=free if cap is None else min(free, cap),
        shared_path=True,
        lifetime_bytes=endurance(rates.disk).left // facts.on_host,
        minimum_life_s=facts.policy.minimum_disk_life_s,
        second_use=facts.policy.disk_admission == "second-use",
        hold_s_per_byte=hold_s_per_byte(facts, "disk", facts.policy.price_view),
        wear_s_per_token=wear_s_per_token(facts, written, facts.policy.price_view),
    )


def case_of(facts: Facts, room: GpuRoom, host: HostRoom) -> Case:
    """The choice to be made."""
    curves = facts.curves
    return Case(
        curve=curves.gpu,
        kept=curves.host,
        disk_kept=curves.disk,
        demand=facts.demand,
        prefill=facts.prefill,
        gpu_tokens=room.tokens,
        host=host_tier(facts, host),
        disk=disk_tier(facts),
        tolerance=facts.policy.tolerance_ratio,
        minimum_gain=facts.policy.minimum_gain_ratio,
    )
