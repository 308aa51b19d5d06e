"""What a page is made of, before anybody decides whether it becomes a terminal screen, Markdown or HTML.

A page is sections, a section is blocks, and every block is plain data that each renderer knows how to show. A chart
is data too (see chart types at the end): one description gives the picture, the terminal plot and the table of its
numbers. Text is plain text: renderers escape it, and nothing here is ever markup; only words between backticks are
shown as code.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from kvplan.documents import Finding, Provenance

Tone = Literal["good", "plain", "warning", "bad"]
Unit = Literal["bytes", "bytes_per_s", "tokens", "length", "s", "ratio", "count", "per_s", "usd"]
Role = Literal["main", "second", "third", "fourth", "gpu", "host", "disk", "recompute", "muted", "danger", "faint"]


# ------------------------------------------------------------------------------------------------ blocks


@dataclass(frozen=True, slots=True, kw_only=True)
class Text:
    """One paragraph."""

    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One figure that stands on its own: what it is, its value, a few words on it, where it came from."""

    label: str
    value: str
    note: str = ""
    provenance: Provenance | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Figures to read at a glance."""

    items: tuple[Fact, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The answer, first thing on a page: a sentence and its tone, the rest of it, its figures, notes on trusting it."""

    headline: str
    tone: Tone
    text: str = ""
    facts: tuple[Fact, ...] = ()
    notes: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Column:
    """`kind` says how cells read: words, numbers (right-aligned), code, a provenance badge.

    A `detail` column is left out of a terminal's first screen.
    """

    title: str
    kind: Literal["text", "number", "code", "provenance"] = "text"
    detail: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """One line of a table, with as many cells as the table has columns."""

    cells: tuple[str, ...]
    strong: bool = False
    tone: Tone = "plain"


@dataclass(frozen=True, slots=True, kw_only=True)
class Table:
    """`short` rows are enough for a terminal's first screen; None means all of them."""

    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    title: str = ""
    short: tuple[Row, ...] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Code:
    """Text to paste, character for character."""

    text: str
    title: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Findings:
    """What the stage wants the reader to know, in the order it was found."""

    items: tuple[Finding, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Figure:
    """Charts that belong together, one above the other: `name` is a file name's stem, `reading` one line under it.

    `alt` says in words what the picture shows, for those who do not see it. `plot` figures are also drawn on the
    first terminal screen.
    """

    name: str
    title: str
    reading: str
    alt: str
    charts: tuple[Chart, ...]
    plot: bool = False


# ------------------------------------------------------------------------------------------------ charts


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """`domain` None spans the data; a logarithmic axis leaves out what is not above zero."""

    title: str
    unit: Unit
    log: bool = False
    domain: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Series:
    """Points in order of x. `style`: a line, a thin or dashed one, a step that holds until the next x, dots alone."""

    name: str
    points: tuple[tuple[float, float], ...]
    role: Role = "main"
    style: Literal["line", "thin", "dashed", "step", "dots"] = "line"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bins:
    """A histogram: (from, to, value) for each bin."""

    name: str
    bins: tuple[tuple[float, float, float], ...]
    role: Role = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """A line across the chart at one value of one axis, with its name."""

    axis: Literal["x", "y"]
    value: float
    label: str
    role: Role = "muted"


@dataclass(frozen=True, slots=True, kw_only=True)
class Marks:
    """A second reading of an x axis, written above the plot: places on it, and what each means there."""

    title: str
    marks: tuple[tuple[float, str], ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Plot:
    """Lines, dots and histograms over two axes; `above` reads the x axis in another unit."""

    x: Axis
    y: Axis
    series: tuple[Series, ...] = ()
    bins: tuple[Bins, ...] = ()
    rules: tuple[Rule, ...] = ()
    above: Marks | None = None
    height: int = 240


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One piece of a stacked bar."""

    name: str
    value: float
    role: Role


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """One bar made of parts, with the limit it must stay under."""

    title: str
    unit: Unit
    parts: tuple[Part, ...]
    limit: float | None = None
    limit_label: str = "limit"


@dataclass(frozen=True, slots=True, kw_only=True)
class Swing:
    """One input of a tornado: the outcome when it is low and when it is high, and what low and high mean."""

    name: str
    low: float
    high: float
    low_label: str
    high_label: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Tornado:
    """How far an outcome moves from `base` when one input at a time does."""

    title: str
    unit: Unit
    base: float
    swings: tuple[Swing, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One bar of several: its value, and the interval that it may lie in, where both of its ends are known."""

    name: str
    value: float
    role: Role
    interval: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bars:
    """Values side by side from zero, each with its interval."""

    title: str
    unit: Unit
    bars: tuple[Bar, ...]


Chart: TypeAlias = Plot | Stack | Tornado | Bars
Block: TypeAlias = Text | Facts | Decision | Table | Code | Findings | Figure


@dataclass(frozen=True, slots=True, kw_only=True)
class Section:
    """A heading, one line that says what to see, and blocks.

    `first` sections make up a terminal's first screen; those `listed` are in a page's table of contents.
    """

    name: str
    heading: str
    blocks: tuple[Block, ...]
    reading: str = ""
    first: bool = False
    listed: bool = True


def alts(figure: Figure) -> tuple[str, ...]:
    """The text alternative of each chart of a figure: all of it on the first, a pointer on the others."""
    rest = range(2, len(figure.charts) + 1)
    return (figure.alt, *(f"{figure.title}, part {index} of {len(figure.charts)}." for index in rest))


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    """One document for people: `lead` is the answer in one line, `origin` says what made it and when."""

    kind: str
    title: str
    lead: str
    origin: str
    sections: tuple[Section, ...]


def prose(text: str) -> list[tuple[str, bool]]:
    """A sentence in pieces, each with whether it is code (what stood between backticks)."""
    pieces = re.split(r"`([^`\n]+)`", text)
    return [(piece, index % 2 == 1) for index, piece in enumerate(pieces) if piece]


def clean(text: str) -> str:
    """`text` with every control and direction-changing character made visible, as documents may hold foreign names.

    A model id with an escape sequence must neither repaint a terminal nor turn a line around. Newlines stay.
    """
    return "".join(c if c == "\n" or _harmless(c) else f"\\x{ord(c):02x}" for c in text)


def _harmless(character: str) -> bool:
    code = ord(character)
    control = code < 32 or 127 <= code < 160 or 0xD800 <= code < 0xE000
    bidi = code in (0x061C, 0x200E, 0x200F) or 0x202A <= code <= 0x202E or 0x2066 <= code <= 0x2069
    return not (control or bidi or code in (0x2028, 0x2029))
