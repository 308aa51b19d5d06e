"""A log file as numbered lines, as blocks of whole lines, as one JSON document, or whole; read once, front to back."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, BinaryIO

import msgspec

from kvplan.errors import KvplanError
from kvplan.files import reason
from kvplan.formats.source import Hashed, broken_data, decompressed, first_line, is_url, opened, unmangled
from kvplan.progress import Progress

_BLOCK = 1 << 20
_LONGEST_LINE = 1 << 28
_BOM = b"\xef\xbb\xbf"
_UTF_16 = (b"\xff\xfe", b"\xfe\xff", b"{\0", b"\0{", b"[\0", b"\0[")  # with its mark, or JSON without one


class Lines:
    """One log file. Iterating gives (number, line) of every line that is not blank, numbers from 1.

    `bad(number, what)` is called by a reader for a line it cannot use: it raises KvplanError, or counts the line in
    `skipped` while `skip_bad` allows. After the last line `sha256` is that of the file's bytes, still compressed.
    """

    def __init__(self, path: Path | str, skip_bad: int, progress: Progress) -> None:
        path = unmangled(path)
        self.name = "standard input" if str(path) == "-" else str(path)
        self.skipped = 0
        self.first_bad: str | None = None
        self._allowed = skip_bad
        self._progress = progress
        self._stream, self._size = opened(path)
        self._hashed = Hashed(self._stream)
        self._buffered = io.BufferedReader(self._hashed, _BLOCK)
        self._first: bytes | None = None  # the first block, once somebody has looked at it
        self._blocks = self._read()
        self._records: list[tuple[int, bytes]] | None = None

    @property
    def sha256(self) -> str:
        """Hash of all bytes read so far."""
        return self._hashed.sha256.hexdigest()

    def close(self) -> None:
        """Let go of the file; what was learnt about it stays."""
        self._blocks.close()
        if self._stream is not sys.stdin.buffer:
            self._stream.close()

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

    def start(self) -> bytes:
        """The file's first bytes, decompressed: whole lines, or all there is; reading still gives them."""
        if self._first is None:
            self._first = next(self._blocks, b"")
        return self._first

    def peek(self, count: int) -> list[tuple[int, bytes]]:
        """The first lines, at most `count`, that are not blank; reading still gives them."""
        if self._records is not None:
            return self._records[:count]
        lines = self.start().split(b"\n", 4 * count)[: 4 * count]
        return [(number, line) for number, line in enumerate(lines, 1) if line.strip()][:count]

    def blocks(self) -> Iterator[bytes]:
        """The content as blocks of whole lines, about a MiB each; the last one may lack its final line break."""
        first = self.start()
        self._first = b""
        if first:
            yield first
        yield from self._blocks

    def __iter__(self) -> Iterator[tuple[int, bytes]]:
        if self._records is not None:
            yield from self._records
            return
        number = 0
        for block in self.blocks():
            for line in block.split(b"\n"):
                number += 1
                if line.strip():
                    yield number, line
            number -= block.endswith(b"\n")

    def read_as_document(self) -> bool:
        """Take the file as one JSON document, an object or an array of them, if it is one: iterating gives the objects.

        Each is numbered by the line it starts at. Call it only where the first line is no object by itself.
        """
        data = b"".join(self.blocks())
        self._first = data
        kind: Any = list[msgspec.Raw] if data.lstrip()[:1] == b"[" else msgspec.Raw
        try:
            parts: Any = msgspec.json.decode(data, type=kind)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return False
        records, at, number = [], 0, 1
        for part in parts if isinstance(parts, list) else [parts]:
            text = bytes(part)
            found = data.index(text, at)
            number += data.count(b"\n", at, found)
            at = found
            records.append((number, text))
        self._records, self._first = records, b""
        return True

    def magic(self) -> bytes:
        """The file's first four bytes as they lie, which reading still gives."""
        with self._named_errors():
            return self._buffered.peek(4)[:4]

    def whole(self) -> BinaryIO:
        """The file as it lies, seekable, for formats whose directory stands at the end. Nothing may be read before."""
        with self._named_errors():
            if not self._stream.seekable():
                return io.BytesIO(self._buffered.read())
            while self._buffered.read(_BLOCK):
                self._progress(f"reading {self.name}", self._hashed.count / self._size if self._size else None)
            self._stream.seek(0)
            return self._stream

    @contextlib.contextmanager
    def _named_errors(self, line: int = 0) -> Iterator[None]:
        try:
            yield
        except KvplanError:
            raise
        except broken_data() as error:
            after = f" after line {line}" if line else ""
            raise KvplanError(f"{self.name}: broken compressed data{after}: {error}") from None
        except OSError as error:
            raise KvplanError(f"{self.name}: {reason(error)}") from None
        except Exception as error:
            if not is_url(self.name):
                raise
            raise KvplanError(
                f"{self.name}: {first_line(error)}"
            ) from None  # a store's package raises errors of its own

    def _read(self) -> Generator[bytes, None, None]:
        told, number, carry = 0, 0, b""
        with self._named_errors():
            text = decompressed(self._buffered, self.name)
        while True:
            with self._named_errors(number):
                data = text.read(_BLOCK)
            if not data:
                break
            if not number and not carry and data[:2] in _UTF_16:
                raise KvplanError(f"{self.name}: is UTF-16: write it as UTF-8 (iconv -f UTF-16 -t UTF-8)")
            if self._hashed.count - told >= 8 * _BLOCK:
                told = self._hashed.count
                self._progress(f"reading {self.name}", told / self._size if self._size else None)
            end = data.rfind(b"\n") + 1
            if not end and len(carry) > _LONGEST_LINE:
                raise KvplanError(f"{self.where(number + 1)}: a line longer than 256 MiB: this is no log")
            if not end:
                carry += data
                continue
            block = carry + data[:end]
            carry = data[end:]
            yield block if number else block.removeprefix(_BOM)
            number += block.count(b"\n")
        if carry:
            yield carry if number else carry.removeprefix(_BOM)
