"""Facts that gateways put in many places: one table of where each may stand, and checked reading of it."""

from __future__ import annotations

import datetime
from collections.abc import Mapping, Sequence
from typing import Any

from kvplan.documents import Finding
from kvplan.formats.rows import field_at

# The first name that any wrapper holds is taken.
BODIES: tuple[tuple[str, ...], ...] = ((), ("body",), ("request",), ("request", "body"))
WRAPPERS: tuple[tuple[str, ...], ...] = (*BODIES, ("response",), ("response", "body"))
TIMES = ("timestamp", "ts", "time", "start_time", "startTime", "request_time", "created_at", "created")
SESSIONS = ("session_id", "conversation_id", "chat_id", "metadata.session_id", "metadata.conversation_id")
OUTPUTS = ("usage.completion_tokens", "usage.output_tokens", "completion_tokens", "output_tokens")
PROMPTS = ("usage.prompt_tokens", "usage.input_tokens", "prompt_tokens", "input_tokens")
CACHED = (
    "usage.prompt_tokens_details.cached_tokens",
    "usage.prompt_cache_hit_tokens",
    "usage.cache_read_input_tokens",
    "usage.cached_tokens",
    "cached_tokens",
)
DURATIONS = {"duration_s": 1.0, "latency_s": 1.0, "duration_ms": 0.001, "latency_ms": 0.001}

# A number of a time's size can only be in one unit: 1e11 s is the year 5138, 1e11 ms was in 1973.
_UNITS = ((1e11, 1.0, "seconds"), (1e14, 1e3, "milliseconds"), (1e17, 1e6, "microseconds"), (1e20, 1e9, "nanoseconds"))

_TOLD = dict(zip(("s", "ms", "us", "ns"), _UNITS, strict=True))


def found(row: object, names: Sequence[str]) -> tuple[str, Any]:
    """The first of `names` (dotted) that any wrapper holds, and its value; ('', None) where none does."""
    for name in names:
        for wrapper in WRAPPERS:
            value = field_at(row, (*wrapper, *name.split(".")))
            if value is not None:
                return name, value
    return "", None


def count(row: object, names: Sequence[str], called: str = "") -> int | None:
    """A number of tokens, None where the row names none. Raises ValueError for anything else that stands there.

    `called` is what an error calls it, where that is not its name.
    """
    name, value = found(row, names)
    name = called or name
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**40:
        raise ValueError(f"{name} is {value!r}, not a number of tokens")
    return value


def duration(row: object, names: Mapping[str, float] = DURATIONS) -> float:
    """Seconds a request ran, NaN where the row does not say. Raises ValueError for a value that is no duration.

    `names` are the fields that may say it, with the seconds of their unit.
    """
    name, value = found(row, tuple(names))
    if value is None:
        return float("nan")
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value < 1e9:
        raise ValueError(f"{name} is {value!r}, not a duration")
    return float(value) * names[name]


class Clock:
    """Reads arrival times. The first row decides whether there are times at all, the first number in which unit.

    `told` is the unit where it is known before ("s", "ms", "us", "ns").
    """

    def __init__(self, names: Sequence[str] = TIMES, told: str = "") -> None:
        self._names = names
        self._field: str | None = None
        self._told = bool(told)
        self._unit: tuple[float, float, str] | None = _TOLD.get(told)

    def __call__(self, row: object) -> float:
        """Seconds, on whatever clock the log keeps; NaN in a log without times. Raises ValueError."""
        name, value = found(row, self._names)
        if self._field is None:
            self._field = name
        if bool(name) != bool(self._field):
            raise ValueError(f"has {'no' if self._field else 'a'} time stamp, unlike the lines before")
        if not name:
            return float("nan")
        return self._iso(name, value) if isinstance(value, str) else self._number(name, value)

    def _iso(self, name: str, text: str) -> float:
        try:
            moment = datetime.datetime.fromisoformat(text)
        except ValueError:
            pass
        else:
            return (moment if moment.tzinfo else moment.replace(tzinfo=datetime.UTC)).timestamp()
        try:
            return self._number(name, float(text))
        except ValueError:
            raise ValueError(f"{name} is {text!r}, neither a number nor an ISO 8601 time") from None

    def _number(self, name: str, value: object) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise ValueError(f"{name} is a {type(value).__name__}, neither a number nor an ISO 8601 time")
        if self._told and self._unit is not None and abs(value) < 1e30:
            return float(value) / self._unit[1]
        unit = next((unit for unit in _UNITS if abs(value) < unit[0]), None)
        self._unit = self._unit or unit
        if unit is None or self._unit is None or (unit != self._unit and abs(value) >= _UNITS[0][0]):
            raise ValueError(f"{name} is {value:g}, which is out of line with the times before it")
        return float(value) / self._unit[1]

    def finding(self) -> Finding | None:
        """How the times were read, None where there are none."""
        if not self._field:
            return None
        unit = self._unit[2] if self._unit else "ISO 8601, UTC where no zone is given"
        return Finding(severity="info", code="times", text=f"Arrival times are those of '{self._field}' ({unit}).")
