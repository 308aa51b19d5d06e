"""Stands in for the aiperf program in tests: takes its words, plays a schedule one request after another, and leaves
files of the same shape. FAKE_AIPERF=hang waits for ever, =fail ends badly, =empty leaves nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
import urllib.request
from pathlib import Path
from typing import Any


def metric(value: float, unit: str) -> dict[str, Any]:
    return {"value": value, "unit": unit}


def ask(url: str, payload: dict[str, Any]) -> tuple[float, dict[str, Any]]:
    """Seconds to the first event of a streamed answer, and its usage."""
    body = json.dumps(payload).encode()
    began, first, usage = time.monotonic(), 0.0, {}
    with urllib.request.urlopen(urllib.request.Request(f"{url}/v1/completions", body)) as answer:
        for line in answer:
            if line.startswith(b"data: {"):
                first = first or time.monotonic() - began
                usage = json.loads(line[6:]).get("usage") or usage
    return first, usage


def main() -> None:
    if "--version" in sys.argv:
        print("aiperf 0.13.0")
        return
    parser = argparse.ArgumentParser()
    for name in ("--url", "--input-file", "--artifact-dir", "--tokenizer", "--model"):
        parser.add_argument(name, required=True)
    asked, _ = parser.parse_known_args(sys.argv[2:])
    mode = os.environ.get("FAKE_AIPERF")
    if mode == "hang":
        Path(asked.artifact_dir, "pid").write_text(str(os.getpid()))
        time.sleep(600)
    if mode == "fail":
        sys.exit("the model does not exist")
    assert Path(asked.tokenizer, "tokenizer.json").exists()
    lines = []
    for number, text in enumerate(Path(asked.input_file).read_text().splitlines()):
        row = json.loads(text)
        start = time.time_ns()
        ttft, usage = ask(asked.url, row["payload"])
        details = usage["prompt_tokens_details"]
        metadata = {
            "session_num": number,
            "conversation_id": row["session_id"],
            "turn_index": 0,
            "request_start_ns": start,
            "request_end_ns": time.time_ns(),
            "benchmark_phase": "profiling",
            "was_cancelled": False,
        }
        metrics = {
            "time_to_first_token": metric(ttft * 1000, "ms"),
            "request_latency": metric(ttft * 1000, "ms"),
            "usage_prompt_tokens": metric(usage["prompt_tokens"], "tokens"),
            "usage_completion_tokens": metric(usage["completion_tokens"], "tokens"),
            "usage_prompt_cache_read_tokens": metric(details["cached_tokens"], "tokens"),
        }
        lines.append(json.dumps({"metadata": metadata, "metrics": metrics}) + "\n")
    if mode != "empty":
        Path(asked.artifact_dir, "profile_export.jsonl").write_text("".join(lines))
        lag = {"replay_sched_lag_p99": {"unit": "ms", "avg": 1.5}}
        Path(asked.artifact_dir, "profile_export_aiperf.json").write_text(json.dumps(lag))


if __name__ == "__main__":
    main()
