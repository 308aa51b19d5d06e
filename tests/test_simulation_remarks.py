"""What a simulation says beside its figures: queues that grow, another log than the plan's, rates without faults."""

from __future__ import annotations

import pytest
import samples
from records import replace
from test_simulate import BLOCK, ENGINE, OFF, conversations, host, log_of

from kvplan import simulate
from kvplan.documents import Fault, Loop, Requests, Simulation
from kvplan.errors import UsageError


def codes(made: Simulation) -> set[str]:
    return {finding.code for finding in made.findings}


def even(count: int, gap_s: float) -> Requests:
    """Equal prompts that share nothing."""
    return log_of([[2 * n, 2 * n + 1] for n in range(count)], [gap_s * n for n in range(count)], [40] * count)


def test_a_queue_that_grows_is_said_though_the_engine_is_not_always_busy() -> None:
    """One request at a time takes some 90 ms; the engine rests a while before the last one comes."""
    one = replace(ENGINE, max_num_seqs=1)
    made = simulate.run(one, even(200, 0.05))
    (off,) = made.arms
    assert off.backlog is not None
    assert off.backlog > 50
    assert "saturated" in codes(made)
    calm = simulate.run(one, even(200, 0.5))
    assert calm.arms[0].backlog == 0
    assert "saturated" not in codes(calm)


def test_clients_that_keep_an_engine_busy_are_no_queue() -> None:
    made = simulate.run(ENGINE, even(100, 0.0), loop=Loop(kind="concurrency", concurrency=16))
    assert made.arms[0].gpu_busy_ratio > 0.97
    assert "saturated" not in codes(made)


def test_a_replica_that_left_counts_while_it_was_there() -> None:
    log = even(300, 0.02)
    whole = simulate.play(log, replace(ENGINE, replicas=2, max_num_seqs=1), OFF)
    left = simulate.play(log, replace(ENGINE, replicas=2, max_num_seqs=1), OFF, [Fault(at_s=0.0, kind="worker-gone")])
    assert whole.gpu_busy_ratio > 0.9
    assert left.gpu_busy_ratio > 0.9
    assert left.makespan_s > 1.8 * whole.makespan_s


def test_another_log_than_the_plans_is_said() -> None:
    plan = samples.plan().data
    size = plan.inputs.workload.data.block_tokens
    log = replace(
        conversations(20, 5.0), block_tokens=size, input_tokens=conversations(20, 5.0).input_tokens * size // BLOCK
    )
    assert "another-log" in codes(simulate.run(plan, log))
    own = replace(log, sources=plan.inputs.workload.data.sources)
    assert "another-log" not in codes(simulate.run(plan, own))


def test_rates_are_searched_without_the_faults() -> None:
    log, fault = even(40, 0.2), Fault(at_s=2.0, kind="restart", value=1.0)
    with_rates = simulate.run(ENGINE, log, faults=[fault], slo_ttft_s=1.0)
    assert "rates-without-faults" in codes(with_rates)
    assert "rates-without-faults" not in codes(simulate.run(ENGINE, log, faults=[fault]))
    assert with_rates.arms[0].sustainable == simulate.run(ENGINE, log, slo_ttft_s=1.0).arms[0].sustainable


def test_the_name_that_two_arms_have_is_named() -> None:
    with pytest.raises(UsageError, match="two arms are named on"):
        simulate.run(ENGINE, even(5, 1.0), arms=[host(10), host(20)])
