"""Where the names of lines across a plot go: beside their line, where nothing else is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from kvplan.page import Plot, Rule
from kvplan.render import scales

_WIDTH = 600.0  # what a plot is across when its names are placed; on other screens they stand a little elsewhere
_CHARACTER = 5.7  # of a name at 11 px, on average
_LINE = 15  # from one name to the next below it
_CLEAR = 8.0  # between a name and what is drawn


@dataclass(frozen=True, slots=True)
class _Box:
    """A name's place in pixels: from `left` to `right`, its middle at `y` from the top."""

    left: float
    right: float
    y: float


@dataclass(frozen=True, slots=True)
class Named:
    """An upright rule with the place of its name: `y` pixels from the top, left or right of the line."""

    rule: Rule
    y: float
    left: bool


def upright(plot: Plot) -> list[Named]:
    """Where the names of a plot's upright lines go, from left to right."""
    wide, tall = scales.domains(plot)
    taken = []
    for rule in plot.rules:
        if rule.axis == "y":
            at = plot.height * (1 - _place(rule.value, tall, plot.y.log)) + (10 if hangs(plot, rule) else -8)
            taken.append(_Box(0.0, _CHARACTER * len(rule.label), at))
    found = []
    for rule in sorted((rule for rule in plot.rules if rule.axis == "x"), key=lambda rule: rule.value):
        across = _place(rule.value, wide, plot.x.log)
        box = _free(rule, across, plot, taken, wide, tall)
        taken.append(box)
        found.append(Named(rule, box.y, left=box.left < across * _WIDTH))
    return found


def hangs(plot: Plot, rule: Rule) -> bool:
    """Whether the name of a level line hangs below it, because above there is no room left."""
    return _place(rule.value, scales.domains(plot)[1], plot.y.log) > 0.9


def _place(value: float, span: tuple[float, float], log: bool) -> float:
    """Where a value lies on its axis, 0 to 1."""
    low, high, at = (math.log(max(v, 1e-300)) for v in (*span, value)) if log else (*span, value)
    return (at - low) / (high - low) if high > low else 0.0


def _free(
    rule: Rule, across: float, plot: Plot, taken: list[_Box], wide: tuple[float, float], tall: tuple[float, float]
) -> _Box:
    """The first place beside an upright line that no curve, bar or name crosses; the emptiest where there is none.

    Curves rise to the right and leave the lower right corner free, so names of curves are tried from below; above bars
    there is room kept for names, so theirs are tried from above.
    """
    heights = range(9, plot.height - 8, _LINE) if plot.bins else range(plot.height - 10, 8, -_LINE)
    length, start = _CHARACTER * len(rule.label), across * _WIDTH
    right, left = (start + 6, start + 6 + length), (start - 6 - length, start - 6)
    sides = [side for side in (right, left) if side[0] >= 0 and side[1] <= _WIDTH]
    boxes = [_Box(*side, float(height)) for side in sides or [left if across > 0.55 else right] for height in heights]
    lines = list(_lines(plot, wide, tall))
    others = [
        _WIDTH * _place(one.value, wide, plot.x.log)
        for one in plot.rules
        if one.axis == "x" and one.value != rule.value
    ]

    def room(box: _Box) -> float:
        crossed = any(box.left - 4 < other < box.right + 4 for other in others)
        return min(_CLEAR / 2 if crossed else _CLEAR, _clearance(box, lines, taken))

    return max(boxes, key=room)


def _lines(plot: Plot, wide: tuple[float, float], tall: tuple[float, float]) -> Iterator[tuple[float, ...]]:
    """What is drawn, as pieces of lines in pixels: x and y of both ends; a bar is its top, and all that is under it."""

    def pixel(x: float, y: float) -> tuple[float, float]:
        return _WIDTH * _place(x, wide, plot.x.log), plot.height * (1 - _place(y, tall, plot.y.log))

    for series in plot.series:
        points = [pixel(*point) for point in scales.visible(series.points, plot)]
        pieces = pairwise(points) if series.style != "dots" else ((point, point) for point in points)
        for start, end in pieces:
            yield (*start, *end)
    for bins in plot.bins:
        for low, high, value in scales.drawn(bins, plot.x):
            yield (*pixel(low, value), *pixel(high, value), math.inf)
    for rule in plot.rules:
        if rule.axis == "y":
            at = pixel(wide[1], rule.value)[1]
            yield (0.0, at, _WIDTH, at)


def _clearance(box: _Box, lines: list[tuple[float, ...]], taken: list[_Box]) -> float:
    """Pixels between a name and the nearest thing above or below it; 0 where it is crossed."""
    gaps = [_CLEAR]
    for name in taken:
        if name.left < box.right + 8 and box.left < name.right + 8:
            gaps.append(max(0.0, abs(name.y - box.y) - 4))
    for x1, y1, x2, y2, *solid in lines:
        if min(x1, x2) > box.right or max(x1, x2) < box.left:
            continue
        near = [y1, y2] if x1 == x2 else [y1 + (y2 - y1) * (_clip((x - x1) / (x2 - x1))) for x in (box.left, box.right)]
        top, bottom = min(near), math.inf if solid else max(near)
        gaps.append(max(0.0, top - box.y, box.y - bottom))
    return min(gaps)


def _clip(share: float) -> float:
    return min(1.0, max(0.0, share))
