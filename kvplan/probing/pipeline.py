"""Blocks between a GPU and a drive through a few page-locked buffers: how much of both stages runs at once.

One thread does the drive's calls, this one the copies; `slots` buffers go round between them. With one slot they take
turns, which is the serial figure. Every block is verified after the last pass: on the GPU for loads, by reading back
what was stored.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from kvplan.documents import Pipeline
from kvplan.probing.cuda import Gpu, HostArray, base_words, fill_host
from kvplan.probing.interrupts import join_all

Way = Literal["store", "load"]
SLOTS = (2, 4, 8)  # two is what vLLM's disk tier has
_KEY = 0x5DEECE66D


@dataclass(frozen=True, slots=True, kw_only=True)
class Ends:
    """A GPU's memory and stream, page-locked slots of one block each, and an open file of as many blocks."""

    gpu: Gpu
    index: int
    memory: Any
    stream: Any
    slots: tuple[HostArray, ...]
    descriptor: int
    disk: str
    blocks: int

    @property
    def block_bytes(self) -> int:
        """Bytes of one block, and of one slot."""
        return len(self.slots[0])


class _Crew:
    """The thread that does the drive's calls in order, and what became of them."""

    def __init__(self, call: Callable[[int, HostArray], None], slots: tuple[HostArray, ...]) -> None:
        self.todo: queue.SimpleQueue[tuple[int, int] | None] = queue.SimpleQueue()
        self.done: queue.SimpleQueue[tuple[int, int] | BaseException] = queue.SimpleQueue()
        self._call, self._slots = call, slots
        self._thread = threading.Thread(target=self._work, daemon=True)

    def __enter__(self) -> _Crew:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.todo.put(None)
        join_all((self._thread,))  # the file and the buffers are given back after this

    def _work(self) -> None:
        while (job := self.todo.get()) is not None:
            try:
                self._call(job[0], self._slots[job[1]])
            except BaseException as error:
                self.done.put(error)
            else:
                self.done.put(job)

    def finished(self) -> tuple[int, int]:
        """The next (block, slot) that is done; raises what its call raised."""
        job = self.done.get()
        if isinstance(job, BaseException):
            raise job
        return job


def measure(ends: Ends, way: Way, slots: int) -> Pipeline:
    """Each stage alone, both in turn, both at once with `slots` buffers, over all blocks once each.

    Raises OSError from the drive and KvplanError from the GPU. The file must have been written before a load.
    """
    size = ends.blocks * ends.block_bytes
    if way == "store":
        ends.gpu.fill(ends.memory, _KEY)
    copy_s, disk_s = _copies(ends, way), _calls(ends, way)
    serial_s, overlapped_s = _run(ends, way, 1), _run(ends, way, slots)
    slower = max(copy_s, disk_s)
    return Pipeline(
        gpu=ends.index,
        disk=ends.disk,
        direction=way,
        slots=slots,
        block_bytes=ends.block_bytes,
        blocks=ends.blocks,
        copy_bytes_per_s=size / copy_s,
        disk_bytes_per_s=size / disk_s,
        serial_bytes_per_s=size / serial_s,
        overlapped_bytes_per_s=size / overlapped_s,
        overlap_ratio=slower / overlapped_s,
        flags=("corrupt",) if _wrong(ends, way) else (),
    )


def fill_file(ends: Ends) -> None:
    """Write every block with the pattern that loads are compared with, each part of one long one."""
    base, slot = base_words(ends.block_bytes * ends.blocks), ends.slots[0]
    words = len(slot) // 8
    for block in range(ends.blocks):
        fill_host(slot, base[block * words : (block + 1) * words], _KEY)
        _whole(os.pwrite(ends.descriptor, slot.data, block * len(slot)), len(slot))


def _whole(moved: int, wanted: int) -> None:
    if moved != wanted:
        raise OSError(f"only {moved} of {wanted} bytes moved")


def _disk_call(ends: Ends, way: Way) -> Callable[[int, HostArray], None]:
    size, descriptor = ends.block_bytes, ends.descriptor
    if way == "load":
        return lambda block, slot: _whole(os.preadv(descriptor, [slot.data], block * size), size)
    return lambda block, slot: _whole(os.pwritev(descriptor, [slot.data], block * size), size)


def _copy(ends: Ends, way: Way, block: int, slot: HostArray) -> None:
    """Move one block between its place on the GPU and a slot, and wait for it."""
    at = block * ends.block_bytes
    part = ends.memory[at : at + ends.block_bytes]
    pieces = ends.gpu.prepare("h2d" if way == "load" else "d2h", slot, part, ends.block_bytes)
    ends.gpu.submit(ends.stream, pieces)
    ends.gpu.wait(ends.stream)


def _copies(ends: Ends, way: Way) -> float:
    """Seconds of all copies, without the drive."""
    began = time.perf_counter()
    for block in range(ends.blocks):
        _copy(ends, way, block, ends.slots[block % len(ends.slots)])
    return time.perf_counter() - began


def _calls(ends: Ends, way: Way) -> float:
    """Seconds of all the drive's calls, one after another as its thread makes them, without the GPU."""
    call = _disk_call(ends, way)
    began = time.perf_counter()
    for block in range(ends.blocks):
        call(block, ends.slots[block % len(ends.slots)])
    return time.perf_counter() - began


def _run(ends: Ends, way: Way, slots: int) -> float:
    """Seconds to move all blocks through both stages with so many buffers."""
    if way == "load" and slots > 1:
        ends.gpu.fill(ends.memory, ~_KEY & (2**64 - 1))  # so that a block that never came is seen
    with _Crew(_disk_call(ends, way), ends.slots[:slots]) as crew:
        began = time.perf_counter()
        (_load if way == "load" else _store)(ends, crew, slots)
        return time.perf_counter() - began


def _load(ends: Ends, crew: _Crew, slots: int) -> None:
    """The drive fills slots ahead; each is copied as it comes and given back."""
    for block in range(min(slots, ends.blocks)):
        crew.todo.put((block, block))
    for following in range(slots, ends.blocks + slots):
        block, slot = crew.finished()
        _copy(ends, "load", block, ends.slots[slot])
        if following < ends.blocks:
            crew.todo.put((following, slot))


def _store(ends: Ends, crew: _Crew, slots: int) -> None:
    """Slots are filled from the GPU as they come free; the drive empties them behind."""
    for block in range(ends.blocks):
        slot = block if block < slots else crew.finished()[1]
        _copy(ends, "store", block, ends.slots[slot])
        crew.todo.put((block, slot))
    for _ in range(min(slots, ends.blocks)):
        crew.finished()


def _wrong(ends: Ends, way: Way) -> int:
    """Words that are not where they should be: on the GPU after loads, in the file after stores."""
    if way == "load":
        return ends.gpu.wrong_words(ends.memory, _KEY, ends.blocks * ends.block_bytes)
    base, slot, wrong = base_words(ends.block_bytes * ends.blocks), ends.slots[0], 0
    words = len(slot) // 8
    for block in range(ends.blocks):
        _whole(os.preadv(ends.descriptor, [slot.data], block * len(slot)), len(slot))
        expected = base[block * words : (block + 1) * words] ^ np.uint64(_KEY)
        wrong += int(np.count_nonzero(slot.view(np.uint64) != expected))
    return wrong
