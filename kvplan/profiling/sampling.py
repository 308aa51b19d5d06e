"""An LRU curve from a sample of a log's blocks, in memory that the sample bounds, with its measured error.

Blocks are sampled by a hash of their id, so that of a sampled block every reference is seen. Sampling alone fails on
prefix caches: the few blocks at the roots are in every request, and whether they fall into the sample decides all. So
the sample is stratified: the hottest blocks are all kept and count once, of the others one in 1 / rate is kept and
counts 1 / rate times, in ranks as in hits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan import reuse
from kvplan.documents import Requests, SampledPoint, Sampling
from kvplan.errors import KvplanError, UsageError
from kvplan.kernels import compiled
from kvplan.profiling.buckets import bucket_of
from kvplan.progress import Progress, silent

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

_SCOUT_REFERENCES = 1 << 22  # that are looked at for hot blocks
_CLASSES = 1 << 40
_CHUNK = 1 << 24  # references at a time
_ROWS = 512


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Batch:
    """Consecutive requests of a log: `blocks` any integer ids of whole prefixes, `offsets` where each path starts."""

    blocks: NDArray[Any]
    offsets: Ints
    input_tokens: Ints


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class _Kept:
    """The sampled references: request, block, tokens, and the sample of each, -1 for hot blocks."""

    request: Ints
    block: Ints
    tokens: Ints
    sample: Ints


def batches_of(requests: Requests) -> Iterator[Batch]:
    """A log in memory as batches of about 16 M references."""
    offsets = reuse.as_ints(requests.offsets)
    last = offsets.size - 1
    first = 0
    while first < last:
        end = max(first + 1, int(np.searchsorted(offsets, offsets[first] + _CHUNK, side="right")) - 1)
        yield Batch(
            blocks=requests.blocks[offsets[first] : offsets[end]],
            offsets=offsets[first : end + 1] - offsets[first],
            input_tokens=reuse.as_ints(requests.input_tokens[first:end]),
        )
        first = end


def batches_in(path: Path) -> Iterator[Batch]:
    """A Parquet log with `input_length` and `hash_ids`, a request a row in order of arrival, some rows at a time."""
    try:
        from pyarrow import compute, parquet
    except ImportError:
        raise KvplanError(f"{path}: reading Parquet needs pyarrow: pip install 'kvplan[logs]'") from None
    with parquet.ParquetFile(path) as file:
        for batch in file.iter_batches(_ROWS, columns=["input_length", "hash_ids"], use_threads=False):
            lengths = compute.fill_null(compute.list_value_length(batch["hash_ids"]), 0)
            count = lengths.to_numpy(zero_copy_only=False).astype(np.int64)
            yield Batch(
                blocks=batch["hash_ids"].flatten().to_numpy(),
                offsets=np.concatenate((np.zeros(1, np.int64), np.cumsum(count))),
                input_tokens=batch["input_length"].to_numpy().astype(np.int64),
            )


def curve(
    log: Callable[[], Iterable[Batch]],
    *,
    block_tokens: int,
    capacities: Sequence[int],
    rate: float,
    samples: int = 10,
    hot_blocks: int = 2000,
    progress: Progress = silent,
) -> Sampling:
    """The LRU curve at `capacities` (blocks, ascending) from one block in 1 / `rate`.

    `log` gives the log's batches anew at each call; it is read twice: for the hot blocks, and for the sample. Memory
    is a batch and about 100 bytes a sampled reference. Raises UsageError for a rate that is not above 0 and at most 1.
    """
    if not 0 < rate <= 1 or samples < 2:
        raise UsageError(
            f"a sample of {rate:g} in {samples} parts: a rate above 0 and at most 1, and two parts or more"
        )
    progress("looking for the hot blocks")
    hot = _hottest(log(), hot_blocks)
    progress("sampling the log")
    kept, total, tokens = _sampled(log(), hot, block_tokens, rate, samples)
    progress("measuring the sampled curve")
    grid = np.array(capacities, np.int64)
    blocks, by_token = _estimate(kept, kept.sample >= -1, 1 / rate, grid, total, tokens)
    parts = [
        _estimate(kept, (kept.sample == -1) | (kept.sample == one), samples / rate, grid, total, tokens)[0]
        for one in range(samples)
    ]
    error = np.std(parts, axis=0, ddof=1) / np.sqrt(samples)
    return Sampling(
        rate=rate,
        samples=samples,
        hot_blocks=hot.size,
        block_references=total,
        sampled_references=kept.block.size,
        points=tuple(
            SampledPoint(capacity_blocks=c, block_hit_ratio=b, token_hit_ratio=t, standard_error_ratio=min(e, 1.0))
            for c, b, t, e in zip(capacities, blocks.tolist(), by_token.tolist(), error.tolist(), strict=True)
        ),
    )


def _hottest(log: Iterable[Batch], most: int) -> Ints:
    """The blocks most referenced, ascending, by one request in as many as give some millions of references."""
    stride, held, first = 1, 0, 0
    looked: dict[int, Ints] = {}
    for batch in log:
        for row in range(-first % stride, batch.input_tokens.size, stride):
            path = batch.blocks[batch.offsets[row] : batch.offsets[row + 1]]
            looked[first + row] = path.astype(np.int64)  # a copy: a view would keep the whole batch
            held += looked[first + row].size
        first += batch.input_tokens.size
        while held > _SCOUT_REFERENCES and len(looked) > 1:
            stride *= 2
            looked = {number: path for number, path in looked.items() if number % stride == 0}
            held = sum(path.size for path in looked.values())
    if not looked:
        return np.zeros(0, np.int64)
    ids, counts = np.unique(np.concatenate(list(looked.values())), return_counts=True)
    top = np.argsort(-counts, kind="stable")[:most]
    return np.sort(ids[top][counts[top] > 1])


def _sampled(log: Iterable[Batch], hot: Ints, block_tokens: int, rate: float, samples: int) -> tuple[_Kept, int, int]:
    """The sampled references, and the number of all references and of all tokens in blocks."""
    parts: list[tuple[Ints, Ints, Ints, Ints]] = []
    total, tokens, first = 0, 0, 0
    width = max(1, round(rate * _CLASSES / samples))
    for batch in log:
        place = bucket_of(batch.blocks, _CLASSES) // width
        spot = np.searchsorted(hot, batch.blocks)
        is_hot = hot[np.minimum(spot, hot.size - 1)] == batch.blocks if hot.size else np.zeros(place.size, np.bool_)
        chosen = np.flatnonzero(is_hot | (place < samples))
        row = np.searchsorted(batch.offsets, chosen, side="right") - 1
        size = np.minimum((chosen - batch.offsets[row] + 1) * block_tokens, batch.input_tokens[row])
        size -= (chosen - batch.offsets[row]) * block_tokens
        sample = np.where(is_hot[chosen], -1, place[chosen])
        parts.append((first + row, reuse.as_ints(batch.blocks[chosen]), reuse.as_ints(size), sample))
        total += batch.blocks.size
        tokens += int(np.minimum(np.diff(batch.offsets) * block_tokens, batch.input_tokens).sum())
        first += batch.input_tokens.size
    columns = [np.concatenate(column) for column in zip(*parts, strict=True)] if parts else [np.zeros(0, np.int64)] * 4
    return _Kept(request=columns[0], block=columns[1], tokens=columns[2], sample=columns[3]), total, tokens


def _estimate(
    kept: _Kept, chosen: NDArray[np.bool_], factor: float, grid: Ints, total: int, tokens: int
) -> tuple[Floats, Floats]:
    """Block and token hit ratios at each capacity: what is hot counts once, the rest by its share of what was seen."""
    import pandas as pd

    request, hot = kept.request[chosen], kept.sample[chosen] == -1
    block, names = pd.factorize(kept.block[chosen])
    _, starts = np.unique(request, return_index=True)
    offsets = np.append(starts, request.size)
    weight = np.full(len(names), factor)
    weight[block[hot]] = 1.0
    size = kept.tokens[chosen]
    hits = _weighted(reuse.as_ints(block), reuse.as_ints(offsets), weight, size, hot, grid)
    seen = np.array([[hot.sum(), size[hot].sum()], [(~hot).sum(), size[~hot].sum()]], np.float64)
    whole = np.array([total, tokens], np.float64)
    scale = np.divide(whole - seen[0], seen[1], out=np.zeros(2), where=seen[1] > 0)
    ratios = (hits[:, 0] + hits[:, 1] * scale) / np.maximum(whole, 1)
    return np.clip(ratios[:, 0], 0, 1), np.clip(ratios[:, 1], 0, 1)


@compiled
def _weighted(
    blocks: Ints, offsets: Ints, weight: Floats, tokens: Ints, hot: NDArray[np.bool_], capacities: Ints
) -> Floats:
    """Hits at each capacity where a block counts `weight` blocks: (capacities, hot or not, blocks and tokens).

    The pass of reuse.find_runs, with weights in the tree; a block stands in the middle of those it counts for.
    """
    requests = offsets.size - 1
    hits = np.zeros((capacities.size + 1, 2, 2), np.float64)
    last = np.full(weight.size, -1, np.int64)
    newest = np.zeros(requests + 1, np.float64)
    live = 0.0
    for r in range(requests):
        start, n = offsets[r], offsets[r + 1] - offsets[r]
        depth, above = 0, 0.0
        while depth < n:
            q = last[blocks[start + depth]]
            if q < 0:
                break
            newer = live
            k = q + 1
            while k > 0:
                newer -= newest[k]
                k &= k - 1
            moved = 0.0
            while depth < n and last[blocks[start + depth]] == q:
                w = weight[blocks[start + depth]]
                point = np.searchsorted(capacities, newer + above + moved + (w + 1) / 2)
                kind = 0 if hot[start + depth] else 1
                hits[point, kind, 0] += 1
                hits[point, kind, 1] += tokens[start + depth]
                moved += w
                depth += 1
            above += moved
            live -= moved
            k = q + 1
            while k <= requests:
                newest[k] -= moved
                k += k & -k
        whole = 0.0
        for position in range(start, start + n):
            last[blocks[position]] = r
            whole += weight[blocks[position]]
        live += whole
        k = r + 1
        while k <= requests:
            newest[k] += whole
            k += k & -k
    for point in range(1, capacities.size):
        hits[point] += hits[point - 1]
    return hits[:-1]
