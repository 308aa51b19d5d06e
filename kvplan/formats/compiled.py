"""Loops over block references that NumPy cannot do in one pass or without copies, compiled once by Numba."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan.kernels import compiled

Ints: TypeAlias = NDArray[np.int64]

_SPREAD = np.uint64(0x9E3779B97F4A7C15)  # 2^64 over the golden ratio: the top bits of a product are well mixed


@compiled
def gather(keys: NDArray[Any], offsets: Ints, order: Ints, out: NDArray[Any]) -> None:
    """Copy the rows `order` names, in that order, from `keys` (rows at `offsets`) to `out`."""
    at = 0
    for row in order:
        for i in range(offsets[row], offsets[row + 1]):
            out[at] = keys[i]
            at += 1


@compiled
def mark(keys: NDArray[Any], used: NDArray[np.bool_]) -> None:
    """Note which of the small numbers in `keys` occur."""
    for key in keys:
        used[key] = True


@compiled
def renumber(keys: NDArray[Any], number: NDArray[Any], ids: NDArray[Any]) -> None:
    """ids[i] = number[keys[i]], without the wide copy of `keys` that NumPy's indexing makes."""
    for i in range(keys.size):
        ids[i] = number[keys[i]]


@compiled
def first_unchained(ids: NDArray[Any], offsets: Ints, parent: NDArray[Any]) -> int:
    """The first reference whose parent is not the one its id had before, -1 for none; `parent` is scratch, all -2."""
    for row in range(offsets.size - 1):
        above = -1
        for i in range(offsets[row], offsets[row + 1]):
            here = ids[i]
            if parent[here] == -2:
                parent[here] = above
            elif parent[here] != above:
                return i
            above = here
    return -1


@compiled
def two_sizes(ids: NDArray[Any], offsets: Ints, tail: Ints, block_tokens: int, size: Ints) -> tuple[int, int]:
    """How many rows end in a block whose id names another size elsewhere, and the first such row (-1 for none).

    `tail` is each row's last block in tokens, `size` scratch of zeros, one an id.
    """
    rows = offsets.size - 1
    for row in range(rows):
        for i in range(offsets[row], offsets[row + 1] - 1):
            size[ids[i]] = block_tokens
    count, first = 0, -1
    for row in range(rows):
        if offsets[row + 1] > offsets[row]:
            here = ids[offsets[row + 1] - 1]
            if size[here] == 0:
                size[here] = tail[row]
            elif size[here] != tail[row]:
                count += 1
                if first < 0:
                    first = row
    return count, first


@compiled
def _slot(table: NDArray[Any], names: Ints, key: Any, shift: np.uint64) -> Any:
    """Where `key` stands in an open-addressing table of numbers into `names`, or the free place for it."""
    at = np.int64((np.uint64(key) * _SPREAD) >> shift)
    while table[at] >= 0 and names[table[at]] != key:
        at = (at + 1) & (table.size - 1)
    return at


@compiled
def factorize(keys: NDArray[Any], ids: NDArray[Any]) -> int:
    """Number the keys from 0 as they first appear, into `ids`; returns how many there are.

    Paths repeat: after a key comes mostly the one that came after it last time. That guess costs one comparison where
    a look-up costs a cache miss, so each number remembers its last successor.
    """
    bits = 12
    table = np.full(1 << bits, -1, ids.dtype)
    names = np.empty(1 << (bits - 1), np.int64)
    after = np.full(names.size, -1, ids.dtype)
    count = 0
    last = -1
    for i in range(keys.size):
        key = np.int64(keys[i])
        here = after[last] if last >= 0 else -1
        if here < 0 or names[here] != key:
            at = _slot(table, names, key, np.uint64(64 - bits))
            here = table[at]
            if here < 0:
                if count == names.size:
                    bits += 1
                    table = np.full(1 << bits, -1, ids.dtype)
                    grown, successors = np.empty(2 * count, np.int64), np.full(2 * count, -1, ids.dtype)
                    grown[:count], successors[:count] = names, after
                    names, after = grown, successors
                    for j in range(count):
                        table[_slot(table, names, names[j], np.uint64(64 - bits))] = j
                    at = _slot(table, names, key, np.uint64(64 - bits))
                here = count
                table[at], names[here] = here, key
                count += 1
            if last >= 0:
                after[last] = here
        ids[i] = here
        last = here
    return count
