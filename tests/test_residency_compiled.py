"""The compiled player against the one that is written for reading: equal to the bit, whatever the log and policy."""

from __future__ import annotations

import math
from dataclasses import fields
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import replace

from kvplan.documents import Machine, ResidencyPolicy, ResidentModel
from kvplan.resident import measure
from kvplan.resident.compiled import Compiled
from kvplan.resident.costs import shared_memory, units
from kvplan.resident.play import Play
from kvplan.resident.table import KEPT, Log, Unit

Case = tuple[list[ResidentModel], Machine, Log, ResidencyPolicy]
INSIDE = ("held", "waiters", "in_flight", "refused_for", "deadlines", "timers", "state", "since", "leaving_bytes")


def maybe(values: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.one_of(st.none(), values)


@st.composite
def a_model(draw: st.DrawFn, index: int) -> ResidentModel:
    return ResidentModel(
        name=f"m{index}",
        weights_bytes=draw(st.integers(0, 3)),
        kv_bytes=draw(st.integers(0, 1)),
        load_s=draw(st.integers(0, 6)) / 2,
        warm_load_s=draw(maybe(st.just(0.25))),
        stop_s=draw(st.sampled_from([0.0, 0.0, 1.0])),
        group=draw(st.sampled_from([None, None, None, "pair"])),
        pinned=draw(st.sampled_from([False, False, False, True])),
        kv_bytes_per_token=draw(st.sampled_from([1, 5, 5, None])),
        prefill_tokens_per_s=draw(maybe(st.sampled_from([3.0, 10.0]))),
    )


@st.composite
def a_policy(draw: st.DrawFn) -> ResidencyPolicy:
    return ResidencyPolicy(
        name="p",
        max_models=draw(st.sampled_from([None, 1, 2, 2, 3])),
        budget_bytes=draw(maybe(st.integers(1, 9))),
        protect_busy=draw(st.sampled_from([True, True, False])),
        keep_alive_s=draw(st.sampled_from([None, 0.5, 3.0, 9.0])),
        keep_alive_from=draw(st.sampled_from(["completion", "request"])),
        batch_wait_s=draw(maybe(st.sampled_from([0.0, 2.5]))),
        busy_count=draw(st.sampled_from(["exact", "exact", "leaks", "misses", "stale"])),
        miscount_every=draw(st.integers(1, 3)),
        stale_s=draw(st.sampled_from([0.0, 1.5])),
        kv_on_swap=draw(st.sampled_from(["lost", "saved"])),
        sleep_after_s=draw(maybe(st.sampled_from([0.5, 2.0]))),
    )


@st.composite
def cases(draw: st.DrawFn) -> Case:
    models = [draw(a_model(index)) for index in range(draw(st.integers(1, 5)))]
    half = st.integers(0, 30).map(lambda number: number / 2)
    asked = draw(
        st.lists(
            st.tuples(half, st.integers(0, len(models) - 1), half, st.sampled_from([math.inf, math.inf, 1.0, 4.0])),
            max_size=40,
        )
    )
    asked.sort(key=lambda one: one[0])
    many = {"min_size": len(asked), "max_size": len(asked)}
    log = Log(
        name="log",
        time_s=[one[0] for one in asked],
        model=[one[1] for one in asked],
        service_s=[one[2] for one in asked],
        timeout_s=[one[3] for one in asked],
        session=draw(st.lists(st.integers(-1, 1), **many)),
        context_tokens=draw(st.lists(st.sampled_from([0, 7, 30]), **many)),
    )
    machine = Machine(
        memory_bytes=6,
        ram_bytes=draw(maybe(st.integers(0, 12))),
        kv_save_bytes_per_s=draw(st.sampled_from([8.0, 8.0, None])),
        kv_restore_bytes_per_s=draw(st.sampled_from([11.0, 11.0, None])),
    )
    return models, machine, log, draw(a_policy())


def told(kind: type[Play] | type[Compiled], case: Case) -> dict[str, Any]:
    """All that a player says when it is through."""
    models, machine, log, policy = case
    fresh = units(models, machine, shared_memory(models, machine))
    one = kind(models, fresh, log, policy, machine)
    one.run()
    said: dict[str, Any] = {
        name: getattr(one, name)
        for name in ("now", "save_s", "peak_count", "peak_bytes", "over_memory", "span_count", "swap_count")
    }
    said.update(status=bytes(one.status), waits=list(one.wait_s), spans=one.spans, swaps=one.swaps)
    said.update(again=list(one.reprefill_s), back=list(one.restore_s), units=[what_is_told(unit) for unit in fresh])
    return said


def what_is_told(unit: Unit) -> dict[str, Any]:
    names = ("index", "members", "loads", "cold_loads", "refused", "evictions", "resident_s", "busy_s", "loading_s")
    return {name: getattr(unit, name) for name in (*names, "held_idle_s", "loaded_before", "generation", "state")}


@settings(max_examples=300, deadline=None)
@given(cases())
def test_compiled_and_written_out_are_equal(case: Case) -> None:
    assert told(Compiled, case) == told(Play, case)


def long_case(requests: int) -> Case:
    """More evictions than are kept, on a machine that never rests."""
    models = [ResidentModel(name=f"m{i}", weights_bytes=1 + i % 3, load_s=1.0 + i, stop_s=0.5) for i in range(7)]
    log = Log(
        name="log",
        time_s=[i * 1.25 for i in range(requests)],
        model=[i * i // 5 % 7 for i in range(requests)],
        service_s=[i % 11 / 3 for i in range(requests)],
        timeout_s=[60.0 if i % 5 == 0 else math.inf for i in range(requests)],
        session=[-1] * requests,
        context_tokens=[0] * requests,
    )
    return models, Machine(memory_bytes=8), log, ResidencyPolicy(name="bytes", budget_bytes=8)


def test_a_long_log_keeps_only_the_beginning_of_what_it_tells() -> None:
    case = long_case(30_000)
    made = told(Compiled, case)
    assert made == told(Play, case)
    assert made["swap_count"] > KEPT
    assert len(made["swaps"]) == KEPT


POLICIES: dict[str, dict[str, Any]] = {
    "saved": {"kv_on_swap": "saved"},
    "lost": {"keep_alive_s": 40.0, "sleep_after_s": 3.0},
    "batched": {"batch_wait_s": 20.0, "kv_on_swap": "saved", "keep_alive_s": 15.0, "keep_alive_from": "request"},
    "unprotected": {"protect_busy": False, "max_models": 3},
    "leaks": {"busy_count": "leaks", "miscount_every": 400},
    "misses": {"busy_count": "misses", "miscount_every": 7, "kv_on_swap": "saved"},
    "stale": {"busy_count": "stale", "stale_s": 2.0, "batch_wait_s": 5.0},
}


@pytest.mark.parametrize("name", POLICIES)
def test_a_crowded_machine_with_sessions_under_every_kind_of_policy(name: str) -> None:
    models, machine, log, policy = long_case(3_000)
    models = [replace(one, kv_bytes_per_token=3, prefill_tokens_per_s=5.0) for one in models]
    machine = replace(machine, kv_save_bytes_per_s=40.0, kv_restore_bytes_per_s=60.0)
    places = range(3_000)
    log = replace(log, session=[i % 4 for i in places], context_tokens=[i % 3 * 5 for i in places])
    case = models, machine, log, replace(policy, name=name, **POLICIES[name])
    made = told(Compiled, case)
    assert made == told(Play, case)
    saved = "saved" in POLICIES[name].values()
    assert (sum(made["back"]) > 0, made["save_s"] > 0) == (saved, saved)
    assert saved or name == "leaks" or sum(made["again"]) > 0


def test_a_long_log_is_measured_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    models, machine, log, policy = long_case(2_000)
    written_out = measure.play(models, machine, log, policy)
    monkeypatch.setattr(measure, "COMPILED_FROM", 1_000)
    assert measure.play(models, machine, log, policy) == written_out


def test_every_field_of_a_unit_is_told_or_known_to_be_passing() -> None:
    """A field that is added to a unit has to be looked at: told by both players, given, or of no use afterwards."""
    given_or_passing = {"bytes", "cold_s", "warm_s", "stop_s", "pinned", "last_used", "last_request", "counted"}
    passing = {"waiting", "queued", "queued_at", "closed", "held_since", *INSIDE}
    told_of = set(
        what_is_told(
            units(
                [ResidentModel(name="a", weights_bytes=1, load_s=1.0)],
                Machine(memory_bytes=1),
                shared_memory([], Machine(memory_bytes=1)),
            )[0]
        )
    )
    assert {field.name for field in fields(Unit)} == told_of | given_or_passing | passing
