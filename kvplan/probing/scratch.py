"""The one file a disk probe writes: it never has a name for longer than an instant, and never touches another file.

It is created inside the given folder, without a name where the file system can (O_TMPFILE), else in a fresh
private folder from which file and folder are removed right after opening. The kernel frees it with the last descriptor,
so even a killed process leaves nothing behind.
"""

from __future__ import annotations

import contextlib
import errno
import fcntl
import mmap
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from kvplan.errors import KvplanError
from kvplan.files import reason
from kvplan.probing import blockdev, directio
from kvplan.units import GiB, MiB, show_bytes

PAGE = 4096
_COARSE = 1 * MiB  # some cluster file systems want direct I/O in such steps
_RESERVE = 10 * GiB
_RESERVE_SHARE = 0.1
_FILE_SHARE = 0.25
_MOST_IN_MEMORY = 256 * MiB
_FLAGS = os.O_RDWR | os.O_CLOEXEC
# What open() and write() say where the file system has no direct I/O or no nameless files.
_UNSUPPORTED = (errno.EINVAL, errno.EOPNOTSUPP, errno.EISDIR, errno.ENOSYS)


@dataclass(frozen=True, slots=True, kw_only=True)
class Folder:
    """A folder that can be probed: where it is, on what, and how many bytes of it a probe may use.

    `memory` names the file system where the folder is in memory and not on a drive.
    """

    path: Path
    device: int
    inode: int
    total_bytes: int
    free_bytes: int
    reserve_bytes: int
    mount: blockdev.Mount | None
    memory: str | None = None

    @property
    def room_bytes(self) -> int:
        """The largest scratch file: a quarter of what is free, never into the reserve, and little of memory."""
        room = max(0, min(int(self.free_bytes * _FILE_SHARE), self.free_bytes - self.reserve_bytes))
        return min(room, _MOST_IN_MEMORY) if self.memory else room


def look(path: Path) -> Folder:
    """Facts of a folder. Raises KvplanError where it is missing, no folder, or cannot be opened."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except NotADirectoryError:
        raise KvplanError(f"{path}: not a folder: name a folder on the drive to measure") from None
    except OSError as error:
        raise KvplanError(f"{path}: cannot open the folder: {reason(error)}") from None
    try:
        memory = directio.ram_file_system(descriptor)
        status, space = os.fstat(descriptor), os.fstatvfs(descriptor)
        identity = directio.statx(descriptor).mount
    finally:
        os.close(descriptor)
    total = space.f_blocks * space.f_frsize
    return Folder(
        path=path,
        device=status.st_dev,
        inode=status.st_ino,
        total_bytes=total,
        free_bytes=space.f_bavail * space.f_frsize,
        reserve_bytes=min(_RESERVE, int(total * _RESERVE_SHARE)),
        mount=blockdev.mount_of(path, identity, blockdev.mounts()),
        memory=memory,
    )


def check_room(folder: Folder, wanted: int) -> None:
    """Raises KvplanError where a scratch file of `wanted` bytes would take more than a probe may."""
    if wanted > folder.room_bytes:
        raise KvplanError(
            f"{folder.path}: only {show_bytes(folder.free_bytes)} free: the scratch file of {show_bytes(wanted)} may "
            f"take a quarter of that and has to leave {show_bytes(folder.reserve_bytes)}: make some room"
        )


def check_still_there(folder: Folder) -> None:
    """Raises KvplanError where the folder was removed or replaced since it was looked at."""
    try:
        status = os.stat(folder.path)
    except OSError as error:
        raise KvplanError(f"{folder.path}: vanished while it was probed: {reason(error)}") from None
    if (status.st_dev, status.st_ino) != (folder.device, folder.inode):
        raise KvplanError(f"{folder.path}: was replaced by another folder while it was probed")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scratch:
    """The open file: `direct` whether it bypasses the page cache as far as open() and one write tell."""

    descriptor: int
    direct: bool
    alignment: int
    reserved: bool


@contextmanager
def scratch_file(folder: Folder, size: int) -> Iterator[Scratch]:
    """A nameless file of `size` bytes, reserved but not yet written, closed and thereby freed at the end.

    Raises KvplanError where the folder refuses it or the space is not there after all.
    """
    try:
        descriptor, direct = _open(folder.path)
    except OSError as error:
        raise KvplanError(f"{folder.path}: cannot create a scratch file: {reason(error)}") from None
    try:
        try:
            reserved = _reserve(descriptor, size)
            alignment = _settle_alignment(descriptor, direct)
        except OSError as error:
            raise KvplanError(f"{folder.path}: cannot reserve {show_bytes(size)}: {reason(error)}") from None
        yield Scratch(
            descriptor=descriptor, direct=alignment is not None, alignment=alignment or PAGE, reserved=reserved
        )
    finally:
        os.close(descriptor)


def _open(folder: Path) -> tuple[int, bool]:
    """(descriptor, opened for direct I/O). Each of nameless and direct is given up only where it is unsupported."""
    for direct in (os.O_DIRECT, 0):
        for create in (_nameless, _unlinked):
            try:
                return create(folder, direct), bool(direct)
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise
                refused = error
    raise refused


def _nameless(folder: Path, direct: int) -> int:
    return os.open(folder, _FLAGS | os.O_TMPFILE | os.O_EXCL | direct, 0o600)


def _unlinked(folder: Path, direct: int) -> int:
    """For file systems that cannot create a file without a name: one in a private folder, both removed at once."""
    private = tempfile.mkdtemp(prefix=".kvplan-", dir=folder)
    name = os.path.join(private, "scratch")
    try:
        descriptor = os.open(name, _FLAGS | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | direct, 0o600)
    finally:
        with contextlib.suppress(FileNotFoundError):  # an open() that was refused may still have created the file
            os.unlink(name)
        os.rmdir(private)
    return descriptor


def _reserve(descriptor: int, size: int) -> bool:
    """Take the space now, so that a full disk shows before the measurement; False where the file system cannot."""
    try:
        os.posix_fallocate(descriptor, 0, size)
    except OSError as error:
        if error.errno not in _UNSUPPORTED:
            raise
        os.ftruncate(descriptor, size)
        return False
    return True


def _settle_alignment(descriptor: int, direct: bool) -> int | None:
    """Step in bytes at which direct I/O really works, by writing; None where it is refused and was switched off."""
    told = directio.statx(descriptor).offset_align or 0
    for step in sorted({max(PAGE, told), _COARSE}) if direct else ():
        with mmap.mmap(-1, step) as page:
            try:
                if os.pwrite(descriptor, page, 0) == step:
                    return step
            except OSError as error:
                if error.errno not in _UNSUPPORTED:
                    raise
    fcntl.fcntl(descriptor, fcntl.F_SETFL, fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_DIRECT)
    return None
