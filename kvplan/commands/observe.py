"""`kvplan observe`: running servers' metrics, beside a plan."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.commands.options import Json, Output, Quiet, opt, pick
from kvplan.errors import KvplanError, UsageError
from kvplan.files import reason
from kvplan.progress import Progress
from kvplan.units import parse_duration

if TYPE_CHECKING:
    from kvplan.documents import Document, Plan
    from kvplan.observing.scrape import Taken

ALL = "{}"  # the selector that leaves nothing out


def observe(
    pages: Annotated[
        list[Path] | None, typer.Argument(metavar="[PAGE…]", help="Saved metrics pages of one server, oldest first.")
    ] = None,
    url: Annotated[
        list[str] | None,
        typer.Option("--url", metavar="URL", help="A server's metrics, such as http://host:8000/metrics; repeatable."),
    ] = None,
    prometheus: Annotated[
        str | None, typer.Option(metavar="URL", help="A Prometheus server that keeps the metrics.")
    ] = None,
    selector: Annotated[
        str, typer.Option(metavar="LABELS", help="Which of its targets, such as '{job=\"vllm\"}'.")
    ] = ALL,
    every: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time between two pages; 15s when left out.")
    ] = None,
    span: Annotated[
        str | None, typer.Option("--for", metavar="TIME", help="How long to read; left out, one page of each server.")
    ] = None,
    elapsed: Annotated[
        str | None, typer.Option(metavar="TIME", help="Time from the first saved page to the last.")
    ] = None,
    plan_file: Annotated[
        Path | None, typer.Option("--plan", metavar="PLAN", help="A plan to hold the figures against.")
    ] = None,
    prompt_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens that clients sent meanwhile, where the server counts no hits.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option(metavar="FILE", help="A file with the bearer token that the server wants.")
    ] = None,
    dashboard: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Read nothing: write a Grafana dashboard and alert rules to DIR.")
    ] = None,
    for_system: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="vllm, sglang, llama.cpp, lmcache, lmcache-server or kvbm; repeatable."),
    ] = None,
    as_json: Json = False,
    output: Output = None,
    quiet: Quiet = False,
) -> None:
    """What running servers count: hits by tier, bytes moved, waits, evictions, and whether a plan holds.

    Reads vLLM, SGLang, llama.cpp, LMCache and Dynamo KVBM: live, from saved pages, or from a Prometheus server. Ctrl-C
    ends a reading early and keeps what was seen.

    Example: kvplan observe --url http://localhost:8000/metrics --for 10m --plan plan.json
    """
    from kvplan import observe as stage
    from kvplan.console import answer, expect, note, progress
    from kvplan.files import load, wrap

    expect(output)
    plan = pick([load(plan_file)], "plan", True) if plan_file is not None else None
    if dashboard is not None:
        if pages or url or prometheus:
            raise UsageError("--dashboard reads nothing: leave out pages, --url and --prometheus")
        _unread(
            {
                "--every": every,
                "--for": span,
                "--elapsed": elapsed,
                "--prompt-tokens": prompt_tokens,
                "--token-file": token_file,
                "-o": output,
                "--json": as_json or None,
            }
        )
        for path in _monitoring(dashboard, for_system or [], selector, plan):
            note(f"wrote {path}", quiet)
        return
    if for_system:
        raise UsageError("--for-system is for --dashboard: of pages kvplan finds out what they are of")
    if every is not None and pages:
        raise UsageError("--every is for running servers: saved pages were read when they were read")
    with progress(quiet) as listen:
        taken = _taken(
            pages or [],
            url or [],
            prometheus,
            selector=selector,
            every_s=opt("--every", every or "15s", parse_duration) or 0.0,
            seconds=opt("--for", span, parse_duration),
            elapsed_s=opt("--elapsed", elapsed, parse_duration),
            token=_token(token_file),
            listen=listen,
        )
    data = stage.observe(taken, plan, prompt_tokens=prompt_tokens)
    answer(wrap(data), as_json=as_json, output=output, quiet=quiet)
    if taken.stopped:
        note("stopped by hand: the figures are of what was seen until then", quiet)
        raise typer.Exit(130)


def _unread(given: Mapping[str, object]) -> None:
    """Refuse options of reading beside --dashboard. Raises UsageError."""
    names = [name for name, value in given.items() if value is not None]
    if names:
        raise UsageError(f"{names[0]} is for reading metrics, and --dashboard DIR reads none: leave it out")


def _monitoring(folder: Path, systems: list[str], selector: str, plan: Document[Plan] | None) -> tuple[Path, Path]:
    """Write both files; without systems named, for the plan's engine, or for all."""
    from kvplan import observe as stage
    from kvplan.engines.profiles import engine_of
    from kvplan.files import make_folder, write_atomically

    chosen = systems or ([engine_of(plan.data)] if plan is not None else [])
    board, rules = stage.monitoring(chosen, selector, None if plan is None else plan.data)
    make_folder(folder)
    paths = folder / "kvplan-dashboard.json", folder / "kvplan-alerts.yaml"
    for path, text in zip(paths, (board, rules), strict=True):
        write_atomically(path, text)
    return paths


def _taken(
    pages: list[Path],
    urls: list[str],
    prometheus: str | None,
    *,
    selector: str,
    every_s: float,
    seconds: float | None,
    elapsed_s: float | None,
    token: str | None,
    listen: Progress,
) -> Taken:
    """Read the one kind of source that was named. Raises UsageError for none or several."""
    from kvplan import observe as stage

    if sum(map(bool, (pages, urls, prometheus))) != 1:
        raise UsageError("name what to read: saved pages, or --url, or --prometheus")
    if elapsed_s is not None and not pages:
        raise UsageError("--elapsed is for saved pages: of live ones kvplan knows the time")
    if not prometheus and selector != ALL:
        raise UsageError("--selector is for --prometheus and --dashboard: pages are read whole")
    if pages:
        if seconds is not None:
            raise UsageError("--for is for live servers: saved pages are read as they are")
        if token is not None:
            raise UsageError("--token-file is for live servers: saved pages ask for none")
        return stage.saved(pages, elapsed_s)
    if urls:
        return stage.watch(urls, seconds=seconds, every_s=every_s, token=token, progress=listen)
    if prometheus is None or seconds is None:
        raise UsageError("--prometheus needs --for: how far back to look")
    return stage.ask(prometheus, selector, seconds=seconds, every_s=every_s, token=token)


def _token(path: Path | None) -> str | None:
    if path is None:
        return None
    try:
        text = path.read_text().strip()
    except OSError as error:
        raise KvplanError(f"{path}: {reason(error)}") from None
    except UnicodeDecodeError:
        raise KvplanError(f"{path}: not text: one line with the token is wanted") from None
    if not text or len(text.split()) != 1:
        raise KvplanError(f"{path}: one line with the token is wanted")
    return text
