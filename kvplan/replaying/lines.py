"""A schedule as lines of a file, in the forms that load generators read. docs/replay.md says which reads which."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, TypeAlias, cast

import msgspec

from kvplan.files import replacing
from kvplan.progress import Progress, silent
from kvplan.replaying.prompts import Prompts, Symbols
from kvplan.replaying.schedule import Schedule

Form: TypeAlias = Literal["ids", "payload", "prompts"]

_BATCH = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """What a verbatim request asks besides its prompt and answer length. `extra` has the last word."""

    model: str
    symbols: Symbols
    extra: Mapping[str, Any] = field(default_factory=dict)


def write(
    schedule: Schedule, path: Path, form: Form, request: Request | None = None, progress: Progress = silent
) -> None:
    """Write a schedule to `path` (gzip where it ends in .gz), the whole file or nothing. Raises KvplanError."""
    with replacing(path) as raw:
        packed = gzip.GzipFile("", "wb", fileobj=raw, mtime=0) if path.suffix == ".gz" else raw
        with io.BufferedWriter(cast(Any, packed)) as stream:
            for text in _texts(schedule, form, request, progress):
                stream.write(text)


def _texts(schedule: Schedule, form: Form, request: Request | None, progress: Progress) -> Iterator[bytes]:
    encode = msgspec.json.Encoder().encode_lines
    rows = len(schedule.input_tokens)
    made = Prompts(request.symbols, schedule.block_tokens, schedule.unique) if request else None
    for low in range(0, rows, _BATCH):
        progress("writing the schedule", low / rows)
        yield encode([_line(schedule, row, form, request, made) for row in range(low, min(low + _BATCH, rows))])


def _line(schedule: Schedule, row: int, form: Form, request: Request | None, made: Prompts | None) -> dict[str, Any]:
    blocks = schedule.blocks[schedule.offsets[row] : schedule.offsets[row + 1]]
    tokens, answer = int(schedule.input_tokens[row]), int(schedule.output_tokens[row])
    line: dict[str, Any] = {}
    if schedule.time_ms[row] >= 0:
        line["timestamp"] = int(schedule.time_ms[row])
    if schedule.session[row] >= 0:
        line["session_id"] = f"s{schedule.session[row]}"  # AIPerf takes no number
    elif form == "payload":
        line["session_id"] = f"r{row}"  # or AIPerf draws one anew each time, and runs cannot be paired
    if schedule.delay_ms[row] >= 0:
        line["delay"] = int(schedule.delay_ms[row])
    if request is None or made is None:
        line |= {"input_length": tokens, "output_length": answer}
        return line | {"block_size": schedule.block_tokens, "hash_ids": blocks.tolist()}
    prompt = msgspec.Raw(made.json(blocks, tokens))
    if form == "prompts":
        counts = {"prompt_tokens_count": tokens, "output_tokens_count": answer, "output_tokens": answer}
        return line | {"prompt": prompt, **counts}  # vllm bench serve reads the last, GuideLLM those before
    return line | {"output_length": answer, "payload": _payload(request, prompt, answer)}


def _payload(request: Request, prompt: msgspec.Raw, answer: int) -> dict[str, Any]:
    """A body for /v1/completions whose answer has exactly `answer` tokens, the same every time."""
    return {
        "model": request.model,
        "prompt": prompt,
        "max_tokens": answer,
        "ignore_eos": True,
        "temperature": 0,
        "seed": 0,
        "stream": True,
        "stream_options": {"include_usage": True},
        **request.extra,
    }
