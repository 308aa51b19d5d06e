"""Live results compared: read from three load generators, paired, resampled, refused where they must not be."""

from __future__ import annotations

import itertools
import json
import math
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st
from msgspec.structs import replace
from typer.testing import CliRunner

from kvplan import report
from kvplan.cli import app
from kvplan.compare import Options, compare
from kvplan.comparing import counters, results
from kvplan.comparing.bootstrap import Resampler
from kvplan.documents import Document, LiveComparison, Replay, ReplayRun, ReplaySchedule, Simulation
from kvplan.errors import KvplanError, UsageError
from kvplan.files import dump, load, parse, wrap

RESULTS = Path(__file__).parent / "results"
LOOSE = Options(resamples=200)
MINUTES = itertools.count()
Row = dict[str, Any]


def row(session: str, turn: int = 0, ttft_ms: float = 100.0, **other: Any) -> Row:
    """One request of a run; times in ms."""
    usual = {"prompt": 100, "answer": 8, "cached": 0, "start": 0.0, "latency": ttft_ms + 50, "error": None}
    return {"session": session, "turn": turn, "ttft": ttft_ms, **usual, **other}


def aiperf(folder: Path, rows: Sequence[Row], lag_ms: float | None = 1.0) -> Path:
    """A folder as AIPerf leaves it, of a run a minute after the one that was made before."""
    folder.mkdir(parents=True)
    begun = 1_800_000_000_000_000_000 + next(MINUTES) * 60_000_000_000
    lines = []
    for number, one in enumerate(rows):
        metrics = {
            "time_to_first_token": {"value": one["ttft"], "unit": "ms"},
            "request_latency": {"value": one["latency"], "unit": "ms"},
            "usage_prompt_tokens": {"value": one["prompt"], "unit": "tokens"},
            "usage_completion_tokens": {"value": one["answer"], "unit": "tokens"},
            "inter_chunk_latency": {"value": [1.0, 2.0], "unit": "ms"},
        }
        if one["cached"] is not None:
            metrics["usage_prompt_cache_read_tokens"] = {"value": one["cached"], "unit": "tokens"}
        start = begun + int(one["start"] * 1e6)
        metadata = {
            "session_num": one.get("number", number),
            "conversation_id": one["session"],
            "turn_index": one["turn"],
            "request_start_ns": start,
            "request_end_ns": start + int(one["latency"] * 1e6),
        }
        lines.append(json.dumps({"metadata": metadata, "metrics": metrics, "error": one["error"]}))
    (folder / "profile_export.jsonl").write_text("\n".join(lines) + "\n")
    if lag_ms is not None:
        stated = {"replay_sched_lag_p99": {"unit": "ms", "avg": lag_ms}}
        (folder / "profile_export_aiperf.json").write_text(json.dumps(stated))
    return folder


def guidellm(path: Path, rows: Sequence[Row], late_ms: Callable[[int], float] = lambda _: 0.0) -> Path:
    """A report as GuideLLM writes it, requests in the order in which they ended."""
    requests = []
    for number, one in enumerate(rows):
        due = 1000.0 + number
        start = due + late_ms(number) / 1000
        timings = {
            "targeted_start": due,
            "request_start": start,
            "first_token_iteration": start + one["ttft"] / 1000,
            "request_end": start + one["latency"] / 1000,
        }
        request = {
            "info": {"conversation_id": one["session"], "turn_index": one["turn"], "timings": timings},
            "request_args": json.dumps({"body": {"prompt": f"{one['session']} {one['turn']}"}}),
            "input_metrics": {"text_tokens": one["prompt"], "cached_tokens": one["cached"]},
            "output_metrics": {"text_tokens": one["answer"]},
        }
        requests.append(request)
    requests.sort(key=lambda request: float(request["info"]["timings"]["request_end"]))
    report = {"benchmarks": [{"requests": {"successful": requests, "incomplete": [], "errored": []}}]}
    path.write_text(json.dumps(report))
    return path


def vllm_bench(path: Path, rows: Sequence[Row]) -> Path:
    """A result as vllm bench serve writes it, requests in the order of the data set."""
    columns = {
        "request_throughput": 1.0,
        "duration": 10.0,
        "input_lens": [one["prompt"] for one in rows],
        "output_lens": [one["answer"] for one in rows],
        "ttfts": [one["ttft"] / 1000 for one in rows],
        "itls": [[(one["latency"] - one["ttft"]) / 1000] for one in rows],
        "start_times": [500 + number + one["start"] / 1000 for number, one in enumerate(rows)],
        "errors": [one["error"] or "" for one in rows],
    }
    path.write_text(json.dumps(columns))
    return path


def pair(off: Sequence[Row], on: Sequence[Row], folder: Path, options: Options = LOOSE) -> LiveComparison:
    return compare([aiperf(folder / "off", off), aiperf(folder / "on", on)], options)


# ------------------------------------------------------------------------------------------------ reading


def test_a_real_export_of_aiperf_is_read() -> None:
    """Three records of AIPerf 0.13.0 as it wrote them, and its summary cut to what tells something."""
    made = results.result(RESULTS / "aiperf/profile_export.jsonl")
    assert made.generator == "aiperf"
    assert made.lag_p99_s == pytest.approx(0.0136641536)
    first = made.records[0]
    assert (first.session, first.turn, first.prompt_tokens, first.output_tokens, first.cached_tokens) == (
        *("r3", 0),
        *(144, 4, 32),
    )
    assert first.ttft_s == pytest.approx(0.092034854)
    assert [record.cached_tokens for record in made.records] == [32, 32, 0]


def test_a_real_result_of_vllm_bench_is_read() -> None:
    """Four requests of vLLM 0.32's own result of a timed trace that `replay export` wrote."""
    made = results.result(RESULTS / "vllm_bench.json")
    assert made.generator == "vllm bench serve"
    assert made.span_s == pytest.approx(9.100324366)
    assert [record.prompt_tokens for record in made.records] == [423, 458, 453, 144]
    assert made.records[0].ttft_s == pytest.approx(0.049678131)
    assert made.records[0].latency_s == pytest.approx(0.0496973901)
    assert [record.cached_tokens for record in made.records] == [None] * 4


def test_three_load_generators_tell_the_same(tmp_path: Path) -> None:
    draw = random.Random(3)
    off = [row(f"s{n // 2}", n % 2, draw.uniform(50, 150)) for n in range(12)]
    on = [{**one, "ttft": one["ttft"] - 20, "latency": one["latency"] - 20, "cached": 64} for one in off]
    schedule = tmp_path / "schedule.jsonl"
    schedule.write_text(
        "".join(json.dumps({"timestamp": n * 1000, "session_id": f"s{n // 2}"}) + "\n" for n in range(12))
    )
    by_aiperf = pair(off, on, tmp_path)
    by_guidellm = compare([guidellm(tmp_path / f"{n}.json", r) for n, r in (("goff", off), ("gon", on))], LOOSE)
    told = Options(resamples=200, schedule=schedule)
    by_vllm = compare([vllm_bench(tmp_path / f"{n}.json", r) for n, r in (("voff", off), ("von", on))], told)
    for other in (by_guidellm, by_vllm):
        for name in ("ttft_change_s", "ttft_median_change_s", "ttft_change_ratio", "latency_change_s"):
            ours, theirs = getattr(by_aiperf.paired, name), getattr(other.paired, name)
            assert (theirs.value, theirs.low, theirs.high) == pytest.approx((ours.value, ours.low, ours.high), rel=1e-6)
        assert other.paired.sessions == by_aiperf.paired.sessions == 6
    assert by_aiperf.on.hit_ratio == by_guidellm.on.hit_ratio == 0.64
    assert by_vllm.on.hit_ratio is None  # it does not say
    assert by_vllm.runs[0].lag_p99_s == pytest.approx(0.0, abs=1e-9)


@pytest.mark.parametrize(
    ("name", "text", "said"),
    [
        ("a.json", "{}", "not a result of a load generator"),
        ("a.json", "", "not a result of a load generator"),
        ("a.json", "[]", "not a result of a load generator"),
        ("a.json", '{"request_throughput": 1, "mean_ttft_ms": 3, "duration": 2}', "--save-detailed"),
        ("a.json", '{"request_throughput": 1, "ttfts": [1], "duration": 2}', "differ in length"),
        ("a.json", '{"request_throughput": 1, "ttfts": 4}', "not a result of vllm bench"),
        ("a.json", '{"benchmarks": []}', "holds 0 benchmarks"),
        ("a.json", '{"benchmarks": [{"requests": {"successful": 3}}]}', "not a report of GuideLLM"),
        (
            "a.json",
            '{"benchmarks": [{"requests": {"successful": [{"info": {"timings": {}}}]}}]}',
            "request 1: no time to first token",
        ),
        ("a.jsonl", '{"metadata": {}, "metrics": {}}', "line 1: not a record of AIPerf"),
        ("replay.json", "{}", "not a kvplan document"),
    ],
)
def test_what_cannot_be_read_is_said_in_a_line(name: str, text: str, said: str, tmp_path: Path) -> None:
    (tmp_path / name).write_text(text)
    other = aiperf(tmp_path / "on", [row("a"), row("b")])
    with pytest.raises(KvplanError, match=said) as caught:
        compare([tmp_path / name, other], LOOSE)
    assert "\n" not in str(caught.value)


def test_metrics_that_are_missing_say_the_flag(tmp_path: Path) -> None:
    folder = aiperf(tmp_path / "off", [row("a")])
    text = (folder / "profile_export.jsonl").read_text()
    for gone, flag in (("time_to_first_token", "--streaming"), ("usage_prompt_tokens", "--use-server-token-count")):
        (folder / "profile_export.jsonl").write_text(text.replace(gone, "x"))
        with pytest.raises(KvplanError, match=flag):
            results.result(folder / "profile_export.jsonl")


# ------------------------------------------------------------------------------------------------ pairing


@settings(max_examples=30, deadline=None)
@given(data=st.data())
def test_pairing_does_not_depend_on_the_order_of_files(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    count = data.draw(st.integers(2, 9))
    off = [{**row(f"s{n % 3}", n // 3, 10.0 + n * n), "number": n % 3} for n in range(count)]
    on = [{**one, "ttft": one["ttft"] * 0.5 + n, "cached": n} for n, one in enumerate(off)]
    folder = tmp_path_factory.mktemp("compare")
    as_sent = pair(off, on, folder / "a")
    shuffled = pair(data.draw(st.permutations(off)), data.draw(st.permutations(on)), folder / "b")
    assert shuffled.paired == as_sent.paired
    assert shuffled.points == as_sent.points


def test_runs_that_name_requests_anew_are_paired_by_their_place(tmp_path: Path) -> None:
    off = [row(f"id-{n}", ttft_ms=100 + n, prompt=50 + n) for n in range(6)]
    on = [{**one, "session": f"other-{n}", "ttft": one["ttft"] - 10} for n, one in enumerate(off)]
    made = pair(off, on, tmp_path)
    assert made.paired.ttft_change_s.value == pytest.approx(-0.010)
    assert "paired-by-order" in [finding.code for finding in made.findings]
    with pytest.raises(KvplanError, match="do not have the same requests"):
        pair(off, on[1:], tmp_path / "fewer")
    with pytest.raises(KvplanError, match="prompt of another length"):
        pair(off, list(reversed(on)), tmp_path / "mixed")


def test_repeated_runs_are_averaged_by_request(tmp_path: Path) -> None:
    times = {"off": (100.0, 120.0), "on": (80.0, 90.0)}
    for arm, (first, last) in times.items():
        for number, time in enumerate((first, last), 1):
            aiperf(tmp_path / arm / f"{number}", [row(f"s{n}", ttft_ms=time + n) for n in range(20)])
    made = compare([tmp_path / "off", tmp_path / "on"], LOOSE)
    assert made.paired.ttft_change_s.value == pytest.approx(-0.025)
    assert made.paired.drift_s == pytest.approx(0.020)
    assert (made.off.runs, made.order) == (2, "AABB")
    assert made.off.ttft.mean == pytest.approx(0.1195)
    assert [point.ttft_off_s for point in made.points][:2] == pytest.approx([0.110, 0.111])


def test_the_order_of_runs_is_that_of_their_times(tmp_path: Path) -> None:
    rows = [row(f"s{n}") for n in range(4)]
    for name in ("on/1", "off/1", "off/2", "on/2"):
        aiperf(tmp_path / name, rows)
    assert compare([tmp_path / "off", tmp_path / "on"], LOOSE).order == "BAAB"
    apart = [vllm_bench(tmp_path / f"{name}.json", rows) for name in ("off", "on")]
    silent = compare(apart, LOOSE)  # vLLM's times count from when its machine was started
    assert (silent.order, silent.paired.drift_s) == ("", None)
    assert "unknown" in report.markdown(report.sections(wrap(silent)), "files")[0]


def test_a_warm_up_is_left_out(tmp_path: Path) -> None:
    off = [row(f"s{n}", ttft_ms=900.0 if n < 2 else 100.0) for n in range(8)]
    on = [row(f"s{n}", ttft_ms=90.0) for n in range(8)]
    made = pair(off, on, tmp_path, Options(resamples=200, skip=2))
    assert (made.paired.requests, made.skipped) == (6, 2)
    assert made.paired.ttft_change_s.value == pytest.approx(-0.010)
    with pytest.raises(KvplanError, match="at least two"):
        pair(off, on, tmp_path / "none", Options(skip=7))


# ------------------------------------------------------------------------------------------------ intervals


def drawn(sessions: int, resamples: int, seed: int) -> Any:
    return np.random.Generator(np.random.PCG64(seed)).multinomial(sessions, np.full(sessions, 1 / sessions), resamples)


@settings(max_examples=25, deadline=None)
@given(
    sizes=st.lists(st.integers(1, 4), min_size=2, max_size=6),
    seed=st.integers(0, 99),
    data=st.data(),
)
def test_intervals_are_those_of_sessions_written_out(sizes: list[int], seed: int, data: st.DataObject) -> None:
    session = np.repeat(np.arange(len(sizes)), sizes)
    numbers = st.floats(-5, 5, allow_nan=False, width=32)
    values = np.array(data.draw(st.lists(numbers, min_size=session.size, max_size=session.size)), float)
    below = np.arange(1.0, session.size + 1)
    draws = Resampler(session=session, resamples=40, seed=seed)
    means, ratios, medians = [], [], []
    for counts in drawn(len(sizes), 40, seed):
        rows = [r for s, times in enumerate(counts) for _ in range(times) for r in np.flatnonzero(session == s)]
        means.append(values[rows].mean())
        ratios.append(values[rows].sum() / below[rows].sum())
        medians.append(np.sort(values[rows])[(len(rows) - 1) // 2])
    for found, by_hand in (
        (draws.mean(values), means),
        (draws.ratio(values, below), ratios),
        (draws.median(values), medians),
    ):
        assert (found.low, found.high) == pytest.approx(tuple(np.quantile(by_hand, [0.025, 0.975])), abs=1e-6)


def test_intervals_cover_a_known_difference_about_as_often_as_they_say() -> None:
    """Sessions of correlated requests with a true mean of -3; drawing requests alone covers it far too seldom."""
    random = np.random.default_rng(11)
    session = np.repeat(np.arange(40), 5)
    covered = {"session": 0, "request": 0}
    for seed in range(200):
        values = -3 + random.normal(0, 2, 40)[session] + random.normal(0, 1, session.size)
        for what, numbers in (("session", session), ("request", np.arange(session.size))):
            found = Resampler(session=numbers, resamples=300, seed=seed).mean(values)
            covered[what] += found.low <= -3 <= found.high
    assert 178 <= covered["session"] <= 198
    assert covered["request"] < 140


def test_the_same_seed_draws_the_same_interval(tmp_path: Path) -> None:
    off = [row(f"s{n}", ttft_ms=100 + 7 * (n % 5)) for n in range(30)]
    on = [row(f"s{n}", ttft_ms=90 + 11 * (n % 3)) for n in range(30)]
    first, again = pair(off, on, tmp_path / "a"), pair(off, on, tmp_path / "b")
    assert first.paired == again.paired
    other = pair(off, on, tmp_path / "c", Options(resamples=200, seed=1))
    assert other.paired.ttft_change_s.value == first.paired.ttft_change_s.value
    assert other.paired.ttft_change_s != first.paired.ttft_change_s


def test_one_session_has_no_interval(tmp_path: Path) -> None:
    off, on = ([row("a", n, ttft_ms=time) for n in range(4)] for time in (100, 90))
    with pytest.raises(KvplanError, match=r"one session.*--resample request"):
        pair(off, on, tmp_path)
    made = pair(off, on, tmp_path / "r", Options(resamples=200, resample="request"))
    assert (made.paired.ttft_change_s.low, made.paired.ttft_change_s.high) == pytest.approx((-0.01, -0.01))


# ------------------------------------------------------------------------------------------------ refusals


def test_what_would_make_a_comparison_worthless_is_refused(tmp_path: Path) -> None:
    good = [row(f"s{n}") for n in range(8)]
    folders = itertools.count()

    def refused(said: str, on: Sequence[Row], lag_ms: float = 1.0) -> None:
        place = tmp_path / str(next(folders))
        with pytest.raises(KvplanError, match=said) as caught:
            compare([aiperf(place / "off", good), aiperf(place / "on", on, lag_ms)], LOOSE)
        assert "\n" not in str(caught.value)

    refused("1 of 8 requests have a prompt of another length", [*good[:7], row("s7", prompt=99)])
    refused(
        "answer of another length.*session s7 turn 0 \\(7 and 8 tokens\\).*ignore_eos", [*good[:7], row("s7", answer=7)]
    )
    refused("sent 501 ms late or more", good, 501.0)
    refused(
        "1 of 8 requests failed.*the first: no such model", [*good[:7], row("s7", error={"message": "no such\nmodel"})]
    )
    refused("none of its 8 requests succeeded", [{**one, "error": "x"} for one in good])
    refused("do not have the same requests", [*good, row("s8")])
    two = [aiperf(tmp_path / "x", good), vllm_bench(tmp_path / "y.json", good)]
    with pytest.raises(KvplanError, match="aiperf and vllm bench serve measure times differently"):
        compare(two, LOOSE)


def test_one_failure_in_hundreds_is_left_out_of_all_runs(tmp_path: Path) -> None:
    off = [row(f"s{n}", ttft_ms=100.0 + n) for n in range(200)]
    on = [{**one, "error": "timeout"} if one["session"] == "s7" else one for one in off]
    made = pair(off, on, tmp_path)
    assert made.paired.requests == 199
    assert "s7" not in [point.session for point in made.points]
    assert "failed-requests" in [finding.code for finding in made.findings]


def test_lag_is_measured_against_the_least_late(tmp_path: Path) -> None:
    rows = [row(f"s{n}") for n in range(200)]
    late = [guidellm(tmp_path / f"{n}.json", rows, lambda i: 5000 + (600 if i > 190 else 0)) for n in ("a", "b")]
    with pytest.raises(KvplanError, match="600 ms late"):
        compare(late, LOOSE)
    same = [guidellm(tmp_path / f"{n}.json", rows, lambda _: 5000) for n in ("c", "d")]
    assert compare(same, LOOSE).runs[0].lag_p99_s == pytest.approx(0.0)


def manifest(folder: Path, arms: str, sha: str = "a", concurrency: int | None = None) -> Path:
    """A folder of `kvplan replay run` whose every run has eight requests; on finds half of each prompt."""
    runs = []
    for number, letter in enumerate(arms, 1):
        arm, hit = ("on", 50) if letter == "B" else ("off", 0)
        name = f"{number:02d}-{arm}"
        aiperf(folder / name, [row(f"s{n}", ttft_ms=100 - hit + n, cached=None) for n in range(8)])
        for when, hits, asked in (("before", 1000, 1000), ("after", 1000 + 8 * hit, 1800)):
            page = f'vllm:prefix_cache_hits_total{{a="}}"}} {hits}\nvllm:prefix_cache_queries_total {asked}\n'
            (folder / name / when).write_text(page)
        run = ReplayRun(
            number=number,
            arm="on" if letter == "B" else "off",
            server="http://h:1",
            folder=name,
            started="2026-11-20T09:00:00Z",
            seconds=9.0,
            metrics_before=f"{name}/before",
            metrics_after=f"{name}/after",
        )
        runs.append(run)
    schedule = ReplaySchedule(name="s.jsonl", sha256=sha, requests=8, sessions=8, timed=True)
    made = Replay(
        schedule=schedule,
        order=arms,
        generator="aiperf 0.13.0",
        command=("aiperf",),
        commands=(),
        concurrency=concurrency,
        request_rate=None,
        runs=tuple(runs),
    )
    (folder / "replay.json").write_text(dump(wrap(made)))
    return folder


def test_clients_that_wait_for_answers_keep_no_times_of_the_schedule(tmp_path: Path) -> None:
    schedule = tmp_path / "schedule.jsonl"
    schedule.write_text(
        "".join(json.dumps({"timestamp": n * 60_000, "session_id": f"s{n % 4}"}) + "\n" for n in range(8))
    )
    told = Options(resamples=200, schedule=schedule)
    by_times, by_answers = (manifest(tmp_path / str(many), "ABBA", concurrency=many) for many in (None, 1))
    for summary in tmp_path.glob("*/*/profile_export_aiperf.json"):
        summary.unlink()  # so that times are all there is to tell the lag
    with pytest.raises(KvplanError, match="late"):
        compare([by_times], told)
    made = compare([by_answers], told)
    assert [run.lag_p99_s for run in made.runs] == [None] * 4


def test_a_folder_of_a_replay_holds_both_arms(tmp_path: Path) -> None:
    folder = manifest(tmp_path / "runs", "ABBA")
    made = compare([folder], LOOSE)
    assert made.order == "ABBA"
    assert made.schedule is not None
    assert (made.off.hit_ratio, made.on.hit_ratio) == (0.0, 0.5)  # answers do not say, the server's counters do
    assert [run.hits_from for run in made.runs] == ["counters"] * 4
    assert made.paired.cached_tokens_change is None
    assert compare([folder / "replay.json"], LOOSE).paired == made.paired
    apart = compare([folder / "01-off", folder / "02-on"], LOOSE)
    assert (apart.order, apart.on.hit_ratio) == ("AB", 0.5)


def test_replays_that_do_not_belong_together_are_refused(tmp_path: Path) -> None:
    off = manifest(tmp_path / "off", "AA")
    for said, other in (
        ("different schedules", manifest(tmp_path / "b", "BB", sha="b")),
        ("different paces", manifest(tmp_path / "c", "BB", concurrency=4)),
        ("holds both arms", manifest(tmp_path / "d", "AB")),
    ):
        with pytest.raises(KvplanError, match=said):
            compare([off, other], LOOSE)
    with pytest.raises(KvplanError, match="off alone"):
        compare([off], LOOSE)
    with pytest.raises(UsageError, match="name off and on"):
        compare([off / "01-off" / "profile_export.jsonl"], LOOSE)
    with pytest.raises(UsageError, match="3 results"):
        compare([off, off, off], LOOSE)
    assert compare([off, manifest(tmp_path / "e", "BB")], LOOSE).order == "AABB"


@pytest.mark.parametrize(
    ("grown", "prompts", "ratio"),
    [
        ({"vllm:prefix_cache_hits_total": 30, "vllm:prefix_cache_queries_total": 100}, 0, 0.3),
        (
            {
                "vllm:prefix_cache_hits_total": 30,
                "vllm:prefix_cache_queries_total": 100,
                "vllm:external_prefix_cache_hits_total": 20,
            },
            0,
            0.5,
        ),
        ({"llamacpp:prompt_tokens_total": 40}, 100, 0.6),
        ({"llamacpp:prompt_tokens_total": 40, "llamacpp:prompt_tokens_cached_total": 120}, 100, 0.75),
        ({"llamacpp:prompt_tokens_total": 140}, 100, None),
        ({"vllm:prefix_cache_hits_total": 0, "vllm:prefix_cache_queries_total": 0}, 0, None),
        ({"vllm:prefix_cache_hits_total": -7, "vllm:prefix_cache_queries_total": 9}, 0, None),
        ({"other_total": 3}, 9, None),
    ],
)
def test_each_system_counts_hits_its_own_way(
    grown: dict[str, float], prompts: int, ratio: float | None, tmp_path: Path
) -> None:
    for name, share in (("before", 0.0), ("after", 1.0)):
        rows = [
            f'{key}{{model="a}}b",rank="{r}"}} {7 + share * value / 2}' for key, value in grown.items() for r in "01"
        ]
        (tmp_path / name).write_text("# HELP x y\n" + "\n".join(rows) + "\n")
    pages = counters.read(tmp_path / "before"), counters.read(tmp_path / "after")
    assert counters.hit_ratio(*pages, prompts) == ratio


def test_counters_are_those_of_real_servers() -> None:
    """Pages that vLLM 0.32 and llama.cpp gave around a replay; each knows its own hits."""
    pages = Path(__file__).parent / "metrics"
    for name in ("vllm_cpu", "llamacpp_live"):
        before, after = (counters.read(pages / f"{name}_{when}.txt") for when in ("before", "after"))
        ratio = counters.hit_ratio(before, after, 0)
        assert ratio is not None
        assert 0 < ratio < 1


def test_a_page_of_counters_that_is_none_is_named(tmp_path: Path) -> None:
    (tmp_path / "m").write_text('# HELP x\nx 1\nx{a="b\\"}"} 2e0\nx_bucket{le="+Inf"} 4\n\ny NaN\n')
    assert counters.read(tmp_path / "m")["x", frozenset({("a", 'b\\"}')})] == 2.0
    (tmp_path / "m").write_text("x one\n")
    with pytest.raises(KvplanError, match="'one'"):
        counters.read(tmp_path / "m")


def test_answers_that_leave_out_a_zero_are_told_from_those_that_never_say(tmp_path: Path) -> None:
    off = [row(f"s{n}", cached=None) for n in range(4)]
    on = [row(f"s{n}", cached=50 if n else None) for n in range(4)]
    made = pair(off, on, tmp_path)
    assert made.off.hit_ratio is None
    assert made.on.hit_ratio == pytest.approx(150 / 400)
    assert made.paired.cached_tokens_change is None
    assert "no-cached-tokens" in [finding.code for finding in made.findings]


# ------------------------------------------------------------------------------------------------ what is said


def codes(made: LiveComparison) -> set[str]:
    return {finding.code for finding in made.findings}


def test_doubts_are_said(tmp_path: Path) -> None:
    off = [row(f"s{n}", ttft_ms=100 + n % 7) for n in range(60)]
    clear = [row(f"s{n}", ttft_ms=50 + n % 7) for n in range(60)]
    noise = [row(f"s{n}", ttft_ms=100 + (n * 5) % 7) for n in range(60)]
    assert codes(pair(off, clear, tmp_path / "a")) == {"one-run-each"}
    assert "no-difference" in codes(pair(off, noise, tmp_path / "b"))
    assert "few-sessions" in codes(pair(off[:7], clear[:7], tmp_path / "c"))
    late = compare([aiperf(tmp_path / "d", off, 60.0), aiperf(tmp_path / "e", clear, 60.0)], LOOSE)
    assert "lag-over-change" in codes(late)
    silent = compare([aiperf(tmp_path / "f", off, None), aiperf(tmp_path / "g", clear, None)], LOOSE)
    assert "no-lag" in codes(silent)
    for arm, times in (("off", (100, 200)), ("on", (90, 190))):
        for number, time in enumerate(times):
            aiperf(tmp_path / "h" / arm / str(number), [row(f"s{n}", ttft_ms=time) for n in range(30)])
    drifted = compare([tmp_path / "h/off", tmp_path / "h/on"], LOOSE)
    assert "drift" in codes(drifted)
    page = report.sections(wrap(drifted))
    assert page.lead.startswith("No difference told from what time alone changed")


def simulated(requests: int, off: tuple[float, float], on: tuple[float, float], name: str = "on") -> Simulation:
    """A simulation of two arms, each with a hit ratio and one TTFT that every request had."""
    whole: Simulation = samples.simulation().data
    arms = []
    for arm, (hits, ttft) in (
        (replace(whole.arms[0].arm, name="off"), off),
        (replace(whole.arms[1].arm, name=name), on),
    ):
        spread = replace(whole.arms[0].ttft, mean=ttft, p50=ttft, p90=ttft, p99=ttft, max=ttft)  # type: ignore[type-var]
        arms.append(replace(whole.arms[0], arm=arm, hit_ratio=hits, ttft=spread))
    return replace(whole, requests=requests, arms=tuple(arms))


def test_a_simulation_is_graded(tmp_path: Path) -> None:
    folder = manifest(tmp_path / "runs", "ABBA")  # hits 0 and 50 %, mean TTFT 103.5 and 53.5 ms
    made = compare([folder], LOOSE, ("s.json", simulated(8, (0.01, 0.1035), (0.54, 0.065))))
    graded = {(grade.what, grade.arm): grade for grade in made.grades}
    hits = graded["hit ratio", "on"]
    assert (hits.predicted, hits.measured, hits.grade) == (0.54, 0.5, "fair")
    assert hits.error == pytest.approx(0.04)
    assert graded["hit ratio", "off"].grade == "good"
    assert graded["TTFT mean", "off"].error == pytest.approx(0.0)
    mean = graded["TTFT mean", "on"]
    assert mean.error == pytest.approx(0.065 / 0.0535 - 1)
    assert mean.grade == "fair"
    change = graded["TTFT change", "on"]
    assert change.error == pytest.approx((0.065 / 0.1035 - 1) - (53.5 / 103.5 - 1))
    assert change.grade == "good"
    poor = compare([folder], LOOSE, ("s.json", simulated(8, (0.2, 1.0), (0.2, 1.0))))
    assert {grade.grade for grade in poor.grades} == {"poor"}
    with pytest.raises(KvplanError, match="played 9 requests and the servers 8"):
        compare([folder], LOOSE, ("s.json", simulated(9, (0, 1), (0, 1))))
    with pytest.raises(KvplanError, match=r"no arm 'on' \(it has: off, big\)"):
        compare([folder], LOOSE, ("s.json", simulated(8, (0, 1), (0, 1), "big")))
    named = Options(resamples=200, simulated_arm="big")
    assert compare([folder], named, ("s.json", simulated(8, (0, 1), (0, 1), "big"))).grades
    with pytest.raises(UsageError, match="leave --skip out"):
        compare([folder], Options(skip=1), ("s.json", simulated(7, (0, 1), (0, 1))))


@pytest.fixture
def document(tmp_path: Path) -> Document[LiveComparison]:
    draw = random.Random(5)
    for number, arm in enumerate(("off", "on", "on", "off")):
        gain = 0 if arm == "off" else 30
        rows = [
            row(
                f"s{n // 2}",
                n % 2,
                60 + n % 40 + draw.random() - (gain if n % 2 else 0),
                cached=64 * (n % 2) * (gain > 0),
            )
            for n in range(80)
        ]
        aiperf(tmp_path / arm / str(number), rows)
    made = compare([tmp_path / "off", tmp_path / "on"], LOOSE)
    simulation = simulated(80, (0.0, made.off.ttft.mean), (0.32, made.on.ttft.mean))
    return wrap(compare([tmp_path / "off", tmp_path / "on"], LOOSE, ("simulation.json", simulation)))


def test_a_page_says_it_in_every_form(document: Document[LiveComparison]) -> None:
    page = report.sections(document)
    assert page.lead.startswith("First tokens came earlier with offload: TTFT -")
    text, figures = report.markdown(page, "files")
    assert "The simulation, graded" in text
    assert {name.removesuffix(".svg") for name in figures} >= {"ttft", "changes", "cached", "in-turn"}
    assert "<svg" in report.html(page)
    assert parse(dump(document).encode(), "x").data == document.data


def test_runs_have_a_page_of_their_own(tmp_path: Path) -> None:
    document = load(manifest(tmp_path / "runs", "ABBA", concurrency=4) / "replay.json")
    page = report.sections(document)
    assert page.lead.startswith("4 runs in the order ABBA")
    assert "4 at a time" in report.markdown(page, "files")[0]
    cut = wrap(replace(document.data, runs=document.data.runs[:3], concurrency=None, request_rate=2.0))
    page = report.sections(cut)
    assert page.lead.startswith("3 of 4 runs in the order ABBA, cut short")
    assert "2 a second" in report.html(page)


def test_the_command_answers_and_refuses(tmp_path: Path) -> None:
    folder = manifest(tmp_path / "runs", "ABBA")
    simulation = tmp_path / "simulation.json"
    simulation.write_text(dump(wrap(simulated(8, (0.0, 0.1035), (0.5, 0.0535)))))
    words = ["compare", str(folder), "--simulation", str(simulation), "--resamples", "200"]
    done = CliRunner().invoke(app, [*words, "-o", str(tmp_path / "c.json")])
    assert done.exit_code == 0, done.output
    assert "What offload changed" in done.stdout
    assert json.loads((tmp_path / "c.json").read_text())["kind"] == "kvplan.comparison"
    for wrong, said in (
        (["--max-lag", "5"], "--max-lag"),
        (["--simulation", str(folder / "replay.json")], "not a simulation"),
        (["--schedule", str(tmp_path / "none")], "no such file"),
    ):
        done = CliRunner().invoke(app, ["compare", str(folder), *wrong])
        assert said in str(done.exception)


def test_figures_hold_where_all_requests_are_alike(tmp_path: Path) -> None:
    rows = [row(f"s{n}") for n in range(3)]
    made = pair(rows, rows, tmp_path)
    assert made.paired.ttft_change_s.value == 0
    assert math.isfinite(made.paired.ttft_change_ratio.high)
    assert report.sections(wrap(made)).lead.startswith("No difference shown")


def test_a_real_report_of_guidellm_is_read() -> None:
    """Three requests of GuideLLM 0.8.1's own report on a schedule that `replay export` wrote."""
    made = results.result(RESULTS / "guidellm.json")
    assert made.generator == "guidellm"
    first = made.records[0]
    assert (first.prompt_tokens, first.output_tokens, first.cached_tokens) == (144, 8, 32)
    assert first.ttft_s == pytest.approx(0.010378837585)
    assert first.latency_s == pytest.approx(0.013337135)
    assert sorted(made.lag_s) == pytest.approx([0.092855215, 0.096691132, 0.097086212])
    assert len({record.key for record in made.records}) == 3


WRONG = (None, -1, -1e30, 0, 1e308, 2**70, "", "x", [], {}, True, [1], {"value": -5, "unit": "ms"})


def leaves(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Where a JSON document's values are, its inner ones included."""
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    return [path, *(deeper for key, part in inner for deeper in leaves(part, (*path, key)))][path == () :]


@settings(max_examples=250, deadline=None)
@given(data=st.data())
def test_damaged_results_are_read_or_refused_in_a_line(
    data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    folder = tmp_path_factory.mktemp("damaged")
    name = data.draw(st.sampled_from(["aiperf/profile_export.jsonl", "vllm_bench.json", "guidellm.json"]))
    text = (RESULTS / name).read_text()
    rows = [json.loads(line) for line in text.splitlines()] if name.endswith(".jsonl") else [json.loads(text)]
    row = data.draw(st.sampled_from(rows))
    place = data.draw(st.sampled_from(leaves(row)))
    part = row
    for key in place[:-1]:
        part = part[key]
    if data.draw(st.booleans()):
        part[place[-1]] = data.draw(st.sampled_from(WRONG))
    else:
        del part[place[-1]]
    path = folder / Path(name).name
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    said = ""
    try:
        dump(wrap(compare([RESULTS / name, path], Options(resamples=100, max_lag_s=9))))
    except KvplanError as error:
        said = str(error)
    assert "\n" not in said


def stated(path: Path, rows: Sequence[Row], **more: Any) -> Path:
    """A result of vllm bench serve that says more of how it was made."""
    vllm_bench(path, rows)
    path.write_text(json.dumps({**json.loads(path.read_text()), **more}))
    return path


def test_arms_of_different_paces_are_refused_and_different_names_of_the_model_said(tmp_path: Path) -> None:
    rows = [row(f"s{n}", ttft_ms=100.0 + n) for n in range(8)]
    off = stated(tmp_path / "off.json", rows, request_rate="inf", model_id="m")
    same = compare([off, stated(tmp_path / "same.json", rows, request_rate="inf", model_id="m")], LOOSE)
    assert "models-differ" not in [finding.code for finding in same.findings]
    for number, more in enumerate(({"request_rate": 5.0}, {"request_rate": "inf", "max_concurrency": 4})):
        with pytest.raises(KvplanError, match="different paces \\(request rate inf; request rate"):
            compare([off, stated(tmp_path / f"{number}.json", rows, **more)], LOOSE)
    other = compare([off, stated(tmp_path / "other.json", rows, request_rate="inf", model_id="n")], LOOSE)
    assert "(m, n)" in next(finding.text for finding in other.findings if finding.code == "models-differ")


def test_results_without_sessions_say_that_requests_are_drawn_alone(tmp_path: Path) -> None:
    rows = [row(f"s{n}", ttft_ms=100.0 + n) for n in range(8)]
    files = [vllm_bench(tmp_path / f"{name}.json", rows) for name in ("off", "on")]
    assert "no-sessions" in [finding.code for finding in compare(files, LOOSE).findings]
    asked = Options(resamples=200, resample="request")
    assert "no-sessions" not in [finding.code for finding in compare(files, asked).findings]
    named = [aiperf(tmp_path / name, rows) for name in ("off", "on")]
    assert "no-sessions" not in [finding.code for finding in compare(named, LOOSE).findings]


def test_one_result_for_both_arms_is_refused(tmp_path: Path) -> None:
    one = vllm_bench(tmp_path / "one.json", [row(f"s{n}") for n in range(8)])
    with pytest.raises(UsageError, match="named for both arms"):
        compare([one, tmp_path / "." / "one.json"], LOOSE)


def test_a_result_that_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(KvplanError, match="nope: no such file or folder"):
        compare([tmp_path / "nope"], Options(), None)
