"""What one arm came to, as the document says it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable

from kvplan.documents import ArmResult, TierUse
from kvplan.simulation import over_time
from kvplan.simulation.links import Fifo
from kvplan.simulation.live import DONE, Live
from kvplan.simulation.measures import hit_tokens, spread, ttfts
from kvplan.simulation.tiers import Tier
from kvplan.simulation.world import World


def summarise(world: World) -> ArmResult:
    """The result of a world that was played to its end."""
    requests = world.requests
    admitted = [one for one in requests if one.admitted_at is not None]
    inputs = sum(one.input_tokens for one in admitted)
    hits = sum(hit_tokens(one, world.model.block_tokens) for one in admitted)
    first = requests[0].arrived_at if requests else 0.0
    span = max((one.ended_at or 0.0 for one in requests), default=0.0) - first
    replicas = world.replicas
    return ArmResult(
        arm=world.arm,
        submitted=len(requests),
        completed=sum(one.state == DONE for one in requests),
        cancelled=dict(sorted(Counter(one.cause for one in requests if one.cause).items())),
        input_tokens=inputs,
        hit_ratio=hits / inputs if inputs else 0.0,
        ttft=spread(ttfts(requests)),
        queue_wait=spread(one.admitted_at - one.arrived_at for one in requests if one.admitted_at is not None),
        load_wait=spread(
            one.loaded_at - one.loading_since
            for one in requests
            if one.loaded_at is not None and one.loading_since is not None
        ),
        mean_in_system=world.in_system_s / span if span else 0.0,
        makespan_s=span,
        completed_per_s=sum(one.state == DONE for one in requests) / span if span else None,
        gpu_busy_ratio=_share(sum(one.busy_s for one in replicas), span * len(replicas)),
        prefill_tokens=sum(one.prefill_tokens for one in replicas),
        steps=sum(one.steps for one in replicas),
        preemptions=sum(one.preemptions for one in replicas),
        failed_loads=sum(one.tiers.failed_loads for one in replicas),
        tiers=_tiers(world, admitted, span),
        slices=over_time.slices(world, admitted, over_time.SLICES),
        timeline=over_time.slices(world, admitted, over_time.MOMENTS),
        phases=over_time.phases(world, admitted),
    )


def _share(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole > 0 else 0.0


def _tiers(world: World, admitted: list[Live], span: float) -> tuple[TierUse, ...]:
    size = world.model.block_tokens
    gpus = [one.gpu for one in world.replicas]
    used = [
        TierUse(
            tier="gpu",
            capacity_blocks=sum(gpu.capacity for gpu in gpus),
            hit_tokens=sum(one.hits[0] for one in admitted) * size,
            blocks=sum(len(gpu.cached) for gpu in gpus),
            inserted_blocks=sum(gpu.inserted for gpu in gpus),
            removed_blocks=_total(gpu.removed for gpu in gpus),
            refused_blocks={},
            removed_never_hit_blocks=sum(gpu.never_hit for gpu in gpus),
            kept_never_hit_blocks=sum(len(gpu.cached.keys() - gpu.hit) for gpu in gpus),
            full_at_s=over_time.full_at(gpus),
        )
    ]
    below = [one.tiers for one in world.replicas]
    host = [one.host for one in below if one.host is not None]
    disk = [one.disk for one in below if one.disk is not None]
    if host:
        loads, stores = [one.up for one in below], [one.down for one in below]
        used.append(_tier("host", host, sum(one.hits[1] for one in admitted) * size, (loads, stores), span))
    if disk:
        loads, stores = [one.read for one in below], [one.write for one in below]
        used.append(_tier("disk", disk, sum(one.hits[2] for one in admitted) * size, (loads, stores), span))
    return tuple(used)


def _tier(
    name: str, tiers: list[Tier], hits: int, links: tuple[list[Fifo | None], list[Fifo | None]], span: float
) -> TierUse:
    loads, stores = ([link for link in some if link is not None] for some in links)
    return TierUse(
        tier="host" if name == "host" else "disk",
        capacity_blocks=sum(tier.capacity for tier in tiers),
        hit_tokens=hits,
        blocks=sum(len(tier.used_at) for tier in tiers),
        inserted_blocks=sum(tier.inserted for tier in tiers),
        removed_blocks=_total(tier.removed for tier in tiers),
        refused_blocks=_total(tier.refused for tier in tiers),
        removed_never_hit_blocks=sum(tier.never_hit for tier in tiers),
        kept_never_hit_blocks=sum(len(tier.used_at.keys() - tier.hit) for tier in tiers),
        full_at_s=over_time.full_at(tiers),
        loaded_bytes=sum(link.moved_bytes for link in loads),
        stored_bytes=sum(link.moved_bytes for link in stores),
        load_busy_ratio=_share(sum(link.busy_s for link in loads), span * len(tiers)),
        store_busy_ratio=_share(sum(link.busy_s for link in stores), span * len(tiers)),
    )


def _total(counters: Iterable[Counter[str]]) -> dict[str, int]:
    whole: Counter[str] = Counter()
    for one in counters:
        whole.update(one)
    return {reason: whole[reason] for reason in sorted(whole) if whole[reason]}
