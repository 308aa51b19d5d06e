"""The reuse of a log in parts that share nothing: split by block, profile each bucket, add the histograms.

The contract is three functions and a sum, on tables that any engine can carry:

    references(rows)      log rows -> (bucket, request, block), one row a block reference
    profile_bucket(part)  all references of one bucket, in the order of requests -> Histogram
    Histogram + Histogram
    runs(histogram, ...)  the whole histogram -> the runs of the log, as reuse.find_runs gives them

A histogram counts, for every pair of requests, the blocks of the later one that the earlier one was the last to touch.
A block lies in one bucket, so that sums over buckets are exact; a split by time would lose the pairs across the cut.
From the whole histogram the runs follow: a request's touchers, newest first, stand along its path in that order, and
ranks need only how many blocks each request is still the last to touch. docs/scale.md shows it on Ray and on Spark.
"""

from __future__ import annotations

from collections.abc import Iterable
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import reduce
from multiprocessing import get_context
from operator import add
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan import reuse
from kvplan.documents import Requests
from kvplan.kernels import compiled
from kvplan.progress import Progress, silent

if TYPE_CHECKING:
    import pandas as pd

Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Histogram:
    """Blocks reused, by request and by the request that touched them last; ordered by request, newest toucher first.

    `unique` counts the distinct blocks that were seen.
    """

    request: Ints
    toucher: Ints
    blocks: Ints
    unique: int

    def __add__(self, other: Histogram) -> Histogram:
        """The histogram of two buckets that share no block."""
        request = np.concatenate((self.request, other.request))
        toucher = np.concatenate((self.toucher, other.toucher))
        blocks = np.concatenate((self.blocks, other.blocks))
        order = np.lexsort((-toucher, request))
        request, toucher, blocks = request[order], toucher[order], blocks[order]
        first = np.ones(request.size, np.bool_)
        first[1:] = (request[1:] != request[:-1]) | (toucher[1:] != toucher[:-1])
        at = np.flatnonzero(first)
        total = np.add.reduceat(blocks, at) if at.size else blocks
        return Histogram(request=request[at], toucher=toucher[at], blocks=total, unique=self.unique + other.unique)


def empty() -> Histogram:
    """The histogram of nothing: add to it."""
    none = np.zeros(0, np.int64)
    return Histogram(request=none, toucher=none, blocks=none, unique=0)


def mix(blocks: NDArray[Any]) -> NDArray[np.uint64]:
    """The bits of block ids mixed well: the finalizer of SplitMix64."""
    mixed = blocks.astype(np.uint64)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))


def bucket_of(blocks: NDArray[Any], buckets: int) -> NDArray[np.int64]:
    """The bucket of each block id, by its mixed bits, so that neighbours along a path are spread."""
    return (mix(blocks) % np.uint64(buckets)).astype(np.int64)


def references(rows: pd.DataFrame, buckets: int) -> pd.DataFrame:
    """Log rows (`request`: number in order of arrival, `hash_ids`: its block ids) as (`bucket`, `request`, `block`)."""
    import pandas as pd

    count = rows["hash_ids"].map(len).to_numpy(np.int64)
    ids = [np.asarray(path) for path in rows["hash_ids"]]
    block = np.concatenate(ids).astype(np.int64) if ids else np.zeros(0, np.int64)
    request = np.repeat(rows["request"].to_numpy(np.int64), count)
    return pd.DataFrame({"bucket": bucket_of(block, buckets), "request": request, "block": block})


def profile_frame(part: pd.DataFrame) -> pd.DataFrame:
    """One bucket's references (`request`, `block`), in any order, as its histogram in a table, one row a pair.

    A last row of request -1 holds the number of distinct blocks. For engines that map groups of a table.
    """
    import pandas as pd

    ordered = part.sort_values("request", kind="stable")
    result = profile_bucket(ordered["request"].to_numpy(np.int64), ordered["block"].to_numpy(np.int64))
    columns = {
        "request": np.append(result.request, -1),
        "toucher": np.append(result.toucher, -1),
        "blocks": np.append(result.blocks, result.unique),
    }
    return pd.DataFrame(columns)


def from_frame(table: pd.DataFrame) -> Histogram:
    """The sum of histograms that `profile_frame` made and an engine collected, in any order."""
    pairs, totals = table[table["request"] >= 0], table[table["request"] < 0]
    one = Histogram(
        request=pairs["request"].to_numpy(np.int64),
        toucher=pairs["toucher"].to_numpy(np.int64),
        blocks=pairs["blocks"].to_numpy(np.int64),
        unique=int(totals["blocks"].sum()),
    )
    return one + empty()


def profile_bucket(request: Ints, block: NDArray[Any]) -> Histogram:
    """The histogram of one bucket's references, in order of requests; `block` is any integers."""
    import pandas as pd

    dense, names = pd.factorize(block)
    table, found = _pairs(reuse.as_ints(request), reuse.as_ints(dense), len(names))
    pairs = table[:found]
    return Histogram(
        request=pairs[:, 0].copy(), toucher=pairs[:, 1].copy(), blocks=pairs[:, 2].copy(), unique=len(names)
    )


@compiled
def _pairs(request: Ints, block: Ints, unique: int) -> tuple[Ints, int]:
    last = np.full(unique, -1, np.int64)
    table = np.empty((1024, 3), np.int64)
    found = 0
    for i in range(request.size):
        r, q = request[i], last[block[i]]
        last[block[i]] = r
        if q < 0:
            continue
        k = found - 1  # the touchers of one request fall along its path, so that it is the last entry or a new one
        while k >= 0 and table[k, 0] == r and table[k, 1] < q:
            k -= 1
        if k >= 0 and table[k, 0] == r and table[k, 1] == q:
            table[k, 2] += 1
            continue
        if found == table.shape[0]:
            grown = np.empty((2 * found, 3), np.int64)
            for j in range(found):
                grown[j, 0], grown[j, 1], grown[j, 2] = table[j, 0], table[j, 1], table[j, 2]
            table = grown
        for j in range(found, k + 1, -1):
            table[j, 0], table[j, 1], table[j, 2] = table[j - 1, 0], table[j - 1, 1], table[j - 1, 2]
        table[k + 1, 0], table[k + 1, 1], table[k + 1, 2] = r, q, 1
        found += 1
    return table, found


def runs(histogram: Histogram, blocks_a_request: Ints) -> reuse.Runs:
    """The runs of the log from its whole histogram; `blocks_a_request` is int64 (requests,)."""
    h = histogram
    return reuse.as_runs(_ranked(h.request, h.toucher, h.blocks, reuse.as_ints(blocks_a_request)))


@compiled
def _ranked(request: Ints, toucher: Ints, length: Ints, counts: Ints) -> Ints:
    requests = counts.size
    newest = np.zeros(requests + 1, np.int64)  # Fenwick tree over requests: blocks each was the last to touch
    table = np.empty((request.size, 5), np.int64)
    live, i = 0, 0
    for r in range(requests):
        depth = 0
        while i < request.size and request[i] == r:
            newer = live
            k = toucher[i] + 1
            while k > 0:
                newer -= newest[k]
                k &= k - 1
            table[i, 0], table[i, 1], table[i, 2], table[i, 3] = r, toucher[i], depth, length[i]
            table[i, 4] = newer + depth + 1
            live -= length[i]
            k = toucher[i] + 1
            while k <= requests:
                newest[k] -= length[i]
                k += k & -k
            depth += length[i]
            i += 1
        live += counts[r]
        k = r + 1
        while k <= requests:
            newest[k] += counts[r]
            k += k & -k
    return table


def split(requests: Requests, buckets: int) -> Iterable[tuple[Ints, Ints]]:
    """The references of a log in memory, bucket by bucket: request and block, each int64, in order of requests."""
    owner = np.repeat(np.arange(len(requests.input_tokens)), np.diff(reuse.as_ints(requests.offsets)))
    bucket = bucket_of(requests.blocks, buckets)
    for one in range(buckets):
        chosen = np.flatnonzero(bucket == one)
        yield owner[chosen], reuse.as_ints(requests.blocks[chosen])


def find_runs(requests: Requests, workers: int, progress: Progress = silent) -> reuse.Runs:
    """What reuse.find_runs gives, from as many buckets as local worker processes."""
    progress(f"finding every reuse in {workers} processes")
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        futures = [pool.submit(profile_bucket, *part) for part in split(requests, workers)]
        whole = reduce(add, (future.result() for future in futures), empty())
    return runs(whole, np.diff(reuse.as_ints(requests.offsets)))
