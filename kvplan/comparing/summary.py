"""Runs and arms as a document says them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan.comparing.pairing import Pairs
from kvplan.comparing.records import Run
from kvplan.documents import MeasuredArm, MeasuredRun, MeasuredTimes, PairedPoint

Floats: TypeAlias = NDArray[np.float64]
Source: TypeAlias = Literal["answers", "counters"] | None


def times(values: Floats) -> MeasuredTimes:
    """Mean and nearest-rank percentiles."""
    ordered = np.sort(values)
    ranks = (max(0, -(-len(ordered) * share // 100) - 1) for share in (50, 90, 99))
    p50, p90, p99 = (float(ordered[rank]) for rank in ranks)
    return MeasuredTimes(mean=float(ordered.mean()), p50=p50, p90=p90, p99=p99)


def rows(runs: Sequence[Run], arm: str) -> list[int]:
    """Which runs are of an arm."""
    return [row for row, run in enumerate(runs) if run.arm == arm]


def mean_over(figure: Floats, runs: Sequence[Run], arm: str) -> Floats:
    """By request: a figure's mean over the runs of an arm."""
    mean: Floats = figure[rows(runs, arm)].mean(axis=0)
    return mean


def completed(pairs: Pairs) -> Pairs:
    """Answers that state no cached tokens in a run where others do have none: servers leave out a zero."""
    silent = np.isnan(pairs.cached_tokens)
    told = ~silent.all(axis=1, keepdims=True)
    return replace(pairs, cached_tokens=np.where(silent & told, 0.0, pairs.cached_tokens))


def hit_ratio(pairs: Pairs, row: int) -> tuple[float | None, Source]:
    """Cached over all prompt tokens of one run, as its answers state them."""
    cached = pairs.cached_tokens[row]
    if np.isnan(cached).any():
        return None, None
    return float(cached.sum() / pairs.prompt_tokens[row].sum()), "answers"


def run(run: Run, pairs: Pairs, row: int, ratio: float | None, source: Source, lag_p99_s: float | None) -> MeasuredRun:
    """One run over the requests that are compared."""
    cached = pairs.cached_tokens[row]
    return MeasuredRun(
        arm=run.arm,
        name=run.result.name,
        generator=run.result.generator,
        requests=len(pairs.sessions),
        failed=len(run.result.failed),
        span_s=run.result.span_s,
        prompt_tokens=int(pairs.prompt_tokens[row].sum()),
        output_tokens=int(pairs.output_tokens[row].sum()),
        cached_tokens=None if np.isnan(cached).any() else int(cached.sum()),
        hit_ratio=ratio,
        hits_from=source,
        lag_p99_s=lag_p99_s,
        ttft=times(pairs.ttft_s[row]),
        latency=times(pairs.latency_s[row]),
    )


def arm(name: Literal["off", "on"], measured: Sequence[MeasuredRun], pairs: Pairs, runs: Sequence[Run]) -> MeasuredArm:
    """An arm over its runs: times over the requests of all of them, rates over whole runs."""
    own = [one for one in measured if one.arm == name]
    ratios = [one.hit_ratio for one in own if one.hit_ratio is not None]
    spans = sum(one.span_s for one in own)
    sent = sum(len(runs[row].result.records) for row in rows(runs, name))
    answered = sum(record.output_tokens for row in rows(runs, name) for record in runs[row].result.records)
    return MeasuredArm(
        arm=name,
        runs=len(own),
        hit_ratio=sum(ratios) / len(ratios) if len(ratios) == len(own) else None,
        ttft=times(pairs.ttft_s[rows(runs, name)].ravel()),
        latency=times(pairs.latency_s[rows(runs, name)].ravel()),
        requests_per_s=sent / spans if spans else 0.0,
        output_tokens_per_s=answered / spans if spans else 0.0,
    )


def points(pairs: Pairs, runs: Sequence[Run]) -> tuple[PairedPoint, ...]:
    """Each request in both arms."""
    off, on = (mean_over(pairs.ttft_s, runs, arm).tolist() for arm in ("off", "on"))
    cached = [mean_over(pairs.cached_tokens, runs, arm).tolist() for arm in ("off", "on")]
    return tuple(
        PairedPoint(
            session=session,
            turn=pairs.turns[at],
            prompt_tokens=int(pairs.prompt_tokens[0, at]),
            cached_tokens_off=_known(cached[0][at]),
            cached_tokens_on=_known(cached[1][at]),
            ttft_off_s=off[at],
            ttft_on_s=on[at],
        )
        for at, session in enumerate(pairs.sessions)
    )


def _known(value: float) -> float | None:
    return None if np.isnan(value) else value


def drift_s(pairs: Pairs, runs: Sequence[Run]) -> float | None:
    """The larger of both arms' change of mean TTFT from its first run to its last; None where each has but one."""
    moved = []
    for name in ("off", "on"):
        own = rows(runs, name)
        if len(own) > 1:
            moved.append(float((pairs.ttft_s[own[-1]] - pairs.ttft_s[own[0]]).mean()))
    return max(moved, key=abs) if moved else None
