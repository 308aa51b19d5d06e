"""Dynamo's KV block manager: environment variables in decimal GB, the total over the tensor parallel workers."""

from __future__ import annotations

import shlex
from collections.abc import Iterator

from kvplan.documents import Finding, Knob
from kvplan.engines.configs import conditions, vllm
from kvplan.engines.configs.common import (
    DECIMAL_GB,
    Asked,
    Emission,
    Given,
    Reading,
    command,
    comments,
    finding,
    knob,
    notes,
    part,
    says,
)
from kvplan.engines.configs.source import Source, number
from kvplan.errors import KvplanError
from kvplan.units import GB, show_bytes

FLOOR = "Dynamo 1.6.1 or newer"
FILE = "kvbm.env"
_CPU, _DISK = "DYN_KVBM_CPU_CACHE_GB", "DYN_KVBM_DISK_CACHE_GB"


def emit(given: Given) -> Emission:
    """The variables, and vLLM's command with Dynamo's connector."""
    size, disk = given.host_bytes // GB, given.disk_bytes // GB
    sizes = [knob(_CPU, size, DECIMAL_GB, "engine", 1, "host")] if size else []
    if disk:
        sizes.append(knob(_DISK, disk, DECIMAL_GB, "engine", 1, "disk"))
    found = tuple(_conditions(given, size * GB, disk * GB))
    lines = []
    for one in sizes:
        lines += [f"# {says(one)}", f"{one.name}={one.written}"]
    if disk:
        lines.append(f"DYN_KVBM_DISK_CACHE_DIR={shlex.quote(given.folder + '/kvplan')}")
        if not conditions.direct_io(given)[0]:
            lines.append("DYN_KVBM_DISK_DISABLE_O_DIRECT=true")
    lines += ["PYTHONHASHSEED=0", "DYN_KVBM_METRICS=true"]
    env = part(FILE, "env", comments(notes(FLOOR, (), found)) + "\n".join(lines) + "\n")
    words = [
        *vllm.engine_words(given),
        vllm.transfer("DynamoConnector", kv_connector_module_path="kvbm.vllm_integration.connector"),
    ]
    engine = command(words, [f"with the variables of {FILE}: set -a; . ./{FILE}; set +a"])
    parts = (env, part(vllm.SCRIPT, "shell", engine))
    return Emission(floor=FLOOR, parts=parts, knobs=tuple(sizes), findings=found)


def _conditions(given: Given, size: int, disk: int) -> Iterator[Finding]:
    yield from conditions.page_locking(given, size // given.ranks)
    yield from conditions.inclusive(given, size, "the host tier")
    if disk:
        if disk <= size:
            text = (
                f"a disk tier of {show_bytes(disk)} repeats the {show_bytes(size)} of host memory: no benefit expected"
            )
            yield finding("warning", "inclusive", text)
        yield conditions.disk_room(given, disk)
        yield conditions.direct_io(given)[1]
        yield conditions.paths(given, False, f"{given.folder}/kvplan")
    yield conditions.hash_seed(f"in {FILE}")
    yield conditions.failure_policy()
    text = "that the sizes are totals over the workers was read in its source: hold it against the log of a start"
    yield finding("warning", "documentation-only", text)
    yield from conditions.ages(given)


def read(source: Source, asked: Asked) -> Reading:
    """Sizes of the variables, whether set in a file of their own or in front of a command."""
    env = source.env
    knobs: list[Knob] = []
    for name, tier in ((_CPU, "host"), (_DISK, "disk")):
        if name in env:
            knobs.append(knob(name, number(env[name], source.name, name, "GB"), DECIMAL_GB, "engine", 1, tier))  # type: ignore[arg-type]
    blocks = [name for name in env if name.startswith("DYN_KVBM_") and name.endswith("_OVERRIDE_NUM_BLOCKS")]
    if blocks:
        text = f"{source.name}: {blocks[0]} counts blocks, not bytes: set {_CPU} or {_DISK} instead to have it checked"
        raise KvplanError(text)
    if not knobs:
        raise KvplanError(f"{source.name}: neither {_CPU} nor {_DISK} is set")
    return Reading(knobs=tuple(knobs), findings=tuple(_read_findings(env)))


def _read_findings(env: dict[str, str]) -> Iterator[Finding]:
    if _DISK in env and "DYN_KVBM_DISK_CACHE_DIR" not in env:
        text = "DYN_KVBM_DISK_CACHE_DIR is not set: the disk tier goes to the system's temporary folder"
        yield finding("warning", "disk-folder", text)
    if _DISK in env and "PYTHONHASHSEED" not in env:
        yield finding("warning", "hash-seed", "PYTHONHASHSEED is not set: blocks may never match after a restart")
