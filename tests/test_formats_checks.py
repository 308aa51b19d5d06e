"""Doubts about logs whose every line is sound: copies, leaps of the clock; and logs in object stores."""

from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any

import pyarrow
import pytest
from pyarrow import parquet

from kvplan.documents import Requests
from kvplan.errors import KvplanError
from kvplan.logs import read

LOGS = Path(__file__).resolve().parent / "logs"


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def writer(rows: list[Any], name: str = "log.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return path

    return writer


def said(requests: Requests) -> dict[str, str]:
    return {item.code: item.text for item in requests.findings}


def turn(time_ms: int, tokens: int, ids: list[int], **more: Any) -> dict[str, Any]:
    return {"timestamp": time_ms, "input_length": tokens, "output_length": 3, "block_size": 4, "hash_ids": ids, **more}


def test_a_log_that_was_written_twice_is_pointed_out(write: Any) -> None:
    rows = [turn(i * 700, 4 * i + 1, list(range(i + 1))) for i in range(30)]
    assert "repeated-requests" not in said(read([write(rows)]))
    twice = said(read([write(rows), write(rows, "again.jsonl")]))
    assert twice["repeated-requests"].startswith("50.0 % of the requests equal another in time, lengths and blocks")
    assert "repeated-requests" not in said(read([write([*rows, *(turn(10_000 + 7 * i, 1, [0]) for i in range(9))])]))


def test_sessions_that_are_copies_are_counted(write: Any) -> None:
    """Ids differ between copies of a session whose ids are local; the lengths of all its prompts do not."""
    rows = []
    for session in range(6):
        for i in range(6):
            length = 4 * (i + 1) + (0 if session in (2, 4) else session)
            ids = [1000 * session + block for block in range(-(-length // 4))]
            rows.append(turn(60_000 * session + 1000 * i + session, length, ids, session_id=f"s{session}"))
    text = said(read([write(rows)]))["repeated-sessions"]
    assert text.startswith("2 of 6 sessions have the prompt lengths of another, request by request")
    assert "repeated-sessions" not in said(
        read([write([row for row in rows if row["session_id"] not in ("s2", "s4")])])
    )


def test_a_leap_of_the_clock_is_pointed_out(write: Any) -> None:
    rows = [turn(i * 60_000, 1, [i]) for i in range(20)]
    assert "clock-leap" not in said(read([write(rows)]))
    late = [{**row, "timestamp": row["timestamp"] + 1_755_000_000_000} for row in rows]
    path = write([turn(0, 1, [0]), *late])
    assert f"Before {path}:2 the clock leaps" in said(read([path]))["clock-leap"]
    night = [*rows, *({**row, "timestamp": row["timestamp"] + 1_000_000} for row in rows)]
    assert "clock-leap" not in said(read([write(night)]))


# -------------------------------------------------------------------------------------- object stores


@pytest.fixture
def store() -> Any:
    fsspec = pytest.importorskip("fsspec", reason="fsspec is not installed: reading from object stores was not checked")
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    yield memory
    memory.store.clear()


@pytest.mark.parametrize("name", ["mooncake.jsonl", "weka.json", "azure.csv"])
def test_objects_are_read_like_files(store: Any, name: str) -> None:
    data = (LOGS / name).read_bytes()
    store.pipe(f"/logs/{name}", data)
    store.pipe(f"/logs/{name}.gz", gzip.compress(data))
    expected = read([LOGS / name])
    for url in (f"memory://logs/{name}", f"memory://logs/{name}.gz"):
        requests = read([Path(url)])  # which makes one slash of two
        assert requests.offsets.tolist() == read([url]).offsets.tolist()
        assert requests.blocks.tolist() == expected.blocks.tolist()
        assert requests.input_tokens.tolist() == expected.input_tokens.tolist()
        assert requests.sources[0].name == url.rsplit("/", 1)[1]


def test_parquet_objects_are_read_like_files(store: Any, tmp_path: Path) -> None:
    table = pyarrow.table({"time_s": [0.5, 1.0], "input_tokens": [8, 9], "hash_ids": [[0, 1], [0, 1, 2]]})
    parquet.write_table(table, tmp_path / "log.parquet")
    store.pipe("/log.parquet", (tmp_path / "log.parquet").read_bytes())
    requests, expected = read(["memory://log.parquet"]), read([tmp_path / "log.parquet"])
    assert requests.blocks.tolist() == expected.blocks.tolist() == [0, 1, 0, 1, 2]
    assert requests.sources[0].sha256 == expected.sources[0].sha256


def test_objects_that_cannot_be_read_are_named(store: Any) -> None:
    with pytest.raises(KvplanError, match=r"memory://nowhere.jsonl: no such object"):
        read(["memory://nowhere.jsonl"])
    with pytest.raises(KvplanError, match=r"warp://bucket/log.jsonl: .*warp"):
        read(["warp://bucket/log.jsonl"])
    store.pipe("/cut.jsonl.gz", gzip.compress((LOGS / "mooncake.jsonl").read_bytes())[:-9])
    with pytest.raises(KvplanError, match=r"memory://cut.jsonl.gz: broken compressed data"):
        read(["memory://cut.jsonl.gz"])
    store.pipe("/bad.jsonl", b'{"timestamp": 0, "input_length": -1, "hash_ids": []}\n')
    with pytest.raises(KvplanError, match=r"memory://bad.jsonl:1: Expected 'int' >= 0"):
        read(["memory://bad.jsonl"])


# ------------------------------------------------------------------------------------------ clocks set back


def stamps(times_s: list[float], sessions: list[str] | None = None) -> list[dict[str, Any]]:
    more = [{}] * len(times_s) if sessions is None else [{"session_id": name} for name in sessions]
    return [
        turn(round(1000 * time_s), 5, [0, i + 1], **one)
        for i, (time_s, one) in enumerate(zip(times_s, more, strict=True))
    ]


def test_a_clock_that_was_set_back_is_pointed_out(write: Any) -> None:
    """Half of a log of 40 minutes stands 33 minutes early, its sessions go on over the step."""
    times = [4.0 * i - (2000 if i >= 300 else 0) for i in range(600)]
    path = write(stamps(times, [f"s{i % 7}" for i in range(600)]))
    found = said(read([path]))
    assert found["clock-back"].startswith(
        f"At {path}:301 the clock goes back 33.3 min and stays there for 300 requests"
    )
    assert "sorted" in found
    short = [4.0 * i - (100 if i >= 300 else 0) for i in range(600)]
    assert "goes back 96 s and stays there for 24 requests" in said(read([write(stamps(short))]))["clock-back"]


@pytest.mark.parametrize(
    ("why", "times", "sessions"),
    [
        ("some late lines", [4.0 * i - (900 if i % 40 == 39 else 0) for i in range(600)], None),
        ("jitter", [4.0 * i - 30 * (i % 3) for i in range(600)], None),
        ("two alternating logs", [4.0 * i - (2000 if i % 2 else 0) for i in range(600)], None),
        ("newest first", [4.0 * (600 - i) for i in range(600)], None),
        ("no order at all", [float((i * 7919) % 600) * 4 for i in range(600)], None),
        ("two sessions in turn", [4.0 * (i % 30) for i in range(60)], [f"s{i // 30}" for i in range(60)]),
        ("ten sessions in turn", [4.0 * (i % 60) for i in range(600)], None),
    ],
)
def test_what_is_no_clock_set_back(write: Any, why: str, times: list[float], sessions: list[str] | None) -> None:
    assert "clock-back" not in said(read([write(stamps(times, sessions))])), why
