"""The hit curve as printed: round capacities, hits split by prefix length, and how long each cache takes to fill."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan import reuse
from kvplan.documents import CurvePoint, PrefixClass, Requests

Ints: TypeAlias = NDArray[np.int64]

_PREFERRED = (10, 12.5, 16, 20, 25, 31.5, 40, 50, 63, 80)  # Renard's R10: ten steps a decade, the same for every log
_DECADES = 5
_HANDFUL = (0.003, 0.01, 0.03, 0.1, 0.3)  # of the unique blocks: where policies and what-ifs are measured
_MOST_ASKED = 16
_LEAST_CLASS_TOKENS = 64


def handful(requests: Requests, asked: Sequence[int]) -> list[int]:
    """A few capacities of the grid, and those asked for if they are no more than 16, as a plan asks for many."""
    unique = reuse.unique_blocks(requests)
    round_ones = grid(unique, ())
    near = {
        int(round_ones[np.abs(np.log(np.maximum(round_ones, 1)) - np.log(max(share * unique, 1))).argmin()])
        for share in _HANDFUL
    }
    return sorted({*(one for one in near if one), *(asked if len(asked) <= _MOST_ASKED else ())})


def grid(unique: int, asked: Sequence[int]) -> Ints:
    """About ten capacities a decade over the five decades up to `unique`, that itself, and those asked for."""
    chosen = {unique, *asked}
    decade = 1.0
    while decade <= unique:
        chosen.update(round(step / 10 * decade) for step in _PREFERRED)
        decade *= 10
    least = unique / 10**_DECADES
    return np.array(sorted(c for c in chosen if c in asked or least <= c <= unique), np.int64)


def _class_ends(longest: int) -> Ints:
    last = max(longest - 1, 1).bit_length()
    return 2 ** np.arange(_LEAST_CLASS_TOKENS.bit_length() - 1, max(last, 6) + 1, dtype=np.int64)


def points(
    runs: reuse.Runs, requests: Requests, capacities: Ints, stored: reuse.Runs | None = None
) -> tuple[CurvePoint, ...]:
    """The curve of `runs`; the cache fills with what `stored`, the runs of a cache without limit, leaves to store."""
    covered = reuse.covered_tokens(requests)
    ends = _class_ends(int(covered.max(initial=0)))
    hits = reuse.sweep(runs, requests, capacities, ends)
    novel = np.diff(reuse.as_ints(requests.offsets))
    novel -= reuse.hit_depths(stored or runs, requests)
    fills = _fill_times(requests, novel, capacities)
    whole = int(requests.input_tokens.sum())
    rows = []
    for i, capacity in enumerate(capacities.tolist()):
        hit_tokens = int(hits.tokens[i].sum())
        point = CurvePoint(
            capacity_blocks=capacity,
            capacity_tokens=capacity * requests.block_tokens,
            hit_blocks=int(hits.hit_blocks[i]),
            hit_tokens=hit_tokens,
            hit_ratio=hit_tokens / whole if whole else 0.0,
            hit_requests=int(hits.requests[i].sum()),
            reused_prefix_tokens_sq=int(hits.tokens_sq[i].sum()),
            fill_time_s=fills[i],
            prefixes=_classes(ends, hits.requests[i], hits.tokens[i], hits.tokens_sq[i]),
        )
        rows.append(point)
    return tuple(rows)


def _classes(ends: Ints, requests: Ints, tokens: Ints, tokens_sq: Ints) -> tuple[PrefixClass, ...]:
    return tuple(
        PrefixClass(at_most_tokens=end, requests=count, tokens=total, tokens_sq=square)
        for end, count, total, square in zip(
            ends.tolist(), requests.tolist(), tokens.tolist(), tokens_sq.tolist(), strict=True
        )
        if count
    )


def _fill_times(requests: Requests, novel_blocks: Ints, capacities: Ints) -> list[float | None]:
    """When, after the first arrival, as many distinct blocks have come as each capacity holds; None if never.

    Adds up `novel_blocks`, the distinct blocks that each request brings, in place.
    """
    full = np.searchsorted(np.cumsum(novel_blocks, out=novel_blocks), capacities)
    since = [float(requests.time_s[i] - requests.time_s[0]) if i < len(novel_blocks) else np.nan for i in full.tolist()]
    return [None if np.isnan(one) else one for one in since]
