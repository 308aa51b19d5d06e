"""Mooncake traces: one JSON object a line with `timestamp` (ms), `input_length`, `output_length` and `hash_ids`.

Some tools add `block_size`, `session_id` or `duration_ms` to each line, or leave `timestamp` out where only the order
matters.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvplan.formats import hashed, times
from kvplan.formats.columns import absent, durations, known, labels
from kvplan.formats.lines import Lines
from kvplan.formats.roles import DURATION_UNITS, Fields
from kvplan.formats.rows import Options, Rows
from kvplan.formats.scan import Field, Scanner

OWN = {
    "time": "timestamp",
    "input_tokens": "input_length",
    "output_tokens": "output_length",
    "hash_ids": "hash_ids",
    "block_tokens": "block_size",
    "session": "session_id",
    "duration": "duration_ms",
}


def detect(row: dict[str, Any]) -> bool:
    """Whether a decoded line is of this format."""
    return "hash_ids" in row and "input_length" in row


def read(lines: Lines, options: Options) -> Rows:
    """Read a whole file. Raises KvplanError naming the line that is malformed or contradicts the block size."""
    names = Fields(OWN, options.columns)
    unit = DURATION_UNITS[names.role("duration") or "duration_ms"]
    fields = (
        Field(name=names["input_tokens"], needed=True),
        Field(name=names["output_tokens"]),
        Field(name=names["block_tokens"], least=1),
        Field(name=names["session"], label=True),
        Field(name=names["duration"], scale=round(1e6 / unit)),
    )
    scanned = Scanner(lines, options, time=names["time"], ids=names["hash_ids"], fields=fields).read()
    for one in ("output_tokens", "block_tokens", "session", "duration"):
        names.need(lines, one, not absent(scanned.numbers[names[one]]))
    names.need(lines, "time", not np.isnan(scanned.time).all())
    time_s, findings = times.read(scanned.time, names["time"], names.role("time"), "ms", "Mooncake traces")
    columns = hashed.Columns(
        line=scanned.line,
        time_s=time_s,
        input_tokens=known(scanned.numbers[names["input_tokens"]]),
        output_tokens=known(scanned.numbers[names["output_tokens"]]),
        count=scanned.count,
        keys=None,
        start=scanned.start,
        duration_s=durations(scanned.numbers[names["duration"]]),
        sizes=known(scanned.numbers[names["block_tokens"]]),
        session=labels(scanned.numbers[names["session"]]),
        tenant=scanned.tenant,
    )
    return hashed.rows(lines, options, columns, findings, f"its field '{names['block_tokens']}'")
