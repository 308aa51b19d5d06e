"""What makes a log doubtful although its lines are sound: leaps of its clock, requests and sessions that repeat."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan.documents import Finding
from kvplan.formats.rows import Rows
from kvplan.units import show_duration, show_percent

Ints: TypeAlias = NDArray[np.int64]

_LEAP_S = 3600.0
_MANY = 0.01
_LEAST_TURNS = 5  # sessions shorter than that may be alike by chance


def leap(time_s: NDArray[np.float64]) -> int | None:
    """The row of a sorted log before which time leaps further than all the rest of it takes, None for none.

    A clock that was set, or a time stamp of zero among real ones, does that; a busy log's nights do not.
    """
    step = np.diff(time_s)
    if not step.size or np.isnan(time_s).any():
        return None
    row = int(step.argmax())
    rest = float(time_s[-1] - time_s[0] - step[row])
    return row + 1 if step[row] > max(rest, _LEAP_S) and time_s.size > 2 else None


def leap_finding(where: str, time_s: NDArray[np.float64], row: int) -> Finding:
    """A leap of the clock, in words."""
    step = float(time_s[row] - time_s[row - 1])
    rest = float(time_s[-1] - time_s[0]) - step
    text = (
        f"Before {where} the clock leaps {show_duration(step)}, more than all the rest of the log takes "
        f"({show_duration(rest)}): were its times set in between?"
    )
    return Finding(severity="warning", code="clock-leap", text=text)


def _mixed(*columns: NDArray[Any]) -> NDArray[np.uint64]:
    """One 64-bit hash a row of equally long columns."""
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        bits = np.ascontiguousarray(column).astype(np.float64, copy=False).view(np.uint64)
        mixed = (mixed ^ bits) * np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(29)
    return mixed


def repeats(rows: Rows, ids: NDArray[Any], offsets: Ints) -> list[Finding]:
    """Requests, and whole sessions, that another one equals."""
    if np.isnan(rows.time_s).any():
        return _repeated_sessions(rows)
    last = np.full(rows.count.size, -1, np.int64)
    some = rows.count > 0
    last[some] = ids[offsets[1:][some] - 1]
    size = rows.line.size
    same = size - np.unique(_mixed(rows.time_s, rows.input_tokens, rows.output_tokens, rows.count, last)).size
    findings = []
    if same > _MANY * size:
        text = (
            f"{show_percent(same / size)} of the requests equal another in time, lengths and blocks: if the log was "
            "written twice, their reuse is not real."
        )
        findings.append(Finding(severity="warning", code="repeated-requests", text=text))
    return [*findings, *_repeated_sessions(rows)]


def _repeated_sessions(rows: Rows) -> list[Finding]:
    if not rows.session:
        return []
    numbers: dict[str | None, int] = {None: -1}
    session = np.array([numbers.setdefault(name, len(numbers) - 1) for name in rows.session], np.int64)
    order = np.flatnonzero(session >= 0)
    order = order[np.argsort(session[order], kind="stable")]
    if not order.size:
        return []
    starts = np.flatnonzero(np.diff(session[order], prepend=-1))
    turns = np.diff(np.append(starts, order.size))
    place = np.arange(order.size) - np.repeat(starts, turns)
    row = _mixed(rows.input_tokens[order], rows.count[order], place)
    whole = np.add.reduceat(row, starts)
    long = turns >= _LEAST_TURNS
    _, first, which = np.unique(whole[long], return_index=True, return_inverse=True)
    copies = np.flatnonzero(long)[first[which] != np.arange(which.size)]
    if not copies.size:
        return []
    tokens = np.add.reduceat(rows.input_tokens[order], starts)
    text = (
        f"{copies.size:,} of {starts.size:,} sessions have the prompt lengths of another, request by request "
        f"({show_percent(tokens[copies].sum() / max(int(rows.input_tokens.sum()), 1))} of the input tokens): copies?"
    )
    return [Finding(severity="warning", code="repeated-sessions", text=text)]
