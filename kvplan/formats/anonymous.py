"""Writing a log that may be shared: a Mooncake trace of lengths, times and block numbers that profiles the same.

Block ids, sessions and tenants are numbered as they first appear, times count in milliseconds from the first request.
"""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from pathlib import Path
from typing import Any, TypeAlias, cast

import msgspec
import numpy as np
from numpy.typing import NDArray

from kvplan.documents import Requests
from kvplan.files import replacing
from kvplan.formats import compiled
from kvplan.progress import Progress

Ints: TypeAlias = NDArray[np.int64]

_BATCH = 2048


def write(requests: Requests, path: Path, progress: Progress) -> None:
    """Write `requests` to `path` (gzip where it ends in .gz), the whole file or nothing. Raises KvplanError."""
    with replacing(path) as raw:
        packed = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if path.suffix == ".gz" else raw
        with io.BufferedWriter(cast(Any, packed)) as stream:
            for text in _texts(requests, progress):
                stream.write(text)


def _texts(requests: Requests, progress: Progress) -> Iterator[bytes]:
    """The lines of the trace, some thousands at a time."""
    rows = len(requests.input_tokens)
    ids = np.empty(len(requests.blocks), np.int64)
    compiled.factorize(np.asarray(requests.blocks), ids)
    sessions, tenants = _by_appearance(requests.session), _by_appearance(requests.tenant)
    columns = _columns(requests)
    encode = msgspec.json.Encoder().encode_lines
    for low in range(0, rows, _BATCH):
        progress("writing", low / rows)
        lines = []
        for row in range(low, min(low + _BATCH, rows)):
            line: dict[str, Any] = {name: int(column[row]) for name, column in columns.items() if column[row] >= 0}
            if requests.hashed:
                line["block_size"] = requests.block_tokens
                line["hash_ids"] = ids[requests.offsets[row] : requests.offsets[row + 1]].tolist()
            if sessions[row] >= 0:
                line["session_id"] = int(sessions[row])
            if tenants[row] >= 0:
                line["tenant"] = f"tenant-{tenants[row]}"
            lines.append(line)
        yield encode(lines)


def _columns(requests: Requests) -> dict[str, Ints]:
    """What a line says besides blocks; negative where a request says nothing."""
    columns = {}
    if not np.isnan(requests.time_s).any():
        columns["timestamp"] = np.rint((requests.time_s - requests.time_s[0]) * 1000).astype(np.int64)
    columns["input_length"] = np.asarray(requests.input_tokens, np.int64)
    columns["output_length"] = np.asarray(requests.output_tokens, np.int64)
    known = ~np.isnan(requests.duration_s)
    columns["duration_ms"] = np.where(known, np.rint(np.where(known, requests.duration_s, 0) * 1000), -1).astype(
        np.int64
    )
    return columns


def _by_appearance(labels: NDArray[Any]) -> Ints:
    """Numbers from 0 as labels first appear, -1 where there is none."""
    numbers: dict[int, int] = {-1: -1}
    return np.array([numbers.setdefault(label, len(numbers) - 1) for label in labels.tolist()], np.int64)
