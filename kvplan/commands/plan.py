"""`kvplan plan`: documents into budgets."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.commands.export import give
from kvplan.commands.grouped import grouped
from kvplan.commands.limits import Limits
from kvplan.commands.options import Earlier, Gpu, Json, Output, PricesFile, Quiet, WhatIf, gpu_spec, pick
from kvplan.errors import UsageError

if TYPE_CHECKING:
    from kvplan.documents import Document, Plan, Policy, Requests
    from kvplan.progress import Progress

_INPUTS = ("kvplan.estimate", "kvplan.workload", "kvplan.probe")

Emit = Annotated[
    str | None,
    typer.Option(metavar="SYSTEM", help="Print the configuration of vllm, sglang, lmcache, … instead of the page."),
]


def planned(
    documents: list[Document[Any]],
    gpu: str | None,
    policy: Policy,
    prices: Path | None = None,
    what_if: list[str] | None = None,
    earlier: Path | None = None,
) -> Document[Plan]:
    from kvplan import plan
    from kvplan.files import load, wrap
    from kvplan.prices import read

    inputs = (pick(documents, "estimate", True), pick(documents, "workload", True), pick(documents, "probe", False))
    made = plan.make(*inputs, gpu_spec(gpu), policy, read(prices) if prices else None)
    if what_if:
        made = plan.what_if(made, what_if)
    if earlier:
        made = plan.against(made, pick([load(earlier)], "plan", True))
    return wrap(made)


def _engine(documents: list[Document[Any]], asked: str | None) -> str:
    """The engine to plan for. Raises UsageError where the estimate holds the cache in another one."""
    estimate = next((one.data for one in documents if one.kind == "kvplan.estimate"), None)
    known = estimate.engine if estimate is not None and estimate.engine != "none" else None
    if asked and known and asked != known:
        raise UsageError(f"--engine {asked}: the estimate is for {known}; estimate with --engine {asked}")
    return asked or known or "vllm"


def profiled_for(
    inputs: list[Document[Any]], requests: Requests, gpus: Sequence[str | None], policy: Policy, listen: Progress
) -> list[Document[Any]]:
    """The inputs with the log's profile, its curve exact at the capacities that their plans will ask about."""
    from kvplan.files import wrap
    from kvplan.plan import capacities
    from kvplan.workload import profile

    first = wrap(profile(requests, progress=listen))
    if not any(document.kind == "kvplan.estimate" for document in inputs):
        return [*inputs, first]
    wanted: set[int] = set()
    for documents, gpu in cases_of([one for one in inputs if one.kind != "kvplan.plan"], gpus):
        estimate, probe = pick(documents, "estimate", True), pick(documents, "probe", False)
        wanted.update(capacities(estimate, first, probe, gpu_spec(gpu), policy))
    return [*inputs, wrap(profile(requests, capacity_tokens=tuple(sorted(wanted)), progress=listen))]


def cases_of(
    documents: list[Document[Any]], gpus: Sequence[str | None]
) -> list[tuple[list[Document[Any]], str | None]]:
    """Every combination of the estimates, probes and GPUs given, with the documents that they share."""
    from itertools import product

    estimates = [document for document in documents if document.kind == "kvplan.estimate"]
    probes = [document for document in documents if document.kind == "kvplan.probe"]
    shared = [document for document in documents if document.kind not in ("kvplan.estimate", "kvplan.probe")]
    some = [[one] for one in estimates] or [[]]
    here = [[one] for one in probes] or [[]]
    return [([*estimate, *shared, *probe], gpu) for estimate, probe, gpu in product(some, here, gpus)]


def exit_if_exceeded(document: Document[Plan]) -> None:
    """Exit 3 when the plan exceeds a limit, so that a script can use kvplan as a gate."""
    broken = [limit for limit in document.data.limits if not limit.ok]
    if broken:
        names = "; ".join(limit.name for limit in broken)
        print(f"kvplan: limit exceeded: {names}", file=sys.stderr)
        raise typer.Exit(3)


def emitted(document: Document[Plan], system: str, as_json: bool, output: Path | None, quiet: bool) -> None:
    """The plan as one system's configuration on standard output, in place of its page; `output` takes the plan."""
    from kvplan.console import note
    from kvplan.files import dump, write_atomically

    if as_json:
        raise UsageError(
            "--emit and --json both want standard output: write the plan with -o, then kvplan export --json"
        )
    if output is not None:
        write_atomically(output, dump(document))
        note(f"wrote {output}", quiet)
    give(document, system, False, False, None, quiet)


@grouped
def plan(
    *,
    documents: Annotated[
        list[Path], typer.Argument(metavar="DOCUMENT…", help="estimate, workload and probe documents.")
    ],
    gpu: Gpu = None,
    engine: Annotated[
        str | None, typer.Option(help="Engine to plan for, where the estimate names none.", show_default="vllm")
    ] = None,
    limits: Limits,
    prices: PricesFile = None,
    what_if: WhatIf = None,
    against: Earlier = None,
    emit: Emit = None,
    as_json: Json = False,
    output: Output = None,
    quiet: Quiet = False,
) -> None:
    """GPU, host and disk budgets for the KV cache, with reasons, limits and flags to paste.

    Exit status 3 says that a limit does not hold.

    Example: kvplan plan estimate.json workload.json host.json --gpu h100-80gb -o plan.json
    """
    from kvplan.console import answer, expect
    from kvplan.files import load

    expect(output)
    inputs = [load(path) for path in documents]
    for path, one in zip(documents, inputs, strict=True):
        if one.kind not in _INPUTS:
            where = ", an earlier plan goes to --against" if one.kind == "kvplan.plan" else ""
            raise UsageError(f"{path}: a {one.kind} document: a plan is made from estimate, workload and probe{where}")
    policy = limits.policy(_engine(inputs, engine))
    document = planned(inputs, gpu, policy, prices, what_if, against)
    if emit is None:
        answer(document, as_json=as_json, output=output, quiet=quiet)
    else:
        emitted(document, emit, as_json, output, quiet)
    exit_if_exceeded(document)
