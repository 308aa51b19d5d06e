"""Tables: CSV and Parquet with a request a row. What a column holds is told from its name, or by --columns.

A table with a column of block ids becomes paths like any other log; one with lengths only (the Azure and BurstGPT
traces) says what was asked for and when, and nothing about reuse.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import KvplanError
from kvplan.formats.blocks import block_size
from kvplan.formats.hashed import kept_keys
from kvplan.formats.lines import Lines
from kvplan.formats.roles import DURATION_UNITS, TIMES, kind
from kvplan.formats.rows import Keys, Options, Rows, narrow
from kvplan.formats.times import table_seconds

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

_MOST_TOKENS = 2**40

# What a column may be called, in lower case, without spaces and underscores. The unit of a `time` its values tell.
_NAMES: dict[str, tuple[str, ...]] = {
    "time": ("timestamp", "time", "ts", "arrivaltime", "arrivedat", "starttime", "requesttime", "createdat", "created"),
    "time_ms": ("timestampms", "timestampstartunixms", "timems", "arrivaltimems", "starttimems"),
    "time_s": ("timestamps", "times", "arrivaltimes", "arrivals"),
    "input_tokens": (
        *("inputlength", "inputtokens", "prompttokens", "contexttokens", "requesttokens", "numprefilltokens"),
        *("promptlength", "promptlen", "inputlen", "isl"),
    ),
    "output_tokens": (
        *("outputlength", "outputtokens", "completiontokens", "generatedtokens", "responsetokens", "numdecodetokens"),
        *("responselength", "outputlen", "osl"),
    ),
    "duration_s": ("durations", "latencys", "elapsedtime"),
    "duration_ms": ("durationms", "latencyms"),
    "hash_ids": ("hashids", "totalhashes", "blockhashes", "chunkhashes", "inputsequencehashes"),
    "block_tokens": ("blocksize", "blocktokens", "chunksize", "traceblocksize"),
    "session": ("sessionid", "providedsessionid", "conversationid", "chatid"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Batch:
    """Some rows of a table. `line` numbers them; each column is as the file has it, by what it holds.

    A column of lists is (values, ends): all rows' values one after another, and where each row ends.
    """

    line: Ints
    columns: Mapping[str, Any]
    lists: tuple[Keys, Ints] | None


def roles(lines: Lines, names: Sequence[str], options: Options) -> dict[str, str]:
    """Which column holds what. Raises KvplanError for a --columns name that is not there, or without input lengths."""
    for name in options.columns.values():
        if name not in names:
            raise KvplanError(f"{lines.name}: has no column {name!r} (has {', '.join(names)})")
    found = dict(options.columns)
    plain = {_plain(name): name for name in reversed(names)}
    for role, known in _NAMES.items():
        if kind(role) in {kind(other) for other in found}:
            continue
        free = [plain[key] for key in known if key in plain and plain[key] not in found.values()]
        if free:
            found[role] = free[0]
    if "input_tokens" not in found:
        raise KvplanError(
            f"{lines.name}: no column with the length of the prompt (has {', '.join(map(str, names)) or 'none'}): "
            "name it with --columns input_tokens=NAME"
        )
    if options.tenant_by:
        if options.tenant_by not in names:
            raise KvplanError(f"{lines.name}: no line has the field {options.tenant_by!r} that --tenant-by names")
        found["tenant"] = options.tenant_by
    return found


def _plain(name: object) -> str:
    return str(name).lower().replace(" ", "").replace("_", "")


def known_header(names: Sequence[str]) -> bool:
    """Whether a header line names a column with the length of prompts."""
    return bool({_plain(name) for name in names} & set(_NAMES["input_tokens"]))


class Table:
    """The rows of one table, collected a batch at a time; their block keys go on to the options."""

    def __init__(self, lines: Lines, options: Options, found: dict[str, str]) -> None:
        self._lines = lines
        self._options = options
        self.found = found
        self._parts: list[tuple[Ints, Any, Ints, Ints, Floats, Ints]] = []
        self._labels: dict[str, list[Sequence[str | None]]] = {"tenant": [], "session": []}
        self._sizes: set[int] = set()
        self._start = options.keyed.rows

    def add(self, batch: Batch) -> None:
        """Take a batch. Rows with a length that is none are bad."""
        bad = np.zeros(batch.line.size, np.bool_)
        columns: dict[str, Any] = {}
        for role in ("input_tokens", "output_tokens", "block_tokens"):
            if role in batch.columns:
                columns[role], wrong = _counts(batch.columns[role])
                self._refuse(batch, role, wrong & ~bad)
                bad |= wrong
        time_role = next((role for role in TIMES if role in batch.columns), None)
        time = _times(batch.columns[time_role]) if time_role else np.full(batch.line.size, np.nan)
        if time_role:
            self._refuse(batch, time_role, (wrong := _not_finite(time)) & ~bad)
            bad |= wrong
        duration, wrong = _durations(batch.columns, batch.line.size)
        self._refuse(batch, next((role for role in DURATION_UNITS if role in batch.columns), ""), wrong & ~bad)
        keep = np.flatnonzero(~(bad | wrong))
        keys, count = _kept(batch.lists, keep, batch.line.size)
        self._options.take(count, columns["input_tokens"][keep], keys)
        output = columns.get("output_tokens", np.zeros(batch.line.size, np.int64))
        self._sizes.update(np.unique(columns["block_tokens"][keep]).tolist() if "block_tokens" in columns else ())
        self._parts.append(
            (
                *(narrow(batch.line[keep]), time[keep], columns["input_tokens"][keep]),
                *(output[keep], duration[keep], narrow(count)),
            )
        )
        for role, parts in self._labels.items():
            if role in batch.columns:
                parts.append(_labels(batch.columns[role], keep))

    def _refuse(self, batch: Batch, role: str, bad: NDArray[np.bool_]) -> None:
        for row in np.flatnonzero(bad).tolist():
            value = batch.columns[role][row]
            what = (
                "no time" if role.startswith("time") else "no duration" if "duration" in role else "no number of tokens"
            )
            self._lines.bad(int(batch.line[row]), f"{self.found[role]} is {_shown(value)}, which is {what}")

    def rows(self) -> Rows:
        """Everything added. Raises KvplanError, through the lines, for rows that fit no block size."""
        if not self._parts or not sum(part[0].size for part in self._parts):
            raise KvplanError(f"{self._lines.name}: no requests in it")
        if len({part[1].dtype.kind for part in self._parts}) > 1:
            raise KvplanError(f"{self._lines.name}: its times are numbers in some rows and dates in others")
        line, time, input_tokens, output_tokens, duration, count = (
            np.concatenate([part[i] for part in self._parts]) for i in range(6)
        )
        hashed = "hash_ids" in self.found
        self._options.keyed.file_ends()
        role = next((role for role in TIMES if role in self.found), None)
        time_s, findings = table_seconds(time, self.found[role] if role else "", role, hashed)
        keep, size = np.ones(line.size, np.bool_), 1
        if hashed:
            given, how = self._given()
            keep, size, finding = block_size(self._lines, line, input_tokens, count, given, how)
            findings.append(finding)
        keys, streamed = kept_keys(None, self._start, count, keep)
        return Rows(
            block_tokens=size,
            line=line[keep],
            time_s=time_s[keep],
            input_tokens=input_tokens[keep],
            output_tokens=output_tokens[keep],
            duration_s=duration[keep],
            count=count[keep],
            keys=keys,
            streamed=streamed,
            tenant=_names(self._labels["tenant"], keep),
            session=_names(self._labels["session"], keep),
            findings=tuple(findings),
            hashed=hashed,
        )

    def _given(self) -> tuple[int | None, str]:
        asked = self._options.block_tokens
        if len(self._sizes) > 1:
            raise KvplanError(
                f"{self._lines.name}: its column {self.found['block_tokens']} holds several block sizes "
                f"({', '.join(map(str, sorted(self._sizes)[:5]))}): split the log by it"
            )
        size = next(iter(self._sizes), None)
        if size is not None and asked not in (None, size):
            raise KvplanError(f"{self._lines.name}: its blocks hold {size} tokens, not --block-tokens {asked}")
        return (size, f"as its column {self.found['block_tokens']} says") if size else (asked, "as given")


def _counts(values: Any) -> tuple[Ints, NDArray[np.bool_]]:
    """A column of token counts, and which of its rows hold none."""
    numbers = _numbers(values)
    wrong = ~((numbers >= 0) & (numbers < _MOST_TOKENS) & (numbers == np.floor(numbers)))
    return np.where(wrong, 0, numbers).astype(np.int64), wrong


def _numbers(values: Any) -> Floats:
    if isinstance(values, np.ndarray) and values.dtype.kind in "iuf":
        return values.astype(np.float64)
    import pandas

    numbers = pandas.to_numeric(pandas.Series(values), errors="coerce")
    return np.asarray(numbers.to_numpy(dtype=np.float64, na_value=np.nan))


def _times(values: Any) -> Any:
    """A column of times as the file has them: datetime64[ns], or float64 numbers."""
    if isinstance(values, np.ndarray) and values.dtype.kind == "M":
        return values.astype("datetime64[ns]")
    if isinstance(values, np.ndarray) and values.dtype.kind in "iuf":
        return values.astype(np.float64)
    numbers = _numbers(values)
    if not np.isnan(numbers).all():
        return numbers
    import pandas

    moments = pandas.to_datetime(pandas.Series(values), format="ISO8601", errors="coerce", utc=True)
    return moments.dt.tz_localize(None).to_numpy("datetime64[ns]")


def _not_finite(time: Any) -> NDArray[np.bool_]:
    wrong: NDArray[np.bool_] = np.isnat(time) if time.dtype.kind == "M" else ~np.isfinite(time)
    return wrong


def _durations(columns: Mapping[str, Any], rows: int) -> tuple[Floats, NDArray[np.bool_]]:
    role = next((role for role in DURATION_UNITS if role in columns), None)
    if role is None:
        return np.full(rows, np.nan), np.zeros(rows, np.bool_)
    numbers = _numbers(columns[role]) / DURATION_UNITS[role]
    return numbers, (numbers < 0) | (numbers > 1e9)


def _kept(lists: tuple[Keys, Ints] | None, keep: Ints, rows: int) -> tuple[Keys, Ints]:
    if lists is None:
        return np.zeros(0, np.int32), np.zeros(keep.size, np.int64)
    values, ends = lists
    count = np.diff(ends, prepend=0)
    if keep.size == rows:
        return values, count
    return values[np.repeat(np.isin(np.arange(rows), keep), count)], count[keep]


def _labels(values: Any, keep: Ints) -> list[str | None]:
    import pandas

    codes, names = pandas.factorize(pandas.Series(values), use_na_sentinel=True)
    texts = [None if name == "" else str(name) for name in names]
    return [texts[code] if code >= 0 else None for code in codes[keep].tolist()]


def _names(parts: Sequence[Sequence[str | None]], keep: NDArray[np.bool_]) -> list[str | None]:
    every = [name for part in parts for name in part]
    return [name for name, kept in zip(every, keep.tolist(), strict=True) if kept] if parts else []


def _shown(value: object) -> str:
    text = str(value)
    return repr(text if len(text) <= 40 else f"{text[:37]}…")
