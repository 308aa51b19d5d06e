"""What holds for every format: an anonymized trace profiles like its log, and no broken file gives a traceback."""

from __future__ import annotations

import gzip
import random
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from records import replace

from kvplan.documents import Requests
from kvplan.errors import KvplanError
from kvplan.formats import FAMILIES
from kvplan.logs import anonymize, read
from kvplan.workload import profile

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "tests/logs"
COLUMNS = {"time": "arrived", "input_tokens": "prompt", "output_tokens": "answer", "hash_ids": "blocks"}
HOW: dict[str, dict[str, Any]] = {
    "mooncake-delta.jsonl": {"block_tokens": 4},
    "bailian.jsonl": {"tenant_by": "type"},
    "table.csv": {"columns": COLUMNS, "tenant_by": "who"},
    **{
        name: {"bytes_per_token": 4.0}
        for name in ("openai-chat.jsonl", "completions.jsonl", "batch.jsonl", "sharegpt.json", "otel.jsonl")
    },
    "litellm.jsonl": {"bytes_per_token": 4.0, "tenant_by": "metadata.user_api_key_team_id"},
}
NAMES = sorted(path.name for path in LOGS.iterdir())


def log(name: str, folder: Path) -> Path:
    if name != "table.parquet":
        return LOGS / name
    path = folder / name
    columns = {"timestamp": [0.5, 1.0], "input_length": [8, 9], "hash_ids": [[0, 1], [0, 1, 2]], "team": ["a", None]}
    pq.write_table(pa.table(columns), path)
    return path


def test_every_format_has_a_log_made_by_hand(tmp_path: Path) -> None:
    formats = {read([LOGS / name], **HOW.get(name, {})).sources[0].format for name in NAMES}
    formats |= {read([log("table.parquet", tmp_path)]).sources[0].format, "mooncake-delta"}
    assert formats == {family.name for family in FAMILIES}


# -------------------------------------------------------------------------------------- anonymized traces


def comparable(requests: Requests) -> dict[str, Any]:
    """The profile of a log without what names it or tells how it was read."""
    data = msgspec.to_builtins(profile(replace(requests, sources=(), findings=(), texts=None)))
    return dict(data)


@pytest.mark.parametrize("name", [*NAMES, "table.parquet"])
def test_an_anonymized_trace_profiles_the_same(name: str, tmp_path: Path) -> None:
    how = HOW.get(name, {})
    original = read([log(name, tmp_path)], **how)
    path = tmp_path / "trace.jsonl"
    anonymize(original, path)
    again = read([path], tenant_by="tenant" if original.tenants else None)
    assert again.hashed == original.hashed
    assert again.block_tokens == original.block_tokens
    assert np.diff(again.offsets).tolist() == np.diff(original.offsets).tolist()
    assert again.input_tokens.tolist() == original.input_tokens.tolist()
    assert again.output_tokens.tolist() == original.output_tokens.tolist()
    assert len(np.unique(again.session)) == len(np.unique(original.session))
    if not original.hashed:
        return
    start = 0.0 if np.isnan(original.time_s).any() else np.rint((original.time_s - original.time_s[0]) * 1000) / 1000
    whole = replace(original, time_s=original.time_s * 0 + start, tenants=again.tenants)
    assert comparable(again) == comparable(whole)


def test_an_anonymized_trace_tells_nothing_but_numbers(tmp_path: Path) -> None:
    path = tmp_path / "trace.jsonl.gz"
    anonymize(read([LOGS / "litellm.jsonl"], **HOW["litellm.jsonl"]), path)
    lines = gzip.decompress(path.read_bytes()).decode().splitlines()
    assert [sorted(msgspec.json.decode(line)) for line in lines] == [
        sorted(
            [
                *("timestamp", "input_length", "output_length", "duration_ms", "block_size"),
                *("hash_ids", "session_id", "tenant"),
            ]
        )
    ] * 2
    first = msgspec.json.decode(lines[0])
    assert (first["timestamp"], first["hash_ids"], first["session_id"], first["tenant"]) == (0, [0, 1], 0, "tenant-0")
    with pytest.raises(KvplanError, match=r"nowhere/trace.jsonl: cannot write: no such file"):
        anonymize(read([LOGS / "mooncake.jsonl"]), tmp_path / "nowhere/trace.jsonl")
    assert [item.name for item in tmp_path.iterdir()] == ["trace.jsonl.gz"]


def test_a_public_trace_profiles_the_same_when_anonymized(shared: Path, tmp_path: Path) -> None:
    original = read([shared / "traces/mooncake-conversation.jsonl.gz"])
    anonymize(original, tmp_path / "trace.jsonl")
    again = read([tmp_path / "trace.jsonl"])
    assert comparable(again) == comparable(original)


# -------------------------------------------------------------------------------------- broken files

PIECES = [
    *(b"", b"-", b'"', b"[", b"]", b"{", b"}", b",", b":", b"null", b"true", b"{}", b"[]", b"0", b"-1", b"1e999"),
    *(b"9" * 30, b"\xff", b"\xf0\x9f", b"\n", b"\r", b"\\ud800", b"\\u0000", b"\x00", b"NaN", b"0.5", b'"x"', b";"),
]


def broken(data: bytes, rng: random.Random) -> bytes:
    """A file with some of its bytes changed, a line lost or doubled, or its end cut off."""
    lines = data.split(b"\n")
    if rng.random() < 0.3:
        at = rng.randrange(len(lines))
        lines[at:at] = [lines[rng.randrange(len(lines))]]
    if rng.random() < 0.2:
        del lines[rng.randrange(len(lines))]
    text = bytearray(b"\n".join(lines))
    for _ in range(rng.randrange(1, 5)):
        at = rng.randrange(len(text) + 1)
        text[at : at + rng.randrange(6)] = rng.choice(PIECES)
    return bytes(text[: rng.randrange(len(text))] if rng.random() < 0.1 else text)


def read_whatever(path: Path, **how: Any) -> None:
    """Read a file that may be broken: it gives requests that hold together, or an error that names it."""
    refusal = None
    try:
        requests = read([path], **how)
    except KvplanError as error:
        refusal = str(error)
    if refusal is not None:
        assert str(path) in refusal or "--" in refusal
        assert "\n" not in refusal
        return
    rows = len(requests.input_tokens)
    assert rows
    assert len(requests.offsets) == rows + 1
    assert requests.offsets[-1] == requests.blocks.size
    assert (np.diff(requests.offsets) >= 0).all()
    assert (requests.input_tokens >= 0).all()
    assert (requests.output_tokens >= 0).all()
    assert not np.isinf(requests.time_s).any()
    assert np.isnan(requests.time_s).all() or (np.diff(requests.time_s) >= 0).all()
    assert not requests.hashed or (requests.offsets[1:] - requests.offsets[:-1] <= requests.input_tokens).all()


@pytest.mark.parametrize("name", [*NAMES, "table.parquet"])
def test_a_broken_file_gives_requests_or_an_error_that_names_it(name: str, tmp_path: Path) -> None:
    rng = random.Random(name)
    data = log(name, tmp_path).read_bytes()
    how = HOW.get(name, {})
    path = tmp_path / f"broken{Path(name).suffix}"
    for _ in range(150):
        path.write_bytes(broken(data, rng))
        read_whatever(path, **{**how, "skip_bad": rng.choice([0, 0, 1, 5])})


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_lines_of_any_values_under_the_right_names(tmp_path: Path, data: st.DataObject) -> None:
    """Fields of the hand-made logs with values of any type."""
    scalars = st.one_of(
        *(st.none(), st.booleans(), st.integers(-(2**70), 2**70), st.floats(), st.text(max_size=5)),
        st.sampled_from(["1755000000", "2025-08-12T12:00:00Z", 1755000000000, 0, 1, -1, "BlockStored"]),
    )
    values = st.recursive(
        scalars, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner)
    )
    name = data.draw(st.sampled_from([name for name in NAMES if name.endswith(".jsonl")]))
    rows = [msgspec.json.decode(line) for line in (LOGS / name).read_bytes().splitlines()]
    for _ in range(data.draw(st.integers(1, 4))):
        at = data.draw(st.sampled_from(rows))
        while isinstance(at, dict | list) and at:
            key = data.draw(st.sampled_from(sorted(at) if isinstance(at, dict) else list(range(len(at)))))
            if not isinstance(at[key], dict | list) or not at[key] or data.draw(st.booleans()):
                at[key] = data.draw(values)
                break
            at = at[key]
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"\n".join(msgspec.json.encode(row) for row in rows))
    format = data.draw(st.sampled_from([None, read([LOGS / name], **HOW.get(name, {})).sources[0].format]))
    read_whatever(path, **{**HOW.get(name, {}), "format": format, "skip_bad": data.draw(st.integers(0, 3))})
