"""Logs of text: every wrapper read from a small log made by hand, with a tokenizer, without one, and in processes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kvplan.documents import Requests
from kvplan.errors import KvplanError, UsageError
from kvplan.logs import read

ROOT = Path(__file__).resolve().parents[1]
LOGS = ROOT / "tests/logs"
TOKENIZER = ROOT / "examples/tokenizer"


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


def encoded(text: str) -> list[int]:
    from transformers import AutoTokenizer

    ids: list[int] = AutoTokenizer.from_pretrained(str(TOKENIZER)).encode(text, add_special_tokens=False)
    return ids


@pytest.mark.parametrize(
    ("name", "format", "requests"),
    [
        ("openai-chat.jsonl", "openai-chat", 4),
        ("completions.jsonl", "openai-chat", 4),
        ("batch.jsonl", "openai-chat", 2),
        ("sharegpt.json", "sharegpt", 4),
        ("litellm.jsonl", "litellm", 2),
        ("otel.jsonl", "otel", 2),
    ],
)
@pytest.mark.parametrize("how", [{"tokenizer": TOKENIZER}, {"bytes_per_token": 4.0}])
def test_every_wrapper_is_told_from_its_content(name: str, format: str, requests: int, how: dict[str, Any]) -> None:
    table = read([LOGS / name], **how)
    assert table.sources[0].format == format
    assert len(table.input_tokens) == requests
    assert table.hashed
    blocks = -(-table.input_tokens // table.block_tokens)
    assert np.diff(table.offsets).tolist() == blocks.tolist()
    assert not codes(table) & {"ids-rechained", "id-sizes"}
    with pytest.raises(KvplanError, match=r"holds text, .* give --tokenizer DIR, .* or --approximate-tokens 4"):
        read([LOGS / name])


# -------------------------------------------------------------------------------------- OpenAI


def test_cached_tokens_that_are_not_told_are_unknown_and_not_zero() -> None:
    requests = read([LOGS / "openai-chat.jsonl"], tokenizer=TOKENIZER)
    assert finding(requests, "cached-tokens").startswith("1 of 4 requests tell their cached tokens: 51.6 %")
    assert requests.output_tokens.tolist() == [9, 11, 0, 0]


def test_images_are_shared_by_content(write: Any) -> None:
    def row(url: str, time: int) -> dict[str, Any]:
        parts = [{"type": "image_url", "image_url": {"url": url}}, {"type": "text", "text": "What is this? " * 40}]
        return {"messages": [{"role": "user", "content": parts}], "timestamp": time}

    requests = read([write([row("data:a", 0), row("data:b", 1), row("data:a", 2)])], tokenizer=TOKENIZER)
    first, other, again = paths_of(requests)
    assert first == again
    assert not set(first[2:]) & set(other)
    assert finding(requests, "images").startswith("3 images")


@pytest.mark.parametrize("how", [{"tokenizer": TOKENIZER}, {"bytes_per_token": 2.0}])
def test_images_count_as_many_tokens_as_the_model_has(write: Any, how: dict[str, Any]) -> None:
    def row(urls: list[str], time: int) -> dict[str, Any]:
        parts: list[Any] = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
        parts += [{"type": "input_audio", "input_audio": {"data": "x"}}, {"type": "text", "text": "What is this?"}]
        return {"messages": [{"role": "user", "content": parts}], "timestamp": time}

    path = write([row([], 0), row(["data:a"], 1), row(["data:a", "data:b"], 2), row(["data:a", "data:b"], 3)])
    requests = read([path], block_tokens=8, image_tokens=256, **how)
    none, one, two, again = requests.input_tokens.tolist()
    assert one - none == pytest.approx(256, abs=1)  # and a line break between the parts
    assert two - one == pytest.approx(256, abs=1)
    assert again == two
    paths = paths_of(requests)
    assert paths[2] == paths[3]
    shared = sum(a == b for a, b in zip(paths[1], paths[2], strict=False))
    assert 256 // 8 <= shared <= 256 // 8 + 4
    assert "an image counts 256 tokens, as the estimate says" in finding(requests, "images")
    assert one - read([path], block_tokens=8, **how).input_tokens[1] > 200


def test_completions_take_texts_and_token_ids(write: Any) -> None:
    requests = read([LOGS / "completions.jsonl"], tokenizer=TOKENIZER)
    text = rows_of("completions.jsonl")[0]["prompt"]
    assert requests.input_tokens.tolist() == [len(encoded(text))] * 2 + [len(encoded("Twice.")), 5]
    first, second, third, fourth = paths_of(requests)
    assert first == second
    assert len({*first, *third, *fourth}) == len(first) + 2
    ids = [{"prompt": [1, 2, 3], "created": 0}, {"prompt": [[1, 2, 3], [1, 2]], "created": 1}]
    assert read([write(ids)], tokenizer=TOKENIZER, block_tokens=2).input_tokens.tolist() == [3, 3, 2]


def test_answers_are_counted_where_the_log_has_them_but_not_their_length(write: Any) -> None:
    answer = {"choices": [{"message": {"role": "assistant", "content": "The inlet is blocked."}}]}
    row = {"messages": [{"role": "user", "content": "Error 12?"}], "timestamp": 0, "response": {"body": answer}}
    requests = read([write([row])], tokenizer=TOKENIZER)
    assert requests.output_tokens.tolist() == [len(encoded("The inlet is blocked."))]


@pytest.mark.parametrize("how", [{"tokenizer": TOKENIZER}, {"bytes_per_token": 4.0}])
def test_requests_of_an_odd_form_are_read_or_refused_by_line(write: Any, how: dict[str, Any]) -> None:
    said = {"role": "assistant", "content": "Yes.", "tool_calls": [None, 1, {"function": "f"}]}
    odd = {
        "messages": [{"role": "user", "content": "?"}],
        "tools": ["f", {"function": {"name": ["x"]}}],
        "timestamp": 0,
    }
    if "tokenizer" in how:
        with pytest.raises(KvplanError, match=r"log.jsonl:1: the chat template refuses the request: Tools"):
            read([write([odd])], **how)
    else:
        assert read([write([odd])], **how).input_tokens.size == 1
        calls = [{"messages": [{**said, "tool_calls": calls}], "timestamp": 0} for calls in (said["tool_calls"], 1.5)]
        assert read([write(calls)], **how).input_tokens.size == 2
    deep = "[" * 900 + "]" * 900
    row = '{"messages": [{"role": "user", "content": "?"}], "timestamp": 0, "tools": [' + deep + "]}"
    with pytest.raises(KvplanError, match=r"log.jsonl:1: (nested too deeply|the chat template refuses)"):
        read([write([row])], **how)


# -------------------------------------------------------------------------------------- ShareGPT


def test_each_turn_of_the_user_is_a_request_for_all_before_it() -> None:
    requests = read([LOGS / "sharegpt.json"], tokenizer=TOKENIZER)
    one, two, three, four = paths_of(requests)
    assert two[: len(one) - 1] == one[:-1]
    assert four[: len(three) - 1] == three[:-1]
    assert not set(one) & set(three)
    assert requests.session.tolist() == [0, 0, 1, 1]
    assert requests.output_tokens.tolist()[3] == 0
    assert requests.output_tokens[1] == len(encoded("Close the vent and start it."))
    assert "2 conversations" in finding(requests, "turns")
    assert "no-times" in codes(requests)


def test_sharegpt_mistakes_are_named(tmp_path: Path) -> None:
    conversations = json.loads((LOGS / "sharegpt.json").read_text())
    path = tmp_path / "log.json"
    for turn, message in (
        ({"from": "cat", "value": "x"}, "turn 5 is from 'cat'"),
        ({"from": "human", "value": None}, "turn 5 has no text in 'value'"),
        ({"from": ["human"], "value": "x"}, r"turn 5 is from \['human'\]"),
    ):
        broken = [conversations[0], {**conversations[1], "conversations": [*conversations[1]["conversations"], turn]}]
        path.write_text(json.dumps(broken, indent=1))
        line = path.read_text().splitlines().index(' {\n  "id": "two",'.splitlines()[0], 2) + 1
        with pytest.raises(KvplanError, match=rf"log.json:{line}: {message}"):
            read([path], tokenizer=TOKENIZER)
        assert len(read([path], tokenizer=TOKENIZER, skip_bad=1).input_tokens) == 2


# -------------------------------------------------------------------------------------- LiteLLM, OpenTelemetry


def test_litellm_payloads_tell_durations_traces_and_teams() -> None:
    requests = read([LOGS / "litellm.jsonl"], tokenizer=TOKENIZER, tenant_by="metadata.user_api_key_team_id")
    assert requests.time_s.tolist() == [1_755_000_000.5, 1_755_000_005.0]
    assert requests.duration_s.tolist() == [1.5, 1.25]
    assert requests.session.tolist() == [0, 0]
    assert requests.tenants == ("red", "blue")
    assert requests.output_tokens.tolist() == [12, 7]
    assert "cached-tokens" not in codes(requests)


@pytest.mark.parametrize(
    ("name", "hint"), [("litellm-lengths.jsonl", "store_prompts"), ("otel-spans.jsonl", "CAPTURE")]
)
def test_gateways_that_keep_no_prompts_tell_lengths_only(name: str, hint: str) -> None:
    requests = read([LOGS / name])
    assert not requests.hashed
    assert requests.blocks.size == 0
    assert len(requests.input_tokens) == 2
    assert not np.isnan(requests.duration_s).any()
    assert hint in finding(requests, "lengths-only")


def test_litellm_mistakes_are_named(write: Any) -> None:
    good = rows_of("litellm.jsonl")[0]
    for change, message in (
        ({"messages": []}, "holds no prompt, unlike the lines before"),
        ({"endTime": good["startTime"] - 5}, "ends before it starts"),
        ({"status": "failure"}, "a request that failed"),
        ({"startTime": None}, "has no time stamp, unlike the lines before"),
        ({"completion_tokens": -1}, "completion_tokens is -1, not a number of tokens"),
        ({"model": [1]}, "model is no name but a list"),
    ):
        path = write([good, {**good, **change}])
        with pytest.raises(KvplanError, match=rf"log.jsonl:2: {message}"):
            read([path], tokenizer=TOKENIZER)
    lengths = [{**good, "messages": []}, {**good, "messages": [], "prompt_tokens": None}]
    with pytest.raises(KvplanError, match=r"log.jsonl:2: holds neither a prompt nor the number of its tokens"):
        read([write(lengths)], format="litellm")


def test_spans_become_requests() -> None:
    requests = read([LOGS / "otel.jsonl"], tokenizer=TOKENIZER, tenant_by="gen_ai.request.model")
    assert requests.duration_s.tolist() == [1.5, 1.0]
    assert requests.output_tokens.tolist() == [6, 8]
    assert requests.session.tolist() == [0, 0]
    assert requests.tenants == ("m",)
    first, second = paths_of(requests)
    assert second[: len(first) - 1] == first[:-1]
    assert "1 span of something else than a request" in finding(requests, "other-spans")
    assert finding(requests, "cached-tokens").startswith("1 of 2 requests")


def test_span_mistakes_are_named(write: Any) -> None:
    good = {
        "start_time": "2025-08-12T12:00:00Z",
        "end_time": "2025-08-12T12:00:01Z",
        "attributes": {"gen_ai.input.messages": [{"role": "user", "parts": [{"type": "text", "content": "hello"}]}]},
    }
    assert read([write([good])], tokenizer=TOKENIZER).hashed
    for change, message in (
        ({"end_time": "2025-08-12T11:00:01Z"}, "a span ends before it starts"),
        ({"attributes": {"gen_ai.input.messages": "[{"}}, "gen_ai.input.messages is not valid JSON"),
        ({"attributes": {"gen_ai.input.messages": {}}}, "gen_ai.input.messages is no list"),
        ({"attributes": {"gen_ai.input.messages": [{"parts": []}]}}, "has no role"),
        (
            {"attributes": {"gen_ai.input.messages": [{"role": "user", "parts": [5]}]}},
            "a part of a message is no object",
        ),
        ({"attributes": {"gen_ai.usage.input_tokens": 5}}, "holds no prompt, unlike the lines before"),
    ):
        with pytest.raises(KvplanError, match=rf"log.jsonl:2: .*{message}"):
            read([write([good, {**good, **change}])], tokenizer=TOKENIZER)
    with pytest.raises(KvplanError, match="resourceSpans is no list of objects"):
        read([write([{"resourceSpans": 5}])], tokenizer=TOKENIZER)


# -------------------------------------------------------------------------------------- without a tokenizer


def test_an_estimate_without_a_tokenizer_says_that_it_is_one() -> None:
    requests = read([LOGS / "openai-chat.jsonl"], bytes_per_token=4)
    assert "4 bytes of text count as a token (assumed)" in finding(requests, "approximate-tokens")
    assert "--approximate-tokens 2.27 would fit them" in finding(requests, "token-counts")
    with pytest.raises(UsageError, match="leave it or --tokenizer out"):
        read([LOGS / "openai-chat.jsonl"], bytes_per_token=4, tokenizer=TOKENIZER)
    for nonsense in (0.0, -1.0, float("nan")):
        with pytest.raises(UsageError, match="--approximate-tokens"):
            read([LOGS / "openai-chat.jsonl"], bytes_per_token=nonsense)


def test_an_estimate_finds_the_reuse_that_tokens_show() -> None:
    """Of the same log, the shared share of all tokens differs by little between the two ways of counting."""

    def shared(requests: Requests) -> float:
        return 1 - (int(requests.blocks.max()) + 1) / requests.blocks.size

    tokens = read([ROOT / "examples/chat.jsonl.gz"], bytes_per_token=3.6)
    assert shared(tokens) == pytest.approx(0.85, abs=0.1)


# -------------------------------------------------------------------------------------- processes


def test_several_processes_give_the_same_table(write: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = [
        {"messages": [{"role": "user", "content": f"Question {i % 7} about pump {i}"}], "timestamp": i}
        for i in range(300)
    ]
    rows[200] = {"messages": [{"role": "user", "content": 5}], "timestamp": 200}
    path = write(rows)
    one = read([path], tokenizer=TOKENIZER, skip_bad=1)
    monkeypatch.setattr("kvplan.formats.texts._WORTH_PROCESSES", 0)
    two = read([path], tokenizer=TOKENIZER, skip_bad=1, processes=2)
    assert two.blocks.tolist() == one.blocks.tolist()
    assert two.input_tokens.tolist() == one.input_tokens.tolist()
    assert two.findings == one.findings
    with pytest.raises(KvplanError, match=r"log.jsonl:201: the chat template refuses"):
        read([path], tokenizer=TOKENIZER, processes=2)
