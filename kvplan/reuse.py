"""Exact LRU prefix-cache hits of a request log, at every capacity, from one pass over its blocks.

The pass works on runs, not blocks. A run is a maximal stretch of a request's path whose blocks were all last
touched by the same earlier request; most requests have one or two, however long they are. Within a run the LRU
stack ranks rise by one from block to block, so one Fenwick query a run gives them all, and the tree has a slot a
request, not a slot a block. docs/workload.md proves that this is exact and says what is assumed: a request looks up
its whole prefix before it inserts anything, and touches its blocks from the leaf to the root.

Blocks are dense ids from 0, each naming a whole prefix: one parent, one depth. logs.py checks that.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan.documents import Hits, Requests
from kvplan.kernels import announce, compiled
from kvplan.progress import Progress, silent

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Runs:
    """Every reuse in a log under an infinite cache: one entry a run, ordered by request, then depth.

    Entry i says that blocks `depth[i]` to `depth[i] + length[i] - 1` of the path of request `request[i]` were last
    touched by request `toucher[i]`, and that they stood at LRU stack ranks `rank[i]`, `rank[i] + 1`, … (1 is the
    most recent) when the request looked them up: a cache of C blocks holds a block if and only if its rank is at
    most C. Ranks rise with depth across a request's runs, touchers fall.
    """

    request: Ints
    toucher: Ints
    depth: Ints
    length: Ints
    rank: Ints

    def where(self, keep: NDArray[np.bool_]) -> Runs:
        """The runs for which `keep` is true. Kept runs of a request must be its shallowest ones."""
        return Runs(
            request=self.request[keep],
            toucher=self.toucher[keep],
            depth=self.depth[keep],
            length=self.length[keep],
            rank=self.rank[keep],
        )


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Sweep:
    """Hits at each capacity of a grid, per class of hit prefix length.

    `hit_blocks` has shape (capacities,). The others have shape (capacities, classes): requests whose hit prefix falls
    in the class, the tokens they hit, and the sum of the squares of those tokens.
    """

    hit_blocks: Ints
    requests: Ints
    tokens: Ints
    tokens_sq: Ints


@compiled
def _find_runs(blocks: NDArray[Any], starts: Ints, ends: Ints, unique: int) -> tuple[Ints, int]:
    requests = starts.size
    last = np.full(unique, -1, np.int32)  # by block: the request that touched it last
    newest = np.zeros(requests + 1, np.int64)  # Fenwick tree over requests: blocks each was the last to touch
    live = 0  # the tree's total
    runs = np.empty((max(16, 2 * requests), 5), np.int64)
    found = 0
    for r in range(requests):
        start = starts[r]
        n = ends[r] - start
        depth = 0
        while depth < n:
            q = last[blocks[start + depth]]
            if q < 0:
                break
            base = starts[q]
            limit = min(n, ends[q] - base)
            end = depth + 1
            while end < limit and blocks[start + end] == blocks[base + end]:
                end += 1
            newer = live
            k = q + 1
            while k > 0:
                newer -= newest[k]
                k &= k - 1
            if found == runs.shape[0]:
                grown = np.empty((2 * found, 5), np.int64)
                grown[:found] = runs
                runs = grown
            row = runs[found]
            # The `depth` shallower blocks of this path stood before this run too, and have left the tree already.
            row[0], row[1], row[2], row[3], row[4] = r, q, depth, end - depth, newer + depth + 1
            found += 1
            live -= end - depth
            k = q + 1
            while k <= requests:
                newest[k] -= end - depth
                k += k & -k
            depth = end
        for position in range(start, start + n):
            last[blocks[position]] = r
        live += n
        k = r + 1
        while k <= requests:
            newest[k] += n
            k += k & -k
    return runs, found


@compiled
def _sweep(
    request: Ints,
    depth: Ints,
    length: Ints,
    rank: Ints,
    covered: Ints,
    block_tokens: int,
    capacities: Ints,
    class_ends: Ints,
) -> tuple[Ints, Ints, Ints, Ints]:
    points = capacities.size
    blocks = np.zeros(points, np.int64)
    counts = np.zeros((points, class_ends.size), np.int64)
    tokens = np.zeros((points, class_ends.size), np.int64)
    squares = np.zeros((points, class_ends.size), np.int64)
    i = 0
    while i < request.size:
        r = request[i]
        point, hit, hit_blocks, hit_class = 0, 0, 0, -1
        while i < request.size and request[i] == r:
            point += np.searchsorted(capacities[point:], rank[i])
            # Each pass records that from `point` on the request hits more; the sums along the grid come last.
            while point < points:
                reach = min(capacities[point] - rank[i] + 1, length[i])
                if hit_class >= 0:
                    counts[point, hit_class] -= 1
                    tokens[point, hit_class] -= hit
                    squares[point, hit_class] -= hit * hit
                blocks[point] += depth[i] + reach - hit_blocks
                hit_blocks = depth[i] + reach
                hit = min(hit_blocks * block_tokens, covered[r])
                hit_class = np.searchsorted(class_ends, hit)
                counts[point, hit_class] += 1
                tokens[point, hit_class] += hit
                squares[point, hit_class] += hit * hit
                if reach == length[i]:
                    break
                point += 1
            i += 1
    for point in range(1, points):
        blocks[point] += blocks[point - 1]
        counts[point] += counts[point - 1]
        tokens[point] += tokens[point - 1]
        squares[point] += squares[point - 1]
    return blocks, counts, tokens, squares


@compiled
def _working_set(
    time_s: Floats, request: Ints, toucher: Ints, tokens: Ints, covered: Ints, window_s: float, moments: Floats
) -> tuple[int, Ints]:
    held = np.zeros(time_s.size, np.int64)  # by request: tokens it was the last to touch
    at = np.zeros(moments.size, np.int64)
    oldest, inside, peak, i, m = 0, 0, 0, 0, 0
    for r in range(time_s.size + 1):
        until = time_s[r] if r < time_s.size else np.inf
        while m < moments.size and moments[m] < until:
            while oldest < r and time_s[oldest] < moments[m] - window_s:
                inside -= held[oldest]
                oldest += 1
            at[m] = inside
            m += 1
        if r == time_s.size:
            break
        while oldest < r and time_s[oldest] < until - window_s:
            inside -= held[oldest]
            oldest += 1
        while i < request.size and request[i] == r:
            held[toucher[i]] -= tokens[i]
            if toucher[i] >= oldest:
                inside -= tokens[i]
            i += 1
        held[r] = covered[r]
        inside += covered[r]
        peak = max(peak, inside)
    return peak, at


@compiled
def _hit_depths_within(blocks: NDArray[Any], offsets: Ints, group: Ints, order: Ints, unique: int) -> Ints:
    seen = np.full(unique, -1, np.int64)  # by block: the group that touched it last; groups come one after another
    depths = np.zeros(order.size, np.int64)
    for r in order:
        fresh = offsets[r]
        while fresh < offsets[r + 1] and seen[blocks[fresh]] == group[r]:
            fresh += 1
        depths[r] = fresh - offsets[r]
        for position in range(fresh, offsets[r + 1]):
            seen[blocks[position]] = group[r]
    return depths


@compiled
def _references(blocks: NDArray[Any], unique: int) -> Ints:
    count = np.zeros(unique, np.int64)  # NumPy's bincount would first copy the ids as int64
    for block in blocks:
        count[block] += 1
    return count


def as_ints(values: NDArray[Any]) -> Ints:
    """The values as the kernels are compiled for: contiguous int64."""
    return np.ascontiguousarray(values, dtype=np.int64)


def block_ids(requests: Requests) -> NDArray[Any]:
    """The log's block ids in the narrowest type the kernels are compiled for."""
    return np.ascontiguousarray(requests.blocks, np.int32 if requests.blocks.size < 2**31 else np.int64)


def covered_tokens(requests: Requests) -> Ints:
    """By request: input tokens that lie in its blocks, int64 (requests,). A tail without a block is left out."""
    counts = np.diff(as_ints(requests.offsets))
    covered: Ints = np.minimum(as_ints(requests.input_tokens), counts * requests.block_tokens)
    return covered


def unique_blocks(requests: Requests) -> int:
    """How many distinct blocks the log has; its dense ids end just below."""
    if requests.unique is not None:
        return requests.unique
    return int(requests.blocks.max()) + 1 if requests.blocks.size else 0


def find_runs(
    requests: Requests, progress: Progress = silent, *, rows: Ints | None = None, keep: Ints | None = None
) -> Runs:
    """Every reuse of the log as runs. O(block references) sequential steps plus O(runs x log requests).

    As if the log had only the requests `rows` (ascending), each with only its leading `keep` blocks (by request of the
    whole log); the runs name requests of the whole log.
    """
    announce(progress, _find_runs)
    progress("finding every reuse")
    offsets = as_ints(requests.offsets)
    starts = offsets[:-1]
    ends = offsets[1:] if keep is None else starts + keep
    if rows is not None:
        starts, ends = starts[rows], ends[rows]
    table, found = _find_runs(block_ids(requests), starts, ends, unique_blocks(requests))
    runs = as_runs(table[:found])
    return runs if rows is None else replace(runs, request=rows[runs.request], toucher=rows[runs.toucher])


def run_tokens(runs: Runs, requests: Requests) -> Ints:
    """Tokens of each run, int64 (runs,): full blocks, and the remainder where a run ends in a partial last block."""
    covered = covered_tokens(requests)[runs.request]
    first = runs.depth * requests.block_tokens
    tokens: Ints = np.minimum(first + runs.length * requests.block_tokens, covered) - first
    return tokens


def hit_depths(runs: Runs, requests: Requests) -> Ints:
    """By request: leading blocks that an infinite cache holds, int64 (requests,)."""
    depths = np.zeros(len(requests.input_tokens), np.int64)
    np.maximum.at(depths, runs.request, runs.depth + runs.length)
    return depths


def hits_at_every_capacity(runs: Runs, requests: Requests) -> tuple[Ints, Ints]:
    """Blocks and tokens hit by an LRU cache of 0, 1, 2, … unique blocks, cold start: two int64 (unique + 1,)."""
    size = unique_blocks(requests) + 2
    starts = np.bincount(runs.rank, minlength=size) - np.bincount(runs.rank + runs.length, minlength=size)
    hit_blocks = np.cumsum(np.cumsum(starts))[:-1]
    missing = runs.length * requests.block_tokens - run_tokens(runs, requests)  # of a partial last block, at its rank
    partial = missing > 0
    lost = np.zeros(size, np.int64)
    np.add.at(lost, (runs.rank + runs.length - 1)[partial], missing[partial])
    return hit_blocks, hit_blocks * requests.block_tokens - np.cumsum(lost)[:-1]


def sweep(runs: Runs, requests: Requests, capacities: Ints, class_ends: Ints) -> Sweep:
    """Hits at each of `capacities` (blocks, ascending), split by hit prefix length in tokens.

    Class k holds hit prefixes longer than `class_ends[k - 1]` tokens and at most `class_ends[k]`; the last end must not
    be below the longest request. A request is visited only at the grid points where its hit prefix grows.
    """
    hit_blocks, counts, tokens, squares = _sweep(
        runs.request,
        runs.depth,
        runs.length,
        runs.rank,
        covered_tokens(requests),
        requests.block_tokens,
        as_ints(capacities),
        as_ints(class_ends),
    )
    return Sweep(hit_blocks=hit_blocks, requests=counts, tokens=tokens, tokens_sq=squares)


def working_set(runs: Runs, requests: Requests, window_s: float, moments: Floats) -> tuple[int, Ints]:
    """Distinct tokens referenced in the last `window_s` seconds: the most after any arrival, and at each of `moments`.

    `moments` ascend, on the clock of `requests.time_s`; an arrival exactly `window_s` ago still counts.
    """
    tokens, covered = run_tokens(runs, requests), covered_tokens(requests)
    peak, at = _working_set(
        np.ascontiguousarray(requests.time_s, np.float64),
        runs.request,
        runs.toucher,
        tokens,
        covered,
        window_s,
        moments,
    )
    return int(peak), at


def hit_depths_within(requests: Requests, group: Ints) -> Ints:
    """By request: leading blocks an infinite cache holds if nothing is shared between groups, int64 (requests,)."""
    order = np.argsort(group, kind="stable")
    depths: Ints = _hit_depths_within(
        block_ids(requests), as_ints(requests.offsets), as_ints(group), order, unique_blocks(requests)
    )
    return depths


def as_runs(table: Ints) -> Runs:
    """Runs from a table of their five fields, int64 (runs, 5)."""
    request, toucher, depth, length, rank = (as_ints(table[:, column]) for column in range(5))
    return Runs(request=request, toucher=toucher, depth=depth, length=length, rank=rank)


def references(requests: Requests) -> Ints:
    """How many requests have each block, int64 (unique,). Along a path the counts never rise."""
    return _references(block_ids(requests), unique_blocks(requests))


def hits(requests: Requests, depths: Ints, capacity: int) -> Hits:
    """What hitting the leading `depths` blocks of each request amounts to."""
    tokens = np.minimum(depths * requests.block_tokens, covered_tokens(requests))
    hit, whole = int(tokens.sum()), int(requests.input_tokens.sum())
    return Hits(
        capacity_blocks=capacity,
        hit_requests=int((depths > 0).sum()),
        hit_blocks=int(depths.sum()),
        hit_tokens=hit,
        hit_ratio=hit / whole if whole else 0.0,
    )


def as_hits(depths: Ints) -> Runs:
    """Runs that stand for hits of `depths` leading blocks at any capacity, so that a sweep measures them."""
    request = np.flatnonzero(depths)
    none = np.zeros(request.size, np.int64)
    # A rank so low that every capacity reaches the end of the run.
    return Runs(request=request, toucher=none, depth=none, length=depths[request], rank=-(1 << 40) + none)
