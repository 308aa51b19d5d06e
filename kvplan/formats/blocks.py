"""How many tokens a block of ids holds, which most logs do not say: told from their lengths, or refused."""

from __future__ import annotations

from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan.documents import Finding
from kvplan.errors import KvplanError
from kvplan.formats.lines import Lines

Ints: TypeAlias = NDArray[np.int64]

_NO_LIMIT = 2**62
_SOME = 1 << 16  # rows at a time: what is computed of a whole log is as large as the log


def _ceil_bounds(tokens: Ints, count: Ints) -> tuple[Ints, Ints]:
    """The least and the greatest block size for which ceil(tokens / size) == count, row by row."""
    least = -(-tokens // np.maximum(count, 1))
    most = np.where(count > 1, (tokens - 1) // np.maximum(count - 1, 1), _NO_LIMIT)
    impossible = (tokens == 0) != (count == 0)
    return np.where(impossible, _NO_LIMIT, np.maximum(least, 1)), np.where(impossible, 0, most)


def _floor_bounds(tokens: Ints, count: Ints) -> tuple[Ints, Ints]:
    """The least and the greatest block size for which floor(tokens / size) == count, row by row."""
    return tokens // (count + 1) + 1, np.where(count > 0, tokens // np.maximum(count, 1), _NO_LIMIT)


_BOUNDS = {"ceil": _ceil_bounds, "floor": _floor_bounds}


def _agreed(form: str, tokens: Ints, count: Ints) -> tuple[int, int]:
    """The least and the greatest block size that fit every row, if the former does not exceed the latter."""
    least, most = 1, _NO_LIMIT
    for start in range(0, tokens.size, _SOME):
        some = slice(start, start + _SOME)
        low, high = _BOUNDS[form](tokens[some], count[some])
        least, most = max(least, int(low.max())), min(most, int(high.min()))
    return least, most


def _contradictions(least: Ints, most: Ints) -> NDArray[np.bool_]:
    """The rows that no block size fits that also fits all rows before them which are not contradictions."""
    bad = np.zeros(least.size, np.bool_)
    if least.max(initial=1) <= most.min(initial=_NO_LIMIT):
        return bad
    low, high = 1, _NO_LIMIT
    for row, (row_low, row_high) in enumerate(zip(least.tolist(), most.tolist(), strict=True)):
        if max(low, row_low) > min(high, row_high):
            bad[row] = True
        else:
            low, high = max(low, row_low), min(high, row_high)
    return bad


def _form(bounds: dict[str, tuple[Ints, Ints]], given: int | None) -> tuple[str, NDArray[np.bool_]]:
    """Whether the log rounds up or down, as fewer rows contradict it, and the rows that do."""
    bad: dict[str, NDArray[np.bool_]] = {}
    for form, (low, high) in bounds.items():
        bad[form] = _contradictions(low, high) if given is None else (low > given) | (high < given)
        if not bad[form].any():
            break
    form = min(bad, key=lambda form: int(bad[form].sum()))
    return form, bad[form]


def block_size(
    lines: Lines, line: Ints, tokens: Ints, count: Ints, given: int | None, said: str = "as given"
) -> tuple[NDArray[np.bool_], int, Finding]:
    """Which rows to keep, the block size, and how it was found, from each row's `tokens` and `count` of ids.

    It is the only size for which every row has ceil(tokens / size) ids, or floor(tokens / size) where the log keeps
    full blocks only; `given` where the user or the log names it, which `said` tells. Raises KvplanError for a log that
    several sizes fit and, through `lines`, for a row that none fits.
    """
    keep = np.ones(tokens.size, np.bool_)
    for form in _BOUNDS:
        low, high = _agreed(form, tokens, count)
        if low <= (given or low) <= high:
            break
    else:
        bounds = {form: bound(tokens, count) for form, bound in _BOUNDS.items()}
        form, bad = _form(bounds, given)
        for row in np.flatnonzero(bad):
            size = f"block size {given}" if given else "any block size that fits the rows before"
            lines.bad(int(line[row]), f"{tokens[row]} tokens in {count[row]} hash_ids do not fit {size}")
        keep = ~bad
        least, most = (bound[keep] for bound in bounds[form])
        low, high = int(least.max(initial=1)), int(most.min(initial=_NO_LIMIT))
    if given is None and low != high:
        fits = f"of {low} to {high} tokens" if high < _NO_LIMIT else f"from {low} tokens up"
        raise KvplanError(f"{lines.name}: its rows fit any block size {fits}: give --block-tokens")
    tokens_a_block = given or low
    rule = "the partial last block included" if form == "ceil" else "full blocks only"
    how = f"{said}, checked on every row" if given else "the only size that fits every row"
    text = f"Blocks of {tokens_a_block} tokens ({how}), {rule}."
    return keep, tokens_a_block, Finding(severity="info", code="block-size", text=text)
