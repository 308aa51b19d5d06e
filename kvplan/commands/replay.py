"""`kvplan replay`: schedules for load generators, and a load generator driven over offload off and on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.commands.options import BlockTokens, Format, Quiet, TenantBy, Tokenizer, required
from kvplan.commands.workload import read_requests
from kvplan.errors import UsageError

if TYPE_CHECKING:
    from kvplan.replay import Form, Request

replay = typer.Typer(help="Play a log against a live server: schedules out, a load generator driven off and on.")

_EXTRA = "JSON object to put into every request body, such as '{\"cache_prompt\": true}'."


@replay.command()
def export(
    logs: Annotated[list[Path], typer.Argument(metavar="LOG…", help="Request logs; - is standard input.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="FILE", help="The schedule; .gz is compressed.")],
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="The first N requests of the log.")] = None,
    rate_scale: Annotated[float, typer.Option(metavar="FACTOR", help="Arrivals so many times as fast.")] = 1.0,
    payload: Annotated[
        bool, typer.Option("--payload", help="Whole request bodies for /v1/completions, sent as they are.")
    ] = False,
    prompts: Annotated[bool, typer.Option("--prompts", help="A prompt and its answer's length a line.")] = False,
    vocab: Annotated[
        str | None, typer.Option(metavar="N|LOW:HIGH", help="Prompts of token ids below N, or from LOW to below HIGH.")
    ] = None,
    words: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Prompts of these words, one a token; else characters.")
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="The model's name in request bodies.")] = None,
    extra: Annotated[str | None, typer.Option(metavar="JSON", help=_EXTRA)] = None,
    output_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Answers of N tokens instead of the log's lengths.")
    ] = None,
    replay_block_tokens: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Blocks of N tokens instead of the log's: the same sharing.")
    ] = None,
    max_model_len: Annotated[
        int | None, typer.Option(min=1, metavar="N", help="Leave out requests of more tokens, answer included.")
    ] = None,
    closed_loop: Annotated[
        bool, typer.Option("--closed-loop", help="Later turns of a session wait for the answer before, then a delay.")
    ] = False,
    sessions: Annotated[
        bool, typer.Option("--sessions/--no-sessions", help="Say which requests belong to one session.")
    ] = True,
    format: Format = None,
    block_tokens: BlockTokens = None,
    tokenizer: Tokenizer = None,
    tenant_by: TenantBy = None,
    skip_bad: Annotated[int, typer.Option(min=0, help="Bad lines to leave out, counted, before giving up.")] = 0,
    columns: Annotated[
        list[str] | None, typer.Option(metavar="ROLE=NAME,…", help="What a table's columns hold, such as time_ms=when.")
    ] = None,
    approximate_tokens: Annotated[
        float | None, typer.Option(metavar="BYTES", help="Without a tokenizer: bytes of text that count as a token.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """A log as a schedule that AIPerf, GuideLLM and vllm bench serve play; no text of the log is in it.

    Example: kvplan replay export trace.jsonl.gz --limit 300 --payload --vocab 256:32000 --model m -o schedule.jsonl
    """
    from kvplan import replay as stage
    from kvplan.console import note, progress

    form, request = _form(payload, prompts, vocab, words, model, extra)
    options = stage.Options(
        limit=limit,
        rate_scale=rate_scale,
        block_tokens=replay_block_tokens,
        output_tokens=output_tokens,
        max_model_len=max_model_len,
        closed_loop=closed_loop,
        sessions=sessions,
    )
    with progress(quiet) as listen:
        requests = read_requests(
            logs,
            listen=listen,
            format=format,
            block_tokens=block_tokens,
            tokenizer=tokenizer,
            tenant_by=tenant_by,
            columns=columns or (),
            bytes_per_token=approximate_tokens,
            skip_bad=skip_bad,
        )
        schedule = stage.schedule_of(requests, options)
        stage.write(schedule, output, form, request, listen)
    for finding in schedule.findings:
        note(f"{finding.severity}: {finding.text}", quiet)
    note(
        f"{output}: {len(schedule.input_tokens):,} requests over {schedule.span_s:,.0f} s, "
        f"{int(schedule.input_tokens.sum()):,} prompt tokens in {schedule.unique:,} blocks of {schedule.block_tokens}",
        quiet,
    )


def _form(
    payload: bool, prompts: bool, vocab: str | None, words: Path | None, model: str | None, extra: str | None
) -> tuple[Form, Request | None]:
    """Which lines are written, and with which requests."""
    from kvplan.replay import Request, symbols_of

    if payload and prompts:
        raise UsageError("--payload and --prompts are two forms of a line: give one")
    if not payload and not prompts:
        given = [name for name, value in (("--vocab", vocab), ("--words", words), ("--model", model)) if value]
        if given or extra:
            raise UsageError(f"{(given or ['--extra'])[0]} is for prompts that are written out: add --payload")
        return "ids", None
    if prompts and vocab is not None:
        raise UsageError("--prompts writes text, and --vocab makes token ids: leave it out, or use --payload")
    name = required(model, "--model NAME (what request bodies call the model)") if payload else model or ""
    made = Request(model=name, symbols=symbols_of(vocab, words), extra=_object(extra))
    return ("payload" if payload else "prompts"), made


def _object(text: str | None) -> dict[str, Any]:
    if text is None:
        return {}
    try:
        value = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--extra: not valid JSON: {error}") from None
    if not isinstance(value, dict):
        raise UsageError("--extra: write a JSON object, such as '{\"cache_prompt\": true}'")
    return value
