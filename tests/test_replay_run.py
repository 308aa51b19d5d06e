"""A load generator driven over two arms: order, commands, metrics, results, and nothing left behind."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import samples
from fake_server import Cache, serving
from typer.testing import CliRunner

from kvplan import replay
from kvplan.cli import app
from kvplan.documents import LiveComparison, Replay
from kvplan.errors import KvplanError, UsageError
from kvplan.files import dump, load, parse

HERE = Path(__file__).parent
BLOCK = 32


def line(blocks: list[int], session: str, time_ms: int) -> str:
    prompt = [token for block in blocks for token in range(block * BLOCK, block * BLOCK + BLOCK)]
    payload = {"model": "m", "prompt": [*prompt, 7], "max_tokens": 2, "stream": True}
    return json.dumps({"timestamp": time_ms, "session_id": session, "output_length": 2, "payload": payload}) + "\n"


@pytest.fixture
def schedule(tmp_path: Path) -> Path:
    """Two sessions in turn, each asking for the same four blocks again: a cache of four blocks forgets them."""
    path = tmp_path / "schedule.jsonl"
    paths = {"a": [1, 2, 3, 4], "b": [5, 6, 7, 8]}
    path.write_text("".join(line(paths[s], f"{s}{i}", i) for i, s in enumerate("abababab")))
    return path


@pytest.fixture
def aiperf(tmp_path: Path) -> str:
    path = tmp_path / "aiperf"
    path.write_text(f'#!/bin/sh\nexec {sys.executable} {HERE / "fake_aiperf.py"} "$@"\n')
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def two() -> Iterator[tuple[str, str, Cache, Cache]]:
    with serving(blocks=4) as (off, small), serving(blocks=100) as (on, large):
        yield off, on, small, large


def invoke(*words: object) -> str:
    done = CliRunner().invoke(app, ["replay", "run", *map(str, words)])
    if done.exception and not isinstance(done.exception, SystemExit):
        raise done.exception
    assert done.exit_code == 0, done.output
    return done.stdout


def test_arms_are_played_in_order_and_compared(
    schedule: Path, aiperf: str, two: tuple[str, str, Cache, Cache], tmp_path: Path
) -> None:
    off, on, small, large = two
    out, told = tmp_path / "runs", tmp_path / "told"
    flush = f"{sys.executable} -c \"import os,urllib.request as r; r.urlopen(r.Request(os.environ['KVPLAN_SERVER'] + '/reset_prefix_cache', b'{{}}'))\""  # noqa: E501
    text = invoke(
        *(schedule, "--server-off", off, "--server-on", on + "/v1/", "--aiperf", aiperf, "-o", out),
        *("--before-arm", f"{flush} && echo before $KVPLAN_RUN $KVPLAN_ARM >> {told}"),
        *("--before-on", f"echo on >> {told}", "--after-arm", f"echo after $KVPLAN_ARM >> {told}", "--json"),
    )
    made = parse(text.encode(), "stdout").data
    assert isinstance(made, Replay)
    assert [run.arm for run in made.runs] == ["off", "on", "on", "off"]
    assert [run.server for run in made.runs] == [off, on, on, off]
    assert told.read_text().split("\n") == [
        *("before 1 off", "after off", "before 2 on", "on", "after on"),
        *("before 3 on", "on", "after on", "before 4 off", "after off", ""),
    ]
    assert load(out / "replay.json").data == made
    assert made.schedule.requests == 8
    assert made.schedule.timed
    assert "SERVER" in made.command
    assert (small.requests, large.requests) == (16, 16)
    before, after = (
        replay_counter(out / str(path)) for path in (made.runs[2].metrics_before, made.runs[2].metrics_after)
    )
    assert after - before == 6 * 4 * BLOCK  # all but the first of each session
    done = CliRunner().invoke(app, ["compare", str(out), "--json"])
    assert done.exit_code == 0, done.output
    compared = parse(done.stdout.encode(), "stdout").data
    assert isinstance(compared, LiveComparison)
    assert compared.order == "ABBA"
    assert compared.off.hit_ratio == 0
    assert compared.on.hit_ratio == pytest.approx(6 * 4 * BLOCK / (8 * (4 * BLOCK + 1)))
    assert compared.paired.cached_tokens_change is not None
    assert compared.paired.cached_tokens_change.value == 6 * 4 * BLOCK / 8


def replay_counter(path: Path) -> float:
    found = [row for row in path.read_text().splitlines() if row.startswith("vllm:prefix_cache_hits_total{")]
    return float(found[0].split()[-1])


def test_a_server_is_run_for_each_run_and_ended(schedule: Path, aiperf: str, tmp_path: Path) -> None:
    with serving() as (url, _):
        port = int(url.rsplit(":", 1)[1])
    serve = f"echo $$ >> {tmp_path}/pids; exec {sys.executable} {HERE / 'fake_server.py'} {port}"
    words = ("--serve-off", f"{serve} 4", "--serve-on", f"{serve} 100", "--order", "AB", "-q")
    invoke(schedule, "--server", url, "--aiperf", aiperf, "-o", tmp_path / "runs", *words)
    pids = [int(pid) for pid in (tmp_path / "pids").read_text().split()]
    assert len(pids) == 2
    for pid in pids:
        with pytest.raises(ProcessLookupError):
            os.kill(pid, 0)


@pytest.mark.parametrize(
    ("mode", "said"),
    [("fail", "aiperf ended with exit code 1: the model does not exist"), ("empty", "no profile_export")],
)
def test_a_load_generator_that_fails_is_named_with_its_log(
    mode: str, said: str, schedule: Path, aiperf: str, two: tuple[str, str, Cache, Cache], tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:  # fmt: skip
    monkeypatch.setenv("FAKE_AIPERF", mode)
    with pytest.raises(KvplanError, match=rf"run 1 \(off\).*{said}.*aiperf\.log") as caught:
        invoke(schedule, "--server-off", two[0], "--server-on", two[1], "--aiperf", aiperf, "-o", tmp_path / "runs")
    assert "\n" not in str(caught.value)


def test_the_first_error_of_a_log_is_said(
    schedule: Path, aiperf: str, two: tuple[str, str, Cache, Cache], tmp_path: Path
) -> None:
    fails = (
        "echo Traceback; echo 'x.HubError: no such tokenizer'; echo 'OtherError: and so on'; echo Log File: x; false"
    )
    words = ("--aiperf", aiperf, "-o", tmp_path / "runs", "--before-arm", fails)
    with pytest.raises(KvplanError, match=r"exit code 1: x\.HubError: no such tokenizer \(more in .*before\.log\)"):
        invoke(schedule, "--server-off", two[0], "--server-on", two[1], *words)


def test_what_was_run_before_a_failure_is_kept(
    schedule: Path, aiperf: str, two: tuple[str, str, Cache, Cache], tmp_path: Path
) -> None:
    words = ("--before-arm", 'test "$KVPLAN_RUN" != 2')
    with pytest.raises(KvplanError, match=r"run 2 \(on\).*exit code 1"):
        invoke(
            schedule, "--server-off", two[0], "--server-on", two[1], "--aiperf", aiperf, "-o", tmp_path / "runs", *words
        )
    kept = load(tmp_path / "runs/replay.json").data
    assert (kept.order, [run.arm for run in kept.runs]) == ("ABBA", ["off"])


def alive(pid: int) -> bool:
    try:
        state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
    except OSError:
        return False
    return state != "Z"


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_an_interrupt_ends_everything_that_was_started(
    number: signal.Signals, schedule: Path, aiperf: str, tmp_path: Path
) -> None:
    with serving() as (url, _):
        port = int(url.rsplit(":", 1)[1])
    serve = f"{sys.executable} {HERE / 'fake_server.py'} {port} & echo $! > {tmp_path}/server; wait"
    words = ["replay", "run", str(schedule), "--server", url, "--serve", serve, "--aiperf", aiperf]
    command = [sys.executable, "-m", "kvplan", *words, "-o", str(tmp_path / "runs"), "-q"]
    child = subprocess.Popen(command, env={**os.environ, "FAKE_AIPERF": "hang"}, stderr=subprocess.PIPE)
    pid_file = tmp_path / "runs/01-off/pid"
    until = time.monotonic() + 60
    while not pid_file.exists() or not pid_file.read_text():
        assert child.poll() is None
        assert time.monotonic() < until
        time.sleep(0.05)
    pids = [int(pid_file.read_text()), int((tmp_path / "server").read_text())]
    assert all(map(alive, pids))
    child.send_signal(number)
    assert child.wait(60) == 130
    assert b"Traceback" not in child.communicate()[1]
    until = time.monotonic() + 10  # what was killed is reaped by another than us
    while any(map(alive, pids)) and time.monotonic() < until:
        time.sleep(0.05)
    assert not any(map(alive, pids))


def test_no_aiperf_says_how_to_install_it(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(KvplanError, match=r"no aiperf on PATH: install AIPerf.*pipx install aiperf"):
        replay.found(None)
    with pytest.raises(KvplanError, match="no such program"):
        replay.found(str(tmp_path / "aiperf"))
    (tmp_path / "aiperf").write_text("#!/bin/sh\nexit 3\n")
    (tmp_path / "aiperf").chmod(0o755)
    with pytest.raises(KvplanError, match="is no AIPerf that works"):
        replay.found(None)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "no requests"),
        ("{", "line 1: not a line of a schedule"),
        ("{}", "line 1: neither a payload nor input_length"),
        ('{"payload": {"model": "m"}}', "does not ask for a stream"),
        ('{"payload": {"stream": true}}\n{"input_length": 3}', "line 2: payloads and block ids"),
        ('{"input_length": 3, "session_id": "a"}\n{"input_length": 9, "session_id": "a"}', "line 2: a later turn"),
        ("\x1f\x8b", "is compressed"),
    ],
)
def test_a_schedule_that_would_be_played_otherwise_is_refused(text: str, said: str, tmp_path: Path) -> None:
    path = tmp_path / "schedule.jsonl"
    path.write_bytes(text.encode("latin-1"))
    with pytest.raises(KvplanError, match=said) as caught:
        replay.played(path)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ([], "no server given"),
        (["--server-off", "h:1"], "no server given"),
        (["--server", "h:1", "--server-on", "h:2"], "for both arms"),
        (["--server", "ftp://h"], "not the address"),
        (["--server", "http://h:x"], "not a port"),
        (["--server", "h:1"], "same server in the same state"),
        (["--server", "h:1", "--after-arm", "true"], "same server in the same state"),
        (["--server", "h:1", "--order", "ABC"], "--order"),
        (["--server", "h:1", "--order", ""], "--order"),
        (["--server", "h:1", "--wait", "5"], "--wait"),
        (["--server", "h:1", "--before-on", "true", "--wait", "0s"], "not ready"),
    ],
)
def test_a_command_line_without_sense_starts_nothing(
    words: list[str], said: str, schedule: Path, aiperf: str, tmp_path: Path
) -> None:
    full = [word.replace("h:", "127.0.0.1:") if word[-1:].isdigit() else word for word in words]
    with pytest.raises(KvplanError, match=said):
        invoke(schedule, *full, "--aiperf", aiperf, "-o", tmp_path / "runs")


def test_sessions_that_change_the_order_are_said(
    schedule: Path, aiperf: str, two: tuple[str, str, Cache, Cache], tmp_path: Path
) -> None:
    rows = [{**json.loads(text), "session_id": "a"} for text in schedule.read_text().splitlines()]
    schedule.write_text("".join(json.dumps(row) + "\n" for row in rows))
    words = ["replay", "run", str(schedule), "--server", two[0], "--order", "A", "--aiperf", aiperf]
    for more, said in ((["--concurrency", "2"], True), ([], False)):
        done = CliRunner().invoke(app, [*words, "-o", str(tmp_path / f"runs{said}"), *more])
        assert done.exit_code == 0, done.output
        assert ("--no-sessions" in done.stderr) == said


def test_results_never_mix_with_others(schedule: Path, aiperf: str, tmp_path: Path) -> None:
    with pytest.raises(KvplanError, match="is not empty"):
        invoke(schedule, "--server-off", "a", "--server-on", "b", "--aiperf", aiperf, "-o", tmp_path)


def test_the_load_generator_is_told_the_pace(schedule: Path, tmp_path: Path) -> None:
    from kvplan.replaying import aiperf

    program = aiperf.Program(path="aiperf", version="0.13.0")
    played = replay.played(schedule)

    def words(load: replay.Load) -> list[str]:
        return aiperf.command(program, played, load, "T", "http://h:1", tmp_path)

    assert "--fixed-schedule" in words(replay.Load())
    paced = words(replay.Load(concurrency=4, arguments=("--benchmark-grace-period", "9")))
    assert "--fixed-schedule" not in paced
    assert paced[paced.index("--concurrency") + 1] == "4"
    assert paced[-1] == "9"
    assert "2.5" in words(replay.Load(request_rate=2.5))
    ids = tmp_path / "ids.jsonl"
    ids.write_text('{"input_length": 3, "block_size": 16}\n')
    played = replay.played(ids)
    with pytest.raises(UsageError, match="--model"):
        words(replay.Load())
    with pytest.raises(UsageError, match="--tokenizer"):
        words(replay.Load(model="m"))
    with pytest.raises(UsageError, match="--concurrency"):
        words(replay.Load(model="m", tokenizer="t"))
    assert "16" in words(replay.Load(model="m", tokenizer="t", concurrency=1))


def test_the_whole_way_from_a_log_to_a_graded_simulation(aiperf: str, tmp_path: Path) -> None:
    """One log exported, simulated and replayed against a server of known cache: hits are one figure in all three."""
    draw, paths, fresh = random.Random(4), [[0, 1]], 2
    rows = []
    for number in range(80):
        path = [*draw.choice(paths[-40:])[: draw.randint(1, 6)], *range(fresh, fresh + 2)]
        fresh += 2
        paths.append(path)
        length = BLOCK * (len(path) - 1) + draw.randint(1, BLOCK)
        rows.append({"timestamp": 10 * number, "input_length": length, "output_length": 2, "hash_ids": path})
    log = tmp_path / "log.jsonl"
    log.write_text("".join(json.dumps({**one, "block_size": BLOCK}) + "\n" for one in rows))
    (tmp_path / "plan.json").write_text(dump(samples.plan()))

    def kvplan(*words: object) -> str:
        done = CliRunner().invoke(app, list(map(str, words)))
        assert done.exit_code == 0, (done.output, done.exception)
        return done.stdout

    schedule, simulated, runs = tmp_path / "s.jsonl", tmp_path / "simulation.json", tmp_path / "runs"
    kvplan("replay", "export", log, "--payload", "--vocab", 999, "--model", "m", "-o", schedule)
    size = 24
    tokens = ("--kv-tokens", size * BLOCK, "--concurrency", 1)
    kvplan("simulate", tmp_path / "plan.json", "--log", log, *tokens, "-o", simulated, "-q")
    with serving(blocks=size) as (off, _), serving(blocks=10_000) as (on, _):
        servers = ("--server-off", off, "--server-on", on, "--order", "AB", "--aiperf", aiperf)
        kvplan("replay", "run", schedule, *servers, "-o", runs, "-q")
    made = parse(kvplan("compare", runs, "--simulation", simulated, "--json").encode(), "stdout").data
    hits = {grade.arm: grade for grade in made.grades if grade.what == "hit ratio"}
    assert hits["off"].measured < hits["on"].measured - 0.05
    assert {grade.grade for grade in hits.values()} == {"good"}
