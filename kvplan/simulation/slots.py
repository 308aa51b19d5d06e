"""A replica that keeps whole prompts in slots, as llama.cpp does: no blocks, no preemption, copies between steps.

Its rules are those of `engines/llamacpp_cache.py`. The server is one loop: it gives queued requests their slots, and
copies contexts to and from host memory for that; then it runs a step. So a copy holds up everybody.
"""

from __future__ import annotations

import heapq
import random
from collections.abc import Callable, Mapping, Sequence

from kvplan.documents import Arm, EngineModel, Slots
from kvplan.engines.llamacpp_cache import Begun, CacheRules, Ledger, PromptCache
from kvplan.simulation.books import Books
from kvplan.simulation.hierarchy import At, link_of
from kvplan.simulation.links import Fifo
from kvplan.simulation.live import DECODE, PREFILL, WAITING, Live
from kvplan.simulation.stepping import Stepper, Store
from kvplan.simulation.steps import NEVER

NO_ROOM = "context exceeded"  # what llama.cpp answers to all requests once their shared cells are full
_FOR_ROOM = {"replaced", "overwritten", "capacity"}  # reasons for which a slot gives up what it holds


class SlotReplica(Stepper):
    """Requests wait for an idle slot; `cache` says which one, and what is copied for it."""

    def __init__(
        self,
        model: EngineModel,
        slots: Slots,
        arm: Arm,
        at: At,
        next_event: Callable[[], float],
        left: Callable[[float, Live], None],
    ) -> None:
        super().__init__(model, arm, at, next_event, left)
        self.context_tokens = slots.context_tokens
        self.unified = slots.unified
        rules = CacheRules(
            kv_bytes_per_token=model.tier_bytes_per_token,
            context_tokens=model.kv_tokens,
            cache_ram_bytes=arm.host_bytes,
            slots=slots.count,
            similarity=slots.similarity,
            unified=slots.unified,
            save_idle=slots.save_idle,
        )
        self.cache = PromptCache(rules, model.block_tokens)
        self.tier = SlotTier(model, arm, self.cache)
        self.tiers = self.tier
        self.slot: dict[int, int] = {}  # of each request inside
        self.copying = False
        self.filled_at: float | None = None

    @property
    def store(self) -> Store:
        """The slots."""
        capacity = self.model.kv_tokens // self.model.block_tokens
        held = [self.cache.blocks(slot.held) for slot in self.cache.slots if not slot.busy]
        return _Kept(self.cache.in_slots, capacity, sum(held), self.cache.idle_unhit_blocks(), self.filled_at)

    def _fits(self, request: Live) -> bool:
        """A prompt must leave room for a token; an answer is cut where the context ends."""
        room = self.context_tokens - request.input_tokens
        request.output_tokens = max(1, min(request.output_tokens, room))
        return room > 0

    # --------------------------------------------------------------------------------------- taking a slot

    def _prepare(self, now: float) -> int | None:
        if self.copying:
            return None
        while self.waiting:
            request = self.waiting[0][1]
            if request.state != WAITING:
                heapq.heappop(self.waiting)
                continue
            begun = self.cache.begin(request.path, request.input_tokens)
            if begun is None:
                break
            heapq.heappop(self.waiting)
            if self._take(request, begun, now):
                return None
        budget = max(0, self.model.max_num_batched_tokens - self.decoding)
        return self._with_room(budget, now) if self.unified else budget

    def _take(self, request: Live, begun: Begun, now: float) -> bool:
        """The request is in its slot; whether contexts are copied first, and everything waits for that."""
        self._note_room(now)
        found, loaded = self.tier.copied(begun, now)
        hits = begun.hit_tokens if found else 0
        if request.admitted_at is None:
            request.admitted_at = now
            request.hits = (0, hits, 0) if begun.from_tier else (hits, 0, 0)
        request.state, request.progress = PREFILL, hits
        self.slot[request.index] = begun.slot
        self.prefilling[request.index] = self.running[request.index] = request
        if begun.loaded_bytes:
            request.loading_since = now
        if loaded > now:
            self.copying = True
            self.at(loaded, self._copied, (self.generation, request))
        elif begun.loaded_bytes:
            request.loaded_at = now
        return self.copying

    def _note_room(self, now: float) -> None:
        if self.filled_at is None and self.cache.in_slots.removed.keys() & _FOR_ROOM:
            self.filled_at = now

    def _copied(self, now: float, generation: int, request: Live) -> None:
        if generation != self.generation:
            return
        self.copying = False
        if request.loading_since is not None and request.loaded_at is None:
            request.loaded_at = now
        self.start(now)

    # --------------------------------------------------------------------------------- cells that all share

    def _with_room(self, budget: int, now: float) -> int:
        """Idle slots are emptied for a step that needs their cells; where that is not enough all are answered no."""
        prefill = sum(request.target - request.progress for request in self.prefilling.values())
        needed = self.decoding + min(budget, prefill)
        while self._free() < needed:
            if not self.cache.purge():
                self._refuse_all(now)
                break
            self._note_room(now)
        return budget

    def _free(self) -> int:
        """Cells that nobody has: what requests have computed and idle slots hold are taken."""
        inside = sum(request.progress for request in self.prefilling.values()) + self.kv_tokens
        return self.model.kv_tokens - inside - self.cache.idle_tokens()

    def _refuse_all(self, now: float) -> None:
        for request in list(self.running.values()):
            self._withdraw(request, now)
            self._end(request, now, NO_ROOM)
        self.at(now, self._resume, ())

    def _next_change(self) -> int:
        if not self.unified:
            return NEVER
        return self.decode_step + max(1, self._free() // max(1, self.decoding))

    # --------------------------------------------------------------------------------------------- leaving

    def _in_turn(self) -> list[Live]:
        return sorted(self.prefilling.values(), key=lambda request: self.slot[request.index])

    def _release(self, request: Live, now: float) -> None:
        """The slot keeps what was computed; where answers come back in prompts it knows their names too."""
        self.running.pop(request.index, None)
        request.epoch += 1
        number = self.slot.pop(request.index, None)
        if number is None:
            return
        tokens, path, known = request.progress, request.path, request.input_tokens
        if tokens == request.target:
            tokens = request.input_tokens + max(0, request.emitted - 1)
            if request.answer:
                size = self.model.block_tokens
                path = [*path[: request.input_tokens // size], *request.answer]
                known = len(path) * size
        self.cache.end(number, path, known, tokens, now)

    def _withdraw(self, request: Live, now: float) -> None:
        if request.state == DECODE:
            self._stop_decoding(request)
        self.prefilling.pop(request.index, None)
        self._release(request, now)

    def _lose(self, inside: Sequence[Live], survives: tuple[str, ...]) -> None:
        for request in inside:
            request.epoch += 1
        self.slot.clear()
        self.copying = False
        self.cache.lose_slots("restart")
        if "host" not in survives:
            self.tiers.lose("host", "restart", closed=False)


class SlotTier:
    """The host tier of a server with slots, and the links to it; there is no disk."""

    def __init__(self, model: EngineModel, arm: Arm, cache: PromptCache) -> None:
        self.cache = cache
        self.read: Fifo | None = None
        self.write: Fifo | None = None
        self.capacity = arm.host_bytes // (model.block_tokens * model.tier_bytes_per_token)
        host = link_of(model.host_link, "host") if arm.host_bytes else None
        rate = arm.host_link_bytes_per_s
        self.up = Fifo(rate or host.load_bytes_per_s, host.latency_s) if host else None
        self.down = Fifo(rate or host.store_bytes_per_s, host.latency_s) if host else None
        self.failing = 0.0
        self.failed_loads = 0
        self.filled_at: float | None = None
        self.dice = random.Random(1)

    @property
    def stores(self) -> tuple[Store | None, None]:
        """The contexts in host memory, where there may be any."""
        if self.up is None:
            return None, None
        blocks = sum(map(self.cache.blocks, self.cache.kept))
        return _Kept(self.cache.in_tier, self.capacity, blocks, blocks, self.filled_at), None

    def copied(self, begun: Begun, now: float) -> tuple[bool, float]:
        """Whether a context that comes from the tier arrives whole, and when all copies for a request are done.

        The one after the other: first to the tier, then from there.
        """
        done, found = now, True
        if begun.saved_bytes and self.down is not None:
            done = self.down.queue(done, begun.saved_bytes)
        if begun.loaded_bytes and self.up is not None:
            done = self.up.queue(done, begun.loaded_bytes)
            found = self.dice.random() >= self.failing
            self.failed_loads += not found
        if self.filled_at is None and self.cache.in_tier.removed["capacity"]:
            self.filled_at = now
        return found, done

    def lose(self, name: str, reason: str, closed: bool) -> None:
        """The host loses every context."""
        if name == "host":
            self.cache.lose_tier(reason, closed)

    def slow(self, name: str, factor: float) -> None:
        """The host link runs at a multiple of its rate from now on."""
        for link in (self.up, self.down) if name == "host" else ():
            if link is not None:
                link.bytes_per_s *= factor


class _Kept:
    """Slots or tier as something that holds blocks."""

    def __init__(self, ledger: Ledger, capacity: int, blocks: int, unhit: int, full_at: float | None) -> None:
        self.ledger, self.used, self.unhit, self.capacity, self.full_at = ledger, blocks, unhit, capacity, full_at

    @property
    def removed(self) -> Mapping[str, int]:
        """Blocks that left, by reason."""
        return self.ledger.removed

    def books(self) -> Books:
        """What came, what left and why, what is there."""
        return Books(
            capacity=self.capacity,
            blocks=self.used,
            inserted=self.ledger.inserted,
            removed=self.ledger.removed,
            refused=self.ledger.refused,
            never_hit=self.ledger.never_hit,
            kept_never_hit=self.unhit,
            full_at=self.full_at,
        )
