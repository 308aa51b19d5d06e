"""A server's own count of hits from its /metrics pages around a run, by the rows of kvplan/engines/metrics."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import TypeAlias

from kvplan.engines.metrics import SYSTEMS, plain
from kvplan.engines.metrics.system import Pick, Sum
from kvplan.errors import KvplanError
from kvplan.files import reason

Series: TypeAlias = tuple[str, frozenset[tuple[str, str]]]
Page: TypeAlias = Mapping[Series, float]

_LABEL = re.compile(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"')
_SAMPLE = re.compile(rf"^([a-zA-Z_:][\w:]*)(\{{(?:{_LABEL.pattern}|[\s,])*\}})?\s+(\S+)")


def read(path: Path) -> dict[Series, float]:
    """The samples of a saved page by name and labels. Raises KvplanError naming the file."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise KvplanError(f"{path}: {reason(error)}") from None
    samples: dict[Series, float] = {}
    for line in text.splitlines():
        found = _SAMPLE.match(line)
        if found is None:
            continue
        try:
            value = float(found[5])
        except ValueError:
            raise KvplanError(f"{path}: {found[1]} has the value {found[5]!r}, which is no number") from None
        samples[plain(found[1]), frozenset(_LABEL.findall(found[2] or ""))] = value
    return samples


def hit_ratio(before: Page, after: Page, prompt_tokens: int) -> float | None:
    """Cached over all prompt tokens between two pages; None where the server counts no hits, or nothing was asked.

    `prompt_tokens` were sent in that time: for servers that count only the prompt tokens they computed. A counter that
    fell means that the server was started anew in between: None too.
    """
    grown = {series: value - before.get(series, 0.0) for series, value in after.items()}
    for system in SYSTEMS:
        for row in system.hits:
            if row.tier == "all" and _has(grown, (*row.hits, *row.of)):
                return _share(_sum(grown, row.hits), _sum(grown, row.of))
        if system.computed and system.without_hits and _has(grown, system.computed):
            return _share(prompt_tokens - _sum(grown, system.computed), prompt_tokens)
    return None


def _share(cached: float, asked: float) -> float | None:
    return cached / asked if asked > 0 and 0 <= cached <= asked else None


def _has(page: Page, picks: Sum) -> bool:
    names = {name for name, _ in page}
    return all(any(plain(name) in names for name in pick.names) for pick in picks)


def _sum(page: Page, picks: Sum) -> float:
    return math.fsum(_value(page, pick) for pick in picks)


def _value(page: Page, pick: Pick) -> float:
    """The samples of the first of a metric's names that is there, with all of the labels that are asked for."""
    for name in map(plain, pick.names):
        found = [value for (named, labels), value in page.items() if named == name and set(pick.labels) <= labels]
        if any(named == name for named, _ in page):
            return max(found, default=0.0) if pick.ranks == "one" else math.fsum(found)
    return 0.0
