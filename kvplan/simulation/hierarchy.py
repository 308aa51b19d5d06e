"""The tiers below one replica's GPU, their links, and what moves over them."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable, Sequence
from typing import Any, TypeAlias

from kvplan.documents import Arm, EngineModel, LinkModel
from kvplan.errors import KvplanError
from kvplan.simulation.links import Fifo
from kvplan.simulation.live import Hold, Live, Load
from kvplan.simulation.tiers import Tier

At: TypeAlias = Callable[[float, Callable[..., None], tuple[Any, ...]], None]  # time, what to call then, with what


class Hierarchy:
    """Host and disk of one replica; a tier without a block of room is not there at all.

    `stored` is called with the time and the hold that a copy from the GPU was made for, when it has ended.
    """

    def __init__(self, model: EngineModel, arm: Arm, at: At, stored: Callable[[float, Hold | None], None]) -> None:
        self.block_bytes = model.block_tokens * model.tier_bytes_per_token
        self.arm = arm
        self.at = at
        self.stored = stored
        self.host = self._tier(arm.host_bytes, arm.admission)
        self.disk = self._tier(arm.disk_bytes, arm.disk_admission)
        host = link_of(model.host_link, "host") if self.host or self.disk else None
        rate = arm.host_link_bytes_per_s
        self.up = Fifo(rate or host.load_bytes_per_s, host.latency_s) if host else None
        self.down = Fifo(rate or host.store_bytes_per_s, host.latency_s) if host else None
        disk = link_of(model.disk_link, "disk") if self.disk else None
        self.read = Fifo(disk.load_bytes_per_s, disk.latency_s) if disk else None
        self.write = Fifo(disk.store_bytes_per_s, disk.latency_s) if disk else None
        self.loads: set[Load] = set()
        self.failing = 0.0
        self.failed_loads = 0
        self.dice = random.Random(1)

    @property
    def stores(self) -> tuple[Tier | None, Tier | None]:
        """Host and disk."""
        return self.host, self.disk

    def _tier(self, size: int, admission: str) -> Tier | None:
        blocks = size // self.block_bytes
        arm = self.arm
        return Tier(blocks, arm.policy, admission == "second-use", arm.ttl_s) if blocks else None

    def found(self, path: Sequence[int], start: int, end: int, now: float) -> tuple[int, int]:
        """How many blocks of a path follow `start` on the host, and then on disk, without a gap, before `end`."""
        depth, counts = start, []
        for tier in (self.host, self.disk):
            first = depth
            if tier is not None:
                tier.expire(now)
                while depth < end and tier.holds(path[depth]):
                    depth += 1
            counts.append(depth - first)
        return counts[0], counts[1]

    def touch(self, path: Sequence[int], now: float, again: bool = True) -> None:
        """A request uses its path, or lets go of it."""
        for tier in (self.host, self.disk):
            if tier is not None:
                tier.touch(path, now, again)

    def load(self, request: Live, start: int, counts: tuple[int, int], now: float, done: Callable[..., None]) -> None:
        """Begin to load blocks of a request from `start` on; `done(now, load)` is called when they are there."""
        middle, end = start + counts[0], start + sum(counts)
        load = Load(request, start, request.path[start:middle], request.path[middle:end])
        arrive = now
        for tier, blocks in ((self.host, load.host), (self.disk, load.disk)):
            if tier is not None:
                tier.pin(blocks)
        load.generations = (_generation(self.host), _generation(self.disk))
        load.failed = self.dice.random() < self.failing
        assert self.up is not None
        if load.disk and self.read is not None:
            arrive = self.read.queue(now, len(load.disk) * self.block_bytes)
        ready = self.up.queue(arrive, (end - start) * self.block_bytes)
        self.loads.add(load)
        self.at(ready, self._loaded, (load, done))

    def _loaded(self, now: float, load: Load, done: Callable[..., None]) -> None:
        self.loads.discard(load)
        self.failed_loads += load.failed
        pairs = zip((self.host, self.disk), (load.host, load.disk), load.generations, strict=True)
        for tier, blocks, generation in pairs:
            if tier is not None and tier.generation == generation:
                tier.unpin(blocks)
        if load.disk and not load.failed and self.host is not None:
            self.host.commit(self.host.reserve(load.disk, now), now)  # it came through host memory and stays there
        done(now, load)

    def store(self, blocks: Iterable[int], now: float, hold: Hold | None = None) -> None:
        """Begin to copy complete blocks from the GPU, those that the tier takes; `stored` is called afterwards."""
        tier = self.host or self.disk
        admitted = tier.reserve(blocks, now) if tier is not None else []
        if admitted and tier is not None and self.down is not None:
            end = self.down.queue(now, len(admitted) * self.block_bytes)
            if end <= now:  # a link without end takes no time: nothing is held meanwhile
                self._arrived(now, admitted)
                return
            if hold is not None:
                hold.copies += 1
            self.at(end, self._stored, (admitted, tier.generation, hold))

    def _stored(self, now: float, blocks: list[int], generation: int, hold: Hold | None) -> None:
        self.stored(now, hold)
        tier = self.host or self.disk
        if tier is not None and tier.generation == generation:
            self._arrived(now, blocks)

    def _arrived(self, now: float, blocks: list[int]) -> None:
        tier = self.host
        if tier is not None:
            tier.commit(blocks, now)
            self._demote(blocks, now)
        else:
            self._write(blocks, now)

    def _demote(self, blocks: list[int], now: float) -> None:
        """Copy what the host took on to the disk."""
        if self.disk is None:
            return
        admitted = self.disk.reserve(blocks, now)
        if admitted:
            self._write(admitted, now)

    def _write(self, blocks: list[int], now: float) -> None:
        assert self.disk is not None
        assert self.write is not None
        end = self.write.queue(now, len(blocks) * self.block_bytes)
        self.at(end, self._written, (blocks, self.disk.generation))

    def _written(self, now: float, blocks: list[int], generation: int) -> None:
        if self.disk is not None and self.disk.generation == generation:
            self.disk.commit(blocks, now)

    def lose(self, name: str, reason: str, closed: bool) -> None:
        """A tier loses everything: loads that read it fail, copies to it come to nothing."""
        tier = self.host if name == "host" else self.disk
        if tier is None:
            return
        for load in self.loads:
            load.failed |= bool(load.host if name == "host" else load.disk)
        tier.clear(reason, closed)

    def slow(self, name: str, factor: float) -> None:
        """A link runs at a multiple of its rate, for what is queued from now on."""
        for link in (self.up, self.down) if name == "host" else (self.read, self.write):
            if link is not None:
                link.bytes_per_s *= factor


def _generation(tier: Tier | None) -> int:
    return tier.generation if tier is not None else 0


def link_of(link: LinkModel | None, name: str) -> LinkModel:
    """The link. Raises KvplanError where its rates are unknown."""
    if link is None:
        raise KvplanError(
            f"an arm has a {name} tier, and the rate of its link is unknown: plan with a probe of the target host"
            + (", --gpu NAME or --host-link" if name == "host" else "'s drive (`kvplan probe --disk DIR`)")
        )
    return link
