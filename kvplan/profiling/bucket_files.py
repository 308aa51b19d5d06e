"""Buckets as Parquet files, for logs larger than memory: references in, histograms out, taken up where they stopped.

folder/split.json              what was split, written last: a split without it is begun anew
folder/rows.parquet            blocks: the lengths of the paths of all requests
folder/references-0007.parquet request, block: all references of bucket 7, in the order of requests
folder/histogram-0007.parquet  request, toucher, blocks: that bucket, profiled
"""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import reduce
from multiprocessing import get_context
from operator import add
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import KvplanError
from kvplan.profiling import buckets
from kvplan.progress import Progress, silent

Ints: TypeAlias = NDArray[np.int64]

_ROWS = 2048  # of the log at a time
_REFERENCES = 1 << 20  # that wait to be written: many small pieces would make the files large and slow


def _parquet(name: object) -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise KvplanError(f"{name}: reading Parquet needs pyarrow: pip install 'kvplan[logs]'") from None
    return parquet


class Splitter:
    """Takes a log's blocks as they are read and writes them to the files of `count` buckets in `folder`.

    Leaving it without an error finishes the split. Where the folder holds this split already, nothing is written again.
    Raises KvplanError for a folder that holds another split.
    """

    def __init__(self, logs: Sequence[Path], folder: Path, count: int) -> None:
        sizes = [log.stat().st_size if log.is_file() else -1 for log in logs]
        self._asked = {"log": ", ".join(log.name for log in logs), "bytes": sizes, "buckets": count}
        self._folder, self._count = folder, count
        self._marker = folder / "split.json"
        self._writers: list[Any] = []
        self._lengths: list[Ints] = []
        self._waiting: list[tuple[Ints, Ints]] = []
        self._first = 0
        self.finished = self._marker.exists()
        if self.finished and (found := json.loads(self._marker.read_text())) != self._asked:
            raise KvplanError(f"{folder}: holds the split of {found['log']} in {found['buckets']}: name another folder")

    def __enter__(self) -> Splitter:
        if not self.finished:
            parquet, schema = _parquet(self._folder), _schema()
            self._folder.mkdir(parents=True, exist_ok=True)
            for stale in self._folder.glob("histogram-*.parquet"):
                stale.unlink()
            for one in range(self._count):
                path = self._folder / f"references-{one:04}.parquet"
                self._writers.append(parquet.ParquetWriter(path, schema, compression="zstd"))
        return self

    def __exit__(self, kind: object, *_: object) -> None:
        if kind is None:
            self._flush()
        for writer in self._writers:
            writer.close()
        if kind is None and not self.finished:
            import pyarrow

            lengths = np.concatenate([np.zeros(0, np.int64), *self._lengths])
            table = pyarrow.table({"blocks": lengths})
            _parquet(self._folder).write_table(table, self._folder / "rows.parquet", compression="zstd")
            _replace(self._marker, json.dumps(self._asked).encode())

    def take(self, count: Ints, _input_tokens: Ints, blocks: NDArray[Any]) -> None:
        """As a reader hands over consecutive requests."""
        if self.finished:
            return
        request = np.repeat(np.arange(self._first, self._first + count.size), count)
        self._waiting.append((request, blocks.astype(np.int64, copy=False)))
        self._lengths.append(count.copy())
        self._first += count.size
        if sum(part.size for part, _ in self._waiting) >= _REFERENCES:
            self._flush()

    def _flush(self) -> None:
        """Write what waits, a piece a bucket."""
        if not self._waiting:
            return
        import pyarrow

        request, block = (np.concatenate(column) for column in zip(*self._waiting, strict=True))
        self._waiting = []
        bucket = buckets.bucket_of(block, self._count)
        order = np.argsort(bucket.astype(np.uint16), kind="stable")  # a radix sort, for 16 bits only
        ends = np.cumsum(np.bincount(bucket, minlength=self._count))
        for one, writer in enumerate(self._writers):
            chosen = order[(ends[one - 1] if one else 0) : ends[one]]
            writer.write_table(pyarrow.table([request[chosen], block[chosen]], schema=_schema()))


def _schema() -> Any:
    import pyarrow

    return pyarrow.schema([("request", pyarrow.int64()), ("block", pyarrow.int64())])


def split(log: Path, folder: Path, count: int, progress: Progress = silent) -> None:
    """Split a Parquet log, a request a row in order of arrival with its `hash_ids`, into `count` buckets in `folder`.

    Does nothing where the folder holds this split already. Memory is that of some thousand requests. Raises KvplanError
    for a folder that holds another split, and for rows out of order.
    """
    from pyarrow import compute, types

    with Splitter([log], folder, count) as splitter, _parquet(log).ParquetFile(log) as file:
        if splitter.finished:
            return
        named = [field.name for field in file.schema_arrow if not types.is_nested(field.type)]
        first, latest = 0, -np.inf
        for batch in file.iter_batches(_ROWS, columns=[*named, "hash_ids"], use_threads=False):
            progress(f"splitting {log.name}", first / max(file.metadata.num_rows, 1))
            latest = _in_order(log, batch, latest)
            lengths = compute.fill_null(compute.list_value_length(batch["hash_ids"]), 0)
            count_ = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
            splitter.take(count_, count_, batch["hash_ids"].flatten().to_numpy(zero_copy_only=False))
            first += batch.num_rows


def _in_order(log: Path, batch: Any, latest: float) -> float:
    if "timestamp" not in batch.schema.names:
        return latest
    time = batch["timestamp"].to_numpy(zero_copy_only=False)
    if time.size and (time[0] < latest or (time[1:] < time[:-1]).any()):
        raise KvplanError(f"{log}: its rows are not in order of time: sort it by timestamp first")
    return float(time[-1]) if time.size else latest


def _replace(path: Path, content: bytes) -> None:
    temporary = path.with_suffix(".tmp")
    temporary.write_bytes(content)
    os.replace(temporary, path)


def profile_one(references: Path) -> Path:
    """Profile one bucket's file into its histogram file; does nothing where that is there already."""
    import pandas as pd

    target = references.with_name(references.name.replace("references", "histogram"))
    if not target.exists():
        parquet = _parquet(references)
        table = buckets.profile_frame(parquet.read_table(references, use_threads=False).to_pandas())
        temporary = target.with_suffix(".tmp")
        pd.DataFrame(table).to_parquet(temporary, index=False)
        os.replace(temporary, target)
    return target


def profile_all(folder: Path, workers: int, progress: Progress = silent) -> buckets.Histogram:
    """Profile every bucket that has no histogram yet in local processes, and add all. One bucket a worker in memory."""
    import pandas as pd

    parts = sorted(folder.glob("references-*.parquet"))
    if not (folder / "split.json").exists() or not parts:
        raise KvplanError(f"{folder}: holds no finished split of a log")
    histograms = []
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        for done, path in enumerate(pool.map(profile_one, parts), start=1):
            progress(f"profiling {len(parts)} buckets", done / len(parts))
            histograms.append(buckets.from_frame(pd.read_parquet(path)))
    return reduce(add, histograms, buckets.empty())


def blocks_a_request(folder: Path) -> Ints:
    """The lengths of the log's paths, int64 (requests,): with the histogram, all that `buckets.runs` needs."""
    column = _parquet(folder).read_table(folder / "rows.parquet", columns=["blocks"])["blocks"]
    lengths: Ints = column.to_numpy().astype(np.int64)
    return lengths
