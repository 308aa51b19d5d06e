"""Replacement policies against caches that are really run, and the optimal one against every possible choice."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_reuse import leaf_lru, logs, make, paths_of

from kvplan import reuse
from kvplan.documents import Requests
from kvplan.errors import UsageError
from kvplan.logs import read
from kvplan.profiling import policies

Order = tuple[int, int]


def play(requests: Requests, policy: str, capacity: int) -> list[int]:
    return policies.hit_depths(requests, policy, capacity, reuse.find_runs(requests)).tolist()


class Tree:
    """What is cached, and who lies on whom."""

    def __init__(self) -> None:
        self.parent: dict[int, int | None] = {}

    def look_up(self, path: list[int]) -> int:
        hit = next((i for i, block in enumerate(path) if block not in self.parent), len(path))
        self.parent.update(zip(path, [None, *path], strict=False))
        return hit

    def leaves(self, spared: list[int]) -> list[int]:
        inner = set(self.parent.values())
        return [block for block in self.parent if block not in inner and block not in spared]


def ranked(requests: Requests, capacity: int, rank: Callable[[int, int, int, int], Order]) -> list[int]:
    """Evict the leaf of least rank; `rank` sees the request, the depth, and the uses and first use of a block."""
    tree, hits = Tree(), []
    uses: dict[int, int] = {}
    order: dict[int, Order] = {}
    entered: dict[int, int] = {}
    for now, path in enumerate(paths_of(requests)):
        hit = tree.look_up(path)
        hits.append(hit)
        for depth, block in enumerate(path):
            uses[block] = uses.get(block, 0) + 1
            if depth >= hit:
                entered[block] = now
            order[block] = rank(now, depth, uses[block], entered[block])
        while len(tree.parent) > capacity:
            others = tree.leaves(path)
            victim = min(others, key=order.__getitem__) if others else max(set(path) & set(tree.parent), key=path.index)
            del tree.parent[victim]
    return hits


FAR = 1 << 24


@settings(max_examples=40, deadline=None)
@given(logs(), st.integers(0, 12))
def test_fifo_and_lfu_evict_the_leaf_they_say(requests: Requests, capacity: int) -> None:
    def fifo(now: int, depth: int, uses: int, entered: int) -> Order:
        return entered * FAR - depth, 0

    def lfu(now: int, depth: int, uses: int, entered: int) -> Order:
        return uses, now * FAR - depth

    assert play(requests, "fifo", capacity) == ranked(requests, capacity, fifo)
    assert play(requests, "lfu", capacity) == ranked(requests, capacity, lfu)


@settings(max_examples=40, deadline=None)
@given(logs(), st.integers(0, 12))
def test_lru_played_block_by_block_is_the_curve(requests: Requests, capacity: int) -> None:
    longest = max(map(len, paths_of(requests)), default=0)
    if capacity >= longest:
        assert play(requests, "lru", capacity) == leaf_lru(requests, capacity)


@settings(max_examples=40, deadline=None)
@given(logs(), st.integers(0, 12))
def test_arc_adapts_between_two_queues_of_leaves(requests: Requests, capacity: int) -> None:
    tree, hits = Tree(), []
    queue: dict[int, int] = {}
    at: dict[int, Order] = {}
    ghosts: dict[int, list[int]] = {1: [], 2: []}
    target = 0.0
    for now, path in enumerate(paths_of(requests)):
        hit = tree.look_up(path)
        hits.append(hit)
        for depth, block in enumerate(path):
            at[block] = now, -depth
            if depth < hit or block in ghosts[2] or block in ghosts[1]:
                queue[block] = 2
            else:
                queue[block] = 1
            if block in ghosts[1]:
                target = min(capacity, target + max(1, len(ghosts[2]) / len(ghosts[1])))
                ghosts[1].remove(block)
            elif block in ghosts[2]:
                target = max(0, target - max(1, len(ghosts[1]) / len(ghosts[2])))
                ghosts[2].remove(block)
        while len(tree.parent) > capacity:
            leaves = tree.leaves(path)
            once = sum(queue[block] == 1 for block in tree.parent)
            wanted = (1, 2) if once > target else (2, 1)
            choice = next((part for which in wanted if (part := [b for b in leaves if queue[b] == which])), [])
            victim = min(choice, key=at.__getitem__) if choice else max(set(path) & set(tree.parent), key=path.index)
            ghosts[queue[victim]].append(victim)
            del tree.parent[victim]
        while ghosts[1] and sum(queue[b] == 1 for b in tree.parent) + len(ghosts[1]) > capacity:
            ghosts[1].pop(0)
        while ghosts[2] and len(tree.parent) + len(ghosts[1]) + len(ghosts[2]) > 2 * capacity:
            ghosts[2].pop(0)
    assert play(requests, "arc", capacity) == hits


@settings(max_examples=40, deadline=None)
@given(logs(), st.integers(0, 30))
def test_s3_fifo_keeps_in_its_main_queue_what_was_used_twice_in_the_small_one(requests: Requests, size: int) -> None:
    tree, hits = Tree(), []
    small: list[int] = []
    main: list[int] = []
    ghosts: list[int] = []
    uses: dict[int, int] = {}
    share = max(1, size // 10)
    for path in paths_of(requests):
        hit = tree.look_up(path)
        hits.append(hit)
        for block in path[:hit]:
            uses[block] = min(3, uses[block] + 1)
        for block in reversed(path[hit:]):
            uses[block] = 0
            (main if block in ghosts else small).append(block)
            if block in ghosts:
                ghosts.remove(block)
        while len(tree.parent) > size:
            leaves = tree.leaves(path)
            queues = (small, main, small) if len(small) >= share else (main, small)
            victim = next((block for queue in queues for block in queue if block in leaves), None)
            if victim is None:
                victim = max(set(path) & set(tree.parent), key=path.index)
                uses[victim] = 0
            if victim in small and uses[victim] > 1:
                small.remove(victim)
                main.append(victim)
                uses[victim] = 0
            elif victim in main and uses[victim] > 0:
                main.remove(victim)
                main.append(victim)
                uses[victim] -= 1
            else:
                if victim in small:
                    ghosts.append(victim)
                (small if victim in small else main).remove(victim)
                del tree.parent[victim]
        while len(ghosts) > max(size - share, 0):
            ghosts.pop(0)
    assert play(requests, "s3-fifo", size) == hits


@st.composite
def small_logs(draw: st.DrawFn) -> Requests:
    numbers: dict[tuple[int, ...], int] = {}
    paths = []
    for _ in range(draw(st.integers(1, 8))):
        content = draw(st.lists(st.integers(0, 1), max_size=3))
        paths.append([numbers.setdefault(tuple(content[: i + 1]), len(numbers)) for i in range(len(content))])
    return make(paths, [4 * len(path) for path in paths])


@settings(max_examples=40, deadline=None)
@given(small_logs(), st.integers(0, 5))
def test_nothing_beats_the_optimal_policy(requests: Requests, capacity: int) -> None:
    """Every subset that could be kept after every request is tried."""
    paths = paths_of(requests)

    @cache
    def best(now: int, held: frozenset[int]) -> int:
        if now == len(paths):
            return 0
        path = paths[now]
        hit = next((i for i, block in enumerate(path) if block not in held), len(path))
        offered = sorted(held | set(path))
        keep = [frozenset(b for k, b in enumerate(offered) if bits >> k & 1) for bits in range(1 << len(offered))]
        return hit + max(best(now + 1, one) for one in keep if len(one) <= capacity)

    if reuse.unique_blocks(requests) <= 7:
        assert sum(play(requests, "optimal", capacity)) == best(0, frozenset())


@settings(max_examples=40, deadline=None)
@given(logs(), st.integers(0, 20))
def test_the_optimal_policy_hits_as_much_as_any_other(requests: Requests, capacity: int) -> None:
    most = sum(play(requests, "optimal", capacity))
    assert all(sum(play(requests, policy, capacity)) <= most for policy in policies.POLICIES)
    unlimited = reuse.unique_blocks(requests)
    ceiling = reuse.hit_depths(reuse.find_runs(requests), requests).tolist()
    assert all(play(requests, policy, unlimited) == ceiling for policy in policies.POLICIES)


def test_published_ratios_of_a_real_trace(shared: Path) -> None:
    """Block hits of the Mooncake conversation trace at infinite, 100 k, 50 k, 30 k, 10 k and 1 k blocks."""
    requests = read([shared / "traces/mooncake-conversation.jsonl.gz"])
    capacities = (200_000, 100_000, 50_000, 30_000, 10_000, 1000)
    named = ("lru", "fifo", "lfu", "optimal")
    curves = policies.curves(reuse.find_runs(requests), requests, named, capacities)
    assert {one.policy: [round(point.hit_blocks / 288_500, 4) for point in one.points] for one in curves} == {
        "lru": [0.3664, 0.3637, 0.3546, 0.3257, 0.2116, 0.0445],
        "fifo": [0.3664, 0.3637, 0.3544, 0.3258, 0.2109, 0.0445],
        "lfu": [0.3664, 0.3631, 0.3430, 0.2799, 0.1873, 0.0774],
        "optimal": [0.3664, 0.3664, 0.3664, 0.3664, 0.3664, 0.1907],
    }


def test_an_unknown_policy_is_refused() -> None:
    requests = make([[0]], [4])
    with pytest.raises(UsageError, match=r"clock: unknown \(known: lru, fifo, lfu, optimal, arc, s3-fifo\)"):
        policies.curves(reuse.find_runs(requests), requests, ["clock"], [1])


def test_no_request_hits_without_blocks() -> None:
    requests = make([[], []], [3, 0])
    assert all(np.array_equal(play(requests, policy, 4), [0, 0]) for policy in policies.POLICIES)
