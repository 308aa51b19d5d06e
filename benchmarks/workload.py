"""Speed and memory of the workload stage, in CPU seconds and resident memory; equality with other tools on the way.

Run: python benchmarks/workload.py TRACES [--peer PYTHON] [--only kernel,command,peer,billion,sample]

TRACES is the folder with mooncake-conversation.jsonl.gz and claude-code-710-sessions.parquet. PYTHON is an interpreter
of an environment with kvcache-simulator 0.1.3, which is not one of ours. Wall time is left out: on a shared machine it
speaks of the neighbours. Every figure is the best of several fresh processes, except where one takes minutes.
"""

from __future__ import annotations

import argparse
import gzip
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from functools import partial
from itertools import count
from pathlib import Path

import numpy as np

from kvplan import logs, paths, reuse
from kvplan.profiling import sampling, whatif

CONVERSATION, CODING = "mooncake-conversation.jsonl.gz", "claude-code-710-sessions.parquet"
GENERATED_REFERENCES = 10_000_000
COPIES = 11  # of the coding trace, with blocks of their own: 1.04 G references
PEER_MODEL = "llama-3.1-8b"


def run(arguments: list[str]) -> tuple[float, float, str]:
    """User and system seconds, peak resident MiB and standard output of one fresh process."""
    with tempfile.TemporaryFile() as out:
        process = subprocess.Popen(arguments, stdout=out, stderr=subprocess.DEVNULL)
        _, status, usage = os.wait4(process.pid, 0)
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise SystemExit(f"{' '.join(arguments)} ended with {process.returncode}")
        out.seek(0)
        return usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, out.read().decode()


def kvplan_workload(path: Path, *options: str) -> list[str]:
    """The command line that profiles `path`."""
    return [sys.executable, "-m", "kvplan", "workload", str(path), "--json", "-q", *options]


def kernel(traces: Path) -> None:
    """Block references a second of the exact pass, all capacities at once, and of making the tree that it walks."""
    for name in (CONVERSATION, CODING):
        requests = logs.read([traces / name])
        references = int(requests.offsets[-1])
        passes: dict[str, Callable[[], object]] = {
            "exact pass": partial(reuse.find_runs, requests),
            "tree from ids": partial(paths.from_ids, requests.blocks, reuse.as_ints(requests.offsets)),
        }
        for what, once in passes.items():
            once()  # compiles
            seconds = min(timed(once) for _ in range(7))
            print(
                f"{what}, {name}: {references:,} references, {seconds:.4f} CPU s, {references / seconds / 1e6:,.0f} M/s"
            )


def timed(once: Callable[[], object]) -> float:
    """CPU seconds of one call."""
    start = time.process_time()
    once()
    return time.process_time() - start


def command(traces: Path) -> None:
    """The whole command, interpreter, reading and writing included."""
    for name in (CONVERSATION, CODING):
        run(kvplan_workload(traces / name))
        seconds, memory, text = min(run(kvplan_workload(traces / name)) for _ in range(3))
        references = json.loads(text)["data"]["block_references"]
        print(f"command, {name}: {references:,} references, {seconds:.2f} CPU s, {memory:,.0f} MiB")


def chats(path: Path) -> None:
    """A Mooncake log of ten million references: 800 conversations at a time, that grow, end and begin anew."""
    random = np.random.default_rng(0)
    histories: list[list[int]] = [[] for _ in range(800)]
    fresh, references, now = 1, 0, 0
    with path.open("w") as file:
        while references < GENERATED_REFERENCES:
            one = random.integers(len(histories))
            history = histories[one]
            if not history or random.random() < 0.03:
                history = histories[one] = [0]
            grown = int(random.integers(1, 9))
            history.extend(range(fresh, fresh + grown))
            fresh += grown
            now += int(random.integers(0, 100))
            tokens = len(history) * 512 - int(random.integers(0, 512))
            row = {"timestamp": now, "input_length": tokens, "output_length": 100, "hash_ids": history}
            file.write(json.dumps(row) + "\n")
            references += len(history)
            if tokens % 512:
                history[-1] = fresh  # the partial last block fills up and gets another hash
                fresh += 1


def conversations(path: Path, traces: Path) -> None:
    """A Mooncake log of ten million references: the conversation trace over and over, sharing as it does.

    Each time has blocks of its own, but for the first block, which all share, and comes after the last.
    """
    rows = [json.loads(line) for line in gzip.decompress((traces / CONVERSATION).read_bytes()).splitlines()]
    blocks = 1 + max(max(row["hash_ids"]) for row in rows)
    span_ms = rows[-1]["timestamp"] + 1000
    references = 0
    with path.open("w") as file:
        for copy, row in ((copy, row) for copy in count() for row in rows):
            ids = [block + copy * blocks if block else 0 for block in row["hash_ids"]]
            file.write(json.dumps(row | {"timestamp": row["timestamp"] + copy * span_ms, "hash_ids": ids}) + "\n")
            references += len(ids)
            if references >= GENERATED_REFERENCES:
                return


def peer(traces: Path, python: str | None) -> None:
    """Against kvcache-simulator, LRU only: CPU, memory, and hit tokens at every capacity above the longest request."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "generated.jsonl")
        chats(path)
        against("generated, long chats", path, python)
        conversations(path, traces)
        against("generated, as the conversation trace", path, python)
        path.write_bytes(gzip.decompress((traces / CONVERSATION).read_bytes()))
        if python is not None:
            compare("conversation", path, run(simulator(python, path))[2])


def against(name: str, path: Path, python: str | None) -> None:
    """CPU and memory of both tools on one log."""
    run(kvplan_workload(path))
    ours, _, text = min(run(kvplan_workload(path)) for _ in range(3))
    memory = max(run(kvplan_workload(path))[1] for _ in range(3))  # it varies by how the system hands out pages
    data = json.loads(text)["data"]
    size = f"{data['block_references']:,} references, {data['unique_blocks']:,} blocks, {data['requests']:,} requests"
    print(f"{name}, {size}, kvplan: {ours:.2f} CPU s, {memory:,.0f} MiB")
    if python is None:
        print("kvcache-simulator was not run: give --peer PYTHON")
        return
    theirs, its_memory, text = run(simulator(python, path))
    print(f"{name}, kvcache-simulator: {theirs:.2f} CPU s, {its_memory:,.0f} MiB")
    print(f"ratio: {theirs / ours:.1f} times the CPU, {its_memory / memory:.2f} times the memory")
    compare(name, path, text)


def simulator(python: str, path: Path) -> list[str]:
    """The other tool's command line; it knows capacities in GiB of a model's cache only."""
    options = ["--model", PEER_MODEL, "--block-size", "512", "--policies", "lru", "--no-progress", "--format", "json"]
    return [str(Path(python).with_name("kvcache-simulator")), "run", "--trace", str(path), *options]


def compare(name: str, path: Path, text: str) -> None:
    """Hit tokens of the last half of the requests, at each of the other tool's capacities."""
    told = json.loads(text)
    capacities = [point["cacheBlocks"] for point in told["points"]]
    options = [option for capacity in capacities for option in ("--capacity-blocks", str(capacity))]
    data = json.loads(run(kvplan_workload(path, *options))[2])["data"]
    curve = {point["capacity_blocks"]: point["hit_tokens"] for point in data["warm_curve"]}
    requests = logs.read([path])
    longest = int(np.diff(requests.offsets).max())
    pairs = [(point["results"]["lru"]["hitTokens"], curve[point["cacheBlocks"]], point) for point in told["points"]]
    above = [(theirs, ours) for theirs, ours, point in pairs if point["cacheBlocks"] >= longest]
    same = sum(theirs == ours for theirs, ours in above)
    ceiling = told["ceiling"]["hitTokens"] == data["warm"]["hit_tokens"]
    print(f"{name}: hit tokens equal at {same} of {len(above)} capacities, ceiling equal: {ceiling}")


def copies(path: Path, out: Path) -> None:
    """The coding trace again and again as one Parquet log, each time with blocks of its own and after the last."""
    from pyarrow import compute, parquet, scalar

    table = parquet.read_table(path, columns=["timestamp", "input_length", "output_length", "hash_ids"])
    span_s, ids = float(table["timestamp"][-1].as_py()) + 1, table["hash_ids"].combine_chunks()
    with parquet.ParquetWriter(out, table.schema) as file:
        for copy in range(COPIES):
            own = type(ids).from_arrays(ids.offsets, compute.add(ids.values, scalar(copy << 22, ids.values.type)))
            later = table.set_column(0, "timestamp", compute.add(table["timestamp"], copy * span_s))
            file.write_table(later.set_column(3, table.schema.field(3), own), row_group_size=4000)


def billion(traces: Path) -> None:
    """A thousand million references, exactly."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "billion.parquet")
        run([sys.executable, __file__, str(traces), "--copies", str(path)])
        seconds, memory, text = run(kvplan_workload(path))
    data = json.loads(text)["data"]
    one = json.loads(run(kvplan_workload(traces / CODING))[2])["data"]
    same = data["cold"]["hit_blocks"] == COPIES * one["cold"]["hit_blocks"]
    print(
        f"exact, {data['block_references']:,} references, {data['unique_blocks']:,} blocks: {seconds:.1f} CPU s, "
        f"{memory:,.0f} MiB; infinite cache's hits {COPIES} times those of one copy: {same}"
    )


def many(path: Path) -> Iterator[sampling.Batch]:
    """The coding trace again and again, each time with blocks of its own."""
    for copy in range(COPIES):
        for batch in sampling.batches_in(path):
            blocks = batch.blocks.astype(np.int64) + copy * (1 << 24)
            yield sampling.Batch(blocks=blocks, offsets=batch.offsets, input_tokens=batch.input_tokens)


def sample(traces: Path, rate: float) -> None:
    """A billion references from a sample in bounded memory, against the exact curve, which is that of one copy."""
    path = traces / CODING
    sizes = [10_000, 30_000, 100_000, 300_000, 1_000_000, 3_000_000]
    capacities = [size for size in sizes if size >= sampling.least_capacity(rate)]
    asked = ["--sampled", str(rate), *map(str, capacities)]
    seconds, memory, text = run([sys.executable, __file__, str(traces), *asked])
    told = json.loads(text)
    requests = logs.read([path])
    exact = whatif.curve(reuse.find_runs(requests), requests, capacities)
    every = int(requests.offsets[-1])
    off = [abs(ratio - one.hit_blocks / every) for ratio, one in zip(told["ratios"], exact, strict=True)]
    print(
        f"sample, one block in {1 / rate:.0f} of {told['references']:,} references: {seconds:.1f} CPU s, "
        f"{memory:,.0f} MiB; error against exact: mean {np.mean(off):.4f}, most {max(off):.4f}; "
        f"its own standard error: at most {max(told['errors']):.4f}"
    )


def sampled(path: Path, rate: float, capacities: list[int]) -> None:
    """The sampled curve as JSON, for a process of its own."""
    result = sampling.curve(lambda: many(path), block_tokens=64, capacities=capacities, rate=rate)
    ratios = [point.block_hit_ratio for point in result.points]
    errors = [point.standard_error_ratio for point in result.points]
    print(json.dumps({"references": result.block_references, "ratios": ratios, "errors": errors}))


def main() -> None:
    """Print one line a figure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("traces", type=Path)
    parser.add_argument("--peer", help="interpreter of an environment with kvcache-simulator")
    parser.add_argument("--only", default="kernel,command,peer,billion,sample")
    parser.add_argument("--sampled", nargs="+", help=argparse.SUPPRESS)  # what `sample` starts in its own process
    parser.add_argument("--copies", type=Path, help=argparse.SUPPRESS)  # and `billion`
    given = parser.parse_args()
    if given.copies:
        copies(given.traces / CODING, given.copies)
        return
    if given.sampled:
        rate, *capacities = given.sampled
        sampled(given.traces / CODING, float(rate), [int(one) for one in capacities])
        return
    chosen = given.only.split(",")
    if "command" in chosen:
        command(given.traces)
    if "peer" in chosen:
        peer(given.traces, given.peer)
    if "billion" in chosen:
        billion(given.traces)
    if "sample" in chosen:
        sample(given.traces, 0.003)
    if "kernel" in chosen:  # last: what this process holds counts for those that it starts
        kernel(given.traces)


if __name__ == "__main__":
    main()
