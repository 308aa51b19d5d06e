"""Bucketed profiles: their sum is the whole, whatever the number of buckets, their order, or what carries them."""

from __future__ import annotations

import json
from functools import reduce
from operator import add
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_reuse import logs, make, paths_of

from kvplan import files, reuse
from kvplan.cli import main
from kvplan.documents import Requests
from kvplan.errors import KvplanError
from kvplan.logs import read
from kvplan.profiling import bucket_files, buckets, ray_profile
from kvplan.workload import profile


def same(left: reuse.Runs, right: reuse.Runs) -> bool:
    return all(
        np.array_equal(getattr(left, name), getattr(right, name))
        for name in ("request", "toucher", "depth", "length", "rank")
    )


@settings(max_examples=80, deadline=None)
@given(logs(), st.integers(1, 9), st.randoms())
def test_the_sum_of_buckets_is_the_whole(requests: Requests, count: int, random: object) -> None:
    parts = [buckets.profile_bucket(*part) for part in buckets.split(requests, count)]
    random.shuffle(parts)  # type: ignore[attr-defined]
    merged = reduce(add, parts, buckets.empty())
    assert merged.unique == reuse.unique_blocks(requests)
    assert same(buckets.runs(merged, np.diff(requests.offsets)), reuse.find_runs(requests))


@settings(max_examples=40, deadline=None)
@given(logs(), st.integers(1, 5))
def test_tables_that_an_engine_groups_and_collects_give_the_same(requests: Requests, count: int) -> None:
    """As on Ray and Spark: rows to references, grouped by bucket, one table a group, collected in any order."""
    numbered = pd.DataFrame({"request": range(len(requests.input_tokens)), "hash_ids": paths_of(requests)})
    flat = buckets.references(numbered, count).sample(frac=1, random_state=0).sort_values("request", kind="stable")
    tables = [buckets.profile_frame(part) for _, part in flat.groupby("bucket")]
    whole = pd.concat(tables[::-1]) if tables else pd.DataFrame({"request": [], "toucher": [], "blocks": []})
    merged = buckets.from_frame(whole)
    assert same(buckets.runs(merged, np.diff(requests.offsets)), reuse.find_runs(requests))


def test_two_processes_give_the_same_document_byte_for_byte(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    requests = read([shared / "traces/mooncake-conversation.jsonl.gz"])
    one = files.dump(files.wrap(profile(requests)))
    two = files.dump(files.wrap(profile(requests, runs=buckets.find_runs(requests, 2))))
    assert one == two


def test_an_empty_log_has_an_empty_histogram() -> None:
    requests = make([[], []], [3, 0])
    parts = [buckets.profile_bucket(*part) for part in buckets.split(requests, 2)]
    merged = reduce(add, parts, buckets.empty())
    assert (merged.request.size, merged.unique) == (0, 0)
    assert buckets.runs(merged, np.diff(requests.offsets)).request.size == 0


def test_buckets_share_the_blocks_of_a_path_evenly() -> None:
    counts = np.bincount(buckets.bucket_of(np.arange(100_000), 8), minlength=8)
    assert counts.min() > 12_000
    assert (
        buckets.bucket_of(np.array([-1, 2**63 - 1]), 4).tolist()
        == buckets.bucket_of(np.array([-1, 2**63 - 1]), 4).tolist()
    )


# ------------------------------------------------------------------------------------------- files and engines


@pytest.fixture
def log(tmp_path: Path) -> tuple[Path, Requests]:
    """A generated log as Parquet: 3,000 requests of some conversations, 40 to a bucket of the row groups."""
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: buckets in files were not tested")
    random = np.random.default_rng(7)
    numbers: dict[tuple[int, ...], int] = {}
    histories: list[list[int]] = [[0] for _ in range(60)]
    paths = []
    for _ in range(3000):
        history = histories[random.integers(60)]
        history.append(int(random.integers(3)))
        paths.append([numbers.setdefault(tuple(history[: i + 1]), len(numbers)) for i in range(len(history))])
        if len(history) > 30:
            history[:] = [0]
    table = pd.DataFrame({"timestamp": np.arange(3000.0), "input_length": [4 * len(path) for path in paths]})
    table["hash_ids"] = paths
    table.to_parquet(tmp_path / "log.parquet", row_group_size=1000)
    return tmp_path / "log.parquet", make(paths, [4 * len(path) for path in paths])


def test_files_of_buckets_are_taken_up_again(log: tuple[Path, Requests], tmp_path: Path) -> None:
    path, requests = log
    folder = tmp_path / "buckets"
    bucket_files.split(path, folder, 3)
    kept = bucket_files.profile_one(folder / "references-0001.parquet")
    before = kept.stat().st_mtime_ns
    bucket_files.split(path, folder, 3)
    merged = bucket_files.profile_all(folder, 2)
    assert kept.stat().st_mtime_ns == before
    assert merged.unique == reuse.unique_blocks(requests)
    assert same(buckets.runs(merged, bucket_files.blocks_a_request(folder)), reuse.find_runs(requests))
    with pytest.raises(KvplanError, match=r"holds the split of log\.parquet in 3: name another folder"):
        bucket_files.split(path, folder, 4)


def test_files_that_cannot_be_bucketed_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("pyarrow", reason="pyarrow is not installed: buckets in files were not tested")
    late = pd.DataFrame({"timestamp": [2.0, 1.0], "hash_ids": [[0], [0]]})
    late.to_parquet(tmp_path / "late.parquet")
    with pytest.raises(KvplanError, match="not in order of time"):
        bucket_files.split(tmp_path / "late.parquet", tmp_path / "b", 2)
    with pytest.raises(KvplanError, match="no finished split"):
        bucket_files.profile_all(tmp_path / "b", 1)


def document(
    arguments: list[object], capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> dict[str, Any]:
    """The document that the command prints, without its header and findings."""
    monkeypatch.setattr("sys.argv", ["kvplan", "workload", *map(str, arguments), "--json", "-q"])
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    data: dict[str, Any] = json.loads(capsys.readouterr().out)["data"]
    return data


NEEDS_BLOCKS = {
    *("policies", "optimal", "tenants", "isolation", "top_prefixes", "hot_set", "without_one_off"),
    *("prompt_end_hit_ratio", "decoded_ceiling_hit_ratio", "replicas", "findings"),
}


def test_the_command_splits_takes_up_again_and_gives_the_exact_figures(
    log: tuple[Path, Requests], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """From Parquet and from JSON Lines: all figures but those that need the blocks at once, which are left out."""
    path, requests = log
    lines = tmp_path / "log.jsonl"
    rows = zip(requests.input_tokens.tolist(), paths_of(requests), strict=True)
    lines.write_text(
        "".join(
            json.dumps({"timestamp": 1000 * i, "input_length": n, "hash_ids": ids}) + "\n"
            for i, (n, ids) in enumerate(rows)
        )
    )
    for one in (path, lines):
        arguments: list[object] = [one, "--columns", "time_s=timestamp"] if one is path else [one]
        arguments += ["--block-tokens", 4, "--capacity-blocks", 77]
        exact = document([*arguments, "--tiers", "100,1000"], capsys, monkeypatch)
        folder = tmp_path / one.suffix
        more = ["--tiers", "100,1000", "--buckets", folder, "--bucket-count", 3, "--workers", 2]
        found = document([*arguments, *more], capsys, monkeypatch)
        assert {key for key in exact if exact[key] != found[key]} <= NEEDS_BLOCKS
        assert "blocks-not-held" in {finding["code"] for finding in found["findings"]}
        written = {part.name: part.stat().st_mtime_ns for part in folder.iterdir()}
        assert len(written) == 8
        (folder / "histogram-0001.parquet").unlink()
        assert document([*arguments, *more], capsys, monkeypatch) == found
        now = {part.name: part.stat().st_mtime_ns for part in folder.iterdir()}
        assert {name for name in written if now[name] != written[name]} == {"histogram-0001.parquet"}


def test_what_needs_all_blocks_at_once_is_refused(
    log: tuple[Path, Requests], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    for arguments, code, words in (
        (["--buckets", "b", "--isolate"], 2, "--isolate: not with --sample or --buckets"),
        (["--buckets", "b", "--policies", "lfu", "--replicas", 2], 2, "--policies, --replicas: not with"),
        (["--sample", "1%", "--ttl", "5s"], 2, "--ttl: not with"),
        (["--sample", "1%", "--buckets", "b"], 2, "name one of them"),
        (["--sample", "nothing"], 2, "is no share: write 1% or 0.01"),
        (["--sample", "1%", "--skip-bad", 1], 2, "--skip-bad: lines cannot be left out"),
    ):
        monkeypatch.setattr("sys.argv", ["kvplan", "workload", str(log[0]), *map(str, arguments)])
        with pytest.raises(SystemExit) as ended:
            main()
        assert ended.value.code == code, arguments
        assert words in capsys.readouterr().err
    late = tmp_path / "late.jsonl"
    rows = [{"timestamp": time, "input_length": 4, "hash_ids": [0]} for time in (2, 1, 9)]
    late.write_text("".join(json.dumps(row) + "\n" for row in rows))
    with pytest.raises(KvplanError, match="not in order of time: sort"):
        read([late], block_tokens=4, sink=lambda *_: None)
    weka = Path(__file__).resolve().parent / "logs/weka.json"
    with pytest.raises(
        KvplanError, match="format weka is read into memory whole; --sample and --buckets take mooncake"
    ):
        read([weka], sink=lambda *_: None)


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_ray_gives_the_same_document_byte_for_byte(log: tuple[Path, Requests], monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("ray", reason="Ray is not installed: documents from a local cluster were not tested")
    monkeypatch.setenv("SOURCE_DATE_EPOCH", "0")
    requests = read([log[0]], block_tokens=4)
    one = files.dump(files.wrap(profile(requests)))
    two = files.dump(files.wrap(profile(requests, runs=ray_profile.find_runs(requests, "local"))))
    assert one == two


@pytest.mark.filterwarnings("ignore")  # Ray's own
def test_a_local_ray_cluster_gives_the_same_runs(log: tuple[Path, Requests]) -> None:
    ray = pytest.importorskip("ray", reason="Ray is not installed: buckets on a local cluster were not tested")
    path, requests = log
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        numbered = pd.read_parquet(path).assign(request=range(len(requests.input_tokens)))
        merged = ray_profile.histogram(ray.data.from_pandas(numbered[["request", "hash_ids"]]), 4)
    finally:
        ray.shutdown()
    assert same(buckets.runs(merged, np.diff(requests.offsets)), reuse.find_runs(requests))
