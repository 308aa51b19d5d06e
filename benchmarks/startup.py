"""CPU seconds of whole kvplan processes: best of several fresh interpreters, files cached.

Run: python benchmarks/startup.py [RUNS]. Wall time is left out: on a shared machine it speaks of the neighbours.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

CONFIG = {
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


def cpu_seconds(arguments: list[str], folder: str) -> float:
    """User and system seconds of one fresh process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kvplan", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode:
        raise SystemExit(f"kvplan {' '.join(arguments)} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def main(runs: int) -> None:
    """Print one row a command."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder, "config.json").write_text(json.dumps(CONFIG))
        commands = {
            "kvplan --version": ["--version"],
            "kvplan --help": ["--help"],
            "kvplan estimate --model config.json": ["estimate", "--model", "config.json"],
            "kvplan models": ["models"],
        }
        for label, arguments in commands.items():
            times = sorted(cpu_seconds(arguments, folder) for _ in range(runs))
            print(f"{label:40} best {times[0]:.2f} CPU s, median {times[len(times) // 2]:.2f}, {runs} runs")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 7)
