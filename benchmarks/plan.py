"""CPU seconds of `kvplan plan` on the workload document of a log with ten million distinct blocks.

Run: python benchmarks/plan.py [RUNS]. The document is made up, as large as such a log's: 200 stretches of load, 100
tenants, ten points a decade with every prefix class. Best of several fresh interpreters; wall time is left out, since
on a shared machine it speaks of the neighbours.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from pathlib import Path

from kvplan.documents import (
    CacheGroup,
    Compute,
    CurvePoint,
    Document,
    Estimate,
    Interval,
    KvCost,
    Load,
    LogSource,
    ModelRef,
    Parallel,
    Percentiles,
    PrefixClass,
    ServiceModel,
    Tenant,
    Weights,
    Workload,
)
from kvplan.files import dump, wrap

BLOCKS, BLOCK_TOKENS, REQUESTS = 10_000_000, 16, 400_000
INPUT_TOKENS, SPAN_S = 3 * BLOCKS * BLOCK_TOKENS, 7 * 86_400.0


def point(capacity: int) -> CurvePoint:
    """A point of a smooth curve that ends at two thirds, its hits spread over twelve prefix classes."""
    tokens = int(INPUT_TOKENS * 2 / 3 * (capacity / BLOCKS) ** 0.3)
    classes = [2**n for n in range(6, 18)]
    each = tokens // len(classes)
    prefixes = tuple(
        PrefixClass(at_most_tokens=top, requests=max(1, each // top), tokens=each, tokens_sq=each * top * 3 // 4)
        for top in classes
    )
    hits = sum(part.tokens for part in prefixes)
    return CurvePoint(
        capacity_blocks=capacity,
        capacity_tokens=capacity * BLOCK_TOKENS,
        hit_blocks=hits // BLOCK_TOKENS,
        hit_tokens=hits,
        hit_ratio=hits / INPUT_TOKENS,
        hit_requests=min(REQUESTS, sum(part.requests for part in prefixes)),
        reused_prefix_tokens_sq=sum(part.tokens_sq for part in prefixes),
        fill_time_s=SPAN_S * capacity / BLOCKS,
        prefixes=prefixes,
    )


def workload() -> Document[Workload]:
    """A week of 400,000 requests."""
    capacities = [round(BLOCKS * 10 ** (-n / 10)) for n in range(50, -1, -1)]
    curve = tuple(point(capacity) for capacity in capacities)
    lengths = Percentiles(p50=900, p95=4000, p99=12_000, max=100_000, mean=INPUT_TOKENS / REQUESTS)
    return wrap(
        Workload(
            sources=(LogSource(name="made-up", format="none", sha256="0" * 64, requests=REQUESTS),),
            requests=REQUESTS,
            span_s=SPAN_S,
            block_tokens=BLOCK_TOKENS,
            input_tokens=INPUT_TOKENS,
            output_tokens=REQUESTS * 300,
            novel_tokens=BLOCKS * BLOCK_TOKENS,
            block_references=3 * BLOCKS,
            unique_blocks=BLOCKS,
            ceiling_hit_ratio=curve[-1].hit_ratio,
            engine_hit_ratio=curve[-1].hit_ratio,
            one_off_tokens_ratio=0.6,
            curve=curve,
            active_tokens=Percentiles(p50=20_000, p95=60_000, p99=90_000, max=200_000),
            active_requests=Percentiles(p50=20, p95=60, p99=90, max=200),
            service=ServiceModel(provenance="measured"),
            input_lengths=lengths,
            output_lengths=Percentiles(p50=250, p95=900, p99=2000, max=8000),
            input_tokens_sq=INPUT_TOKENS**2 // REQUESTS * 3,
            reuse_intervals=tuple(Interval(at_most_s=2.0**n, tokens=10**6) for n in range(20)),
            reused_prefix_lengths=curve[-1].prefixes,
            load=tuple(
                Load(
                    start_s=SPAN_S / 200 * n,
                    width_s=SPAN_S / 200,
                    requests=REQUESTS // 200,
                    input_tokens=INPUT_TOKENS // 200,
                    output_tokens=REQUESTS * 300 // 200,
                )
                for n in range(200)
            ),
            tenants=tuple(
                Tenant(
                    tenant=str(n),
                    requests=REQUESTS // 100,
                    input_tokens=INPUT_TOKENS // 100,
                    hit_tokens=INPUT_TOKENS // 200,
                    isolated_hit_tokens=INPUT_TOKENS // 250,
                )
                for n in range(100)
            ),
        )
    )


def estimate() -> Document[Estimate]:
    """A model of 8 billion parameters in bf16."""
    token = 131_072
    return wrap(
        Estimate(
            model=ModelRef(id="made-up/8b", source="path", model_type="llama", config_sha256="0" * 64),
            engine="vllm",
            kv_dtype="bf16",
            parallel=Parallel(),
            block_tokens=16,
            groups=(CacheGroup(kind="full", layers=32, bytes_per_token=token, bytes_per_sequence=0),),
            kv=KvCost(
                bytes_per_token=token,
                bytes_per_sequence=0,
                bytes_per_token_per_gpu=token,
                bytes_per_sequence_per_gpu=0,
                offload_bytes_per_token=token,
            ),
            weights=Weights(
                bytes=16 * 10**9, bytes_per_gpu=16 * 10**9, params=8 * 10**9, provenance="assumed", source="made up"
            ),
            compute=Compute(
                linear_flops_per_token=1.4e10,
                attention_flops_per_token_sq=262_144.0,
                provenance="assumed",
                source="made up",
            ),
        )
    )


def cpu_seconds(arguments: list[str], folder: str) -> float:
    """User and system seconds of one fresh process."""
    process = subprocess.Popen(
        [sys.executable, "-m", "kvplan", *arguments], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, cwd=folder
    )
    _, status, usage = os.wait4(process.pid, 0)
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.returncode not in (0, 3):
        raise SystemExit(f"kvplan {' '.join(arguments)} ended with {process.returncode}")
    return usage.ru_utime + usage.ru_stime


def main(runs: int) -> None:
    """Print one row a command."""
    with tempfile.TemporaryDirectory() as folder:
        for name, document in (("workload", workload()), ("estimate", estimate())):
            Path(folder, f"{name}.json").write_text(dump(document), encoding="utf-8")
        plan = ["plan", "estimate.json", "workload.json", "--gpu", "h100-80gb", "--host-memory", "2TiB", "-q"]
        commands = {
            "plan, to a file": [*plan, "-o", "plan.json"],
            "plan, to the terminal": plan,
            "plan with four what-ifs": [*plan, "-o", "other.json", *(["--what-if", "growth=2"] * 4)],
            "plan against an earlier one": [*plan, "-o", "other.json", "--growth", "2", "--against", "plan.json"],
        }
        for name, arguments in commands.items():
            best = min(cpu_seconds(arguments, folder) for _ in range(runs))
            print(f"{name:32} {best:6.2f} s")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 5)
