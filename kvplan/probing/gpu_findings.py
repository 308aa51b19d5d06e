"""What a reader should know of a GPU's figures beyond the figures."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from kvplan.documents import Contention, Finding, GpuDevice, Link, Pinning, Pipeline
from kvplan.probing import together
from kvplan.probing.mechanisms import Direction
from kvplan.probing.nvml import LinkState
from kvplan.units import show_bytes, show_rate


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """All that is known of one GPU when it has been measured.

    `node` is where its host memory really was; `missing` is why what was not measured was not.
    """

    name: str
    device: GpuDevice | None
    pinning: Pinning
    state: LinkState
    node: int | None
    measured: Sequence[Link | Contention | Pipeline]
    missing: Mapping[str, str]


def findings(facts: Facts) -> tuple[Finding, ...]:
    """Errors first, then what to distrust, then what was not measured."""
    found = [*_memory(facts), *_place(facts), *_wrong(facts), *_link(facts), *_company(facts), *_missing(facts)]
    return tuple(Finding(severity=one.severity, code=one.code, text=f"{facts.name}: {one.text}") for one in found)


def _memory(facts: Facts) -> Iterator[Finding]:
    report = facts.pinning
    if not report.pinned_bytes:
        text = f"no host memory could be page-locked ({report.stopped}): pageable copies only"
        yield Finding(severity="error", code="gpu-not-pinned", text=text)
    elif report.stopped:
        sizes = f"{show_bytes(report.pinned_bytes)} of {show_bytes(report.requested_bytes)}"
        text = f"only {sizes} could be page-locked: {report.stopped}"
        yield Finding(severity="warning", code="gpu-pinning-limited", text=text)


def _place(facts: Facts) -> Iterator[Finding]:
    own = facts.device.numa_node if facts.device else None
    if None not in (own, facts.node) and own != facts.node:
        text = (
            f"host memory came from node {facts.node}, but the GPU is at node {own}, whose memory or processors this "
            "process may not use: run it, and the engine, where the GPU is"
        )
        yield Finding(severity="warning", code="gpu-memory-elsewhere", text=text)


def _wrong(facts: Facts) -> Iterator[Finding]:
    wrong = sum("corrupt" in one.flags for one in facts.measured)
    if wrong:
        text = f"copies of {wrong} cells did not arrive as they were sent: distrust this link"
        yield Finding(severity="error", code="gpu-corrupt", text=text)


def _link(facts: Facts) -> Iterator[Finding]:
    device = facts.device
    if facts.state.coherent:
        text = "host memory is behind NVLink-C2C: the PCI Express link's generation and width say nothing of it"
        yield Finding(severity="info", code="gpu-coherent", text=text)
        return
    if device is None or facts.state.generation is None:
        return
    for what, now, best in (
        ("generation", device.link_generation, device.max_link_generation),
        ("width", device.link_width, device.max_link_width),
    ):
        if now is not None and best is not None and now < best:
            text = f"PCIe link {what} is {now} under load, {best} is possible"
            yield Finding(severity="warning", code="gpu-link-downgraded", text=text)


def _company(facts: Facts) -> Iterator[Finding]:
    state = facts.state
    if state.throttled:
        text = f"clocks were held down while it was measured: {', '.join(state.throttled)}"
        yield Finding(severity="warning", code="gpu-throttled", text=text)
    if state.other_processes:
        text = f"{state.other_processes} other processes use this GPU: stop them for a clean run"
        yield Finding(severity="warning", code="gpu-shared", text=text)
    if state.mig:
        own = f", and the {show_bytes(facts.device.total_bytes)} are those of this instance" if facts.device else ""
        text = f"is divided into instances (MIG): its link is shared with the others{own}"
        yield Finding(severity="warning", code="gpu-mig", text=text)
    if state.confidential:
        text = "confidential computing encrypts what crosses the link: expect far less"
        yield Finding(severity="warning", code="gpu-confidential", text=text)


def _missing(facts: Facts) -> Iterator[Finding]:
    for what, why in facts.missing.items():
        yield Finding(severity="warning", code="gpu-part-not-measured", text=f"{what}: not measured: {why}")


def by_root(links: Sequence[tuple[str, str | None, Link]], way: Direction) -> list[Finding]:
    """What the GPUs of each PCI root carry together while all copy; of each its name, its address and its link."""
    groups: dict[str, list[tuple[str, float]]] = {}
    for name, pci, one in links:
        groups.setdefault(together.root_of(pci) or "unknown root", []).append((name, one.p50_bytes_per_s))
    return [
        Finding(
            severity="info",
            code="gpus-together",
            text=f"{', '.join(name for name, _ in members)} ({root}) carry {show_rate(sum(r for _, r in members))} "
            f"{way} together while all GPUs copy",
        )
        for root, members in groups.items()
    ]
