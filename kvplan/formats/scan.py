"""JSON Lines of requests with block ids, read at the speed of memory: one compiled pass over the bytes.

The pass takes lines of the plain form that tools write: one object of known numbers, one list of block ids, and other
fields that are plain numbers, words or strings. Whatever it meets beyond that (an escape, a nested value, a number it
could round, a mistake) it leaves, line by line, to a full JSON decoder, so both together read what that alone would.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvplan.errors import UsageError
from kvplan.formats.columns import NEVER, Column
from kvplan.formats.lines import Lines
from kvplan.formats.rows import Options, field_at, label, malformed
from kvplan.kernels import compiled, must_compile, part

Ints: TypeAlias = NDArray[np.int64]
Bytes: TypeAlias = NDArray[np.uint8]

_QUOTE, _COLON, _COMMA, _DOT, _MINUS, _ZERO = 34, 58, 44, 46, 45, 48
_OPEN, _CLOSE, _OPEN_LIST, _CLOSE_LIST, _NEWLINE = 123, 125, 91, 93, 10
_TRUE, _FALSE, _NULL = (int.from_bytes(word, "big") for word in (b"true", b"false", b"null"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Field:
    """A whole number that lines may hold: its name, whether every line must, and its range.

    A `label` may be a text as well, which is numbered from beyond that range. One with a `scale` may have fractions:
    it is kept times that, rounded.
    """

    name: str
    needed: bool = False
    least: int = 0
    most: int = 2**40
    label: bool = False
    scale: int = 1


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Scanned:
    """A whole file's usable lines: times are as the file has them, NaN in lines without one.

    Their block ids went to the options' `keyed` from its row `start` on, or to their sink.
    """

    line: Ints
    time: NDArray[np.float64]
    numbers: dict[str, Ints]
    count: Ints
    start: int
    tenant: list[str | None]


@part
def _blank(text: Bytes, at: int) -> int:
    """The next place that is no space within the line."""
    while text[at] == 32 or text[at] == 9 or text[at] == 13:
        at += 1
    return at


@part
def _skipped(text: Bytes, at: int) -> int:
    """The end of a plain value: a string without escapes, a number, true, false or null; -1 for anything else."""
    c = text[at]
    if c == _QUOTE:
        at += 1
        while text[at] != _QUOTE:
            if text[at] < 32 or text[at] > 126 or text[at] == 92:
                return -1
            at += 1
        return at + 1
    if 97 <= c <= 122:
        word = np.int64(0)
        while 97 <= text[at] <= 122 and word < 1 << 40:
            word = word * 256 + np.int64(text[at])
            at += 1
        return at if word in (_TRUE, _FALSE, _NULL) else -1
    if c == _MINUS:
        at += 1
    start = at
    while text[at] >= _ZERO and text[at] < 58:
        at += 1
    if at == start or (text[start] == _ZERO and at > start + 1):
        return -1
    if text[at] == _DOT:
        start = at + 1
        at = start
        while text[at] >= _ZERO and text[at] < 58:
            at += 1
        if at == start:
            return -1
    return at


@part
def _named(text: Bytes, start: int, end: int, names: Bytes, ends: Ints) -> int:
    """Which of `names` (one after another, up to `ends`) stands in the text, -1 for none."""
    low = 0
    for i in range(ends.size):
        if ends[i] - low == end - start:
            same = True
            for j in range(end - start):
                if text[start + j] != names[low + j]:
                    same = False
                    break
            if same:
                return i
        low = ends[i]
    return -1


@part
def _whole(text: Bytes, at: int) -> tuple[Any, int]:
    """A whole number of at most 18 digits and where it ends; -1 for anything else."""
    sign = np.int64(1)
    if text[at] == _MINUS:
        sign = np.int64(-1)
        at += 1
    start, value = at, np.int64(0)
    while text[at] >= _ZERO and text[at] < 58:
        value = value * 10 + (np.int64(text[at]) - _ZERO)
        at += 1
    if at == start or at - start > 18 or (text[start] == _ZERO and at > start + 1):
        return 0, -1
    return sign * value, at


@part
def _decimal(text: Bytes, at: int) -> tuple[float, int]:
    """A number of at most 15 digits, which a double holds and divides exactly; -1 for anything else."""
    if text[at] == _MINUS:
        return 0.0, -1
    value, at = _whole(text, at)
    if at < 0 or value >= 10**15:
        return 0.0, -1
    if text[at] != _DOT:
        return float(value), at
    at, scale = at + 1, 1.0
    start = at
    while text[at] >= _ZERO and text[at] < 58 and value < 10**14:
        value = value * 10 + (np.int64(text[at]) - _ZERO)
        scale *= 10.0
        at += 1
    if at == start or (text[at] >= _ZERO and text[at] < 58):
        return 0.0, -1
    return value / scale, at


@part
def _listed(text: Bytes, at: int, ids: NDArray[np.uint64], used: int) -> tuple[int, int]:
    """Read a list of whole numbers into `ids` from `used` on; where it ends (-1: it is none) and what is used then."""
    if text[at] != _OPEN_LIST:
        return -1, used
    at = _blank(text, at + 1)
    if text[at] == _CLOSE_LIST:
        return at + 1, used
    while True:
        start = at
        value = np.uint64(0)
        digit = text[at] - np.uint8(_ZERO)
        while digit < 10:
            value = value * np.uint64(10) + np.uint64(digit)
            at += 1
            digit = text[at] - np.uint8(_ZERO)
        if at == start or at - start > 19 or (text[start] == _ZERO and at > start + 1):
            return -1, used
        ids[used] = value
        used += 1
        at = _blank(text, at)
        if text[at] == _CLOSE_LIST:
            return at + 1, used
        if text[at] != _COMMA:
            return -1, used
        at = _blank(text, at + 1)


@part
def _line(
    text: Bytes, at: int, names: Bytes, ends: Ints, numbers: Ints, ids: NDArray[np.uint64], used: int
) -> tuple[int, float, int]:
    """One line, from its first character: where it ends (-1: not of the plain form), its time, ids used with it.

    The first two of `names` are those of the list and of the time.
    """
    time, seen = np.nan, 0
    if text[at] != _OPEN:
        return -1, time, used
    at = _blank(text, at + 1)
    while True:
        if text[at] != _QUOTE:
            return -1, time, used
        start = at + 1
        at = start
        while text[at] != _QUOTE:
            if text[at] < 32 or text[at] > 126 or text[at] == 92:
                return -1, time, used
            at += 1
        name = _named(text, start, at, names, ends)
        at = _blank(text, at + 1)
        if text[at] != _COLON or (name >= 0 and seen >> name & 1):
            return -1, time, used
        at = _blank(text, at + 1)
        if name < 0:
            at = _skipped(text, at)
        elif name == 0:
            at, used = _listed(text, at, ids, used)
        elif name == 1:
            time, at = _decimal(text, at)
        else:
            numbers[name - 2], at = _whole(text, at)
        if at < 0:
            return -1, time, used
        seen |= 1 << max(name, 0) if name >= 0 else 0
        at = _blank(text, at)
        if text[at] == _CLOSE:
            at = _blank(text, at + 1)
            return (at if text[at] == _NEWLINE and seen & 1 else -1), time, used
        if text[at] != _COMMA:
            return -1, time, used
        at = _blank(text, at + 1)


@compiled
def _scan(
    text: Bytes,
    at: int,
    number: int,
    row: int,
    used: int,
    names: Bytes,
    ends: Ints,
    limits: Ints,
    line: Ints,
    time: NDArray[np.float64],
    numbers: Ints,
    count: Ints,
    ids: NDArray[np.uint64],
) -> tuple[int, int, int, int]:
    """Read lines until one is not of the plain form or the text ends: (place, line number, rows, ids used)."""
    while at < text.size:
        begin = at
        at = _blank(text, at)
        if text[at] == _NEWLINE:
            at += 1
            number += 1
            continue
        numbers[row] = NEVER
        end, moment, after = _line(text, at, names, ends, numbers[row], ids, used)
        for i in range(limits.shape[0]):
            value = numbers[row, i]
            absent = value == NEVER
            if (absent and limits[i, 0]) or (not absent and (value < limits[i, 1] or value > limits[i, 2])):
                end = -1
        if end < 0:
            at = begin  # an error counts bytes from there
            break
        line[row], time[row], count[row] = number, moment, after - used
        used = after
        row += 1
        at = end + 1
        number += 1
    return at, number, row, used


class Scanner:
    """Reads one file. `time` and `ids` name the fields of the arrival time and of the list of block ids.

    The first of `fields` is the length of the prompt.
    """

    def __init__(self, lines: Lines, options: Options, *, time: str, ids: str, fields: Sequence[Field]) -> None:
        self._lines = lines
        self._options = options
        self._fields = fields
        self._path = options.tenant_by.split(".") if options.tenant_by else []
        self._row: Any = _row_type(time, ids, fields, self._path[:1])
        self._decode = msgspec.json.Decoder(self._row).decode
        names = [ids, time, *(field.name for field in fields)]
        self._names = np.frombuffer("".join(names).encode(), np.uint8)
        self._ends = np.cumsum([len(name) for name in names])
        self._limits = np.array([(field.needed, field.least, field.most) for field in fields], np.int64).reshape(-1, 3)
        self._columns = [Column(), Column(np.float64), *(Column() for _ in range(1 + len(fields)))]
        self._start = options.keyed.rows
        self._scaled = [(i, field.scale) for i, field in enumerate(fields) if field.scale != 1]
        self._tenants: list[str | None] = []
        self._labels: dict[str, int] = {}
        self._ids = np.empty(0, np.uint64)

    def read(self) -> Scanned:
        """The whole file. Raises KvplanError for a line that cannot be used, and UsageError for a tenant field."""
        if must_compile(_scan):
            self._options.progress("compiling the reader (once, some seconds; later runs load it)")
        number = self._block(b"\n", 0)  # so that there is a part even of an empty file
        for block in self._lines.blocks():
            number = self._block(block if block.endswith(b"\n") else block + b"\n", number)
        self._ids = np.empty(0, np.uint64)
        self._options.keyed.file_ends()
        line, time, count, *numbers = (column.take() for column in self._columns)
        columns = dict(zip((field.name for field in self._fields), numbers, strict=True))
        return Scanned(line=line, time=time, numbers=columns, count=count, start=self._start, tenant=self._tenants)

    def _block(self, block: bytes, number: int) -> int:
        text = np.frombuffer(block, np.uint8)
        size = block.count(b"\n")
        if self._ids.size < text.size // 2 + 1:
            self._ids = np.empty(text.size // 2 + 1, np.uint64)
        line, count, time = np.empty(size, np.int64), np.empty(size, np.int64), np.empty(size, np.float64)
        numbers = np.empty((size, len(self._fields)), np.int64)
        at, row, used = 0, 0, 0
        while at < text.size:
            if not self._path:
                before = row
                at, number, row, used = _scan(
                    *(text, at, number, row, used, self._names, self._ends, self._limits),
                    *(line, time, numbers, count, self._ids),
                )
                for i, scale in self._scaled:
                    part = numbers[before:row, i]
                    part[part != NEVER] *= scale
            if at < text.size:
                end = block.index(b"\n", at)
                found = self._slow(number, block[at:end], numbers[row])
                if found is not None:
                    time[row], ids = found
                    self._ids[used : used + ids.size] = ids
                    line[row], count[row] = number, ids.size
                    row, used = row + 1, used + ids.size
                at, number = end + 1, number + 1
        self._options.take(count[:row], numbers[:row, 0].copy(), self._ids[:used].view(np.int64))
        for column, values in zip(self._columns, (line[:row], time[:row], count[:row], *numbers[:row].T), strict=True):
            column.extend(values)
        return number

    def _slow(self, number: int, text: bytes, numbers: Ints) -> tuple[float, NDArray[np.uint64]] | None:
        """A line through the full decoder, None where it is blank or cannot be used."""
        if not text.strip():
            return None
        try:
            row = self._decode(text)
            tenant = label(field_at(row.tenant, self._path[1:]), ".".join(self._path)) if self._path else None
            ids = np.fromiter(row.ids, np.uint64, len(row.ids))
            if row.time is not None and not abs(row.time) < 1e30:
                raise ValueError("its time stamp is no finite number")
        except OverflowError:
            self._lines.bad(number, "a hash id is negative or does not fit 64 bits")
            return None
        except (ValueError, RecursionError) as error:
            self._lines.bad(number, malformed(error))
            return None
        if self._path:
            self._tenants.append(tenant)
        for i, field in enumerate(self._fields):
            value = getattr(row, f"number{i}")
            if isinstance(value, str):
                value = self._labels.setdefault(value, field.most + 1 + len(self._labels))
            numbers[i] = NEVER if value is None else round(value * field.scale)
        return float("nan") if row.time is None else row.time, ids


def _row_type(time: str, ids: str, fields: Sequence[Field], tenant_key: Sequence[str]) -> Any:
    """What a line decodes to: `ids`, `time`, a number a field, and the field that tenants are named in."""
    members: list[Any] = [("ids", list[int]), ("time", float | None, None)]
    names = {"ids": ids, "time": time}
    for i, field in enumerate(fields):
        kind: Any = Annotated[int if field.scale == 1 else float, msgspec.Meta(ge=field.least, le=field.most)]
        kind = kind | str if field.label else kind
        members.append((f"number{i}", kind) if field.needed else (f"number{i}", kind | None, None))
        names[f"number{i}"] = field.name
    for key in tenant_key:
        if key in names.values():
            raise UsageError(f"--tenant-by {key}: that field holds the request itself: name another one")
        members.append(("tenant", Any, None))
        names["tenant"] = key
    members.sort(key=len)  # those that a line must have come first
    return msgspec.defstruct("Row", members, rename=names, gc=False)
