"""KV cache events as vLLM (and SGLang) publish them: blocks stored and removed, as JSON lines of batches or of events.

Events say what was stored, not what was asked for: a request that finds all its blocks leaves none. Each stretch of
stored blocks is taken as a request for the whole path above and with it, which is the least that must have been asked.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np

from kvplan.documents import Finding
from kvplan.errors import KvplanError
from kvplan.formats import hashed
from kvplan.formats.entries import Entry, collected, decoded, key, number, tokens
from kvplan.formats.lines import Lines
from kvplan.formats.rows import Options, Rows

_SAME_REQUEST_S = 1.0
_KINDS = ("BlockStored", "BlockRemoved", "AllBlocksCleared")
_FIELDS = ("type", "block_hashes", "parent_block_hash", "token_ids", "block_size", "lora_id", "medium")


@dataclass(slots=True)
class _Path:
    """Blocks from the root on, and when the last of them was stored."""

    line: int
    start_s: float
    last_s: float
    keys: list[int]
    size: int


def detect(row: dict[str, Any]) -> bool:
    """Whether a decoded line is of this format."""
    return any(_kind(event) for event in _events(row))


def read(lines: Lines, options: Options) -> Rows:
    """Read a whole file. Raises KvplanError naming the line that is malformed."""
    if options.tenant_by:
        raise KvplanError(f"{lines.name}: cache events name no tenants: leave --tenant-by out")
    paths = _Paths()

    def entries(line: int, row: dict[str, Any]) -> Iterable[Entry]:
        found = [event for event in _events(row) if _kind(event)]
        if not found:
            raise ValueError("holds no cache event")
        times = (number(row, name) for name in ("ts", "timestamp", "time") if row.get(name) is not None)
        time_s = next(times, np.nan)
        for event in found:
            yield from paths.take(line, time_s, event)

    every = [*decoded(lines, entries), *paths.rest()]
    every.sort(key=lambda entry: entry.line)
    return hashed.rows(lines, options, collected(every), paths.findings(len(every)), "its field 'block_size'")


def _events(row: dict[str, Any]) -> Iterator[Any]:
    """The events of a line: of a batch, or one by itself."""
    batch = row.get("events")
    for event in batch if isinstance(batch, list) else [row]:
        if isinstance(event, list):  # msgspec's array form, the kind first
            event = dict(zip(_FIELDS, event, strict=False))
        yield event


def _kind(event: object) -> str | None:
    if not isinstance(event, dict):
        return None
    kind = event.get("type") or event.get("event_type") or event.get("event")
    return kind if kind in _KINDS else None


class _Paths:
    """Puts stored stretches of blocks under the paths they continue."""

    def __init__(self) -> None:
        self._parent: dict[int, int | None] = {}
        self._open: dict[int, _Path] = {}  # by their last block
        self._removed = 0
        self._cleared = 0
        self._orphans = 0

    def take(self, line: int, time_s: float, event: dict[str, Any]) -> Iterator[Entry]:
        """Note one event; gives the requests that cannot grow any more."""
        if _kind(event) == "BlockRemoved":
            self._removed += len(event.get("block_hashes") or [])
        elif _kind(event) == "AllBlocksCleared":
            self._cleared += 1
        elif not event.get("group_idx") and event.get("medium") in (None, "GPU"):
            yield from self._store(line, time_s, event)

    def _store(self, line: int, time_s: float, event: dict[str, Any]) -> Iterator[Entry]:
        hashes = event.get("block_hashes")
        if not isinstance(hashes, list):
            raise ValueError("block_hashes is no list")
        size = tokens(event, "block_size")
        keys = [key(value) for value in hashes]
        parent = None if event.get("parent_block_hash") is None else key(event["parent_block_hash"])
        if not keys:
            return
        above = self._above(parent)
        grown = self._open.pop(parent, None) if parent is not None else None
        if grown is not None and not time_s - grown.last_s <= _SAME_REQUEST_S:
            yield _entry(grown)
            grown = None
        for before, here in zip([parent, *keys], keys, strict=False):
            self._parent.setdefault(here, before)
        path = _Path(line, grown.start_s if grown else time_s, time_s, [*above, *keys], size)
        if (old := self._open.pop(keys[-1], None)) is not None:
            yield _entry(old)
        self._open[keys[-1]] = path

    def _above(self, last: int | None) -> list[int]:
        """The path that ends in a block, as far as its blocks were seen."""
        path = []
        while last is not None:
            path.append(last)
            if last not in self._parent:
                self._orphans += 1
                break
            last = self._parent[last]
        return path[::-1]

    def rest(self) -> Iterator[Entry]:
        """The requests left at the end."""
        yield from map(_entry, self._open.values())

    def findings(self, requests: int) -> list[Finding]:
        """What had to be assumed."""
        text = (
            f"Cache events tell what was stored: {requests:,} requests were put together from stretches of blocks that "
            f"follow on one another within {_SAME_REQUEST_S:g} s (assumed). Requests that found all their blocks are "
            "missing, decoded blocks count as input, and lengths are whole blocks: true reuse is higher."
        )
        findings = [Finding(severity="warning", code="from-events", text=text)]
        if self._removed or self._cleared:
            text = f"{self._removed:,} blocks were removed and the cache cleared {self._cleared:,} times in this log."
            findings.append(Finding(severity="info", code="removals", text=text))
        if self._orphans:
            text = f"{self._orphans:,} stretches follow blocks stored before the log began: their paths start there."
            findings.append(Finding(severity="warning", code="cut-paths", text=text))
        return findings


def _entry(path: _Path) -> Entry:
    return Entry(
        line=path.line,
        time_s=path.start_s,
        input_tokens=len(path.keys) * path.size,
        output_tokens=0,
        keys=np.array(path.keys, np.uint64).view(np.int64),
        size=path.size,
    )
