"""One engine replica, step by step: who waits, prefills and decodes, and how long each step takes.

A step runs every decoding request by a token and gives the rest of the token budget to prefills. Steps without prefill
are alike until somebody ends, `_next_change` comes, or something happens outside: such a run is played at once, with
the exact sum of its step times. What a request needs to be let in, and what it leaves behind, is the engine's own:
blocks of a paged cache (replica.py), or a slot (slots.py).
"""

from __future__ import annotations

import heapq
import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Protocol

from kvplan.documents import Arm, EngineModel
from kvplan.simulation.books import Books
from kvplan.simulation.hierarchy import At
from kvplan.simulation.links import Fifo
from kvplan.simulation.live import DECODE, DONE, GONE, PREFILL, WAITING, Live
from kvplan.simulation.steps import Agenda, decode_run, first_due, stale, step_seconds


class Store(Protocol):
    """Something that holds blocks: room taken now, removals by reason until now, and all its books."""

    @property
    def used(self) -> int:
        """Blocks of room taken."""

    @property
    def removed(self) -> Mapping[str, int]:
        """Blocks that left, by reason."""

    def books(self) -> Books:
        """What came, what left and why, what is there."""


class Below(Protocol):
    """The tiers below a replica's GPU: None where there is none, and the links that they are read and filled over."""

    up: Fifo | None
    down: Fifo | None
    read: Fifo | None
    write: Fifo | None
    failing: float
    failed_loads: int

    @property
    def stores(self) -> tuple[Store | None, Store | None]:
        """Host and disk."""

    def lose(self, name: str, reason: str, closed: bool) -> None:
        """A tier loses everything; a `closed` one takes no more."""

    def slow(self, name: str, factor: float) -> None:
        """A link runs at a multiple of its rate from now on."""


class Stepper:
    """`next_event` tells when something outside happens next; `left` is called when a request has ended."""

    tiers: Below

    def __init__(
        self,
        model: EngineModel,
        arm: Arm,
        at: At,
        next_event: Callable[[], float],
        left: Callable[[float, Live], None],
    ) -> None:
        self.model = model
        self.arm = arm
        self.at = at
        self.next_event = next_event
        self.left = left
        self.waiting: list[tuple[int, Live]] = []
        self.prefilling: dict[int, Live] = {}
        self.running: dict[int, Live] = {}  # prefilling and decoding, in order of admission
        self.decoding = 0
        self.kv_tokens = 0  # cached tokens that a decode step reads
        self.decode_step = 0
        self.ends: Agenda = []
        self.leaving: list[tuple[Live, str]] = []
        self.generation = 0
        self.stepping = False
        self.step_began = 0.0
        self.down_until = 0.0
        self.gone_at: float | None = None
        self.outstanding = 0
        self.busy_s = 0.0
        self.steps = 0
        self.prefill_tokens = 0
        self.preemptions = 0

    # ----------------------------------------------------------------------- what an engine has of its own

    @property
    def store(self) -> Store:
        """What the GPU keeps."""
        raise NotImplementedError

    def _fits(self, request: Live) -> bool:
        """Whether a request could ever be served."""
        raise NotImplementedError

    def _prepare(self, now: float) -> int | None:
        """Let requests in: the tokens that the next step has for prefills, None where no step may begin now."""
        raise NotImplementedError

    def _computed(self, request: Live, now: float) -> None:
        """A prefill has got further."""

    def _decodes(self, request: Live, left: int) -> None:
        """A request begins to decode, `left` tokens more."""

    def _next_change(self) -> int:
        """The decode step by which a run of steps has to stop, whoever ends."""
        raise NotImplementedError

    def _answered(self, request: Live, now: float) -> None:
        """A request is through, and about to be let go."""

    def _release(self, request: Live, now: float) -> None:
        """A request lets go of what it holds."""
        raise NotImplementedError

    def _withdraw(self, request: Live, now: float) -> None:
        """Take a request out of wherever it is."""
        raise NotImplementedError

    def _others_inside(self) -> Iterable[Live]:
        """Requests that are inside and neither run nor wait in the queue."""
        return ()

    def _lose(self, inside: Sequence[Live], survives: tuple[str, ...]) -> None:
        """The engine has died under those `inside`, and `survives` of its tiers have not."""
        raise NotImplementedError

    # -------------------------------------------------------------------------------- arriving and leaving

    def arrive(self, request: Live, now: float) -> None:
        """A request joins the queue (`start` looks at it), or is turned away where it can never fit."""
        self.outstanding += 1
        if self._fits(request):
            heapq.heappush(self.waiting, (request.rank, request))
        else:
            self._end(request, now, "does not fit")

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

    # ----------------------------------------------------------------------------------------------- steps

    def start(self, now: float) -> None:
        """Begin the next step, if there is something to run and nothing runs."""
        if self.stepping or now < self.down_until:
            return
        budget = self._prepare(now)
        if budget is None:
            return
        if self.prefilling:
            seconds, chunks = self._mixed(budget)
            count = 1
        elif self.decoding:
            most = min(first_due(self.ends), self._next_change()) - self.decode_step
            count, seconds = decode_run(self.model, self.decoding, self.kv_tokens, most, self.next_event() - now)
            chunks = []
        else:
            return
        self.stepping = True
        self.step_began = now
        self.at(now + seconds, self._ended, (self.generation, count, chunks))

    def _in_turn(self) -> Iterable[Live]:
        """Prefills in the order in which a step takes them."""
        return self.prefilling.values()

    def _mixed(self, budget: int) -> tuple[float, list[tuple[Live, int]]]:
        chunks, tokens, squares = list[tuple[Live, int]](), self.decoding, 0
        for request in self._in_turn():
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
            self._computed(request, now)
            if request.progress == request.target:
                self._first_token(request, now)
        for request, cause in self.leaving:
            if request.state not in (DONE, GONE):
                self._withdraw(request, now)
                self._end(request, now, cause)
        self.leaving.clear()
        self.start(now)

    def _resume(self, now: float) -> None:
        self.start(now)

    def _first_token(self, request: Live, now: float) -> None:
        del self.prefilling[request.index]
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
        self._decodes(request, left)

    def _finish(self, request: Live, now: float, decoding: bool = True) -> None:
        if decoding:
            self._stop_decoding(request)
        self._answered(request, now)
        self._release(request, now)
        self._end(request, now)

    def _stop_decoding(self, request: Live) -> None:
        done = self.decode_step - request.entered
        self.decoding -= 1
        self.kv_tokens -= request.target + done
        request.emitted += done

    # ----------------------------------------------------------------------------------- dying and leaving

    def restart(self, now: float, down_s: float, survives: tuple[str, ...]) -> None:
        """The engine dies: its GPU cache and all progress are gone, clients ask again, `down_s` later it is back."""
        for request in self._empty(now, survives):
            heapq.heappush(self.waiting, (request.rank, request))
        self.down_until = max(self.down_until, now + down_s)
        self.at(self.down_until, self._resume, ())

    def leave(self, now: float) -> list[Live]:
        """The replica is gone for good: everybody who was there, to ask another one."""
        self.down_until = math.inf
        self.gone_at = now
        self.outstanding = 0
        return self._empty(now, ())

    def _empty(self, now: float, survives: tuple[str, ...]) -> list[Live]:
        """Lose the GPU cache, all progress and the tiers that do not survive: those who were inside, waiting again."""
        if self.stepping:
            self.busy_s += now - self.step_began
        self.stepping = False
        self.generation += 1
        inside = [*self.running.values(), *self._others_inside()]
        inside += [request for _, request in self.waiting if request.state == WAITING]
        self.waiting.clear()
        self._lose(inside, survives)
        for request in inside:
            request.state, request.progress, request.emitted, request.target = WAITING, 0, 0, request.input_tokens
        self.running.clear()
        self.prefilling.clear()
        self.decoding = self.kv_tokens = 0
        self.ends.clear()
        for request, cause in self.leaving:
            if request in inside:
                inside.remove(request)
                self._end(request, now, cause)
        self.leaving.clear()
        return inside
