"""LMCache lookup logs: a line a lookup, with the hashes of a prompt's full chunks and its length in tokens."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np

from kvplan.documents import Finding
from kvplan.formats import hashed
from kvplan.formats.entries import Entry, collected, decoded, key, keys, name_at, number, tenant, tokens
from kvplan.formats.lines import Lines
from kvplan.formats.rows import Options, Rows


def detect(row: dict[str, Any]) -> bool:
    """Whether a decoded line is of this format."""
    return "chunk_hashes" in row and "seq_len" in row


def read(lines: Lines, options: Options) -> Rows:
    """Read a whole file. Raises KvplanError naming the line that is malformed or contradicts the chunk size."""

    def entry(line: int, row: dict[str, Any]) -> Iterable[Entry]:
        model = name_at(row, "model_name")
        salt = np.uint64(key(f"model {model}") if model else 0).astype(np.int64)  # models share nothing
        yield Entry(
            line=line,
            time_s=number(row, "timestamp"),
            input_tokens=tokens(row, "seq_len"),
            output_tokens=0,
            keys=keys(row, "chunk_hashes") ^ salt,
            tenant=tenant(row, options),
            session=name_at(row, "session_id"),
            size=tokens(row, "chunk_size", 0),
        )

    columns = collected(decoded(lines, entry))
    text = "Arrival times are those of 'timestamp', in seconds since 1970 as LMCache logs lookups."
    findings = [Finding(severity="info", code="times", text=text)]
    return hashed.rows(lines, options, columns, findings, "its field 'chunk_size'")
