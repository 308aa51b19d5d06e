"""What a played log says: counts and waits by model, and which models are asked for one after the other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np

from kvplan.documents import (
    CoAccess,
    Machine,
    ModelResidency,
    PolicyRun,
    ResidencyPolicy,
    ResidentModel,
    WaitSpread,
)
from kvplan.progress import Progress
from kvplan.resident.costs import shared_memory, units
from kvplan.resident.play import Play
from kvplan.resident.table import INTERRUPTED, LEFT, SERVED, WAITING, Log

if TYPE_CHECKING:
    from kvplan.resident.compiled import Compiled

SHOWN = 12  # models of the co-access matrix
COMPILED_FROM = 50_000  # requests from which compiled loops are worth their start


def play(
    models: Sequence[ResidentModel], machine: Machine, log: Log, policy: ResidencyPolicy, spans: bool = True
) -> PolicyRun:
    """Play the log under one policy and count. `spans` False leaves the timeline and the list of swaps out."""
    fresh = units(models, machine, shared_memory(models, machine))
    run = _player(len(log.time_s))(models, fresh, log, policy, machine)
    run.run()
    status, waits = np.frombuffer(run.status, dtype=np.uint8), np.asarray(run.wait_s)
    which = np.asarray(log.model)
    per_model = tuple(_model(run, index, status[which == index], waits[which == index]) for index in range(len(models)))
    evictions: dict[str, int] = {}
    for unit in fresh:
        for reason, times in unit.evictions.items():
            evictions[reason] = evictions.get(reason, 0) + times
    done = status == SERVED
    return PolicyRun(
        policy=policy,
        requests=len(status),
        served=int(done.sum()),
        interrupted=int((status == INTERRUPTED).sum()),
        left=int((status == LEFT).sum()),
        unserved=int((status == WAITING).sum()),
        loads=sum(unit.loads * unit.count for unit in fresh),
        evictions=evictions,
        refused_busy=sum(unit.refused for unit in fresh),
        loading_s=sum(unit.loading_s for unit in fresh),
        reprefill_s=sum(run.reprefill_s),
        restore_s=sum(run.restore_s),
        save_s=run.save_s,
        service_s=float(np.asarray(log.service_s)[done].sum()),
        makespan_s=run.now,
        peak_bytes=run.peak_bytes,
        peak_models=run.peak_count,
        over_memory_loads=run.over_memory,
        wait=spread(waits[done]),
        models=per_model,
        wait_percentiles_s=percentiles(waits[done]) if spans else (),
        spans=tuple(run.spans) if spans else (),
        spans_total=run.span_count,
        swaps=tuple(run.swaps) if spans else (),
        swaps_total=run.swap_count,
        held_idle_s=sum(unit.held_idle_s for unit in fresh),
    )


def _player(requests: int) -> type[Play] | type[Compiled]:
    if requests < COMPILED_FROM:
        return Play
    from kvplan.resident.compiled import Compiled  # half a second that short logs need not wait for

    return Compiled


def announced(log: Log, progress: Progress) -> None:
    """Say that loops are compiled before the log is played, if they will be."""
    if len(log.time_s) >= COMPILED_FROM:
        from kvplan.resident.compiled import announced as said

        said(progress)


def _model(run: Play | Compiled, index: int, status: np.ndarray, waits: np.ndarray) -> ModelResidency:
    unit = run.unit_of[index]
    return ModelResidency(
        name=run.models[index].name,
        requests=len(status),
        served=int((status == SERVED).sum()),
        interrupted=int((status == INTERRUPTED).sum()),
        left=int((status == LEFT).sum()),
        unserved=int((status == WAITING).sum()),
        loads=unit.loads,
        cold_loads=unit.cold_loads,
        evictions=dict(unit.evictions),
        refused_busy=unit.refused,
        resident_s=unit.resident_s,
        busy_s=unit.busy_s,
        loading_s=unit.loading_s,
        reprefill_s=run.reprefill_s[index],
        restore_s=run.restore_s[index],
        wait=spread(waits[status == SERVED]),
        held_idle_s=unit.held_idle_s,
    )


def spread(values: np.ndarray) -> WaitSpread | None:
    """Mean and nearest-rank percentiles; None of nothing."""
    if not len(values):
        return None
    ordered = np.sort(values)
    at = [float(ordered[-(-len(ordered) * share // 100) - 1]) for share in (50, 95, 99)]
    return WaitSpread(
        requests=len(ordered), mean=float(ordered.mean()), p50=at[0], p95=at[1], p99=at[2], max=float(ordered[-1])
    )


def percentiles(values: np.ndarray) -> tuple[float, ...]:
    """The values at 0, 1, … 100 % by nearest rank, the least first; nothing of nothing."""
    if not len(values):
        return ()
    ordered = np.sort(values)
    return tuple(float(ordered[max(0, -(-len(ordered) * percent // 100) - 1)]) for percent in range(101))


def co_access(models: Sequence[ResidentModel], log: Log, window_s: float) -> CoAccess:
    """For the most requested models: how often a request is followed by one for another model within the window."""
    times, which = np.asarray(log.time_s), np.asarray(log.model)
    counts = np.bincount(which, minlength=len(models))
    shown = [int(index) for index in np.argsort(-counts, kind="stable")[:SHOWN] if counts[index]]
    places = {index: np.flatnonzero(which == index) for index in shown}
    rows = []
    for first in shown:
        mine = places[first]
        row = []
        for second in shown:
            after = np.searchsorted(places[second], mine, side="right")  # the next in the log's order
            found = after < len(places[second])
            gaps = times[places[second][after[found]]] - times[mine[found]]
            row.append(float((gaps <= window_s).sum()) / len(mine))
        rows.append(tuple(row))
    return CoAccess(window_s=window_s, models=tuple(models[index].name for index in shown), ratios=tuple(rows))
