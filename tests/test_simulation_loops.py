"""Closed loops: who waits for whose answer, what becomes of the blocks of answers, and that no request is lost."""

from __future__ import annotations

import json
from collections import OrderedDict
from collections.abc import Sequence
from pathlib import Path

import msgspec
import numpy as np
import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st
from records import replace
from test_simulate import BLOCK, ENGINE, OFF, TOKEN, books_balance, conversations, host, log_of, same, tokens_hit
from test_simulation_faults import SMALL, failing, gone, losses, restarts, slow
from typer.testing import CliRunner

from kvplan import files, simulate
from kvplan.documents import Fault, Loop, Requests, Texts
from kvplan.errors import KvplanError, UsageError
from kvplan.simulation.live import DONE, GONE
from kvplan.simulation.loops import answers, turns
from kvplan.simulation.schedule import schedule_of
from kvplan.simulation.world import World

SESSIONS = Loop(kind="sessions")
ONE = Loop(kind="concurrency", concurrency=1)


def with_sessions(log: Requests, sessions: Sequence[int], durations: Sequence[float] | None = None) -> Requests:
    took = np.full(len(sessions), np.nan) if durations is None else np.array(durations, float)
    return replace(log, session=np.array(sessions), duration_s=took)


def world_of(log: Requests, loop: Loop, engine: object = ENGINE) -> World:
    world = World(schedule_of(log, 1.0, None, loop=loop), engine, OFF, watch=books_balance)  # type: ignore[arg-type]
    world.play()
    return world


# ------------------------------------------------------------------------------------------------ sessions


def test_a_later_turn_comes_when_the_one_before_was_answered_and_thought_over() -> None:
    log = log_of([[0], [0, 1], [0, 1, 2]], [0.0, 10.0, 12.0], [200, 200, 5])
    log = with_sessions(log, [4, 4, 4], [3.0, 5.0, 1.0])  # thinks 7 s, then not at all
    first, second, third = world_of(log, SESSIONS).requests
    assert first.ended_at
    assert second.ended_at
    assert second.arrived_at == pytest.approx(first.ended_at + 7.0)
    assert third.arrived_at == second.ended_at


def test_where_answers_are_not_timed_the_whole_gap_is_for_thinking_and_that_is_said() -> None:
    log = with_sessions(log_of([[0], [0, 1]], [0.0, 10.0], [5, 5]), [0, 0])
    first, second = world_of(log, SESSIONS).requests
    assert first.ended_at
    assert second.arrived_at == pytest.approx(first.ended_at + 10.0)
    made = simulate.run(ENGINE, log, loop=SESSIONS)
    assert [one.code for one in made.findings if one.severity == "warning"] == ["thinking-too-long"]
    assert made.follow_ups == 1
    assert made.requests_per_s is None


def test_turns_without_names_are_found_by_what_they_go_on_from() -> None:
    """A start that all share is no conversation, and a prompt that was not extended is none either."""
    root = [0, 1]
    paths = [[*root, 2, 3], [*root, 4], [*root, 2, 3, 5, 6], [*root, 4], root, [*root, 7], [*root, 2, 3, 5, 6, 8]]
    log = log_of(paths, [float(n) for n in range(7)], [1] * 7)
    found = turns(log, paths)
    assert [None if one is None else one.after for one in found] == [None, None, 0, None, None, None, 2]


@given(st.integers(0, 10**6))
def test_every_turn_found_goes_on_from_its_whole_prompt_and_no_prompt_twice(seed: int) -> None:
    log = conversations(80, 1.0, seed=seed)
    paths = schedule_of(log, 1.0, None).paths
    found = turns(log, paths)
    followed = [one.after for one in found if one is not None]
    assert len(set(followed)) == len(followed)
    for index, turn in enumerate(found):
        if turn is not None:
            assert turn.after < index
            assert paths[index][: len(paths[turn.after])] == paths[turn.after]
            assert turn.think_s == index - turn.after


def test_without_conversations_a_closed_loop_is_the_open_one() -> None:
    paths = [[n] for n in range(40)]
    log = log_of(paths, [0.01 * n for n in range(40)], [20] * 40)
    closed = simulate.play(log, ENGINE, OFF, loop=SESSIONS)
    assert same(closed) == same(simulate.play(log, ENGINE, OFF))
    assert "no-conversations" in [one.code for one in simulate.run(ENGINE, log, loop=SESSIONS).findings]


def test_a_slower_engine_makes_later_turns_come_later_and_no_queue_without_end() -> None:
    """At many times the rate that it can serve, an open loop's queue grows with the log; a conversation waits."""
    log = conversations(200, 0.001, output=200)
    log = with_sessions(log, [n % 8 for n in range(200)], [0.0] * 200)
    started = simulate.play(log, ENGINE, OFF)
    closed = simulate.play(log, ENGINE, OFF, loop=SESSIONS)
    assert closed.mean_in_system <= 8 < started.mean_in_system
    assert closed.completed == 200


def test_faster_arrivals_do_not_make_people_think_faster() -> None:
    log = with_sessions(log_of([[0], [1], [0, 2]], [0.0, 4.0, 10.0], [1] * 3), [0, 1, 0], [1.0] * 3)
    world = World(schedule_of(log, 2.0, None, loop=SESSIONS), ENGINE, OFF)
    world.play()
    first, other, later = world.requests
    assert other.arrived_at == 2.0
    assert first.ended_at
    assert later.arrived_at == pytest.approx(first.ended_at + 9.0)


# --------------------------------------------------------------------------------------------- concurrency


@pytest.mark.parametrize("clients", [1, 4, 500])
def test_so_many_clients_are_there_at_once_and_come_in_order(clients: int) -> None:
    log = replace(conversations(60, 1.0, output=30), time_s=np.full(60, np.nan))  # no time stamps are needed
    most = 0

    def watch(world: World) -> None:
        nonlocal most
        most = max(most, world.in_system)
        books_balance(world)

    loop = Loop(kind="concurrency", concurrency=clients)
    world = World(schedule_of(log, 1.0, None, loop=loop), ENGINE, OFF, watch=watch)
    world.play()
    assert most == min(clients, 60)
    assert [one.index for one in sorted(world.requests, key=lambda one: one.rank)] == list(range(60))
    result = simulate.play(log, ENGINE, OFF, loop=loop)
    assert result.completed == 60
    assert result.completed_per_s
    assert result.completed_per_s * result.makespan_s == pytest.approx(60)


def test_one_client_waits_for_nobody_in_front_of_it() -> None:
    result = simulate.play(conversations(60, 0.0, output=30), ENGINE, OFF, loop=ONE)
    assert result.queue_wait
    assert result.queue_wait.max == 0
    assert result.mean_in_system == pytest.approx(1.0)


# ------------------------------------------------------------------------------------- blocks of answers


def pool_hits(log: Requests, capacity: int) -> int:
    """Tokens hit by one request after the other in a pool of blocks that keeps whatever is full, by brute force.

    Blocks leave a queue at its front. A finished request's full blocks join at the back, the last of them first;
    whatever has no name joins at the front.
    """
    free = capacity
    queue: OrderedDict[object, None] = OrderedDict()
    hit = 0
    for number, (tokens, output) in enumerate(zip(log.input_tokens, log.output_tokens, strict=True)):
        path: list[object] = list(log.blocks[log.offsets[number] : log.offsets[number + 1]])
        path = path[: tokens // BLOCK]
        found = 0
        while found < (tokens - 1) // BLOCK and path[found] in queue:
            found += 1
        hit += found * BLOCK
        for block in path[:found]:
            del queue[block]
        held = tokens + output - 1
        names = path + [("answer", number, place) for place in range(len(path), held // BLOCK)]
        for _ in range(-(-held // BLOCK) - found):
            if free:
                free -= 1
            else:
                queue.popitem(last=False)
        free += -(-held // BLOCK) - len(names)
        for block in reversed(names):
            if block in queue:  # the log's last block again, computed anew
                queue[("copy", number)] = None
            else:
                queue[block] = None
    return hit


@pytest.mark.parametrize("output", [1, 30, 77])
@pytest.mark.parametrize("capacity", [32, 60, 199])
@pytest.mark.parametrize("tail", [0, 1])
def test_one_request_at_a_time_hits_what_a_pool_of_full_blocks_hits(capacity: int, output: int, tail: int) -> None:
    log = conversations(300, 1.0, output=output)
    log = replace(log, input_tokens=log.input_tokens - 1 + tail)
    engine = replace(ENGINE, kv_tokens=capacity * BLOCK, output_blocks="keep")
    assert tokens_hit(simulate.play(log, engine, OFF, loop=ONE)) == pool_hits(log, capacity)


def test_answers_that_stay_take_room_and_answers_that_come_back_are_hits() -> None:
    """Every turn repeats the whole conversation: 4 blocks of answer, one of question."""
    paths, path = [], [0, 1, 2]
    fresh = iter(range(3, 10**6))
    for _ in range(8):
        paths.append(list(path))
        path = path + [next(fresh) for _ in range(5)]
    log = with_sessions(log_of(paths, [10.0 * n for n in range(8)], [4 * BLOCK] * 8), [0] * 8)
    schedule = schedule_of(log, 1.0, None)
    assert answers(log, schedule.paths, turns(log, schedule.paths), True)[0] == paths[1][3:7]
    hits = {}
    for rule in ("forget", "keep", "reuse"):
        engine = replace(ENGINE, kv_tokens=300 * BLOCK, output_blocks=rule)
        hits[rule] = tokens_hit(simulate.play(log, engine, OFF, loop=SESSIONS))
    assert hits["forget"] == hits["keep"] == sum(len(one) * BLOCK for one in paths[:-1])
    assert hits["reuse"] == hits["keep"] + 7 * 4 * BLOCK
    tight = replace(ENGINE, kv_tokens=60 * BLOCK)
    crowd = conversations(300, 10.0, output=6 * BLOCK)
    free = simulate.play(crowd, tight, OFF)
    kept = simulate.play(crowd, replace(tight, output_blocks="keep"), OFF)
    assert tokens_hit(kept) < tokens_hit(free)


def test_a_prefix_that_the_same_step_computes_is_hit_where_the_engine_names_blocks_early() -> None:
    """The first request's 20 blocks take two steps; the others begin in the second, which completes all of them."""
    path = list(range(20))
    log = log_of([path, path, path], [0.0, 0.0, 0.02], [1, 1, 1])
    early = replace(ENGINE, same_step_hits=True)
    world = World(schedule_of(log, 1.0, None), early, OFF, watch=books_balance)
    world.play()
    late = World(schedule_of(log, 1.0, None), ENGINE, OFF)
    late.play()
    assert [sum(one.hits) for one in late.requests] == [0, 16 * BLOCK, 16 * BLOCK]
    assert [sum(one.hits) for one in world.requests] == [0, 20 * BLOCK, 20 * BLOCK]


def test_a_log_of_text_says_itself_which_blocks_its_answers_fill() -> None:
    """The second prompt goes on with another text than the answer that was given, a third one with that answer."""
    log = log_of([[0, 1], [0, 1, 2, 3], [0, 1, 4]], [0.0, 10.0, 20.0], [2 * BLOCK] * 3)
    none = np.array([], int)
    texts = Texts(
        **dict.fromkeys(("kind", "exact", "near", "loose", "answer_exact", "answer_near", "answer_told"), none),
        offsets=np.zeros(4, int),
        head_tokens=np.full(3, -1),
        answer_offsets=np.array([0, 2, 2, 2]),
        answer_blocks=np.array([4, 5]),  # 5: no prompt has it
    )
    told = replace(with_sessions(log, [0, 0, 0]), texts=texts)
    paths = schedule_of(told, 1.0, None).paths
    assert answers(told, paths, turns(told, paths), True) == [[4], [], []]
    assert answers(told, paths, turns(told, paths), False)[0] == [2, 3]
    reuse = replace(ENGINE, output_blocks="reuse")
    world = World(schedule_of(told, 1.0, None, names_output=True), reuse, OFF, watch=books_balance)
    world.play()
    assert [sum(one.hits) for one in world.requests] == [0, 2 * BLOCK, 3 * BLOCK]


def test_answers_that_come_back_are_stored_with_the_prompt() -> None:
    log = conversations(200, 5.0, output=40)
    engine = replace(SMALL, output_blocks="reuse")
    reused, kept = (
        simulate.play(log, replace(engine, output_blocks=rule), host(2000)).tiers[1] for rule in ("reuse", "keep")
    )
    assert reused.hit_tokens > kept.hit_tokens > 0


# --------------------------------------------------------------------------------------------- no one lost


@settings(max_examples=80, deadline=None)
@given(
    st.integers(0, 10**6),
    st.lists(st.one_of(restarts, losses, slow, failing, gone), max_size=12),
    st.sampled_from(["write-through", "on-eviction"]),
    st.sampled_from(["recompute", "wait"]),
    st.sampled_from([SESSIONS, ONE, Loop(kind="concurrency", concurrency=7)]),
    st.sampled_from(["forget", "keep", "reuse"]),
    st.booleans(),
    st.integers(1, 2),
)
def test_random_faults_lose_no_request_in_a_closed_loop(
    seed: int, faults: list[Fault], store: str, in_flight: str, loop: Loop, rule: str, early: bool, replicas: int
) -> None:
    log = conversations(50, 0.05, seed=seed, output=1 + seed % 50)
    arm = replace(host(40, store=store, in_flight=in_flight), disk_bytes=90 * BLOCK * TOKEN)
    engine = replace(SMALL, replicas=replicas, output_blocks=rule, same_step_hits=early)
    names = rule == "reuse"
    schedule = schedule_of(log, 1.0, None, loop=loop, names_output=names)
    world = World(schedule, engine, arm, faults, watch=books_balance)
    world.play()
    assert all(one.state in (DONE, GONE) for one in world.requests)
    assert world.arrived == 50
    assert world.in_system == 0
    result = simulate.play(log, engine, arm, faults, loop=loop)
    assert result.completed + sum(result.cancelled.values()) == result.submitted == 50
    for replica in world.replicas:
        assert not (replica.running)
        assert not (replica.loading)
        assert not replica.parked
        assert replica.gpu.private == 0


def test_a_client_that_is_gone_in_a_closed_loop_lets_the_next_one_in() -> None:
    log = conversations(20, 0.0, output=40)
    leave = [Fault(at_s=0.0, kind="client-gone", request=n) for n in (0, 5, 19)]
    result = simulate.play(log, ENGINE, OFF, leave, loop=ONE)
    assert result.cancelled == {"client gone": 3}
    assert result.completed == 17


# ------------------------------------------------------------------------------------------------- border


def test_loops_that_mean_nothing_are_refused() -> None:
    log = conversations(10, 1.0)
    with pytest.raises(UsageError, match="ask for one of them"):
        simulate.loop_of(True, 4)
    with pytest.raises(UsageError, match="a closed loop of clients needs their number"):
        simulate.run(ENGINE, log, loop=Loop(kind="concurrency"))
    with pytest.raises(UsageError, match="no rate to scale"):
        simulate.run(ENGINE, log, loop=ONE, rate_scale=2.0)
    with pytest.raises(UsageError, match="arrivals follow answers"):
        simulate.run(ENGINE, log, loop=SESSIONS, slo_ttft_s=1.0)
    with pytest.raises(KvplanError, match="blocks of 32 tokens and the log of 16"):
        simulate.run(replace(ENGINE, block_tokens=32), log)


def test_an_engine_given_by_its_figures_is_played_without_a_plan() -> None:
    log = conversations(100, 1.0)
    made = simulate.run(ENGINE, log, arms=[host(50)], loop=ONE)
    assert [one.arm.name for one in made.arms] == ["off", "on"]
    assert made.model is None
    assert made.loop == ONE
    assert msgspec.json.decode(msgspec.json.encode(made))["loop"] == {"kind": "concurrency", "concurrency": 1}


@pytest.mark.parametrize(
    ("options", "loop", "tokens"),
    [
        (["--closed-loop", "--output-blocks", "reuse"], SESSIONS, None),
        (["--concurrency", "4", "--kv-tokens", "6400"], Loop(kind="concurrency", concurrency=4), 6400),
    ],
)
def test_the_command_plays_closed_loops(options: list[str], loop: Loop, tokens: int | None, tmp_path: Path) -> None:
    from kvplan.cli import app

    lines = [
        {"timestamp": 1000 * n, "input_length": 32 * (n + 2), "output_length": 40, "hash_ids": list(range(n + 2))}
        for n in range(20)
    ]
    log, plan, out = tmp_path / "log.jsonl", tmp_path / "plan.json", tmp_path / "simulation.json"
    log.write_text("".join(json.dumps(line) + "\n" for line in lines))
    plan.write_text(files.dump(samples.plan()))
    given = ["simulate", str(plan), "--log", str(log), "--block-tokens", "32", "-o", str(out), "-q", *options]
    ran = CliRunner().invoke(app, given)
    assert ran.exit_code == 0, ran.output
    made = files.load(out).data
    assert made.loop == loop
    assert made.engine.kv_tokens == (tokens or samples.plan().data.budgets.gpu.usable_bytes // 131_072)
    assert all(one.completed == 20 for one in made.arms)
    assert (made.follow_ups, made.engine.output_blocks) == ((0, "keep") if tokens else (19, "reuse"))
    both = CliRunner().invoke(app, [*given, "--closed-loop", "--concurrency", "2"])
    assert isinstance(both.exception, UsageError)
