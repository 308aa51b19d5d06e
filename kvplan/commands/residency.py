"""`kvplan residency`: several models on one machine."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated, Literal

import typer

from kvplan.commands.options import Json, Output, Quiet, opt, pick, required
from kvplan.units import parse_duration, parse_size


def residency(
    models: Annotated[Path, typer.Argument(metavar="MODELS", help="Machine and models: a TOML or JSON list.")],
    log: Annotated[
        Path, typer.Argument(metavar="LOG", help="Requests with time, model and service_s: .jsonl or .csv, also .gz.")
    ],
    max_models: Annotated[
        int | None, typer.Option("--models-max", min=1, help="Models at once, as llama.cpp's router counts.")
    ] = None,
    budget: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Admit on bytes, up to SIZE; the machine's memory by default.")
    ] = None,
    keep_alive: Annotated[str | None, typer.Option(metavar="TIME", help="Unload a model idle for TIME.")] = None,
    sleep_after: Annotated[str | None, typer.Option(metavar="TIME", help="Empty a model idle for TIME.")] = None,
    batch_wait: Annotated[
        str | None, typer.Option(metavar="TIME", help="Gather requests, and swap after TIME at the latest.")
    ] = None,
    kv_on_swap: Annotated[Literal["lost", "saved"], typer.Option(help="What a swap does to the KV cache.")] = "lost",
    plan: Annotated[
        Path | None, typer.Option(metavar="PLAN", help="A plan whose host KV tier shares the memory: divide it.")
    ] = None,
    host_memory: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Host memory, in place of the list's, such as 512GiB.")
    ] = None,
    window: Annotated[
        str, typer.Option(metavar="TIME", help="How soon another model's request counts as next.")
    ] = "1s",
    compare: Annotated[
        bool, typer.Option("--compare/--no-compare", help="Also play without busy protection and with wrong counts.")
    ] = True,
    search: Annotated[bool, typer.Option("--search/--no-search", help="Search the best limit for the log.")] = True,
    as_json: Json = False,
    output: Output = None,
    quiet: Quiet = False,
) -> None:
    """Several models on one machine: who waits, who is evicted and why, and what to set.

    Example: kvplan residency models.toml requests.jsonl --models-max 1
    """
    from kvplan.console import answer, expect, progress
    from kvplan.files import load, wrap
    from kvplan.residency import policies, read_log, read_models, share, with_host_memory
    from kvplan.residency import residency as run

    expect(output)
    machine, listed = read_models(models)
    machine = with_host_memory(machine, opt("--host-memory", host_memory, parse_size))
    planned = None if plan is None else pick([load(plan)], "plan", True).data
    policies_on = partial(
        policies,
        max_models=max_models,
        budget_bytes=opt("--budget", budget, parse_size),
        keep_alive_s=opt("--keep-alive", keep_alive, parse_duration),
        sleep_after_s=opt("--sleep-after", sleep_after, parse_duration),
        batch_wait_s=opt("--batch-wait", batch_wait, parse_duration),
        kv_on_swap=kv_on_swap,
    )
    near = required(opt("--window", window, parse_duration), "--window")
    with progress(quiet) as listen:
        requests = read_log(log, listed)
        split = None
        if planned is not None:
            machine, split = share(machine, listed, requests, policies_on(machine)[0], planned, progress=listen)
        asked, others = policies_on(machine)
        shown = others if compare else ()
        made = run(
            machine,
            listed,
            requests,
            asked,
            compare=shown,
            split=split,
            window_s=near,
            searched=search,
            progress=listen,
        )
    answer(wrap(made), as_json=as_json, output=output, quiet=quiet)
