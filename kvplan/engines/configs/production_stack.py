"""vLLM's production stack: Helm values. Its LMCache runs in the workers, so that its sizes count by rank, in GiB.

The chart passes cpuOffloadingBufferSize on as it stands and ignores one below 1; of a disk tier it sets the size alone,
so that folder and volume go through `env` and `extraVolumes`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from kvplan.documents import Finding, Knob
from kvplan.engines.configs import conditions, lmcache, vllm
from kvplan.engines.configs.common import (
    GIB,
    Asked,
    Emission,
    Given,
    Reading,
    finding,
    knob,
    notes,
    part,
    ranks_of,
    says,
)
from kvplan.engines.configs.quantity import quantity, show
from kvplan.engines.configs.source import Source, entries, number, section, true, whole
from kvplan.errors import KvplanError
from kvplan.units import GiB, show_bytes

FLOOR = "production-stack chart 0.1.12 or newer"
FILE = "values.yaml"
SHM = 20 * GiB  # the chart's own default
_CPU, _DISK = "cpuOffloadingBufferSize", "diskOffloadingBufferSize"


def emit(given: Given) -> Emission:
    """Values of one model: LMCache's sizes a rank, memory of the pod that holds them, the folder of a disk tier."""
    ranks = given.storing
    size, disk = given.host_bytes // ranks // GiB, given.disk_bytes // ranks // GiB
    sizes = [knob(_CPU, size, GIB, "rank", ranks, "host", "LMCache writes GB and means GiB")]
    if disk:
        sizes.append(knob(_DISK, disk, GIB, "rank", ranks, "disk", "LMCache writes GB and means GiB"))
    found = tuple(_conditions(given, size, disk * GiB * ranks))
    memory = given.host_bytes + (given.beside_bytes or 0) + GiB
    name = json.dumps("".join(ch if ch.isalnum() else "-" for ch in given.model.split("/")[-1].lower()).strip("-"))
    lines = [
        *(f"# {note}" for note in notes(FLOOR, (), found)),
        "servingEngineSpec:",
        "  modelSpec:",
        f"  - name: {name}",
        f"    modelURL: {json.dumps(given.model)}",
        "    replicaCount: 1",
        f"    requestGPU: {given.ranks}",
        f"    # the tier once, {show_bytes(given.beside_bytes or 0)} of engine beside it, {show_bytes(GiB)} of spare",
        f"    requestMemory: {json.dumps(show(memory))}",
        f"    limitMemory: {json.dumps(show(memory))}",
        "    vllmConfig:",
        f"      tensorParallelSize: {given.tp or given.ranks}",
        *([f"      gpuMemoryUtilization: {given.utilization:g}"] if given.kv_bytes is None else []),
        f"      extraArgs: {json.dumps(_extra(given))}",
        "    lmcacheConfig:",
        "      enabled: true",
        f"      # {says(sizes[0])}",
        f'      {_CPU}: "{size}"',
    ]
    if disk:
        lines += [f"      # {says(sizes[1])}", f'      {_DISK}: "{disk}"', *_folder(given)]
    parts = (part(FILE, "yaml", "\n".join(lines) + "\n"),)
    return Emission(floor=FLOOR, parts=parts, knobs=tuple(sizes), findings=found)


def _extra(given: Given) -> list[str]:
    words = [word for group in vllm.engine_words(given)[1:] for word in group]
    return [word for place, word in enumerate(words) if not _said(words, place)]


def _said(words: list[str], place: int) -> bool:
    """Whether a word belongs to a flag that the chart has a value of its own for."""
    own = ("--tensor-parallel-size", "--gpu-memory-utilization")
    return words[place] in own or (place > 0 and words[place - 1] in own)


def _folder(given: Given) -> list[str]:
    path = f"{given.folder}/kvplan-lmcache"
    return [
        "    env:",
        "    - {name: LMCACHE_LOCAL_DISK, value: " + json.dumps(f"file://{path}/") + "}",
        "    extraVolumes:",
        "    - {name: kv-cache, hostPath: {path: " + json.dumps(path) + ", type: DirectoryOrCreate}}",
        "    extraVolumeMounts:",
        "    - {name: kv-cache, mountPath: " + json.dumps(path) + "}",
    ]


def _conditions(given: Given, size: int, disk: int) -> Iterator[Finding]:
    yield conditions.chunk_multiple(given, lmcache.CHUNK, "LMCache")
    yield from conditions.page_locking(given, size * GiB)
    yield from lmcache.rounding(given, size * GiB)
    if disk:
        yield conditions.disk_room(given, disk)
        yield conditions.paths(given, False, f"{given.folder}/kvplan-lmcache")
    yield finding("info", "hash-seed", "the chart sets PYTHONHASHSEED=123 in every pod")
    text = "the chart's connector has the failure policy of its default, which fails a request whose load fails"
    yield finding("warning", "load-failure", text)
    yield from conditions.ages(given)


def read(source: Source, asked: Asked) -> Reading:
    """Sizes of every model in the values, with the replicas of each."""
    serving = section(source.mapping.get("servingEngineSpec"), source.name, "servingEngineSpec")
    specs = entries(serving.get("modelSpec"), source.name, "modelSpec")
    if not specs:
        raise KvplanError(f"{source.name}: servingEngineSpec.modelSpec has no model")
    knobs: list[Knob] = []
    findings: list[Finding] = []
    known: set[int] = set()
    for spec in specs:
        if true(spec.get("enabled", True)):
            ranks = _ranks(spec, source.name, asked)
            known.add(ranks)
            knobs += _model(spec, source.name, ranks, asked)
            findings += _model_findings(spec, source.name, knobs)
    return Reading(knobs=tuple(knobs), ranks=known.pop() if len(known) == 1 else None, findings=tuple(findings))


def _ranks(spec: Mapping[str, Any], source: str, asked: Asked) -> int:
    config = section(spec.get("vllmConfig"), source, "vllmConfig")
    said = config.get("tensorParallelSize")
    pp = whole(config.get("pipelineParallelSize", 1), source, "pipelineParallelSize", "ranks")
    found = whole(said, source, "tensorParallelSize", "ranks") * pp if said is not None else None
    return ranks_of(asked, found if found is not None or asked.ranks or asked.planned else 1, source, _CPU)


def _model(spec: Mapping[str, Any], source: str, ranks: int, asked: Asked) -> Iterator[Knob]:
    config = section(spec.get("lmcacheConfig"), source, "lmcacheConfig")
    if not true(config.get("enabled", False)):
        return
    times = (1 if asked.latent else ranks) * whole(spec.get("replicaCount", 1), source, "replicaCount", "replicas")
    size = number(config.get(_CPU, 0), source, _CPU, "GB")
    if int(size) > 0:
        yield knob(_CPU, size, GIB, "rank", times, "host")
    if config.get(_DISK):
        yield knob(_DISK, number(config[_DISK], source, _DISK, "GB"), GIB, "rank", times, "disk")


def _model_findings(spec: Mapping[str, Any], source: str, knobs: list[Knob]) -> Iterator[Finding]:
    config = section(spec.get("lmcacheConfig"), source, "lmcacheConfig")
    size = config.get(_CPU)
    if size is not None and int(number(size, source, _CPU, "GB")) < 1:
        yield finding("error", "too-small", f"{_CPU} {size!r} is below 1, and the chart leaves it out")
    folders = [one for one in entries(spec.get("env"), source, "env") if one.get("name") == "LMCACHE_LOCAL_DISK"]
    if config.get(_DISK) and not folders:
        text = f"{_DISK} without LMCACHE_LOCAL_DISK in env: the chart sets the size alone, and nothing goes to disk"
        yield finding("error", "disk-folder", text)
    limit = spec.get("limitMemory")
    held = sum(one.bytes or 0 for one in knobs if one.tier == "host")
    if limit is not None and quantity(limit, source, "limitMemory") < held:
        text = f"limitMemory {limit} is below the {show_bytes(held)} of cache in the pod: it is killed as it fills"
        yield finding("error", "memory-limit", text)
