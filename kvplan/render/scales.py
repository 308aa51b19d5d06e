"""Axes for people: which values to mark, and how a value of each unit reads on an axis, a tooltip and in a table."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable

from kvplan import units
from kvplan.page import Axis, Bins, Plot, Series, Unit

_MOST_TICKS = 7
_SECONDS = (
    1e-6,
    1e-5,
    1e-4,
    1e-3,
    1e-2,
    1e-1,
    1.0,
    10.0,
    60.0,
    600.0,
    3600.0,
    6 * 3600.0,
    86400.0,
    7 * 86400.0,
    3e6,
    3e7,
)
ROUND_TIMES = tuple(
    (number * unit, f"{number} {name}")
    for unit, name, numbers in (
        (1.0, "s", (1, 2, 5, 10, 20, 30)),
        (60.0, "min", (1, 2, 5, 10, 20, 30)),
        (3600.0, "h", (1, 2, 6, 12)),
        (86400.0, "d", (1, 2, 7, 30, 365)),
    )
    for number in numbers
)
_FINE_SECONDS = (
    *(number * 10.0**exponent for exponent in range(-6, 0) for number in (1, 2, 5)),
    *(value for value, _ in ROUND_TIMES),
)
_LOG_NAMES = {60.0: "1 min", 3600.0: "1 h", 86400.0: "1 d", 3e6: "5 w", 3e7: "1 y"}


def show(value: float, unit: Unit) -> str:
    """A value in the words of its unit, with the digits that units.py gives it."""
    match unit:
        case "bytes":
            return units.show_bytes(value)
        case "bytes_per_s":
            return units.show_rate(value)
        case "tokens":
            return units.show_tokens(value)
        case "length":
            return f"{value:,.0f}"
        case "s":
            return units.show_duration(value)
        case "ratio":
            return units.show_percent(value)
        case "per_s":
            return f"{value:,.3g}/s"
        case "count":
            return f"{value:,.0f}" if value == round(value) else f"{value:,.4g}"
        case "usd":
            return _dollars(value)


def _dollars(amount: float) -> str:
    """'$1,234.50', '$0.0203', '-$0.10': cents, or three digits where cents would hide them."""
    size = abs(amount)
    if size >= 1 or size == 0:
        digits = f"{size:,.2f}"
    else:
        digits = f"{size:.3g}" if size >= 1e-4 else f"{size:.1e}"
        digits += "0" * (4 - len(digits))
    return f"{'-' if amount < 0 else ''}${digits}"


def brief(value: float, unit: Unit) -> str:
    """The same for a tick: no digits that say nothing ('4 GiB', '32k', '1 M')."""
    if value == 0:
        return "0"
    if unit == "length":
        return _binary(value)
    if unit == "tokens":
        return _decimal(value)
    return re.sub(r"(\d)\.0+(?=\D|$)", r"\1", re.sub(r"(\.\d*?[1-9])0+(?=\D|$)", r"\1", show(value, unit)))


def _binary(tokens: float) -> str:
    for letter, factor in (("M", 1 << 20), ("k", 1 << 10)):
        if tokens >= factor:
            return f"{tokens / factor:.3g}{letter}"
    return f"{tokens:.0f}"


def _decimal(tokens: float) -> str:
    for letter, factor in (("T", 1e12), ("G", 1e9), ("M", 1e6), ("k", 1e3)):
        if abs(tokens) >= factor:
            return f"{tokens / factor:.3g} {letter}"
    return f"{tokens:.3g}"


def ticks(domain: tuple[float, float], axis: Axis) -> list[tuple[float, str]]:
    """Values to mark on an axis over `domain`, each with its label; at most seven of them."""
    low, high = domain
    values = _log_ticks(low, high, axis.unit) if axis.log else _linear_ticks(low, high, axis.unit)
    names = _LOG_NAMES if axis.log and axis.unit == "s" else {}
    return [(value, names.get(value) or brief(value, axis.unit)) for value in values]


def _log_ticks(low: float, high: float, unit: Unit) -> list[float]:
    if unit == "s":
        marks = [value for value in _SECONDS if low <= value <= high]
        return _thin(marks if len(marks) > 2 else [value for value in _FINE_SECONDS if low <= value <= high])
    base = 2 if unit in ("bytes", "length") else 10
    first, last = math.ceil(math.log(low, base) - 1e-9), math.floor(math.log(high, base) + 1e-9)
    exponents = list(range(first, last + 1))
    if base == 2:  # whole steps of 4, 16, … so that labels are round
        step = max(1, math.ceil(len(exponents) / _MOST_TICKS))
        exponents = [exponent for exponent in exponents if exponent % step == 0]
    elif len(exponents) < 3:
        return [m * 10.0**e for e in range(first - 1, last + 1) for m in (1, 2, 5) if low <= m * 10.0**e <= high]
    return _thin([float(base) ** exponent for exponent in exponents])


def _thin(values: list[float]) -> list[float]:
    return values[:: max(1, math.ceil(len(values) / _MOST_TICKS))]


def _linear_ticks(low: float, high: float, unit: Unit) -> list[float]:
    factor = _display_unit(max(abs(low), abs(high)), unit)
    span = (high - low) / factor
    if span <= 0:
        return [low]
    power = 10 ** math.floor(math.log10(span / 5))
    step = next((m * power for m in (1, 2, 2.5, 5, 10) if span / (m * power) <= 5.5), 10 * power) * factor
    if unit in ("count", "length"):
        step = max(1.0, step)
    first = math.ceil(low / step - 1e-9)
    return [index * step for index in range(first, math.floor(high / step + 1e-9) + 1)]


def _display_unit(value: float, unit: Unit) -> float:
    """What one step of the printed number is worth, so that ticks are round as printed."""
    sizes: dict[str, Iterable[float]] = {
        "bytes": (units.GiB, units.MiB, units.KiB),
        "s": (86400.0, 3600.0, 60.0, 1.0, 1e-3, 1e-6),
        "ratio": (0.01,),
    }
    reach = 2 if unit == "s" else 1  # units.show_duration keeps a unit until it reads about 120
    return next((size for size in sizes.get(unit, ()) if value >= reach * size), 1.0)


def domain(values: Iterable[float], axis: Axis) -> tuple[float, float]:
    """What an axis spans: its own domain where set, else the data: from zero on a linear one, with room above."""
    if axis.domain is not None:
        return axis.domain
    kept = [value for value in values if math.isfinite(value) and (value > 0 or not axis.log)]
    if not kept:
        return (1.0, 10.0) if axis.log else (0.0, 1.0)
    low, high = min(kept), max(kept)
    if axis.log:
        return (low, high) if high > low else (low / 2, high * 2)
    return min(0.0, low), (high * 1.05 if high > 0 else 0.0 if low < 0 else 1.0)


def visible(points: Iterable[tuple[float, float]], plot: Plot) -> list[tuple[float, float]]:
    """The points that a plot's axes can show: finite, above zero on a logarithmic axis, inside a set x domain."""
    low, high = plot.x.domain or (-math.inf, math.inf)
    return [
        (x, y)
        for x, y in points
        if math.isfinite(x)
        and math.isfinite(y)
        and low <= x <= high
        and (x > 0 or not plot.x.log)
        and (y > 0 or not plot.y.log)
    ]


def drawn(bins: Bins, axis: Axis) -> list[tuple[float, float, float]]:
    """The bins as an axis can show them: on a logarithmic one, a bin from zero begins at a quarter of its end."""
    return [(high / 4 if axis.log and low <= 0 else low, high, value) for low, high, value in bins.bins]


def domains(plot: Plot) -> tuple[tuple[float, float], tuple[float, float]]:
    """What the two axes of a plot span: all its series, bins and rules."""
    low, high = domain(_ys(plot.series, plot.bins, plot), plot.y)
    named = sum(rule.axis == "x" for rule in plot.rules)
    if plot.bins and named and plot.y.domain is None:  # names of upright lines are written above the bars
        high *= 1 / max(0.4, 1 - 16 * named / plot.height)
    return domain(_xs(plot.series, plot.bins, plot), plot.x), (low, high)


def _xs(series: Iterable[Series], bins: Iterable[Bins], plot: Plot) -> list[float]:
    lines = [x for one in series for x, _ in one.points]
    boxes = [edge for one in bins for low, high, _ in drawn(one, plot.x) for edge in (low, high)]
    return lines + boxes + [rule.value for rule in plot.rules if rule.axis == "x"]


def _ys(series: Iterable[Series], bins: Iterable[Bins], plot: Plot) -> list[float]:
    lines = [y for one in series for _, y in visible(one.points, plot)]
    boxes = [value for one in bins for _, _, value in one.bins]
    return lines + boxes + [rule.value for rule in plot.rules if rule.axis == "y"]
