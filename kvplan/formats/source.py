"""Where a log's bytes come from: a file, standard input or an object store, hashed on their way and decompressed."""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import re
import sys
import zlib
from pathlib import Path
from typing import Any, BinaryIO, cast

from kvplan.errors import KvplanError
from kvplan.files import reason

_BUFFER = 1 << 20
_MANGLED = re.compile(r"([a-z][a-z0-9+.-]+):/([^/].*)", re.DOTALL)
# How a file is packed that is not read, by its first bytes, and what unpacks it to standard output.
_PACKED = {b"BZh": ("bzip2", "bzip2 -dc"), b"\xfd7z": ("xz", "xz -dc"), b"PK\x03": ("zip", "unzip -p")}
_URL = re.compile(r"[a-z][a-z0-9+.-]+://")


class Hashed(io.RawIOBase):
    """The bytes of a stream as they lie, hashed and counted on their way."""

    def __init__(self, stream: BinaryIO) -> None:
        self.stream = stream
        self.sha256 = hashlib.sha256()
        self.count = 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: object) -> int:
        view = memoryview(cast(bytearray, buffer))
        data = self.stream.read(len(view))
        view[: len(data)] = data
        self.sha256.update(data)
        self.count += len(data)
        return len(data)


def unmangled(path: Path | str) -> Path | str:
    """A URL as it was given, where a Path has made one slash of its two; anything else as it is."""
    if isinstance(path, Path) and (found := _MANGLED.match(str(path))) and not path.exists():
        return f"{found[1]}://{found[2]}"
    return path


def is_url(path: Path | str) -> bool:
    """Whether a path names an object in a store (`s3://…`) and not a file."""
    return bool(_URL.match(str(path)))


def opened(path: Path | str) -> tuple[BinaryIO, int]:
    """A log's bytes as they lie, and how many there are (0 where that is not known). Raises KvplanError."""
    if str(path) == "-":
        return sys.stdin.buffer, 0
    if is_url(path):
        return _remote(str(path))
    path = Path(path)
    if path.is_dir():
        raise KvplanError(f"{path}: is a folder: name the log files in it")
    try:
        stream = path.open("rb", buffering=0)
    except OSError as error:
        raise KvplanError(f"{path}: {reason(error)}") from None
    return cast(BinaryIO, stream), os.fstat(stream.fileno()).st_size


def _remote(url: str) -> tuple[BinaryIO, int]:
    """An object through fsspec, which finds the package that speaks the store's protocol."""
    try:
        import fsspec
    except ImportError:
        raise KvplanError(f"{url}: reading from an object store needs fsspec: pip install 'kvplan[logs]'") from None
    try:
        stream: Any = fsspec.open(url, "rb").open()
    except ImportError as error:
        raise KvplanError(f"{url}: {error}") from None
    except FileNotFoundError:
        raise KvplanError(f"{url}: no such object") from None
    except Exception as error:  # every store's package raises errors of its own
        raise KvplanError(f"{url}: cannot be opened: {first_line(error)}") from None
    return cast(BinaryIO, stream), int(getattr(stream, "size", 0) or 0)


def first_line(error: Exception) -> str:
    """What a foreign error says, in one line."""
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def decompressed(stream: io.BufferedReader[Any], name: str) -> BinaryIO:
    """The content of a stream that may be gzip or Zstandard, told from its first bytes."""
    magic = stream.peek(4)[:4]
    if magic[:2] == b"\x1f\x8b":
        return cast(BinaryIO, gzip.GzipFile(fileobj=stream))
    if magic == b"\x28\xb5\x2f\xfd":
        try:
            import zstandard
        except ImportError:
            raise KvplanError(
                f"{name}: is Zstandard-compressed: pip install 'kvplan[logs]', or pipe it in with zstd -dc"
            ) from None
        reader = zstandard.ZstdDecompressor().stream_reader(stream, read_across_frames=True)
        return cast(BinaryIO, io.BufferedReader(reader, _BUFFER))
    if packed := _PACKED.get(magic[:3]):
        how, unpack = packed
        raise KvplanError(
            f"{name}: is packed with {how}; gzip and Zstandard are read: unpack it, or pipe it in with {unpack}"
        )
    return stream


def broken_data() -> tuple[type[Exception], ...]:
    """What the decompressors in use raise for data that is cut short or damaged."""
    zstandard = sys.modules.get("zstandard")
    return (EOFError, gzip.BadGzipFile, zlib.error, *((zstandard.ZstdError,) if zstandard else ()))
