"""`kvplan compare`: live results with offload off and on."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal

import typer

from kvplan.commands.options import Json, Output, Quiet, opt
from kvplan.errors import KvplanError
from kvplan.units import parse_duration


def compare(
    results: Annotated[
        list[Path], typer.Argument(metavar="RUNS | OFF ON", help="A folder of `kvplan replay run`, or two results.")
    ],
    simulation: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What `kvplan simulate` said of the same schedule: graded.")
    ] = None,
    simulated_arm: Annotated[str, typer.Option(metavar="NAME", help="The simulation's arm that on is.")] = "on",
    schedule: Annotated[
        Path | None, typer.Option(metavar="FILE", help="What was played, where results do not name sessions.")
    ] = None,
    max_lag: Annotated[
        str, typer.Option(metavar="TIME", help="Refuse runs sent later than this, at the 99th percentile.")
    ] = "500ms",
    skip: Annotated[int, typer.Option(min=0, metavar="N", help="Leave out the first N requests, as a warm-up.")] = 0,
    resample: Annotated[
        Literal["session", "request"], typer.Option(help="What is drawn for intervals; requests count as independent.")
    ] = "session",
    resamples: Annotated[int, typer.Option(min=100, metavar="N", help="How often is drawn.")] = 2000,
    seed: Annotated[int, typer.Option(min=0, help="Where drawing starts: the same seed, the same interval.")] = 0,
    as_json: Json = False,
    output: Output = None,
    quiet: Quiet = False,
) -> None:
    """Offload off against on, as AIPerf, GuideLLM or vllm bench serve measured them: paired, with intervals.

    Example: kvplan compare runs --simulation simulation.json -o comparison.json
    """
    from kvplan import compare as stage
    from kvplan.console import answer, expect
    from kvplan.documents import Simulation
    from kvplan.files import load, wrap

    expect(output)
    options = stage.Options(
        max_lag_s=opt("--max-lag", max_lag, parse_duration) or 0.0,
        skip=skip,
        resamples=resamples,
        seed=seed,
        resample=resample,
        schedule=schedule,
        simulated_arm=simulated_arm,
    )
    played = None
    if simulation is not None:
        document = load(simulation)
        if not isinstance(document.data, Simulation):
            raise KvplanError(f"{simulation}: is a {document.kind}, not a simulation")
        played = (simulation.name, document.data)
    answer(wrap(stage.compare(results, options, played)), as_json=as_json, output=output, quiet=quiet)
