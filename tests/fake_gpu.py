"""A GPU made of host memory: it moves real bytes, keeps real time, and can be told to misbehave."""

from __future__ import annotations

import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any

import numpy as np

from kvplan.errors import KvplanError
from kvplan.probing.cuda import HostArray, PinError, base_words, fill_host, wrong_host_words
from kvplan.probing.mechanisms import Direction, Mechanism
from kvplan.units import GiB


@dataclass
class FakeGpu:
    """Copies run when they are submitted. `corrupt_after`, `lose_after`: the number of bytes after which one byte is
    flipped, or one copy reports success and moves nothing. `pin_limit`: bytes that can be page-locked, in all.
    `refuses`: mechanisms that the driver turns down. `dies_after`: bytes after which nothing works any more."""

    index: int = 0
    pci: str | None = None
    memory_bytes: int = GiB
    pin_limit: int | None = None
    largest_pin: int | None = None
    corrupt_after: int | None = None
    lose_after: int | None = None
    refuses: tuple[str, ...] = ()
    dies_after: int | None = None
    admits_pinned: bool = True
    error: Exception | None = None
    pinned: dict[int, int] = field(default_factory=dict)
    peak_pinned: int = 0
    moved: dict[str, int] = field(default_factory=lambda: {"h2d": 0, "d2h": 0})
    waits: int = 0
    mechanisms: tuple[Mechanism, ...] = ("loop", "batch", "gather")

    def free_bytes(self) -> int:
        return self.memory_bytes

    def total_bytes(self) -> int:
        return self.memory_bytes

    def pin(self, address: int, size: int) -> None:
        assert address % 4096 == 0
        total = sum(self.pinned.values()) + size
        if self.pin_limit is not None and total > self.pin_limit:
            raise PinError("cudaHostRegister: out of memory")
        if self.largest_pin is not None and size > self.largest_pin:
            raise PinError("cudaHostRegister: invalid argument")
        self.pinned[address] = size
        self.peak_pinned = max(self.peak_pinned, total)

    def unpin(self, address: int) -> None:
        del self.pinned[address]

    def is_pinned(self, host: HostArray) -> bool:
        return self.admits_pinned and self._inside(host)

    def _inside(self, host: HostArray) -> bool:
        at = host.ctypes.data
        return any(start <= at and at + len(host) <= start + size for start, size in self.pinned.items())

    def allocate(self, size: int) -> HostArray:
        return np.zeros(size, dtype=np.uint8)

    def stream(self) -> str:
        return "stream"

    def prepare(
        self, direction: Direction, host: HostArray, memory: HostArray, granule: int, mechanism: Mechanism = "loop"
    ) -> list[Any]:
        if mechanism in self.refuses:
            raise KvplanError(f"gpu{self.index}: could not copy: CUDA_ERROR_NOT_SUPPORTED")
        ends = [(memory[at : at + granule], host[at : at + granule]) for at in range(0, len(host), granule)]
        pieces = [(direction, *(end if direction == "h2d" else end[::-1])) for end in ends]
        return pieces if mechanism == "loop" else [pieces]

    def decode_load(self, size: int) -> Any:
        if "decode" in self.refuses:
            raise KvplanError(f"gpu{self.index}: could not prepare a decoding load: CUDA out of memory")
        return SimpleNamespace(words="nothing", step_bytes=size, stream="decode")

    def step(self, load: Any) -> None:
        pass

    def submit(self, stream: Any, pieces: Sequence[Any]) -> None:
        for piece in pieces:
            for single in piece if isinstance(piece, list) else [piece]:
                self._move(stream, single)

    def _move(self, stream: Any, piece: Any) -> None:
        direction, target, source = piece
        if self.error is not None:
            raise self.error
        before = sum(self.moved.values())
        if self.dies_after is not None and before >= self.dies_after:
            raise KvplanError(f"gpu{self.index}: could not copy: CUDA error: unspecified launch failure")
        self.moved[direction] += len(source)
        after = sum(self.moved.values())
        if self.lose_after is None or not before <= self.lose_after < after:
            target[:] = source
        if self.corrupt_after is not None and before <= self.corrupt_after < after:
            target[self.corrupt_after - before] ^= 0x10

    def mark(self, stream: Any) -> float:
        return time.perf_counter()

    def seconds(self, start: float, end: float) -> float:
        return end - start

    def wait(self, stream: Any) -> None:
        self.waits += 1
        if self.dies_after is not None and sum(self.moved.values()) >= self.dies_after:
            raise KvplanError(f"gpu{self.index}: could not copy: CUDA error: unspecified launch failure")

    def fill(self, memory: HostArray, key: int) -> None:
        fill_host(memory, base_words(len(memory)), key)

    def wrong_words(self, memory: HostArray, key: int, size: int) -> int:
        return wrong_host_words(memory[:size], base_words(size), key)


@dataclass
class TimedGpu(FakeGpu):
    """A GPU with a clock for each stream: copies and decoding steps take their time, more while the other is at work.
    `copy_rate` in bytes per second, `step_s` in seconds; `slowed` is by how much each slows down."""

    copy_rate: float = 10e9
    step_s: float = 1e-3
    slowed: float = 1.0
    clocks: dict[str, float] = field(default_factory=dict)
    streams: int = 0
    waited: float = 0.0
    pending: set[str] = field(default_factory=set)

    def stream(self) -> str:
        self.streams += 1
        return f"copy {self.streams}"

    def _advance(self, stream: str, seconds: float, others: bool) -> None:
        now = self.mark(stream)
        busy = any((name == "decode") == others for name in self.pending)
        self.pending.add(stream)
        self.clocks[stream] = now + seconds * (self.slowed if busy else 1.0)

    def _move(self, stream: str, piece: Any) -> None:
        super()._move(stream, piece)
        self._advance(stream, len(piece[1]) / self.copy_rate, True)

    def step(self, load: Any) -> None:
        self._advance(load.stream, self.step_s, False)

    def mark(self, stream: str) -> float:
        return max(self.clocks.get(stream, 0.0), self.waited)

    def wait(self, stream: str) -> None:
        """Whoever waits for a stream gives work to the others no earlier than now."""
        super().wait(stream)
        self.pending.discard(stream)
        self.waited = self.mark(stream)
