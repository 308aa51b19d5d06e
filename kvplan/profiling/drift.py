"""Drift: requests of one session that ought to continue an earlier one, but leave it before its end.

From hashed blocks one can tell where they leave it, how often at the same place, and what that costs; not what the text
there says. So the class of a divergence is the place: a fixed one, or one that moves with the conversation. Logs of
text say more: see drift_text.py.
"""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan import reuse
from kvplan.documents import Drift, Requests
from kvplan.profiling import drift_text
from kvplan.profiling.drift_text import Pair

Ints: TypeAlias = NDArray[np.int64]

_OFTEN = 0.1  # of the diverging requests: a place so frequent is no accident
_LEAST = 3  # requests
_WORTH_SAYING = 0.001  # of the input tokens

_FIXED = (
    "what stands in the {block} tokens after this place changes between turns (a clock, an id, the order of tools, a "
    "mode switch): move it to the end of the prompt, or keep it constant"
)
_MOVING = (
    "later turns render earlier ones differently (reasoning left out, tool results shortened, text encoded anew): "
    "send back the history as it was"
)


def find(runs: reuse.Runs, requests: Requests) -> tuple[Drift, ...]:
    """Where requests leave what they ought to share, costliest first.

    Logs of text tell for whole applications; others only where they name sessions.
    """
    earlier = _earlier(runs, requests)
    leaves, depth, lost = _divergences(runs, requests, earlier)
    texts = requests.texts
    if texts is not None and texts.kind.size:
        columns = (leaves.tolist(), earlier[leaves].tolist(), depth.tolist(), lost.tolist())
        pairs = [Pair(row=a, earlier=b, depth=c, lost=d) for a, b, c, d in zip(*columns, strict=True)]
        return _worth_saying(drift_text.find(pairs, runs, requests, earlier), requests)
    lost_tokens = lost * requests.block_tokens
    rows = []
    places, inverse, counts = np.unique(depth, return_inverse=True, return_counts=True)
    often = counts >= max(_LEAST, _OFTEN * leaves.size)
    for place in np.flatnonzero(often):
        rows.append(_row("fixed place", requests, places[place : place + 1], inverse == place, lost_tokens))
    moving = ~often[inverse] if leaves.size else np.zeros(0, np.bool_)
    if moving.sum() >= _LEAST:
        rows.append(_row("moving place", requests, depth[moving], moving, lost_tokens))
    return _worth_saying(tuple(sorted(rows, key=lambda row: -row.lost_tokens)), requests)


def _worth_saying(rows: tuple[Drift, ...], requests: Requests) -> tuple[Drift, ...]:
    least = _WORTH_SAYING * int(requests.input_tokens.sum())
    return tuple(row for row in rows if row.lost_tokens > least)


def _row(kind: str, requests: Requests, places: Ints, chosen: NDArray[np.bool_], lost_tokens: Ints) -> Drift:
    lost, whole = int(lost_tokens[chosen].sum()), int(requests.input_tokens.sum())
    return Drift(
        kind=kind,
        position_tokens=int(np.median(places)) * requests.block_tokens,
        requests=int(chosen.sum()),
        lost_tokens=lost,
        gain_ratio=lost / whole,
        fix=_FIXED.format(block=requests.block_tokens) if kind == "fixed place" else _MOVING,
    )


def _earlier(runs: reuse.Runs, requests: Requests) -> Ints:
    """By request: the one of its session that it repeats most of, else the one before it there; -1 for none."""
    session = np.asarray(requests.session)
    rows = np.flatnonzero(session >= 0)
    if not rows.size:
        return np.broadcast_to(np.int64(-1), session.size)
    with_whom = np.full(session.size, -1, np.int64)
    order = rows[np.argsort(session[rows], kind="stable")]
    again = np.flatnonzero(session[order][1:] == session[order][:-1])
    with_whom[order[again + 1]] = order[again]
    own = (session[runs.request] == session[runs.toucher]) & (session[runs.request] >= 0)
    with_whom[runs.request[own]] = runs.toucher[own]  # the deepest run of a request comes last
    return with_whom


def _divergences(runs: reuse.Runs, requests: Requests, earlier: Ints) -> tuple[Ints, Ints, Ints]:
    """Requests that leave their session's history: which, after how many blocks, and how many they lose by it.

    A request is held against the one that it continues (`earlier`), if it is at least as long: then it ought to contain
    that one's full blocks. What others have cached is not lost.
    """
    leaves = np.flatnonzero(earlier >= 0)
    if not leaves.size:
        return leaves, leaves, leaves
    full = np.minimum(requests.input_tokens // requests.block_tokens, np.diff(reuse.as_ints(requests.offsets)))
    leaves = leaves[full[leaves] >= full[earlier[leaves]]]
    depth = reuse.hit_depths(runs, requests)[leaves]
    lost = full[earlier[leaves]] - depth
    some = lost > 0
    return leaves[some], depth[some], lost[some]
