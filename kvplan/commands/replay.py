"""`kvplan replay`: schedules for load generators, and a load generator driven over offload off and on."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.commands.grouped import grouped
from kvplan.commands.options import Json, Quiet, opt, required
from kvplan.commands.reading import Reading
from kvplan.errors import UsageError
from kvplan.units import parse_duration

if TYPE_CHECKING:
    from kvplan.replay import Form, Request

replay = typer.Typer(help="Play a log against a live server: schedules out, a load generator driven off and on.")

_EXTRA = "JSON object to put into every request body, such as '{\"cache_prompt\": true}'."


@replay.command()
@grouped
def export(
    *,
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
    reading: Reading,
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
        requests = reading.requests(logs, listen)
        schedule = stage.schedule_of(requests, options)
        stage.write(schedule, output, form, request, listen)
    for finding in schedule.findings:
        if finding.code == "id-sizes" and form != "ids":
            continue  # it is of ids, and these lines have prompts
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
    if prompts and extra is not None:
        raise UsageError("--extra is for request bodies, and --prompts writes none: leave it out, or use --payload")
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
    if made := [key for key in ("prompt", "max_tokens") if key in value]:
        raise UsageError(
            f"--extra: {made[0]} is the log's, request by request (--output-tokens sets all answers alike)"
        )
    return value


@replay.command()
def run(
    schedule: Annotated[Path, typer.Argument(metavar="SCHEDULE", help="A file that `replay export` wrote.")],
    output: Annotated[Path, typer.Option("-o", "--output", metavar="DIR", help="A new folder for the results.")],
    server: Annotated[str | None, typer.Option(metavar="URL", help="The server of both arms.")] = None,
    server_off: Annotated[str | None, typer.Option(metavar="URL", help="The server without offload.")] = None,
    server_on: Annotated[str | None, typer.Option(metavar="URL", help="The server with offload.")] = None,
    order: Annotated[str, typer.Option(metavar="LETTERS", help="A is off, B is on.")] = "ABBA",
    repeats: Annotated[int, typer.Option(min=1, help="The whole order so many times.")] = 1,
    serve: Annotated[str | None, typer.Option(metavar="CMD", help="A server to run during each run.")] = None,
    serve_off: Annotated[str | None, typer.Option(metavar="CMD", help="The same for off alone.")] = None,
    serve_on: Annotated[str | None, typer.Option(metavar="CMD", help="The same for on alone.")] = None,
    before_arm: Annotated[
        str | None,
        typer.Option(metavar="CMD", help="Run before each run, such as a restart or flush; sees KVPLAN_ARM."),
    ] = None,
    before_off: Annotated[str | None, typer.Option(metavar="CMD", help="The same before off alone.")] = None,
    before_on: Annotated[str | None, typer.Option(metavar="CMD", help="The same before on alone.")] = None,
    after_arm: Annotated[str | None, typer.Option(metavar="CMD", help="Run after each run.")] = None,
    wait: Annotated[str, typer.Option(metavar="TIME", help="Longest time for a server to be ready.")] = "120s",
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="So many at a time, in order, instead of the schedule's times."),
    ] = None,
    request_rate: Annotated[
        float | None, typer.Option(min=1e-6, metavar="RATE", help="So many a second instead of the schedule's times.")
    ] = None,
    model: Annotated[str | None, typer.Option(metavar="NAME", help="The model's name, where payloads lack it.")] = None,
    tokenizer: Annotated[
        str | None, typer.Option(metavar="NAME", help="The model's, with which AIPerf makes prompts of block ids.")
    ] = None,
    aiperf: Annotated[str | None, typer.Option(metavar="PATH", help="The aiperf to run; else the one on PATH.")] = None,
    aiperf_arg: Annotated[
        list[str] | None, typer.Option("--aiperf-arg", metavar="WORD", help="One more word for aiperf; repeatable.")
    ] = None,
    as_json: Json = False,
    quiet: Quiet = False,
) -> None:
    """Play a schedule with AIPerf, off and on in turn, the server's metrics saved before and after each run.

    Example: kvplan replay run s.jsonl --server http://localhost:8000 --serve-off ./off.sh --serve-on ./on.sh -o runs
    """
    from kvplan import replay as stage
    from kvplan.console import answer, note, progress
    from kvplan.files import wrap

    servers = _servers(stage.address, server, server_off, server_on)
    lines = {
        ("serve", "each"): serve,
        ("serve", "off"): serve_off,
        ("serve", "on"): serve_on,
        ("before", "each"): before_arm,
        ("before", "off"): before_off,
        ("before", "on"): before_on,
        ("after", "each"): after_arm,
    }
    given = {key: line for key, line in lines.items() if line is not None}
    arms = stage.Arms(servers=servers, lines=given, wait_s=opt("--wait", wait, parse_duration) or 0.0)
    load = stage.Load(
        concurrency=concurrency,
        request_rate=request_rate,
        model=model,
        tokenizer=tokenizer,
        arguments=tuple(aiperf_arg or ()),
    )
    letters = stage.order_of(order, repeats)
    played = stage.played(schedule)
    program = stage.found(aiperf)
    if not load.by_schedule and played.document.sessions < played.document.requests:
        text = "AIPerf plays a session's turns one after the other: export with --no-sessions to keep the log's order"
        note(f"warning: {text}", quiet)
    with progress(quiet) as listen:
        made = stage.run(played, arms, load, program, letters, output, listen)
    note(f"wrote {output / stage.MANIFEST}", quiet)
    if as_json or not quiet:
        answer(wrap(made), as_json=as_json, output=None, quiet=quiet)


def _servers(address: Callable[[str, str], str], both: str | None, off: str | None, on: str | None) -> dict[str, str]:
    """Where each arm's server is."""
    if both is not None and (off is not None or on is not None):
        raise UsageError("--server is for both arms: give it, or --server-off and --server-on")
    if both is not None:
        url = address(both, "--server")
        return {"off": url, "on": url}
    if off is None or on is None:
        raise UsageError("no server given: name it with --server, or both arms' with --server-off and --server-on")
    return {"off": address(off, "--server-off"), "on": address(on, "--server-on")}
