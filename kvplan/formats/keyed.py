"""Paths of block keys as a file gives them, some requests at a time, kept as the tree that they make."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan import paths
from kvplan.documents import PathTree
from kvplan.errors import KvplanError
from kvplan.formats import compiled

Ints: TypeAlias = NDArray[np.int64]
Ids: TypeAlias = NDArray[np.int32]

_MOST = 2**31 - 1
_SMALL = 4  # a table by key is worth it while no key is more than so many times the references
_FEW = 1 << 20
_FULL = 0.75  # of a hash table's places
_ROOM = 8


class Numbers:
    """Numbers block keys from 0 as they first appear, some at a time.

    Small non-negative keys cost a table of 4 bytes for each key up to the largest; others, once there are any, a hash
    table of 13 to 19 bytes a distinct key.
    """

    def __init__(self) -> None:
        self.used = 0
        self._seen = 0
        self._small: NDArray[np.int32] | None = np.zeros(0, np.int32)
        self._table = np.zeros(0, np.int32)
        self._names = np.zeros(0, np.int64)

    def number(self, keys: NDArray[Any]) -> NDArray[np.int32]:
        """The keys' numbers. Raises KvplanError where there are too many."""
        ids = np.empty(keys.size, np.int32)
        if not keys.size:
            return ids
        self._seen += keys.size
        if self._small is not None:
            high = int(keys.max())
            if keys.min() >= 0 and high < min(_SMALL * self._seen + _FEW, _MOST):
                if high >= self._small.size:
                    self._small.resize(high + 1 + high // _ROOM, refcheck=False)
                self.used = int(compiled.number_small(keys, self._small, self.used, ids))
                return ids
            self._start_hashing()
        self._hash(keys.view(np.int64) if keys.dtype == np.uint64 else keys, ids)
        return ids

    def _start_hashing(self) -> None:
        assert self._small is not None
        self._names = np.empty(self.used, np.int64)
        compiled.names_of(self._small, self._names)
        self._small = None
        self._widen()

    def _widen(self) -> None:
        """A table for twice as many keys, and room for the names of those that it may hold."""
        size = max(1 << 12, 1 << int(2 * self.used / _FULL - 1).bit_length()) if self.used else 1 << 12
        self._table = np.zeros(0, np.int32)  # the old one goes first
        self._table = np.full(size, -1, np.int32)
        compiled.hash_names(self._names, self.used, self._table)

    def _hash(self, keys: NDArray[Any], ids: NDArray[np.int32]) -> None:
        done = 0
        while True:
            most = min(int(_FULL * self._table.size), _MOST)
            need = min(self.used + keys.size - done, most)
            if need > self._names.size:
                self._names.resize(min(need + need // _ROOM, most), refcheck=False)
            taken, self.used = compiled.number_hashed(
                keys[done:], self._table, self._names, self.used, need, ids[done:]
            )
            done += taken
            if done == keys.size:
                return
            if self.used >= _MOST:
                raise KvplanError(f"a log of more than {_MOST:,} distinct blocks: give --sample or --buckets")
            self._widen()


class Keyed:
    """The paths of all files of a log, `files` in number, in the order in which they are read.

    While the keys name whole prefixes that is a tree, in memory that does not grow with the length of paths. From the
    first request on that shows that they do not, the numbers of all keys are kept, 4 bytes each.
    """

    def __init__(self, files: int = 1) -> None:
        self.rows = 0
        self._files = files
        self._numbers = Numbers()
        self._tree: paths.Growing | None = paths.Growing()
        self._flat = bytearray()
        self._counts: list[Ints] = []

    def add(self, keys: NDArray[Any], counts: NDArray[Any]) -> None:
        """Take the paths of some requests: how many blocks each has, and all keys one after another."""
        self.rows += counts.size
        ids = self._numbers.number(keys)
        if self._tree is not None:
            taken = self._tree.add(ids, counts)
            if taken == counts.size:
                return
            ids, counts = ids[int(counts[:taken].sum()) :], counts[taken:]
            tree = self._tree.tree()
            self._tree = None
            self._counts.append(paths.counts(tree).astype(np.int64))
            self._flat += tree.blocks().data
        self._flat += ids.data
        self._counts.append(np.asarray(counts, np.int64))

    def file_ends(self) -> None:
        """Say that all paths of a file are here: after the last file's, what each key's number is can be forgotten."""
        self._files -= 1
        if not self._files:
            self._numbers = Numbers()

    def paths(self, rows: Ints | None) -> PathTree | Ids:
        """The paths of all requests taken, or of `rows` in that order: a tree, or ids one after another.

        Nothing can be added afterwards.
        """
        if self._tree is not None:
            tree, self._tree = self._tree.tree(), None
            return tree if rows is None else paths.rearranged(tree, rows)
        flat: Ids = np.frombuffer(self._flat, np.int32)
        if rows is None:
            return flat
        counts = np.concatenate(self._counts)
        ids = np.empty(int(counts[rows].sum()), np.int32)
        compiled.gather(flat, np.concatenate((np.zeros(1, np.int64), np.cumsum(counts))), rows, ids)
        return ids
