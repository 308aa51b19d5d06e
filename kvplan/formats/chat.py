"""OpenAI requests, chat or completions, a JSON object a line: alone, in a batch file's `body`, in a gateway's wrapper.

Each request is rendered once, whole, with the served model's own chat template, and tokenized as one text; its blocks
are then named by a hash of everything before and in them, as engines name them.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

import msgspec

from kvplan.errors import KvplanError
from kvplan.formats import fields
from kvplan.formats.lines import Lines
from kvplan.formats.parts import Reply, reply_of
from kvplan.formats.roles import DURATION_UNITS, kind
from kvplan.formats.rows import Options, Rows, field_at, label, malformed
from kvplan.formats.texts import Prompt, TextLog
from kvplan.formats.work import Work


def detect(row: dict[str, Any]) -> bool:
    """Whether a decoded line is of this format."""
    return _body(row) is not None


def read(lines: Lines, options: Options) -> Rows:
    """Read a whole file. Raises KvplanError naming the line, or the tokenizer folder that is missing or unusable."""
    places = _Places(options.columns)
    with TextLog(lines, options) as log:
        for number, line in lines:
            try:
                prompts = list(_prompts(number, msgspec.json.decode(line), places, options.tenant_by))
            except (ValueError, RecursionError) as error:
                lines.bad(number, malformed(error))
                continue
            for prompt in prompts:
                if "messages" in prompt.work.body:
                    log.need_template()
                log.add(prompt)
        places.need(lines)
        times = places.clock.finding()
        return log.rows((times,) if times else ())


class _Places:
    """Where lines say when they came, how long they ran and of which session: usual names, or those of --columns."""

    def __init__(self, columns: Mapping[str, str]) -> None:
        named = {kind(role): (role, name) for role, name in columns.items()}
        self._named = named
        self._seen: set[str] = set()
        role, name = named.get("time", ("time", ""))
        self.clock = fields.Clock([name], role.removeprefix("time").lstrip("_")) if name else fields.Clock()
        role, name = named.get("duration", ("duration_s", ""))
        self.durations = {name: 1 / DURATION_UNITS[role]} if name else fields.DURATIONS
        self.sessions = [named["session"][1]] if "session" in named else fields.SESSIONS

    def saw(self, time_s: float, duration_s: float, session: object) -> None:
        """Note what a line has."""
        there = {"time": not math.isnan(time_s), "duration": not math.isnan(duration_s), "session": session is not None}
        self._seen.update(one for one, found in there.items() if found)

    def need(self, lines: Lines) -> None:
        """Raise KvplanError where --columns names a field that no line has."""
        for one, (role, name) in self._named.items():
            if one not in self._seen:
                raise KvplanError(f"{lines.name}: no line has the field '{name}' that --columns {role}={name} names")


def _body(row: object) -> dict[str, Any] | None:
    for path in fields.BODIES:
        inner = field_at(row, path)
        if isinstance(inner, dict) and ("messages" in inner or "prompt" in inner):
            return inner
    return None


def _prompts(number: int, row: object, places: _Places, tenant_by: str | None) -> Iterator[Prompt]:
    """The requests of a line: one, or one a prompt where a completion has several."""
    body = _body(row)
    if body is None:
        raise ValueError("no 'messages' or 'prompt', neither alone nor in 'body' or 'request'")
    model = label(body.get("model"), "model") or ""
    tenant = fields.found(row, [tenant_by]) if tenant_by else ("", None)
    session = fields.found(row, places.sessions)
    time_s, duration_s = places.clock(row), fields.duration(row, places.durations)
    places.saw(time_s, duration_s, session[1])
    prompts = [None] if "messages" in body else _each(body.get("prompt"))
    alone = len(prompts) == 1
    for prompt in prompts:
        yield Prompt(
            line=number,
            work=Work(
                body=body if "messages" in body else {"prompt": prompt},
                seed=(model, label(body.get("cache_salt"), "cache_salt") or ""),
                reply=_reply(row) if alone else None,
            ),
            model=model,
            time_s=time_s,
            output_tokens=fields.count(row, fields.OUTPUTS) if alone else None,
            duration_s=duration_s,
            tenant=label(tenant[1], tenant[0]),
            session=label(session[1], session[0]),
            logged_tokens=fields.count(row, fields.PROMPTS) if alone else None,
            cached_tokens=fields.count(row, fields.CACHED) if alone else None,
        )


def _each(prompt: object) -> list[Any]:
    """The prompts of a completion: one text or one list of token ids, or a list of those."""
    return prompt if isinstance(prompt, list) and prompt and isinstance(prompt[0], str | list) else [prompt]


def _reply(row: object) -> Reply | None:
    """The answer where the log keeps it: its tokens are counted if the log does not."""
    _, choices = fields.found(row, ["choices"])
    first = choices[0] if isinstance(choices, list) and choices else None
    ids = field_at(first, ("token_ids",))
    text = field_at(first, ("text",))
    return reply_of({"content": text} if isinstance(text, str) else field_at(first, ("message",)), ids)
