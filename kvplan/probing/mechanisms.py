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
from kvplan.probing.nvml import pci_address

Mechanism = Literal["loop", "batch", "gather"]
Direction = Literal["h2d", "d2h"]

WORDS: dict[str, str] = {
    "loop": "cudaMemcpyAsync in a loop",
    "batch": "cuMemcpyBatchAsync",
    "gather": "gather kernel (index_select) on mapped host memory",
}
_WORD = 8
_ADDRESS = 32  # bytes for a PCI address
_STREAM_ORDER = 1  # the source is read when the stream gets there, the only order that is always safe


class Copy(Protocol):
    """Something that a stream can be given to do."""

    def submit(self, stream: int) -> None:
        """Queue it on the stream that is torch's current one; `stream` is its handle for the driver."""


class Plain:
    """One asynchronous copy."""

    def __init__(self, target: Any, source: Any) -> None:
        self.target, self.source = target, source

    def submit(self, stream: int) -> None:
        self.target.copy_(self.source, non_blocking=True)


class _Attributes(ctypes.Structure):
    """CUmemcpyAttributes: access order, two location hints (type, id) that plain pointers ignore, flags."""

    _fields_ = (
        ("order", ctypes.c_int),
        ("source_hint", ctypes.c_int * 2),
        ("target_hint", ctypes.c_int * 2),
        ("flags", ctypes.c_uint),
    )


_POINTER, _SIZE = ctypes.c_uint64, ctypes.c_size_t
# The functions of <cuda.h> that are called here, with their arguments; all answer a CUresult. The batched copy has two
# signatures: that of CUDA 12.8 also tells which copy failed, that of CUDA 13 (_v2) does not.
_BATCH = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_void_p, _SIZE, ctypes.c_void_p, ctypes.c_void_p, _SIZE)
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "cuMemcpyHtoDAsync_v2": (_POINTER, ctypes.c_void_p, _SIZE, ctypes.c_void_p),
    "cuMemcpyDtoHAsync_v2": (ctypes.c_void_p, _POINTER, _SIZE, ctypes.c_void_p),
    "cuMemcpyBatchAsync_v2": (*_BATCH, ctypes.c_void_p),
    "cuMemcpyBatchAsync": (*_BATCH, ctypes.c_void_p, ctypes.c_void_p),
    "cuMemHostGetDevicePointer_v2": (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_uint),
    "cuDeviceGet": (ctypes.c_void_p, ctypes.c_int),
    "cuDeviceGetPCIBusId": (ctypes.c_char_p, ctypes.c_int, ctypes.c_int),
    "cuGetErrorName": (ctypes.c_int, ctypes.POINTER(ctypes.c_char_p)),
}


class Driver:
    """The CUDA driver's functions that torch has no name for. Calls raise KvplanError with what the driver said."""

    def __init__(self, library: Any) -> None:
        self._functions = {name: function for name in _FUNCTIONS if (function := getattr(library, name, None))}
        for name, function in self._functions.items():
            function.argtypes, function.restype = _FUNCTIONS[name], ctypes.c_int
        self._one = {"h2d": self._functions.get("cuMemcpyHtoDAsync_v2")}
        self._one["d2h"] = self._functions.get("cuMemcpyDtoHAsync_v2")

    @property
    def batches(self) -> bool:
        """Whether there is a batched copy."""
        return "cuMemcpyBatchAsync_v2" in self._functions or "cuMemcpyBatchAsync" in self._functions

    @property
    def singles(self) -> bool:
        """Whether there are single copies."""
        return None not in self._one.values()

    def single(self, direction: Direction) -> Any:
        """The function that queues one copy: target, source, size, stream to a status."""
        return self._one[direction]

    def batch(self, targets: Any, sources: Any, sizes: Any, stream: int) -> None:
        """Queue copies given as ctypes arrays of pointers and sizes. The stream may not be the default one."""
        attributes, first = _Attributes(order=_STREAM_ORDER), _SIZE(0)
        head = (targets, sources, sizes, len(sizes), ctypes.byref(attributes), ctypes.byref(first), 1)
        newest = self._functions.get("cuMemcpyBatchAsync_v2")
        if newest is not None:
            self.check("cuMemcpyBatchAsync", newest(*head, stream))
            return
        failed = _SIZE(0)
        self.check("cuMemcpyBatchAsync", self._functions["cuMemcpyBatchAsync"](*head, ctypes.byref(failed), stream))

    def device_pointer(self, host: int) -> int:
        """The address by which the GPU reaches page-locked host memory: mostly the same, but not on every system."""
        found = _POINTER(0)
        ask = self._functions.get("cuMemHostGetDevicePointer_v2")
        if ask is None:
            raise KvplanError("cuMemHostGetDevicePointer: not in this driver")
        self.check("cuMemHostGetDevicePointer", ask(ctypes.byref(found), host, 0))
        return int(found.value)

    def pci(self, ordinal: int) -> str | None:
        """The PCI address of device `ordinal`, as CUDA_VISIBLE_DEVICES numbers them; None where it is not told."""
        get, ask = (self._functions.get(name) for name in ("cuDeviceGet", "cuDeviceGetPCIBusId"))
        handle, text = ctypes.c_int(0), ctypes.create_string_buffer(_ADDRESS)
        if get is None or ask is None or get(ctypes.byref(handle), ordinal) or ask(text, _ADDRESS, handle.value):
            return None
        return pci_address(text.value.decode())

    def check(self, what: str, status: int) -> None:
        """Raise KvplanError for any status but success."""
        if status:
            name, ask = ctypes.c_char_p(), self._functions.get("cuGetErrorName")
            if ask is not None and ask(status, ctypes.byref(name)) == 0 and name.value:
                raise KvplanError(f"{what}: {name.value.decode()}")
            raise KvplanError(f"{what}: CUDA error {status}")


def driver() -> Driver | None:
    """The CUDA driver's library where it is there."""
    try:
        return Driver(ctypes.CDLL("libcuda.so.1"))
    except OSError:
        return None


class Single:
    """One asynchronous copy, by the call that engines make in a loop, with as little of Python around it as can be."""

    __slots__ = ("_copy", "_driver", "_keep", "_size", "_source", "_target")

    def __init__(self, driver: Driver, direction: Direction, target: Any, source: Any) -> None:
        self._keep = target, source  # what the pointers point into must live as long as this
        self._driver, self._copy = driver, driver.single(direction)
        self._target, self._source, self._size = target.data_ptr(), source.data_ptr(), len(target)

    def submit(self, stream: int) -> None:
        status = self._copy(self._target, self._source, self._size, stream)
        if status:
            self._driver.check("cuMemcpyAsync", status)


class Batch:
    """All pieces in one call."""

    def __init__(self, driver: Driver, pairs: Sequence[tuple[Any, Any]]) -> None:
        count = len(pairs)
        pointers, sizes = _POINTER * count, _SIZE * count
        self._driver = driver
        self._pairs = pairs  # what the pointers point into must live as long as this
        self._targets = pointers(*(target.data_ptr() for target, _ in pairs))
        self._sources = pointers(*(source.data_ptr() for _, source in pairs))
        self._sizes = sizes(*(len(target) for target, _ in pairs))

    def submit(self, stream: int) -> None:
        self._driver.batch(self._targets, self._sources, self._sizes, stream)


class Gather:
    """Rows of one size, by one kernel; both ends are addresses that the device can reach."""

    def __init__(self, torch: Any, target: Any, source: Any, granule: int) -> None:
        rows = len(target) // granule
        self._torch = torch
        self._target = target[: rows * granule].view(torch.int64).view(rows, granule // _WORD)
        self._source = source[: rows * granule].view(torch.int64).view(rows, granule // _WORD)
        self._index = torch.arange(rows, device=target.device)

    def submit(self, stream: int) -> None:
        self._torch.index_select(self._source, 0, self._index, out=self._target)


class _Mapped:
    """Page-locked host memory under the name by which torch takes device memory of others."""

    def __init__(self, address: int, size: int) -> None:
        self.__cuda_array_interface__ = {"shape": (size,), "typestr": "|u1", "data": (address, False), "version": 3}


def mapped(torch: Any, driver: Driver, host: Any, device: Any) -> Any:
    """A device tensor over page-locked host memory, which the device reads and writes across the link.

    Raises KvplanError where the device does not reach it, or torch would make a copy of it.
    """
    address = driver.device_pointer(host.ctypes.data)
    found = torch.as_tensor(_Mapped(address, len(host)), device=device)
    if found.data_ptr() != address or found.device != device:
        raise KvplanError(f"torch takes page-locked host memory for {found.device}'s own and copies it")
    return found


def pairs_of(direction: Direction, host: Any, memory: Any, granule: int) -> list[tuple[Any, Any]]:
    """(target, source) slices of two byte tensors that together move all of `host`."""
    ends = [(memory[at : at + granule], host[at : at + granule]) for at in range(0, len(host), granule)]
    return ends if direction == "h2d" else [(target, source) for source, target in ends]


def shuffled(pairs: list[tuple[Any, Any]]) -> list[tuple[Any, Any]]:
    """The same pieces in an order that is always the same and never that of their addresses."""
    return random.Random(0).sample(pairs, len(pairs))
