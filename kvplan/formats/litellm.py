"""LiteLLM's StandardLoggingPayload, a line a request. Prompts are in it only where the gateway is told to keep them."""

from __future__ import annotations

from typing import Any

import msgspec

from kvplan.formats import fields
from kvplan.formats.lines import Lines
from kvplan.formats.parts import Reply, reply_of
from kvplan.formats.rows import Options, Rows, field_at, label, malformed
from kvplan.formats.texts import LogOfEither, Prompt
from kvplan.formats.work import Work

_MARKS = ("endTime", "completionStartTime", "call_type", "trace_id", "prompt_tokens")
_WITHOUT = "LiteLLM keeps prompts with store_prompts_in_spend_logs: true."


def detect(row: dict[str, Any]) -> bool:
    """Whether a decoded line is of this format."""
    return "startTime" in row and sum(mark in row for mark in _MARKS) >= 2


def read(lines: Lines, options: Options) -> Rows:
    """Read a whole file. Raises KvplanError naming the line, or the tokenizer folder that is missing or unusable."""
    start, end = fields.Clock(("startTime",)), fields.Clock(("endTime",))
    with LogOfEither(lines, options) as log:
        for number, line in lines:
            try:
                row = msgspec.json.decode(line)
                if isinstance(row, dict) and row.get("status") == "failure":
                    raise ValueError("a request that failed: it has no answer")
                log.add(_prompt(number, row, start, end, options.tenant_by))
            except (ValueError, RecursionError) as error:
                lines.bad(number, malformed(error))
        times = start.finding()
        return log.rows((times,) if times else (), _WITHOUT)


def _prompt(number: int, row: Any, start: fields.Clock, end: fields.Clock, tenant_by: str | None) -> Prompt:
    if not isinstance(row, dict):
        raise ValueError("is no JSON object")
    model = label(row.get("model"), "model") or ""
    time_s = start(row)
    duration_s = end(row) - time_s if row.get("endTime") is not None else float("nan")
    if duration_s < 0:
        raise ValueError("ends before it starts")
    return Prompt(
        line=number,
        work=Work(body=_body(row), seed=(model,), reply=_reply(row)),
        model=model,
        time_s=time_s,
        output_tokens=fields.count(row, ("completion_tokens",)),
        duration_s=duration_s,
        tenant=label(field_at(row, tenant_by.split(".")), tenant_by) if tenant_by else None,
        session=label(row.get("trace_id"), "trace_id"),
        logged_tokens=fields.count(row, ("prompt_tokens",)),
        cached_tokens=fields.count(row, ("metadata.usage_object.prompt_tokens_details.cached_tokens", *fields.CACHED)),
    )


def _body(row: dict[str, Any]) -> dict[str, Any]:
    """The request as sent, empty where the payload does not hold it (no messages, or a note that they were removed)."""
    messages = row.get("messages")
    if isinstance(messages, dict):
        messages = messages.get("messages")
    if not isinstance(messages, list) or not messages or messages == [{}]:
        return {}
    if all(isinstance(item, dict) and item.get("content") == "redacted-by-litellm" for item in messages):
        return {}
    parameters = row.get("model_parameters")
    tools = parameters.get("tools") if isinstance(parameters, dict) else None
    switches = {
        key: parameters[key]
        for key in ("chat_template_kwargs", "reasoning_effort")
        if isinstance(parameters, dict) and parameters.get(key) is not None
    }
    return {"messages": messages, "tools": tools, **switches}


def _reply(row: dict[str, Any]) -> Reply | None:
    """The answer, where the payload holds it."""
    choices = field_at(row.get("response"), ("choices",))
    first = choices[0] if isinstance(choices, list) and choices else None
    return reply_of(field_at(first, ("message",)), field_at(first, ("token_ids",)))
