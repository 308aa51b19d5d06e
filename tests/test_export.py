"""Configurations of serving systems: written, read back, refused; every condition that they rest on."""

from __future__ import annotations

import json
import math
import os
import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Literal

import pytest
import records
import samples
from hypothesis import given as always
from hypothesis import settings
from hypothesis import strategies as st
from typer.testing import CliRunner

from kvplan.catalog import gpu
from kvplan.cli import app
from kvplan.documents import (
    EngineSettings,
    EstimateOptions,
    Export,
    LlamaCppOptions,
    ModelRef,
    Parallel,
    Plan,
    Policy,
    Reserve,
    Switches,
)
from kvplan.engines.configs import SYSTEMS, emit, recognised, refusal, tiers_of
from kvplan.engines.configs.common import Asked, Given, taken
from kvplan.engines.configs.given import served
from kvplan.engines.configs.kubernetes import IMAGES
from kvplan.engines.configs.source import Source
from kvplan.engines.profiles import profile
from kvplan.engines.vllm import VERSION as VLLM_VERSION
from kvplan.errors import KvplanError, LimitError, UsageError
from kvplan.estimate import estimate
from kvplan.export import check, export
from kvplan.files import dump, load, wrap
from kvplan.model import load_model
from kvplan.plan import make
from kvplan.planning.hostroom import RESERVES
from kvplan.units import GB, GiB, MiB

ROOT = Path(__file__).resolve().parents[1]
WRITTEN = [name for name, row in SYSTEMS.items() if row.written is not None]
# What one step of each knob is, and how often it is on the host: the most that may be left unused of each tier.
STEPS = {
    "vllm": (GiB, "total"),
    "vllm-native": (GiB, "total"),
    "vllm-tiered": (1, "total"),
    "vllm-disk": (1, "rank"),
    "lmcache": (GiB, "storing"),
    "lmcache-server": (GiB, "total"),
    "production-stack": (GiB, "storing"),
    "sglang": (GB, "rank"),
    "tensorrt-llm": (1, "rank"),
    "dynamo-kvbm": (GB, "total"),
    "llama.cpp": (MiB, "total"),
    "llama.cpp-router": (MiB, "total"),
    "mooncake-store": (GiB, "total"),
}


def wanted(host: int = 240 * GiB, disk: int = 0, ranks: int = 4, **more: object) -> Given:
    fields: dict[str, object] = {"latent": False, "block_tokens": 16, "utilization": 0.9, **more}
    return Given(host_bytes=host, disk_bytes=disk, ranks=ranks, **fields)  # type: ignore[arg-type]


def texts(name: str, given: Given, in_kubernetes: bool = False) -> dict[str, str]:
    return {one.name: one.text for one in emit(SYSTEMS[name], given, in_kubernetes).parts}


def codes(made: object) -> dict[str, str]:
    return {one.code: one.severity for one in made.findings}  # type: ignore[attr-defined]


# ------------------------------------------------------------------------------------------------ written and read back


@st.composite
def plans(draw: st.DrawFn) -> Given:
    """Tiers from a mebibyte to tens of tebibytes, a byte more or less than anything round, on up to sixteen ranks."""
    size = st.integers(MiB, 1 << draw(st.integers(21, 45)))
    ranks = draw(st.integers(1, 16))
    return wanted(
        host=draw(st.just(0) | size),
        disk=draw(st.just(0) | size),
        ranks=ranks,
        latent=draw(st.booleans()),
        block_tokens=draw(st.sampled_from([16, 32, 64, 128, 256])),
        block_bytes=draw(st.none() | st.integers(1, 1 << 24)),
        disk_path=draw(st.sampled_from([None, "/mnt/nvme", "/mnt/with space", "/mnt/it's", '/mnt/"q"', "/"])),
        model=draw(st.sampled_from(["m/Llama-3.1-8B", "/models/a b.gguf", "it's", "q#1"])),
        on_host=draw(st.integers(1, 3)),
    )


def read_back(name: str, given: Given, in_kubernetes: bool = False) -> tuple[int | None, int | None]:
    """Host and disk bytes that all texts of a system reserve, read by the readers that check foreign files."""
    host: int | None = 0
    disk: int | None = 0
    parts = texts(name, given, in_kubernetes)
    for file, text in parts.items():
        if _holds_no_size(file, parts):
            continue
        source = Source(file, text)
        row = SYSTEMS["kubernetes"] if in_kubernetes else SYSTEMS[name]
        assert recognised(source).read is row.read, (name, file)
        reading = row.read(source, Asked(ranks=_ranks_to_say(name, given), latent=given.latent))
        some = taken(reading.knobs, "host"), taken(reading.knobs, "disk")
        host = None if host is None or some[0] is None else host + some[0]
        disk = None if disk is None or some[1] is None else disk + some[1]
    return host, disk


def _holds_no_size(file: str, parts: dict[str, str]) -> bool:
    return file in ("evict.sh", "llama-router.sh") or (file == "vllm.sh" and len(set(parts) - {"evict.sh"}) > 1)


def _ranks_to_say(name: str, given: Given) -> int | None:
    return given.ranks if name in ("lmcache", "mooncake-store") else None


@pytest.mark.parametrize("name", WRITTEN)
@settings(max_examples=40)
@always(st.data())
def test_what_is_written_is_read_back_and_never_more_than_planned(name: str, data: st.DataObject) -> None:
    given = data.draw(plans())
    unit, scope = STEPS[name]
    times = {"total": 1, "rank": given.ranks, "storing": given.storing}[scope]
    try:
        host, disk = read_back(name, given)
    except LimitError as error:
        small = min(size for size in (given.host_bytes, given.disk_bytes, 1 << 60) if size) < 2 * unit * times
        assert refusal(SYSTEMS[name], given) or ("less than the least step" in str(error) and small)  # noqa: PT017
        return
    if name in ("vllm", "vllm-tiered") and tiers_of(given) == "host+disk":
        assert disk is None  # the fs tier has no size: its script has
        unit = 1
    else:
        assert disk is not None
        assert disk <= given.disk_bytes
        step = given.ranks if scope == "rank" else unit * times
        assert given.disk_bytes - disk < max(step, given.ranks)
    if name == "vllm" and tiers_of(given) == "disk":
        unit = 1
    assert host is not None
    assert host <= given.host_bytes
    assert given.host_bytes - host < max(unit * times, given.ranks + 1)


@pytest.mark.parametrize("name", [name for name, row in SYSTEMS.items() if row.kubernetes])
@settings(max_examples=25)
@always(st.data())
def test_a_manifest_reserves_what_the_plan_gives_and_holds_it(name: str, data: st.DataObject) -> None:
    given = replace(data.draw(plans()), beside_bytes=30 * GiB)
    if refusal(SYSTEMS[name], given) is not None or tiers_of(given) == "nothing":
        return
    if 0 < given.host_bytes < GiB * given.ranks or 0 < given.disk_bytes < GiB * given.ranks:
        return
    host, _ = read_back(name, given, in_kubernetes=True)
    assert host is not None
    assert host <= given.host_bytes
    text = texts(name, given, in_kubernetes=True)["deployment.yaml"]
    found = SYSTEMS["kubernetes"].read(Source("d", text), Asked(latent=given.latent))
    assert not {"memory-limit", "shm-size"} & set(codes(found))
    smaller = text.replace("sizeLimit: ", "sizeLimit: 0.").replace('"memory": "', '"memory": "0.')
    if read_back(name, given, in_kubernetes=True)[0]:
        found = SYSTEMS["kubernetes"].read(Source("d", smaller), Asked(latent=given.latent))
        assert "memory-limit" in codes(found)


@pytest.mark.parametrize("name", WRITTEN)
def test_every_size_says_its_unit_its_scope_and_the_bytes_on_the_host(name: str) -> None:
    tiers = SYSTEMS[name].tiers
    given = wanted(host=240 * GiB if tiers != ("disk",) else 0, disk=4000 * GiB if "host" not in tiers else 0)
    made = emit(SYSTEMS[name], given)
    written = "\n".join(one.text for one in made.parts)
    for knob in made.knobs:
        if knob.bytes is None:
            continue
        assert knob.bytes == int(float(knob.written) * knob.unit_bytes) * knob.times
        assert f"= {knob.bytes} B (" in written
        assert knob.written in written
        assert knob.unit
    assert made.floor.split(" in ")[0] in written or name == "mooncake-store"


def test_names_from_outside_stay_one_word_of_the_command() -> None:
    given = wanted(model="a b'; touch owned #")
    for name in ("vllm", "sglang", "llama.cpp"):
        (command,) = Source("x", texts(name, given)[f"{'llama-server' if name == 'llama.cpp' else name}.sh"]).commands
        assert ("GGUF-OF-" * (name == "llama.cpp")) + "a b'; touch owned #" in command.words


# ------------------------------------------------------------------------------------------------ refusals


@pytest.mark.parametrize("name", ["sglang", "llama.cpp", "llama.cpp-router"])
def test_a_system_without_a_bounded_disk_refuses_one(name: str) -> None:
    with pytest.raises(LimitError, match="no disk tier whose size it bounds") as caught:
        emit(SYSTEMS[name], wanted(disk=GiB))
    assert caught.value.exit_code == 3


@pytest.mark.parametrize("name", ["lmcache", "lmcache-server", "production-stack", "mooncake-store"])
def test_a_layer_over_host_memory_refuses_a_disk_alone(name: str) -> None:
    with pytest.raises(LimitError, match="through its host pool"):
        emit(SYSTEMS[name], wanted(host=0, disk=100 * GiB))


@pytest.mark.parametrize("name", WRITTEN)
def test_a_time_to_live_is_refused_where_a_tier_would_outlive_it(name: str) -> None:
    tiers = SYSTEMS[name].tiers
    given = wanted(host=64 * GiB if tiers != ("disk",) else 0, disk=64 * GiB if "host" not in tiers else 0, ttl_s=600.0)
    with pytest.raises(LimitError, match="drops blocks by their age"):
        emit(SYSTEMS[name], given)


def test_isolation_goes_only_to_systems_that_keep_the_salt() -> None:
    kept = {"vllm", "vllm-native", "lmcache-server", "sglang"}
    for name, row in SYSTEMS.items():
        if row.written is None or "host" not in row.tiers:
            continue
        given = wanted(share="tenant")
        if name in kept:
            assert codes(emit(row, given))["salt"] == "warning"
        else:
            with pytest.raises(LimitError, match="salt"):
                emit(row, given)


def test_a_plan_without_a_tier_turns_the_default_off_where_there_is_one() -> None:
    nothing = wanted(host=0)
    assert "--cache-ram 0" in texts("llama.cpp", nothing)["llama-server.sh"]
    assert "host_cache_size: 0" in texts("tensorrt-llm", nothing)["extra-llm-api-options.yaml"]
    assert "hicache" not in texts("sglang", nothing)["sglang.sh"]
    assert "kv-offloading" not in texts("vllm", nothing)["vllm.sh"]
    with pytest.raises(LimitError, match="gives no tier"):
        emit(SYSTEMS["lmcache"], nothing)


# ------------------------------------------------------------------------------------------------ conditions


def test_blocks_that_are_no_whole_sectors_go_through_the_page_cache() -> None:
    """DeepSeek-V3 in bf16: 61 layers x 16 tokens x 1,152 B are 2,048 B over a multiple of 4,096."""
    odd = wanted(host=0, disk=400 * GiB, block_bytes=61 * 16 * 1152)
    made = emit(SYSTEMS["vllm-disk"], odd)
    assert '"use_page_cache": true' in made.parts[0].text
    assert codes(made)["direct-io"] == "warning"
    even = emit(SYSTEMS["vllm-disk"], replace(odd, block_bytes=61 * 64 * 1152))
    assert "use_page_cache" not in even.parts[0].text
    assert codes(even)["direct-io"] == "info"


def test_a_chunk_that_is_no_whole_number_of_blocks_is_an_error() -> None:
    assert codes(emit(SYSTEMS["lmcache"], wanted(block_tokens=528)))["chunk-multiple"] == "error"
    assert codes(emit(SYSTEMS["lmcache-server"], wanted(block_tokens=64)))["chunk-multiple"] == "info"


def test_room_in_dev_shm_is_held_against_the_probed_host() -> None:
    host = records.replace(samples.host(), shm_free_bytes=240 * GiB + GiB // 4)
    assert codes(emit(SYSTEMS["vllm"], wanted(machine=host)))["shm-room"] == "info"
    short = records.replace(host, shm_free_bytes=240 * GiB + GiB // 4 - 1)
    assert codes(emit(SYSTEMS["vllm"], wanted(machine=short)))["shm-room"] == "error"
    assert codes(emit(SYSTEMS["vllm"], wanted(machine=host, on_host=2)))["shm-room"] == "error"
    assert codes(emit(SYSTEMS["vllm"], wanted()))["shm-room"] == "warning"


def test_a_pool_that_the_probe_could_not_page_lock_is_said() -> None:
    given = wanted(machine=samples.host(), pinned_bytes=59 * GiB)
    assert codes(emit(SYSTEMS["vllm"], given))["page-locking"] == "warning"
    assert codes(emit(SYSTEMS["vllm"], replace(given, pinned_bytes=60 * GiB)))["page-locking"] == "info"


def test_disk_takes_85_percent_of_what_is_free_or_its_own() -> None:
    given = wanted(host=0, disk=85 * GiB, disk_free_bytes=80 * GiB, disk_own_bytes=20 * GiB, ranks=1)
    assert codes(emit(SYSTEMS["vllm-disk"], given))["disk-room"] == "info"
    assert codes(emit(SYSTEMS["vllm-disk"], replace(given, disk_bytes=85 * GiB + 1)))["disk-room"] == "error"
    assert codes(emit(SYSTEMS["vllm-disk"], replace(given, on_host=2)))["disk-room"] == "error"


def test_engines_of_one_host_need_paths_of_their_own() -> None:
    given = wanted(host=0, disk=85 * GiB, on_host=2)
    assert codes(emit(SYSTEMS["vllm-disk"], given))["disk-paths"] == "warning"
    assert codes(emit(SYSTEMS["vllm-disk"], replace(given, on_host=1)))["disk-paths"] == "info"


def test_every_vllm_connector_recomputes_what_fails_to_load() -> None:
    for name, row in SYSTEMS.items():
        if row.written is None or "vllm" not in row.engines or name == "production-stack":
            continue
        tiers = row.tiers
        given = wanted(host=0 if tiers == ("disk",) else 64 * GiB, disk=0 if "host" in tiers else 64 * GiB)
        script = texts(name, given)["vllm.sh"]
        assert '"kv_load_failure_policy": "recompute"' in script, name


def test_the_script_beside_the_fs_tier_deletes_what_was_read_longest_ago(tmp_path: Path) -> None:
    root = tmp_path / "kvplan"
    (root / "m_r0").mkdir(parents=True)
    for age, name in enumerate(["new", "middle", "old"]):
        file = root / "m_r0" / f"{name} one.bin"
        file.write_bytes(b"x" * 1000)
        os.utime(file, (1_000_000 - age, 1_000_000))
    given = wanted(host=GiB, disk=2000, disk_path=str(tmp_path))
    script = tmp_path / "evict.sh"
    script.write_text(texts("vllm", given)["evict.sh"])
    subprocess.run(["sh", str(script)], check=True)
    assert sorted(file.name for file in root.rglob("*.bin")) == ["middle one.bin", "new one.bin"]
    subprocess.run(["sh", str(script)], check=True)
    assert len(list(root.rglob("*.bin"))) == 2


# ------------------------------------------------------------------------------------------------ reading foreign files

FILES = [
    ("vllm", "vllm serve m -tp 8 --kv-offloading-size 200", 200 * GiB, 0),
    ("vllm", "vllm serve m --kv_offloading_size=200 --data-parallel-size 2", 400 * GiB, 0),
    ("vllm", "docker run --ipc=host vllm/vllm-openai --model m \\\n --kv-offloading-size 10.5", int(10.5 * GiB), 0),
    ("vllm", "SIZE=7\nexport TP='2'\nvllm serve m -tp ${TP} --kv-offloading-size=$SIZE", 7 * GiB, 0),
    ("vllm", 'vllm serve m --kv-offloading-size "${SIZE:-9}" # $SIZE', 9 * GiB, 0),
    ("vllm", "kv-offloading-size: 12\ntensor-parallel-size: 2\n", 12 * GiB, 0),
    (
        "vllm",
        'vllm serve m -tp 4 -dp 2 --kv-transfer-config \'{"kv_connector":"SimpleCPUOffloadConnector",'
        '"kv_role":"kv_both","kv_connector_extra_config":{"cpu_bytes_to_use_per_rank":1000}}\'',
        8000,
        0,
    ),
    (
        "vllm",
        'vllm serve m -tp 4 -pp 2 --kv-transfer-config \'{"kv_connector":"SimpleCPUOffloadConnector",'
        '"kv_connector_extra_config":{"kv_offload_backend":"disk","disk_path":"/d"}}\'',
        0,
        8 * 100 * GiB,
    ),
    (
        "vllm",
        "vllm serve m --kv-transfer-config.kv_connector OffloadingConnector "
        "--kv-transfer-config.kv_connector_extra_config.cpu_bytes_to_use 4096",
        4096,
        0,
    ),
    (
        "vllm",
        'vllm serve m -tp 2 --kv-transfer-config \'{"kv_connector":"MultiConnector","kv_connector_extra_config":'
        '{"connectors":[{"kv_connector":"OffloadingConnector","kv_connector_extra_config":{"cpu_bytes_to_use":5}},'
        '{"kv_connector":"SimpleCPUOffloadConnector","kv_connector_extra_config":{"cpu_bytes_to_use":7}}]}}\'',
        12,
        0,
    ),
    (
        "lmcache",
        "export LMCACHE_MAX_LOCAL_CPU_SIZE=50\nvllm serve m -tp 8 --kv-transfer-config "
        '\'{"kv_connector":"LMCacheConnectorV1"}\'',
        400 * GiB,
        0,
    ),
    (
        "lmcache",
        "LMCACHE_MAX_LOCAL_CPU_SIZE=50 LMCACHE_LOCAL_DISK=/d LMCACHE_MAX_LOCAL_DISK_SIZE=7 vllm serve m -tp 2 -dp 3 "
        '--kv-transfer-config \'{"kv_connector":"LMCacheConnectorV1"}\'',
        300 * GiB,
        42 * GiB,
    ),
    ("lmcache-server", "lmcache server --l1-size-gb 100 --eviction-policy LRU", 100 * GiB, 0),
    (
        "lmcache-server",
        "lmcache server --l1-size-gb 1.5 --eviction-policy LRU --l2-adapter "
        '\'{"type":"fs_native","base_path":"/a","max_capacity_gb":3,"eviction":{"eviction_policy":"LRU"}}\'',
        3 * GiB // 2,
        3 * GiB,
    ),
    ("sglang", "python -m sglang.launch_server --tp 4 --enable-hicache --hicache-size 40", 160 * GB, 0),
    ("llama.cpp", "llama-server -m a.gguf", 8192 * MiB, 0),
    ("llama.cpp", "llama-server --models-preset a.ini --models-max 3 -cram 100", 300 * MiB, 0),
    ("llama.cpp", "llama-server --models-dir /m --cache-ram 10", 40 * MiB, 0),
    ("llama.cpp-router", "[*]\ncache-ram = 64\n[a]\nmodel = a\n[b]\ncache-ram = 100\n", 164 * MiB, 0),
    ("tensorrt-llm", "tensor_parallel_size: 2\nkv_cache_config: {host_cache_size: 1000, disk_cache_size: 7}", 2000, 14),
    (
        "tensorrt-llm",
        "tensor_parallel_size: 2\npipeline_parallel_size: 3\nkv_cache_config: {host_cache_size: 1000}",
        6000,
        0,
    ),
    ("dynamo-kvbm", "DYN_KVBM_CPU_CACHE_GB=1.5 DYN_KVBM_DISK_CACHE_GB='10' dynamo run", 1_500_000_000, 10 * GB),
    ("mooncake-store", "mooncake_client --global_segment_size='4 GB'", 4 * GiB, 0),
    (
        "production-stack",
        "servingEngineSpec:\n  modelSpec:\n  - name: m\n    replicaCount: 2\n    vllmConfig: {tensorParallelSize: 4}\n"
        '    lmcacheConfig: {enabled: true, cpuOffloadingBufferSize: "20"}\n',
        160 * GiB,
        0,
    ),
]


@pytest.mark.parametrize(("system", "text", "host", "disk"), FILES)
def test_foreign_files_are_recognised_and_their_bytes_added_up(system: str, text: str, host: int, disk: int) -> None:
    found = check(text, "file")
    assert (found.system, found.host_bytes, found.disk_bytes) == (system, host, disk)


@pytest.mark.parametrize(
    ("text", "ranks", "host"),
    [
        ("max_local_cpu_size: 50\n", 8, 400 * GiB),
        ('LMCACHE_MAX_LOCAL_CPU_SIZE: "50"\n', 8, 400 * GiB),
        ("chunk_size: 256\nmax_local_disk_size: 0\n", 2, 10 * GiB),
        ('{"protocol": "rdma", "global_segment_size": 4096}', 3, 3 * (4 * GiB + 4096)),
        ('{"mode": "embedded", "metadata_server": "a", "local_buffer_size": 1, "global_segment_size": "1KB"}', 2, 2050),
        ('{"global_segment_size": "80GB", "local_buffer_size": "4GB"}', 2, 168 * GiB),
    ],
)
def test_a_size_a_rank_needs_the_ranks(text: str, ranks: int, host: int) -> None:
    assert check(text, "file", ranks=ranks).host_bytes == host
    with pytest.raises(KvplanError, match="add --ranks N"):
        check(text, "file")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("vllm serve m --kv-offloading-size 100GB", "--kv-offloading-size: '100GB' is not a number of GiB"),
        ("vllm serve m --kv-offloading-size $SIZE", "'$SIZE' is not a number"),
        ("SIZE=7\nvllm serve m --kv-offloading-size '$SIZE'", "'$SIZE' is not a number"),
        ("vllm serve m --kv-offloading-size nan", "'nan' is not a number"),
        ("vllm serve m --kv-transfer-config '{", "line 1: a quote is not closed"),
        ("vllm serve m --kv-transfer-config '{'", "--kv-transfer-config: not valid JSON"),
        ("vllm serve m --kv-transfer-config '[]'", "a JSON object is expected"),
        ("kv_cache_config: [", "not valid YAML"),
        ("kv_cache_config: {host_cache_size: -5}", "not a number of bytes"),
        ("python -m sglang.launch_server --enable-hicache", "set --hicache-size"),
        ("DYN_KVBM_CPU_CACHE_OVERRIDE_NUM_BLOCKS=5", "counts blocks"),
        ("hello", "of no system known"),
        ("", "of no system known"),
        ("[a]\nx = 1\n[a]\n", "not a valid INI file"),
        ("servingEngineSpec: {}", "has no model"),
        ("apiVersion: v1\nkind: Service\n", "no pod"),
    ],
)
def test_what_cannot_be_read_is_one_line_that_names_file_and_key(text: str, said: str) -> None:
    with pytest.raises(KvplanError) as caught:
        check(text, "the-file")
    assert said in str(caught.value)
    assert "the-file" in str(caught.value)
    assert "\n" not in str(caught.value)


PIECES = [*"{}[]'\"\\:=#-\n a1", *(text for _, text, _, _ in FILES)]


@always(
    st.sampled_from(list(SYSTEMS)), st.text(max_size=99) | st.lists(st.sampled_from(PIECES), max_size=9).map("".join)
)
def test_any_text_is_read_or_refused(name: str, text: str) -> None:
    try:
        check(text, "file", name, ranks=2)
    except KvplanError as error:
        assert "\n" not in str(error)  # noqa: PT017


def test_silent_failures_of_foreign_files_are_errors() -> None:
    cases = {
        "disk-paths": "\n".join([_simple_disk("/d")] * 2),
        "eviction": "lmcache server --l1-size-gb 1 --eviction-policy LRU --l2-adapter "
        '\'{"type":"fs_native","base_path":"/a","max_capacity_gb":9}\'',
        "tiers-ignored": "vllm serve m --kv-transfer-config "
        '\'{"kv_connector":"OffloadingConnector","kv_connector_extra_config":'
        '{"cpu_bytes_to_use":1,"secondary_tiers":[{"type":"fs","root_dir":"/a"}]}}\'',
        "no-reuse": "tensor_parallel_size: 1\nkv_cache_config: {enable_block_reuse: false, host_cache_size: 1}",
        "disk-folder": "servingEngineSpec: {modelSpec: [{vllmConfig: {tensorParallelSize: 1}, lmcacheConfig: "
        '{enabled: true, cpuOffloadingBufferSize: "5", diskOffloadingBufferSize: "9"}}]}',
        "too-small": "servingEngineSpec: {modelSpec: [{vllmConfig: {tensorParallelSize: 1}, lmcacheConfig: "
        '{enabled: true, cpuOffloadingBufferSize: "0.5"}}]}',
        "shm-size": "docker run --shm-size 20g vllm/vllm-openai --kv-offloading-size 20",
    }
    for code, text in cases.items():
        found = check(text, "file")
        assert codes(found)[code] == "error", code
        assert not found.ok


def _simple_disk(path: str) -> str:
    extra = {"kv_offload_backend": "disk", "disk_path": path}
    config = {"kv_connector": "SimpleCPUOffloadConnector", "kv_connector_extra_config": extra}
    return f"vllm serve m --kv-transfer-config '{json.dumps(config)}'"


def test_a_disk_without_eviction_has_no_bound() -> None:
    text = "lmcache server --l1-size-gb 1 --eviction-policy LRU --l2-adapter"
    bare = """ '{"type":"fs_native","base_path":"/a","max_capacity_gb":9}'"""
    assert check(text + bare, "file").disk_bytes is None


def test_a_file_over_the_plan_or_the_host_is_not_ok() -> None:
    plan = samples.plan()
    budget = plan.data.budgets.host.requested_bytes
    fits = f"vllm serve m --kv-offloading-size {budget // GiB}"
    assert check(fits, "file", against=plan).ok
    over = check(f"vllm serve m --kv-offloading-size {budget // GiB + 1}", "file", against=plan)
    assert not over.ok
    assert codes(over)["over-host"] == "error"
    probe = samples.probe()
    assert check(fits, "file", against=probe).ok
    assert codes(check("vllm serve m --kv-offloading-size 489", "file", against=probe))["over-host"] == "error"
    assert codes(check("llama-server -cram -1", "file", against=probe))["over-host"] == "error"
    with pytest.raises(UsageError, match="a plan or a probe"):
        check(fits, "file", against=samples.workload())


def test_a_mapped_tier_of_a_foreign_file_is_held_against_dev_shm() -> None:
    probe = samples.probe()

    def seen(text: str, free: int) -> bool:
        host = records.replace(probe.data.host, shm_free_bytes=free)
        document = records.replace(probe, data=records.replace(probe.data, host=host))
        return "shm-room" in codes(check(text, "file", against=document))

    mapped = "vllm serve m --kv-offloading-size 100"
    assert seen(mapped, 100 * GiB + GiB // 4 - 1)
    assert not seen(mapped, 100 * GiB + GiB // 4)
    assert not seen("VLLM_USE_SIMPLE_KV_OFFLOAD=1 " + mapped, 0)
    assert not seen("llama-server --cache-ram 100", 0)


def test_the_plan_tells_ranks_and_latent_where_the_file_does_not() -> None:
    plan = samples.plan()
    pair = records.replace(plan.data.settings, ranks=2)
    two = records.replace(plan, data=records.replace(plan.data, settings=pair))
    assert check("max_local_cpu_size: 10", "file", against=two).host_bytes == 20 * GiB


# ------------------------------------------------------------------------------------------------ a whole plan


@pytest.mark.parametrize("name", ["vllm", "vllm-native", "lmcache", "lmcache-server", "production-stack"])
def test_a_plan_exports_and_its_own_check_passes(name: str) -> None:
    plan = samples.plan()
    made = export(plan.data, name)
    assert made.host_taken_bytes == plan.data.budgets.host.requested_bytes
    part = next(one for one in made.parts if not (one.name == "vllm.sh" and name.startswith("lmcache")))
    found = check(part.text, part.name, against=plan)
    assert found.ok
    assert found.host_bytes == made.host_taken_bytes


def test_a_plan_for_another_engine_says_so_and_takes_that_engines_memory_fraction() -> None:
    made = export(samples.plan().data, "sglang")
    assert codes(made)["other-engine"] == "warning"
    assert "--mem-fraction-static 0.88" in made.parts[0].text


def test_a_plan_made_by_the_rules_of_another_layer_says_so() -> None:
    plan = samples.plan().data
    assert codes(export(plan, "lmcache-server"))["other-layer"] == "warning"
    assert "other-layer" not in codes(export(plan, "vllm"))
    layered = records.replace(plan, settings=records.replace(plan.settings, offload="lmcache"))
    assert "other-layer" not in codes(export(layered, "lmcache"))
    assert "other-layer" not in codes(export(layered, "production-stack"))


def test_room_is_that_of_a_newer_probe_where_one_is_given() -> None:
    plan, probe = samples.plan().data, samples.probe().data
    assert codes(export(plan, "vllm"))["shm-room"] == "info"
    small = records.replace(probe, host=records.replace(probe.host, shm_free_bytes=64 * MiB))
    assert codes(export(plan, "vllm", host=small))["shm-room"] == "error"


def test_a_plan_for_another_host_than_the_probed_one_claims_nothing_of_its_room() -> None:
    plan = samples.plan().data
    elsewhere = records.replace(plan, settings=records.replace(plan.settings, host_known=False))
    assert codes(export(elsewhere, "vllm"))["shm-room"] == "warning"


def test_a_latent_beside_other_caches_is_stored_by_every_rank() -> None:
    plan = samples.plan()
    (group,) = plan.data.inputs.estimate.data.groups

    def size(*kinds: str) -> int | None:
        groups = tuple(records.replace(group, kind=kind) for kind in kinds)
        estimate = records.replace(plan.data.inputs.estimate.data, groups=groups)
        document = records.replace(plan.data.inputs.estimate, data=estimate)
        inputs = records.replace(plan.data.inputs, estimate=document)
        eight = records.replace(plan.data.settings, ranks=8)
        made = export(records.replace(plan.data, inputs=inputs, settings=eight), "lmcache")
        return int(made.knobs[0].written)

    assert (size("latent"), size("latent", "indexer"), size("latent", "draft"), size("full")) == (160, 160, 20, 20)


def test_several_models_on_one_machine_go_to_the_router(tmp_path: Path) -> None:
    (tmp_path / "models.toml").write_text(
        '[machine]\nmemory = "64GiB"\nread_rate = "2GB/s"\n\n[[model]]\nname = "a"\nweights = "20GiB"\n'
    )
    (tmp_path / "log.jsonl").write_text('{"time": 0, "model": "a", "service_s": 1}\n')
    assert run("residency", "models.toml", "log.jsonl", "-q", "-o", "r.json", folder=tmp_path).returncode == 0
    done = run("export", "r.json", "--for", "llama.cpp-router", "-o", "preset.ini", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "[a]" in (tmp_path / "preset.ini").read_text()
    assert "--models-preset preset.ini" in (tmp_path / "llama-router.sh").read_text()
    assert "cache-ram = 0" in (tmp_path / "preset.ini").read_text()  # or each model may take 8 GiB that nobody counted
    assert run("export", "r.json", "--for", "vllm", folder=tmp_path).returncode == 2


def test_an_old_plan_without_settings_is_refused() -> None:
    old = records.replace(samples.plan().data, settings=None)
    with pytest.raises(KvplanError, match="make it again"):
        export(old, "vllm")


def test_plans_keep_the_settings_that_configurations_are_written_from() -> None:
    plan: Plan = samples.plan().data
    assert plan.settings == EngineSettings(
        engine="vllm",
        offload="native",
        ranks=1,
        on_host=1,
        block_tokens=16,
        utilization=0.92,
        disk_path="/mnt/nvme",
        host_known=True,
    )


# ------------------------------------------------------------------------------------------------ the command


def run(*words: str, folder: Path) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, PYTHONPATH=str(ROOT))
    command = [sys.executable, "-m", "kvplan", *words]
    return subprocess.run(command, capture_output=True, text=True, check=False, cwd=folder, env=environment)


def test_the_command_prints_writes_and_checks(tmp_path: Path) -> None:
    (tmp_path / "plan.json").write_text(dump(samples.plan()))
    shown = run("export", "plan.json", "--for", "vllm", folder=tmp_path)
    assert shown.returncode == 0, shown.stderr
    assert "--kv-offloading-size 160" in shown.stdout
    wrote = run("export", "plan.json", "--for", "mooncake-store", "-o", "store.json", folder=tmp_path)
    assert wrote.returncode == 0, wrote.stderr
    assert json.loads((tmp_path / "store.json").read_text())["mode"] == "embedded"
    assert "MOONCAKE_CONFIG_PATH=store.json" in (tmp_path / "vllm.sh").read_text()
    document = run("export", "plan.json", "--for", "lmcache", "--json", folder=tmp_path)
    data = json.loads(document.stdout)
    assert data["kind"] == "kvplan.export"
    assert isinstance(samples.plan().data, Plan)
    (tmp_path / "big.sh").write_text("vllm serve m --kv-offloading-size 500\n")
    over = run("export", "--check", "big.sh", "--against", "plan.json", "--json", folder=tmp_path)
    assert over.returncode == 3
    assert json.loads(over.stdout)["data"]["ok"] is False
    assert "over-host" in over.stderr
    refused = run("export", "plan.json", "--for", "llama.cpp", "--check", "big.sh", folder=tmp_path)
    assert refused.returncode == 2


def test_plan_emits_in_place_of_its_page(tmp_path: Path) -> None:
    inputs = {"estimate": samples.estimate(), "workload": samples.workload(), "probe": samples.probe()}
    for name, document in inputs.items():
        (tmp_path / f"{name}.json").write_text(dump(document))
    words = ["plan", "estimate.json", "workload.json", "probe.json", "--gpu", "h100-80gb", "--emit", "vllm"]
    done = run(*words, "-o", "plan.json", folder=tmp_path)
    assert done.returncode == 0, done.stderr
    assert done.stdout.startswith("# for vLLM")
    assert (tmp_path / "plan.json").exists()
    assert run(*words, "--json", folder=tmp_path).returncode == 2
    isolated = run(*words[:-1], "production-stack", "--share", "none", folder=tmp_path)
    assert isolated.returncode == 3
    assert "salt" in isolated.stderr or "no tier" in isolated.stderr


def test_exports_are_documents_of_their_own(tmp_path: Path) -> None:
    from kvplan.files import parse, wrap
    from kvplan.report import markdown, sections

    made: Export = export(samples.plan().data, "vllm")
    document = wrap(made)
    assert parse(dump(document).encode(), "x") == document
    assert "--kv-offloading-size" in markdown(sections(document), "figures")[0]
    found = wrap(check("llama-server", "run.sh"))
    assert "8,589,934,592" in markdown(sections(found), "figures")[0]


def test_a_manifest_is_asked_for_beside_the_system_that_runs_in_it() -> None:
    plan = samples.plan().data
    with pytest.raises(UsageError, match="add --kubernetes, such as --for vllm --kubernetes") as refused:
        export(plan, "kubernetes")
    able = [name for name, row in SYSTEMS.items() if row.kubernetes]
    assert f"(manifests: {', '.join(able)})" in str(refused.value)
    with pytest.raises(UsageError, match="no system is called 'k8s'") as unknown:
        export(plan, "k8s")
    assert f"(known: {', '.join(WRITTEN)})" in str(unknown.value)


# ------------------------------------------------------------------------------- what the bytes were counted with


def planned_with(name: str, **options: object) -> Plan:
    """The sample plan for another estimate, made for the engine that it names."""
    facts = load_model("llama-3.1-8b")
    found = estimate(facts, EstimateOptions(engine=name, **options))  # type: ignore[arg-type]
    policy = Policy(engine=name, forbid_disk=True)
    return make(wrap(found), samples.workload(), samples.probe(), gpu("h100-80gb"), policy)


def words_of(plan: Plan, system: str) -> list[str]:
    return " ".join(one.text for one in export(plan, system).parts).replace("\\\n", " ").split()


@pytest.mark.parametrize(
    ("engine", "options", "expected"),
    [
        ("vllm", {"max_model_len": 16_384}, ["--max-model-len 16384"]),
        ("vllm", {"parallel": Parallel(tp=16, dcp=2)}, ["--decode-context-parallel-size 2"]),
        ("vllm", {"kv_memory_bytes": 40 * GiB}, ["--kv-cache-memory-bytes 42949672960"]),
        ("sglang", {"kv_memory_bytes": 40 * GiB}, ["--max-total-tokens 327680"]),
        ("tensorrt-llm", {"kv_memory_bytes": 40 * GiB}, ["max_tokens: 327680"]),
        ("vllm", {"kv_dtype": "fp8"}, ["--kv-cache-dtype fp8"]),
        ("sglang", {"max_model_len": 16_384, "block_tokens": 64}, ["--context-length 16384", "--page-size 64"]),
        ("tensorrt-llm", {"max_model_len": 16_384, "kv_dtype": "fp8"}, ["max_seq_len: 16384", "dtype: fp8"]),
        (
            "llama.cpp",
            {"llama_cpp": LlamaCppOptions(ctx_size=32_768, slots=4, type_k="q8_0")},
            ["--ctx-size 32768", "--parallel 4", "--cache-type-k q8_0", "--cache-type-v f16", "--model GGUF-OF-"],
        ),
    ],
)
def test_flags_say_what_the_estimate_was_counted_with(
    engine: str, options: dict[str, object], expected: list[str]
) -> None:
    told = " ".join(words_of(planned_with(engine, **options), engine))
    plain = " ".join(words_of(planned_with(engine), engine))
    assert ("fraction" in told or "utilization" in told) is ("kv_memory_bytes" not in options and engine != "llama.cpp")
    for one in expected:
        assert one in told
        assert one not in plain or one.startswith("--model")


def test_engines_that_share_experts_start_together() -> None:
    parallel = Parallel(tp=2, dp=4, expert_parallel=True)
    plan = planned_with("vllm", parallel=parallel)
    assert "--data-parallel-size 4 --enable-expert-parallel" in " ".join(words_of(plan, "vllm"))
    assert codes(export(plan, "vllm"))["engines-together"] == "warning"
    assert "need 4 times them" in plan.config["vllm"]
    other = planned_with("sglang", parallel=parallel)
    assert "data-parallel" not in " ".join(words_of(other, "sglang"))
    assert codes(export(other, "sglang"))["engines-together"] == "warning"
    apart = planned_with("vllm", parallel=Parallel(tp=2, dp=4))  # replicas of their own
    assert "data-parallel" not in " ".join(words_of(apart, "vllm"))
    assert "engines-together" not in codes(export(apart, "vllm"))


def test_a_preset_says_the_context_too() -> None:
    plan = planned_with("llama.cpp", llama_cpp=LlamaCppOptions(ctx_size=32_768, slots=4))
    preset = export(plan, "llama.cpp-router").parts[0].text
    assert "ctx-size = 32768\nparallel = 4\n" in preset


@pytest.mark.parametrize(
    ("name", "source", "expected"),
    [
        ("/models/llama/config.json", "path", "/models/llama"),
        ("configs/my-llama.json", "path", "FOLDER-OR-HUB-ID-OF-my-llama"),
        ("config.json", "path", "FOLDER-OR-HUB-ID-OF-config"),
        ("/models/llama", "path", "/models/llama"),
        ("meta-llama/Llama-3.1-8B", "catalogue", "meta-llama/Llama-3.1-8B"),
        ("a.gguf", "gguf", "a.gguf"),
    ],
)
def test_no_engine_is_told_to_serve_a_config_file(name: str, source: Literal["path"], expected: str) -> None:
    model = ModelRef(id=name, source=source, model_type="llama", config_sha256="")
    assert served(model) == expected


def test_a_plan_that_does_not_hold_says_so_beside_its_flags() -> None:
    held = export(samples.plan().data, "vllm")
    assert "plan-exceeds" not in codes(held)
    tight = make(
        samples.estimate(), samples.workload(), None, records.replace(gpu("h100-80gb"), memory_bytes=24 * GiB), Policy()
    )
    assert not all(limit.ok for limit in tight.limits)
    text = next(one.text for one in export(tight, "vllm").findings if one.code == "plan-exceeds")
    assert "exceeds GPU memory" in text


def test_a_document_of_kvplan_is_no_configuration() -> None:
    with pytest.raises(KvplanError, match=r"p.json: a document of kvplan \(kvplan.plan\), no configuration"):
        check(dump(samples.plan()), "p.json")


def test_a_pod_has_memory_for_its_engine_and_not_for_the_system_of_its_host() -> None:
    reserves = (Reserve(name="other-models", bytes=7 * GiB), Reserve(name="system", bytes=11 * GiB))
    policy = Policy(forbid_disk=True, reserves=reserves)
    plan = make(samples.estimate(), samples.workload(), samples.probe(), gpu("h100-80gb"), policy)
    held = {item.name: item.bytes for item in plan.budgets.host.items}
    assert held[RESERVES["other-models"]] == 7 * GiB
    outside = ("KV cache", "free", "headroom", RESERVES["system"], RESERVES["other-models"])
    assert set(outside) <= set(held)
    engine = sum(size for name, size in held.items() if name not in outside)
    pod = export(plan, "production-stack").parts[0].text
    (limit,) = re.findall(r'limitMemory: "(\d+)Gi"', pod)
    assert int(limit) == math.ceil((held["KV cache"] + engine) / GiB + 1)


# ------------------------------------------------------------------------------------------------ what was told beside

LLAMA_SWITCHES = LlamaCppOptions(unified=True, swa_full=True, ubatch=256, flash_attention=False)
TOLD: dict[str, Switches] = {
    "--block-tokens 48": Switches(block_tokens=48),
    "--max-num-batched-tokens 4096": Switches(max_num_batched_tokens=4096),
    "--no-hybrid-kv-cache-manager": Switches(hybrid_manager=False),
    "--no-async-scheduling": Switches(async_scheduling=False),
    "--no-prefix-caching": Switches(prefix_caching=False),
    "--draft mtp:2": Switches(draft="mtp:2"),
    "--draft ngram": Switches(draft="ngram"),
    "--draft small/Draft": Switches(draft="small/Draft"),
    "--kv-unified": Switches(llama_cpp=LlamaCppOptions(unified=True)),
    "--swa-full": Switches(llama_cpp=LlamaCppOptions(swa_full=True)),
    "--ubatch 256": Switches(llama_cpp=LlamaCppOptions(ubatch=256)),
    "--no-flash-attn": Switches(llama_cpp=LlamaCppOptions(flash_attention=False)),
}


@pytest.mark.parametrize("name", WRITTEN)
@pytest.mark.parametrize("option", TOLD)
def test_what_the_estimate_was_told_is_a_flag_or_is_said(name: str, option: str) -> None:
    """Never both and never neither: the texts differ from those without it, or a finding names it."""
    row = SYSTEMS[name]
    tiers = {"host": 240 * GiB if "host" in row.tiers or "nothing" in row.tiers else 0}
    tiers["disk"] = 0 if tiers["host"] and "host" in row.tiers else 300 * GiB
    if name == "vllm-tiered":
        tiers = {"host": 240 * GiB, "disk": 300 * GiB}
    plain, switched = wanted(**tiers), wanted(**tiers, switches=TOLD[option])
    before, after = emit(row, plain), emit(row, switched)
    said = [one.text for one in after.findings if one.code == "switch-left-out"]
    # SGLang and TensorRT-LLM state their page whatever was asked for.
    silent = option.startswith("--block-tokens") and row.engines[0] in ("sglang", "tensorrt-llm")
    if said:
        assert option in said[0]
        assert any(f"warning: {said[0]}" in one.text for one in after.parts)
    else:
        assert silent or [one.text for one in before.parts] != [one.text for one in after.parts]
    assert [one.code for one in before.findings] == [one.code for one in after.findings if one.text not in said]


@pytest.mark.parametrize(
    ("option", "words"),
    [
        ("--block-tokens 48", "--block-size 48"),
        ("--max-num-batched-tokens 4096", "--max-num-batched-tokens 4096"),
        ("--no-hybrid-kv-cache-manager", "--disable-hybrid-kv-cache-manager"),
        ("--no-async-scheduling", "--no-async-scheduling"),
        ("--no-prefix-caching", "--no-enable-prefix-caching"),
        ("--draft mtp:2", '--speculative-config \'{"method": "mtp", "num_speculative_tokens": 2}\''),
    ],
)
def test_vllm_is_told_what_the_estimate_was_told(option: str, words: str) -> None:
    for name in ("vllm", "lmcache", "lmcache-server", "mooncake-store"):
        (command,) = (text for file, text in texts(name, wanted(switches=TOLD[option])).items() if file == "vllm.sh")
        assert words in command
        assert words not in texts(name, wanted())["vllm.sh"]
    manifest = texts("vllm", wanted(switches=TOLD[option]), in_kubernetes=True)
    assert words.split()[0] in "".join(manifest.values())


def test_a_draft_whose_tokens_nobody_stated_is_named_with_its_flag() -> None:
    for draft, config in (
        ("ngram", '{"method": "ngram", "num_speculative_tokens": N}'),
        ("small/Draft", '{"model": "small/Draft", "num_speculative_tokens": N}'),
    ):
        (told,) = (
            one for one in emit(SYSTEMS["vllm"], wanted(switches=Switches(draft=draft))).findings if "N as" in one.text
        )
        assert f"add --speculative-config '{config}'" in told.text


def test_a_plan_carries_what_its_estimate_was_told(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    file = tmp_path / "estimate.json"
    options = ["--max-num-batched-tokens", "4096", "--no-prefix-caching", "--block-tokens", "32", "--draft", "mtp"]
    command = ["estimate", "--model", "deepseek-v3", "--engine", "vllm", "--tp", "8", *options, "-o", str(file), "-q"]
    assert CliRunner().invoke(app, command).exit_code == 0
    document = load(file)
    assert document.data.switches == Switches(
        max_num_batched_tokens=4096, prefix_caching=False, block_tokens=32, draft="mtp:1"
    )
    plan = make(
        document, samples.workload(), None, gpu("h200-141gb"), Policy(host_link_bytes_per_s=50e9, minimum_gain_ratio=0)
    )
    for words in ("--max-num-batched-tokens 4096", "--no-enable-prefix-caching", "--block-size 32", '"mtp"'):
        assert words in plan.config["vllm"]
    assert "prefix-caching-off" in codes(plan)
    assert "prefix-caching-off" not in codes(
        make(samples.estimate(), samples.workload(), samples.probe(), None, Policy())
    )


def test_rules_layout_flags_and_image_are_of_one_version_of_vllm() -> None:
    rules = profile("vllm")
    assert rules.version.startswith(f"{VLLM_VERSION}.")
    assert rules.source.startswith(f"vLLM {rules.version}: ")
    assert f"vLLM {VLLM_VERSION}" in rules.load.source
    assert emit(SYSTEMS["vllm"], wanted()).floor == f"vLLM {VLLM_VERSION} or newer"
    assert IMAGES["vllm"].endswith(f":v{rules.version}")
    assert f"| vLLM {rules.version} |" in (ROOT / "docs/planning.md").read_text()
