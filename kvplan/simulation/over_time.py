"""One arm over time: slices of equal length, and phases that begin when a tier is full or something happens."""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Sequence
from itertools import pairwise

from kvplan.documents import Phase, Slice
from kvplan.simulation.books import Books
from kvplan.simulation.live import Live
from kvplan.simulation.measures import hit_ratio, spread, ttfts
from kvplan.simulation.world import Held, World

SLICES = 10
MOMENTS = 40


def full_at(books: Sequence[Books]) -> float | None:
    """When the first of these gave up a block for room."""
    return min((one.full_at for one in books if one.full_at is not None), default=None)


def slices(world: World, admitted: Sequence[Live], count: int) -> tuple[Slice, ...]:
    """The time from the first arrival to the last in `count` equal parts."""
    if not world.requests:
        return ()
    width = max(max(one.arrived_at for one in world.requests) / count, 1e-9)
    starts = [number * width for number in range(count)]
    block_bytes = world.model.block_tokens * world.model.tier_bytes_per_token
    held = _held(world, [*starts, count * width])
    return tuple(
        Slice(
            from_s=start,
            requests=len(part),
            hit_ratio=hit_ratio(part),
            ttft_p90_s=times.p90 if (times := spread(ttfts(part))) else None,
            host_bytes=end.host * block_bytes,
            host_removed_bytes=(end.host_removed - begin.host_removed) * block_bytes,
            disk_bytes=end.disk * block_bytes,
        )
        for start, part, (begin, end) in zip(starts, _split(admitted, starts), pairwise(held), strict=True)
    )


def _split(admitted: Sequence[Live], starts: Sequence[float]) -> list[list[Live]]:
    """Requests by the last of `starts` at or before their arrival."""
    split: list[list[Live]] = [[] for _ in starts]
    for one in admitted:
        split[max(0, bisect_right(starts, one.arrived_at) - 1)].append(one)
    return split


def _held(world: World, times: Sequence[float]) -> list[Held]:
    """What tiers held at each time, as last looked at by then; the last of them after everything."""
    seen = world.occupancy
    places = [bisect_right(seen, when, key=lambda one: one.when) - 1 for when in times]
    return [seen[max(0, place)] for place in places]


def phases(world: World, admitted: Sequence[Live]) -> tuple[Phase, ...]:
    """From the cold start until the largest tier is full, from there on, and after each fault."""
    largest = world.stores()[0] or [one.store for one in world.replicas]
    full = full_at([one.books() for one in largest])
    last = max((one.arrived_at for one in world.requests), default=0.0)
    starts = [(0.0, "cold")] + ([] if full is None else [(full, "full")])
    for fault in world.faults:
        if fault.kind != "client-gone":
            starts.append((fault.at_s, fault.kind))
    starts += [(end, "scan-over") for end in world.scans_over]
    starts = sorted(one for one in starts if one[0] <= last)
    made = []
    for (start, name), part in zip(starts, _split(admitted, [when for when, _ in starts]), strict=True):
        times = spread(ttfts(part))
        made.append(
            Phase(
                name=name,
                from_s=start,
                requests=len(part),
                hit_ratio=hit_ratio(part),
                ttft_p50_s=times.p50 if times else None,
                ttft_p90_s=times.p90 if times else None,
            )
        )
    return tuple(made)
