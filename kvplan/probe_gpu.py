"""One GPU's links to host memory: what copies really carry, at the sizes that serving engines use.

Host memory is page-locked the way engines do it, every timed copy is verified, and pageable copies stand beside the
page-locked ones. See docs/probing.md for the method.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from msgspec.structs import replace

from kvplan.documents import Contention, Finding, GpuDevice, Host, KvMove, Link, Pinning, Pipeline
from kvplan.errors import KvplanError
from kvplan.probing import gpu_findings, gpu_links, together
from kvplan.probing.affinity import cpus_near, running_on
from kvplan.probing.cuda import Gpu
from kvplan.probing.gpu_cells import BOTH_WAYS, GRANULES, cells
from kvplan.probing.gpu_copies import Copies
from kvplan.probing.gpu_extras import Extras
from kvplan.probing.gpu_run import Run
from kvplan.probing.pinning import Arena, pin
from kvplan.progress import Progress, silent
from kvplan.units import MiB, show_bytes

BUFFER = 256 * MiB
PIN = 1024 * MiB
NOTHING_ELSE = Extras()
_REMOTE_SHARE = 0.1
_SMALLEST_BUFFER = 4 * MiB
# Filling and comparing a buffer takes most of a cell's least time. So many bytes of it a second of a cell leave enough.
_BUFFER_PER_S, _LEAST_BUFFER = 320 * MiB, 32 * MiB


class NotPinnedError(KvplanError):
    """No host memory could be page-locked, and nobody asked for pageable copies."""


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


def measure(
    gpu: Gpu,
    host: Host,
    *,
    seconds: float | None,
    extras: Extras = NOTHING_ELSE,
    granules: tuple[int, ...] = (),
    moves: tuple[KvMove, ...] = (),
    buffer_bytes: int = BUFFER,
    pin_bytes: int = PIN,
    allow_pageable: bool = False,
    seed: int = 0,
    progress: Progress = silent,
) -> GpuResult:
    """Measure one GPU's copies in about `seconds` (None: not at all), and whatever `extras` ask for.

    Raises KvplanError where the GPU fails at once or has no memory left to measure with, NotPinnedError where no host
    memory can be page-locked. What fails later is a finding. Page-locked memory is given back, whatever happens.
    """
    device = find_device(gpu, host)
    index = device.index if device else gpu.index
    name = f"gpu{index}"
    progress(f"{name}: page-locking host memory", 0.0)
    _check_free(gpu, name)
    buffer = _in_time(buffer_bytes, granules, moves, gpu, seconds)
    wanted = _affordable(max(pin_bytes, 2 * buffer), host)
    before = os.sched_getaffinity(0)  # all processors there are for this process: the next line narrows them
    with running_on(cpus_near(device, host)), pin(gpu, index, wanted, chunk=buffer) as arena:
        if not arena.report.pinned_bytes and not allow_pageable:
            raise NotPinnedError(
                f"{name}: no host memory could be page-locked ({arena.report.stopped}), and pageable copies are no "
                "figures to plan with: measure them all the same, flagged, with --allow-pageable, or leave GPUs out "
                "with --only disk"
            )
        run = Run(gpu, device, arena, _buffer_size(gpu, name, buffer, arena), seed, host, before)
        try:
            return _result(run, granules, moves, seconds, extras, progress)
        finally:
            run.settle()


def _result(
    run: Run,
    granules: tuple[int, ...],
    moves: tuple[KvMove, ...],
    seconds: float | None,
    extras: Extras,
    progress: Progress,
) -> GpuResult:
    """Sweep, then what else is asked for, then say what was seen."""
    links: list[Link] = []
    if seconds is not None:
        links = run.sweep(granules, moves, seconds, progress)
        links += run.remote(seconds * _REMOTE_SHARE, progress)
    beside = run.beside_decoding(granules, moves, extras.contention_s, progress) if extras.contention_s else ()
    through, written = run.through_drives(extras, progress)
    device, state = run.device, run.state
    if device is not None and state.generation is not None:
        device = replace(device, link_generation=state.generation, link_width=state.width)
    if device is not None and state.mig:
        device = replace(device, total_bytes=run.gpu.total_bytes(), free_bytes=run.gpu.free_bytes())
    facts = gpu_findings.Facts(
        name=run.name,
        device=device,
        pinning=run.arena.report,
        state=state,
        node=run.node,
        measured=(*links, *beside, *through),
        missing=run.missing,
    )
    return GpuResult(
        gpu=device,
        links=tuple(links),
        pinning=run.arena.report,
        findings=gpu_findings.findings(facts),
        contention=beside,
        pipeline=through,
        written_bytes=written,
    )


def _in_time(wanted: int, granules: tuple[int, ...], moves: tuple[KvMove, ...], gpu: Gpu, seconds: float | None) -> int:
    """Bytes of a buffer: as wanted, or less where the time for each cell is short."""
    if not seconds:
        return wanted
    each = seconds / len(cells(granules, wanted, gpu.mechanisms, moves))
    fits = 1 << int(max(each * _BUFFER_PER_S, _LEAST_BUFFER)).bit_length() - 1
    return min(wanted, fits)


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
    free = _check_free(gpu, name) // 4 // MiB * MiB
    return min(len(pair[0]) if pair else wanted, free)


def _check_free(gpu: Gpu, name: str) -> int:
    """Free device memory. Raises KvplanError where it is too little, or the device does not open (busy, lost)."""
    free = gpu.free_bytes()
    if free < 4 * _SMALLEST_BUFFER:
        raise KvplanError(
            f"{name}: only {show_bytes(free)} of device memory free, the probe needs "
            f"{show_bytes(4 * _SMALLEST_BUFFER)}: stop what fills it"
        )
    return free


def find_device(gpu: Gpu, host: Host) -> GpuDevice | None:
    """The inventory's entry for this GPU: by PCI address, since CUDA_VISIBLE_DEVICES renumbers; else by its number."""
    for device in host.gpus:
        known = gpu.pci is not None and device.pci is not None
        if device.pci == gpu.pci if known else device.index == gpu.index:
            return device
    return None


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
        for way in BOTH_WAYS:
            progress(f"all {len(gpus)} GPUs at once: {way}", None)
            lanes = [run.lanes.get((True, way)) for run in runs]
            if None in lanes:
                return (), ()
            copies = [
                Copies(run.gpu, lane, min(len(lane.host), GRANULES[-1]), None, run.base, run.random)
                for run, lane in zip(runs, lanes, strict=True)
                if lane is not None
            ]
            mine = [
                (
                    run.name,
                    run.device.pci if run.device else None,
                    gpu_links.link_beside_all(run.name, run.node, way, one.granule, seen),
                )
                for run, one, seen in zip(runs, copies, together.measure(copies, seconds / 2), strict=True)
            ]
            links += [link for _, _, link in mine]
            findings += gpu_findings.by_root(mine, way)
    return tuple(links), tuple(findings)


def _entered(stack: ExitStack, gpu: Gpu, host: Host, size: int, seed: int) -> Run:
    """One GPU's lanes with memory on its own node, given back with the stack, after its copies are done."""
    device = find_device(gpu, host)
    index = device.index if device else gpu.index
    with running_on(cpus_near(device, host)):
        arena = stack.enter_context(pin(gpu, index, 2 * size, chunk=size))
    size = _buffer_size(gpu, f"gpu{index}", size, arena)
    run = Run(gpu, device, arena, size, seed, host, os.sched_getaffinity(0))
    stack.callback(run.settle)
    return run
