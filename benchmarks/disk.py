"""Drive throughput and latency as kvplan measures them against fio: same file, sizes, depths, random order.

Run: python benchmarks/disk.py [--folder DIR] [--pairs 20] [--bytes 512MiB] [--cell read:1MiB:4 …]

Each round of a cell runs fio, kvplan and fio again, in random order; cells are interleaved. A pair is kvplan over the
geometric mean of its two fio runs; the two fio runs of one round over each other are the noise floor. All run in the
realtime class where that is allowed (not with --ordinary), so that other programs on the same processors do not decide.
Needs fio 3 (Debian: fio).
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
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from msgspec.structs import asdict

from kvplan.errors import KvplanError
from kvplan.probing import disk_io, scratch
from kvplan.probing.pattern import Pattern
from kvplan.units import GiB, KiB, MiB, parse_size, show_bytes

CELLS = [(way, size, depth) for way in ("read", "write") for size in (128 * KiB, MiB, 4 * MiB) for depth in (1, 4, 16)]
# Latencies of fio include the submission, as ours do.
FIO = ("--direct=1", "--lat_percentiles=1", "--allow_file_create=0", "--output-format=json")


@dataclass(frozen=True, slots=True)
class Shot:
    """One run of one tool: bytes per second and latency percentiles in seconds."""

    rate: float
    p50: float
    p99: float
    cpu_s_per_gb: float


@dataclass(slots=True)
class Cell:
    """One point of the grid and the rounds run there."""

    way: str
    size: int
    depth: int
    rounds: list[tuple[Shot, Shot, Shot]] = field(default_factory=list)

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
    latency = side["lat_ns"]["percentile"]
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


def measure(engine: str, descriptor: int, cells: list[Cell], file_bytes: int, moved: int, pairs: int) -> None:
    """Fill every cell with rounds; cells take turns, so that a busy minute falls on all of them."""
    path = f"/proc/{os.getpid()}/fd/{descriptor}"
    dice = random.Random(0)
    for number in range(pairs):
        for cell in dice.sample(cells, len(cells)):
            count = max(moved // cell.size, 4 * cell.depth)
            shots: dict[int, Shot] = {}
            for who in dice.sample(range(3), 3):
                seed = dice.randrange(1 << 30)
                if who == 1:
                    shots[who] = ours(descriptor, cell, file_bytes, count, seed)
                else:
                    shots[who] = fio(engine, path, cell, file_bytes, count, seed)
            cell.rounds.append((shots[0], shots[1], shots[2]))
        print(f"\rround {number + 1} of {pairs}", end="", file=sys.stderr, flush=True)
    print(file=sys.stderr)


def summary(logs: list[float]) -> str:
    """Geometric mean of ratios with its 95 % confidence interval (normal, of the logarithms)."""
    middle = statistics.fmean(logs)
    half = 1.96 * statistics.stdev(logs) / math.sqrt(len(logs)) if len(logs) > 1 else math.inf
    return f"{math.exp(middle):.3f} [{math.exp(middle - half):.3f}, {math.exp(middle + half):.3f}]"


def against(cells: list[Cell], what: str) -> list[float]:
    """Logarithms of ours over the geometric mean of the two fio runs around it."""
    return [
        math.log(getattr(mine, what) / math.sqrt(getattr(one, what) * getattr(two, what)))
        for cell in cells
        for one, mine, two in cell.rounds
    ]


def floor(cells: list[Cell], what: str) -> list[float]:
    """Logarithms of one fio run over the other of the same round, which of them first by chance."""
    return [math.log(getattr(one, what) / getattr(two, what)) for cell in cells for one, _, two in cell.rounds]


def report(cells: list[Cell]) -> None:
    """Print a row a cell and the totals."""
    print(f"{'cell':21} {'fio MB/s':>8}  {'kvplan / fio':21}  {'fio / fio':21}  {'p50 latency':21}  p99 latency")
    rows: list[tuple[str, list[Cell]]] = [(str(cell), [cell]) for cell in cells]
    for way in ("read", "write"):
        rows.append((f"all {way}s", [cell for cell in cells if cell.way == way]))
    for label, group in [*rows, ("all", cells)]:
        if group:
            middle = statistics.median(
                shot.rate for cell in group for one, _, two in cell.rounds for shot in (one, two)
            )
            ratios = (against(group, "rate"), floor(group, "rate"), against(group, "p50"), against(group, "p99"))
            print(f"{label:21} {middle / 1e6:8.0f}  " + "  ".join(f"{summary(logs):21}" for logs in ratios))
    noise = floor(cells, "p50"), floor(cells, "p99"), against(cells, "cpu_s_per_gb"), floor(cells, "cpu_s_per_gb")
    print(f"fio / fio: p50 latency {summary(noise[0])}, p99 latency {summary(noise[1])}")
    print(f"CPU time per GB: kvplan / fio {summary(noise[2])}, fio / fio {summary(noise[3])}")
    print(f"{len(against(cells, 'rate'))} pairs; σ of the logarithm of one pair {_sigma(cells):.2f}")


def _sigma(cells: list[Cell]) -> float:
    logs = against(cells, "rate")
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
    parser.add_argument("--engine", choices=("libaio", "psync"), default="libaio", help="of fio")
    parser.add_argument("--ordinary", action="store_true", help="ordinary scheduling class")
    parser.add_argument("--json", type=Path, help="write every run here")
    given = parser.parse_args()
    if not shutil.which("fio"):
        raise SystemExit("fio is not installed (Debian: apt-get install fio)")
    cells = given.cell or [Cell(*point) for point in CELLS]
    writes = sum(max(given.bytes, 4 * cell.size * cell.depth) for cell in cells if cell.way == "write")
    total = show_bytes(given.file + 3 * given.pairs * writes)
    print(f"writes {total} into a nameless file of {show_bytes(given.file)} in {given.folder}", file=sys.stderr)
    if not given.ordinary:
        _realtime()
    try:
        with written(given.folder, given.file) as descriptor:
            measure(given.engine, descriptor, cells, given.file, given.bytes, given.pairs)
    except KvplanError as error:
        raise SystemExit(str(error)) from None
    report(cells)
    if given.json:
        rounds = {str(cell): [[asdict(shot) for shot in row] for row in cell.rounds] for cell in cells}
        given.json.write_text(json.dumps(rounds))


if __name__ == "__main__":
    main()
