"""Other replacement policies than LRU, each played block by block at one capacity: FIFO, LFU, ARC, S3-FIFO, optimal.

All evict leaves only (a block whose children are gone), as prefix caches do, so that what is cached of a path is
always its beginning. A request first looks up its whole path, then makes room for the rest, and its own path is not
evicted for it; a path longer than the cache keeps its leading blocks. Only the optimal policy may let a request's
blocks go at once (bypass). docs/workload.md says what each policy does where leaves change it.
"""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan import reuse
from kvplan.documents import PolicyCurve, Requests
from kvplan.errors import UsageError
from kvplan.kernels import announce, compiled, part
from kvplan.progress import Progress, silent

Ints: TypeAlias = NDArray[np.int64]
Int: TypeAlias = Any  # inside a compiled loop: an int64 to Numba, a plain integer to a reader
Heap: TypeAlias = list[Any]  # of tuples that end in a block, the least first

_LRU, _FIFO, _LFU, _OPTIMAL = range(4)
_RANKED = {"lru": _LRU, "fifo": _FIFO, "lfu": _LFU, "optimal": _OPTIMAL}
_QUEUED = ("arc", "s3-fifo")
POLICIES = (*_RANKED, *_QUEUED)

_DEPTHS = 1 << 24  # no path is deeper: 16 M blocks
_NEVER = 1 << 40
_SMALL = 10  # S3-FIFO gives a tenth of the cache to its small queue

_Tree: TypeAlias = tuple[NDArray[np.bool_], NDArray[np.int32], NDArray[np.int32], NDArray[np.int32]]


@part
def _new_tree(unique: int) -> _Tree:
    """By block: is it cached, its parent (-1: none), its cached children, the request that touched it last."""
    return (
        np.zeros(unique, np.bool_),
        np.full(unique, -1, np.int32),
        np.zeros(unique, np.int32),
        np.full(unique, -1, np.int32),
    )


@part
def _look_up_and_insert(tree: _Tree, path: NDArray[Any], r: int) -> int:
    cached, parent, children, touched = tree
    hit = 0
    while hit < path.size and cached[path[hit]]:
        hit += 1
    for depth in range(path.size):
        block = path[depth]
        touched[block] = r
        if depth >= hit:
            cached[block] = True
            if depth:
                parent[block] = path[depth - 1]
                children[parent[block]] += 1
    return hit


@part
def _remove(tree: _Tree, block: Int) -> Int:
    """Take a leaf out; returns its parent if that is a leaf now, else -1."""
    cached, parent, children, _ = tree
    cached[block] = False
    above = parent[block]
    parent[block] = -1
    if above >= 0:
        children[above] -= 1
        if children[above] == 0:
            return above
    return -1


@part
def _ranked_victim(heap: Heap, tree: _Tree, first: Ints, second: Ints, spared: int) -> Int:
    """The leaf to evict, -1 if none: heap entries whose block has changed since are passed over."""
    cached, _, children, touched = tree
    while len(heap) > 0:
        a, b, block = heapq.heappop(heap)
        if cached[block] and children[block] == 0 and a == first[block] and b == second[block]:  # noqa: SIM102
            if touched[block] != spared:
                return block
    return -1


@compiled
def _play_ranked(
    blocks: NDArray[Any],
    offsets: Ints,
    unique: int,
    capacity: int,
    policy: int,
    later: tuple[Ints, reuse.Whole, reuse.Whole, reuse.Whole],
) -> Ints:
    """LRU, FIFO, LFU and optimal: of the leaves, the one with the least (first, second) goes."""
    later_start, later_depth, later_length, later_request = later
    hits = np.zeros(offsets.size - 1, np.int64)
    tree = _new_tree(unique)
    children, touched = tree[2], tree[3]
    first = np.zeros(unique, np.int64)
    second = np.zeros(unique, np.int64)
    heap: Heap = [(np.int64(0), np.int64(0), np.int64(-1))]
    heap.pop()
    size = 0
    for r in range(hits.size):
        path = blocks[offsets[r] : offsets[r + 1]]
        hit = _look_up_and_insert(tree, path, r)
        hits[r] = hit
        size += path.size - hit
        for depth in range(path.size):
            now = np.int64(r) * _DEPTHS + (_DEPTHS - 1 - depth)  # the leaf is touched first
            if policy == _LRU or (policy == _FIFO and depth >= hit):
                first[path[depth]] = now
            elif policy == _LFU:
                first[path[depth]] += 1
                second[path[depth]] = now
            elif policy == _OPTIMAL:
                first[path[depth]], second[path[depth]] = -_NEVER, -depth
        spared = r
        if policy == _OPTIMAL:
            spared = -2
            for i in range(later_start[r], later_start[r + 1]):
                for depth in range(later_depth[i], later_depth[i] + later_length[i]):
                    first[path[depth]] = -later_request[i]
            if path.size:
                heapq.heappush(heap, (first[path[-1]], second[path[-1]], np.int64(path[-1])))
        end = path.size  # of this path, what is still cached
        while size > capacity:
            victim = _ranked_victim(heap, tree, first, second, spared)
            if victim < 0:
                end -= 1
                victim = path[end]
            above = _remove(tree, victim)
            size -= 1
            if above >= 0 and touched[above] != spared:
                heapq.heappush(heap, (first[above], second[above], np.int64(above)))
        if policy != _OPTIMAL and end and children[path[end - 1]] == 0:
            heapq.heappush(heap, (first[path[end - 1]], second[path[end - 1]], np.int64(path[end - 1])))
    return hits


@part
def _queued_victim(heap: Heap, tree: _Tree, queue: NDArray[Any], which: int, at: Ints, r: int) -> Int:
    cached, _, children, touched = tree
    while len(heap) > 0:
        when, block = heapq.heappop(heap)
        if cached[block] and queue[block] == which and at[block] == when and children[block] == 0:  # noqa: SIM102
            if touched[block] != r:
                return block
    return -1


@part
def _either_victim(one: Heap, two: Heap, first: bool, tree: _Tree, queue: NDArray[Any], at: Ints, r: int) -> Int:
    """The leaf to evict from queue 1 if `first` holds, else from queue 2; from the other where that has none."""
    victim: Int = -1
    if first:
        victim = _queued_victim(one, tree, queue, 1, at, r)
    if victim < 0:
        victim = _queued_victim(two, tree, queue, 2, at, r)
    if victim < 0:
        victim = _queued_victim(one, tree, queue, 1, at, r)
    return victim


@part
def _trim(ghosts: Heap, head: int, ghost: NDArray[Any], which: int, stamp: Ints) -> int:
    """Forget the oldest ghost of a queue; returns the new head of its list."""
    while True:
        block = ghosts[head]
        head += 1
        if ghost[block] == which and stamp[block] == head - 1:
            ghost[block] = 0
            return head


@part
def _moved_target(target: float, ghost: Int, gone: Ints, capacity: int) -> Any:
    """ARC's size for queue 1 after a miss on a block that queue `ghost` (0: none) has dropped."""
    if ghost == 1:
        return min(float(capacity), target + max(1.0, gone[2] / gone[1]))
    if ghost == 2:
        return max(0.0, target - max(1.0, gone[1] / gone[2]))
    return target


@part
def _take_in_arc(
    path: NDArray[Any],
    hit: Int,
    r: int,
    kinds: tuple[Any, Any],
    counts: tuple[Ints, Ints, Ints],
    target: Any,
    room: int,
) -> Any:
    """Queue a request's blocks; returns the target, moved by every ghost among them."""
    queue, ghost = kinds
    at, held, gone = counts
    for depth in range(path.size):
        block = path[depth]
        at[block] = np.int64(r) * _DEPTHS + (_DEPTHS - 1 - depth)
        if depth < hit:
            held[queue[block]] -= 1
            queue[block] = 2
        else:
            target = _moved_target(target, ghost[block], gone, room)
            gone[ghost[block]] -= 1
            queue[block] = 2 if ghost[block] else 1
            ghost[block] = 0
        held[queue[block]] += 1
    return target


@compiled
def _play_arc(blocks: NDArray[Any], offsets: Ints, unique: int, capacity: int) -> Ints:
    """ARC: queue 1 holds blocks seen once, queue 2 blocks seen again; ghosts of either move the target between them."""
    hits = np.zeros(offsets.size - 1, np.int64)
    tree = _new_tree(unique)
    children, touched = tree[2], tree[3]
    queue = np.zeros(unique, np.int8)
    ghost = np.zeros(unique, np.int8)
    at, stamp = np.zeros(unique, np.int64), np.zeros(unique, np.int64)
    once: Heap = [(np.int64(0), np.int64(0))]
    again: Heap = [(np.int64(0), np.int64(0))]
    once.pop(), again.pop()
    ghosts1, ghosts2 = [np.int64(0)], [np.int64(0)]
    ghosts1.pop(), ghosts2.pop()
    head1, head2 = 0, 0
    held = np.zeros(3, np.int64)
    gone = np.zeros(3, np.int64)
    target = 0.0
    for r in range(hits.size):
        path = blocks[offsets[r] : offsets[r + 1]]
        hit = _look_up_and_insert(tree, path, r)
        hits[r] = hit
        target = _take_in_arc(path, hit, r, (queue, ghost), (at, held, gone), target, capacity)
        end = path.size
        while held[1] + held[2] > capacity:
            victim = _either_victim(once, again, held[1] > target, tree, queue, at, r)
            if victim < 0:
                end -= 1
                victim = path[end]
            held[queue[victim]] -= 1
            gone[queue[victim]] += 1
            ghost[victim] = queue[victim]
            if queue[victim] == 1:
                stamp[victim] = len(ghosts1)
                ghosts1.append(victim)
            else:
                stamp[victim] = len(ghosts2)
                ghosts2.append(victim)
            above = _remove(tree, victim)
            if above >= 0 and touched[above] != r:
                heapq.heappush(once if queue[above] == 1 else again, (at[above], np.int64(above)))
        while gone[1] > 0 and held[1] + gone[1] > capacity:
            head1 = _trim(ghosts1, head1, ghost, 1, stamp)
            gone[1] -= 1
        while gone[2] > 0 and held[1] + held[2] + gone[1] + gone[2] > 2 * capacity:
            head2 = _trim(ghosts2, head2, ghost, 2, stamp)
            gone[2] -= 1
        if end and children[path[end - 1]] == 0:
            leaf = np.int64(path[end - 1])
            heapq.heappush(once if queue[leaf] == 1 else again, (at[leaf], leaf))
    return hits


@part
def _take_in_s3(path: NDArray[Any], hit: Int, clock: Int, kinds: tuple[Any, Any, Any], at: Ints, held: Ints) -> Int:
    """Count the uses of a request's blocks and queue the new ones; returns how many ghosts were among them."""
    queue, uses, ghost = kinds
    known = 0
    for depth in range(path.size):
        block = path[depth]
        if depth < hit:
            uses[block] = min(3, uses[block] + 1)
            continue
        queue[block] = 2 if ghost[block] else 1
        known += ghost[block]
        ghost[block], uses[block] = 0, 0
        held[queue[block]] += 1
        at[block] = clock + path.size - depth  # deeper blocks first
    return known


@compiled
def _play_s3_fifo(blocks: NDArray[Any], offsets: Ints, unique: int, capacity: int) -> Ints:
    """S3-FIFO: new blocks pass through a small queue (1), and only those used twice there enter the main one (2)."""
    hits = np.zeros(offsets.size - 1, np.int64)
    tree = _new_tree(unique)
    children, touched = tree[2], tree[3]
    queue, uses, ghost = np.zeros(unique, np.int8), np.zeros(unique, np.int8), np.zeros(unique, np.int8)
    at, stamp = np.zeros(unique, np.int64), np.zeros(unique, np.int64)
    small: Heap = [(np.int64(0), np.int64(0))]
    main: Heap = [(np.int64(0), np.int64(0))]
    small.pop(), main.pop()
    ghosts = [np.int64(0)]
    ghosts.pop()
    head, remembered, clock = 0, 0, np.int64(0)
    held = np.zeros(3, np.int64)
    share = max(1, capacity // _SMALL)
    for r in range(hits.size):
        path = blocks[offsets[r] : offsets[r + 1]]
        hit = _look_up_and_insert(tree, path, r)
        hits[r] = hit
        remembered -= _take_in_s3(path, hit, clock, (queue, uses, ghost), at, held)
        clock += path.size + 1
        end = path.size
        while held[1] + held[2] > capacity:
            victim = _either_victim(small, main, held[1] >= share, tree, queue, at, r)
            if victim < 0:
                end -= 1
                victim = path[end]
                uses[victim] = 0
            passed = queue[victim] == 1
            if uses[victim] > (1 if passed else 0):
                held[queue[victim]] -= 1
                held[2] += 1
                uses[victim] = 0 if passed else uses[victim] - 1
                queue[victim] = 2
                clock += 1
                at[victim] = clock
                heapq.heappush(main, (at[victim], victim))
                continue
            held[queue[victim]] -= 1
            if passed:
                ghost[victim], stamp[victim] = 1, len(ghosts)
                ghosts.append(victim)
                remembered += 1
            above = _remove(tree, victim)
            if above >= 0 and touched[above] != r:
                heapq.heappush(small if queue[above] == 1 else main, (at[above], np.int64(above)))
        while remembered > max(0, capacity - share):
            head = _trim(ghosts, head, ghost, 1, stamp)
            remembered -= 1
        if end and children[path[end - 1]] == 0:
            leaf = np.int64(path[end - 1])
            heapq.heappush(small if queue[leaf] == 1 else main, (at[leaf], leaf))
    return hits


def hit_depths(requests: Requests, policy: str, capacity: int, runs: reuse.Runs) -> Ints:
    """Leading blocks each request hits under `policy` with `capacity` blocks, cold start: int64 (requests,).

    O(block references) steps, and O(log evictions) for each eviction.
    """
    blocks, offsets, unique = reuse.block_ids(requests), reuse.as_ints(requests.offsets), reuse.unique_blocks(requests)
    depths: Ints
    if policy == "arc":
        depths = _play_arc(blocks, offsets, unique, capacity)
    elif policy == "s3-fifo":
        depths = _play_s3_fifo(blocks, offsets, unique, capacity)
    else:
        depths = _play_ranked(blocks, offsets, unique, capacity, _RANKED[policy], _later(runs, offsets.size - 1))
    return depths


def _later(runs: reuse.Runs, requests: int) -> tuple[Ints, reuse.Whole, reuse.Whole, reuse.Whole]:
    """By request, which ranges of its path are used next by which request: starts (requests + 1,), and the runs."""
    order = np.lexsort((runs.depth, runs.toucher))
    starts = np.searchsorted(runs.toucher[order], np.arange(requests + 1))
    return reuse.as_ints(starts), runs.depth[order], runs.length[order], runs.request[order]


def curves(
    runs: reuse.Runs,
    requests: Requests,
    policies: Sequence[str],
    capacities: Sequence[int],
    progress: Progress = silent,
) -> tuple[PolicyCurve, ...]:
    """Hits under each of `policies` at each of `capacities` (blocks). Raises UsageError for an unknown policy."""
    if unknown := [policy for policy in policies if policy not in POLICIES]:
        raise UsageError(f"--policies {unknown[0]}: unknown (known: {', '.join(POLICIES)})")
    if policies:
        announce(progress, _play_ranked, _play_arc, _play_s3_fifo)
    curves = []
    for policy in policies:
        progress(f"playing {policy} at {len(capacities)} capacities")
        points = [reuse.hits(requests, hit_depths(requests, policy, one, runs), one) for one in capacities]
        curves.append(PolicyCurve(policy=policy, points=tuple(points)))
    return tuple(curves)
