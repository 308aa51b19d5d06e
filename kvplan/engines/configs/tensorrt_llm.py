"""TensorRT-LLM: a YAML file of extra options; host_cache_size and disk_cache_size are bytes of one rank."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator

from kvplan.documents import Finding
from kvplan.engines.configs import conditions, switches
from kvplan.engines.configs.common import (
    BYTE,
    Asked,
    Emission,
    Given,
    Reading,
    comments,
    finding,
    knob,
    notes,
    part,
    ranks_of,
    says,
)
from kvplan.engines.configs.source import Source, section, whole

FILE = "extra-llm-api-options.yaml"
FLOOR = "TensorRT-LLM 1.2 or newer"
DISK_FLOOR = "TensorRT-LLM 1.3 (release candidates) or newer: 1.2 has no disk_cache_size"
_DTYPES = ("fp8", "nvfp4")  # others are the model's own
_HOST, _DISK = "host_cache_size", "disk_cache_size"
_PREFERRED = "tensor_parallel_size"


def emit(given: Given) -> Emission:
    """kv_cache_config for `trtllm-serve --extra_llm_api_options`; the host tier takes what the GPU evicts."""
    each, disk = given.host_bytes // given.ranks, given.disk_bytes // given.ranks
    sizes = [knob(_HOST, each, BYTE, "rank", given.ranks, "host")]
    if disk:
        sizes.append(knob(_DISK, disk, BYTE, "rank", given.ranks, "disk"))
    floor = DISK_FLOOR if disk else FLOOR
    found = tuple(_conditions(given, each, disk * given.ranks))
    lines = [
        f"tensor_parallel_size: {given.tp or given.ranks}",
        *([f"pipeline_parallel_size: {given.pp}"] if given.pp > 1 else []),
        *([f"max_seq_len: {given.max_model_len}"] if given.max_model_len else []),
        *(line for lines in switches.words("tensorrt-llm", given) for line in lines),
        "kv_cache_config:",
        f"  enable_block_reuse: {'true' if given.switches.prefix_caching else 'false'}",
        f"  tokens_per_block: {given.block_tokens}",
        *([f"  dtype: {given.kv_dtype}"] if given.kv_dtype in _DTYPES else []),
        f"  free_gpu_memory_fraction: {given.utilization:g}  # of what weights and activations leave free"
        if given.kv_tokens is None
        else f"  max_tokens: {given.kv_tokens}",
        f"  # {says(sizes[0])}",
        f"  {_HOST}: {each}",
    ]
    if disk:
        path = json.dumps(f"{given.folder}/kvplan")
        lines += [f"  # {says(sizes[1])}", f"  {_DISK}: {disk}", f"  disk_cache_path: {path}"]
    start = f"start with: trtllm-serve {shlex.quote(given.model)} --extra_llm_api_options {FILE}"
    text = comments([*notes(floor, (), found), start]) + "\n".join(lines) + "\n"
    return Emission(floor=floor, parts=(part(FILE, "yaml", text),), knobs=tuple(sizes), findings=found)


def _conditions(given: Given, each: int, disk: int) -> Iterator[Finding]:
    yield from conditions.page_locking(given, each)
    text = "that these sizes are of one rank is documentation only: look at the memory of a started server"
    yield finding("warning", "documentation-only", text)
    if disk:
        yield conditions.disk_room(given, disk)
        yield conditions.paths(given, False, f"{given.folder}/kvplan")
    yield from conditions.salt(given, "cache_salt")
    yield from conditions.ages(given)


def read(source: Source, asked: Asked) -> Reading:
    """Sizes of kv_cache_config, by the ranks that the file or --ranks says."""
    options = source.mapping
    config = section(options.get("kv_cache_config"), source.name, "kv_cache_config")
    found = None
    if _PREFERRED in options:
        pp = whole(options.get("pipeline_parallel_size", 1), source.name, "pipeline_parallel_size", "ranks")
        found = whole(options[_PREFERRED], source.name, _PREFERRED, "ranks") * pp
    sizes = [(_HOST, "host"), (_DISK, "disk")]
    told = {name: whole(config[name], source.name, name, "bytes") for name, _ in sizes if config.get(name)}
    ranks = ranks_of(asked, found, source.name, next(iter(told))) if told else found
    knobs = [
        knob(name, told[name], BYTE, "rank", ranks or 1, tier)  # type: ignore[arg-type]
        for name, tier in sizes
        if name in told
    ]
    findings: list[Finding] = []
    if config.get("enable_block_reuse") is False:
        findings.append(finding("error", "no-reuse", "enable_block_reuse is false: no block is ever used again"))
    return Reading(knobs=tuple(knobs), ranks=ranks, findings=tuple(findings))
