"""The request-log formats that kvplan reads, one file a family."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kvplan.formats import chat, delimited, mooncake, parquet
from kvplan.formats.lines import Lines
from kvplan.formats.rows import Options, Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Family:
    """One format: `detect` decides from one decoded line, `read` takes a whole file, `looks` describes it to a user.

    Tables are not told from a decoded line (`detect` is None), but from their first bytes and their header.
    """

    name: str
    looks: str
    detect: Callable[[dict[str, Any]], bool] | None
    read: Callable[[Lines, Options], Rows]


FAMILIES = (
    Family(
        name="mooncake",
        looks="lines with timestamp, input_length, output_length, hash_ids",
        detect=mooncake.detect,
        read=mooncake.read,
    ),
    Family(
        name="parquet",
        looks="a Parquet table with a request a row",
        detect=None,
        read=parquet.read,
    ),
    Family(
        name="csv",
        looks="a header that names prompt lengths, then a request a line",
        detect=None,
        read=delimited.read,
    ),
    Family(
        name="openai-chat",
        looks="lines with messages, alone or in body or request",
        detect=chat.detect,
        read=chat.read,
    ),
)
