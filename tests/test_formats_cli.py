"""The command line's own part in reading logs: columns, estimates, traces to share."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kvplan.cli import main

LOGS = Path(__file__).resolve().parent / "logs"


def run(monkeypatch: pytest.MonkeyPatch, *arguments: object) -> int:
    monkeypatch.setattr("sys.argv", ["kvplan", "workload", *map(str, arguments)])
    with pytest.raises(SystemExit) as ended:
        main()
    return int(ended.value.code or 0)


def test_columns_are_named_on_the_command_line(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    columns = "time=arrived, input_tokens=prompt"
    assert run(monkeypatch, LOGS / "table.csv", "--columns", columns, "--columns", "hash_ids=blocks", "--json") == 0
    data = json.loads(capsys.readouterr().out)["data"]
    assert (data["requests"], data["input_tokens"], data["block_tokens"]) == (3, 89, 16)
    for wrong in ("time", "=x", "time="):
        assert run(monkeypatch, LOGS / "table.csv", "--columns", wrong) == 2
        assert f"--columns {wrong}: write what a column holds" in capsys.readouterr().err
    assert run(monkeypatch, LOGS / "table.csv", "--columns", "time_s=a,time_s=b") == 2
    assert "--columns time_s=b: time_s=a says it already" in capsys.readouterr().err


def test_a_trace_to_share_is_written_instead_of_a_document(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    trace = tmp_path / "trace.jsonl"
    assert run(monkeypatch, LOGS / "litellm.jsonl", "--approximate-tokens", 4, "--anonymize", "-o", trace) == 0
    assert "2 requests as lengths, times and numbered blocks" in capsys.readouterr().err
    assert len(trace.read_text().splitlines()) == 2
    documents = []
    for log in ([LOGS / "litellm.jsonl", "--approximate-tokens", 4], [trace]):
        assert run(monkeypatch, *log, "--json") == 0
        data = json.loads(capsys.readouterr().out)["data"]
        documents.append({key: value for key, value in data.items() if key not in ("sources", "findings")})
    assert documents[0] == documents[1]
    assert run(monkeypatch, LOGS / "mooncake.jsonl", "--anonymize") == 2
    assert "name it with -o" in capsys.readouterr().err
    assert run(monkeypatch, LOGS / "mooncake.jsonl", "--anonymize", "-o", trace, "--json") == 2
    assert "leave --compare and --json out" in capsys.readouterr().err
    one = tmp_path / "one.jsonl"
    one.write_text('{"timestamp": 0, "input_length": 4, "output_length": 1, "block_size": 4, "hash_ids": [0]}\n')
    assert run(monkeypatch, one, "--anonymize", "-o", trace) == 0
    assert "trace.jsonl: 1 request as lengths" in capsys.readouterr().err
    assert run(monkeypatch, one, "--json", "--capacity-tokens", 3) == 2
    assert "--capacity-tokens 3: less than one block, which holds 4 tokens here" in capsys.readouterr().err
    assert run(monkeypatch, one, "--json") == 0
    said = {item["code"]: item["text"] for item in json.loads(capsys.readouterr().out)["data"]["findings"]}
    assert said["log-format"].startswith("one.jsonl: 1 request, format mooncake")
    assert said["service-assumed"].endswith("--columns duration_s=NAME names the column or field.")


def test_an_estimate_gives_the_block_size_of_logs_of_text(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    """C07: the engine's own block, 784 tokens for this hybrid model in vLLM, not a usual 16."""
    estimate = tmp_path / "estimate.json"
    monkeypatch.setattr(
        "sys.argv", ["kvplan", "estimate", "qwen3.5-27b", "--engine", "vllm", "-o", str(estimate), "-q"]
    )
    with pytest.raises(SystemExit) as ended:
        main()
    assert ended.value.code in (0, None)
    block = json.loads(estimate.read_text())["data"]["block_tokens"]
    assert block not in (None, 16)
    text = [LOGS / "openai-chat.jsonl", "--approximate-tokens", 4, "--json"]
    for more, size in (([], 16), (["--estimate", estimate], block), (["--estimate", estimate, "--block-tokens", 8], 8)):
        assert run(monkeypatch, *text, *more) == 0
        assert json.loads(capsys.readouterr().out)["data"]["block_tokens"] == size
    assert run(monkeypatch, LOGS / "mooncake.jsonl", "--estimate", estimate, "-q") == 0
    capsys.readouterr()
    workload = tmp_path / "workload.json"
    assert run(monkeypatch, LOGS / "mooncake.jsonl", "-o", workload, "-q") == 0
    assert run(monkeypatch, *text, "--estimate", workload) == 2
    assert "is no document that kvplan estimate wrote of one model" in capsys.readouterr().err


def test_lengths_alone_give_no_curve(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    assert run(monkeypatch, LOGS / "azure.csv", "--capacity-blocks", "4") == 1
    assert "azure.csv: has lengths only" in capsys.readouterr().err
    assert run(monkeypatch, LOGS / "azure.csv") == 0
    assert "lengths only" in capsys.readouterr().out


def test_tenants_are_kept_apart_only_where_a_field_names_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(monkeypatch, LOGS / "mooncake.jsonl", "--isolate") == 2
    assert "--isolate keeps tenants apart: --tenant-by FIELD says who they are" in capsys.readouterr().err
