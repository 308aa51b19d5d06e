"""The best limit for a log: play it under several and take the smallest that is as good as any."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Literal

import numpy as np
from msgspec.structs import replace

from kvplan.documents import Candidate, LimitSearch, Machine, ResidencyPolicy, ResidentModel
from kvplan.resident.costs import shared_memory, units
from kvplan.resident.measure import play
from kvplan.resident.table import Log

REQUESTS = 100_000  # longer logs are searched on their beginning
TRIED = 8


def models_that_fit(models: Sequence[ResidentModel], memory_bytes: int) -> int:
    """How many of the models fit together whichever they are: the largest ones first."""
    total = 0
    for count, size in enumerate(sorted((model.total_bytes for model in models), reverse=True), 1):
        total += size
        if total > memory_bytes:
            return count - 1
    return len(models)


def search(models: Sequence[ResidentModel], machine: Machine, log: Log, policy: ResidencyPolicy) -> LimitSearch:
    """Try counts of models, or byte budgets where the policy admits on bytes."""
    unit: Literal["models", "bytes"] = "bytes" if policy.max_models is None else "models"
    part = log.first(REQUESTS)
    values = _budgets(models, machine, part) if unit == "bytes" else _counts(models, machine)
    tried = [_candidate(models, machine, part, policy, unit, value) for value in values]
    return LimitSearch(unit=unit, requests=len(part.time_s), candidates=tuple(tried), best=_best(tried))


def _spaced(values: list[int]) -> list[int]:
    """At most TRIED of them, evenly spaced, the first and the last included."""
    if len(values) <= TRIED:
        return values
    return [values[round(place * (len(values) - 1) / (TRIED - 1))] for place in range(TRIED)]


def _counts(models: Sequence[ResidentModel], machine: Machine) -> list[int]:
    made = units(models, machine, shared_memory(models, machine))
    pinned = sum(unit.count for unit in made if unit.pinned)
    least = max(unit.count + pinned - (unit.count if unit.pinned else 0) for unit in made)
    return _spaced(list(range(least, len(models) + 1)))


def _budgets(models: Sequence[ResidentModel], machine: Machine, log: Log) -> list[int]:
    """Room for the most requested models together, one more at a time, never less than the largest unit."""
    made = units(models, machine, shared_memory(models, machine))
    counts = np.bincount(np.asarray(log.model), minlength=len(models))
    ranked = sorted(made, key=lambda unit: -sum(int(counts[member]) for member in unit.members))
    pinned = sum(unit.bytes for unit in made if unit.pinned)
    least = max(unit.bytes + pinned - (unit.bytes if unit.pinned else 0) for unit in made)
    sums = np.cumsum([unit.bytes for unit in ranked]).tolist()
    inside = {min(max(least, size), machine.models_bytes) for size in sums}
    return _spaced(sorted(inside))


def _candidate(
    models: Sequence[ResidentModel],
    machine: Machine,
    log: Log,
    policy: ResidencyPolicy,
    unit: Literal["models", "bytes"],
    value: int,
) -> Candidate:
    changed = replace(policy, max_models=value) if unit == "models" else replace(policy, budget_bytes=value)
    run = play(models, machine, log, changed, spans=False)
    fits = value <= models_that_fit(models, machine.models_bytes) if unit == "models" else value <= machine.models_bytes
    return Candidate(
        value=value,
        fits=fits or (unit == "models" and run.policy.budget_bytes is not None),
        loads=run.loads,
        interrupted=run.interrupted,
        unserved=run.unserved,
        mean_wait_s=None if run.wait is None else run.wait.mean,
        p95_wait_s=None if run.wait is None else run.wait.p95,
    )


def _best(tried: Sequence[Candidate]) -> int | None:
    able = [one for one in tried if one.fits and one.mean_wait_s is not None]
    sound = [one for one in able if not one.interrupted and not one.unserved] or able
    if not sound:
        return None
    shortest = min(one.mean_wait_s or 0.0 for one in sound)
    return min(one.value for one in sound if (one.mean_wait_s or 0.0) <= shortest * 1.01)
