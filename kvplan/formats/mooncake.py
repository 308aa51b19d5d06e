"""Mooncake traces: one JSON object a line with `timestamp` (ms), `input_length`, `output_length` and `hash_ids`.

The block size is not in the file. It is taken as the only one for which every row has ceil(input / block) ids, or
floor(input / block) where the log keeps full blocks only; a log that several sizes fit is refused, not guessed at.
"""

from __future__ import annotations

from itertools import chain
from typing import Annotated, Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvplan.errors import KvplanError, UsageError
from kvplan.formats.blocks import block_size
from kvplan.formats.lines import Lines
from kvplan.formats.rows import Options, Rows, field_at, label, malformed

Ints: TypeAlias = NDArray[np.int64]

_BATCH = 8192
_Length = Annotated[int, msgspec.Meta(ge=0, le=2**40)]
_Taken: TypeAlias = tuple[int, Any, str | None]  # line number, row, tenant
_Columns: TypeAlias = tuple[
    Ints, Ints, Ints, Ints, Ints, NDArray[np.float64]
]  # line, input, output, ids a row, ids, time


def detect(row: dict[str, Any]) -> bool:
    """Whether a decoded line is of this format."""
    return "hash_ids" in row and "input_length" in row


def read(lines: Lines, options: Options) -> Rows:
    """Read a whole file. Raises KvplanError naming the line that is malformed or contradicts the block size."""
    path = options.tenant_by.split(".") if options.tenant_by else []
    decode = msgspec.json.Decoder(_row_type(path[:1])).decode
    parts: list[_Columns] = []
    batch: list[_Taken] = []
    tenants: list[str | None] = []
    for number, text in lines:
        try:
            row = decode(text)
            tenant = label(field_at(row.tenant, path[1:]), ".".join(path)) if path else None
        except (ValueError, RecursionError) as error:
            lines.bad(number, malformed(error))
            continue
        batch.append((number, row, tenant))
        if len(batch) == _BATCH:
            parts.append(_columns(lines, batch, tenants))
            batch.clear()
    parts.append(_columns(lines, batch, tenants))
    line, input_tokens, output_tokens, count, keys, time_s = (np.concatenate(part) for part in zip(*parts, strict=True))
    if not line.size:
        raise KvplanError(f"{lines.name}: no requests in it")
    keep, block_tokens, finding = block_size(lines, line, input_tokens, count, options.block_tokens)
    return Rows(
        block_tokens=block_tokens,
        line=line[keep],
        time_s=time_s[keep],
        input_tokens=input_tokens[keep],
        output_tokens=output_tokens[keep],
        duration_s=np.full(int(keep.sum()), np.nan),
        count=count[keep],
        keys=keys if keep.all() else keys[np.repeat(keep, count)],
        tenant=[tenant for tenant, kept in zip(tenants, keep, strict=True) if kept] if path else (),
        findings=(finding,),
    )


def _row_type(tenant_key: list[str]) -> Any:
    fields: list[Any] = [
        ("timestamp", float),
        ("input_length", _Length),
        ("hash_ids", list[int]),
        ("output_length", _Length, 0),
    ]
    if not tenant_key:
        return msgspec.defstruct("Row", fields, gc=False)
    if any(tenant_key[0] == name for name, *_ in fields):
        raise UsageError(f"--tenant-by {tenant_key[0]}: that field holds the request itself: name another one")
    return msgspec.defstruct("Row", [*fields, ("tenant", Any, None)], rename={"tenant": tenant_key[0]}, gc=False)


def _columns(lines: Lines, batch: list[_Taken], tenants: list[str | None]) -> _Columns:
    """A batch as arrays, its tenants put to the others. Ids are checked here: one test for all is quicker."""
    try:
        rows = [row for _, row, _ in batch]
        count = np.fromiter((len(row.hash_ids) for row in rows), np.int64, len(rows))
        ids = np.fromiter(chain.from_iterable(row.hash_ids for row in rows), np.uint64, int(count.sum()))
    except OverflowError:
        bad = [number for number, row, _ in batch if not all(0 <= key < 2**64 for key in row.hash_ids)]
        for number in bad:
            lines.bad(number, "a hash id is negative or does not fit 64 bits")
        return _columns(lines, [taken for taken in batch if taken[0] not in bad], tenants)
    tenants.extend(tenant for _, _, tenant in batch)
    return (
        np.fromiter((number for number, _, _ in batch), np.int64, len(rows)),
        np.fromiter((row.input_length for row in rows), np.int64, len(rows)),
        np.fromiter((row.output_length for row in rows), np.int64, len(rows)),
        count,
        ids.view(np.int64),
        np.fromiter((row.timestamp for row in rows), np.float64, len(rows)) / 1000,
    )
