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

from kvplan import buckets, files, reuse
from kvplan.documents import Requests
from kvplan.logs import read
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
