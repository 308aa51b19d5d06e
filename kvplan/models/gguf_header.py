"""The header of a GGUF file: its metadata and its list of tensors, never a weight and never a vocabulary.

The gguf package says what the type numbers mean and how many bytes each tensor type takes. Its reader is not used: it
makes an array object of every vocabulary entry, which costs seconds where the few numbers wanted here cost
milliseconds. Arrays longer than any list of layers are only counted.
"""

from __future__ import annotations

import math
import mmap
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gguf.constants import GGML_QUANT_SIZES, GGUF_MAGIC, GGMLQuantizationType, GGUFValueType

from kvplan.errors import KvplanError
from kvplan.files import reason

VERSIONS = (2, 3)
LONGEST_KEPT = 10_000  # entries; lists of layers are shorter, vocabularies longer
SCALARS = {
    GGUFValueType.UINT8: "B",
    GGUFValueType.INT8: "b",
    GGUFValueType.UINT16: "H",
    GGUFValueType.INT16: "h",
    GGUFValueType.UINT32: "I",
    GGUFValueType.INT32: "i",
    GGUFValueType.FLOAT32: "f",
    GGUFValueType.BOOL: "?",
    GGUFValueType.UINT64: "Q",
    GGUFValueType.INT64: "q",
    GGUFValueType.FLOAT64: "d",
}


@dataclass(frozen=True, slots=True)
class Counted:
    """An array that was not kept, only counted."""

    length: int


@dataclass(frozen=True, slots=True)
class Tensor:
    """One tensor as listed: its shape, its type's name and its bytes."""

    name: str
    shape: tuple[int, ...]
    type: str
    bytes: int


@dataclass(frozen=True, slots=True)
class Header:
    """One file's header. `text` is the part of the file that was read, for its hash."""

    metadata: Mapping[str, Any]
    tensors: tuple[Tensor, ...]
    text: bytes


def read_header(path: Path) -> Header:
    """The header of a GGUF file. Raises KvplanError naming the file where it is no GGUF file, or damaged."""
    try:
        with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as view:
            return _Cursor(view, str(path)).header()
    except ValueError:
        raise KvplanError(f"{path}: empty or damaged, not a GGUF file") from None
    except OSError as error:
        raise KvplanError(f"{path}: {reason(error)}") from None


class _Cursor:
    """A place in the mapped file, moved by every read; no read goes past the end."""

    def __init__(self, view: mmap.mmap, name: str) -> None:
        self.view, self.name, self.at, self.order = view, name, 0, "<"

    def header(self) -> Header:
        magic, version = self.unpack("II")
        if magic != GGUF_MAGIC:
            raise KvplanError(f"{self.name}: not a GGUF file")
        if not version & 0xFFFF:
            self.order = ">"  # written on a big-endian machine
            (version,) = struct.unpack(">I", struct.pack("<I", version))
        if version not in VERSIONS:
            raise KvplanError(f"{self.name}: GGUF version {version} is not known here (known: 2, 3)")
        tensors, pairs = self.unpack("QQ")
        metadata = {}
        for _ in range(self.bounded(pairs, 12)):
            key = self.string()
            metadata[key] = self.value(self.unpack("I")[0])
        listed = tuple(self.tensor() for _ in range(self.bounded(tensors, 24)))
        return Header(metadata, listed, self.view[: self.at])

    def unpack(self, form: str) -> tuple[Any, ...]:
        form = self.order + form
        start, self.at = self.at, self.at + struct.calcsize(form)
        if self.at > len(self.view):
            raise self.cut()
        return struct.unpack_from(form, self.view, start)

    def cut(self) -> KvplanError:
        return KvplanError(f"{self.name}: a GGUF file that ends in its header: incomplete download?")

    def bounded(self, count: int, least: int) -> int:
        """A count of things of at least `least` bytes each, which the rest of the file must have room for."""
        if count * least > len(self.view) - self.at:
            raise self.cut()
        return count

    def string(self) -> str:
        (length,) = self.unpack("Q")
        start, self.at = self.at, self.at + self.bounded(length, 1)
        return self.view[start : self.at].decode("utf-8", "replace")

    def value(self, kind: int) -> Any:
        form = SCALARS.get(kind)
        if form is not None:
            return self.unpack(form)[0]
        if kind == GGUFValueType.STRING:
            return self.string()
        if kind == GGUFValueType.ARRAY:
            return self.array(*self.unpack("IQ"))
        raise KvplanError(f"{self.name}: metadata of type {kind}, which GGUF does not have")

    def array(self, kind: int, length: int) -> Any:
        form = SCALARS.get(kind)
        if length <= LONGEST_KEPT:
            return [self.value(kind) for _ in range(self.bounded(length, struct.calcsize(form) if form else 8))]
        if form is not None:
            self.at += self.bounded(length, struct.calcsize(form)) * struct.calcsize(form)
        elif kind == GGUFValueType.STRING:
            self.skip_strings(self.bounded(length, 8))
        else:
            raise KvplanError(f"{self.name}: an array of {length} arrays, which no model needs")
        return Counted(length)

    def skip_strings(self, count: int) -> None:
        read, end, at = struct.Struct(self.order + "Q").unpack_from, len(self.view) - 8, self.at
        for _ in range(count):
            if at > end:
                raise self.cut()
            at += 8 + read(self.view, at)[0]
        self.at = at

    def tensor(self) -> Tensor:
        name = self.string()
        (dimensions,) = self.unpack("I")
        shape = self.unpack(f"{self.bounded(dimensions, 8)}Q")
        kind, _ = self.unpack("IQ")
        try:
            named = GGMLQuantizationType(kind)
            elements, size = GGML_QUANT_SIZES[named]
        except (ValueError, KeyError):
            raise KvplanError(f"{self.name}: tensor {name!r} has type {kind}, newer than the installed gguf") from None
        return Tensor(name, shape, named.name, -(-math.prod(shape) // elements) * size)
