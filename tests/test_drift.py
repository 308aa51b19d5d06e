"""Where sessions leave their own history, on logs made to leave it at known places."""

from __future__ import annotations

import numpy as np
from records import replace
from test_reuse import make

from kvplan import reuse
from kvplan.documents import Drift, Requests
from kvplan.profiling import drift
from kvplan.profiling.comparison import compared
from kvplan.workload import profile


def log(paths: list[list[str]], sessions: list[int], block_tokens: int) -> Requests:
    """A log from paths of block contents, each id naming all blocks up to it."""
    numbers: dict[tuple[str, ...], int] = {}
    dense = [[numbers.setdefault(tuple(path[: i + 1]), len(numbers)) for i in range(len(path))] for path in paths]
    requests = make(dense, [len(path) * block_tokens for path in paths])
    return replace(requests, block_tokens=block_tokens, session=np.array(sessions))


def found_in(requests: Requests) -> tuple[Drift, ...]:
    return drift.find(reuse.find_runs(requests), requests)


def test_a_clock_after_the_system_prompt_is_a_fixed_place() -> None:
    """28,160 shared tokens, then a time stamp, then a growing history: everything after the stamp is lost each turn."""
    system = [f"s{i}" for i in range(55)]
    paths = [[*system, f"clock {turn}", *(f"turn {i}" for i in range(turn))] for turn in range(6)]
    found = found_in(log(paths, [0] * 6, 512))
    assert [(row.kind, row.position_tokens, row.requests) for row in found] == [("fixed place", 28_160, 5)]
    assert found[0].lost_tokens == sum(1 + turn for turn in range(5)) * 512
    assert "512 tokens" in found[0].fix


def test_a_switch_near_the_first_token_loses_everything() -> None:
    """A mode in the first block that changes every few turns: the whole history before the switch is lost each time."""
    paths = [[f"mode {turn // 2 % 2} {turn // 4}", *(f"b{i}" for i in range(turn + 2))] for turn in range(8)]
    found = found_in(log(paths, [5] * 8, 64))
    assert [(row.kind, row.position_tokens, row.requests) for row in found] == [("fixed place", 0, 3)]
    assert found[0].lost_tokens == sum(turn + 2 for turn in (2, 4, 6)) * 64


def test_rewritten_history_is_a_moving_place() -> None:
    """Every turn drops the reasoning of the turn before, wherever that stood."""
    paths, history = [], [f"s{i}" for i in range(4)]
    for turn in range(12):
        paths.append([*history, f"question {turn}", f"reasoning {turn}"])
        history += [f"question {turn}", f"answer {turn}", f"tool {turn}"]
    found = found_in(log(paths, [0] * 12, 16))
    assert [(row.kind, row.requests, row.lost_tokens) for row in found] == [("moving place", 11, 11 * 16)]


def test_a_conversation_that_only_grows_does_not_drift_and_neither_do_strangers() -> None:
    growing = [[f"b{i}" for i in range(turn + 1)] for turn in range(8)]
    assert found_in(log(growing, [0] * 8, 16)) == ()
    strangers = [[f"{i}", f"{i}b"] for i in range(8)]
    assert found_in(log(strangers, [-1] * 8, 16)) == ()
    assert found_in(log(strangers, list(range(8)), 16)) == ()


def test_two_periods_side_by_side() -> None:
    earlier, later = make([[0], [0], [0]], [4, 4, 4]), make([[0], [1]], [4, 4])
    both = make([[0], [0], [0], [0], [1]], [4] * 5)
    result = compared(profile(earlier), profile(later), both)
    assert result.compared is not None
    assert (result.compared.requests, result.compared.known_hit_ratio, result.ceiling_hit_ratio) == (3, 0.5, 0)
    assert {finding.code for finding in result.findings} >= {"ceiling-fell", "carried-over"}
    apart = compared(profile(later), profile(earlier), None)
    assert apart.compared is not None
    assert apart.compared.known_hit_ratio is None
    assert "ceiling-moved" in {finding.code for finding in apart.findings}
    assert [point.capacity_blocks for point in apart.compared.curve] == [1]
