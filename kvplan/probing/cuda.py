"""One GPU as the probe sees it: the few operations it needs, and those operations on a CUDA device through torch.

The probe itself is written against the protocol, so that all of it also runs against a stand-in that moves real bytes.
"""

from __future__ import annotations

import contextlib
import importlib.util
import warnings
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import KvplanError
from kvplan.probing import load, mechanisms
from kvplan.probing.mechanisms import Direction, Mechanism
from kvplan.units import MiB

HostArray = NDArray[np.uint8]

# Word i of a pattern is (i * _FACTOR) xor key, modulo 2^64: cheap on both sides, different in every word for every key.
_FACTOR = 0x9E3779B97F4A7C15
_REGISTER = 1 | 2  # portable: for every context; mapped: kernels may reach it too
_HOST_STEP = 32 * 1024  # words of host memory compared at a time
_STEP = 32 * MiB  # of device memory taken at a time for a pattern to compare with


class PinError(Exception):
    """Host memory could not be page-locked: the text says why."""


class DecodeLoad(Protocol):
    """Work like decoding: what it is in words, the bytes that a step reads, and the stream it runs on."""

    words: str
    step_bytes: int
    stream: Any


class Gpu(Protocol):
    """What the probe needs of one GPU. Streams, marks, memory and pieces are the implementation's own objects.

    Copies of one stream run in order, of two streams at once. Methods that fail raise KvplanError, `pin` PinError.
    """

    index: int
    pci: str | None
    mechanisms: tuple[Mechanism, ...]

    def free_bytes(self) -> int:
        """Device memory that can be allocated now."""

    def total_bytes(self) -> int:
        """Device memory that this process may come to use: of a divided GPU (MIG), its own instance's."""

    def pin(self, address: int, size: int) -> None:
        """Page-lock host memory at a page-aligned address. A failure leaves no error behind for later calls."""

    def unpin(self, address: int) -> None:
        """Undo `pin`."""

    def is_pinned(self, host: HostArray) -> bool:
        """Whether the driver knows this host memory as page-locked."""

    def allocate(self, size: int) -> Any:
        """Device memory of `size` bytes, freed with the returned object."""

    def stream(self) -> Any:
        """A new stream."""

    def prepare(
        self, direction: Direction, host: HostArray, memory: Any, granule: int, mechanism: Mechanism = "loop"
    ) -> Sequence[Any]:
        """The copies that move all of `host` from or to `memory`, `granule` bytes each, ready to submit."""

    def decode_load(self, size: int) -> DecodeLoad:
        """Work like a step of decoding: reads `size` bytes of device memory, on a stream of its own."""

    def step(self, load: Any) -> None:
        """Queue one step of such work on its stream."""

    def submit(self, stream: Any, pieces: Sequence[Any]) -> None:
        """Queue copies on a stream; returns before they are done where the host memory is page-locked."""

    def mark(self, stream: Any) -> Any:
        """A point in a stream's order whose time can be told once it was reached."""

    def seconds(self, start: Any, end: Any) -> float:
        """Device time between two marks; waits for the later one."""

    def wait(self, stream: Any) -> None:
        """Wait until a stream has nothing left to do."""

    def fill(self, memory: Any, key: int) -> None:
        """Write the pattern of `key` to device memory, by the device itself."""

    def wrong_words(self, memory: Any, key: int, size: int) -> int:
        """8-byte words in the first `size` bytes of device memory that differ from the pattern, told by the GPU."""


def base_words(size: int) -> NDArray[np.uint64]:
    """The pattern of key 0 over `size` bytes."""
    return np.arange(size // 8, dtype=np.uint64) * np.uint64(_FACTOR)


def fill_host(host: HostArray, base: NDArray[np.uint64], key: int) -> None:
    """Write the pattern of `key` to host memory."""
    words = host.view(np.uint64)
    np.bitwise_xor(base[: len(words)], np.uint64(key), out=words)


def wrong_host_words(host: HostArray, base: NDArray[np.uint64], key: int) -> int:
    """8-byte words of host memory that differ from the pattern of `key`."""
    words, wrong = host.view(np.uint64), 0
    for at in range(0, len(words), _HOST_STEP):  # in the processor's cache: several times as quick as all at once
        part = words[at : at + _HOST_STEP]
        wrong += int(np.count_nonzero((part ^ np.uint64(key)) != base[at : at + len(part)]))
    return wrong


def tensor_pattern(start: int, stop: int, key: int, device: Any) -> Any:
    """Words [start, stop) of the pattern as an int64 tensor, made on the device."""
    import torch

    words = torch.arange(start, stop, dtype=torch.int64, device=device)
    return words.mul_(_signed(_FACTOR)).bitwise_xor_(_signed(key))


def _signed(word: int) -> int:
    """The same 64 bits as torch, which has no arithmetic on unsigned 64-bit words, reads them."""
    return word - (1 << 64) if word >> 63 else word


def fill_tensor(memory: Any, key: int) -> None:
    """Write the pattern of `key` over a byte tensor."""
    import torch

    words = memory.view(torch.int64)
    for start in range(0, len(words), _STEP // 8):
        stop = min(start + _STEP // 8, len(words))
        words[start:stop] = tensor_pattern(start, stop, key, memory.device)


def wrong_tensor_words(memory: Any, key: int, size: int) -> int:
    """8-byte words among the first `size` bytes of a byte tensor that differ from the pattern of `key`."""
    import torch

    words = memory[:size].view(torch.int64)
    wrong = 0
    for start in range(0, len(words), _STEP // 8):
        stop = min(start + _STEP // 8, len(words))
        wrong += int((words[start:stop] != tensor_pattern(start, stop, key, memory.device)).sum())
    return wrong


class TorchGpu:
    """A CUDA device through torch, which brings the CUDA runtime and the streams that serving engines use."""

    def __init__(self, ordinal: int) -> None:
        import torch

        self._torch = torch
        self._device = torch.device("cuda", ordinal)
        self._runtime = torch.cuda.cudart()
        facts = torch.cuda.get_device_properties(ordinal)
        self.index = ordinal
        self._driver = mechanisms.driver()
        self.mechanisms = _mechanisms(self._driver)
        self.pci = (self._driver.pci(ordinal) if self._driver else None) or _pci(facts)

    def free_bytes(self) -> int:
        with self._failing("open the device"):
            return int(self._torch.cuda.mem_get_info(self._device)[0])

    def total_bytes(self) -> int:
        with self._failing("open the device"):
            return int(self._torch.cuda.mem_get_info(self._device)[1])

    def pin(self, address: int, size: int) -> None:
        with self._failing("page-lock host memory"), self._torch.cuda.device(self._device):
            status = self._runtime.cudaHostRegister(address, size, _REGISTER)
        if int(status) != 0:
            self._clear_error()
            raise PinError(f"cudaHostRegister: {self._runtime.cudaGetErrorString(status)}")

    def _clear_error(self) -> None:
        """A refused registration stays CUDA's last error, and the next kernel launch would report it as its own."""
        said = ""
        for _ in range(3):
            try:
                self._torch.ones(1, device=self._device).add_(1)
                self._torch.cuda.synchronize(self._device)
            except RuntimeError as error:
                said = str(error).splitlines()[0]
                continue
            return
        raise KvplanError(
            f"gpu{self.index}: does not recover from a refused page-lock ({said}): reset it or try another GPU"
        )

    def unpin(self, address: int) -> None:
        with contextlib.suppress(RuntimeError, KvplanError), self._torch.cuda.device(self._device):
            if int(self._runtime.cudaHostUnregister(address)) != 0:  # a device that failed: nothing is left to undo
                self._clear_error()

    def is_pinned(self, host: HostArray) -> bool:
        with self._failing("ask for page-locked memory"):
            return bool(self._torch.from_numpy(host).is_pinned())

    def allocate(self, size: int) -> Any:
        with self._failing("allocate device memory"):
            memory = self._torch.zeros(size, dtype=self._torch.uint8, device=self._device)
            self._torch.cuda.synchronize(self._device)
            return memory

    def stream(self) -> Any:
        with self._failing("make a stream"):
            return self._torch.cuda.Stream(self._device)

    def prepare(
        self, direction: Direction, host: HostArray, memory: Any, granule: int, mechanism: Mechanism = "loop"
    ) -> Sequence[Any]:
        if mechanism == "gather":
            return self._gathered(direction, host, memory, granule)
        if mechanism == "batch":
            pairs = mechanisms.pairs_of(direction, self._torch.from_numpy(host), memory, granule)
            assert self._driver is not None  # else it is not among the mechanisms
            return (mechanisms.Batch(self._driver, mechanisms.shuffled(pairs)),)
        return self._looped(direction, host, memory, granule)

    def _looped(self, direction: Direction, host: HostArray, memory: Any, granule: int) -> Sequence[Any]:
        pairs = mechanisms.pairs_of(direction, self._torch.from_numpy(host), memory, granule)
        driver = self._driver
        if driver is not None and driver.singles:
            return [mechanisms.Single(driver, direction, target, source) for target, source in pairs]
        return [mechanisms.Plain(target, source) for target, source in pairs]

    def _gathered(self, direction: Direction, host: HostArray, memory: Any, granule: int) -> Sequence[Any]:
        assert self._driver is not None  # else it is not among the mechanisms
        with self._failing("map host memory"), self._torch.cuda.device(self._device):
            there = mechanisms.mapped(self._torch, self._driver, host, self._device)
            target, source = (memory, there) if direction == "h2d" else (there, memory)
            gather = mechanisms.Gather(self._torch, target, source, granule)
            self._torch.cuda.synchronize(self._device)  # its index is made on another stream than it runs on
        rest = len(host) // granule * granule
        return [gather, *self._looped(direction, host[rest:], memory[rest:], granule)]

    def submit(self, stream: Any, pieces: Sequence[Any]) -> None:
        handle = stream.cuda_stream
        with self._failing("copy"), self._torch.cuda.stream(stream):
            for piece in pieces:
                piece.submit(handle)

    def decode_load(self, size: int) -> DecodeLoad:
        with self._failing("prepare a decoding load"):
            return load.GraphLoad(self._torch, self._device, size)

    def step(self, load: Any) -> None:
        with self._failing("decode"):
            load.step()

    def mark(self, stream: Any) -> Any:
        with self._failing("copy"):
            event = self._torch.cuda.Event(enable_timing=True)
            event.record(stream)
            return event

    def seconds(self, start: Any, end: Any) -> float:
        with self._failing("copy"):
            start.synchronize()
            end.synchronize()
            return float(start.elapsed_time(end)) / 1e3

    def wait(self, stream: Any) -> None:
        with self._failing("copy"):
            stream.synchronize()

    def fill(self, memory: Any, key: int) -> None:
        with self._failing("write a pattern"):
            fill_tensor(memory, key)
            self._torch.cuda.synchronize(self._device)

    def wrong_words(self, memory: Any, key: int, size: int) -> int:
        with self._failing("compare a pattern"):
            return wrong_tensor_words(memory, key, size)

    @contextlib.contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """torch reports every CUDA failure as a RuntimeError; its first line says what CUDA said."""
        try:
            yield
        except KvplanError as error:
            raise KvplanError(f"gpu{self.index}: could not {what}: {error}") from None
        except (RuntimeError, TypeError, ValueError) as error:
            first = str(error).splitlines()[0]
            raise KvplanError(f"gpu{self.index}: could not {what}: {first}") from None


def _mechanisms(driver: mechanisms.Driver | None) -> tuple[Mechanism, ...]:
    """What can be tried: whether the driver really does it shows when it is measured."""
    if driver is None:
        return ("loop",)
    return ("loop", "batch", "gather") if driver.batches else ("loop", "gather")


def _pci(facts: Any) -> str | None:
    """'0000:3b:00.0' from torch's device properties, which newer versions have."""
    domain, bus, slot = (getattr(facts, name, None) for name in ("pci_domain_id", "pci_bus_id", "pci_device_id"))
    if domain is None or bus is None or slot is None:
        return None
    return f"{domain:04x}:{bus:02x}:{slot:02x}.0"


def devices() -> tuple[TorchGpu, ...]:
    """The CUDA devices that this process may use. Raises KvplanError where torch is absent or finds none."""
    if importlib.util.find_spec("torch") is None:
        raise KvplanError("measuring a GPU needs torch with CUDA: install kvplan[gpu]")
    import torch

    with warnings.catch_warnings(record=True) as said:  # where the driver does not start, torch warns why
        warnings.simplefilter("always")
        available = torch.cuda.is_available()
    if not available:
        built = f"torch {torch.__version__}"
        why = "was built without CUDA" if torch.version.cuda is None else "finds no usable CUDA device"
        told = f" ({str(said[0].message).splitlines()[0]})" if said else ""
        raise KvplanError(
            f"measuring a GPU needs torch with CUDA, but {built} {why}{told}: check the driver and kvplan[gpu]"
        )
    try:
        return tuple(TorchGpu(ordinal) for ordinal in range(torch.cuda.device_count()))
    except RuntimeError as error:
        raise KvplanError(f"measuring a GPU: CUDA does not start: {str(error).splitlines()[0]}") from None
