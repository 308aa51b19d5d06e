"""vLLM's own offloading as commands: host memory, host memory over a folder of files, or one file on a drive.

Host sizes are the total of one engine: GiB for --kv-offloading-size, bytes for cpu_bytes_to_use. The simple disk
backend counts disk_capacity_bytes by rank, and the fs tier has no size at all.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Mapping

from kvplan.documents import ConfigPart, Knob
from kvplan.engines.configs import conditions, switches
from kvplan.engines.configs.common import (
    BYTE,
    GIB,
    Emission,
    Given,
    command,
    comments,
    finding,
    knob,
    notes,
    part,
    says,
    unbounded,
)
from kvplan.units import GiB, show_bytes

SCRIPT = "vllm.sh"
FLOOR = "vLLM 0.32 or newer"  # what `make check-parsers` runs
_BLOCKS = (8, 16, 32, 64, 128, 256)
_DTYPES = ("fp8", "int8_", "int4_", "nvfp4", "turboquant")
SALT = "cache_salt, which vLLM puts into every block's hash"


def emit(given: Given) -> Emission:
    """The form that holds the plan's tiers: --kv-offloading-size, the fs tier behind it, or a file on the drive."""
    if given.disk_bytes:
        return tiered(given) if given.host_bytes else disk(given)
    return native(given) if given.host_bytes else _plain(given)


def engine_words(given: Given) -> list[tuple[str, ...]]:
    """What every command for vLLM begins with: model, ranks, memory fraction, context, block and KV dtype."""
    words: list[tuple[str, ...]] = [("vllm", "serve", given.model)]
    words.append(("--tensor-parallel-size", str(given.tp or given.ranks)))
    if given.pp > 1:
        words.append(("--pipeline-parallel-size", str(given.pp)))
    if given.dealt_over > 1:  # no engine of these could hold all experts alone
        words.append(("--data-parallel-size", str(given.dealt_over), "--enable-expert-parallel"))
    if given.dcp > 1:
        words.append(("--decode-context-parallel-size", str(given.dcp)))
    if given.kv_bytes is None:
        words.append(("--gpu-memory-utilization", f"{given.utilization:g}"))
    else:  # the size of the cache itself, which overrules the fraction
        words.append(("--kv-cache-memory-bytes", str(given.kv_bytes)))
    if given.max_model_len:  # vLLM starts only where one sequence of this length fits
        words.append(("--max-model-len", str(given.max_model_len)))
    if given.block_tokens in _BLOCKS and not given.switches.block_tokens:  # hybrids work out a longer one of their own
        words.append(("--block-size", str(given.block_tokens)))
    if given.kv_dtype.startswith(_DTYPES):
        words.append(("--kv-cache-dtype", given.kv_dtype))
    return [*words, *switches.words("vllm", given)]


def transfer(connector: str | None, extra: Mapping[str, object] | None = None, **more: object) -> tuple[str, str]:
    """--kv-transfer-config with the failure policy that a cache wants."""
    config: dict[str, object] = {"kv_load_failure_policy": "recompute"}
    if connector is not None:
        config = {"kv_connector": connector, "kv_role": "kv_both", **config, **more}
    if extra:
        config["kv_connector_extra_config"] = extra
    return "--kv-transfer-config", json.dumps(config)


def _plain(given: Given) -> Emission:
    found = tuple(conditions.together(given))
    said = ["the plan gives no tier beside the GPU", *(f"{one.severity}: {one.text}" for one in found)]
    text = command(engine_words(given), said)
    return Emission(floor=FLOOR, parts=(part(SCRIPT, "shell", text),), findings=found)


def native(given: Given) -> Emission:
    """Host memory: whole GiB, so that a GiB at most is left unused."""
    size = given.host_bytes // GiB
    sizes = (knob("--kv-offloading-size", size, GIB, "engine", 1, "host"),)
    total = size * GiB
    found = (
        *conditions.together(given),
        *conditions.shm_room(given, total),
        *conditions.page_locking(given, total // given.ranks),
        *conditions.inclusive(given, total, "the host tier"),
        conditions.failure_policy(),
        *conditions.salt(given, SALT),
        *conditions.ages(given),
    )
    words = [
        *engine_words(given),
        ("--kv-offloading-size", str(size), "--kv-offloading-backend", "native"),
        transfer(None),
    ]
    limit = "the mapping in /dev/shm counts once in a container's memory limit"
    text = command(words, [*notes(FLOOR, sizes, found), limit])
    return Emission(floor=FLOOR, parts=(part(SCRIPT, "shell", text),), knobs=sizes, findings=found)


def tiered(given: Given) -> Emission:
    """Host memory in exact bytes over files in a folder, which a script beside it keeps under the plan's size."""
    root = f"{given.folder}/kvplan"
    sizes = (
        knob("cpu_bytes_to_use", given.host_bytes, BYTE, "engine", 1, "host"),
        unbounded("secondary_tiers fs", root, "disk", "the fs tier has no size of its own: evict.sh bounds the folder"),
    )
    found = (
        *conditions.together(given),
        *conditions.shm_room(given, given.host_bytes),
        *conditions.page_locking(given, given.host_bytes // given.ranks),
        conditions.disk_room(given, given.disk_bytes),
        finding("warning", "eviction", f"run evict.sh every minute: it keeps {root} under {given.disk_bytes:,} B"),
        conditions.hash_seed("in front of the command"),
        conditions.paths(given, True, root),
        *conditions.inclusive(given, given.host_bytes, "the host tier"),
        conditions.failure_policy(),
        *conditions.salt(given, SALT),
        *conditions.ages(given),
    )
    extra = {
        "spec_name": "TieringOffloadingSpec",
        "cpu_bytes_to_use": given.host_bytes,
        "secondary_tiers": [{"type": "fs", "root_dir": root}],
    }
    words = [*engine_words(given), transfer("OffloadingConnector", extra)]
    text = command(words, [*notes(FLOOR, sizes, found), "the evictor is the second file"], ["PYTHONHASHSEED=0"])
    parts = (part(SCRIPT, "shell", text), _evictor(root, given.disk_bytes))
    return Emission(floor=FLOOR, parts=parts, knobs=sizes, findings=found)


def _evictor(root: str, limit: int) -> ConfigPart:
    """A script for what the fs tier lacks: it removes the files read longest ago until the folder is under its cap."""
    text = f"""#!/bin/sh
# Keeps the folder under {limit} B ({show_bytes(limit)}): the blocks read longest ago go first. Run it every minute.
# Mounted with noatime, the order is that of writing.
folder={shlex.quote(root)}
limit={limit}
used=$(find "$folder" -type f -printf '%s\\n' | awk '{{ sum += $1 }} END {{ printf "%.0f", sum }}')
[ "$used" -gt "$limit" ] || exit 0
find "$folder" -type f -name '*.bin' -printf '%A@ %s %p\\n' | sort -n | while read -r _ size file; do
  [ "$used" -gt "$limit" ] || break
  rm -f -- "$file" && used=$((used - size))
done
"""
    return part("evict.sh", "shell", text)


def disk(given: Given) -> Emission:
    """A file on the drive a rank, written and read past the page cache where blocks are whole sectors."""
    each = given.disk_bytes // given.ranks
    path = f"{given.folder}/kvplan"
    direct, aligned = conditions.direct_io(given)
    sizes = (knob("disk_capacity_bytes", each, BYTE, "rank", given.ranks, "disk"),)
    found = (
        aligned,
        conditions.disk_room(given, each * given.ranks),
        finding("info", "disk-space", "the file is sparse: space that goes elsewhere is missed only at a write"),
        conditions.paths(given, False, f"{path}.rank_N"),
        finding("info", "eviction", "least recently used blocks make room; a restart empties the file"),
        conditions.failure_policy(),
        *conditions.salt(given, SALT),
        *conditions.ages(given),
    )
    extra: dict[str, object] = {"kv_offload_backend": "disk", "disk_path": path, "disk_capacity_bytes": each}
    if not direct:
        extra["use_page_cache"] = True
    words = [*engine_words(given), transfer("SimpleCPUOffloadConnector", extra)]
    text = command(words, notes(FLOOR, sizes, found))
    return Emission(floor=FLOOR, parts=(part(SCRIPT, "shell", text),), knobs=sizes, findings=found)


def described(knobs: tuple[Knob, ...]) -> str:
    """Comments that say each size."""
    return comments(says(one) for one in knobs)
