"""Who waits for whose answer: conversations in a log, and clients that ask one request after the other."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import takewhile

import numpy as np

from kvplan.documents import Loop, Requests
from kvplan.errors import UsageError

OPEN = Loop(kind="open")


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """A request that comes `think_s` seconds after request `after` was answered."""

    after: int
    think_s: float


def check(loop: Loop, rate_scale: float, searches: bool) -> None:
    """Raises UsageError for a loop that means nothing, or is asked for with what it has no use for."""
    if loop.kind == "concurrency" and not loop.concurrency:
        raise UsageError("a closed loop of clients needs their number, 1 or more (--concurrency N)")
    if loop.kind == "concurrency" and rate_scale != 1:
        raise UsageError("--rate-scale and --concurrency: clients that wait for answers have no rate to scale")
    if loop.kind != "open" and searches:
        raise UsageError(
            "--slo-ttft searches a rate of arrivals, and in a closed loop arrivals follow answers: leave one out"
        )


def turns(requests: Requests, paths: Sequence[list[int]]) -> list[Turn | None]:
    """For each request the one whose answer it waits for, if any.

    That is the request before it in its session. Where the log names no session, it is the one whose last full block
    it goes on from: a block that no other request had before, so that a shared start alone makes no conversation. Time
    to think is from the end of the answer to the next arrival as logged, at least 0; where the log does not say how
    long an answer took, it is the whole time from one arrival to the next.
    """
    sessions, inputs = requests.session.tolist(), requests.input_tokens.tolist()
    ends = requests.time_s + np.nan_to_num(requests.duration_s, nan=0.0)
    last_of: dict[int, int] = {}
    first_of: dict[int, int] = {}  # by block: the only request that had it so far
    found: list[Turn | None] = []
    for index, path in enumerate(paths):
        before = last_of.get(sessions[index])
        if sessions[index] >= 0:
            last_of[sessions[index]] = index
        else:
            before = _goes_on(path, first_of, paths)
            if before is not None and inputs[before] >= inputs[index]:
                before = None
        for block in path:
            first_of[block] = -1 if block in first_of else index
        think_s = 0.0 if before is None else max(0.0, float(requests.time_s[index] - ends[before]))
        found.append(None if before is None else Turn(after=before, think_s=think_s))
    return found


def _goes_on(path: list[int], first_of: dict[int, int], paths: Sequence[list[int]]) -> int | None:
    """The request whose whole path is the start of this one, and was nobody else's."""
    for block in reversed(path):
        owner = first_of.get(block)
        if owner is not None:  # the deepest block that was there before
            return owner if owner >= 0 and paths[owner][-1] == block else None
    return None


def answers(
    requests: Requests, paths: Sequence[list[int]], after: Sequence[Turn | None], told: bool
) -> list[list[int]]:
    """The full blocks that each request's output completes, under the names that later prompts have for them.

    With `told` a log of text says itself which they are, where its blocks have the log's names. Elsewhere they are what
    the next turn's prompt goes on with, at most all of the output: an upper bound, as that takes the answer of the
    log's next prompt to be the answer that was given.
    """
    size, inputs, outputs = requests.block_tokens, requests.input_tokens, requests.output_tokens
    known: list[list[int]] = [[] for _ in paths]
    for index, turn in enumerate(after):
        if turn is not None:
            before = paths[turn.after]
            if paths[index][: len(before)] == before:
                known[turn.after] = paths[index][len(before) :]
    texts = requests.texts if told else None
    if texts is not None and len(texts.answer_blocks):
        asked = int(requests.blocks.max(initial=-1))
        for index in range(len(paths)):
            own = texts.answer_blocks[texts.answer_offsets[index] : texts.answer_offsets[index + 1]].tolist()
            known[index] = list(takewhile(lambda block: block <= asked, own))
    full = [int(inputs[index] + outputs[index] - 1) // size for index in range(len(paths))]
    return [blocks[: max(0, full[index] - len(paths[index]))] for index, blocks in enumerate(known)]
