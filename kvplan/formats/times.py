"""Arrival times as a file has them: in which unit they are, and when that unit cannot be the right one."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan.documents import Finding
from kvplan.units import show_duration

Floats: TypeAlias = NDArray[np.float64]

TIME_UNITS = {"time_s": 1.0, "time_ms": 1e3, "time_us": 1e6, "time_ns": 1e9}

# Dates that logs have: of numbers that all lie between them in some unit, since 1970, that unit is the likely one.
_FIRST_DATE_S, _LAST_DATE_S = 1e9, 4e9  # 2001 to 2096
_MANY = 100
_SHORT_S = 1.0
_WEEK_S = 7 * 86400.0
_DAY_S = 86400.0


def unit_of(time: Floats, hashed: bool) -> tuple[str, str]:
    """The unit that plain numbers are in, and why."""
    largest = float(np.abs(time).max(initial=0))
    for unit, limit in (("s", 1e11), ("ms", 1e14), ("us", 1e17)):
        if 1e9 <= largest < limit and largest >= limit / 1e3:
            return unit, "from their size, as time since 1970"
    if largest >= 1e17:
        return "ns", "from their size, as time since 1970"
    if hashed and (time == np.floor(time)).all():
        return "ms", "whole numbers, as in Mooncake traces"
    return "s", "as numbers with fractions are" if (time != np.floor(time)).any() else "as plain numbers are"


def scale(time: Floats, role: str, hashed: bool) -> tuple[float, str]:
    """What divides times to give seconds, for a role of --columns, and the words for their unit."""
    if role != "time":
        return TIME_UNITS[role], f"in {role.removeprefix('time_')}"
    unit, why = unit_of(time, hashed)
    return TIME_UNITS[f"time_{unit}"], f"taken as {unit} ({why})"


def read(time: Floats, field: str, role: str | None, own: str, format: str) -> tuple[Floats, list[Finding]]:
    """Times in seconds, in the memory of `time`, and what to say of them.

    `role` is the one of --columns that names the field, None where it is the format's own, whose unit is `own` ("s",
    "ms"). NaN times stay so, and nothing is said of them.
    """
    if np.isnan(time).all():
        return time, []
    if role is not None:
        divisor, how = scale(time, role, hashed=True)
        text = f"Arrival times are those of '{field}', {how}, as --columns says."
        return np.divide(time, divisor, out=time), [Finding(severity="info", code="times", text=text)]
    fractions = own == "ms" and bool((time % 1 != 0).any())
    whole = {"ms": "milliseconds", "s": "seconds"}[own]
    text = f"Arrival times are those of '{field}', in {whole} as {format} have them."
    if fractions:
        text += (
            " Some have fractions: if they are seconds, all rates and intervals here are a thousand times off "
            f"(--columns time_s={field} says so)."
        )
    said = [Finding(severity="warning" if fractions else "info", code="times", text=text)]
    seconds = np.divide(time, TIME_UNITS[f"time_{own}"], out=time)
    return seconds, [*said, *doubts(seconds, own, field)]


def doubts(time_s: Floats, unit: str, field: str) -> list[Finding]:
    """A warning where times read in `unit` are unlikely, with the unit that would fit and the option that names it."""
    found = _doubt(time_s, unit)
    if found is None:
        return []
    why, likely = found
    text = f"{why}: '{field}' is probably in {likely}, not in {unit}. --columns time_{likely}={field} says so."
    return [Finding(severity="warning", code="time-unit", text=text)]


def _doubt(time_s: Floats, unit: str) -> tuple[str, str] | None:
    low, high = (float(part) * TIME_UNITS[f"time_{unit}"] for part in (time_s.min(), time_s.max()))
    dated = [
        role.removeprefix("time_")
        for role, factor in TIME_UNITS.items()
        if low >= _FIRST_DATE_S * factor and high <= _LAST_DATE_S * factor
    ]
    if dated and dated[0] != unit:
        return f"The times are dates of this century only in {dated[0]}", dated[0]
    span_s, size = (high - low) / TIME_UNITS[f"time_{unit}"], time_s.size
    if size >= _MANY and 0 < span_s < _SHORT_S and unit != "s":
        return f"{size:,} requests within {show_duration(span_s)} are more than servers see", "s"
    apart_s = span_s / max(size - 1, 1)
    if size > 2 and apart_s > _WEEK_S:
        finer: Sequence[str] = [finer for finer in ("ms", "us", "ns") if _ratio(finer, unit) > 1]
        likely = next((finer for finer in finer if apart_s / _ratio(finer, unit) < _DAY_S), None)
        return (f"Requests come {show_duration(apart_s)} apart", likely) if likely else None
    return None


def _ratio(finer: str, unit: str) -> float:
    return TIME_UNITS[f"time_{finer}"] / TIME_UNITS[f"time_{unit}"]


def table_seconds(time: Any, field: str, role: str | None, hashed: bool) -> tuple[Floats, list[Finding]]:
    """A column's times (numbers or datetime64[ns]) in seconds, and how they were read; `role` None: it has none."""
    if role is None:
        return np.asarray(time, np.float64), []
    if time.dtype.kind == "M":
        text = f"Arrival times are those of '{field}' (dates, UTC where no zone is given)."
        return time.astype(np.int64) / 1e9, [Finding(severity="info", code="times", text=text)]
    if role != "time":
        text = f"Arrival times are those of '{field}' in {role.removeprefix('time_')}."
        return time / TIME_UNITS[role], [Finding(severity="info", code="times", text=text)]
    unit, why = unit_of(time, hashed)
    other = "ms" if unit == "s" else "s"
    text = (
        f"Arrival times are those of '{field}', taken as {unit} ({why}; --columns time_{other}={field} says otherwise)."
    )
    time_s = time / TIME_UNITS[f"time_{unit}"]
    return time_s, [Finding(severity="info", code="times", text=text), *doubts(time_s, unit, field)]
