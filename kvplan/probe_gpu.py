"""One GPU's links to host memory: what copies really carry, at the sizes that serving engines use.

Host memory is page-locked the way engines do it, every timed copy is verified, and pageable copies stand beside the
page-locked ones. See docs/probing.md for the method.
"""

from __future__ import annotations

import dataclasses
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Literal

import numpy as np
from msgspec.structs import replace

from kvplan.documents import Contention, Finding, GpuDevice, Host, Link, Pinning, Pipeline
from kvplan.errors import KvplanError
from kvplan.probing import cuda, nvml, together
from kvplan.probing.cuda import Gpu, HostArray
from kvplan.probing.gpu_copies import Copies, Lane, Seen
from kvplan.probing.gpu_extras import Extras, Rig, beside_decoding, through_drive
from kvplan.probing.mechanisms import WORDS, Direction, Mechanism
from kvplan.probing.pinning import Arena, pin
from kvplan.progress import Progress, silent
from kvplan.units import KiB, MiB, show_bytes, show_rate

GRANULES = (64 * KiB, 256 * KiB, 1 * MiB, 4 * MiB, 16 * MiB)
BUFFER = 256 * MiB
PIN = 1024 * MiB
OPPOSITE = "opposite direction"
ALL_GPUS = "all GPUs"
NOTHING_ELSE = Extras()
_REMOTE_SHARE = 0.1
_SMALLEST_BUFFER = 4 * MiB
# Smaller pieces are bound by submitting them one by one, whatever runs in the other direction.
_DUPLEX_FROM = 1 * MiB
_LOAD_TRAINS = 16
_BOTH: tuple[Direction, ...] = ("h2d", "d2h")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One point of the sweep."""

    direction: Direction
    granule: int
    pinned: bool = True
    duplex: bool = False
    mechanism: Mechanism = "loop"

    @property
    def words(self) -> str:
        """The cell for a person: 'h2d 1.00 MiB beside the opposite direction'."""
        memory = "" if self.pinned else " pageable"
        memory += "" if self.mechanism == "loop" else f" by {self.mechanism}"
        return f"{self.direction} {show_bytes(self.granule)}{memory}" + (f" beside the {OPPOSITE}" * self.duplex)


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuResult:
    """Links of one GPU, what page-locking gave, and the inventory's entry with what its link showed under load."""

    gpu: GpuDevice | None
    links: tuple[Link, ...]
    pinning: Pinning
    findings: tuple[Finding, ...]
    contention: tuple[Contention, ...] = ()
    pipeline: tuple[Pipeline, ...] = ()
    written_bytes: int = 0


def cells(extra: tuple[int, ...], buffer: int, mechanisms: tuple[Mechanism, ...] = ("loop",)) -> tuple[Cell, ...]:
    """The sweep over a buffer: page-locked at every size, both directions at once, and pageable at a few sizes.

    Sizes asked for, such as a model's pieces, also go through every other mechanism that the GPU has.
    """
    asked = {-(-size // 8) * 8 for size in extra}  # whole 8-byte words, in which copies are verified
    sizes = sorted(size for size in {*GRANULES, *asked, buffer} if size <= buffer)
    together = [size for size in sizes if size >= _DUPLEX_FROM or size in asked]
    pageable = sorted({min(_DUPLEX_FROM, buffer), buffer})
    return (
        *(Cell(direction=way, granule=size) for size in reversed(sizes) for way in _BOTH),
        *(Cell(direction=way, granule=size, duplex=True) for size in reversed(together) for way in _BOTH),
        *(
            Cell(direction=way, granule=size, mechanism=mechanism)
            for size in sorted(asked & set(sizes))
            for mechanism in mechanisms
            if mechanism != "loop"
            for way in _BOTH
        ),
        *(Cell(direction=way, granule=size, pinned=False) for size in reversed(pageable) for way in _BOTH),
    )


def measure(
    gpu: Gpu,
    host: Host,
    *,
    seconds: float | None,
    extras: Extras = NOTHING_ELSE,
    granules: tuple[int, ...] = (),
    buffer_bytes: int = BUFFER,
    pin_bytes: int = PIN,
    seed: int = 0,
    progress: Progress = silent,
) -> GpuResult:
    """Measure one GPU's copies in about `seconds` (None: not at all), and whatever `extras` ask for.

    Raises KvplanError where the GPU fails or has no memory left to measure with. Page-locked memory is given back,
    whatever happens.
    """
    device = find_device(gpu, host)
    index = device.index if device else gpu.index
    name = f"gpu{index}"
    progress(f"{name}: page-locking host memory", 0.0)
    wanted = _affordable(max(pin_bytes, 2 * buffer_bytes), host)
    before = os.sched_getaffinity(0)  # all processors there are for this process: the next line narrows them
    with _near(_cpus(device, host)), pin(gpu, index, wanted, chunk=buffer_bytes) as arena:
        size = _buffer_size(gpu, name, buffer_bytes, arena)
        run = _Run(gpu, device, arena, size, seed, host, before)
        try:
            return run.result(granules, seconds, extras, progress)
        finally:
            run.settle()


def _affordable(wanted: int, host: Host) -> int:
    """At most a quarter of what the host can spare, in whole MiB."""
    room = host.usable_memory_bytes // 4 // MiB * MiB
    if room < 2 * _SMALLEST_BUFFER:
        usable = show_bytes(host.usable_memory_bytes)
        raise KvplanError(f"only {usable} of host memory can be used: too little to page-lock any for a measurement")
    return min(wanted, room)


def _buffer_size(gpu: Gpu, name: str, wanted: int, arena: Arena) -> int:
    """Bytes of each of the two buffers: as wanted, unless page-locking or device memory allow less."""
    pair = arena.pair(wanted)
    free = gpu.free_bytes() // 4 // MiB * MiB
    if free < _SMALLEST_BUFFER:
        raise KvplanError(
            f"{name}: only {show_bytes(gpu.free_bytes())} of device memory free, the probe needs "
            f"{show_bytes(4 * _SMALLEST_BUFFER)}: stop what fills it"
        )
    return min(len(pair[0]) if pair else wanted, free)


def find_device(gpu: Gpu, host: Host) -> GpuDevice | None:
    """The inventory's entry for this GPU: by PCI address, since CUDA_VISIBLE_DEVICES renumbers; else by its number."""
    for device in host.gpus:
        known = gpu.pci is not None and device.pci is not None
        if device.pci == gpu.pci if known else device.index == gpu.index:
            return device
    return None


def _cpus(device: GpuDevice | None, host: Host) -> set[int]:
    """Processors of the GPU's memory node that this process may use; empty where the node is unknown."""
    nodes = {node.node: node.cpus for node in host.numa}
    if device is None or device.numa_node is None:
        return set()
    return parse_cpus(nodes.get(device.numa_node, "")) & os.sched_getaffinity(0)


def parse_cpus(text: str) -> set[int]:
    """{0, 1, 2, 8} of the kernel's '0-2,8'."""
    cpus: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


@contextmanager
def _near(cpus: set[int]) -> Iterator[None]:
    """Run on these processors: the first touch of a page decides which memory node it is on, for good once pinned."""
    before = os.sched_getaffinity(0)
    if cpus:
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def measure_together(
    gpus: Sequence[Gpu],
    host: Host,
    *,
    seconds: float,
    buffer_bytes: int = BUFFER,
    seed: int = 0,
    progress: Progress = silent,
) -> tuple[tuple[Link, ...], tuple[Finding, ...]]:
    """Every GPU copies at once, one way and then the other: links, and what the GPUs of each PCI root carry together.

    Raises KvplanError where a GPU fails or a host has too little memory to page-lock for all.
    """
    size = min(buffer_bytes, _affordable(2 * buffer_bytes * len(gpus), host) // (2 * len(gpus)) // MiB * MiB)
    links: list[Link] = []
    findings: list[Finding] = []
    with ExitStack() as stack:
        runs = [_entered(stack, gpu, host, size, seed) for gpu in gpus]
        for way in _BOTH:
            progress(f"all {len(gpus)} GPUs at once: {way}", None)
            lanes = [run.lanes.get((True, way)) for run in runs]
            if None in lanes:
                return (), ()
            copies = [
                Copies(run.gpu, lane, min(len(lane.host), GRANULES[-1]), None, run.base, run.random)
                for run, lane in zip(runs, lanes, strict=True)
                if lane is not None
            ]
            shared = together.measure(copies, seconds / 2)
            for run, one, seen in zip(runs, copies, shared, strict=True):
                links.append(run.link_beside_all(way, one.granule, seen))
            findings += _by_root(runs, way, links[-len(runs) :])
    return tuple(links), tuple(findings)


def _entered(stack: ExitStack, gpu: Gpu, host: Host, size: int, seed: int) -> _Run:
    """One GPU's lanes with memory on its own node, given back with the stack, after its copies are done."""
    device = find_device(gpu, host)
    index = device.index if device else gpu.index
    with _near(_cpus(device, host)):
        arena = stack.enter_context(pin(gpu, index, 2 * size, chunk=size))
    size = _buffer_size(gpu, f"gpu{index}", size, arena)
    run = _Run(gpu, device, arena, size, seed, host, os.sched_getaffinity(0))
    stack.callback(run.settle)
    return run


def _by_root(runs: Sequence[_Run], way: Direction, links: Sequence[Link]) -> list[Finding]:
    groups: dict[str, list[tuple[str, float]]] = {}
    for run, link in zip(runs, links, strict=True):
        root = together.root_of(run.device.pci if run.device else None) or "unknown root"
        groups.setdefault(root, []).append((run.name, link.p50_bytes_per_s))
    return [
        Finding(
            severity="info",
            code="gpus-together",
            text=f"{', '.join(name for name, _ in members)} ({root}) carry {show_rate(sum(r for _, r in members))} "
            f"{way} together while all GPUs copy",
        )
        for root, members in groups.items()
    ]


class _Run:
    """One GPU being measured: its buffers, and what was seen under load."""

    def __init__(
        self, gpu: Gpu, device: GpuDevice | None, arena: Arena, size: int, seed: int, host: Host, cpus: set[int]
    ) -> None:
        self.gpu, self.device, self.arena, self.size, self.host, self.cpus = gpu, device, arena, size, host, cpus
        self.name = f"gpu{arena.report.gpu}"
        self.random = np.random.default_rng(seed)
        self.base = cuda.base_words(size)
        self.state = nvml.LinkState()
        pageable: HostArray = np.zeros(2 * size, dtype=np.uint8)
        hosts = {False: (pageable[:size], pageable[size:])}
        pair = arena.pair(size)
        if pair is not None:
            hosts[True] = pair
        self.streams = {way: gpu.stream() for way in _BOTH}
        memory = {way: gpu.allocate(size) for way in _BOTH}
        self.lanes = {
            (pinned, way): Lane(direction=way, host=buffer, memory=memory[way], stream=self.streams[way])
            for pinned, buffers in hosts.items()
            for way, buffer in zip(_BOTH, buffers, strict=True)
        }

    def settle(self) -> None:
        """Wait for every copy under way: host memory may not be given back before."""
        for stream in self.streams.values():
            self.gpu.wait(stream)

    def result(self, granules: tuple[int, ...], seconds: float | None, extras: Extras, progress: Progress) -> GpuResult:
        """Sweep, then what else is asked for, then say what was seen."""
        links: list[Link] = []
        if seconds is not None:
            links = self._sweep(granules, seconds, progress)
            links += self._remote(seconds * _REMOTE_SHARE, progress)
        rig = self._rig()
        beside: tuple[Contention, ...] = ()
        if rig is not None and extras.contention_s:
            beside = beside_decoding(rig, granules, extras.contention_s, progress)
        through: list[Pipeline] = []
        written = 0
        for folder in extras.folders:
            if rig is None:
                break
            found, more = through_drive(rig, folder, extras.pass_bytes, progress)
            through, written = [*through, *found], written + more
        device = self.device
        if device is not None and self.state.generation is not None:
            device = replace(device, link_generation=self.state.generation, link_width=self.state.width)
        return GpuResult(
            gpu=device,
            links=tuple(links),
            pinning=self.arena.report,
            findings=self._findings(device, links, (*beside, *through)),
            contention=beside,
            pipeline=tuple(through),
            written_bytes=written,
        )

    def _rig(self) -> Rig | None:
        """The page-locked lanes; None where no memory could be page-locked."""
        lanes = {way: lane for (pinned, way), lane in self.lanes.items() if pinned}
        index = self.arena.report.gpu
        return Rig(gpu=self.gpu, index=index, lanes=lanes, base=self.base, random=self.random) if lanes else None

    def _sweep(self, granules: tuple[int, ...], seconds: float, progress: Progress) -> list[Link]:
        until = time.monotonic() + seconds
        todo = [
            cell
            for cell in cells(granules, self.size, self.gpu.mechanisms)
            if (cell.pinned, cell.direction) in self.lanes
        ]
        links = []
        for position, cell in enumerate(todo):
            share = position / len(todo)
            progress(f"{self.name}: {cell.words}", share)
            seen = self._cell(cell, max(0.0, until - time.monotonic()) / (len(todo) - position))
            links.append(self._link(cell, seen))
            progress(f"{self.name}: {cell.words}: {show_rate(links[-1].p50_bytes_per_s)}", share)
        return links

    def _remote(self, seconds: float, progress: Progress) -> list[Link]:
        """The largest copies both ways to memory of the first node that is not the GPU's own; none where there is none.

        Flagged, since no engine should put its cache there: it shows what a wrong placement costs.
        """
        own = self.device.numa_node if self.device else None
        others = [(n.node, parse_cpus(n.cpus) & self.cpus) for n in self.host.numa if own is not None and n.node != own]
        node, cpus = next(((node, cpus) for node, cpus in others if cpus), (None, set[int]()))
        if node is None or self._rig() is None:
            return []
        progress(f"{self.name}: memory of node {node}", None)
        links = []
        with _near(cpus), pin(self.gpu, self.arena.report.gpu, 2 * self.size, chunk=self.size) as arena:
            pair = arena.pair(self.size)
            for way, buffer in zip(_BOTH, pair or (), strict=False):
                lane = dataclasses.replace(self.lanes[True, way], host=buffer)
                cell = Cell(direction=way, granule=len(buffer))
                seen = Copies(self.gpu, lane, cell.granule, None, self.base, self.random).measure(seconds / 2)
                self.gpu.wait(lane.stream)
                links.append(self._link(cell, seen, node=node))
        return links

    def _cell(self, cell: Cell, seconds: float) -> Seen:
        lane = self.lanes[cell.pinned, cell.direction]
        opposite = self.lanes[cell.pinned, "d2h" if cell.direction == "h2d" else "h2d"] if cell.duplex else None
        copies = Copies(self.gpu, lane, cell.granule, opposite, self.base, self.random, cell.mechanism)
        seen = copies.measure(seconds)
        if self.device is not None and self.device.pci is not None and self.state == nvml.LinkState():
            copies.load(_LOAD_TRAINS)
            self.state = nvml.link_state(self.device.pci, os.getpid())
            self.gpu.wait(lane.stream)
        return seen

    def _link(self, cell: Cell, seen: Seen, node: int | None = None) -> Link:
        """The document of a cell; `node` where its host memory was not on the GPU's own node."""
        p5, p50, p95 = (float(value) for value in np.percentile(seen.rates, [5, 50, 95]))
        p50_s, p99_s = (float(value) for value in np.percentile(seen.latencies, [50, 99]))
        place = self._node() if node is None else str(node)
        memory = f"page-locked by cudaHostRegister, node {place}" if cell.pinned else "pageable"
        flags = (
            *(() if cell.pinned else ("pageable",)),
            *(() if node is None else ("remote-node",)),
            *(("corrupt",) if seen.wrong_words else ()),
            *(() if seen.settled else ("not-steady",)),
            *(() if seen.concurrent else ("not-concurrent",)),
        )
        return Link(
            source="host" if cell.direction == "h2d" else self.name,
            target=self.name if cell.direction == "h2d" else "host",
            direction=cell.direction,
            granule_bytes=cell.granule,
            depth=1,
            samples=seen.copies,
            p5_bytes_per_s=p5,
            p50_bytes_per_s=p50,
            p95_bytes_per_s=p95,
            p50_latency_s=p50_s,
            p99_latency_s=p99_s,
            method=f"{WORDS[cell.mechanism]}, one stream, {memory}, CUDA events, data verified",
            concurrent=OPPOSITE if cell.duplex else "none",
            preset=None if cell.mechanism == "loop" else cell.mechanism,
            flags=flags,
        )

    def link_beside_all(self, way: Direction, granule: int, shared: together.Shared) -> Link:
        """The document of copies while every other GPU copied too; a train's time stands for that of its pieces."""
        seen = Seen(rates=list(shared.rates), copies=len(shared.rates), wrong_words=shared.wrong_words)
        seen.latencies = [granule / rate for rate in shared.rates]
        return replace(self._link(Cell(direction=way, granule=granule), seen), concurrent=ALL_GPUS)

    def _node(self) -> str:
        known = self.device is not None and self.device.numa_node is not None
        return str(self.device.numa_node) if known and self.device is not None else "unknown"

    def _findings(
        self, device: GpuDevice | None, links: list[Link], others: tuple[Contention | Pipeline, ...]
    ) -> tuple[Finding, ...]:
        """What a reader should know beyond the figures."""
        found: list[Finding] = []

        def say(severity: Literal["info", "warning", "error"], code: str, text: str) -> None:
            found.append(Finding(severity=severity, code=code, text=f"{self.name}: {text}"))

        report, state = self.arena.report, self.state
        if not report.pinned_bytes:
            say(
                "error",
                "gpu-not-pinned",
                f"no host memory could be page-locked ({report.stopped}): pageable copies only",
            )
        elif report.stopped:
            sizes = f"{show_bytes(report.pinned_bytes)} of {show_bytes(report.requested_bytes)}"
            say("warning", "gpu-pinning-limited", f"only {sizes} could be page-locked: {report.stopped}")
        wrong = sum("corrupt" in cell.flags for cell in (*links, *others))
        if wrong:
            say("error", "gpu-corrupt", f"copies of {wrong} cells did not arrive as they were sent: distrust this link")
        if device is not None:
            for what, now, best in (
                ("generation", device.link_generation, device.max_link_generation),
                ("width", device.link_width, device.max_link_width),
            ):
                if state.generation is not None and now is not None and best is not None and now < best:
                    say("warning", "gpu-link-downgraded", f"PCIe link {what} is {now} under load, {best} is possible")
        if state.throttled:
            say(
                "warning", "gpu-throttled", f"clocks were held down while it was measured: {', '.join(state.throttled)}"
            )
        if state.other_processes:
            say(
                "warning",
                "gpu-shared",
                f"{state.other_processes} other processes use this GPU: stop them for a clean run",
            )
        if state.mig:
            say("warning", "gpu-mig", "is divided into instances (MIG): its link is shared with the others")
        if state.confidential:
            say("warning", "gpu-confidential", "confidential computing encrypts what crosses the link: expect far less")
        return tuple(found)
