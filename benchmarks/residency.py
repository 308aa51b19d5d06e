"""A million requests over fifty models: CPU seconds and memory of all that `kvplan residency` does with such a log.

Run: python benchmarks/residency.py [REQUESTS]. Popularity falls as 1/rank, arrivals are a Poisson process, a model
takes 5 to 40 GB and the machine holds 192 GB of them. The first run compiles; the time of that is told apart.
"""

from __future__ import annotations

import random
import resource
import sys
import tempfile
import time
from pathlib import Path

from kvplan.documents import Machine, ResidencyPolicy, ResidentModel
from kvplan.residency import policies, read_log, residency
from kvplan.resident.measure import COMPILED_FROM, play
from kvplan.units import GB, show_bytes

MODELS = 50
PER_S = 2.0


def write(path: Path, requests: int, models: list[ResidentModel]) -> None:
    """A log of that many requests, the same at every run."""
    draw = random.Random(50)
    weights = [1 / (rank + 1) for rank in range(len(models))]
    now = 0.0
    with path.open("w") as stream:
        for place in range(requests):
            now += draw.expovariate(PER_S)
            name = draw.choices(models, weights)[0].name
            lasts, patience = draw.expovariate(0.5), ', "timeout_s": 5' if place % 10 == 0 else ""
            stream.write(f'{{"time": {now:.3f}, "model": "{name}", "service_s": {lasts:.3f}{patience}}}\n')


def main() -> None:
    """Print one line a step: CPU seconds, and the most memory that the process has held so far."""
    requests = int(sys.argv[1]) if len(sys.argv) > 1 else 1_000_000
    draw = random.Random(1)
    models = [ResidentModel(name=f"m{i:02}", weights_bytes=draw.randint(5, 40) * GB) for i in range(MODELS)]
    machine = Machine(memory_bytes=192 * GB, read_bytes_per_s=7e9, pattern="direct")
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "log.jsonl"
        write(path, requests, models)
        begin = time.process_time()
        log = read_log(path, models)
        read_s = time.process_time() - begin
    begin = step("read", begin, f"{len(log.time_s):,} requests, {MODELS} models")
    asked, others = policies(machine, max_models=6)
    if requests >= COMPILED_FROM:
        play(models, machine, log.first(COMPILED_FROM), asked)
        begin = step(f"{COMPILED_FROM:,} and, if new, compiling", begin)
    for policy in (
        asked,
        ResidencyPolicy(name="by bytes", budget_bytes=192 * GB),
        ResidencyPolicy(name="by bytes, batched", budget_bytes=192 * GB, batch_wait_s=30.0, keep_alive_s=300.0),
    ):
        run = play(models, machine, log, policy)
        found = f"{run.loads:,} loads, {run.served:,} served, {run.left:,} left, {run.interrupted:,} cut"
        begin = step(policy.name, begin, found)
    residency(machine, models, log, asked, compare=others)
    step("all policies and the search", begin)
    step("the same and read", begin - read_s)


def step(name: str, begin: float, words: str = "") -> float:
    """Print what a step took, and begin the next."""
    most = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024
    print(f"{name:30} {time.process_time() - begin:6.2f} CPU s   {show_bytes(most):>12}   {words}", flush=True)
    return time.process_time()


if __name__ == "__main__":
    main()
