"""Mooncake traces: one JSON object a line with `timestamp` (ms), `input_length`, `output_length` and `hash_ids`.

Some tools add `block_size`, `session_id` or `duration_ms` to each line, or leave `timestamp` out where only the order
matters.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from kvplan.documents import Finding
from kvplan.formats import hashed
from kvplan.formats.lines import Lines
from kvplan.formats.rows import Options, Rows
from kvplan.formats.scan import Field, Scanner, durations, known, names

_FIELDS = (
    Field(name="input_length", needed=True),
    Field(name="output_length"),
    Field(name="block_size", least=1),
    Field(name="session_id", label=True),
    Field(name="duration_ms"),
)


def detect(row: dict[str, Any]) -> bool:
    """Whether a decoded line is of this format."""
    return "hash_ids" in row and "input_length" in row


def read(lines: Lines, options: Options) -> Rows:
    """Read a whole file. Raises KvplanError naming the line that is malformed or contradicts the block size."""
    scanned = Scanner(lines, options, time="timestamp", ids="hash_ids", fields=_FIELDS).read()
    findings = [] if np.isnan(scanned.time).all() else [_times(bool((scanned.time % 1 != 0).any()))]
    columns = hashed.Columns(
        line=scanned.line,
        time_s=np.divide(scanned.time, 1000, out=scanned.time),
        input_tokens=known(scanned.numbers["input_length"]),
        output_tokens=known(scanned.numbers["output_length"]),
        count=scanned.count,
        keys=None,
        start=scanned.start,
        duration_s=durations(scanned.numbers["duration_ms"]),
        sizes=known(scanned.numbers["block_size"]),
        session=names(scanned.numbers["session_id"]),
        tenant=scanned.tenant,
    )
    return hashed.rows(lines, options, columns, findings, "its field 'block_size'")


def _times(fractions: bool) -> Finding:
    text = "Arrival times are those of 'timestamp', in milliseconds as Mooncake traces have them."
    if not fractions:
        return Finding(severity="info", code="times", text=text)
    text += " Some have fractions: if they are seconds, all rates and intervals here are a thousand times off."
    return Finding(severity="warning", code="times", text=text)
