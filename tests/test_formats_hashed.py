"""Formats of block ids: each read from a small log made by hand, whose lines say why they are there."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvplan.documents import Requests
from kvplan.errors import KvplanError
from kvplan.logs import read

LOGS = Path(__file__).resolve().parent / "logs"


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def writer(rows: list[Any], name: str = "log.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(f"{row if isinstance(row, str) else json.dumps(row)}\n" for row in rows))
        return path

    return writer


def rows_of(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (LOGS / name).read_text().splitlines()]


def paths_of(requests: Requests) -> list[list[int]]:
    return [part.tolist() for part in np.split(requests.blocks, requests.offsets[1:-1])]


def finding(requests: Requests, code: str) -> str:
    found = [item.text for item in requests.findings if item.code == code]
    assert len(found) == 1, f"{code}: {found}"
    return found[0]


def codes(requests: Requests) -> set[str]:
    return {item.code for item in requests.findings}


@pytest.mark.parametrize(
    ("name", "format", "requests", "block_tokens"),
    [
        ("mooncake.jsonl", "mooncake", 6, 512),
        ("mooncake-sessions.jsonl", "mooncake-sessions", 4, 4),
        ("agentic.jsonl", "agentic-mooncake", 4, 64),
        ("bailian.jsonl", "bailian", 5, 16),
        ("weka.json", "weka", 5, 64),
        ("lmcache.jsonl", "lmcache", 5, 256),
        ("dynamo.jsonl", "dynamo", 3, 64),
        ("kv-events.jsonl", "kv-events", 4, 16),
    ],
)
def test_every_format_is_told_from_its_content(name: str, format: str, requests: int, block_tokens: int) -> None:
    table = read([LOGS / name])
    assert table.sources[0].format == format
    assert len(table.input_tokens) == requests
    assert table.block_tokens == block_tokens
    assert table.hashed
    assert (np.diff(table.time_s) >= 0).all()
    assert read([LOGS / name], format=format).blocks.tolist() == table.blocks.tolist()


# -------------------------------------------------------------------------------------- mooncake


def test_mooncake_lines_may_name_their_block_size_and_leave_times_out(write: Any) -> None:
    path = write([{"block_size": 64, "hash_ids": [1, 2], "input_length": 128}] * 2)
    requests = read([path])
    assert requests.block_tokens == 64
    assert "as its field 'block_size' says" in finding(requests, "block-size")
    assert {"no-times"} <= codes(requests)
    with pytest.raises(KvplanError, match="its blocks hold 64 tokens, not --block-tokens 128"):
        read([path], block_tokens=128)
    mixed = write([{"block_size": size, "hash_ids": [1], "input_length": 32} for size in (32, 64)])
    with pytest.raises(KvplanError, match=r"'block_size' names several block sizes \(32, 64\)"):
        read([mixed])


def test_a_line_without_time_among_others_is_named(write: Any) -> None:
    rows = [{"timestamp": 0, "input_length": 8, "hash_ids": [0, 1]}, {"input_length": 9, "hash_ids": [0, 1, 2]}]
    with pytest.raises(KvplanError, match=r"log.jsonl:2: has no time stamp, unlike the lines before"):
        read([write(rows)])
    assert len(read([write(rows)], skip_bad=1, block_tokens=4).input_tokens) == 1


def test_milliseconds_with_fractions_are_pointed_out(write: Any) -> None:
    rows = [{"timestamp": time, "input_length": 8, "hash_ids": [0, 1]} for time in (0.5, 1.25)]
    requests = read([write(rows)], block_tokens=4)
    assert requests.time_s.tolist() == [0.0005, 0.00125]
    assert "a thousand times off" in finding(requests, "times")


# -------------------------------------------------------------------------------------- sessions of turns


def test_later_turns_come_a_delay_after_the_turn_before() -> None:
    requests = read([LOGS / "mooncake-sessions.jsonl"])
    assert requests.time_s.tolist() == [1.0, 1.2, 1.5, 1.8]
    assert requests.session.tolist() == [0, 1, 0, 0]
    assert requests.input_tokens.tolist() == [8, 9, 13, 17]
    assert "answers are taken as immediate" in finding(requests, "delays")


def test_turns_that_hold_only_what_is_new_are_put_together() -> None:
    requests = read([LOGS / "mooncake-delta.jsonl"], block_tokens=4)
    assert requests.input_tokens.tolist() == [6, 13, 6, 17]  # by time: a, a, b, b
    assert [len(path) for path in paths_of(requests)] == [2, 4, 2, 5]
    first, second, other, last = paths_of(requests)
    assert first == other
    assert first[0] == second[0] == last[0]
    assert second[1] not in first  # half full then, full now, with the answer in it
    assert not set(second[1:]) & set(last[1:])  # the answers differ
    assert "cut into blocks anew" in finding(requests, "deltas")
    assert not codes(requests) & {"ids-rechained", "id-sizes"}


def test_parts_are_counted_jointly_not_apart(write: Any) -> None:
    """32,000 tokens and then 20,000 more are 102 blocks of 512, although 63 and 40 ids name them apart."""
    rows = [
        {"session_id": "s", "timestamp": 0, "input_length": 32_000, "output_length": 0, "hash_ids": list(range(63))},
        {"session_id": "s", "delay": 1, "input_length": 20_000, "output_length": 0, "hash_ids": list(range(100, 140))},
    ]
    requests = read([write(rows)], block_tokens=512)
    assert requests.offsets.tolist() == [0, 63, 63 + 102]
    assert requests.input_tokens.tolist() == [32_000, 52_000]
    first, second = paths_of(requests)
    assert second[:62] == first[:62]
    assert second[62] != first[62]


def test_turns_of_both_forms_in_one_log_are_refused(write: Any) -> None:
    rows = [
        {"session_id": "s", "timestamp": 0, "input_length": 8, "hash_ids": [1, 2]},
        {"session_id": "s", "delay": 1, "input_length": 12, "hash_ids": [1, 2, 3]},
        {"session_id": "s", "delay": 1, "input_length": 4, "hash_ids": [4]},
    ]
    with pytest.raises(KvplanError, match="say which form it has with --format mooncake or --format mooncake-delta"):
        read([write(rows)], block_tokens=4)
    assert read([write(rows)], block_tokens=4, format="mooncake-delta").input_tokens.tolist() == [8, 20, 24]


def test_a_delay_without_an_earlier_turn_is_named(write: Any) -> None:
    rows = [{"session_id": "s", "delay": 1, "input_length": 8, "hash_ids": [1, 2]}]
    with pytest.raises(KvplanError, match=r"log.jsonl:1: has a delay but no earlier turn of its session"):
        read([write(rows)], block_tokens=4)


# -------------------------------------------------------------------------------------- agentic


def test_requests_come_after_those_they_wait_for() -> None:
    requests = read([LOGS / "agentic.jsonl"])
    assert requests.time_s.tolist() == [0.0, 0.02, 0.25, 0.3]
    root, other, child, join = paths_of(requests)
    assert root[0] == child[0] == join[0]
    assert not set(other) & {*root, *child, *join}  # the ids of another play
    assert "2 requests had to wait for others" in finding(requests, "delays")
    assert "as its header says" in finding(requests, "block-size")
    assert finding(requests, "id-sizes").startswith(
        "In 1 request the id"
    )  # id 2 ends a prompt of 100 tokens and fills a block


def test_agentic_traces_without_a_header(write: Any) -> None:
    rows = [
        {"request_id": "a", "timestamp": 0, "input_length": 4, "hash_ids": [1], "output_length": 1},
        {"request_id": "b", "input_length": 8, "hash_ids": [1, 2], "wait_for": ["a"], "delay": 2, "tool_wait_ms": 3},
    ]
    requests = read([write(rows)], block_tokens=4)
    assert requests.sources[0].format == "agentic-mooncake"
    assert requests.time_s.tolist() == [0, 0.005]
    assert paths_of(requests) == [[0], [0, 1]]


def test_agentic_mistakes_are_named(write: Any) -> None:
    header, root, child, *_ = rows_of("agentic.jsonl")
    for row, message in (
        ({**header, "version": 3}, r"log.jsonl:1: schema 'dynamo.agentic_mooncake', version 3: kvplan reads"),
        ({**header, "hash_id_scope": "x"}, r"log.jsonl:1: hash_id_scope is neither local nor global"),
        ({**header, "block_size": None}, r"log.jsonl:1: block_size is missing, not a number of tokens"),
    ):
        with pytest.raises(KvplanError, match=message):
            read([write([row, root])])
    with pytest.raises(KvplanError, match=r"log.jsonl:2: waits for request 'root', which is not in the log"):
        read([write([header, child])])
    with pytest.raises(KvplanError, match=r"log.jsonl:3: request_id 'root' stands in the log already"):
        read([write([header, root, root])])
    loop = {**root, "dependencies": [{"request_id": "child", "delay_ms": 0}]}
    with pytest.raises(KvplanError, match=r"log.jsonl:2: waits for a request that is left out or waits for it in turn"):
        read([write([header, loop, child])])
    assert len(read([write([header, root, {**child, "dependencies": [{"request_id": "x"}]}])], skip_bad=1).time_s) == 1


# -------------------------------------------------------------------------------------- Bailian, WEKA


def test_bailian_times_are_seconds_and_chats_make_conversations() -> None:
    requests = read([LOGS / "bailian.jsonl"], tenant_by="type")
    assert requests.time_s.tolist() == [0.5, 1.25, 3.0, 9.75, 11.0]
    assert requests.session.tolist() == [0, 1, 0, 0, 2]
    assert requests.tenants == ("text", "search", "file")
    with pytest.raises(KvplanError, match=r"bailian.jsonl:1: 40 tokens in 3 hash_ids do not fit block size 32"):
        read([LOGS / "bailian.jsonl"], block_tokens=32)


def test_sessions_of_coding_agents_are_opened_and_kept_apart(tmp_path: Path) -> None:
    one = read([LOGS / "weka.json"])
    assert one.time_s.tolist() == [0.0, 4.0, 6.0, 9.0, 12.5]  # the first sub-agent counts from its start, the other not
    assert one.input_tokens.tolist() == [130, 70, 128, 200, 66]
    assert paths_of(one) == [[0, 1], [0], [0, 2], [0, 1, 3], [0]]
    assert one.duration_s[:2].tolist() == [1.5, 0.5]
    assert np.isnan(one.duration_s[2])
    assert "full blocks only" in finding(one, "block-size")
    assert "how sessions overlap is not known" in finding(one, "session-times")
    session = json.loads((LOGS / "weka.json").read_text())
    lines = tmp_path / "sessions.jsonl"
    lines.write_text("".join(json.dumps({**session, "id": name}) + "\n" for name in "ab"))
    array = tmp_path / "sessions.json"
    array.write_text(json.dumps([{**session, "id": name} for name in "ab"], indent=1))
    for paths in ([LOGS / "weka.json", LOGS / "weka.json"], [lines], [array]):
        two = read(paths)
        assert len(np.unique(two.blocks)) == 2 * len(np.unique(one.blocks))
        assert two.offsets[-1] == 2 * one.offsets[-1]
    assert len(np.unique(read([lines]).session)) == 2


def test_global_ids_are_shared_by_sessions(tmp_path: Path) -> None:
    session = {**json.loads((LOGS / "weka.json").read_text()), "hash_id_scope": "global"}
    path = tmp_path / "sessions.jsonl"
    path.write_text((json.dumps(session) + "\n") * 2)
    requests = read([path])
    assert len(np.unique(requests.blocks)) == 4
    assert "local-ids" not in codes(requests)
    path.write_text(json.dumps(session) + "\n" + json.dumps({**session, "hash_id_scope": "local"}) + "\n")
    with pytest.raises(KvplanError, match="holds sessions with local and with global block ids"):
        read([path])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"hash_id_scope": "x"}, "hash_id_scope is 'x'"),
        ({"block_size": -1}, "block_size is -1, not a number of tokens"),
        ({"requests": 5}, "requests is no list"),
        ({"requests": [{"t": "x"}]}, r"requests\[0\]: t is 'x', not a number"),
        ({"requests": [{"t": 0, "in": -4, "hash_ids": []}]}, r"requests\[0\]: in is -4, not a number of tokens"),
        ({"requests": [{"t": 0, "in": 4, "hash_ids": [1.5]}]}, r"requests\[0\]: hash_ids: a block id is 1.5"),
        ({"requests": [{"t": 0, "in": 4}]}, r"requests\[0\]: hash_ids is missing, not a list of block ids"),
        ({"requests": [{"t": 0, "in": 9, "hash_ids": [2**50]}]}, "too large to count within a session"),
        ({"requests": [{"t": 0, "in": 200, "hash_ids": [1]}]}, "200 tokens in 1 hash_ids do not fit block size 64"),
        ({"requests": [{"t": 0, "in": 9, "hash_ids": [], "api_time": -1}]}, "api_time is -1, not a duration"),
    ],
)
def test_a_broken_session_is_named(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    session = {**json.loads((LOGS / "weka.json").read_text()), **change}
    path = tmp_path / "session.json"
    path.write_text(json.dumps(session) + "\n")
    with pytest.raises(KvplanError, match=rf"session.json:1: .*{message}"):
        read([path], format="weka")


# -------------------------------------------------------------------------------------- LMCache, Dynamo, events


def test_lmcache_hashes_are_texts_and_models_share_nothing() -> None:
    requests = read([LOGS / "lmcache.jsonl"])
    first, second, third, fourth, fifth = paths_of(requests)
    assert second[:2] == first
    assert not set(third) & {*first, *second}
    assert fourth == []
    assert fifth[0] == first[0]
    assert requests.input_tokens.tolist() == [700, 1000, 512, 100, 600]


def test_dynamo_traces_count_from_arrival() -> None:
    requests = read([LOGS / "dynamo.jsonl"])
    assert requests.time_s.tolist() == [1_755_000_000.1, 1_755_000_000.9, 1_755_000_001.0]
    assert paths_of(requests) == [[0, 1], [0, 2, 4], [0, 2, 3]] or paths_of(requests) == [[0, 1], [0, 2, 3], [0, 2, 4]]
    assert requests.duration_s[:2].tolist() == [0.3, 1.6]
    assert "1 event of other kinds" in finding(requests, "other-events")


def test_dynamo_mistakes_are_named(write: Any) -> None:
    good = rows_of("dynamo.jsonl")[0]
    for change, message in (
        ({"replay": None}, "a request_end without request.replay"),
        ({"output_tokens": -1}, "output_tokens is -1, not a number of tokens"),
        ({"request_received_ms": None}, "request_received_ms is missing, not a number"),
        ({"total_time_ms": -3}, "total_time_ms is -3, not a duration"),
        ({"replay": {**good["request"]["replay"], "input_sequence_hashes": [2**64]}}, "neither a 64-bit number nor"),
        ({"replay": {**good["request"]["replay"], "input_length": 500}}, "500 tokens in 2 hash_ids do not fit"),
    ):
        path = write([good, {**good, "request": {**good["request"], **change}}])
        with pytest.raises(KvplanError, match=rf"log.jsonl:2: .*{message}"):
            read([path])
        assert len(read([path], skip_bad=1).input_tokens) == 1


def test_cache_events_give_the_least_that_was_asked_for() -> None:
    requests = read([LOGS / "kv-events.jsonl"])
    assert paths_of(requests) == [[0, 1, 2], [0, 1, 2, 3], [0, 4], [5, 6]]
    assert requests.input_tokens.tolist() == [48, 64, 32, 32]
    assert requests.time_s.tolist() == [100, 107, 108, 110]
    assert "true reuse is higher" in finding(requests, "from-events")
    assert "1 blocks were removed and the cache cleared 1 times" in finding(requests, "removals")
    assert "1 stretches follow blocks stored before the log began" in finding(requests, "cut-paths")
    with pytest.raises(KvplanError, match="cache events name no tenants"):
        read([LOGS / "kv-events.jsonl"], tenant_by="x")


@pytest.mark.parametrize(
    ("event", "message"),
    [
        ({"type": "BlockStored", "block_hashes": 5, "block_size": 16}, "block_hashes is no list"),
        ({"type": "BlockStored", "block_hashes": [1]}, "block_size is missing, not a number of tokens"),
        ({"type": "BlockStored", "block_hashes": [None], "block_size": 16}, "a block id is missing"),
        ({"type": "Other"}, "holds no cache event"),
    ],
)
def test_broken_events_are_named(write: Any, event: dict[str, Any], message: str) -> None:
    good = rows_of("kv-events.jsonl")[0]
    path = write([good, {"ts": 101.0, "events": [event]}])
    with pytest.raises(KvplanError, match=rf"log.jsonl:2: .*{message}"):
        read([path])
    assert len(read([path], skip_bad=1).input_tokens) == 1
