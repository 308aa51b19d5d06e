"""LMCache's server: one pool on the node whatever the ranks. Its sizes say gb and are GiB; eviction is an option."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

from kvplan.documents import Finding, Knob
from kvplan.engines.configs import conditions, vllm
from kvplan.engines.configs.common import (
    GIB,
    Asked,
    Emission,
    Given,
    Reading,
    command,
    finding,
    knob,
    notes,
    part,
    unbounded,
)
from kvplan.engines.configs.lmcache import CHUNK, FLOOR
from kvplan.engines.configs.source import Command, Source, json_of, number
from kvplan.errors import KvplanError
from kvplan.units import GiB

SCRIPT = "lmcache-server.sh"
WATERMARK = 80
_EVICTION = {"eviction_policy": "LRU", "trigger_watermark": 0.8, "eviction_ratio": 0.2}
_GB = "the flag says gb and means GiB"
SALT = "cache_salt, which LMCache's server keeps in its keys"


def server_words(given: Given) -> list[tuple[str, ...]]:
    """The server's own command."""
    size, disk = given.host_bytes // GiB, given.disk_bytes // GiB
    words: list[tuple[str, ...]] = [
        ("lmcache", "server"),
        ("--l1-size-gb", str(size)),
        ("--chunk-size", str(CHUNK)),
        ("--eviction-policy", "LRU", "--eviction-trigger-watermark", "0.8", "--eviction-ratio", "0.2"),
    ]
    if disk:
        adapter = {
            "type": "fs_native",
            "base_path": f"{given.folder}/kvplan-lmcache",
            "max_capacity_gb": disk,
            "eviction": _EVICTION,
        }
        words.append(("--l2-adapter", json.dumps(adapter)))
    return words


def engine_words(given: Given) -> list[tuple[str, ...]]:
    """vLLM's command, with the connector to a server on the same host."""
    extra = {"lmcache.mp.host": "tcp://localhost", "lmcache.mp.port": 5555}
    return [*vllm.engine_words(given), vllm.transfer("LMCacheMPConnector", extra)]


def emit(given: Given) -> Emission:
    """The server's command, and vLLM's with the connector to it."""
    size, disk = given.host_bytes // GiB, given.disk_bytes // GiB
    sizes = [knob("--l1-size-gb", size, GIB, "server", 1, "host", _GB)]
    if disk:
        sizes.append(knob("max_capacity_gb", disk, GIB, "server", 1, "disk", _GB))
    found = tuple(_conditions(given, size * GiB, disk * GiB))
    server = command(server_words(given), notes(FLOOR, sizes, found), ["PYTHONHASHSEED=0"])
    engine = command(
        engine_words(given), ["start the server first; both share one host, its IPC and /dev/shm"], ["PYTHONHASHSEED=0"]
    )
    parts = (part(SCRIPT, "shell", server), part(vllm.SCRIPT, "shell", engine))
    return Emission(floor=f"{FLOOR} in {vllm.FLOOR}", parts=parts, knobs=tuple(sizes), findings=found)


def _conditions(given: Given, size: int, disk: int) -> Iterator[Finding]:
    yield conditions.chunk_multiple(given, CHUNK, "LMCache")
    yield from conditions.page_locking(given, size)
    yield conditions.watermark(WATERMARK, "the server's host pool", size)
    if disk:
        yield conditions.disk_room(given, disk)
        yield conditions.watermark(WATERMARK, "its folder", disk)
        text = "the adapter has an eviction section, without which max_capacity_gb only counts and deletes nothing"
        yield finding("info", "eviction", text)
        yield conditions.paths(given, False, f"{given.folder}/kvplan-lmcache")
    if given.on_host > 1:
        text = f"{given.on_host} engines on the host: one server for all of them takes the sum of their sizes"
        yield finding("warning", "one-server", text)
    yield conditions.hash_seed("in front of both commands")
    yield conditions.failure_policy()
    yield from conditions.salt(given, SALT)
    yield from conditions.ages(given)


def servers(source: Source) -> list[Command]:
    """Every server that the file starts."""
    return [one for one in source.commands if "l1_size_gb" in one.flags or "l1_manager" in one.flags]


def read(source: Source, asked: Asked) -> Reading:
    """Pool and adapters of every server in the file."""
    found = servers(source)
    if not found:
        raise KvplanError(f"{source.name}: starts no LMCache server: --l1-size-gb is not there")
    knobs: list[Knob] = []
    findings: list[Finding] = []
    for one in found:
        knobs += _pools(one, source.name)
        for text in one.flags.get("l2_adapter", ()):
            adapter = json_of(text, source.name, "--l2-adapter")
            knobs.append(_adapter(adapter, source.name))
            findings += _adapter_findings(adapter)
        findings += _server_findings(one, source.name, knobs)
    return Reading(knobs=tuple(knobs), findings=tuple(findings))


def _pools(one: Command, source: str) -> Iterator[Knob]:
    size = one.last("l1_size_gb")
    tier = "disk" if one.last("gds_l1_path") else "host"
    if size is not None:
        yield knob("--l1-size-gb", number(size, source, "--l1-size-gb", "GB"), GIB, "server", 1, tier)  # type: ignore[arg-type]
    for text in one.flags.get("l1_manager", ()):
        pool = json_of(text, source, "--l1-manager")
        gib = number(pool.get("size_gb"), source, "--l1-manager size_gb", "GB")
        yield knob("--l1-manager size_gb", gib, GIB, "server", 1, "disk" if pool.get("type") == "GDS" else "host")


def _adapter(adapter: Mapping[str, Any], source: str) -> Knob:
    name = f"--l2-adapter {adapter.get('type')}"
    for key, unit in (("max_capacity_gb", GIB), ("capacity_bytes", ("B", 1))):
        if adapter.get(key):
            size = number(adapter[key], source, f"{name} {key}", unit[0])
            if adapter.get("type") == "fs_native" and "eviction" not in adapter:
                break
            return knob(f"{name} {key}", size, unit, "server", 1, "disk")
    return unbounded(
        name, str(adapter.get("base_path", "")), "disk", "nothing here ever deletes: the folder only grows"
    )


def _adapter_findings(adapter: Mapping[str, Any]) -> Iterator[Finding]:
    if adapter.get("type") in ("fs", "fs_native") and "eviction" not in adapter:
        text = f"{adapter.get('base_path')}: no eviction section, so max_capacity_gb is counted and nothing deleted"
        yield finding("error", "eviction", text)


def _server_findings(one: Command, source: str, knobs: list[Knob]) -> Iterator[Finding]:
    policy = one.last("eviction_policy")
    if policy in (None, "noop"):
        yield finding(
            "error", "eviction", "no --eviction-policy: the server does not start, or its pool fills and stays"
        )
    share = number(one.last("eviction_trigger_watermark") or 0.8, source, "--eviction-trigger-watermark", "0 to 1")
    size = next((one.bytes for one in knobs if one.tier == "host"), 0) or 0
    yield conditions.watermark(round(share * 100), "the server's pool", size)
