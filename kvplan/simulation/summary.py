"""What one arm came to, as the document says it."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Literal

from kvplan.documents import ArmResult, TierUse
from kvplan.simulation import over_time
from kvplan.simulation.links import Fifo
from kvplan.simulation.live import DONE, Live
from kvplan.simulation.measures import hit_ratio, spread, ttfts
from kvplan.simulation.stepping import Store
from kvplan.simulation.world import World


def summarise(world: World) -> ArmResult:
    """The result of a world that was played to its end."""
    requests = world.requests
    admitted = [one for one in requests if one.admitted_at is not None]
    inputs = sum(one.input_tokens for one in admitted)
    first = requests[0].arrived_at if requests else 0.0
    span = max((one.ended_at or 0.0 for one in requests), default=0.0) - first
    replicas = world.replicas
    return ArmResult(
        arm=world.arm,
        submitted=len(requests),
        completed=sum(one.state == DONE for one in requests),
        cancelled=dict(sorted(Counter(one.cause for one in requests if one.cause).items())),
        input_tokens=inputs,
        hit_ratio=hit_ratio(admitted),
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
        backlog=_backlog(requests),
        gpu_busy_ratio=_share(
            sum(one.busy_s for one in replicas),
            sum(span if one.gone_at is None else one.gone_at - first for one in replicas),
        ),
        prefill_tokens=sum(one.prefill_tokens for one in replicas),
        steps=sum(one.steps for one in replicas),
        preemptions=sum(one.preemptions for one in replicas),
        failed_loads=sum(one.tiers.failed_loads for one in replicas),
        tiers=_tiers(world, admitted, span),
        slices=over_time.slices(world, admitted, over_time.SLICES),
        timeline=over_time.slices(world, admitted, over_time.MOMENTS),
        phases=over_time.phases(world, admitted),
    )


def _backlog(requests: Sequence[Live]) -> int:
    last = max((one.arrived_at for one in requests), default=0.0)
    left = (one.ended_at if one.admitted_at is None else one.admitted_at for one in requests)
    return sum(when is not None and when > last for when in left)


def _share(part: float, whole: float) -> float:
    return min(1.0, part / whole) if whole > 0 else 0.0


def _tiers(world: World, admitted: list[Live], span: float) -> tuple[TierUse, ...]:
    below = [one.tiers for one in world.replicas]
    hosts, disks = world.stores()
    used = [_tier("gpu", [one.store for one in world.replicas], _hit(admitted, 0), ([], []), span)]
    if hosts:
        links = [one.up for one in below], [one.down for one in below]
        used.append(_tier("host", hosts, _hit(admitted, 1), links, span))
    if disks:
        links = [one.read for one in below], [one.write for one in below]
        used.append(_tier("disk", disks, _hit(admitted, 2), links, span))
    return tuple(used)


def _hit(admitted: list[Live], place: int) -> int:
    return sum(one.hits[place] for one in admitted)


def _tier(
    name: Literal["gpu", "host", "disk"],
    stores: Sequence[Store],
    hits: int,
    links: tuple[Sequence[Fifo | None], Sequence[Fifo | None]],
    span: float,
) -> TierUse:
    loads, fills = ([link for link in some if link is not None] for some in links)
    books = [store.books() for store in stores]
    return TierUse(
        tier=name,
        capacity_blocks=sum(one.capacity for one in books),
        hit_tokens=hits,
        blocks=sum(one.blocks for one in books),
        inserted_blocks=sum(one.inserted for one in books),
        removed_blocks=_total(one.removed for one in books),
        refused_blocks=_total(one.refused for one in books),
        removed_never_hit_blocks=sum(one.never_hit for one in books),
        kept_never_hit_blocks=sum(one.kept_never_hit for one in books),
        full_at_s=over_time.full_at(books),
        loaded_bytes=sum(link.moved_bytes for link in loads),
        stored_bytes=sum(link.moved_bytes for link in fills),
        load_busy_ratio=_share(sum(link.busy_s for link in loads), span * len(stores)),
        store_busy_ratio=_share(sum(link.busy_s for link in fills), span * len(stores)),
    )


def _total(counters: Iterable[Mapping[str, int]]) -> dict[str, int]:
    whole: Counter[str] = Counter()
    for one in counters:
        whole.update(one)
    return {reason: whole[reason] for reason in sorted(whole) if whole[reason]}
