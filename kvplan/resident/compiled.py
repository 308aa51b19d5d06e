"""The player of play.py once more as compiled loops over arrays, for logs that are long: the same rules, step by step.

play.py is where the rules are read; a test plays both on arbitrary logs and policies and finds them equal to the bit.
All of it is one file, as machine code that is kept on disk is thrown away only when its own file changes.
`w` is a World of records, `heap` a list of events (time, kind, order, which, more); units and requests are named by
their index where a record is not at hand.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np

from kvplan.documents import Machine, ResidencyPolicy, ResidentModel
from kvplan.kernels import announce, compiled, part
from kvplan.progress import Progress
from kvplan.resident import arrays
from kvplan.resident.table import Log, Unit

World: TypeAlias = Any  # inside a compiled loop: arrays.World
Record: TypeAlias = Any  # one unit or request of it
Heap: TypeAlias = list[Any]


def _named(*numbers: int) -> Any:
    """Constants as whole numbers of 64 bits: of a plain one a function is compiled anew for each that it is given."""
    return map(np.int64, numbers)


DONE, LOADED, STOPPED, LEAVES, HELD, KEEP, SLEEP, COUNTED = _named(*range(8))
UNLOADED, LOADING, READY, BUSY, SLEEPING, STOPPING = _named(*range(6))
WAITING, SERVING, SERVED, INTERRUPTED, LEFT = _named(*range(5))
EXACT, LEAKS, MISSES, STALE = _named(*range(4))
LRU, LRU_BUSY, LRU_LOADING, KEEP_ALIVE = _named(*range(4))
NONE, ONE, NOBODY = _named(0, 1, -1)


class Compiled:
    """A log being played by compiled loops: what `Play` offers, filled in by `run`."""

    def __init__(
        self,
        models: Sequence[ResidentModel],
        units: Sequence[Unit],
        log: Log,
        policy: ResidencyPolicy,
        machine: Machine,
    ) -> None:
        self.models, self.units = models, units
        self.unit_of: list[Unit] = [units[0]] * len(models)
        for unit in units:
            for member in unit.members:
                self.unit_of[member] = unit
        self.world = arrays.world(models, units, log, policy, machine)

    def run(self) -> None:
        """Play the log to its end, and on until nothing more can happen."""
        made = self.world
        _run(made)
        arrays.back(made, self.units)
        self.status = made.requests["status"].tobytes()
        self.wait_s = made.requests["wait"]
        self.reprefill_s, self.restore_s = made.models["reprefill_s"].tolist(), made.models["restore_s"].tolist()
        tally = dict(zip(made.tally.dtype.names or (), made.tally[0].tolist(), strict=True))
        self.now, self.save_s = tally["now"], tally["save_s"]
        self.peak_count, self.peak_bytes = tally["peak_count"], tally["peak_bytes"]
        self.over_memory = tally["over_memory"]
        self.span_count, self.swap_count = tally["span_count"], tally["swap_count"]
        self.spans = arrays.spans(made, self.models, self.units)
        self.swaps = arrays.swaps(made, self.models, self.units)


def announced(progress: Progress) -> None:
    """Say that the first long log is compiled for, if it will be."""
    announce(progress, _run)


# ---------------------------------------------------------------------------------------------- requests


@part
def _push(w: World, heap: Heap, time: float, kind: int, which: int, more: int) -> None:
    w.tally.order += 1
    heapq.heappush(heap, (time, np.int64(kind), w.tally.order, np.int64(which), np.int64(more)))


@part
def _serve(w: World, heap: Heap, request: int, unit: Record) -> None:
    tally, one = w.tally, w.requests[request]
    tally.order += 1
    unit.last_used = tally.order
    if unit.state != BUSY:
        _enter(w, unit, BUSY)
    if unit.first >= 0:
        w.requests[unit.first].before = request
    one.next, one.before = unit.first, -1
    unit.first = request
    unit.running += 1
    _count(w, heap, unit, request, ONE)
    one.status = SERVING
    one.wait = tally.now - one.time
    lasts = one.service
    if one.context:
        lasts += _context(w, one, unit)
    heapq.heappush(heap, (tally.now + lasts, np.int64(DONE), tally.order, np.int64(request), np.int64(0)))
    if not unit.counted:
        _idle(w, heap, unit)


@part
def _count(w: World, heap: Heap, unit: Record, request: int, change: int) -> None:
    rules = w.rules
    kind = rules.busy_count
    if kind == EXACT:
        unit.counted += change
    elif kind == STALE:
        more = (unit.generation << 1) | (1 if change > 0 else 0)
        _push(w, heap, w.tally.now + rules.stale_s, COUNTED, unit.index, more)
    elif (request + 1) % rules.miscount_every != 0 or (kind == LEAKS and change > 0):
        unit.counted += change
        _held_idle(w, unit)


@part
def _held_idle(w: World, unit: Record) -> None:
    now = w.tally.now
    held = unit.state == READY and unit.counted > 0
    if held and unit.held_since < 0:
        unit.held_since = now
    elif not held and unit.held_since >= 0:
        unit.held_idle_s += now - unit.held_since
        unit.held_since = -1.0


@part
def _context(w: World, one: Record, unit: Record) -> float:
    rules, model, key = w.rules, w.models[one.model], w.keys[one.key]
    held = key.generation == unit.generation
    lost = key.seen and not held
    if held:
        unit.held_bytes -= key.tokens * model.kv_bytes
    key.seen = True
    key.generation, key.tokens = unit.generation, one.context
    unit.held_bytes += one.context * model.kv_bytes
    if not lost:
        return 0.0
    if rules.saved and model.kv_bytes > 0 and rules.restore_rate > 0:
        seconds = one.context * model.kv_bytes / rules.restore_rate
        model.restore_s += seconds
        return float(seconds)
    seconds = one.context / model.prefill if model.prefill > 0 else 0.0
    model.reprefill_s += seconds
    return seconds


@part
def _finish(w: World, heap: Heap, request: int, unit: Record) -> bool:
    one = w.requests[request]
    one.status = SERVED
    if one.before >= 0:
        w.requests[one.before].next = one.next
    else:
        unit.first = one.next
    if one.next >= 0:
        w.requests[one.next].before = one.before
    unit.running -= 1
    _count(w, heap, unit, request, -ONE)
    if not unit.running:
        _enter(w, unit, READY)
    if unit.counted:
        return False
    _idle(w, heap, unit)
    return w.tally.queued > 0  # type: ignore[no-any-return]


@part
def _leave(w: World, heap: Heap, request: int) -> bool:
    one = w.requests[request]
    unit = w.units[one.unit]
    one.status = LEFT
    unit.waiting -= 1
    if unit.waiting:
        return False
    unit.first_waiter = unit.last_waiter = -1
    if not unit.queued:
        return False
    _unqueue(w, unit)
    _reopen(w, heap)
    return True


@part
def _arrive(w: World, heap: Heap, request: int) -> bool:
    tally, one = w.tally, w.requests[request]
    unit = w.units[one.unit]
    unit.last_request = tally.now
    if (unit.state == READY or unit.state == BUSY) and not unit.closed:
        _serve(w, heap, request, unit)
        return False
    if unit.last_waiter >= 0:
        w.requests[unit.last_waiter].next_waiter = request
    else:
        unit.first_waiter = request
    unit.last_waiter = request
    unit.waiting += 1
    if one.timeout != np.inf:
        _push(w, heap, tally.now + one.timeout, LEAVES, request, NONE)
    if unit.state == LOADING or unit.queued:
        return False
    if unit.state == SLEEPING and tally.bytes + unit.bytes <= w.rules.budget:
        _load(w, heap, unit)
        return False
    unit.queued, unit.queued_at = True, tally.now
    w.queue[tally.queued] = unit.index
    tally.queued += 1
    return True


# ---------------------------------------------------------------------------------------------- models


@part
def _enter(w: World, unit: Record, state: int) -> None:
    tally = w.tally
    old, lasted = unit.state, tally.now - unit.since
    if old != UNLOADED and lasted > 0:
        if old in (READY, BUSY):
            unit.resident_s += lasted
            if old == BUSY:
                unit.busy_s += lasted
        elif old == LOADING:
            unit.loading_s += lasted
        if tally.span_count < w.spans.size:
            span = w.spans[tally.span_count]
            span.unit, span.state, span.from_s, span.to_s = unit.index, old, unit.since, tally.now
        tally.span_count += 1
    unit.state, unit.since = state, tally.now
    if unit.counted or unit.held_since >= 0:
        _held_idle(w, unit)


@part
def _load(w: World, heap: Heap, unit: Record) -> None:
    tally = w.tally
    if unit.state != SLEEPING:
        tally.count += unit.count
        tally.peak_count = max(tally.peak_count, tally.count)
    tally.bytes += unit.bytes
    tally.peak_bytes = max(tally.peak_bytes, tally.bytes)
    if tally.bytes > w.rules.memory:
        tally.over_memory += 1
    tally.order += 1
    unit.last_used = tally.order
    unit.loads += 1
    lasts = unit.warm_s if unit.loaded_before else unit.cold_s
    if lasts >= unit.cold_s:
        unit.cold_loads += 1
    unit.loaded_before = True
    _enter(w, unit, LOADING)
    _push(w, heap, tally.now + lasts, LOADED, unit.index, unit.generation)


@part
def _loaded(w: World, heap: Heap, unit: Record) -> None:
    _enter(w, unit, READY)
    if unit.queued:
        _unqueue(w, unit)
    if unit.waiting:
        _release(w, heap, unit)
    else:
        _idle(w, heap, unit)


@part
def _release(w: World, heap: Heap, unit: Record) -> None:
    request = unit.first_waiter
    unit.first_waiter = unit.last_waiter = -1
    unit.waiting = 0
    while request >= 0:
        one = w.requests[request]
        following = one.next_waiter
        if one.status == WAITING:
            _serve(w, heap, request, unit)
        request = following


@part
def _idle(w: World, heap: Heap, unit: Record) -> None:
    rules, now = w.rules, w.tally.now
    if unit.pinned:
        return
    for clock in (KEEP, SLEEP):
        after = rules.keep_s if clock == KEEP else rules.sleep_s
        if after == 0:
            continue
        since = unit.last_request if rules.from_request and clock == KEEP else now
        w.deadlines[clock - KEEP, unit.index] = max(since + after, now)
        if not w.timers[clock - HELD, unit.index]:
            w.timers[clock - HELD, unit.index] = True
            _push(w, heap, w.deadlines[clock - KEEP, unit.index], clock, unit.index, NONE)


@part
def _clock(w: World, heap: Heap, unit: Record, clock: int) -> bool:
    w.timers[clock - HELD, unit.index] = False
    awake = unit.state == READY or unit.state == BUSY or (clock == KEEP and unit.state == SLEEPING)
    if not awake or unit.counted or unit.waiting:
        return False
    deadline = w.deadlines[clock - KEEP, unit.index]
    if w.tally.now < deadline:
        w.timers[clock - HELD, unit.index] = True
        _push(w, heap, deadline, clock, unit.index, NONE)
        return False
    if clock == KEEP:
        _evict(w, heap, unit, KEEP_ALIVE, NOBODY)
        return True
    if unit.state != READY:
        return False
    _empty(unit)
    w.tally.bytes -= unit.bytes
    _enter(w, unit, SLEEPING)
    return True


# ---------------------------------------------------------------------------------------------- room


@part
def _fits(w: World, count: int, size: int) -> bool:
    return count <= w.rules.most and size <= w.rules.budget  # type: ignore[no-any-return]


@part
def _tick(w: World, heap: Heap) -> None:
    tally = w.tally
    if tally.queued:
        _make_room(w, heap)
    if not tally.queued:
        return
    head = w.units[w.queue[0]]
    count = tally.count + (0 if head.state == SLEEPING else head.count)
    if head.state != LOADING and head.state != STOPPING and _fits(w, count, tally.bytes + head.bytes):
        _load(w, heap, head)
        _reopen(w, heap)


@part
def _make_room(w: World, heap: Heap) -> None:
    tally = w.tally
    count, size = tally.count - tally.leaving_count, tally.bytes - tally.leaving_bytes
    queued, queue = tally.queued, w.scratch[0]
    for place in range(queued):  # an eviction may take a place out of the queue itself
        queue[place] = w.queue[place]
    for place in range(queued):
        unit = w.units[queue[place]]
        if not unit.queued or unit.state in (LOADING, READY, BUSY):
            continue
        count += 0 if unit.state == SLEEPING else unit.count
        size += unit.bytes
        if _fits(w, count, size):
            continue
        if _held(w, heap, unit):
            return
        victims = _victims(w, unit, count, size)
        if not victims:
            _refuse(w, unit)
            return
        for index in range(victims):
            victim = w.units[w.scratch[1, index]]
            count -= victim.count
            size -= victim.bytes if victim.state != SLEEPING else 0
            reason = LRU_BUSY if victim.state == BUSY else LRU_LOADING if victim.state == LOADING else LRU
            _evict(w, heap, victim, reason, unit.index)


@part
def _held(w: World, heap: Heap, head: Record) -> bool:
    rules = w.rules
    until = head.queued_at + rules.batch_s
    if not rules.batches or w.tally.now >= until:
        return False
    if not w.timers[0, head.index]:
        w.timers[0, head.index] = True
        _push(w, heap, until, HELD, head.index, NONE)
    return True


@part
def _victims(w: World, head: Record, count: int, size: int) -> int:
    """How many of the least recently used that may go make room, in scratch[1]; none where all are not enough."""
    units, able = w.units, w.scratch[1]
    found = 0
    for index in range(units.size):
        if _may_go(w, units[index], head):
            place = found
            while place > 0 and units[able[place - 1]].last_used > units[index].last_used:
                able[place] = able[place - 1]
                place -= 1
            able[place] = index
            found += 1
    for needed in range(found):
        unit = units[able[needed]]
        count -= unit.count
        size -= unit.bytes if unit.state != SLEEPING else 0
        if _fits(w, count, size):
            return needed + 1
    return 0


@part
def _may_go(w: World, unit: Record, head: Record) -> bool:
    if unit.pinned or unit.index == head.index or unit.state == UNLOADED or unit.state == STOPPING:
        return False
    if not w.rules.protect:
        return True
    return unit.state != LOADING and not unit.counted


@part
def _refuse(w: World, head: Record) -> None:
    any_closed, least = False, -1
    units, refused_for = w.units, w.refused_for
    for index in range(units.size):
        unit = units[index]
        any_closed = any_closed or unit.closed
        if unit.pinned or not (unit.counted or unit.state == BUSY or unit.state == LOADING):
            continue
        if not refused_for[index, head.index]:
            refused_for[index, head.index] = True
            unit.refused += 1
        if unit.state == BUSY and (least < 0 or unit.last_used < units[least].last_used):
            least = index
    if w.rules.batches and not any_closed and least >= 0:
        units[least].closed = True


@part
def _reopen(w: World, heap: Heap) -> None:
    units = w.units
    for index in range(units.size):
        unit = units[index]
        if unit.closed and (unit.state == READY or unit.state == BUSY):
            unit.closed = False
            if unit.queued:
                _unqueue(w, unit)
                _release(w, heap, unit)


@part
def _unqueue(w: World, unit: Record) -> None:
    tally, queue = w.tally, w.queue
    place = 0
    while queue[place] != unit.index:
        place += 1
    tally.queued -= 1
    for following in range(place, tally.queued):
        queue[following] = queue[following + 1]
    unit.queued = False
    for other in range(w.units.size):
        w.refused_for[other, unit.index] = False


@part
def _evict(w: World, heap: Heap, unit: Record, reason: int, wanted_by: int) -> None:
    tally = w.tally
    interrupted = 0
    request = unit.first
    while request >= 0:
        w.requests[request].status = INTERRUPTED
        interrupted += 1
        request = w.requests[request].next
    if unit.state == LOADING:
        request = unit.first_waiter
        while request >= 0:
            if w.requests[request].status == WAITING:
                w.requests[request].status = INTERRUPTED
                interrupted += 1
            request = w.requests[request].next_waiter
        unit.first_waiter = unit.last_waiter = -1
        unit.waiting = 0
        if unit.queued:
            _unqueue(w, unit)
    lasts = unit.stop_s + (w.rules.kill_s if unit.state == LOADING else _saving(w, unit))
    _note(w, unit, reason, wanted_by, interrupted)
    unit.first, unit.running = -1, 0
    unit.counted, unit.closed = 0, False
    _empty(unit)
    unit.leaving_bytes = 0 if unit.state == SLEEPING else unit.bytes
    tally.leaving_count += unit.count
    tally.leaving_bytes += unit.leaving_bytes
    _enter(w, unit, STOPPING)
    if lasts > 0:
        _push(w, heap, tally.now + lasts, STOPPED, unit.index, NONE)
    else:
        _gone(w, unit)


@part
def _note(w: World, unit: Record, reason: int, wanted_by: int, interrupted: int) -> None:
    tally = w.tally
    w.evictions[unit.index, reason] += 1
    if tally.swap_count < w.swaps.size:
        swap = w.swaps[tally.swap_count]
        swap.at_s, swap.unit, swap.reason = tally.now, unit.index, reason
        swap.wanted_by, swap.interrupted = wanted_by, interrupted
    tally.swap_count += 1


@part
def _saving(w: World, unit: Record) -> float:
    rules = w.rules
    if not rules.saved or rules.save_rate == 0:
        return 0.0
    seconds = unit.held_bytes / rules.save_rate
    w.tally.save_s += seconds
    return seconds  # type: ignore[no-any-return]


@part
def _empty(unit: Record) -> None:
    unit.generation += 1
    unit.held_bytes = 0


@part
def _gone(w: World, unit: Record) -> None:
    tally = w.tally
    tally.leaving_count -= unit.count
    tally.leaving_bytes -= unit.leaving_bytes
    tally.count -= unit.count
    tally.bytes -= unit.leaving_bytes
    _enter(w, unit, UNLOADED)


# ---------------------------------------------------------------------------------------------- time


@part
def _happen(w: World, heap: Heap, kind: int, which: int, more: int) -> bool:
    if kind == DONE:
        one = w.requests[which]
        return one.status == SERVING and _finish(w, heap, which, w.units[one.unit])
    if kind == LEAVES:
        return w.requests[which].status == WAITING and _leave(w, heap, which)
    unit = w.units[which]
    if kind == LOADED:
        if unit.state != LOADING or unit.generation != more:
            return False
        _loaded(w, heap, unit)
        return True
    if kind == STOPPED:
        _gone(w, unit)
        return True
    if kind == HELD:
        w.timers[0, which] = False
        return True
    if kind == COUNTED:
        return unit.generation == more >> 1 and _recount(w, heap, unit, 1 if more & 1 else -1)
    return _clock(w, heap, unit, kind)


@part
def _recount(w: World, heap: Heap, unit: Record, change: int) -> bool:
    unit.counted += change
    _held_idle(w, unit)
    if unit.counted:
        return False
    _idle(w, heap, unit)
    return w.tally.queued > 0  # type: ignore[no-any-return]


@part
def _play(w: World) -> None:
    """Let everything happen in order of time: what is due by a request's arrival, the request, the rest."""
    one = np.int64(0)
    heap: Heap = [(0.0, one, one, one, one)]
    heap.clear()
    request, requests = NONE, w.requests
    while heap or request < requests.size:
        if request < requests.size and (not heap or heap[0][0] > requests[request].time):
            w.tally.now = requests[request].time
            due = _arrive(w, heap, request)
            request += 1
        else:
            now, kind, _, which, more = heapq.heappop(heap)
            w.tally.now = now
            due = _happen(w, heap, kind, which, more)
        if due:
            _tick(w, heap)


@compiled
def _run(made: World) -> None:
    # The two records that every step asks for are taken out of their arrays once.
    w = arrays.World(
        made.rules[0],
        made.tally[0],
        made.units,
        made.requests,
        made.models,
        made.keys,
        made.queue,
        made.scratch,
        made.deadlines,
        made.timers,
        made.refused_for,
        made.evictions,
        made.spans,
        made.swaps,
    )
    _play(w)
    for index in range(w.units.size):
        unit = w.units[index]
        _enter(w, unit, unit.state)
        unit.counted = 0
        _held_idle(w, unit)
