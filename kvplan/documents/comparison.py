"""Live runs of one schedule with offload off and on: what was run, and what came of it."""

from __future__ import annotations

from typing import Literal

import msgspec

from kvplan.documents.common import Count, Finding, Ratio, Seconds, Tokens

ArmName = Literal["off", "on"]


class ReplaySchedule(msgspec.Struct, frozen=True, kw_only=True):
    """The file that every run played: the same bytes, so the same requests at the same times."""

    name: str
    sha256: str
    requests: Count
    sessions: Count
    timed: bool


class ReplayRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run of a load generator: its arm, and its files, named from the folder of this document."""

    number: Count
    arm: ArmName
    server: str
    folder: str
    started: str
    seconds: Seconds
    metrics_before: str | None = None
    metrics_after: str | None = None


class Replay(msgspec.Struct, frozen=True, kw_only=True):
    """Runs of one schedule in a fixed order of arms. `order` is of A (off) and B (on); fewer runs: it was cut short."""

    schedule: ReplaySchedule
    order: str
    generator: str
    command: tuple[str, ...]
    commands: tuple[tuple[str, str], ...]
    concurrency: Count | None
    request_rate: float | None
    runs: tuple[ReplayRun, ...]


class Estimated(msgspec.Struct, frozen=True, kw_only=True):
    """An estimate with the bootstrap interval that `share` of resamples fall in."""

    value: float
    low: float
    high: float


class MeasuredTimes(msgspec.Struct, frozen=True, kw_only=True):
    """Seconds to the first token or to the end, over requests that succeeded; nearest-rank percentiles."""

    mean: Seconds
    p50: Seconds
    p90: Seconds
    p99: Seconds


class MeasuredRun(msgspec.Struct, frozen=True, kw_only=True):
    """One run as its result file tells it.

    `hit_ratio` is cached tokens over prompt tokens, from the answers or else from the server's counters
    (`hits_from`). `lag_p99_s` is how late the load generator itself sent requests; None where it does not say.
    """

    arm: ArmName
    name: str
    generator: str
    requests: Count
    failed: Count
    span_s: Seconds
    prompt_tokens: Tokens
    output_tokens: Tokens
    cached_tokens: Tokens | None
    hit_ratio: Ratio | None
    hits_from: Literal["answers", "counters"] | None
    lag_p99_s: Seconds | None
    ttft: MeasuredTimes
    latency: MeasuredTimes


class MeasuredArm(msgspec.Struct, frozen=True, kw_only=True):
    """An arm over its runs: times over the requests of all of them, rates over whole runs."""

    arm: ArmName
    runs: Count
    hit_ratio: Ratio | None
    ttft: MeasuredTimes
    latency: MeasuredTimes
    requests_per_s: float
    output_tokens_per_s: float


class Paired(msgspec.Struct, frozen=True, kw_only=True):
    """On against off, request by request, resampled by session.

    `ttft_change_s` is the mean of on less off; `ttft_median_change_s` the median; `ttft_change_ratio` the change of the
    mean relative to off; `latency_change_s` of the whole answer. `cached_tokens_change` is a request's mean, None where
    answers do not say. `faster_ratio` is the share of requests with an earlier first token. `drift_s` is the mean
    change from the first to the last run of one arm: what time alone did; None for single runs or an unknown order.
    """

    requests: Count
    sessions: Count
    resamples: Count
    seed: int
    share: Ratio
    ttft_change_s: Estimated
    ttft_median_change_s: Estimated
    ttft_change_ratio: Estimated
    latency_change_s: Estimated
    cached_tokens_change: Estimated | None
    faster_ratio: Ratio
    drift_s: float | None


class PairedPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One request: means over the runs of each arm."""

    session: str
    turn: Count
    prompt_tokens: Tokens
    cached_tokens_off: float | None
    cached_tokens_on: float | None
    ttft_off_s: Seconds
    ttft_on_s: Seconds


class Grade(msgspec.Struct, frozen=True, kw_only=True):
    """A simulated figure against the measured one. `error` is predicted less measured, absolute for a ratio (1 point is
    0.01), relative for a time; `grade` compares its size with `good` and `fair`.
    """

    arm: ArmName
    what: Literal["hit ratio", "TTFT mean", "TTFT p90", "TTFT change"]
    predicted: float
    measured: float
    error: float
    good: float
    fair: float
    grade: Literal["good", "fair", "poor"]


class LiveComparison(msgspec.Struct, frozen=True, kw_only=True):
    """Offload off against on as measured on a live server, and how a simulation of it fared.

    `order` has A for a run of off and B for one of on, as they were made; empty where results do not tell when.
    `skipped` first requests of each run were left out, as a warm-up.
    """

    schedule: ReplaySchedule | None
    order: str
    runs: tuple[MeasuredRun, ...]
    off: MeasuredArm
    on: MeasuredArm
    paired: Paired
    points: tuple[PairedPoint, ...]
    skipped: Count
    grades: tuple[Grade, ...] = ()
    simulated: str | None = None
    findings: tuple[Finding, ...] = ()
