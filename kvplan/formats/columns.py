"""Columns of numbers that are collected some rows at a time, in little memory."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Ints: TypeAlias = NDArray[np.int64]

NEVER = -(2**62)  # what a whole number reads as that a row does not have
_ROOM = 8  # grown by an eighth: large arrays are moved by the page, and what they hold is not copied


class Column:
    """Numbers of one kind, row after row: whole ones in 32 bits while they fit, in no memory while no row has one."""

    def __init__(self, kind: type[np.generic] = np.int32) -> None:
        self.size = 0
        self._values: NDArray[Any] | None = None
        self._kind = kind

    def extend(self, values: NDArray[Any]) -> None:
        """Add some rows' numbers."""
        before, self.size = self.size, self.size + values.size
        if not values.size:
            return
        if self._values is None:
            if values.dtype.kind == "i" and values.max() == NEVER:
                return
            self._kind = np.int64 if before else self._kind
            self._values = np.full(before, NEVER, self._kind) if before else np.empty(0, self._kind)
        if self._kind is np.int32 and (values.min() < -(2**31) or values.max() >= 2**31):
            self._kind, self._values = np.int64, self._values.astype(np.int64)
        if self.size > self._values.size:
            self._values.resize(self.size + self.size // _ROOM, refcheck=False)
        self._values[before : self.size] = values

    def take(self) -> NDArray[Any]:
        """All numbers. Nothing can be added afterwards."""
        if self._values is None:
            return np.broadcast_to(np.int64(NEVER), self.size) if self.size else np.empty(0, self._kind)
        values, self._values = self._values, None
        values.resize(self.size, refcheck=False)
        return values


def absent(numbers: Ints) -> bool:
    """Whether no row has a number."""
    return not numbers.size or numbers.strides == (0,)


def known(numbers: Ints) -> Ints:
    """Numbers as scanned, 0 in lines that have none."""
    if absent(numbers):
        return np.broadcast_to(np.int64(0), numbers.shape)
    known = numbers.astype(np.int64)
    known[known == NEVER] = 0
    return known


def durations(numbers: Ints) -> NDArray[np.float64]:
    """Microseconds as scanned in seconds, NaN in lines that have none."""
    if absent(numbers):
        return np.broadcast_to(np.nan, numbers.shape)
    return np.where(numbers == NEVER, np.nan, numbers / 1e6)


def labels(numbers: Ints) -> list[str | None]:
    """Labels as scanned: equal names for equal labels, None in lines that have none; empty where no line has one."""
    if (numbers == NEVER).all():
        return []
    return [None if number == NEVER else str(number) for number in numbers.tolist()]
