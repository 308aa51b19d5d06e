"""Parquet tables, read with pyarrow a batch of rows at a time; lists of block ids come over without a copy."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from kvplan.errors import KvplanError
from kvplan.formats.lines import Lines
from kvplan.formats.rows import Keys, Options, Rows
from kvplan.formats.source import first_line
from kvplan.formats.table import Batch, Table, roles

MAGIC = b"PAR1"

_BATCH = 1 << 20  # block ids a batch, about


def read(lines: Lines, options: Options) -> Rows:
    """Read a whole file. Raises KvplanError naming the column or row that cannot be used."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise KvplanError(f"{lines.name}: reading Parquet needs pyarrow: pip install 'kvplan[logs]'") from None
    try:
        with lines.whole() as stream, parquet.ParquetFile(stream) as file:
            schema = file.schema_arrow
            flat = [field.name for field in schema if not pyarrow.types.is_nested(field.type)]
            lists = [field.name for field in schema if _is_list(pyarrow.types, field.type)]
            found = roles(lines, [*flat, *lists], options)
            ids = _ids(pyarrow, file, found.get("hash_ids"))
            table = Table(lines, options, found)
            for batch in _batches(file, ids, lines, table.found, options):
                table.add(batch)
    except (pyarrow.ArrowException, OSError) as error:
        raise KvplanError(f"{lines.name}: not a readable Parquet file: {first_line(error)}") from None
    return table.rows()


def _is_list(types: Any, kind: Any) -> bool:
    return bool(types.is_list(kind) or types.is_large_list(kind))


def _ids(pyarrow: Any, file: Any, name: str | None) -> int:
    """How many block ids a column has, which the file's directory knows; 0 where there is no such column."""
    if name is None or not _is_list(pyarrow.types, file.schema_arrow.field(name).type):
        return 0
    groups = [file.metadata.row_group(i) for i in range(file.num_row_groups)]
    columns = [group.column(i) for group in groups for i in range(group.num_columns)]
    return sum(column.num_values for column in columns if column.path_in_schema.split(".")[0] == name)


def _batches(file: Any, ids: int, lines: Lines, found: dict[str, str], options: Options) -> Iterator[Batch]:
    row, rows = 1, file.metadata.num_rows
    size = max(64, _BATCH * max(rows, 1) // max(ids, rows, 1))
    for groups in _row_groups(file, size):
        for batch in file.iter_batches(size, groups, columns=sorted(set(found.values())), use_threads=False):
            options.progress(f"reading {lines.name}", row / max(rows, 1))
            yield Batch(
                line=np.arange(row, row + batch.num_rows),
                columns={role: _column(batch.column(name)) for role, name in found.items() if role != "hash_ids"},
                lists=_lists(lines, found["hash_ids"], batch.column(found["hash_ids"]))
                if "hash_ids" in found
                else None,
            )
            row += batch.num_rows


def _row_groups(file: Any, rows: int) -> Iterator[list[int]]:
    """The file's row groups, as few together as have so many rows: pyarrow lets go of what it read only at the end."""
    some, size = [], 0
    for group in range(file.num_row_groups):
        some.append(group)
        size += file.metadata.row_group(group).num_rows
        if size >= rows:
            yield some
            some, size = [], 0
    if some:
        yield some


def _column(column: Any) -> Any:
    return column.to_numpy(zero_copy_only=False)


def _lists(lines: Lines, name: str, column: Any) -> tuple[Keys, Any]:
    """A column of lists as one array of keys, and where each row ends in it."""
    import pyarrow
    from pyarrow import compute

    if not _is_list(pyarrow.types, column.type):
        raise KvplanError(f"{lines.name}: its column {name} holds {column.type}, not lists of block ids")
    counts = compute.fill_null(compute.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    values = column.flatten()
    if values.null_count:
        raise KvplanError(f"{lines.name}: its column {name} has empty places in its lists")
    kind = values.type
    if pyarrow.types.is_integer(kind):
        keys = values.to_numpy()
        keys = keys.view(np.int64) if kind == pyarrow.uint64() else keys
    elif pyarrow.types.is_string(kind) or pyarrow.types.is_large_string(kind) or pyarrow.types.is_binary(kind):
        import pandas

        keys = pandas.util.hash_array(values.to_numpy(zero_copy_only=False)).view(np.int64)
    else:
        raise KvplanError(f"{lines.name}: its column {name} holds lists of {kind}, not of block ids")
    return keys, np.cumsum(counts, dtype=np.int64)
