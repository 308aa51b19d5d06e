"""llama.cpp's prompt cache: what its slots and its host tier (`--cache-ram`) keep, and what a request finds there.

It is no block cache. Each slot keeps the tokens of its last request, prompt and answer, and reuses the longest common
prefix. A request takes the idle slot that shares the largest part of its prompt, if that part is above
`--slot-prompt-similarity`, else the slot unused for longest. Where that would lose more than half of what the slot
keeps, its whole context is copied to the host tier, and the kept context that serves the new prompt better, if there
is one, is moved back (tools/server/server-context.cpp `get_available_slot`, server-task.cpp `server_prompt_cache`).
The tier drops contexts in the order in which they were saved, and those that a newly saved one contains.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from kvplan.documents import Requests

KEEP_RATIO = np.float32(0.5)  # a slot that would keep less than this is saved first
MOVE_RATIO = 0.25  # a kept context is moved back only if at least this part of it is used
CELL_BYTES = 12  # position and sequence of a token in a saved context


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheRules:
    """The server's settings. `cache_ram_bytes` 0 turns the host tier off. Slots share no cells unless `unified`."""

    kv_bytes_per_token: int
    context_tokens: int
    cache_ram_bytes: int = 0
    slots: int = 1
    similarity: float = 0.1
    unified: bool = False
    save_idle: bool = True


@dataclass(slots=True, eq=False)
class Context:
    """Tokens that a slot or the tier holds, of which `path` names the first `known_tokens`, by blocks."""

    path: Sequence[int] = ()
    known_tokens: int = 0
    tokens: int = 0
    hit: bool = False  # since it was computed
    in_tier: bool = False


@dataclass(slots=True)
class Ledger:
    """Blocks that came to the slots, or to the tier, and left, by reason; those of contexts that were never hit."""

    inserted: int = 0
    removed: Counter[str] = field(default_factory=Counter)
    refused: Counter[str] = field(default_factory=Counter)
    never_hit: int = 0

    def remove(self, blocks: int, reason: str, hit: bool) -> None:
        """So many blocks of a context are gone."""
        if blocks:
            self.removed[reason] += blocks
            self.never_hit += 0 if hit else blocks


@dataclass(slots=True, eq=False)
class Slot:
    """A slot: what it holds, of which a request that runs in it (`busy`) found `kept_blocks`."""

    held: Context = field(default_factory=Context)
    last_used: tuple[float, int] = (-1.0, -1)  # when, and of those that ended together its number
    busy: bool = False
    kept_blocks: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Begun:
    """A request's slot, its cached tokens, whether they came from the tier, and the bytes copied for it."""

    slot: int
    hit_tokens: int
    from_tier: bool
    saved_bytes: int
    loaded_bytes: int


@dataclass(slots=True)
class PromptCache:
    """The slots and the tier of one server. Blocks have `block_tokens` tokens."""

    rules: CacheRules
    block_tokens: int
    slots: list[Slot] = field(init=False)
    kept: list[Context] = field(default_factory=list)
    kept_tokens: int = 0
    in_slots: Ledger = field(default_factory=Ledger)
    in_tier: Ledger = field(default_factory=Ledger)
    served: int = 0
    tier_bytes: int = field(init=False)

    def __post_init__(self) -> None:
        self.slots = [Slot() for _ in range(self.rules.slots)]
        self.tier_bytes = self.rules.cache_ram_bytes

    # ------------------------------------------------------------------------------------------ requests

    def serve(self, path: Sequence[int], prompt_tokens: int, output_tokens: int) -> int:
        """Cached tokens of the next request of those that come one by one; its prompt has the blocks `path`."""
        begun = self.begin(path, prompt_tokens)
        assert begun is not None
        self.served += 1
        self.end(begun.slot, path, prompt_tokens, prompt_tokens + max(0, output_tokens - 1), self.served)
        return begun.hit_tokens

    def begin(self, path: Sequence[int], prompt_tokens: int) -> Begun | None:
        """Give a request a slot; None where all are busy. The last token of a prompt is always computed."""
        asked = Context(path, prompt_tokens, prompt_tokens)
        chosen = self._choose(asked)
        if chosen is None:
            return None
        slot, loses = chosen
        saved, moved = 0, None
        if loses and self.tier_bytes:
            saved = self._save(slot.held)
            moved = self._move_back(slot.held, asked)
            if moved is not None:
                self._replace(slot, moved)
            self._trim()
        hit = min(self._common(slot.held, asked), prompt_tokens - 1)
        self._occupy(slot, hit)
        saved += self._save_idle()
        return Begun(
            slot=self.slots.index(slot),
            hit_tokens=hit,
            from_tier=moved is not None,
            saved_bytes=saved,
            loaded_bytes=0 if moved is None else self.bytes(moved),
        )

    def _replace(self, slot: Slot, moved: Context) -> None:
        self.in_slots.remove(self.blocks(slot.held), "replaced", slot.held.hit)
        self.in_slots.inserted += self.blocks(moved)
        self.in_tier.remove(self.blocks(moved), "moved to a slot", hit=True)
        moved.hit = True
        slot.held = moved

    def _occupy(self, slot: Slot, hit_tokens: int) -> None:
        """What a request does not reuse of its slot is overwritten."""
        slot.kept_blocks = -(-hit_tokens // self.block_tokens)
        slot.held.hit |= hit_tokens > 0
        self.in_slots.remove(self.blocks(slot.held) - slot.kept_blocks, "overwritten", slot.held.hit)
        slot.busy = True

    def end(self, number: int, path: Sequence[int], known_tokens: int, tokens: int, now: float) -> None:
        """A request leaves its slot, which holds `tokens` computed tokens; `path` names the first `known_tokens`.

        That is its prompt and all of its answer but the last token, whose KV is never computed.
        """
        slot = self.slots[number]
        slot.held = Context(path, min(known_tokens, tokens), tokens, slot.held.hit and slot.kept_blocks > 0)
        self.in_slots.inserted += self.blocks(slot.held) - slot.kept_blocks
        slot.busy, slot.kept_blocks = False, 0
        slot.last_used = (now, number)

    def _common(self, one: Context, other: Context) -> int:
        """Tokens of the longest common prefix; what has no name is taken to differ."""
        mine, theirs = one.path, other.path
        same, end = 0, min(len(mine), len(theirs))
        while same < end:  # a block's id names all that comes before it too
            middle = (same + end) // 2
            if mine[middle] == theirs[middle]:
                same = middle + 1
            else:
                end = middle
        return min(same * self.block_tokens, one.known_tokens, other.known_tokens)

    def _choose(self, asked: Context) -> tuple[Slot, bool] | None:
        """The slot, and whether most of what it holds would be lost."""
        idle = [slot for slot in self.slots if not slot.busy]
        if not idle:
            return None
        best, best_common = None, 0
        for slot in idle:
            common = self._common(slot.held, asked)
            if common > best_common and np.float32(common) / np.float32(asked.tokens) > np.float32(
                self.rules.similarity
            ):
                best, best_common = slot, common
        if best is not None:
            return best, bool(_keeps(best_common, asked.tokens, best.held.tokens) < KEEP_RATIO)
        oldest = min(slot.last_used for slot in idle)
        return [slot for slot in idle if slot.last_used == oldest][-1], True

    # ------------------------------------------------------------------------------------------ the tier

    def idle_unhit_blocks(self) -> int:
        """Blocks of contexts in idle slots that were never hit."""
        return sum(self.blocks(slot.held) for slot in self.slots if not (slot.busy or slot.held.hit))

    def bytes(self, context: Context) -> int:
        """What a context takes in the tier."""
        return context.tokens * (self.rules.kv_bytes_per_token + CELL_BYTES)

    def blocks(self, context: Context) -> int:
        """Blocks that the tokens of a context begin."""
        return -(-context.tokens // self.block_tokens)

    def _save(self, held: Context) -> int:
        """Copy a context to the tier, unless it is there; drop what it contains, and the oldest where room is short.

        Bytes copied.
        """
        if not held.tokens or held.in_tier:
            return 0
        common = [self._common(one, held) for one in self.kept]
        if held.tokens in common:
            return 0
        if self.bytes(held) > self.tier_bytes:
            self.in_tier.refused["too large"] += self.blocks(held)
            return 0
        for one, shared in list(zip(self.kept, common, strict=True)):
            if shared >= one.tokens:
                self._drop(one, "contained in another")
        while self.kept and self.bytes_kept() + self.bytes(held) > self.tier_bytes:
            self._drop(self.kept[0], "capacity")
        held.in_tier = True
        self.kept.append(held)
        self.kept_tokens += held.tokens
        self.in_tier.inserted += self.blocks(held)
        return self.bytes(held)

    def _drop(self, one: Context, reason: str) -> None:
        self._take_out(one)
        self.in_tier.remove(self.blocks(one), reason, hit=False)

    def _take_out(self, one: Context) -> None:
        one.in_tier = False
        self.kept.remove(one)
        self.kept_tokens -= one.tokens

    def bytes_kept(self) -> int:
        """What all contexts of the tier take."""
        return self.kept_tokens * (self.rules.kv_bytes_per_token + CELL_BYTES)

    def _move_back(self, held: Context, asked: Context) -> Context | None:
        """The kept context that shares more with the prompt, and loses less, than what the slot holds now."""
        common = self._common(held, asked)
        keeps, shares, best = common / held.tokens if held.tokens else -1.0, common, None
        for one in self.kept:
            common = self._common(one, asked)
            ratio = common / one.tokens
            if ratio >= MOVE_RATIO and ratio > keeps and common > shares:
                keeps, shares, best = ratio, common, one
        if best is not None:
            self._take_out(best)
        return best

    def _trim(self) -> None:
        """The tier also counts tokens: as many as the context, or as fit in its bytes."""
        per_token = max(1.0, self.bytes_kept() / max(1, self.kept_tokens))
        most = max(self.rules.context_tokens, int(self.tier_bytes / per_token))
        while self.kept and self.kept_tokens > most:
            self._drop(self.kept[0], "capacity")

    def _save_idle(self) -> int:
        """Idle slots are copied too when a request starts, and emptied where all slots share their cells."""
        if not (self.rules.save_idle and self.tier_bytes):
            return 0
        saved = 0
        for slot in self.slots:
            if not slot.busy:
                saved += self._save(slot.held)
                self._trim()
                if self.rules.unified:
                    self._empty(slot, "cleared")
        return saved

    # ------------------------------------------------------------------------------------------ emptying

    def _empty(self, slot: Slot, reason: str) -> None:
        self.in_slots.remove(self.blocks(slot.held), reason, slot.held.hit)
        slot.held = Context()

    def purge(self) -> bool:
        """Empty the first idle slot that holds anything, for room in shared cells; False where there is none."""
        for slot in self.slots:
            if not slot.busy and slot.held.tokens:
                self._empty(slot, "capacity")
                return True
        return False

    def idle_tokens(self) -> int:
        """Tokens in the cells of idle slots."""
        return sum(slot.held.tokens for slot in self.slots if not slot.busy)

    def lose_tier(self, reason: str, closed: bool) -> None:
        """The tier loses every context; a `closed` one takes no more."""
        for one in list(self.kept):
            self._drop(one, reason)
        if closed:
            self.tier_bytes = 0

    def lose_slots(self, reason: str) -> None:
        """Every slot is empty and idle: the server has died."""
        for slot in self.slots:
            if slot.busy:
                self.in_slots.remove(slot.kept_blocks, reason, hit=True)
                slot.held, slot.busy, slot.kept_blocks = Context(), False, 0
            else:
                self._empty(slot, reason)


def _keeps(common: int, prompt_tokens: int, held_tokens: int) -> np.float32:
    """The part of a slot that a prompt reuses, in the server's own single precision: at one half that decides."""
    similarity = np.float32(common) / np.float32(prompt_tokens)
    return np.float32(similarity * np.float32(prompt_tokens) / np.float32(held_tokens))


def cached_tokens(requests: Requests, rules: CacheRules) -> list[int]:
    """Cached tokens of each request of a log that is sent one after the other.

    Blocks that differ are taken to differ from their first token on, so hits are whole blocks of the log, or end where
    a prompt ended: a lower bound by less than a block a request.
    """
    cache = PromptCache(rules, requests.block_tokens)
    starts, blocks = requests.offsets.tolist(), requests.blocks.tolist()
    return [
        cache.serve(blocks[starts[r] : starts[r + 1]], int(prompt), int(output))
        for r, (prompt, output) in enumerate(zip(requests.input_tokens, requests.output_tokens, strict=True))
    ]
