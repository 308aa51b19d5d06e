"""The kernel's own queues for file transfers, libaio and io_uring, by raw system calls: rows to compare threads with.

A container's seccomp profile often forbids io_uring, and an old kernel lacks it: then a queue cannot be opened, which
is Unavailable, not a failure of the drive. No serving engine's file path depends on what is measured here.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import platform
import struct
from collections.abc import Sequence
from typing import Protocol

from kvplan.probing.pattern import Buffer

_libc = ctypes.CDLL(None, use_errno=True)
_libc.syscall.restype = ctypes.c_long


class UnavailableError(Exception):
    """This kernel or container does not offer the queue: why, in words."""


class Queue(Protocol):
    """Transfers in flight, each known by the slot whose buffer it uses."""

    def submit(self, slot: int, offset: int) -> None:
        """Start the transfer of a slot's buffer at a byte of the file."""

    def wait(self) -> list[tuple[int, int]]:
        """(slot, bytes or negative errno) of transfers that are done; at least one."""

    def close(self) -> None:
        """Wait for what is in flight, and free the queue."""


# libaio's calls by architecture; io_uring's are the same everywhere.
_AIO_CALLS = {"x86_64": (206, 207, 208, 209), "aarch64": (0, 1, 4, 2)}  # setup, destroy, getevents, submit
_URING_SETUP, _URING_ENTER, _URING_REGISTER = 425, 426, 427


def _call(number: int, *arguments: object) -> int:
    status = int(_libc.syscall(ctypes.c_long(number), *arguments))
    if status < 0:
        code = ctypes.get_errno()
        raise OSError(code, os.strerror(code))
    return status


def _opened(number: int, *arguments: object) -> int:
    """As `_call`; a refusal means that the queue is unavailable."""
    try:
        return _call(number, *arguments)
    except OSError as error:
        if error.errno in (errno.EPERM, errno.ENOSYS, errno.EACCES, errno.ENOMEM, errno.EINVAL, errno.EAGAIN):
            raise UnavailableError(f"{errno.errorcode.get(error.errno, '?')}: {error.strerror}") from None
        raise


def _address(buffer: Buffer) -> int:
    return ctypes.addressof(ctypes.c_char.from_buffer(buffer.area))


class Aio:
    """libaio: io_submit and io_getevents."""

    _READ, _WRITE, _EVENT_BYTES = 0, 1, 32

    def __init__(self, descriptor: int, buffers: Sequence[Buffer], size: int, writes: bool) -> None:
        calls = _AIO_CALLS.get(platform.machine())
        if calls is None:
            raise UnavailableError(f"call numbers for {platform.machine()} unknown")
        self._destroy, self._getevents, self._submit = calls[1:]
        self._context = ctypes.c_ulong(0)
        _opened(calls[0], len(buffers), ctypes.byref(self._context))
        self._events = ctypes.create_string_buffer(self._EVENT_BYTES * len(buffers))
        code = self._WRITE if writes else self._READ
        # struct iocb: data, key, rw_flags, opcode, reqprio, fildes, buf, nbytes, offset, reserved, flags, resfd
        self._blocks = [
            ctypes.create_string_buffer(
                struct.pack("=QIiHhIQQqQII", slot, 0, 0, code, 0, descriptor, _address(buffer), size, 0, 0, 0, 0), 64
            )
            for slot, buffer in enumerate(buffers)
        ]
        self._pointers = [ctypes.c_void_p(ctypes.addressof(block)) for block in self._blocks]

    def submit(self, slot: int, offset: int) -> None:
        """One io_submit."""
        struct.pack_into("=q", self._blocks[slot], 40, offset)
        _call(self._submit, self._context, ctypes.c_long(1), ctypes.byref(self._pointers[slot]))

    def wait(self) -> list[tuple[int, int]]:
        """One io_getevents."""
        most = ctypes.c_long(len(self._blocks))
        count = _call(self._getevents, self._context, ctypes.c_long(1), most, self._events, None)
        places = range(0, count * self._EVENT_BYTES, self._EVENT_BYTES)
        return [struct.unpack_from("=Q8xq", self._events, place) for place in places]

    def close(self) -> None:
        """io_destroy waits for what is in flight."""
        _call(self._destroy, self._context)


class Uring:
    """io_uring: one ring, an io_uring_enter a submission; `fixed` registers the buffers with the kernel beforehand."""

    _READ, _WRITE, _READ_FIXED, _WRITE_FIXED = 22, 23, 4, 5
    _SINGLE_MMAP, _GETEVENTS, _REGISTER_BUFFERS = 1, 1, 0
    _SQES_OFFSET = 0x10000000

    def __init__(
        self, descriptor: int, buffers: Sequence[Buffer], size: int, writes: bool, *, fixed: bool = False
    ) -> None:
        self._file, self._size, self._fixed = descriptor, size, fixed
        self._buffers = buffers
        self._code = (self._WRITE_FIXED if writes else self._READ_FIXED) if fixed else self._WRITE
        if not fixed and not writes:
            self._code = self._READ
        facts = ctypes.create_string_buffer(120)
        self._ring = _opened(_URING_SETUP, len(buffers), facts)
        try:
            self._map(facts)
            if fixed:
                vectors = b"".join(struct.pack("=QQ", _address(buffer), size) for buffer in buffers)
                _opened(_URING_REGISTER, self._ring, self._REGISTER_BUFFERS, vectors, len(buffers))
        except BaseException:
            os.close(self._ring)
            raise

    def _map(self, facts: ctypes.Array[ctypes.c_char]) -> None:
        """Lay the rings out as struct io_uring_params tells: submission offsets from byte 40, completion from 80."""
        entries, completions, _, _, _, features = struct.unpack_from("=IIIIII", facts, 0)
        if not features & self._SINGLE_MMAP:
            raise UnavailableError("this kernel's io_uring maps its rings apart")
        _, self._tail, self._mask_at, _, _, _, self._array = struct.unpack_from("=7I", facts, 40)
        self._done_head, self._done_tail, done_mask, _, _, self._done = struct.unpack_from("=6I", facts, 80)
        length = max(self._array + entries * 4, self._done + completions * 16)
        self._rings = mmap.mmap(self._ring, length, mmap.MAP_SHARED | mmap.MAP_POPULATE)
        self._entries = mmap.mmap(
            self._ring, entries * 64, mmap.MAP_SHARED | mmap.MAP_POPULATE, offset=self._SQES_OFFSET
        )
        self._mask, self._done_mask = self._word(self._mask_at), self._word(done_mask)

    def _word(self, place: int) -> int:
        value: int = struct.unpack_from("=I", self._rings, place)[0]
        return value

    def submit(self, slot: int, offset: int) -> None:
        """Fill an entry, publish it, enter the kernel: the system call orders the writes."""
        tail = self._word(self._tail)
        place = tail & self._mask
        # struct io_uring_sqe: opcode, flags, ioprio, fd, off, addr, len, rw_flags, user_data, buf_index, 22 more bytes
        entry = (self._code, 0, 0, self._file, offset, _address(self._buffers[slot]), self._size, 0, slot)
        struct.pack_into("=BBHiQQIIQH22x", self._entries, place * 64, *entry, slot if self._fixed else 0)
        struct.pack_into("=I", self._rings, self._array + place * 4, place)
        struct.pack_into("=I", self._rings, self._tail, (tail + 1) & 0xFFFFFFFF)
        _call(_URING_ENTER, self._ring, 1, 0, 0, None, 0)

    def wait(self) -> list[tuple[int, int]]:
        """Enter the kernel until one is done, and take all that are."""
        _call(_URING_ENTER, self._ring, 0, 1, self._GETEVENTS, None, 0)
        head, tail = self._word(self._done_head), self._word(self._done_tail)
        found = []
        while head != tail:
            slot, result = struct.unpack_from("=Qi", self._rings, self._done + (head & self._done_mask) * 16)
            found.append((slot, result))
            head = (head + 1) & 0xFFFFFFFF
        struct.pack_into("=I", self._rings, self._done_head, head)
        return found

    def close(self) -> None:
        """Closing the ring cancels what is in flight; the kernel holds the pages until it is done with them."""
        self._rings.close()
        self._entries.close()
        os.close(self._ring)


def io_uring_forbidden() -> str | None:
    """The setting that forbids io_uring to this process, None where none tells."""
    try:
        with open("/proc/sys/kernel/io_uring_disabled") as stream:
            state = stream.read().strip()
    except OSError:
        return None
    return f"kernel.io_uring_disabled = {state}" if state in ("1", "2") else None
