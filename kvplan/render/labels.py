"""Where the names of lines across a plot go: beside their line, where nothing else is drawn."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

from kvplan.page import Plot, Rule
from kvplan.render import scales

WIDE, NARROW = 600.0, 270.0  # what a plot is across on a desk or on paper, and on a phone
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


@dataclass(frozen=True, slots=True)
class Level:
    """A level rule with the place of its name: `dy` pixels below the line, at its left or right end."""

    rule: Rule
    dy: int
    right: bool


def upright(plot: Plot, width: float = WIDE) -> list[Named]:
    """Where the names of a plot's upright lines go where it is `width` pixels across, from left to right."""
    wide, tall = scales.domains(plot)
    taken = [_level_box(plot, one, width, tall) for one in level(plot, width)]
    found = []
    for rule in sorted((rule for rule in plot.rules if rule.axis == "x"), key=lambda rule: rule.value):
        across = _place(rule.value, wide, plot.x.log)
        box = _free(rule, across * width, width, plot, taken)
        taken.append(box)
        found.append(Named(rule, box.y, left=box.left < across * width))
    return found


def level(plot: Plot, width: float = WIDE) -> list[Level]:
    """Where the names of a plot's level lines go: the first end of the line that is clear, above it or below it."""
    _, tall = scales.domains(plot)
    found = []
    for rule in (rule for rule in plot.rules if rule.axis == "y"):
        below = _place(rule.value, tall, plot.y.log) > 0.9  # no room above
        ways = [Level(rule, dy, right) for right in (False, True) for dy in ((10,) if below else (-8, 10))]
        lines = [line for line in _lines(plot, width) if line != _line_of(plot, rule, width)]
        found.append(max(ways, key=lambda way: min(_CLEAR, _clearance(_level_box(plot, way, width, tall), lines, []))))
    return found


def _level_box(plot: Plot, one: Level, width: float, tall: tuple[float, float]) -> _Box:
    at = plot.height * (1 - _place(one.rule.value, tall, plot.y.log)) + one.dy
    length = _CHARACTER * len(one.rule.label)
    return _Box(width - length, width, at) if one.right else _Box(0.0, length, at)


def _line_of(plot: Plot, rule: Rule, width: float) -> tuple[float, ...]:
    """A level rule as a line in pixels."""
    at = plot.height * (1 - _place(rule.value, scales.domains(plot)[1], plot.y.log))
    return (0.0, at, width, at)


def _place(value: float, span: tuple[float, float], log: bool) -> float:
    """Where a value lies on its axis, 0 to 1."""
    low, high, at = (math.log(max(v, 1e-300)) for v in (*span, value)) if log else (*span, value)
    return (at - low) / (high - low) if high > low else 0.0


def _free(rule: Rule, start: float, width: float, plot: Plot, taken: list[_Box]) -> _Box:
    """The first place beside an upright line that no curve, bar or name crosses; the emptiest where there is none.

    Curves rise to the right and leave the lower right corner free, so names of curves are tried from below; above bars
    there is room kept for names, so theirs are tried from above.
    """
    wide, _ = scales.domains(plot)
    heights = range(9, plot.height - 8, _LINE) if plot.bins else range(plot.height - 10, 8, -_LINE)
    length = _CHARACTER * len(rule.label)
    right, left = (start + 6, start + 6 + length), (start - 6 - length, start - 6)
    sides = [side for side in (right, left) if side[0] >= 0 and side[1] <= width]
    roomier = left if start > width / 2 else right
    boxes = [_Box(*side, float(height)) for side in sides or [roomier] for height in heights]
    lines = list(_lines(plot, width))
    upright = [one.value for one in plot.rules if one.axis == "x" and one.value != rule.value]
    others = [width * _place(value, wide, plot.x.log) for value in upright]

    def room(box: _Box) -> float:
        crossed = any(box.left - 4 < other < box.right + 4 for other in others)
        return min(_CLEAR / 2 if crossed else _CLEAR, _clearance(box, lines, taken))

    return max(boxes, key=room)


def _lines(plot: Plot, width: float) -> Iterator[tuple[float, ...]]:
    """What is drawn, as pieces of lines in pixels: x and y of both ends; a bar is its top, and all that is under it."""
    wide, tall = scales.domains(plot)

    def pixel(x: float, y: float) -> tuple[float, float]:
        return width * _place(x, wide, plot.x.log), plot.height * (1 - _place(y, tall, plot.y.log))

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
            yield _line_of(plot, rule, width)


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
