"""What a command must not load. Heavy libraries cost seconds; a fresh interpreter shows who pulls them in."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import samples

from kvplan.files import dump

HEAVY = ("torch", "transformers", "pandas", "huggingface_hub", "altair", "vl_convert", "numba", "numpy", "pyarrow")


def loaded_by(arguments: list[str], folder: Path) -> set[str]:
    """Which heavy libraries a command imports, told by the interpreter that ran it."""
    code = (
        "import sys, json\n"
        "from kvplan.cli import main\n"
        f"sys.argv = ['kvplan', *{arguments!r}]\n"
        "try:\n    main()\n"
        "except SystemExit as end:\n    assert not end.code, end.code\n"
        f"print('\\n' + json.dumps([n for n in {HEAVY!r} if n in sys.modules]))\n"
    )
    environment = dict(os.environ, PYTHONPATH=str(Path(__file__).resolve().parents[1]))
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, cwd=folder, env=environment, check=False
    )
    assert done.returncode == 0, done.stderr
    return set(json.loads(done.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("documents")
    for name, document in (
        ("estimate", samples.estimate()),
        ("workload", samples.workload()),
        ("probe", samples.probe()),
        ("plan", samples.plan()),
    ):
        (folder / f"{name}.json").write_text(dump(document))
    return folder


@pytest.mark.parametrize(
    "arguments", [["--help"], ["--version"], ["estimate", "--help"], ["schema", "plan"], ["models"]]
)
def test_words_about_kvplan_load_nothing_heavy(arguments: list[str], tmp_path: Path) -> None:
    assert loaded_by(arguments, tmp_path) == set()


def test_a_terminal_report_loads_nothing_heavy(inputs: Path) -> None:
    assert loaded_by(["report", "plan.json"], inputs) == set()


def test_plan_loads_nothing_heavy(inputs: Path) -> None:
    arguments = ["plan", "estimate.json", "workload.json", "probe.json", "--gpu", "h100-80gb", "-o", "new.json"]
    assert loaded_by(arguments, inputs) == set()


def test_an_html_report_loads_only_the_chart_library(inputs: Path) -> None:
    assert loaded_by(["report", "plan.json", "-o", "review.html"], inputs) <= {"altair", "vl_convert"}


def test_estimate_on_a_plain_config_loads_nothing_heavy(tmp_path: Path) -> None:
    config = {
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
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert loaded_by(["estimate", "--model", "config.json"], tmp_path) == set()


def test_workload_on_hashes_loads_no_text_library(tmp_path: Path) -> None:
    rows = [
        {"timestamp": n * 1000, "input_length": 513 + 511 * (n % 2), "output_length": 9, "hash_ids": [0, n]}
        for n in range(1, 9)
    ]
    (tmp_path / "trace.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    assert loaded_by(["workload", "trace.jsonl"], tmp_path) <= {"numba", "numpy"}
