"""Measure this host: inventory, drives, GPUs. Strings the single probes together and adds up what they did."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass, replace
from pathlib import Path

from kvplan import probe_disk, probe_gpu, probe_host
from kvplan.documents import Finding, Host, Probe, ProbeOptions
from kvplan.errors import KvplanError, UsageError
from kvplan.probing import cuda
from kvplan.probing.merging import merge
from kvplan.progress import Progress, silent
from kvplan.units import show_bytes, show_duration

__all__ = ["PARTS", "ProbePlan", "announce", "measure", "merge", "plan_of"]

PARTS = ("host", "disk", "gpu")
# Of the time left when both are measured; a GPU's cells settle sooner than a drive's.
_GPU_SHARE = 0.4


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePlan:
    """What a probe will do, decided before it touches anything: the inventory made so far, and the work to come."""

    host: Host
    disks: tuple[probe_disk.DiskPlan, ...]
    gpu_s: float

    @property
    def write_bytes(self) -> int:
        """The most that will be written, on all drives together."""
        return sum(disk.write_bytes for disk in self.disks)

    def lines(self) -> tuple[str, ...]:
        """The plan in words, a line each."""
        told = [
            f"{disk.folder.path}: writes at most {show_bytes(disk.write_bytes)} into a nameless file of "
            f"{show_bytes(disk.file_bytes)}, freed at the end; up to {show_duration(disk.seconds)}"
            for disk in self.disks
        ]
        if self.gpu_s:
            told.append(f"GPUs: page-locked copies in both directions; up to {show_duration(self.gpu_s)}")
        return tuple(told)


def plan_of(options: ProbeOptions) -> ProbePlan:
    """Decide what to do and check that it can be done, without writing or loading anything.

    Raises UsageError for options without meaning and KvplanError for a folder that cannot be probed.
    """
    parts = _parts(options)
    if not sys.platform.startswith("linux"):
        raise KvplanError("probing needs Linux: run it on the machine that will serve")
    host = probe_host.inventory()
    gpu_s = _gpu_seconds(options, parts, host)
    folders = tuple(dict.fromkeys(options.disks)) if "disk" in parts else ()
    disks = tuple(
        probe_disk.plan(
            Path(folder),
            seconds=(options.budget_s - gpu_s) / len(folders),
            write_bytes=options.write_budget_bytes // len(folders),
            file_bytes=options.file_bytes,
            granules=options.granule_bytes,
            kv=options.kv,
            sweep_only=options.sweep_only,
        )
        for folder in folders
    )
    return ProbePlan(host=host, disks=disks, gpu_s=gpu_s)


def _parts(options: ProbeOptions) -> tuple[str, ...]:
    unknown = [part for part in options.only if part not in PARTS]
    if unknown:
        raise UsageError(f"--only {unknown[0]}: not a part of a probe: choose among {', '.join(PARTS)}")
    if "disk" in options.only and not options.disks:
        raise UsageError("--only disk needs a folder on the drive to measure: add --disk DIR")
    if options.budget_s <= 0:
        raise UsageError("a probe needs some time: give a budget above zero")
    return options.only or PARTS


def _gpu_seconds(options: ProbeOptions, parts: tuple[str, ...], host: Host) -> float:
    if "gpu" not in parts or not host.gpus:
        return 0.0
    return options.budget_s * (_GPU_SHARE if options.disks and "disk" in parts else 1.0)


def announce(options: ProbeOptions) -> tuple[str, ...]:
    """What measuring with these options will write, where, and how long it takes; raises what `plan_of` raises."""
    return plan_of(options).lines()


def measure(options: ProbeOptions, progress: Progress = silent) -> Probe:
    """Measure this host.

    Raises UsageError for options without meaning and KvplanError where a folder cannot be probed or a drive fails.
    Nothing is left behind, whatever happens.
    """
    began = time.monotonic()
    progress("reading what this host is")
    todo = plan_of(options)
    probe = Probe(host=todo.host, findings=_findings(options, todo.host))
    if todo.gpu_s:
        probe = _with_gpus(probe, options, todo.gpu_s, progress)
    for disk in todo.disks:
        found = probe_disk.measure(disk, seed=options.seed, progress=progress)
        probe = replace(
            probe,
            links=(*probe.links, *found.links),
            capacity=(*probe.capacity, found.disk),
            written_bytes=probe.written_bytes + found.written_bytes,
            findings=(*probe.findings, *found.findings),
        )
    return replace(probe, wall_s=time.monotonic() - began)


def _with_gpus(probe: Probe, options: ProbeOptions, seconds: float, progress: Progress) -> Probe:
    """The probe with every GPU's links. Where torch cannot reach them that is an error only if GPUs were asked for."""
    try:
        devices = cuda.devices()
    except KvplanError as error:
        if "gpu" in options.only:
            raise
        finding = Finding(
            severity="warning", code="gpu-not-measured", text=f"no host to GPU link was measured: {error}"
        )
        return replace(probe, findings=(*probe.findings, finding))
    for gpu in devices:
        found = probe_gpu.measure(
            gpu,
            probe.host,
            seconds=seconds / len(devices),
            granules=options.granule_bytes,
            seed=options.seed,
            progress=progress,
        )
        gpus = tuple(found.gpu if found.gpu and found.gpu.index == old.index else old for old in probe.host.gpus)
        probe = replace(
            probe,
            host=replace(probe.host, gpus=gpus),
            links=(*probe.links, *found.links),
            pinning=(*probe.pinning, found.pinning),
            findings=(*probe.findings, *found.findings),
        )
    return probe


def _findings(options: ProbeOptions, host: Host) -> tuple[Finding, ...]:
    found = []
    parts = _parts(options)
    if "gpu" in parts and not host.gpus:
        text = f"{host.gpu_status}: no host to GPU link was measured"
        found.append(Finding(severity="info", code="no-gpu", text=text))
    if "disk" in parts and not options.disks:
        text = "no folder was given, so no drive was measured: add --disk DIR"
        found.append(Finding(severity="info", code="no-disk", text=text))
    return tuple(found)
