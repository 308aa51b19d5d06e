"""The command line as a script sees it: what goes to which stream, exit codes, and one line for every bad input."""

from __future__ import annotations

import gzip
import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
import samples

from kvplan import cli
from kvplan.files import dump, load

LLAMA = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 4096,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_hidden_layers": 32,
    "num_key_value_heads": 8,
    "max_position_embeddings": 131072,
    "vocab_size": 128256,
    "torch_dtype": "bfloat16",
}
# 1,025 and 1,536 tokens in three blocks: only a block of 512 tokens fits both.
ROWS = [
    {
        "timestamp": 1000 * n,
        "input_length": 1025 + 511 * (n % 5 % 2),
        "output_length": 20,
        "hash_ids": [0, k + 1, k + 2],
    }
    for n, k in ((n, 2 * (n % 5)) for n in range(40))
]


@dataclass(frozen=True)
class Ended:
    code: int
    out: str
    err: str


class Run:
    """Runs a command in this process, as the installed script does."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
        self.monkeypatch, self.capsys = monkeypatch, capsys

    def __call__(self, *arguments: object) -> Ended:
        self.monkeypatch.setattr(sys, "argv", ["kvplan", *map(str, arguments)])
        try:
            cli.main()
            code = 0
        except SystemExit as end:
            code = end.code if isinstance(end.code, int) else int(bool(end.code))
        streams = self.capsys.readouterr()
        return Ended(code, streams.out, streams.err)

    def refused(self, *arguments: object, code: int = 1) -> str:
        """The one line of an expected failure."""
        ended = self(*arguments)
        assert ended.code == code, ended
        assert ended.out == ""
        assert ended.err.startswith("kvplan: ")
        assert ended.err.count("\n") == 1, ended.err
        return ended.err


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    return Run(monkeypatch, capsys)


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a config, a log and the four documents."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(LLAMA))
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in ROWS))
    for name in ("estimate", "workload", "probe", "plan"):
        (tmp_path / f"{name}.json").write_text(dump(getattr(samples, name)()))
    return tmp_path


def test_estimate_json_is_one_document_and_nothing_else(run: Run, folder: Path) -> None:
    ended = run("estimate", "--model", "config.json", "--json")
    assert ended.code == 0
    assert ended.err == ""
    document = json.loads(ended.out)
    assert document["kind"] == "kvplan.estimate"
    assert document["data"]["kv"]["bytes_per_token"] == 131072


def test_a_document_of_kvplan_is_no_model(run: Run, folder: Path) -> None:
    assert "a kvplan.plan document, not a model's config" in run.refused("estimate", "--model", "plan.json")


def test_models_side_by_side_may_be_named_either_way(run: Run, folder: Path) -> None:
    named = ("--model", "llama-3.1-8b", "--model", "qwen3-8b"), ("llama-3.1-8b", "qwen3-8b")
    first, second = (json.loads(run("estimate", *words, "--json").out)["data"] for words in named)
    assert first == second
    assert [one["model"]["id"] for one in first["estimates"]] == ["meta-llama/Llama-3.1-8B", "Qwen/Qwen3-8B"]


def test_the_same_input_gives_the_same_data(run: Run, folder: Path) -> None:
    first, second = (json.loads(run("workload", "trace.jsonl", "--json").out)["data"] for _ in range(2))
    assert first == second


def test_output_is_written_whole_and_said_on_stderr(run: Run, folder: Path) -> None:
    ended = run("workload", "trace.jsonl", "-o", "new.json")
    assert ended.code == 0
    assert "wrote new.json" in ended.err
    assert load(folder / "new.json").data.requests == 40


def test_quiet_says_nothing(run: Run, folder: Path) -> None:
    assert run("workload", "trace.jsonl", "-q", "-o", "new.json") == Ended(0, "", "")


def test_a_gzip_log_and_standard_input_read_alike(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = json.loads(run("workload", "trace.jsonl", "--json").out)["data"]
    (folder / "trace.jsonl.gz").write_bytes(gzip.compress((folder / "trace.jsonl").read_bytes()))
    zipped = json.loads(run("workload", "trace.jsonl.gz", "--json").out)["data"]
    with (folder / "trace.jsonl").open() as stream:
        monkeypatch.setattr(sys, "stdin", stream)
        piped = json.loads(run("workload", "-", "--json").out)["data"]
    for data in (plain, zipped, piped):  # what differs is the name of the file
        data.pop("sources")
        data["findings"] = [found for found in data["findings"] if found["code"] != "log-format"]
    assert plain == zipped == piped


def test_exact_capacities_are_points_of_the_curve(run: Run, folder: Path) -> None:
    ended = run("workload", "trace.jsonl", "--capacity-blocks", 7, "--capacity-tokens", "4k", "--json")
    capacities = [point["capacity_blocks"] for point in json.loads(ended.out)["data"]["curve"]]
    assert {7, 8} <= set(capacities)


def test_plan_from_documents(run: Run, folder: Path) -> None:
    ended = run("plan", "estimate.json", "workload.json", "probe.json", "--json", "-o", "new.json")
    assert ended.code in (0, 3)
    assert json.loads(ended.out)["data"]["decision"]
    assert load(folder / "new.json").kind == "kvplan.plan"


def test_a_plan_over_a_limit_ends_with_3(run: Run, folder: Path) -> None:
    ended = run(
        "plan", "estimate.json", "workload.json", "probe.json", "--gpu", "l4-24gb", "--replicas", 1, "-q", "--json"
    )
    document = json.loads(ended.out)["data"]
    assert ended.code == (0 if all(limit["ok"] for limit in document["limits"]) else 3)


def test_what_a_plan_is_not_made_from_is_refused(run: Run, folder: Path) -> None:
    inputs = ("plan", "estimate.json", "workload.json", "probe.json")
    said = run.refused(*inputs, "plan.json", code=2)
    assert "plan.json: a kvplan.plan document" in said
    assert "--against" in said
    assert "--forbid-disk beside --disk" in run.refused(*inputs, "--forbid-disk", "--disk", "4TB", code=2)


@pytest.mark.parametrize("name", ["estimate", "workload", "probe", "plan"])
def test_report_renders_every_kind_three_ways(run: Run, folder: Path, name: str) -> None:
    ended = run("report", f"{name}.json", "-o", "page.html", "-o", "page.md", "-o", "copy.json")
    assert ended.code == 0, ended.err
    assert (folder / "page.html").read_text().lstrip().lower().startswith("<!doctype html>")
    assert (folder / "page.md").read_text().startswith("# ")
    assert load(folder / "copy.json") == load(folder / f"{name}.json")
    assert run("report", f"{name}.json").out


def test_one_line_from_model_log_and_probe_to_a_review(run: Run, folder: Path) -> None:
    ended = run(
        "report",
        "--model",
        "config.json",
        "--log",
        "trace.jsonl",
        "--probe",
        "probe.json",
        "--gpu",
        "h100-80gb",
        "--json",
    )
    assert ended.code == 0, ended.err
    assert json.loads(ended.out)["kind"] == "kvplan.plan"


def test_models_lists_source_and_date(run: Run) -> None:
    ended = run("models", "--json")
    entries = json.loads(ended.out)
    assert len(entries) >= 35
    assert all(entry["source"] and entry["date"] for entry in entries)


def test_schema_is_json(run: Run) -> None:
    assert json.loads(run("schema", "plan").out)["title"] == "kvplan.plan"


def test_no_command_is_help_on_stderr_and_a_usage_error(run: Run) -> None:
    ended = run()
    assert (ended.code, ended.out) == (2, "")
    assert "estimate" in ended.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("estimate", "--model", "nowhere/config.json"), "nowhere/config.json"),
        (("estimate", "--model", "trace.jsonl"), "trace.jsonl"),
        (("estimate", "--model", "config.json", "--gpu", "h900"), "unknown GPU 'h900'"),
        (("estimate", "--model", "config.json", "--engine", "vlllm"), "vlllm"),
        (("workload", "none.jsonl"), "none.jsonl"),
        (("workload", "config.json"), "config.json"),
        (("report", "config.json"), "not a kvplan document"),
        (("report", "none.json"), "none.json: no such file"),
        (("schema", "poem"), "unknown document kind"),
        (("probe", "--disk", "none", "--only", "disk"), "none"),
    ],
)
def test_what_cannot_be_read_is_one_line(run: Run, folder: Path, arguments: tuple[str, ...], words: str) -> None:
    assert words in run.refused(*arguments)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("estimate",), "--model is missing"),
        (("estimate", "--model", "config.json", "--gpu-memory", "80G"), "--gpu-memory: '80G' does not say its unit"),
        (("estimate", "--model", "config.json", "--at", "8k,many"), "--at: 'many'"),
        (("plan", "estimate.json"), "no workload document given"),
        (("plan", "estimate.json", "estimate.json", "workload.json"), "2 estimate documents"),
        (("plan", "estimate.json", "workload.json", "--ttl", "10"), "--ttl: '10' does not say its unit"),
        (("report",), "nothing to report"),
        (("report", "plan.json", "-o", "page.pdf"), "no report format"),
    ],
)
def test_a_wrong_command_line_ends_with_2(run: Run, folder: Path, arguments: tuple[str, ...], words: str) -> None:
    assert words in run.refused(*arguments, code=2)


@pytest.mark.parametrize("text", ["", "\n \n"])
def test_an_empty_document_is_said_to_be_empty(run: Run, folder: Path, text: str) -> None:
    (folder / "nothing.json").write_text(text)
    for command in (("plan", "nothing.json"), ("report", "nothing.json"), ("export", "nothing.json", "--for", "vllm")):
        assert "nothing.json: is empty" in run.refused(*command)


@pytest.mark.parametrize("kind", ["pdf", "docx", "svg", "csv", "PDF"])
def test_what_a_document_is_not_is_refused_before_it_is_made(run: Run, folder: Path, kind: str) -> None:
    told = run.refused("plan", "estimate.json", "workload.json", "probe.json", "-o", f"plan.{kind}", code=2)
    assert f"plan.{kind}: what this command writes is a document, and no .{kind.lower()}" in told
    assert "-o FILE.html" in told
    assert not (folder / f"plan.{kind}").exists()


def test_a_folder_that_is_not_there_is_no_file(run: Run, folder: Path) -> None:
    export = ("export", "plan.json", "--for", "vllm", "-o", "new/")
    for command in (export, ("estimate", "--model", "config.json", "-o", "new/")):
        assert "-o new/: there is no such folder" in run.refused(*command, code=2)
        assert not (folder / "new").exists()
    (folder / "new").mkdir()
    run(*export)
    assert [path.name for path in (folder / "new").iterdir()] == ["vllm.sh"]


def test_a_length_of_nothing_is_refused(run: Run, folder: Path) -> None:
    for at in ("0", "8k,0"):
        told = run.refused("estimate", "--model", "config.json", "--at", at, code=2)
        assert "--at: a length of 0 tokens" in told


def test_truncated_json_names_the_file(run: Run, folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps(LLAMA)[:100])
    assert "config.json" in run.refused("estimate", "--model", "config.json")


def test_an_unknown_architecture_names_the_missing_key(run: Run, folder: Path) -> None:
    (folder / "config.json").write_text(json.dumps({"model_type": "martian", "hidden_size": 4096}))
    line = run.refused("estimate", "--model", "config.json")
    assert "martian" in line
    assert "num_hidden_layers" in line


def test_a_malformed_log_line_has_its_number(run: Run, folder: Path) -> None:
    lines = (folder / "trace.jsonl").read_text().splitlines()
    lines[16] = lines[16][:30]
    (folder / "trace.jsonl").write_text("\n".join(lines))
    assert "trace.jsonl:17:" in run.refused("workload", "trace.jsonl")
    assert run("workload", "trace.jsonl", "--skip-bad", 1, "-q").code == 0


def test_an_unwritable_output_is_one_line_and_leaves_nothing(run: Run, folder: Path) -> None:
    line = run.refused("workload", "trace.jsonl", "-q", "-o", "no/such/folder/w.json")
    assert "no/such/folder/w.json: cannot write" in line
    assert not [path for path in folder.iterdir() if path.name.startswith(".")]


@pytest.mark.parametrize(
    ("output", "words", "code"),
    [
        ("no/such/s.json", "no/such/s.json: cannot write", 1),
        (".", ".: cannot write: is a folder", 1),
        ("s.html", "s.html: what this command writes is a document", 2),
        ("s.md", "kvplan report FILE.json -o s.md", 2),
    ],
)
def test_long_work_does_not_begin_for_a_file_that_cannot_take_it(
    run: Run, folder: Path, output: str, words: str, code: int
) -> None:
    """The documents named do not exist: the file is refused before they are looked for."""
    assert words in run.refused("simulate", "none.json", "--log", "none.jsonl", "-o", output, code=code)
    assert words in run.refused("observe", "none.txt", "-o", output, code=code)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here to stand for a full disk")
@pytest.mark.parametrize("form", [(), ("--json",)])
@pytest.mark.parametrize(("to", "words"), [("/dev/full", "standard output: cannot write: no space"), ("&-", "closed")])
def test_standard_output_that_takes_nothing_is_one_line(form: tuple[str, ...], to: str, words: str) -> None:
    page = Path(__file__).parent / "metrics" / "vllm_tiers_after.txt"
    command = f'exec "$0" -m kvplan observe "$@" >{to}'
    ended = subprocess.run(["sh", "-c", command, sys.executable, str(page), *form], capture_output=True, text=True)
    assert (ended.returncode, ended.stderr.count("\n")) == (1, 1), ended.stderr
    assert words in ended.stderr


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no /dev/full here to stand for a full disk")
def test_every_page_that_cannot_be_printed_is_one_line(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(dump(samples.plan()))
    for words in (
        ["report", str(tmp_path / "plan.json")],
        ["report", str(tmp_path / "plan.json"), "--json"],
        ["models"],
    ):
        with open("/dev/full", "w") as full:
            ended = subprocess.run(
                [sys.executable, "-m", "kvplan", *words], stdout=full, stderr=subprocess.PIPE, text=True
            )
        assert (ended.returncode, ended.stderr.count("\n")) == (1, 1), ended.stderr


@pytest.mark.skipif(not Path("/dev/shm").is_dir(), reason="no tmpfs at /dev/shm to offer as a drive")
def test_memory_given_as_a_drive_is_refused(run: Run) -> None:
    before = set(os.listdir("/dev/shm"))
    ended = run("probe", "--disk", "/dev/shm", "--only", "disk", "--budget", "2s", "-q")
    assert ended.code == 1
    assert "tmpfs" in ended.err
    assert set(os.listdir("/dev/shm")) == before


def test_debug_shows_where_an_error_rose(run: Run, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KVPLAN_DEBUG", "1")
    with pytest.raises(cli.KvplanError):
        run("report", "none.json")


def test_ctrl_c_during_a_disk_probe_leaves_nothing_and_ends_with_130(tmp_path: Path) -> None:
    arguments = ["probe", "--disk", str(tmp_path), "--only", "disk", "--budget", "60s", "--write-budget", "2GiB"]
    process = subprocess.Popen(
        [sys.executable, "-m", "kvplan", *arguments], stderr=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert process.stderr is not None
    assert process.stderr.readline()  # what it is going to write: from here on it is at work
    time.sleep(0.7)
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=60)
    assert process.returncode == 130, err
    assert out == b""
    assert b"Traceback" not in err
    assert list(tmp_path.iterdir()) == []


def test_what_a_file_says_cannot_break_the_line_of_an_error_nor_steer_a_terminal(run: Run, folder: Path) -> None:
    (folder / "odd.jsonl").write_text('{"chat\\nid": 1, "hash\\u001b[31m": [1]}\n')
    done = run("workload", "odd.jsonl")
    assert done.code == 1
    assert done.err.count("\n") == 1
    assert "\x1b" not in done.err
    assert "has the keys chat\\nid, hash\\x1b[31m" in done.err
