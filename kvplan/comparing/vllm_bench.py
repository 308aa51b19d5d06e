"""Results of `vllm bench serve --save-result --save-detailed`: a column a figure, a row a request of the data set."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from kvplan.comparing.records import Record, Result
from kvplan.errors import KvplanError


class _Columns(msgspec.Struct):
    duration: float
    input_lens: list[int] = []
    output_lens: list[int] = []
    ttfts: list[float] = []
    itls: list[list[float]] = []
    start_times: list[float] = []
    errors: list[str] = []
    latencies: list[float] | None = None
    model_id: str | None = None
    request_rate: float | str | None = None
    max_concurrency: int | None = None


def looks(first: dict[str, Any]) -> bool:
    """Whether a decoded document is of this format."""
    return "request_throughput" in first and ("ttfts" in first or "mean_ttft_ms" in first)


def read(path: Path, text: bytes) -> Result:
    """Read a run. Raises KvplanError for one that was saved without its requests."""
    try:
        made = msgspec.json.decode(text, type=_Columns)
    except msgspec.DecodeError as error:
        raise KvplanError(f"{path}: not a result of vllm bench serve: {error}") from None
    if not made.ttfts:
        raise KvplanError(f"{path}: holds no single requests: run vllm bench serve with --save-detailed")
    columns: list[Any] = [made.input_lens, made.output_lens, made.ttfts, made.itls, made.errors]
    sizes = {len(column) for column in columns + ([] if made.latencies is None else [made.latencies])}
    if sizes != {len(made.start_times)}:
        raise KvplanError(f"{path}: its columns differ in length, so requests cannot be told apart")
    good = [row for row, error in enumerate(made.errors) if not error]
    return Result(
        name=str(path),
        generator="vllm bench serve",
        records=tuple(_record(made, row) for row in good),
        failed=tuple(f"{row}" for row, error in enumerate(made.errors) if error),
        error=next((" ".join(error.split())[-200:] for error in made.errors if error), ""),
        span_s=made.duration,
        model=made.model_id,
        pace=_pace(made),
        names_sessions=False,
    )


def _pace(made: _Columns) -> str | None:
    """How requests were sent: its rate ('inf' is all at once, or by the times of a trace) and its most at a time."""
    if made.request_rate is None:
        return None
    most = "" if made.max_concurrency is None else f", at most {made.max_concurrency} at a time"
    return f"request rate {made.request_rate}{most}"


def _record(made: _Columns, row: int) -> Record:
    latency = made.latencies[row] if made.latencies is not None else made.ttfts[row] + sum(made.itls[row])
    return Record(
        key=f"{row}",
        session=f"{row}",
        turn=0,
        order=(float(row),),
        prompt_tokens=made.input_lens[row],
        output_tokens=made.output_lens[row],
        cached_tokens=None,
        ttft_s=made.ttfts[row],
        latency_s=latency,
        start_s=made.start_times[row],
    )
