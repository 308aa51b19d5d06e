"""One system's figures from a recording: its rows of metrics, read."""

from __future__ import annotations

import math
import statistics
from collections.abc import Callable, Iterable

from msgspec.structs import replace

from kvplan.documents import (
    Configured,
    GaugeRead,
    QuantileRead,
    ServingSystem,
    TierHits,
    TierLoss,
    TierTransfer,
    Waiting,
)
from kvplan.engines.metrics import system as rows
from kvplan.engines.metrics.system import Sum, System
from kvplan.observing import histogram
from kvplan.observing.histogram import Histogram
from kvplan.observing.recording import Recording
from kvplan.units import GB

QUANTILES = (0.5, 0.9, 0.99)
_OVER: dict[str, Callable[[Iterable[float]], float]] = {
    "sum": math.fsum,
    "mean": statistics.fmean,
    "max": max,
    "min": min,
}


def formula(picks: Sum) -> str:
    """'vllm:prefix_cache_hits_total + …', with labels."""
    return " + ".join(words(pick) for pick in picks)


def words(pick: rows.Pick) -> str:
    """A pick as PromQL would write it."""
    labels = ",".join(f'{name}="{value}"' for name, value in pick.labels)
    return pick.names[0] + (f"{{{labels}}}" if labels else "")


def serving(system: System, recording: Recording, names: Iterable[str]) -> ServingSystem:
    """How many engines there are, told apart by source and label, and which models they serve."""
    engines: set[tuple[object, ...]] = set()
    models: set[str] = set()
    for name in names:
        for one in recording.named(name):
            which = tuple(one.labels.get(label, "") for label in ("engine", "dp_rank", "instance", "pod"))
            engines.add((one.track, *which))
            models.update(one.labels[label] for label in ("model_name", "model") if one.labels.get(label))
    told = {one for one in engines if any(one[1:])} or engines
    lacking = (system.without_hits,) if system.without_hits and hit_row(system, recording, "all") is None else ()
    return ServingSystem(
        name=system.name,
        title=system.title,
        engines=len(told),
        models=tuple(sorted(models)),
        uncounted=(*system.uncounted, *lacking),
    )


def hit_row(system: System, recording: Recording, tier: str) -> rows.Hits | None:
    """The first of a tier's rows whose metrics are on the pages, and tell what was gained if any does."""
    rows = [row for row in system.hits if row.tier == tier and recording.has(*row.hits, *row.of)]
    return next((row for row in rows if not any(map(recording.untold, (*row.hits, *row.of)))), next(iter(rows), None))


def hits(system: System, recording: Recording) -> tuple[TierHits, ...]:
    """Tokens found by tier. A tier that the system counts but never met a token of is left out, `all` never is."""
    found = []
    for tier in dict.fromkeys(row.tier for row in system.hits):
        row = hit_row(system, recording, tier)
        if row is None:
            continue
        hit, of = _whole(recording.increase(row.hits)), _whole(recording.increase(row.of))
        if hit is None or (row.of and of is None):
            continue  # its metrics are on pages that tell no gain
        asked = _whole(recording.increase(row.asked)) if recording.has(*row.asked) and row.asked else None
        if tier == "all" or hit or asked or recording.series(row.hits[0]):
            found.append(
                TierHits(
                    system=system.name,
                    tier=row.tier,
                    hit_tokens=hit,
                    of_tokens=of,
                    hit_ratio=min(1.0, hit / of) if of else None,
                    asked_tokens=asked,
                    formula=f"{_group(row.hits)} / {_group(row.of)}",
                    note=row.note,
                )
            )
    return tuple(found)


def matched(system: System, recording: Recording, of_tokens: int | None) -> tuple[TierHits, ...]:
    """Tokens that a layer below an engine found, of the prompts that the engine counts (None: it is not observed)."""
    found = recording.increase(system.matched)
    if found is None:
        return ()
    tokens = round(found)
    return (
        TierHits(
            system=system.name,
            tier="external",
            hit_tokens=tokens,
            of_tokens=of_tokens,
            hit_ratio=min(1.0, tokens / of_tokens) if of_tokens else None,
            formula=formula(system.matched),
        ),
    )


def _group(picks: Sum) -> str:
    return formula(picks) if len(picks) == 1 else f"({formula(picks)})"


def _whole(value: float | None) -> int | None:
    return None if value is None else round(value)


def transfers(system: System, recording: Recording) -> tuple[TierTransfer, ...]:
    """Copies between tiers, one of each way and pair of tiers: the first row that counts anything of it."""
    found: dict[tuple[str, str, str], TierTransfer] = {}
    for row in system.transfers:
        key = (row.way, row.source, row.target)
        one = _transfer(system, recording, row)
        if one is not None and key not in found:
            found[key] = one
    sizes = _sizes(system, recording)
    return tuple(_derived(one, *sizes) if sizes is not None else one for one in found.values())


def _sizes(system: System, recording: Recording) -> tuple[float, float] | None:
    """Bytes of a host tier's chunk and of a token in it, from the pool as configured."""
    values = {one.key: one.value for one in settings(system, recording)}
    size, chunks, tokens = (values.get(key) for key in system.chunk or ("", "", ""))
    return (size / chunks, size / tokens) if size and chunks and tokens else None


def _derived(one: TierTransfer, chunk_bytes: float, token_bytes: float) -> TierTransfer:
    """Chunks and tokens of a transfer that the system counts in bytes alone."""
    if one.bytes is None or "host" not in (one.source, one.target):
        return one
    blocks, tokens = round(one.bytes / chunk_bytes), round(one.bytes / token_bytes)
    return replace(
        one,
        blocks=blocks if one.blocks is None else one.blocks,
        tokens=tokens if one.tokens is None else one.tokens,
        derived=tuple(name for name in ("blocks", "tokens") if getattr(one, name) is None),
    )


def _transfer(system: System, recording: Recording, row: rows.Transfer) -> TierTransfer | None:
    moved, tokens, blocks = (_whole(recording.increase(picks)) for picks in (row.bytes, row.tokens, row.blocks))
    if any(picks and not any(map(recording.series, picks)) for picks in (row.bytes, row.tokens, row.blocks)):
        return None  # the metric is there, but none of its samples has this row's labels
    if moved is None and tokens is None and blocks is None:
        return None
    busy, span = recording.increase(row.seconds), recording.span_s
    rates = histogram.read(recording, (row.rates,)) if row.rates else None
    return TierTransfer(
        system=system.name,
        way=row.way,
        source=row.source,
        target=row.target,
        bytes=moved,
        tokens=tokens,
        blocks=blocks,
        operations=_whole(recording.increase(row.operations)),
        busy_s=busy,
        busy_bytes_per_s=moved / busy if moved and busy else None,
        mean_bytes_per_s=moved / span if moved is not None and span else None,
        spread_bytes_per_s=_spread(rates),
    )


def _spread(rates: Histogram | None) -> tuple[float, float, float] | None:
    """The 10th, 50th and 90th percentile of single transfers' GB/s, as bytes a second."""
    found = [rates.quantile(q) for q in (0.1, 0.5, 0.9)] if rates is not None else []
    values = [one.value * GB for one in found if one is not None]
    return (values[0], values[1], values[2]) if len(values) == 3 else None


def waits(system: System, recording: Recording) -> tuple[Waiting, ...]:
    """Histograms of times in which anything was observed."""
    found = []
    for row in system.waits:
        read = histogram.read(recording, (row.name, *row.also))
        if read is None or not read.count:
            continue
        quantiles = [read.quantile(q) for q in QUANTILES]
        found.append(
            Waiting(
                system=system.name,
                what=row.what,
                count=round(read.count),
                mean_s=read.mean,
                quantiles=tuple(
                    QuantileRead(q=one.q, value_s=one.value, low_s=one.low, high_s=one.high)
                    for one in quantiles
                    if one is not None
                ),
                metric=row.name,
                age=row.age,
            )
        )
    return tuple(found)


def gauges(system: System, recording: Recording) -> tuple[GaugeRead, ...]:
    """Gauges over all rounds in which they were read."""
    found = []
    for row in system.levels:
        read = [value for value in recording.levels(row.pick, _OVER[row.over]) if value is not None]
        if read:
            found.append(
                GaugeRead(
                    system=system.name,
                    what=row.what,
                    unit=row.unit,
                    mean=statistics.fmean(read),
                    low=min(read),
                    high=max(read),
                    last=read[-1],
                    metric=words(row.pick),
                    note=row.note,
                )
            )
    return tuple(found)


def losses(system: System, recording: Recording) -> tuple[tuple[rows.Loss, TierLoss], ...]:
    """What was evicted, refused or failed, by reason, with the row that says what it means."""
    found = []
    for row in system.losses:
        by_reason: dict[str, float] = {}
        for labels in _reasons(row, recording):
            picked = rows.Pick(
                row.pick.names, tuple(sorted({**dict(row.pick.labels), **labels}.items())), row.pick.ranks
            )
            reason = row.reason or labels.get(row.by, "").replace("_", " ") or "reason not counted"
            by_reason[reason] = by_reason.get(reason, 0.0) + (recording.increase((picked,)) or 0.0)
        for reason, amount in by_reason.items():
            lost = TierLoss(
                system=system.name,
                tier=row.tier,
                what=row.what,
                reason=reason,
                amount=round(amount),
                unit=row.unit,
                metric=words(row.pick),
            )
            found.append((row, lost))
    return tuple(found)


def _reasons(row: rows.Loss, recording: Recording) -> list[dict[str, str]]:
    series = recording.series(row.pick)
    if not row.by:
        return [{}] if series else []
    seen = {one.labels.get(row.by, "") for one in series}
    return [{row.by: value} for value in sorted(seen) if not row.only or value in row.only]


def settings(system: System, recording: Recording) -> tuple[Configured, ...]:
    """What the server states of its own configuration: the latest page's word."""
    found = []
    for row in system.settings:
        texts = _texts(row, recording)
        if not texts:
            continue
        distinct = list(dict.fromkeys(texts))
        numbers = [number for text in distinct if (number := _number(text)) is not None]
        found.append(
            Configured(
                system=system.name,
                key=row.key,
                what=row.what,
                text=", ".join(distinct),
                unit=row.unit,
                value=min(numbers) if len(numbers) == len(distinct) else None,
                engines=len(texts),
                metric=words(row.pick) + (f" {row.label}" if row.label else ""),
            )
        )
    return tuple(found)


def _texts(row: rows.Setting, recording: Recording) -> list[str]:
    if row.label:
        return [labels[row.label] for labels, _ in recording.last(row.pick) if labels.get(row.label, "None") != "None"]
    values = [value for _, value in recording.last(row.pick)]
    if row.per is not None:
        shares = [value for _, value in recording.last(row.per)]
        values = [round(a / b) for a, b in zip(values, shares, strict=False) if b > 0]
    return [f"{value:g}" if value != int(value) else str(int(value)) for value in values]


def _number(text: str) -> float | None:
    try:
        value = float(text)
    except ValueError:
        return None
    return value if math.isfinite(value) else None
