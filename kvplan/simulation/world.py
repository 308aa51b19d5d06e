"""Everything that happens, in order of time: arrivals, steps, transfers, faults, over all replicas."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvplan.documents import Arm, EngineModel, Fault
from kvplan.progress import Progress, silent
from kvplan.simulation.live import DONE, GONE, Live
from kvplan.simulation.replica import Replica

SAMPLES = 120  # of the host tier's occupancy, over the schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What arrives: `paths` are the full blocks of each request, dense ids below `unique`; times start at 0."""

    times: Sequence[float]
    sizes: Sequence[tuple[int, int]]
    paths: Sequence[list[int]]
    sessions: Sequence[int]
    unique: int
    block_tokens: int


class World:
    """One arm, from the first arrival until the last request has ended."""

    def __init__(
        self,
        schedule: Schedule,
        model: EngineModel,
        arm: Arm,
        faults: Sequence[Fault] = (),
        watch: Callable[[World], None] | None = None,
    ) -> None:
        self.model = model
        self.arm = arm
        self.watch = watch
        self.now = 0.0
        self.events: list[tuple[float, int, Callable[..., None], tuple[Any, ...]]] = []
        self.sequence = 0
        self.requests = [
            Live(index, when, size, path, schedule.block_tokens, session)
            for index, (when, size, path, session) in enumerate(
                zip(schedule.times, schedule.sizes, schedule.paths, schedule.sessions, strict=True)
            )
        ]
        self.arrived = 0
        self.ended = 0
        self.in_system = 0
        self.in_system_s = 0.0
        self.last_change = 0.0
        self.occupancy: list[tuple[float, int]] = []
        self.homes: OrderedDict[int, int] = OrderedDict()
        self.replicas = [
            Replica(model, arm, schedule.unique, self.at, self.next_event, self._left) for _ in range(model.replicas)
        ]
        for fault in faults:
            self.at(fault.at_s, self._fault, (fault,))

    def at(self, when: float, call: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """Have `call(when, *arguments)` happen."""
        self.sequence += 1
        heapq.heappush(self.events, (when, self.sequence, call, arguments))

    def next_event(self) -> float:
        """When something happens next, the end of a step not yet begun aside."""
        coming = self.requests[self.arrived].arrived_at if self.arrived < len(self.requests) else math.inf
        return min(coming, self.events[0][0] if self.events else math.inf)

    def play(self, progress: Progress = silent) -> None:
        """Play the schedule to its end."""
        count, every = len(self.requests), max(1, len(self.requests) // SAMPLES)
        while self.ended < count:
            if self.arrived < count and (not self.events or self.requests[self.arrived].arrived_at < self.events[0][0]):
                request = self.requests[self.arrived]
                if request.index % every == 0:
                    progress(f"playing arm {self.arm.name}", request.index / count)
                    self.occupancy.append((request.arrived_at, self._host_blocks()))
                self._arrive(request)
            else:
                self.now, _, call, arguments = heapq.heappop(self.events)
                call(self.now, *arguments)
            if self.watch is not None:
                self.watch(self)

    def _arrive(self, request: Live) -> None:
        self.arrived += 1
        self.now = request.arrived_at
        self._count(self.now, 1)
        if request.state == GONE:  # a client may be gone before its turn
            self._left(self.now, request)
        else:
            self._route(request).arrive(request, self.now)
        if self.arrived == len(self.requests) or self.requests[self.arrived].arrived_at > self.now:
            for replica in self.replicas:  # those that arrive together are looked at together
                replica.start(self.now)

    def _count(self, now: float, change: int) -> None:
        self.in_system_s += self.in_system * (now - self.last_change)
        self.last_change = now
        self.in_system += change

    def _left(self, now: float, request: Live) -> None:
        self.ended += 1
        self._count(now, -1)

    def _host_blocks(self) -> int:
        return sum(one.tiers.host.used for one in self.replicas if one.tiers.host is not None)

    # --------------------------------------------------------------------------------------------- routing

    def _route(self, request: Live) -> Replica:
        count = len(self.replicas)
        if count == 1:
            return self.replicas[0]
        request.replica = self._choose(request, count)
        for block in request.path:
            self.homes[block] = request.replica
        return self.replicas[request.replica]

    def _choose(self, request: Live, count: int) -> int:
        """By turns, by session, or where at least half of the prompt went last, else to the least busy."""
        if self.model.routing == "round-robin":
            return request.index % count
        if self.model.routing == "session" and request.session >= 0:
            return request.session % count
        known = 0
        while known < len(request.path) and request.path[known] in self.homes:
            known += 1
        if 2 * known >= max(1, len(request.path)):
            return self.homes[request.path[known - 1]]
        return min(range(count), key=lambda one: (self.replicas[one].outstanding, one))

    # ---------------------------------------------------------------------------------------------- faults

    def _fault(self, now: float, fault: Fault) -> None:
        if fault.kind == "client-gone":
            self._gone(now, fault.request)
            return
        for replica in self.replicas:
            match fault.kind:
                case "restart":
                    replica.restart(now, fault.value, fault.survives)
                case "tier-lost":
                    replica.tiers.lose(fault.tier, "tier lost", closed=True)
                case "link":
                    replica.tiers.slow(fault.tier, fault.value)
                case _:
                    replica.tiers.failing = fault.value

    def _gone(self, now: float, index: int | None) -> None:
        if index is None or index >= len(self.requests):
            return
        request = self.requests[index]
        if index < self.arrived:
            self.replicas[request.replica].cancel(request, now, "client gone")
        elif request.state not in (DONE, GONE):
            request.state, request.cause = GONE, "client gone"
            request.ended_at = request.arrived_at
