"""Log files as numbered lines: plain, gzip, Zstandard or standard input, hashed while they are read."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO, cast

from kvplan.errors import KvplanError
from kvplan.files import reason
from kvplan.progress import Progress

_CHUNK = 1 << 20
_LONGEST_LINE = 1 << 28


class _Hashed(io.RawIOBase):
    """The bytes of a file as they lie, hashed on their way."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.sha256 = hashlib.sha256()
        self.size = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(cast(bytearray, buffer))
        data = self.stream.read(len(view))
        view[: len(data)] = data
        self.sha256.update(data)
        self.size += len(data)
        return len(data)


def _decompressed(stream: io.BufferedReader, name: str) -> BinaryIO:
    magic = stream.peek(4)[:4]
    if magic[:2] == b"\x1f\x8b":
        return cast(BinaryIO, io.BufferedReader(gzip.GzipFile(fileobj=stream), _CHUNK))
    if magic == b"\x28\xb5\x2f\xfd":
        try:
            import zstandard
        except ImportError:
            raise KvplanError(
                f"{name}: is Zstandard-compressed: pip install zstandard, or pipe it in with zstd -dc"
            ) from None
        return cast(BinaryIO, io.BufferedReader(zstandard.ZstdDecompressor().stream_reader(stream), _CHUNK))
    return stream


class Lines:
    """One log file. Iterating gives (number, line) of every line that is not blank, numbers from 1.

    `bad(number, what)` is called by a reader for a line it cannot use: it raises KvplanError, or counts the line in
    `skipped` while `skip_bad` allows. After the last line `sha256` is that of the file's bytes, still compressed.
    """

    def __init__(self, path: Path, skip_bad: int, progress: Progress) -> None:
        self.name = "standard input" if str(path) == "-" else str(path)
        self.skipped = 0
        self.first_bad: str | None = None
        self._path = path
        self._allowed = skip_bad
        self._progress = progress
        self._head: list[tuple[int, bytes]] = []
        self._rest = self._read()

    @property
    def sha256(self) -> str:
        """Hash of all bytes read so far."""
        return self._hashed.sha256.hexdigest()

    def where(self, number: int) -> str:
        """How an error names a line."""
        return f"{self.name}:{number}"

    def bad(self, number: int, what: str) -> None:
        """Take note of a line that cannot be used. Raises KvplanError where the user did not allow to skip it."""
        message = f"{self.where(number)}: {what}"
        if self.skipped >= self._allowed:
            hint = f" (after {self.skipped} bad lines skipped)" if self.skipped else ""
            raise KvplanError(f"{message}{hint}")
        self.skipped += 1
        self.first_bad = self.first_bad or message

    def peek(self, count: int) -> list[tuple[int, bytes]]:
        """The first `count` lines, which iterating still gives."""
        while len(self._head) < count and (line := next(self._rest, None)) is not None:
            self._head.append(line)
        return self._head[:count]

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        head, self._head = self._head, []
        yield from head
        yield from self._rest

    def _open(self) -> BinaryIO:
        if str(self._path) == "-":
            return sys.stdin.buffer
        if self._path.is_dir():
            raise KvplanError(f"{self.name}: is a folder: name the log files in it")
        try:
            return self._path.open("rb", buffering=0)
        except OSError as error:
            raise KvplanError(f"{self.name}: {reason(error)}") from None

    def _read(self) -> Iterator[tuple[int, bytes]]:
        stream = self._open()
        total = os.fstat(stream.fileno()).st_size if stream is not sys.stdin.buffer else 0
        self._hashed = _Hashed(stream)
        told = 0
        number = 0
        try:
            text = _decompressed(io.BufferedReader(self._hashed, _CHUNK), self.name)
            while line := text.readline(_LONGEST_LINE):
                number += 1
                if number == 1:
                    line = line.removeprefix(b"\xef\xbb\xbf")
                if len(line) == _LONGEST_LINE:
                    raise KvplanError(f"{self.where(number)}: a line longer than 256 MiB: this is no JSONL log")
                if self._hashed.size - told >= 8 * _CHUNK:
                    told = self._hashed.size
                    self._progress(f"reading {self.name}", told / total if total else None)
                if not line.isspace():
                    yield number, line
        except (EOFError, gzip.BadGzipFile, zlib.error) as error:
            raise KvplanError(f"{self.name}: broken gzip data after line {number}: {error}") from None
        except OSError as error:
            raise KvplanError(f"{self.name}: {reason(error)}") from None
        finally:
            if stream is not sys.stdin.buffer:
                stream.close()
