"""GuideLLM results: `benchmarks.json`, whose one benchmark lists its requests by how they ended."""

from __future__ import annotations

import hashlib
from collections import Counter
from pathlib import Path
from typing import Any

import msgspec

from kvplan.comparing.records import Record, Result
from kvplan.errors import KvplanError

FILE = "benchmarks.json"


class _Timings(msgspec.Struct):
    targeted_start: float | None = None
    request_start: float | None = None
    request_end: float | None = None
    first_token_iteration: float | None = None


class _Info(msgspec.Struct):
    timings: _Timings
    conversation_id: str | None = None
    turn_index: int = 0


class _Usage(msgspec.Struct):
    text_tokens: int | None = None
    cached_tokens: int | None = None


class _Request(msgspec.Struct):
    info: _Info
    input_metrics: _Usage = msgspec.field(default_factory=_Usage)
    output_metrics: _Usage = msgspec.field(default_factory=_Usage)
    request_args: str | None = None
    prompt_tokens: int | None = None
    output_tokens: int | None = None


class _Requests(msgspec.Struct):
    successful: list[_Request]
    incomplete: list[_Request] = []
    errored: list[_Request] = []


class _Benchmark(msgspec.Struct):
    requests: _Requests


class _Report(msgspec.Struct):
    benchmarks: list[_Benchmark]


def looks(first: dict[str, Any]) -> bool:
    """Whether a decoded document is of this format."""
    return isinstance(first.get("benchmarks"), list)


def read(path: Path, text: bytes) -> Result:
    """Read a run. Raises KvplanError where it holds several benchmarks or times are missing."""
    try:
        report = msgspec.json.decode(text, type=_Report)
    except msgspec.DecodeError as error:
        raise KvplanError(f"{path}: not a report of GuideLLM: {error}") from None
    if len(report.benchmarks) != 1:
        raise KvplanError(f"{path}: holds {len(report.benchmarks)} benchmarks: run GuideLLM with one profile and rate")
    made = report.benchmarks[0].requests
    seen: Counter[str] = Counter()
    records, lags = [], []
    for number, one in enumerate(sorted(made.successful, key=_when), 1):
        records.append(_record(path, number, one, seen))
        timings = one.info.timings
        if timings.targeted_start is not None and timings.request_start is not None:
            lags.append(timings.request_start - timings.targeted_start)
    starts = [one.info.timings.request_start or 0.0 for one in made.successful]
    ends = [one.info.timings.request_end or 0.0 for one in made.successful]
    return Result(
        name=str(path),
        generator="guidellm",
        records=tuple(records),
        failed=tuple(f"{n}" for n, _ in enumerate([*made.incomplete, *made.errored])),
        span_s=max(ends) - min(starts) if ends else 0.0,
        lag_s=tuple(lags) if len(lags) == len(records) else (),
        names_sessions=any(one.info.conversation_id for one in made.successful),
    )


def _when(one: _Request) -> tuple[float, float]:
    """When a request was meant to be sent, then when it was."""
    start = one.info.timings.request_start or 0.0
    target = one.info.timings.targeted_start
    return (start if target is None else target, start)


def _record(path: Path, number: int, one: _Request, seen: Counter[str]) -> Record:
    timings = one.info.timings
    if timings.request_start is None or timings.request_end is None or timings.first_token_iteration is None:
        raise KvplanError(f"{path}, request {number}: no time to first token: run GuideLLM with streaming")
    inputs = one.input_metrics.text_tokens if one.prompt_tokens is None else one.prompt_tokens
    outputs = one.output_metrics.text_tokens if one.output_tokens is None else one.output_tokens
    if inputs is None or outputs is None:
        raise KvplanError(f"{path}, request {number}: no token counts: the server must send usage")
    asked = _asked(one, number)
    seen[asked] += 1
    return Record(
        key=f"{asked}/{seen[asked]}",
        session=one.info.conversation_id or f"{number}",
        turn=one.info.turn_index,
        order=(float(number),),
        prompt_tokens=inputs,
        output_tokens=outputs,
        cached_tokens=one.input_metrics.cached_tokens,
        ttft_s=timings.first_token_iteration - timings.request_start,
        latency_s=timings.request_end - timings.request_start,
        start_s=timings.request_start,
    )


def _asked(one: _Request, number: int) -> str:
    """What tells a request from others in every run alike: its body, where the report keeps it."""
    return hashlib.sha256(one.request_args.encode()).hexdigest()[:16] if one.request_args else f"#{number}"
