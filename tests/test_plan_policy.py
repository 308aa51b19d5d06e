"""Who may share, how requests are spread, what a restart undoes, what is admitted to disk: each against a replay."""

from __future__ import annotations

import itertools
import random
import re
from collections import Counter, OrderedDict
from fractions import Fraction

import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st
from records import replace
from test_plan import H100, GiB, Plan, Policy, estimate_with, limit_of, planned, workload_with
from test_plan_oracle import tiny_log

from kvplan.documents import (
    BlockDevice,
    CacheGroup,
    CgroupLevel,
    Contention,
    Document,
    Hits,
    Isolation,
    Link,
    Parallel,
    Pinning,
    Prices,
    Probe,
    Replicas,
    Reserve,
    Tenant,
    Workload,
)
from kvplan.errors import KvplanError
from kvplan.files import dump, parse
from kvplan.planning.choice import Demand, Tier, level, options
from kvplan.planning.curves import curves_of, scaled, second_use
from kvplan.planning.economics import Curve, LoadPath
from kvplan.planning.hostroom import RESERVES
from kvplan.planning.wear import endurance
from kvplan.units import GB, TiB

BLOCK = samples.BLOCK_TOKENS


def _quick() -> Document[Probe]:
    """The sample host with a drive that is nearly as quick as its memory."""
    document = samples.probe()
    cells = (samples.link("read", 2 * 2**20, 1, 40.0), samples.link("write", 2 * 2**20, 1, 30.0))
    return replace(document, data=replace(document.data, links=(*document.data.links, *cells)))


QUICK = _quick()


def codes(plan: Plan) -> list[str]:
    return [finding.code for finding in plan.findings]


# ------------------------------------------------------------------------------------------------- tenants


def salted(prefix: int, private: int, tenants: int, each: int) -> Workload:
    """Requests of `prefix` shared and `private` own tokens, all counts by hand; infinite cache only."""
    requests = tenants * each
    shared = (requests - 1) * prefix
    own = tenants * (each - 1) * prefix
    inputs = requests * (prefix + private)
    base = samples.workload().data
    point = replace(
        base.curve[-1],
        capacity_blocks=1,
        capacity_tokens=inputs - shared,
        hit_tokens=shared,
        hit_ratio=shared / inputs,
        hit_requests=requests - 1,
        reused_prefix_tokens_sq=(requests - 1) * prefix**2,
        prefixes=(),
    )
    rows = tuple(
        Tenant(
            tenant=str(number),
            requests=each,
            input_tokens=each * (prefix + private),
            hit_tokens=(each - (number == 0)) * prefix,
            isolated_hit_tokens=(each - 1) * prefix,
        )
        for number in range(tenants)
    )
    assert sum(row.isolated_hit_tokens for row in rows) == own
    return replace(
        base, requests=requests, input_tokens=inputs, novel_tokens=inputs - shared, curve=(point,), tenants=rows
    )


def test_256_salted_tenants_keep_nine_tenths_of_the_reuse_and_store_the_shared_part_256_times() -> None:
    workload = salted(2048, 256, 256, 10)
    alone = curves_of(workload, Policy(share="tenant"), 1, False)
    (point,) = alone.gpu.points
    assert alone.ceiling_tokens == 256 * 9 * 2048
    assert point.hit_tokens == pytest.approx(0.900 * 2559 * 2048, rel=1e-3)
    assert point.capacity_tokens == pytest.approx(256 * 2048 + 2560 * 256, abs=1)
    assert [finding.code for finding in alone.findings] == ["isolation-scaled"]


def test_a_measured_curve_of_separate_tenants_is_used_as_it_is() -> None:
    base, hits = samples.workload().data, halved()
    isolation = Isolation(hit_tokens=10, isolated_hit_tokens=5, blocks=100, isolated_blocks=150, curve=hits)
    found = curves_of(replace(base, isolation=isolation), Policy(share="tenant"), 1, False)
    assert [point.hit_tokens for point in found.gpu.points] == [hit.hit_tokens for hit in hits if hit.hit_tokens]
    assert not found.findings
    plan = planned(Policy(share="tenant"), workload=workload_with(isolation=isolation))
    assert plan.confidence.grade == "B"
    (cost,) = plan.policy_costs
    assert cost.hit_ratio == pytest.approx(planned().budgets.disk.hit_ratio - plan.budgets.disk.hit_ratio)
    assert "isolation-cost" in codes(plan)


def test_tenants_that_share_nothing_lose_nothing_by_being_kept_apart() -> None:
    rows = tuple(replace(row, isolated_hit_tokens=row.hit_tokens) for row in samples.workload().data.tenants)
    apart = planned(Policy(share="tenant"), workload=workload_with(tenants=rows))
    assert apart.budgets == planned(workload=workload_with(tenants=rows)).budgets
    assert apart.confidence.grade == "B"


def test_isolation_without_known_tenants_says_how_to_know_them() -> None:
    with pytest.raises(KvplanError, match="--tenant-by FIELD"):
        planned(Policy(share="tenant"), workload=workload_with(tenants=()))


def test_who_shares_nothing_gives_up_every_hit() -> None:
    plan = planned(Policy(share="none"))
    assert plan.verdict == "nothing"
    assert plan.budgets.gpu.hit_ratio == 0
    (cost,) = plan.policy_costs
    free = planned()
    assert cost.hit_ratio == free.budgets.disk.hit_ratio
    rate = samples.workload().data.input_tokens * 3600 / samples.SPAN_S
    assert cost.hit_tokens_per_hour == pytest.approx(cost.hit_ratio * rate)


def test_no_flags_for_a_layer_that_mixes_tenants() -> None:
    assert "lmcache" in planned().config
    apart = planned(Policy(share="tenant"))
    assert apart.verdict == "host"
    assert set(apart.config) == {"vllm", "lmcache-server"}
    assert "salt-ignored" in codes(apart)
    assert apart.confidence.grade == "C"


# ------------------------------------------------------------------------------------------------- replicas


def spread(log: tuple[samples.Request, ...], where: tuple[int, ...], capacity: int) -> int:
    """Hit blocks of a log whose requests go to the servers named, each with a cache of its own."""
    return sum(
        sum(samples.replay(tuple(one for one, to in zip(log, where, strict=True) if to == server), capacity))
        for server in set(where)
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 12))
def test_round_robin_is_never_promised_more_than_blind_routing_gives_on_average(seed: int, capacity: int) -> None:
    """Every assignment of 8 requests to 2 servers, each as likely: the mean is at least what the plan counts."""
    log = tiny_log(seed, requests=8)
    point = samples.curve_point(log, capacity)
    workload = replace(samples.workload().data, curve=(point,))
    found = curves_of(workload, Policy(routing="round-robin"), 2, False)
    every = [spread(log, where, capacity) for where in itertools.product((0, 1), repeat=8)]
    mean = Fraction(sum(every), len(every)) * BLOCK
    assert found.gpu.points[0].hit_tokens <= mean
    assert found.one_server


def test_two_turns_meet_the_same_of_r_replicas_one_time_in_r() -> None:
    """Conversations of two turns: blind routing keeps 1/R of the hits, affinity all; one shared prefix misses once."""
    for replicas in (2, 4, 8):
        point = samples.curve_point(tiny_log(1), 100)
        workload = replace(samples.workload().data, curve=(point,))
        blind = curves_of(workload, Policy(routing="round-robin"), replicas, False)
        assert blind.gpu.points[0].hit_tokens == int(point.hit_tokens / replicas)
        near = curves_of(workload, Policy(), replicas, False)
        assert near.gpu.points == (point,)
        assert not near.one_server


def test_round_robin_costs_hits_as_a_number() -> None:
    blind = planned(Policy(replicas=4, routing="round-robin"), probe=samples.probe_without_gpu())
    (cost,) = blind.policy_costs
    assert cost.hit_ratio > 0.3
    assert {"round-robin-bound", "routing-cost"} <= set(codes(blind))
    assert blind.confidence.grade == "C"


# ------------------------------------------------------------------------------------------------- restarts


def test_restarts_keep_what_is_reused_before_the_next() -> None:
    """All reuse within 10 s, a restart every 100 s at any moment: at least 1 - 10/100 of it survives."""
    base = samples.workload().data
    whole = sum(part.tokens for part in base.reuse_intervals)
    only = (replace(base.reuse_intervals[0], at_most_s=10.0, tokens=whole),)
    found = curves_of(replace(base, reuse_intervals=only), Policy(restart_every_s=100.0), 1, True)
    for before, after, lasting in zip(base.curve, found.host.points, found.disk.points, strict=True):
        assert after.hit_tokens == pytest.approx(0.9 * before.hit_tokens, abs=1)
        assert lasting == before
    dice = random.Random(7)
    survived = sum(
        int(start // 100) == int((start + 10) // 100) for start in (dice.uniform(0, 1e6) for _ in range(20_000))
    )
    assert survived / 20_000 == pytest.approx(0.9, abs=0.01)


def test_restarts_shrink_the_gain_and_warm_up_is_said() -> None:
    plan = planned(Policy(restart_every_s=600.0))
    assert plan.benefit.gpu_s_per_hour_saved < planned().benefit.gpu_s_per_hour_saved
    assert "restart-cost" in codes(plan)
    rows = {row.tier: row for row in planned().warm_up}
    host = rows["host"]
    assert not host.survives
    demand = planned().alternatives[1].stored_bytes_per_hour / 131_072
    assert host.fill_s == pytest.approx(planned().budgets.host.tokens / demand * 3600)
    assert host.lost_gpu_s == pytest.approx(planned().benefit.gpu_s_per_hour_saved * (host.fill_s or 0) / 3600)


def test_a_disk_behind_a_host_tier_survives_and_alone_it_does_not() -> None:
    probe = QUICK
    easy = Policy(minimum_disk_life_s=0.0, host_memory_bytes=100 * GiB, minimum_gain_ratio=0.0)
    both = planned(easy, probe=probe)
    assert both.verdict == "host+disk"
    assert {row.tier: row.survives for row in both.warm_up} == {"gpu": False, "host": False, "disk": True}
    assert {"disk-evictor", "hash-seed"} <= set(codes(both))
    alone = planned(replace(easy, forbid_host=True), probe=probe)
    assert {row.tier: row.survives for row in alone.warm_up} == {"gpu": False, "disk": False}
    assert "disk-evictor" not in codes(alone)
    assert "hash-seed" in codes(alone)


# ------------------------------------------------------------------------------------------------ second use


def second_use_replay(log: tuple[samples.Request, ...], capacity: int) -> list[int]:
    """Hit blocks in an LRU tier that takes a block when it is seen for the second time."""
    seen: Counter[int] = Counter()
    store: OrderedDict[int, None] = OrderedDict()
    hits = []
    for request in log:
        hits.append(next((i for i, block in enumerate(request.blocks) if block not in store), len(request.blocks)))
        for block in reversed(request.blocks):
            seen[block] += 1
            if seen[block] > 1:
                store[block] = None
                store.move_to_end(block)
        while len(store) > capacity:
            store.popitem(last=False)
    return hits


@settings(max_examples=80, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 40), st.sampled_from([0.0, 1e-9, 1e-7]))
def test_second_use_is_never_promised_more_than_it_gives(seed: int, capacity: int, b: float) -> None:
    log = tiny_log(seed)
    used = Counter(block for request in log for block in request.blocks)
    lost = sum(count > 1 for count in used.values()) * BLOCK
    bound = second_use(samples.curve_point(log, capacity), lost)
    hits = [found * BLOCK for found in second_use_replay(log, capacity)]
    assert bound.hit_tokens <= sum(hits)
    value = sum(1e-5 * hit + b * hit * hit for hit in hits)
    assert 1e-5 * bound.hit_tokens + b * bound.reused_prefix_tokens_sq <= value * (1 + 1e-9)
    assert sum(part.tokens for part in bound.prefixes) == bound.hit_tokens
    assert sum(part.tokens_sq for part in bound.prefixes) == bound.reused_prefix_tokens_sq


def test_admission_on_second_use_makes_a_drive_last_ten_times_as_long() -> None:
    """151 TB a day wear 1,200 TB out in 7.9 days; where 9 % are reused, writing only those lasts 88."""
    novel = 800_000
    demand = Demand(
        requests=100,
        input_tokens=novel,
        input_tokens_sq=6.4e9,
        block_tokens=16,
        per_hour=60.0,
        ceiling_tokens=novel * 9 // 100,
        first_reuse_tokens=novel * 9 // 100,
    )
    tier = Tier(
        name="disk",
        path=LoadPath(s_per_token=131_072 / (6 * GB)),
        store_s_per_token=131_072 / (6 * GB),
        bytes_per_token=131_072,
        chunk_tokens=16,
        step_bytes=GiB,
        limit_bytes=TiB,
        lifetime_bytes=1200 * 10**12,
        minimum_life_s=365 * 86_400.0,
    )
    curve = Curve(())
    lives = []
    for second in (False, True):
        one = replace(tier, second_use=second)
        (option,) = options(curve, demand, samples.prefill(), one, level(curve, demand, 0))
        assert option.life_s is not None
        assert option.refused
        lives.append(option.life_s / 86_400)
    assert [round(life, 1) for life in lives] == [7.9, 88.3]


def test_write_through_is_refused_under_a_year_and_second_use_is_set_beside_it() -> None:
    document = QUICK
    small = replace(samples.disk(), rated_endurance_bytes=1_200_000 * GB)
    data = replace(document.data, capacity=(small,))
    policy = Policy(forbid_host=True, minimum_gain_ratio=0.0)
    plan = planned(policy, probe=replace(document, data=data))
    assert plan.verdict == "nothing"
    text = next(finding.text for finding in plan.findings if finding.code == "write-wear")
    days, later = re.findall(r"in ([\d,.]+) days", text)
    assert float(days.replace(",", "")) < 365
    assert float(later.replace(",", "")) > 2 * float(days.replace(",", ""))
    admitted = planned(
        replace(policy, disk_admission="second-use", minimum_disk_life_s=0.0), probe=replace(document, data=data)
    )
    everything = planned(replace(policy, minimum_disk_life_s=0.0), probe=replace(document, data=data))
    assert admitted.alternatives[-1].stored_bytes_per_hour < everything.alternatives[-1].stored_bytes_per_hour
    assert (
        admitted.benefit.gpu_s_per_hour_saved
        <= everything.benefit.gpu_s_per_hour_saved + everything.alternatives[1].store_s_per_hour
    )


# ------------------------------------------------------------------------------------------------ the host's memory


def test_every_part_of_the_host_can_be_stated_and_every_byte_is_there() -> None:
    reserves = tuple(Reserve(name=name, bytes=(3 + n) * GiB) for n, name in enumerate(RESERVES))
    budget = planned(Policy(reserves=reserves)).budgets.host
    items = {item.name: item for item in budget.items}
    for reserve in reserves:
        line = items[RESERVES[reserve.name]]
        assert line.bytes == reserve.bytes
        assert line.provenance == "configured"
    assert sum(item.bytes for item in budget.items) == budget.limit_bytes
    assert "no part of the KV cache" in items[RESERVES["weight-offload"]].why
    plain = {item.name: item for item in planned().budgets.host.items}
    assert RESERVES["weight-offload"] not in plain
    assert plain[RESERVES["buffers"]].bytes == 4 * 16 * 131_072
    with pytest.raises(KvplanError, match="--reserve gpu: not a part"):
        planned(Policy(reserves=(Reserve(name="gpu", bytes=1),)))


def test_other_models_take_from_the_cache() -> None:
    plan = planned(Policy(reserves=(Reserve(name="other-models", bytes=300 * GiB),)))
    assert plan.alternatives[-1].host_bytes == pytest.approx(planned().alternatives[-1].host_bytes - 300 * GiB, abs=GiB)
    crowded = planned(Policy(reserves=(Reserve(name="other-models", bytes=600 * GiB),)))
    assert "host-too-small" in codes(crowded)
    assert crowded.budgets.host.requested_bytes == 0


def with_host(**fields: object) -> object:
    document = samples.probe()
    return replace(document, data=replace(document.data, host=replace(document.data.host, **fields)))


def test_every_cgroup_level_is_a_limit_of_its_own() -> None:
    levels = tuple(
        CgroupLevel(path=path, limit_bytes=limit, current_bytes=used, reclaimable_bytes=clean)
        for path, limit, used, clean in (
            ("/", None, None, None),
            ("/pods", 400 * GiB, 300 * GiB, 290 * GiB),
            ("/pods/engine", 150 * GiB, 2 * GiB, GiB),
        )
    )
    plan = planned(probe=with_host(cgroups=levels))
    outer, inner = limit_of(plan, "memory limit of cgroup /pods"), limit_of(plan, "memory limit of cgroup /pods/engine")
    assert outer.ok
    assert not inner.ok
    assert outer.needed - inner.needed == 9 * GiB
    assert "memory limit of cgroup /" not in [limit.name for limit in plan.limits]
    held = planned(probe=with_host(cgroups=levels, usable_memory_bytes=149 * GiB))
    assert limit_of(held, "memory limit of cgroup /pods/engine").ok


def test_a_host_tier_is_spread_over_the_nodes_of_its_gpus() -> None:
    """Two GPUs on two nodes: half on each. One GPU: all on its node, and what does not fit there is said."""
    document = samples.probe()
    two = samples.host(gpus=2)
    gpus = tuple(replace(gpu, numa_node=node) for node, gpu in enumerate(two.gpus))
    probe = replace(document, data=replace(document.data, host=replace(two, gpus=gpus)))
    kv = replace(samples.estimate().data.kv, bytes_per_token_per_gpu=65_536)
    easy = Policy(minimum_gain_ratio=0.0)
    plan = planned(easy, probe=probe, estimate=estimate_with(parallel=Parallel(tp=2), kv=kv))
    first, second = plan.numa
    assert first.bytes == second.bytes == plan.budgets.host.requested_bytes // 2 > 0
    assert (first.gpus, second.gpus) == ((0,), (1,))
    small = tuple(replace(node, total_bytes=128 * GiB) for node in document.data.host.numa)
    spill = planned(probe=with_host(numa=small))
    assert sum(node.bytes for node in spill.numa) == spill.budgets.host.requested_bytes
    assert "numa-spill" in codes(spill)
    assert limit_of(spill, "NUMA node 0").ok


def test_where_page_locking_ended_a_tier_ends() -> None:
    document = samples.probe()
    end = Pinning(
        gpu=0,
        requested_bytes=400 * GiB,
        pinned_bytes=100 * GiB,
        largest_bytes=64 * GiB,
        touch_s=1.0,
        register_s=1.0,
        stopped="out of memory",
    )
    plan = planned(probe=replace(document, data=replace(document.data, pinning=(end,))))
    limit = limit_of(plan, "page-locked memory")
    assert limit.limit == 100 * GiB
    assert not limit.ok
    whole = replace(end, pinned_bytes=400 * GiB, stopped=None)
    fine = planned(probe=replace(document, data=replace(document.data, pinning=(whole,))))
    assert "page-locked memory" not in [limit.name for limit in fine.limits]


def test_indexer_pools_come_on_top_of_the_size_flag() -> None:
    """656 B of latent and 132 B of indexer a token and layer: SGLang's host takes 20.1 % more than its flag says."""
    groups = tuple(
        CacheGroup(kind=kind, layers=61, bytes_per_token=61 * size, bytes_per_sequence=0)
        for kind, size in (("latent", 656), ("indexer", 132))
    )
    size = 61 * (656 + 132)
    kv = replace(
        samples.estimate().data.kv,
        bytes_per_token=size,
        bytes_per_token_per_gpu=size,
        offload_bytes_per_token=size,
    )
    policy = Policy(minimum_gain_ratio=0.0, forbid_disk=True, growth=3.0)
    plan = planned(policy, estimate=estimate_with(engine="sglang", kv=kv, groups=groups))
    items = {item.name: item.bytes for item in plan.budgets.host.items}
    assert plan.verdict == "host"
    assert items["indexer and draft pools"] == pytest.approx(0.201 * plan.budgets.host.usable_bytes, rel=0.002)
    assert sum(items.values()) == plan.budgets.host.limit_bytes
    assert "side-pools" in codes(plan)
    whole = planned(policy, estimate=estimate_with(kv=kv, groups=groups))
    assert "indexer and draft pools" not in {item.name for item in whole.budgets.host.items}


def test_one_large_page_locked_piece_is_warned_of() -> None:
    big = with_host(memory_total_bytes=4 * TiB, memory_available_bytes=4 * TiB, usable_memory_bytes=4 * TiB)
    kv = replace(
        samples.estimate().data.kv,
        bytes_per_token=400_000,
        bytes_per_token_per_gpu=400_000,
        offload_bytes_per_token=400_000,
    )
    for engine, warned in (("tensorrt-llm", True), ("vllm", False)):
        plan = planned(probe=big, estimate=estimate_with(engine=engine, kv=kv), gpu=None)
        assert plan.budgets.host.requested_bytes > 200 * GiB
        assert ("pin-piece" in codes(plan)) is warned


def test_a_hybrid_tier_that_stores_a_row_for_each_of_eight_groups_holds_an_eighth() -> None:
    """500 GiB at 162,688 B a token hold 3.3 M tokens, fewer than a GPU pool of 5.29 M: no hit would ever come."""
    kv = replace(
        samples.estimate().data.kv,
        bytes_per_token=20_336,
        bytes_per_token_per_gpu=20_336 // 8,
        offload_bytes_per_token=20_336,
    )
    estimate = estimate_with(kv=kv, parallel=Parallel(tp=8))
    policy = Policy(
        host_memory_bytes=630 * GiB,
        headroom_ratio=0.0,
        expansion=8.0,
        forbid_disk=True,
        minimum_gain_ratio=0.0,
        reserves=(Reserve(name="system", bytes=0), Reserve(name="engine", bytes=128 * GiB)),
    )
    plan = planned(policy, estimate=estimate, probe=None)
    largest = plan.alternatives[-1]
    assert largest.host_bytes == 499 * GiB
    held = largest.host_bytes // (16 * 162_688) * 16
    assert held == pytest.approx(3.3e6, rel=0.01)
    assert plan.budgets.gpu.tokens > held
    assert plan.verdict == "nothing"
    assert "repeats what is held nearer to the GPU" in plan.decision


def test_a_hybrid_tier_is_to_be_checked_once_it_runs() -> None:
    group = CacheGroup(kind="sliding", layers=8, bytes_per_token=0, bytes_per_sequence=0, window_tokens=4096)
    groups = (*samples.estimate().data.groups, group)
    plan = planned(estimate=estimate_with(groups=groups))
    text = next(finding.text for finding in plan.findings if finding.code == "expansion-unverified")
    assert f"{plan.budgets.host.tokens / 1e6:.3g} M tokens" in text
    assert "expansion-unverified" not in codes(planned())
    assert "expansion-unverified" not in codes(planned(Policy(expansion=1.1), estimate=estimate_with(groups=groups)))


def test_a_disk_counts_what_its_folder_already_holds_and_stays_below_85_percent() -> None:
    free = samples.disk().free_bytes
    for own in (0, 500 * GiB):
        limit = limit_of(planned(Policy(disk_own_bytes=own)), "disk space")
        assert limit.limit == int(0.85 * (free + own))


@given(st.floats(0, 1), st.integers(1, 300))
def test_a_scaled_point_never_gains(ratio: float, capacity: int) -> None:
    point = samples.curve_point(samples.requests(60), capacity)
    less = scaled(point, ratio)
    assert less.hit_tokens <= point.hit_tokens
    assert all(part.tokens <= whole.tokens for part, whole in zip(less.prefixes, point.prefixes, strict=True))


def halved() -> tuple[Hits, ...]:
    """Half the hits of the sample's curve at every capacity."""
    return tuple(
        Hits(
            capacity_blocks=point.capacity_blocks,
            hit_requests=point.hit_requests,
            hit_blocks=point.hit_blocks // 2,
            hit_tokens=point.hit_tokens // 2,
            hit_ratio=point.hit_ratio / 2,
        )
        for point in samples.workload().data.curve
    )


def test_a_replay_of_the_routing_is_used_where_the_workload_holds_one() -> None:
    """What one of four servers hits, replayed: nothing is bounded or assumed any more."""
    base, hits = samples.workload().data, halved()
    rows = tuple(
        Replicas(replicas=4, routing=routing, ceiling=hits[-1], load_imbalance=1.5, computed_imbalance=1.2, curve=hits)
        for routing in ("round-robin", "session", "affinity")
    )
    for row in rows:
        policy = Policy(replicas=4, routing=row.routing)  # type: ignore[arg-type]
        found = curves_of(replace(base, replicas=rows), policy, 4, False)
        assert found.one_server
        assert [point.hit_tokens for point in found.gpu.points] == [hit.hit_tokens for hit in hits if hit.hit_tokens]
        plan = planned(policy, workload=workload_with(replicas=rows), probe=samples.probe_without_gpu())
        assert "routing-replayed" in codes(plan)
        assert not any("affinity" in reason or "lower bound" in reason for reason in plan.confidence.reasons)
    with pytest.raises(KvplanError, match="kvplan workload --replicas 4"):
        planned(Policy(replicas=4, routing="session"), probe=samples.probe_without_gpu())


def test_a_ttl_in_the_workloads_own_curve_does_not_hold_for_the_curves_of_tenants() -> None:
    isolation = Isolation(hit_tokens=1, isolated_hit_tokens=1, blocks=1, isolated_blocks=1, curve=halved())
    with_ttl = replace(samples.workload().data, ttl_s=60.0, isolation=isolation)
    whole = curves_of(with_ttl, Policy(ttl_s=60.0), 1, False)
    assert whole.host.points == whole.gpu.points
    apart = curves_of(with_ttl, Policy(ttl_s=60.0, share="tenant"), 1, False)
    assert len(apart.host.points) < len(apart.gpu.points)


def test_a_prefill_measured_on_other_gpus_than_a_replica_has_is_not_used() -> None:
    document = samples.probe()
    for gpus, used in ((1, True), (2, False), (None, True)):
        prefill = replace(samples.prefill(), gpus=gpus)
        plan = planned(probe=replace(document, data=replace(document.data, prefill=(prefill,))))
        assert (plan.prefill.provenance == "measured") is used


# -------------------------------------------------------------------------------------------- any policy at all

policies = st.builds(
    Policy,
    growth=st.floats(0.2, 4),
    replicas=st.integers(1, 4),
    replicas_per_host=st.none() | st.integers(1, 4),
    routing=st.sampled_from(["affinity", "round-robin"]),
    share=st.sampled_from(["all", "tenant", "none"]),
    ttl_s=st.none() | st.floats(1, 2000),
    restart_every_s=st.none() | st.floats(10, 10_000),
    expansion=st.floats(1, 8),
    headroom_ratio=st.floats(0, 0.5),
    host_memory_bytes=st.none() | st.integers(16, 488).map(lambda n: n * GiB),
    disk_own_bytes=st.integers(0, 100).map(lambda n: n * GiB),
    disk_admission=st.sampled_from(["all", "second-use"]),
    minimum_disk_life_s=st.sampled_from([0.0, 31_536_000.0]),
    minimum_gain_ratio=st.sampled_from([0.0, 0.02]),
    forbid_host=st.booleans(),
    forbid_disk=st.booleans(),
    price_view=st.sampled_from(["owned", "bought"]),
    offload=st.sampled_from(["native", "lmcache", "lmcache-server"]),
    reserves=st.lists(
        st.builds(Reserve, name=st.sampled_from(sorted(RESERVES)), bytes=st.integers(0, 60).map(lambda n: n * GiB)),
        max_size=3,
        unique_by=lambda one: one.name,
    ).map(tuple),
)
PRICES = Prices(
    date="2026-01-31",
    source="test",
    gpu_usd_per_hour=3.0,
    memory_usd_per_gb=1.0,
    memory_life_s=1e8,
    disk_usd_per_gb=0.1,
    disk_life_s=1e8,
    disk_writes_per_day=1.0,
)


@settings(max_examples=120, deadline=None)
@given(policies)
def test_no_policy_breaks_the_rules_of_every_plan(policy: Policy) -> None:
    """Bytes add up within their limits, hits stay under the ceiling, nothing given up is negative."""
    plan = planned(policy, probe=QUICK, prices=PRICES)
    gpu, host, disk = plan.budgets.gpu, plan.budgets.host, plan.budgets.disk
    assert sum(item.bytes for item in gpu.items) == gpu.limit_bytes or not limit_of(plan, "GPU memory").ok
    for budget in (host, disk):
        assert budget.bytes <= budget.usable_bytes <= budget.requested_bytes <= (budget.limit_bytes or 0)
        if budget.requested_bytes:
            assert sum(item.bytes for item in budget.items) == budget.limit_bytes
    assert 0 <= gpu.hit_ratio <= host.hit_ratio <= disk.hit_ratio <= samples.workload().data.ceiling_hit_ratio + 1e-9
    assert disk.requested_bytes <= 0.85 * (samples.disk().free_bytes + policy.disk_own_bytes)
    used = plan.alternatives[1]
    assert plan.benefit.gpu_s_per_hour_saved == used.net_s_per_hour >= used.hold_s_per_hour - 1e-9
    assert plan.verdict == "nothing" or used.feasible
    for cost in plan.policy_costs:
        assert 0 <= cost.hit_ratio <= 1
        assert cost.gpu_s_per_hour >= 0
    for limit in plan.limits:
        assert limit.ok or limit.name in ("GPU memory", "GPU time")
    assert parse(dump(samples.envelope("plan", plan)).encode(), "plan").data.budgets == plan.budgets


# ------------------------------------------------------------------------------------------- drives and layers


def disk_rate(plan: Plan) -> str:
    return next(line.value for line in plan.evidence if line.what == "disk")


def with_links(*more: Link, flags: tuple[str, ...] = ()) -> Document[Probe]:
    document = samples.probe()
    cells = (*document.data.links, *(replace(cell, flags=flags) for cell in more))
    return replace(document, data=replace(document.data, links=cells))


def test_a_drive_is_judged_by_the_shape_in_which_the_engine_uses_it() -> None:
    """vLLM behind a host tier moves files, alone whole blocks in one read; LMCache chunks; each by its own cells."""
    cells = [
        samples.link(direction, 2 * 2**20, 1, rate, preset=preset)
        for preset, rates in (("vllm-fs", (5.0, 2.0)), ("vllm-disk", (4.0, 1.5)), ("lmcache", (2.5, 1.2)))
        for direction, rate in zip(("read", "write"), rates, strict=True)
    ]
    probe = with_links(*cells)
    assert disk_rate(planned(probe=probe)) == "load 5.00 GB/s, store 2.00 GB/s"
    assert disk_rate(planned(Policy(forbid_host=True), probe=probe)) == "load 4.00 GB/s, store 1.50 GB/s"
    assert disk_rate(planned(Policy(offload="lmcache"), probe=probe)) == "load 2.50 GB/s, store 1.20 GB/s"
    other = planned(probe=probe, estimate=estimate_with(engine="tensorrt-llm"))
    assert disk_rate(other) == disk_rate(planned(estimate=estimate_with(engine="tensorrt-llm")))


def test_a_long_write_bounds_the_rate_of_stores() -> None:
    slow = samples.link("write", 4 * 2**20, 4, 0.7, preset="sustained")
    load, _, store = disk_rate(planned(probe=with_links(slow))).partition(", ")
    assert store == "store 700.00 MB/s"
    assert load == disk_rate(planned()).partition(", ")[0]


def test_a_cell_for_comparison_is_never_planned_with() -> None:
    fast = samples.link("read", 2 * 2**20, 1, 90.0)
    for allowed in (False, True):
        policy = Policy(allow_flagged_links=allowed)
        assert disk_rate(planned(policy, probe=with_links(fast, flags=("comparison",)))) == disk_rate(planned(policy))


def test_a_drive_that_has_been_written_lasts_less() -> None:
    drive = BlockDevice(name="nvme0n1", rated_endurance_bytes=1000 * TiB)
    blank = replace(samples.disk(), rated_endurance_bytes=None)
    assert endurance(blank).left == blank.total_bytes * 1825
    assert endurance(blank).provenance == "assumed"
    new = replace(blank, members=(drive, drive))
    assert endurance(new).left == 2000 * TiB
    assert endurance(new).provenance == "measured"
    used = replace(new, members=(replace(drive, used_ratio=0.25), drive))
    assert endurance(used).left == 1500 * TiB
    assert "25% of its life used" in endurance(used).source
    had = replace(new, members=(replace(drive, lifetime_written_bytes=300 * TiB), drive))
    assert endurance(had).left == 1700 * TiB
    assert endurance(replace(new, members=(replace(drive, used_ratio=1.2),))).left == 0


def test_a_layer_in_the_engine_changes_what_a_size_holds() -> None:
    """LMCache's server evicts at 80 %, so it needs a quarter more; in process its size is a rank's, in whole chunks."""
    native, server = planned(), planned(Policy(offload="lmcache-server"))
    assert server.budgets.host.usable_bytes <= 0.8 * server.budgets.host.requested_bytes
    assert server.budgets.host.tokens % 256 == 0
    assert server.budgets.host.tokens == pytest.approx(native.budgets.host.tokens, rel=0.02)
    assert server.budgets.host.requested_bytes == pytest.approx(1.25 * native.budgets.host.requested_bytes, rel=0.02)
    assert set(server.config) == {"vllm", "lmcache-server"}
    assert "LMCacheMPConnector" in server.config["vllm"]
    assert "--kv-offloading-size" not in server.config["vllm"]
    assert "/dev/shm" not in [limit.name for limit in server.limits]
    kv = replace(samples.estimate().data.kv, bytes_per_token_per_gpu=32_768)
    busy = Policy(offload="lmcache", growth=6.0, minimum_gain_ratio=0.0)
    four = planned(busy, estimate=estimate_with(parallel=Parallel(tp=4), kv=kv))
    assert four.budgets.host.requested_bytes % (4 * GiB) == 0
    size = four.budgets.host.requested_bytes // (4 * GiB)
    assert f"max_local_cpu_size: {size}\n" in four.config["lmcache"]
    assert "LMCacheConnectorV1" in four.config["vllm"]


def test_of_a_latent_cache_one_rank_stores_in_lmcache() -> None:
    group = CacheGroup(kind="latent", layers=61, bytes_per_token=70_272, bytes_per_sequence=0)
    kv = replace(
        samples.estimate().data.kv,
        bytes_per_token=70_272,
        bytes_per_token_per_gpu=70_272,
        offload_bytes_per_token=70_272,
    )
    estimate = estimate_with(kv=kv, groups=(group,), parallel=Parallel(tp=8))
    plan = planned(Policy(offload="lmcache", growth=3.0, minimum_gain_ratio=0.0), estimate=estimate)
    size = plan.budgets.host.requested_bytes // GiB
    assert size
    assert f"max_local_cpu_size: {size}\n" in plan.config["lmcache"]


def test_a_layer_that_cannot_be_is_refused() -> None:
    with pytest.raises(KvplanError, match="--offload lmcache in sglang"):
        planned(Policy(offload="lmcache"), estimate=estimate_with(engine="sglang"))
    with pytest.raises(KvplanError, match=r"chunks of 256 tokens are no whole number .* 528"):
        planned(Policy(offload="lmcache"), estimate=estimate_with(block_tokens=528))


def test_what_stores_take_from_the_gpu_is_measured_where_it_was() -> None:
    """Steps of 10 ms take 12.5 ms beside copies at 40 GB/s: a fifth of the time the copies take."""
    document = samples.probe()
    cell = Contention(
        gpu=0,
        direction="d2h",
        mechanism="copy engine",
        granule_bytes=2 * 2**20,
        copy_alone_bytes_per_s=48.7 * GB,
        copy_loaded_bytes_per_s=40 * GB,
        step_alone_p50_s=0.010,
        step_alone_p99_s=0.011,
        step_loaded_p50_s=0.0125,
        step_loaded_p99_s=0.014,
        steps=100,
        load="reads of 8 GiB",
    )
    assumed = planned()
    for flags, ratio in (((), 45.3 / 40 * 0.2), (("not-steady",), 0.5)):
        probe = replace(document, data=replace(document.data, contention=(replace(cell, flags=flags),)))
        plan = planned(probe=probe)
        largest, before = plan.alternatives[-1], assumed.alternatives[-1]
        assert largest.store_s_per_hour == pytest.approx(before.store_s_per_hour * ratio / 0.5)
        line = next(line for line in plan.evidence if line.what == "GPU time lost to stores")
        assert line.provenance == ("assumed" if flags else "measured")


# ------------------------------------------------------------------------------- hosts and drives still to be bought


def test_a_drive_larger_than_the_probed_one_is_another_drive() -> None:
    """Its size is the stated one and its speed the probed one's, whose wear is not its own."""
    asked = 16 * TiB
    plan = planned(Policy(disk_bytes=asked, minimum_gain_ratio=0.0), probe=QUICK)
    assert "drive-differs" in codes(plan)
    disk = plan.budgets.disk
    assert disk.limit_bytes == asked
    assert {item.provenance for item in disk.items} == {"configured"}
    space = limit_of(plan, "disk space")
    assert (space.limit, space.provenance) == (int(asked * 0.85), "configured")
    assert "of a drive as stated" in space.why
    assert plan.settings is not None
    assert plan.settings.disk_path is None
    other = samples.disk()
    worn = {one.name: one for one in plan.limits}.get("disk endurance")
    assert worn is None or "assumed" in worn.why
    within = planned(Policy(disk_bytes=other.total_bytes, minimum_gain_ratio=0.0), probe=QUICK)
    assert "drive-differs" not in codes(within)
    assert "disk-capped" in codes(within)
    assert limit_of(within, "disk space").limit == int(other.free_bytes * 0.85)
    fits = planned(Policy(disk_bytes=TiB, minimum_gain_ratio=0.0), probe=QUICK)
    assert not {"drive-differs", "disk-capped"} & set(codes(fits))


def test_replicas_on_one_host_are_said_where_nobody_said_them() -> None:
    without = samples.probe_without_gpu()
    assert "one-host-assumed" in codes(planned(Policy(replicas=4), probe=without))
    assert "one-host-assumed" not in codes(planned(Policy(replicas=4, replicas_per_host=4), probe=without))
    assert "one-host-assumed" not in codes(planned(Policy(replicas=4), probe=samples.probe()))
    assert "one-host-assumed" not in codes(planned(Policy(), probe=without))


def test_a_context_that_leaves_no_room_for_one_sequence_is_an_error_of_the_plan() -> None:
    tight = replace(H100, memory_bytes=30 * GiB)
    plan = planned(gpu=tight, probe=samples.probe_without_gpu())
    (text,) = (one.text for one in plan.findings if one.code == "context-does-not-fit")
    assert "131,072 tokens needs 16.00 GiB" in text
    assert "vLLM does not start" in text
    bound = limit_of(plan, "longest sequence")
    assert not bound.ok
    assert bound.needed == 16 * GiB > bound.limit
    (most,) = re.findall(r"at most ([\d,]+)", text)
    short = planned(
        gpu=tight,
        probe=samples.probe_without_gpu(),
        estimate=estimate_with(max_model_len=int(most.replace(",", ""))),
    )
    assert "context-does-not-fit" not in codes(short)
    held = limit_of(short, "longest sequence")
    assert held.ok
    assert held.limit == bound.limit
    assert held.limit - held.needed < short.inputs.estimate.data.block_tokens * 131_072  # not one block more
    assert f"--max-model-len {most.replace(',', '')}" in short.config["vllm"]


def test_a_drive_too_slow_for_the_prefixes_there_are_is_not_said_to_add_no_reuse() -> None:
    """What it would add is there in the log; it is only quicker to compute it again at these lengths."""
    document = samples.probe()
    gpu_links = tuple(cell for cell in document.data.links if cell.direction not in ("read", "write"))
    said = {}
    for rate in (0.2, 30.0):
        cells = (samples.link("read", 2 * 2**20, 1, rate), samples.link("write", 2 * 2**20, 1, rate))
        slow = replace(document, data=replace(document.data, links=(*gpu_links, *cells)))
        plan = planned(Policy(host_memory_bytes=64 * GiB, minimum_disk_life_s=0.0), probe=slow)
        assert plan.budgets.host.hit_ratio < max(point.hit_ratio for point in plan.curve if point.tier == "disk")
        said[rate] = plan.budgets.disk.why
    assert re.search(r"quicker than recomputing from \d[\d.,]* [kM] tokens on, and .* are shorter prefixes", said[0.2])
    assert "no reuse" not in said[0.2]
    assert "quicker than recomputing" not in said[30.0]


def test_a_replica_larger_than_a_host_is_said() -> None:
    without = samples.probe_without_gpu()
    for tp, spans in ((8, False), (16, True)):
        plan = planned(estimate=estimate_with(parallel=Parallel(tp=tp)), probe=without)
        assert ("replica-spans-hosts" in codes(plan)) is spans
    seen = len(samples.probe().data.host.gpus)
    for tp, spans in ((seen, False), (2 * seen, True)):
        plan = planned(estimate=estimate_with(parallel=Parallel(tp=tp)))
        assert ("replica-spans-hosts" in codes(plan)) is spans


def test_a_tier_that_a_rule_makes_useless_names_the_rule() -> None:
    none, brief = planned(Policy(share="none")), planned(Policy(ttl_s=1.0))
    assert none.budgets.host.why.endswith("adds no reuse that the log shows with no block shared")
    assert "with blocks kept 1 s at most" in brief.budgets.host.why
    assert " with " not in planned(Policy(host_memory_bytes=64 * GiB)).budgets.disk.why
