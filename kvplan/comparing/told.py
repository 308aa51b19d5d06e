"""What a schedule tells that results do not: sessions, and when each request was due."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import msgspec

from kvplan.comparing.records import Run
from kvplan.errors import KvplanError
from kvplan.files import reason


@dataclass(frozen=True, slots=True, kw_only=True)
class Told:
    """By line: the session, and the due time in seconds where every line has one."""

    sessions: tuple[str, ...]
    due_s: tuple[float, ...] | None


class _Line(msgspec.Struct):
    timestamp: float | None = None
    session_id: str | None = None


def told(path: Path) -> Told:
    """Read a schedule file. Raises KvplanError naming file and line."""
    sessions: list[str] = []
    due: list[float | None] = []
    try:
        text = path.read_bytes()
    except OSError as error:
        raise KvplanError(f"{path}: {reason(error)}") from None
    for number, row in enumerate(text.splitlines(), 1):
        try:
            line = msgspec.json.decode(row, type=_Line)
        except msgspec.DecodeError as error:
            raise KvplanError(f"{path}, line {number}: not a line of a schedule: {error}") from None
        sessions.append(line.session_id or f"#{number}")
        due.append(None if line.timestamp is None else line.timestamp / 1000)
    times = [moment for moment in due if moment is not None]
    return Told(sessions=tuple(sessions), due_s=tuple(times) if len(times) == len(due) else None)


def lags(run: Run, due_s: tuple[float, ...]) -> tuple[float, ...]:
    """How late each request was sent, up to a constant; nothing where some failed and places do not match."""
    records = sorted(run.result.records, key=lambda record: record.order)
    if len(records) != len(due_s):
        return ()
    return tuple(record.start_s - due for record, due in zip(records, due_s, strict=True))
