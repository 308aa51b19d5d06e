"""--columns on JSON Lines: fields by their role and unit, never passed over; and doubts about the unit of times."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvplan.documents import Requests
from kvplan.errors import KvplanError, UsageError
from kvplan.logs import read

LOGS = Path(__file__).resolve().parent / "logs"
UNITS = {"s": 1, "ms": 1000, "us": 10**6, "ns": 10**9}


@pytest.fixture
def write(tmp_path: Path) -> Any:
    def writer(rows: list[dict[str, Any]], name: str = "log.jsonl") -> Path:
        path = tmp_path / name
        path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
        return path

    return writer


def row(time: float, name: str = "timestamp", **more: Any) -> dict[str, Any]:
    return {name: time, "input_length": 9, "output_length": 3, "block_size": 4, "hash_ids": [1, 2, 3], **more}


def said(requests: Requests) -> dict[str, str]:
    return {item.code: item.text for item in requests.findings}


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("format", ["mooncake", "lengths", "bailian", "mooncake-sessions"])
def test_a_unit_is_named_on_lines_of_every_format_of_hashes(write: Any, unit: str, format: str) -> None:
    """The same thirty seconds of 2023, in every unit: read as told, and not doubted then."""
    more = {
        "mooncake": {},
        "lengths": {},
        "bailian": {"chat_id": 1, "parent_chat_id": -1},
        "mooncake-sessions": {"session_id": "a"},
    }
    rows = [row((1_700_000_000 + i) * UNITS[unit], **more[format]) for i in range(30)]
    for one in rows:
        if format == "lengths":
            del one["hash_ids"]
        if format == "bailian":
            del one["block_size"]
    options: dict[str, Any] = {"block_tokens": 4} if format == "bailian" else {}
    if format == "mooncake-sessions":
        rows.insert(1, {**row(0, session_id="a", delay=2000), "timestamp": None})
    path = write(rows)
    own = "s" if format == "bailian" else "ms"
    told = read([path], columns={f"time_{unit}": "timestamp"}, **options)
    assert told.sources[0].format == format
    assert told.time_s[-1] - told.time_s[0] == pytest.approx(29)
    assert told.time_s[0] == pytest.approx(1.7e9)
    assert "time-unit" not in said(told)
    untold = said(read([path], **options))
    if unit == own:
        assert "time-unit" not in untold
    elif format != "mooncake-sessions":
        assert f"'timestamp' is probably in {unit}, not in {own}" in untold["time-unit"]
        assert untold["time-unit"].endswith(f"--columns time_{unit}=timestamp says so.")
    if format == "mooncake-sessions":
        assert (told.time_s - told.time_s[0])[:5] == pytest.approx([0, 1, 2, 2, 3])


def test_every_role_names_a_field(write: Any) -> None:
    names = {
        "time_s": "when",
        "input_tokens": "prompt",
        "output_tokens": "answer",
        "hash_ids": "blocks",
        "block_tokens": "size",
        "session": "talk",
        "duration_s": "took",
    }
    rows = [
        {"when": 0.5, "prompt": 9, "answer": 2, "blocks": [7, 8, 9], "size": 4, "talk": "x", "took": 1.25},
        {"when": 2, "prompt": 8, "answer": 4, "blocks": [7, 8], "size": 4, "talk": "y", "took": 3},
        {"when": 4.25, "prompt": 8, "answer": 4, "blocks": [7, 8], "size": 4, "talk": "x"},
    ]
    requests = read([write(rows)], columns=names)
    assert requests.sources[0].format == "mooncake"
    assert requests.time_s.tolist() == [0.5, 2, 4.25]
    assert requests.input_tokens.tolist() == [9, 8, 8]
    assert requests.output_tokens.tolist() == [2, 4, 4]
    assert requests.block_tokens == 4
    assert requests.session.tolist() == [0, 1, 0]
    assert requests.duration_s[:2].tolist() == [1.25, 3]
    assert np.isnan(requests.duration_s[2])
    in_ms = [{**one, "took": one.get("took", 0) * 1000} for one in rows]
    told = {role: name for role, name in names.items() if role != "duration_s"} | {"duration_ms": "took"}
    assert read([write(in_ms)], columns=told).duration_s.tolist() == [1.25, 3, 0]
    without = {role: name for role, name in told.items() if role not in ("hash_ids", "block_tokens")}
    bare = [{name: value for name, value in one.items() if name not in ("blocks", "size")} for one in in_ms]
    lengths = read([write(bare)], columns=without)
    assert (lengths.hashed, lengths.sources[0].format) == (False, "lengths")
    assert lengths.duration_s.tolist() == [1.25, 3, 0]
    assert lengths.time_s.tolist() == [0.5, 2, 4.25]


def test_durations_may_have_fractions_on_the_fast_path_and_beside_it(write: Any) -> None:
    requests = read([write([row(0, duration_ms=1500), row(1, duration_ms=0.25), row(2), row(3, duration_ms=7)])])
    assert requests.duration_s[[0, 1, 3]].tolist() == [1.5, 0.00025, 0.007]
    assert np.isnan(requests.duration_s[2])


def test_a_time_without_a_unit_is_told_from_the_numbers(write: Any) -> None:
    requests = read([write([row(1_700_000_000 + i, "when") for i in range(5)])], columns={"time": "when"})
    assert requests.time_s[4] - requests.time_s[0] == 4
    assert "taken as s (from their size, as time since 1970), as --columns says" in said(requests)["times"]


@pytest.mark.parametrize(
    ("columns", "match"),
    [
        ({"time_s": "when"}, "no line has the field 'when' that --columns time_s=when names"),
        ({"session": "talk"}, "no line has the field 'talk' that --columns session=talk names"),
        ({"output_tokens": "out"}, "no line has the field 'out'"),
        ({"duration_ms": "took"}, "no line has the field 'took'"),
        ({"hash_ids": "blocks"}, "missing required field 'blocks'"),
        ({"time_s": "timestamp", "time_ms": "timestamp"}, "time_s=timestamp says it already"),
        ({"input_tokens": "n", "output_tokens": "n"}, "input_tokens names 'n' as well"),
        ({"session": "hash_ids"}, "'hash_ids' holds hash_ids in such a log"),
        ({"tenant": "who"}, "--columns tenant=who: unknown"),
    ],
)
def test_a_field_that_is_not_there_or_is_another_is_an_error(write: Any, columns: dict[str, str], match: str) -> None:
    path = write([row(0), row(1)])
    with pytest.raises(KvplanError, match=match):
        read([path], columns=columns)


@pytest.mark.parametrize(
    ("log", "role", "takes"),
    [
        ("weka.json", "time_ms", "takes none"),
        ("dynamo.jsonl", "time_s", "takes none"),
        ("lmcache.jsonl", "session", "takes none"),
        ("kv-events.jsonl", "time_s", "takes none"),
        ("agentic.jsonl", "time_s", "takes none"),
        ("litellm-lengths.jsonl", "duration_s", "takes none"),
        ("otel.jsonl", "time_s", "takes none"),
        ("sharegpt.json", "session", "takes none"),
        ("bailian.jsonl", "session", "takes time, time_s"),
        ("lengths.jsonl", "hash_ids", "takes time, time_s"),
        ("openai-chat.jsonl", "hash_ids", "takes time, time_s"),
        ("mooncake-sessions.jsonl", "time", "takes time_s, time_ms"),
    ],
)
def test_a_format_without_use_for_a_role_refuses_it(log: str, role: str, takes: str) -> None:
    with pytest.raises(UsageError, match=f"--columns {role}=x: a log of format .*{takes}"):
        read([LOGS / log], columns={role: "x"}, bytes_per_token=4)


def test_a_chat_log_names_its_time_its_duration_and_its_session(write: Any) -> None:
    rows = [
        {
            "messages": [{"role": "user", "content": "x" * 99}],
            "at": 1000 * i,
            "took": 1.5 * i,
            "user": {"talk": f"t{i}"},
        }
        for i in range(3)
    ]
    columns = {"time_ms": "at", "duration_s": "took", "session": "user.talk"}
    requests = read([write(rows)], columns=columns, bytes_per_token=4)
    assert requests.time_s.tolist() == [0, 1, 2]
    assert requests.duration_s.tolist() == [0, 1.5, 3]
    assert requests.session.tolist() == [0, 1, 2]
    with pytest.raises(KvplanError, match="no line has the field 'foo' that --columns session=foo names"):
        read([write(rows)], columns={"session": "foo"}, bytes_per_token=4)


# ------------------------------------------------------------------------------------------ doubts


def test_hundreds_of_requests_within_a_second_are_doubted(write: Any) -> None:
    text = said(read([write([row(i) for i in range(600)])]))["time-unit"]
    assert text.startswith(
        "600 requests within 599 ms are more than servers see: 'timestamp' is probably in s, not in ms"
    )
    for rows in ([row(i) for i in range(50)], [row(0) for _ in range(600)], [row(7 * i) for i in range(600)]):
        assert "time-unit" not in said(read([write(rows)]))


@pytest.mark.parametrize(("step", "likely"), [(30 * 10**6, None), (10**9, "us"), (10**11, "ns")])
def test_requests_weeks_apart_are_doubted(write: Any, step: int, likely: str | None) -> None:
    """A second in ns is 11 days in ms; a request each 1000 s in us is one each 11 days; 8 hours are 8 hours."""
    found = said(read([write([row(step * i) for i in range(30)])]))
    if likely is None:
        assert "time-unit" not in found
    else:
        assert f"d apart: 'timestamp' is probably in {likely}, not in ms" in found["time-unit"]


def test_fractions_name_the_option_that_says_seconds(write: Any) -> None:
    path = write([row(i + 0.5) for i in range(9)])
    assert said(read([path]))["times"].endswith("a thousand times off (--columns time_s=timestamp says so).")
    assert read([path], columns={"time_s": "timestamp"}).time_s[8] == 8.5


def test_a_table_of_numbers_without_a_unit_is_doubted_as_well(tmp_path: Path) -> None:
    path = tmp_path / "log.csv"
    lines = [f"{i},9,1 2 3" for i in range(300)]
    path.write_text("\n".join(["timestamp,input_length,hash_ids", *lines]))
    assert "probably in s, not in ms" in said(read([path], block_tokens=4))["time-unit"]
    assert "time-unit" not in said(read([path], block_tokens=4, columns={"time_s": "timestamp"}))


@pytest.mark.parametrize(
    "trace", ["mooncake-conversation.jsonl.gz", "azure-2023-conv.csv.gz", "claude-code-710-sessions.parquet"]
)
def test_published_traces_are_not_doubted(shared: Path, trace: str) -> None:
    assert "time-unit" not in said(read([shared / "traces" / trace]))
