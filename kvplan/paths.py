"""The paths of a log as a tree: grown a few requests at a time, put in another order, and asked about single blocks.

Ids that name whole prefixes (one parent, one depth) leave a request no choice: its path is the beginning of an earlier
one and then blocks that nobody had. Numbered as they first appear, those are consecutive. So three numbers a request
say all that a list of ids says (documents.PathTree), and what was a walk over blocks is one over *stretches*: what
request s brought in, its blocks `first[s]` to `first[s + 1] - 1`, lies at depths from `shared[s]` on in every path
that has any of it, and such a path goes through the stretches of r, parent[r], parent[parent[r]], … from the leaf up.
"""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan.documents import PathTree, Requests
from kvplan.kernels import compiled, part

Ints: TypeAlias = NDArray[np.int64]
Narrow: TypeAlias = NDArray[np.int32]

_ROOM = 8  # arrays that grow do so by an eighth: they are moved by the page, and what they hold is not copied


@part
def stretch_of(first: Narrow, requests: int, block: Any) -> Any:
    """The request, of so many, that brought in a block."""
    low, high = np.int64(0), np.int64(requests)
    while low + 1 < high:
        middle = (low + high) // 2
        if first[middle] <= block:
            low = middle
        else:
            high = middle
    return low


@compiled
def _grow(
    ids: Narrow, counts: NDArray[Any], row: int, parent: Narrow, shared: Narrow, first: Narrow, after: Narrow
) -> int:
    """Add paths to a tree of `row` requests; returns how many could be added, as their ids name whole prefixes.

    `after` is a guess, 1 + the stretch that was entered last from each: a look-up of its place costs a cache miss.
    """
    start = 0
    for i in range(counts.size):
        r, n = row + i, counts[i]
        fresh = first[r]
        depth, s = 0, -1
        while depth < n and ids[start + depth] < fresh:
            here = ids[start + depth]
            entered = after[s + 1] - 1
            if entered < 0 or first[entered] != here:
                entered = stretch_of(first, r, np.int64(here))
                after[s + 1] = entered + 1
            if first[entered] != here or parent[entered] != s or shared[entered] != depth:
                return i
            s = entered
            end = min(n, depth + first[s + 1] - here)
            shift = here - depth
            depth += 1
            while depth < end and ids[start + depth] - depth == shift:
                depth += 1
        for k in range(depth, n):
            if ids[start + k] - k != fresh - depth:
                return i
        parent[r], shared[r], first[r + 1] = s, depth, fresh + n - depth
        start += n
    return counts.size


class Growing:
    """A tree that takes paths as they come. Their ids must be numbered from 0 as they first appear."""

    def __init__(self) -> None:
        self.rows = 0
        self._parent, self._shared, self._first, self._after = (np.zeros(size, np.int32) for size in (0, 0, 1, 1))

    def add(self, ids: Narrow, counts: NDArray[Any]) -> int:
        """Take the paths of `counts` blocks each; returns how many were taken: the next would not make a tree."""
        size = self.rows + counts.size
        if size >= self._parent.size:  # of two arrays one place more is used
            for array in (self._parent, self._shared, self._first, self._after):
                array.resize(size + size // _ROOM + 1, refcheck=False)
        taken = int(_grow(ids, counts, self.rows, self._parent, self._shared, self._first, self._after))
        self.rows += taken
        return taken

    def tree(self) -> PathTree:
        """All paths taken. Nothing can be added afterwards."""
        self._after = np.zeros(0, np.int32)
        for array, size in ((self._parent, self.rows), (self._shared, self.rows), (self._first, self.rows + 1)):
            array.resize(size, refcheck=False)
        return PathTree(parent=self._parent, shared=self._shared, first=self._first)


@compiled
def _numbered(ids: NDArray[Any], number: Narrow, out: Narrow) -> None:
    used = 0
    for i in range(ids.size):
        here = number[ids[i]]
        if here < 0:
            here = used
            number[ids[i]] = used
            used += 1
        out[i] = here


def from_ids(ids: NDArray[Any], offsets: Ints) -> PathTree:
    """The tree of paths given as dense ids that name whole prefixes. Raises ValueError where they do not."""
    numbered = np.empty(ids.size, np.int32)
    _numbered(np.ascontiguousarray(ids), np.full(int(ids.max(initial=-1)) + 1, -1, np.int32), numbered)
    growing = Growing()
    counts = np.diff(offsets)
    if growing.add(numbered, counts) < counts.size:
        raise ValueError(f"the block ids of request {growing.rows} do not name whole prefixes")
    return growing.tree()


def tree(requests: Requests) -> PathTree:
    """The paths of a log as a tree."""
    if isinstance(requests.paths, PathTree):
        return requests.paths
    return from_ids(requests.paths, np.asarray(requests.offsets, np.int64))


@part
def climbed(parent: Narrow, shared: Narrow, r: Any, blocks: Any, up: Narrow) -> tuple[Narrow, int]:
    """The stretches that the first `blocks` blocks of r's path go through, deepest first, in `up` or a larger array."""
    size, s = 0, r
    while s >= 0 and shared[s] >= blocks:  # brought in deeper ones, or none
        s = parent[s]
    while s >= 0:
        if size == up.size:
            grown = np.empty(2 * size, np.int32)
            for i in range(size):
                grown[i] = up[i]
            up = grown
        up[size] = s
        size += 1
        s = parent[s]
    return up, size


@compiled
def _rearranged(
    tree: tuple[Narrow, Narrow, Narrow], rows: Ints, begins: NDArray[np.bool_], by: Narrow
) -> tuple[Narrow, Narrow]:
    """Parents and shared depths of `rows` in that order, nothing shared over a place where `begins` is set.

    `by` is scratch, -1 a block: which of the rows has brought it in.
    """
    parent, shared, first = tree
    new_parent, new_shared = np.empty(rows.size, np.int32), np.empty(rows.size, np.int32)
    up = np.empty(64, np.int32)
    group = 0
    for k in range(rows.size):
        group = k if begins[k] else group
        r = rows[k]
        n = shared[r] + first[r + 1] - first[r]
        up, size = climbed(parent, shared, r, n, up)
        new_parent[k], new_shared[k] = -1, 0
        for at in range(size - 1, -1, -1):
            s = up[at]
            leave = shared[up[at - 1]] if at else n
            end = first[s] + leave - shared[s]
            low, high = np.int64(first[s]), np.int64(end)
            while low < high:
                middle = (low + high) // 2
                if by[middle] >= group:
                    low = middle + 1
                else:
                    high = middle
            if low > first[s]:
                new_parent[k], new_shared[k] = by[low - 1], shared[s] + low - first[s]
            by[low:end] = k
    return new_parent, new_shared


def rearranged(old: PathTree, rows: Ints, group: Ints | None = None) -> PathTree:
    """The tree of the paths `rows` of another one, in that order; with `group` sharing only within groups."""
    order = np.arange(rows.size) if group is None else np.argsort(group, kind="stable")
    begins = np.zeros(rows.size, np.bool_)
    if group is not None:
        begins[1:] = np.diff(group[order]) != 0
    by = np.full(int(old.first[-1]), -1, np.int32)
    found, depth = _rearranged((old.parent, old.shared, old.first), rows[order], begins, by)
    parent, shared = np.empty(rows.size, np.int32), np.empty(rows.size, np.int32)
    parent[order] = np.where(found >= 0, order[found], -1) if rows.size else found
    shared[order] = depth
    first = np.zeros(rows.size + 1, np.int32)
    np.cumsum(counts(old)[rows] - shared, out=first[1:])
    return PathTree(parent=parent, shared=shared, first=first)


def counts(tree: PathTree) -> Narrow:
    """How many blocks each path has, int32 (requests,)."""
    found: Narrow = tree.shared + np.diff(tree.first)
    return found


def above(tree: PathTree) -> Narrow:
    """The last block that each path shares with an earlier one, -1 for none: int32 (requests,)."""
    parent = tree.parent
    found: Narrow = tree.first[parent] + (tree.shared - tree.shared[parent]) - np.int32(1)
    found[parent < 0] = -1
    return found


def last(tree: PathTree) -> Narrow:
    """The last block of each path, -1 where it has none: int32 (requests,)."""
    found = above(tree)
    brings = np.diff(tree.first) > 0
    found[brings] = (tree.first[1:] - np.int32(1))[brings]
    return found


@compiled
def block_at(parent: Narrow, shared: Narrow, first: Narrow, r: int, depth: int) -> Any:
    """The block that lies at `depth`, from 0, in r's path."""
    s = r
    while shared[s] > depth:
        s = parent[s]
    return first[s] + depth - shared[s]
