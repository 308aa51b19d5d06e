"""OpenAI chat requests, one JSON object a line: alone, in a batch file's `body`, or in a gateway's wrapper.

Each request is rendered once, whole, with the served model's own chat template, and tokenised as one text; its blocks
are then named by a hash of everything before and in them, as engines name them.
"""

from __future__ import annotations

from typing import Any

from kvplan.errors import KvplanError
from kvplan.formats.lines import Lines
from kvplan.formats.rows import Options, Rows


def detect(row: dict[str, Any]) -> bool:
    """Whether a decoded line is of this format."""
    return any(isinstance(inner, dict) and "messages" in inner for inner in (row, row.get("body"), row.get("request")))


def read(lines: Lines, options: Options) -> Rows:
    raise KvplanError(f"{lines.name}: not yet")
