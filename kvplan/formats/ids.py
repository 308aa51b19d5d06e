"""Block keys to dense prefix ids: numbered from 0, and proven to name whole prefixes (one parent, one depth)."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan.formats.rows import Keys

Ints: TypeAlias = NDArray[np.int64]
Ids: TypeAlias = NDArray[Any]  # int32 where the references are few enough, else int64

_CHUNK = 1 << 22
_ROOT, _UNSEEN = -1, -2


def dense(keys: Keys) -> tuple[Ids, int]:
    """Number the distinct keys from 0; returns the ids and how many there are.

    Small non-negative integers keep their order, which costs a table; other keys are numbered as they first appear, so
    that ids say nothing about the keys and neighbours in a path are neighbours in memory.
    """
    kind: Any = np.int32 if keys.size < 2**31 else np.int64
    if not keys.size:
        return np.zeros(0, kind), 0
    low, high = int(keys.min()), int(keys.max())
    if low >= 0 and high < 4 * keys.size + 1024:
        used = np.zeros(high + 1, np.bool_)
        used[keys] = True
        number = np.cumsum(used, dtype=kind) - kind(1)
        return number[keys], int(used.sum())
    _, first, inverse = np.unique(keys, return_index=True, return_inverse=True)
    order = np.empty(first.size, kind)
    order[np.argsort(first)] = np.arange(first.size, dtype=kind)
    return order[inverse], first.size


def _parents(ids: Ids, starts: NDArray[np.bool_], low: int, high: int) -> Ids:
    before = ids[max(low - 1, 0) : high - 1]
    before = np.concatenate((ids[:1], before)) if low == 0 else before
    return np.where(starts[low:high], ids.dtype.type(_ROOT), before)


def first_unchained(ids: Ids, offsets: Ints, unique: int) -> int | None:
    """The first block reference whose parent is not the one its id had before, None where ids name whole prefixes.

    One parent an id, and none for the first block of a path, gives every id one depth: by induction along the path.
    """
    starts = np.zeros(ids.size + 1, np.bool_)
    starts[offsets[:-1]] = True
    parent = np.full(unique, _UNSEEN, ids.dtype)
    for low in range(0, ids.size, _CHUNK):
        high = min(low + _CHUNK, ids.size)
        here, above = ids[low:high], _parents(ids, starts, low, high)
        fresh = parent[here] == _UNSEEN
        parent[here[fresh][::-1]] = above[fresh][::-1]  # of equal ids the last assignment stays: the first in the log
        broken = np.flatnonzero(parent[here] != above)
        if broken.size:
            return low + int(broken[0])
    return None


def chain(ids: Ids, offsets: Ints) -> tuple[Ids, int]:
    """Ids of whole prefixes from ids of block contents: equal where all blocks up to there are equal."""
    kind = ids.dtype.type
    counts = np.diff(offsets)
    chained = np.empty_like(ids)
    prefix = np.zeros(counts.size, np.int64)  # by request: number of the prefix above the depth at hand
    width = int(ids.max(initial=0)) + 1
    total = 0
    rows = np.flatnonzero(counts > 0)
    depth = 0
    while rows.size:
        at = offsets[rows] + depth
        _, inverse = np.unique(prefix[rows] * width + ids[at], return_inverse=True)
        chained[at] = (total + inverse).astype(kind)
        prefix[rows] = inverse
        total += int(inverse.max()) + 1
        depth += 1
        rows = rows[counts[rows] > depth]
    return chained, total
