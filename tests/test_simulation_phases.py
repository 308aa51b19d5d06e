"""What an arm goes through: a cold start, a tier that fills, a flood, another working set, a worker that leaves."""

from __future__ import annotations

import pytest
import samples
from records import replace
from test_simulate import BLOCK, ENGINE, OFF, TOKEN, conversations, host, log_of, same, tokens_hit
from test_simulation_faults import SMALL

from kvplan import simulate
from kvplan.documents import ArmResult, EngineModel, Fault, Loop, Requests
from kvplan.errors import UsageError
from kvplan.simulation.rates import crossing
from kvplan.simulation.schedule import schedule_of
from kvplan.simulation.shocks import shocked

ENDLESS = replace(ENGINE, kv_tokens=10**6)


def hits(result: ArmResult, name: str) -> float:
    return next(one.hit_ratio for one in result.phases if one.name == name)


# ------------------------------------------------------------------------------------- cold, full, warm


def test_a_cold_start_warms_until_the_tier_is_full() -> None:
    """Ten prompts of ten blocks, round and round: the first round hits nothing, the others all but the tail."""
    paths = [list(range(10 * n, 10 * n + 10)) for n in range(10)] * 5
    log = log_of(paths, [10.0 * n for n in range(50)], [1] * 50)
    result = simulate.play(log, replace(ENGINE, kv_tokens=30 * BLOCK), host(100))
    assert [one.name for one in result.phases] == ["cold"]
    assert [one.hit_ratio for one in result.timeline[:8]] == [0.0] * 8
    assert all(one.hit_ratio > 0.99 for one in result.slices[3:])
    tier = result.tiers[1]
    assert tier.full_at_s is None
    assert (tier.blocks, tier.kept_never_hit_blocks, tier.removed_never_hit_blocks) == (100, 0, 0)


def test_a_host_budget_that_fills_is_a_phase_and_says_when_and_what_went_unused() -> None:
    log = conversations(300, 10.0)
    result = simulate.play(log, SMALL, host(60))
    tier = result.tiers[1]
    assert tier.full_at_s is not None
    full = next(one for one in result.phases if one.name == "full")
    assert full.from_s == tier.full_at_s
    assert result.phases[0].requests + full.requests == 300
    bytes_of = BLOCK * TOKEN
    assert max(one.host_bytes for one in result.timeline) <= 60 * bytes_of
    assert sum(one.host_removed_bytes or 0 for one in result.timeline) <= sum(tier.removed_blocks.values()) * bytes_of
    assert tier.removed_never_hit_blocks is not None
    assert 0 < tier.removed_never_hit_blocks < sum(tier.removed_blocks.values())
    assert tier.inserted_blocks == tier.blocks + sum(tier.removed_blocks.values())


def test_what_was_never_hit_is_counted_by_hand() -> None:
    """A pool of 7 blocks: prompt a is hit once and stays, b never, then both make room for c, which stays unused."""
    log = log_of([[0, 1], [0, 1], [2, 3], list(range(4, 10))], [10.0 * n for n in range(4)], [1] * 4)
    gpu = simulate.play(log, replace(ENGINE, kv_tokens=7 * BLOCK), OFF).tiers[0]
    assert gpu.removed_blocks == {"capacity": 4}
    assert gpu.removed_never_hit_blocks == 2
    assert (gpu.blocks, gpu.kept_never_hit_blocks) == (6, 6)
    assert gpu.full_at_s == 30.0


# ---------------------------------------------------------------------------------------- scan and churn


def test_a_scan_floods_lru_and_the_working_set_comes_back_after_it() -> None:
    log = conversations(400, 10.0, seed=4)
    engine = replace(ENGINE, kv_tokens=40 * BLOCK)
    flood = [Fault(at_s=2000.0, kind="scan", value=60)]
    calm, flooded = simulate.play(log, engine, host(150)), simulate.play(log, engine, host(150), flood)
    assert flooded.submitted == flooded.completed == 460
    assert [one.name for one in flooded.phases] == ["cold", "full", "scan", "scan-over"]
    assert tokens_hit(flooded) < tokens_hit(calm)
    assert hits(flooded, "scan") < hits(flooded, "scan-over")


def test_a_scan_into_a_cache_without_end_costs_no_hit() -> None:
    log = conversations(200, 10.0)
    flood = [Fault(at_s=500.0, kind="scan", value=50)]
    assert tokens_hit(simulate.play(log, ENDLESS, OFF, flood)) == tokens_hit(simulate.play(log, ENDLESS, OFF))


def test_after_a_churn_nothing_from_before_is_hit() -> None:
    log = conversations(200, 10.0)
    halves = sum(
        tokens_hit(simulate.play(part, ENDLESS, OFF)) for part in (log_part(log, 0, 100), log_part(log, 100, 200))
    )
    churned = simulate.play(log, ENDLESS, OFF, [Fault(at_s=1000.0, kind="churn")])
    assert tokens_hit(churned) == halves < tokens_hit(simulate.play(log, ENDLESS, OFF))
    late = next(one for one in churned.phases if one.name == "churn")
    assert late.requests == 100


def log_part(log: Requests, start: int, end: int) -> Requests:
    offsets = log.offsets
    blocks = log.blocks[offsets[start] : offsets[end]]
    return replace(
        log,
        offsets=offsets[start : end + 1] - offsets[start],
        paths=blocks,
        **{
            name: getattr(log, name)[start:end]
            for name in ("time_s", "input_tokens", "output_tokens", "duration_s", "tenant", "session")
        },
    )


def test_a_churn_before_everything_changes_nothing() -> None:
    log = conversations(100, 1.0)
    plain, churned = (simulate.play(log, SMALL, host(90), faults) for faults in ([], [Fault(at_s=0.0, kind="churn")]))
    assert same(replace(churned, phases=())) == same(replace(plain, phases=()))


def test_two_scans_have_blocks_of_their_own() -> None:
    log = conversations(50, 1.0)
    faults = [Fault(at_s=5.0, kind="scan", value=20), Fault(at_s=9.0, kind="scan", value=60)]
    schedule = shocked(schedule_of(log, 1.0, None), faults)
    new = [block for path in schedule.paths[50:] for block in path]
    assert len(schedule.times) == 130
    assert len(new) == len(set(new))
    assert min(new) >= 1 + int(log.blocks.max())
    assert max(new) == schedule.unique - 1


# --------------------------------------------------------------------------------------- a worker leaves


def test_a_worker_that_leaves_takes_its_tiers_along_and_others_answer() -> None:
    log = conversations(300, 1.0, output=60)
    three = replace(SMALL, replicas=3)
    leave = [Fault(at_s=150.0, kind="worker-gone", value=0)]
    for routing in ("affinity", "session", "round-robin"):
        engine = replace(three, routing=routing)
        whole, less = simulate.play(log, engine, host(100)), simulate.play(log, engine, host(100), leave)
        assert less.completed == whole.completed == 300
        assert less.tiers[1].removed_blocks["restart"] > 0
        if routing == "affinity":  # by turns, fewer workers hit more
            assert less.slices[5].hit_ratio < whole.slices[5].hit_ratio


def test_a_worker_that_is_not_there_cannot_leave_nor_the_only_one() -> None:
    log = conversations(10, 1.0)
    with pytest.raises(UsageError, match="numbered 0 to 0"):
        simulate.run(ENGINE, log, faults=[Fault(at_s=1.0, kind="worker-gone", value=1)])
    with pytest.raises(UsageError, match="no replica would be left"):
        simulate.run(ENGINE, log, faults=[Fault(at_s=1.0, kind="worker-gone")])
    loop = Loop(kind="concurrency", concurrency=2)
    with pytest.raises(UsageError, match="--concurrency plays none"):
        simulate.run(ENGINE, log, faults=[Fault(at_s=1.0, kind="churn")], loop=loop)


# ------------------------------------------------------------------------------------------------- rates


def test_where_a_target_is_passed_lies_between_the_rates_around_it() -> None:
    tried = [(1.0, 1.0), (2.0, 4.0), (4.0, 16.0)]  # p90 = rate squared
    assert crossing(tried, 2.25) == pytest.approx(1.5)
    assert crossing(tried, 9.0) == pytest.approx(3.0)
    assert crossing(tried, 0.5) is None
    assert crossing(tried, 20.0) is None


def test_arms_are_shown_at_the_same_rates_and_the_band_is_around_the_rate() -> None:
    log = conversations(300, 0.1, output=10)
    made = simulate.run(ENGINE, log, arms=[host(400)], slo_ttft_s=0.5)
    off, on = made.arms
    assert off.sustainable
    assert off.sustainable.requests_per_s
    assert [one.requests_per_s for one in off.loads] == [one.requests_per_s for one in on.loads]
    assert off.loads[0].requests_per_s == pytest.approx(0.5 * off.sustainable.requests_per_s)
    assert len(off.sustainable.tried) == 7
    assert off.sustainable.low_per_s
    assert off.sustainable.fails_at
    assert off.sustainable.high_per_s
    assert off.sustainable.low_per_s <= off.sustainable.fails_at
    assert off.sustainable.requests_per_s <= off.sustainable.high_per_s
    for one in (*off.loads, *on.loads):
        seconds = [point.seconds for point in one.ttft]
        assert seconds == sorted(seconds)
        assert one.ttft[-1].share == 1.0
    busy = [one.gpu_busy_ratio for one in off.loads]
    assert busy == sorted(busy)


def test_a_target_that_no_rate_meets_is_said() -> None:
    made = simulate.run(ENGINE, conversations(100, 0.1), slo_ttft_s=1e-6)
    assert made.arms[0].sustainable
    assert made.arms[0].sustainable.requests_per_s is None
    assert not made.arms[0].loads
    assert "slo-never-met" in {one.code for one in made.findings}


def test_a_store_rate_that_nobody_measured_is_said_to_be_assumed() -> None:
    plan = samples.plan().data
    assert plan.inputs.probe
    log = conversations(20, 1.0)
    log = replace(log, block_tokens=512, input_tokens=log.input_tokens // BLOCK * 512 + 1)
    probe = plan.inputs.probe
    bare = replace(
        probe, data=replace(probe.data, links=tuple(one for one in probe.data.links if one.direction != "d2h"))
    )
    rows = tuple(replace(row, store_bytes_per_s=None) for row in plan.break_even)
    unmeasured = replace(plan, inputs=replace(plan.inputs, probe=bare), break_even=rows)
    said = [simulate.run(one, log) for one in (plan, unmeasured)]
    assert ["store-rate-assumed" in {note.code for note in one.findings} for one in said] == [False, True]
    stores = next(one for one in said[1].evidence if one.what == "host link, stores")
    assert stores.provenance == "assumed"
    engine: EngineModel = said[1].engine
    assert engine.host_link
    assert engine.host_link.store_bytes_per_s == engine.host_link.load_bytes_per_s
    measured = said[0].engine.host_link
    assert measured
    assert measured.store_bytes_per_s == plan.break_even[0].store_bytes_per_s == 45.3e9
