"""ShareGPT conversations: each turn of the user is a request for everything said so far.

The file has no times: a conversation's requests follow on one another, and conversations too.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec

from kvplan.documents import Finding
from kvplan.formats.lines import Lines
from kvplan.formats.parts import Reply
from kvplan.formats.rows import Options, Rows, field_at, label, malformed
from kvplan.formats.texts import Prompt, TextLog
from kvplan.formats.work import Work

_ROLES = {
    "human": "user",
    "user": "user",
    "gpt": "assistant",
    "chatgpt": "assistant",
    "bing": "assistant",
    "bard": "assistant",
    "assistant": "assistant",
    "system": "system",
    "tool": "tool",
    "function_call": "assistant",
    "observation": "tool",
}


def detect(row: dict[str, Any]) -> bool:
    """Whether a decoded line is of this format."""
    turns = row.get("conversations")
    return isinstance(turns, list) and all(isinstance(turn, dict) and "from" in turn for turn in turns)


def read(lines: Lines, options: Options) -> Rows:
    """Read a whole file. Raises KvplanError naming the line where a conversation that cannot be used starts."""
    conversations = 0
    with TextLog(lines, options) as log:
        log.need_template()
        for number, line in lines:
            try:
                prompts = list(_requests(number, msgspec.json.decode(line), options.tenant_by))
            except (ValueError, RecursionError) as error:
                lines.bad(number, malformed(error))
                continue
            conversations += bool(prompts)
            for prompt in prompts:
                log.add(prompt)
        text = f"{conversations:,} conversations, a request for each turn of the user, with all turns before it."
        return log.rows((Finding(severity="info", code="turns", text=text),))


def _requests(number: int, row: object, tenant_by: str | None) -> Iterator[Prompt]:
    turns = field_at(row, ("conversations",))
    if not isinstance(turns, list):
        raise ValueError("'conversations' is no list of turns")
    session = label(field_at(row, ("id",)), "id") or f"line {number}"
    tenant = label(field_at(row, tenant_by.split(".")), tenant_by) if tenant_by else None
    messages = [_message(turn, place) for place, turn in enumerate(turns, 1)]
    for i, message in enumerate(messages):
        if message["role"] != "user":
            continue
        answer = messages[i + 1] if i + 1 < len(messages) and messages[i + 1]["role"] == "assistant" else None
        yield Prompt(
            line=number,
            work=Work(
                body={"messages": messages[: i + 1]},
                seed=(),
                reply=Reply(content=answer["content"]) if answer else None,
            ),
            model="",
            time_s=float("nan"),
            output_tokens=None,
            duration_s=float("nan"),
            tenant=tenant,
            session=session,
            logged_tokens=None,
        )


def _message(turn: object, place: int) -> dict[str, str]:
    who, text = field_at(turn, ("from",)), field_at(turn, ("value",))
    role = _ROLES.get(who) if isinstance(who, str) else None
    if role is None:
        raise ValueError(f"turn {place} is from {who!r} (known: {', '.join(_ROLES)})")
    if not isinstance(text, str):
        raise ValueError(f"turn {place} has no text in 'value'")
    return {"role": role, "content": text}
