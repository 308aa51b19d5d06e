"""`kvplan simulate`: one schedule, played with offload off and on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from kvplan.commands.grouped import grouped
from kvplan.commands.limits import Limits
from kvplan.commands.options import Gpu, Json, Output, Quiet, SloTtft, opt, pick
from kvplan.commands.plan import planned
from kvplan.commands.reading import Reading
from kvplan.units import parse_duration, parse_rate, parse_tokens


@grouped
def simulate(
    *,
    documents: Annotated[
        list[Path], typer.Argument(metavar="DOCUMENT…", help="A plan; or estimate, workload and probe, to plan from.")
    ],
    log: Annotated[list[Path], typer.Option("--log", metavar="LOG", help="The request log to play.")],
    gpu: Gpu = None,
    slo_ttft: SloTtft = None,
    rate_scale: Annotated[float, typer.Option(metavar="FACTOR", help="Arrivals so many times as fast.")] = 1.0,
    limit: Annotated[int | None, typer.Option(min=1, metavar="N", help="Play the first N requests.")] = None,
    arm: Annotated[
        list[str] | None,
        typer.Option("--arm", metavar="NAME:KEY=VALUE,…", help="One more arm, such as big:host=1TiB,policy=arc."),
    ] = None,
    fault: Annotated[
        list[str] | None,
        typer.Option("--fault", metavar="TIME:WHAT", help="Something that happens, such as 10m:restart=90s."),
    ] = None,
    closed_loop: Annotated[
        bool,
        typer.Option("--closed-loop", help="A later turn comes when the one before was answered and thought over."),
    ] = False,
    concurrency: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="N clients send the log in order, each when its last answer is there."),
    ] = None,
    kv_tokens: Annotated[
        str | None, typer.Option(metavar="TOKENS", help="The KV cache of one replica, where it is not the plan's.")
    ] = None,
    output_blocks: Annotated[
        str | None, typer.Option(metavar="RULE", help="Blocks of answers: forget, keep (take room) or reuse.")
    ] = None,
    slots: Annotated[
        int | None,
        typer.Option(min=1, metavar="N", help="llama.cpp: slots, each with its part of the cells (--parallel)."),
    ] = None,
    kv_unified: Annotated[
        bool, typer.Option("--kv-unified", help="llama.cpp: slots share the cells, as 4 do without --slots.")
    ] = False,
    max_num_batched_tokens: Annotated[
        int | None, typer.Option(min=1, help="Tokens of one step: 8,192, for llama.cpp 2,048.", show_default=False)
    ] = None,
    max_num_seqs: Annotated[int, typer.Option(min=1, help="Requests in the engine at once.")] = 256,
    memory_rate: Annotated[
        str | None, typer.Option(metavar="RATE", help="The GPU's memory rate, where the catalogue lacks it.")
    ] = None,
    reading: Reading,
    as_json: Json = False,
    output: Output = None,
    quiet: Quiet = False,
) -> None:
    """One schedule, played with offload off and on: who waits, what is hit, what the links carry.

    With --slo-ttft the rate that each arm sustains is searched too.

    Example: kvplan simulate plan.json --log trace.jsonl.gz --slo-ttft 10s
    """
    from kvplan import simulate as stage
    from kvplan.console import answer, expect, progress
    from kvplan.files import load, wrap

    expect(output)
    inputs = [load(path) for path in documents]
    given = pick(inputs, "plan", False)
    made = given if given is not None else planned(inputs, gpu, Limits().policy("vllm"))
    arms, faults = [stage.arm_of(text) for text in arm or ()], [stage.fault_of(text) for text in fault or ()]
    options = stage.Options(
        max_num_batched_tokens=max_num_batched_tokens,
        max_num_seqs=max_num_seqs,
        memory_bytes_per_s=opt("--memory-rate", memory_rate, parse_rate),
        kv_tokens=opt("--kv-tokens", kv_tokens, parse_tokens),
        output_blocks=opt("--output-blocks", output_blocks, stage.output_rule),
        slots=slots,
        kv_unified=kv_unified,
    )
    with progress(quiet) as listen:
        requests = reading.requests(log, listen)
        data = stage.run(
            made.data,
            requests,
            arms=arms,
            faults=faults,
            rate_scale=rate_scale,
            limit=limit,
            slo_ttft_s=opt("--slo-ttft", slo_ttft, parse_duration),
            options=options,
            loop=stage.loop_of(closed_loop, concurrency),
            progress=listen,
        )
    answer(wrap(data), as_json=as_json, output=output, quiet=quiet)
