"""Lines with the lengths of requests and no blocks: Mooncake's fields without `hash_ids`. They tell load, not reuse."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from typing import Any

import numpy as np

from kvplan.errors import KvplanError
from kvplan.formats import times
from kvplan.formats.entries import Entry, collected, decoded, name_at, number, seconds, tenant, tokens
from kvplan.formats.hashed import lengths_only
from kvplan.formats.lines import Lines
from kvplan.formats.roles import DURATION_UNITS, Fields
from kvplan.formats.rows import Options, Rows

_OWN = {
    "time": "timestamp",
    "input_tokens": "input_length",
    "output_tokens": "output_length",
    "session": "session_id",
    "duration": "duration_ms",
}


def detect(row: dict[str, Any]) -> bool:
    """Whether a decoded line is of this format."""
    return "input_length" in row and "hash_ids" not in row and "messages" not in row


def read(lines: Lines, options: Options) -> Rows:
    """Read a whole file. Raises KvplanError naming the line that is malformed."""
    names = Fields(_OWN, options.columns)
    scale = DURATION_UNITS[names.role("duration") or "duration_ms"]
    timed: bool | None = None

    def entry(line: int, row: dict[str, Any]) -> Iterable[Entry]:
        nonlocal timed
        time = number(row, names["time"], np.nan)
        timed = not np.isnan(time) if timed is None else timed
        if timed == np.isnan(time):
            raise ValueError(f"has {'no' if timed else 'a'} time stamp, unlike the lines before")
        yield Entry(
            line=line,
            time_s=time,
            input_tokens=tokens(row, names["input_tokens"]),
            output_tokens=tokens(row, names["output_tokens"], 0),
            keys=np.zeros(0, np.int64),
            duration_s=seconds(row, names["duration"], scale),
            tenant=tenant(row, options),
            session=name_at(row, names["session"]),
        )

    columns = collected(decoded(lines, entry))
    if not columns.line.size:
        raise KvplanError(f"{lines.name}: no requests in it")
    names.need(lines, "time", bool(timed))
    names.need(lines, "output_tokens", bool(columns.output_tokens.any()))
    names.need(lines, "duration", columns.duration_s is not None and not np.isnan(columns.duration_s).all())
    names.need(lines, "session", any(columns.session))
    time_s, findings = times.read(columns.time_s, names["time"], names.role("time"), "ms", "Mooncake traces")
    return lengths_only(replace(columns, time_s=time_s), findings)
