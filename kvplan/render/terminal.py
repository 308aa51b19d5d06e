"""A page on a terminal, or in a pipe: what matters first, tables that lose nothing, plots out of characters."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Literal

from rich.box import ROUNDED, SIMPLE_HEAD
from rich.cells import cell_len
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.panel import Panel
from rich.table import Table as Grid
from rich.text import Text as Styled

from kvplan.page import (
    Bars,
    Block,
    Code,
    Column,
    Decision,
    Fact,
    Facts,
    Figure,
    Findings,
    Page,
    Plot,
    Role,
    Row,
    Section,
    Stack,
    Table,
    Text,
    Tone,
    clean,
)
from kvplan.render import plot
from kvplan.render.scales import show

_TONES: dict[Tone, str] = {"good": "green", "plain": "blue", "warning": "yellow", "bad": "red"}
_ROWS: dict[Tone, str] = {"good": "", "plain": "", "warning": "yellow", "bad": "red"}
_SEVERITIES = {"error": "bold red", "warning": "yellow", "info": "blue"}
_PROVENANCE = {
    "measured": "green",
    "configured": "blue",
    "published": "magenta",
    "assumed": "yellow",
    "default": "bright_black",
}
_ROLES: dict[Role, str] = {
    "main": "blue",
    "second": "yellow",
    "third": "cyan",
    "fourth": "magenta",
    "gpu": "blue",
    "host": "cyan",
    "disk": "yellow",
    "recompute": "magenta",
    "muted": "bright_black",
    "danger": "red",
    "faint": "bright_black",
}
_PLAIN = str.maketrans({"→": "->", "×": "x", "µ": "u", "²": "^2", "…": "...", "–": "-", "—": "-", "≤": "<=", "≥": ">="})
_WIDEST_PLOT = 96
_WIDEST_BOX = 120  # longer lines are hard to read, on a wide screen and in a pipe
_LEAST_WORDS = 18  # a column of words may be folded down to this many characters


def print_page(page: Page, console: Console, full: bool = False) -> None:
    """Print a page: the sections for a first screen, or all of them when `full`.

    Nothing is cut: a table that is too wide for the screen is turned on its side or folded, and characters that the
    stream cannot encode become ASCII. Raises nothing of its own.
    """
    printer = _Printer(console, full)
    say = printer.say
    console.print(Styled(say(page.title), style="bold"))
    if not any(isinstance(block, Decision) for section in page.sections for block in section.blocks):
        console.print(Styled(say(page.lead)))
    console.print(Styled(say(page.origin), style="bright_black"))
    for section in page.sections:
        if section.first or full:
            printer.section(section)


def _fit(spans: list[tuple[int, int]], width: int) -> list[int] | None:
    """Widths for columns of (least, full) width, what is left over given to those that want it; None if too wide."""
    widths = [least for least, _ in spans]
    left = width - sum(widths) - 3 * len(widths) + 1  # a blank on each side of a column, one between, none at the ends
    if left < 0:
        return None
    wants = sorted((full - least, index) for index, (least, full) in enumerate(spans))
    for position, (want, index) in enumerate(wants):  # the modest first, so that what they leave goes to the others
        more = min(want, left // (len(wants) - position))
        widths[index] += more
        left -= more
    return widths


class _Printer:
    """Knows the console: how wide it is, and whether it can show more than ASCII."""

    def __init__(self, console: Console, full: bool) -> None:
        self.console = console
        self.full = full
        self.ascii = console.options.ascii_only
        self.show: dict[type, Callable[..., Iterable[RenderableType]]] = {
            Text: self._text,
            Facts: self._facts,
            Decision: self._decision,
            Table: self._table,
            Code: self._code,
            Findings: self._findings,
            Figure: self._figure,
        }

    def say(self, text: str) -> str:
        """Text as this stream can carry it."""
        text = clean(text)
        return text.translate(_PLAIN).encode("ascii", "backslashreplace").decode() if self.ascii else text

    def section(self, section: Section) -> None:
        self.console.print()
        self.console.print(Styled(self.say(section.heading), style="bold underline"))
        if section.reading:
            self.console.print(Styled(self.say(section.reading), style="bright_black"))
        for block in section.blocks:
            self.block(block)

    def block(self, block: Block) -> None:
        for renderable in self.show[type(block)](block):
            self.console.print(renderable, soft_wrap=isinstance(block, Code))

    def _text(self, block: Text) -> list[RenderableType]:
        return [Styled(self.say(block.text))]

    def _grid(self, facts: tuple[Fact, ...]) -> Grid:
        grid = Grid.grid(padding=(0, 2))
        grid.add_column(overflow="fold", style="bright_black")
        grid.add_column(overflow="fold", style="bold")
        if any(fact.provenance for fact in facts):
            grid.add_column()
        grid.add_column(overflow="fold", style="bright_black")
        for fact in facts:
            badge = fact.provenance or ""
            badges = [Styled(badge, style=_PROVENANCE.get(badge, ""))] if len(grid.columns) == 4 else []
            grid.add_row(self.plain(fact.label), self.plain(fact.value), *badges, self.plain(fact.note))
        return grid

    def plain(self, text: str) -> Styled:
        """Text that is only text: Rich must not read markup in a foreign name."""
        return Styled(self.say(text))

    def _facts(self, block: Facts) -> list[RenderableType]:
        return [self._grid(block.items)]

    def _decision(self, block: Decision) -> list[RenderableType]:
        words = Styled(self.say(block.headline), style="bold")
        if block.text:
            words.append(" ").append(self.say(block.text), style="not bold")
        parts: list[RenderableType] = [words, "", self._grid(block.facts)]
        if block.notes:
            notes = Grid.grid(padding=(0, 2))
            notes.add_column(style="bright_black")
            notes.add_column(overflow="fold")
            for name, text in block.notes:
                notes.add_row(self.plain(name), self.plain(text))
            parts += ["", notes]
        width = min(self.console.width, _WIDEST_BOX)
        return [Panel(Group(*parts), border_style=_TONES[block.tone], box=ROUNDED, padding=(0, 1), width=width)]

    # ---------------------------------------------------------------------------------------------- tables

    def _table(self, table: Table) -> list[RenderableType]:
        rows = table.rows if self.full or table.short is None else table.short
        if not rows:
            return []
        titled: list[RenderableType] = [Styled(self.say(table.title), style="italic")] if table.title else []
        shown = [i for i, column in enumerate(table.columns) if self.full or not column.detail]
        used = [i for i in shown if any(row.cells[i] for row in rows)]
        columns = [(table.columns[i], [row.cells[i] for row in rows]) for i in used]
        widths = _fit([self._span(column, cells) for column, cells in columns], self.console.width)
        if widths is not None:
            return [*titled, self._upright(table, rows, used, widths)]
        names = max(cell_len(self.say(table.columns[i].title)) for i in used)
        spans = [[self._span(table.columns[i], [row.cells[i]]) for i in used] for row in rows]
        turned = [(max(low for low, _ in span), max(high for _, high in span)) for span in spans]
        widths = _fit([(names, names), *turned], self.console.width)
        if widths is not None:
            return [*titled, self._turned(table, rows, used, widths)]
        noted = self._noted(table, rows, used)
        return [*titled, *(noted if noted is not None else self._stanzas(table, rows, used))]

    def _span(self, column: Column, cells: list[str]) -> tuple[int, int]:
        """The narrowest a column reads well at (numbers whole, words not below a small measure), and its full width."""
        longest = max(cell_len(self.say(cell)) for cell in cells)
        title = self.say(column.title)
        word = max((cell_len(word) for word in title.split()), default=0)
        least = longest if column.kind in ("number", "provenance") else min(longest, _LEAST_WORDS)
        return max(word, least), max(cell_len(title), longest)

    def _upright(
        self,
        table: Table,
        rows: tuple[Row, ...],
        used: list[int],
        widths: list[int],
        headed: bool = True,
        edge: bool = True,
    ) -> Grid:
        headed = headed and any(column.title for column in table.columns)
        grid = Grid(box=SIMPLE_HEAD, pad_edge=False, show_header=headed, show_edge=edge)
        for index, width in zip(used, widths, strict=True):
            column = table.columns[index]
            side: Literal["left", "right"] = "right" if column.kind == "number" else "left"
            grid.add_column(self.plain(column.title), justify=side, overflow="fold", width=width)
        for row in rows:
            cells = [self._cell(row.cells[index], table.columns[index].kind) for index in used]
            grid.add_row(*cells, style=_ROWS[row.tone] or ("bold" if row.strong else None))
        return grid

    def _turned(self, table: Table, rows: tuple[Row, ...], used: list[int], widths: list[int]) -> Grid:
        """Columns as lines, for a table that is wide and not long."""
        grid = Grid(box=SIMPLE_HEAD, pad_edge=False)
        grid.add_column(
            self.plain(table.columns[used[0]].title), style="bright_black", overflow="fold", width=widths[0]
        )
        for row, width in zip(rows, widths[1:], strict=True):
            style = _ROWS[row.tone] or ("bold" if row.strong else "")
            grid.add_column(self.plain(row.cells[used[0]]), overflow="fold", style=style, width=width)
        for index in used[1:]:
            column = table.columns[index]
            grid.add_row(self.plain(column.title), *(self._cell(row.cells[index], column.kind) for row in rows))
        return grid

    def _noted(self, table: Table, rows: tuple[Row, ...], used: list[int]) -> list[RenderableType] | None:
        """The longest words of each row on a line under it, the rest upright; None where that does not fit either."""
        longest = {i: max(cell_len(self.say(row.cells[i])) for row in rows) for i in used}
        texts = [i for i in used[1:] if table.columns[i].kind == "text"]
        if not texts:
            return None
        note = max(texts, key=lambda i: longest[i])
        rest = [i for i in used if i != note]
        widths = _fit([self._span(table.columns[i], [row.cells[i] for row in rows]) for i in rest], self.console.width)
        if widths is None or longest[note] <= _LEAST_WORDS:
            return None
        shown: list[RenderableType] = [self._upright(table, (), rest, widths, edge=False)]
        for row in rows:
            shown.append(self._upright(table, (row,), rest, widths, headed=False, edge=False))
            if row.cells[note]:
                words = self.plain(row.cells[note])
                words.stylize("bright_black")
                shown.append(Padding(words, (0, 0, 0, 3)))
        return [*shown, ""]

    def _stanzas(self, table: Table, rows: tuple[Row, ...], used: list[int]) -> Iterator[RenderableType]:
        """A row after the other, each cell on a line of its own, for a table that fits no other way."""
        for row in rows:
            grid = Grid.grid(padding=(0, 2))
            grid.add_column(style="bright_black", overflow="fold")
            grid.add_column(overflow="fold", style=_ROWS[row.tone] or ("bold" if row.strong else ""))
            for index in used:
                if row.cells[index]:
                    column = table.columns[index]
                    grid.add_row(self.plain(column.title), self._cell(row.cells[index], column.kind))
            yield Padding(grid, (1, 0, 0, 2))

    def _cell(self, text: str, kind: str) -> Styled:
        style = _PROVENANCE.get(text, "") if kind == "provenance" else ""
        return Styled(self.say(text), style=style)

    # ------------------------------------------------------------------------------- code, findings, figures

    def _code(self, block: Code) -> list[RenderableType]:
        title = [Styled(self.say(block.title), style="italic")] if block.title else []
        return [*title, *(Styled(f"  {line}") for line in self.say(block.text).splitlines())]

    def _findings(self, block: Findings) -> list[RenderableType]:
        grid = Grid.grid(padding=(0, 2))
        grid.add_column()
        grid.add_column(overflow="fold")
        for item in block.items:
            text = self.plain(item.text)
            grid.add_row(
                Styled(item.severity, style=_SEVERITIES[item.severity]),
                text.append(f"  [{self.say(item.code)}]", style="bright_black"),
            )
        return [grid]

    def _figure(self, figure: Figure) -> list[RenderableType]:
        if not (figure.plot or self.full):
            return []
        width = min(self.console.width, _WIDEST_PLOT)
        lines: list[Styled] = []
        for chart in figure.charts:
            if isinstance(chart, Plot) and chart.series:
                lines += self._legend(chart)
                lines += [self._cells(row) for row in plot.draw(chart, width, max(7, chart.height // 20), self.ascii)]
            elif isinstance(chart, Stack):
                lines += self._bar(chart, width)
            elif isinstance(chart, Bars):
                lines += self._bars(chart, width)
        reading = Styled(self.say(figure.reading), style="italic")
        return ["", *lines, reading] if lines else [reading]

    def _cells(self, cells: Iterable[plot.Cell]) -> Styled:
        line = Styled(no_wrap=True)
        for character, role in cells:
            line.append(self.say(character), style=_ROLES[role] if role else "")
        return line

    def _legend(self, chart: Plot) -> list[Styled]:
        if len(chart.series) < 2:
            return [Styled(self.say(chart.y.title), style="bright_black")]
        line = Styled(self.say(chart.y.title) + ":", style="bright_black")
        mark = "*" if self.ascii else "⠒⠒"
        for series in chart.series:
            line.append(f"  {mark} {self.say(series.name)}", style=_ROLES[series.role])
        return [line]

    def _bars(self, bars: Bars, width: int) -> list[Styled]:
        """One line a bar: its name, its length, its value and what that may lie between."""
        margin = max(cell_len(self.say(bar.name)) for bar in bars.bars) + 1
        most = max(bar.value for bar in bars.bars) or 1.0
        lines = [Styled(self.say(bars.title), style="bright_black")]
        for bar in bars.bars:
            line = Styled(self.say(bar.name).ljust(margin))
            length = round(bar.value / most * max(10, width - margin - 32))
            line.append(("#" if self.ascii else "█") * max(1, length), style=_ROLES[bar.role])
            between = " to ".join(show(end, bars.unit) for end in bar.interval or ())
            lines.append(line.append(f" {show(bar.value, bars.unit)}" + (f" ({between})" if between else "")))
        return lines

    def _bar(self, stack: Stack, width: int) -> list[Styled]:
        lines = [Styled()]
        for index, part in enumerate(stack.parts):
            mark = "#=+-o:%."[index % 8] if self.ascii else "■"
            name = self.say(f"{part.name} {show(part.value, stack.unit)}")
            if lines[-1] and cell_len(lines[-1].plain) + 5 + cell_len(name) > self.console.width:
                lines.append(Styled())
            gap = "   " if lines[-1] else ""
            lines[-1].append(f"{gap}{mark} ", style=_ROLES[part.role]).append(name)
        limit = "" if stack.limit is None else f", {stack.limit_label} {show(stack.limit, stack.unit)}"
        return [
            Styled(self.say(stack.title + limit), style="bright_black"),
            self._cells(plot.bar(stack, width, self.ascii)),
            *lines,
        ]
