"""An LRU curve from a sample of a log's blocks, in memory that the sample bounds, with its measured error.

Blocks are sampled by a hash of their id, so that of a sampled block every reference is seen. Sampling alone fails on
prefix caches: the few blocks at the roots are in every request, and whether they fall into the sample decides all. So
the sample is stratified: the hottest blocks are all kept and count once, of the others one in 1 / rate is kept and
counts 1 / rate times, in ranks as in hits. And all distinct blocks are counted, to a fifth of a percent, which tells
what a cache without end hits, so that the sample has to tell only how that is spread over capacities.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan import reuse
from kvplan.documents import Requests, SampledPoint, Sampling
from kvplan.errors import KvplanError, UsageError
from kvplan.kernels import compiled, part
from kvplan.profiling.buckets import mix
from kvplan.progress import Progress, silent

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

_SCOUT_REFERENCES = 1 << 22  # that are looked at for hot blocks
_CLASSES = 1 << 40
_WITHOUT_END = 1 << 62  # blocks: more than any log has
_REGISTER_BITS = 18
_REGISTERS = 1 << _REGISTER_BITS
_COUNT_ERROR = 1.04 / _REGISTERS**0.5
_LEAST_SAMPLED = 100  # blocks of the sample that a cache must hold: with fewer, neither a point nor its error is sound
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
    """The LRU curve at those of `capacities` (blocks, ascending) that are at least `least_capacity(rate)`, or hold all.

    Blocks are sampled one in 1 / `rate`. `log` gives the log's batches anew at each call; it is read twice: for the hot
    blocks, and for the sample. Memory is a batch and about 100 bytes a sampled reference. Raises UsageError for a rate
    that is not above 0 and at most 1.
    """
    check(rate, samples)
    progress("looking for the hot blocks")
    hot = hottest(log(), hot_blocks)
    sampler = Sampler(hot, block_tokens, rate, samples)
    progress("sampling the log")
    for batch in log():
        sampler.add(batch)
    return sampler.curve(capacities, progress)


def hottest(log: Iterable[Batch], most: int = 2000) -> Ints:
    """The blocks most referenced in a log, ascending, at most so many."""
    scout = Scout()
    for batch in log:
        scout.add(batch)
    return scout.hottest(most)


def check(rate: float, samples: int = 10) -> None:
    """Raise UsageError for a sample that is none."""
    if not 0 < rate <= 1 or samples < 2:
        raise UsageError(
            f"a sample of {rate:g} in {samples} parts: a rate above 0 and at most 1, and two parts or more"
        )


def least_capacity(rate: float) -> int:
    """The blocks of the smallest cache that a sample tells anything of: the LRU order of fewer blocks is not in it.

    Each part of the sample counts its blocks even coarser, so that the parts agree on what none of them can resolve.
    """
    return math.ceil(_LEAST_SAMPLED / rate) if rate < 1 else 0


class Scout:
    """The first pass over a log: looks for its hot blocks, at one request in as many as give some millions."""

    def __init__(self) -> None:
        self._stride, self._held, self._first = 1, 0, 0
        self._looked: dict[int, Ints] = {}

    def take(self, count: Ints, input_tokens: Ints, blocks: NDArray[Any]) -> None:
        """As a reader hands over consecutive requests."""
        self.add(as_batch(count, input_tokens, blocks))

    def add(self, batch: Batch) -> None:
        """Look at a batch."""
        for row in range(-self._first % self._stride, batch.input_tokens.size, self._stride):
            path = batch.blocks[batch.offsets[row] : batch.offsets[row + 1]]
            self._looked[self._first + row] = path.astype(np.int64)  # a copy: a view would keep the whole batch
            self._held += path.size
        self._first += batch.input_tokens.size
        while self._held > _SCOUT_REFERENCES and len(self._looked) > 1:
            self._stride *= 2
            self._looked = {number: path for number, path in self._looked.items() if number % self._stride == 0}
            self._held = sum(path.size for path in self._looked.values())

    def hottest(self, most: int = 2000) -> Ints:
        """The blocks most referenced, ascending, at most so many."""
        if not self._looked:
            return np.zeros(0, np.int64)
        ids, counts = np.unique(np.concatenate(list(self._looked.values())), return_counts=True)
        top = np.argsort(-counts, kind="stable")[:most]
        return np.sort(ids[top][counts[top] > 1])


class Sampler:
    """The second pass over a log: keeps the references of hot and of sampled blocks, and counts the distinct ones."""

    def __init__(self, hot: Ints, block_tokens: int, rate: float, samples: int = 10) -> None:
        check(rate, samples)
        self._hot, self._block_tokens, self._rate, self._samples = hot, block_tokens, rate, samples
        self._width = max(1, round(rate * _CLASSES / samples))
        self._parts: list[tuple[Ints, Ints, Ints, Ints]] = []
        self._total, self._tokens, self._first = 0, 0, 0
        self._registers = np.zeros(_REGISTERS, np.uint8)

    def take(self, count: Ints, input_tokens: Ints, blocks: NDArray[Any]) -> None:
        """As a reader hands over consecutive requests."""
        self.add(as_batch(count, input_tokens, blocks))

    def add(self, batch: Batch) -> None:
        """Keep what of a batch is in the sample."""
        hot = self._hot
        mixed = mix(batch.blocks)
        _count(mixed, self._registers)
        place = (mixed % np.uint64(_CLASSES)).astype(np.int64) // self._width
        spot = np.searchsorted(hot, batch.blocks)
        is_hot = hot[np.minimum(spot, hot.size - 1)] == batch.blocks if hot.size else np.zeros(place.size, np.bool_)
        chosen = np.flatnonzero(is_hot | (place < self._samples))
        row = np.searchsorted(batch.offsets, chosen, side="right") - 1
        size = np.minimum((chosen - batch.offsets[row] + 1) * self._block_tokens, batch.input_tokens[row])
        size -= (chosen - batch.offsets[row]) * self._block_tokens
        sample = np.where(is_hot[chosen], -1, place[chosen])
        self._parts.append((self._first + row, reuse.as_ints(batch.blocks[chosen]), reuse.as_ints(size), sample))
        self._total += batch.blocks.size
        self._tokens += int(np.minimum(np.diff(batch.offsets) * self._block_tokens, batch.input_tokens).sum())
        self._first += batch.input_tokens.size

    @property
    def unique(self) -> int:
        """About how many distinct blocks the log has."""
        return round(_distinct(self._registers))

    def curve(self, capacities: Sequence[int], progress: Progress = silent) -> Sampling:
        """The curve at `capacities`, ascending, but those of too few sampled blocks."""
        progress("measuring the sampled curve")
        least = min(least_capacity(self._rate), self.unique)  # one that holds all blocks is known from their number
        capacities = [capacity for capacity in capacities if capacity >= least]
        kept = self._kept()
        rate, samples = self._rate, self._samples
        grid = np.array([*capacities, _WITHOUT_END], np.int64)
        whole = _Whole(references=self._total, tokens=self._tokens, unique=self.unique if rate < 1 else None)
        ratios = _estimate(kept, kept.sample >= -1, 1 / rate, grid, whole)
        parts = [
            _estimate(kept, (kept.sample == -1) | (kept.sample == one), samples / rate, grid, whole)[:, 0]
            for one in range(samples)
        ]
        counted = _COUNT_ERROR * self.unique / max(1, self._total) if rate < 1 else 0.0
        counted *= ratios[:, 0] / max(float(ratios[-1, 0]), 1e-9)  # hits are scaled to the count, all by one factor
        error = np.minimum(np.hypot(np.std(parts, axis=0, ddof=1) / np.sqrt(samples), counted), 1.0)
        points = tuple(
            SampledPoint(capacity_blocks=c, block_hit_ratio=b, token_hit_ratio=t, standard_error_ratio=e)
            for c, (b, t), e in zip(capacities, ratios[:-1].tolist(), error[:-1].tolist(), strict=True)
        )
        return Sampling(
            rate=rate,
            samples=samples,
            hot_blocks=self._hot.size,
            block_references=self._total,
            sampled_references=kept.block.size,
            unique_blocks=self.unique,
            ceiling_hit_ratio=float(ratios[-1, 1]),
            points=points,
        )

    def _kept(self) -> _Kept:
        none = [np.zeros(0, np.int64)] * 4
        columns = [np.concatenate(column) for column in zip(*self._parts, strict=True)] if self._parts else none
        self._parts = [(columns[0], columns[1], columns[2], columns[3])]  # the pieces are let go: memory counts here
        return _Kept(request=columns[0], block=columns[1], tokens=columns[2], sample=columns[3])


def as_batch(count: Ints, input_tokens: Ints, blocks: NDArray[Any]) -> Batch:
    """Consecutive requests as a batch, from how many blocks each has."""
    return Batch(
        blocks=blocks, offsets=np.concatenate((np.zeros(1, np.int64), np.cumsum(count))), input_tokens=input_tokens
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class _Whole:
    """What is known of the whole log: references, tokens in blocks, about how many blocks differ (None: all kept)."""

    references: int
    tokens: int
    unique: int | None


def _estimate(kept: _Kept, chosen: NDArray[np.bool_], factor: float, grid: Ints, whole: _Whole) -> Floats:
    """Block and token hit ratios at each capacity (the last: without end), shape (capacities, 2).

    What is hot counts once, the rest by its share of what was seen. All cold hits are then scaled so that those of a
    cache without end are what they must be: all references but the first of each distinct block.
    """
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
    total = np.array([whole.references, whole.tokens], np.float64)
    scale = np.divide(total - seen[0], seen[1], out=np.zeros(2), where=seen[1] > 0)
    cold = hits[:, 1] * scale
    if whole.unique is not None and cold[-1, 0] > 0:
        cold *= max(0.0, whole.references - whole.unique - hits[-1, 0, 0]) / cold[-1, 0]
    ratios: Floats = np.clip((hits[:, 0] + cold) / np.maximum(total, 1), 0, 1)
    return ratios


@compiled
def _count(mixed: NDArray[np.uint64], registers: NDArray[np.uint8]) -> None:
    """Take blocks, mixed well, into the registers of a HyperLogLog."""
    for value in mixed:
        place = value >> np.uint64(64 - _REGISTER_BITS)
        rest = value << np.uint64(_REGISTER_BITS)
        zeros = np.uint8(1)
        while zeros <= 64 - _REGISTER_BITS and not rest & np.uint64(1 << 63):
            rest <<= np.uint64(1)
            zeros += np.uint8(1)
        if zeros > registers[place]:
            registers[place] = zeros


def _distinct(registers: NDArray[np.uint8]) -> float:
    """About how many distinct values the registers have taken, standard error 1.04 over the root of their number.

    Flajolet, Fusy, Gandouet, Meunier (2007), with linear counting while registers are empty.
    """
    size = registers.size
    raw = 0.7213 / (1 + 1.079 / size) * size**2 / float(np.ldexp(1.0, -registers.astype(np.int64)).sum())
    empty = int((registers == 0).sum())
    return size * float(np.log(size / empty)) if raw <= 2.5 * size and empty else raw


@part
def _place(ascending: Ints, value: float) -> Any:
    """The first place where a value is not below the one given."""
    low, high = 0, ascending.size
    while low < high:
        middle = (low + high) >> 1
        if ascending[middle] < value:
            low = middle + 1
        else:
            high = middle
    return low


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
                point = _place(capacities, newer + above + moved + (w + 1) / 2)
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
        for kind in range(2):
            hits[point, kind, 0] += hits[point - 1, kind, 0]
            hits[point, kind, 1] += hits[point - 1, kind, 1]
    return hits[:-1]
