"""A replica with a paged cache: admission by blocks, loads from the tiers, growth into new blocks, preemption."""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterator, Sequence

from kvplan.documents import Arm, EngineModel
from kvplan.simulation.hierarchy import At
from kvplan.simulation.holding import Holding
from kvplan.simulation.live import DECODE, LOADING, PARKED, PREFILL, WAITING, Live, Load
from kvplan.simulation.stepping import Stepper, Store
from kvplan.simulation.steps import Agenda, first_due, stale


class Replica(Stepper):
    """Requests take the blocks of their prompt when they are let in, and blocks for their answer as they grow."""

    def __init__(
        self,
        model: EngineModel,
        arm: Arm,
        blocks: int,
        at: At,
        next_event: Callable[[], float],
        left: Callable[[float, Live], None],
    ) -> None:
        super().__init__(model, arm, at, next_event, left)
        self.wait_for_others = arm.in_flight == "wait"
        self.holding = Holding(model, arm, blocks, at, self._freed)
        self.gpu = self.holding.gpu
        self.hierarchy = self.holding.tiers
        self.tiers = self.hierarchy
        self.parked: dict[int, list[Live]] = {}  # by owner of the prefix that is waited for
        self.loading: dict[int, Live] = {}
        self.grows: Agenda = []
        self.blocked: tuple[int, int, int] | None = None

    @property
    def store(self) -> Store:
        """The paged cache."""
        return self.gpu

    def _fits(self, request: Live) -> bool:
        return self.holding.blocks(request.input_tokens + request.output_tokens - 1) <= self.gpu.capacity

    # ------------------------------------------------------------------------------------------- admission

    def _prepare(self, now: float) -> int:
        preempted = self.preemptions
        self._grow(now)
        budget = self.model.max_num_batched_tokens - self.decoding
        if self.preemptions == preempted:  # nobody comes in while somebody has to go
            left = budget
            self.holding.in_step.clear()
            for request in self.prefilling.values():
                self.holding.plan(request, left)
                left -= request.target - request.progress
            self._admit(now, left)
        return budget

    def _admit(self, now: float, budget: int) -> None:
        """Admit from the head of the queue until one does not fit: whoever is behind it waits too."""
        self.gpu.expire(now)
        while self.waiting and budget > 0:
            head = self.waiting[0][1]
            if head.state != WAITING:
                heapq.heappop(self.waiting)
                continue
            busy = len(self.running) + len(self.loading)
            if busy >= self.model.max_num_seqs or self.blocked == (head.index, self.gpu.version, len(self.waiting)):
                return
            if not self._place(head, now):
                self.blocked = (head.index, self.gpu.version, len(self.waiting))
                return
            heapq.heappop(self.waiting)
            if head.state == PREFILL:
                self.holding.plan(head, budget)
                budget -= head.target - head.progress

    def _place(self, request: Live, now: float) -> bool:
        """Give a request all the blocks of its prompt; False where they are not to be had."""
        hits = self.holding.hits(request)
        owner = self.holding.owner_of_next(request, hits) if self.wait_for_others else None
        if owner is not None:
            request.state = PARKED
            self.parked.setdefault(owner.index, []).append(request)
            return True
        taken = self.holding.take(request, hits, now)
        if taken is None:
            return False
        loads, gone = taken
        size = self.model.block_tokens
        if request.admitted_at is None:
            request.admitted_at = now
            request.hits = (hits * size, loads[0] * size, loads[1] * size)
        request.progress = hits * size
        if sum(loads):
            request.state = LOADING
            request.loading_since = now
            self.loading[request.index] = request
            self.hierarchy.load(request, hits, loads, now, self._loaded)
        else:
            self._begin_prefill(request)
        self.holding.evicted(gone, now)
        return True

    def _begin_prefill(self, request: Live) -> None:
        request.state = PREFILL
        self.prefilling[request.index] = request
        self.running[request.index] = request

    def _loaded(self, now: float, load: Load) -> None:
        request = load.request
        if request.epoch != load.epoch:
            return
        del self.loading[request.index]
        request.loaded_at = now
        if load.failed:  # the defined miss path: what did not come is computed
            hits = request.hits
            request.hits = (hits[0], 0, 0)
        else:
            request.progress = (load.start + len(load.host) + len(load.disk)) * self.model.block_tokens
            self.holding.complete(request, now, loaded=True)
        self._begin_prefill(request)
        self.start(now)

    # -------------------------------------------------------------------------------- computing and growing

    def _computed(self, request: Live, now: float) -> None:
        self.holding.complete(request, now)

    def _first_token(self, request: Live, now: float) -> None:
        self._unpark(request)
        super()._first_token(request, now)

    def _decodes(self, request: Live, left: int) -> None:
        room = self.holding.blocks(request.target) * self.model.block_tokens - request.target
        if room < left:
            heapq.heappush(self.grows, (self.decode_step + room, request.index, request.epoch, request))

    def _next_change(self) -> int:
        return first_due(self.grows)

    def _grow(self, now: float) -> None:
        """Give a block to every decoding request that needs one for its next token, the latest admitted giving way."""
        while self.grows and (stale(self.grows[0]) or self.grows[0][0] <= self.decode_step):
            entry = heapq.heappop(self.grows)
            if stale(entry):
                continue
            request = entry[3]
            while self.gpu.room() < 1 and not stale(entry):
                self._preempt(next(reversed(self.running.values())), now)
            if stale(entry):
                continue
            self.holding.grow(request, now)
            later = entry[0] + self.model.block_tokens
            if later < request.entered + request.output_tokens - request.emitted:
                heapq.heappush(self.grows, (later, request.index, request.epoch, request))

    def _preempt(self, request: Live, now: float) -> None:
        """The request gives up all its blocks and computes them again later, with what it has produced."""
        self.preemptions += 1
        self._withdraw(request, now)
        request.state = WAITING
        request.progress = 0
        request.target = request.input_tokens + request.emitted
        heapq.heappush(self.waiting, (request.rank, request))

    # --------------------------------------------------------------------------------------------- leaving

    def _freed(self, now: float) -> None:
        self.at(now, self._resume, ())

    def _answered(self, request: Live, now: float) -> None:
        self.holding.name_answer(request, now)

    def _release(self, request: Live, now: float) -> None:
        self.running.pop(request.index, None)
        self.holding.release(request, now)

    def _withdraw(self, request: Live, now: float) -> None:
        if request.state == DECODE:
            self._stop_decoding(request)
        self.prefilling.pop(request.index, None)
        self.loading.pop(request.index, None)
        if request.state == PARKED:
            for others in self.parked.values():
                if request in others:
                    others.remove(request)
        self._release(request, now)
        self._unpark(request)

    def _unpark(self, owner: Live) -> None:
        for request in self.parked.pop(owner.index, ()):
            request.state = WAITING
            heapq.heappush(self.waiting, (request.rank, request))

    def _others_inside(self) -> Iterator[Live]:
        yield from self.loading.values()
        for others in self.parked.values():
            yield from others

    def _lose(self, inside: Sequence[Live], survives: tuple[str, ...]) -> None:
        for request in inside:
            self.holding.forget(request)
        self.loading.clear()
        self.parked.clear()
        self.grows.clear()
        self.holding.lose(survives)
