"""Page-locking host memory for one GPU, the way engines do it: anonymous pages, touched first, registered in pieces.

Registration in pieces, smaller ones after a refusal, finds how much can be page-locked where there is a ceiling (WSL2,
some drivers), and one huge registration is refused by drivers that take the same bytes in parts.
"""

from __future__ import annotations

import mmap
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

import numpy as np

from kvplan.documents import Pinning
from kvplan.probing.cuda import Gpu, HostArray, PinError
from kvplan.probing.interrupts import held
from kvplan.units import MiB

_SMALLEST = 1 * MiB


@dataclass(frozen=True, slots=True, kw_only=True)
class Arena:
    """The page-locked pieces, in the order registered, and how it went."""

    chunks: tuple[HostArray, ...]
    report: Pinning

    def pair(self, wanted: int) -> tuple[HostArray, HostArray] | None:
        """Two equal buffers of at most `wanted` bytes, each inside one registration: no copy may cross two."""
        sizes = sorted((len(chunk) for chunk in self.chunks), reverse=True)
        if not sizes:
            return None
        half = sizes[0] // 2 // MiB * MiB
        if len(sizes) > 1 and sizes[1] >= half:
            first, second = sorted(self.chunks, key=len, reverse=True)[:2]
            size = min(wanted, len(second))
            return first[:size], second[:size]
        size = min(wanted, half)
        largest = max(self.chunks, key=len)
        return (largest[:size], largest[half : half + size]) if size else None


@contextmanager
def pin(gpu: Gpu, index: int, wanted: int, chunk: int) -> Iterator[Arena]:
    """Page-lock up to `wanted` bytes for GPU `index` in registrations of at most `chunk`, and undo it at the end."""
    began = time.perf_counter()
    area = np.frombuffer(mmap.mmap(-1, wanted), dtype=np.uint8)
    area.fill(0)
    touched = time.perf_counter()
    chunks: list[HostArray] = []
    try:
        stopped = _register(gpu, area, chunk, chunks)
        sizes = [len(piece) for piece in chunks]
        report = Pinning(
            gpu=index,
            requested_bytes=wanted,
            pinned_bytes=sum(sizes),
            largest_bytes=max(sizes, default=0),
            touch_s=touched - began,
            register_s=time.perf_counter() - touched,
            stopped=stopped,
        )
        yield Arena(chunks=tuple(chunks), report=report)
    finally:
        with held():
            for piece in reversed(chunks):
                gpu.unpin(piece.ctypes.data)


def _register(gpu: Gpu, area: HostArray, size: int, done: list[HostArray]) -> str | None:
    """Register piece after piece into `done`, halving at each refusal; why it stopped short, None where it did not."""
    at, refusal = 0, None
    while at < len(area):
        size = min(size, len(area) - at)
        piece = area[at : at + size]
        try:
            gpu.pin(piece.ctypes.data, size)
        except PinError as error:
            refusal = str(error)
            size = size // 2 // MiB * MiB
            if size < _SMALLEST:
                return refusal
            continue
        if not gpu.is_pinned(piece):
            gpu.unpin(piece.ctypes.data)
            return "registered, but the driver does not know it as page-locked"
        done.append(piece)
        at += size
    return None
