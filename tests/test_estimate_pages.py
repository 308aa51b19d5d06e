"""What people see of an estimate: side by side, explained, with logs, media and a workload; and the command's words."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import samples

from kvplan import cli
from kvplan.errors import KvplanError
from kvplan.files import dump, load, parse, wrap
from kvplan.report import html, markdown, sections

Run = Callable[..., tuple[int, str, str]]


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Runs `kvplan estimate` in this process, as the installed script does: exit code, standard output and error."""

    def call(*arguments: object) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "argv", ["kvplan", "estimate", *map(str, arguments)])
        monkeypatch.setenv("COLUMNS", "200")
        try:
            cli.main()
            code = 0
        except SystemExit as stopped:
            code = stopped.code if isinstance(stopped.code, int) else 1
        out, err = capsys.readouterr()
        return code, out, err

    return call


def test_models_side_by_side(run: Run, tmp_path: Path) -> None:
    code, out, err = run(
        "gpt-oss-20b", "gemma-3-27b", "llama-3.1-8b", "--engine", "vllm", "--at", "8k", "-o", tmp_path / "e.json"
    )
    assert (code, err.startswith("wrote")) == (0, True)
    assert "3 models side by side" in out
    assert "The least growth: openai/gpt-oss-20b, 24,576 B" in out
    assert "1 x 8,192 tokens, as admitted" in out
    document = load(tmp_path / "e.json")
    assert document.kind == "kvplan.estimates"
    assert [one.model.id for one in document.data.estimates][2] == "meta-llama/Llama-3.1-8B"
    assert parse(dump(document).encode(), "e").data == document.data
    with pytest.raises(KvplanError, match="estimates"):
        parse(dump(document).replace('"estimates": [', '"estimates": [], "x": [').encode(), "e")
    page = sections(document)
    assert "gpt-oss-20b" in markdown(page, "figures")[0]
    assert "gpt-oss-20b" in html(page)


def test_side_by_side_is_json_too(run: Run) -> None:
    code, out, _ = run("llama-3.1-8b", "--model", "qwen3-8b", "--json")
    assert code == 0
    found = json.loads(out)
    assert found["kind"] == "kvplan.estimates"
    assert [one["kv"]["bytes_per_token"] for one in found["data"]["estimates"]] == [131072, 147456]


def test_a_model_may_stand_without_its_flag(run: Run) -> None:
    code, out, _ = run("llama-3.1-8b", "--json")
    assert (code, json.loads(out)["kind"]) == (0, "kvplan.estimate")


def test_explain_shows_arithmetic_and_keys(run: Run) -> None:
    short, full = run("gemma-3-27b")[1], run("gemma-3-27b", "--explain")[1]
    for words in ("52 layers x 16 heads x (128 + 128) x 2 B, at most 1024 tokens", "sliding_window"):
        assert words not in short
        assert words in full
    assert "Slope by slope" in short


def test_three_columns_only_where_they_differ(run: Run) -> None:
    _, mixed, _ = run(
        "gpt-oss-20b", "--engine", "vllm", "--at", "8k", "--sequences", 32, "--max-num-batched-tokens", 2048
    )
    assert "hybrid manager off" in mixed
    assert "6.09 GiB" in mixed
    assert "12.00 GiB" in mixed
    _, plain, _ = run("llama-3.1-8b", "--engine", "vllm", "--at", "8k")
    assert "hybrid manager off" not in plain


def test_start_up_lines_alone(run: Run, tmp_path: Path) -> None:
    """Case A08, written as the case has it: two points after one flag."""
    points = ("tokens=398000,len=50000,pool=24.5GiB", "tokens=2450000,len=500000,pool=24.5GiB")
    code, out, _ = run("--from-log", *points, "-o", tmp_path / "fit.json")
    assert code == 0
    assert "4,586 B" in out
    document = load(tmp_path / "fit.json")
    assert document.kind == "kvplan.fit"
    assert "4,586 B" in markdown(sections(document), "figures")[0]
    code, _, err = run("--from-log", points[0])
    assert code == 1
    assert "one length cannot tell a slope from a fixed part" in err
    assert err.count("\n") == 1


def test_start_up_lines_against_a_model(run: Run) -> None:
    code, out, _ = run("llama-3.1-8b", "--engine", "vllm", "--from-log", "tokens=163840,len=8192,pool=10GiB")
    assert code == 0
    assert "log-disagrees" in out
    assert "2.00 times" in out
    code, _, err = run("gpt-oss-20b", "--engine", "vllm", "--from-log", "tokens=163840,len=8192,pool=10GiB")
    assert code == 1
    assert "this model keeps a fixed part a request" in err


def test_draft_layers(run: Run, shared: Path) -> None:
    name = shared / "configs" / "deepseek-ai--DeepSeek-V3.json"
    for draft, wanted in (("mtp", 71424), ("ngram", 70272), ("mtp:2", 72576), ("llama-3.2-1b", 70272 + 32768)):
        code, out, _ = run(name, "--draft", draft, "--json")
        assert code == 0
        assert json.loads(out)["data"]["kv"]["bytes_per_token"] == wanted
    assert run(name, "--draft", "mtp:x")[0] == 2
    code, _, err = run("llama-3.1-8b", "--draft", "mtp")
    assert code == 1
    assert "states no layers of multi-token prediction" in err


def test_images_and_audio(run: Run, shared: Path) -> None:
    name = shared / "configs" / "google--gemma-3-27b-it.json"
    code, out, _ = run(name, "--images", 2, "--audio", "10s", "--at", "1000")
    assert code == 0
    assert "1,512" in out
    assert "unknown: no config states tokens of a second of audio" in out
    assert run(name, "--images", 1, "--image-size", "big")[0] == 2


def test_a_workload(run: Run, tmp_path: Path) -> None:
    (tmp_path / "w.json").write_text(dump(samples.workload()))
    code, out, _ = run("llama-3.1-8b", "--engine", "vllm", "--kv-memory", "40GiB", "--workload", tmp_path / "w.json")
    assert code == 0
    assert "What the workload's lengths need" in out
    (tmp_path / "e.json").write_text(dump(wrap(samples.probe().data)))
    code, _, err = run("llama-3.1-8b", "--workload", tmp_path / "e.json")
    assert code == 2
    assert "workload" in err


def test_every_engine_is_named_where_none_is_known(run: Run) -> None:
    code, _, err = run("llama-3.1-8b", "--engine", "tgi")
    assert code == 1
    for name in ("none", "transformers", "vllm", "sglang", "llama.cpp", "tensorrt-llm"):
        assert name in err


def test_experts_are_dealt_where_asked(run: Run) -> None:
    held = []
    for flags in ((), ("--expert-parallel",)):
        out = run("qwen3-30b-a3b", "--dp", 8, *flags, "--json")[1]
        held.append(json.loads(out)["data"]["weights"]["bytes_per_gpu"])
    assert held[1] < held[0] / 4
