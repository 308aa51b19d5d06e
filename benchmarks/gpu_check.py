"""Measure a GPU host's links in a few minutes and print one page: `make gpu-check`.

Runs the same code as `kvplan probe`, on every GPU that this process may use, then two checks of its method: copies
timed as nvbandwidth does, and a prefill summed from cut models against the whole model's. Exits 1 where there is no
GPU, or where a copy did not arrive as it was sent.
"""

from __future__ import annotations

import argparse
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from kvplan import probe
from kvplan.documents import GpuDevice, Link, Pinning, Probe, ProbeOptions
from kvplan.errors import KvplanError
from kvplan.probing.gpu_cells import OPPOSITE
from kvplan.probing.mechanisms import WORDS
from kvplan.units import GB, KiB, MiB, show_bytes, show_duration, show_rate

BUDGET_S = 180.0
# Pieces of a KV cache as engines cut it: one layer's keys of a 16-token block, and whole blocks of a few models.
PIECES = (32 * KiB, 128 * KiB, 2048 * KiB)
# Bytes a second that one lane carries after its line code, before packet headers, by PCI Express generation.
_LANE = {1: 0.25 * GB, 2: 0.5 * GB, 3: 0.985 * GB, 4: 1.969 * GB, 5: 3.938 * GB, 6: 7.563 * GB}
# nvbandwidth 0.8: so many copies of this size behind work that holds the stream, after some to warm up; median.
_THEIR_BYTES, _THEIR_COPIES, _THEIR_WARM, _THEIR_SAMPLES = 512 * MiB, 16, 4, 3
_HOLD_CYCLES = 50_000_000
_LENGTHS = (512, 2048, 8192)
# No addition starts later than this, so that all of it ends in five minutes.
_LAST_START_S = 230.0
_COLUMNS = (
    ("H2D", "h2d", "none", False),
    ("D2H", "d2h", "none", False),
    ("H2D both", "h2d", OPPOSITE, False),
    ("D2H both", "d2h", OPPOSITE, False),
    ("H2D pageable", "h2d", "none", True),
    ("D2H pageable", "d2h", "none", True),
)


def page(found: Probe) -> Iterator[str]:
    """The lines of the page."""
    host = found.host
    yield f"Host      {host.cpu}, {host.cores} cores, {show_bytes(host.usable_memory_bytes)} usable, {host.gpu_status}"
    yield f"Kernel    {host.system} {host.kernel}{f', in {host.container}' if host.container else ''}"
    for report in found.pinning:
        name = f"gpu{report.gpu}"
        yield ""
        yield from _device(name, {gpu.index: gpu for gpu in host.gpus}.get(report.gpu))
        yield from _pinning(report)
        mine = [link for link in found.links if name in (link.source, link.target)]
        yield from _table([link for link in mine if link.preset is None and link.concurrent in ("none", OPPOSITE)])
        yield from _pieces(mine)
        yield from _contention(found, report.gpu)
        yield from _pipeline(found, report.gpu)
    yield ""
    yield from _verification(found)


def _device(name: str, gpu: GpuDevice | None) -> Iterator[str]:
    if gpu is None:
        yield f"{name}      not in the driver's inventory"
        return
    node = "unknown" if gpu.numa_node is None else str(gpu.numa_node)
    yield f"{name}      {gpu.name}, {show_bytes(gpu.total_bytes)}, PCI {gpu.pci}, NUMA node {node}, driver {gpu.driver}"
    lane = _LANE.get(gpu.link_generation or 0)
    if lane is None or not gpu.link_width:
        yield "Link      unknown"
        return
    best = f"generation {gpu.max_link_generation or '?'} x{gpu.max_link_width or '?'} possible"
    ceiling = show_rate(lane * gpu.link_width)
    yield f"Link      generation {gpu.link_generation} x{gpu.link_width} under load, {best}; raw {ceiling} each way"


def _pinning(report: Pinning) -> Iterator[str]:
    sizes = f"{show_bytes(report.pinned_bytes)} of {show_bytes(report.requested_bytes)}"
    per_gb = show_duration(report.register_s / (report.pinned_bytes / GB)) if report.pinned_bytes else "-"
    touch = show_duration(report.touch_s / (report.requested_bytes / GB))
    stopped = f"; {report.stopped}" if report.stopped else ""
    yield f"Pinned    {sizes}, {per_gb} per GB after {touch} per GB of first touch{stopped}"


def _table(links: list[Link]) -> Iterator[str]:
    cells: dict[tuple[int, str, str, bool], Link] = {
        (link.granule_bytes, link.direction, link.concurrent, "pageable" in link.flags): link for link in links
    }
    yield ""
    yield f"{'piece':>12}" + "".join(f"{title:>14}" for title, *_ in _COLUMNS) + f"{'H2D p50':>11}{'p99':>10}"
    for size in sorted({link.granule_bytes for link in links}):
        row = [cells.get((size, way, beside, pageable)) for _, way, beside, pageable in _COLUMNS]
        rates = "".join(f"{show_rate(link.p50_bytes_per_s) if link else '-':>14}" for link in row)
        lone = row[0]
        waits = (
            f"{show_duration(lone.p50_latency_s):>11}{show_duration(lone.p99_latency_s):>10}"
            if lone is not None
            else ""
        )
        yield f"{show_bytes(size):>12}{rates}{waits}"


def _pieces(links: list[Link]) -> Iterator[str]:
    """The sizes of pieces through every mechanism: microseconds a piece, and what that is in bytes a second."""
    alone = [link for link in links if link.concurrent == "none" and "pageable" not in link.flags]
    sizes = {link.granule_bytes for link in alone if link.preset}
    if sizes:
        yield ""
        yield f"{'piece':>12}  {'mechanism':<56}{'H2D':>24}{'D2H':>24}"
    for size in sorted(sizes):
        for words in WORDS.values():
            ways = {link.direction: link for link in alone if link.granule_bytes == size and words in link.method}
            cells = "".join(f"{_piece(ways.get(way)):>24}" for way in ("h2d", "d2h"))
            if ways:
                yield f"{show_bytes(size):>12}  {words:<56}{cells}"


def _piece(link: Any) -> str:
    if link is None:
        return "-"
    return f"{1e6 * link.granule_bytes / link.p50_bytes_per_s:.2f} us {show_rate(link.p50_bytes_per_s)}"


def _contention(found: Probe, gpu: int) -> Iterator[str]:
    mine = [one for one in found.contention if one.gpu == gpu]
    if mine:
        yield ""
        yield f"Decoding  {mine[0].load}"
        titles = ("alone", "beside", "step p50", "beside", "p99", "beside")
        yield f"{'piece':>12}  {'copies':<12}" + "".join(f"{title:>12}" for title in titles)
    for one in mine:
        steps = (one.step_alone_p50_s, one.step_loaded_p50_s, one.step_alone_p99_s, one.step_loaded_p99_s)
        rates = "".join(f"{show_rate(rate):>12}" for rate in (one.copy_alone_bytes_per_s, one.copy_loaded_bytes_per_s))
        times = "".join(f"{show_duration(seconds):>12}" for seconds in steps)
        flags = f"  {', '.join(one.flags)}" if one.flags else ""
        yield f"{show_bytes(one.granule_bytes):>12}  {one.direction + ' ' + one.mechanism:<12}{rates}{times}{flags}"


def _pipeline(found: Probe, gpu: int) -> Iterator[str]:
    mine = [one for one in found.pipeline if one.gpu == gpu]
    if mine:
        yield ""
        yield f"{'pipeline':>12}{'slots':>7}{'link':>12}{'drive':>12}{'in turn':>12}{'at once':>12}{'of slower':>11}"
    for one in mine:
        stages = (one.copy_bytes_per_s, one.disk_bytes_per_s, one.serial_bytes_per_s, one.overlapped_bytes_per_s)
        rates = "".join(f"{show_rate(rate):>12}" for rate in stages)
        flags = f"  {', '.join(one.flags)}" if one.flags else ""
        yield f"{one.direction:>12}{one.slots:>7}{rates}{one.overlap_ratio:>11.2f}{flags}"


def _as_nvbandwidth() -> Iterator[str]:
    """One large copy each way, timed the way nvbandwidth times it, to hold beside the largest pieces of the table."""
    import torch

    host = torch.empty(_THEIR_BYTES, dtype=torch.uint8, pin_memory=True).fill_(1)
    there = torch.zeros(_THEIR_BYTES, dtype=torch.uint8, device="cuda:0")
    for way, target, source in (("h2d", there, host), ("d2h", host, there)):
        rates = []
        for _ in range(_THEIR_SAMPLES):
            for _ in range(_THEIR_WARM):
                target.copy_(source, non_blocking=True)
            torch.cuda._sleep(_HOLD_CYCLES)
            start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
            start.record()
            for _ in range(_THEIR_COPIES):
                target.copy_(source, non_blocking=True)
            end.record()
            end.synchronize()
            rates.append(_THEIR_COPIES * _THEIR_BYTES / (start.elapsed_time(end) / 1e3))
        how = f"{_THEIR_COPIES} x {show_bytes(_THEIR_BYTES)}, median of {len(rates)}"
        yield f"As nvbandwidth, gpu0 {way}: {show_rate(statistics.median(rates))} ({how})"


def _prefill() -> Iterator[str]:
    """A model of 12 layers, summed from cuts and measured whole, on the first GPU."""
    import prefill
    import torch

    from kvplan.probing.passes import TorchPasses

    wide = {"hidden_size": 4096, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    raw = {**prefill.MODELS["dense GQA (Qwen3)"], **wide, "intermediate_size": 14336, "max_position_embeddings": 16384}
    device = TorchPasses("12 layers as of an 8B model", "cuda:0", torch.cuda.get_device_name(0), 0)
    for row in prefill.compare("12 layers as of an 8B model", raw, _LENGTHS, 5, device):
        times = f"{show_duration(row.predicted)} from cuts, {show_duration(row.measured)} whole"
        yield f"Prefill   {row.tokens:>6,} tokens, 12 layers: {times} ({100 * row.error:+.1f} %)"


def _tried(name: str, check: Callable[[], Iterator[str]], spent_s: float) -> Iterator[str]:
    """A check's lines, or why there are none: it is an addition, and the page stands without it."""
    if spent_s > _LAST_START_S:
        yield f"{name}: not measured: {show_duration(spent_s)} are spent"
        return
    try:
        yield from check()
    except (KvplanError, RuntimeError, ImportError, OSError) as error:
        yield f"{name}: not measured: {str(error).splitlines()[0]}"


def _verification(found: Probe) -> Iterator[str]:
    copies = sum(link.samples for link in found.links)
    wrong = sum("corrupt" in link.flags for link in found.links)
    verdict = f"{wrong} of {len(found.links)} cells held wrong data" if wrong else "every word arrived as it was sent"
    if copies:
        yield f"Verified  {copies:,} timed copies: {verdict}"
    restless = sum("not-steady" in link.flags for link in found.links)
    if restless:
        yield f"Restless  {restless} of {len(found.links)} cells did not settle"
    for finding in found.findings:
        yield f"{finding.severity:<9} {finding.text}"
    yield f"Took      {show_duration(found.wall_s)}"


def _real() -> bool:
    import torch

    return bool(torch.cuda.is_available())


def main() -> int:
    """Measure and print; 1 where there is no GPU or something is wrong with it."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--disk", help="a folder on the drive that a pipeline goes to; none is measured without")
    disk = parser.parse_args().disk
    only = ("host", "gpu", "contention", *(("pipeline",) if disk else ()))
    options = ProbeOptions(
        only=only, budget_s=BUDGET_S, granule_bytes=PIECES, disks=(disk,) if disk else (), allow_pageable=True
    )
    began = time.monotonic()
    try:
        found = probe.measure(options, lambda what, done=None: print(what, file=sys.stderr))
    except KvplanError as error:
        print(f"gpu-check: {error}", file=sys.stderr)
        return error.exit_code
    print("\n".join(page(found)), flush=True)
    if _real():
        for name, check in (("As nvbandwidth", _as_nvbandwidth), ("Prefill", _prefill)):
            for line in _tried(name, check, time.monotonic() - began):
                print(line, flush=True)
    return 0 if found.pinning and not any(finding.severity == "error" for finding in found.findings) else 1


if __name__ == "__main__":
    sys.exit(main())
