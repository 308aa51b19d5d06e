"""One metrics page as text -> its samples: Prometheus' text format, and OpenMetrics, which differs in little.

The grammar is a page of its own (names, labels with three escapes, a number, perhaps a time). Read here rather than by
the client library because what matters most are pages that are not right: cut ones, web pages, half a line.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TypeAlias

from kvplan.engines.metrics import plain
from kvplan.errors import KvplanError

Labels: TypeAlias = tuple[tuple[str, str], ...]
Key: TypeAlias = tuple[str, Labels]

_QUOTED = r'"(?:[^"\\]|\\.)*"'
_LINE = re.compile(
    rf"(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)?[ \t]*(?:\{{(?P<labels>(?:[^\"}}]|{_QUOTED})*)\}})?[ \t]*"
    r"(?P<value>[^\s{}\"#]+)(?:[ \t]+(?P<time>[0-9.eE+-]+))?[ \t]*(?:#.*)?"
)
_LABEL = re.compile(
    rf"[ \t]*(?:(?P<name>[a-zA-Z_][a-zA-Z0-9_.:]*|{_QUOTED})[ \t]*=[ \t]*)?(?P<value>{_QUOTED})[ \t]*,?"
)
_ESCAPES = {"\\\\": "\\", '\\"': '"', "\\n": "\n"}


@dataclass(frozen=True, slots=True)
class Page:
    """What one page said. `cut`: it ends within a line, so that what it lacks may only be lost.

    Samples are by name as `engines.metrics.plain` writes it, so that relabelled and older names are found alike;
    `at` is the page's own time in Unix seconds, where its samples carry one.
    """

    samples: Mapping[Key, float] = field(default_factory=dict)
    cut: bool = False
    at: float | None = None

    @property
    def names(self) -> frozenset[str]:
        """The names of all samples."""
        return frozenset(name for name, _ in self.samples)


def parse(text: str, where: str) -> Page:
    """Read a page; `where` is what an error calls it.

    Raises KvplanError for what is no metrics page, and for a line that cannot be read unless the page ends within it.
    """
    _refuse_others(text, where)
    lines = text.split("\n")
    rest = lines.pop()  # what stands behind the last line's end: nothing, unless the page is cut
    # A file may just lack its last line's end, but a number that might have gone on is no number to trust.
    samples: dict[Key, float] = {}
    times: list[float] = []
    openmetrics = False
    for number, raw in enumerate(lines, 1):
        line = raw.strip()
        if line.startswith("#"):
            openmetrics = openmetrics or line == "# EOF"
        elif line:
            key, value, time = _sample(line, f"{where}: line {number}")
            samples[key] = value
            if time is not None:
                times.append(time)
    cut = rest.strip() not in ("", "# EOF")
    at = max(times) / (1.0 if openmetrics or rest.strip() == "# EOF" else 1000.0) if times else None
    return Page(samples, cut, at)


def _refuse_others(text: str, where: str) -> None:
    """Say what a page is that holds no metrics."""
    head = text[:2000].lstrip("\ufeff \t\r\n")
    if not head:
        raise KvplanError(
            f"{where}: an empty page: are metrics switched on (llama.cpp --metrics, SGLang --enable-metrics, "
            "Dynamo DYN_KVBM_METRICS=true), and did it have a request yet (LMCache)?"
        )
    if head.startswith("<"):
        raise KvplanError(f"{where}: a web page, not metrics: is this the address of /metrics, and open to us?")
    if head[0] in "{[" and _is_json(text):
        raise KvplanError(
            f"{where}: JSON, not metrics: give the address of /metrics (a Prometheus server: --prometheus)"
        )
    if "\x00" in head:
        raise KvplanError(f"{where}: not text: a metrics page in Prometheus' text format is wanted")


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except ValueError:
        return False
    return True


def _sample(line: str, where: str) -> tuple[Key, float, float | None]:
    match = _LINE.fullmatch(line)
    labels = None if match is None else _labels(match["labels"] or "")
    if match is None or labels is None:
        raise KvplanError(f"{where}: not a metric in Prometheus' text format: {line[:80]!r}")
    pairs, quoted = labels
    name = match["name"] or quoted
    if not name or (match["name"] and quoted):
        raise KvplanError(f"{where}: a value without a metric's name: {line[:80]!r}")
    value, time = _number(match["value"]), match["time"]
    if value is None or (time is not None and _number(time) is None):
        raise KvplanError(f"{where}: {match['value']!r} is not a number")
    return (plain(name), tuple(sorted(pairs))), value, None if time is None else _number(time)


def _labels(text: str) -> tuple[list[tuple[str, str]], str] | None:
    """The pairs between the braces, and a metric's name where it stands there in quotes; None where it is garbled."""
    pairs: list[tuple[str, str]] = []
    name, at = "", 0
    text = text.rstrip()
    while at < len(text):
        match = _LABEL.match(text, at)
        if match is None:
            return None
        value = _unquoted(match["value"])
        if match["name"] is None:
            name = value
        else:
            pairs.append((_unquoted(match["name"]), value))
        at = match.end()
    return pairs, name


def _unquoted(text: str) -> str:
    if not text.startswith('"'):
        return text
    return re.sub(r"\\.", lambda found: _ESCAPES.get(found[0], found[0]), text[1:-1])


def _number(text: str) -> float | None:
    try:
        return None if "_" in text else float(text)
    except ValueError:
        return None
