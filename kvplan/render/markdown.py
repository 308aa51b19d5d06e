"""A page as Markdown, with its pictures as SVG files beside it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from urllib.parse import quote

from kvplan.page import (
    Block,
    Code,
    Column,
    Decision,
    Fact,
    Facts,
    Figure,
    Findings,
    Page,
    Section,
    Table,
    Text,
    alts,
    clean,
    prose,
)

_SEVERITIES = {"error": "**Error**", "warning": "**Warning**", "info": "Note"}


def render(page: Page, figures: str) -> tuple[str, dict[str, str]]:
    """The Markdown text, and SVG text by file name; links point into the folder `figures`."""
    from kvplan.charts import PRINT, svg

    images: dict[str, str] = {}
    lines = [f"# {escape(page.title)}", "", f"**{escape(page.lead)}**", "", f"*{escape(page.origin)}*", ""]
    for section in page.sections:
        lines += _section(section, figures)
        for block in section.blocks:
            if isinstance(block, Figure):
                images |= {name: svg(chart, PRINT) for name, chart in zip(_names(block), block.charts, strict=True)}
    return "\n".join(lines).rstrip() + "\n", images


def escape(text: str) -> str:
    """Text as Markdown that shows exactly it, on one line."""
    return _start(_inline(" ".join(clean(text).split())))


def _inline(text: str) -> str:
    text = text.replace("&", "&amp;").replace("<", "&lt;")
    text = re.sub(r"([\\`*\[\]|~])", r"\\\1", text)
    return re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])", r"\\_", text)


def _start(line: str) -> str:
    """A line that would begin a heading, quotation or list does not."""
    line = re.sub(r"^([#>+-])", r"\\\1", line)
    return re.sub(r"^(\d+)([.)])(?=\s)", r"\1\\\2", line)


def code(text: str) -> str:
    """Text as inline code, whatever backticks it holds; nothing where there is none."""
    text = " ".join(clean(text).split())
    if not text:
        return ""
    ticks = "`" * (max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    space = " " if text[0] == "`" or text[-1] == "`" else ""
    return f"{ticks}{space}{text}{space}{ticks}".replace("|", "\\|")


def words(text: str) -> str:
    """A sentence: its code as code, the rest as exactly what it says."""
    spans = [code(piece) if is_code else _inline(piece) for piece, is_code in prose(" ".join(clean(text).split()))]
    return _start("".join(spans))


def _names(figure: Figure) -> list[str]:
    if len(figure.charts) == 1:
        return [f"{figure.name}.svg"]
    return [f"{figure.name}-{index}.svg" for index in range(1, len(figure.charts) + 1)]


def _section(section: Section, figures: str) -> list[str]:
    lines = [f"## {escape(section.heading)}", ""]
    if section.reading:
        lines += [escape(section.reading), ""]
    for block in section.blocks:
        lines += [*_BLOCKS[type(block)](block, figures), ""]
    return lines


def _text(block: Text, _: str) -> list[str]:
    return [words(block.text)]


def _facts(block: Facts, _: str) -> list[str]:
    return [_fact(fact) for fact in block.items]


def _fact(fact: Fact) -> str:
    badge = f" *({fact.provenance})*" if fact.provenance else ""
    note = f" — {escape(fact.note)}" if fact.note else ""
    return f"- {escape(fact.label)}: **{escape(fact.value)}**{note}{badge}"


def _decision(block: Decision, _: str) -> list[str]:
    more = f" {escape(block.text)}" if block.text else ""
    lines = [f"> **{escape(block.headline)}**{more}", ">", *(f"> {_fact(fact)}" for fact in block.facts)]
    if block.notes:
        lines += [">", *(f"> - {escape(name)}: {words(text)}" for name, text in block.notes)]
    return lines


def _table(table: Table, _: str) -> list[str]:
    used = [i for i in range(len(table.columns)) if any(row.cells[i] for row in table.rows)]
    columns = [table.columns[index] for index in used]
    lines = [f"*{escape(table.title)}*", ""] if table.title else []
    lines.append(_line(escape(column.title) for column in columns))
    lines.append(_line("---:" if column.kind == "number" else "---" for column in columns))
    for row in table.rows:
        cells = [_cell(row.cells[index], column) for index, column in zip(used, columns, strict=True)]
        lines.append(_line(f"**{cell}**" if row.strong and cell else cell for cell in cells))
    return lines


def _cell(text: str, column: Column) -> str:
    if column.kind == "code":
        return code(text)
    return f"*{escape(text)}*" if column.kind == "provenance" and text else words(text)


def _line(cells: Iterable[str]) -> str:
    return "| " + " | ".join(cells) + " |"


def _code(block: Code, _: str) -> list[str]:
    text = clean(block.text).rstrip("\n")
    fence = "`" * max(3, max((len(run) for run in re.findall("`+", text)), default=0) + 1)
    title = [f"{escape(block.title)}:", ""] if block.title else []
    return [*title, fence, text, fence]


def _findings(block: Findings, _: str) -> list[str]:
    return [f"- {_SEVERITIES[item.severity]}: {words(item.text)} ({code(item.code)})" for item in block.items]


def _figure(figure: Figure, figures: str) -> list[str]:
    lines = [f"**{escape(figure.title)}**", ""]
    for name, alt in zip(_names(figure), alts(figure), strict=True):
        link = "/".join(part for part in (quote(figures.rstrip("/")), name) if part)
        lines += [f"![{escape(alt)}]({link})", ""]
    return [*lines, f"*{escape(figure.reading)}*"]


_BLOCKS: dict[type[Block], Callable[..., list[str]]] = {
    Text: _text,
    Facts: _facts,
    Decision: _decision,
    Table: _table,
    Code: _code,
    Findings: _findings,
    Figure: _figure,
}
