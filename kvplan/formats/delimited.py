"""CSV files with a request a row, read with pandas a stretch at a time."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from kvplan.errors import KvplanError
from kvplan.formats.lines import Lines
from kvplan.formats.rows import Keys, Options, Rows
from kvplan.formats.source import first_line
from kvplan.formats.table import Batch, Table, known_header, roles

_ROWS = 1 << 18
_MORE = "\0more"  # the field after the last column: filled where a line has more fields than columns


def header(line: bytes) -> list[str] | None:
    """The column names of a CSV file from its first line, None where that is no such line."""
    try:
        text = line.decode().strip("\r\n")
    except UnicodeDecodeError:
        return None
    if not text or text.lstrip()[:1] in "{[":
        return None
    try:
        names = next(csv.reader([text], delimiter=_separator(text)), [])
    except csv.Error:
        return None
    return [name.strip() for name in names] if all(name.strip() for name in names) else None


def detect(names: Sequence[str], options: Options) -> bool:
    """Whether these are the columns of a request log."""
    return known_header(names) or any(name in names for name in options.columns.values())


def is_table(first: Sequence[bytes]) -> bool:
    """Whether a file's first two lines are those of a table of several columns, whatever these are called."""
    texts = [line.decode("utf-8", "replace").strip("\r\n") for line in first]
    try:
        sizes = [len(next(csv.reader([text], delimiter=_separator(texts[0])), [])) for text in texts]
    except csv.Error:
        return False
    return len(sizes) == 2 and sizes[0] == sizes[1] > 1


def _separator(text: str) -> str:
    return max(",;\t", key=text.count)


def read(lines: Lines, options: Options) -> Rows:
    """Read a whole file. Raises KvplanError naming the column or line that cannot be used."""
    first = lines.peek(1)
    names = header(first[0][1]) if first else None
    if names is None:
        raise KvplanError(f"{lines.name}: its first line does not name columns")
    twice = [name for name in names if names.count(name) > 1]
    if twice:
        raise KvplanError(f"{lines.name}: its first line names the column {twice[0]!r} twice")
    table = Table(lines, options, roles(lines, names, options))
    for batch in _batches(lines, names, table.found, first[0]):
        table.add(batch)
    return table.rows()


class _Stream(io.RawIOBase):
    """The rest of a file as a stream, from its blocks of whole lines."""

    def __init__(self, blocks: Iterator[bytes]) -> None:
        self._blocks = blocks
        self._left = memoryview(b"")

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            block = next(self._blocks, None)
            if block is None:
                return 0
            self._left = memoryview(block)
        size = min(len(buffer), len(self._left))
        buffer[:size] = self._left[:size]
        self._left = self._left[size:]
        return size


def _widened(lines: Lines, number: int, columns: int, separator: str) -> Iterator[bytes]:
    """The blocks of a file whose header, which stands at line `number`, gets one more column."""
    blocks = lines.blocks()
    rest = next(blocks, b"").split(b"\n", number)[number:]
    yield (separator * columns + "\n").encode() + b"".join(rest)
    yield from blocks


def _batches(lines: Lines, names: list[str], found: dict[str, str], first: tuple[int, bytes]) -> Iterator[Batch]:
    import pandas

    number, line = first
    separator = _separator(line.decode())
    try:
        reader = pandas.read_csv(
            io.BufferedReader(_Stream(_widened(lines, number, len(names), separator))),
            sep=separator,
            header=0,
            names=[*names, _MORE],
            usecols=[*sorted(set(found.values())), _MORE],
            index_col=False,
            dtype=str,
            keep_default_na=False,
            na_filter=False,
            skip_blank_lines=False,
            chunksize=_ROWS,
        )
        for frame in reader:
            numbers = np.arange(number + 1, number + 1 + len(frame))
            number += len(frame)
            frame = frame.fillna("")
            long = (frame.pop(_MORE) != "").to_numpy()
            for bad in numbers[long].tolist():
                lines.bad(bad, f"has more fields than the {len(names)} columns")
            keep = ~long & (frame != "").any(axis=1).to_numpy()
            yield _batch(lines, frame[keep], numbers[keep], found)
    except (pandas.errors.ParserError, UnicodeDecodeError, csv.Error) as error:
        raise KvplanError(f"{lines.name}: not a readable CSV file: {first_line(error)}") from None


def _batch(lines: Lines, frame: Any, numbers: Any, found: dict[str, str]) -> Batch:
    columns = {role: frame[name].to_numpy() for role, name in found.items() if role != "hash_ids"}
    if "hash_ids" not in found:
        return Batch(line=numbers, columns=columns, lists=None)
    lists, keep = [], np.ones(len(numbers), np.bool_)
    for i, (number, text) in enumerate(zip(numbers.tolist(), frame[found["hash_ids"]], strict=True)):
        try:
            lists.append(_ids(text))
        except ValueError as error:
            lines.bad(number, f"{found['hash_ids']}: {error}")
            keep[i] = False
    keys: Keys = np.array([key for ids in lists for key in ids], np.uint64).view(np.int64)
    ends = np.cumsum([len(ids) for ids in lists], dtype=np.int64)
    kept = {role: values[keep] for role, values in columns.items()}
    return Batch(line=numbers[keep], columns=kept, lists=(keys, ends))


def _ids(text: str) -> list[int]:
    """Block ids in one cell: a JSON list, or numbers between spaces, commas or semicolons."""
    bare = text.strip().removeprefix("[").removesuffix("]")
    parts = re.split(r"[\s,;]+", bare.strip()) if bare.strip() else []
    try:
        ids = [int(part) for part in parts]
    except ValueError:
        raise ValueError("is no list of whole numbers") from None
    if not all(0 <= key < 2**64 for key in ids):
        raise ValueError("a block id is negative or does not fit 64 bits")
    return ids
