"""llama.cpp's prompt cache: what its slots and its host tier (`--cache-ram`) hit when requests come one by one.

It is no block cache. Each slot keeps the tokens of its last request, prompt and answer, and reuses the longest common
prefix. A request takes the idle slot that shares the largest part of its prompt, if that part is above
`--slot-prompt-similarity`, else the slot unused for longest. Where that would lose more than half of what the slot
keeps, its whole context is copied to the host tier, and the kept context that serves the new prompt better, if there
is one, is moved back (tools/server/server-context.cpp `get_available_slot`, server-task.cpp `server_prompt_cache`).
The tier drops contexts in the order in which they were saved, and those that a newly saved one contains.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from kvplan.documents import Requests

KEEP_RATIO = 0.5  # a slot that would keep less than this is saved first
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


@dataclass(frozen=True, slots=True, eq=False)
class _Context:
    """Tokens that a slot or the tier holds: a request's prompt, by blocks, and the answer that followed it."""

    path: Sequence[int] = ()
    prompt_tokens: int = 0
    tokens: int = 0


_EMPTY = _Context()


@dataclass(slots=True, eq=False)
class _Slot:
    held: _Context = _EMPTY
    last_used: int = -1


@dataclass(slots=True)
class PromptCache:
    """The slots and the tier of one server, as requests come one after the other."""

    rules: CacheRules
    block_tokens: int
    slots: list[_Slot] = field(init=False)
    kept: list[_Context] = field(default_factory=list)
    served: int = 0

    def __post_init__(self) -> None:
        self.slots = [_Slot() for _ in range(self.rules.slots)]

    def serve(self, path: Sequence[int], prompt_tokens: int, output_tokens: int) -> int:
        """Cached tokens of the next request, whose prompt has the blocks `path`; the last token is always computed.

        The context it leaves has its prompt and all of its answer but the last token, whose KV is never computed.
        """
        asked = _Context(path, prompt_tokens, prompt_tokens + max(0, output_tokens - 1))
        slot, loses = self._choose(asked)
        if loses and self.rules.cache_ram_bytes:
            self._save(slot.held)
            slot.held = self._move_back(slot.held, asked)
            self._trim()
        hit = min(self._common(slot.held, asked), prompt_tokens - 1)
        slot.held = asked
        self.served += 1
        slot.last_used = self.served
        self._save_idle(slot)
        return hit

    def _common(self, one: _Context, other: _Context) -> int:
        """Tokens of the longest common prefix; answers are taken to differ."""
        if one is other:
            return one.tokens
        blocks = 0
        for mine, theirs in zip(one.path, other.path, strict=False):
            if mine != theirs:
                break
            blocks += 1
        return min(blocks * self.block_tokens, one.prompt_tokens, other.prompt_tokens)

    def _choose(self, asked: _Context) -> tuple[_Slot, bool]:
        """The slot, and whether most of what it holds would be lost."""
        best, best_common = None, self.rules.similarity * asked.prompt_tokens
        for slot in self.slots:
            common = self._common(slot.held, asked)
            if slot.held.tokens and common > best_common:
                best, best_common = slot, common
        if best is not None:
            return best, best_common < KEEP_RATIO * best.held.tokens
        oldest = min(slot.last_used for slot in self.slots)
        return [slot for slot in self.slots if slot.last_used == oldest][-1], True

    def _bytes(self, context: _Context) -> int:
        return context.tokens * (self.rules.kv_bytes_per_token + CELL_BYTES)

    def _save(self, held: _Context) -> None:
        """Copy a context to the tier, unless it is there; drop what it contains, and the oldest where room is short."""
        if not held.tokens or any(self._common(one, held) == held.tokens for one in self.kept):
            return
        limit = self.rules.cache_ram_bytes
        if self._bytes(held) > limit:
            return
        self.kept = [one for one in self.kept if self._common(one, held) < one.tokens]
        while self.kept and self._size() + self._bytes(held) > limit:
            self.kept.pop(0)
        self.kept.append(held)

    def _size(self) -> int:
        return sum(map(self._bytes, self.kept))

    def _move_back(self, held: _Context, asked: _Context) -> _Context:
        """What the slot holds next: the kept context that shares more, and loses less, than what it holds now."""
        common = self._common(held, asked)
        keeps, shares, best = common / held.tokens if held.tokens else -1.0, common, None
        for one in self.kept:
            common = self._common(one, asked)
            ratio = common / one.tokens
            if ratio >= MOVE_RATIO and ratio > keeps and common > shares:
                keeps, shares, best = ratio, common, one
        if best is None:
            return held
        self.kept.remove(best)
        return best

    def _trim(self) -> None:
        """The tier also counts tokens: as many as the context, or as fit in its bytes."""
        size, tokens = self._size(), sum(one.tokens for one in self.kept)
        per_token = max(1.0, size / max(1, tokens))
        most = max(self.rules.context_tokens, int(self.rules.cache_ram_bytes / per_token))
        while self.kept and sum(one.tokens for one in self.kept) > most:
            self.kept.pop(0)

    def _save_idle(self, busy: _Slot) -> None:
        """Idle slots are copied too when a request starts, and emptied where all slots share their cells."""
        if not (self.rules.save_idle and self.rules.cache_ram_bytes):
            return
        for slot in self.slots:
            if slot is not busy:
                self._save(slot.held)
                self._trim()
                if self.rules.unified:
                    slot.held = _EMPTY


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
