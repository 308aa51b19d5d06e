"""What every format reader hands over: one log file as rows with block keys, before ids are made dense and sorted."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvplan.documents import Finding
from kvplan.formats import compiled
from kvplan.formats.keyed import Keyed
from kvplan.formats.parts import Told
from kvplan.progress import Progress, silent

Keys: TypeAlias = NDArray[np.integer[Any]]

# Takes the blocks of some consecutive requests: how many each has, its input tokens, and all keys one after another.
Sink: TypeAlias = Callable[[NDArray[np.int64], NDArray[np.int64], Keys], None]

_SMALL = 2**40
_SPREAD = 0x9E3779B97F4A7C15


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """What the user said about the logs, and who listens; a reader refuses, by name, what it needs and did not get.

    `columns` maps what a table's columns hold (`input_tokens`, `time_ms`, …) to their names in the file;
    `bytes_per_token` stands in for a tokenizer; `text_block_tokens` is the block size of logs of text where
    `block_tokens` is not given, `image_tokens` what an image adds to a prompt (None: not known); large logs of text are
    tokenized by `processes`. Readers of formats that stream give block keys to `keyed` as they read them, some requests
    at a time in file order; with a `sink` keys go there instead, and are not kept.
    """

    block_tokens: int | None = None
    tokenizer: Path | None = None
    tenant_by: str | None = None
    columns: Mapping[str, str] = field(default_factory=dict)
    bytes_per_token: float | None = None
    text_block_tokens: int | None = None
    image_tokens: int | None = None
    processes: int = 1
    sink: Sink | None = None
    keyed: Keyed = field(default_factory=Keyed)
    progress: Progress = silent

    def take(self, count: NDArray[Any], input_tokens: NDArray[Any], keys: Keys) -> None:
        """Take the block keys of some requests that a reader streams: how many each has, and all one after another."""
        if self.sink is None:
            self.keyed.add(keys, count)
        elif count.size:
            self.sink(count, input_tokens, keys)


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Rows:
    """The requests of one file in file order.

    Row i stands at line `line[i]`, starts at `time_s[i]` (NaN in every row of a log without times) and has `count[i]`
    blocks. `keys` holds all rows' block keys one after another: any integers, equal for equal blocks. Where it is None
    the reader streamed them: row i is row `streamed[i]` of all that were streamed, `streamed` None where they are the
    same. `duration_s` is NaN where not known; `tenant` and `session` are empty where the log names none.

    A log of lengths only has `hashed` false, no keys and a block size of 1: its reuse is not known, which is not zero.
    `texts` says what the prompts are made of, where the log holds text; else it is empty.
    With `local` keys mean something within this file only; equal keys of two files are then different blocks.
    """

    block_tokens: int
    line: NDArray[np.int64]
    time_s: NDArray[np.float64]
    input_tokens: NDArray[np.int64]
    output_tokens: NDArray[np.int64]
    duration_s: NDArray[np.float64]
    count: NDArray[np.int64]
    keys: Keys | None
    streamed: NDArray[np.int64] | None = None
    tenant: Sequence[str | None] = ()
    session: Sequence[str | None] = ()
    findings: tuple[Finding, ...] = ()
    hashed: bool = True
    local: bool = False
    texts: Sequence[Told] = ()

    @property
    def offsets(self) -> NDArray[np.int64]:
        """Where each row's blocks start in `keys`, and the end: int64 (rows + 1,)."""
        return np.concatenate((np.zeros(1, np.int64), np.cumsum(self.count)))

    def take(self, order: NDArray[np.int64]) -> Rows:
        """The rows `order` names, in that order."""
        count = self.count[order]
        keys = streamed = None
        if self.keys is None:
            streamed = order if self.streamed is None else self.streamed[order]
        else:
            keys = np.empty(int(count.sum()), self.keys.dtype)
            compiled.gather(self.keys, self.offsets, order, keys)
        return Rows(
            block_tokens=self.block_tokens,
            line=self.line[order],
            time_s=self.time_s[order],
            input_tokens=self.input_tokens[order],
            output_tokens=self.output_tokens[order],
            duration_s=self.duration_s[order],
            count=count,
            keys=keys,
            streamed=streamed,
            tenant=[self.tenant[row] for row in order] if self.tenant else (),
            session=[self.session[row] for row in order] if self.session else (),
            findings=self.findings,
            hashed=self.hashed,
            texts=[self.texts[row] for row in order] if self.texts else (),
        )


def joined(parts: Sequence[Rows]) -> Rows:
    """Several files' rows one after another; the block sizes must be equal."""
    if len(parts) == 1:
        return parts[0]
    tenants, sessions = any(part.tenant for part in parts), any(part.session for part in parts)
    keys = _apart(parts)
    rows = [np.arange(part.line.size) if part.streamed is None else part.streamed for part in parts]
    return Rows(
        block_tokens=parts[0].block_tokens,
        line=np.concatenate([part.line for part in parts]),
        time_s=np.concatenate([part.time_s for part in parts]),
        input_tokens=np.concatenate([part.input_tokens for part in parts]),
        output_tokens=np.concatenate([part.output_tokens for part in parts]),
        duration_s=np.concatenate([part.duration_s for part in parts]),
        count=np.concatenate([part.count for part in parts]),
        keys=keys,
        streamed=np.concatenate(rows) if keys is None else None,
        tenant=[name for part in parts for name in part.tenant or [None] * part.line.size] if tenants else (),
        session=[name for part in parts for name in part.session or [None] * part.line.size] if sessions else (),
        findings=tuple(finding for part in parts for finding in part.findings),
        hashed=parts[0].hashed,
        texts=[one for part in parts for one in part.texts] if all(part.texts for part in parts) else (),
    )


def _apart(parts: Sequence[Rows]) -> Keys | None:
    """All keys, local ones changed so that no two parts share any: moved, or where they are hashes, salted."""
    keys = [part.keys for part in parts if part.keys is not None]
    if not keys:
        return None
    if not any(part.local for part in parts):
        return np.concatenate(keys)
    if any(part.min(initial=0) < 0 or part.max(initial=0) >= _SMALL for part in keys):
        return np.concatenate([part.astype(np.int64) ^ np.int64((i * _SPREAD) % 2**63) for i, part in enumerate(keys)])
    starts = np.cumsum([0, *(int(part.max(initial=-1)) + 1 for part in keys)])
    kind: Any = np.int32 if starts[-1] < 2**31 else np.int64
    return np.concatenate([part.astype(kind) + kind(start) for part, start in zip(keys, starts, strict=False)])


def narrow(values: NDArray[Any]) -> NDArray[Any]:
    """Whole numbers in 32 bits where they fit."""
    fits = not values.size or (values.min() >= -(2**31) and values.max() < 2**31)
    return values.astype(np.int32) if fits else values


def field_at(value: object, path: Sequence[str]) -> Any:
    """What stands at a path of keys in decoded JSON, or None where any of them is missing."""
    for key in path:
        if not isinstance(value, dict):
            return None
        value = value.get(key)
    return value


def label(value: object, field: str) -> str | None:
    """A tenant or session name from a JSON value: text or a whole number; null is none. Raises ValueError."""
    if value is None or isinstance(value, str):
        return value or None
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise ValueError(f"{field} is no name but a {type(value).__name__}")


def malformed(error: Exception) -> str:
    """What is wrong with a line, in words for its reader, from the error that decoding it raised."""
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, msgspec.ValidationError):
        return str(error).replace("`", "'").replace("$.", "")
    if isinstance(error, msgspec.DecodeError):
        return f"not valid JSON: {error}".replace("JSON is malformed: ", "")
    if isinstance(error, UnicodeDecodeError):
        return "not valid UTF-8"
    return str(error)
