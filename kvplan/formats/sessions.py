"""Mooncake traces of sessions: later turns come a `delay` after the turn before, with the whole prompt or its new part.

A row with a whole prompt is like any Mooncake row. In the delta form a row holds what its turn adds: the prompt is all
inputs and outputs of the session so far, and that input. Its blocks are cut anew over the whole prompt, because parts
rounded up apart would count more blocks than there are.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan.documents import Finding
from kvplan.errors import KvplanError
from kvplan.formats import hashed, times
from kvplan.formats.blocks import block_size
from kvplan.formats.entries import Entry, collected, decoded, keys, name_at, number, tenant, tokens
from kvplan.formats.lines import Lines
from kvplan.formats.roles import Fields
from kvplan.formats.rows import Options, Rows
from kvplan.formats.times import TIME_UNITS
from kvplan.units import counted

Ints: TypeAlias = NDArray[np.int64]

_OUTPUT = b"output"
_OWN = {
    "time": "timestamp",
    "input_tokens": "input_length",
    "output_tokens": "output_length",
    "hash_ids": "hash_ids",
    "block_tokens": "block_size",
    "session": "session_id",
}


def detect(row: dict[str, Any]) -> bool:
    """Whether a decoded line is of this format."""
    return "hash_ids" in row and "input_length" in row and ("delay" in row or "delay_ms" in row)


def read(lines: Lines, options: Options) -> Rows:
    """Read a whole file, whose later turns tell which form it has. Raises KvplanError naming what is malformed."""
    entries, chained = _turns(lines, options)
    kinds = {kind for kind in map(_continues, _pairs(entries)) if kind is not None}
    if len(kinds) > 1:
        raise KvplanError(
            f"{lines.name}: some turns repeat their session's prompt and some do not: say which form it has with "
            "--format mooncake or --format mooncake-delta"
        )
    return _rows(lines, options, entries, chained, kinds == {False})


def read_deltas(lines: Lines, options: Options) -> Rows:
    """Read a whole file in the delta form."""
    return _rows(lines, options, *_turns(lines, options), True)


def _turns(lines: Lines, options: Options) -> tuple[list[Entry], int]:
    """The rows as they stand, with times, and how many of those follow from a delay."""
    names = Fields(_OWN, options.columns)
    unit = TIME_UNITS[names.role("time") or "time_ms"]
    last: dict[str, float] = {}
    chained = 0

    def turn(line: int, row: dict[str, Any]) -> Iterable[Entry]:
        nonlocal chained
        session = name_at(row, names["session"])
        delay = number(row, "delay", number(row, "delay_ms", np.nan)) / 1000
        time_s = number(row, names["time"], np.nan) / unit
        if np.isnan(time_s) and not np.isnan(delay):
            if session not in last:
                raise ValueError("has a delay but no earlier turn of its session to count from")
            time_s = last[session] + delay
            chained += 1
        if session is not None:
            last[session] = time_s
        yield Entry(
            line=line,
            time_s=time_s,
            input_tokens=tokens(row, names["input_tokens"]),
            output_tokens=tokens(row, names["output_tokens"], 0),
            keys=keys(row, names["hash_ids"]),
            tenant=tenant(row, options),
            session=session,
            size=tokens(row, names["block_tokens"], 0),
        )

    entries = list(decoded(lines, turn))
    names.need(lines, "time", not entries or any(not np.isnan(entry.time_s) for entry in entries))
    names.need(lines, "session", bool(last))
    names.need(lines, "output_tokens", any(entry.output_tokens for entry in entries))
    names.need(lines, "block_tokens", any(entry.size for entry in entries))
    return entries, chained


def _pairs(entries: list[Entry]) -> Iterator[tuple[Entry, Entry]]:
    """Each later turn of a session behind the turn before."""
    last: dict[str, Entry] = {}
    for entry in entries:
        if entry.session is not None:
            if entry.session in last:
                yield last[entry.session], entry
            last[entry.session] = entry


def _continues(pair: tuple[Entry, Entry]) -> bool | None:
    """Whether a turn repeats the start of the one before, None where there is nothing to repeat."""
    before, after = pair
    return bool(before.keys[0] == after.keys[0]) if before.keys.size and after.keys.size else None


def _rows(lines: Lines, options: Options, entries: list[Entry], chained: int, deltas: bool) -> Rows:
    findings = _times(entries, Fields(_OWN, options.columns))
    if chained:
        text = (
            f"{counted(chained, 'turn')} came a delay after the answer before, which the log does not time: answers "
            "are taken as immediate, so that turns come earlier here than they did."
        )
        findings.append(Finding(severity="warning", code="delays", text=text))
    if deltas:
        entries = _whole_prompts(lines, options, entries)
        text = (
            "Rows hold what a turn adds: prompts were put together from all inputs and outputs of their session so "
            "far, and cut into blocks anew."
        )
        findings.append(Finding(severity="info", code="deltas", text=text))
    return hashed.rows(lines, options, collected(entries), findings, "its field 'block_size'")


def _times(entries: list[Entry], names: Fields) -> list[Finding]:
    """How times were read, and whether their unit can be right."""
    role = names.role("time")
    unit = (role or "time_ms").removeprefix("time_")
    text = f"Arrival times are those of '{names['time']}' ({'milliseconds' if unit == 'ms' else unit})."
    said = [Finding(severity="info", code="times", text=text)]
    time_s = np.array([entry.time_s for entry in entries], np.float64)
    if role is None and time_s.size and not np.isnan(time_s).any():
        said += times.doubts(time_s, unit, names["time"])
    return said


@dataclass(slots=True)
class _Prompt:
    """A session's prompt so far: a hash of its full blocks, and the pieces of the block after them."""

    digest: Any = field(default_factory=lambda: hashlib.blake2b(digest_size=8))
    done: list[bytes] = field(default_factory=list)
    open: list[tuple[bytes, int, int]] = field(default_factory=list)  # of what, from which of its tokens, how many
    filled: int = 0

    def add(self, what: bytes, tokens: int, block_tokens: int) -> None:
        """Append `tokens` tokens of one piece of content."""
        start = 0
        while start < tokens:
            part = min(tokens - start, block_tokens - self.filled)
            self.open.append((what, start, part))
            self.filled += part
            start += part
            if self.filled == block_tokens:
                self.digest = self._ended()
                self.done.append(self.digest.digest())
                self.open.clear()
                self.filled = 0

    def _ended(self) -> Any:
        digest = self.digest.copy()
        for what, start, part in self.open:
            digest.update(b"%d %d %d " % (len(what), start, part) + what)
        return digest

    def keys(self) -> Ints:
        """A key a block, the partial last one included."""
        last = [self._ended().digest()] if self.filled else []
        return np.frombuffer(b"".join([*self.done, *last]), np.int64)


def _whole_prompts(lines: Lines, options: Options, entries: list[Entry]) -> list[Entry]:
    parts = collected(entries)
    if not entries:
        return []
    given = options.block_tokens or int(parts.sizes.max() if parts.sizes is not None else 0) or None
    keep, size, _ = block_size(lines, parts.line, parts.input_tokens, parts.count, given)
    prompts: dict[str, _Prompt] = {}
    whole = []
    for turn, entry in enumerate(entries):
        if not keep[turn]:
            continue
        prompt = prompts.setdefault(entry.session, _Prompt()) if entry.session is not None else _Prompt()
        before = len(prompt.done) * size + prompt.filled
        for i, key in enumerate(entry.keys.tolist()):
            prompt.add(b"%d" % key, min(size, entry.input_tokens - i * size), size)
        if entry.input_tokens > entry.keys.size * size:  # a tail without an id is like nothing else
            prompt.add(b"tail %d" % turn, entry.input_tokens - entry.keys.size * size, size)
        whole.append(replace(entry, input_tokens=before + entry.input_tokens, keys=prompt.keys(), size=size))
        prompt.add(_OUTPUT + b" %d" % turn, entry.output_tokens, size)
    return whole
