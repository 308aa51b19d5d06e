"""Measure this host: inventory, drives, GPUs. Strings the single probes together and adds up what they did."""

from __future__ import annotations

import math
import sys
import time
from dataclasses import dataclass
from pathlib import Path

from msgspec.structs import replace

from kvplan import probe_disk, probe_gpu, probe_host, probe_prefill
from kvplan.documents import Finding, Host, KvMove, Probe, ProbeOptions
from kvplan.errors import KvplanError, UsageError
from kvplan.probing import cuda, gpu_extras, pipeline, scratch
from kvplan.probing.fragments import fragments
from kvplan.probing.interrupts import heeded
from kvplan.probing.kv_block import kv_block
from kvplan.probing.kv_moves import kv_moves
from kvplan.probing.merging import merge
from kvplan.progress import Progress, silent
from kvplan.units import show_bytes, show_duration

__all__ = ["PARTS", "ProbePlan", "announce", "kv_block", "kv_moves", "measure", "merge", "plan_of"]

PARTS = ("host", "disk", "gpu", "contention", "pipeline", "prefill")
_OF_GPUS = frozenset({"gpu", "contention", "pipeline"})
# How the time is shared among the parts that are measured; a GPU's cells settle sooner than a drive's.
_WEIGHTS = {"disk": 6, "gpu": 4, "contention": 2, "pipeline": 1, "prefill": 4}
# What prefill takes besides its time: nobody knows beforehand how long.
_BESIDES = (
    " once they are built, which for wide models may take a minute on a processor, and one round of the first length"
)
# Of the write budget, what a pipeline between a GPU and a drive may write in all.
_PIPELINE_SHARE = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbePlan:
    """What a probe will do, decided before it touches anything: the inventory made so far, and the work to come."""

    host: Host
    disks: tuple[probe_disk.DiskPlan, ...]
    gpu_s: float
    contention_s: float = 0.0
    pipes: tuple[Path, ...] = ()
    pipe_bytes: int = 0
    prefill_s: float = 0.0
    prefill_of: str = ""
    prefill_besides: str = ""
    moves: tuple[KvMove, ...] = ()

    @property
    def write_bytes(self) -> int:
        """The most that will be written, on all drives together."""
        return sum(disk.write_bytes for disk in self.disks) + self._piped_bytes

    @property
    def _piped_bytes(self) -> int:
        return len(self.pipes) * self.pipe_bytes * gpu_extras.PASSES * len(self.host.gpus)

    def lines(self) -> tuple[str, ...]:
        """The plan in words, a line each."""
        told = [
            f"{disk.folder.path}: writes at most {show_bytes(disk.write_bytes)} into a nameless file of "
            f"{show_bytes(disk.file_bytes)}, freed at the end; up to {show_duration(disk.seconds)}"
            for disk in self.disks
        ]
        if len(self.disks) > 1:
            seconds = sum(disk.seconds for disk in self.disks)
            told.append(
                f"all drives, one after another: {show_bytes(self.write_bytes)} and {show_duration(seconds)} at most"
            )
        if self.gpu_s:
            names = dict.fromkeys(name for move in self.moves for name in move.source.split(", "))
            pieces = f", and the pieces of {', '.join(names)}" if names else ""
            told.append(f"GPUs: page-locked copies in both directions{pieces}; up to {show_duration(self.gpu_s)}")
        if self.contention_s:
            told.append(f"GPUs: copies beside a load like decoding; up to {show_duration(self.contention_s)}")
        for folder in self.pipes:
            most = show_bytes(self.pipe_bytes * gpu_extras.PASSES)
            told.append(f"{folder}: from and to every GPU through a nameless file; writes {most} for each of them")
        if self.prefill_s:
            told.append(f"prefill of {self.prefill_of}; up to {show_duration(self.prefill_s)}{self.prefill_besides}")
        return tuple(told)


def plan_of(options: ProbeOptions) -> ProbePlan:
    """Decide what to do and check that it can be done, without writing or loading anything.

    Raises UsageError for options without meaning and KvplanError for a folder that cannot be probed.
    """
    parts = _parts(options)
    if not sys.platform.startswith("linux"):
        raise KvplanError("probing needs Linux: run it on the machine that will serve")
    host = probe_host.inventory()
    if not host.gpus and set(parts) <= _OF_GPUS:
        raise KvplanError(f"--only {', '.join(parts)}: {host.gpu_status}: nothing could be measured")
    shares = _shares(options, parts, host)
    if "pipeline" in options.only and "pipeline" in shares:
        _check_pipes(options, host)
    piped = options.write_budget_bytes // _PIPELINE_SHARE if "pipeline" in shares else 0
    folders = tuple(dict.fromkeys(options.disks)) if "disk" in parts else ()
    disks = tuple(
        probe_disk.plan(
            Path(folder),
            seconds=shares["disk"] / len(folders),
            write_bytes=(options.write_budget_bytes - piped) // len(folders),
            file_bytes=options.file_bytes,
            granules=options.granule_bytes,
            kv=options.kv,
            sweep_only=options.sweep_only,
        )
        for folder in folders
    )
    for disk in disks:
        if disk.folder.memory and not options.allow_memory:
            raise KvplanError(
                f"{disk.folder.path}: is on {disk.folder.memory}, which is memory and not a drive: name a folder on a "
                "drive, or measure it all the same, flagged, with --allow-memory"
            )
    return ProbePlan(
        host=host,
        disks=disks,
        gpu_s=shares.get("gpu", 0.0),
        contention_s=shares.get("contention", 0.0),
        pipes=tuple(map(Path, dict.fromkeys(options.disks))) if "pipeline" in shares else (),
        pipe_bytes=_pipe_bytes(options, host),
        prefill_s=shares.get("prefill", 0.0),
        prefill_of=_prefill_words(options),
        prefill_besides="" if options.server else _BESIDES,
        moves=options.moves,
    )


def _check_pipes(options: ProbeOptions, host: Host) -> None:
    """Raises KvplanError where a pipeline that was asked for cannot be measured."""
    for folder in options.disks:
        scratch.look(Path(folder))
    least = max(pipeline.SLOTS) * gpu_extras.BLOCK
    if _pipe_bytes(options, host) < least:
        raise KvplanError(
            f"a write budget of {show_bytes(options.write_budget_bytes)} is too little for a pipeline, which takes "
            f"{gpu_extras.PASSES} passes of {show_bytes(least)} from a quarter of it: allow more"
        )


def _pipe_bytes(options: ProbeOptions, host: Host) -> int:
    """Bytes of one pass between one GPU and one drive, so that all of them keep to their part of the write budget."""
    passes = gpu_extras.PASSES * max(1, len(host.gpus) * len(set(options.disks)))
    return min(gpu_extras.PIPE_BYTES, options.write_budget_bytes // _PIPELINE_SHARE // passes)


def _prefill_words(options: ProbeOptions) -> str:
    if options.server:
        return f"the model that {options.server} serves, by requests of one token each"
    return f"{options.model.model.ref.id}, cut to a few layers with random weights" if options.model else ""


def _parts(options: ProbeOptions) -> tuple[str, ...]:
    unknown = [part for part in options.only if part not in PARTS]
    if unknown:
        raise UsageError(f"--only {unknown[0]}: not a part of a probe: choose among {', '.join(PARTS)}")
    if "disk" in options.only and not options.disks:
        raise UsageError("--only disk needs a folder on the drive to measure: add --disk DIR")
    if "pipeline" in options.only and not options.disks:
        raise UsageError("--only pipeline needs a folder on the drive to go through: add --disk DIR")
    if "prefill" in options.only and options.model is None and options.server is None:
        raise UsageError("--only prefill needs a model to measure: add --model MODEL, or --server URL")
    if options.budget_s <= 0:
        raise UsageError("a probe needs some time: give a budget above zero")
    return options.only or PARTS


def _shares(options: ProbeOptions, parts: tuple[str, ...], host: Host) -> dict[str, float]:
    """Seconds for each part that will be measured."""
    there = {
        "disk": bool(options.disks),
        "gpu": bool(host.gpus),
        "contention": bool(host.gpus),
        "pipeline": bool(host.gpus and options.disks),
        "prefill": options.model is not None or options.server is not None,
    }
    active = [part for part, is_there in there.items() if is_there and part in parts]
    total = sum(_WEIGHTS[part] for part in active)
    return {part: options.budget_s * _WEIGHTS[part] / total for part in active}


def announce(options: ProbeOptions) -> tuple[str, ...]:
    """What measuring with these options will write, where, and how long it takes.

    Raises what `plan_of` raises, and KvplanError for a budget that is less than drives take.
    """
    todo = plan_of(options)
    for disk in todo.disks:
        if disk.seconds < probe_disk.LEAST_S:
            least = show_duration(math.ceil(options.budget_s * probe_disk.LEAST_S / disk.seconds))
            given, has = show_duration(options.budget_s), show_duration(disk.seconds)
            raise KvplanError(
                f"{disk.folder.path}: a budget of {given} leaves {has} for it, and a drive takes "
                f"{show_duration(probe_disk.LEAST_S)}: give --budget {least} or more"
            )
    return todo.lines()


def measure(options: ProbeOptions, progress: Progress = silent) -> Probe:
    """Measure this host.

    Raises UsageError for options without meaning and KvplanError where a folder cannot be probed or a drive fails.
    Nothing is left behind, whatever happens.
    """
    with heeded(progress) as listen:
        return _measure(options, listen)


def _measure(options: ProbeOptions, progress: Progress) -> Probe:
    began = time.monotonic()
    progress("reading what this host is")
    todo = plan_of(options)
    probe = Probe(host=todo.host, findings=_findings(options, todo.host))
    if todo.gpu_s or todo.contention_s or todo.pipes:
        probe = _with_gpus(probe, options, todo, progress)
    for disk in todo.disks:
        found = probe_disk.measure(
            disk, memory_bytes=probe.host.usable_memory_bytes, seed=options.seed, progress=progress
        )
        probe = replace(
            probe,
            links=(*probe.links, *found.links),
            capacity=(*probe.capacity, found.disk),
            written_bytes=probe.written_bytes + found.written_bytes,
            findings=(*probe.findings, *found.findings),
        )
    if todo.prefill_s:
        probe = _with_prefill(probe, options, todo.prefill_s, progress)
    return replace(probe, wall_s=time.monotonic() - began)


def _with_prefill(probe: Probe, options: ProbeOptions, seconds: float, progress: Progress) -> Probe:
    """The probe with what recomputing costs. That it cannot be measured is an error where nothing else was."""
    tokens = options.prefill_tokens
    try:
        if options.server:
            wanted = options.model.model.ref.id if options.model else None
            found = probe_prefill.measure_server(
                options.server, wanted, probe.host, seconds=seconds, tokens=tokens, progress=progress
            )
        else:
            assert options.model is not None  # prefill has no share of the time without either
            model = options.model.model
            found = probe_prefill.measure(
                options.model.raw,
                model.ref.id,
                probe_prefill.device(probe.host, model.ref.id, progress),
                seconds=seconds,
                tokens=tokens,
                longest=model.ref.max_context_tokens,
                progress=progress,
            )
    except KvplanError as error:
        if not (probe.links or "host" in options.only):
            raise
        finding = Finding(severity="warning", code="prefill-not-measured", text=f"no prefill was measured: {error}")
        return replace(probe, findings=(*probe.findings, finding))
    return replace(probe, prefill=(*probe.prefill, found.prefill), findings=(*probe.findings, *found.findings))


def _with_gpus(probe: Probe, options: ProbeOptions, todo: ProbePlan, progress: Progress) -> Probe:
    """The probe with every GPU's links. That none can be measured is an error where nothing but them was asked for."""
    failed: list[KvplanError] = []
    try:
        devices = cuda.devices()
        for gpu in devices:
            try:
                probe = _with_gpu(probe, gpu, len(devices), options, todo, progress)
            except probe_gpu.NotPinnedError:
                raise
            except KvplanError as error:
                failed.append(error)
        if len(failed) == len(devices):
            raise failed[0]
    except probe_gpu.NotPinnedError:
        raise
    except KvplanError as error:
        if options.only and set(options.only) <= _OF_GPUS:
            raise
        return _lacking(probe, f"no host to GPU link was measured: {error}")
    for why in failed:
        probe = _lacking(probe, f"not measured: {why}")
    if len(devices) > 1 and todo.gpu_s and not failed:
        try:
            links, told = probe_gpu.measure_together(
                devices, probe.host, seconds=todo.gpu_s / len(devices) / 4, seed=options.seed, progress=progress
            )
        except KvplanError as error:
            return _lacking(probe, f"all GPUs at once: not measured: {error}")
        probe = replace(probe, links=(*probe.links, *links), findings=(*probe.findings, *told))
    return probe


def _lacking(probe: Probe, text: str) -> Probe:
    finding = Finding(severity="warning", code="gpu-not-measured", text=text)
    return replace(probe, findings=(*probe.findings, finding))


def _with_gpu(
    probe: Probe, gpu: cuda.Gpu, count: int, options: ProbeOptions, todo: ProbePlan, progress: Progress
) -> Probe:
    """The probe with the links of one GPU of `count`, which share the time."""
    found = probe_gpu.measure(
        gpu,
        probe.host,
        seconds=todo.gpu_s / count if todo.gpu_s else None,
        extras=gpu_extras.Extras(
            contention_s=todo.contention_s / count, folders=todo.pipes, pass_bytes=todo.pipe_bytes
        ),
        granules=_granules(options),
        moves=options.moves,
        allow_pageable=options.allow_pageable,
        seed=options.seed,
        progress=progress,
    )
    gpus = tuple(found.gpu if found.gpu and found.gpu.index == old.index else old for old in probe.host.gpus)
    return replace(
        probe,
        host=replace(probe.host, gpus=gpus),
        links=(*probe.links, *found.links),
        pinning=(*probe.pinning, found.pinning),
        contention=(*probe.contention, *found.contention),
        pipeline=(*probe.pipeline, *found.pipeline),
        written_bytes=probe.written_bytes + found.written_bytes,
        findings=(*probe.findings, *found.findings),
    )


def _granules(options: ProbeOptions) -> tuple[int, ...]:
    """The sizes asked for, and those of the pieces in which engines move the model's blocks.

    An estimate of an engine with planning rules names them itself (`moves`). One without knows the rank's block: a
    layer's share of it, and its keys or values alone. A model alone is taken in blocks of 16 tokens, undivided.
    """
    pieces = [piece.bytes for piece in fragments(options.model.model)] if options.model and not options.moves else []
    if options.kv is not None and not options.moves:
        layer = options.kv.block_bytes // options.kv.pieces
        pieces = [layer // 2, layer]
    return tuple(dict.fromkeys((*options.granule_bytes, *pieces)))


def _findings(options: ProbeOptions, host: Host) -> tuple[Finding, ...]:
    found = []
    parts = _parts(options)
    if _OF_GPUS & set(parts) and not host.gpus:
        text = f"{host.gpu_status}: no host to GPU link was measured"
        found.append(Finding(severity="info", code="no-gpu", text=text))
    if "disk" in parts and not options.disks:
        text = "no folder was given, so no drive was measured: add --disk DIR"
        found.append(Finding(severity="info", code="no-disk", text=text))
    return tuple(found)
