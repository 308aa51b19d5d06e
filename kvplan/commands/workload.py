"""`kvplan workload`: logs into their reuse."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.commands.grouped import grouped
from kvplan.commands.options import Json, Output, Quiet, Ttl, lengths, opt
from kvplan.commands.reading import Reading
from kvplan.errors import UsageError
from kvplan.units import parse_duration, parse_tokens

if TYPE_CHECKING:
    from kvplan.documents import Requests
    from kvplan.progress import Progress

    Read = Callable[[list[Path], Progress], Requests]


def _share(logs: list[Path], output: Path | None, other: bool, quiet: bool, read: Read) -> None:
    """Write logs as one trace that may be shared; `other`: something was asked of a document as well."""
    from kvplan.console import note, progress
    from kvplan.logs import anonymize
    from kvplan.units import counted

    if output is None or other:
        raise UsageError(
            "--anonymize writes one trace, no document: name it with -o, and leave --compare and --json out"
        )
    with progress(quiet) as listen:
        requests = read(logs, listen)
        anonymize(requests, output, listen)
    note(f"{output}: {counted(len(requests.input_tokens), 'request')} as lengths, times and numbered blocks", quiet)


def _refuse_with_stream(held: dict[str, Any]) -> None:
    """Raise UsageError for what needs a log's blocks in memory."""
    flags = {"other_policies": "policies", "join_blocks": "join-blocks"}
    if named := [f"--{flags.get(name, name)}" for name, value in held.items() if value]:
        raise UsageError(f"{', '.join(named)}: not with --sample or --buckets, which do not hold the log's blocks")


def parse_share(text: str) -> float:
    """A share such as 1% or 0.01. Raises UsageError."""
    try:
        share = float(text.removesuffix("%")) / (100 if text.endswith("%") else 1)
    except ValueError:
        share = 0.0
    if not 0 < share <= 1:
        raise UsageError(f"{text!r} is no share: write 1% or 0.01")
    return share


@grouped
def workload(
    *,
    logs: Annotated[list[Path], typer.Argument(metavar="LOG…", help="Request logs; - is standard input.")],
    reading: Reading,
    capacity_blocks: Annotated[list[int] | None, typer.Option(min=1, help="An exact capacity, in blocks.")] = None,
    capacity_tokens: Annotated[
        list[str] | None, typer.Option(metavar="TOKENS", help="An exact capacity; 1k is 1,024 tokens.")
    ] = None,
    ttl: Ttl = None,
    measure_from: Annotated[float, typer.Option(metavar="SHARE", help="Where in the log warm figures begin.")] = 0.5,
    policies: Annotated[str, typer.Option(metavar="NAME,…", help="fifo, lfu, arc, s3-fifo, optimal.")] = "",
    replicas: Annotated[int | None, typer.Option(min=1, help="What if so many servers shared the requests.")] = None,
    tiers: Annotated[
        str, typer.Option(metavar="TOKENS,…", help="What if tiers so large, top first; 1M is 1,048,576 tokens.")
    ] = "",
    isolate: Annotated[bool, typer.Option("--isolate", help="Keep tenants' blocks apart; takes --tenant-by.")] = False,
    join_blocks: Annotated[
        int | None, typer.Option(min=1, metavar="TOKENS", help="What if blocks held so many tokens, a multiple.")
    ] = None,
    compare: Annotated[bool, typer.Option("--compare", help="Two logs: the second against the first.")] = False,
    workers: Annotated[int, typer.Option(min=1, help="Local processes that find the reuse.")] = 1,
    ray: Annotated[
        str | None, typer.Option(metavar="ADDRESS", help="A Ray cluster that finds it; local starts one.")
    ] = None,
    sample: Annotated[
        str | None, typer.Option(metavar="SHARE", help="Estimate the curve from a share of the blocks, such as 1%.")
    ] = None,
    buckets: Annotated[
        Path | None, typer.Option(metavar="DIR", help="Exact, by parts kept in DIR, for logs larger than memory.")
    ] = None,
    bucket_count: Annotated[
        int, typer.Option(min=1, max=4096, help="Parts of --buckets: one a worker is in memory.")
    ] = 64,
    estimate: Annotated[
        Path | None, typer.Option(metavar="FILE", help="Logs of text: block size and image tokens, from an estimate.")
    ] = None,
    anonymize: Annotated[
        bool, typer.Option("--anonymize", help="Write -o as a trace to share, numbers only, instead of a document.")
    ] = False,
    as_json: Json = False,
    output: Output = None,
    quiet: Quiet = False,
) -> None:
    """What a request log really reuses, at every cache size.

    Example: kvplan workload trace.jsonl.gz --capacity-blocks 10000
    """
    from kvplan.console import answer, expect, progress
    from kvplan.files import wrap
    from kvplan.workload import profiled, profiled_in_stream

    def read(some: Sequence[Path], listen: Progress, sink: Any = None) -> Requests:
        return reading.requests(some, listen, sink, estimate)

    if anonymize:
        return _share(logs, output, compare or as_json, quiet, read)
    if isolate and not (reading.tenant_by or sample or buckets):
        raise UsageError("--isolate keeps tenants apart: --tenant-by FIELD says who they are")
    expect(output)
    held: dict[str, Any] = {
        "compare": compare,
        "isolate": isolate,
        "join_blocks": join_blocks,
        "ray": ray,
        "other_policies": tuple(name.strip() for name in policies.split(",") if name.strip()),
        "replicas": replicas,
    }
    asked: dict[str, Any] = {
        "workers": workers,
        "tier_tokens": opt("--tiers", tiers, lengths) or (),
        "capacity_blocks": tuple(capacity_blocks or ()),
        "capacity_tokens": tuple(opt("--capacity-tokens", text, parse_tokens) or 0 for text in capacity_tokens or ()),
        "ttl_s": opt("--ttl", ttl, parse_duration),
        "measure_from": measure_from,
    }
    with progress(quiet) as listen:
        if sample is not None or buckets is not None:
            _refuse_with_stream(held | ({"tiers": tiers, "ttl": ttl} if sample is not None else {}))
            data = profiled_in_stream(
                logs,
                lambda sink: read(logs, listen, sink),
                rate=opt("--sample", sample, parse_share),
                folder=buckets,
                bucket_count=bucket_count,
                progress=listen,
                **asked,
            )
        else:
            data = profiled(logs, lambda some: read(some, listen), progress=listen, **held, **asked)
    return answer(wrap(data), as_json=as_json, output=output, quiet=quiet)
