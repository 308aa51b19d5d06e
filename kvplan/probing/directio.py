"""What Linux tells of one open file: alignment for direct I/O, cached pages, extents, and how it reached the device.

Python's os module has none of these calls, so they go through the C library. A call that this kernel or file
system lacks gives None: unknown, which is no proof of anything.
"""

from __future__ import annotations

import ctypes
import errno
import fcntl
import mmap
import os
import struct
from dataclasses import dataclass

import numpy as np

_libc = ctypes.CDLL(None, use_errno=True)

_AT_EMPTY_PATH = 0x1000
_STATX_BASIC, _STATX_MNT_ID, _STATX_DIOALIGN = 0x7FF, 0x1000, 0x2000
_CACHESTAT = 451  # the same number on every architecture
_FIEMAP = 0xC020660B
_FIEMAP_SYNC = 1
_LAST, _UNKNOWN, _DELAYED, _ENCODED, _INLINE, _UNWRITTEN = 0x1, 0x2, 0x4, 0x8, 0x200, 0x800
_EXTENTS_A_CALL = 512

RAM_FILE_SYSTEMS = {0x01021994: "tmpfs", 0x858458F6: "ramfs", 0x958458F6: "hugetlbfs"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Statx:
    """`mount` is the mount's id in mountinfo; `memory_align` and `offset_align` are 0 where direct I/O is refused."""

    mount: int | None
    memory_align: int | None
    offset_align: int | None


def statx(descriptor: int) -> Statx:
    """Direct-I/O alignment (Linux 6.1) and mount id (5.8) of an open file; each None where the kernel does not say."""
    buffer = ctypes.create_string_buffer(256)
    wanted = _STATX_BASIC | _STATX_MNT_ID | _STATX_DIOALIGN
    call = getattr(_libc, "statx", None)
    if call is None or call(descriptor, b"", _AT_EMPTY_PATH, ctypes.c_uint(wanted), buffer) != 0:
        return Statx(mount=None, memory_align=None, offset_align=None)
    (mask,) = struct.unpack_from("=I", buffer, 0)
    (mount,) = struct.unpack_from("=Q", buffer, 0x90)
    memory, offset = struct.unpack_from("=II", buffer, 0x98)
    told = bool(mask & _STATX_DIOALIGN)
    return Statx(
        mount=mount if mask & _STATX_MNT_ID else None,
        memory_align=memory if told else None,
        offset_align=offset if told else None,
    )


def ram_file_system(descriptor: int) -> str | None:
    """'tmpfs', 'ramfs' or 'hugetlbfs' where an open file or folder lives in memory, else None."""
    buffer = ctypes.create_string_buffer(256)
    if _libc.fstatfs(descriptor, buffer) != 0:
        return None
    (kind,) = struct.unpack_from("=l", buffer, 0)
    return RAM_FILE_SYSTEMS.get(kind & 0xFFFFFFFF)


def cached_pages(descriptor: int, size: int) -> int | None:
    """Pages of the file in the page cache: cachestat (Linux 6.5), else mincore; None where neither answers."""
    pages = _cachestat(descriptor)
    return _mincore(descriptor, size) if pages is None else pages


def _cachestat(descriptor: int) -> int | None:
    whole = struct.pack("=QQ", 0, 0)
    answer = ctypes.create_string_buffer(40)
    if _libc.syscall(_CACHESTAT, descriptor, whole, answer, 0) != 0:
        return None
    (pages,) = struct.unpack_from("=Q", answer, 0)
    return int(pages)


def _mincore(descriptor: int, size: int) -> int | None:
    try:
        mapped = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
    except (OSError, ValueError):
        return None
    present = np.zeros(-(-size // mmap.PAGESIZE), dtype=np.uint8)
    view = np.frombuffer(mapped, dtype=np.uint8)
    status = _libc.mincore(
        ctypes.c_void_p(view.ctypes.data), ctypes.c_size_t(size), ctypes.c_void_p(present.ctypes.data)
    )
    del view
    mapped.close()
    return int((present & 1).sum()) if status == 0 else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Extents:
    """How `size` bytes of a file lie on the device: what reads would not fetch from it as they were written."""

    hole_bytes: int
    unwritten_bytes: int
    encoded_bytes: int

    @property
    def whole(self) -> bool:
        """Every byte is written data on the device."""
        return self.hole_bytes == 0 and self.unwritten_bytes == 0


def extents(descriptor: int, size: int) -> Extents | None:
    """Holes, unwritten and encoded (compressed or encrypted) bytes, by FIEMAP; None where the file system has none.

    Reading holes and unwritten extents never reaches the device: a probe would report the speed of clearing memory.
    """
    position = covered = unwritten = encoded = 0
    while position < size:
        found = _fiemap(descriptor, position, size - position)
        if found is None:
            return None
        for logical, length, flags in found:
            length = min(length, size - logical)
            covered += length
            if flags & (_UNWRITTEN | _DELAYED | _UNKNOWN):
                unwritten += length
            if flags & (_ENCODED | _INLINE):
                encoded += length
            position = logical + length
        if not found or found[-1][2] & _LAST:
            break
    return Extents(hole_bytes=size - covered, unwritten_bytes=unwritten, encoded_bytes=encoded)


def _fiemap(descriptor: int, start: int, length: int) -> list[tuple[int, int, int]] | None:
    """(logical offset, length, flags) of the extents from `start`, at most one call's worth."""
    request = bytearray(32 + 56 * _EXTENTS_A_CALL)
    struct.pack_into("=QQIIII", request, 0, start, length, _FIEMAP_SYNC, 0, _EXTENTS_A_CALL, 0)
    try:
        fcntl.ioctl(descriptor, _FIEMAP, request)
    except OSError as error:
        if error.errno in (errno.EOPNOTSUPP, errno.ENOTTY, errno.EINVAL, errno.ENOSYS):
            return None
        raise
    (mapped,) = struct.unpack_from("=I", request, 20)
    found = []
    for index in range(mapped):
        logical, _, size, _, _, flags = struct.unpack_from("=QQQQQI", request, 32 + 56 * index)
        found.append((logical, size, flags))
    return found


@dataclass(frozen=True, slots=True, kw_only=True)
class Moved:
    """Bytes read from and written to storage up to one moment; None where nothing counts them."""

    device_read: int | None
    device_written: int | None
    process_read: int | None
    process_written: int | None


def moved(device: int, root: str = "/") -> Moved:
    """The counters of a block device (st_dev) and of this process. Cached transfers appear in neither."""
    read, written = _device_sectors(f"{root}sys/dev/block/{os.major(device)}:{os.minor(device)}/stat")
    counts = _process_bytes(f"{root}proc/self/io")
    return Moved(
        device_read=read,
        device_written=written,
        process_read=counts.get("read_bytes"),
        process_written=counts.get("write_bytes"),
    )


def _device_sectors(path: str) -> tuple[int | None, int | None]:
    try:
        with open(path) as stream:
            fields = stream.read().split()
    except OSError:
        return None, None
    return int(fields[2]) * 512, int(fields[6]) * 512


def _process_bytes(path: str) -> dict[str, int]:
    try:
        with open(path) as stream:
            pairs = [line.split(":") for line in stream.read().splitlines()]
    except OSError:
        return {}
    return {name: int(value) for name, value in pairs}
