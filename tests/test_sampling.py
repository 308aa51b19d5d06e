"""Sampled curves against the exact one, and their own measure of error against the real one."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_reuse import B, logs

from kvplan import reuse
from kvplan.cli import main
from kvplan.documents import Requests
from kvplan.errors import UsageError
from kvplan.logs import read
from kvplan.profiling import sampling, whatif


@settings(max_examples=60, deadline=None)
@given(logs(), st.integers(2, 4), st.integers(0, 5))
def test_a_sample_of_everything_is_exact(requests: Requests, samples: int, hot: int) -> None:
    """At rate 1 every block counts once, hot or not."""
    capacities = [0, 1, 3, 8, 1000]
    sampled = sampling.curve(
        lambda: sampling.batches_of(requests),
        block_tokens=B,
        capacities=capacities,
        rate=1,
        samples=samples,
        hot_blocks=hot,
    )
    exact = whatif.curve(reuse.find_runs(requests), requests, capacities)
    whole = max(1, int(reuse.covered_tokens(requests).sum()))
    for point, truth in zip(sampled.points, exact, strict=True):
        assert point.block_hit_ratio == pytest.approx(truth.hit_blocks / max(1, requests.blocks.size))
        assert point.token_hit_ratio == pytest.approx(truth.hit_tokens / whole)
    assert (sampled.block_references, sampled.sampled_references) == (requests.blocks.size, requests.blocks.size)


@pytest.mark.parametrize(("rate", "mean", "worst"), [(0.1, 0.001, 0.002), (0.01, 0.003, 0.006)])
def test_a_real_trace_from_a_sample(shared: Path, rate: float, mean: float, worst: float) -> None:
    """The trace whose first block is in every request, on which plain sampling is wrong by half."""
    requests = read([shared / "traces/mooncake-conversation.jsonl.gz"])
    capacities = [size for size in (1000, 3000, 10_000, 20_000, 50_000, 100_000, 182_790) if size * rate >= 100]
    exact = [point.hit_blocks / 288_500 for point in whatif.curve(reuse.find_runs(requests), requests, capacities)]
    sampled = sampling.curve(lambda: sampling.batches_of(requests), block_tokens=512, capacities=capacities, rate=rate)
    off = np.abs(np.array([point.block_hit_ratio for point in sampled.points]) - exact)
    assert off.mean() < mean
    assert off.max() < worst
    error = np.array([point.standard_error_ratio for point in sampled.points])
    assert (off <= 4 * error + 0.002).all()
    assert sampled.sampled_references < (0.15 + rate) * 288_500
    assert sampled.hot_blocks == 2000


@pytest.mark.parametrize("rate", [0.002, 0.01])
def test_the_stated_error_is_that_of_many_samples(shared: Path, rate: float) -> None:
    """Thirty samples of the same log, its blocks named anew: how far they are off is what they say."""
    requests = read([shared / "traces/mooncake-conversation.jsonl.gz"])
    capacities = np.geomspace(100 / rate, 164_511, 6).astype(int).tolist()
    exact = [point.hit_blocks / 288_500 for point in whatif.curve(reuse.find_runs(requests), requests, capacities)]
    batches = list(sampling.batches_of(requests))
    off, said = [], []
    for salt in np.random.default_rng(1).integers(1, 2**62, 30).tolist():
        named = [
            sampling.Batch(
                blocks=one.blocks.astype(np.int64) ^ salt, offsets=one.offsets, input_tokens=one.input_tokens
            )
            for one in batches
        ]
        sampled = sampling.curve(lambda named=named: named, block_tokens=512, capacities=capacities, rate=rate)  # type: ignore[misc]
        off.append([point.block_hit_ratio - truth for point, truth in zip(sampled.points, exact, strict=True)])
        said.append([point.standard_error_ratio for point in sampled.points])
    real, stated = np.sqrt(np.square(off).mean(axis=0)), np.mean(said, axis=0)
    assert (real < 1.4 * stated).all()
    assert (np.abs(off) > 3 * np.array(said)).mean() < 0.05


def test_caches_of_few_sampled_blocks_are_left_out(shared: Path) -> None:
    """Of one block in 5000, a cache of 100,000 holds 20: where its parts agree, they agree on what none can see."""
    requests = read([shared / "traces/mooncake-conversation.jsonl.gz"])
    capacities = [100, 1000, 49_999, 50_000, 100_000, 200_000]

    def curve(rate: float) -> list[int]:
        sampled = sampling.curve(
            lambda: sampling.batches_of(requests), block_tokens=512, capacities=capacities, rate=rate
        )
        return [point.capacity_blocks for point in sampled.points]

    assert curve(0.002) == [50_000, 100_000, 200_000]
    assert curve(0.0002) == [200_000]
    assert curve(1.0) == capacities
    assert [sampling.least_capacity(rate) for rate in (1, 0.01, 0.003)] == [0, 10_000, 33_334]


def test_batches_of_a_file_are_those_of_the_log(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: sampling a file was not tested")
    rows = pd.DataFrame({"input_length": [9, 4, 8], "hash_ids": [[5, 6, 7], [5], [5, 6]]})
    rows.to_parquet(tmp_path / "log.parquet")
    (batch,) = sampling.batches_in(tmp_path / "log.parquet")
    assert batch.blocks.tolist() == [5, 6, 7, 5, 5, 6]
    assert (batch.offsets.tolist(), batch.input_tokens.tolist()) == ([0, 3, 4, 6], [9, 4, 8])
    path = tmp_path / "log.parquet"
    sampled = sampling.curve(lambda: sampling.batches_in(path), block_tokens=4, capacities=[10], rate=1)
    assert sampled.points[0].block_hit_ratio == 0.5
    assert sampled.points[0].token_hit_ratio == pytest.approx(12 / 21)


@pytest.mark.parametrize("count", [0, 1, 1000, 100_000, 3_000_000])
def test_distinct_blocks_are_counted_to_a_fifth_of_a_percent(count: int) -> None:
    """Over five standard errors off, about one try in two million, would be an error."""
    sampler = sampling.Sampler(np.zeros(0, np.int64), 4, 0.01)
    blocks = np.arange(count, dtype=np.int64) * 7919
    for _ in range(2):
        sampler.take(np.array([count]), np.array([4 * count]), blocks)
    assert sampler.unique == pytest.approx(count, rel=5 * 1.04 / 512)


def test_the_command_prints_a_sampled_curve_and_its_error(
    shared: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    trace = shared / "traces/mooncake-conversation.jsonl.gz"
    options = ["--sample", "1%", "--capacity-blocks", "30000"]
    for more in (["--json", "-q"], []):
        monkeypatch.setattr("sys.argv", ["kvplan", "workload", str(trace), *options, *more])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code in (0, None)
        out = capsys.readouterr().out
        if more:
            data = json.loads(out)["data"]
    sampled = data["sampled"]
    point = next(point for point in sampled["points"] if point["capacity_blocks"] == 30_000)
    assert point["block_hit_ratio"] == pytest.approx(93_978 / 288_500, abs=0.006)
    assert sampled["ceiling_hit_ratio"] == pytest.approx(0.37362, abs=0.003)
    assert sampled["unique_blocks"] == pytest.approx(182_790, rel=0.01)
    assert (data["curve"], data["ceiling_hit_ratio"], data["requests"]) == ([], None, 12_031)
    path, estimate = tmp_path / "workload.json", tmp_path / "estimate.json"
    commands = (
        ["workload", str(trace), *options, "-q", "-o", str(path)],
        ["estimate", "qwen3-8b", "-q", "-o", str(estimate)],
        ["plan", str(path), str(estimate), "--gpu", "h100-80gb", "--host-memory", "256GiB", "-q"],
    )
    for arguments, code in zip(commands, (0, 0, 1), strict=True):
        monkeypatch.setattr("sys.argv", ["kvplan", *arguments])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code in ((0, None) if code == 0 else (code,))
    assert "a plan needs the exact one: profile the log without --sample" in " ".join(capsys.readouterr().err.split())
    assert "± " in out
    assert "Caches under 10,000 blocks are left out" in " ".join(out.split())
    assert sampled["points"][0]["capacity_blocks"] == 10_000
    assert "Its standard error, measured on 10 parts of the sample, is at most" in " ".join(out.split())


@pytest.mark.parametrize("rate", [0, -1, 1.5])
def test_a_rate_without_meaning_is_refused(rate: float) -> None:
    with pytest.raises(UsageError, match="a rate above 0"):
        sampling.curve(list, block_tokens=4, capacities=[1], rate=rate)
