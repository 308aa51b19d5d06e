"""Block keys to dense prefix ids: numbered from 0, and proven to name whole prefixes (one parent, one depth)."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan.formats import compiled
from kvplan.formats.rows import Keys

Ints: TypeAlias = NDArray[np.int64]
Ids: TypeAlias = NDArray[Any]  # int32 where the references are few enough, else int64


def dense(keys: Keys) -> tuple[Ids, int]:
    """Number the distinct keys from 0; returns the ids and how many there are.

    Small non-negative integers keep their order, which costs a table, and are returned as they are where every number
    occurs; other keys are numbered as they first appear, so that ids say nothing about the keys and neighbours in a
    path are neighbours in memory. `keys` may be overwritten: a log holds them once.
    """
    kind: Any = np.int32 if keys.size < 2**31 else np.int64
    if not keys.size:
        return np.zeros(0, kind), 0
    low, high = int(keys.min()), int(keys.max())
    ids: Ids = keys if keys.dtype == kind and keys.flags.writeable else np.empty(keys.size, kind)
    if low < 0 or high >= 4 * keys.size + 1024:
        return ids, int(compiled.factorize(keys, ids))
    used = np.zeros(high + 1, np.bool_)
    compiled.mark(keys, used)
    unique = int(np.count_nonzero(used))
    if unique == high + 1:
        return keys.astype(kind, copy=False), unique
    number = np.cumsum(used, dtype=kind) - kind(1)
    compiled.renumber(keys, number, ids)
    return ids, unique


def first_unchained(ids: Ids, offsets: Ints, unique: int) -> int | None:
    """The first block reference whose parent is not the one its id had before, None where ids name whole prefixes.

    One parent an id, and none for the first block of a path, gives every id one depth: by induction along the path.
    """
    found = int(compiled.first_unchained(ids, offsets, np.full(unique, -2, ids.dtype)))
    return None if found < 0 else found


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
