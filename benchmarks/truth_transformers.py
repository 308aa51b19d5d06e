"""Builds a tiny model of every type that transformers can build and compares its cache, byte by byte, with kvplan's.

Run: python benchmarks/truth_transformers.py [MODEL_TYPE...]. Needs torch and transformers, no network and no GPU. Each
model runs a prefill at several lengths in bf16 and fp32; the bytes of every tensor in the returned cache must equal
`estimate --engine transformers`. Prints the types that differ, those that could not be built with the reason, and the
counts. Ends with 1 where one differs.
"""

from __future__ import annotations

import gc
import sys
import time
from pathlib import Path

import torch
import transformers

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "tests"))

from tiny_models import Built, any_build, forward, model_types

from kvplan.documents import EstimateOptions, ModelRef
from kvplan.errors import KvplanError
from kvplan.estimate import estimate
from kvplan.model import from_config

RUNS = ((8, "bf16"), (24, "bf16"), (64, "bf16"), (24, "fp32"))
TORCH = {"bf16": torch.bfloat16, "fp32": torch.float32}


def ours(built: Built, tokens: int, dtype: str, encoder_tokens: int | None) -> tuple[int, int]:
    """What kvplan says the cache of a model holds: its tensors, and the storages behind them after a prefill."""
    ref = ModelRef(id=built.kind, source="path", model_type="", config_sha256="")
    model = from_config({**built.config, "dtype": None}, ref, built.kind)
    options = EstimateOptions(engine="transformers", kv_dtype=dtype, at=(tokens,), encoder_tokens=encoder_tokens)
    (at,) = estimate(model, options).kv.bytes_at
    return at.steady_bytes, at.admission_bytes


def compare(built: Built) -> list[str]:
    """Where one model's cache and kvplan differ, one line a run; empty where they are equal."""
    wrong = []
    for tokens, dtype in RUNS:
        built.model.to(TORCH[dtype])
        try:
            real = forward(built, tokens)
        except RuntimeError as error:
            if dtype == "fp32" or "dtype" not in str(error):
                raise
            continue  # its own code cannot run in bf16
        mine = ours(built, real.tokens, dtype, real.encoder_tokens)
        if mine != (real.bytes, real.storage_bytes):
            wrong.append(f"{tokens} tokens {dtype}: returned {real.bytes} in {real.storage_bytes}, kvplan {mine}")
    return wrong


def check(kind: str) -> tuple[str, str]:
    """One model type: "equal", "different" or "unbuilt", and why."""
    try:
        built, _ = any_build(kind)
    except ValueError as error:
        return "unbuilt", str(error)
    try:
        wrong = compare(built)
    except KvplanError as error:
        wrong = [str(error)]
    return ("different" if wrong else "equal"), "; ".join(wrong)


def main(wanted: list[str]) -> int:
    """Every type, or those named."""
    transformers.logging.set_verbosity_error()
    started, counts = time.monotonic(), {"equal": 0, "different": 0, "unbuilt": 0}
    for kind in model_types():
        if wanted and kind not in wanted:
            continue
        verdict, why = check(kind)
        counts[verdict] += 1
        if verdict != "equal":
            print(f"{verdict:9} {kind}: {why}", flush=True)
        gc.collect()
    built = counts["equal"] + counts["different"]
    print(
        f"transformers {transformers.__version__}: {built + counts['unbuilt']} model types, {built} built,"
        f" {counts['equal']} equal, {counts['different']} different, {counts['unbuilt']} unbuilt"
        f" ({time.monotonic() - started:.0f} s)"
    )
    return 1 if counts["different"] else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
