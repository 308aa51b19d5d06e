"""OpenAI chat requests, one JSON object a line: alone, in a batch file's `body`, or in a gateway's wrapper.

Each request is rendered once, whole, with the served model's own chat template, and tokenised as one text; its blocks
are then named by a hash of everything before and in them, as engines name them.
"""

from __future__ import annotations

from typing import Any

import msgspec

from kvplan.errors import KvplanError
from kvplan.formats import fields
from kvplan.formats.lines import Lines
from kvplan.formats.render import Renderer
from kvplan.formats.rows import Options, Rows, field_at, label, malformed
from kvplan.formats.texts import Prompt, TextLog


def detect(row: dict[str, Any]) -> bool:
    """Whether a decoded line is of this format."""
    return _body(row) is not None


def read(lines: Lines, options: Options) -> Rows:
    """Read a whole file. Raises KvplanError naming the line, or the tokenizer folder that is missing or unusable."""
    if options.tokenizer is None:
        raise KvplanError(
            f"{lines.name}: holds text, whose tokens depend on the model: give --tokenizer DIR, "
            "the folder with the served model's tokenizer"
        )
    options.progress("loading the tokenizer")
    renderer = Renderer(options.tokenizer)
    clock = fields.Clock()
    log = TextLog(lines, options, renderer)
    for number, line in lines:
        try:
            prompt = _prompt(number, msgspec.json.decode(line), renderer, clock, options.tenant_by)
        except (ValueError, RecursionError) as error:
            lines.bad(number, malformed(error))
        else:
            log.add(prompt)
    times = clock.finding()
    return log.rows((times,) if times else ())


def _body(row: object) -> dict[str, Any] | None:
    for path in fields.BODIES:
        inner = field_at(row, path)
        if isinstance(inner, dict) and "messages" in inner:
            return inner
    return None


def _prompt(number: int, row: object, renderer: Renderer, clock: fields.Clock, tenant_by: str | None) -> Prompt:
    body = _body(row)
    if body is None:
        raise ValueError("no 'messages', neither alone nor in 'body' or 'request'")
    text = renderer.text(body)
    model = label(body.get("model"), "model") or ""
    tenant = fields.found(row, [tenant_by]) if tenant_by else ("", None)
    session = fields.found(row, fields.SESSIONS)
    return Prompt(
        line=number,
        text=text,
        model=model,
        seed=(model, label(body.get("cache_salt"), "cache_salt") or ""),
        time_s=clock(row),
        output_tokens=fields.count(row, fields.OUTPUTS) or 0,
        duration_s=fields.duration(row),
        tenant=label(tenant[1], tenant[0]),
        session=label(session[1], session[0]),
        logged_tokens=fields.count(row, fields.PROMPTS),
    )
