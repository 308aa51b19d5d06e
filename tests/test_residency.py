"""Several models on one machine: the field's own cases with their figures, every policy, what is read and said."""

from __future__ import annotations

import gzip
import itertools
import json
import math
import random
import shlex
from pathlib import Path
from typing import Any

import pytest
import samples
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from records import replace

from kvplan import cli
from kvplan.documents import Machine, PolicyRun, Residency, ResidencyPolicy, ResidentModel
from kvplan.errors import KvplanError, LimitError
from kvplan.files import dump, parse, wrap
from kvplan.page import Figure, Plot
from kvplan.report import html, markdown, sections
from kvplan.residency import policies, read_log, read_models, residency, with_host_memory
from kvplan.resident.costs import cold_load_s, kv_restore_s, shared_memory, units, warm_load_s
from kvplan.resident.measure import co_access, play
from kvplan.resident.play import Play
from kvplan.resident.search import models_that_fit
from kvplan.resident.table import Log
from kvplan.units import GB, GiB

Asked = tuple[float, int, float]


def log(*asked: Asked, timeout: float = math.inf, **more: Any) -> Log:
    """Requests as (time, model, seconds of service)."""
    count = len(asked)
    return Log(
        name="log",
        time_s=[time for time, _, _ in asked],
        model=[model for _, model, _ in asked],
        service_s=[lasts for _, _, lasts in asked],
        timeout_s=more.get("timeouts", [timeout] * count),
        session=more.get("session", [-1] * count),
        context_tokens=more.get("context", [0] * count),
    )


def model(name: str, load_s: float = 4.0, size: int = 1, **more: Any) -> ResidentModel:
    return ResidentModel(name=name, weights_bytes=size, load_s=load_s, **more)


A, B, C = model("a"), model("b"), model("c")
ONE = ResidencyPolicy(name="one", max_models=1)
TWO = ResidencyPolicy(name="two", max_models=2)
SMALL = Machine(memory_bytes=3)


def run(models: list[ResidentModel], what: Log, policy: ResidencyPolicy, machine: Machine = SMALL) -> PolicyRun:
    return play(models, machine, what, policy)


def starts(models: list[ResidentModel], what: Log, policy: ResidencyPolicy) -> list[float]:
    """When each request began to be served."""
    played = Play(models, units(models, SMALL, shared_memory(models, SMALL)), what, policy, SMALL)
    played.run()
    return [time + wait for time, wait in zip(what.time_s, played.wait_s, strict=True)]


# ------------------------------------------------------------------------------------------ the cases


def test_e01_a_busy_model_is_not_evicted() -> None:
    """A answers for 20 s from t = 0; B is asked for at t = 5, waits the 15 s that are left and its own load."""
    models = [model("A", load_s=0.0), model("B", load_s=3.0)]
    found = run(models, log((0, 0, 20), (5, 1, 1)), ONE)
    assert (found.interrupted, found.served, found.unserved) == (0, 2, 0)
    assert found.models[1].wait is not None
    assert found.models[1].wait.max == 15 + 3
    assert found.models[0].refused_busy == 1
    [swap] = found.swaps
    assert (swap.at_s, swap.model, swap.reason, swap.wanted_by) == (20, "A", "lru", "B")


def test_e01_without_protection_the_answer_is_cut() -> None:
    models = [model("A", load_s=0.0), model("B", load_s=3.0)]
    found = run(models, log((0, 0, 20), (5, 1, 1)), replace(ONE, protect_busy=False))
    assert (found.interrupted, found.served) == (1, 1)
    assert found.swaps[0].reason == "lru-busy"
    assert found.models[1].wait is not None
    assert found.models[1].wait.max == 3


def test_e01_a_loading_model_that_is_not_protected_is_killed_after_ten_seconds() -> None:
    models = [model("A", load_s=6.0), model("B", load_s=3.0)]
    found = run(models, log((0, 0, 20), (5, 1, 1)), replace(ONE, protect_busy=False))
    assert (found.interrupted, found.swaps[0].reason) == (1, "lru-loading")
    assert found.models[1].wait is not None
    assert found.models[1].wait.max == 10 + 3


def e02() -> tuple[Machine, list[ResidentModel]]:
    a = model("A", size=100 * GB, kv_bytes=70 * GB, kv_bytes_per_token=1_000_000)
    return Machine(memory_bytes=192 * GB), [a, model("B", size=29 * GB, kv_bytes=10 * GB)]


def test_e02_bytes_are_counted_not_models() -> None:
    """209 GB of 192: exclusive, or A's KV cache capped at 53 GB; never four at once."""
    machine, models = e02()
    assert sum(one.total_bytes for one in models) == 209 * GB
    what = log((0, 0, 1), (10, 1, 1))
    made = residency(machine, models, what, replace(TWO, max_models=4))
    assert made.runs[0].over_memory_loads == 1
    said = {finding.code: finding.text for finding in made.findings}
    assert "exclusively" in said["exclusive"]
    assert "cap the KV cache of A at 49.36 GiB (53,000 tokens)" in said["exclusive"]  # 53 GB
    assert "real load fails" in said["over-memory"]
    assert made.search is not None
    assert made.search.best == 1
    assert "--models-max 1\n" in made.config["llama.cpp router, command"]
    assert "OLLAMA_MAX_LOADED_MODELS=1\n" in made.config["Ollama, environment"]


def test_e02_by_bytes_memory_is_never_exceeded_and_the_cap_makes_both_fit() -> None:
    machine, models = e02()
    what = log((0, 0, 1), (10, 1, 1), (20, 0, 1))
    asked, _ = policies(machine)
    found = play(models, machine, what, asked)
    assert (found.over_memory_loads, found.loads, found.peak_bytes) == (0, 3, 170 * GB)
    assert play(models, machine, what.first(2), asked).peak_bytes == 170 * GB  # the first of two, not the last
    capped = [replace(models[0], kv_bytes=53 * GB), models[1]]
    found = play(capped, machine, what, asked)
    assert (found.loads, found.peak_bytes, found.peak_models) == (2, 192 * GB, 2)


def test_e03_models_asked_for_in_turns_belong_in_memory_together() -> None:
    """A router model and a worker in one place: two loads a request. Together: two loads in all."""
    models = [model("router", load_s=2.0), model("worker", load_s=8.0)]
    pairs = [one for i in range(10) for one in ((100.0 * i, 0, 0.2), (100.0 * i + 0.5, 1, 5.0))]
    made = residency(SMALL, models, log(*pairs), ONE)
    assert made.co_access.ratios[0][1] == 1.0
    assert made.co_access.ratios[1][0] == 0.0
    assert made.runs[0].loads == 20
    said = {finding.code: finding.text for finding in made.findings}
    assert "keep both resident" in said["keep-together"]
    assert "two loads a request, 10 s cold" in said["keep-together"]
    assert "thrash" in said
    assert made.search is not None
    assert made.search.best == 2
    assert residency(SMALL, models, log(*pairs), TWO).runs[0].loads == 2


def test_e05_load_time() -> None:
    """59 GiB in 15.1 s at 4.19 GB/s, read directly; through mmap 0.67 of the rate (70 of 104 MB/s)."""
    weights = ResidentModel(name="m", weights_bytes=59 * GiB)
    direct = Machine(memory_bytes=64 * GiB, read_bytes_per_s=4.19e9, pattern="direct")
    assert cold_load_s(weights, direct) == pytest.approx(15.1, abs=0.05)
    mmap = replace(direct, read_bytes_per_s=104e6, pattern="mmap")
    assert weights.weights_bytes / cold_load_s(weights, mmap) == pytest.approx(70e6, rel=0.01)


def test_e05_a_host_kv_tier_evicts_the_page_cache() -> None:
    models = [ResidentModel(name=name, weights_bytes=50 * GiB) for name in "ab"]
    machine = Machine(
        memory_bytes=64 * GiB, read_bytes_per_s=2e9, pattern="mmap", warm_bytes_per_s=20e9, ram_bytes=128 * GiB
    )
    shared = shared_memory(models, machine)
    assert shared.every_swap_cold is False
    assert warm_load_s(models[0], machine, shared) == pytest.approx(50 * GiB / 20e9)
    crowded = replace(machine, host_kv_bytes=64 * GiB)
    shared = shared_memory(models, crowded)
    assert shared.every_swap_cold is True
    assert shared.page_cache_bytes == 64 * GiB
    assert warm_load_s(models[0], crowded, shared) == cold_load_s(models[0], crowded)
    made = residency(crowded, models, log((0, 0, 1)), ONE)
    said = {finding.code: finding.text for finding in made.findings}
    assert "A KV tier of at most 28.00 GiB leaves it the room." in said["every-swap-cold"]


def test_in_unified_memory_the_page_cache_has_what_models_and_tier_leave() -> None:
    """Weights 40 GiB, KV cache 20 GiB: of 64 GiB a tier may take 4 and the files still stay."""
    one = ResidentModel(name="a", weights_bytes=20 * GiB, kv_bytes=10 * GiB, load_s=9.0, warm_load_s=1.0)
    models = [one, replace(one, name="b")]
    machine = Machine(memory_bytes=64 * GiB, unified=True)
    for tier, cold in ((0, False), (4, False), (5, True)):
        assert shared_memory(models, replace(machine, host_kv_bytes=tier * GiB)).every_swap_cold is cold
    crowded = residency(replace(machine, host_kv_bytes=5 * GiB), models, log((0, 0, 1)), ONE)
    said = {finding.code: finding.text for finding in crowded.findings}
    assert "20.00 GiB of their KV cache and buffers and the host KV tier (5.00 GiB)" in said["every-swap-cold"]
    assert "at most 4.00 GiB leaves it the room" in said["every-swap-cold"]
    small = residency(replace(machine, memory_bytes=50 * GiB), models, log((0, 0, 1)), ONE)
    assert "room" not in next(f.text for f in small.findings if f.code == "every-swap-cold")


def test_e06_saved_kv_against_prefill() -> None:
    """Qwen3.6-27B, 100,000 tokens of 64 KiB: 6.1 GiB, 2.2 s at 3 GB/s against 100 s at 1,000 tokens a second."""
    assert 100_000 * 65536 / GiB == pytest.approx(6.1, abs=0.01)
    assert kv_restore_s(100_000, 65536, 3e9) == pytest.approx(2.2, abs=0.02)
    facts = {"kv_bytes_per_token": 65536, "prefill_tokens_per_s": 1000.0}
    models = [model("qwen", **facts), model("other", **facts)]
    machine = replace(SMALL, kv_save_bytes_per_s=3e9, kv_restore_bytes_per_s=3e9)
    what = log((0, 0, 1), (100, 1, 1), (200, 0, 1), context=[100_000, 0, 100_000])
    lost = residency(machine, models, what, ONE)
    assert lost.runs[0].reprefill_s == 100
    assert any(finding.code == "save-kv" for finding in lost.findings)
    saved = residency(machine, models, what, replace(ONE, kv_on_swap="saved")).runs[0]
    assert (saved.reprefill_s, saved.restore_s) == (0, pytest.approx(2.18, abs=0.01))
    assert saved.save_s == pytest.approx(2.18, abs=0.01)
    stays = residency(machine, models, what, TWO).runs[0]
    assert (stays.reprefill_s, stays.restore_s) == (0, 0)


# ------------------------------------------------------------------------------------------ the rules


def test_waiters_of_one_model_share_a_place_and_start_together() -> None:
    what = log((0, 0, 10), (1, 1, 1), (2, 2, 1), (3, 1, 1))
    assert starts([A, B, C], what, ONE) == [4, 18, 23, 18]  # a until 14; b loads until 18; c until 23


def test_models_load_one_after_the_other_though_there_is_room() -> None:
    what = log((0, 0, 10), (1, 1, 1), (2, 0, 1))
    assert starts([A, B, C], what, TWO) == [4, 8, 4]  # b has a place from 1 on, and a is loading until 4
    what = log((0, 0, 10), (1, 1, 1), timeouts=[2.0, math.inf])
    assert starts([A, B, C], what, TWO) == [-1, 6]  # a's client leaves at 2: nobody waits for a's load any more


def test_room_is_made_for_all_that_wait_before_the_first_of_them_has_loaded() -> None:
    what = log((0, 0, 1), (0, 1, 1), (20, 2, 1), (20, 0, 1))
    found = run([A, B, C], what, TWO)
    assert [(swap.at_s, swap.model, swap.wanted_by) for swap in found.swaps] == [(20, "a", "c"), (20, "b", "a")]


def test_a_client_that_leaves_gives_up_the_place_in_the_queue() -> None:
    what = log((0, 0, 10), (1, 1, 1), (2, 2, 1), timeouts=[math.inf, 5.0, math.inf])
    found = run([A, B, C], what, ONE)
    assert (found.left, found.served, found.models[1].loads) == (1, 2, 0)
    assert found.models[2].wait is not None
    assert found.models[2].wait.max == 14 + 4 - 2


def test_keep_alive_counts_from_the_last_completion() -> None:
    """Counted from the request a model goes the moment a long answer ends; from its completion it stays."""
    what = log((0, 0, 60), (70, 0, 1))
    policy = ResidencyPolicy(name="ttl", keep_alive_s=30.0)
    found = run([A], what, policy)
    assert found.loads == 1
    assert [swap.at_s for swap in found.swaps] == [71 + 30]
    early = run([A], what, replace(policy, keep_alive_from="request"))
    assert early.loads == 2
    assert early.swaps[0].at_s == 64


def test_a_count_that_leaks_idles_and_one_that_misses_cuts() -> None:
    what = log((0, 0, 1), (10, 1, 1))
    leaks = run([A, B], what, replace(ONE, busy_count="leaks"))
    assert (leaks.unserved, leaks.interrupted) == (1, 0)
    what = log((0, 0, 20), (5, 1, 1))
    misses = run([A, B], what, replace(ONE, busy_count="misses"))
    assert (misses.unserved, misses.interrupted) == (0, 1)


def test_a_stale_count_holds_what_is_idle_and_cuts_what_began() -> None:
    """a ends at 14, known 3 s later. In the second log it begins again at 20 and is taken for idle until 23."""
    stale = replace(ONE, busy_count="stale", stale_s=3.0)
    what = log((0, 0, 10), (12, 1, 1))
    found = run([A, B], what, stale)
    assert starts([A, B], what, stale) == [4, 14 + 3 + 4]
    assert (found.models[0].held_idle_s, found.held_idle_s) == (3, 4)  # b ends at 22, is taken for busy from 24 to 25
    assert (found.interrupted, found.unserved, found.models[0].refused_busy) == (0, 0, 1)
    cut = run([A, B], log((0, 0, 1), (20, 0, 9), (21, 1, 1)), stale)
    assert (cut.interrupted, cut.swaps[0].at_s, cut.swaps[0].reason) == (1, 21, "lru-busy")
    spared = run([A, B], log((0, 0, 1), (20, 0, 9), (23.5, 1, 1)), stale)
    assert (spared.interrupted, spared.swaps[0].at_s) == (0, 32)


def test_a_stale_count_cannot_cut_where_nobody_is_evicted() -> None:
    found = run([A, B], log((0, 0, 5), (1, 1, 5), (2, 0, 9)), replace(TWO, busy_count="stale", stale_s=3.0))
    assert (found.interrupted, found.served, found.loads) == (0, 3, 2)


def test_a_count_that_leaks_holds_a_model_for_ever() -> None:
    found = run([A, B], log((0, 0, 1), (10, 1, 1), timeouts=[math.inf, 40.0]), replace(ONE, busy_count="leaks"))
    assert found.held_idle_s == 45  # from a's end at 5 until the last client leaves at 50
    assert run([A, B], log((0, 0, 1), (10, 1, 1)), ONE).held_idle_s == 0


def test_a_pinned_model_stays() -> None:
    what = log((0, 0, 1), (10, 1, 1), (20, 2, 1), (30, 0, 1))
    pinned = run([replace(A, pinned=True), B, C], what, replace(TWO, keep_alive_s=1000.0))
    assert pinned.models[0].loads == 1
    assert pinned.models[0].evictions == {}
    assert run([A, B, C], what, TWO).models[0].loads == 2
    with pytest.raises(LimitError, match="'b' can never be loaded beside what is pinned"):
        residency(SMALL, [replace(A, pinned=True), B], what, ONE)


def test_a_group_is_loaded_and_evicted_together() -> None:
    models = [replace(A, group="pair"), replace(B, group="pair"), C]
    what = log((0, 0, 1), (20, 1, 1), (40, 2, 1), (60, 1, 1))
    found = run(models, what, TWO)
    assert [one.loads for one in found.models] == [2, 2, 1]
    assert found.loads == 5
    assert starts(models, what, TWO) == [8, 20, 44, 68]
    with pytest.raises(LimitError, match="2 models are needed at once and the limit is 1"):
        residency(SMALL, models, what, ONE)


def test_batching_gathers_requests_and_swaps_after_the_longest_wait() -> None:
    """a is asked for every second for ever: without batching b starves, with it b waits 10 s, a's answer and a load."""
    busy = [(float(i), 0, 1.5) for i in range(40)]
    what = log(*sorted([*busy, (5.0, 1, 1.0)]))
    place = what.model.index(1)
    assert starts([A, B], what, ONE)[place] > 40
    batched = starts([A, B], what, replace(ONE, batch_wait_s=10.0))[place]
    assert batched <= 5 + 10 + 1.5 + 4
    gathered = log((0, 0, 1), (10, 1, 1), (12, 0, 1), (13, 1, 1))
    assert run([A, B], gathered, ONE).loads == 3
    assert run([A, B], gathered, replace(ONE, batch_wait_s=5.0)).loads == 2


def test_a_closed_model_serves_again_once_others_made_the_room_or_nobody_wants_it() -> None:
    policy = replace(TWO, batch_wait_s=2.0)
    what = log((0, 0, 100), (1, 2, 20), (6, 1, 1), (10, 0, 1))  # c closes a at 8; b ends at 28 and goes
    assert starts([A, B, C], what, policy) == [4, 8, 32, 28]
    what = log((0, 0, 100), (1, 2, 90), (6, 1, 1), (10, 0, 1), timeouts=[math.inf, math.inf, 9.0, math.inf])
    assert starts([A, B, C], what, policy) == [4, 8, 5, 15]  # b's client leaves at 15 (never served: -1 s of wait)


def test_a_sleeping_model_keeps_its_place_and_loads_again() -> None:
    what = log((0, 0, 1), (100, 0, 1))
    found = run([A], what, replace(ONE, sleep_after_s=10.0))
    assert (found.loads, found.evictions) == (2, {})
    once = ["loading", "busy", "ready", "sleeping"]
    assert [span.state for span in found.spans] == [*once, *once[:3]]  # the last sleep has no end
    assert found.spans[3].to_s == 100


def test_a_sleeping_model_wakes_at_once_though_others_wait_in_the_queue() -> None:
    policy = replace(TWO, sleep_after_s=2.0, batch_wait_s=10.0)
    what = log((0, 0, 1), (0, 1, 100), (10, 2, 1), (12, 0, 1))
    assert starts([A, B, C], what, policy) == [4, 8, 24, 16]


def test_stopping_takes_its_time() -> None:
    what = log((0, 0, 1), (10, 1, 1))
    assert starts([replace(A, stop_s=3.0), B], what, ONE) == [4, 10 + 3 + 4]


@st.composite
def _cases(draw: st.DrawFn) -> tuple[list[ResidentModel], Log, ResidencyPolicy]:
    sizes = draw(st.lists(st.integers(1, 3), min_size=1, max_size=4))
    models = [
        model(f"m{i}", float(draw(st.integers(0, 5))), size, stop_s=float(draw(st.integers(0, 2))))
        for i, size in enumerate(sizes)
    ]
    second = st.integers(0, 12).map(float)
    asked = draw(st.lists(st.tuples(second, st.integers(0, len(models) - 1), second), min_size=1, max_size=25))
    timeouts = draw(st.lists(st.sampled_from([1.0, 4.0, math.inf]), min_size=len(asked), max_size=len(asked)))
    policy = ResidencyPolicy(
        name="p",
        max_models=draw(st.sampled_from([None, 1, 2])),
        budget_bytes=3,
        keep_alive_s=draw(st.sampled_from([None, 2.0])),
        sleep_after_s=draw(st.sampled_from([None, 1.0])),
        batch_wait_s=draw(st.sampled_from([None, 3.0])),
    )
    return models, log(*sorted(asked), timeouts=timeouts), policy


@settings(max_examples=300, deadline=None)
@given(_cases())
def test_whatever_the_policy_nothing_is_lost_cut_or_over_budget(
    case: tuple[list[ResidentModel], Log, ResidencyPolicy],
) -> None:
    models, what, policy = case
    found = run(models, what, policy)
    assert (found.unserved, found.interrupted, found.over_memory_loads) == (0, 0, 0)
    assert found.served + found.left == found.requests
    assert found.peak_bytes <= 3
    assert policy.max_models is None or found.peak_models <= policy.max_models
    for one in found.models:  # states of one model follow each other without a gap in one stay, and never overlap
        spans = [span for span in found.spans if span.model == one.name]
        assert all(a.to_s <= b.from_s for a, b in itertools.pairwise(spans))


@given(st.lists(st.tuples(st.integers(0, 20), st.integers(0, 2)), min_size=1, max_size=30))
@settings(max_examples=60, deadline=None)
def test_co_access_by_looking_at_every_request(asked: list[tuple[int, int]]) -> None:
    asked.sort(key=lambda one: one[0])
    what = log(*((float(time), which, 0.0) for time, which in asked))
    found = co_access([A, B, C], what, 2.0)
    for row, first in enumerate(found.models):
        mine = [i for i, (_, which) in enumerate(asked) if "abc"[which] == first]
        for column, second in enumerate(found.models):
            near = sum(any("abc"[w] == second and t - asked[i][0] <= 2 for t, w in asked[i + 1 :]) for i in mine)
            assert found.ratios[row][column] == pytest.approx(near / len(mine))


def test_waits_are_nearest_rank() -> None:
    what = log(*((float(i), 0, 0.0) for i in range(20)))
    found = run([model("a", load_s=10.0)], what, ONE)
    assert found.wait is not None
    assert (found.wait.p50, found.wait.p95, found.wait.max) == (0, 9, 10)  # ten waited 1 to 10 s


def test_the_search_leaves_room_for_what_is_pinned() -> None:
    made = example()
    assert made.search is not None
    assert [(one.value, one.unserved) for one in made.search.candidates] == [(2, 0), (3, 0)]
    assert made.search.best == 3
    models = [replace(A, pinned=True), B, model("big", size=2)]
    budgets = residency(SMALL, models, log((0, 0, 1), (9, 1, 1), (20, 2, 1)), policies(SMALL)[0]).search
    assert budgets is not None
    assert [one.value for one in budgets.candidates] == [3]
    assert budgets.best == 3


def test_models_that_fit() -> None:
    models = [model(name, size=size) for name, size in zip("abc", (5, 3, 2), strict=True)]
    assert [models_that_fit(models, memory) for memory in (4, 5, 7, 8, 10)] == [0, 1, 1, 2, 3]


# ------------------------------------------------------------------------------------------ what is read


LIST = """
[machine]
memory = "192GB"
read_rate = "4.19GB/s"
pattern = "direct"

[[model]]
name = "a"
weights = "100GB"
kv_bytes_per_token = 1000
context_tokens = 4096
prefill_tokens_per_s = 1000
decode_tokens_per_s = 50

[[model]]
name = "b"
weights = "29GB"
pinned = true
"""


@pytest.fixture
def files(tmp_path: Path) -> tuple[Path, Path]:
    listed, requests = tmp_path / "models.toml", tmp_path / "log.jsonl"
    listed.write_text(LIST)
    requests.write_text(
        '{"time": 101, "model": "b", "service_s": 2}\n'
        '{"time": 100, "model": "a", "prompt_tokens": 500, "output_tokens": 100, "session": "x"}\n'
    )
    return listed, requests


def test_lists_and_logs_are_read(files: tuple[Path, Path]) -> None:
    machine, models = read_models(files[0])
    assert (machine.memory_bytes, machine.read_bytes_per_s) == (192 * GB, pytest.approx(4.19e9))
    assert (models[0].kv_bytes, models[1].pinned) == (4096 * 1000, True)
    found = read_log(files[1], models)
    assert list(found.time_s) == [0, 1]
    assert list(found.model) == [0, 1]
    assert list(found.service_s) == [2.5, 2]


def of_probe(folder: Path, *more: str, links: Any = None) -> Path:
    probe = samples.probe()
    if links is not None:
        probe = replace(probe, data=replace(probe.data, links=links))
    (folder / "probe.json").write_text(dump(probe))
    listed = folder / "models.toml"
    listed.write_text(LIST.replace('read_rate = "4.19GB/s"\n', "\n".join(('probe = "probe.json"', *more, ""))))
    return listed


def test_load_time_from_a_probe(tmp_path: Path) -> None:
    """One reader of the largest pieces, 4 MiB at depth 1: 5.9 GB/s, not the 6.8 GB/s of sixteen at once."""
    machine, models = read_models(of_probe(tmp_path))
    assert machine.read_bytes_per_s == 5.9e9
    assert machine.read_source == "probe.json: /mnt/nvme, 4.00 MiB pieces"
    assert (machine.ram_bytes, machine.ram_source) == (samples.probe().data.host.usable_memory_bytes, "probe.json")
    assert cold_load_s(models[0], machine) == pytest.approx(100 / 5.9)
    made = residency(machine, models, log((0, 0, 1)), TWO)
    told = {one.what: (one.provenance, one.source) for one in made.evidence}
    assert told["sequential read"] == ("measured", "probe.json: /mnt/nvme, 4.00 MiB pieces")
    assert told["host memory"] == ("measured", "probe.json")
    stated = with_host_memory(machine, 64 * GiB)
    told = {one.what: (one.provenance, one.source) for one in residency(stated, models, log((0, 0, 1)), TWO).evidence}
    assert told["host memory"] == ("configured", "--host-memory")


def test_what_the_list_says_comes_before_the_probe(tmp_path: Path) -> None:
    machine, _ = read_models(of_probe(tmp_path, 'read_rate = "1GB/s"', 'ram = "1GiB"'))
    assert (machine.read_bytes_per_s, machine.read_source) == (1e9, None)
    assert (machine.ram_bytes, machine.ram_source) == (GiB, None)


def test_a_probe_that_measured_no_such_drive_or_several(tmp_path: Path) -> None:
    links = samples.probe().data.links
    flagged = tuple(replace(link, flags=("page-cache",)) for link in links)
    assert read_models(of_probe(tmp_path, links=flagged))[0].read_bytes_per_s is None
    with pytest.raises(KvplanError, match="no clean read of drive '/data'"):
        read_models(of_probe(tmp_path, 'drive = "/data"'))
    second = tuple(replace(link, source="disk:/data") for link in links if link.source.startswith("disk:"))
    with pytest.raises(KvplanError, match="several drives: name one as drive: /data, /mnt/nvme"):
        read_models(of_probe(tmp_path, links=(*links, *second)))
    machine, _ = read_models(of_probe(tmp_path, 'drive = "/data"', links=(*links, *second)))
    assert machine.read_source == "probe.json: /data, 4.00 MiB pieces"
    (tmp_path / "probe.json").write_text(dump(samples.estimate()))
    with pytest.raises(KvplanError, match=r"is a kvplan\.estimate, not a probe"):
        read_models(tmp_path / "models.toml")


def test_csv_reads_the_same(files: tuple[Path, Path]) -> None:
    _, models = read_models(files[0])
    table = files[1].with_suffix(".csv")
    table.write_text("time,model,service_s,prompt_tokens,output_tokens,session\n101,b,2,,,\n100,a,,500,100,x\n")
    assert read_log(table, models) == replace(read_log(files[1], models), name="log.csv")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"time": 1, "model": "z", "service_s": 1}', "log.jsonl:1: model 'z' is not in the model list"),
        ('\n{"time": 1, "model": "a"}', "log.jsonl:2: no service_s, and not both"),
        ('{"time": 1, "model": "a", "service_s": -1}', "log.jsonl:1: times must be finite"),
        ('{"time": "x", "model": "a"}', "log.jsonl:1: Expected `float`, got `str`"),
        ('{"time": 1', "log.jsonl:1: "),
        ('{"time": 1, "model": "b", "prompt_tokens": 1, "output_tokens": 1}', "need prefill_tokens_per_s"),
        ("", "holds no request"),
    ],
)
def test_a_log_that_is_wrong_is_said_with_its_line(files: tuple[Path, Path], text: str, said: str) -> None:
    files[1].write_text(text)
    _, models = read_models(files[0])
    with pytest.raises(KvplanError) as error:
        read_log(files[1], models)
    assert said in str(error.value)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ('memory = "192GB"', 'memory = "192G"', "[machine] memory: '192G' does not say its unit"),
        ('name = "b"', 'name = "a"', "two models are called 'a'"),
        ('weights = "29GB"', "", "[[model]] b: weights is missing"),
        ("pinned = true", "pin = true", "unknown field `pin`"),
        ('pattern = "direct"', 'pattern = "fast"', "write mmap or direct"),
        ("[machine]", "[machine", "models.toml: "),
        ("context_tokens = 4096", "context_tokens = -1", "context_tokens"),
    ],
)
def test_a_list_that_is_wrong_is_said_with_its_key(files: tuple[Path, Path], old: str, new: str, said: str) -> None:
    files[0].write_text(LIST.replace(old, new))
    with pytest.raises(KvplanError) as error:
        read_models(files[0])
    assert said in str(error.value)


def test_what_a_policy_lacks_is_said() -> None:
    with pytest.raises(KvplanError, match="kv_save_rate"):
        residency(SMALL, [A], log((0, 0, 1)), replace(ONE, kv_on_swap="saved"))
    with pytest.raises(KvplanError, match="no load time"):
        residency(SMALL, [replace(A, load_s=None)], log((0, 0, 1)), ONE)
    with pytest.raises(LimitError, match="can never be loaded: 4 B are needed and the budget is 3 B"):
        residency(SMALL, [replace(A, weights_bytes=4)], log((0, 0, 1)), policies(SMALL)[0])


# ------------------------------------------------------------------------------------------ what is said


def example() -> Residency:
    models = [replace(A, kv_bytes=0), replace(B, pinned=True, path="/models/b.gguf"), C]
    what = log(*((7.0 * i, (0, 1, 2, 2, 0)[i % 5], 3.0) for i in range(60)))
    asked, others = policies(SMALL, max_models=2, keep_alive_s=30.0)
    return residency(SMALL, models, what, asked, compare=others)


def test_the_document_reads_back_and_has_a_page() -> None:
    document = wrap(example())
    again = parse(dump(document).encode(), "residency.json")
    assert dump(again) == dump(document)
    page = sections(again)
    names = [section.name for section in page.sections]
    assert {"summary", "models", "policies", "search", "waits", "timeline", "evictions", "together", "config"} <= set(
        names
    )
    text, figures = markdown(page, "files")
    assert len(figures) == 2
    assert "least recently used, idle" in text
    assert "<html" in html(page)


def test_settings_name_every_model() -> None:
    config = example().config
    ini = config["llama.cpp router, models.ini"]
    assert ini.startswith("version = 1\n")
    assert "[b]\n" in ini
    assert "model = /models/b.gguf\nload-on-startup = true\n" in ini
    swap = config["llama-swap, config.yaml"]
    assert "    ttl: 30\n" in swap
    assert '    persistent: true\n    members: ["b"]\n' in swap
    assert "OLLAMA_KEEP_ALIVE=30s\n" in config["Ollama, environment"]


def test_settings_keep_names_and_paths_that_a_server_would_read_otherwise() -> None:
    names = ("gemma:8b", "a, b:c", "old [q4] model")
    models = [replace(A, name=name, path=f"/my models/{i}.gguf") for i, name in enumerate(names)]
    config = residency(SMALL, models, log((0, 0, 1)), TWO).config
    ini = config["llama.cpp router, models.ini"]
    assert "[gemma:8b]\nalias = gemma:8b\n" in ini  # the router alone would call it gemma:8B
    assert "alias = a, b:c" not in ini
    assert "[old [q4) model]\n; a section's name cannot hold ']'" in ini
    swap = yaml.safe_load(config["llama-swap, config.yaml"])
    assert "/my models/0.gguf" in shlex.split(swap["models"]["gemma:8b"]["cmd"])
    assert set(swap["models"]) == set(names)


def swap_groups(memory: int) -> dict[str, Any]:
    models = [replace(A, pinned=True), replace(B, group="pair"), replace(C, group="pair"), model("d")]
    machine = Machine(memory_bytes=memory)
    config = residency(machine, models, log((0, 1, 1)), policies(machine)[0]).config
    found: dict[str, Any] = yaml.safe_load(config["llama-swap, config.yaml"])["groups"]
    return found


def test_groups_unload_each_other_only_where_not_all_fit() -> None:
    keys = ("swap", "exclusive", "persistent")
    tight, wide = swap_groups(3), swap_groups(4)
    assert {name: tuple(one[key] for key in keys) for name, one in tight.items()} == {
        "pinned": (False, False, True),
        "pair": (False, True, False),
        "shared": (False, True, False),
    }
    assert not any(one["exclusive"] or one["swap"] for one in wide.values())
    members = [name for one in tight.values() for name in one["members"]]
    assert sorted(members) == list("abcd")


def test_the_command(files: tuple[Path, Path], monkeypatch: pytest.MonkeyPatch, capsys: Any) -> None:
    monkeypatch.setattr("sys.argv", ["kvplan", "residency", *map(str, files), "--json"])
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert not end.value.code
    data = json.loads(capsys.readouterr().out)
    assert data["kind"] == "kvplan.residency"
    assert data["data"]["runs"][0]["served"] == 2


def test_loads_that_stay_cold_beside_enough_memory_are_said() -> None:
    """Direct reads leave nothing in the page cache, and without its rate a warm load is not counted on."""
    models = [ResidentModel(name=name, weights_bytes=50 * GiB) for name in "ab"]
    mmap = Machine(memory_bytes=64 * GiB, read_bytes_per_s=2e9, warm_bytes_per_s=20e9, ram_bytes=128 * GiB)
    direct = replace(mmap, pattern="direct")
    unknown = replace(mmap, warm_bytes_per_s=None)
    what = log((0, 0, 1), (100, 1, 1), (200, 0, 1), (300, 1, 1))
    for machine, code, cold in ((mmap, None, 2), (direct, "direct-cold", 4), (unknown, "warm-rate-unknown", 4)):
        made = residency(machine, models, what, ONE)
        assert {one.code for one in made.findings} & {"direct-cold", "warm-rate-unknown"} == ({code} if code else set())
        assert sum(one.cold_loads for one in made.runs[0].models) == cold
        page, _ = markdown(sections(wrap(made)), "files")
        assert ("A load after the first is warm." in page) == (machine is mmap)
        assert ("every load is cold" in page) == (machine is not mmap)
        evidence = {one.what: one.value for one in made.evidence}
        assert evidence.get("read from the page cache") == (None if machine is unknown else "20.00 GB/s")
    half = [replace(models[0], warm_load_s=1.0), models[1]]
    said = {one.code: one.text for one in residency(unknown, half, what, ONE).findings}
    assert said["warm-rate-unknown"].startswith("Every load of b is")


def test_a_budget_above_the_machine_is_called_one() -> None:
    """What exceeds memory under a byte budget is the budget's doing, not that of counting models."""
    models = [model("a", size=10 * GB), model("b", size=10 * GB)]
    asked, _ = policies(Machine(memory_bytes=16 * GB), budget_bytes=40 * GB)
    made = residency(Machine(memory_bytes=16 * GB), models, log((0, 0, 1), (9, 1, 1)), asked)
    [text] = [one.text for one in made.findings if one.code == "over-memory"]
    assert text.startswith("1 load exceeds the machine's memory")
    assert "the budget is 37.25 GiB" in text


def test_a_small_model_that_fits_beside_any_is_not_loaded_exclusively() -> None:
    """170 and 80 GB do not fit in 192 together; 3 GB do beside either."""
    machine = Machine(memory_bytes=192 * GB)
    models = [model(name, size=size * GB) for name, size in (("chat", 170), ("code", 80), ("embed", 3))]
    made = residency(machine, models, log((0, 0, 1)), ONE)
    [text] = [one.text for one in made.findings if one.code == "exclusive"]
    assert "chat and code do not fit together, so load those exclusively" in text
    crowd = [replace(models[2], weights_bytes=30 * GB), *models[:2]]
    [text] = [one.text for one in residency(machine, crowd, log((0, 0, 1)), ONE).findings if one.code == "exclusive"]
    assert "load them exclusively, one at a time" in text


def test_a_count_with_no_place_beside_what_is_pinned_says_so() -> None:
    """170 or 80 GB beside a pinned 3 GB were played; a count that is safe in bytes is 1 and would evict the pinned."""
    machine = Machine(memory_bytes=192 * GB)
    models = [model(name, size=size * GB) for name, size in (("chat", 170), ("code", 80), ("embed", 3))]
    models[2] = replace(models[2], pinned=True)
    asked, _ = policies(machine)
    made = residency(machine, models, log((0, 0, 1), (9, 1, 1), (20, 2, 1)), asked)
    for name in ("llama.cpp router, command", "Ollama, environment"):
        assert "# 1 at once has no place beside what is pinned: serve embed outside it" in made.config[name]
    roomy = residency(replace(machine, memory_bytes=300 * GB), models, log((0, 0, 1)), asked)
    assert not any("no place beside" in text for text in roomy.config.values())


def test_a_lane_of_the_timeline_falls_to_the_ground_only_where_a_model_is_unloaded() -> None:
    """Loading, busy and ready follow each other; the lane of a model that is never evicted stays above the ground."""
    made = residency(SMALL, [A, B], log((1, 0, 5), (20, 0, 5), (40, 1, 1)), TWO)
    blocks = [block for section in sections(wrap(made)).sections for block in section.blocks]
    [figure] = [block for block in blocks if isinstance(block, Figure) and block.name == "residency"]
    [plot] = figure.charts
    assert isinstance(plot, Plot)
    [lane] = [one for one in plot.series if one.name == "a"]
    ground = lane.points[0][1]
    assert min(y for x, y in lane.points if 1 < x < lane.points[-1][0]) > ground


def test_a_log_that_is_not_in_order_of_time_is_sorted_and_that_is_said(files: tuple[Path, Path]) -> None:
    """The log of these tests has its two lines the wrong way round."""
    machine, models = read_models(files[0])
    late = read_log(files[1], models)
    files[1].write_text("\n".join(reversed(files[1].read_text().splitlines())) + "\n")
    plain = read_log(files[1], models)
    assert (late.behind, plain.behind) == (1, 0)
    assert replace(late, behind=0) == plain
    asked, _ = policies(machine)
    said = {one.code: one.text for one in residency(machine, models, late, asked).findings}
    assert said["sorted"].startswith("1 request stood behind a later one in log.jsonl")
    assert "sorted" not in {one.code for one in residency(machine, models, plain, asked).findings}


def test_models_that_follow_each_other_by_chance_alone_are_not_said_to_belong_together() -> None:
    """One model asked for five times a second follows every other one; one that answers each of its calls does too."""
    draw = random.Random(3)
    busy = [(place / 5, 0, 0.01) for place in range(5_000)]
    rare = [(draw.uniform(0, 900), 1, 0.01) for _ in range(200)]
    caller = [one for place in range(150) for one in ((6.0 * place, 2, 0.01), (6.0 * place + 0.3, 3, 0.01))]
    models = [model(name, load_s=0.5) for name in ("busy", "rare", "caller", "answers")]
    made = residency(replace(SMALL, memory_bytes=4), models, log(*sorted([*busy, *rare, *caller])), ONE)
    names = list(made.co_access.models)
    assert made.co_access.ratios[names.index("rare")][names.index("busy")] > 0.95
    told = [one.text for one in made.findings if one.code == "keep-together"]
    assert len(told) == 1
    assert told[0].startswith("100.0 % of requests for caller are followed by one for answers within 1 s (by chance")


@pytest.mark.parametrize("kind", ["jsonl", "csv"])
def test_a_packed_log_reads_the_same_and_a_cut_one_is_said(files: tuple[Path, Path], kind: str) -> None:
    _, models = read_models(files[0])
    table = "time,model,service_s,prompt_tokens,output_tokens,session\n101,b,2,,,\n100,a,,500,100,x\n"
    text = files[1].read_text() if kind == "jsonl" else table
    packed = files[1].with_name(f"log.{kind}.gz")
    packed.write_bytes(gzip.compress(text.encode()))
    assert read_log(packed, models) == replace(read_log(files[1], models), name=packed.name)
    packed.write_bytes(packed.read_bytes()[:-12])
    with pytest.raises(KvplanError, match=r"broken compressed data"):
        read_log(packed, models)
    packed.write_text(text)
    with pytest.raises(KvplanError, match=r"log\.\w+\.gz: "):
        read_log(packed, models)


@pytest.mark.parametrize("name", ["keep_alive_s", "sleep_after_s"])
def test_a_time_of_nothing_is_refused_as_servers_read_it_differently(name: str) -> None:
    with pytest.raises(KvplanError, match="give a time above 0"):
        policies(SMALL, **{name: 0.0})  # type: ignore[arg-type]
