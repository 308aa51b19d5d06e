"""A log, its units and a policy as arrays for the compiled player, and what it did turned back into units and spans."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan.documents import Machine, ResidencyPolicy, ResidencySpan, ResidentModel, Swap
from kvplan.resident.table import KEPT, KILL_S, Log, State, Unit

Array: TypeAlias = NDArray[Any]

STATES: tuple[State, ...] = ("unloaded", "loading", "ready", "busy", "sleeping", "stopping")
REASONS = ("lru", "lru-busy", "lru-loading", "keep-alive")
COUNTS = ("exact", "leaks", "misses", "stale")
NO_LIMIT = 1 << 62

_RULES = np.dtype(
    [(name, np.int64) for name in ("most", "budget", "memory", "busy_count", "miscount_every")]
    + [(name, np.bool_) for name in ("protect", "from_request", "batches", "saved")]
    + [
        (name, np.float64)
        for name in ("keep_s", "sleep_s", "batch_s", "stale_s", "kill_s", "save_rate", "restore_rate")
    ]
)
_TALLY = np.dtype(
    [(name, np.float64) for name in ("now", "save_s")]
    + [(name, np.int64) for name in ("order", "count", "bytes", "leaving_count", "leaving_bytes", "queued")]
    + [(name, np.int64) for name in ("peak_count", "peak_bytes", "over_memory", "span_count", "swap_count")]
)
_UNIT = np.dtype(
    [(name, np.int64) for name in ("index", "count", "bytes", "state", "last_used", "running", "counted", "first")]
    + [(name, np.int64) for name in ("waiting", "first_waiter", "last_waiter", "generation", "held_bytes")]
    + [(name, np.int64) for name in ("leaving_bytes", "loads", "cold_loads", "refused")]
    + [(name, np.bool_) for name in ("pinned", "queued", "closed", "loaded_before")]
    + [(name, np.float64) for name in ("cold_s", "warm_s", "stop_s", "since", "last_request", "queued_at")]
    + [(name, np.float64) for name in ("resident_s", "busy_s", "loading_s", "held_since", "held_idle_s")]
)
_REQUEST = np.dtype(
    [(name, np.float64) for name in ("time", "service", "timeout", "wait")]
    + [("context", np.int64)]
    + [(name, np.int32) for name in ("unit", "model", "key", "next_waiter", "next", "before")]
    + [("status", np.uint8)]
)
_MODEL = np.dtype([("kv_bytes", np.int64)] + [(name, np.float64) for name in ("prefill", "reprefill_s", "restore_s")])
_KEY = np.dtype([("seen", np.bool_), ("generation", np.int64), ("tokens", np.int64)])
_SPAN = np.dtype([("unit", np.int64), ("state", np.int64), ("from_s", np.float64), ("to_s", np.float64)])
_SWAP = np.dtype([("at_s", np.float64)] + [(name, np.int64) for name in ("unit", "reason", "wanted_by", "interrupted")])


class World(NamedTuple):
    """Everything the player changes: records, one a unit, request, model and session; `rules` and `tally` are one each.

    `deadlines` (2, units) and `timers` (3, units) are by clock, `evictions` (units, 4) by reason, `refused_for`
    (units, units) by who was passed over and for whom. `queue` holds units, the head first;
    `scratch` (2, units) is of no meaning between steps.
    """

    rules: Array
    tally: Array
    units: Array
    requests: Array
    models: Array
    keys: Array
    queue: Array
    scratch: Array
    deadlines: Array
    timers: Array
    refused_for: Array
    evictions: Array
    spans: Array
    swaps: Array


def world(
    models: Sequence[ResidentModel], units: Sequence[Unit], log: Log, policy: ResidencyPolicy, machine: Machine
) -> World:
    """The arrays of a log that has not begun."""
    requests = _requests(models, units, log)
    keys = np.zeros(int(requests["key"].max(initial=-1)) + 1, _KEY)
    keys["generation"] = -1
    rates = np.zeros(len(models), _MODEL)
    rates["kv_bytes"] = [model.kv_bytes_per_token or 0 for model in models]
    rates["prefill"] = [model.prefill_tokens_per_s or 0.0 for model in models]
    count = len(units)
    return World(
        rules=_rules(policy, machine),
        tally=np.zeros(1, _TALLY),
        units=_units(units),
        requests=requests,
        models=rates,
        keys=keys,
        queue=np.zeros(count, np.int64),
        scratch=np.zeros((2, count), np.int64),
        deadlines=np.zeros((2, count)),
        timers=np.zeros((3, count), np.bool_),
        refused_for=np.zeros((count, count), np.bool_),
        evictions=np.zeros((count, len(REASONS)), np.int64),
        spans=np.zeros(KEPT, _SPAN),
        swaps=np.zeros(KEPT, _SWAP),
    )


def _rules(policy: ResidencyPolicy, machine: Machine) -> Array:
    rules = np.zeros(1, _RULES)
    one = rules[0]
    one["most"] = NO_LIMIT if policy.max_models is None else policy.max_models
    one["budget"] = NO_LIMIT if policy.budget_bytes is None else policy.budget_bytes
    one["memory"] = machine.models_bytes
    one["busy_count"] = COUNTS.index(policy.busy_count)
    one["miscount_every"] = policy.miscount_every
    one["protect"] = policy.protect_busy
    one["from_request"] = policy.keep_alive_from == "request"
    one["batches"] = policy.batch_wait_s is not None
    one["saved"] = policy.kv_on_swap == "saved"
    one["keep_s"], one["sleep_s"] = policy.keep_alive_s or 0.0, policy.sleep_after_s or 0.0
    one["batch_s"], one["stale_s"] = policy.batch_wait_s or 0.0, policy.stale_s
    one["kill_s"] = KILL_S  # here, as machine code that is kept would not see it change
    one["save_rate"] = machine.kv_save_bytes_per_s or 0.0
    one["restore_rate"] = machine.kv_restore_bytes_per_s or 0.0
    return rules


def _units(units: Sequence[Unit]) -> Array:
    made = np.zeros(len(units), _UNIT)
    for name in ("index", "count", "bytes", "pinned", "cold_s", "warm_s", "stop_s"):
        made[name] = [getattr(unit, name) for unit in units]
    for name in ("last_used", "first", "first_waiter", "last_waiter", "held_since"):
        made[name] = -1
    return made


def _requests(models: Sequence[ResidentModel], units: Sequence[Unit], log: Log) -> Array:
    made = np.zeros(len(log.time_s), _REQUEST)
    unit_of = np.zeros(len(models), np.int32)
    for unit in units:
        unit_of[list(unit.members)] = unit.index
    made["time"], made["service"], made["timeout"] = log.time_s, log.service_s, log.timeout_s
    made["model"], made["context"] = log.model, log.context_tokens
    made["unit"] = unit_of[made["model"]]
    sessions = np.asarray(log.session, np.int64)
    made["key"] = np.unique((sessions + 1) * len(models) + made["model"], return_inverse=True)[1]
    made["wait"] = -1.0
    for name in ("next_waiter", "next", "before"):
        made[name] = -1
    return made


def back(made: World, units: Sequence[Unit]) -> None:
    """Write what happened into the units that the log was played on."""
    names = ("last_used", "generation", "loads", "cold_loads", "refused", "loaded_before", "resident_s", "busy_s")
    for unit, one in zip(units, made.units, strict=True):
        for name in (*names, "loading_s", "held_idle_s"):
            setattr(unit, name, one[name].item())
        unit.state = STATES[one["state"]]
        times = made.evictions[unit.index].tolist()
        unit.evictions = {reason: number for reason, number in zip(REASONS, times, strict=True) if number}


def spans(made: World, models: Sequence[ResidentModel], units: Sequence[Unit]) -> list[ResidencySpan]:
    """The stretches that were kept, one for each model of a unit."""
    kept = made.spans[: min(KEPT, int(made.tally[0]["span_count"]))].tolist()
    return [
        ResidencySpan(model=models[member].name, state=STATES[state], from_s=begin, to_s=end)
        for unit, state, begin, end in kept
        for member in units[unit].members
    ]


def swaps(made: World, models: Sequence[ResidentModel], units: Sequence[Unit]) -> list[Swap]:
    """The evictions that were kept."""
    names = ["+".join(models[member].name for member in unit.members) for unit in units]
    return [
        Swap(
            at_s=at,
            model=names[unit],
            reason=REASONS[reason],  # type: ignore[arg-type]
            wanted_by=names[wanted_by] if wanted_by >= 0 else None,
            interrupted=interrupted,
        )
        for at, unit, reason, wanted_by, interrupted in made.swaps[
            : min(KEPT, int(made.tally[0]["swap_count"]))
        ].tolist()
    ]
