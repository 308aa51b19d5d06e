"""What requests hold of one replica's GPU: blocks they pin, blocks they fill, and what stays when they let go."""

from __future__ import annotations

from collections.abc import Callable

from kvplan.documents import Arm, EngineModel
from kvplan.simulation.gpu import COMING, READY, GpuCache
from kvplan.simulation.hierarchy import At, Hierarchy
from kvplan.simulation.live import PARKED, WAITING, Hold, Live


class Holding:
    """The GPU's blocks and the tiers below, as requests take and leave them.

    `freed` is called when the last copy of blocks that outlived their request has ended, which makes room.
    """

    def __init__(self, model: EngineModel, arm: Arm, blocks: int, at: At, freed: Callable[[float], None]) -> None:
        self.block_tokens = model.block_tokens
        self.on_eviction = arm.store == "on-eviction"
        self.keeps_output = model.output_blocks != "forget"
        self.same_step_hits = model.same_step_hits
        self.freed = freed
        self.gpu = GpuCache(model.kv_tokens // model.block_tokens, blocks, arm.ttl_s)
        self.tiers = Hierarchy(model, arm, at, self._copied)
        self.owners: dict[int, Live] = {}  # by coming block
        self.in_step: set[int] = set()  # blocks that the step being planned will complete, where that may be hit
        self.generation = 0

    def blocks(self, tokens: int) -> int:
        """Blocks that so many tokens take."""
        return -(-tokens // self.block_tokens)

    # --------------------------------------------------------------------------------------------- taking

    def hits(self, request: Live) -> int:
        """Blocks at the start of a request's path that it need not compute."""
        state, path, hits = self.gpu.state, request.path, 0
        while hits < request.reusable and (state[path[hits]] == READY or path[hits] in self.in_step):
            hits += 1
        return hits

    def owner_of_next(self, request: Live, hits: int) -> Live | None:
        """Who is computing or loading the block after the hits, if anybody is."""
        if hits < request.reusable and self.gpu.state[request.path[hits]] == COMING:
            return self.owners[request.path[hits]]
        return None

    def take(self, request: Live, hits: int, now: float) -> tuple[tuple[int, int], list[int]] | None:
        """Take all the blocks of a prompt: what tiers have of it beyond the hits, and the blocks that had to go.

        None where there is no room for it.
        """
        gpu, path = self.gpu, request.path
        needed = self.blocks(request.target) - hits
        if gpu.room(path[:hits]) < needed:
            return None
        loads = self.tiers.found(path, hits, request.reusable, now)
        gpu.use(path[:hits])
        gone = gpu.take(needed, now)
        gpu.hit.update(path[:hits])
        self._own(request, hits, needed)
        self.tiers.touch(path, now)
        return loads, gone

    def _own(self, request: Live, hits: int, needed: int) -> None:
        gpu, path = self.gpu, request.path
        request.held = path[:hits]
        request.owned = []
        request.hold = Hold(self.generation)
        for place in range(hits, len(path)):
            block = path[place]
            if not gpu.state[block]:
                gpu.name(block)
                self.owners[block] = request
                request.held.append(block)
                request.owned.append(place)
        request.owned.reverse()
        request.private = needed - len(request.owned)

    def grow(self, request: Live, now: float) -> None:
        """One more block, for the tokens that a request produces."""
        self.evicted(self.gpu.take(1, now), now)
        request.private += 1

    def evicted(self, gone: list[int], now: float) -> None:
        """What the GPU gave up goes to the tiers, where they take it then and not before."""
        if self.on_eviction and gone:
            self.tiers.store(gone, now)

    def plan(self, request: Live, budget: int) -> None:
        """Note the blocks that a request's share of the step will complete, where others may use them at once."""
        if self.same_step_hits and budget > 0:
            full = min(request.target, request.progress + budget) // self.block_tokens
            for place in reversed(request.owned):
                if place >= full:
                    return
                self.in_step.add(request.path[place])

    # ------------------------------------------------------------------------------------------- filling

    def complete(self, request: Live, now: float, loaded: bool = False) -> None:
        """Blocks that the request's progress has filled are ready for everybody, and copied to the tiers."""
        ready, owned, path = list[int](), request.owned, request.path
        full = request.progress // self.block_tokens
        while owned and owned[-1] < full:
            block = path[owned.pop()]
            self.gpu.ready(block)
            self.owners.pop(block, None)
            ready.append(block)
        if ready and not loaded and not self.on_eviction:
            self.tiers.store(ready, now, request.hold)

    def name_answer(self, request: Live, now: float) -> None:
        """The answer's full blocks are there for the prompts that will repeat it, where the log knows them."""
        named = [block for block in request.answer if not self.gpu.state[block]]
        for block in named:
            self.gpu.name(block)
            self.gpu.ready(block)
        request.held += named
        request.private -= len(named)
        if named and not self.on_eviction:
            self.tiers.store(named, now, request.hold)

    # ------------------------------------------------------------------------------------------- leaving

    def release(self, request: Live, now: float) -> None:
        """Everything that the request holds; its path is used now, in every tier."""
        for place in request.owned:
            self.owners.pop(request.path[place], None)
        done = len(request.held) - len(request.owned)
        if self.keeps_output:  # before its path, so that the leaf goes first
            self._keep_output(request, done, now)
        self.gpu.release(request.held[done:], now)
        hold = request.hold
        if hold is not None and hold.copies:
            hold.blocks, hold.over = request.held[:done], True
        else:
            self.gpu.release(request.held[:done], now)
        self.gpu.drop_private(request.private)
        if request.state not in (WAITING, PARKED):
            self.tiers.touch(request.path, now, again=False)
        self.forget(request)

    def _keep_output(self, request: Live, named: int, now: float) -> None:
        """Full blocks beyond those that have a name: answers, and copies of what another request computed too."""
        computed = request.progress
        if computed == request.target:
            computed = request.input_tokens + max(0, request.emitted - 1)  # the last token's own KV is not computed
        kept = min(request.private, max(0, computed // self.block_tokens - named))
        self.gpu.keep(kept, now)
        request.private -= kept

    def forget(self, request: Live) -> None:
        """The request holds nothing any more, and late events of its stay mean nothing."""
        request.held, request.owned, request.private, request.hold = [], [], 0, None
        request.epoch += 1

    def _copied(self, now: float, hold: Hold | None) -> None:
        if hold is None or hold.generation != self.generation:
            return
        hold.copies -= 1
        if hold.over and not hold.copies:
            self.gpu.release(hold.blocks, now)
            self.freed(now)

    def lose(self, survives: tuple[str, ...]) -> None:
        """The engine died: the GPU is empty, and so are the tiers that do not survive."""
        self.generation += 1
        self.owners.clear()
        self.gpu.clear()
        for name in ("host", "disk"):
            if name not in survives:
                self.tiers.lose(name, "restart", closed=False)
