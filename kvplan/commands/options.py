"""Options that several commands take, and how their texts are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Literal, TypeVar

import typer

from kvplan.errors import UsageError
from kvplan.units import parse_tokens

if TYPE_CHECKING:
    from kvplan.documents import GpuSpec

V = TypeVar("V")
Json = Annotated[bool, typer.Option("--json", help="Print the document as JSON on standard output, nothing else.")]
Output = Annotated[
    Path | None, typer.Option("-o", "--output", metavar="FILE", help="Write to FILE, whole or not at all.")
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="No notes or progress on standard error.")]
ModelName = Annotated[
    str | None,
    typer.Option("--model", metavar="MODEL", help="A folder, config.json, Hub id, or a name from `kvplan models`."),
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a Hub model.")]
Engine = Annotated[str, typer.Option(help="Engine that will hold the cache; none is the logical need.")]
KvDtype = Annotated[str, typer.Option(help="KV cache dtype: auto, bf16, fp16, fp8, …")]
Tp = Annotated[int, typer.Option(min=1, help="Tensor parallel size.")]
Pp = Annotated[int, typer.Option(min=1, help="Pipeline parallel size.")]
Dp = Annotated[int, typer.Option(min=1, help="Data parallel size.")]
Dcp = Annotated[int, typer.Option(min=1, help="Decode context parallel size.")]
Gpu = Annotated[str | None, typer.Option(metavar="NAME", help="A GPU of the catalogue, such as h100-80gb.")]
MaxModelLen = Annotated[str | None, typer.Option(metavar="TOKENS", help="Longest sequence the engine will accept.")]
BlockTokens = Annotated[int | None, typer.Option(min=1, help="Tokens of one block.")]
Format = Annotated[str | None, typer.Option(help="Log format; detected when left out.")]
Tokenizer = Annotated[Path | None, typer.Option(metavar="DIR", help="Local tokenizer folder, for logs of text.")]
TenantBy = Annotated[str | None, typer.Option(metavar="FIELD", help="Log field that names the tenant.")]
Ttl = Annotated[str | None, typer.Option(metavar="TIME", help="Longest time a cached block may be kept, such as 10m.")]
HostMemory = Annotated[
    str | None, typer.Option(metavar="SIZE", help="Most host memory the cache may take, such as 512GiB.")
]
DiskSize = Annotated[
    str | None, typer.Option("--disk", metavar="SIZE", help="Most disk the cache may take, such as 4TB.")
]
ForbidDisk = Annotated[bool, typer.Option("--forbid-disk", help="Never keep cache on a disk.")]
SloTtft = Annotated[str | None, typer.Option(metavar="TIME", help="Target time to first token, such as 2s.")]
Replicas = Annotated[int, typer.Option(min=1, help="Replicas that share the log's requests.")]
HostLink = Annotated[str | None, typer.Option(metavar="RATE", help="Host to GPU rate to plan with, such as 25GB/s.")]
PerHost = Annotated[int | None, typer.Option("--replicas-per-host", min=1, help="Replicas that share one host.")]
Growth = Annotated[float, typer.Option(min=0.001, help="Demand to plan for, as a multiple of the log's.")]
Utilization = Annotated[
    float | None, typer.Option("--gpu-memory-utilization", min=0.0, max=1.0, help="The engine's memory fraction.")
]
Flagged = Annotated[bool, typer.Option("--allow-flagged-links", help="Plan with measurements that are flagged.")]
Share = Annotated[Literal["all", "tenant", "none"], typer.Option(help="Whose cached blocks a request may reuse.")]
Routing = Annotated[
    Literal["affinity", "session", "round-robin"], typer.Option(help="How requests are spread over replicas.")
]
Headroom = Annotated[float, typer.Option(min=0.0, max=1.0, help="Share of host memory that is never given away.")]
Reserves = Annotated[
    list[str] | None,
    typer.Option("--reserve", metavar="NAME=SIZE", help="Host memory of something else: other-models=40GiB, …"),
]
RestartEvery = Annotated[str | None, typer.Option(metavar="TIME", help="How often the engine restarts, such as 24h.")]
Expansion = Annotated[float, typer.Option(min=1.0, help="Bytes a tier takes over those of the estimate.")]
Admission = Annotated[
    Literal["all", "second-use"], typer.Option("--disk-admission", help="What is written to disk: all, or reused only.")
]
DiskOwn = Annotated[str | None, typer.Option(metavar="SIZE", help="Bytes of the folder that the cache already holds.")]
Offload = Annotated[
    Literal["native", "lmcache", "lmcache-server"], typer.Option(help="The layer in the engine that keeps the tiers.")
]
PricesFile = Annotated[
    Path | None, typer.Option("--prices", metavar="FILE", help="Dated, confirmed prices (TOML); none, no dollars.")
]
View = Annotated[
    Literal["owned", "bought", "rented"], typer.Option("--price-view", help="What memory costs when a size is chosen.")
]
WhatIf = Annotated[
    list[str] | None,
    typer.Option("--what-if", metavar="KEY=VALUE,…", help="Plan again with changes: kv-dtype=fp8,gpu=h200-141gb."),
]
Earlier = Annotated[
    Path | None, typer.Option("--against", metavar="PLAN", help="An earlier plan: what changed, and why.")
]


def opt(flag: str, text: str | None, parse: Callable[[str], V]) -> V | None:
    """Parse one option's text; an error names the flag."""
    if text is None:
        return None
    try:
        return parse(text)
    except UsageError as error:
        raise UsageError(f"{flag}: {error}") from None


def lengths(text: str) -> tuple[int, ...]:
    return tuple(parse_tokens(part) for part in text.split(",") if part.strip())


def gpu_spec(name: str | None) -> GpuSpec | None:
    if name is None:
        return None
    from kvplan.catalog import gpu

    return gpu(name)


def required(value: V | None, flag: str) -> V:
    if value is None:
        raise UsageError(f"{flag} is missing")
    return value
