"""Agentic Mooncake traces: requests that wait for others, with a header line (version 2) or without one (before).

The header names the block size and says that block ids are local to a play: equal ids of two plays are then different
blocks. Without a header ids are of the whole log.
"""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from kvplan.documents import Finding
from kvplan.errors import KvplanError
from kvplan.formats import hashed
from kvplan.formats.entries import Entry, collected, decoded, key, keys, name_at, number, tenant, tokens
from kvplan.formats.lines import Lines
from kvplan.formats.rows import Options, Rows, label
from kvplan.units import counted

_SCHEMA, _VERSION = "dynamo.agentic_mooncake", 2


def detect(row: dict[str, Any]) -> bool:
    """Whether a decoded line is of this format."""
    return row.get("schema") == _SCHEMA or ("hash_ids" in row and ("wait_for" in row or "dependencies" in row))


def read(lines: Lines, options: Options) -> Rows:
    """Read a whole file. Raises KvplanError naming the line that is malformed or waits for what never comes."""
    header: dict[str, Any] = {}
    requests: dict[str, _Request] = {}

    def entry(line: int, row: dict[str, Any]) -> Iterable[Entry]:
        if "schema" in row:
            header.update(_header(lines, line, row))
            return
        name = name_at(row, "request_id") or f"line {line}"
        if name in requests:
            raise ValueError(f"request_id {name!r} stands in the log already")
        found = Entry(
            line=line,
            time_s=number(row, "not_before_ms", number(row, "timestamp", np.nan)) / 1000,
            input_tokens=tokens(row, "input_length"),
            output_tokens=tokens(row, "output_length", 0),
            keys=keys(row, "hash_ids"),
            tenant=tenant(row, options),
            session=name_at(row, "session_id"),
            size=header.get("block_size", 0),
        )
        requests[name] = _Request(entry=found, waits=_waits(row), play=name_at(row, "play_id"))
        yield found

    for _ in decoded(lines, entry):
        pass
    local = header.get("hash_id_scope") == "local"
    timed = _timed(lines, requests)
    entries = [replace(requests[name].entry, time_s=time_s) for name, time_s in timed.items()]
    if local:
        entries = _kept_apart([requests[name].play for name in timed], entries)
    waited = sum(bool(request.waits) for request in requests.values())
    return hashed.rows(lines, options, collected(entries, local=local), _findings(waited, local), "its header")


@dataclass(frozen=True, slots=True, kw_only=True)
class _Request:
    """A row, the requests it waits for with the seconds it comes after each, and the play whose ids it uses."""

    entry: Entry
    waits: list[tuple[str, float]]
    play: str | None


def _header(lines: Lines, line: int, row: dict[str, Any]) -> dict[str, Any]:
    if row["schema"] != _SCHEMA or row.get("version") != _VERSION:
        raise KvplanError(
            f"{lines.where(line)}: schema {row['schema']!r}, version {row.get('version')!r}: "
            f"kvplan reads {_SCHEMA}, version {_VERSION}"
        )
    if row.get("hash_id_scope") not in ("local", "global"):
        raise KvplanError(f"{lines.where(line)}: hash_id_scope is neither local nor global")
    try:
        size = tokens(row, "block_size")
    except ValueError as error:
        raise KvplanError(f"{lines.where(line)}: {error}") from None
    return {"block_size": size, "hash_id_scope": row["hash_id_scope"]}


def _waits(row: dict[str, Any]) -> list[tuple[str, float]]:
    """The requests that a row names as those it waits for. Raises ValueError."""
    waits = []
    extra = number(row, "delay", 0.0) + number(row, "tool_wait_ms", 0.0)
    for name in row.get("wait_for") or []:
        waits.append((label(name, "wait_for") or "", extra / 1000))
    for dependency in row.get("dependencies") or []:
        waits.append((name_at(dependency, "request_id") or "", number(dependency, "delay_ms", 0.0) / 1000))
    return waits


def _timed(lines: Lines, requests: dict[str, _Request]) -> dict[str, float]:
    """When each request comes, in the order of the file: no earlier than its delay after those it waits for."""
    time_s: dict[str, float] = {}
    after: dict[str, list[str]] = defaultdict(list)
    open_waits = {}
    for name, request in requests.items():
        missing = [other for other, _ in request.waits if other not in requests]
        if missing:
            lines.bad(request.entry.line, f"waits for request {missing[0]!r}, which is not in the log")
            continue
        open_waits[name] = len(request.waits)
        for other, _ in request.waits:
            after[other].append(name)
    ready = deque(name for name, count in open_waits.items() if not count)
    while ready:
        name = ready.popleft()
        request = requests[name]
        starts = [time_s[other] + delay for other, delay in request.waits]
        time_s[name] = float(np.fmax.reduce([request.entry.time_s, *starts]))
        for other in after[name]:
            open_waits[other] -= 1
            if not open_waits[other]:
                ready.append(other)
    for name, count in open_waits.items():
        if count:
            lines.bad(requests[name].entry.line, "waits for a request that is left out or waits for it in turn")
    return {name: time_s[name] for name in requests if name in time_s}


def _kept_apart(plays: list[str | None], entries: list[Entry]) -> list[Entry]:
    """The same with ids that differ between plays: each play's are moved beyond those of the plays before."""
    numbers = {play: i for i, play in enumerate(dict.fromkeys(plays))}
    width = max((int(entry.keys.max(initial=-1)) for entry in entries), default=-1) + 1
    small = width * len(numbers) < 2**62 and all(entry.keys.min(initial=0) >= 0 for entry in entries)
    salts = {play: np.uint64(key(f"play {i}")).astype(np.int64) for play, i in numbers.items()}
    return [
        replace(entry, keys=entry.keys + width * numbers[play] if small else entry.keys ^ salts[play])
        for play, entry in zip(plays, entries, strict=True)
    ]


def _findings(waited: int, local: bool) -> list[Finding]:
    findings = []
    if waited:
        text = (
            f"{counted(waited, 'request')} had to wait for others, whose answers the log does not time: they are "
            "taken as immediate, so that requests come earlier here than they did."
        )
        findings.append(Finding(severity="warning", code="delays", text=text))
    if local:
        text = "Block ids are local to their play: plays share nothing here, which they may in a real cache."
        findings.append(Finding(severity="warning", code="local-ids", text=text))
    return findings
