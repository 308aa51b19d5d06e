"""Measure a GPU host's links in a few minutes and print one page: `make gpu-check`.

Runs the same code as `kvplan probe --only gpu`, on every GPU that this process may use. Exits 1 where there is none, or
where a copy did not arrive as it was sent.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator

from kvplan import probe
from kvplan.documents import GpuDevice, Link, Pinning, Probe, ProbeOptions
from kvplan.errors import KvplanError
from kvplan.probe_gpu import OPPOSITE
from kvplan.units import GB, KiB, show_bytes, show_duration, show_rate

BUDGET_S = 150.0
# Pieces of a KV cache as engines cut it: one layer's keys of a 16-token block, and whole blocks of a few models.
PIECES = (32 * KiB, 128 * KiB, 2048 * KiB)
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
        yield from _device(name, {gpu.index: gpu for gpu in host.gpus}.get(report.gpu))
        yield from _pinning(report)
        yield from _table([link for link in found.links if name in (link.source, link.target)])
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


def main() -> int:
    """Measure and print; 1 where there is no GPU or something is wrong with it."""
    options = ProbeOptions(only=("host", "gpu"), budget_s=BUDGET_S, granule_bytes=PIECES)
    try:
        found = probe.measure(options, lambda what, done=None: print(what, file=sys.stderr))
    except KvplanError as error:
        print(f"gpu-check: {error}", file=sys.stderr)
        return error.exit_code
    print("\n".join(page(found)))
    return 0 if found.pinning and not any(finding.severity == "error" for finding in found.findings) else 1


if __name__ == "__main__":
    sys.exit(main())
