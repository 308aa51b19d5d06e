"""OpenTelemetry spans of generative AI (gen_ai.*): OTLP JSON as collectors write it, or a span a line as SDKs do.

Spans carry the messages only where the instrumentation is told to record them; else they tell lengths.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from kvplan.documents import Finding
from kvplan.formats import fields
from kvplan.formats.lines import Lines
from kvplan.formats.parts import Reply, reply_of
from kvplan.formats.rows import Options, Rows, label, malformed
from kvplan.formats.texts import LogOfEither, Prompt
from kvplan.formats.work import Work
from kvplan.units import counted

_STARTS = ("startTimeUnixNano", "start_time_unix_nano", "start_time", "startTime")
_ENDS = ("endTimeUnixNano", "end_time_unix_nano", "end_time", "endTime")
_INFERENCE = ("chat", "text_completion", "generate_content")
_REQUEST = {"gen_ai.input.messages", "gen_ai.usage.input_tokens"}
_WITHOUT = "OTEL_INSTRUMENTATION_GENAI_CAPTURE_MESSAGE_CONTENT makes most instrumentations record messages."


def detect(row: dict[str, Any]) -> bool:
    """Whether a decoded line is of this format."""
    if "resourceSpans" in row or "resource_spans" in row:
        return True
    return any(str(name).startswith("gen_ai.") for name in _attributes(row.get("attributes")))


def read(lines: Lines, options: Options) -> Rows:
    """Read a whole file. Raises KvplanError naming the line, or the tokenizer folder that is missing or unusable."""
    start, end = fields.Clock(_STARTS), fields.Clock(_ENDS)
    others = 0
    with LogOfEither(lines, options) as log:
        for number, line in lines:
            try:
                spans = list(_spans(msgspec.json.decode(line)))
            except (ValueError, RecursionError) as error:
                lines.bad(number, malformed(error))
                continue
            for span, attributes in spans:
                if not _is_request(attributes):
                    others += 1
                    continue
                try:
                    log.add(_prompt(number, span, attributes, (start, end), options.tenant_by))
                except ValueError as error:
                    lines.bad(number, malformed(error))
        findings = [times] if (times := start.finding()) else []
        if others:
            text = f"Passed over: {counted(others, 'span')} of something else than a request to a model."
            findings.append(Finding(severity="info", code="other-spans", text=text))
        return log.rows(tuple(findings), _WITHOUT)


def _spans(row: object) -> Iterator[tuple[dict[str, Any], dict[str, Any]]]:
    """The spans of a line with their attributes."""
    if not isinstance(row, dict):
        raise ValueError("is no JSON object")
    if "attributes" in row and "resourceSpans" not in row:
        yield row, _attributes(row["attributes"])
        return
    for resource in _list(row, "resourceSpans", "resource_spans"):
        for scope in _list(resource, "scopeSpans", "scope_spans"):
            for span in _list(scope, "spans"):
                yield span, _attributes(span.get("attributes"))


def _list(row: dict[str, Any], *names: str) -> list[dict[str, Any]]:
    value: object = next((row[name] for name in names if name in row), [])
    if not isinstance(value, list) or not all(isinstance(item, dict) for item in value):
        raise ValueError(f"{names[0]} is no list of objects")
    return value


def _attributes(values: object) -> dict[str, Any]:
    """Attributes as a mapping, from one or from OTLP's list of keys and typed values."""
    if isinstance(values, dict):
        return values
    found = {}
    for item in values if isinstance(values, list) else []:
        if isinstance(item, dict) and isinstance(item.get("value"), dict) and isinstance(item.get("key"), str):
            kind, value = next(iter(item["value"].items()), ("", None))
            if kind == "intValue" and isinstance(value, str) and value.isascii() and value.isdigit():
                value = int(value)
            found[item["key"]] = value
    return found


def _is_request(attributes: dict[str, Any]) -> bool:
    """Whether a span is a request to a model, which tells its messages or their number of tokens."""
    operation = attributes.get("gen_ai.operation.name", "chat")
    return operation in _INFERENCE and not _REQUEST.isdisjoint(attributes)


def _prompt(
    number: int,
    span: dict[str, Any],
    attributes: dict[str, Any],
    clocks: tuple[fields.Clock, fields.Clock],
    tenant_by: str | None,
) -> Prompt:
    start_s = clocks[0](span)
    end_s = clocks[1](span) if fields.found(span, _ENDS)[0] else float("nan")
    if end_s < start_s:
        raise ValueError("a span ends before it starts")
    model = label(attributes.get("gen_ai.request.model"), "gen_ai.request.model") or ""
    return Prompt(
        line=number,
        work=Work(body=_body(attributes), seed=(model,), reply=_reply(attributes)),
        model=model,
        time_s=start_s,
        output_tokens=_count(attributes, "gen_ai.usage.output_tokens"),
        duration_s=end_s - start_s,
        tenant=label(attributes.get(tenant_by), tenant_by) if tenant_by else None,
        session=label(attributes.get("gen_ai.conversation.id"), "gen_ai.conversation.id"),
        logged_tokens=_count(attributes, "gen_ai.usage.input_tokens"),
        cached_tokens=_count(attributes, "gen_ai.usage.cache_read.input_tokens"),
    )


def _count(attributes: dict[str, Any], name: str) -> int | None:
    return fields.count({"value": attributes.get(name)}, ("value",), name)


def _body(attributes: dict[str, Any]) -> dict[str, Any]:
    """The request in the form of a chat request, empty where the span does not hold its messages."""
    messages = _json(attributes.get("gen_ai.input.messages"), "gen_ai.input.messages")
    if messages is None:
        return {}
    if not isinstance(messages, list):
        raise ValueError("gen_ai.input.messages is no list of messages")
    system = _json(attributes.get("gen_ai.system_instructions"), "gen_ai.system_instructions")
    first = [{"role": "system", "content": _parts(system)["content"]}] if system else []
    tools = _json(attributes.get("gen_ai.tool.definitions"), "gen_ai.tool.definitions")
    return {"messages": [*first, *map(_message, messages)], "tools": tools}


def _reply(attributes: dict[str, Any]) -> Reply | None:
    """The answer, where the span holds its messages."""
    messages = _json(attributes.get("gen_ai.output.messages"), "gen_ai.output.messages")
    if not isinstance(messages, list) or not messages:
        return None
    message = _message(messages[0])
    content = message.get("content")
    if isinstance(content, list):
        message["content"] = "\n".join(content) if all(isinstance(part, str) for part in content) else None
    return reply_of(message)


def _json(value: object, name: str) -> Any:
    if not isinstance(value, str):
        return value
    try:
        return msgspec.json.decode(value)
    except msgspec.DecodeError:
        raise ValueError(f"{name} is not valid JSON") from None


def _message(message: object) -> dict[str, Any]:
    if not isinstance(message, dict) or not isinstance(message.get("role"), str):
        raise ValueError("a message of gen_ai.input.messages has no role")
    if "parts" not in message:
        return message
    return {"role": message["role"], **_parts(message["parts"])}


def _parts(parts: object) -> dict[str, Any]:
    """The content and tool calls of a message's parts."""
    if isinstance(parts, str):
        return {"content": parts}
    content: list[Any] = []
    calls = []
    thoughts = []
    for part in parts if isinstance(parts, list) else [None]:
        if not isinstance(part, dict):
            raise ValueError("a part of a message is no object")
        if part.get("type") == "tool_call":
            function = {"name": part.get("name"), "arguments": part.get("arguments")}
            calls.append({"id": part.get("id"), "type": "function", "function": function})
        elif part.get("type") == "tool_call_response":
            result = part.get("response", part.get("result"))
            content.append(result if isinstance(result, str) else msgspec.json.encode(result).decode())
        elif part.get("type") == "reasoning" and isinstance(part.get("content"), str):
            thoughts.append(part["content"])
        elif isinstance(part.get("content"), str):
            content.append(part["content"])
        else:
            content.append(part)
    thought = {"reasoning_content": "\n".join(thoughts)} if thoughts else {}
    return {"content": content, **thought, **({"tool_calls": calls} if calls else {})}
