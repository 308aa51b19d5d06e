"""Drive throughput and latency as kvplan measures them against fio: same file, sizes, depths, random order.

Run: python benchmarks/disk.py [--folder DIR] [--pairs 20] [--bytes 512MiB] [--cell read:1MiB:4 …]

Each round of a cell runs, in random order, fio twice as kvplan submits (psync, a thread for each transfer in flight),
kvplan once, and fio once over libaio (one thread, a queue); cells are interleaved. A pair is kvplan over the geometric
mean of the two alike fio runs; those two over each other are the noise floor. Latencies are held against these too,
of the call alone: fio's total latency begins before it changes the buffer that it is about to write. What libaio shows
stands beside, and what fio over libaio shows against fio with threads: that is the engine's part of any difference.
All run in the realtime class where that is allowed (not with --ordinary), so that other programs on the same processors
do not decide. Needs fio 3 (Debian: fio).
"""

from __future__ import annotations

import argparse
import contextlib
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from pathlib import Path

from kvplan.errors import KvplanError
from kvplan.probing import disk_io, scratch
from kvplan.probing.pattern import Pattern
from kvplan.units import GiB, KiB, MiB, parse_size, show_bytes, show_duration, show_rate

CELLS = [(way, size, depth) for way in ("read", "write") for size in (128 * KiB, MiB, 4 * MiB) for depth in (1, 4, 16)]
FIO = ("--direct=1", "--lat_percentiles=1", "--clat_percentiles=1", "--allow_file_create=0", "--output-format=json")
# Of a thread's call the time from issuing to its end; of a queue, submitting is part of it, as it is of a call.
LATENCY = {"psync": "clat_ns", "libaio": "lat_ns"}


@dataclass(frozen=True, slots=True)
class Shot:
    """One run of one tool: bytes per second and latency percentiles in seconds."""

    rate: float
    p50: float
    p99: float
    cpu_s_per_gb: float


@dataclass(frozen=True, slots=True)
class Round:
    """The runs of one cell close in time: kvplan, fio twice with threads, fio over a queue."""

    ours: Shot
    one: Shot
    two: Shot
    queue: Shot

    def alike(self, what: str) -> float:
        """The figure of fio with threads: the geometric mean of its two runs."""
        return math.sqrt(getattr(self.one, what) * getattr(self.two, what))


@dataclass(slots=True)
class Cell:
    """One point of the grid and the rounds run there."""

    way: str
    size: int
    depth: int
    rounds: list[Round] = field(default_factory=list)

    def __str__(self) -> str:
        return f"{self.way:5} {show_bytes(self.size):>10} x {self.depth:<2}"


def fio(engine: str, path: str, cell: Cell, file_bytes: int, count: int, seed: int) -> Shot:
    """Transfer `count` blocks with fio: libaio keeps the depth in one thread, psync needs a thread for each."""
    jobs = cell.depth if engine == "psync" else 1
    arguments = [
        *("fio", "--name=pair", f"--filename={path}", *FIO),
        *(f"--ioengine={engine}", f"--rw=rand{cell.way}", f"--bs={cell.size}", f"--iodepth={cell.depth // jobs}"),
        *(f"--size={file_bytes}", f"--io_size={count // jobs * cell.size}", f"--randseed={seed}"),
        *("--thread", f"--numjobs={jobs}", "--group_reporting"),
    ]
    done = subprocess.run(arguments, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"fio ended with {done.returncode}: {done.stderr.strip()}")
    job = json.loads(done.stdout[done.stdout.index("{") :])["jobs"][0]
    side = job[cell.way]
    latency = side[LATENCY[engine]]["percentile"]
    # Of several threads fio tells the average.
    cpu = jobs * (job["usr_cpu"] + job["sys_cpu"]) / 100 * side["runtime"] / 1e3
    return Shot(
        rate=side["bw_bytes"],
        p50=latency["50.000000"] / 1e9,
        p99=latency["99.000000"] / 1e9,
        cpu_s_per_gb=cpu / (side["io_bytes"] / 1e9),
    )


def ours(descriptor: int, cell: Cell, file_bytes: int, count: int, seed: int) -> Shot:
    """Transfer `count` blocks as a probe does."""
    job = disk_io.Job(
        direction="read" if cell.way == "read" else "write",
        granule=cell.size,
        depth=cell.depth,
        file_bytes=file_bytes,
        seconds=60.0,
        pattern=Pattern(seed, 2, cell.size),
        limit=count,
        seed=seed,
    )
    done = disk_io.run(descriptor, job, lambda rate: None)
    rates = done.rates
    # As fio counts: all bytes, from the first start to the last end. A probe leaves out the end, when threads run dry.
    rate = done.moved_bytes / float(done.end_s.max() - done.start_s.min())
    return Shot(rate, rates.p50_latency_s, rates.p99_latency_s, done.cpu_s_per_gb)


def measure(descriptor: int, cells: list[Cell], file_bytes: int, moved: int, pairs: int) -> None:
    """Fill every cell with rounds; cells take turns, so that a busy minute falls on all of them."""
    path = f"/proc/{os.getpid()}/fd/{descriptor}"
    dice = random.Random(0)
    for number in range(pairs):
        for cell in dice.sample(cells, len(cells)):
            count = max(moved // cell.size, 4 * cell.depth)
            shots: dict[str, Shot] = {}
            for who in dice.sample(("ours", "one", "two", "queue"), 4):
                seed = dice.randrange(1 << 30)
                if who == "ours":
                    shots[who] = ours(descriptor, cell, file_bytes, count, seed)
                else:
                    engine = "libaio" if who == "queue" else "psync"
                    shots[who] = fio(engine, path, cell, file_bytes, count, seed)
            cell.rounds.append(Round(**shots))
        print(f"\rround {number + 1} of {pairs}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def summary(logs: list[float]) -> str:
    """Geometric mean of ratios with its 95 % confidence interval (normal, of the logarithms)."""
    if not logs:
        return "unknown"
    middle = statistics.fmean(logs)
    half = 1.96 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    return f"{math.exp(middle):.3f} [{math.exp(middle - half):.3f}, {math.exp(middle + half):.3f}]"


Pick = Callable[[Round, str], float]
PAIRS: dict[str, Pick] = {
    "kvplan / fio": lambda one, what: getattr(one.ours, what) / one.alike(what),
    "fio / fio": lambda one, what: getattr(one.one, what) / getattr(one.two, what),
    "kvplan / libaio": lambda one, what: getattr(one.ours, what) / getattr(one.queue, what),
    "libaio / fio": lambda one, what: getattr(one.queue, what) / one.alike(what),
}


def logs(cells: list[Cell], pair: str, what: str) -> list[float]:
    """Logarithms of the ratios of all rounds; one with a figure of 0, such as a moment's processor time, has none."""
    rounds = [one for cell in cells for one in cell.rounds]
    whole = [one for one in rounds if all(getattr(run, what) for run in (one.ours, one.one, one.two, one.queue))]
    return [math.log(PAIRS[pair](one, what)) for one in whole]


def report(cells: list[Cell]) -> None:
    """Print a table of throughput, and one of each latency percentile, with the noise floor beside each figure."""
    rows: list[tuple[str, list[Cell]]] = [(str(cell), [cell]) for cell in cells]
    for way in ("read", "write"):
        rows.append((f"all {way}s", [cell for cell in cells if cell.way == way]))
    rows = [(label, group) for label, group in [*rows, ("all", cells)] if group]
    for what, title in (("rate", "throughput"), ("p50", "latency p50"), ("p99", "latency p99")):
        print(f"\n{title:21} {'fio':>10}  " + "".join(f"{name:23}" for name in PAIRS))
        for label, group in rows:
            middle = statistics.median(one.alike(what) for cell in group for one in cell.rounds)
            shown = show_rate(middle) if what == "rate" else show_duration(middle)
            print(f"{label:21} {shown:>10}  " + "".join(f"{summary(logs(group, name, what)):23}" for name in PAIRS))
    cpu = "; ".join(f"{name} {summary(logs(cells, name, 'cpu_s_per_gb'))}" for name in PAIRS)
    print(f"\nCPU time per GB: {cpu}")
    ratios = logs(cells, "kvplan / fio", "rate")
    print(f"{len(ratios)} pairs; σ of the logarithm of one pair {_sigma(ratios):.2f}")
    print("fio: psync, a thread for each transfer in flight, as kvplan; libaio: fio with one thread and a queue")


def _sigma(logs: list[float]) -> float:
    return statistics.stdev(logs) if len(logs) > 1 else math.nan


def _cell(text: str) -> Cell:
    way, size, depth = text.split(":")
    return Cell(way, parse_size(size), int(depth))


@contextlib.contextmanager
def written(folder: Path, size: int) -> Iterator[int]:
    """A nameless scratch file, wholly written."""
    with scratch.scratch_file(scratch.look(folder), size) as file:
        if not file.direct:
            raise SystemExit(f"{folder}: no direct I/O here: nothing to compare")
        fill = disk_io.Job(
            direction="write",
            granule=4 * MiB,
            depth=4,
            file_bytes=size,
            seconds=600.0,
            pattern=Pattern(0, 1, 4 * MiB),
            sequential=True,
        )
        disk_io.run(file.descriptor, fill, lambda rate: None)
        yield file.descriptor


def _realtime() -> None:
    try:
        os.sched_setscheduler(0, os.SCHED_FIFO, os.sched_param(5))
    except PermissionError:
        print("not allowed to run in the realtime class: expect more noise", file=sys.stderr)


def main() -> None:
    """Parse, say what will be written, measure, print."""
    parser = argparse.ArgumentParser(description="kvplan's drive measurement against fio")
    parser.add_argument("--folder", type=Path, default=Path("."))
    parser.add_argument("--pairs", type=int, default=20, help="rounds of every cell")
    parser.add_argument("--bytes", type=parse_size, default=512 * MiB, help="moved in one run")
    parser.add_argument("--file", type=parse_size, default=2 * GiB)
    parser.add_argument("--cell", type=_cell, action="append", help="way:size:depth; default the whole grid")
    parser.add_argument("--ordinary", action="store_true", help="ordinary scheduling class")
    parser.add_argument("--json", type=Path, help="write every run here")
    given = parser.parse_args()
    if not shutil.which("fio"):
        raise SystemExit("fio is not installed (Debian: apt-get install fio)")
    cells = given.cell or [Cell(*point) for point in CELLS]
    writes = sum(max(given.bytes, 4 * cell.size * cell.depth) for cell in cells if cell.way == "write")
    total = show_bytes(given.file + 4 * given.pairs * writes)
    print(f"writes {total} into a nameless file of {show_bytes(given.file)} in {given.folder}", file=sys.stderr)
    if not given.ordinary:
        _realtime()
    try:
        with written(given.folder, given.file) as descriptor:
            measure(descriptor, cells, given.file, given.bytes, given.pairs)
    except KvplanError as error:
        raise SystemExit(str(error)) from None
    report(cells)
    if given.json:
        rounds = {str(cell): [asdict(one) for one in cell.rounds] for cell in cells}
        given.json.write_text(json.dumps(rounds))


if __name__ == "__main__":
    main()
