"""`kvplan probe`: this host, measured."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvplan.commands.options import Json, ModelName, Output, Quiet, Revision, lengths, opt, pick, required
from kvplan.units import parse_duration, parse_size


def probe(
    disk: Annotated[list[Path] | None, typer.Option(metavar="DIR", help="A folder on the drive to measure.")] = None,
    model: ModelName = None,
    revision: Revision = None,
    server: Annotated[
        str | None, typer.Option(metavar="URL", help="A running OpenAI-compatible server whose prefill to measure.")
    ] = None,
    at: Annotated[str, typer.Option(metavar="TOKENS,…", help="Prompt lengths to measure prefill at.")] = "",
    only: Annotated[
        list[str] | None, typer.Option(help="host, disk, gpu, contention, pipeline or prefill; repeatable.")
    ] = None,
    budget: Annotated[
        str, typer.Option(metavar="TIME", help="Time to measure, building a cut model not counted.")
    ] = "1m",
    write_budget: Annotated[str, typer.Option(metavar="SIZE", help="Most bytes to write.")] = "8GiB",
    granule: Annotated[
        list[str] | None, typer.Option(metavar="SIZE", help="A size to add to the sweep, such as 2MiB; repeatable.")
    ] = None,
    estimate_file: Annotated[
        Path | None,
        typer.Option("--estimate", metavar="FILE", help="An estimate: measure its blocks and its engine's pieces."),
    ] = None,
    sweep_only: Annotated[
        bool, typer.Option("--sweep-only", help="Drives by size and depth only: no engine's shapes, no comparisons.")
    ] = False,
    allow_memory: Annotated[
        bool, typer.Option("--allow-memory", help="Measure a folder in memory (tmpfs) too, flagged.")
    ] = False,
    allow_pageable: Annotated[
        bool,
        typer.Option("--allow-pageable", help="Go on where no memory can be page-locked: its copies are flagged."),
    ] = False,
    merge_files: Annotated[
        list[Path] | None,
        typer.Option("--merge", metavar="FILE", help="Measure nothing: make one of these probes of one host."),
    ] = None,
    as_json: Json = False,
    output: Output = None,
    quiet: Quiet = False,
) -> None:
    """Measure this host: its memory and limits, its drives with direct I/O, its GPUs with page-locked copies.

    With a model, also what recomputing its prefixes costs: from a few of its layers without weights, or on a server.

    Example: kvplan probe --disk /mnt/nvme --model llama-3.1-8b -o host.json
    """
    from kvplan.console import answer, expect, note, progress
    from kvplan.documents import ProbeOptions
    from kvplan.files import load, wrap
    from kvplan.probe import announce, kv_block, kv_moves, measure, merge

    expect(output)
    if merge_files:
        data = merge([pick([load(path)], "probe", True) for path in merge_files])
        answer(wrap(data), as_json=as_json, output=output, quiet=quiet)
        return
    estimate = pick([load(estimate_file)], "estimate", True) if estimate_file else None
    config = None
    if model is not None:
        from kvplan.model import load_config

        config = load_config(model, revision)
    options = ProbeOptions(
        model=config,
        server=server,
        prefill_tokens=opt("--at", at, lengths) or (),
        disks=tuple(str(path) for path in disk or ()),
        only=tuple(only or ()),
        budget_s=required(opt("--budget", budget, parse_duration), "--budget"),
        write_budget_bytes=opt("--write-budget", write_budget, parse_size) or 0,
        granule_bytes=tuple(opt("--granule", text, parse_size) or 0 for text in granule or ()),
        allow_memory=allow_memory,
        allow_pageable=allow_pageable,
        kv=kv_block(estimate.data) if estimate else None,
        moves=kv_moves(estimate.data) if estimate else (),
        sweep_only=sweep_only,
    )
    for line in announce(options):
        note(line, quiet)
    with progress(quiet) as listen:
        data = measure(options, listen)
    answer(wrap(data), as_json=as_json, output=output, quiet=quiet)
