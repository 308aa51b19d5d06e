"""Measure a GPU host's links in a few minutes and print one page: `make gpu-check`, or this file by any Python 3.11.

Runs the same code as `kvplan probe`, on every GPU that this process may use, in the pieces of every engine for one
model; then what plans would take from it, copies timed as nvbandwidth does, and a prefill summed from cut models
against a whole one. It needs msgspec, numpy and a torch with CUDA, for the prefill transformers too; kvplan need not be
installed. It ends within five minutes, with 1 where there is no GPU, where a copy did not arrive as it was sent, or
where something was not measured. `--ready` only says whether this Python has what it needs.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib.util
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from kvplan.documents import Estimate, Probe

NEEDED = ("msgspec", "numpy", "torch")
# Where more than two GPUs share the time, what each may take beyond its part adds up.
BUDGET_S, BUDGET_OF_MANY_S, MANY = 150.0, 110.0, 3
MODEL = "llama-3.1-8b"
# Beside every engine's pieces: these through every mechanism, a layer's keys of a block, and a block of all layers.
PIECES = (32 << 10, 2 << 20)
# nvbandwidth 0.8: so many copies of this size behind work that holds the stream, after some to warm up; median.
_THEIR_BYTES, _THEIR_COPIES, _THEIR_WARM, _THEIR_SAMPLES = 512 << 20, 16, 4, 3
_HOLD_CYCLES = 50_000_000
_LENGTHS = (512, 2048, 8192)
# No addition starts later than the first, no GPU is begun or gone on with after the second where there are several, and
# whatever hangs is ended at the last, with a trace of where it hung.
_LAST_START_S, _LAST_GPU_S, _LIMIT_S = 225.0, 250.0, 290.0
_SEQUENCE = 2000  # tokens, for engines whose pieces are sequences
_PARTS = ("gpu-not-measured", "gpu-part-not-measured")


def lacking() -> str:
    """What this Python lacks, in one line; empty where it has all."""
    if sys.version_info < (3, 11):  # noqa: UP036 - whatever Python is there runs this
        return f"this Python is {sys.version.split()[0]}, and kvplan needs 3.11 or newer"
    absent = [name for name in NEEDED if importlib.util.find_spec(name) is None]
    if absent:
        return f"this Python has no {', '.join(absent)}"
    import torch

    return "" if torch.version.cuda else f"this Python's torch {torch.__version__} was built without CUDA"


def _as_nvbandwidth(_: Probe) -> Iterator[str]:
    """One large copy each way, timed the way nvbandwidth times it, to hold beside the largest pieces of the table."""
    import torch

    from kvplan.units import show_bytes, show_rate

    host = torch.empty(_THEIR_BYTES, dtype=torch.uint8, pin_memory=True).fill_(1)
    there = torch.zeros(_THEIR_BYTES, dtype=torch.uint8, device="cuda:0")
    for way, target, source in (("h2d", there, host), ("d2h", host, there)):
        rates = []
        for _sample in range(_THEIR_SAMPLES):
            for _copy in range(_THEIR_WARM):
                target.copy_(source, non_blocking=True)
            torch.cuda._sleep(_HOLD_CYCLES)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _copy in range(_THEIR_COPIES):
                target.copy_(source, non_blocking=True)
            end.record()
            end.synchronize()
            rates.append(_THEIR_COPIES * _THEIR_BYTES / (start.elapsed_time(end) / 1e3))
        how = f"{_THEIR_COPIES} x {show_bytes(_THEIR_BYTES)}, median of {len(rates)}"
        yield f"As nvbandwidth, gpu0 {way}: {show_rate(statistics.median(rates))} ({how})"


def _prefill(_: Probe) -> Iterator[str]:
    """A model of 12 layers, summed from cuts and measured whole, on the first GPU."""
    import prefill
    import torch

    from kvplan.probing.passes import TorchPasses
    from kvplan.units import show_duration

    wide = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    raw = {**prefill.MODELS["dense GQA (Qwen3)"], **wide, "intermediate_size": 14336, "max_position_embeddings": 16384}
    device = TorchPasses("12 layers as of an 8B model", "cuda:0", torch.cuda.get_device_name(0), 0)
    for row in prefill.compare("12 layers as of an 8B model", raw, _LENGTHS, 5, device):
        times = f"{show_duration(row.predicted)} from cuts, {show_duration(row.measured)} whole"
        yield f"Prefill   {row.tokens:>6,} tokens, 12 layers: {times} ({100 * row.error:+.1f} %)"


def _plans(found: Probe) -> Iterator[str]:
    """What a plan of each engine and offload layer takes for the host link, and what it misses."""
    from kvplan.engines.profiles import layers_of, profile
    from kvplan.planning.links import host_rates, shape
    from kvplan.units import show_rate

    of = _estimate()
    for engine, offload in layers_of("none"):
        rules = profile(engine, offload)
        load, store = (
            shape(move, of, of.kv.bytes_per_token_per_gpu, rules, _SEQUENCE) for move in (rules.load, rules.store)
        )
        rates, told = host_rates(found, load, store, False)
        name = engine if offload == "native" else f"{engine} with {offload}"
        if rates is None:
            yield f"Plans     {name:<26} no clean pair of cells"
            continue
        ways = f"loads {show_rate(rates.load_bytes_per_s)}, stores {show_rate(rates.store_bytes_per_s)} a GPU"
        yield f"Plans     {name:<26} {ways}{''.join(f' ({finding.code})' for finding in told)}"


def _estimate() -> Estimate:
    """A model's blocks, in nobody's engine: it stands for every engine's pieces."""
    from kvplan.documents import EstimateOptions
    from kvplan.estimate import estimate
    from kvplan.model import load_model

    return estimate(load_model(MODEL), EstimateOptions())


def _tried(name: str, check: Callable[[Probe], Iterator[str]], found: Probe, spent_s: float) -> Iterator[str]:
    """A check's lines, or why there are none: it is an addition, and the page stands without it."""
    from kvplan.errors import KvplanError
    from kvplan.units import show_duration

    if spent_s > _LAST_START_S:
        yield f"{name}: not measured: {show_duration(spent_s)} are spent"
        return
    try:
        yield from check(found)
    except (KvplanError, RuntimeError, ImportError, OSError) as error:
        yield f"{name}: not measured: {str(error).splitlines()[0]}"


def _real() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def _measured(disk: str | None) -> Probe:
    """The probe. Raises KvplanError where nothing can be measured."""
    from kvplan import probe, probe_host
    from kvplan.documents import ProbeOptions
    from kvplan.errors import KvplanError

    began = time.monotonic()
    many = len(probe_host.inventory().gpus) >= MANY
    options = ProbeOptions(
        only=("host", "gpu", "contention", *(("pipeline",) if disk else ())),
        budget_s=BUDGET_OF_MANY_S if many else BUDGET_S,
        granule_bytes=() if many else PIECES,
        moves=probe.kv_moves(_estimate()),
        disks=(disk,) if disk else (),
        allow_pageable=True,
    )

    def told(what: str, done: float | None = None) -> None:
        spent = time.monotonic() - began
        print(f"{spent:5.0f} s  {what}", file=sys.stderr, flush=True)
        if many and spent > _LAST_GPU_S:
            raise KvplanError(f"{what}: no time left")

    return probe.measure(options, told)


def _verdict(found: Probe, lines: list[str]) -> str:
    """What is wrong or lacking, empty where nothing is."""
    wrong = [finding.text for finding in found.findings if finding.severity == "error"]
    if not found.pinning:
        return f"nothing was measured: {found.host.gpu_status}"
    if wrong:
        return "; ".join(wrong)
    absent = [finding.text for finding in found.findings if finding.code in _PARTS]
    absent += [line for line in lines if ": not measured: " in line or line.endswith("no clean pair of cells")]
    return f"{len(absent)} parts were not measured, named above" if absent else ""


def main() -> int:
    """Measure and print; 1 where there is no GPU or something is wrong with it."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--disk", help="a folder on the drive that a pipeline goes to; none is measured without")
    parser.add_argument("--output", help="a file for the probe's document, which plans and reports read")
    parser.add_argument("--ready", action="store_true", help="only say whether this Python has what is needed")
    asked = parser.parse_args()
    why = lacking() if asked.ready or any(importlib.util.find_spec(name) is None for name in NEEDED) else ""
    if why:
        print(f"gpu-check: {why}: `make gpu-check` makes an environment that has it", file=sys.stderr)
        return 1
    if asked.ready:
        return 0
    for folder in (Path(__file__).resolve().parents[1], Path(__file__).resolve().parent):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    faulthandler.dump_traceback_later(_LIMIT_S, exit=True, file=sys.__stderr__ or sys.stderr)
    try:
        return _check(asked)
    finally:
        faulthandler.cancel_dump_traceback_later()


def _check(asked: Any) -> int:
    from gpu_page import page

    from kvplan.errors import KvplanError
    from kvplan.files import dump, wrap
    from kvplan.units import show_duration

    began = time.monotonic()
    try:
        found = _measured(asked.disk)
    except KvplanError as error:
        print(f"gpu-check: {error}", file=sys.stderr)
        return error.exit_code
    if asked.output:
        Path(asked.output).write_text(dump(wrap(found)))
    print("\n".join(page(found)), flush=True)
    lines = []
    checks: list[tuple[str, Callable[[Probe], Iterator[str]]]] = [("Plans", _plans)]
    if _real():
        checks += [("As nvbandwidth", _as_nvbandwidth), ("Prefill", _prefill)]
    for name, check in checks if found.pinning else ():
        spent = 0.0 if check is _plans else time.monotonic() - began  # plans take no time
        for line in _tried(name, check, found, spent):
            lines.append(line)
            print(line, flush=True)
    why = _verdict(found, lines)
    took = show_duration(time.monotonic() - began)
    print(
        f"gpu-check: FAILED after {took}: {why}" if why else f"gpu-check: all measured and right, in {took}", flush=True
    )
    return 1 if why else 0


if __name__ == "__main__":
    sys.exit(main())
