"""Plans against a brute force that replays every request at every size, and against properties every plan must have."""

from __future__ import annotations

import math
import re
import subprocess
import sys

import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st
from records import replace

from kvplan.catalog import gpu
from kvplan.documents import (
    CacheGroup,
    Document,
    Estimate,
    GpuMemory,
    Limit,
    Parallel,
    Plan,
    Policy,
    Probe,
    Workload,
)
from kvplan.engines.flags import Given, texts
from kvplan.engines.profiles import largest_without_padding, power_of_two_above, profile
from kvplan.errors import KvplanError
from kvplan.files import dump, parse, wrap
from kvplan.page import Decision
from kvplan.plan import capacities, make
from kvplan.planning.choice import Demand, Tier, level, options
from kvplan.planning.economics import Curve, LoadPath
from kvplan.report import sections
from kvplan.units import GB, GiB, TiB, show_bytes

H100 = gpu("h100-80gb")


def planned(policy: Policy | None = None, **changed: object) -> Plan:
    """The sample plan with some of its inputs changed."""
    given = {
        "estimate": samples.estimate(),
        "workload": samples.workload(),
        "probe": samples.probe(),
        "gpu": H100,
        **changed,
    }
    return make(**given, policy=policy or Policy())  # type: ignore[arg-type]


def estimate_with(**fields: object) -> Document[Estimate]:
    document = samples.estimate()
    return replace(document, data=replace(document.data, **fields))


def workload_with(**fields: object) -> Document[Workload]:
    document = samples.workload()
    return replace(document, data=replace(document.data, **fields))


def limit_of(plan: Plan, name: str) -> Limit:
    return next(limit for limit in plan.limits if limit.name == name)


# ------------------------------------------------------------------------------------------------------- every byte


@settings(max_examples=60, deadline=None)
@given(
    st.integers(20, 200),
    st.floats(0.3, 1.0),
    st.floats(0.1, 8),
    st.integers(1, 6),
    st.integers(16, 4096),
    st.floats(0, 0.5),
    st.sampled_from(["vllm", "sglang", "tensorrt-llm", "llama.cpp"]),
    st.sampled_from([1, 2, 8]),
)
def test_every_byte_is_accounted_and_no_limit_exceeded(
    memory: int,
    utilization: float,
    growth: float,
    replicas: int,
    host: int,
    headroom: float,
    engine: str,
    tp: int,
) -> None:
    spec = replace(H100, memory_bytes=memory * GiB)
    policy = Policy(
        gpu_memory_utilization=utilization,
        growth=growth,
        replicas=replicas,
        host_memory_bytes=host * GiB,
        headroom_ratio=headroom,
        minimum_gain_ratio=0.0,
    )
    estimate = estimate_with(engine=engine, parallel=Parallel(tp=tp))
    plan = planned(policy, estimate=estimate, gpu=spec, probe=samples.probe_without_gpu())
    budget = plan.budgets.gpu
    fits = limit_of(plan, "GPU memory").ok
    total = sum(item.bytes for item in budget.items)
    assert total == (budget.limit_bytes or 0) + budget.missing_bytes
    assert (budget.missing_bytes == 0) if fits else (budget.missing_bytes > 0 and budget.bytes == 0)
    assert budget.bytes <= budget.usable_bytes <= budget.requested_bytes == budget.limit_bytes
    assert (budget.limit_bytes or 0) <= memory * GiB * tp
    side = plan.budgets.host
    assert side.bytes <= side.usable_bytes <= side.requested_bytes
    if side.requested_bytes:
        assert sum(item.bytes for item in side.items) == side.limit_bytes
        assert side.limit_bytes == (host if host > 512 else min(host, 488)) * GiB // replicas
    drive = plan.budgets.disk
    assert drive.bytes <= drive.usable_bytes <= drive.requested_bytes
    assert drive.requested_bytes <= 0.85 * samples.disk().free_bytes
    for limit in plan.limits:
        assert limit.ok or limit.name in ("GPU memory", "longest sequence", "GPU time", "/dev/shm")
    for text in plan.config.values():
        for size in re.findall(r"= (\d+) B .* of host", text):
            assert int(size) <= side.requested_bytes


def test_weights_that_do_not_fit_break_a_limit_and_the_plan_still_comes_out() -> None:
    plan = planned(probe=None, gpu=replace(H100, memory_bytes=12 * GiB))
    broken = [limit.name for limit in plan.limits if not limit.ok]
    assert broken == ["GPU memory", "longest sequence"]
    gpu = plan.budgets.gpu
    held = {item.name: item.bytes for item in gpu.items}
    assert gpu.bytes == gpu.usable_bytes == 0  # the weights alone need more
    assert gpu.missing_bytes == sum(held.values()) - (gpu.limit_bytes or 0) > 0
    assert plan.decision.startswith("Settle first: GPU memory, longest sequence (see the limits). Then ")
    (block,) = sections(wrap(plan)).sections[0].blocks
    assert isinstance(block, Decision)
    assert block.headline == "Settle first: GPU memory, longest sequence (see the limits)."
    assert planned().decision.startswith("Give ")
    assert "gpu-does-not-fit" in [finding.code for finding in plan.findings]


def test_running_requests_that_do_not_fit_have_what_is_left_and_the_rest_is_said_to_be_missing() -> None:
    tight = planned(Policy(growth=50.0), probe=None, gpu=replace(H100, memory_bytes=40 * GiB))
    gpu = tight.budgets.gpu
    held = {item.name: item.bytes for item in gpu.items}
    left = (gpu.limit_bytes or 0) - held["weights"] - held["engine overhead"]
    assert 0 < left < held["active requests"]
    assert gpu.usable_bytes == left
    assert gpu.missing_bytes == held["active requests"] - left
    (text,) = (one.text for one in tight.findings if one.code == "gpu-does-not-fit")
    (least,) = map(int, re.findall(r"(\d+) replicas or more", text))
    for replicas, fits in ((least - 1, False), (least, True)):
        policy = Policy(growth=50.0, replicas=replicas, replicas_per_host=1)
        plan = planned(policy, probe=None, gpu=replace(H100, memory_bytes=40 * GiB))
        assert limit_of(plan, "GPU memory").ok is fits
    decision = sections(wrap(tight)).sections[0]
    assert f"{show_bytes(gpu.missing_bytes)} are missing" in str(decision)


def llama_cpp(context: int, **fields: object) -> Document[Estimate]:
    return estimate_with(
        engine="llama.cpp", engine_view={"context_bytes": context, "n_ctx": context // 131_072}, **fields
    )


@settings(max_examples=40, deadline=None)
@given(st.integers(1, 120), st.integers(20, 200), st.floats(0.01, 8))
def test_llama_cpp_holds_its_context_and_no_more(context: int, memory: int, growth: float) -> None:
    """What is free beside a context that was allocated at start is no cache; requests beyond it wait."""
    spec = replace(H100, memory_bytes=memory * GiB)
    made = planned(
        Policy(engine="llama.cpp", growth=growth),
        estimate=llama_cpp(context * GiB),
        gpu=spec,
        probe=samples.probe_without_gpu(),
    )
    gpu, limit = made.budgets.gpu, limit_of(made, "GPU memory")
    held = {item.name: item.bytes for item in gpu.items}
    assert sum(held.values()) == (gpu.limit_bytes or 0) + gpu.missing_bytes
    assert held.get("active requests", 0) + gpu.bytes <= context * GiB
    assert gpu.usable_bytes <= context * GiB
    assert limit.needed == held["weights"] + held["engine overhead"] + context * GiB
    assert limit.ok is (gpu.missing_bytes == 0)
    assert limit.ok or gpu.bytes == 0
    if limit.ok:
        left = context * GiB - held.get("active requests", 0) - gpu.bytes
        assert 0 <= left < 131_072 * 16  # what is used of the context, to the block


def test_more_prompts_than_a_replica_can_compute_break_a_limit() -> None:
    plan = planned(Policy(growth=12.0, active_percentile="p50"), gpu=replace(H100, memory_bytes=120 * GiB))
    limit = limit_of(plan, "GPU time")
    assert limit.needed > 1
    assert not limit.ok
    assert f"at least {math.ceil(limit.needed)} are needed" in limit.why


def test_gpu_budget_is_the_stated_subtraction() -> None:
    """0.92 x 81,559 MiB less weights, 4 GiB and 96,000 tokens in 9 requests, in whole blocks but for the null block."""
    budget = planned().budgets.gpu
    usable = math.ceil(81_559 * 2**20 * 0.92)
    active = (96_000 + 9 * 15) * 131_072
    blocks = (usable - 16_060_522_496 - 4 * GiB - active) // (16 * 131_072) - 1
    assert budget.bytes == blocks * 16 * 131_072
    assert budget.tokens == blocks * 16
    assert {item.name: item.bytes for item in budget.items}["active requests"] == active


def test_a_stated_cache_size_and_fraction_of_the_estimate_are_kept() -> None:
    memory = GpuMemory(
        gpu="stated",
        total_bytes=None,
        usable_bytes=None,
        weights_bytes=None,
        overhead_bytes=None,
        kv_bytes=20 * GiB,
        kv_tokens=0,
    )
    budget = planned(estimate=estimate_with(memory=memory)).budgets.gpu
    assert budget.limit_bytes == 20 * GiB
    assert {item.name for item in budget.items} == {"active requests", "reusable blocks", "less than a block"}
    named = estimate_with(memory=replace(memory, gpu="h100-80gb", total_bytes=80 * GiB))  # --gpu beside --kv-memory
    assert planned(estimate=named).budgets.gpu.limit_bytes == 20 * GiB
    half = replace(memory, total_bytes=80 * GiB, usable_bytes=40 * GiB, overhead_bytes=3 * GiB)
    budget = planned(estimate=estimate_with(memory=half)).budgets.gpu
    assert budget.limit_bytes == math.ceil(81_559 * 2**20 * 0.5)
    assert {item.name: item.bytes for item in budget.items}["engine overhead"] == 3 * GiB


def test_budgets_hits_are_exact_points_at_or_below() -> None:
    plan = planned()
    points = samples.workload().data.curve
    for budget in (plan.budgets.gpu, plan.budgets.host):
        below = [point.hit_ratio for point in points if point.capacity_tokens <= budget.tokens]
        assert budget.hit_ratio == max(below)


def test_an_exact_point_at_the_gpu_cache_settles_the_bracket() -> None:
    inputs = (samples.estimate(), samples.workload(), samples.probe(), H100, Policy())
    assert "curve-bracket" in [finding.code for finding in make(*inputs).findings]
    wanted = [tokens // 512 for tokens in capacities(*inputs)]
    data = samples.workload_of(samples.requests(), sorted({*samples.grid(5642), *wanted, *(n + 1 for n in wanted)}))
    plan = make(inputs[0], samples.envelope("workload", data), *inputs[2:])
    assert "curve-bracket" not in [finding.code for finding in plan.findings]
    assert plan.benefit.gpu_s_per_hour_saved > make(*inputs).benefit.gpu_s_per_hour_saved


# ------------------------------------------------------------------------------------------------------ known cases


def test_pinned_tensors_round_up_to_powers_of_two() -> None:
    """24 tensors on 4 ranks: 200 GiB take 384, 384 take 384, 400 and 512 take 768; 390 GiB are best used as 384."""
    cost = {size: 96 * power_of_two_above(-(-size * GiB // 96)) // GiB for size in (200, 384, 400, 512)}
    assert cost == {200: 384, 384: 384, 400: 768, 512: 768}
    assert largest_without_padding(390 * GiB, 96) == 384 * GiB
    assert 4 * power_of_two_above(200 * GiB) == 1024 * GiB
    sglang = profile("sglang")
    assert sglang.host_cost_bytes(4 * 40 * GB, 4, 1) == 256 * GiB
    assert sglang.host_cost_bytes(4 * 30 * GB, 4, 1) == 128 * GiB
    assert profile("vllm").host_cost_bytes(200 * GiB, 4, 24) == 200 * GiB


@pytest.mark.parametrize(
    ("budget", "ranks", "latent", "expected"),
    [
        (240, 4, False, {"vllm": 240, "lmcache": 60, "lmcache-server": 240, "sglang": 64}),
        (400, 8, False, {"lmcache": 50}),
        (400, 2, False, {"lmcache": 200}),
        (400, 8, True, {"lmcache": 400}),
    ],
)
def test_the_same_word_means_total_or_rank(budget: int, ranks: int, latent: bool, expected: dict[str, int]) -> None:
    given = Given(host_bytes=budget * GiB, disk_bytes=0, ranks=ranks, latent=latent, block_tokens=16, utilization=0.92)
    flag = {
        "vllm": r"--kv-offloading-size (\d+)",
        "lmcache": r"max_local_cpu_size: (\d+)",
        "lmcache-server": r"--l1-size-gb (\d+)",
        "sglang": r"--hicache-size (\d+)",
    }
    found = {**texts("vllm", given), **texts("sglang", given)}
    for name, value in expected.items():
        match = re.search(flag[name], found[name])
        assert match is not None
        assert int(match[1]) == value
    for text in found.values():
        back = re.search(r"= (\d+) B .* of host", text)
        assert back is not None
        assert int(back[1]) <= budget * GiB


@given(st.integers(0, 3000), st.integers(0, 3000), st.integers(1, 16), st.booleans())
def test_emitted_sizes_never_exceed_what_was_given(host: int, disk: int, ranks: int, latent: bool) -> None:
    given = Given(
        host_bytes=host * GiB, disk_bytes=disk * GiB, ranks=ranks, latent=latent, block_tokens=16, utilization=0.9
    )
    for engine in ("vllm", "sglang", "tensorrt-llm", "llama.cpp"):
        for text in texts(engine, given).values():
            for size, where in re.findall(r"= (\d+) B \([^)]*\) of (host|disk)", text):
                assert int(size) <= (host if where == "host" else disk) * GiB


def test_a_host_tier_smaller_than_the_gpu_pool_brings_nothing_to_an_inclusive_engine() -> None:
    """vLLM mirrors the GPU: 42.6 GiB of reusable blocks on the GPU make 40 GiB of host memory worthless."""
    small = Policy(host_memory_bytes=55 * GiB, minimum_gain_ratio=0.0, forbid_disk=True)
    plan = planned(small)
    assert plan.alternatives[-1].name == "largest"
    assert plan.alternatives[-1].host_bytes == 40 * GiB < plan.budgets.gpu.bytes
    assert plan.verdict == "nothing"
    assert "repeats what is held nearer to the GPU" in plan.decision
    other = planned(small, estimate=estimate_with(engine="tensorrt-llm"))
    assert other.verdict == "host"
    assert other.budgets.host.bytes == other.budgets.host.usable_bytes


def test_write_wear_of_a_hundred_requests_a_minute() -> None:
    """100 x 8,000 novel tokens a minute x 131,072 B are 151 TB a day: 1,200 TB of rated writes last 7.9 days."""
    demand = Demand(requests=100, input_tokens=800_000, input_tokens_sq=6.4e9, block_tokens=16, per_hour=60.0)
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
    (option,) = options(curve, demand, samples.prefill(), tier, level(curve, demand, 0))
    daily = option.stored_tokens * 24 * 131_072
    assert daily == pytest.approx(151e12, rel=0.001)
    assert option.life_s is not None
    assert round(option.life_s / 86_400, 1) == 7.9
    assert "7.9 days" in option.refused


def test_one_fraction_means_three_things() -> None:
    """80 GiB, 16 of weights, 4 of overhead, 0.9: vLLM leaves 52 GiB for the cache, TensorRT-LLM 54, SGLang 56."""
    sizes = {
        engine: profile(engine).usable_bytes(80 * GiB, 0.9, 16 * GiB, 4 * GiB) - 20 * GiB
        for engine in ("vllm", "tensorrt-llm", "sglang")
    }
    assert {engine: round(size / GiB, 3) for engine, size in sizes.items()} == {
        "vllm": 52,
        "tensorrt-llm": 54,
        "sglang": 56,
    }


# ------------------------------------------------------------------------------------------------ inputs and policy


def test_the_same_documents_give_the_same_plan() -> None:
    first, second = (dump(samples.envelope("plan", planned())) for _ in range(2))
    assert first == second
    document = wrap(planned())
    assert parse(dump(document).encode(), "plan") == document


def test_at_least_three_alternatives_and_nothing_among_them() -> None:
    names = [one.name for one in planned().alternatives]
    assert names[:2] == ["nothing", "recommended"]
    assert names[-1] == "largest"
    assert planned().alternatives[0].net_s_per_hour == 0
    cramped = planned(Policy(host_memory_bytes=4 * GiB))
    assert [one.name for one in cramped.alternatives] == ["nothing", "recommended", "largest"]
    assert "no size of host memory fits" in cramped.alternatives[-1].why
    assert set(cramped.config) == {"vllm"}


def test_recommended_is_the_smallest_within_the_tolerance() -> None:
    plan = planned()
    best = max(point.net_s_per_hour for point in plan.curve if point.tier == "host")
    smaller = [
        point.net_s_per_hour
        for point in plan.curve
        if point.tier == "host" and point.bytes < plan.budgets.host.requested_bytes
    ]
    assert plan.benefit.gpu_s_per_hour_saved >= 0.98 * best
    assert max(smaller) < 0.98 * best


def test_measured_and_published_inputs_are_told_apart() -> None:
    measured = planned()
    assert measured.prefill.provenance == "measured"
    assert measured.confidence.grade == "B"
    published = planned(probe=samples.probe_without_gpu())
    assert published.prefill.provenance == "assumed"
    assert published.confidence.grade == "C"
    rates = {line.what: line for line in published.evidence}
    assert rates["host link"].provenance == "published"
    assert rates["disk"].provenance == "measured"
    assert published.prefill.low_ratio < 1 < published.prefill.high_ratio
    bare = planned(probe=None)
    assert bare.budgets.host.limit_bytes is None
    assert "host memory is unknown" in " ".join(bare.confidence.reasons).replace("the host's memory", "host memory")
    assert all(line.what != "disk" for line in bare.evidence)
    assert not any(row.tier == "disk" for row in bare.break_even)


def test_published_prefill_is_operations_over_the_published_rate() -> None:
    prefill = planned(probe=None, estimate=estimate_with(parallel=Parallel(tp=2))).prefill
    rate = 989e12 * 0.55 * 2
    assert prefill.a_s_per_token == pytest.approx(1.396e10 / rate)
    assert prefill.b_s_per_token_sq == pytest.approx(262_144 / rate)
    assert prefill.low_ratio == pytest.approx(0.55 / 0.66)
    assert prefill.high_ratio == pytest.approx(0.55 / 0.38)


def test_a_mixture_of_experts_runs_at_lower_efficiency() -> None:
    data = samples.estimate().data
    assert data.compute is not None
    assert data.weights is not None
    many = replace(data.weights, params=47_000_000_000)
    dense, sparse = (planned(probe=None, estimate=estimate_with(weights=one)).prefill for one in (data.weights, many))
    assert sparse.a_s_per_token == pytest.approx(dense.a_s_per_token / 0.6)


def test_prefill_of_another_model_or_device_is_not_used() -> None:
    document = samples.probe()
    for other in (replace(samples.prefill(), model="other/model"), replace(samples.prefill(), device="CPU")):
        probe = replace(document, data=replace(document.data, prefill=(other,)))
        plan = planned(probe=probe)
        assert plan.prefill.provenance == "assumed"
        assert "prefill-not-used" in [finding.code for finding in plan.findings]


def test_a_probe_of_another_gpu_lends_neither_memory_nor_link() -> None:
    plan = planned(gpu=gpu("l4-24gb"))
    assert "gpu-differs" in [finding.code for finding in plan.findings]
    evidence = {line.what: line for line in plan.evidence}
    assert evidence["memory of l4-24gb"].provenance == "published"
    assert evidence["host link"].provenance == "published"


def test_more_memory_than_the_probed_host_has_means_another_host() -> None:
    plan = planned(Policy(host_memory_bytes=2 * TiB))
    assert plan.budgets.host.limit_bytes == 2 * TiB
    assert "host-differs" in [finding.code for finding in plan.findings]
    assert "/dev/shm" not in [limit.name for limit in plan.limits]
    within = planned(Policy(host_memory_bytes=500 * GiB))
    assert within.budgets.host.limit_bytes == 488 * GiB


def test_flagged_cells_are_refused_unless_allowed() -> None:
    document = samples.probe()
    links = tuple(replace(cell, flags=("not-steady",)) for cell in document.data.links)
    probe = replace(document, data=replace(document.data, links=links))
    plan = planned(probe=probe)
    assert {line.what: line.provenance for line in plan.evidence}["host link"] == "published"
    assert [finding.code for finding in plan.findings].count("link-flagged") == 2
    assert not any(row.tier == "disk" for row in plan.break_even)
    allowed = planned(Policy(allow_flagged_links=True), probe=probe)
    assert any(row.tier == "disk" for row in allowed.break_even)


def test_the_contended_rate_at_the_engines_granule_is_used() -> None:
    document = samples.probe()
    busy = samples.link("h2d", 64 * 2**10, 1, 41.0, concurrent="opposite direction", preset="batch")
    elsewhere = samples.link("h2d", 64 * 2**20, 1, 52.0, concurrent="opposite direction")
    probe = replace(document, data=replace(document.data, links=(*document.data.links, busy, elsewhere)))
    assert {row.link_bytes_per_s for row in planned().break_even if row.tier == "host"} == {46.4 * GB}
    assert {row.link_bytes_per_s for row in planned(probe=probe).break_even if row.tier == "host"} == {41.0 * GB}


def test_policy_can_forbid_tiers() -> None:
    plan = planned(Policy(forbid_host=True, forbid_disk=True))
    assert plan.verdict == "nothing"
    assert "forbids a host tier" in plan.decision
    assert "disk-forbidden" in [finding.code for finding in plan.findings]
    only_disk = planned(Policy(forbid_host=True, minimum_gain_ratio=0.0, minimum_disk_life_s=0.0))
    assert only_disk.budgets.host.requested_bytes == 0
    assert only_disk.budgets.disk.why


def test_a_quick_drive_is_taken_beside_or_without_the_host_tier() -> None:
    document = samples.probe()
    quick = (samples.link("read", 2 * 2**20, 1, 40.0), samples.link("write", 2 * 2**20, 1, 30.0))
    probe = replace(document, data=replace(document.data, links=(*document.data.links, *quick)))
    easy = Policy(minimum_disk_life_s=0.0)
    alone = planned(replace(easy, forbid_host=True), probe=probe)
    assert alone.verdict == "disk"
    assert '"kv_offload_backend": "disk"' in alone.config["vllm"]
    assert "disk_capacity_bytes" in alone.config["vllm"]
    both = planned(replace(easy, host_memory_bytes=90 * GiB, minimum_gain_ratio=0.001), probe=probe)
    assert both.verdict == "host+disk"
    assert "evictor" in both.config["vllm"]
    assert "PYTHONHASHSEED=0" in both.config["vllm"]
    assert both.budgets.disk.hit_ratio > both.budgets.host.hit_ratio
    worn = planned(Policy(forbid_host=True, minimum_disk_life_s=3650 * 86_400.0), probe=probe)
    assert worn.verdict == "nothing"
    assert "wears the drive out" in worn.decision


def test_a_short_time_to_live_caps_what_a_tier_is_worth() -> None:
    free = planned()
    short = planned(Policy(ttl_s=60.0))
    assert short.verdict == "nothing"
    middle = planned(Policy(ttl_s=200.0))
    assert middle.budgets.host.hit_ratio < free.budgets.host.hit_ratio
    assert middle.benefit.gpu_s_per_hour_saved < free.benefit.gpu_s_per_hour_saved
    cost = next(finding.text for finding in short.findings if finding.code == "ttl-cost")
    lost = free.budgets.host.hit_ratio - short.budgets.host.hit_ratio
    assert f"gives up {100 * lost:.1f} % of input tokens" in cost
    long = planned(Policy(ttl_s=86_400.0))
    assert long.benefit == free.benefit


def test_replicas_share_the_log_and_their_host() -> None:
    one, four = planned(), planned(Policy(replicas=4), probe=samples.probe_without_gpu())
    assert four.benefit.gpu_busy_ratio_off < one.benefit.gpu_busy_ratio_off / 3
    assert four.budgets.host.limit_bytes == 122 * GiB
    assert "affinity-assumed" in [finding.code for finding in four.findings]
    stated = planned(Policy(replicas=4, replicas_per_host=2), probe=samples.probe_without_gpu())
    assert stated.budgets.host.limit_bytes == 244 * GiB


def test_growth_raises_the_load_and_the_active_state() -> None:
    now, later = planned(), planned(Policy(growth=2.0))
    assert later.benefit.gpu_busy_ratio_off > 2 * now.benefit.gpu_busy_ratio_off
    assert later.budgets.gpu.bytes < now.budgets.gpu.bytes


def test_shared_memory_too_small_is_named_with_its_remedy() -> None:
    document = samples.probe()
    host = replace(document.data.host, shm_free_bytes=64 * 2**20)
    plan = planned(probe=replace(document, data=replace(document.data, host=host)))
    limit = limit_of(plan, "/dev/shm")
    assert not limit.ok
    assert "--shm-size" in limit.why


def test_a_prompt_that_alone_misses_the_first_token_goal_breaks_a_limit() -> None:
    """The sample's p95 prompt takes longer than 100 ms and less than 10 s of prefill."""
    length = samples.workload().data.input_lengths.p95
    for wanted, ok in ((0.1, False), (10.0, True)):
        limit = limit_of(planned(Policy(slo_ttft_s=wanted)), "time to first token")
        assert limit.ok is ok
        assert limit.needed == samples.prefill().seconds(length)


def test_break_even_rows_stop_at_the_models_context() -> None:
    model = replace(samples.estimate().data.model, max_context_tokens=32_768)
    lengths = {row.prefix_tokens for row in planned(estimate=estimate_with(model=model)).break_even}
    assert lengths == {2048, 8192, 32_768}


def test_sensitivity_moves_the_way_the_input_does() -> None:
    plan = planned()
    net = {(line.what, line.change): line.net_s_per_hour for line in plan.sensitivity}
    assert net["host link", "half as fast"] < plan.benefit.gpu_s_per_hour_saved
    assert net["prefill cost", "x 0.90"] < plan.benefit.gpu_s_per_hour_saved < net["prefill cost", "x 1.10"]
    assert net["hits of the log", "-20 %"] < plan.benefit.gpu_s_per_hour_saved
    assert net["GPU time lost to stores", "all of it"] < net["GPU time lost to stores", "none"]


def drive_of(read: float, write: float) -> Document[Probe]:
    """The sample's host with a drive of these GB/s."""
    document = samples.probe()
    links = tuple(cell for cell in document.data.links if cell.direction not in ("read", "write"))
    cells = (samples.link("read", 2 * 2**20, 1, read), samples.link("write", 2 * 2**20, 1, write))
    return replace(document, data=replace(document.data, links=(*links, *cells)))


@pytest.mark.parametrize("read", [6.0, 40.0])  # twice 40 GB/s is more than the host link carries
def test_a_slower_and_a_faster_drive_are_the_plans_with_such_drives(read: float) -> None:
    policy = Policy(minimum_disk_life_s=0.0, minimum_gain_ratio=0.0, host_memory_bytes=96 * GiB)
    rows = {one.change: one for one in planned(policy, probe=drive_of(read, 4.0)).sensitivity if one.what == "disk"}
    assert set(rows) == {"half as fast", "twice as fast"}
    for change, factor in (("half as fast", 0.5), ("twice as fast", 2.0)):
        other = planned(policy, probe=drive_of(read * factor, 4.0 * factor))
        assert rows[change].disk_bytes == other.budgets.disk.requested_bytes
        assert rows[change].host_bytes == other.budgets.host.requested_bytes
        assert rows[change].net_s_per_hour == pytest.approx(other.benefit.gpu_s_per_hour_saved)
    assert rows["half as fast"].net_s_per_hour < rows["twice as fast"].net_s_per_hour


def test_latent_caches_are_loaded_by_every_rank() -> None:
    """DeepSeek-V3 on 8 GPUs: each rank loads all 70,272 B of a token by gathering, the host keeps one copy."""
    kv = replace(
        samples.estimate().data.kv,
        bytes_per_token=70_272,
        bytes_per_token_per_gpu=70_272,
        offload_bytes_per_token=70_272,
    )
    group = CacheGroup(kind="latent", layers=61, bytes_per_token=70_272, bytes_per_sequence=0)
    estimate = estimate_with(kv=kv, groups=(group,), parallel=Parallel(tp=8))
    plan = planned(estimate=estimate)
    row = next(row for row in plan.break_even if row.tier == "host")
    assert row.load_s == pytest.approx(2048 * 70_272 / 44e9, rel=0.01)
    assert plan.budgets.gpu.limit_bytes == 8 * math.ceil(81_559 * 2**20 * 0.92)


@pytest.mark.parametrize(
    ("changed", "words"),
    [
        ({"estimate": estimate_with(compute=None), "probe": None}, "operations per token are unknown"),
        ({"estimate": estimate_with(weights=None)}, "weights of .* are unknown"),
        ({"gpu": None, "probe": None}, "give --gpu NAME"),
        ({"workload": workload_with(span_s=None)}, "spans no time"),
        ({"workload": workload_with(requests=0)}, "no requests"),
        ({"estimate": estimate_with(engine="magic")}, "no planning rules for engine 'magic'"),
        (
            {"estimate": estimate_with(kv=replace(samples.estimate().data.kv, offload_bytes_per_token=0))},
            "keeps nothing per token",
        ),
        ({"policy": Policy(replicas=0)}, "at least one replica"),
        ({"policy": Policy(growth=0.0)}, "growth of 0"),
    ],
)
def test_what_is_missing_is_named(changed: dict[str, object], words: str) -> None:
    with pytest.raises(KvplanError, match=words) as caught:
        planned(**changed)  # type: ignore[arg-type]
    assert "\n" not in str(caught.value)


def test_planning_loads_no_array_library() -> None:
    code = (
        "import sys, kvplan.plan\n"
        "heavy = {'numpy', 'pandas', 'torch', 'transformers', 'numba', 'altair'} & set(sys.modules)\n"
        "sys.exit(', '.join(heavy) or 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_log_of_lengths_is_no_base_for_a_plan() -> None:
    document = samples.workload()
    unknown = {"ceiling_hit_ratio": None, "engine_hit_ratio": None, "novel_tokens": None, "one_off_tokens_ratio": None}
    lengths = replace(document, data=replace(document.data, curve=(), **unknown))
    with pytest.raises(KvplanError, match="lengths only"):
        make(samples.estimate(), lengths, samples.probe(), None, Policy())


def test_time_saved_on_idle_gpus_is_said_to_free_none() -> None:
    codes = {}
    for growth in (0.01, 1.0):
        made = make(samples.estimate(), samples.workload(), samples.probe(), None, Policy(growth=growth))
        spare = made.benefit.gpu_busy_ratio_off < 0.2 and made.benefit.gpu_s_per_hour_saved > 0
        codes[growth] = spare
        assert ("gpu-time-spare" in {one.code for one in made.findings}) == spare
    assert set(codes.values()) == {True, False}
