"""Schedules out: what a file says is what the log said, and prompts share what block numbers share."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from kvplan import replay, reuse
from kvplan.cli import app
from kvplan.documents import Requests
from kvplan.errors import KvplanError, UsageError
from kvplan.logs import read

BLOCK = 4


def requests(
    paths: list[list[int]],
    inputs: list[int],
    *,
    outputs: list[int] | None = None,
    times: list[float] | None = None,
    sessions: list[int] | None = None,
    durations: list[float] | None = None,
    hashed: bool = True,
) -> Requests:
    rows = len(inputs)
    return Requests(
        block_tokens=BLOCK,
        time_s=np.array(times if times is not None else np.arange(rows, dtype=float), float),
        input_tokens=np.array(inputs, np.int64),
        output_tokens=np.array(outputs if outputs is not None else [1] * rows, np.int64),
        duration_s=np.array(durations if durations is not None else [np.nan] * rows, float),
        offsets=np.concatenate(([0], np.cumsum([len(path) for path in paths]))).astype(np.int64),
        paths=np.array([block for path in paths for block in path], np.int64),
        tenant=np.full(rows, -1, np.int64),
        session=np.array(sessions if sessions is not None else [-1] * rows, np.int64),
        tenants=(),
        sources=(),
        hashed=hashed,
    )


@st.composite
def logs(draw: st.DrawFn) -> Requests:
    """Logs whose blocks form a tree: a request takes the start of an earlier path and goes on with new blocks."""
    paths: list[list[int]] = []
    inputs: list[int] = []
    full_only = draw(st.booleans())
    fresh = 0
    for _ in range(draw(st.integers(1, 8))):
        start = draw(st.sampled_from(paths)) if paths and draw(st.booleans()) else []
        kept = [block for block in start if block >= 0][: draw(st.integers(0, 5))]
        # the last block of a path may be partial, and then nothing follows it
        kept = kept[: len(kept) - 1] if kept and inputs[paths.index(start)] % BLOCK and kept == start else kept
        new = draw(st.integers(0 if kept else 1, 3))
        path = kept + list(range(fresh, fresh + new))
        fresh += new
        rest = draw(st.integers(1, BLOCK)) if new else BLOCK
        inputs.append(BLOCK * (len(path) - 1) + rest + (draw(st.integers(1, BLOCK - 1)) if full_only else 0))
        if full_only:
            inputs[-1] = BLOCK * len(path) + draw(st.integers(0, BLOCK - 1))
        paths.append(path)
    return requests(paths, inputs)


def lines(path: Path) -> list[dict[str, Any]]:
    text = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line) for line in text.splitlines()]


def curve(table: Requests) -> tuple[list[int], list[int]]:
    blocks, tokens = reuse.hits_at_every_capacity(reuse.find_runs(table), table)
    return blocks.tolist(), tokens.tolist()


@settings(max_examples=60, deadline=None)
@given(log=logs())
def test_what_is_read_back_has_the_same_hits_at_every_capacity_that_matters(
    log: Requests, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("replay") / "schedule.jsonl"
    schedule = replay.schedule_of(log, replay.Options())
    replay.write(schedule, path, "ids")
    for line in lines(path):
        assert len(line["hash_ids"]) == -(-line["input_length"] // BLOCK)  # GuideLLM refuses anything else
    back = read([path])
    assert back.input_tokens.tolist() == log.input_tokens.tolist()
    # Ends of prompts without a block get one of their own, which takes room but never hits: the hits of an infinite
    # cache are those of the log, and without such ends those of every capacity.
    assert curve(back)[1][-1] == curve(log)[1][-1]
    if len(back.blocks) == len(log.blocks):
        assert curve(back) == curve(log)


def shared_prefix(one: list[int], other: list[int]) -> int:
    return next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


@settings(max_examples=60, deadline=None)
@given(log=logs(), vocabulary=st.integers(2, 40))
def test_token_prompts_share_full_blocks_exactly_where_block_ids_do(log: Requests, vocabulary: int) -> None:
    schedule = replay.schedule_of(log, replay.Options())
    try:
        prompts = replay.Prompts(replay.symbols_of(f"7:{7 + vocabulary}", None), BLOCK, schedule.unique)
    except KvplanError:
        assert vocabulary**BLOCK < schedule.unique
        return
    rows = range(len(schedule.input_tokens))
    paths = [schedule.blocks[schedule.offsets[r] : schedule.offsets[r + 1]] for r in rows]
    tokens = [json.loads(prompts.json(path, int(schedule.input_tokens[r]))) for r, path in enumerate(paths)]
    for a in rows:
        assert len(tokens[a]) == schedule.input_tokens[a]
        assert all(7 <= token < 7 + vocabulary for token in tokens[a])
        for b in range(a):
            both = min(len(tokens[a]), len(tokens[b])) // BLOCK
            ids = min(shared_prefix(paths[a].tolist(), paths[b].tolist()), both)
            assert min(shared_prefix(tokens[a], tokens[b]) // BLOCK, both) == ids


def test_sibling_blocks_differ_at_their_first_token() -> None:
    prompts = replay.Prompts(replay.symbols_of("1000", None), 16, 500)
    first = [int(prompts.indices(number, 16)[0]) for number in range(500)]
    assert len(set(first)) == 500


def test_prompts_are_the_same_on_every_machine() -> None:
    """Worked by hand with whole numbers: another machine, NumPy or Python must make the same, or arms would differ."""
    prompts = replay.Prompts(replay.symbols_of("1000", None), 8, 3)
    assert prompts.json(np.array([2, 0]), 11) == b"[2,529,359,455,477,556,102,95,0,465,110]"
    text = replay.Prompts(replay.symbols_of(None, None), 8, 3)
    assert text.json(np.array([2, 0]), 11) == b'"cj-NveEhabo"'


def test_words_make_a_token_each(tmp_path: Path) -> None:
    (tmp_path / "words").write_text("alpha\nbeta\ngamma\n")
    prompts = replay.Prompts(replay.symbols_of(None, tmp_path / "words"), 8, 3)
    text = json.loads(prompts.json(np.array([2, 0]), 11))
    assert len(text.split(" ")) == 11
    assert set(text.split(" ")) <= {"alpha", "beta", "gamma"}


def test_a_payload_is_a_whole_request_of_fixed_length(tmp_path: Path) -> None:
    log = requests([[0, 1], [0, 2]], [7, 8], outputs=[5, 6], sessions=[0, 0], times=[10.0, 11.5])
    asked = replay.Request(model="m", symbols=replay.symbols_of("100", None), extra={"cache_prompt": True, "seed": 3})
    path = tmp_path / "schedule.jsonl.gz"
    replay.write(replay.schedule_of(log, replay.Options(rate_scale=2)), path, "payload", asked)
    first, second = lines(path)
    assert (first["timestamp"], second["timestamp"]) == (0, 750)
    assert first["session_id"] == second["session_id"] == "s0"
    assert not {"hash_ids", "input_length", "delay"} & set(first)  # AIPerf takes one input mode a line
    body = second["payload"]
    assert body["model"] == "m"
    assert body["max_tokens"] == second["output_length"] == 6
    assert body["ignore_eos"] is True
    assert body["temperature"] == 0
    assert (body["cache_prompt"], body["seed"]) == (True, 3)
    assert len(body["prompt"]) == 8


def test_a_closed_loop_has_delays_from_the_answer_before(tmp_path: Path) -> None:
    log = requests(
        [[0], [1], [0], [0]],
        [4] * 4,
        sessions=[0, 1, 0, 0],
        times=[0.0, 1.0, 5.0, 6.0],
        durations=[2.0, 1.0, 3.0, 1.0],
    )
    schedule = replay.schedule_of(log, replay.Options(closed_loop=True, rate_scale=2))
    assert schedule.time_ms.tolist() == [0, 500, -1, -1]
    assert schedule.delay_ms.tolist() == [-1, -1, 1500, 0]
    assert schedule.findings == ()
    path = tmp_path / "schedule.jsonl"
    replay.write(schedule, path, "ids")
    assert [line.get("delay") for line in lines(path)] == [None, None, 1500, 0]
    assert read([path]).time_s.tolist() == [0.0, 0.5, 1.5, 1.5]
    unknown = requests([[0], [0]], [4, 4], sessions=[0, 0])
    told = replay.schedule_of(unknown, replay.Options(closed_loop=True))
    assert told.delay_ms.tolist() == [-1, 1000]
    assert [finding.code for finding in told.findings] == ["delays-from-requests"]


def test_blocks_of_another_size_keep_the_sharing() -> None:
    log = requests([[0, 1], [0, 1], [0, 2]], [7, 7, 8])
    schedule = replay.schedule_of(log, replay.Options(block_tokens=32))
    assert schedule.input_tokens.tolist() == [56, 56, 64]
    assert schedule.blocks.tolist() == [0, 1, 0, 1, 0, 2]


def test_options_choose_requests() -> None:
    log = requests([[0], [1], [2], [3]], [4, 3, 2, 0], outputs=[9, 1, 1, 1])
    schedule = replay.schedule_of(log, replay.Options(max_model_len=5))
    assert schedule.input_tokens.tolist() == [3, 2]  # one too long with its answer, one without a prompt
    assert schedule.blocks.tolist() == [0, 1]
    assert [finding.code for finding in schedule.findings] == ["left-out"]
    assert replay.schedule_of(log, replay.Options(limit=2)).output_tokens.tolist() == [9, 1]
    assert replay.schedule_of(log, replay.Options(output_tokens=7)).output_tokens.tolist() == [7] * 3


def test_a_log_without_times_says_so() -> None:
    schedule = replay.schedule_of(requests([[0]], [4], times=[float("nan")]), replay.Options())
    assert schedule.time_ms.tolist() == [-1]
    assert [finding.code for finding in schedule.findings] == ["no-times"]


def test_an_id_of_two_sizes_is_pointed_out() -> None:
    """GuideLLM would make one of the two prompts too short or too long without a word."""
    schedule = replay.schedule_of(requests([[0], [0]], [4, 3]), replay.Options())
    assert [finding.code for finding in schedule.findings] == ["id-sizes"]


@pytest.mark.parametrize(
    ("log", "options", "said"),
    [
        (requests([[]], [4], hashed=False), {}, "lengths only"),
        (requests([[0]], [4], outputs=[0]), {}, "--output-tokens"),
        (requests([[0]], [4]), {"rate_scale": 0.0}, "--rate-scale"),
        (requests([[0]], [4]), {"rate_scale": float("nan")}, "--rate-scale"),
        (requests([[0]], [4]), {"max_model_len": 2}, "no request is left"),
        (requests([[0]], [4]), {"closed_loop": True}, "no sessions"),
        (requests([], []), {}, "no requests"),
    ],
)
def test_what_cannot_be_sent_is_refused_in_a_line(log: Requests, options: dict[str, Any], said: str) -> None:
    with pytest.raises(KvplanError, match=said) as caught:
        replay.schedule_of(log, replay.Options(**options))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("vocab", ["", "x", "1", "5:6", "9:3", "-4", "3:", ":9", "1e3"])
def test_a_vocabulary_without_sense_is_refused(vocab: str) -> None:
    with pytest.raises(UsageError, match="--vocab"):
        replay.symbols_of(vocab, None)


def test_too_few_symbols_are_refused() -> None:
    with pytest.raises(KvplanError, match="cannot tell"):
        replay.Prompts(replay.symbols_of("2", None), 2, 5)
    assert replay.Prompts(replay.symbols_of("2", None), 2, 4).digits == 2


@pytest.mark.parametrize("content", [b"one", b'a b"c d', b"\xff\xfe", b"a\\b c"])
def test_a_file_of_words_that_cannot_be_used_is_refused(content: bytes, tmp_path: Path) -> None:
    (tmp_path / "words").write_bytes(content)
    with pytest.raises(KvplanError, match="words"):
        replay.symbols_of(None, tmp_path / "words")


@pytest.fixture
def log_file(tmp_path: Path) -> Path:
    path = tmp_path / "log.jsonl"
    rows = [
        {"timestamp": 0, "input_length": 7, "output_length": 2, "hash_ids": [90, 91], "block_size": 4},
        {"timestamp": 1000, "input_length": 9, "output_length": 2, "hash_ids": [90, 92, 93], "block_size": 4},
    ]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def test_the_command_writes_a_file(log_file: Path, tmp_path: Path) -> None:
    out = tmp_path / "schedule.jsonl"
    done = CliRunner().invoke(app, ["replay", "export", str(log_file), "-o", str(out), "--rate-scale", "10"])
    assert done.exit_code == 0, done.output
    assert "2 requests" in done.output
    assert [(line["timestamp"], line["hash_ids"]) for line in lines(out)] == [(0, [0, 1]), (100, [0, 2, 3])]
    asked = ["--payload", "--model", "m", "--vocab", "50", "--extra", '{"min_tokens": 2}', "-q"]
    done = CliRunner().invoke(app, ["replay", "export", str(log_file), "-o", str(out), *asked])
    assert done.output == ""
    assert [line["payload"]["min_tokens"] for line in lines(out)] == [2, 2]
    done = CliRunner().invoke(app, ["replay", "export", str(log_file), "-o", str(out), "--prompts", "-q"])
    assert [(len(line["prompt"]), line["output_tokens"]) for line in lines(out)] == [(7, 2), (9, 2)]


def test_the_warning_of_ids_is_not_given_where_prompts_are_written(tmp_path: Path) -> None:
    log = tmp_path / "log.jsonl"
    turns = [{"timestamp": n, "input_length": 4 - n, "output_length": 1, "hash_ids": [7]} for n in range(2)]
    log.write_text("".join(json.dumps(turn) + "\n" for turn in turns))
    for more, warned in (([], True), (["--prompts"], False), (["--payload", "--model", "m"], False)):
        words = ["replay", "export", str(log), "--block-tokens", "4", "-o", str(tmp_path / "out.jsonl"), *more]
        done = CliRunner().invoke(app, words)
        assert done.exit_code == 0, done.output
        assert ("GuideLLM gives each id one length" in done.output) == warned


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--payload"], "--model"),
        (["--payload", "--prompts", "--model", "m"], "give one"),
        (["--vocab", "9"], "--payload"),
        (["--extra", "{}"], "--payload"),
        (["--prompts", "--vocab", "9"], "--vocab"),
        (["--payload", "--model", "m", "--extra", "[1]"], "--extra"),
        (["--payload", "--model", "m", "--extra", "{"], "--extra"),
        (["--payload", "--model", "m", "--extra", '{"prompt": "x"}'], "--extra: prompt is the log's"),
        (["--payload", "--model", "m", "--extra", '{"max_tokens": 1}'], "--extra: max_tokens is the log's"),
        (["--prompts", "--extra", "{}"], "--extra is for request bodies"),
        (["--payload", "--model", "m", "--vocab", "9", "--words", "w"], "--words"),
    ],
)
def test_a_command_line_without_sense_leaves_no_file(
    arguments: list[str], said: str, log_file: Path, tmp_path: Path
) -> None:
    out = tmp_path / "out.jsonl"
    done = CliRunner().invoke(app, ["replay", "export", str(log_file), "-o", str(out), *arguments])
    assert isinstance(done.exception, UsageError)
    assert said in str(done.exception)
    assert "\n" not in str(done.exception)
    assert not out.exists()


def test_the_public_trace_comes_back_as_it_went(shared: Path, tmp_path: Path) -> None:
    trace = shared / "traces/mooncake-conversation.jsonl.gz"
    log, path = read([trace]), tmp_path / "schedule.jsonl"
    replay.write(replay.schedule_of(log, replay.Options()), path, "ids")
    back = read([path])
    assert curve(back) == curve(log)
    assert back.time_s.tolist() == log.time_s.tolist()
    assert os.path.getsize(path) < 3 << 20
