"""Reading request logs: what is understood, what is said about it, and what is refused with file and line."""

from __future__ import annotations

import bz2
import gzip
import hashlib
import io
import json
import lzma
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvplan.documents import Requests
from kvplan.errors import KvplanError, UsageError
from kvplan.formats.ids import chain, dense, first_unchained
from kvplan.logs import read

ROOT = Path(__file__).resolve().parents[1]
TOKENIZER = ROOT / "examples/tokenizer"


def row(timestamp: float, tokens: int, ids: list[int], **more: Any) -> dict[str, Any]:
    return {"timestamp": timestamp, "input_length": tokens, "output_length": 5, "hash_ids": ids, **more}


GOOD = [row(0, 8, [0, 1]), row(1000, 9, [0, 1, 2]), row(2000, 4, [3]), row(3000, 12, [0, 1, 4])]


@pytest.fixture
def write(tmp_path: Path) -> Any:
    """Write rows (or raw lines) as JSONL and return the path."""

    def writer(rows: list[Any], name: str = "log.jsonl") -> Path:
        lines = [line if isinstance(line, str) else json.dumps(line) for line in rows]
        path = tmp_path / name
        path.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")
        return path

    return writer


def paths_of(requests: Requests) -> list[list[int]]:
    return [part.tolist() for part in np.split(requests.blocks, requests.offsets[1:-1])]


def finding(requests: Requests, code: str) -> str:
    found = [item.text for item in requests.findings if item.code == code]
    assert len(found) == 1, f"{code}: {found}"
    return found[0]


def codes(requests: Requests) -> set[str]:
    return {item.code for item in requests.findings}


# -------------------------------------------------------------------------------------- mooncake


def test_a_mooncake_trace_becomes_one_table(write: Any) -> None:
    path = write(GOOD)
    requests = read([path])
    assert requests.block_tokens == 4
    assert paths_of(requests) == [[0, 1], [0, 1, 2], [3], [0, 1, 4]]
    assert requests.time_s.tolist() == [0, 1, 2, 3]
    assert requests.input_tokens.tolist() == [8, 9, 4, 12]
    assert requests.output_tokens.tolist() == [5] * 4
    assert np.isnan(requests.duration_s).all()
    assert requests.tenant.tolist() == requests.session.tolist() == [-1] * 4
    source = requests.sources[0]
    assert (source.name, source.format, source.requests) == ("log.jsonl", "mooncake", 4)
    assert source.sha256 == hashlib.sha256(path.read_bytes()).hexdigest()
    assert "the only size that fits every row" in finding(requests, "block-size")


def test_gzip_and_standard_input_and_odd_white_space(
    write: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    plain = write(GOOD)
    packed = tmp_path / "log.jsonl.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert paths_of(read([packed])) == paths_of(read([plain]))
    text = b"\xef\xbb\xbf\n\n" + plain.read_bytes().replace(b"\n", b"\r\n\r\n").rstrip()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text)))
    piped = read([Path("-")])
    assert paths_of(piped) == paths_of(read([plain]))
    assert piped.sources[0].name == "standard input"


def test_zstandard_is_read_where_its_package_is_there(write: Any, tmp_path: Path) -> None:
    zstandard = pytest.importorskip("zstandard", reason="zstandard is not installed: reading .zst was not checked")
    plain = write(GOOD)
    packed = tmp_path / "log.jsonl.zst"
    packed.write_bytes(zstandard.ZstdCompressor().compress(plain.read_bytes()))
    assert paths_of(read([packed])) == paths_of(read([plain]))


def test_ids_of_any_size_become_dense(write: Any) -> None:
    big = 2**64 - 1
    requests = read([write([row(0, 8, [big, 7]), row(1, 9, [big, 7, 2**63])])], block_tokens=4)
    assert paths_of(requests) == [[0, 1], [0, 1, 2]]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"timestamp": 1, "input_length": 8, "hash_ids": [1', "not valid JSON"),
        ("timestamp,input_length", "not valid JSON"),
        ("[1, 2]", "Expected 'object', got 'array'"),
        (json.dumps({"timestamp": 1, "input_length": 8}), "missing required field 'hash_ids'"),
        (json.dumps(row(1, 8, [0, "x"])), "Expected 'int', got 'str' - at 'hash_ids[1]'"),  # type: ignore[list-item]
        (json.dumps(row(1, -8, [0, 1])), "Expected 'int' >= 0 - at 'input_length'"),
        (json.dumps(row(1, 8, [0, -1])), "a hash id is negative or does not fit 64 bits"),
        (json.dumps(row(1, 8, [0, 2**64])), "a hash id is negative or does not fit 64 bits"),
        (json.dumps({**row(1, 8, [0, 1]), "output_length": -1}), "Expected 'int' >= 0 - at 'output_length'"),
        (json.dumps(row(1, 20, [0, 1])), "20 tokens in 2 hash_ids do not fit any block size that fits the rows before"),
        ('{"x": ' + "[" * 100_000, "nested too deeply"),
    ],
)
def test_a_bad_line_is_named_or_left_out_and_counted(write: Any, line: str, message: str) -> None:
    path = write([*GOOD, line, row(4000, 8, [0, 1])])
    with pytest.raises(KvplanError) as error:
        read([path])
    assert str(error.value).startswith(f"{path}:5: ")
    assert message in str(error.value)
    requests = read([path], skip_bad=1)
    assert len(requests.input_tokens) == 5
    assert requests.sources[0].skipped == 1
    assert message in finding(requests, "bad-lines")


def test_one_bad_line_too_many_is_an_error(write: Any) -> None:
    path = write([*GOOD, "x", "y"])
    with pytest.raises(KvplanError, match=r"log.jsonl:6: not valid JSON.* \(after 1 bad lines skipped\)"):
        read([path], skip_bad=1)
    other = write([*GOOD, "x"], "other.jsonl")
    with pytest.raises(KvplanError, match=r"other.jsonl:5"):
        read([write([*GOOD, "x"]), other], skip_bad=1)


def test_the_block_size_is_the_only_one_that_fits_or_asked_for(write: Any) -> None:
    some = write([row(0, 500, [0]), row(0, 900, [0, 1])])
    with pytest.raises(KvplanError, match="its rows fit any block size of 500 to 899 tokens: give --block-tokens"):
        read([some])
    assert read([some], block_tokens=512).block_tokens == 512
    with pytest.raises(KvplanError, match="2: 900 tokens in 4 hash_ids do not fit block size 400"):
        read([write([row(0, 400, [0]), row(0, 900, [0, 1, 2, 3])])], block_tokens=400)
    with pytest.raises(KvplanError, match="fit any block size from 9 tokens up"):
        read([write([row(0, 9, [0])])])
    with pytest.raises(UsageError, match="at least one token"):
        read([some], block_tokens=0)


def test_blocks_are_counted_jointly_not_part_by_part(write: Any) -> None:
    """32,000 + 20,000 tokens are 102 blocks of 512; rounded apart they would be 103."""
    good = row(0, 52_000, list(range(102)))
    assert read([write([good])], block_tokens=512).offsets.tolist() == [0, 102]
    with pytest.raises(KvplanError, match="52000 tokens in 103 hash_ids do not fit block size 512"):
        read([write([row(0, 52_000, list(range(103)))])], block_tokens=512)


def test_logs_of_full_blocks_only_are_told_from_their_lengths(write: Any) -> None:
    requests = read([write([row(0, 9, [0, 1]), row(1, 15, [0, 1, 2]), row(2, 8, [0, 1]), row(3, 3, [])])])
    assert requests.block_tokens == 4
    assert paths_of(requests) == [[0, 1], [0, 1, 2], [0, 1], []]
    assert "full blocks only" in finding(requests, "block-size")


def test_requests_are_sorted_by_time_and_ties_stay_as_they_stood(write: Any) -> None:
    rows = [row(5000, 8, [0, 1]), row(1000, 9, [0, 1, 2]), row(5000, 4, [3]), row(0, 12, [0, 1, 4])]
    requests = read([write(rows)])
    assert requests.time_s.tolist() == [0, 1, 5, 5]
    assert requests.input_tokens.tolist() == [12, 9, 8, 4]
    by_token = dict(zip(requests.input_tokens.tolist(), paths_of(requests), strict=True))
    assert by_token[12][:2] == by_token[9][:2] == by_token[8]
    assert finding(requests, "sorted").startswith("2 requests")
    assert not codes(read([write(GOOD)])) & {"sorted", "newest-first", "ties"}


def test_a_log_that_lists_the_newest_first_is_read_backwards(write: Any) -> None:
    rows = [row(9000, 8, [0, 1]), row(5000, 9, [0, 1, 2]), row(5000, 4, [3]), row(0, 12, [0, 1, 4])]
    requests = read([write(rows)])
    assert requests.input_tokens.tolist() == [12, 4, 9, 8]
    assert "sorted" not in codes(requests)
    assert "newest request first" in finding(requests, "newest-first")


def test_many_equal_time_stamps_are_said(write: Any) -> None:
    requests = read([write([row(3000 * (i // 4), 8, [0, 1]) for i in range(12)] + [row(10_000, 9, [0, 1, 2])])])
    assert "the finest step is 3 s" in finding(requests, "ties")


def test_ids_of_contents_are_chained_to_prefixes_and_said(write: Any) -> None:
    """Block 7 follows 1 in one request and 2 in another: the same content, but not the same prefix."""
    rows = [row(0, 8, [1, 7]), row(1, 8, [2, 7]), row(2, 9, [1, 7, 7]), row(3, 8, [1, 7])]
    path = write(rows)
    requests = read([path], block_tokens=4)
    first, second, third, fourth = paths_of(requests)
    assert first == fourth == third[:2]
    assert len({*first, *second, *third}) == 5
    assert finding(requests, "ids-rechained").startswith(f"{path}:2: ")


def test_an_id_of_two_sizes_is_said(write: Any) -> None:
    """An id seen with 512 tokens and with 182 cannot be a hash of the content."""
    rows = [row(0, 512 + 182, [0, 1]), row(1, 1024 + 1, [0, 1, 2])]
    assert finding(read([write(rows)], block_tokens=512), "id-sizes").startswith("In 1 request the id")
    assert "id-sizes" not in codes(read([write(GOOD)]))


def test_several_files_are_one_log_in_order_of_time(write: Any) -> None:
    one, two = write([GOOD[0], GOOD[2]], "one.jsonl"), write([GOOD[1], GOOD[3]], "two.jsonl")
    requests = read([two, one], block_tokens=4)
    assert requests.input_tokens.tolist() == [8, 9, 4, 12]
    assert [source.name for source in requests.sources] == ["two.jsonl", "one.jsonl"]
    assert "shared-ids" in codes(requests)
    with pytest.raises(KvplanError, match="read them apart"):
        read([write(GOOD), write([row(0, 800, [0, 1]), row(1, 401, [0, 2]), row(2, 400, [3])], "big.jsonl")])


def test_tenants_come_from_the_field_the_user_names(write: Any) -> None:
    rows = [row(i, 8, [0, 1], meta={"team": team}) for i, team in enumerate(["b", "a", None, "b", 7])]
    path = write(rows)
    requests = read([path], block_tokens=4, tenant_by="meta.team")
    assert requests.tenants == ("b", "a", "7")
    assert requests.tenant.tolist() == [0, 1, -1, 0, 2]
    with pytest.raises(KvplanError, match=r"no line has the field 'meta.group'"):
        read([path], block_tokens=4, tenant_by="meta.group")
    with pytest.raises(KvplanError, match=r"log.jsonl:1: meta is no name but a dict"):
        read([path], block_tokens=4, tenant_by="meta")
    with pytest.raises(UsageError, match="--tenant-by hash_ids"):
        read([path], block_tokens=4, tenant_by="hash_ids")


@pytest.mark.parametrize(
    ("pack", "words"),
    [
        (bz2.compress, "is packed with bzip2; gzip and Zstandard are read: unpack it, or pipe it in with bzip2 -dc"),
        (lzma.compress, "is packed with xz; gzip and Zstandard are read: unpack it, or pipe it in with xz -dc"),
        (lambda data: b"PK\x03\x04" + data, "is packed with zip; .* pipe it in with unzip -p"),
        (lambda data: data.decode().encode("utf-16"), "is UTF-16: write it as UTF-8"),
        (lambda data: data.decode().encode("utf-16-le"), "is UTF-16: write it as UTF-8"),
        (lambda data: data.decode().encode("utf-16-be"), "is UTF-16: write it as UTF-8"),
        (lambda data: gzip.compress(data.decode().encode("utf-16")), "is UTF-16: write it as UTF-8"),
    ],
)
def test_what_is_packed_or_written_otherwise_is_named(write: Any, tmp_path: Path, pack: Any, words: str) -> None:
    path = tmp_path / "packed"
    path.write_bytes(pack(write(GOOD).read_bytes()))
    for format in (None, "mooncake"):
        with pytest.raises(KvplanError, match=f"packed: {words}"):
            read([path], format=format)


def test_files_that_cannot_be_read_are_named(write: Any, tmp_path: Path) -> None:
    with pytest.raises(KvplanError, match=r"nowhere\.jsonl: no such file"):
        read([tmp_path / "nowhere.jsonl"])
    with pytest.raises(KvplanError, match="is a folder"):
        read([tmp_path])
    with pytest.raises(KvplanError, match=r"empty.jsonl: not a request log kvplan reads: nothing in it"):
        read([write([], "empty.jsonl")])
    with pytest.raises(KvplanError, match=r"empty.jsonl: no requests in it"):
        read([write([], "empty.jsonl")], format="mooncake")
    cut = tmp_path / "cut.jsonl.gz"
    cut.write_bytes(gzip.compress("".join(json.dumps(line) + "\n" for line in GOOD * 500).encode())[:-40])
    with pytest.raises(KvplanError, match=r"cut.jsonl.gz: broken compressed data: "):
        read([cut])
    with pytest.raises(KvplanError, match=r"other.jsonl:1: not a known log format: has the keys a, b .*mooncake"):
        read([write([{"a": 1, "b": 2}], "other.jsonl")])
    with pytest.raises(KvplanError, match="not a request log kvplan reads: line 1: not valid JSON"):
        read([write(["some words, and more", "hello"], "words.txt")])
    with pytest.raises(UsageError, match=r"unknown.*mooncake, .*openai-chat"):
        read([write(GOOD)], format="xml")
    with pytest.raises(UsageError, match="no log given"):
        read([])


def test_a_mooncake_log_loads_neither_transformers_nor_pandas_nor_pyarrow(write: Any) -> None:
    """In a fresh interpreter: nothing that takes seconds is imported for a log that needs none of it."""
    code = (
        "import sys; from pathlib import Path; from kvplan.logs import read; read([Path(sys.argv[1])]);"
        "print(sorted({'transformers', 'pandas', 'pyarrow', 'torch', 'fsspec'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code, write(GOOD)], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


# -------------------------------------------------------------------------------------- ids


def test_dense_ids_number_keys_in_order_of_appearance() -> None:
    keys = np.array([5_000_000_000, -3, 5_000_000_000, 7, -3])
    ids, unique = dense(keys)
    assert (ids.tolist(), unique) == ([0, 1, 0, 2, 1], 3)
    ids, unique = dense(np.array([4, 2, 9, 4]))
    assert (ids.tolist(), unique) == ([1, 0, 2, 1], 3)


def test_chaining_makes_the_ids_of_every_prefix_its_own() -> None:
    rng = random.Random(5)
    for _ in range(200):
        paths = [[rng.randrange(3) for _ in range(rng.randrange(6))] for _ in range(rng.randrange(1, 12))]
        offsets = np.cumsum([0, *map(len, paths)])
        flat = np.array([block for path in paths for block in path], np.int32)
        ids, unique = chain(flat, offsets)
        seen: dict[tuple[int, ...], int] = {}
        for path, start in zip(paths, offsets.tolist(), strict=False):
            for depth in range(len(path)):
                assert seen.setdefault(tuple(path[: depth + 1]), int(ids[start + depth])) == ids[start + depth]
        assert len(set(seen.values())) == len(seen) == unique
        assert first_unchained(ids, offsets, unique) is None


def test_the_first_broken_chain_is_found() -> None:
    ids, offsets = np.array([0, 1, 2, 0, 1, 3, 1, 2]), np.array([0, 3, 6, 8])
    assert first_unchained(ids, offsets, 4) == 6  # block 1 starts a path here, and followed 0 before
    assert first_unchained(ids[:6], offsets[:3], 4) is None
    assert first_unchained(np.array([0, 1, 1]), np.array([0, 3]), 2) == 2


# -------------------------------------------------------------------------------------- OpenAI chat


def chat(*texts: str, **more: Any) -> dict[str, Any]:
    """A request of alternating user and assistant messages behind a system prompt."""
    roles = ["system", *["user", "assistant"] * len(texts)]
    messages = [{"role": role, "content": text} for role, text in zip(roles, texts, strict=False)]
    return {"messages": messages, **more}


LONG = "The pump reports the reading of 1234 millibar since Monday. " * 8


def test_prompts_that_share_their_start_share_blocks(write: Any) -> None:
    rows = [
        chat(LONG, "first question", timestamp=10.0, usage={"completion_tokens": 7}),
        chat(LONG, "first question", "an answer", "second question", timestamp=20.5, usage={"completion_tokens": 9}),
        chat("Other. " + LONG, "first question", timestamp=30.0),
    ]
    requests = read([write(rows)], tokenizer=TOKENIZER)
    first, second, third = paths_of(requests)
    assert requests.block_tokens == 16
    assert [len(path) for path in (first, second, third)] == [-(-n // 16) for n in requests.input_tokens.tolist()]
    assert first[:-1] == second[: len(first) - 1]
    assert not set(third) & {*first, *second}
    assert requests.time_s.tolist() == [10, 20.5, 30]
    assert requests.output_tokens.tolist() == [7, 9, 0]
    assert not codes(requests) & {"ids-rechained", "id-sizes"}


def test_the_tokens_are_those_of_one_full_render(write: Any) -> None:
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(str(TOKENIZER))
    request = chat(LONG, "a question", timestamp=1)
    expected = tokenizer.apply_chat_template(
        request["messages"], tokenize=True, add_generation_prompt=True, return_dict=False
    )
    requests = read([write([request])], tokenizer=TOKENIZER, block_tokens=8)
    assert requests.input_tokens.tolist() == [len(expected)]
    assert requests.offsets.tolist() == [0, -(-len(expected) // 8)]


@pytest.mark.parametrize("wrap", ["bare", "body", "request", "request.body"])
def test_wrappers_of_batches_and_gateways_are_opened(write: Any, wrap: str) -> None:
    rows = []
    for i in range(2):
        inner: dict[str, Any] = chat(LONG, f"question {i}", model="m")
        for key in reversed(wrap.split(".") if wrap != "bare" else []):
            inner = {key: inner}
        rows.append({**inner, "created": 1_740_000_000 + i, "response": {"body": {"usage": {"completion_tokens": 4}}}})
    requests = read([write(rows)], tokenizer=TOKENIZER)
    assert requests.sources[0].format == "openai-chat"
    assert requests.time_s.tolist() == [1_740_000_000, 1_740_000_001]
    assert requests.output_tokens.tolist() == [4, 4]


@pytest.mark.parametrize(
    ("stamps", "seconds", "said"),
    [
        ([1_740_000_000, 1_740_000_001.5], 1_740_000_000, "seconds"),
        ([1_740_000_000_000, 1_740_000_001_500], 1_740_000_000, "milliseconds"),
        ([1_740_000_000_000_000, 1_740_000_001_500_000], 1_740_000_000, "microseconds"),
        (["2025-02-19T21:20:00Z", "2025-02-19T22:20:01.5+01:00"], 1_740_000_000, "ISO 8601"),
        (["1740000000", "1740000001.5"], 1_740_000_000, "seconds"),
        ([0, 1.5], 0, "seconds"),
    ],
)
def test_the_unit_of_time_stamps_is_told_from_their_size(
    write: Any, stamps: list[Any], seconds: float, said: str
) -> None:
    requests = read([write([chat("a", "b", timestamp=stamp) for stamp in stamps])], tokenizer=TOKENIZER)
    assert requests.time_s.tolist() == [seconds, seconds + 1.5]
    assert said in finding(requests, "times")


def test_models_and_cache_salts_share_nothing(write: Any) -> None:
    rows = [
        chat(LONG, "q", timestamp=0, model="one"),
        chat(LONG, "q", timestamp=1, model="two"),
        chat(LONG, "q", timestamp=2, model="one", cache_salt="x"),
        chat(LONG, "q", timestamp=3, model="one"),
    ]
    requests = read([write(rows)], tokenizer=TOKENIZER)
    first, second, third, fourth = paths_of(requests)
    assert first == fourth
    assert not set(first) & set(second)
    assert not set(first) & set(third)
    assert finding(requests, "several-models").startswith("The log names 2 models")


def test_durations_sessions_and_tenants_are_read(write: Any) -> None:
    rows = [
        chat("a", "b", timestamp=0, duration_ms=1500, session_id="s1", body_user="x", user="ann"),
        chat("a", "b", timestamp=1, latency_s=2.5, metadata={"conversation_id": 9}, user="bob"),
        chat("a", "b", timestamp=2, session_id="s1", user="ann"),
    ]
    requests = read([write(rows)], tokenizer=TOKENIZER, tenant_by="user")
    assert requests.duration_s.tolist()[:2] == [1.5, 2.5]
    assert np.isnan(requests.duration_s[2])
    assert requests.session.tolist() == [0, 1, 0]
    assert (requests.tenants, requests.tenant.tolist()) == (("ann", "bob"), [0, 1, 0])


def test_text_parts_and_tool_calls_are_rendered_as_servers_do(write: Any) -> None:
    parts = [{"type": "text", "text": "one"}, {"type": "text", "text": "two"}]
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": '{"x": 1}'}}
    loose = {"id": "c", "type": "function", "function": {"name": "f", "arguments": {"x": 1}}}
    tools = [{"type": "function", "function": {"name": "f", "parameters": {}}}]

    def rows(content: Any, made: Any) -> list[dict[str, Any]]:
        messages = [
            {"role": "user", "content": content},
            {"role": "assistant", "content": None, "tool_calls": [made]},
            {"role": "tool", "content": "ok"},
        ]
        return [{"messages": messages, "tools": tools, "timestamp": 0}]

    counts = {
        int(read([write(rows(content, made))], tokenizer=TOKENIZER).input_tokens[0])
        for content, made in ((parts, call), ("one\ntwo", loose))
    }
    assert len(counts) == 1
    bare = read([write([chat("one\ntwo", timestamp=0)])], tokenizer=TOKENIZER).input_tokens[0]
    assert counts.pop() > bare + 20  # the tools are in the prompt


def test_logs_without_time_stamps_keep_their_order_and_say_so(write: Any) -> None:
    requests = read([write([chat("b", "b"), chat("a", "a")])], tokenizer=TOKENIZER)
    assert np.isnan(requests.time_s).all()
    assert "no-times" in codes(requests)
    with pytest.raises(KvplanError, match="only one has time stamps"):
        read([write([chat("b")]), write([chat("a", timestamp=1)], "b.jsonl")], tokenizer=TOKENIZER)


def test_prompt_counts_that_another_tokenizer_must_have_made_are_pointed_out(write: Any) -> None:
    right = read([write([chat(LONG, timestamp=0)])], tokenizer=TOKENIZER).input_tokens[0]
    same = read([write([chat(LONG, timestamp=0, usage={"prompt_tokens": int(right)})])], tokenizer=TOKENIZER)
    assert "token-counts" not in codes(same)
    wrong = read([write([chat(LONG, timestamp=0, usage={"prompt_tokens": int(right * 1.1)})])], tokenizer=TOKENIZER)
    assert "above those of this tokenizer" in finding(wrong, "token-counts")


@pytest.mark.parametrize(
    ("bad", "message"),
    [
        ({"text": "x", "timestamp": 1}, "no 'messages' or 'prompt', neither alone nor in 'body' or 'request'"),
        ({"prompt": 5, "timestamp": 1}, "'prompt' is neither text nor a list of token ids"),
        ({"prompt": [1, -2], "timestamp": 1}, "'prompt' holds something that is no token id"),
        ({"messages": [], "timestamp": 1}, "'messages' is no list of messages"),
        ({"messages": [{"content": "x"}], "timestamp": 1}, "message 1 has no role"),
        (
            {"messages": [{"role": "user", "content": [{"type": "image_url"}]}], "timestamp": 1},
            "type 'image_url' without content",
        ),
        ({"messages": [{"role": "user", "content": 5}], "timestamp": 1}, "the chat template refuses the request"),
        (chat("x"), "has no time stamp, unlike the lines before"),
        (chat("x", timestamp="yesterday"), "timestamp is 'yesterday', neither a number nor an ISO 8601 time"),
        (chat("x", timestamp=[1]), "timestamp is a list"),
        (chat("x", timestamp=1_740_000_000_000), "out of line with the times before"),
        (chat("x", timestamp=1, usage={"completion_tokens": -4}), "completion_tokens is -4, not a number of tokens"),
        (chat("x", timestamp=1, duration_ms="long"), "duration_ms is 'long', not a duration"),
        (chat("x", timestamp=1, chat_template_kwargs=3), "'chat_template_kwargs' is no object"),
    ],
)
def test_a_chat_line_that_cannot_be_used_is_named(write: Any, bad: dict[str, Any], message: str) -> None:
    path = write([chat("fine", timestamp=0), bad])
    with pytest.raises(KvplanError) as error:
        read([path], tokenizer=TOKENIZER)
    assert str(error.value).startswith(f"{path}:2: ")
    assert message in str(error.value)
    assert read([path], tokenizer=TOKENIZER, skip_bad=1).sources[0].skipped == 1


def test_text_without_a_usable_tokenizer_is_refused(write: Any, tmp_path: Path) -> None:
    path = write([chat("a", timestamp=0)])
    with pytest.raises(KvplanError, match=r"holds text.*give --tokenizer DIR"):
        read([path])
    with pytest.raises(KvplanError, match="nowhere: no such folder"):
        read([path], tokenizer=tmp_path / "nowhere")
    with pytest.raises(KvplanError, match=r"holds no tokenizer.json nor another tokenizer file: .*the served model's$"):
        read([path], tokenizer=tmp_path)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (tmp_path / name).write_bytes((TOKENIZER / name).read_bytes())
    config = json.loads((tmp_path / "tokenizer_config.json").read_text())
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({**config, "bos_token": "<|im_start|>"}))
    doubled = "{{ bos_token + bos_token + messages[0].content }}"
    (tmp_path / "tokenizer_config.json").write_text(
        json.dumps({**config, "bos_token": "<|im_start|>", "chat_template": doubled})
    )
    with pytest.raises(KvplanError, match=r"log.jsonl:1: the prompt starts with two beginning-of-sequence tokens"):
        read([path], tokenizer=tmp_path)
    del config["chat_template"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(config))
    with pytest.raises(KvplanError, match="has no chat template"):
        read([path], tokenizer=tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(
        KvplanError, match=r"no tokenizer that transformers loads \(.*\): take the folder of the served model$"
    ):
        read([path], tokenizer=tmp_path)


# -------------------------------------------------------------------------------------- anything at all


def test_no_line_however_broken_gives_a_traceback(tmp_path: Path) -> None:
    rng = random.Random(17)
    seeds = [
        json.dumps(line).encode() for line in (*GOOD, chat(LONG, "q", timestamp=1, usage={"completion_tokens": 1}))
    ]
    path = tmp_path / "broken.jsonl"
    refusals = []
    for _ in range(600):
        data = bytearray(b"\n".join(rng.sample(seeds, rng.randrange(1, 4))))
        for _ in range(rng.randrange(1, 6)):
            at = rng.randrange(len(data))
            data[at : at + rng.randrange(3)] = rng.choice(
                [b"", b"-", b'"', b"null", b"[", b"}", b"9" * 30, b"\xff", b"1e999", b"\n", b"{}", b"true"]
            )
        path.write_bytes(bytes(data))
        try:
            read([path], skip_bad=rng.randrange(3), tokenizer=TOKENIZER, tenant_by=rng.choice([None, "usage"]))
        except KvplanError as error:
            refusals.append(str(error))
    assert all("broken.jsonl" in refusal for refusal in refusals)
    assert len(refusals) > 100
