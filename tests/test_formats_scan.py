"""The quick pass over JSON lines reads exactly what a full JSON decoder reads, on any bytes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvplan.documents import Requests
from kvplan.errors import KvplanError
from kvplan.formats import scan
from kvplan.logs import read


def outcome(path: Path, monkeypatch: pytest.MonkeyPatch, quick: bool, **options: Any) -> object:
    """What reading gives, or the error it ends in; with `quick` false every line goes through the full decoder."""
    with monkeypatch.context() as patch:
        if not quick:
            patch.setattr(scan, "_scan", lambda text, at, number, row, used, *rest: (at, number, row, used))
            patch.setattr(scan, "must_compile", lambda kernel: False)
        try:
            requests = read([path], **options)
        except KvplanError as error:
            return str(error)
    return comparable(requests)


def comparable(requests: Requests) -> object:
    columns = (requests.time_s, requests.input_tokens, requests.output_tokens, requests.offsets, requests.blocks)
    return [np.nan_to_num(column, nan=-1).tolist() for column in columns], requests.findings, requests.sources


integers = st.one_of(st.integers(0, 40), st.integers(-3, 2**70))
numbers = st.one_of(
    integers, st.floats(allow_nan=False, allow_infinity=False), st.decimals(0, 10**6, places=3).map(float)
)
scalars = st.one_of(numbers, st.booleans(), st.none(), st.text(max_size=4))
values = st.one_of(scalars, st.lists(scalars, max_size=2), st.dictionaries(st.text(max_size=2), scalars, max_size=1))
ids = st.one_of(st.lists(integers, max_size=4), values)
lines = st.fixed_dictionaries(
    {},
    optional={
        "timestamp": st.one_of(numbers, values),
        "input_length": st.one_of(integers, values),
        "output_length": st.one_of(integers, values),
        "hash_ids": ids,
        "block_size": st.one_of(st.just(16), values),
        "more": values,
        "é\n": values,
    },
)


@st.composite
def texts(draw: st.DrawFn) -> bytes:
    """Lines of a log, mostly well-formed, some with a few of their bytes changed."""
    spaced = draw(st.booleans())
    rows = draw(st.lists(lines, min_size=1, max_size=4))
    good = {"timestamp": 0, "input_length": 20, "output_length": 1, "hash_ids": [1, 2]}
    encoded = [json.dumps(row, separators=None if spaced else (",", ":")) for row in (good, *rows)]
    data = bytearray("\n".join(encoded).encode())
    for _ in range(draw(st.integers(0, 3))):
        at = draw(st.integers(0, len(data)))
        pieces = [
            b"",
            b"-",
            b"0",
            b'"',
            b"[",
            b"]",
            b"}",
            b",",
            b".",
            b"e5",
            b"\xff",
            b"\n",
            b"\r\n",
            b" ",
            b"\\",
            b"null",
        ]
        data[at : at + draw(st.integers(0, 2))] = draw(st.sampled_from(pieces))
    return bytes(data)


@settings(max_examples=250, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=texts(), skip_bad=st.integers(0, 4))
def test_the_quick_pass_and_the_full_decoder_read_the_same(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, data: bytes, skip_bad: int
) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(data)
    options = {"skip_bad": skip_bad, "format": "mooncake", "block_tokens": 16}
    assert outcome(path, monkeypatch, True, **options) == outcome(path, monkeypatch, False, **options)


def test_an_error_counts_bytes_from_the_beginning_of_its_line(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b"\n  {nothing}\n")
    with pytest.raises(KvplanError, match=r"log.jsonl:2: not valid JSON: .*\(byte 3\)"):
        read([path], format="mooncake", block_tokens=16)


def test_plain_lines_do_not_need_the_full_decoder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {
            "timestamp": 3.5 * i,
            "input_length": 20,
            "hash_ids": [2**40 + i, i],
            "who": "me",
            "ok": True,
            "x": -1.5,
            "n": None,
        }
        for i in range(50)
    ]
    path = tmp_path / "log.jsonl"
    path.write_text("\n\n".join(json.dumps(row) for row in rows))
    expected = outcome(path, monkeypatch, False, block_tokens=16)
    monkeypatch.setattr(scan.Scanner, "_slow", lambda *_: pytest.fail("a plain line went to the full decoder"))
    assert outcome(path, monkeypatch, True, block_tokens=16) == expected


def test_numbers_are_read_to_the_last_bit(tmp_path: Path) -> None:
    stamps = ["0.1", "123456789012.345", "99999999999999", "0.00000000000001", "7.0", "1e3", "12345678901234567890.5"]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(f'{{"timestamp":{stamp},"input_length":4,"hash_ids":[1]}}\n' for stamp in stamps))
    read_s = read([path], block_tokens=4, format="mooncake").time_s
    assert read_s.tolist() == sorted(float(stamp) / 1000 for stamp in stamps)


def test_long_blocks_of_lines_are_cut_between_lines(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [{"timestamp": i, "input_length": 64 * 16, "hash_ids": list(range(i, i + 64))} for i in range(300)]
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    expected = comparable(read([path], block_tokens=16))
    monkeypatch.setattr("kvplan.formats.lines._BLOCK", 1000)
    assert comparable(read([path], block_tokens=16)) == expected
