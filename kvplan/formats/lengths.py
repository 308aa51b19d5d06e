"""Lines with the lengths of requests and no blocks: Mooncake's fields without `hash_ids`. They tell load, not reuse."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from kvplan.documents import Finding
from kvplan.errors import KvplanError
from kvplan.formats.entries import Entry, collected, decoded, name_at, number, seconds, tenant, tokens
from kvplan.formats.hashed import lengths_only
from kvplan.formats.lines import Lines
from kvplan.formats.rows import Options, Rows


def detect(row: dict[str, Any]) -> bool:
    """Whether a decoded line is of this format."""
    return "input_length" in row and "hash_ids" not in row and "messages" not in row


def read(lines: Lines, options: Options) -> Rows:
    """Read a whole file. Raises KvplanError naming the line that is malformed."""
    timed: bool | None = None

    def entry(line: int, row: dict[str, Any]) -> Iterable[Entry]:
        nonlocal timed
        time_s = number(row, "timestamp", np.nan) / 1000
        timed = not np.isnan(time_s) if timed is None else timed
        if timed == np.isnan(time_s):
            raise ValueError(f"has {'no' if timed else 'a'} time stamp, unlike the lines before")
        yield Entry(
            line=line,
            time_s=time_s,
            input_tokens=tokens(row, "input_length"),
            output_tokens=tokens(row, "output_length", 0),
            keys=np.zeros(0, np.int64),
            duration_s=seconds(row, "duration_ms", 1000),
            tenant=tenant(row, options),
            session=name_at(row, "session_id"),
        )

    columns = collected(decoded(lines, entry))
    if not columns.line.size:
        raise KvplanError(f"{lines.name}: no requests in it")
    text = "Arrival times are those of 'timestamp', in milliseconds as Mooncake traces have them."
    return lengths_only(columns, [Finding(severity="info", code="times", text=text)] if timed else [])
