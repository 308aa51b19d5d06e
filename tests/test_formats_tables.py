"""CSV and Parquet logs: columns by name or as told, units, bad rows, block ids in lists, and lengths without blocks."""

from __future__ import annotations

import gzip
import io
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from kvplan.documents import Requests
from kvplan.errors import KvplanError, UsageError
from kvplan.logs import read

AZURE = """TIMESTAMP,ContextTokens,GeneratedTokens
2023-11-16 18:15:46.6805900,374,44
2023-11-16 18:15:50.9951690,396,109
2023-11-16 18:15:51.2224670,879,55
"""
BURSTGPT = """Timestamp,Model,Request tokens,Response tokens,Total tokens,Log Type
5,ChatGPT,472,18,490,Conversation log
45,ChatGPT,1087,230,1317,Conversation log
118,GPT-4,417,276,693,API log
"""


@pytest.fixture
def csv(tmp_path: Path) -> Any:
    def writer(text: str, name: str = "log.csv") -> Path:
        path = tmp_path / name
        path.write_text(text, encoding="utf-8")
        return path

    return writer


@pytest.fixture
def parquet(tmp_path: Path) -> Any:
    def writer(columns: dict[str, Any], name: str = "log.parquet", **options: Any) -> Path:
        path = tmp_path / name
        pq.write_table(pa.table(columns), path, **options)
        return path

    return writer


def finding(requests: Requests, code: str) -> str:
    found = [item.text for item in requests.findings if item.code == code]
    assert len(found) == 1, f"{code}: {found}"
    return found[0]


def paths_of(requests: Requests) -> list[list[int]]:
    return [part.tolist() for part in np.split(requests.blocks, requests.offsets[1:-1])]


# -------------------------------------------------------------------------------------- lengths only


def test_the_azure_trace_has_lengths_and_no_blocks(csv: Any) -> None:
    requests = read([csv(AZURE)])
    assert requests.input_tokens.tolist() == [374, 396, 879]
    assert requests.output_tokens.tolist() == [44, 109, 55]
    assert np.diff(requests.time_s) == pytest.approx([4.314579, 0.227298], abs=1e-6)
    assert not requests.hashed
    assert requests.blocks.size == 0
    assert requests.offsets.tolist() == [0, 0, 0, 0]
    assert requests.sources[0].format == "csv"
    assert "dates, UTC" in finding(requests, "times")


def test_the_whole_azure_trace(shared: Path) -> None:
    requests = read([shared / "traces/azure-2023-conv.csv.gz"])
    assert len(requests.input_tokens) == 19_366
    assert not requests.hashed


def test_the_burstgpt_trace_is_in_seconds(csv: Any) -> None:
    requests = read([csv(BURSTGPT)], tenant_by="Model")
    assert requests.time_s.tolist() == [5, 45, 118]
    assert requests.input_tokens.tolist() == [472, 1087, 417]
    assert requests.output_tokens.tolist() == [18, 230, 276]
    assert requests.tenants == ("ChatGPT", "GPT-4")
    assert "taken as s" in finding(requests, "times")


# -------------------------------------------------------------------------------------- CSV


@pytest.mark.parametrize("separator", [",", ";", "\t"])
def test_separators_compression_and_standard_input(
    csv: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, separator: str
) -> None:
    text = BURSTGPT.replace(",", separator)
    expected = read([csv(BURSTGPT)]).input_tokens.tolist()
    assert read([csv(text)]).input_tokens.tolist() == expected
    packed = tmp_path / "log.csv.gz"
    packed.write_bytes(gzip.compress(text.encode()))
    assert read([packed]).input_tokens.tolist() == expected
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"\xef\xbb\xbf" + text.encode())))
    assert read([Path("-")]).input_tokens.tolist() == expected


def test_block_ids_in_cells_make_paths(csv: Any) -> None:
    text = 'time,input_length,hash_ids\n0,8,"[0, 1]"\n1,9,0 1 2\n2,4,3\n'
    requests = read([csv(text)])
    assert requests.block_tokens == 4
    assert paths_of(requests) == [[0, 1], [0, 1, 2], [3]]
    assert requests.hashed
    assert requests.output_tokens.tolist() == [0, 0, 0]


def test_columns_are_named_where_their_names_do_not_say(csv: Any) -> None:
    path = csv("when;in;out;took\n1000;7;1;250\n3500;9;2;\n")
    with pytest.raises(
        KvplanError, match=r"a CSV file with the columns when, in, out, took: .* --columns input_tokens="
    ):
        read([path])
    with pytest.raises(KvplanError, match=r"no column with the length of the prompt \(has when, in, out, took\)"):
        read([path], format="csv")
    columns = {"time_ms": "when", "input_tokens": "in", "output_tokens": "out", "duration_ms": "took"}
    requests = read([path], columns=columns)
    assert requests.time_s.tolist() == [1.0, 3.5]
    assert requests.output_tokens.tolist() == [1, 2]
    assert requests.duration_s[0] == 0.25
    assert np.isnan(requests.duration_s[1])
    with pytest.raises(UsageError, match="--columns prompt=in: unknown"):
        read([path], columns={"prompt": "in"}, format="csv")
    with pytest.raises(KvplanError, match=r"has no column 'tokens' \(has when, in, out, took\)"):
        read([path], columns={"input_tokens": "tokens"}, format="csv")


@pytest.mark.parametrize(
    ("stamps", "first", "unit"),
    [
        (["0", "1500"], 0, "s"),
        (["0.5", "1500.25"], 0.5, "s"),
        (["1740000000", "1740001500"], 1_740_000_000, "s"),
        (["1740000000000", "1740001500000"], 1_740_000_000, "ms"),
        (["1740000000000000", "1740001500000000"], 1_740_000_000, "us"),
        (["1740000000000000000", "1740001500000000000"], 1_740_000_000, "ns"),
    ],
)
def test_the_unit_of_times_is_told_and_said(csv: Any, stamps: list[str], first: float, unit: str) -> None:
    path = csv("timestamp,input_tokens\n" + "".join(f"{stamp},5\n" for stamp in stamps))
    requests = read([path])
    assert requests.time_s[0] == pytest.approx(first)
    assert f"taken as {unit} " in finding(requests, "times")
    assert read([path], columns={"time_us": "timestamp"}).time_s[1] == pytest.approx(float(stamps[1]) / 1e6)


def test_whole_numbers_beside_block_ids_are_milliseconds_as_in_mooncake_traces(csv: Any) -> None:
    path = csv("timestamp,input_length,hash_ids\n0,8,0 1\n3000,9,0 1 2\n6000,4,3\n")
    requests = read([path])
    assert requests.time_s.tolist() == [0, 3, 6]
    assert "--columns time_s=timestamp says otherwise" in finding(requests, "times")
    assert read([path], columns={"time_s": "timestamp"}).time_s.tolist() == [0, 3000, 6000]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("7,-5,1", "input_tokens is '-5', which is no number of tokens"),
        ("7,,1", "input_tokens is '', which is no number of tokens"),
        ("7,5.5,1", "input_tokens is '5.5', which is no number of tokens"),
        ("7,5,many", "output_tokens is 'many', which is no number of tokens"),
        ("soon,5,1", "timestamp is 'soon', which is no time"),
        ("7,5,1,9", "has more fields than the 3 columns"),
        ("7,5", "output_tokens is '', which is no number of tokens"),
        ("7,1e400,1", "input_tokens is '1e400', which is no number of tokens"),
    ],
)
def test_a_bad_row_is_named_or_left_out_and_counted(csv: Any, line: str, message: str) -> None:
    path = csv(f"timestamp,input_tokens,output_tokens\n1,5,1\n\n2,6,1\n{line}\n3,7,1\n")
    with pytest.raises(KvplanError) as error:
        read([path])
    assert str(error.value) == f"{path}:5: {message}"
    requests = read([path], skip_bad=1)
    assert requests.input_tokens.tolist() == [5, 6, 7]
    assert f"{path}:5: {message}" in finding(requests, "bad-lines")


def test_lines_after_a_long_one_keep_their_numbers(csv: Any) -> None:
    path = csv("timestamp,input_tokens\n1,5,9\n2,6\n3,x\n")
    with pytest.raises(KvplanError, match=r"log.csv:4: .*after 1 bad lines skipped"):
        read([path], skip_bad=1)


def test_bad_block_ids_are_named(csv: Any) -> None:
    for cell, message in (("a b", "is no list of whole numbers"), ("1 -2", "negative"), (str(2**64), "64 bits")):
        path = csv(f"timestamp,input_length,hash_ids\n0,8,0 1\n1,8,{cell}\n")
        with pytest.raises(KvplanError, match=rf"log.csv:3: hash_ids: .*{message}"):
            read([path], block_tokens=4)
    assert len(read([path], block_tokens=4, skip_bad=1).input_tokens) == 1


def test_a_column_named_twice_is_refused(csv: Any) -> None:
    with pytest.raises(KvplanError, match="its first line names the column 'x' twice"):
        read([csv("timestamp,input_tokens,x,x\n1,5,1,1\n")])


def test_numbers_and_dates_do_not_mix(csv: Any) -> None:
    path = csv("timestamp,input_tokens\n2025-01-01,5\n7,6\n")
    with pytest.raises(KvplanError, match=r"log.csv:2: timestamp is '2025-01-01', which is no time"):
        read([path])


# -------------------------------------------------------------------------------------- Parquet

TABLE = {
    "timestamp": [0.0, 1.5, 2.25],
    "input_length": [8, 9, 4],
    "output_length": [5, 6, 7],
    "hash_ids": pa.array([[0, 1], [0, 1, 2], [3]], pa.list_(pa.int32())),
}


def test_a_parquet_trace_becomes_the_same_table(parquet: Any) -> None:
    path = parquet(TABLE, row_group_size=2)
    requests = read([path])
    assert requests.block_tokens == 4
    assert paths_of(requests) == [[0, 1], [0, 1, 2], [3]]
    assert requests.time_s.tolist() == [0, 1.5, 2.25]
    assert requests.output_tokens.tolist() == [5, 6, 7]
    assert requests.blocks.dtype == np.int32
    assert requests.sources[0].format == "parquet"


@pytest.mark.parametrize("kind", [pa.int16(), pa.int64(), pa.uint64(), pa.string(), pa.binary()])
def test_block_ids_of_any_type_are_understood(parquet: Any, kind: Any) -> None:
    ids = [[7, 1], [7, 1, 2], [3]]
    values = ids if pa.types.is_integer(kind) else [[f"{key:x}" for key in row] for row in ids]
    for listed in (pa.list_(kind), pa.large_list(kind)):
        requests = read([parquet({**TABLE, "hash_ids": pa.array(values, listed)})])
        first, second, third = paths_of(requests)
        assert first == second[:2]
        assert len({*second, *third}) == 4


def test_other_columns_of_a_parquet_trace(parquet: Any) -> None:
    columns = {
        **TABLE,
        "timestamp": pa.array([1_740_000_000_000, 1_740_000_001_500, 1_740_000_002_000], pa.timestamp("ms", tz="UTC")),
        "block_size": [4, 4, 4],
        "session_id": ["a", None, "a"],
        "team": [5, 5, 6],
        "duration_s": [1.0, None, 2.0],
    }
    path = parquet(columns)
    requests = read([path], tenant_by="team")
    assert requests.time_s.tolist() == [1_740_000_000, 1_740_000_001.5, 1_740_000_002]
    assert requests.session.tolist() == [0, -1, 0]
    assert (requests.tenants, requests.tenant.tolist()) == (("5", "6"), [0, 0, 1])
    assert requests.duration_s[2] == 2.0
    assert np.isnan(requests.duration_s[1])
    assert "as its column block_size says" in finding(requests, "block-size")
    with pytest.raises(KvplanError, match="its blocks hold 4 tokens, not --block-tokens 16"):
        read([path], block_tokens=16)
    with pytest.raises(KvplanError, match="holds several block sizes"):
        read([parquet({**columns, "block_size": [4, 4, 8]})])
    with pytest.raises(KvplanError, match="no line has the field 'group'"):
        read([path], tenant_by="group")


def test_rows_that_cannot_be_used_are_numbered(parquet: Any) -> None:
    path = parquet({**TABLE, "input_length": [8, -9, 4]})
    with pytest.raises(KvplanError, match=r"log.parquet:2: input_length is '-9', which is no number of tokens"):
        read([path])
    assert paths_of(read([path], skip_bad=1, block_tokens=4)) == [[0, 1], [2]]
    with pytest.raises(KvplanError, match=r"log.parquet:2: 9 tokens in 1 hash_ids do not fit block size 4"):
        read([parquet({**TABLE, "hash_ids": [[0, 1], [0], [3]]})], block_tokens=4)
    with pytest.raises(KvplanError, match="its column hash_ids holds int64, not lists of block ids"):
        read([parquet({**TABLE, "hash_ids": [0, 1, 2]})])
    with pytest.raises(KvplanError, match="its column hash_ids has empty places in its lists"):
        read([parquet({**TABLE, "hash_ids": [[0, 1], [0, 1, None], [3]]})])
    with pytest.raises(KvplanError, match="its column hash_ids holds lists of double"):
        read([parquet({**TABLE, "hash_ids": [[0.5], [0.5], [3.0]]})])


def test_a_broken_parquet_file_is_named(parquet: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = parquet(TABLE).read_bytes()
    broken = tmp_path / "broken.parquet"
    for cut in (6, len(data) // 2, len(data) - 3):
        broken.write_bytes(data[:cut])
        with pytest.raises(KvplanError, match=r"broken.parquet: not a readable Parquet file"):
            read([broken])
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(data)))
    assert paths_of(read(["-"])) == [[0, 1], [0, 1, 2], [3]]


def test_a_large_public_trace_in_parquet(shared: Path) -> None:
    """710 coding sessions: 94 million block references in 2 MB of Parquet."""
    requests = read(
        [shared / "traces/claude-code-710-sessions.parquet"], columns={"session": "sess", "duration_s": "api"}
    )
    assert requests.blocks.size == 94_310_647
    assert int(requests.blocks.max()) == 3_450_959 - 1
    assert requests.block_tokens == 64
    assert len(np.unique(requests.session)) == 710
    assert "full blocks only" in finding(requests, "block-size")
    assert not np.isnan(requests.duration_s).any()
    assert finding(requests, "repeated-sessions").startswith("25 of 710 sessions")
