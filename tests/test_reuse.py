"""The kernel against brute force: caches that are really filled, searched and evicted, one block at a time."""

from __future__ import annotations

import heapq
from collections import OrderedDict
from itertools import pairwise
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import replace

from kvplan import kernels, reuse
from kvplan.documents import Requests

B = 4  # block tokens in the random logs


def make(paths: list[list[int]], inputs: list[int], *, tenants: list[int] | None = None, times: Any = None) -> Requests:
    """A log from paths of dense prefix ids."""
    return Requests(
        block_tokens=B,
        time_s=np.array(times if times is not None else range(len(paths)), np.float64),
        input_tokens=np.array(inputs, np.int64),
        output_tokens=np.zeros(len(paths), np.int64),
        duration_s=np.full(len(paths), np.nan),
        offsets=np.cumsum([0, *map(len, paths)]),
        paths=np.array([block for path in paths for block in path], np.int32),
        tenant=np.array(tenants or [-1] * len(paths), np.int64),
        session=np.full(len(paths), -1),
        tenants=tuple(f"t{i}" for i in range(max(tenants, default=-1) + 1)) if tenants else (),
        sources=(),
    )


@st.composite
def logs(draw: st.DrawFn) -> Requests:
    """Random trees: several tenants with some shared roots, paths that branch, partial last blocks, tails, ties."""
    numbers: dict[tuple[Any, ...], int] = {}
    floor = draw(st.booleans())  # full blocks only: the tail has no block
    paths, inputs, tenants, times = [], [], [], []
    now = 0.0
    for _ in range(draw(st.integers(1, 25))):
        tenant = draw(st.integers(0, 2))
        root = draw(st.sampled_from([-1, tenant]))  # -1: a root all tenants share
        content = [root, *draw(st.lists(st.integers(0, 1), max_size=6))] if draw(st.integers(0, 9)) else []
        keys = [tuple(content[: i + 1]) for i in range(len(content))]
        tail = draw(st.integers(0, B - 1))
        if tail and not floor:
            keys.append((*content, "tail", tail))
        paths.append([numbers.setdefault(key, len(numbers)) for key in keys])
        inputs.append(len(content) * B + tail)
        tenants.append(tenant)
        now += draw(st.sampled_from([0, 0, 1, 2, 7]))
        times.append(now)
    return make(paths, inputs, tenants=tenants, times=times)


def paths_of(requests: Requests) -> list[list[int]]:
    ends = requests.offsets.tolist()
    return [requests.blocks[a:b].tolist() for a, b in pairwise(ends)]


def lru(requests: Requests, capacity: int, ttl: float = float("inf")) -> list[int]:
    """Blocks hit by each request in an LRU prefix cache: look up all, touch from leaf to root, then evict."""
    cache: OrderedDict[int, float] = OrderedDict()
    parents: dict[int, int | None] = {}
    hits = []
    for path, now in zip(paths_of(requests), requests.time_s.tolist(), strict=True):
        for block in [block for block, used in cache.items() if now - used > ttl]:
            del cache[block]
        hit = 0
        while hit < len(path) and path[hit] in cache:
            hit += 1
        hits.append(hit)
        parents.update(zip(path, [None, *path], strict=False))
        for block in reversed(path):
            cache[block] = now
            cache.move_to_end(block)
        while len(cache) > capacity:
            cache.popitem(last=False)
        assert all(parents[block] is None or parents[block] in cache for block in cache), "an orphan in the cache"
    return hits


def leaf_lru(requests: Requests, capacity: int) -> list[int]:
    """The same by other means, as radix caches do: evict the least recently used leaf of a trie, the deeper first."""
    used: dict[int, int] = {}
    depth: dict[int, int] = {}
    parent: dict[int, int | None] = {}
    hits = []
    for now, path in enumerate(paths_of(requests)):
        hit = next((i for i, block in enumerate(path) if block not in used), len(path))
        hits.append(hit)
        for i, block in enumerate(path):
            used[block], depth[block], parent[block] = now, i, path[i - 1] if i else None
        while len(used) > capacity:
            inner = {parent[block] for block in used}
            leaves = [(used[block], -depth[block], block) for block in used if block not in inner]
            heapq.heapify(leaves)
            del used[heapq.heappop(leaves)[2]]
    return hits


def tokens_of(requests: Requests, hits: list[int]) -> list[int]:
    """Tokens in the leading `hits` blocks of each request."""
    return [min(hit * B, int(n)) for hit, n in zip(hits, requests.input_tokens, strict=True)]


@settings(max_examples=150, deadline=None)
@given(logs())
def test_the_curve_is_that_of_a_cache_really_run_at_every_capacity(requests: Requests) -> None:
    runs = reuse.find_runs(requests)
    blocks, tokens = reuse.hits_at_every_capacity(runs, requests)
    for capacity in range(reuse.unique_blocks(requests) + 1):
        hits = lru(requests, capacity)
        assert blocks[capacity] == sum(hits)
        assert tokens[capacity] == sum(tokens_of(requests, hits))


@settings(max_examples=40, deadline=None)
@given(logs())
def test_evicting_leaves_first_is_the_same_cache(requests: Requests) -> None:
    blocks, _ = reuse.hits_at_every_capacity(reuse.find_runs(requests), requests)
    assert blocks.tolist() == [sum(leaf_lru(requests, c)) for c in range(reuse.unique_blocks(requests) + 1)]


@settings(max_examples=100, deadline=None)
@given(logs(), st.lists(st.integers(0, 40), min_size=1, max_size=8, unique=True))
def test_a_sweep_splits_the_hits_of_every_request_by_prefix_length(requests: Requests, grid: list[int]) -> None:
    capacities, ends = np.array(sorted(grid)), np.array([2, 4, 8, 16, 32])
    swept = reuse.sweep(reuse.find_runs(requests), requests, capacities, ends)
    for i, capacity in enumerate(capacities.tolist()):
        hits = lru(requests, capacity)
        expected = np.zeros((3, ends.size), np.int64)
        for hit in tokens_of(requests, hits):
            if hit:
                expected[:, next(k for k, end in enumerate(ends) if hit <= end)] += (1, hit, hit * hit)
        assert swept.hit_blocks[i] == sum(hits)
        assert np.array_equal([swept.requests[i], swept.tokens[i], swept.tokens_sq[i]], expected)


@settings(max_examples=60, deadline=None)
@given(logs(), st.sampled_from([1, 2, 3, 7, 9]))
def test_runs_younger_than_a_ttl_give_the_cache_that_also_expires(requests: Requests, ttl: float) -> None:
    runs = reuse.find_runs(requests)
    alive = runs.where(requests.time_s[runs.request] - requests.time_s[runs.toucher] <= ttl)
    blocks, tokens = reuse.hits_at_every_capacity(alive, requests)
    for capacity in range(reuse.unique_blocks(requests) + 1):
        hits = lru(requests, capacity, ttl)
        assert (blocks[capacity], tokens[capacity]) == (sum(hits), sum(tokens_of(requests, hits)))


@settings(max_examples=60, deadline=None)
@given(logs(), st.sampled_from([0.5, 1, 3, 10]))
def test_the_working_set_is_what_the_window_touches(requests: Requests, window: float) -> None:
    def distinct(now: float, upto: int) -> int:
        sizes: dict[int, int] = {}
        for path, n, time in list(zip(paths_of(requests), requests.input_tokens, requests.time_s, strict=True))[:upto]:
            if time >= now - window:
                sizes.update((block, min(B, int(n) - B * i)) for i, block in enumerate(path))
        return sum(sizes.values())

    moments = np.arange(0, requests.time_s[-1] + 15, 0.75)
    (peak,), (at,) = reuse.working_set(reuse.find_runs(requests), requests, [window], moments)
    assert peak == max(distinct(time, i + 1) for i, time in enumerate(requests.time_s.tolist()))
    assert at.tolist() == [distinct(now, int((requests.time_s <= now).sum())) for now in moments.tolist()]


@settings(max_examples=60, deadline=None)
@given(logs())
def test_groups_that_share_nothing_are_logs_of_their_own(requests: Requests) -> None:
    depths = reuse.hit_depths_within(requests, np.asarray(requests.tenant))
    paths = paths_of(requests)
    for tenant in set(requests.tenant.tolist()):
        rows = np.flatnonzero(requests.tenant == tenant)
        alone = make([paths[row] for row in rows], requests.input_tokens[rows].tolist())
        assert depths[rows].tolist() == lru(alone, 10**6)


@settings(max_examples=60, deadline=None)
@given(logs())
def test_runs_partition_the_hits_from_the_newest_toucher_to_the_oldest(requests: Requests) -> None:
    runs = reuse.find_runs(requests)
    paths = paths_of(requests)
    for i in range(runs.request.size):
        r, q, first, length = (int(a[i]) for a in (runs.request, runs.toucher, runs.depth, runs.length))
        assert q < r
        assert paths[r][first : first + length] == paths[q][first : first + length]
        if i and runs.request[i - 1] == r:
            assert first == runs.depth[i - 1] + runs.length[i - 1]
            assert q < runs.toucher[i - 1]
            assert runs.rank[i] >= runs.rank[i - 1] + runs.length[i - 1]
        else:
            assert first == 0
    assert reuse.hit_depths(runs, requests).tolist() == lru(requests, 10**6)


def test_a_request_looks_up_before_it_inserts() -> None:
    """With room for its two blocks and no more, a repeated request hits both: it does not evict its own prefix."""
    requests = make([[0, 1], [0, 1], [2, 3, 4], [2, 3, 4]], [8, 8, 12, 12])
    blocks, tokens = reuse.hits_at_every_capacity(reuse.find_runs(requests), requests)
    assert blocks.tolist() == [0, 2, 4, 5, 5, 5]
    assert tokens.tolist() == [0, 8, 16, 20, 20, 20]


def test_an_empty_log_and_requests_without_blocks_hit_nothing() -> None:
    requests = make([[], []], [3, 0])
    runs = reuse.find_runs(requests)
    assert runs.request.size == 0
    assert [a.tolist() for a in reuse.hits_at_every_capacity(runs, requests)] == [[0], [0]]


def test_more_runs_than_expected_make_the_table_grow() -> None:
    """Request r repeats a path whose every block was last touched by another request: r runs in one request."""
    depth = 60
    paths = [list(range(n)) for n in range(depth, 0, -1)] + [list(range(depth))]
    requests = make(paths, [len(path) * B for path in paths])
    runs = reuse.find_runs(requests)
    assert (runs.request == depth).sum() == depth
    blocks, _ = reuse.hits_at_every_capacity(runs, requests)
    assert blocks.tolist() == [sum(lru(requests, c)) for c in range(depth + 1)]


def test_wide_ids_and_other_integer_types_are_taken() -> None:
    requests = make([[0, 1], [0, 1, 2]], [8, 9])
    wide = replace(requests, paths=requests.blocks.astype(np.int64), offsets=requests.offsets.astype(np.int32))
    assert reuse.hits_at_every_capacity(reuse.find_runs(wide), wide)[1].tolist() == [0, 4, 8, 8]


def test_where_nothing_can_be_cached_on_disk_the_kernel_still_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def njit(**options: Any) -> Any:
        if options.get("cache"):
            raise RuntimeError("cannot cache function: no locator available")
        return lambda function: function

    monkeypatch.setattr(kernels, "njit", njit)
    assert kernels.compiled(len) is len


def test_the_first_run_says_that_it_compiles(monkeypatch: pytest.MonkeyPatch) -> None:
    said: list[str] = []
    monkeypatch.setattr(kernels, "must_compile", lambda kernel: True)
    reuse.find_runs(make([[0]], [4]), lambda what, done=None: said.append(what))
    assert "compiling" in said[0]
