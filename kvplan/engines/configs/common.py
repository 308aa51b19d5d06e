"""What every system's configuration is made from and read into: a plan's request, knobs with units, findings."""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Literal

from kvplan.documents import ConfigForm, ConfigPart, Finding, Host, Knob, Severity, Switches
from kvplan.errors import KvplanError
from kvplan.units import GB, GiB, MiB, show_bytes

Scope = Literal["total", "rank", "server", "engine", "pod"]
Tier = Literal["host", "disk"]

BYTE = ("B", 1)
GIB = ("GiB", GiB)
DECIMAL_GB = ("GB", GB)
MIB = ("MiB", MiB)

_MEANS = {
    "total": "the total of all ranks",
    "rank": "one rank",
    "server": "one server, whatever the ranks",
    "engine": "one engine, its ranks together",
    "pod": "one pod",
}
SHELL_PLACE = "/path/on/the/drive"


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a plan gives one replica: totals over its `ranks`, all on one host.

    `latent`: the model keeps one latent for all heads, so every rank holds the same bytes and one rank stores them.
    `block_bytes` are those of one engine block on one rank, `gpu_bytes` the cache that the GPUs of one replica hold.
    `kv_bytes` of one rank, which hold `kv_tokens`, were stated in place of a memory fraction (None: `utilization`).
    Experts are dealt over `dealt_over` such engines. `max_model_len` is the longest sequence to accept (None: the
    model's own); `slots` of llama.cpp share a context of `context_tokens`, keys and values in `cache_types`.
    `switches` are what the estimate was told beside sizes.
    `beside_bytes` is host memory of one replica beside the tier. `share` and `ttl_s` are the plan's policy. `on_host`
    replicas share the host that `machine` describes; `disk_free_bytes` are free in the folder at `disk_path`, of which
    an earlier cache holds `disk_own_bytes` more. None is unknown.
    """

    host_bytes: int
    disk_bytes: int
    ranks: int
    latent: bool
    block_tokens: int
    utilization: float
    disk_path: str | None = None
    model: str = "MODEL"
    tp: int | None = None
    pp: int = 1
    dcp: int = 1
    dealt_over: int = 1
    kv_dtype: str = "auto"
    kv_bytes: int | None = None
    kv_tokens: int | None = None
    max_model_len: int | None = None
    context_tokens: int | None = None
    slots: int | None = None
    cache_types: tuple[str, str] | None = None
    switches: Switches = field(default_factory=Switches)
    block_bytes: int | None = None
    gpu_bytes: int = 0
    beside_bytes: int | None = None
    share: Literal["all", "tenant", "none"] = "all"
    ttl_s: float | None = None
    on_host: int = 1
    machine: Host | None = None
    pinned_bytes: int | None = None
    disk_free_bytes: int | None = None
    disk_own_bytes: int = 0

    @property
    def storing(self) -> int:
        """Ranks that hold a share of the tier where a latent is stored by the first alone."""
        return 1 if self.latent else self.ranks

    @property
    def folder(self) -> str:
        """Where files of a disk tier go."""
        return (self.disk_path or SHELL_PLACE).rstrip("/") or "/"


@dataclass(frozen=True, slots=True, kw_only=True)
class Emission:
    """One system's texts for a plan, its sizes, and what was checked on the way."""

    floor: str
    parts: tuple[ConfigPart, ...]
    knobs: tuple[Knob, ...] = ()
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """What one configuration reserves on a host. `ranks` None: it does not say and nothing asked.

    `shm`: the host tier lies in /dev/shm, so that it needs room there.
    """

    knobs: tuple[Knob, ...]
    ranks: int | None = None
    shm: bool = False
    findings: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """What the reader of a configuration was told beside it: ranks, or those `planned`, and what the model keeps."""

    ranks: int | None = None
    planned: int | None = None
    latent: bool = False
    block_bytes: int | None = None


def knob(name: str, count: float, unit: tuple[str, int], scope: Scope, times: int, tier: Tier, why: str = "") -> Knob:
    """A size of `count` units, `times` times on the host; what is less than a byte is not taken."""
    written = f"{count:.10g}" if isinstance(count, float) else str(count)
    total = int(count * unit[1]) * times
    return Knob(
        name=name,
        written=written,
        unit=unit[0],
        unit_bytes=unit[1],
        scope=scope,
        times=times,
        tier=tier,
        bytes=total,
        why=why,
    )


def unbounded(name: str, written: str, tier: Tier, why: str) -> Knob:
    """A size that the system bounds by nothing."""
    return Knob(
        name=name, written=written, unit="", unit_bytes=0, scope="total", times=1, tier=tier, bytes=None, why=why
    )


def says(one: Knob) -> str:
    """'max_local_cpu_size: 50 GiB of one rank x 8 = 429496729600 B (400.00 GiB) of host'."""
    if one.bytes is None:
        return f"{one.name}: {one.why}"
    meaning = _MEANS[one.scope]
    many = f" x {one.times}" if one.times != 1 or one.scope == "rank" else ""
    text = (
        f"{one.name}: {one.written} {one.unit}, {meaning}{many} = {one.bytes} B ({show_bytes(one.bytes)}) of {one.tier}"
    )
    return text + (f"; {one.why}" if one.why else "")


def taken(knobs: Iterable[Knob], tier: Tier) -> int | None:
    """Bytes of a tier on the host, all knobs together; None where one has no bound."""
    sizes = [one.bytes for one in knobs if one.tier == tier]
    known = [size for size in sizes if size is not None]
    return sum(known) if len(known) == len(sizes) else None


def finding(severity: Severity, code: str, text: str) -> Finding:
    """A finding of one line."""
    return Finding(severity=severity, code=code, text=text)


def part(name: str, form: ConfigForm, text: str) -> ConfigPart:
    """One text to save under `name`."""
    return ConfigPart(name=name, form=form, text=text)


def command(words: Sequence[Sequence[str]], notes: Iterable[str] = (), env: Sequence[str] = ()) -> str:
    """A shell command, one group of words a line, with comments above it: a comment inside would end it."""
    lines = [*(_assigned(one) for one in env), *(shlex.join(group) for group in words)]
    return comments(notes) + " \\\n  ".join(lines) + "\n"


def _assigned(one: str) -> str:
    name, _, value = one.partition("=")
    return f"{name}={shlex.quote(value)}"


def comments(notes: Iterable[str], mark: str = "#") -> str:
    """Lines of comment."""
    return "".join(f"{mark} {note}\n" for note in notes)


def ranks_of(asked: Asked, found: int | None, source: str, name: str) -> int:
    """How many ranks a size a rank is multiplied by. Raises KvplanError where neither file nor option says."""
    if found is not None and asked.ranks is not None and found != asked.ranks:
        raise KvplanError(f"{source}: says {found} ranks and --ranks says {asked.ranks}: leave --ranks out")
    known = next((count for count in (found, asked.ranks, asked.planned) if count is not None), None)
    if known is None:
        raise KvplanError(f"{source}: {name} is a size of one rank, and the file does not say how many: add --ranks N")
    return known


def notes(floor: str, knobs: Iterable[Knob], findings: Iterable[Finding]) -> list[str]:
    """Comments for a text: the version it is for, each size in bytes of the host, and what does not hold."""
    wrong = [f"{one.severity}: {one.text}" for one in findings if one.severity != "info"]
    return [f"for {floor}", *(says(one) for one in knobs), *wrong]
