"""Bucketed profiles: their sum is the whole, whatever the number of buckets, their order, or what carries them."""

from __future__ import annotations

from functools import reduce
from operator import add
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from test_reuse import logs, make, paths_of

from kvplan import files, reuse
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
