"""AIPerf results: `profile_export.jsonl`, a record a request, and the summary beside it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from kvplan.comparing.records import Record, Result
from kvplan.errors import KvplanError

FILE = "profile_export.jsonl"
SUMMARY = "profile_export_aiperf.json"


class _Metric(msgspec.Struct):
    value: float | list[Any] | None = None
    unit: str = ""


class _Metadata(msgspec.Struct):
    session_num: int
    conversation_id: str
    turn_index: int
    request_start_ns: int
    request_end_ns: int
    benchmark_phase: str = "profiling"
    was_cancelled: bool = False
    x_request_id: str | None = None


class _Line(msgspec.Struct):
    metadata: _Metadata
    metrics: dict[str, _Metric] = {}
    error: Any = None


_SECONDS = {"ns": 1e-9, "us": 1e-6, "ms": 1e-3, "s": 1.0, "sec": 1.0}


def looks(first: dict[str, Any]) -> bool:
    """Whether a decoded first line is of this format."""
    return "metadata" in first and "metrics" in first


def read(path: Path, text: bytes) -> Result:
    """Read a run. Raises KvplanError naming the line or the metric that is missing."""
    records, failed = [], []
    starts, ends, errors = [], [], []
    decode = msgspec.json.Decoder(_Line).decode
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip():
            continue
        try:
            one = decode(line)
        except msgspec.DecodeError as error:
            raise KvplanError(f"{path}, line {number}: not a record of AIPerf: {error}") from None
        if one.metadata.benchmark_phase != "profiling":
            continue
        key = f"{one.metadata.conversation_id}/{one.metadata.turn_index}"
        starts.append(one.metadata.request_start_ns)
        ends.append(one.metadata.request_end_ns)
        if one.error or one.metadata.was_cancelled:
            failed.append(key)
            errors.append(_said(one.error))
        else:
            records.append(_record(path, number, one, key))
    summary = _summary(path.with_name(SUMMARY))
    return Result(
        name=str(path),
        generator="aiperf",
        records=tuple(records),
        failed=tuple(failed),
        error=errors[0] if errors else "",
        span_s=(max(ends) - min(starts)) * 1e-9 if starts else 0.0,
        lag_p99_s=_lag(summary),
    )


def _record(path: Path, number: int, one: _Line, key: str) -> Record:
    def metric(*names: str) -> float | None:
        for name in names:
            found = one.metrics.get(name)
            if found is not None and isinstance(found.value, float | int):
                return found.value * _SECONDS.get(found.unit, 1.0)
        return None

    ttft, latency = metric("time_to_first_token"), metric("request_latency")
    inputs = metric("usage_prompt_tokens", "input_sequence_length")
    outputs = metric("usage_completion_tokens", "output_sequence_length")
    if ttft is None or latency is None:
        raise KvplanError(f"{path}, line {number}: no time to first token: run AIPerf with --streaming")
    if inputs is None or outputs is None:
        raise KvplanError(f"{path}, line {number}: no token counts: run AIPerf with --use-server-token-count")
    cached = metric("usage_prompt_cache_read_tokens")
    return Record(
        key=key,
        session=one.metadata.conversation_id,
        turn=one.metadata.turn_index,
        order=(float(one.metadata.session_num), float(one.metadata.turn_index)),
        prompt_tokens=round(inputs),
        output_tokens=round(outputs),
        cached_tokens=None if cached is None else round(cached),
        ttft_s=ttft,
        latency_s=latency,
        start_s=one.metadata.request_start_ns * 1e-9,
    )


def _said(error: Any) -> str:
    """What an error says of itself, in a line."""
    words = error.get("message") or error.get("type") if isinstance(error, dict) else error
    return " ".join(str(words or "cancelled").split())[:200]


def _summary(path: Path) -> dict[str, Any]:
    """AIPerf's own figures over the run; nothing where its file is not there."""
    if not path.exists():
        return {}
    try:
        made = msgspec.json.decode(path.read_bytes())
    except (OSError, msgspec.DecodeError) as error:
        raise KvplanError(f"{path}: not a summary of AIPerf: {error}") from None
    return made if isinstance(made, dict) else {}


def _lag(summary: dict[str, Any]) -> float | None:
    """The 99th percentile of its own lateness; AIPerf states it for runs by a schedule."""
    stated = summary.get("replay_sched_lag_p99")
    if not isinstance(stated, dict) or not isinstance(stated.get("avg"), float | int):
        return None
    return float(stated["avg"]) * _SECONDS.get(str(stated.get("unit")), 1e-3)
