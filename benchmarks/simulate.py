"""Speed, memory and shape of the simulation: a whole log off and on, and the search for the sustainable rate.

Run: python benchmarks/simulate.py TRACE [--rates] [--limit N]

TRACE is mooncake-conversation.jsonl.gz. The engine is an 8B model in bf16 on an H200 with 90 GB of KV cache and a
50 GB/s link, its recompute cost typed in below: figures show the model's shape, they are no product claim.
"""

from __future__ import annotations

import argparse
import resource
import time
from pathlib import Path

from kvplan import logs, simulate
from kvplan.documents import Arm, ArmResult, EngineModel, LinkModel, Requests
from kvplan.units import GB, TB, GiB, show_duration, show_percent

TOKEN = 131_072
SLO_S = 10.0
ENGINE = EngineModel(
    kv_tokens=90 * GB // TOKEN,
    block_tokens=512,
    tier_bytes_per_token=TOKEN,
    t0_s=0.008,
    a_s_per_token=20.7e-6,
    b_s_per_token_sq=4.0e-10,
    weights_s=16 * GB / (4.8 * TB),
    kv_s_per_token=TOKEN / (4.8 * TB),
    host_link=LinkModel(load_bytes_per_s=50 * GB, store_bytes_per_s=50 * GB),
)
ARMS = (Arm(name="off"), Arm(name="256 GiB", host_bytes=256 * GiB), Arm(name="1 TiB", host_bytes=1024 * GiB))


def line(rate: float, result: ArmResult, seconds: float) -> str:
    """One arm in one line."""
    inputs = max(1, result.input_tokens)
    hits = " / ".join(show_percent(tier.hit_tokens / inputs) for tier in result.tiers)
    ttft = f"{show_duration(result.ttft.p50)} / {show_duration(result.ttft.p90)}" if result.ttft else "none"
    moved = " ".join(f"{t.tier} +{t.loaded_bytes / TB:.2f} -{t.stored_bytes / TB:.2f} TB" for t in result.tiers[1:])
    return (
        f"{rate:.2f}/s {result.arm.name:8} hits {hits:17} TTFT {ttft:17} busy {show_percent(result.gpu_busy_ratio)} "
        f"done in {result.makespan_s:,.0f} s, {result.steps:,} steps, {result.preemptions:,} preempted, {moved} "
        f"| {seconds:.1f} CPU s"
    )


def whole(requests: Requests, limit: int | None) -> None:
    """The log at three rates in three arms."""
    count = len(requests.time_s)
    logged = count / float(requests.time_s[-1] - requests.time_s[0])
    for rate in (0.85, 1.70, 2.27):
        for arm in ARMS:
            began = time.process_time()
            result = simulate.play(requests, ENGINE, arm, rate_scale=rate / logged, limit=limit)
            print(line(rate, result, time.process_time() - began), flush=True)


def rates(requests: Requests) -> None:
    """The sustainable rate of each arm: 7 points, first 6,000 requests."""
    for arm in ARMS:
        began = time.process_time()
        found = simulate.sustainable(requests, ENGINE, arm, SLO_S)
        seconds = time.process_time() - began
        print(
            f"{arm.name:8} p90 TTFT <= {SLO_S:g} s up to {found.requests_per_s}/s, fails at {found.fails_at}/s", end=""
        )
        print(f" | {seconds:.1f} CPU s", flush=True)


def main() -> None:
    """Run what the command line names."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("trace", type=Path)
    parser.add_argument("--rates", action="store_true")
    parser.add_argument("--limit", type=int)
    chosen = parser.parse_args()
    requests = logs.read([chosen.trace])
    rates(requests) if chosen.rates else whole(requests, chosen.limit)
    print(f"peak resident memory {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")


if __name__ == "__main__":
    main()
