"""AIPerf as a program on PATH: found, named by its version, told what to play. It is never imported."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from kvplan.errors import KvplanError, UsageError
from kvplan.files import make_folder, write_atomically
from kvplan.replaying.played import Played

INSTALL = "pipx install aiperf (or: uv tool install aiperf)"

# AIPerf loads a tokenizer even where it neither makes prompts nor counts tokens; this one needs no network.
_TOKENIZER: dict[str, Any] = {
    "version": "1.0",
    "truncation": None,
    "padding": None,
    "added_tokens": [],
    "normalizer": None,
    "pre_tokenizer": {"type": "Whitespace"},
    "post_processor": None,
    "decoder": None,
    "model": {"type": "WordLevel", "vocab": {"[UNK]": 0}, "unk_token": "[UNK]"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Load:
    """How the load generator sends: as the schedule says, or `concurrency` at a time, or at a steady rate."""

    concurrency: int | None = None
    request_rate: float | None = None
    model: str | None = None
    tokenizer: str | None = None
    arguments: tuple[str, ...] = ()

    @property
    def by_schedule(self) -> bool:
        """Whether times are those of the schedule."""
        return self.concurrency is None and self.request_rate is None


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """An AIPerf that answered: where it is, and its version."""

    path: str
    version: str


def found(given: str | None) -> Program:
    """The aiperf at `given`, or on PATH. Raises KvplanError saying how to install it."""
    path = shutil.which(given or "aiperf")
    if path is None:
        where = f"{given}: no such program" if given else "no aiperf on PATH"
        raise KvplanError(f"{where}: install AIPerf, for example with {INSTALL}, or name it with --aiperf")
    try:
        done = subprocess.run([path, "--version"], capture_output=True, text=True, check=False, timeout=120)
    except (OSError, subprocess.TimeoutExpired) as error:
        raise KvplanError(f"{path}: does not tell its version: {error}") from None
    number = re.search(r"\d+\.\d+\S*", done.stdout + done.stderr)
    if done.returncode or number is None:
        raise KvplanError(f"{path}: is no AIPerf that works: `aiperf --version` ended with {done.returncode}")
    return Program(path=path, version=number[0])


def command(program: Program, played: Played, load: Load, tokenizer: str, server: str, folder: Path | str) -> list[str]:
    """The words that play a schedule against a server, results in `folder`. Raises UsageError where one is missing."""
    model = load.model or played.model
    if model is None:
        raise UsageError("the schedule names no model: give --model as the server calls it")
    if played.form == "ids" and load.tokenizer is None:
        raise UsageError("AIPerf makes prompts of block ids with the model's tokenizer: give --tokenizer NAME")
    if load.by_schedule and not played.document.timed:
        raise UsageError(f"{played.path}: has lines without a time: give --concurrency or --request-rate")
    words = [program.path, "profile", "--model", model, "--url", server, "--endpoint-type", "completions"]
    words += ["--streaming", "--use-server-token-count", "--custom-dataset-type", "mooncake_trace"]
    words += ["--input-file", str(played.path), "--artifact-dir", str(folder), "--random-seed", "0"]
    words += ["--ui", "none", "--no-gpu-telemetry", *_connections(load), *_pace(played, load)]
    words += ["--tokenizer", tokenizer, *_synthesis(played)]
    return [*words, *load.arguments]


def _connections(load: Load) -> Sequence[str]:
    """One connection a request: a server that closes idle ones would make requests fail that it never saw."""
    flag = "--connection-reuse-strategy"
    return () if any(word.startswith(flag) for word in load.arguments) else (flag, "never")


def _pace(played: Played, load: Load) -> Sequence[str]:
    if load.by_schedule:
        return ("--fixed-schedule",)
    pace = ["--no-fixed-schedule", "--dataset-sampling-strategy", "sequential"]
    pace += ["--num-conversations", str(played.document.sessions)]
    if load.concurrency is not None:
        pace += ["--concurrency", str(load.concurrency)]
    if load.request_rate is not None:
        pace += ["--request-rate", f"{load.request_rate:g}", "--arrival-pattern", "constant"]
    return pace


def _synthesis(played: Played) -> Sequence[str]:
    """For block ids: what AIPerf makes prompts of, and answers of exactly the length asked for."""
    if played.form == "payload":
        return ()
    size = ("--isl-block-size", str(played.block_tokens)) if played.block_tokens else ()
    return (*size, "--extra-inputs", "ignore_eos:true", "--extra-inputs", "temperature:0")


def tokenizer_of(load: Load, folder: Path) -> str:
    """The user's tokenizer, or for payloads the folder of one of no meaning, written to `folder`."""
    if load.tokenizer is not None:
        return load.tokenizer
    place = folder / "tokenizer"
    make_folder(place)
    write_atomically(place / "tokenizer.json", json.dumps(_TOKENIZER))
    kind = {"tokenizer_class": "PreTrainedTokenizerFast", "unk_token": "[UNK]"}
    write_atomically(place / "tokenizer_config.json", json.dumps(kind))
    return str(place)


def environment() -> dict[str, str]:
    """Variables for AIPerf: offline mode makes it refuse tokenizers in folders, so it is off where it was on."""
    return {name: "" for name in ("HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE") if os.environ.get(name)}
