"""Mooncake Store under vLLM: a JSON file whose sizes are bytes of one rank; with a disk, one client process owns both.

Alone in host memory, every rank lends a segment and holds a buffer. With a disk tier, a `mooncake_client` process owns
pool, staging buffer and files, and the ranks hold their buffers alone. Buffers are taken out of the plan's host bytes.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from kvplan.documents import Finding, Knob
from kvplan.engines.configs import conditions, vllm
from kvplan.engines.configs.common import (
    BYTE,
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
    ranks_of,
)
from kvplan.engines.configs.source import Source, whole
from kvplan.errors import KvplanError
from kvplan.units import GiB, KiB, MiB, TiB, show_bytes

FILE, CLIENT = "mooncake.json", "mooncake-client.sh"
FLOOR = "Mooncake of August 2026 or newer"
_SEGMENT, _BUFFER = "global_segment_size", "local_buffer_size"
_STAGING, _FOLDER = "MOONCAKE_OFFLOAD_LOCAL_BUFFER_SIZE_BYTES", "MOONCAKE_OFFLOAD_FILE_STORAGE_PATH"
_TOTAL, _BUCKETS = "MOONCAKE_OFFLOAD_TOTAL_SIZE_LIMIT_BYTES", "MOONCAKE_OFFLOAD_BUCKET_MAX_TOTAL_SIZE"
_STAGING_DEFAULT, _SIZE_DEFAULT, _TOTAL_DEFAULT = 1280 * MiB, 4 * GiB, 2 * TiB
_MASTER = "127.0.0.1:50051"
_UNITS = {"": 1, "b": 1, "kb": KiB, "mb": MiB, "gb": GiB}


def emit(given: Given) -> Emission:
    """Files for vLLM's MooncakeStoreConnector, and with a disk tier for the client process that owns it."""
    return _with_disk(given) if given.disk_bytes else _embedded(given)


def _embedded(given: Given) -> Emission:
    each = given.host_bytes // given.ranks
    buffer = min(GiB, each // 4)
    sizes = (
        knob(_SEGMENT, each - buffer, BYTE, "rank", given.ranks, "host"),
        knob(_BUFFER, buffer, BYTE, "rank", given.ranks, "host", "taken out of the plan's host bytes"),
    )
    found = tuple(_conditions(given, each))
    config = {**_common("embedded"), _SEGMENT: each - buffer, _BUFFER: buffer, "enable_offload": False}
    parts = (part(FILE, "json", json.dumps(config, indent=2) + "\n"), part(vllm.SCRIPT, "shell", _engine(given, sizes)))
    return Emission(floor=f"{FLOOR} in {vllm.FLOOR}", parts=parts, knobs=sizes, findings=found)


def _with_disk(given: Given) -> Emission:
    buffer = min(GiB, given.host_bytes // given.ranks // 4)
    staging = min(_STAGING_DEFAULT, given.host_bytes // 8)
    pool = (given.host_bytes - buffer * given.ranks - staging) // GiB
    ours = (knob(_BUFFER, buffer, BYTE, "rank", given.ranks, "host", "taken out of the plan's host bytes"),)
    theirs = (
        knob(f"--{_SEGMENT}", pool, GIB, "server", 1, "host", "Mooncake writes GB and means GiB"),
        knob(_STAGING, staging, BYTE, "server", 1, "host"),
        knob(_BUCKETS, given.disk_bytes, BYTE, "server", 1, "disk"),
    )
    found = tuple(_conditions(given, given.host_bytes))
    config = {**_common("standalone-store"), _SEGMENT: 0, _BUFFER: buffer, "enable_offload": True}
    env = [
        f"{_FOLDER}={given.folder}/kvplan-mooncake",
        "MOONCAKE_OFFLOAD_STORAGE_BACKEND_DESCRIPTOR=bucket_storage_backend",
        f"{_STAGING}={staging}",
        f"{_TOTAL}={given.disk_bytes}",
        f"{_BUCKETS}={given.disk_bytes}",
    ]
    words = [
        ("mooncake_client",),
        (f"--master_server_address={_MASTER}", "--metadata_server=P2PHANDSHAKE", "--protocol=tcp"),
        ("--port=50052", f"--{_SEGMENT}={pool} GB", "--enable_offload=true"),
    ]
    start = "start first: mooncake_master --rpc_port=50051 --enable-offload true"
    client = command(words, [*notes(FLOOR, theirs, found), start], env)
    parts = (
        part(FILE, "json", json.dumps(config, indent=2) + "\n"),
        part(CLIENT, "shell", client),
        part(vllm.SCRIPT, "shell", _engine(given, ours)),
    )
    return Emission(floor=f"{FLOOR} in {vllm.FLOOR}", parts=parts, knobs=(*ours, *theirs), findings=found)


def _common(mode: str) -> dict[str, object]:
    return {
        "mode": mode,
        "metadata_server": "P2PHANDSHAKE",
        "master_server_address": _MASTER,
        "protocol": "tcp",
        "device_name": "",
    }


def _engine(given: Given, sizes: tuple[Knob, ...]) -> str:
    words = [*vllm.engine_words(given), vllm.transfer("MooncakeStoreConnector")]
    start = "start first: mooncake_master --rpc_port=50051; protocol rdma and device_name where there are such cards"
    return command(words, [*notes(FLOOR, sizes, ()), start], [f"MOONCAKE_CONFIG_PATH={FILE}", "PYTHONHASHSEED=0"])


def _conditions(given: Given, each: int) -> Iterator[Finding]:
    yield from conditions.page_locking(given, each)
    yield conditions.hash_seed("in front of the command")
    yield conditions.failure_policy()
    if given.disk_bytes:
        yield conditions.disk_room(given, given.disk_bytes)
        yield conditions.watermark(90, "the folder", given.disk_bytes)
        yield conditions.paths(given, False, f"{given.folder}/kvplan-mooncake")
        text = f"{_BUCKETS} is the plan's size: at its default of 0 the files take 90 % of the drive"
        yield finding("info", "eviction", text)
    yield conditions.watermark(95, "the master", given.host_bytes)
    text = "the offload variables were read in documentation only: hold them against the client's log"
    yield finding("info", "documentation-only", text)
    yield from conditions.ages(given)


def size_of(value: object, source: str, key: str) -> int:
    """Bytes of a size as vLLM's loader reads it: a count, or a number with B, KB, MB or GB, all of 1024."""
    match = re.fullmatch(r"\s*([\d.]+)\s*(gb|mb|kb|b)?\s*", str(value).lower())
    if isinstance(value, int) and not isinstance(value, bool):
        return whole(value, source, key, "bytes")
    if match is None:
        raise KvplanError(f"{source}: {key}: {value!r} is not a size such as 80GB or a count of bytes")
    return int(float(match[1]) * _UNITS[match[2] or ""])


def read(source: Source, asked: Asked) -> Reading:
    """Segments and buffers of a JSON file, or pool, staging and files of a client's command and variables."""
    if source.text.lstrip().startswith("{"):
        return _of_json(source.mapping, source.name, asked)
    return _of_client(source)


def _of_json(config: Mapping[str, Any], source: str, asked: Asked) -> Reading:
    mode = config.get("mode", "embedded")
    if mode not in ("embedded", "standalone-store"):
        raise KvplanError(f"{source}: mode {mode!r}: Mooncake knows embedded and standalone-store")
    ranks = ranks_of(asked, None, source, _SEGMENT)
    segment = size_of(config.get(_SEGMENT, _SIZE_DEFAULT), source, _SEGMENT)
    if (mode == "embedded") == (segment == 0):
        need = "more than 0" if mode == "embedded" else "0, as the client owns the pool"
        raise KvplanError(f"{source}: {_SEGMENT} is {segment} and mode {mode} needs {need}")
    buffer = size_of(config.get(_BUFFER, _SIZE_DEFAULT), source, _BUFFER)
    why = "" if _BUFFER in config else f"the default, {show_bytes(_SIZE_DEFAULT)}"
    knobs = [knob(_BUFFER, buffer, BYTE, "rank", ranks, "host", why)]
    if segment:
        why = "" if _SEGMENT in config else f"the default, {show_bytes(_SIZE_DEFAULT)}"
        knobs.insert(0, knob(_SEGMENT, segment, BYTE, "rank", ranks, "host", why))
    return Reading(knobs=tuple(knobs), ranks=ranks, findings=tuple(_mode_findings(config, mode)))


def _mode_findings(config: Mapping[str, Any], mode: str) -> Iterator[Finding]:
    if mode == "standalone-store":
        text = "pool and disk are those of the mooncake_client process: check its command as well"
        yield finding("warning", "size-elsewhere", text)
    elif config.get("enable_offload"):
        text = "enable_offload in embedded mode: disk sees only what lands on the segment of an offloading client"
        yield finding("warning", "offload-mode", text)


def _of_client(source: Source) -> Reading:
    clients = [one for one in source.commands if "global_segment_size" in one.flags]
    knobs = [
        knob(f"--{_SEGMENT}", size_of(value, source.name, f"--{_SEGMENT}"), BYTE, "server", 1, "host")
        for one in clients
        for value in one.flags["global_segment_size"][-1:]
    ]
    env = {name: value for name, value in source.env.items() if name.startswith("MOONCAKE_OFFLOAD_")}
    if not knobs and not env:
        raise KvplanError(f"{source.name}: neither --{_SEGMENT} nor MOONCAKE_OFFLOAD_ variables are there")
    findings: list[Finding] = []
    if env:
        staging = whole(env.get(_STAGING, _STAGING_DEFAULT), source.name, _STAGING, "bytes")
        knobs.append(knob(_STAGING, staging, BYTE, "server", 1, "host"))
        bounds = [whole(env.get(_TOTAL, _TOTAL_DEFAULT), source.name, _TOTAL, "bytes")]
        if buckets := whole(env.get(_BUCKETS, 0), source.name, _BUCKETS, "bytes"):
            bounds.append(buckets)
        else:
            text = f"{_BUCKETS} is 0, which is 90 % of the drive and not without bound"
            findings.append(finding("warning", "eviction", text))
        knobs.append(knob(_BUCKETS if buckets else _TOTAL, min(bounds), BYTE, "server", 1, "disk"))
    return Reading(knobs=tuple(knobs), findings=tuple(findings))
