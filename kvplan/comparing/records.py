"""One run of a load generator as every reader hands it on."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from kvplan.comparing.counters import Page


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One request that was answered. `key` is the same request in another run, where keys can tell; `order` sorts a
    run's requests as they were meant to be sent. `cached_tokens` None: the answer does not say.
    """

    key: str
    session: str
    turn: int
    order: tuple[float, ...]
    prompt_tokens: int
    output_tokens: int
    cached_tokens: int | None
    ttft_s: float
    latency_s: float
    start_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """A result file. `failed` requests by key, `error` what the first of them said; `lag_s` is how late requests were
    sent, by request or as the one figure it states (p99). `model` and `pace` are what it states of them, and
    `names_sessions` is False where each request stands for a session as none is named.
    """

    name: str
    generator: str
    records: tuple[Record, ...]
    failed: tuple[str, ...]
    error: str = ""
    span_s: float
    lag_s: tuple[float, ...] = ()
    lag_p99_s: float | None = None
    model: str | None = None
    pace: str | None = None
    names_sessions: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """A result in its place: the arm, when it was among the runs, the counters around it, what it played."""

    arm: Literal["off", "on"]
    number: int
    result: Result
    counters: tuple[Page, Page] | None = None


def p99(values: tuple[float, ...]) -> float:
    """Nearest-rank 99th percentile."""
    ordered = sorted(values)
    return ordered[max(0, -(-len(ordered) * 99 // 100) - 1)]
