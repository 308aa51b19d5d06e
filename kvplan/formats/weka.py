"""Sessions of coding agents as kv-cache-tester and WEKA publish them: one JSON object a session, requests inside.

Block ids count from the same number in every session (unless `hash_id_scope` is global): equal ids of two sessions are
different blocks. A session's sub-agents stand nested in its list of requests and share its ids.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Any

from kvplan.documents import Finding
from kvplan.errors import KvplanError
from kvplan.formats import hashed
from kvplan.formats.entries import Entry, collected, decoded, keys, name_at, narrow, number, seconds, tenant, tokens
from kvplan.formats.lines import Lines
from kvplan.formats.rows import Options, Rows
from kvplan.units import counted

_MOST_ID = 2**40


def detect(row: dict[str, Any]) -> bool:
    """Whether a decoded line is of this format."""
    requests = row.get("requests")
    return isinstance(requests, list) and ("block_size" in row or "hash_id_scope" in row)


def read(lines: Lines, options: Options) -> Rows:
    """Read a whole file. Raises KvplanError naming the session's line where anything in it is malformed."""
    scopes: set[str] = set()
    nested = 0
    base = 0

    def session(line: int, row: dict[str, Any]) -> Iterable[Entry]:
        nonlocal nested, base
        scope = row.get("hash_id_scope", "local")
        if scope not in ("local", "global"):
            raise ValueError(f"hash_id_scope is {scope!r}, neither local nor global")
        name = name_at(row, "id") or f"line {line}"
        found = []
        size = tokens(row, "block_size")
        for place, request, time_s, inner in _requests(row.get("requests"), "requests", 0.0):
            nested += inner
            try:
                found.append(_entry(line, request, time_s, name, size, tenant(row, options)))
            except ValueError as error:
                raise ValueError(f"{place}: {error}") from None
        if scope == "local":
            top = max((int(entry.keys.max(initial=-1)) for entry in found), default=-1) + 1
            if top > _MOST_ID or any(entry.keys.min(initial=0) < 0 for entry in found):
                raise ValueError("its block ids are too large to count within a session")
            found = [replace(entry, keys=narrow(entry.keys + base)) for entry in found]
            base += top
        scopes.add(scope)
        return found

    columns = collected(decoded(lines, session), local=scopes != {"global"})
    if len(scopes) > 1:
        raise KvplanError(f"{lines.name}: holds sessions with local and with global block ids: split it by them")
    return hashed.rows(lines, options, columns, _findings(nested, scopes == {"local"}), "its field 'block_size'")


def _requests(values: object, place: str, start_s: float) -> Iterator[tuple[str, dict[str, Any], float, bool]]:
    """Every request of a session: where it stands, itself, its time, and whether it is a sub-agent's.

    Sub-agents count from their own start in old files and from the session's in new ones: a first request before the
    sub-agent's own entry tells the old form.
    """
    if not isinstance(values, list):
        raise ValueError(f"{place} is no list")
    for i, value in enumerate(values):
        here = f"{place}[{i}]"
        try:
            time_s = number(value, "t") + start_s
        except ValueError as error:
            raise ValueError(f"{here}: {error}") from None
        if isinstance(value, dict) and value.get("type") == "subagent":
            inner = value.get("requests")
            first = number(inner[0], "t", 0.0) if isinstance(inner, list) and inner else 0.0
            for deeper in _requests(inner, f"{here}.requests", time_s if first + start_s < time_s else start_s):
                yield (*deeper[:3], True)
        else:
            yield here, value, time_s, False


def _entry(line: int, request: object, time_s: float, session: str, size: int, tenant: str | None) -> Entry:
    return Entry(
        line=line,
        time_s=time_s,
        input_tokens=tokens(request, "in"),
        output_tokens=tokens(request, "out", 0),
        keys=keys(request, "hash_ids"),
        duration_s=seconds(request, "api_time", 1),
        tenant=tenant,
        session=session,
        size=size,
    )


def _findings(nested: int, local: bool) -> list[Finding]:
    text = "Arrival times are those of 't', in seconds since each session's start: how sessions overlap is not known."
    findings = [Finding(severity="warning", code="session-times", text=text)]
    if nested:
        text = f"{counted(nested, 'request')} came from sub-agents, among their session's blocks."
        findings.append(Finding(severity="info", code="sub-agents", text=text))
    if local:
        text = "Block ids are local to their session: sessions share nothing here, which they may in a real cache."
        findings.append(Finding(severity="warning", code="local-ids", text=text))
    return findings
