"""Exact LRU prefix-cache hits of a request log, at every capacity, from one pass over its blocks.

The pass works on runs, not blocks. A run is a maximal stretch of a request's path whose blocks were all last
touched by the same earlier request; most requests have one or two, however long they are. Within a run the LRU
stack ranks rise by one from block to block, so one Fenwick query a run gives them all, and the tree has a slot a
request, not a slot a block. docs/workload.md proves that this is exact and says what is assumed: a request looks up
its whole prefix before it inserts anything, and touches its blocks from the leaf to the root.

Blocks are dense ids from 0, each naming a whole prefix: one parent, one depth. logs.py checks that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan import paths
from kvplan.documents import Hits, Requests
from kvplan.kernels import announce, compiled, part
from kvplan.paths import climbed
from kvplan.progress import Progress, silent

Ints: TypeAlias = NDArray[np.int64]
Narrow: TypeAlias = NDArray[np.int32]
Whole: TypeAlias = NDArray[np.integer[Any]]
Floats: TypeAlias = NDArray[np.float64]
Int: TypeAlias = Any  # inside a compiled loop: an int64 to Numba, a plain integer to a reader


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Runs:
    """Every reuse in a log under an infinite cache: one entry a run, ordered by request, then depth.

    Entry i says that blocks `depth[i]` to `depth[i] + length[i] - 1` of the path of request `request[i]` were last
    touched by request `toucher[i]`, and that they stood at LRU stack ranks `rank[i]`, `rank[i] + 1`, … (1 is the
    most recent) when the request looked them up: a cache of C blocks holds a block if and only if its rank is at
    most C. Ranks rise with depth across a request's runs, touchers fall. All are int32 where they fit.
    """

    request: Whole
    toucher: Whole
    depth: Whole
    length: Whole
    rank: Whole

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


@part
def _added(newest: Narrow, r: Int, blocks: Int) -> None:
    """Add to the number of blocks that request r was the last to touch, in a Fenwick tree over requests."""
    k = r + 1
    while k < newest.size:
        newest[k] += blocks
        k += k & -k


@part
def _recorded(runs: Narrow, found: Int, r: Int, q: Int, begin: Int, end: Int, newest: Narrow, live: Int) -> Narrow:
    """Note that r takes the blocks at depths `begin` to `end` over from q; returns the table, or a wider one."""
    if found == runs.shape[1]:
        wider = np.empty((5, found + found // 2), np.int32)
        for field in range(5):
            for i in range(found):
                wider[field, i] = runs[field, i]
        runs = wider
    newer, k = live, q + 1
    while k > 0:
        newer -= newest[k]
        k &= k - 1
    runs[0, found], runs[1, found], runs[2, found], runs[3, found] = r, q, begin, end - begin
    runs[4, found] = newer + begin + 1  # the blocks above stood before these too, and have left the tree already
    _added(newest, q, begin - end)
    return runs


@compiled
def _find_runs(parent: Narrow, shared: Narrow, rows: Narrow, ends: Narrow) -> tuple[Narrow, Int]:
    # `rows` may be empty where `ends` is not: all requests.
    requests = shared.size
    # What has been touched of a stretch is a list of pieces from its beginning on, the newest first.
    head = np.full(requests, -1, np.int32)
    piece = np.empty((2 * requests + 1, 3), np.int32)  # the depth it ends at, who touched it last, the next one
    pieces, spare = np.int64(0), np.int64(-1)
    newest = np.zeros(requests + 1, np.int32)
    live = np.int64(0)  # the Fenwick tree's total
    runs = np.empty((5, max(16, 2 * requests)), np.int32)
    found = np.int64(0)
    up = np.empty(64, np.int32)
    for i in range(ends.size):
        r, n = np.int64(rows[i]) if rows.size else i, np.int64(ends[i])
        up, stretches = climbed(parent, shared, r, n, up)
        begin, depth, q = (
            np.int64(0),
            np.int64(0),
            np.int64(-1),
        )  # the run at hand: r's blocks between these depths, which q touched last
        for at in range(stretches - 1, -1, -1):
            leave = np.int64(shared[up[at - 1]]) if at else n
            here = np.int64(head[up[at]])
            while here >= 0 and depth < leave:
                if piece[here, 1] != q:
                    if q >= 0:
                        runs = _recorded(runs, found, r, q, begin, depth, newest, live)
                        found, live = found + 1, live - (depth - begin)
                    begin, q = depth, np.int64(piece[here, 1])
                depth = min(np.int64(piece[here, 0]), leave)
                if piece[here, 0] <= leave:
                    after = np.int64(piece[here, 2])
                    piece[here, 2], spare = spare, here
                    here = after
            if spare >= 0:
                new, spare = spare, np.int64(piece[spare, 2])
            else:
                new, pieces = pieces, pieces + 1
            piece[new, 0], piece[new, 1], piece[new, 2] = leave, r, here
            head[up[at]] = new
        if q >= 0:
            runs = _recorded(runs, found, r, q, begin, depth, newest, live)
            found, live = found + 1, live - (depth - begin)
        live += n
        _added(newest, r, n)
    return runs, found


@compiled
def _run_tokens(request: Whole, depth: Whole, length: Whole, covered: Ints, block_tokens: int, tokens: Whole) -> None:
    for i in range(request.size):
        first = depth[i] * block_tokens
        tokens[i] = min(first + length[i] * block_tokens, covered[request[i]]) - first


@compiled
def _hit_depths(request: Whole, depth: Whole, length: Whole, requests: int) -> Ints:
    depths = np.zeros(requests, np.int64)
    for i in range(request.size):
        depths[request[i]] = max(depths[request[i]], depth[i] + length[i])
    return depths


@part
def _place(ascending: Ints, low: Int, value: Int) -> Int:
    """The first place from `low` on where a value is not below the one given."""
    high = ascending.size
    while low < high:
        middle = (low + high) >> 1
        if ascending[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


@compiled
def _sweep(
    request: Whole,
    depth: Whole,
    length: Whole,
    rank: Whole,
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
            point = _place(capacities, point, np.int64(rank[i]))
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
                hit_class = _place(class_ends, np.int64(0), np.int64(hit))
                counts[point, hit_class] += 1
                tokens[point, hit_class] += hit
                squares[point, hit_class] += hit * hit
                if reach == length[i]:
                    break
                point += 1
            i += 1
    for point in range(1, points):
        blocks[point] += blocks[point - 1]
        for one in range(class_ends.size):
            counts[point, one] += counts[point - 1, one]
            tokens[point, one] += tokens[point - 1, one]
            squares[point, one] += squares[point - 1, one]
    return blocks, counts, tokens, squares


@compiled
def _working_set(
    time_s: Floats, request: Whole, toucher: Whole, tokens: Whole, covered: Ints, window_s: float, moments: Floats
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
def _hit_depths_within(parent: Narrow, shared: Narrow, counts: Narrow, group: Ints, order: Ints) -> Ints:
    # By stretch: down to which depth it has been seen, and by which group; groups come one after another.
    seen, by = np.zeros(shared.size, np.int32), np.full(shared.size, -1, np.int64)
    depths = np.zeros(order.size, np.int64)
    up = np.empty(64, np.int32)
    for turn in range(order.size):
        r = order[turn]
        up, stretches = climbed(parent, shared, r, np.int64(counts[r]), up)
        for at in range(stretches - 1, -1, -1):
            s = up[at]
            leave = shared[up[at - 1]] if at else counts[r]
            if by[s] >= 0 and group[order[by[s]]] == group[r]:
                depths[r] = min(seen[s], leave)
                seen[s] = max(seen[s], leave)
            else:
                seen[s] = leave
            by[s] = turn
    return depths


@compiled
def _stretches(parent: Narrow, shared: Narrow, first: Narrow, order: Narrow) -> tuple[Narrow, int]:
    """Stretches cut where references change; `order` is the requests by parent, then by the depth they share."""
    requests = shared.size
    times = np.zeros(requests, np.int32)  # who shares any block of a request's own shares the first
    for r in range(requests - 1, -1, -1):
        times[r] += 1
        if parent[r] >= 0:
            times[parent[r]] += times[r]
    found = np.empty((4, 2 * requests), np.int32)
    size, i = 0, 0
    while i < requests and parent[order[i]] < 0:
        i += 1
    for r in range(requests):
        begin, left = shared[r], times[r]
        end = begin + first[r + 1] - first[r]
        while begin < end:
            cut = end
            if i < requests and parent[order[i]] == r:
                cut = shared[order[i]]
            found[0, size], found[1, size], found[2, size], found[3, size] = r, begin, cut, left
            size += 1
            begin = cut
            while i < requests and parent[order[i]] == r and shared[order[i]] == cut:
                left -= times[order[i]]
                i += 1
    return found, size


def as_ints(values: NDArray[Any]) -> Ints:
    """The values as the kernels are compiled for: contiguous int64."""
    return np.ascontiguousarray(values, dtype=np.int64)


def block_ids(requests: Requests) -> NDArray[Any]:
    """The log's block ids one after another, for what is played block by block: 4 bytes a reference."""
    return np.ascontiguousarray(requests.blocks, np.int32 if requests.blocks.size < 2**31 else np.int64)


def covered_tokens(requests: Requests) -> Ints:
    """By request: input tokens that lie in its blocks, int64 (requests,). A tail without a block is left out."""
    covered = np.diff(as_ints(requests.offsets))
    covered *= requests.block_tokens
    return np.minimum(covered, requests.input_tokens, out=covered)


def unique_blocks(requests: Requests) -> int:
    """How many distinct blocks the log has; its dense ids end just below."""
    if requests.unique is not None:
        return requests.unique
    return int(paths.tree(requests).first[-1])


def find_runs(
    requests: Requests, progress: Progress = silent, *, rows: Ints | None = None, keep: Whole | None = None
) -> Runs:
    """Every reuse of the log as runs. O(stretches of paths) sequential steps plus O(runs x log requests).

    As if the log had only the requests `rows` (ascending), each with only its leading `keep` blocks (by request of the
    whole log); the runs name requests of the whole log.
    """
    announce(progress, _find_runs)
    progress("finding every reuse")
    tree = paths.tree(requests)
    ends = paths.counts(tree) if keep is None else keep.astype(np.int32, copy=False)
    chosen = np.zeros(0, np.int32) if rows is None else rows.astype(np.int32)
    table, found = _find_runs(tree.parent, tree.shared, chosen, ends if rows is None else ends[rows])
    request, toucher, depth, length, rank = table[:, :found]
    return Runs(request=request, toucher=toucher, depth=depth, length=length, rank=rank)


def run_tokens(runs: Runs, requests: Requests) -> Whole:
    """Tokens of each run (runs,): full blocks, and the remainder where a run ends in a partial last block.

    int32 where they fit.
    """
    covered = covered_tokens(requests)
    kind: Any = np.int32 if covered.max(initial=0) < 2**31 else np.int64
    tokens: Whole = np.empty(runs.request.size, kind)
    _run_tokens(runs.request, runs.depth, runs.length, covered, requests.block_tokens, tokens)
    return tokens


def hit_depths(runs: Runs, requests: Requests) -> Ints:
    """By request: leading blocks that an infinite cache holds, int64 (requests,)."""
    depths: Ints = _hit_depths(runs.request, runs.depth, runs.length, len(requests.input_tokens))
    return depths


def usable_depths(runs: Runs, requests: Requests) -> Ints:
    """The same under an engine's rule: full blocks only, and the last token of a prompt is always computed."""
    usable: Ints = requests.input_tokens - np.int64(1)
    np.maximum(usable, 0, out=usable)
    usable //= requests.block_tokens
    np.minimum(usable, hit_depths(runs, requests), out=usable)
    return usable


def hits_at_every_capacity(runs: Runs, requests: Requests) -> tuple[Ints, Ints]:
    """Blocks and tokens hit by an LRU cache of 0, 1, 2, … unique blocks, cold start: two int64 (unique + 1,)."""
    size = unique_blocks(requests) + 2
    starts = np.bincount(runs.rank, minlength=size) - np.bincount(runs.rank + runs.length, minlength=size)
    hit_blocks = np.cumsum(np.cumsum(starts))[:-1]
    missing = runs.length * np.int64(requests.block_tokens) - run_tokens(
        runs, requests
    )  # of a partial last block, at its rank
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


def working_set(
    runs: Runs, requests: Requests, windows_s: Sequence[float], moments: Floats
) -> tuple[list[int], list[Ints]]:
    """Distinct tokens referenced in the last seconds: the most after any arrival, and at each of `moments`, by window.

    `moments` ascend, on the clock of `requests.time_s`; an arrival exactly a window ago still counts.
    """
    tokens, covered = run_tokens(runs, requests), covered_tokens(requests)
    time_s = np.ascontiguousarray(requests.time_s, np.float64)
    found = [_working_set(time_s, runs.request, runs.toucher, tokens, covered, one, moments) for one in windows_s]
    return [int(peak) for peak, _ in found], [at for _, at in found]


def hit_depths_within(requests: Requests, group: Ints) -> Ints:
    """By request: leading blocks an infinite cache holds if nothing is shared between groups, int64 (requests,)."""
    order = np.argsort(group, kind="stable")
    tree = paths.tree(requests)
    depths: Ints = _hit_depths_within(tree.parent, tree.shared, paths.counts(tree), as_ints(group), order)
    return depths


def as_runs(table: Ints) -> Runs:
    """Runs from a table of their five fields, int64 (runs, 5)."""
    kind: Any = np.int32 if not table.size or table.max() < 2**31 else np.int64
    request, toucher, depth, length, rank = (table[:, column].astype(kind) for column in range(5))
    return Runs(request=request, toucher=toucher, depth=depth, length=length, rank=rank)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Stretches:
    """All distinct blocks of a log, each once, in the order in which they first appear, as stretches of paths.

    Stretch i is the blocks at depths `first[i]` to `end[i] - 1` of request `request[i]`, which brought them in, and
    `references[i]` requests have each of them. Along a path references never rise; a stretch ends where they fall.
    """

    request: Narrow
    first: Narrow
    end: Narrow
    references: Narrow


def references(requests: Requests) -> Stretches:
    """How many requests have each block."""
    tree = paths.tree(requests)
    order = np.lexsort((tree.shared, tree.parent)).astype(np.int32)
    table, found = _stretches(tree.parent, tree.shared, tree.first, order)
    request, first, end, times = table[:, :found]
    return Stretches(request=request, first=first, end=end, references=times)


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
    request = np.flatnonzero(depths).astype(np.int32)
    none = np.zeros(request.size, np.int32)
    # A rank so low that every capacity reaches the end of the run.
    low = none - np.int32(2**31 - 1)
    return Runs(request=request, toucher=none, depth=none, length=depths[request].astype(np.int32), rank=low)
