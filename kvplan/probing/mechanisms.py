"""The ways in which serving engines move many small pieces between host memory and a GPU, through torch and the driver.

loop: one asynchronous copy a piece. batch: all pieces in one call to the driver (12.8 and newer). gather: one kernel
reads or writes page-locked host memory itself. In a batch the pieces follow in random order, as blocks of a pool do.
"""

from __future__ import annotations

import ctypes
import random
from collections.abc import Sequence
from typing import Any, Literal, Protocol

from kvplan.errors import KvplanError

Mechanism = Literal["loop", "batch", "gather"]
Direction = Literal["h2d", "d2h"]

WORDS: dict[str, str] = {
    "loop": "cudaMemcpyAsync in a loop",
    "batch": "cuMemcpyBatchAsync",
    "gather": "gather kernel (index_select) on mapped host memory",
}
_WORD = 8
_STREAM_ORDER = 1  # the source is read when the stream gets there, the only order that is always safe


class Copy(Protocol):
    """Something that a stream can be given to do."""

    def submit(self, stream: Any) -> None:
        """Queue it on the stream that is torch's current one."""


class Plain:
    """One asynchronous copy."""

    def __init__(self, target: Any, source: Any) -> None:
        self.target, self.source = target, source

    def submit(self, stream: Any) -> None:
        self.target.copy_(self.source, non_blocking=True)


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes: access order, two location hints (type, id) that plain pointers ignore, flags."""

    _fields_ = (
        ("order", ctypes.c_int),
        ("source_hint", ctypes.c_int * 2),
        ("target_hint", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    )


class Driver:
    """The driver's batched copy, by whichever of its two signatures the driver has; None of them in an old driver."""

    def __init__(self, library: Any) -> None:
        self._new = getattr(library, "cuMemcpyBatchAsync_v2", None)
        self._old = getattr(library, "cuMemcpyBatchAsync", None)

    @property
    def can(self) -> bool:
        """Whether there is a batched copy."""
        return self._new is not None or self._old is not None

    def copy(self, targets: Any, sources: Any, sizes: Any, stream: int) -> int:
        """Queue copies given as ctypes arrays of pointers and sizes; the driver's status."""
        attributes, first = _Attributes(order=_STREAM_ORDER), ctypes.c_size_t(0)
        head = (targets, sources, sizes, ctypes.c_size_t(len(sizes)), ctypes.byref(attributes), ctypes.byref(first))
        if self._new is not None:
            return int(self._new(*head, ctypes.c_size_t(1), ctypes.c_void_p(stream)))
        failed = ctypes.c_size_t(0)
        assert self._old is not None  # else it cannot copy batches at all
        return int(self._old(*head, ctypes.c_size_t(1), ctypes.byref(failed), ctypes.c_void_p(stream)))


def driver() -> Driver | None:
    """The CUDA driver's library where it is there and can copy batches."""
    try:
        found = Driver(ctypes.CDLL("libcuda.so.1"))
    except OSError:
        return None
    return found if found.can else None


class Batch:
    """All pieces in one call."""

    def __init__(self, driver: Driver, pairs: Sequence[tuple[Any, Any]]) -> None:
        count = len(pairs)
        pointers, sizes = ctypes.c_uint64 * count, ctypes.c_size_t * count
        self._driver = driver
        self._pairs = pairs  # what the pointers point into must live as long as this
        self._targets = pointers(*(target.data_ptr() for target, _ in pairs))
        self._sources = pointers(*(source.data_ptr() for _, source in pairs))
        self._sizes = sizes(*(len(target) for target, _ in pairs))

    def submit(self, stream: Any) -> None:
        status = self._driver.copy(self._targets, self._sources, self._sizes, int(stream.cuda_stream))
        if status:
            raise KvplanError(f"cuMemcpyBatchAsync: CUDA error {status}")


class Gather:
    """Rows of one size, by one kernel; both ends are addresses that the device can reach."""

    def __init__(self, torch: Any, target: Any, source: Any, granule: int) -> None:
        rows = len(target) // granule
        self._torch = torch
        self._target = target[: rows * granule].view(torch.int64).view(rows, granule // _WORD)
        self._source = source[: rows * granule].view(torch.int64).view(rows, granule // _WORD)
        self._index = torch.arange(rows, device=target.device)

    def submit(self, stream: Any) -> None:
        self._torch.index_select(self._source, 0, self._index, out=self._target)


class _Mapped:
    """Page-locked host memory under the name by which torch takes device memory of others."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def mapped(torch: Any, host: Any, device: Any) -> Any:
    """A device tensor over page-locked host memory, which the device reads and writes across the link."""
    return torch.as_tensor(_Mapped(host.ctypes.data, len(host)), device=device)


def pairs_of(direction: Direction, host: Any, memory: Any, granule: int) -> list[tuple[Any, Any]]:
    """(target, source) slices of two byte tensors that together move all of `host`."""
    ends = [(memory[at : at + granule], host[at : at + granule]) for at in range(0, len(host), granule)]
    return ends if direction == "h2d" else [(target, source) for source, target in ends]


def shuffled(pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """The same pieces in an order that is always the same and never that of their addresses."""
    return random.Random(0).sample(pairs, len(pairs))
