"""Offload sizing: what was got wrong in public threads of engines and offload layers, and what is right.

Cases of configurations are tested here with their figures; the others name the test that holds them, where the code
that they are about is tested. The list of cases itself is checked for one that has none.
"""

from __future__ import annotations

import re
from importlib import import_module
from pathlib import Path

import numpy as np
import pytest
import records
import samples
from test_policies import play

from kvplan.documents import Finding, Policy, Requests
from kvplan.engines.configs import SYSTEMS, emit
from kvplan.engines.configs.common import Emission, Given, taken
from kvplan.engines.configs.quantity import quantity
from kvplan.engines.configs.source import Source
from kvplan.engines.profiles import largest_without_padding, power_of_two_above, profile
from kvplan.errors import LimitError
from kvplan.export import check
from kvplan.plan import make
from kvplan.units import GB, GiB

ELSEWHERE = {
    "06": (
        "test_probe_host:test_page_cache_in_a_container_does_not_count_as_used",
        "test_probe_host:test_a_container_is_not_its_host",
        "test_probe_host:test_no_limit_leaves_what_the_host_has",
        "test_probe_host:test_version_1_with_its_sentinel_and_a_limit_above",
    ),
    "07": (
        "test_plan_policy:test_indexer_pools_come_on_top_of_the_size_flag",
        "test_plan_policy:test_where_page_locking_ended_a_tier_ends",
    ),
    "08": (
        "test_plan:test_a_host_tier_smaller_than_the_gpu_pool_brings_nothing_to_an_inclusive_engine",
        "test_plan_policy:test_a_hybrid_tier_that_stores_a_row_for_each_of_eight_groups_holds_an_eighth",
    ),
    "11": (
        "test_plan:test_write_wear_of_a_hundred_requests_a_minute",
        "test_plan_policy:test_write_through_is_refused_under_a_year_and_second_use_is_set_beside_it",
    ),
    "12": (
        "test_economics:test_15000_tokens_a_second_against_a_drive_for_qwen3_30b",
        "test_economics:test_gib_per_second_and_gb_per_second_differ_by_seven_percent",
    ),
    "14": (
        "test_plan_policy:test_256_salted_tenants_keep_nine_tenths_of_the_reuse_and_store_the_shared_part_256_times",
        "test_plan_policy:test_no_flags_for_a_layer_that_mixes_tenants",
    ),
}


def wanted(host: int, ranks: int, disk: int = 0, **more: object) -> Given:
    fields: dict[str, object] = {"latent": False, "block_tokens": 16, "utilization": 0.92, **more}
    return Given(host_bytes=host, disk_bytes=disk, ranks=ranks, **fields)  # type: ignore[arg-type]


def emitted(system: str, given: Given, kubernetes: bool = False) -> Emission:
    return emit(SYSTEMS[system], given, kubernetes)


def text(made: Emission, name: str) -> str:
    return next(one.text for one in made.parts if one.name == name)


def found(items: tuple[Finding, ...], code: str) -> Finding:
    return next(one for one in items if one.code == code)


def value(made: Emission, name: str) -> int:
    return int(next(one for one in made.knobs if one.name == name).written)


def test_every_case_has_a_test(shared: Path) -> None:
    cases = re.findall(r"^### B(\d+)", (shared / "cases" / "cases.md").read_text(), flags=re.MULTILINE)
    assert len(cases) >= 14
    here = {name[6:8] for name in globals() if name.startswith("test_b")}
    assert [number for number in cases if number not in here and number not in ELSEWHERE] == []


@pytest.mark.parametrize("place", [place for places in ELSEWHERE.values() for place in places])
def test_a_case_tested_elsewhere_is_there(place: str) -> None:
    module, name = place.split(":")
    assert callable(getattr(import_module(module), name))


def test_b01_lmcache_counts_by_rank() -> None:
    """A budget of 400 GiB is 50 a rank on eight and 200 on two; 200 a rank on four do not fit 768 GB."""
    for ranks, each in ((8, 50), (2, 200)):
        made = emitted("lmcache", wanted(400 * GiB, ranks))
        assert value(made, "max_local_cpu_size") == each
        assert f"max_local_cpu_size: {each}\n" in text(made, "lmcache.yaml")
        assert f"{each} GiB, one rank x {ranks} = {400 * GiB} B (400.00 GiB) of host" in text(made, "lmcache.yaml")
        assert taken(made.knobs, "host") == 400 * GiB
    probe = samples.probe()
    host = records.replace(probe.data.host, usable_memory_bytes=768 * GB)
    small = records.replace(probe, data=records.replace(probe.data, host=host))
    for size, fits in ((200, False), (100, True)):
        checked = check(f"max_local_cpu_size: {size}\n", "lmcache.yaml", ranks=4, against=small)
        assert checked.host_bytes == size * 4 * GiB
        assert checked.ok is fits
    assert check("max_local_cpu_size: 512\n", "lmcache.yaml", ranks=8).host_bytes == 4096 * GiB
    assert [50 * GiB // (131_072 // ranks) for ranks in (1, 2)] == [409_600, 819_200]


def test_b02_page_locked_tensors_take_the_next_power_of_two() -> None:
    """24 tensors on 4 ranks: 384 GiB cost 384, 400 cost 768; so 390 are used as 384."""
    cost = {size: 96 * power_of_two_above(-(-size * GiB // 96)) // GiB for size in (200, 384, 400, 512)}
    assert cost == {200: 384, 384: 384, 400: 768, 512: 768}
    assert largest_without_padding(390 * GiB, 96) == 384 * GiB
    assert [power_of_two_above(int(size * GiB)) // GiB for size in (4.1, 5, 200)] == [8, 8, 256]
    for each, total in ((40, 256), (30, 128)):
        assert profile("sglang").host_cost_bytes(4 * each * GB, 4, 1) == total * GiB
        command = f"python -m sglang.launch_server --tp 4 --enable-hierarchical-cache --hicache-size {each}"
        said = found(check(command, "run.sh").findings, "page-locked-rounding")
        assert f"{total}.00 GiB" in said.text
    older = found(emitted("lmcache", wanted(800 * GiB, 4)).findings, "page-locked-rounding")
    assert "1,024.00 GiB on the host" in older.text
    # What maps and registers its pool is not rounded.
    assert profile("vllm").host_cost_bytes(200 * GiB, 4, 24) == 200 * GiB
    assert "page-locked-rounding" not in [one.code for one in emitted("vllm", wanted(200 * GiB, 4)).findings]
    warned = found(emitted("sglang", wanted(240 * GiB, 4)).findings, "page-locked-rounding")
    assert "256.00 GiB on the host" in warned.text
    assert "34 GB a rank fit either way" in warned.text
    assert 4 * power_of_two_above(34 * GB) == 128 * GiB


def test_b03_the_same_word_is_a_total_or_a_rank() -> None:
    """240 GiB on four ranks: 240 for vLLM and LMCache's server, 60 for LMCache in the workers, 64 GB for SGLang."""
    given = wanted(240 * GiB, 4)
    expected = {
        "vllm": ("--kv-offloading-size", 240),
        "lmcache": ("max_local_cpu_size", 60),
        "lmcache-server": ("--l1-size-gb", 240),
        "sglang": ("--hicache-size", 64),
        "production-stack": ("cpuOffloadingBufferSize", 60),
        "dynamo-kvbm": ("DYN_KVBM_CPU_CACHE_GB", 257),
        "tensorrt-llm": ("host_cache_size", 60 * GiB),
        "llama.cpp": ("--cache-ram", 240 * 1024),
    }
    for system, (name, count) in expected.items():
        made = emitted(system, given)
        assert value(made, name) == count, system
        total = taken(made.knobs, "host")
        assert total is not None
        assert 240 * GiB - 4 * GB < total <= 240 * GiB


def test_b04_of_a_latent_the_first_rank_stores() -> None:
    latent, heads = wanted(400 * GiB, 8, latent=True), wanted(400 * GiB, 8)
    assert value(emitted("lmcache", latent), "max_local_cpu_size") == 400
    assert value(emitted("lmcache", heads), "max_local_cpu_size") == 50
    assert value(emitted("production-stack", latent), "cpuOffloadingBufferSize") == 400
    # Only LMCache in the workers does so: what is a total stays one.
    for system, name in (("vllm", "--kv-offloading-size"), ("lmcache-server", "--l1-size-gb")):
        assert value(emitted(system, latent), name) == value(emitted(system, heads), name) == 400


def test_b10_a_cap_that_does_not_delete_is_no_cap() -> None:
    """Where a backend needs an eviction section, it is there; 85 % of what is free and its own is the most."""
    server = emitted("lmcache-server", wanted(100 * GiB, 4, disk=4000 * GiB))
    words = Source("x", text(server, "lmcache-server.sh")).commands[-1].words
    adapter = words[words.index("--l2-adapter") + 1]
    assert '"eviction": {"eviction_policy": "LRU"' in adapter
    assert '"max_capacity_gb": 4000' in adapter
    for bare in (', "eviction": {"eviction_policy": "LRU", "trigger_watermark": 0.8, "eviction_ratio": 0.2}',):
        without = check(text(server, "lmcache-server.sh").replace(bare, ""), "server.sh")
        assert without.disk_bytes is None
        assert found(without.findings, "eviction").severity == "error"
    tiered = emitted("vllm", wanted(100 * GiB, 4, disk=4000 * GiB))
    assert f"limit={4000 * GiB}" in text(tiered, "evict.sh")
    # A folder that holds 100 GB already, on a drive with 150 GB free: 212.5 GB, whatever the drive is sold as.
    given = wanted(0, 1, disk=212_500_000_000, disk_free_bytes=150 * GB, disk_own_bytes=100 * GB)
    assert found(emitted("vllm", given).findings, "disk-room").severity == "info"
    more = wanted(0, 1, disk=212_500_000_001, disk_free_bytes=150 * GB, disk_own_bytes=100 * GB)
    assert found(emitted("vllm", more).findings, "disk-room").severity == "error"
    policy = Policy(forbid_host=True, minimum_gain_ratio=0.0, minimum_disk_life_s=0.0, disk_own_bytes=100 * GB)
    plan = make(samples.estimate(), samples.workload(), samples.probe(), None, policy)
    room = next(limit.limit for limit in plan.limits if limit.name == "disk space")
    assert room == int(0.85 * (samples.disk().free_bytes + 100 * GB))


def test_b13_every_disk_or_shared_tier_sets_the_hash_seed() -> None:
    for system, row in SYSTEMS.items():
        if row.written is None or "host+disk" not in row.tiers or "vllm" not in row.engines:
            continue
        made = emitted(system, wanted(100 * GiB, 4, disk=400 * GiB))
        said = found(made.findings, "hash-seed").text
        if system == "production-stack":
            assert "PYTHONHASHSEED=123" in said
            continue
        assert "the same value in every engine" in said
        assert any("PYTHONHASHSEED=0" in one.text for one in made.parts), system
    for name in ("vllm", "lmcache-server", "lmcache"):
        manifest = text(emitted(name, wanted(100 * GiB, 4, disk=400 * GiB), kubernetes=True), "deployment.yaml")
        assert '{"name": "PYTHONHASHSEED", "value": "0"}' in manifest
    seeded = text(emitted("vllm", wanted(100 * GiB, 4, disk=400 * GiB)), "vllm.sh")
    unseeded = check(seeded.replace("PYTHONHASHSEED=0", ""), "vllm.sh")
    assert found(unseeded.findings, "hash-seed").severity == "warning"
    assert "hash-seed" not in [one.code for one in check(seeded, "vllm.sh").findings]


def test_b14_a_tier_that_ignores_the_salt_is_refused() -> None:
    for system in ("lmcache", "production-stack", "llama.cpp"):
        with pytest.raises(LimitError, match="leaves the salt out of its keys"):
            emitted(system, wanted(100 * GiB, 4, share="tenant"))
    assert "cache_salt" in found(emitted("vllm", wanted(100 * GiB, 4, share="tenant")).findings, "salt").text


def test_b15_one_scan_flushes_lru_and_not_arc() -> None:
    """Two hot blocks asked for twice, seven new ones once, the hot ones again: room for six."""
    runs = [(0, 1), (0, 1), *((one,) for one in range(2, 9)), (0, 1)]
    count = len(runs)
    log = Requests(
        block_tokens=512,
        time_s=np.arange(count, dtype=float),
        input_tokens=np.array([512 * len(one) for one in runs]),
        output_tokens=np.zeros(count, dtype=np.int64),
        duration_s=np.full(count, np.nan),
        offsets=np.cumsum([0, *(len(one) for one in runs)]),
        paths=np.array([block for one in runs for block in one]),
        tenant=np.full(count, -1),
        session=np.full(count, -1),
        tenants=(),
        sources=(),
    )
    assert play(log, "lru", 6)[-1] == 0
    assert play(log, "arc", 6)[-1] == 2


def test_b16_a_mapped_tier_needs_dev_shm_and_counts_once() -> None:
    """240 GiB of tier, 30 of engine: a sizeLimit above 240, a limit of 240 + 30 and spare, not of twice 240."""
    made = emitted("vllm", wanted(240 * GiB, 4, beside_bytes=30 * GiB), kubernetes=True)
    manifest = text(made, "deployment.yaml")
    (document,) = Source("d", manifest).documents
    spec = document["spec"]["template"]["spec"]
    (volume,) = [one for one in spec["volumes"] if one["name"] == "shm"]
    assert volume["emptyDir"]["medium"] == "Memory"
    shm = quantity(volume["emptyDir"]["sizeLimit"], "d", "sizeLimit")
    assert 240 * GiB + GiB // 4 <= shm <= 242 * GiB
    (container,) = spec["containers"]
    limit = quantity(container["resources"]["limits"]["memory"], "d", "memory")
    assert container["resources"]["requests"] == container["resources"]["limits"]
    assert 270 * GiB <= limit < 280 * GiB < 2 * 240 * GiB
    assert {"name": "shm", "mountPath": "/dev/shm"} in container["volumeMounts"]
    # The container default, and the chart's 20 GiB, are read as the errors that they are.
    for size, holds in ((f"{shm // GiB}Gi", True), ("64Mi", False), ("20Gi", False), ("240Gi", False)):
        read = check(manifest.replace(f"sizeLimit: {shm // GiB}Gi", f"sizeLimit: {size}"), "d")
        assert ("shm-size" in [one.code for one in read.findings]) is not holds
    bare = check("docker run vllm/vllm-openai --kv-offloading-size 240", "run.sh")
    assert "64 MiB" in found(bare.findings, "shm-size").text
    host = records.replace(samples.host(), shm_free_bytes=64 * 2**20)
    checked = found(emitted("vllm", wanted(240 * GiB, 4, machine=host)).findings, "shm-room")
    assert checked.severity == "error"
    assert "--shm-size 241g" in checked.text
