"""A log's paths as a tree: the same as the lists of ids that it was made from, however they were read."""

from __future__ import annotations

import json
from collections.abc import Iterable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from test_reuse import B, logs, make, paths_of

from kvplan import paths, reuse, workload
from kvplan.documents import PathTree, Requests
from kvplan.errors import KvplanError
from kvplan.formats import keyed
from kvplan.logs import read
from kvplan.profiling import timeline, whatif

Path_ = tuple[int, ...]


def by_appearance(names: Iterable[Any]) -> list[int]:
    """Names as numbers from 0 in the order in which they first appear."""
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(name, len(numbers)) for name in names]


def flat(log: list[Path_]) -> tuple[np.ndarray[Any, Any], np.ndarray[Any, Any]]:
    return np.array([key for path in log for key in path], np.int64), np.cumsum([0, *map(len, log)])


def first_broken(log: list[Path_]) -> int | None:
    """The first path with a key that follows another one than before."""
    parents: dict[int, int | None] = {}
    for row, path in enumerate(log):
        for above, key in zip([None, *path], path, strict=False):
            if parents.setdefault(key, above) != above:
                return row
    return None


def blocks_of(log: list[Path_]) -> list[int]:
    """What a log's blocks must be: its keys where they name prefixes, else all prefixes, numbered as they appear."""
    if first_broken(log) is None:
        return by_appearance(key for path in log for key in path)
    return by_appearance(path[: end + 1] for path in log for end in range(len(path)))


trees = st.lists(st.lists(st.integers(0, 1), max_size=6).map(tuple), min_size=1, max_size=20)


@st.composite
def keyed_logs(draw: st.DrawFn) -> list[Path_]:
    """Paths of keys, small, sparse or of 64 bits, that name prefixes, or mostly do, or name contents."""
    log: list[Path_] = []
    spread = draw(st.sampled_from([1, 10**5, 2**40 + 1]))
    numbers: dict[Path_, int] = {}
    for path in draw(trees):
        prefixes = [path[: i + 1] for i in range(len(path))]
        log.append(tuple(numbers.setdefault(one, len(numbers)) * spread for one in prefixes))
    how = draw(st.sampled_from(["prefixes", "prefixes", "one wrong", "contents"]))
    if how == "contents":
        return [tuple(key % (3 * spread) for key in path) for path in log]
    if how == "one wrong":
        at = draw(st.integers(0, len(log) - 1))
        log[at] = tuple(draw(st.permutations(log[at]))) + tuple(draw(st.lists(st.sampled_from([0, 7]), max_size=1)))
    return log


# ------------------------------------------------------------------------------------------------ the tree


@settings(max_examples=150, deadline=None)
@given(logs())
def test_a_tree_gives_back_the_ids_it_was_made_from(requests: Requests) -> None:
    tree = paths.tree(requests)
    assert tree.blocks().tolist() == by_appearance(requests.blocks.tolist())
    assert paths.counts(tree).tolist() == np.diff(requests.offsets).tolist()
    log = [path.tolist() for path in np.split(tree.blocks(), requests.offsets[1:-1])]
    assert paths.last(tree).tolist() == [path[-1] if path else -1 for path in log]
    assert paths.above(tree).tolist() == [path[n - 1] if n else -1 for path, n in zip(log, tree.shared, strict=True)]
    for row, path in enumerate(log):
        found = [paths.block_at(tree.parent, tree.shared, tree.first, row, depth) for depth in range(len(path))]
        assert found == path


def test_ids_that_name_no_prefixes_make_no_tree() -> None:
    broken: list[list[Path_]] = [
        [(0, 1), (1,)],
        [(0, 1), (0, 2), (3,), (3, 2)],
        [(0, 1), (0, 2), (0, 1, 2)],
        [(0, 0)],
        [(0, 1, 2), (0, 2)],
    ]
    for log in broken:
        with pytest.raises(ValueError, match=f"request {len(log) - 1} do"):
            paths.from_ids(*flat(log))


@settings(max_examples=100, deadline=None)
@given(logs(), st.data())
def test_a_tree_in_another_order_is_that_of_the_paths_in_that_order(requests: Requests, data: st.DataObject) -> None:
    every = list(range(len(requests.input_tokens)))
    rows = data.draw(st.lists(st.sampled_from(every), unique=True))
    log = [tuple(path) for path in paths_of(requests)]
    moved = paths.rearranged(paths.tree(requests), np.array(rows, np.int64))
    assert moved.blocks().tolist() == by_appearance(key for row in rows for key in log[row])
    group = np.array([data.draw(st.integers(0, 2)) for _ in rows], np.int64)
    apart = paths.rearranged(paths.tree(requests), np.array(rows, np.int64), group)
    names = [(of, key) for row, of in zip(rows, group.tolist(), strict=True) for key in log[row]]
    assert apart.blocks().tolist() == by_appearance(names)


# ------------------------------------------------------------------------------------------------ as it is read


@settings(max_examples=200, deadline=None)
@given(keyed_logs(), st.data())
def test_keys_that_come_some_at_a_time_are_the_same_log(log: list[Path_], data: st.DataObject) -> None:
    paths_read = keyed.Keyed()
    cuts = sorted(data.draw(st.sets(st.integers(0, len(log)), max_size=4)))
    for start, end in pairwise([0, *cuts, len(log)]):
        keys, offsets = flat(log[start:end])
        kind = data.draw(st.sampled_from([np.int64, np.uint64, np.int32 if keys.max(initial=0) < 2**31 else np.int64]))
        paths_read.add(keys.astype(kind), np.diff(offsets))
    rows = data.draw(st.none() | st.lists(st.integers(0, len(log) - 1), unique=True))
    found = paths_read.paths(None if rows is None else np.array(rows, np.int64))
    assert isinstance(found, PathTree) == (first_broken(log) is None)
    ids = found.blocks() if isinstance(found, PathTree) else found
    chosen = log if rows is None else [log[row] for row in rows]
    assert by_appearance(ids.tolist()) == by_appearance(key for path in chosen for key in path)


def test_numbers_of_many_keys_survive_every_growth_of_their_tables() -> None:
    rng = np.random.default_rng(3)
    keys = np.concatenate((np.arange(5000), rng.integers(-(2**63), 2**63, 40_000), np.arange(9000, 0, -1)))
    numbers, found = keyed.Numbers(), []
    for part in np.array_split(np.tile(keys, 2), 37):
        found += numbers.number(part).tolist()
    assert found == by_appearance(np.tile(keys, 2).tolist())
    assert numbers.used == len(set(keys.tolist()))


def test_more_blocks_than_can_be_numbered_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keyed, "_MOST", 3000)
    with pytest.raises(KvplanError, match="a log of more than 3,000 distinct blocks: give --sample or --buckets"):
        keyed.Numbers().number(np.arange(3001) << 40)
    assert keyed.Numbers().number(np.arange(3000) << 40).tolist() == list(range(3000))


@st.composite
def files(draw: st.DrawFn) -> tuple[list[list[dict[str, Any]]], int]:
    """Up to three Mooncake logs of one tree, in no order, with some lines whose lengths contradict the block size."""
    rows, bad = [], 0
    for path in draw(keyed_logs()):
        tokens = max(0, len(path) * B - draw(st.integers(0, B - 1))) if path else 0
        row: dict[str, Any] = {
            "timestamp": draw(st.integers(0, 5)) * 1000,
            "input_length": tokens,
            "hash_ids": list(path),
        }
        if draw(st.integers(0, 9)) == 0:
            row["input_length"] += 2 * B
            bad += 1
        rows.append(row)
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(rows) - 1)), max_size=2)))
    parts = [rows[start:end] for start, end in pairwise([0, *cuts, len(rows)])]
    return [part for part in parts if any(sound(row) for row in part)], bad


def sound(row: dict[str, Any]) -> bool:
    return bool(row["input_length"] <= len(row["hash_ids"]) * B)


def in_order(parts: list[list[dict[str, Any]]]) -> list[tuple[str, dict[str, Any]]]:
    """The sound rows of all files as they must be read: by time, each with where it stands."""
    rows: list[tuple[str, dict[str, Any]]] = []
    for number, part in enumerate(parts):
        named = [(f"{number}.jsonl:{i + 1}", row) for i, row in enumerate(part) if sound(row)]
        times = [row["timestamp"] for _, row in named]
        rows += named[::-1] if times == sorted(times, reverse=True) != sorted(times) else named
    return sorted(rows, key=lambda one: one[1]["timestamp"])


def of_two_sizes(rows: list[dict[str, Any]]) -> list[int]:
    """Rows that end in a block which has another size where it is first found, within a path before at an end."""
    log = [tuple(row["hash_ids"]) for row in rows]
    whole = first_broken(log) is not None
    named = [[path[: i + 1] if whole else path[i] for i in range(len(path))] for path in log]
    size: dict[Any, int] = {name: B for names in named for name in names[:-1]}
    wrong = []
    for i, names in enumerate(named):
        tail = rows[i]["input_length"] - B * (len(names) - 1)
        if names and size.setdefault(names[-1], tail) != tail:
            wrong.append(i)
    return wrong


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(files())
def test_logs_are_read_as_the_lists_of_ids_in_them(tmp_path: Path, given_files: Any) -> None:
    parts, bad = given_files
    for number, part in enumerate(parts):
        (tmp_path / f"{number}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in part))
    names = [tmp_path / f"{number}.jsonl" for number in range(len(parts))]
    if not parts:
        return
    requests = read(names, format="mooncake", block_tokens=B, skip_bad=bad)
    rows = in_order(parts)
    log = [tuple(row["hash_ids"]) for _, row in rows]
    assert requests.input_tokens.tolist() == [row["input_length"] for _, row in rows]
    assert np.diff(requests.offsets).tolist() == [len(path) for path in log]
    assert requests.blocks.tolist() == blocks_of(log)
    assert requests.blocks.dtype == np.int32
    said = {finding.code: finding.text for finding in requests.findings}
    broken = first_broken(log)
    assert ("ids-rechained" in said) == (broken is not None)
    if broken is not None:
        assert said["ids-rechained"].startswith(f"{tmp_path / rows[broken][0]}: a block id follows another")
    two = of_two_sizes([row for _, row in rows])
    assert ("id-sizes" in said) == bool(two)
    if two:
        assert said["id-sizes"].startswith(f"In {len(two)} request")
        assert f"the first at {tmp_path / rows[two[0]][0]}:" in said["id-sizes"]


# ------------------------------------------------------------------------------------------------ what is made of it


def test_a_profile_never_makes_the_list_of_all_ids(
    tmp_path: Path, shared: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workload, "_QUICK", 0)
    requests = read([shared / "traces/mooncake-conversation.jsonl.gz"])
    halves = np.arange(len(requests.input_tokens)) % 2
    some = Requests(**{name: getattr(requests, name) for name in requests.__struct_fields__} | {"tenant": halves})
    monkeypatch.setattr(PathTree, "blocks", lambda self: pytest.fail("the ids of all references were asked for"))
    assert workload.profile(some, ttl_s=300.0, tiers=[1000, 5000]).isolation is not None


@settings(max_examples=100, deadline=None)
@given(logs(), st.data())
def test_decoded_blocks_serve_the_longest_prompts_that_leave_where_they_begin(
    requests: Requests, data: st.DataObject
) -> None:
    counts = np.diff(requests.offsets)
    output = np.array([data.draw(st.integers(0, 3 * B)) for _ in counts])
    log = Requests(**{name: getattr(requests, name) for name in requests.__struct_fields__} | {"output_tokens": output})
    runs = reuse.find_runs(log)
    depths = reuse.hit_depths(runs, log)
    full = np.minimum(log.input_tokens // B, counts)
    outputs: dict[int, list[int]] = {}
    prompts: dict[int, list[tuple[int, int]]] = {}
    for row, path in enumerate(paths_of(log)):
        end = int(log.input_tokens[row] + output[row]) // B
        if 0 < full[row] < end:
            outputs.setdefault(path[full[row] - 1], []).append(end)
        if 0 < depths[row] < full[row]:
            prompts.setdefault(path[depths[row] - 1], []).append((int(full[row]), int(depths[row])))
    pairs = [
        pair
        for block in outputs.keys() & prompts.keys()
        for pair in zip(sorted(outputs[block])[::-1], sorted(prompts[block])[::-1], strict=False)
    ]
    expected = sum(max(min(end, prompt) - depth, 0) for end, (prompt, depth) in pairs)
    assert whatif.decoded_hit_blocks(runs, log) == expected


@settings(max_examples=100, deadline=None)
@given(st.lists(st.tuples(st.integers(0, 6), st.integers(0, 5), st.integers(1, 9)), min_size=1, max_size=12))
def test_what_is_in_flight_at_each_moment(rows: list[tuple[int, int, int]]) -> None:
    rows = sorted(rows, key=lambda row: row[0])
    log = make([[0]] * len(rows), [tokens for _, _, tokens in rows], times=[start for start, _, _ in rows])
    steps = timeline.flight(log, np.array([float(length) for _, length, _ in rows]))
    moments = sorted({start for start, _, _ in rows} | {start + length for start, length, _ in rows})
    there = [[tokens for start, length, tokens in rows if start <= now < start + length] for now in moments]
    assert steps.time_s.tolist() == moments
    assert steps.requests.tolist() == [len(one) for one in there]
    assert steps.tokens.tolist() == [sum(one) for one in there]
    spent = [max(0.0, min(after, 5.0) - min(now, 5.0)) for now, after in pairwise([*moments, 5.0])]
    tokens, _ = timeline.in_flight(steps, 5.0)
    if sum(spent):
        assert tokens.mean == pytest.approx(sum(s * sum(t) for s, t in zip(spent, there, strict=True)) / sum(spent))
        half = [sum(t) for s, t in zip(spent, there, strict=True) for _ in range(round(s))]
        assert tokens.p50 == sorted(half)[(len(half) + 1) // 2 - 1]


@settings(max_examples=100, deadline=None)
@given(logs(), st.lists(st.sampled_from([0.5, 1.0, 2.0, 5.0, 30.0]), min_size=1, unique=True))
def test_the_mean_of_what_is_resident_is_the_sum_of_all_holds(requests: Requests, windows: list[float]) -> None:
    time_s = requests.time_s
    if time_s[-1] == time_s[0]:
        return
    runs = reuse.find_runs(requests)
    tokens, left = reuse.run_tokens(runs, requests), reuse.covered_tokens(requests)
    np.subtract.at(left, runs.toucher, tokens)
    between = timeline.gaps(runs, requests, tokens)
    found = timeline.mean_resident(between, time_s, left, np.array(sorted(windows)))
    hold = np.concatenate((time_s[runs.request] - time_s[runs.toucher], time_s[-1] - time_s))
    weight = np.concatenate((tokens, left))
    expected = [(weight * np.minimum(hold, one)).sum() / (time_s[-1] - time_s[0]) for one in sorted(windows)]
    assert found == pytest.approx(expected)
