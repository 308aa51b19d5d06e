"""Logs whose blocks do not fit in memory: read in a stream, and sampled or split into buckets on the way."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from kvplan import reuse
from kvplan.documents import Requests, Sampling
from kvplan.profiling import bucket_files, buckets, hitcurve, sampling
from kvplan.progress import Progress, silent

Ints: TypeAlias = NDArray[np.int64]
# Reads a log and hands its blocks over, some requests at a time: how many each has, its input tokens, all keys.
Stream: TypeAlias = Callable[[Callable[[Ints, Ints, NDArray[Any]], None]], Requests]


def sampled(
    stream: Stream, rate: float, asked: Callable[[Requests], Sequence[int]], progress: Progress = silent
) -> tuple[Requests, Sampling]:
    """A log without its blocks, and its curve from one block in 1 / `rate`; `asked` gives the capacities wanted.

    The log is read twice. Raises UsageError for a rate that is not above 0 and at most 1.
    """
    sampling.check(rate)
    scout = sampling.Scout()
    block_tokens = stream(scout.take).block_tokens
    hot = scout.hottest()
    del scout  # it holds some millions of references
    sampler = sampling.Sampler(hot, block_tokens, rate)
    requests = stream(sampler.take)
    grid = hitcurve.grid(max(1, sampler.unique), list(asked(requests)))
    return requests, sampler.curve(grid[grid > 0].tolist(), progress)


def bucketed(
    stream: Stream, logs: Sequence[Path], folder: Path, count: int, workers: int, progress: Progress = silent
) -> tuple[Requests, reuse.Runs]:
    """A log without its blocks, and its reuse from `count` buckets in `folder`, profiled by `workers` processes.

    What the folder holds already of the same log is not done again. Raises KvplanError for a folder of another log.
    """
    with bucket_files.Splitter(logs, folder, count) as splitter:
        requests = stream(splitter.take)
    histogram = bucket_files.profile_all(folder, workers, progress)
    progress("adding the histograms")
    runs = buckets.runs(histogram, np.diff(reuse.as_ints(requests.offsets)))
    return replace(requests, unique=histogram.unique), runs
