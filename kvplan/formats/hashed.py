"""From columns of a log of block ids to its rows: one kind of time stamp, one block size, bad lines left out."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan.documents import Finding
from kvplan.errors import KvplanError
from kvplan.formats.blocks import block_size
from kvplan.formats.lines import Lines
from kvplan.formats.rows import Keys, Options, Rows

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Columns:
    """A file's requests in file order. `sizes` are the block sizes that its lines or header name, 0 where none does.

    Where `keys` is None they were streamed, the first row's as row `start`.
    """

    line: Ints
    time_s: Floats
    input_tokens: Ints
    output_tokens: Ints
    count: Ints
    keys: Keys | None
    start: int = 0
    duration_s: Floats | None = None
    sizes: Ints | None = None
    tenant: Sequence[str | None] = ()
    session: Sequence[str | None] = ()
    local: bool = False


def rows(lines: Lines, options: Options, columns: Columns, findings: Sequence[Finding], named_by: str = "") -> Rows:
    """The rows of a file. `named_by` is what names the block size, as it is called to the user ('its header').

    Raises KvplanError, through `lines`, for lines that contradict the block size or the others' having time stamps.
    """
    if not columns.line.size:
        raise KvplanError(f"{lines.name}: no requests in it")
    timed = ~np.isnan(columns.time_s)
    odd = timed != timed[0]
    for row in np.flatnonzero(odd):
        lines.bad(int(columns.line[row]), f"has {'a' if timed[row] else 'no'} time stamp, unlike the lines before")
    given, said = _named_size(lines, options.block_tokens, columns.sizes, named_by)
    like = ~odd if odd.any() else slice(None)
    counts, line, tokens = columns.count[like], columns.line[like], columns.input_tokens[like]
    fits, size, finding = block_size(lines, line, tokens, counts, given, said)
    keep = ~odd
    keep[keep] = fits
    duration = np.broadcast_to(np.nan, keep.shape) if columns.duration_s is None else columns.duration_s
    keys, streamed = kept_keys(columns.keys, columns.start, columns.count, keep)
    chosen = slice(None) if keep.all() else keep
    return Rows(
        block_tokens=size,
        line=columns.line[chosen],
        time_s=columns.time_s[chosen],
        input_tokens=columns.input_tokens[chosen],
        output_tokens=columns.output_tokens[chosen],
        duration_s=duration[chosen],
        count=columns.count[chosen],
        keys=keys,
        streamed=streamed,
        tenant=_kept(columns.tenant, keep),
        session=_kept(columns.session, keep),
        findings=(*findings, finding),
        local=columns.local,
    )


def kept_keys(
    keys: Keys | None, start: int, count: Ints, keep: NDArray[np.bool_]
) -> tuple[Keys | None, NDArray[np.int64] | None]:
    """`keys` and `streamed` of those rows of a file that are kept; `start` is its first row's place in the stream."""
    every = bool(keep.all())
    if keys is not None:
        return keys if every else keys[np.repeat(keep, count)], None
    return None, None if every and not start else start + np.flatnonzero(keep)


def lengths_only(columns: Columns, findings: Sequence[Finding]) -> Rows:
    """The rows of a log without blocks: what was asked for and when."""
    keep = np.ones(columns.line.size, np.bool_)
    return Rows(
        block_tokens=1,
        line=columns.line,
        time_s=columns.time_s,
        input_tokens=columns.input_tokens,
        output_tokens=columns.output_tokens,
        duration_s=np.full(keep.size, np.nan) if columns.duration_s is None else columns.duration_s,
        count=np.zeros(keep.size, np.int64),
        keys=np.zeros(0, np.int32),
        tenant=_kept(columns.tenant, keep),
        session=_kept(columns.session, keep),
        findings=tuple(findings),
        hashed=False,
    )


def _kept(names: Sequence[str | None], keep: NDArray[np.bool_]) -> Sequence[str | None]:
    if not any(name is not None for name in names):
        return ()
    return [name for name, kept in zip(names, keep.tolist(), strict=True) if kept]


def _named_size(lines: Lines, asked: int | None, sizes: Ints | None, named_by: str) -> tuple[int | None, str]:
    """The block size that the user or the log names, and who did."""
    named = np.unique(sizes[sizes > 0]).tolist() if sizes is not None else []
    if len(named) > 1:
        several = ", ".join(map(str, named[:5]))
        raise KvplanError(f"{lines.name}: {named_by} names several block sizes ({several}): split the log by it")
    if named and asked not in (None, named[0]):
        raise KvplanError(f"{lines.name}: its blocks hold {named[0]} tokens, not --block-tokens {asked}")
    return (named[0], f"as {named_by} says") if named else (asked, "as given")
