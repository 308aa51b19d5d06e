"""Dynamo request traces, version 1: a line an event; ends of requests carry the hashes of the prompt's blocks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from kvplan.documents import Finding
from kvplan.formats import hashed
from kvplan.formats.entries import Entry, collected, decoded, keys, name_at, number, seconds, tenant, tokens
from kvplan.formats.lines import Lines
from kvplan.formats.rows import Options, Rows
from kvplan.units import counted

_SCHEMA = "dynamo.request.trace.v1"


def _record(row: dict[str, Any]) -> dict[str, Any] | None:
    """The trace record of a line, bare or in an envelope."""
    for inner in (row, row.get("event"), row.get("record")):
        if isinstance(inner, dict) and inner.get("schema") == _SCHEMA:
            return inner
    return None


def detect(row: dict[str, Any]) -> bool:
    """Whether a decoded line is of this format."""
    return _record(row) is not None


def read(lines: Lines, options: Options) -> Rows:
    """Read a whole file. Raises KvplanError naming the line that is malformed or contradicts the block size."""
    others = 0

    def entry(line: int, row: dict[str, Any]) -> Iterable[Entry]:
        nonlocal others
        record = _record(row)
        if record is None:
            raise ValueError(f"is no {_SCHEMA} record")
        if record.get("event_type") != "request_end":
            others += 1
            return
        if not isinstance(record.get("request"), dict) or record["request"].get("replay") is None:
            raise ValueError("a request_end without request.replay: the trace was taken without block hashes")
        request = record["request"]
        yield Entry(
            line=line,
            time_s=number(request, "request_received_ms") / 1000,
            input_tokens=tokens(request, "replay.input_length"),
            output_tokens=tokens(request, "output_tokens", 0),
            keys=keys(request, "replay.input_sequence_hashes"),
            duration_s=seconds(request, "total_time_ms", 1000),
            tenant=tenant(record, options),
            session=name_at(record, "agent_context.session_id"),
            size=tokens(request, "replay.trace_block_size"),
        )

    columns = collected(decoded(lines, entry))
    findings = [
        Finding(severity="info", code="times", text="Arrival times are those of 'request_received_ms' (milliseconds).")
    ]
    if others:
        text = f"Passed over: {counted(others, 'event')} of other kinds than request_end."
        findings.append(Finding(severity="info", code="other-events", text=text))
    return hashed.rows(lines, options, columns, findings, "its field 'trace_block_size'")
