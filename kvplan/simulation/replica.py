"""One engine replica: admission, chunked prefill, decoding, preemption, step by step.

A step runs every decoding request by a token and gives the rest of the token budget to prefills in order of admission.
Steps without prefill are alike until somebody ends, grows into a new block, or something happens outside: such a run
is played at once, with the exact sum of its step times.
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable

from kvplan.documents import Arm, EngineModel
from kvplan.simulation.hierarchy import At
from kvplan.simulation.holding import Holding
from kvplan.simulation.live import DECODE, DONE, GONE, LOADING, PARKED, PREFILL, WAITING, Live, Load
from kvplan.simulation.steps import Agenda, decode_run, first_due, stale, step_seconds


class Replica:
    """`next_event` tells when something outside happens next; `left` is called when a request has ended."""

    def __init__(
        self,
        model: EngineModel,
        arm: Arm,
        blocks: int,
        at: At,
        next_event: Callable[[], float],
        left: Callable[[float, Live], None],
    ) -> None:
        self.model = model
        self.wait_for_others = arm.in_flight == "wait"
        self.at = at
        self.next_event = next_event
        self.left = left
        self.holding = Holding(model, arm, blocks, at, self._freed)
        self.gpu, self.tiers = self.holding.gpu, self.holding.tiers
        self.waiting: list[tuple[int, Live]] = []
        self.parked: dict[int, list[Live]] = {}  # by owner of the prefix that is waited for
        self.loading: dict[int, Live] = {}
        self.prefilling: dict[int, Live] = {}
        self.running: dict[int, Live] = {}  # prefilling and decoding, in order of admission
        self.decoding = 0
        self.kv_tokens = 0  # cached tokens that a decode step reads
        self.decode_step = 0
        self.ends: Agenda = []
        self.grows: Agenda = []
        self.leaving: list[tuple[Live, str]] = []
        self.generation = 0
        self.stepping = False
        self.step_began = 0.0
        self.down_until = 0.0
        self.blocked: tuple[int, int, int] | None = None
        self.outstanding = 0
        self.busy_s = 0.0
        self.steps = 0
        self.prefill_tokens = 0
        self.preemptions = 0

    # -------------------------------------------------------------------------------------------- arrivals

    def arrive(self, request: Live, now: float) -> None:
        """A request joins the queue (`start` looks at it), or is turned away where it can never fit."""
        self.outstanding += 1
        if self.holding.blocks(request.input_tokens + request.output_tokens - 1) > self.gpu.capacity:
            self._end(request, now, "does not fit")
            return
        heapq.heappush(self.waiting, (request.rank, request))

    def cancel(self, request: Live, now: float, cause: str) -> None:
        """The client is gone: what the request holds is free again, at the end of a step that runs it."""
        if request.state in (DONE, GONE):
            return
        if self.stepping and request.state in (PREFILL, DECODE):
            self.leaving.append((request, cause))
            return
        self._withdraw(request, now)
        self._end(request, now, cause)
        self.start(now)

    def _end(self, request: Live, now: float, cause: str = "") -> None:
        request.state = GONE if cause else DONE
        request.cause = cause
        request.ended_at = now
        self.outstanding -= 1
        self.left(now, request)

    # ------------------------------------------------------------------------------------------- admission

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
        if request.admitted_at is None:
            request.admitted_at = now
            request.hits = (hits, *loads)
        request.progress = hits * self.model.block_tokens
        if sum(loads):
            request.state = LOADING
            request.loading_since = now
            self.loading[request.index] = request
            self.tiers.load(request, hits, loads, now, self._loaded)
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

    # ----------------------------------------------------------------------------------------------- steps

    def start(self, now: float) -> None:
        """Begin the next step, if there is something to run and nothing runs."""
        if self.stepping or now < self.down_until:
            return
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
        if self.prefilling:
            seconds, chunks = self._mixed(budget)
            count = 1
        elif self.decoding:
            most = min(first_due(self.ends), first_due(self.grows)) - self.decode_step
            count, seconds = decode_run(self.model, self.decoding, self.kv_tokens, most, self.next_event() - now)
            chunks = []
        else:
            return
        self.stepping = True
        self.step_began = now
        self.at(now + seconds, self._ended, (self.generation, count, chunks))

    def _mixed(self, budget: int) -> tuple[float, list[tuple[Live, int]]]:
        chunks, tokens, squares = list[tuple[Live, int]](), self.decoding, 0
        for request in self.prefilling.values():
            if budget <= 0:
                break
            chunk = min(budget, request.target - request.progress)
            chunks.append((request, chunk))
            budget -= chunk
            tokens += chunk
            squares += chunk * (2 * request.progress + chunk)
        return step_seconds(self.model, tokens, squares, self.kv_tokens), chunks

    def _ended(self, now: float, generation: int, count: int, chunks: list[tuple[Live, int]]) -> None:
        if generation != self.generation:
            return
        self.stepping = False
        self.steps += count
        self.busy_s += now - self.step_began
        self.decode_step += count
        self.kv_tokens += self.decoding * count
        while self.ends and (stale(self.ends[0]) or self.ends[0][0] <= self.decode_step):
            entry = heapq.heappop(self.ends)
            if not stale(entry):
                self._finish(entry[3], now)
        for request, chunk in chunks:
            request.progress += chunk
            self.prefill_tokens += chunk
            self.holding.complete(request, now)
            if request.progress == request.target:
                self._first_token(request, now)
        for request, cause in self.leaving:
            if request.state not in (DONE, GONE):
                self._withdraw(request, now)
                self._end(request, now, cause)
        self.leaving.clear()
        self.start(now)

    def _freed(self, now: float) -> None:
        self.at(now, self._resume, ())

    def _resume(self, now: float) -> None:
        self.start(now)

    def _first_token(self, request: Live, now: float) -> None:
        del self.prefilling[request.index]
        self._unpark(request)
        if request.first_token_at is None:
            request.first_token_at = now
        request.emitted += 1
        left = request.output_tokens - request.emitted
        if left <= 0:
            self._finish(request, now, decoding=False)
            return
        request.state = DECODE
        request.entered = self.decode_step
        self.decoding += 1
        self.kv_tokens += request.target
        heapq.heappush(self.ends, (self.decode_step + left, request.index, request.epoch, request))
        room = self.holding.blocks(request.target) * self.model.block_tokens - request.target
        if room < left:
            heapq.heappush(self.grows, (self.decode_step + room, request.index, request.epoch, request))

    def _finish(self, request: Live, now: float, decoding: bool = True) -> None:
        if decoding:
            self._stop_decoding(request)
        self.holding.name_answer(request, now)
        self._release(request, now)
        self._end(request, now)

    def _stop_decoding(self, request: Live) -> None:
        done = self.decode_step - request.entered
        self.decoding -= 1
        self.kv_tokens -= request.target + done
        request.emitted += done

    def _release(self, request: Live, now: float) -> None:
        self.running.pop(request.index, None)
        self.holding.release(request, now)

    # ------------------------------------------------------------------------------- preemption and leaving

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
        self._queue_again(request)

    def _queue_again(self, request: Live) -> None:
        request.state = WAITING
        request.progress = 0
        request.target = request.input_tokens + request.emitted
        heapq.heappush(self.waiting, (request.rank, request))

    def _withdraw(self, request: Live, now: float) -> None:
        """Take a request out of wherever it is."""
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

    def restart(self, now: float, down_s: float, survives: tuple[str, ...]) -> None:
        """The engine dies: its GPU cache and all progress are gone, clients ask again, `down_s` later it is back."""
        for request in self._empty(now, survives):
            heapq.heappush(self.waiting, (request.rank, request))
        self.down_until = max(self.down_until, now + down_s)
        self.at(self.down_until, self._resume, ())

    def leave(self, now: float) -> list[Live]:
        """The replica is gone for good: everybody who was there, to ask another one."""
        self.down_until = math.inf
        self.outstanding = 0
        return self._empty(now, ())

    def _empty(self, now: float, survives: tuple[str, ...]) -> list[Live]:
        """Lose the GPU cache, all progress and the tiers that do not survive: those who were inside, waiting again."""
        if self.stepping:
            self.busy_s += now - self.step_began
        self.stepping = False
        self.generation += 1
        inside = [*self.running.values(), *self.loading.values()]
        inside += [request for others in self.parked.values() for request in others]
        inside += [request for _, request in self.waiting if request.state == WAITING]
        self.waiting.clear()
        for request in inside:
            self.holding.forget(request)
            request.state, request.progress, request.emitted, request.target = WAITING, 0, 0, request.input_tokens
        for emptied in (self.running, self.prefilling, self.loading, self.parked):
            emptied.clear()
        self.decoding = self.kv_tokens = 0
        self.ends.clear()
        self.grows.clear()
        self.holding.lose(survives)
        for request, cause in self.leaving:
            if request in inside:
                inside.remove(request)
                self._end(request, now, cause)
        self.leaving.clear()
        return inside
