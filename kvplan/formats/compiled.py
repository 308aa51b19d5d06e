"""Loops over block references that NumPy cannot do in one pass or without copies, compiled once by Numba."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan.kernels import compiled, part

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
def number_small(keys: NDArray[Any], number: NDArray[np.int32], used: int, ids: NDArray[np.int32]) -> int:
    """Number keys as they first appear, from `used` on; `number` is 1 + the number of each, 0 for none so far."""
    for i in range(keys.size):
        here = number[keys[i]]
        if here == 0:
            used += 1
            here = used
            number[keys[i]] = here
        ids[i] = here - 1
    return used


@compiled
def number_hashed(
    keys: NDArray[Any], table: NDArray[np.int32], names: Ints, used: int, most: int, ids: NDArray[np.int32]
) -> tuple[int, int]:
    """The same for keys of any size, by an open-addressing table: how many keys were done, and numbers used then.

    Stops before a new key where `most` numbers are used. `names` is the key of each number. Blocks that a path brings
    in are numbered one after another, so after a key comes mostly the next number: a comparison, not a cache miss.
    """
    shift = np.uint64(64 - int(np.log2(table.size)))
    here = -1
    for i in range(keys.size):
        key = np.int64(keys[i])
        here += 1
        if here >= used or names[here] != key:
            at = _slot(table, names, key, shift)
            here = table[at]
            if here < 0:
                if used == most:
                    return i, used
                here = used
                table[at], names[here] = here, key
                used += 1
        ids[i] = here
    return keys.size, used


@compiled
def hash_names(names: Ints, used: int, table: NDArray[np.int32]) -> None:
    """Fill an empty table, all -1, with the first `used` names."""
    shift = np.uint64(64 - int(np.log2(table.size)))
    for i in range(used):
        table[_slot(table, names, names[i], shift)] = i


@compiled
def names_of(number: NDArray[np.int32], names: Ints) -> None:
    """The key of each number, from 1 + the number of each small key."""
    for key in range(number.size):
        if number[key] > 0:
            names[number[key] - 1] = key


@part
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
