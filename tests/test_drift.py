"""Where sessions leave their own history, on logs made to leave it at known places."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from records import replace
from test_reuse import make

from kvplan import reuse
from kvplan.documents import Drift, Requests
from kvplan.logs import read
from kvplan.profiling import drift, drift_text
from kvplan.profiling.comparison import compared
from kvplan.workload import profile

ROOT = Path(__file__).resolve().parents[1]
TOKENIZER = ROOT / "examples/tokenizer"


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


def wrapped(format: str, time: int, messages: list[dict[str, Any]], answer: dict[str, Any]) -> dict[str, Any]:
    """One request of one conversation, with its answer, as a gateway logs it."""
    if format == "openai-chat":
        response = {"body": {"choices": [{"message": answer}]}}
        return {"timestamp": time, "session_id": "s", "body": {"messages": messages}, "response": response}
    if format == "litellm":
        times = {"startTime": float(time), "endTime": time + 0.5}
        counts = {"prompt_tokens": 1, "completion_tokens": 1, "trace_id": "s", "call_type": "acompletion"}
        return {**times, **counts, "messages": messages, "response": {"choices": [{"message": answer}]}}

    def parts(message: dict[str, Any]) -> dict[str, Any]:
        said = [{"type": "text", "content": message["content"]}]
        if thought := message.get("reasoning_content"):
            said.insert(0, {"type": "reasoning", "content": thought})
        return {"role": message["role"], "parts": said}

    attributes = {
        "gen_ai.operation.name": "chat",
        "gen_ai.conversation.id": "s",
        "gen_ai.input.messages": json.dumps([parts(message) for message in messages]),
        "gen_ai.output.messages": json.dumps([parts(answer)]),
    }
    return {"start_time": time, "end_time": time + 0.5, "attributes": attributes}


@pytest.mark.parametrize("format", ["openai-chat", "litellm", "otel"])
def test_the_cause_is_told_from_every_log_of_text(format: str, tmp_path: Path) -> None:
    """A clock in the system prompt of three turns; then three turns whose answers come back without their reasoning."""

    def turns(clock: bool) -> list[dict[str, Any]]:
        history: list[dict[str, Any]] = []
        rows = []
        for turn in range(3):
            when = f" It is 08:0{turn} of 2026-03-04." if clock else ""
            system = {"role": "system", "content": f"{' pump' * 60}{when}"}
            history.append({"role": "user", "content": f"Question {turn}?{' pump' * 40}"})
            answer = {"role": "assistant", "content": f"Answer {turn}:{' pump' * 50}"}
            thinking = answer if clock else {**answer, "reasoning_content": " pump" * 64}
            rows.append(wrapped(format, turn, [system, *history], thinking))
            history.append(answer)
        return rows

    for clock, kind, least in ((True, "clock", 100), (False, "stripped reasoning", 200)):
        path = tmp_path / f"{kind}.jsonl"
        path.write_text("".join(json.dumps(row) + "\n" for row in turns(clock)))
        requests = read([path], tokenizer=TOKENIZER)
        assert requests.sources[0].format == format
        found = found_in(requests)
        assert [(row.kind, row.requests) for row in found] == [(kind, 2)]
        assert found[0].lost_tokens > least


def test_every_class_is_in_the_docs_and_says_what_to_do() -> None:
    text = (ROOT / "docs/workload.md").read_text()
    for kind, fix in drift_text.FIXES.items():
        assert f"| `{kind}` |" in text
        assert len(fix) > 40


def test_nothing_of_the_text_is_in_the_table(tmp_path: Path) -> None:
    """Numbers only, from 0 up and no hashes: equal numbers are equal texts, and say nothing else."""
    path = tmp_path / "log.jsonl"
    rows = [{"timestamp": i, "messages": [{"role": "user", "content": f"Secret {i}"}]} for i in range(5)]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    texts = read([path], bytes_per_token=1).texts
    assert texts is not None
    for column in (texts.exact, texts.near, texts.loose):
        assert column.dtype.kind == "i"
        assert set(column.tolist()) <= set(range(column.size))


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
