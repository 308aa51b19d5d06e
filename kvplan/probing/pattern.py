"""Content that proves itself: what a probe writes, so that every page it reads back can be judged, and its buffers."""

from __future__ import annotations

import mmap
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kvplan.units import KiB

PAGE = 4096
_WORDS = PAGE // 8
# A thread's buffer: longer than what lz4 looks back, and as small as that, since a buffer that falls out of the CPU's
# cache slows down virtual drives whose host copies the data.
_PERIOD = 128 * KiB
_TAG_SHIFT = 40  # a tag above, the page number (up to 4 PiB) below

Views = tuple[memoryview, ...]
Prepare = Callable[[int], Views]


class Buffer:
    """Page-aligned memory for `slots` blocks of `granule` bytes, touched.

    A block of several pieces lies scattered, a page between pieces, as one block of many layers' tensors does.
    `rows[slot]` is a block's content as (pieces, pages, words), `views[slot]` its pieces for the kernel.
    """

    def __init__(self, granule: int, pieces: int = 1, slots: int = 1) -> None:
        piece = granule // pieces
        if piece * pieces != granule or piece % PAGE:
            raise ValueError(f"{granule} bytes are not {pieces} pieces of whole pages")
        stride = piece + (PAGE if pieces > 1 else 0)
        self.area = mmap.mmap(-1, slots * pieces * stride)
        flat = np.frombuffer(self.area, dtype=np.uint64).reshape(slots, pieces, stride // PAGE, _WORDS)
        flat[...] = 0
        self.rows: NDArray[np.uint64] = flat[:, :, : piece // PAGE]
        whole = memoryview(self.area)
        starts = [[(slot * pieces + number) * stride for number in range(pieces)] for slot in range(slots)]
        self.views = [tuple(whole[start : start + piece] for start in row) for row in starts]

    def content(self, slot: int = 0) -> NDArray[np.uint64]:
        """A block in file order, as (pages, words)."""
        content: NDArray[np.uint64] = self.rows[slot].reshape(-1, _WORDS)
        return content


class Pattern:
    """Content of a file: random words repeated every `period` bytes, each page opened by a word `tag` | page number.

    Pages are pairwise different (no deduplication), cannot be compressed, and tell where and by whom they were written.
    """

    def __init__(self, seed: int, tag: int, granule: int) -> None:
        self.granule = granule
        self.slots = -(-_PERIOD // granule)
        self.pages = granule // PAGE
        self._tag = tag << _TAG_SHIFT
        words = self.slots * granule // 8
        self._body = np.random.default_rng((seed, tag)).integers(0, 1 << 64, words, dtype=np.uint64).reshape(-1, _WORDS)
        self._numbers = np.arange(self.pages, dtype=np.uint64)

    def writer(self, pieces: int = 1) -> tuple[Buffer, Prepare]:
        """A buffer and a function that makes it hold block i: all that costs is one vector of page numbers."""
        buffer = Buffer(self.granule, pieces, self.slots)
        buffer.rows[...] = self._body.reshape(buffer.rows.shape)
        stamps = [buffer.rows[slot, :, :, 0] for slot in range(self.slots)]
        numbers = self._numbers.reshape(pieces, -1)

        def block(index: int) -> Views:
            slot = index % self.slots
            np.add(numbers, np.uint64(self._tag + index * self.pages), out=stamps[slot])
            return buffer.views[slot]

        return buffer, block

    def wrong_pages(self, data: bytes | bytearray | mmap.mmap | memoryview | NDArray[np.uint64], offset: int) -> int:
        """Pages of `data`, read at byte `offset`, that differ from what was written there."""
        rows = np.frombuffer(data, dtype=np.uint64).reshape(-1, _WORDS)
        pages = np.arange(offset // PAGE, offset // PAGE + len(rows), dtype=np.uint64)
        first = int(pages[0]) % len(self._body)
        inside = first + len(rows) <= len(self._body)
        body = self._body[first : first + len(rows)] if inside else self._body[pages % np.uint64(len(self._body))]
        good = (rows[:, 0] == pages + np.uint64(self._tag)) & (rows[:, 1:] == body[:, 1:]).all(axis=1)
        return int(len(rows) - np.count_nonzero(good))
