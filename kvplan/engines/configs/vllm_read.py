"""What a vLLM command, or a YAML file of its options, reserves on the host: every connector that takes a size."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from kvplan.documents import Finding, Knob
from kvplan.engines.configs.common import BYTE, GIB, Asked, Reading, finding, knob, unbounded
from kvplan.engines.configs.conditions import SHM_SPARE
from kvplan.engines.configs.lmcache_sizes import of_env
from kvplan.engines.configs.source import Command, Source, entries, json_of, number, section, true, whole
from kvplan.errors import KvplanError
from kvplan.units import GiB, KiB, MiB, show_bytes

_SHORT = {"tensor_parallel_size": "tp", "pipeline_parallel_size": "pp", "data_parallel_size": "dp"}
_OPTIONS = {"model", "kv_offloading_size", "kv_transfer_config", "tensor_parallel_size", "gpu_memory_utilization"}
_SIMPLE_DEFAULT = 8 * GiB
_DISK_DEFAULT = 100 * GiB


class Engine:
    """One engine's options, wherever they were written: by flag, or by key of a YAML file."""

    def __init__(self, source: str, command: Command) -> None:
        self.source, self.command = source, command
        self.tp, self.pp = self._count("tensor_parallel_size"), self._count("pipeline_parallel_size")
        local = command.last("data_parallel_size_local", "dpl")
        name = "--data-parallel-size-local"
        self.dp = self._count("data_parallel_size") if local is None else whole(local, source, name, "engines")

    def _count(self, name: str) -> int:
        text = self.command.last(name, _SHORT[name])
        return 1 if text is None else whole(text, self.source, f"--{name.replace('_', '-')}", "ranks")

    @property
    def ranks(self) -> int:
        """Ranks of one engine."""
        return self.tp * self.pp

    def transfer(self) -> dict[str, Any]:
        """--kv-transfer-config, from its JSON or from dotted flags."""
        text = self.command.last("kv_transfer_config")
        config = json_of(text, self.source, "--kv-transfer-config") if text else {}
        for name, values in self.command.flags.items():
            head, dot, rest = name.partition(".")
            if dot and head == "kv_transfer_config":
                _put(config, rest.split("."), values[-1])
        return config


def _put(config: dict[str, Any], keys: list[str], value: str) -> None:
    for key in keys[:-1]:
        if not isinstance(config.get(key), dict):
            config[key] = {}
        config = config[key]
    config[keys[-1]] = value


def engines(source: Source) -> list[Engine]:
    """Every vLLM engine that the file starts."""
    if source.is_keys and source.started is None:
        found = [one for one in (of_options(source.mapping),) if _OPTIONS & set(one.flags)]
    else:
        found = [one for one in source.commands if _starts(one)]
    return [Engine(source.name, one) for one in found]


def _starts(one: Command) -> bool:
    flags = one.flags
    known = {"kv_offloading_size", "kv_transfer_config", "kv_offloading_backend"} & set(flags)
    return bool(known) or any(flag.startswith("kv_transfer_config.") for flag in flags) or "vllm" in one.words[:1]


def of_options(options: Mapping[str, Any]) -> Command:
    """Options of a YAML file, as the command that they stand for."""
    import json

    words = ["vllm"]
    for key, value in options.items():
        text = json.dumps(value) if isinstance(value, (dict, list)) else str(value)
        words.append(f"--{key}={text}")
    return Command(words=tuple(words))


def read(source: Source, asked: Asked) -> Reading:
    """Host and disk bytes of every engine in the file. Raises KvplanError naming the flag that is no size."""
    found = engines(source)
    if not found:
        raise KvplanError(f"{source.name}: starts no vLLM: no `vllm serve` and none of its offloading flags")
    knobs, findings, shm = [], [], False
    for engine in found:
        some, more, mapped = _engine(engine, asked)
        knobs += some
        findings += more
        shm = shm or mapped
    findings += _same_paths(found)
    worlds = {engine.ranks for engine in found}
    ranks = worlds.pop() if len(worlds) == 1 else None
    return Reading(knobs=tuple(knobs), ranks=ranks, shm=shm, findings=tuple(findings))


def _engine(engine: Engine, asked: Asked) -> tuple[list[Knob], list[Finding], bool]:
    config = engine.transfer()
    size = engine.command.last("kv_offloading_size")
    findings: list[Finding] = []
    if size is not None:
        gib = number(size, engine.source, "--kv-offloading-size", "GiB")
        backend = engine.command.last("kv_offloading_backend") or "native"
        if backend == "lmcache":
            text = "--kv-offloading-size is not passed on to LMCache: its server's --l1-size-gb is what counts"
            return [], [finding("warning", "size-ignored", text)], False
        findings += _policy(config)
        found = knob("--kv-offloading-size", gib, GIB, "engine", engine.dp, "host")
        mapped = not true(engine.command.env.get("VLLM_USE_SIMPLE_KV_OFFLOAD", "0"))
        return [found], [*findings, *(_docker_shm(engine, found) if mapped else ())], mapped
    if not config.get("kv_connector"):
        return [], [finding("info", "no-tier", "this engine keeps no KV cache outside its GPUs")], False
    knobs: list[Knob] = []
    shm = False
    for one in connectors(config, engine.source):
        knobs += _connector(engine, one, asked, findings)
        shm = shm or one.get("kv_connector") == "OffloadingConnector"
    return knobs, [*findings, *_policy(config)], shm


def connectors(config: Mapping[str, Any], source: str) -> Iterator[Mapping[str, Any]]:
    """The connectors of one config, those of a MultiConnector one by one."""
    if config.get("kv_connector") == "MultiConnector":
        for one in entries(_extra(config, source).get("connectors"), source, "connectors"):
            yield from connectors(one, source)
    else:
        yield config


def _extra(config: Mapping[str, Any], source: str) -> Mapping[str, Any]:
    return section(config.get("kv_connector_extra_config"), source, "kv_connector_extra_config")


def _docker_shm(engine: Engine, tier: Knob) -> Iterator[Finding]:
    """Whether `docker run --shm-size` holds the mapping; without it a container has 64 MiB."""
    text, words = engine.command.last("shm_size"), engine.command.words
    if words[:1] not in (("docker",), ("podman",), ("nerdctl",)) or engine.command.last("ipc") == "host":
        return
    match = re.fullmatch(r"(\d+)([bkmg]?)", (text or "64m").lower())
    if match is None:
        raise KvplanError(f"{engine.source}: --shm-size: {text!r} is not a size such as 241g")
    size = int(match[1]) * {"": 1, "b": 1, "k": KiB, "m": MiB, "g": GiB}[match[2]]
    if size < (tier.bytes or 0) + SHM_SPARE:
        what = f"--shm-size {text}" if text else "the container's own 64 MiB of /dev/shm"
        yield finding("error", "shm-size", f"{what} cannot hold the {show_bytes(tier.bytes or 0)} mapped there")


def _policy(config: Mapping[str, Any]) -> Iterator[Finding]:
    if config.get("kv_load_failure_policy", "fail") != "recompute":
        text = 'kv_load_failure_policy is not "recompute": a block that cannot be loaded fails its request'
        yield finding("warning", "load-failure", text)


def _connector(engine: Engine, config: Mapping[str, Any], asked: Asked, findings: list[Finding]) -> list[Knob]:
    name = config.get("kv_connector")
    extra = _extra(config, engine.source)
    if name == "OffloadingConnector":
        return list(_offloading(engine, extra, findings))
    if name == "SimpleCPUOffloadConnector":
        return [_simple(engine, extra, asked, findings)]
    if name == "LMCacheConnectorV1":
        return list(of_env(engine.command.env, engine.source, engine.ranks, engine.dp, asked))
    where = {
        "LMCacheMPConnector": "the size is the LMCache server's: check its command",
        "MooncakeStoreConnector": "the size is in the file that MOONCAKE_CONFIG_PATH names: check that",
        "DynamoConnector": "the size is in DYN_KVBM_CPU_CACHE_GB: check that environment",
    }
    text = where.get(str(name), f"connector {name} is not one whose host memory kvplan can read")
    findings.append(finding("warning", "size-elsewhere", text))
    return []


def _offloading(engine: Engine, extra: Mapping[str, Any], findings: list[Finding]) -> Iterator[Knob]:
    if "cpu_bytes_to_use" not in extra:
        raise KvplanError(f"{engine.source}: OffloadingConnector needs cpu_bytes_to_use: vLLM does not start without")
    size = whole(extra["cpu_bytes_to_use"], engine.source, "cpu_bytes_to_use", "bytes")
    yield knob("cpu_bytes_to_use", size, BYTE, "engine", engine.dp, "host")
    tiers = entries(extra.get("secondary_tiers"), engine.source, "secondary_tiers")
    if tiers and extra.get("spec_name") != "TieringOffloadingSpec":
        text = "secondary_tiers are read by TieringOffloadingSpec alone: set spec_name, or nothing goes to them"
        findings.append(finding("error", "tiers-ignored", text))
        return
    for tier in tiers:
        if tier.get("type") in ("fs", "fs_python"):
            why = "the fs tier has no size of its own and never deletes: an evictor has to"
            yield unbounded("secondary_tiers fs", str(tier.get("root_dir", "")), "disk", why)
            findings.append(finding("warning", "eviction", f"{tier.get('root_dir')}: {why}"))
            findings += _seed(engine)


def _seed(engine: Engine) -> Iterator[Finding]:
    if "PYTHONHASHSEED" not in engine.command.env:
        text = "PYTHONHASHSEED is not set: after a restart, or in a second engine, stored blocks may never match"
        yield finding("warning", "hash-seed", text)


def _simple(engine: Engine, extra: Mapping[str, Any], asked: Asked, findings: list[Finding]) -> Knob:
    backend = extra.get("kv_offload_backend", "cpu")
    times = engine.ranks * engine.dp
    if backend == "disk":
        if not extra.get("disk_path"):
            raise KvplanError(
                f'{engine.source}: kv_offload_backend "disk" needs disk_path: vLLM does not start without'
            )
        if not true(extra.get("use_page_cache", False)) and asked.block_bytes and asked.block_bytes % 4096:
            text = f"a block is {asked.block_bytes:,} B, no whole sectors of 4,096 B: direct I/O stops at start-up"
            findings.append(finding("error", "direct-io", text))
        size = whole(extra.get("disk_capacity_bytes", _DISK_DEFAULT), engine.source, "disk_capacity_bytes", "bytes")
        why = "" if "disk_capacity_bytes" in extra else f"the default, {show_bytes(_DISK_DEFAULT)}"
        return knob("disk_capacity_bytes", size, BYTE, "rank", times, "disk", why)
    if backend != "cpu":
        raise KvplanError(f"{engine.source}: kv_offload_backend {backend!r}: vLLM knows cpu and disk")
    if "cpu_bytes_to_use_per_rank" in extra:
        name = "cpu_bytes_to_use_per_rank"
        return knob(name, whole(extra[name], engine.source, name, "bytes"), BYTE, "rank", times, "host")
    size = whole(extra.get("cpu_bytes_to_use", _SIMPLE_DEFAULT), engine.source, "cpu_bytes_to_use", "bytes")
    why = "" if "cpu_bytes_to_use" in extra else f"the default, {show_bytes(_SIMPLE_DEFAULT)}"
    return knob("cpu_bytes_to_use", size, BYTE, "engine", engine.dp, "host", why)


def _same_paths(found: list[Engine]) -> Iterator[Finding]:
    paths = [
        _extra(one, engine.source).get("disk_path")
        for engine in found
        for one in connectors(engine.transfer(), engine.source)
        for _ in range(engine.dp)
    ]
    for path in sorted({path for path in paths if isinstance(path, str) and path and paths.count(path) > 1}):
        text = f"{paths.count(path)} engines use disk_path {path}: one removes the other's file and both keep the space"
        yield finding("error", "disk-paths", text)
