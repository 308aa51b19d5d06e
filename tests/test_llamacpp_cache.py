"""llama.cpp's slots and host cache: cases by hand, and the rules once more on real tokens."""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import takewhile

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.engines.llamacpp_cache import CELL_BYTES, CacheRules, PromptCache, cached_tokens
from kvplan.logs import read

SIZE = 4
BYTES = 100 - CELL_BYTES  # so that a token takes 100 bytes of the host tier
PLENTY = 10**9


def rules(**more: object) -> CacheRules:
    return CacheRules(kv_bytes_per_token=BYTES, context_tokens=10**6, **more)  # type: ignore[arg-type]


def hits(asked: list[tuple[list[int], int]], **more: object) -> list[int]:
    """Cached tokens of prompts given as (blocks, tokens), answers of one token."""
    cache = PromptCache(rules(**more), SIZE)
    return [cache.serve(path, tokens, 1) for path, tokens in asked]


def test_without_the_tier_a_slot_remembers_only_its_last_prompt() -> None:
    a, b = [1, 2, 3], [7, 8, 9]
    assert hits([(a, 12), (a, 12), (b, 12), (a, 12)]) == [0, 11, 0, 0]  # the last token is always computed


def test_the_tier_brings_back_what_the_slot_lost() -> None:
    a, b = [1, 2, 3], [7, 8, 9]
    assert hits([(a, 12), (b, 12), (a, 12), (b, 12)], cache_ram_bytes=PLENTY) == [0, 0, 11, 11]


def test_a_partial_last_block_is_shared_as_far_as_the_earlier_prompt_went() -> None:
    assert hits([([1, 2], 6), ([1, 2, 3], 12)]) == [0, 6]


def test_a_prompt_that_keeps_half_of_the_slot_saves_nothing() -> None:
    long, half, less = [1, 2, 3, 4], [1, 2, 5, 6], [1, 7, 8, 9]
    assert hits([(long, 16), (half, 16), (long, 16)], cache_ram_bytes=PLENTY) == [0, 8, 8]
    assert hits([(long, 16), (less, 16), (long, 16)], cache_ram_bytes=PLENTY) == [0, 4, 15]


def test_the_tier_drops_the_context_saved_first() -> None:
    a, b, c = ([number, number + 1] for number in (1, 11, 21))
    asked = [(a, 8), (b, 8), (c, 8), (a, 8)]
    assert hits(asked, cache_ram_bytes=2400)[3] == 7
    assert hits(asked, cache_ram_bytes=2399)[3] == 0  # c is saved before a is looked for, and a leaves for it


def test_a_context_larger_than_the_tier_is_not_saved_and_drops_nobody() -> None:
    small, large, other = [1], [11, 12, 13, 14], [21]
    asked = [(small, 4), (large, 16), (other, 4), (small, 4), (large, 16)]
    assert hits(asked, cache_ram_bytes=1000) == [0, 0, 0, 3, 0]


def test_the_slot_that_shares_most_is_taken_else_the_one_unused_for_longest() -> None:
    a, b, c = ([number, number + 1] for number in (1, 11, 21))
    assert hits([(a, 8), (b, 8), (a, 8), (c, 8), (a, 8), (b, 8)], slots=2) == [0, 0, 7, 0, 7, 0]


def test_what_is_shared_must_exceed_the_similarity() -> None:
    a, b = [1, *range(10, 19)], [1, *range(20, 29)]  # a tenth in common
    assert hits([(a, 40), (b, 40)], slots=2, similarity=0.1) == [0, 0]
    assert hits([(a, 40), (b, 40)], slots=2, similarity=0.09) == [0, 4]


def test_a_log_is_played_in_its_order(tmp_path) -> None:  # type: ignore[no-untyped-def]
    log = tmp_path / "log.jsonl"
    rows = [(8, [0, 1]), (8, [2, 3]), (10, [0, 1, 4])]
    log.write_text(
        "".join(
            f'{{"timestamp": {place}, "input_length": {tokens}, "output_length": 3, "hash_ids": {ids}}}\n'
            for place, (tokens, ids) in enumerate(rows)
        )
    )
    requests = read([log], block_tokens=SIZE)
    assert cached_tokens(requests, rules(cache_ram_bytes=PLENTY)) == [0, 0, 8]
    assert cached_tokens(requests, rules()) == [0, 0, 0]


# ------------------------------------------------------------------------ the rules again, on tokens


@dataclass
class Tokens:
    """The server's code, followed line by line, with whole token lists."""

    limit: int
    slots: list[list[object]]
    used: list[int]
    kept: list[list[object]] = field(default_factory=list)
    unified: bool = False
    clock: int = 0

    @staticmethod
    def lcp(one: list[object], other: list[object]) -> int:
        return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(one, other, strict=False)))

    def save(self, tokens: list[object]) -> None:
        if not tokens or any(self.lcp(one, tokens) == len(tokens) for one in self.kept):
            return
        if 100 * len(tokens) > self.limit:
            return
        self.kept = [one for one in self.kept if self.lcp(one, tokens) != len(one)]
        while self.kept and 100 * (sum(map(len, self.kept)) + len(tokens)) > self.limit:
            del self.kept[0]
        self.kept.append(list(tokens))

    def load(self, place: int, prompt: list[object]) -> None:
        held = self.slots[place]
        common = self.lcp(held, prompt)
        keep = common / len(held) if held else -1.0
        similar, best = common / len(prompt), None
        for one in self.kept:
            common = self.lcp(one, prompt)
            if common / len(one) < 0.25:
                continue
            if keep < common / len(one) and similar < common / len(prompt):
                keep, similar, best = common / len(one), common / len(prompt), one
        if best is not None:
            self.slots[place] = best
            self.kept.remove(best)

    def serve(self, prompt: list[object], answer: list[object]) -> int:
        chosen, best, size = None, np.float32(0), np.float32(len(prompt))
        for place, held in enumerate(self.slots):
            similar = np.float32(self.lcp(held, prompt)) / size
            if held and similar > best and similar > np.float32(0.1):
                chosen, best = place, similar
        if chosen is not None:
            update = best * size / np.float32(len(self.slots[chosen])) < 0.5
        else:
            chosen = max(p for p in range(len(self.slots)) if self.used[p] == min(self.used))
            update = True
        if update and self.limit:
            self.save(self.slots[chosen])
            self.load(chosen, prompt)
        past = self.lcp(self.slots[chosen], prompt)
        past -= past == len(prompt)
        self.slots[chosen] = prompt + answer[:-1]
        self.clock += 1
        self.used[chosen] = self.clock
        for place in range(len(self.slots)):
            if place != chosen and self.limit:
                self.save(self.slots[place])
                if self.unified:
                    self.slots[place] = []
        return past


PATHS = st.lists(st.lists(st.integers(0, 2), min_size=1, max_size=5), min_size=1, max_size=12)


@settings(deadline=None)
@given(
    PATHS,
    st.integers(0, 3),
    st.integers(1, 4),
    st.sampled_from([0, 1000, 2500, PLENTY]),
    st.integers(1, 3),
    st.booleans(),
)
def test_as_the_server_does_on_tokens(
    paths: list[list[int]], short: int, answer: int, limit: int, slots: int, unified: bool
) -> None:
    names: dict[tuple[int, ...], int] = {}
    cache = PromptCache(rules(cache_ram_bytes=limit, slots=slots, unified=unified), SIZE)
    server = Tokens(limit, [[] for _ in range(slots)], [-1] * slots, unified=unified)
    for number, path in enumerate(paths):
        blocks = [names.setdefault(tuple(path[: depth + 1]), len(names)) for depth in range(len(path))]
        tokens: list[object] = [(block, place) for block in blocks for place in range(SIZE)]
        tokens = tokens[: len(tokens) - short]
        said: list[object] = [("answer", number, place) for place in range(answer)]
        assert cache.serve(blocks, len(tokens), answer) == server.serve(tokens, said)
