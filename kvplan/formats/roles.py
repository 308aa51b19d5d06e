"""What --columns says: which column of a table, or which field of a JSON line, holds what; never passed over."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from kvplan.errors import KvplanError, UsageError
from kvplan.formats.lines import Lines
from kvplan.formats.times import TIME_UNITS

DURATION_UNITS = {"duration_s": 1.0, "duration_ms": 1e3}
TIMES = ("time", *TIME_UNITS)
ROLES = (*TIMES, "input_tokens", "output_tokens", *DURATION_UNITS, "hash_ids", "block_tokens", "session")


def kind(role: str) -> str:
    """A role without its unit: `time_ms` is a `time`."""
    return role.split("_")[0] if role in TIMES or role in DURATION_UNITS else role


def check(columns: Mapping[str, str]) -> None:
    """Raise UsageError for a role that there is not, and for two that say the same or name the same."""
    kinds: dict[str, str] = {}
    names: dict[str, str] = {}
    for role, name in columns.items():
        if role not in ROLES:
            raise UsageError(f"--columns {role}={name}: unknown (known: {', '.join(sorted(ROLES))})")
        if (other := kinds.setdefault(kind(role), role)) != role:
            raise UsageError(f"--columns {role}={name}: {other}={columns[other]} says it already: leave one out")
        if (other := names.setdefault(name, role)) != role:
            raise UsageError(f"--columns {role}={name}: {other} names '{name}' as well: leave one out")


def refuse(lines: Lines, format: str, columns: Mapping[str, str], used: Sequence[str]) -> None:
    """Raise UsageError for a role that a format has no use for."""
    for role, name in columns.items():
        if role not in used:
            why = f"takes {', '.join(used)}" if used else "has fields with fixed names and units, and takes none"
            raise UsageError(f"{lines.name}: --columns {role}={name}: a log of format {format} {why}: leave it out")


class Fields:
    """The fields of a JSON line by what they hold: a format's own, but for those that --columns names.

    `own` maps roles, times and durations without their unit, to names.
    """

    def __init__(self, own: Mapping[str, str], columns: Mapping[str, str]) -> None:
        self._columns = columns
        self._named = {kind(role): (role, name) for role, name in columns.items() if kind(role) in own}
        self._names = {one: self._named[one][1] if one in self._named else name for one, name in own.items()}
        for one, (role, name) in self._named.items():
            for other, taken in self._names.items():
                if other != one and taken == name:
                    raise UsageError(
                        f"--columns {role}={name}: '{name}' holds {other} in such a log: name that as well"
                    )

    def __getitem__(self, one: str) -> str:
        """The name of the field that holds `one` (a role without its unit)."""
        return self._names[one]

    def role(self, one: str) -> str | None:
        """The role, with its unit, that --columns gives a field; None where the format's own name stands."""
        return self._named[one][0] if one in self._named else None

    def need(self, lines: Lines, one: str, there: bool) -> None:
        """Raise KvplanError where --columns names a field that no line has."""
        if not there and one in self._named:
            role, name = self._named[one]
            raise KvplanError(f"{lines.name}: no line has the field '{name}' that --columns {role}={name} names")
