"""Charts out of characters, for people whose screen is a terminal: braille dots, or plain ASCII where those cannot go.

A drawing is a grid of cells, each a character and the role that colours it; render/terminal.py prints it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from itertools import pairwise

from kvplan.page import Axis, Plot, Role, Rule, Series, Stack
from kvplan.render import scales

Cell = tuple[str, Role | None]
_DOTS = ((0x01, 0x08), (0x02, 0x10), (0x04, 0x20), (0x40, 0x80))  # braille bits by row, then column


def fraction(value: float, domain: tuple[float, float], log: bool) -> float:
    """Where a value lies on an axis, 0 at its start and 1 at its end."""
    low, high = domain
    if log:
        value, low, high = math.log(max(value, 1e-300)), math.log(low), math.log(high)
    return (value - low) / (high - low) if high > low else 0.5


@dataclass(slots=True)
class _Canvas:
    """Dots two wide and four high a cell (one dot a cell in ASCII); y counts from the top."""

    width: int
    height: int
    ascii: bool
    cells: dict[tuple[int, int], int] = field(default_factory=dict)
    roles: dict[tuple[int, int], Role] = field(default_factory=dict)
    back: dict[tuple[int, int], Cell] = field(default_factory=dict)
    taken: set[tuple[int, int]] = field(default_factory=set)

    @property
    def dots(self) -> tuple[int, int]:
        return (self.width, self.height) if self.ascii else (2 * self.width, 4 * self.height)

    def dot(self, x: int, y: int, role: Role) -> None:
        column, row = (x, y) if self.ascii else (x // 2, y // 4)
        if 0 <= column < self.width and 0 <= row < self.height:
            bit = 1 if self.ascii else _DOTS[y % 4][x % 2]
            self.cells[column, row] = self.cells.get((column, row), 0) | bit
            self.roles[column, row] = role

    def line(self, start: tuple[float, float], end: tuple[float, float], role: Role) -> None:
        steps = max(1, round(max(abs(end[0] - start[0]), abs(end[1] - start[1]))))
        for step in range(steps + 1):
            share = step / steps
            self.dot(round(start[0] + share * (end[0] - start[0])), round(start[1] + share * (end[1] - start[1])), role)

    def rows(self) -> list[list[Cell]]:
        def cell(column: int, row: int) -> Cell:
            bits = self.cells.get((column, row))
            if bits is None:
                return self.back.get((column, row), (" ", None))
            return "*" if self.ascii else chr(0x2800 + bits), self.roles[column, row]

        return [[cell(column, row) for column in range(self.width)] for row in range(self.height)]


def draw(plot: Plot, width: int, height: int, ascii: bool) -> list[list[Cell]]:
    """A plot as rows of cells, `width` wide with its labels and `height` high without the x axis."""
    xs, ys = scales.domains(plot)
    y_marks = [(value, text) for value, text in scales.ticks(ys, plot.y)]
    margin = max((len(text) for _, text in y_marks), default=0) + 1
    canvas = _Canvas(max(10, width - margin - 1), height, ascii)
    across, down = canvas.dots
    for series in plot.series:
        dots = [
            (fraction(x, xs, plot.x.log) * (across - 1), (1 - fraction(y, ys, plot.y.log)) * (down - 1))
            for x, y in _corners(series, scales.visible(series.points, plot))
        ]
        for point in dots:
            canvas.dot(round(point[0]), round(point[1]), series.role)
        if series.style != "dots":
            for start, end in pairwise(dots):
                canvas.line(start, end, series.role)
    _rules(canvas, plot, xs, ys)
    labels = {round((1 - fraction(value, ys, plot.y.log)) * (height - 1)): text for value, text in y_marks}
    edge = "|" if ascii else "│"
    body = [
        [*_text(labels.get(row, "").rjust(margin - 1)), (" ", None), (edge, "muted"), *cells]
        for row, cells in enumerate(canvas.rows())
    ]
    return [*body, *_x_axis(plot.x, xs, margin, canvas.width, ascii)]


def _corners(series: Series, points: list[tuple[float, float]]) -> list[tuple[float, float]]:
    """The points of a line; those of a step with the corner before each, as a step holds until the next x."""
    if series.style != "step":
        return points
    return [*points[:1], *(point for (_, y), end in pairwise(points) for point in ((end[0], y), end))]


def _text(text: str, role: Role | None = "muted") -> list[Cell]:
    return [(character, role) for character in text]


def _rules(canvas: _Canvas, plot: Plot, xs: tuple[float, float], ys: tuple[float, float]) -> None:
    """Lines across behind the curves, their names where nothing is drawn."""
    bar, dash = ("|", "-") if canvas.ascii else ("┊", "┈")
    names: list[tuple[int, list[int], Rule]] = []
    for rule in plot.rules:
        if rule.axis == "y":
            row = round((1 - fraction(rule.value, ys, plot.y.log)) * (canvas.height - 1))
            canvas.back |= {(column, row): (dash, rule.role) for column in range(canvas.width)}
            names.append((1, [row], rule))
        else:
            column = round(fraction(rule.value, xs, plot.x.log) * (canvas.width - 1))
            canvas.back |= {(column, row): (bar, rule.role) for row in range(canvas.height)}
            right = column + 2 + len(rule.label) <= canvas.width
            rows = list(range(canvas.height - 2, -1, -1))
            names.append((column + 2 if right else column - 1 - len(rule.label), rows, rule))
    for column, rows, rule in names:
        _name(canvas, column, rows, rule)


def _name(canvas: _Canvas, column: int, rows: list[int], rule: Rule) -> None:
    """Write a rule's name on the first of `rows` where no curve and no other name is, or not at all."""
    places = [max(0, column) + offset for offset in range(len(rule.label))]
    for row in rows:
        cells = [(place, row) for place in places]
        if not any(cell in canvas.cells or cell in canvas.taken for cell in cells):
            canvas.back |= {cell: (character, rule.role) for cell, character in zip(cells, rule.label, strict=True)}
            canvas.taken.update(cells)
            return


def _x_axis(axis: Axis, domain: tuple[float, float], margin: int, width: int, ascii: bool) -> list[list[Cell]]:
    corner, along, tick = ("+", "-", "+") if ascii else ("└", "─", "┬")
    line, words = [along] * width, [" "] * (width + 12)
    free = 0
    for value, text in scales.ticks(domain, axis):
        column = round(fraction(value, domain, axis.log) * (width - 1))
        start = max(0, column - len(text) // 2)
        if start >= free and column < width:
            line[column] = tick
            words[start : start + len(text)] = list(text)
            free = start + len(text) + 1
    pad = " " * margin
    return [
        _text(pad + corner + "".join(line)),
        _text((pad + " " + "".join(words)).rstrip()),
        _text(pad + " " + axis.title),
    ]


def bar(stack: Stack, width: int, ascii: bool) -> list[Cell]:
    """A stacked bar as one row of cells: parts in proportion, the limit as a mark."""
    total = max(sum(part.value for part in stack.parts), stack.limit or 0) or 1.0
    cells: list[Cell] = []
    reached = 0.0
    for index, part in enumerate(stack.parts):
        reached += part.value
        upto = round(reached / total * width)
        fill = "#=+-o:%."[index % 8] if ascii else "█"
        cells += [(fill, part.role)] * (upto - len(cells))
    cells += [("." if ascii else "░", "faint")] * (width - len(cells))
    if stack.limit is not None and stack.limit < total:
        cells[min(width - 1, round(stack.limit / total * width))] = ("|" if ascii else "┃", "danger")
    return cells
