"""Whatever fails, no request is lost: each is completed or cancelled, and the books of every tier still balance."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import replace
from test_simulate import BLOCK, ENGINE, OFF, TOKEN, books_balance, conversations, host, log_of, tokens_hit

from kvplan import simulate
from kvplan.documents import Arm, EngineModel, Fault, LinkModel
from kvplan.errors import UsageError
from kvplan.simulation.live import DONE, GONE
from kvplan.simulation.schedule import schedule_of
from kvplan.simulation.shocks import shocked
from kvplan.simulation.world import World

LINK = LinkModel(load_bytes_per_s=2e6, store_bytes_per_s=2e6, latency_s=0.001)
SMALL = replace(ENGINE, kv_tokens=30 * BLOCK, host_link=LINK, disk_link=LINK)

restarts = st.builds(
    Fault,
    at_s=st.floats(0, 20),
    kind=st.just("restart"),
    value=st.sampled_from([0.0, 0.01, 3.0]),
    survives=st.sampled_from([(), ("host",), ("host", "disk")]),
)
losses = st.builds(Fault, at_s=st.floats(0, 20), kind=st.just("tier-lost"), tier=st.sampled_from(["host", "disk"]))
slow = st.builds(
    Fault,
    at_s=st.floats(0, 20),
    kind=st.just("link"),
    tier=st.sampled_from(["host", "disk"]),
    value=st.sampled_from([0.01, 0.5, 2.0]),
)
failing = st.builds(Fault, at_s=st.floats(0, 20), kind=st.just("load-failure"), value=st.sampled_from([0.0, 0.5, 1.0]))
gone = st.builds(Fault, at_s=st.floats(0, 20), kind=st.just("client-gone"), request=st.integers(0, 49))
left = st.builds(Fault, at_s=st.floats(0, 20), kind=st.just("worker-gone"), value=st.sampled_from([0.0, 1.0]))
shocks = st.builds(
    Fault, at_s=st.floats(0, 20), kind=st.sampled_from(["scan", "churn"]), value=st.sampled_from([1.0, 7.0])
)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 10**6),
    st.lists(st.one_of(restarts, losses, slow, failing, gone, left, shocks), max_size=12),
    st.sampled_from(["write-through", "on-eviction"]),
    st.sampled_from(["recompute", "wait"]),
    st.sampled_from([0.0, 0.02, 0.4]),
    st.sampled_from([1, 3]),
)
def test_random_faults_lose_no_request(
    seed: int, faults: list[Fault], store: str, in_flight: str, gap_s: float, replicas: int
) -> None:
    log = conversations(50, gap_s, seed=seed, output=1 + seed % 30)
    arm = replace(host(40, store=store, in_flight=in_flight), disk_bytes=90 * BLOCK * TOKEN)
    engine = replace(SMALL, replicas=replicas)
    faults = [fault for fault in faults if fault.kind != "worker-gone" or replicas > 1]
    world = World(shocked(schedule_of(log, 1.0, None), faults), engine, arm, faults, watch=books_balance)
    world.play()
    assert all(one.state in (DONE, GONE) for one in world.requests)
    result = simulate.play(log, engine, arm, faults)
    assert result.completed + sum(result.cancelled.values()) == result.submitted
    assert result.submitted == 50 + sum(int(fault.value) for fault in faults if fault.kind == "scan")
    asked = {fault.request for fault in faults if fault.kind == "client-gone"}
    assert sum(result.cancelled.values()) <= len(asked)
    for replica in world.replicas:
        assert not replica.running
        assert not replica.loading
        assert not replica.parked
        assert replica.decoding == replica.kv_tokens == 0


def play(engine: EngineModel, arm: Arm, *faults: Fault) -> tuple[int, float, int, int]:
    """Tokens hit, mean TTFT, failed loads and completed requests of 200 conversations, one every 5 s."""
    result = simulate.play(conversations(200, 5.0), engine, arm, faults)
    assert result.ttft is not None
    return tokens_hit(result), result.ttft.mean, result.failed_loads, result.completed


def test_failed_loads_are_computed_and_fail_no_request() -> None:
    hits, mean, failed, done = play(SMALL, host(500), Fault(at_s=0, kind="load-failure", value=1.0))
    whole, quick, none, _ = play(SMALL, host(500))
    alone, _, _, _ = play(SMALL, OFF)
    assert done == 200
    assert failed > none == 0
    assert hits == alone < whole
    assert mean > quick


def test_a_lost_tier_leaves_what_the_gpu_alone_would_hit() -> None:
    lost, _, _, done = play(SMALL, host(500), Fault(at_s=0, kind="tier-lost", tier="host"))
    alone, _, _, _ = play(SMALL, OFF)
    assert (lost, done) == (alone, 200)


def test_a_host_tier_that_survives_a_restart_is_worth_something() -> None:
    whole, _, _, _ = play(SMALL, host(500))
    kept, _, _, _ = play(SMALL, host(500), Fault(at_s=502.0, kind="restart", survives=("host",)))
    lost, _, _, done = play(SMALL, host(500), Fault(at_s=502.0, kind="restart"))
    assert lost < kept <= whole
    assert done == 200


def test_a_restart_keeps_everybody_waiting_until_it_is_over() -> None:
    log = conversations(50, 1.0)
    result = simulate.play(log, SMALL, OFF, [Fault(at_s=10.2, kind="restart", value=20.0)])
    assert result.ttft is not None
    assert result.ttft.max >= 19.0
    assert result.completed == 50


def test_a_link_at_half_speed_doubles_the_waiting_for_loads() -> None:
    log = conversations(200, 5.0)
    engine = replace(SMALL, host_link=replace(LINK, latency_s=0.0))
    full = simulate.play(log, engine, host(500))
    half = simulate.play(log, engine, host(500), [Fault(at_s=0, kind="link", tier="host", value=0.5)])
    assert full.load_wait is not None
    assert half.load_wait is not None
    assert half.load_wait.mean == pytest.approx(2 * full.load_wait.mean)


def test_a_client_that_leaves_while_waiting_frees_its_place() -> None:
    log = conversations(30, 0.0, output=40)
    last = [Fault(at_s=0.001, kind="client-gone", request=n) for n in range(10, 20)]
    result = simulate.play(log, SMALL, OFF, last)
    assert result.cancelled == {"client gone": 10}
    assert result.completed == 20


def test_a_client_that_leaves_in_the_middle_of_prefill_ends_it_with_the_step() -> None:
    """A prompt of 40 blocks takes three steps; the client leaves in the first."""
    log = log_of([list(range(40)), list(range(40, 42))], [0.0, 5.0], [9, 9])
    leave = [Fault(at_s=0.01, kind="client-gone", request=0)]
    world = World(schedule_of(log, 1.0, None), ENGINE, OFF, leave, watch=books_balance)
    world.play()
    assert [one.state for one in world.requests] == [GONE, DONE]
    assert world.replicas[0].prefill_tokens == ENGINE.max_num_batched_tokens + 2 * BLOCK + 1


def test_whoever_waits_for_a_prefix_goes_on_when_its_owner_leaves() -> None:
    """The third request loads what the second pushed out of the GPU, the fourth waits for it, and the third leaves."""
    path = list(range(20))
    log = log_of([path, list(range(20, 48)), path, path], [0.0, 50.0, 100.0, 100.01], [1, 1, 1, 1])
    waits = host(500, in_flight="wait")
    both = simulate.play(log, SMALL, waits)
    leave = simulate.play(log, SMALL, waits, [Fault(at_s=100.05, kind="client-gone", request=2)])
    assert both.tiers[1].loaded_bytes > 0
    assert both.completed == 4
    assert leave.cancelled == {"client gone": 1}
    assert leave.completed == 3
    restarted = simulate.play(log, SMALL, waits, [Fault(at_s=100.05, kind="restart", value=1.0)])
    assert restarted.completed == 4


def test_a_request_longer_than_the_cache_is_turned_away_and_counted() -> None:
    result = simulate.play(conversations(50, 1.0), replace(ENGINE, kv_tokens=10 * BLOCK), OFF)
    assert result.cancelled["does not fit"] > 0
    assert result.completed + result.cancelled["does not fit"] == 50


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("10m:restart=90s", Fault(at_s=600, kind="restart", value=90)),
        ("10m:restart-keep-host", Fault(at_s=600, kind="restart", survives=("host", "disk"))),
        ("5s:lose-disk", Fault(at_s=5, kind="tier-lost", tier="disk")),
        ("5s:slow-host=0.5", Fault(at_s=5, kind="link", tier="host", value=0.5)),
        ("5s:fail-loads=0.1", Fault(at_s=5, kind="load-failure", value=0.1)),
        ("5s:client-gone=0", Fault(at_s=5, kind="client-gone", request=0)),
        ("5s:worker-gone=1", Fault(at_s=5, kind="worker-gone", value=1)),
        ("5s:scan=200", Fault(at_s=5, kind="scan", value=200)),
        ("5s:churn", Fault(at_s=5, kind="churn")),
    ],
)
def test_a_fault_is_read(text: str, fault: Fault) -> None:
    assert simulate.fault_of(text) == fault


@pytest.mark.parametrize(
    "text",
    [
        *("restart", "10:restart", "5s:flood", "5s:slow-host=0", "5s:fail-loads=x", "5s:fail-loads=1.1", "5s:scan=0"),
        "5s:client-gone",
    ],
)
def test_a_fault_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--fault"):
        simulate.fault_of(text)


def test_a_client_that_the_log_does_not_have_cannot_go() -> None:
    log = conversations(20, 1.0)
    simulate.run(SMALL, log, faults=[Fault(at_s=1.0, kind="client-gone", request=19)])
    with pytest.raises(UsageError, match="numbered 0 to 19"):
        simulate.run(SMALL, log, faults=[Fault(at_s=1.0, kind="client-gone", request=20)])


def test_a_fault_after_the_last_arrival_is_said() -> None:
    log = conversations(20, 1.0)
    span = float(log.time_s[-1] - log.time_s[0])

    def codes(at_s: float) -> set[str]:
        faults = [Fault(at_s=at_s, kind="restart", value=1.0)]
        return {one.code for one in simulate.run(SMALL, log, faults=faults).findings}

    assert "fault-after-arrivals" in codes(span + 1)
    assert "fault-after-arrivals" not in codes(span / 2)
