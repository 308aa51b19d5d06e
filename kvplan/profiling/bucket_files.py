"""Buckets as Parquet files, for logs larger than memory: references in, histograms out, taken up where they stopped.

folder/split.json              what was split, written last: a split without it is begun anew
folder/rows.parquet            the other columns of the log as they stood, and `blocks`: the lengths of its paths
folder/references-0007.parquet request, block: all references of bucket 7, in the order of requests
folder/histogram-0007.parquet  request, toucher, blocks: that bucket, profiled
"""

from __future__ import annotations

import json
import os
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


def _parquet(name: object) -> Any:
    try:
        from pyarrow import parquet
    except ImportError:
        raise KvplanError(f"{name}: reading Parquet needs pyarrow: pip install 'kvplan[logs]'") from None
    return parquet


def split(log: Path, folder: Path, count: int, progress: Progress = silent) -> None:
    """Split a Parquet log, a request a row in order of arrival with its `hash_ids`, into `count` buckets in `folder`.

    Does nothing where the folder holds this split already. Memory is that of some thousand requests. Raises KvplanError
    for a folder that holds another split, and for rows out of order.
    """
    asked = {"log": log.name, "bytes": log.stat().st_size, "buckets": count}
    marker = folder / "split.json"
    if marker.exists():
        if (found := json.loads(marker.read_text())) != asked:
            raise KvplanError(f"{folder}: holds the split of {found['log']} in {found['buckets']}: name another folder")
        return
    folder.mkdir(parents=True, exist_ok=True)
    for stale in folder.glob("histogram-*.parquet"):
        stale.unlink()
    _write(_parquet(log), log, folder, count, progress)
    _replace(marker, json.dumps(asked).encode())


def _write(parquet: Any, log: Path, folder: Path, count: int, progress: Progress) -> None:
    import pyarrow

    writers: list[Any] = [None] * count
    pair = pyarrow.schema([("request", pyarrow.int64()), ("block", pyarrow.int64())])
    first, latest, scalars = 0, -np.inf, []
    try:
        for one in range(count):
            writers[one] = parquet.ParquetWriter(folder / f"references-{one:04}.parquet", pair, compression="zstd")
        with parquet.ParquetFile(log) as file:
            flat = [field.name for field in file.schema_arrow if not pyarrow.types.is_nested(field.type)]
            for batch in file.iter_batches(_ROWS, columns=[*flat, "hash_ids"], use_threads=False):
                progress(f"splitting {log.name}", first / max(file.metadata.num_rows, 1))
                latest = _in_order(log, batch, latest)
                lengths = pyarrow.compute.fill_null(pyarrow.compute.list_value_length(batch["hash_ids"]), 0)
                block = batch["hash_ids"].flatten().to_numpy(zero_copy_only=False).astype(np.int64)
                request = np.repeat(np.arange(first, first + batch.num_rows), lengths.to_numpy(zero_copy_only=False))
                bucket = buckets.bucket_of(block, count)
                for one in range(count):
                    chosen = bucket == one
                    writers[one].write_table(pyarrow.table([request[chosen], block[chosen]], schema=pair))
                kept = batch.select(flat).append_column("blocks", lengths.cast(pyarrow.int64()))
                scalars.append(kept)
                first += batch.num_rows
        parquet.write_table(pyarrow.Table.from_batches(scalars), folder / "rows.parquet", compression="zstd")
    finally:
        for writer in writers:
            if writer is not None:
                writer.close()


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
