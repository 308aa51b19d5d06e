"""A page as one HTML file that asks nobody for anything: styles, script, charts and their still pictures inside.

Everything that comes from a document is escaped. Beyond that the file carries a content security policy that allows
its own script by hash and no request at all, so that a name which slipped through could still do nothing.
"""

from __future__ import annotations

import base64
import hashlib
import html as stdlib_html
import json
import re
from collections.abc import Callable
from dataclasses import replace
from functools import cache
from importlib.resources import files
from typing import Any

from kvplan import charts
from kvplan.page import (
    Bars,
    Block,
    Chart,
    Code,
    Column,
    Decision,
    Fact,
    Facts,
    Figure,
    Findings,
    Page,
    Plot,
    Row,
    Section,
    Stack,
    Table,
    Text,
    Tornado,
    alts,
    clean,
    prose,
)
from kvplan.render.scales import show

_POLICY = "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'"
_WORDY = 28  # cells longer than this are sentences and may be folded
_LONG_VALUE = 18
_MANY = 20  # longer tables show their short form first
_DENSE = 8  # columns from which a table stands closer, to need no scrolling on a usual screen
_UNITS = re.compile(r"(?<=\d) (?=(?:%|[KMGT]i?B(?:/s)?|B|kB/s|ns|µs|ms|s|min|h|d|[kMGT])(?:[\s,.;:)]|$))")


def render(page: Page) -> str:
    """The whole document. Takes about two seconds where it has charts: most of it is bundling their script."""
    has_charts = any(isinstance(block, Figure) for section in page.sections for block in section.blocks)
    script = f"{_vega()}\n{_asset('page.js')}".replace("</script", "<\\/script") if has_charts else ""
    digest = base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
    policy = f"{_POLICY}; script-src 'sha256-{digest}'"
    contents = "".join(
        f'<li><a href="#{section.name}">{escape(section.heading)}</a></li>'
        for section in page.sections
        if section.listed
    )
    body = "\n".join(_section(section) for section in page.sections)
    lead = "" if _decides(page) else f'<p class="lead">{escape(page.lead)}</p>'
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{policy}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="generator" content="kvplan">
<meta name="description" content="{escape(page.lead)}">
<title>{escape(page.title)}</title>
<style>{_asset("page.css")}</style>
</head>
<body>
<header><h1>{escape(page.title)}</h1>{lead}<p class="origin">{escape(page.origin)}</p></header>
<nav aria-label="Contents"><ol>{contents}</ol></nav>
<main>
{body}
</main>
<footer>Made by {escape(page.origin)}.
Memory in GiB (2<sup>30</sup> bytes), bandwidth in GB/s (10<sup>9</sup> bytes).</footer>
{f"<script>{script}</script>" if has_charts else ""}
</body>
</html>
"""


def escape(text: str) -> str:
    """Text as HTML that shows exactly it, in content and in attributes; a number keeps its unit beside it."""
    return _UNITS.sub("\u00a0", stdlib_html.escape(clean(text), quote=True))


def words(text: str) -> str:
    """A sentence as HTML, what stands between backticks as code."""
    return "".join(f"<code>{escape(part)}</code>" if code else escape(part) for part, code in prose(text))


@cache
def _asset(name: str) -> str:
    return files(__package__).joinpath(name).read_text(encoding="utf-8")


@cache
def _vega() -> str:
    return charts.script()


def _decides(page: Page) -> bool:
    return any(isinstance(block, Decision) for section in page.sections for block in section.blocks)


def _section(section: Section) -> str:
    reading = f'<p class="reading">{escape(section.reading)}</p>' if section.reading else ""
    blocks = "\n".join(_BLOCKS[type(block)](block) for block in section.blocks)
    heading = f'<h2 id="{section.name}-h">{escape(section.heading)}</h2>'
    return f'<section id="{section.name}" aria-labelledby="{section.name}-h">{heading}{reading}\n{blocks}</section>'


# -------------------------------------------------------------------------------------------------- blocks


def _text(block: Text) -> str:
    return f"<p>{words(block.text)}</p>"


def _badge(provenance: str) -> str:
    return f'<span class="badge {provenance}">{provenance}</span>'


def _fact(fact: Fact) -> str:
    size = " long" if len(fact.value) > _LONG_VALUE else ""
    badge = f" {_badge(fact.provenance)}" if fact.provenance else ""
    note = f'<dd class="note">{words(fact.note)}{badge}</dd>' if fact.note or badge else ""
    return f'<div><dt>{escape(fact.label)}</dt><dd class="value{size}">{escape(fact.value)}</dd>{note}</div>'


def _facts(block: Facts) -> str:
    return f'<dl class="facts">{"".join(_fact(fact) for fact in block.items)}</dl>'


def _decision(block: Decision) -> str:
    notes = "".join(f"<dt>{escape(name)}</dt><dd>{words(text)}</dd>" for name, text in block.notes)
    listed = f'<dl class="notes">{notes}</dl>' if notes else ""
    facts = _facts(Facts(items=block.facts)) if block.facts else ""
    more = f'<p class="more">{words(block.text)}</p>' if block.text else ""
    headline = f'<p class="headline">{escape(block.headline)}</p>'
    return f'<div class="decision {block.tone}">{headline}{more}{facts}{listed}</div>'


def _table(table: Table) -> str:
    if not table.rows:
        return ""
    if table.short and len(table.rows) > _MANY:
        every = f"<summary>All {len(table.rows)} rows</summary>{_grid(table)}"
        return f'{_grid(replace(table, rows=table.short))}<details class="rows">{every}</details>'
    return _grid(table)


def _grid(table: Table) -> str:
    used = [i for i in range(len(table.columns)) if any(row.cells[i] for row in table.rows)]
    columns = [table.columns[index] for index in used]
    caption = f"<caption>{escape(table.title)}</caption>" if table.title else ""
    heads = "".join(_head(column) for column in columns)
    head = f"<thead><tr>{heads}</tr></thead>" if any(column.title for column in columns) else ""
    rows = "".join(_row(row, used, table.columns) for row in table.rows)
    name = escape(table.title or "table, may scroll sideways")
    scroll = f'<div class="scroll" role="group" tabindex="0" aria-label="{name}">'
    kind = ' class="dense"' if len(columns) >= _DENSE else ""
    return f"{scroll}<table{kind}>{caption}{head}<tbody>{rows}</tbody></table></div>"


def _head(column: Column) -> str:
    """A heading, or where a column has none an empty cell: a heading without words confuses those who listen."""
    return f'<th scope="col"{_class(column)}>{escape(column.title)}</th>' if column.title else "<td></td>"


def _class(column: Column) -> str:
    return ' class="number"' if column.kind == "number" else ""


def _row(row: Row, used: list[int], columns: tuple[Column, ...]) -> str:
    names = " ".join(name for name in ("strong" if row.strong else "", row.tone if row.tone != "plain" else "") if name)
    cells = "".join(_cell(row.cells[index], columns[index]) for index in used)
    return f'<tr class="{names}">{cells}</tr>' if names else f"<tr>{cells}</tr>"


def _cell(text: str, column: Column) -> str:
    match column.kind:
        case "number":
            return f'<td class="number">{escape(text)}</td>'
        case "code":
            return f'<td class="{_measure(text)}"><code>{escape(text)}</code></td>' if text else "<td></td>"
        case "provenance":
            return f"<td>{_badge(text)}</td>" if re.fullmatch("[a-z]+", text) else f"<td>{escape(text)}</td>"
        case "text":
            return f'<td class="{_measure(text)}">{words(text)}</td>'


def _measure(text: str) -> str:
    return "words" if len(text) > _WORDY else "short"


def _code(block: Code) -> str:
    title = f"<h3>{escape(block.title)}</h3>" if block.title else ""
    return f'{title}<pre tabindex="0"><code>{stdlib_html.escape(clean(block.text))}</code></pre>'


def _findings(block: Findings) -> str:
    items = (
        f'<li class="{item.severity}"><strong>{item.severity.capitalize()}:</strong> {words(item.text)} '
        f"<code>{escape(item.code)}</code></li>"
        for item in block.items
    )
    return f'<ul class="findings">{"".join(items)}</ul>'


# ------------------------------------------------------------------------------------------------- figures


def _figure(figure: Figure) -> str:
    drawn = "".join(_chart(chart, alt) for chart, alt in zip(figure.charts, alts(figure), strict=True))
    numbers = "".join(_numbers(chart) for chart in figure.charts)
    title = escape(figure.title)
    return (
        f'<figure id="figure-{figure.name}" aria-label="{title}"><h3>{title}</h3>{drawn}'
        f"<figcaption>{escape(figure.reading)}</figcaption>"
        f"<details><summary>The numbers</summary>{numbers}</details></figure>"
    )


def _chart(chart: Chart, alt: str) -> str:
    spec = _inline_json(charts.spec(chart, charts.SCREEN, "container"))
    still = charts.svg(chart, charts.SCREEN)
    bar = f'<p class="bar">{escape(chart.title)}</p>' if isinstance(chart, Stack) else ""
    return (
        f'{bar}{_legend(chart)}<div class="chart" role="img" aria-label="{escape(alt)}">'
        f'<div class="still" aria-hidden="true">{still}</div><div class="live" aria-hidden="true"></div>'
        f'<script type="application/json">{spec}</script></div>'
    )


def _inline_json(value: Any) -> str:
    """JSON that cannot end its script element, whatever strings are in it."""
    text = json.dumps(value, ensure_ascii=True, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def _legend(chart: Chart) -> str:
    entries: list[tuple[str, str, str]] = []
    if isinstance(chart, Plot):
        entries = [(one.name, one.role, "bar") for one in chart.bins]
        entries += [(one.name, one.role, one.style) for one in chart.series]
    elif isinstance(chart, Stack):
        entries = [(f"{part.name} {show(part.value, chart.unit)}", part.role, "bar") for part in chart.parts]
        if chart.limit is not None:
            entries.append((f"{chart.limit_label} {show(chart.limit, chart.unit)}", "danger", "limit"))
    if len(entries) < 2:
        return ""
    items = "".join(f"<li>{_swatch(role, style)}{escape(name)}</li>" for name, role, style in entries)
    return f'<ul class="legend">{items}</ul>'


def _swatch(role: str, style: str) -> str:
    colour = f"var(--{role})"
    match style:
        case "bar":
            mark = f'<rect width="22" height="10" rx="2" fill="{colour}"/>'
        case "dots":
            mark = f'<circle cx="11" cy="5" r="4" fill="{colour}"/>'
        case "limit":
            mark = f'<rect x="9" width="3" height="10" fill="{colour}"/>'
        case _:
            dash = ' stroke-dasharray="5 3"' if style == "dashed" else ""
            width = "1.25" if style == "thin" else "2.5"
            mark = f'<path d="M0 5h22" stroke="{colour}" stroke-width="{width}"{dash}/>'
    return f'<svg viewBox="0 0 22 10" aria-hidden="true">{mark}</svg>'


def _numbers(chart: Chart) -> str:
    """The figures behind a chart as a table."""
    match chart:
        case Plot():
            rows = [
                (bins.name, f"{show(a, chart.x.unit)} to {show(b, chart.x.unit)}", show(v, chart.y.unit))
                for bins in chart.bins
                for a, b, v in bins.bins
            ]
            rows += [
                (one.name, show(x, chart.x.unit), show(y, chart.y.unit)) for one in chart.series for x, y in one.points
            ]
            rows += [
                (
                    rule.label,
                    *(
                        (show(rule.value, chart.x.unit), "")
                        if rule.axis == "x"
                        else ("", show(rule.value, chart.y.unit))
                    ),
                )
                for rule in chart.rules
            ]
            if chart.above is not None:
                rows += [(chart.above.title, show(x, chart.x.unit), text) for x, text in chart.above.marks]
            heads = ("what", chart.x.title, chart.y.title)
        case Stack():
            rows = [(chart.title, part.name, show(part.value, chart.unit)) for part in chart.parts]
            heads = ("bar", "part", "size")
        case Bars():
            rows = [
                (
                    one.name,
                    show(one.value, chart.unit),
                    " to ".join(show(end, chart.unit) for end in one.interval or ()),
                )
                for one in chart.bars
            ]
            heads = ("bar", chart.title, "between")
        case Tornado():
            rows = [
                (s.name, f"{s.low_label}: {show(s.low, chart.unit)}", f"{s.high_label}: {show(s.high, chart.unit)}")
                for s in chart.swings
            ]
            heads = ("input", "one way", "the other")
    columns = (Column(title=heads[0]), Column(title=heads[1], kind="number"), Column(title=heads[2], kind="number"))
    return _table(Table(columns=columns, rows=tuple(Row(cells=cells) for cells in rows)))


_BLOCKS: dict[type[Block], Callable[..., str]] = {
    Text: _text,
    Facts: _facts,
    Decision: _decision,
    Table: _table,
    Code: _code,
    Findings: _findings,
    Figure: _figure,
}
