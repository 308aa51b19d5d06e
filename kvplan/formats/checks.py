"""What makes a log doubtful although its lines are sound: leaps of its clock, requests and sessions that repeat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan import paths
from kvplan.documents import Finding, PathTree
from kvplan.formats.rows import Rows
from kvplan.kernels import compiled
from kvplan.units import show_duration, show_percent

Ints: TypeAlias = NDArray[np.int64]
Narrow: TypeAlias = NDArray[np.int32]

_LEAP_S = 3600.0
_MANY = 0.01
_BACK_S = 60.0
_LEAST_BACK = (
    10  # requests that stand behind a step back: fewer are late, as where lines are written at a request's end
)
_MOST_STEPS = 3  # back that far: with more the file is in no order of time
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


def set_back(time_s: NDArray[np.float64], session: Sequence[str | None]) -> tuple[int, float, int] | None:
    """Where times, in file order, go back at once and stay there: the row, by how many seconds, for how many rows.

    None where they do not: a late line, two files that alternate, or a file that goes through its sessions in turn.
    """
    step = np.diff(time_s)
    if not step.size or np.isnan(time_s).any() or not (step > 0).any():
        return None
    row = int(step.argmin()) + 1
    back_s = float(-step[row - 1])
    if back_s < _BACK_S or (step < -back_s / 2).sum() > _MOST_STEPS:
        return None
    caught_up = time_s[row:] >= time_s[row - 1]
    stays = int(caught_up.argmax()) if caught_up.any() else caught_up.size
    if stays < _LEAST_BACK or (step[row : row + stays - 1] < -back_s / 2).any():
        return None
    if any(name is not None for name in session) and not set(session[:row]) & set(session[row : row + stays]):
        return None
    return row, back_s, stays


def set_back_finding(where: str, back_s: float, rows: int) -> Finding:
    """A step back of the clock, in words."""
    text = (
        f"At {where} the clock goes back {show_duration(back_s)} and stays there for {rows:,} requests: was it set, or "
        "were logs put together? They are sorted to where their time stamps say."
    )
    return Finding(severity="warning", code="clock-back", text=text)


def _mixed(*columns: NDArray[Any]) -> NDArray[np.uint64]:
    """One 64-bit hash a row of equally long columns."""
    mixed = np.zeros(len(columns[0]), np.uint64)
    for column in columns:
        mixed ^= np.ascontiguousarray(column, np.float64).view(np.uint64)
        mixed *= np.uint64(0xBF58476D1CE4E5B9)
        mixed ^= mixed >> np.uint64(29)
    return mixed


def two_sizes(rows: Rows, tree: PathTree) -> tuple[int, int]:
    """How many rows end in a block whose id names another number of tokens elsewhere, and the first such row.

    A block within a path is full; of one that only ends paths, the first of them says how many tokens it has. (0, -1)
    where there is none.
    """
    tail = rows.input_tokens - rows.block_tokens * (rows.count.astype(np.int64) - 1)
    if (tail >= rows.block_tokens).all():
        return 0, -1
    wrong, first = _two_sizes(tree.parent, tree.shared, tree.first, tail, rows.block_tokens)
    return int(wrong), int(first)


@compiled
def _two_sizes(parent: Narrow, shared: Narrow, first: Narrow, tail: Ints, block_tokens: int) -> tuple[int, int]:
    # A path ends within what an earlier one brought in, where blocks are full, or at the end of what one brought in.
    within = np.zeros(tail.size, np.int32)  # by request, 1: another path goes on after the last block it brought in
    for r in range(tail.size):
        s = parent[r]
        if s >= 0 and first[r + 1] > first[r] and shared[r] == shared[s] + first[s + 1] - first[s]:
            within[s] = 1
    wrong, at = 0, -1
    for r in range(tail.size):
        brings = first[r + 1] > first[r]
        s = r if brings else parent[r]
        if s < 0:
            continue
        said = min(tail[s], block_tokens)
        if within[s] or (not brings and shared[r] < shared[s] + first[s + 1] - first[s]):
            said = block_tokens
        if min(tail[r], block_tokens) != said:
            wrong += 1
            at = r if at < 0 else at
    return wrong, at


def repeats(rows: Rows, tree: PathTree) -> list[Finding]:
    """Requests, and whole sessions, that another one equals."""
    if np.isnan(rows.time_s).any():
        return _repeated_sessions(rows)
    size = rows.line.size
    columns = (rows.time_s, rows.input_tokens, rows.output_tokens, rows.count, paths.last(tree))
    same = size - np.unique(_mixed(*columns)).size
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
