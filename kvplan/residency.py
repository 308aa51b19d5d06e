"""Several models on one machine: a log that names models, played under a policy -> Residency."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from kvplan.documents import (
    Evidence,
    Machine,
    MemorySplit,
    Plan,
    PolicyRun,
    Residency,
    ResidencyPolicy,
    ResidentModel,
)
from kvplan.errors import KvplanError, LimitError
from kvplan.progress import Progress, silent
from kvplan.resident import inputs
from kvplan.resident.advice import findings
from kvplan.resident.costs import PATTERN_RATIO, shared_memory, units
from kvplan.resident.measure import announced, co_access, play
from kvplan.resident.search import search
from kvplan.resident.settings import settings
from kvplan.resident.split import divide
from kvplan.resident.table import Log
from kvplan.units import show_bytes, show_rate

__all__ = ["Log", "policies", "read_log", "read_models", "residency", "share", "with_host_memory"]

NOT_MODELLED = (
    "Requests of one loaded model run side by side for the seconds that the log gives them; a second model in memory "
    "does not slow the first.",
    "A load that exceeds memory is counted and goes on, where a real one fails.",
    "Sleeping models that wake at the same time do not share the drive's rate; loads come one after the other.",
    "A request that was cut is not sent again.",
)
HOST_MEMORY = "--host-memory"
STALE_S = 5.0  # how late a stale count is, as a what-if


def read_models(path: Path) -> tuple[Machine, tuple[ResidentModel, ...]]:
    """Machine and models of a TOML or JSON list. Raises KvplanError naming file and key."""
    return inputs.read_models(path)


def read_log(path: Path, models: Sequence[ResidentModel]) -> Log:
    """A JSON Lines or CSV log of requests that name these models. Raises KvplanError naming file and line."""
    return inputs.read_log(path, models)


def with_host_memory(machine: Machine, host_bytes: int | None) -> Machine:
    """The machine with that much host memory; None leaves it as it is. Raises KvplanError for unified memory."""
    if host_bytes is None:
        return machine
    if machine.unified:
        raise KvplanError("--host-memory: the machine's memory is unified: its list says how much there is")
    return replace(machine, ram_bytes=host_bytes, ram_source=HOST_MEMORY)


def share(
    machine: Machine,
    models: Sequence[ResidentModel],
    log: Log,
    policy: ResidencyPolicy,
    plan: Plan,
    *,
    progress: Progress = silent,
) -> tuple[Machine, MemorySplit | None]:
    """The machine with a plan's KV tier in its host memory, as large as serves both best.

    Where the machine's host memory is not known the tier is the plan's and nothing is divided (None). Raises
    KvplanError for a log that spans no time and LimitError where not even a size of nothing leaves the models room.
    """
    if machine.host_bytes is None:
        return replace(machine, host_kv_bytes=plan.budgets.host.requested_bytes), None
    split = divide(machine, models, log, policy, plan, progress)
    return replace(machine, host_kv_bytes=split.best_bytes * split.replicas), split


def policies(
    machine: Machine,
    *,
    max_models: int | None = None,
    budget_bytes: int | None = None,
    keep_alive_s: float | None = None,
    sleep_after_s: float | None = None,
    batch_wait_s: float | None = None,
    kv_on_swap: Literal["lost", "saved"] = "lost",
) -> tuple[ResidencyPolicy, tuple[ResidencyPolicy, ...]]:
    """The policy asked for, and those worth holding against it.

    Without a count or a budget models are admitted on the machine's bytes. The others are the same one without busy
    protection, with a busy count that is wrong for every tenth request or five seconds late, with the keep-alive time
    counted from the request, and, for a count of models, admission on bytes. Raises KvplanError for a time of nothing.
    """
    for name, seconds in (("keep-alive", keep_alive_s), ("sleep-after", sleep_after_s)):
        if seconds is not None and seconds <= 0:  # servers read a 0 differently: at once, or never
            raise KvplanError(
                f"--{name} 0s: give a time above 0, such as 1s to unload at once, or leave it out for never"
            )
    if max_models is None and budget_bytes is None:
        budget_bytes = machine.models_bytes
    asked = ResidencyPolicy(
        name="by count" if budget_bytes is None else "by bytes",
        max_models=max_models,
        budget_bytes=budget_bytes,
        keep_alive_s=keep_alive_s,
        sleep_after_s=sleep_after_s,
        batch_wait_s=batch_wait_s,
        kv_on_swap=kv_on_swap,
    )
    others = [
        replace(asked, name="busy models not protected", protect_busy=False),
        replace(asked, name="busy count leaks", busy_count="leaks", miscount_every=10),
        replace(asked, name="busy count misses", busy_count="misses", miscount_every=10),
        replace(asked, name="busy count is stale", busy_count="stale", stale_s=STALE_S),
    ]
    if keep_alive_s is not None:
        others.append(replace(asked, name="keep-alive from the request", keep_alive_from="request"))
    if budget_bytes is None:
        others.append(replace(asked, name="by bytes", max_models=None, budget_bytes=machine.models_bytes))
    return asked, tuple(others)


def residency(
    machine: Machine,
    models: Sequence[ResidentModel],
    log: Log,
    policy: ResidencyPolicy,
    *,
    compare: Sequence[ResidencyPolicy] = (),
    split: MemorySplit | None = None,
    window_s: float = 1.0,
    searched: bool = True,
    progress: Progress = silent,
) -> Residency:
    """Play the log under the policy and those to compare with; search its best limit; say what to set.

    `split` is how the host memory was divided (see `share`), for the document. `window_s` is how soon another model's
    request counts as following. Raises KvplanError for a policy that lacks its figures and LimitError for a model that
    can never be loaded.
    """
    _check(machine, models, (policy, *compare))
    announced(log, progress)
    runs: list[PolicyRun] = []
    for one in (policy, *compare):
        progress(f"playing {one.name}")
        runs.append(play(models, machine, log, one))
    shared = shared_memory(models, machine)
    together = co_access(models, log, window_s)
    limited = policy.max_models is not None or policy.budget_bytes is not None
    if searched and limited:
        progress("searching the best limit")
    found = search(models, machine, log, policy) if searched and limited else None
    return Residency(
        machine=machine,
        resident_models=tuple(models),
        log=log.name,
        requests=len(log.time_s),
        runs=tuple(runs),
        co_access=together,
        shared=shared,
        search=found,
        config=settings(models, machine, policy, found),
        evidence=_evidence(machine, log),
        split=split,
        not_modelled=NOT_MODELLED,
        findings=findings(models, machine, log, runs[0], together, shared, split),
    )


def _check(machine: Machine, models: Sequence[ResidentModel], policies: Sequence[ResidencyPolicy]) -> None:
    made = units(models, machine, shared_memory(models, machine))
    for policy in policies:
        pinned = [unit for unit in made if unit.pinned]
        for unit in made:
            beside = [other for other in pinned if other is not unit]
            size = unit.bytes + sum(other.bytes for other in beside)
            count = unit.count + sum(other.count for other in beside)
            names = ", ".join(repr(models[member].name) for member in unit.members)
            after = " beside what is pinned" if beside else ""
            if policy.budget_bytes is not None and size > policy.budget_bytes:
                need = f"{show_bytes(size)} are needed and the budget is {show_bytes(policy.budget_bytes)}"
                raise LimitError(f"model {names} can never be loaded{after}: {need}")
            if policy.max_models is not None and count > policy.max_models:
                need = f"{count} models are needed at once and the limit is {policy.max_models}"
                raise LimitError(f"model {names} can never be loaded{after}: {need}")
        if policy.kv_on_swap == "saved":
            _can_save(machine, models)


def _can_save(machine: Machine, models: Sequence[ResidentModel]) -> None:
    if machine.kv_save_bytes_per_s is None or machine.kv_restore_bytes_per_s is None:
        raise KvplanError("saving the KV cache on a swap needs the machine's kv_save_rate and kv_restore_rate")
    lacking = [model.name for model in models if model.kv_bytes_per_token is None]
    if lacking:
        raise KvplanError(f"saving the KV cache on a swap needs kv_bytes_per_token of model {lacking[0]!r}")


def _evidence(machine: Machine, log: Log) -> tuple[Evidence, ...]:
    listed = "model list"
    made = [
        Evidence(what="memory", value=show_bytes(machine.memory_bytes), provenance="configured", source=listed),
        Evidence(what="requests", value=f"{len(log.time_s):,}", provenance="measured", source=log.name),
    ]
    asked = machine.ram_source == HOST_MEMORY
    if machine.ram_bytes is not None:
        made.append(
            Evidence(
                what="host memory",
                value=show_bytes(machine.ram_bytes),
                provenance="measured" if machine.ram_source and not asked else "configured",
                source=machine.ram_source or listed,
            )
        )
    if machine.read_bytes_per_s is not None:
        given = machine.pattern_ratio is not None
        ratio = machine.pattern_ratio if machine.pattern_ratio is not None else PATTERN_RATIO[machine.pattern]
        rate = show_rate(machine.read_bytes_per_s)
        made += [
            Evidence(
                what="sequential read",
                value=rate,
                provenance="measured" if machine.read_source else "configured",
                source=machine.read_source or listed,
            ),
            Evidence(
                what=f"share of it that {machine.pattern} loading reaches",
                value=f"{ratio:g}",
                provenance="configured" if given else "default",
                source=listed if given else "kvplan",
            ),
        ]
    made += [
        Evidence(what=what, value=show_rate(rate), provenance="configured", source=listed)
        for what, rate in (
            ("read from the page cache", machine.warm_bytes_per_s),
            ("KV cache saved", machine.kv_save_bytes_per_s),
            ("KV cache read back", machine.kv_restore_bytes_per_s),
        )
        if rate is not None
    ]
    return tuple(made)
