"""One host memory, two claimants: a plan's KV tier, and the weight files or models that want to stay in it."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msgspec.structs import replace

from kvplan.documents import (
    Machine,
    MemorySplit,
    Plan,
    PolicyRun,
    ResidencyPolicy,
    ResidentModel,
    SplitPoint,
)
from kvplan.errors import KvplanError, LimitError
from kvplan.progress import Progress
from kvplan.resident.costs import shared_memory, stay_cold, units
from kvplan.resident.measure import announced, play
from kvplan.resident.search import REQUESTS
from kvplan.resident.table import Log
from kvplan.units import show_bytes, show_duration

ASSUMED = (
    "A second of loading or re-prefilling weighs as much as a second of prefill that the KV tier spares, though "
    "another model may answer meanwhile.",
    "The KV tier's seconds are the plan's for its own log and model; the models' are this log's. Both are for an hour.",
    "Between two sizes of the plan's curve a tier is worth what the smaller one is, so that no size between them is "
    "better than both.",
    "The page cache keeps all weight files or is counted on for none.",
)


def divide(
    machine: Machine,
    models: Sequence[ResidentModel],
    log: Log,
    policy: ResidencyPolicy,
    plan: Plan,
    progress: Progress,
) -> MemorySplit:
    """Play the log beside every size of the tier on the plan's curve, and take the one that serves both best.

    Raises KvplanError for a log that spans no time, LimitError where no size leaves the models their room.
    """
    host = machine.host_bytes
    assert host is not None, "the caller knows the host memory"
    part = log.first(REQUESTS)
    span = part.time_s[-1] - part.time_s[0]
    if span <= 0:
        raise KvplanError(f"{log.name} spans no time: dividing the host memory needs seconds an hour")
    announced(part, progress)
    replicas = replicas_on_host(plan)
    runs: dict[tuple[bool | None, int, int | None], PolicyRun] = {}
    points = []
    for size, saved in tier_sizes(plan):
        beside = replace(machine, host_kv_bytes=size * replicas)
        inside = within(policy, beside)
        if size * replicas + machine.reserved_bytes > host or not _playable(models, beside, inside):
            continue
        key = (shared_memory(models, beside).every_swap_cold, beside.models_bytes, inside.budget_bytes)
        if key not in runs:
            progress(f"playing the log beside a KV tier of {show_bytes(size)}")
            runs[key] = play(models, beside, part, inside, spans=False)
        points.append(_point(models, beside, size, saved * replicas, runs[key], span))
    if not points:
        raise LimitError(f"the models leave no room in {show_bytes(host)} of host memory, even without a KV tier")
    best = min(points, key=lambda point: (point.harm, -point.net_s_per_hour, point.host_kv_bytes))
    return MemorySplit(
        host_bytes=host,
        reserved_bytes=machine.reserved_bytes,
        replicas=replicas,
        requests=len(part.time_s),
        span_s=span,
        points=tuple(points),
        best_bytes=best.host_kv_bytes,
        plan_bytes=plan.budgets.host.requested_bytes,
        why=_why(points, best, plan.budgets.host.requested_bytes),
        assumed=(*ASSUMED, *_of_machine(models, machine), *_of_plan(plan)),
    )


def tier_sizes(plan: Plan) -> list[tuple[int, float]]:
    """Sizes of one replica's host tier, smallest first, with the seconds an hour it nets; no tier nets nothing."""
    found = {0: 0.0}
    found.update((point.bytes, point.net_s_per_hour) for point in plan.curve if point.tier == "host")
    return sorted(found.items())


def replicas_on_host(plan: Plan) -> int:
    """Replicas that share the host, each with its own tier: as the policy states, else as the probed GPUs hold."""
    parallel = plan.inputs.estimate.data.parallel
    replicas = max(1, plan.policy.replicas * parallel.dp)
    if plan.policy.replicas_per_host:
        return min(replicas, plan.policy.replicas_per_host)
    probe = plan.inputs.probe
    if probe is not None and probe.data.host.gpus:
        return min(replicas, max(1, len(probe.data.host.gpus) // parallel.gpus))
    return replicas


def within(policy: ResidencyPolicy, machine: Machine) -> ResidencyPolicy:
    """The policy with its byte budget no larger than the machine leaves to models."""
    if policy.budget_bytes is None:
        return policy
    return replace(policy, budget_bytes=min(policy.budget_bytes, machine.models_bytes))


def _playable(models: Sequence[ResidentModel], machine: Machine, policy: ResidencyPolicy) -> bool:
    """Whether every model can be loaded at all: beside what is pinned, in the machine's memory."""
    made = units(models, machine, shared_memory(models, machine))
    pinned = sum(unit.bytes for unit in made if unit.pinned)
    room = machine.models_bytes if policy.budget_bytes is None else policy.budget_bytes
    return all((0 if unit.pinned else unit.bytes) + pinned <= room for unit in made)


def _point(
    models: Sequence[ResidentModel], machine: Machine, size: int, saved: float, run: PolicyRun, span_s: float
) -> SplitPoint:
    shared = shared_memory(models, machine)
    loading, again = (seconds * 3600 / span_s for seconds in (run.loading_s, run.reprefill_s + run.restore_s))
    return SplitPoint(
        host_kv_bytes=size,
        page_cache_bytes=shared.page_cache_bytes or 0,
        models_bytes=machine.models_bytes,
        every_swap_cold=shared.every_swap_cold is not False or len(stay_cold(models, machine, shared)) == len(models),
        kv_saved_s_per_hour=saved,
        loads=run.loads,
        loading_s_per_hour=loading,
        reprefill_s_per_hour=again,
        net_s_per_hour=saved - loading - again,
        p95_wait_s=None if run.wait is None else run.wait.p95,
        harm=run.interrupted + run.unserved + run.over_memory_loads,
    )


def _why(points: Sequence[SplitPoint], best: SplitPoint, alone: int) -> str:
    """The choice in words: against no tier at all, and against what the plan takes for itself."""
    rival = next((point for point in points if point.host_kv_bytes == alone), None)
    said = ["No tier is worth what it costs" if best is points[0] else _against(best, points[0], "no tier")]
    if alone == best.host_kv_bytes:
        said.append("It is what the plan takes for itself")
    elif rival is None:
        said.append(f"The plan's own {show_bytes(alone)} do not fit beside the models")
    else:
        said.append(f"The plan's own {show_bytes(alone)} {_costs(rival, best)}")
    return ". ".join(said) + "."


def _against(best: SplitPoint, other: SplitPoint, name: str) -> str:
    tier = f"A KV tier of {show_bytes(best.host_kv_bytes)} spares {show_duration(best.kv_saved_s_per_hour)} an hour"
    if best.harm < other.harm:
        return f"{tier}, and less is cut, unserved or beyond memory than with {name}"
    more = _lost(best) - _lost(other)
    if more > 0:
        return f"{tier} and costs the models {show_duration(more)} more than {name}"
    return f"{tier} and costs the models no more than {name}"


def _costs(rival: SplitPoint, best: SplitPoint) -> str:
    if rival.harm > best.harm:
        return f"cut, leave unserved or put beyond memory {rival.harm - best.harm:,} more"
    saved = show_duration(max(0.0, rival.kv_saved_s_per_hour))
    if _lost(rival) == _lost(best):
        return f"would spare {saved} an hour of prefill and cost the models as much"
    return (
        f"would spare {saved} an hour of prefill and cost the models {show_duration(_lost(rival))} of loading and "
        + (f"re-prefilling, where this costs them {show_duration(_lost(best))}")
    )


def _lost(point: SplitPoint) -> float:
    return point.loading_s_per_hour + point.reprefill_s_per_hour


def _of_machine(models: Sequence[ResidentModel], machine: Machine) -> Iterator[str]:
    """What makes the page cache worth nothing here, so that the tier may take all of it."""
    if machine.pattern == "direct":
        yield "Weights are read directly: the page cache keeps none of them, so leaving it room gains nothing."
    elif machine.warm_bytes_per_s is None and all(model.warm_load_s is None for model in models):
        yield "No warm load time is given: a file in the page cache is counted to load no faster than from the drive."


def _of_plan(plan: Plan) -> Iterator[str]:
    """What is particular to this plan."""
    if plan.budgets.disk.requested_bytes:
        yield "The plan's disk tier is left out of the comparison."
    if not any(point.tier == "host" for point in plan.curve):
        yield "The plan's curve has no size of a host tier, so no tier is the only choice."
