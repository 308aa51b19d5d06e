"""What something that keeps blocks did: the books of one tier of one replica."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Books:
    """Counts in blocks. `blocks` are there now.

    `inserted` less all of `removed` (by reason) are `blocks`; `never_hit` of those removed and `kept_never_hit` of
    those there were never hit while they were there. `full_at` is when the first one had to go for room.
    """

    capacity: int
    blocks: int
    inserted: int
    removed: Mapping[str, int]
    refused: Mapping[str, int]
    never_hit: int
    kept_never_hit: int
    full_at: float | None
