"""One log under one policy: a discrete-event machine of models that are loaded, serve, wait and leave.

The rules are those of llama.cpp's router: requests for a loaded model start at once, side by side; a model that is not
loaded has one place in a first-in-first-out queue of distinct models; its waiters are released together when its load
ends; a client that leaves gives up its place; a victim is the least recently used model that is loaded, idle and not
wanted by the queue. Room is made for all that wait, and they load one after the other: whoever loads keeps the head of
the queue until it serves, and the next one waits though there be room. At one instant, completions come first, one
after the other as they began, then loads, stops, clients that leave, clocks and arrivals.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Sequence

from kvplan.documents import Machine, ResidencyPolicy, ResidencySpan, ResidentModel, Swap
from kvplan.resident.table import INTERRUPTED, KEPT, KILL_S, LEFT, SERVED, SERVING, WAITING, Log, State, Unit

DONE, LOADED, STOPPED, LEAVES, HELD, KEEP, SLEEP, COUNTED = range(8)


class Play:
    """A log being played. After `run`, `status`, `wait_s` and the units say what happened."""

    def __init__(
        self,
        models: Sequence[ResidentModel],
        units: Sequence[Unit],
        log: Log,
        policy: ResidencyPolicy,
        machine: Machine,
    ) -> None:
        self.models, self.units, self.log, self.policy, self.machine = models, units, log, policy, machine
        self.unit_of: list[Unit] = [units[0]] * len(models)
        for unit in units:
            for member in unit.members:
                self.unit_of[member] = unit
        self.heap: list[tuple[float, int, int, int, int]] = []
        self.queue: list[Unit] = []
        self.now = 0.0
        self.order = 0
        self.count = self.bytes = self.leaving_count = self.leaving_bytes = 0
        self.peak_count = self.peak_bytes = self.over_memory = 0
        self.most = math.inf if policy.max_models is None else policy.max_models
        self.budget = math.inf if policy.budget_bytes is None else policy.budget_bytes
        self.status = bytearray(len(log.time_s))
        self.wait_s = [-1.0] * len(log.time_s)
        self.reprefill_s = [0.0] * len(models)
        self.restore_s = [0.0] * len(models)
        self.save_s = 0.0
        self.seen: set[tuple[int, int]] = set()  # (model, session) that had context before
        self.spans: list[ResidencySpan] = []
        self.swaps: list[Swap] = []
        self.span_count = self.swap_count = 0
        self.clocks = {
            clock: after for clock, after in ((KEEP, policy.keep_alive_s), (SLEEP, policy.sleep_after_s)) if after
        }

    # ---------------------------------------------------------------------------------------- time

    def run(self) -> None:
        """Play the log to its end, and on until nothing more can happen."""
        arrive, until, heap = self._arrive, self._until, self.heap
        for request, time in enumerate(self.log.time_s):
            if heap and heap[0][0] <= time:
                until(time)
            self.now = time
            arrive(request)
        until(math.inf)
        for unit in self.units:
            self._enter(unit, unit.state)
            unit.counted = 0
            self._held_idle(unit)

    def _until(self, time: float) -> None:
        """Let everything happen that is due by `time`."""
        heap, status, model = self.heap, self.status, self.log.model
        while heap and heap[0][0] <= time:
            self.now, kind, _, which, more = heapq.heappop(heap)
            if kind != DONE:
                self._happen(kind, which, more)
            elif status[which] == SERVING:
                self._finish(which, self.unit_of[model[which]])

    def _at(self, time: float, kind: int, which: int, more: int = 0) -> None:
        self.order += 1
        heapq.heappush(self.heap, (time, kind, self.order, which, more))

    def _happen(self, kind: int, which: int, more: int) -> None:
        if kind == LEAVES:
            if self.status[which] == WAITING:
                self._leave(which)
            return
        unit = self.units[which]
        match kind:
            case 1 if unit.state == "loading" and unit.generation == more:  # LOADED
                self._loaded(unit)
            case 2:  # STOPPED
                self._gone(unit)
                self._tick()
            case 4:  # HELD
                unit.timers.discard(HELD)
                self._tick()
            case 5 | 6:  # KEEP, SLEEP
                self._clock(unit, kind)
            case 7 if unit.generation == more >> 1:  # COUNTED
                self._recount(unit, 1 if more & 1 else -1)

    # ---------------------------------------------------------------------------------------- requests

    def _arrive(self, request: int) -> None:
        unit = self.unit_of[self.log.model[request]]
        unit.last_request = self.now
        if unit.state in ("ready", "busy") and not unit.closed:
            self._serve(request, unit)
            return
        unit.waiters.append(request)
        unit.waiting += 1
        timeout = self.log.timeout_s[request]
        if timeout != math.inf:
            self._at(self.now + timeout, LEAVES, request)
        if unit.state == "loading" or unit.queued:
            return
        if unit.state == "sleeping" and self.bytes + unit.bytes <= self.budget:
            self._load(unit)
            return
        unit.queued, unit.queued_at = True, self.now
        self.queue.append(unit)
        self._tick()

    def _serve(self, request: int, unit: Unit) -> None:
        self.order += 1
        unit.last_used = self.order
        if unit.state != "busy":
            self._enter(unit, "busy")
        unit.in_flight.add(request)
        self._count(unit, request, 1)
        self.status[request] = SERVING
        self.wait_s[request] = self.now - self.log.time_s[request]
        lasts = self.log.service_s[request]
        if self.log.context_tokens[request]:
            lasts += self._context(request, unit)
        heapq.heappush(self.heap, (self.now + lasts, DONE, self.order, request, 0))
        if not unit.counted:
            self._idle(unit)

    def _count(self, unit: Unit, request: int, change: int) -> None:
        """A request began or ended; the policy says whether and when the engine's count learns of it."""
        kind = self.policy.busy_count
        if kind == "exact":
            unit.counted += change
        elif kind == "stale":
            self._at(self.now + self.policy.stale_s, COUNTED, unit.index, unit.generation << 1 | (change > 0))
        elif (request + 1) % self.policy.miscount_every or (kind == "leaks" and change > 0):
            unit.counted += change
            self._held_idle(unit)

    def _recount(self, unit: Unit, change: int) -> None:
        """What a stale count learns late."""
        unit.counted += change
        self._held_idle(unit)
        if not unit.counted:
            self._idle(unit)
            if self.queue:
                self._tick()

    def _held_idle(self, unit: Unit) -> None:
        """Count the time in which the unit is idle and the engine takes it for busy."""
        held = unit.state == "ready" and unit.counted > 0
        if held and unit.held_since < 0:
            unit.held_since = self.now
        elif not held and unit.held_since >= 0:
            unit.held_idle_s += self.now - unit.held_since
            unit.held_since = -1.0

    def _context(self, request: int, unit: Unit) -> float:
        """Seconds to make good the context that a swap cost this request, by its session's last request."""
        model = self.log.model[request]
        facts, tokens = self.models[model], self.log.context_tokens[request]
        key = (model, self.log.session[request])
        lost = key in self.seen and key not in unit.held
        self.seen.add(key)
        unit.held[key] = tokens
        if not lost:
            return 0.0
        if self.policy.kv_on_swap == "saved" and facts.kv_bytes_per_token and self.machine.kv_restore_bytes_per_s:
            seconds = tokens * facts.kv_bytes_per_token / self.machine.kv_restore_bytes_per_s
            self.restore_s[model] += seconds
            return seconds
        seconds = tokens / facts.prefill_tokens_per_s if facts.prefill_tokens_per_s else 0.0
        self.reprefill_s[model] += seconds
        return seconds

    def _finish(self, request: int, unit: Unit) -> None:
        self.status[request] = SERVED
        unit.in_flight.remove(request)
        self._count(unit, request, -1)
        if not unit.in_flight:
            self._enter(unit, "ready")
        if not unit.counted:
            self._idle(unit)
            if self.queue:
                self._tick()

    def _leave(self, request: int) -> None:
        unit = self.unit_of[self.log.model[request]]
        self.status[request] = LEFT
        unit.waiting -= 1
        if unit.waiting:
            return
        unit.waiters.clear()
        if unit.queued:
            self._unqueue(unit)
            self._reopen()
            self._tick()

    # ---------------------------------------------------------------------------------------- models

    def _enter(self, unit: Unit, state: State) -> None:
        old, lasted = unit.state, self.now - unit.since
        if old != "unloaded" and lasted > 0:
            if old in ("ready", "busy"):
                unit.resident_s += lasted
                if old == "busy":
                    unit.busy_s += lasted
            elif old == "loading":
                unit.loading_s += lasted
            self.span_count += 1
            if self.span_count <= KEPT:
                for member in unit.members:
                    name = self.models[member].name
                    self.spans.append(ResidencySpan(model=name, state=old, from_s=unit.since, to_s=self.now))
        unit.state, unit.since = state, self.now
        if unit.counted or unit.held_since >= 0:
            self._held_idle(unit)

    def _load(self, unit: Unit) -> None:
        if unit.state != "sleeping":
            self.count += unit.count
            self.peak_count = max(self.peak_count, self.count)
        self.bytes += unit.bytes
        self.peak_bytes = max(self.peak_bytes, self.bytes)
        if self.bytes > self.machine.models_bytes:
            self.over_memory += 1
        self.order += 1
        unit.last_used = self.order
        unit.loads += 1
        lasts = unit.warm_s if unit.loaded_before else unit.cold_s
        unit.cold_loads += lasts >= unit.cold_s
        unit.loaded_before = True
        self._enter(unit, "loading")
        self._at(self.now + lasts, LOADED, unit.index, unit.generation)

    def _loaded(self, unit: Unit) -> None:
        self._enter(unit, "ready")
        if unit.queued:
            self._unqueue(unit)
        if unit.waiting:
            self._release(unit)
        else:
            self._idle(unit)
        self._tick()

    def _release(self, unit: Unit) -> None:
        """Start every request that waits for this model."""
        waiters, unit.waiters, unit.waiting = unit.waiters, [], 0
        for request in waiters:
            if self.status[request] == WAITING:
                self._serve(request, unit)

    def _idle(self, unit: Unit) -> None:
        """Nothing in flight as far as the engine knows: its clocks start."""
        if unit.pinned:
            return
        for clock, after in self.clocks.items():
            since = unit.last_request if self.policy.keep_alive_from == "request" and clock == KEEP else self.now
            unit.deadlines[clock] = max(since + after, self.now)
            if clock not in unit.timers:
                unit.timers.add(clock)
                self._at(unit.deadlines[clock], clock, unit.index)

    def _clock(self, unit: Unit, clock: int) -> None:
        unit.timers.discard(clock)
        awake = unit.state in ("ready", "busy") or (clock == KEEP and unit.state == "sleeping")
        if not awake or unit.counted or unit.waiting:
            return
        if self.now < unit.deadlines[clock]:
            unit.timers.add(clock)
            self._at(unit.deadlines[clock], clock, unit.index)
        elif clock == KEEP:
            self._evict(unit, "keep-alive", None)
            self._tick()
        elif unit.state == "ready":
            self._empty(unit)
            self.bytes -= unit.bytes
            self._enter(unit, "sleeping")
            self._tick()

    # ---------------------------------------------------------------------------------------- room

    def _fits(self, count: int, size: int) -> bool:
        return count <= self.most and size <= self.budget

    def _tick(self) -> None:
        """Make room for all that wait, and let the head load once there is room; the next one loads after it."""
        self._make_room()
        if not self.queue:
            return
        head = self.queue[0]
        count = self.count + (0 if head.state == "sleeping" else head.count)
        if head.state not in ("loading", "stopping") and self._fits(count, self.bytes + head.bytes):
            self._load(head)
            self._reopen()

    def _make_room(self) -> None:
        """Evict for one place in the queue after the other, until nobody may go."""
        count, size = self.count - self.leaving_count, self.bytes - self.leaving_bytes
        for unit in tuple(self.queue):
            if not unit.queued or unit.state in ("loading", "ready", "busy"):
                continue  # it is loaded, if closed to requests; or was just now evicted while it loaded
            count += 0 if unit.state == "sleeping" else unit.count
            size += unit.bytes
            if self._fits(count, size):
                continue
            if self._held(unit):
                return
            victims = self._victims(unit, count, size)
            if not victims:
                self._refuse(unit)
                return
            for victim in victims:
                count -= victim.count
                size -= victim.bytes if victim.state != "sleeping" else 0
                reason = {"busy": "lru-busy", "loading": "lru-loading"}.get(victim.state, "lru")
                self._evict(victim, reason, unit)

    def _held(self, head: Unit) -> bool:
        """Whether the policy gathers more requests before anybody makes room for the head."""
        if self.policy.batch_wait_s is None or self.now >= head.queued_at + self.policy.batch_wait_s:
            return False
        if HELD not in head.timers:
            head.timers.add(HELD)
            self._at(head.queued_at + self.policy.batch_wait_s, HELD, head.index)
        return True

    def _victims(self, head: Unit, count: int, size: int) -> list[Unit]:
        """The least recently used that may go, as few as make room; none where all of them are not enough."""
        able = sorted((unit for unit in self.units if self._may_go(unit, head)), key=lambda unit: unit.last_used)
        chosen = []
        for unit in able:
            chosen.append(unit)
            count -= unit.count
            size -= unit.bytes if unit.state != "sleeping" else 0
            if self._fits(count, size):
                return chosen
        return []

    def _may_go(self, unit: Unit, head: Unit) -> bool:
        if unit.pinned or unit is head or unit.state in ("unloaded", "stopping"):
            return False
        if not self.policy.protect_busy:
            return True
        # What is loaded has waiters only where it is closed or sleeps: their place in the queue outlives it.
        return unit.state != "loading" and not unit.counted

    def _refuse(self, head: Unit) -> None:
        """Nobody may go: count who was passed over, and close the least recently used where the policy says so."""
        index = head.index
        passed = [
            unit for unit in self.units if not unit.pinned and (unit.counted or unit.state in ("busy", "loading"))
        ]
        for unit in passed:
            if index not in unit.refused_for:
                unit.refused_for.add(index)
                unit.refused += 1
        if self.policy.batch_wait_s is not None and not any(unit.closed for unit in self.units):
            open_ = [unit for unit in passed if unit.state == "busy"]
            if open_:
                min(open_, key=lambda unit: unit.last_used).closed = True

    def _reopen(self) -> None:
        """Whoever was closed for a model that is no longer wanted serves again."""
        for unit in self.units:
            if unit.closed and unit.state in ("ready", "busy"):
                unit.closed = False
                if unit.queued:
                    self._unqueue(unit)
                    self._release(unit)

    def _unqueue(self, unit: Unit) -> None:
        self.queue.remove(unit)
        unit.queued = False
        index = unit.index
        for other in self.units:
            other.refused_for.discard(index)

    def _evict(self, unit: Unit, reason: str, wanted_by: Unit | None) -> None:
        gone = list(unit.in_flight)
        if unit.state == "loading":
            gone += [request for request in unit.waiters if self.status[request] == WAITING]
            unit.waiters, unit.waiting = [], 0
            if unit.queued:
                self._unqueue(unit)
        for request in gone:
            self.status[request] = INTERRUPTED
        lasts = unit.stop_s + (KILL_S if unit.state == "loading" else self._saving(unit))
        self._note(unit, reason, wanted_by, len(gone))
        unit.in_flight.clear()
        unit.counted, unit.closed = 0, False
        self._empty(unit)
        unit.leaving_bytes = 0 if unit.state == "sleeping" else unit.bytes
        self.leaving_count += unit.count
        self.leaving_bytes += unit.leaving_bytes
        self._enter(unit, "stopping")
        if lasts:
            self._at(self.now + lasts, STOPPED, unit.index)
        else:
            self._gone(unit)

    def _note(self, unit: Unit, reason: str, wanted_by: Unit | None, interrupted: int) -> None:
        unit.evictions[reason] = unit.evictions.get(reason, 0) + 1
        self.swap_count += 1
        if self.swap_count <= KEPT:
            names = ["+".join(self.models[m].name for m in one.members) for one in (unit, wanted_by) if one]
            self.swaps.append(
                Swap(
                    at_s=self.now,
                    model=names[0],
                    reason=reason,  # type: ignore[arg-type]
                    wanted_by=names[1] if len(names) > 1 else None,
                    interrupted=interrupted,
                )
            )

    def _saving(self, unit: Unit) -> float:
        """Seconds to write out the contexts that the unit holds now."""
        rate = self.machine.kv_save_bytes_per_s
        if self.policy.kv_on_swap != "saved" or rate is None:
            return 0.0
        size = sum(tokens * (self.models[m].kv_bytes_per_token or 0) for (m, _), tokens in unit.held.items())
        self.save_s += size / rate
        return size / rate

    def _empty(self, unit: Unit) -> None:
        unit.generation += 1
        unit.held.clear()

    def _gone(self, unit: Unit) -> None:
        self.leaving_count -= unit.count
        self.leaving_bytes -= unit.leaving_bytes
        self.count -= unit.count
        self.bytes -= unit.leaving_bytes
        self._enter(unit, "unloaded")
