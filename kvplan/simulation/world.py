"""Everything that happens, in order of time: arrivals, steps, transfers, faults, over all replicas."""

from __future__ import annotations

import heapq
import math
from collections import OrderedDict, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from kvplan.documents import Arm, EngineModel, Fault
from kvplan.progress import Progress, silent
from kvplan.simulation.live import DONE, GONE, Live
from kvplan.simulation.loops import Turn
from kvplan.simulation.replica import Replica
from kvplan.simulation.slots import SlotReplica
from kvplan.simulation.stepping import Stepper, Store

SAMPLES = 240  # of what tiers hold, over the schedule


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What the tiers below the GPU hold at a time, and what the host has given up until then, in blocks."""

    when: float
    host: int
    host_removed: int
    disk: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Schedule:
    """What arrives: `paths` are the full blocks of each request, dense ids below `unique`; times start at 0.

    A request with a turn in `after` comes once that answer is over. With `clients`, so many requests are there at
    once: the next of the schedule comes when one ends. `answers` are the blocks that outputs become, where known.
    `scans_over` is when the last request of each scan comes.
    """

    times: Sequence[float]
    sizes: Sequence[tuple[int, int]]
    paths: Sequence[list[int]]
    sessions: Sequence[int]
    unique: int
    block_tokens: int
    after: Sequence[Turn | None] = ()
    answers: Sequence[list[int]] = ()
    clients: int | None = None
    scans_over: tuple[float, ...] = ()


def _order(schedule: Schedule) -> tuple[list[int], dict[int, list[tuple[int, float]]], deque[int]]:
    """Who comes at a time of its own, in order; who after whose answer, and how long after; who when a client is free.

    A client that waits for nobody's answer takes the next of the schedule.
    """
    count = len(schedule.times)
    if schedule.clients is not None:
        return list(range(min(schedule.clients, count))), {}, deque(range(schedule.clients, count))
    first, later = list[int](), dict[int, list[tuple[int, float]]]()
    for index in range(count):
        turn = schedule.after[index] if schedule.after else None
        if turn is None:
            first.append(index)
        else:
            later.setdefault(turn.after, []).append((index, turn.think_s))
    return sorted(first, key=lambda index: schedule.times[index]), later, deque()


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
        self.faults = faults
        self.scans_over = schedule.scans_over
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
        for request, answer in zip(self.requests, schedule.answers, strict=False):
            request.answer = answer
        self.first, self.next_turns, self.queue = _order(schedule)
        self.entered = 0  # of `first`
        self.arrived = 0
        self.ended = 0
        self.in_system = 0
        self.in_system_s = 0.0
        self.last_change = 0.0
        self.progress = silent
        self.occupancy: list[Held] = []
        self.gone: set[int] = set()  # replicas that left for good
        self.homes: OrderedDict[int, int] = OrderedDict()
        self.replicas = [self._replica(schedule.unique) for _ in range(model.replicas)]
        for fault in faults:
            self.at(fault.at_s, self._fault, (fault,))

    def _replica(self, blocks: int) -> Stepper:
        if self.model.slots is not None:
            return SlotReplica(self.model, self.model.slots, self.arm, self.at, self.next_event, self._left)
        return Replica(self.model, self.arm, blocks, self.at, self.next_event, self._left)

    def at(self, when: float, call: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        """Have `call(when, *arguments)` happen."""
        self.sequence += 1
        heapq.heappush(self.events, (when, self.sequence, call, arguments))

    def next_event(self) -> float:
        """When something happens next, the end of a step not yet begun aside."""
        return min(self._first_arrival(), self.events[0][0] if self.events else math.inf)

    def _first_arrival(self) -> float:
        """When the next request comes that waits for nobody's answer."""
        return self.requests[self.first[self.entered]].arrived_at if self.entered < len(self.first) else math.inf

    def play(self, progress: Progress = silent) -> None:
        """Play the schedule to its end."""
        self.progress = progress
        while self.ended < len(self.requests):
            when = self._first_arrival()
            if when < math.inf and (not self.events or when < self.events[0][0]):
                request = self.requests[self.first[self.entered]]
                self.entered += 1
                self._arrive(when, request)
                if self._first_arrival() > when:
                    self._start(when)  # those that arrive together are looked at together
            else:
                self.now, _, call, arguments = heapq.heappop(self.events)
                call(self.now, *arguments)
            if self.watch is not None:
                self.watch(self)

    def _arrive(self, now: float, request: Live) -> None:
        every = max(1, len(self.requests) // SAMPLES)
        if self.arrived % every == 0:
            self.progress(f"playing arm {self.arm.name}", self.arrived / len(self.requests))
            self.occupancy.append(self.held(now))
        request.arrived_at, request.rank = now, self.arrived
        self.arrived += 1
        self.now = now
        self._count(now, 1)
        if request.state == GONE:  # a client may be gone before its turn
            request.ended_at = now
            self._left(now, request)
        else:
            self._route(request).arrive(request, now)

    def _start(self, now: float) -> None:
        for replica in self.replicas:
            replica.start(now)

    def _follow(self, now: float, request: Live) -> None:
        """A request that waited for an answer arrives."""
        self._arrive(now, request)
        self._start(now)

    def _count(self, now: float, change: int) -> None:
        self.in_system_s += self.in_system * (now - self.last_change)
        self.last_change = now
        self.in_system += change

    def _left(self, now: float, request: Live) -> None:
        self.ended += 1
        self._count(now, -1)
        for index, think_s in self.next_turns.get(request.index, ()):
            self.at(now + think_s, self._follow, (self.requests[index],))
        if self.queue:
            self.at(now, self._follow, (self.requests[self.queue.popleft()],))

    def held(self, now: float) -> Held:
        """What the tiers hold, all replicas together."""
        hosts, disks = self.stores()
        return Held(
            when=now,
            host=sum(one.used for one in hosts),
            host_removed=sum(sum(one.removed.values()) for one in hosts),
            disk=sum(one.used for one in disks),
        )

    def stores(self) -> tuple[list[Store], list[Store]]:
        """The hosts and the disks that there are."""
        pairs = [one.tiers.stores for one in self.replicas]
        return [host for host, _ in pairs if host is not None], [disk for _, disk in pairs if disk is not None]

    # --------------------------------------------------------------------------------------------- routing

    def _route(self, request: Live) -> Stepper:
        count = len(self.replicas)
        if count == 1:
            return self.replicas[0]
        request.replica = self._choose(request, count)
        for block in request.path:
            self.homes[block] = request.replica
        return self.replicas[request.replica]

    def _choose(self, request: Live, count: int) -> int:
        """By turns, by session, or where at least half of the prompt went last, else to the least busy."""
        there = [number for number in range(count) if number not in self.gone]
        if self.model.routing == "round-robin":
            return there[request.index % len(there)]
        if self.model.routing == "session" and request.session >= 0:
            return there[request.session % len(there)]
        known = 0
        while known < len(request.path) and request.path[known] in self.homes:
            known += 1
        if 2 * known >= max(1, len(request.path)):
            return self.homes[request.path[known - 1]]
        return min(there, key=lambda one: (self.replicas[one].outstanding, one))

    # ---------------------------------------------------------------------------------------------- faults

    def _fault(self, now: float, fault: Fault) -> None:
        if fault.kind == "client-gone":
            self._gone(now, fault.request)
        elif fault.kind == "worker-gone":
            self._leave(now, int(fault.value))
        else:
            self._strike(now, fault)

    def _leave(self, now: float, number: int) -> None:
        """A replica leaves; whoever was there, and what was asked of it, goes to the others."""
        if number in self.gone:
            return
        self.gone.add(number)
        for block in [block for block, home in self.homes.items() if home == number]:
            del self.homes[block]
        for request in sorted(self.replicas[number].leave(now), key=lambda one: one.rank):
            self._route(request).arrive(request, now)
        self._start(now)

    def _strike(self, now: float, fault: Fault) -> None:
        for number, replica in enumerate(self.replicas):
            if number in self.gone:
                continue
            match fault.kind:
                case "restart":
                    replica.restart(now, fault.value, fault.survives)
                case "tier-lost":
                    replica.tiers.lose(fault.tier, "tier lost", closed=True)
                case "link":
                    replica.tiers.slow(fault.tier, fault.value)
                case "load-failure":
                    replica.tiers.failing = fault.value
                case _:  # scan and churn are in the schedule already
                    return

    def _gone(self, now: float, index: int | None) -> None:
        if index is None or index >= len(self.requests):
            return
        request = self.requests[index]
        if request.rank >= 0:
            self.replicas[request.replica].cancel(request, now, "client gone")
        elif request.state not in (DONE, GONE):
            request.state, request.cause = GONE, "client gone"
