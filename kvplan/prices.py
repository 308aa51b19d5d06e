"""A file of prices that the user wrote, dated and confirmed. kvplan ships no price: they move by half in a quarter.

examples/prices.toml shows the form; docs/planning.md says what each price is used for.
"""

from __future__ import annotations

import datetime
import math
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvplan.documents import Prices
from kvplan.errors import KvplanError
from kvplan.files import reason

YEAR_S = 8760 * 3600.0
_TOP = ("date", "confirmed", "source")
# Every price of the file: its table and key, and the field it becomes with the factor between them.
_PRICES = {
    ("gpu", "usd_per_hour"): ("gpu_usd_per_hour", 1.0),
    ("memory", "usd_per_gb"): ("memory_usd_per_gb", 1.0),
    ("memory", "life_years"): ("memory_life_s", YEAR_S),
    ("memory", "usd_per_gb_hour"): ("memory_usd_per_gb_hour", 1.0),
    ("drive", "usd_per_gb"): ("disk_usd_per_gb", 1.0),
    ("drive", "life_years"): ("disk_life_s", YEAR_S),
    ("drive", "writes_per_day"): ("disk_writes_per_day", 1.0),
    ("drive", "usd_per_gb_hour"): ("disk_usd_per_gb_hour", 1.0),
}


def read(path: Path) -> Prices:
    """Prices from a TOML file. Raises KvplanError naming file and key for anything but confirmed, dated prices."""
    try:
        table = tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise KvplanError(f"{path}: {reason(error)}") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise KvplanError(f"{path}: not valid TOML: {error}") from None
    _known(path, table)
    if table.get("confirmed") is not True:
        raise KvplanError(f"{path}: not confirmed: check each price against your own, then write confirmed = true")
    values = {field: value * factor for field, value, factor in _values(path, table)}
    if not values.get("gpu_usd_per_hour"):
        raise KvplanError(f"{path}: [gpu] usd_per_hour is missing or 0: every other price is held against it")
    return Prices(date=_date(path, table), source=str(table.get("source", path.name)), **values)


def _known(path: Path, table: Mapping[str, Any]) -> None:
    tables = {name for name, _ in _PRICES}
    for name, value in table.items():
        if name not in tables and name not in _TOP:
            raise KvplanError(f"{path}: unknown key {name!r} (known: {', '.join((*_TOP, *sorted(tables)))})")
        for key in value if isinstance(value, dict) else ():
            if (name, key) not in _PRICES:
                known = ", ".join(one for where, one in _PRICES if where == name)
                raise KvplanError(f"{path}: [{name}] has unknown key {key!r} (known: {known})")


def _values(path: Path, table: Mapping[str, Any]) -> list[tuple[str, float, float]]:
    found = []
    for (name, key), (field, factor) in _PRICES.items():
        part = table.get(name, {})
        if not isinstance(part, dict):
            raise KvplanError(f"{path}: {name} is no table: write [{name}] and its prices below it")
        if key not in part:
            continue
        value = part[key]
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value) or value < 0:
            raise KvplanError(f"{path}: [{name}] {key} = {value!r} is no price: write a number of at least 0")
        found.append((field, float(value), factor))
    return found


def _date(path: Path, table: Mapping[str, Any]) -> str:
    value = table.get("date")
    if isinstance(value, datetime.datetime) or not isinstance(value, datetime.date):
        raise KvplanError(f"{path}: date is missing or no date: write the day of the prices, such as date = 2026-01-31")
    return value.isoformat()
