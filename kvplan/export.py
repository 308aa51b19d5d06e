"""A plan as the configuration of a serving system, and an existing configuration as the bytes that it reserves.

What each system can be told, in which unit and of what, is in engines/configs/, one module a system.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

from msgspec import structs

from kvplan.documents import ConfigCheck, Document, Export, Finding, Host, Plan, Probe, Residency
from kvplan.engines import configs
from kvplan.engines.configs import llamacpp
from kvplan.engines.configs.common import Asked, Given, Reading, finding, part, taken
from kvplan.engines.configs.conditions import DISK_PERCENT, SHM_SPARE
from kvplan.engines.configs.given import given, keeps_latent
from kvplan.engines.configs.source import Source
from kvplan.engines.profiles import profile
from kvplan.errors import KvplanError, UsageError
from kvplan.units import show_bytes

SYSTEMS = tuple(name for name, row in configs.SYSTEMS.items() if row.written is not None)


def export(plan: Plan, system: str, in_kubernetes: bool = False, host: Probe | None = None) -> Export:
    """A plan's tiers as `system` is told them, with every condition that was checked.

    `host` is a newer probe of the host that they are for; otherwise its room is what the plan's own probe found. Raises
    LimitError with the reason where the system cannot do what the plan asks, KvplanError for a plan of an earlier
    kvplan, which does not say enough.
    """
    row, wanted = configs.system(system, writing=True), _given(plan, host)
    differs = tuple(_other_rules(plan, row))
    if any(one.code == "other-engine" for one in differs):  # a memory fraction is of something else in each engine
        wanted = replace(wanted, utilization=profile(row.engines[0]).utilization, kv_bytes=None, kv_tokens=None)
    made = configs.emit(row, wanted, in_kubernetes)
    return Export(
        system=system,
        floor=made.floor,
        parts=made.parts,
        knobs=made.knobs,
        host_bytes=wanted.host_bytes,
        disk_bytes=wanted.disk_bytes,
        host_taken_bytes=taken(made.knobs, "host"),
        disk_taken_bytes=taken(made.knobs, "disk"),
        findings=(*_exceeded(plan), *_undealt(wanted, row), *differs, *made.findings),
    )


def export_residency(residency: Residency) -> Export:
    """The router's preset and command of several models on one machine, as their own page has them."""
    preset, command = "llama.cpp router, models.ini", "llama.cpp router, command"
    text = (
        "cache-ram is 0, so that models take what is counted here: without it every loaded model's server may keep a "
        "prompt cache of 8 GiB of host memory. Where one shall have it, set it in its section and count it"
    )
    return Export(
        system="llama.cpp-router",
        floor=llamacpp.ROUTER_FLOOR,
        parts=(
            part(llamacpp.PRESET, "ini", residency.config[preset]),
            part(llamacpp.ROUTER, "shell", residency.config[command]),
        ),
        knobs=(),
        host_bytes=0,
        disk_bytes=0,
        host_taken_bytes=None,
        disk_taken_bytes=0,
        findings=(finding("info", "one-cache-a-model", text),),
    )


def _given(plan: Plan, host: Probe | None = None) -> Given:
    if plan.settings is None:
        raise KvplanError("the plan is of an earlier kvplan, which did not keep its engine's settings: make it again")
    inputs = plan.inputs
    probe = inputs.probe.data if inputs.probe else None
    settings = plan.settings if host is None else structs.replace(plan.settings, host_known=True)
    return given(settings, inputs.estimate.data, plan.policy, plan.budgets, host or probe)


def _exceeded(plan: Plan) -> Iterator[Finding]:
    """Whether the plan itself says that it does not hold yet: its flags alone do not show it."""
    broken = [limit.name for limit in plan.limits if not limit.ok]
    if broken:
        text = f"the plan exceeds {', '.join(broken)}: its own decision says to settle that first"
        yield finding("warning", "plan-exceeds", text)


def _undealt(given: Given, row: configs.System) -> Iterator[Finding]:
    """Whether the plan deals experts over engines, which only vLLM's own flags are written for."""
    if given.dealt_over > 1 and not row.name.startswith("vllm"):
        text = (
            f"the plan deals experts over {given.dealt_over} data-parallel engines: sizes are of one of them, and how "
            f"{row.title} starts them together is not in here"
        )
        yield finding("warning", "engines-together", text)


def _other_rules(plan: Plan, row: configs.System) -> Iterator[Finding]:
    """Whether the plan was made by the rules of another engine, or of another layer in it."""
    planned, layer = (plan.settings.engine, plan.settings.offload) if plan.settings else ("", "")
    if row.engines and planned not in row.engines:
        text = (
            f"the plan was made for {planned}, and {row.title} lays the cache out in its own way: make estimate and "
            f"plan with --engine {row.engines[0]}, these are the same bytes and not the same tokens"
        )
        yield finding("warning", "other-engine", text)
    elif row.layer != layer:
        text = (
            f"the plan was made with --offload {layer}, and {row.title} has other chunks and keeps another share of "
            f"its pool filled: plan with --offload {row.layer}"
        )
        yield finding("warning", "other-layer", text)


def check(
    text: str,
    name: str,
    system: str | None = None,
    against: Document[Any] | None = None,
    ranks: int | None = None,
) -> ConfigCheck:
    """What the configuration in `text` reserves on one host; `name` is what errors call it.

    `system` None tells it from its words. `against` is a plan, whose budget of one replica is the limit, or a probe,
    whose host is. `ranks` is needed where a size counts by rank and the file does not say how many there are. Raises
    KvplanError naming file and key for what cannot be read.
    """
    if ranks is not None and ranks < 1:
        raise UsageError(f"--ranks {ranks}: an engine has at least one rank")
    source = Source(name, text)
    row = configs.system(system) if system else configs.recognised(source)
    plan = against.data if against is not None and isinstance(against.data, Plan) else None
    probe = against.data if against is not None and isinstance(against.data, Probe) else None
    if against is not None and plan is None and probe is None:
        raise UsageError(f"--against: a plan or a probe is wanted, and this is a {against.kind}")
    reading = row.read(source, _asked(plan, ranks))
    limits = _limits(plan, probe)
    found = (*reading.findings, *_over(reading, limits), *_shm(reading, _host(plan, probe)))
    return ConfigCheck(
        system=row.name,
        source=name,
        ranks=reading.ranks if reading.ranks is not None else ranks,
        knobs=reading.knobs,
        host_bytes=taken(reading.knobs, "host"),
        disk_bytes=taken(reading.knobs, "disk"),
        against=limits[2],
        host_limit_bytes=limits[0],
        disk_limit_bytes=limits[1],
        ok=not any(one.severity == "error" for one in found),
        findings=found,
    )


def _asked(plan: Plan | None, ranks: int | None) -> Asked:
    """What a reader should know beside the file: --ranks or the plan's, and what the plan's model keeps."""
    if plan is None or plan.settings is None:
        return Asked(ranks=ranks)
    latent = keeps_latent(plan.inputs.estimate.data)
    block = _given(plan).block_bytes
    return Asked(ranks=ranks, planned=plan.settings.ranks, latent=latent, block_bytes=block)


def _limits(plan: Plan | None, probe: Probe | None) -> tuple[int | None, int | None, str | None]:
    """Most host and disk bytes, and what says so."""
    if plan is not None:
        budgets = plan.budgets
        return budgets.host.requested_bytes, budgets.disk.requested_bytes, "the plan's budget of one replica"
    if probe is not None:
        drives = [one.free_bytes * DISK_PERCENT // 100 for one in probe.capacity]
        disk = drives[0] if len(drives) == 1 else None
        return (
            probe.host.usable_memory_bytes,
            disk,
            "the probed host",
        )
    return None, None, None


def _host(plan: Plan | None, probe: Probe | None) -> Host | None:
    if plan is not None:
        inner = plan.inputs.probe
        return inner.data.host if inner is not None and plan.settings and plan.settings.host_known else None
    return probe.host if probe is not None else None


def _over(reading: Reading, limits: tuple[int | None, int | None, str | None]) -> Iterator[Finding]:
    for tier, limit in (("host", limits[0]), ("disk", limits[1])):
        size = taken(reading.knobs, tier)  # type: ignore[arg-type]
        if limit is None:
            continue
        if size is None and tier == "host":
            text = f"host memory is bounded by nothing here, and {limits[2]} is {show_bytes(limit)}"
            yield finding("error", "over-host", text)
        elif size is not None and size > limit:
            more = show_bytes(size - limit)
            text = f"{show_bytes(size)} of {tier} reserved, {more} more than the {show_bytes(limit)} of {limits[2]}"
            yield finding("error", f"over-{tier}", text)


def _shm(reading: Reading, host: Host | None) -> Iterator[Finding]:
    size = taken(reading.knobs, "host") or 0
    if not reading.shm or not size or host is None or host.shm_free_bytes is None:
        return
    if host.shm_free_bytes < size + SHM_SPARE:
        text = f"/dev/shm has {show_bytes(host.shm_free_bytes)} free and the tier maps {show_bytes(size)} there"
        yield finding("error", "shm-room", text)
