"""Offload off against on, as load generators measured them on live servers: results in, paired differences out.

Requests are paired across runs, differences resampled by session; what would make the comparison worthless is refused.
A simulation of the same schedule is graded against it. docs/replay.md explains each figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

import numpy as np

from kvplan.comparing import checks, counters, summary
from kvplan.comparing.bootstrap import SHARE, Resampler
from kvplan.comparing.grading import grades
from kvplan.comparing.pairing import Pairs, paired
from kvplan.comparing.records import Run
from kvplan.comparing.results import loaded
from kvplan.comparing.told import lags, told
from kvplan.documents import Finding, Grade, LiveComparison, MeasuredRun, Paired, Simulation
from kvplan.errors import KvplanError, UsageError

__all__ = ["Options", "compare"]

FEW_SESSIONS = 20


@dataclass(frozen=True, slots=True, kw_only=True)
class Options:
    """How results are compared. `skip` first requests are a warm-up and count for nothing. `schedule` tells sessions
    where results do not. `resample` draws whole sessions, or single requests, which takes them for independent.
    """

    max_lag_s: float = 0.5
    skip: int = 0
    resamples: int = 2000
    seed: int = 0
    resample: Literal["session", "request"] = "session"
    schedule: Path | None = None
    simulated_arm: str = "on"


def compare(
    paths: Sequence[Path], options: Options, simulation: tuple[str, Simulation] | None = None
) -> LiveComparison:
    """Compare one folder of `kvplan replay run`, or two results: off and on.

    `simulation` is its name and what it says of the same schedule. Raises KvplanError for results that cannot be
    read or must not be compared.
    """
    given = loaded(paths)
    known = told(options.schedule) if options.schedule is not None else None
    runs = given.runs
    by_answers = any(replay.concurrency is not None for replay in given.replays)
    if known is not None and known.due_s is not None and not by_answers:  # clients that wait for answers keep no times
        runs = tuple(_with_lags(run, known.due_s) for run in runs)
    checks.alike(runs, given.replays)
    checks.on_time(runs, options.max_lag_s)
    pairs = paired(runs, known.sessions if known is not None else None)
    checks.same_work(pairs)
    findings = [*_about(runs, pairs, by_answers), *_named(runs, known is None and options.resample == "session")]
    pairs = _warm(summary.completed(pairs), options.skip)
    measured = tuple(_measured(run, pairs, row) for row, run in enumerate(runs))
    off, on = (summary.arm(name, measured, pairs, runs) for name in ("off", "on"))
    change = _paired(pairs, runs, options, given.in_turn)
    replay = given.replays[0] if given.replays else None
    graded: tuple[Grade, ...] = ()
    if simulation is not None:
        if options.skip:
            raise UsageError("--simulation is graded over a whole schedule: leave --skip out")
        graded = grades(simulation[1], off, on, len(pairs.sessions), options.simulated_arm)
    return LiveComparison(
        schedule=replay.schedule if replay else None,
        order="".join("A" if run.arm == "off" else "B" for run in runs) if given.in_turn else "",
        runs=measured,
        off=off,
        on=on,
        paired=change,
        points=summary.points(pairs, runs),
        skipped=options.skip,
        grades=graded,
        simulated=simulation[0] if simulation is not None else None,
        findings=(*findings, *_doubts(change, measured)),
    )


def _with_lags(run: Run, due_s: tuple[float, ...]) -> Run:
    """The run with how late its requests were, where its load generator does not say."""
    if run.result.lag_p99_s is not None or run.result.lag_s:
        return run
    return replace(run, result=replace(run.result, lag_s=lags(run, due_s)))


def _warm(pairs: Pairs, skip: int) -> Pairs:
    left = len(pairs.sessions) - skip
    if left < 2:
        raise KvplanError(f"{max(left, 0)} requests are left to compare: at least two are needed")
    return pairs.part(np.arange(len(pairs.sessions)) >= skip) if skip else pairs


def _measured(run: Run, pairs: Pairs, row: int) -> MeasuredRun:
    """What one run came to, over the requests that are compared."""
    ratio, source = summary.hit_ratio(pairs, row)
    if ratio is None and run.counters is not None:
        whole = sum(record.prompt_tokens for record in run.result.records)
        ratio = counters.hit_ratio(*run.counters, whole)
        source = "counters" if ratio is not None else None
    return summary.run(run, pairs, row, ratio, source, checks.lag_p99_s(run))


def _paired(pairs: Pairs, runs: Sequence[Run], options: Options, in_turn: bool) -> Paired:
    session = pairs.session_numbers if options.resample == "session" else np.arange(len(pairs.sessions))
    draws = Resampler(session=session, resamples=options.resamples, seed=options.seed)
    if draws.sessions < 2:
        raise KvplanError(
            "all requests are of one session, so its chance cannot be told: give --schedule where results do not name "
            "sessions, or take requests for independent with --resample request"
        )
    off, on = (summary.mean_over(pairs.ttft_s, runs, arm) for arm in ("off", "on"))
    latency = [summary.mean_over(pairs.latency_s, runs, arm) for arm in ("off", "on")]
    cached = [summary.mean_over(pairs.cached_tokens, runs, arm) for arm in ("off", "on")]
    told_cached = not (np.isnan(cached[0]).any() or np.isnan(cached[1]).any())
    return Paired(
        requests=len(pairs.sessions),
        sessions=draws.sessions,
        resamples=options.resamples,
        seed=options.seed,
        share=SHARE,
        ttft_change_s=draws.mean(on - off),
        ttft_median_change_s=draws.median(on - off),
        ttft_change_ratio=draws.ratio(on - off, off),
        latency_change_s=draws.mean(latency[1] - latency[0]),
        cached_tokens_change=draws.mean(cached[1] - cached[0]) if told_cached else None,
        faster_ratio=float((on < off).mean()),
        drift_s=summary.drift_s(pairs, runs) if in_turn else None,
    )


def _about(runs: Sequence[Run], pairs: Pairs, by_answers: bool) -> list[Finding]:
    """How requests were paired, and what results leave open; `by_answers`: each left when another had ended."""
    found = []
    if pairs.by_order:
        text = "runs name their requests differently: paired by their place, and prompts of each pair are as long"
        found.append(Finding(severity="info", code="paired-by-order", text=text))
    if pairs.dropped:
        text = f"{pairs.dropped:,} requests failed in some run: left out of all runs"
        found.append(Finding(severity="warning", code="failed-requests", text=text))
    if not by_answers and any(checks.lag_p99_s(run) is None for run in runs):
        text = "the load generator does not say how late it sent requests: that arrivals were alike is taken on trust"
        found.append(Finding(severity="warning", code="no-lag", text=text))
    silent = np.isnan(pairs.cached_tokens)
    silent = silent[~silent.all(axis=1)]
    if silent.any():
        text = (
            f"{int(silent.sum()):,} of {silent.size:,} answers state no cached tokens while others of their run do: "
            "taken as none, as servers leave out a zero"
        )
        found.append(Finding(severity="info", code="no-cached-tokens", text=text))
    return found


def _named(runs: Sequence[Run], by_session: bool) -> list[Finding]:
    """What results do not name alike, or not at all; `by_session`: sessions are drawn and no schedule tells them."""
    found = []
    models = list(dict.fromkeys(run.result.model for run in runs if run.result.model is not None))
    if len(models) > 1:
        text = f"the arms name different models ({', '.join(models)}): are these two names of the same one?"
        found.append(Finding(severity="warning", code="models-differ", text=text))
    if by_session and not all(run.result.names_sessions for run in runs):
        text = (
            "the results name no sessions, so each request is drawn alone: intervals are too narrow where requests "
            "share prompts; --schedule tells sessions"
        )
        found.append(Finding(severity="warning", code="no-sessions", text=text))
    return found


def _doubts(change: Paired, runs: Sequence[MeasuredRun]) -> list[Finding]:
    """What weakens the result."""
    found = []
    size = abs(change.ttft_change_s.value)
    lag = max((run.lag_p99_s or 0.0 for run in runs), default=0.0)
    cases = (
        (
            change.ttft_change_s.low <= 0 <= change.ttft_change_s.high,
            "no-difference",
            "the interval of the TTFT change holds zero: these runs show no difference",
        ),
        (
            lag > size,
            "lag-over-change",
            "requests were sent later, at the 99th percentile, than TTFT changed: it may be the load generator's doing",
        ),
        (
            change.drift_s is not None and abs(change.drift_s) > size,
            "drift",
            "TTFT moved more between runs of one arm than between the arms: repeat until time alone changes less",
        ),
        (
            change.sessions < FEW_SESSIONS,
            "few-sessions",
            f"{change.sessions} sessions are few to draw from: the interval is narrower than it should be",
        ),
        (
            len(runs) == 2,
            "one-run-each",
            "one run of each arm: what time changed is not told from what offload changed; replay in ABBA order",
        ),
    )
    found += [Finding(severity="warning", code=code, text=text) for holds, code, text in cases if holds]
    return found
