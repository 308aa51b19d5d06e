"""Logs of block ids that are read a request at a time: checked reading of fields, and the table they end in."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvplan.formats.hashed import Columns
from kvplan.formats.lines import Lines
from kvplan.formats.rows import Keys, Options, field_at, label, malformed

Ints: TypeAlias = NDArray[np.int64]

_MOST_TOKENS = 2**40


@dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """One request as a log has it. `time_s` is NaN where it has none, `size` the block size it names, 0 for none."""

    line: int
    time_s: float
    input_tokens: int
    output_tokens: int
    keys: Keys
    duration_s: float = math.nan
    tenant: str | None = None
    session: str | None = None
    size: int = 0


def collected(entries: Iterable[Entry], *, local: bool = False) -> Columns:
    """Requests one after another as columns."""
    every = list(entries)
    return Columns(
        line=np.array([entry.line for entry in every], np.int64),
        time_s=np.array([entry.time_s for entry in every], np.float64),
        input_tokens=np.array([entry.input_tokens for entry in every], np.int64),
        output_tokens=np.array([entry.output_tokens for entry in every], np.int64),
        count=np.array([entry.keys.size for entry in every], np.int64),
        keys=np.concatenate([np.zeros(0, np.int32), *(entry.keys for entry in every)]),
        duration_s=np.array([entry.duration_s for entry in every], np.float64),
        sizes=np.array([entry.size for entry in every], np.int64),
        tenant=[entry.tenant for entry in every],
        session=[entry.session for entry in every],
        local=local,
    )


def decoded(lines: Lines, make: Callable[[int, dict[str, Any]], Iterable[Entry]]) -> Iterator[Entry]:
    """The requests that `make` finds in each line; a line for which it raises ValueError is bad."""
    for number, text in lines:
        try:
            row = msgspec.json.decode(text)
            if not isinstance(row, dict):
                raise ValueError("is no JSON object")
            found = list(make(number, row))
        except (ValueError, RecursionError) as error:
            lines.bad(number, malformed(error))
        else:
            yield from found


def tokens(row: object, name: str, default: int | None = None) -> int:
    """A number of tokens; `default` where there is none or null, unless it is None. Raises ValueError."""
    value = field_at(row, name.split("."))
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < _MOST_TOKENS:
        raise ValueError(f"{name} is {_shown(value)}, not a number of tokens")
    return value


def number(row: object, name: str, default: float | None = None) -> float:
    """A finite number; `default` where there is none or null, unless it is None. Raises ValueError."""
    value = field_at(row, name.split("."))
    if value is None and default is not None:
        return default
    if isinstance(value, bool) or not isinstance(value, int | float) or not abs(value) < 1e30:
        raise ValueError(f"{name} is {_shown(value)}, not a number")
    return float(value)


def seconds(row: object, name: str, scale: float) -> float:
    """A duration in seconds from one in units of `scale`, NaN where there is none. Raises ValueError."""
    value = number(row, name, math.nan)
    if value < 0 or value / scale > 1e9:
        raise ValueError(f"{name} is {value:g}, not a duration")
    return value / scale


def name_at(row: object, name: str) -> str | None:
    """A session or tenant, None where there is none. Raises ValueError."""
    return label(field_at(row, name.split(".")), name)


def tenant(row: object, options: Options) -> str | None:
    """The tenant that the user's field names, None where it names none."""
    return name_at(row, options.tenant_by) if options.tenant_by else None


def keys(row: object, name: str) -> Ints:
    """A list of block ids, whole numbers or texts, as 64-bit keys. Raises ValueError."""
    values = field_at(row, name.split("."))
    if not isinstance(values, list):
        raise ValueError(f"{name} is {_shown(values)}, not a list of block ids")
    if set(map(type, values)) <= {int}:
        try:
            return np.array(values, np.int64)
        except OverflowError:
            pass  # beyond 2^63: one by one, which also names what does not fit
    try:
        return np.fromiter((key(value) for value in values), np.uint64, len(values)).view(np.int64)
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None


def narrow(values: Keys) -> Keys:
    """The same keys in 32 bits where they fit: half the memory of a long log."""
    fits = not values.size or (values.min() >= 0 and values.max() < 2**31)
    return values.astype(np.int32) if fits else values


def key(value: object) -> int:
    """One block id as an unsigned 64-bit key: numbers as they are, other texts by their hash. Raises ValueError."""
    if isinstance(value, int) and not isinstance(value, bool) and -(2**63) <= value < 2**64:
        return value % 2**64
    if isinstance(value, str) and value:
        try:
            short = int(value, 16) if len(value.removeprefix("0x")) <= 16 else None
        except ValueError:
            short = None
        if short is not None and short >= 0:
            return short
        digest = hashlib.blake2b(value.encode("utf-8", "surrogatepass"), digest_size=8)
        return int.from_bytes(digest.digest(), "little")
    raise ValueError(f"a block id is {_shown(value)}, neither a 64-bit number nor a text")


def _shown(value: object) -> str:
    text = repr(value) if value is not None else "missing"
    return text if len(text) <= 60 else f"{text[:57]}…"
