"""One page of what a probe measured on a GPU host: rates by piece, mechanism and direction, decoding, drives."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from kvplan.documents import GpuDevice, Link, Pinning, Probe
from kvplan.probing.gpu_cells import OPPOSITE
from kvplan.probing.mechanisms import WORDS
from kvplan.units import GB, show_bytes, show_duration, show_rate

# Bytes a second that one lane carries after its line code, before packet headers, by PCI Express generation.
_LANE = {1: 0.25 * GB, 2: 0.5 * GB, 3: 0.985 * GB, 4: 1.969 * GB, 5: 3.938 * GB, 6: 7.563 * GB}
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
        coherent = any(one.code == "gpu-coherent" and one.text.startswith(f"{name}: ") for one in found.findings)
        yield from _device(name, {gpu.index: gpu for gpu in host.gpus}.get(report.gpu), coherent)
        yield from _pinning(report)
        mine = [link for link in found.links if name in (link.source, link.target)]
        yield from _table([link for link in mine if link.preset is None and link.concurrent in ("none", OPPOSITE)])
        yield from _pieces(mine)
        yield from _contention(found, report.gpu)
        yield from _pipeline(found, report.gpu)
    yield ""
    yield from _verification(found)


def _device(name: str, gpu: GpuDevice | None, coherent: bool) -> Iterator[str]:
    if gpu is None:
        yield f"{name}      not in the driver's inventory"
        return
    node = "unknown" if gpu.numa_node is None else str(gpu.numa_node)
    yield f"{name}      {gpu.name}, {show_bytes(gpu.total_bytes)}, PCI {gpu.pci}, NUMA node {node}, driver {gpu.driver}"
    if coherent:
        yield "Link      NVLink-C2C to host memory"
        return
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
    """Pieces by the mechanisms that move them, alone and both ways at once: microseconds a piece, bytes a second."""
    alone = [link for link in links if link.concurrent == "none" and "pageable" not in link.flags]
    beside = [link for link in links if link.concurrent == OPPOSITE and "pageable" not in link.flags]
    sizes = {link.granule_bytes for link in alone if link.preset}
    if sizes:
        yield ""
        titles = "".join(f"{title:>22}" for title in ("H2D", "D2H", "H2D both", "D2H both"))
        yield f"{'piece':>12}  {'mechanism':<10}{titles}"
    for size in sorted(sizes):
        for name in WORDS:
            preset = None if name == "loop" else name
            ways = [
                {link.direction: link for link in some if (link.granule_bytes, link.preset) == (size, preset)}
                for some in (alone, beside)
            ]
            cells = "".join(f"{_piece(some.get(way)):>22}" for some in ways for way in ("h2d", "d2h"))
            if any(ways):
                yield f"{show_bytes(size):>12}  {name:<10}{cells}"


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
