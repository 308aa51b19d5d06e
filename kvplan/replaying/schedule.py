"""A request log as a schedule to send: times from 0 in ms, every prompt token in a block, small dense block numbers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan.documents import Finding, Requests
from kvplan.errors import KvplanError, UsageError

Ints: TypeAlias = NDArray[np.int64]

MOST_IDS = 2**31  # load generators read block ids as 32-bit integers


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """Which part of a log is sent, and how.

    `limit` requests at most, `rate_scale` times as fast as logged. `block_tokens` stands in for the log's block size:
    the same blocks, each of so many tokens. `output_tokens` replaces every logged answer length. Requests of more than
    `max_model_len` tokens, prompt and answer together, are left out. `closed_loop`: later turns of a session wait for
    the answer before them and a delay. `sessions` False leaves out which requests belong together.
    """

    limit: int | None = None
    rate_scale: float = 1.0
    block_tokens: int | None = None
    output_tokens: int | None = None
    max_model_len: int | None = None
    closed_loop: bool = False
    sessions: bool = True


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Schedule:
    """What is sent, in order of arrival; int64 arrays of (requests,) but for `blocks`.

    Request r has blocks `blocks[offsets[r]:offsets[r + 1]]`, exactly ceil(`input_tokens[r]` / `block_tokens`): numbers
    from 0 as they first appear, each naming a whole prefix. `time_ms` and `delay_ms` are -1 where a line has none;
    `session` too.
    """

    block_tokens: int
    time_ms: Ints
    delay_ms: Ints
    input_tokens: Ints
    output_tokens: Ints
    session: Ints
    offsets: Ints
    blocks: Ints
    findings: tuple[Finding, ...]

    @property
    def unique(self) -> int:
        """Distinct blocks."""
        return int(self.blocks.max()) + 1 if self.blocks.size else 0

    @property
    def span_s(self) -> float:
        """Seconds from the first to the last stated arrival."""
        return max(0.0, float(self.time_ms.max()) / 1000) if self.time_ms.size else 0.0


def schedule_of(requests: Requests, options: Options) -> Schedule:
    """The schedule of a log. Raises KvplanError where the log says too little, UsageError for senseless options."""
    _checked(requests, options)
    findings: list[Finding] = []
    rows = np.arange(len(requests.input_tokens))[: options.limit]
    rows = rows[requests.input_tokens[rows] > 0]
    block = options.block_tokens or requests.block_tokens
    inputs = _lengths(requests, rows, block)
    outputs = _outputs(requests, rows, options)
    if options.max_model_len is not None:
        fits = inputs + outputs <= options.max_model_len
        if not fits.all():
            findings.append(_left_out(int((~fits).sum()), options.max_model_len))
        rows, inputs, outputs = rows[fits], inputs[fits], outputs[fits]
    if not rows.size:
        raise KvplanError("no request is left to send: raise --limit or --max-model-len")
    offsets, blocks = _blocks(requests, rows, -(-inputs // block))
    findings += _two_sizes(inputs, offsets, blocks, block)
    session = _by_appearance(requests.session[rows]) if options.sessions else np.full(rows.size, -1, np.int64)
    time_ms, delay_ms = _times(requests, rows, session, options, findings)
    return Schedule(
        block_tokens=block,
        time_ms=time_ms,
        delay_ms=delay_ms,
        input_tokens=inputs,
        output_tokens=outputs,
        session=session,
        offsets=offsets,
        blocks=blocks,
        findings=tuple(findings),
    )


def _checked(requests: Requests, options: Options) -> None:
    if not (math.isfinite(options.rate_scale) and options.rate_scale > 0):
        raise UsageError(f"--rate-scale {options.rate_scale:g}: give a factor above 0")
    if not len(requests.input_tokens):
        raise KvplanError("the log has no requests: there is nothing to send")
    if not requests.hashed:
        raise KvplanError(
            "the log has lengths only, so what its prompts share is unknown: export a log with block hashes or text"
        )
    if options.closed_loop and (not options.sessions or not (requests.session >= 0).any()):
        raise KvplanError("--closed-loop makes turns wait for the answer before them, and no sessions are known here")


def _lengths(requests: Requests, rows: Ints, block: int) -> Ints:
    """Prompt lengths in blocks of `block` tokens: full blocks stay full, and a partial last one keeps its share."""
    inputs = np.asarray(requests.input_tokens, np.int64)[rows]
    full, rest = np.divmod(inputs, requests.block_tokens)
    scaled: Ints = full * block + -(-rest * block // requests.block_tokens)
    return scaled


def _outputs(requests: Requests, rows: Ints, options: Options) -> Ints:
    if options.output_tokens is not None:
        return np.full(rows.size, options.output_tokens, np.int64)
    outputs = np.asarray(requests.output_tokens, np.int64)[rows]
    unknown = int((outputs <= 0).sum())
    if unknown:
        raise KvplanError(
            f"{unknown:,} of {rows.size:,} requests have no output length, which a fair comparison must fix: "
            "give --output-tokens N"
        )
    return outputs


def _blocks(requests: Requests, rows: Ints, wanted: Ints) -> tuple[Ints, Ints]:
    """Offsets and blocks: where the log has no block for the end of a prompt, one that nobody shares."""
    starts = np.asarray(requests.offsets, np.int64)[rows]
    has = np.minimum(np.asarray(requests.offsets, np.int64)[rows + 1] - starts, wanted)
    offsets = np.concatenate(([0], np.cumsum(wanted)))
    depth = np.arange(int(offsets[-1])) - np.repeat(offsets[:-1], wanted)
    logged = depth < np.repeat(has, wanted)
    known = np.asarray(requests.blocks, np.int64)
    blocks = (int(known.max()) + 1 if known.size else 0) + np.arange(depth.size, dtype=np.int64)
    blocks[logged] = known[(np.repeat(starts, wanted) + depth)[logged]]
    numbered = _by_appearance(blocks)
    if numbered.size and numbered.max() >= MOST_IDS:
        raise KvplanError("the log has more than 2,147,483,648 distinct blocks, which load generators cannot number")
    return offsets, numbered


def _by_appearance(labels: NDArray[Any]) -> Ints:
    """Numbers from 0 as labels first appear; -1 stays."""
    named = labels >= 0
    _, first, inverse = np.unique(labels[named], return_index=True, return_inverse=True)
    rank = np.empty(first.size, np.int64)
    rank[np.argsort(first)] = np.arange(first.size)
    numbers = np.full(labels.size, -1, np.int64)
    numbers[named] = rank[inverse.ravel()]
    return numbers


def _times(
    requests: Requests, rows: Ints, session: Ints, options: Options, findings: list[Finding]
) -> tuple[Ints, Ints]:
    """Arrivals and delays in ms. A turn has a delay only in a closed loop, where it has no arrival of its own."""
    none = np.full(rows.size, -1, np.int64)
    time_s = np.asarray(requests.time_s, np.float64)[rows]
    if np.isnan(time_s).any():
        text = "the log has no time stamps: lines have none, and the load generator must be told a rate or concurrency"
        findings.append(Finding(severity="warning", code="no-times", text=text))
        return none, none
    time_ms = np.rint((time_s - time_s[0]) / options.rate_scale * 1000).astype(np.int64)
    if not options.closed_loop:
        return time_ms, none
    before = _turn_before(session)
    later = before >= 0
    gap_s = np.where(later, time_s - time_s[before], 0.0)
    served = np.asarray(requests.duration_s, np.float64)[rows][before]
    known = later & ~np.isnan(served)
    pause = np.where(known, np.maximum(gap_s - np.nan_to_num(served), 0.0), gap_s) / options.rate_scale
    if later.any() and not known[later].all():
        text = (
            f"{int((later & ~known).sum()):,} turns have a delay from the request before, not its answer, as the log "
            "does not say how long answers took: they come later than they did"
        )
        findings.append(Finding(severity="warning", code="delays-from-requests", text=text))
    return np.where(later, -1, time_ms), np.where(later, np.rint(pause * 1000).astype(np.int64), -1)


def _turn_before(session: Ints) -> Ints:
    """By request: the request of the same session before it, -1 for a first turn or none."""
    order = np.argsort(session, kind="stable")
    before = np.full(session.size, -1, np.int64)
    same = (session[order][1:] == session[order][:-1]) & (session[order][1:] >= 0)
    before[order[1:][same]] = order[:-1][same]
    return before


def _two_sizes(inputs: Ints, offsets: Ints, blocks: Ints, block: int) -> list[Finding]:
    """A warning where one number ends a prompt with fewer tokens than it has elsewhere."""
    tail = inputs - block * (np.diff(offsets) - 1)
    size = np.full(blocks.size, block, np.int64)
    size[offsets[1:] - 1] = tail
    unique = int(blocks.max()) + 1
    least, most = np.full(unique, block, np.int64), np.zeros(unique, np.int64)
    np.minimum.at(least, blocks, size)
    np.maximum.at(most, blocks, size)
    two = int((least < most).sum())
    if not two:
        return []
    text = (
        f"{two:,} block ids end prompts with fewer tokens than they have elsewhere: GuideLLM gives each id one length, "
        "so use --prompts with it"
    )
    return [Finding(severity="warning", code="id-sizes", text=text)]


def _left_out(count: int, length: int) -> Finding:
    text = f"{count:,} requests are longer than --max-model-len {length:,} with their answer: left out"
    return Finding(severity="warning", code="left-out", text=text)
