"""Flags to paste, one text an engine or offload layer, each converted back to the bytes it takes on the host."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from kvplan.engines.profiles import power_of_two_above
from kvplan.units import GB, GiB, MiB, show_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Given:
    """What a plan gives one replica: totals over its `ranks`, all on one host.

    `latent`: the model keeps one latent for all heads, so every rank holds the same bytes and one rank stores them.
    """

    host_bytes: int
    disk_bytes: int
    ranks: int
    latent: bool
    block_tokens: int
    utilization: float
    disk_path: str | None = None


def texts(engine: str, given: Given, offload: str = "native") -> dict[str, str]:
    """Texts for an engine and, where a tier is given, for the offload layers that run in it.

    With a layer chosen, the engine's own text has its connector and that layer alone follows. Sizes never exceed what
    was given.
    """
    tier = given.host_bytes or given.disk_bytes
    found = {name: build(given) for name, build in _BUILDERS.get(engine, {}).items() if tier or name == engine}
    if offload == "native" or not tier:
        return found
    bare = replace(given, host_bytes=0, disk_bytes=0)
    return {engine: _CONNECTORS[offload](bare), offload: found[offload]}


def _with_connector(given: Given, connector: Mapping[str, object], note: str) -> str:
    text = json.dumps({**connector, "kv_role": "kv_both", "kv_load_failure_policy": "recompute"})
    flags = [f"--gpu-memory-utilization {given.utilization:g}", f"--block-size {given.block_tokens}"]
    return _text([*flags, f"--kv-transfer-config '{text}'"], [note])


def _in_process(given: Given) -> str:
    note = "LMCACHE_CONFIG_FILE names the file below; set PYTHONHASHSEED=0 on every rank"
    return _with_connector(given, {"kv_connector": "LMCacheConnectorV1"}, note)


def _to_server(given: Given) -> str:
    extra = {"lmcache.mp.host": "tcp://localhost", "lmcache.mp.port": 5555}
    note = "start the server below first; vLLM and the server share one host"
    return _with_connector(given, {"kv_connector": "LMCacheMPConnector", "kv_connector_extra_config": extra}, note)


_CONNECTORS: dict[str, Callable[[Given], str]] = {"lmcache": _in_process, "lmcache-server": _to_server}


def _vllm(given: Given) -> str:
    flags = [f"--gpu-memory-utilization {given.utilization:g}", f"--block-size {given.block_tokens}"]
    notes = []
    if given.disk_bytes and given.host_bytes:
        flags += ["--kv-transfer-config '" + _tiering(given) + "'"]
        notes += [
            _says(given.host_bytes, "host", f"cpu_bytes_to_use {given.host_bytes}, all ranks together"),
            "the fs tier has no size limit of its own: run an evictor that keeps the folder under "
            f"{show_bytes(given.disk_bytes)}",
            "set PYTHONHASHSEED=0 in every engine that shares the folder, or blocks of another process never match",
        ]
    elif given.disk_bytes:
        each = given.disk_bytes // given.ranks
        flags += ["--kv-transfer-config '" + _simple_disk(given, each) + "'"]
        notes += [_says(each * given.ranks, "disk", f"disk_capacity_bytes {each} a rank x {given.ranks}")]
    elif given.host_bytes:
        size = given.host_bytes // GiB
        flags += [f"--kv-offloading-size {size}", "--kv-offloading-backend native"]
        notes += [_says(size * GiB, "host", f"{size} GiB, the total of one engine"), _shm(size * GiB)]
    return _text(flags, notes)


def _tiering(given: Given) -> str:
    return _connector(
        "OffloadingConnector",
        {
            "spec_name": "TieringOffloadingSpec",
            "cpu_bytes_to_use": given.host_bytes,
            "secondary_tiers": [{"type": "fs", "root_dir": given.disk_path or "/path/on/the/drive"}],
        },
    )


def _simple_disk(given: Given, each: int) -> str:
    return _connector(
        "SimpleCPUOffloadConnector",
        {
            "kv_offload_backend": "disk",
            "disk_path": f"{given.disk_path or '/path/on/the/drive'}/kv",
            "disk_capacity_bytes": each,
        },
    )


def _connector(name: str, extra: Mapping[str, object]) -> str:
    return json.dumps(
        {
            "kv_connector": name,
            "kv_role": "kv_both",
            "kv_load_failure_policy": "recompute",
            "kv_connector_extra_config": extra,
        }
    )


def _lmcache(given: Given) -> str:
    """In-process LMCache: sizes per rank, called GB and meant as GiB; of a latent cache only the first rank stores."""
    ranks = 1 if given.latent else given.ranks
    size, disk = given.host_bytes // ranks // GiB, given.disk_bytes // ranks // GiB
    lines = ["chunk_size: 256", f"local_cpu: {'true' if size else 'false'}", f"max_local_cpu_size: {size}"]
    notes = [_says(size * ranks * GiB, "host", f"{size} GiB a rank (LMCache writes GB) x {ranks}")]
    padded = power_of_two_above(size * GiB) * ranks
    if padded > given.host_bytes:
        notes += [f"builds that page-lock the pool as one PyTorch tensor take {show_bytes(padded)}: check after start"]
    if disk:
        lines += [
            f"local_disk: file://{given.disk_path or '/path/on/the/drive'}/",
            f"max_local_disk_size: {disk}",
        ]
        notes += [
            _says(disk * ranks * GiB, "disk", f"{disk} GiB a rank x {ranks}"),
            "set PYTHONHASHSEED=0 on every rank",
        ]
    return _text(lines, notes)


def _lmcache_server(given: Given) -> str:
    """LMCache server: one pool on the node whatever the ranks; eviction begins at the watermark."""
    size = given.host_bytes // GiB
    flags = ["lmcache server", f"--l1-size-gb {size}", "--eviction-policy LRU"]
    notes = [_says(size * GiB, "host", f"{size} GiB, one pool a node (the flag says gb)")]
    if given.disk_bytes:
        adapter = {
            "type": "fs_native",
            "base_path": given.disk_path or "/path/on/the/drive",
            "max_capacity_gb": given.disk_bytes // GiB,
            "eviction": {"eviction_policy": "LRU"},
        }
        flags += ["--l2-adapter '" + json.dumps(adapter) + "'"]
        notes += [_says(given.disk_bytes // GiB * GiB, "disk", "with eviction, without which the size only counts")]
    notes += ["it evicts at 80 % full by default (--eviction-trigger-watermark): the steady cache is that much smaller"]
    return _text(flags, notes)


def _sglang(given: Given) -> str:
    size = given.host_bytes // given.ranks // GB
    flags = [f"--mem-fraction-static {given.utilization:g}"]
    notes = []
    if size:
        flags += ["--enable-hierarchical-cache", f"--hicache-size {size}", "--hicache-write-policy write_through"]
        notes += [_says(size * GB * given.ranks, "host", f"{size} decimal GB a rank x {given.ranks}")]
    return _text(flags, notes)


def _llama_cpp(given: Given) -> str:
    size = given.host_bytes // MiB
    return _text([f"--cache-ram {size}"], [_says(size * MiB, "host", f"{size} MiB of one server process")])


def _tensorrt_llm(given: Given) -> str:
    each = given.host_bytes // given.ranks
    lines = ["kv_cache_config:", f"  free_gpu_memory_fraction: {given.utilization:g}", f"  host_cache_size: {each}"]
    return _text(lines, [_says(each * given.ranks, "host", f"{each} B a rank x {given.ranks}")])


def _says(size: int, where: str, how: str) -> str:
    return f"{how} = {size} B ({show_bytes(size)}) of {where}"


def _shm(size: int) -> str:
    return f"/dev/shm needs {show_bytes(size)} free, and a container's memory limit must count it once"


def _text(lines: list[str], notes: list[str]) -> str:
    return "\n".join([*lines, *(f"# {note}" for note in notes)])


_BUILDERS: dict[str, dict[str, Callable[[Given], str]]] = {
    "vllm": {"vllm": _vllm, "lmcache": _lmcache, "lmcache-server": _lmcache_server},
    "sglang": {"sglang": _sglang},
    "llama.cpp": {"llama.cpp": _llama_cpp},
    "tensorrt-llm": {"tensorrt-llm": _tensorrt_llm},
}
