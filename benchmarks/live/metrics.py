"""Counters of a /metrics page."""

from __future__ import annotations

import re
from collections.abc import Mapping

_SAMPLE = re.compile(r"^([a-zA-Z_:][\w:]*)(?:\{([^}]*)\})?\s+(\S+)")


def totals(page: str) -> dict[str, float]:
    """Each metric's sum over its labels."""
    made: dict[str, float] = {}
    for line in page.splitlines():
        if (match := _SAMPLE.match(line)) is not None:
            made[match[1]] = made.get(match[1], 0.0) + float(match[3])
    return made


def moved(before: Mapping[str, float], after: Mapping[str, float], name: str) -> float:
    """By how much a counter rose. Raises KeyError where the page lacks it."""
    return after[name] - before.get(name, 0.0)
