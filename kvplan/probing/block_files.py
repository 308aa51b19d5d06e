"""A file for every block, as file-system tiers keep them: opened, moved by one call, closed.

The files have no names (O_TMPFILE), so that nothing is left however the probe ends; a block is replaced by a new file,
as engines do by renaming. What this leaves out is the directory entry and the rename.
"""

from __future__ import annotations

import errno
import os
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvplan.probing import directio
from kvplan.probing.disk_io import Job, Side
from kvplan.probing.pattern import Buffer, Pattern, Views

MOST_FILES = 192  # descriptors are scarce: the usual soft limit is 1024


class BlockFiles:
    """Nameless files, one for each block of a pattern's granule."""

    def __init__(self, folder: Path, pattern: Pattern, direct: bool) -> None:
        self.folder, self.pattern = folder, pattern
        self.flags = os.O_CLOEXEC | (os.O_DIRECT if direct else 0)
        self.files: list[int] = []
        self.lock = threading.Lock()

    def fill(self, count: int) -> None:
        """Write the files of blocks 0 to `count`. Raises OSError where the folder cannot have nameless files."""
        _, block = self.pattern.writer()
        for index in range(count):
            self.files.append(self.create(block(index)))

    def create(self, views: Views) -> int:
        """The descriptor of a new file that holds one block."""
        descriptor = os.open(self.folder, os.O_TMPFILE | os.O_EXCL | os.O_RDWR | self.flags, 0o600)
        try:
            if os.pwritev(descriptor, views, 0) != self.pattern.granule:
                raise OSError(errno.EIO, "short write")
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def replace(self, index: int, descriptor: int) -> None:
        """Put a new file in the place of a block's old one, which is freed."""
        with self.lock:
            old, self.files[index] = self.files[index], descriptor
        os.close(old)

    def side(self, job: Job, writes: bool) -> Side:
        """What disk_io asks for: one thread's way to move blocks."""
        return _Store(self) if writes else _Load(self, job)

    def cached_pages(self) -> int | None:
        """Pages of all files in the page cache."""
        counts = [directio.cached_pages(descriptor, self.pattern.granule) for descriptor in self.files]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def read_back(self, blocks: tuple[int, ...]) -> tuple[int, int]:
        """(bytes read, wrong pages) of some blocks."""
        buffer, wrong = Buffer(self.pattern.granule), 0
        for index in set(blocks):
            if os.preadv(self.files[index], buffer.views[0], 0) != self.pattern.granule:
                raise OSError(errno.EIO, "short read")
            wrong += self.pattern.wrong_pages(buffer.content(), index * self.pattern.granule)
        return len(set(blocks)) * self.pattern.granule, wrong

    def close(self) -> None:
        """Free every file."""
        while self.files:
            os.close(self.files.pop())


class _Load:
    """Opens a block's file, reads it whole, closes it."""

    def __init__(self, files: BlockFiles, job: Job) -> None:
        self.files = files
        self.buffer = Buffer(job.granule)

    def prepare(self, index: int) -> None:
        """Nothing to do."""

    def move(self, index: int) -> int:
        """Bytes read."""
        descriptor = os.open(f"/proc/self/fd/{self.files.files[index]}", os.O_RDONLY | self.files.flags)
        try:
            return os.preadv(descriptor, self.buffer.views[0], 0)
        finally:
            os.close(descriptor)

    def wrong_pages(self, index: int) -> int:
        """Pages that are not what was written."""
        return self.files.pattern.wrong_pages(self.buffer.content(), index * self.files.pattern.granule)


class _Store:
    """Creates a file, writes it whole, and puts it in the place of the block's old one."""

    def __init__(self, files: BlockFiles) -> None:
        self.files = files
        _, self.block = files.pattern.writer()
        self.views: Views = ()

    def prepare(self, index: int) -> None:
        """Stamp the block with its place."""
        self.views = self.block(index)

    def move(self, index: int) -> int:
        """Bytes written."""
        self.files.replace(index, self.files.create(self.views))
        return self.files.pattern.granule

    def wrong_pages(self, index: int) -> int:
        """Unknown until it is read back."""
        return 0


@contextmanager
def block_files(folder: Path, pattern: Pattern, direct: bool) -> Iterator[BlockFiles]:
    """No files yet; those made are freed at the end."""
    files = BlockFiles(folder, pattern, direct)
    try:
        yield files
    finally:
        files.close()
