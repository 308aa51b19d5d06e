"""The simulation against what is known without it: the exact hit curve, queueing theory, and its own books."""

from __future__ import annotations

import json
import random
from itertools import accumulate
from pathlib import Path

import msgspec
import numpy as np
import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st
from records import replace
from typer.testing import CliRunner

from kvplan import files, logs, report, reuse, simulate
from kvplan.documents import Arm, ArmResult, EngineModel, LinkModel, LogSource, Requests
from kvplan.errors import KvplanError, UsageError
from kvplan.simulation import setup
from kvplan.simulation.measures import quantile, ttfts
from kvplan.simulation.schedule import schedule_of
from kvplan.simulation.world import World

BLOCK = 16
TOKEN = 1000  # bytes a token
INFINITE = LinkModel(load_bytes_per_s=1e30, store_bytes_per_s=1e30)
ENGINE = EngineModel(
    kv_tokens=64 * BLOCK,
    block_tokens=BLOCK,
    tier_bytes_per_token=TOKEN,
    t0_s=0.001,
    a_s_per_token=1e-4,
    b_s_per_token_sq=1e-8,
    weights_s=0.002,
    kv_s_per_token=1e-7,
    max_num_batched_tokens=256,
    max_num_seqs=32,
    host_link=INFINITE,
)
OFF = Arm(name="off")


def host(blocks: int, **rules: object) -> Arm:
    """An arm with so many blocks of host memory."""
    return Arm(name="on", host_bytes=blocks * BLOCK * TOKEN, **rules)  # type: ignore[arg-type]


def log_of(
    paths: list[list[int]], times: list[float], outputs: list[int], tail: int = 1, tenants: list[int] | None = None
) -> Requests:
    """A log whose requests have the full blocks `paths` and `tail` tokens more, which nobody reuses."""
    count = len(paths)
    return Requests(
        block_tokens=BLOCK,
        time_s=np.array(times, float),
        input_tokens=np.array([len(path) * BLOCK + tail for path in paths]),
        output_tokens=np.array(outputs),
        duration_s=np.full(count, np.nan),
        offsets=np.array([0, *accumulate(len(path) for path in paths)]),
        paths=np.array([block for path in paths for block in path], np.int64),
        tenant=np.array(tenants or [-1] * count),
        session=np.full(count, -1),
        tenants=("a", "b"),
        sources=(LogSource(name="made.jsonl", format="made", sha256="0" * 64, requests=count),),
    )


def conversations(count: int, gap_s: float, seed: int = 3, output: int = 1, longest: int = 24) -> Requests:
    """Growing conversations that share a start, one after the other at random."""
    dice = random.Random(seed)
    fresh = iter(range(10**9))
    root = [next(fresh) for _ in range(3)]
    open_ones: list[list[int]] = []
    paths = []
    for _ in range(count):
        if not open_ones or dice.random() < 0.3:
            open_ones.append(list(root))
        path = dice.choice(open_ones[-12:])
        if len(path) > longest - 5:
            del path[4:]
        path += [next(fresh) for _ in range(dice.randint(1, 5))]
        paths.append(list(path))
    names: dict[int, int] = {}
    dense = [[names.setdefault(block, len(names)) for block in path] for path in paths]
    return log_of(dense, [n * gap_s for n in range(count)], [output] * count)


def tokens_hit(result: ArmResult) -> int:
    return sum(tier.hit_tokens for tier in result.tiers)


def same(one: ArmResult) -> bytes:
    """A result as bytes, its arm aside."""
    return msgspec.json.encode(replace(one, arm=OFF))


# ------------------------------------------------------------------------------------- off, on, infinite


def test_a_host_tier_without_room_is_off_to_the_byte() -> None:
    log = conversations(200, 0.01, output=40)
    off = simulate.play(log, ENGINE, OFF)
    assert same(simulate.play(log, ENGINE, host(0))) == same(off)
    less = Arm(name="on", host_bytes=BLOCK * TOKEN - 1)
    assert same(simulate.play(log, ENGINE, less)) == same(off)


def test_without_reuse_a_tier_costs_what_its_stores_hold_up_and_nothing_else() -> None:
    dice = random.Random(1)
    sizes = [dice.randint(1, 20) for _ in range(150)]
    ends = list(accumulate(sizes))
    paths = [list(range(end - size, end)) for end, size in zip(ends, sizes, strict=True)]
    log = log_of(
        paths, [0.03 * n for n in range(150)], [10] * 150
    )  # no growth into a new block: nobody is preempted, who would load its own
    off = simulate.play(log, ENGINE, OFF)
    free = simulate.play(log, ENGINE, host(10_000))
    assert off.ttft == free.ttft
    assert free.tiers[1].stored_bytes == sum(sizes) * BLOCK * TOKEN
    slow = replace(ENGINE, host_link=LinkModel(load_bytes_per_s=1e6, store_bytes_per_s=1e6))
    held = simulate.play(log, slow, host(10_000))
    assert off.ttft
    assert held.ttft
    assert held.ttft.mean > off.ttft.mean
    assert held.hit_ratio == off.hit_ratio == 0


@pytest.mark.parametrize("gap_s", [0.02, 2.0])
def test_infinite_host_and_link_hit_what_an_infinite_gpu_hits(gap_s: float) -> None:
    log = conversations(300, gap_s)
    endless = replace(ENGINE, kv_tokens=10**6)
    wait = replace(OFF, in_flight="wait")
    gpu = simulate.play(log, endless, wait)
    tier = simulate.play(log, ENGINE, host(10**6, in_flight="wait"))
    assert tokens_hit(gpu) == tokens_hit(tier) > 0
    assert gpu.hit_ratio == tier.hit_ratio


# ------------------------------------------------------------------------------------------ the exact curve


@pytest.mark.parametrize("capacity", [25, 30, 60, 120, 5000])
@pytest.mark.parametrize("seed", [1, 2])
def test_at_low_load_the_gpu_hits_the_exact_curve(capacity: int, seed: int) -> None:
    """One block is the private tail of whoever runs; the other capacity - 1 are an exact LRU prefix cache."""
    log = conversations(400, 10.0, seed=seed)
    blocks, tokens = reuse.hits_at_every_capacity(reuse.find_runs(log), log)
    result = simulate.play(log, replace(ENGINE, kv_tokens=capacity * BLOCK), OFF)
    at = min(capacity - 1, len(blocks) - 1)
    assert tokens_hit(result) == tokens[at]


@pytest.mark.parametrize("capacity", [40, 90, 200])
def test_at_low_load_a_host_tier_hits_the_exact_curve(capacity: int) -> None:
    """The GPU holds little more than one request, all of it held by the host too: the host's size rules."""
    log = conversations(400, 10.0, seed=5)
    _, tokens = reuse.hits_at_every_capacity(reuse.find_runs(log), log)
    result = simulate.play(log, replace(ENGINE, kv_tokens=26 * BLOCK), host(capacity))
    assert tokens_hit(result) == tokens[capacity]


def test_the_last_token_of_a_prompt_is_always_computed() -> None:
    log = log_of([[0, 1], [0, 1]], [0.0, 10.0], [1, 1], tail=0)
    result = simulate.play(log, ENGINE, OFF)
    assert tokens_hit(result) == BLOCK  # the curve of the log's own ids says 2 * BLOCK


# --------------------------------------------------------------------------------------------- queueing


def test_a_constant_server_waits_as_an_m_d_1_queue() -> None:
    """Pollaczek-Khinchine: mean wait = load * service / (2 (1 - load)), within four standard errors of the batches."""
    dice = random.Random(7)
    engine = replace(ENGINE, max_num_seqs=1, kv_tokens=10**9)
    size = 8 * BLOCK + 1
    service = engine.t0_s + engine.a_s_per_token * size + engine.b_s_per_token_sq * size**2
    load, count = 0.7, 40_000
    times = list(accumulate(dice.expovariate(load / service) for _ in range(count)))
    log = log_of([list(range(n * 8, n * 8 + 8)) for n in range(count)], times, [1] * count)
    world = World(schedule_of(log, 1.0, None), engine, OFF)
    world.play()
    waits = [(one.admitted_at or 0.0) - one.arrived_at for one in world.requests]
    batches = np.array(waits).reshape(40, -1).mean(axis=1)
    error = batches.std(ddof=1) / 40**0.5
    expected = load * service / (2 * (1 - load))
    assert abs(batches.mean() - expected) < 4 * error
    assert error < 0.1 * expected


def test_littles_law() -> None:
    log = conversations(400, 0.05, output=30)
    world = World(schedule_of(log, 1.0, None), ENGINE, host(100))
    world.play()
    end = max(one.ended_at or 0.0 for one in world.requests)
    stay = sum((one.ended_at or 0.0) - one.arrived_at for one in world.requests)
    assert world.in_system_s == pytest.approx(stay)
    assert world.in_system_s / end == pytest.approx(len(world.requests) / end * (stay / len(world.requests)))


def test_runs_of_decode_steps_played_at_once_are_the_steps_one_by_one() -> None:
    """Decoding alone: the last token comes after the sum of every step's own time."""
    log = log_of([[0], [1]], [0.0, 0.0], [50, 90])
    result = simulate.play(log, replace(ENGINE, kv_tokens=10**5), OFF)
    a, b, t0 = ENGINE.a_s_per_token, ENGINE.b_s_per_token_sq, ENGINE.t0_s
    now = t0 + max(2 * 17 * a + 2 * b * 17**2, ENGINE.weights_s)
    ends = [49, 89]
    for step in range(89):
        live = [end for end in ends if end > step]
        now += t0 + max(a * len(live), ENGINE.weights_s) + ENGINE.kv_s_per_token * sum(17 + step for _ in live)
    assert result.makespan_s == pytest.approx(now, rel=1e-12)
    assert result.steps == 90


def test_the_gpu_is_never_idle_while_somebody_could_run() -> None:
    """Work conservation: with everybody there at once, the engine is busy from start to end."""
    log = conversations(60, 0.0, output=20)
    assert simulate.play(log, replace(ENGINE, kv_tokens=10**5), OFF).gpu_busy_ratio == pytest.approx(1.0)


# --------------------------------------------------------------------------------------- latency and hits


def test_latency_moves_when_loaded_tokens_move() -> None:
    log = conversations(300, 0.5)
    off = simulate.play(log, replace(ENGINE, kv_tokens=26 * BLOCK), OFF)
    on = simulate.play(log, replace(ENGINE, kv_tokens=26 * BLOCK), host(200))
    assert off.ttft
    assert on.ttft
    spared = off.prefill_tokens - on.prefill_tokens
    assert spared == tokens_hit(on) - tokens_hit(off) > 0
    assert on.ttft.mean < off.ttft.mean


def test_a_slow_link_makes_requests_wait_and_changes_no_hit() -> None:
    log = conversations(300, 5.0)
    small = replace(ENGINE, kv_tokens=26 * BLOCK)
    slow = replace(small, host_link=LinkModel(load_bytes_per_s=1e7, store_bytes_per_s=1e9))
    quick, late = (simulate.play(log, engine, host(200)) for engine in (small, slow))
    assert tokens_hit(quick) == tokens_hit(late)
    assert quick.ttft
    assert late.ttft
    assert late.load_wait
    assert late.ttft.mean > quick.ttft.mean
    loads = late.tiers[1].loaded_bytes
    assert loads == late.tiers[1].hit_tokens * TOKEN
    assert late.load_wait.mean * 300 >= loads / 1e7 * 0.9


def test_both_arms_count_hits_alike() -> None:
    """Hit tokens and computed tokens make up all input tokens, whatever the arm, where nothing is preempted."""
    log = conversations(300, 5.0)
    for arm in (OFF, host(50), host(500, policy="arc"), host(80, store="on-eviction")):
        result = simulate.play(log, ENGINE, arm)
        assert result.preemptions == 0
        assert tokens_hit(result) + result.prefill_tokens == result.input_tokens
        assert result.hit_ratio == tokens_hit(result) / result.input_tokens


def test_a_prefix_in_flight_is_waited_for_or_computed_again() -> None:
    log = log_of([list(range(20)), list(range(20))], [0.0, 0.001], [1, 1])  # a step computes 16 blocks
    again = simulate.play(log, ENGINE, OFF)
    waits = simulate.play(log, ENGINE, replace(OFF, in_flight="wait"))
    assert tokens_hit(again) == 16 * BLOCK
    assert tokens_hit(waits) == 20 * BLOCK


# ----------------------------------------------------------------------------------------------- policies


def test_second_use_stores_only_what_came_twice() -> None:
    paths = [[0, 1], [2, 3], [0, 1], [4, 5], [0, 1]]
    log = log_of(paths, [10.0 * n for n in range(5)], [1] * 5)
    result = simulate.play(log, replace(ENGINE, kv_tokens=3 * BLOCK), host(100, admission="second-use"))
    assert result.tiers[1].inserted_blocks == 2
    assert result.tiers[1].hit_tokens == 2 * BLOCK
    assert result.tiers[1].refused_blocks == {"first use": 6}


def test_a_ttl_drops_what_nobody_used() -> None:
    log = log_of([[0], [0], [0]], [0.0, 5.0, 30.0], [1] * 3)
    result = simulate.play(log, ENGINE, host(100, ttl_s=10.0))
    assert tokens_hit(result) == BLOCK
    assert result.tiers[0].removed_blocks == {"ttl": 1}
    assert result.tiers[1].removed_blocks == {"ttl": 1}


def test_tenants_apart_reuse_nothing_of_each_other() -> None:
    log = log_of([[0, 1]] * 4, [10.0 * n for n in range(4)], [1] * 4, tenants=[0, 1, 0, 1])
    assert tokens_hit(simulate.play(log, ENGINE, OFF)) == 3 * 2 * BLOCK
    assert tokens_hit(simulate.play(log, ENGINE, replace(OFF, share="tenant"))) == 2 * 2 * BLOCK
    assert tokens_hit(simulate.play(log, ENGINE, replace(OFF, share="none"))) == 0


def test_storing_on_eviction_keeps_the_host_apart_from_the_gpu() -> None:
    log = conversations(300, 10.0, seed=9)
    through = simulate.play(log, ENGINE, host(60))
    evicted = simulate.play(log, ENGINE, host(60, store="on-eviction"))
    assert tokens_hit(evicted) > tokens_hit(through)  # an inclusive tier smaller than the GPU repeats it
    assert evicted.tiers[1].stored_bytes < through.tiers[1].stored_bytes


def test_a_flood_that_is_used_once_hurts_lru_more_than_arc() -> None:
    fresh = iter(range(100, 10**6))
    paths = []
    for _ in range(60):
        paths += [[0, 1, 2, 3], [0, 1, 2, 3]]
        paths += [[next(fresh) for _ in range(6)] for _ in range(4)]
    names: dict[int, int] = {}
    dense = [[names.setdefault(block, len(names)) for block in path] for path in paths]
    log = log_of(dense, [10.0 * n for n in range(len(paths))], [1] * len(paths))
    small = replace(ENGINE, kv_tokens=8 * BLOCK)
    lru, arc = (simulate.play(log, small, host(16, policy=policy)) for policy in ("lru", "arc"))
    assert tokens_hit(arc) > tokens_hit(lru)


def test_what_the_host_gave_up_comes_back_from_the_disk() -> None:
    log = conversations(300, 10.0)
    disk = LinkModel(load_bytes_per_s=1e9, store_bytes_per_s=1e9)
    engine = replace(ENGINE, kv_tokens=26 * BLOCK, disk_link=disk)
    arm = replace(host(30), disk_bytes=5000 * BLOCK * TOKEN)
    result = simulate.play(log, engine, arm)
    _, tokens = reuse.hits_at_every_capacity(reuse.find_runs(log), log)
    assert tokens_hit(result) == tokens[-1]
    assert result.tiers[2].hit_tokens > 0


def test_replicas_with_affinity_hit_more_than_by_turns() -> None:
    log = conversations(300, 1.0)
    two = replace(ENGINE, replicas=2)
    kept = simulate.play(log, two, host(100))
    turns = simulate.play(log, replace(two, routing="round-robin"), host(100))
    assert tokens_hit(kept) > tokens_hit(turns)
    assert kept.completed == turns.completed == 300


# ---------------------------------------------------------------------------------------- door and border


def test_the_rate_search_brackets_the_slo() -> None:
    log = conversations(300, 0.1, output=10)
    found = simulate.sustainable(log, ENGINE, OFF, 0.5, points=7)
    assert found.requests_per_s
    assert found.fails_at
    assert found.requests_per_s < found.fails_at < 1.05 * found.requests_per_s
    base = schedule_of(log, 1.0, None)
    logged = 300 / base.times[-1]
    for rate, holds in ((found.requests_per_s, True), (found.fails_at, False)):
        world = World(schedule_of(log, rate / logged, None), ENGINE, OFF)
        world.play()
        assert (quantile(sorted(ttfts(world.requests)), 0.9) <= 0.5) is holds


@given(st.lists(st.floats(0, 100), min_size=1), st.sampled_from([0.5, 0.9, 0.99]))
def test_percentiles_are_nearest_rank(values: list[float], share: float) -> None:
    ordered = sorted(values)
    value = quantile(ordered, share)
    assert sum(one <= value for one in ordered) >= share * len(ordered) - 1e-6
    assert sum(one < value for one in ordered) < share * len(ordered) + 1e-6


def test_a_log_without_times_is_refused() -> None:
    log = replace(conversations(3, 1.0), time_s=np.full(3, np.nan))
    with pytest.raises(KvplanError, match="no time stamps"):
        simulate.play(log, ENGINE, OFF)


def test_a_tier_without_a_known_link_is_refused() -> None:
    with pytest.raises(KvplanError, match="host tier, and the rate of its link is unknown"):
        simulate.play(conversations(3, 1.0), replace(ENGINE, host_link=None), host(10))


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("big", "write a name"),
        ("big:colour=red", "keys: host"),
        ("big:host=5", "does not say its unit"),
        ("big:policy=mru", "none of lru, arc"),
    ],
)
def test_an_arm_that_means_nothing_is_refused(text: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        simulate.arm_of(text)


def test_an_arm_is_read() -> None:
    arm = simulate.arm_of("big: host=1GiB, policy=arc, ttl=10m, in-flight=wait")
    assert arm == Arm(name="big", host_bytes=2**30, policy="arc", ttl_s=600.0, in_flight="wait")


def test_a_plan_gives_the_engine_its_link_and_its_cost() -> None:
    plan = samples.plan().data
    engine, evidence = setup.model_of(plan, 512, simulate.Options())
    host_row = next(row for row in plan.break_even if row.tier == "host")
    assert engine.host_link
    load = engine.host_link.latency_s + host_row.prefix_tokens * 131_072 / engine.host_link.load_bytes_per_s
    assert load == pytest.approx(host_row.load_s)
    assert engine.kv_tokens == plan.budgets.gpu.usable_bytes // 131_072
    said = {one.what for one in evidence}
    assert said >= {"recompute cost", "host link, loads", "host link, stores", "GPU memory rate"}


# ------------------------------------------------------------------------------------------- conservation


def books_balance(world: World) -> None:
    """After every event, on every tier: what came is there or left, and what is there fits."""
    for replica in world.replicas:
        gpu = replica.gpu
        assert replica.prefilling.keys() <= replica.running.keys()
        assert len(replica.running) == len(replica.prefilling) + replica.decoding
        assert gpu.free + gpu.private + len(gpu.users) + len(gpu.cached) == gpu.capacity
        assert gpu.free >= 0
        assert gpu.private >= 0
        assert gpu.inserted == gpu.state.count(2) + gpu.unnamed + sum(gpu.removed.values())
        assert not gpu.cached.keys() & gpu.users.keys()
        assert gpu.hit <= gpu.cached.keys() | gpu.users.keys()
        assert gpu.never_hit <= sum(gpu.removed.values())
        for tier in (replica.tiers.host, replica.tiers.disk):
            if tier is not None:
                assert tier.inserted == len(tier.used_at) + sum(tier.removed.values())
                assert tier.used <= tier.capacity
                assert tier.hit <= tier.used_at.keys()
                assert tier.never_hit <= sum(tier.removed.values())
                assert not tier.reserved & tier.used_at.keys()
                assert all(count > 0 for count in tier.pinned.values())


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(26, 80),
    st.integers(1, 120),
    st.sampled_from(["lru", "arc"]),
    st.sampled_from(["write-through", "on-eviction"]),
    st.sampled_from(["recompute", "wait"]),
    st.sampled_from([0.0, 0.005, 0.2]),
    st.sampled_from([None, 0.5]),
    st.sampled_from([1e6, 1e8]),
)
def test_blocks_are_conserved_at_every_event(
    seed: int,
    gpu: int,
    tier: int,
    policy: str,
    store: str,
    in_flight: str,
    gap_s: float,
    ttl_s: float | None,
    rate: float,
) -> None:
    log = conversations(40, gap_s, seed=seed, output=1 + seed % 40, longest=20)
    link = LinkModel(load_bytes_per_s=rate, store_bytes_per_s=rate, latency_s=0.001)
    engine = replace(ENGINE, kv_tokens=gpu * BLOCK, host_link=link, disk_link=link)
    arm = replace(host(tier, policy=policy, store=store, in_flight=in_flight, ttl_s=ttl_s), disk_bytes=10**7)
    world = World(schedule_of(log, 1.0, None), engine, arm, watch=books_balance)
    world.play()
    assert all(one.first_token_at is not None for one in world.requests)


# --------------------------------------------------------------------------------------------- documents


@pytest.fixture(scope="module")
def trace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("trace") / "trace.jsonl"
    lines = [
        {
            "timestamp": round(one.time_s * 1000),
            "input_length": one.input_tokens - 511 * (number % 2),
            "output_length": one.output_tokens,
            "hash_ids": list(one.blocks),
        }
        for number, one in enumerate(samples.requests(200))
    ]
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


def test_a_simulation_is_a_document_with_a_page(trace: Path) -> None:
    plan, requests = samples.plan().data, logs.read([trace])
    faults = (simulate.fault_of("1m:restart=5s"),)
    made = simulate.run(plan, requests, arms=(simulate.arm_of("big:host=64GiB"),), faults=faults, slo_ttft_s=5.0)
    document = files.wrap(made)
    again = files.parse(files.dump(document).encode(), "simulation.json")
    assert files.dump(again) == files.dump(document)
    shown = report.markdown(report.sections(document), "pictures")[0]
    for words in ("Sustainable rate", "Not modelled", "Why blocks stayed or went", "big"):
        assert words in shown
    assert made.time_low_ratio < 1 < made.time_high_ratio


def test_the_command_plays_a_plan(trace: Path, tmp_path: Path) -> None:
    from kvplan.cli import app

    plan, out = tmp_path / "plan.json", tmp_path / "simulation.json"
    plan.write_text(files.dump(samples.plan()))
    ran = CliRunner().invoke(app, ["simulate", str(plan), "--log", str(trace), "-o", str(out), "-q"])
    assert ran.exit_code == 0, ran.output
    data = files.load(out).data
    assert next(one.arm.name for one in data.arms) == "off"
    assert all(one.completed == one.submitted == 200 for one in data.arms)


def test_a_real_log_at_low_load_hits_its_exact_curve(shared: Path) -> None:
    """Requests one at a time, full blocks only; prompts of whole blocks may compute their last block again."""
    log = logs.read([shared / "traces" / "mooncake-conversation.jsonl.gz"])
    count, size = 3000, log.block_tokens
    offsets, inputs = log.offsets[: count + 1], log.input_tokens[:count]
    full = np.minimum(np.diff(offsets), inputs // size)
    kept = np.concatenate([log.blocks[start : start + some] for start, some in zip(offsets, full, strict=False)])
    alone = replace(
        log,
        time_s=np.arange(count) * 1000.0,
        input_tokens=inputs,
        output_tokens=log.output_tokens[:count],
        duration_s=log.duration_s[:count],
        offsets=np.concatenate([[0], np.cumsum(full)]),
        paths=np.unique(kept, return_inverse=True)[1],
        tenant=log.tenant[:count],
        session=log.session[:count],
    )
    _, tokens = reuse.hits_at_every_capacity(reuse.find_runs(alone), alone)
    most = int((inputs.max() + log.output_tokens.max()) // size) + 1
    engine = replace(ENGINE, block_tokens=size, kv_tokens=most * size)
    whole = int((inputs % size == 0).sum())
    for capacity in (2000, 8000):
        arm = Arm(name="on", host_bytes=capacity * size * TOKEN)
        hit = tokens_hit(simulate.play(alone, engine, arm))
        assert 0 <= tokens[capacity] - hit <= whole * size


def test_what_the_plan_or_log_makes_of_the_model_is_said() -> None:
    plan = samples.plan().data
    log = replace(conversations(20, 1.0), output_tokens=np.zeros(20, int), block_tokens=512)
    log = replace(log, input_tokens=log.input_tokens // BLOCK * 512 + 1)
    asked = replace(plan, policy=replace(plan.policy, growth=2.0, routing="session"))
    codes = {one.code for one in simulate.run(asked, log).findings}
    assert {"no-output", "growth", "no-sessions"} <= codes
    assert not {"growth", "no-sessions"} & {one.code for one in simulate.run(plan, log).findings}


def test_no_more_kv_cache_is_played_than_the_gpus_have_room_for() -> None:
    """Active requests of a plan that does not fit need more than there is: that need is no memory."""
    plan = samples.plan().data
    gpu = plan.budgets.gpu
    assert gpu.limit_bytes is not None
    beside = sum(item.bytes for item in gpu.items if item.name in ("weights", "engine overhead"))
    assert setup.room_for_kv(plan) == gpu.limit_bytes - beside >= gpu.usable_bytes
    over = replace(plan, budgets=replace(plan.budgets, gpu=replace(gpu, usable_bytes=3 * gpu.limit_bytes)))
    engine, _ = setup.model_of(over, 512, simulate.Options())
    assert engine.kv_tokens == (gpu.limit_bytes - beside) // 131_072
    log = replace(conversations(5, 1.0), block_tokens=512)
    said = {one.code: one.text for one in simulate.run(over, log).findings}
    assert "have room for" in said["gpu-does-not-fit"]
    assert "gpu-does-not-fit" not in {one.code for one in simulate.run(plan, log).findings}


def test_prompts_longer_than_the_model_reads_are_said() -> None:
    plan = samples.plan().data
    longest = plan.inputs.estimate.data.model.max_context_tokens
    assert longest is not None
    log = replace(conversations(5, 1.0), block_tokens=512)
    inputs = log.input_tokens.copy()
    inputs[2] = longest
    said = {one.code: one.text for one in simulate.run(plan, replace(log, input_tokens=inputs)).findings}
    assert said["longer-than-context"].startswith("1 of 5 requests is longer")
    assert "longer-than-context" not in {one.code for one in simulate.run(plan, log).findings}


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (simulate.Options(kv_tokens=0), "--kv-tokens 0: less than one block"),
        (simulate.Options(kv_tokens=511), "--kv-tokens 511: less than one block of 512"),
        (simulate.Options(memory_bytes_per_s=0.0), "--memory-rate"),
    ],
)
def test_an_engine_that_could_not_run_is_refused(options: simulate.Options, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        setup.model_of(samples.plan().data, 512, options)


def test_a_target_of_no_time_is_refused() -> None:
    with pytest.raises(UsageError, match="--slo-ttft"):
        simulate.run(ENGINE, conversations(5, 1.0), slo_ttft_s=0.0)


@pytest.mark.parametrize(
    ("limit", "kv_tokens", "says"),
    [
        (1, ENGINE.kv_tokens, "With one request, arm"),
        (None, ENGINE.kv_tokens, "With all requests at one moment"),
        (None, BLOCK, "no request was served in any arm"),
    ],
)
def test_the_first_line_of_a_log_without_a_rate_or_an_answer(limit: int | None, kv_tokens: int, says: str) -> None:
    log = log_of([[1, 2], [3, 4]], [5.0, 5.0], [1, 1])
    made = simulate.run(replace(ENGINE, kv_tokens=kv_tokens), log, arms=[host(4)], limit=limit)
    assert says in report.sections(files.wrap(made)).lead
