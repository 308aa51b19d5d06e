"""`kvplan plan`: documents into budgets."""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.commands.options import (
    Admission,
    DiskOwn,
    DiskSize,
    Earlier,
    Expansion,
    Flagged,
    ForbidDisk,
    Gpu,
    Growth,
    Headroom,
    HostLink,
    HostMemory,
    Json,
    Offload,
    Output,
    PerHost,
    PricesFile,
    Quiet,
    Replicas,
    Reserves,
    RestartEvery,
    Routing,
    Share,
    SloTtft,
    Ttl,
    Utilization,
    View,
    WhatIf,
    gpu_spec,
    opt,
)
from kvplan.errors import UsageError
from kvplan.units import parse_duration, parse_rate, parse_size

if TYPE_CHECKING:
    from kvplan.documents import Document, Plan, Policy, Requests, Reserve
    from kvplan.progress import Progress

Emit = Annotated[
    str | None,
    typer.Option(metavar="SYSTEM", help="Print the configuration of vllm, sglang, lmcache, … instead of the page."),
]
_POLICY: dict[str, tuple[str, Callable[[str], Any]]] = {
    "host_memory_bytes": ("--host-memory", parse_size),
    "disk_bytes": ("--disk", parse_size),
    "disk_own_bytes": ("--disk-own", parse_size),
    "ttl_s": ("--ttl", parse_duration),
    "slo_ttft_s": ("--slo-ttft", parse_duration),
    "restart_every_s": ("--restart-every", parse_duration),
    "host_link_bytes_per_s": ("--host-link", parse_rate),
}


def pick(documents: list[Document[Any]], kind: str, needed: bool) -> Any:
    """The one document of a kind among those given."""
    found = [document for document in documents if document.kind == f"kvplan.{kind}"]
    if len(found) > 1:
        raise UsageError(f"{len(found)} {kind} documents given, one is wanted")
    if not found and needed:
        raise UsageError(f"no {kind} document given: make one with `kvplan {kind} … -o {kind}.json`")
    return found[0] if found else None


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


def reserve_of(text: str) -> Reserve:
    from kvplan.documents import Reserve

    name, equals, size = text.partition("=")
    if not equals:
        raise UsageError(f"{text!r} is no part of host memory: write for example other-models=40GiB")
    return Reserve(name=name.strip(), bytes=parse_size(size))


def policy_of(reserves: list[str] | None = None, **given: Any) -> Policy:
    """A policy from option values by field; what was not given keeps its default."""
    from kvplan.documents import Policy

    values = {name: value for name, value in given.items() if value is not None}
    for name, (flag, parse) in _POLICY.items():
        if name in values:
            values[name] = opt(flag, values[name], parse)
    parts = tuple(part for text in reserves or () if (part := opt("--reserve", text, reserve_of)))
    return Policy(reserves=parts, **values)


def exit_if_exceeded(document: Document[Plan]) -> None:
    """Exit 3 when the plan exceeds a limit, so that a script can use kvplan as a gate."""
    broken = [limit for limit in document.data.limits if not limit.ok]
    if broken:
        names = "; ".join(limit.name for limit in broken)
        print(f"kvplan: limit exceeded: {names}", file=sys.stderr)
        raise typer.Exit(3)


def emitted(document: Document[Plan], system: str, as_json: bool, output: Path | None, quiet: bool) -> None:
    """The plan as one system's configuration on standard output, in place of its page; `output` takes the plan."""
    from kvplan.commands.export import give
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


def plan(
    documents: Annotated[
        list[Path], typer.Argument(metavar="DOCUMENT…", help="estimate, workload and probe documents.")
    ],
    gpu: Gpu = None,
    engine: Annotated[str, typer.Option(help="Engine to plan for.")] = "vllm",
    host_memory: HostMemory = None,
    disk: DiskSize = None,
    forbid_disk: ForbidDisk = False,
    ttl: Ttl = None,
    slo_ttft: SloTtft = None,
    replicas: Replicas = 1,
    replicas_per_host: PerHost = None,
    routing: Routing = "affinity",
    share: Share = "all",
    growth: Growth = 1.0,
    gpu_memory_utilization: Utilization = None,
    host_link: HostLink = None,
    allow_flagged_links: Flagged = False,
    headroom: Headroom = 0.1,
    reserve: Reserves = None,
    restart_every: RestartEvery = None,
    offload: Offload = "native",
    expansion: Expansion = 1.0,
    disk_admission: Admission = "all",
    disk_own: DiskOwn = None,
    prices: PricesFile = None,
    price_view: View = "owned",
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
    from kvplan.console import answer
    from kvplan.files import load

    policy = policy_of(
        engine=engine,
        host_memory_bytes=host_memory,
        disk_bytes=disk,
        disk_own_bytes=disk_own,
        forbid_disk=forbid_disk,
        ttl_s=ttl,
        slo_ttft_s=slo_ttft,
        replicas=replicas,
        replicas_per_host=replicas_per_host,
        routing=routing,
        share=share,
        growth=growth,
        gpu_memory_utilization=gpu_memory_utilization,
        host_link_bytes_per_s=host_link,
        allow_flagged_links=allow_flagged_links,
        headroom_ratio=headroom,
        reserves=reserve,
        restart_every_s=restart_every,
        offload=offload,
        expansion=expansion,
        disk_admission=disk_admission,
        price_view=price_view,
    )
    document = planned([load(path) for path in documents], gpu, policy, prices, what_if, against)
    if emit is None:
        answer(document, as_json=as_json, output=output, quiet=quiet)
    else:
        emitted(document, emit, as_json, output, quiet)
    exit_if_exceeded(document)
