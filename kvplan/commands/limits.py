"""What a plan may use and must hold: the options of every command that plans, and the Policy that they make."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Annotated, Any, Literal

import typer

from kvplan.commands.options import opt
from kvplan.errors import UsageError
from kvplan.units import parse_duration, parse_rate, parse_size

if TYPE_CHECKING:
    from kvplan.documents import Policy, Reserve

_PARSED: dict[str, tuple[str, str, Callable[[str], Any]]] = {
    "host_memory": ("host_memory_bytes", "--host-memory", parse_size),
    "disk": ("disk_bytes", "--disk", parse_size),
    "disk_own": ("disk_own_bytes", "--disk-own", parse_size),
    "ttl": ("ttl_s", "--ttl", parse_duration),
    "slo_ttft": ("slo_ttft_s", "--slo-ttft", parse_duration),
    "restart_every": ("restart_every_s", "--restart-every", parse_duration),
    "host_link": ("host_link_bytes_per_s", "--host-link", parse_rate),
}


@dataclass(frozen=True, kw_only=True)
class Limits:
    """Limits, policy and assumptions of a plan, as texts of the command line."""

    host_memory: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Memory of the host, the system's and the engines' included, such as 512GiB."
        ),
    ] = None
    disk: Annotated[
        str | None,
        typer.Option(
            metavar="SIZE", help="Most disk a replica's cache may take, or the size of a larger drive to buy."
        ),
    ] = None
    forbid_disk: Annotated[bool, typer.Option("--forbid-disk", help="Never keep cache on a disk.")] = False
    ttl: Annotated[
        str | None, typer.Option(metavar="TIME", help="Longest time a cached block may be kept, such as 10m.")
    ] = None
    slo_ttft: Annotated[str | None, typer.Option(metavar="TIME", help="Target time to first token, such as 2s.")] = None
    replicas: Annotated[int, typer.Option(min=1, help="Replicas that share the log's requests.")] = 1
    replicas_per_host: Annotated[
        int | None, typer.Option(min=1, help="Replicas that share one host: as many as the probed GPUs hold, else all.")
    ] = None
    routing: Annotated[
        Literal["affinity", "session", "round-robin"], typer.Option(help="How requests are spread over replicas.")
    ] = "affinity"
    share: Annotated[
        Literal["all", "tenant", "none"], typer.Option(help="Whose cached blocks a request may reuse.")
    ] = "all"
    growth: Annotated[float, typer.Option(min=0.001, help="Demand to plan for, as a multiple of the log's.")] = 1.0
    gpu_memory_utilization: Annotated[
        float | None, typer.Option(min=0.0, max=1.0, help="The engine's memory fraction.")
    ] = None
    host_link: Annotated[
        str | None, typer.Option(metavar="RATE", help="Host to GPU rate to plan with, such as 25GB/s.")
    ] = None
    allow_flagged_links: Annotated[
        bool, typer.Option("--allow-flagged-links", help="Plan with measurements that are flagged.")
    ] = False
    headroom: Annotated[
        float, typer.Option(min=0.0, max=1.0, help="Share of host memory that is never given away.")
    ] = 0.1
    reserve: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME=SIZE", help="Host memory of something else: other-models=40GiB, …"),
    ] = None
    restart_every: Annotated[
        str | None, typer.Option(metavar="TIME", help="How often the engine restarts, such as 24h.")
    ] = None
    offload: Annotated[
        Literal["native", "lmcache", "lmcache-server"],
        typer.Option(help="The layer in the engine that keeps the tiers."),
    ] = "native"
    expansion: Annotated[float, typer.Option(min=1.0, help="Bytes a tier takes over those of the estimate.")] = 1.0
    disk_admission: Annotated[
        Literal["all", "second-use"], typer.Option(help="What is written to disk: all, or reused only.")
    ] = "all"
    disk_own: Annotated[
        str | None, typer.Option(metavar="SIZE", help="Bytes of the folder that the cache already holds.")
    ] = None
    price_view: Annotated[
        Literal["owned", "bought", "rented"], typer.Option(help="What memory costs when a size is chosen.")
    ] = "owned"

    def policy(self, engine: str) -> Policy:
        """The policy that these make for an engine; what was not given keeps its default. Raises UsageError."""
        from kvplan.documents import Policy

        if self.forbid_disk and (self.disk or self.disk_own):
            raise UsageError("--forbid-disk beside --disk or --disk-own: give one of them")
        given = {name: value for name, value in asdict(self).items() if value is not None}
        for name, (field, flag, parse) in _PARSED.items():
            if name in given:
                given[field] = opt(flag, given.pop(name), parse)
        parts = given.pop("reserve", ())
        reserves = tuple(part for text in parts if (part := opt("--reserve", text, _reserve)))
        return Policy(engine=engine, reserves=reserves, headroom_ratio=given.pop("headroom"), **given)


def _reserve(text: str) -> Reserve:
    from kvplan.documents import Reserve

    name, equals, size = text.partition("=")
    if not equals:
        raise UsageError(f"{text!r} is no part of host memory: write for example other-models=40GiB")
    return Reserve(name=name.strip(), bytes=parse_size(size))
