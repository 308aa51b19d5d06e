"""Plans against brute force: a small world is replayed request by request at every size, and the rule applied to it."""

from __future__ import annotations

import math
import random
from collections import OrderedDict
from itertools import pairwise

import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st
from records import replace

from kvplan.catalog import gpu
from kvplan.documents import (
    Compute,
    Document,
    Estimate,
    GpuMemory,
    GpuSpec,
    Plan,
    Policy,
    Probe,
    Reserve,
    Weights,
    Workload,
)
from kvplan.plan import make
from kvplan.planning.hostroom import RESERVES
from kvplan.units import GB, GiB, TiB

H100 = gpu("h100-80gb")
A = 20e-6

TOKENS = 512
KV = GiB // TOKENS


def tiny_log(seed: int, requests: int = 40) -> tuple[samples.Request, ...]:
    """A short random log over a few growing prefixes."""
    dice = random.Random(seed)
    trunk = [list(range(n * 1000, n * 1000 + dice.randint(1, 6))) for n in range(4)]
    log = []
    for number in range(requests):
        path = dice.choice(trunk)
        if dice.random() < 0.5:
            path.append(10_000 + number)
        blocks = tuple(path[: dice.randint(1, len(path))])
        log.append(
            samples.Request(
                time_s=samples.SPAN_S * number / requests,
                blocks=blocks,
                input_tokens=len(blocks) * TOKENS,
                output_tokens=1,
                tenant="t",
            )
        )
    return tuple(log)


def tiny_workload(log: tuple[samples.Request, ...]) -> Document[Workload]:
    unique = len({block for request in log for block in request.blocks})
    data = samples.workload_of(log, list(range(1, unique + 1)))
    return samples.envelope("workload", replace(data, active_tokens=None, active_requests=None, service=None))


def tiny_estimate(a: float = A, b: float = 0.0) -> Document[Estimate]:
    data = samples.estimate().data
    kv = replace(data.kv, bytes_per_token=KV, bytes_per_token_per_gpu=KV, offload_bytes_per_token=KV)
    memory = GpuMemory(
        gpu="tiny",
        total_bytes=GiB,
        usable_bytes=GiB,
        weights_bytes=0,
        overhead_bytes=0,
        kv_bytes=0,
        kv_tokens=0,
    )
    compute = Compute(
        linear_flops_per_token=a * 1e15, attention_flops_per_token_sq=b * 1e15, provenance="assumed", source="test"
    )
    weights = Weights(bytes=0, bytes_per_gpu=0, params=0, provenance="assumed", source="test")
    return samples.envelope(
        "estimate", replace(data, kv=kv, memory=memory, compute=compute, weights=weights, block_tokens=TOKENS)
    )


def tiny_gpu(blocks: int) -> GpuSpec:
    """A GPU that keeps so many blocks for reuse; vLLM never uses one of its blocks."""
    return replace(
        H100, name="tiny", memory_bytes=(blocks + 1) * GiB, flops={"bf16": 1e15}, prefill_efficiency=(1, 1, 1)
    )


def tiny_plan(
    log: tuple[samples.Request, ...], blocks: int, s: float, host: int, b: float = 0.0, **rules: float
) -> Plan:
    """A plan of the tiny world over a link that takes `s` seconds a token, on a host with `host` bytes."""
    policy = Policy(
        gpu_memory_utilization=1.0,
        headroom_ratio=0.0,
        host_memory_bytes=host,
        host_link_bytes_per_s=KV / s,
        **rules,  # type: ignore[arg-type]
    )
    return make(tiny_estimate(b=b), tiny_workload(log), None, tiny_gpu(blocks), policy)


def room(host: int) -> int:
    """Whole blocks a host leaves after its system and one engine's processes."""
    return (host - max(2 * GiB, math.ceil(host * 0.05)) - 6 * GiB) // GiB


def brute_force(
    log: tuple[samples.Request, ...], blocks: int, s: float, sizes: int, b: float, tolerance: float, least: float
) -> tuple[int, float]:
    """Replay every request at every size, decide each load by itself, and choose as the rule says."""
    hour = 3600 / samples.SPAN_S
    near = samples.replay(log, blocks)
    busy = 0.001 * len(log)
    for request, hit in zip(log, near, strict=True):
        n, p = request.input_tokens, hit * TOKENS
        busy += A * (n - p) + b * (n * n - p * p)
    net = [0.0]
    for size in range(1, sizes + 1):
        far = samples.replay(log, max(size, blocks))
        gain = 0.0
        for p, q in zip(near, far, strict=True):
            p, q = p * TOKENS, q * TOKENS
            gain += max(0.0, (A - s) * (q - p) + b * (q * q - p * p))
        computed = sum(request.input_tokens - hit * TOKENS for request, hit in zip(log, far, strict=True))
        net.append((gain - 0.5 * s * computed) * hour)
    best = max(net)
    if best <= 0 or best < least * busy * hour:
        return 0, 0.0
    size = next(size for size, value in enumerate(net) if size and value >= (1 - tolerance) * best - 1e-12)
    return size, net[size]


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 25),
    st.floats(0.02, 0.98),
    st.integers(1, 40),
    st.sampled_from([0.0, 1e-9]),
    st.sampled_from([0.0, 0.02, 0.3]),
    st.sampled_from([0.0, 0.02]),
)
def test_choice_equals_brute_force(
    seed: int, blocks: int, slowness: float, sizes: int, b: float, tolerance: float, least: float
) -> None:
    log, s, host = tiny_log(seed), slowness * A, (sizes + 20) * GiB
    plan = tiny_plan(log, blocks, s, host, b, tolerance_ratio=tolerance, minimum_gain_ratio=least)
    size, net = brute_force(log, blocks, s, room(host), b, tolerance, least)
    assert plan.budgets.host.requested_bytes == size * GiB
    assert plan.alternatives[1].net_s_per_hour == pytest.approx(net, rel=1e-9, abs=1e-9)
    assert plan.benefit.gpu_s_per_hour_saved == pytest.approx(net, rel=1e-9, abs=1e-9)
    assert plan.verdict == ("host" if size else "nothing")
    hits = sum(samples.replay(log, max(size, blocks))) * TOKENS
    assert plan.budgets.host.hit_ratio == pytest.approx(hits / sum(request.input_tokens for request in log))


def chosen(net: list[float], tolerance: float, floor: float) -> int:
    """The smallest size within the tolerance of the best, 0 where none reaches the floor."""
    best = max(net)
    if best <= 0 or best < floor:
        return 0
    return next(size for size, value in enumerate(net) if size and value >= (1 - tolerance) * best - 1e-12)


def gains(near: list[int], far: list[int], s: float, b: float) -> float:
    """Seconds that a tier saves a log over what is nearer, each request decided by itself."""
    return sum(
        max(0.0, (A - s) * (q - p) * TOKENS + b * (q * q - p * p) * TOKENS**2) for p, q in zip(near, far, strict=True)
    )


def computed(log: tuple[samples.Request, ...], hits: list[int]) -> int:
    return sum(request.input_tokens - hit * TOKENS for request, hit in zip(log, hits, strict=True))


def prefill_s(log: tuple[samples.Request, ...], hits: list[int], b: float) -> float:
    squares = (request.input_tokens**2 - (hit * TOKENS) ** 2 for request, hit in zip(log, hits, strict=True))
    return 0.001 * len(log) + A * computed(log, hits) + b * sum(squares)


def drive(read_s: float, write_s: float, blocks: int) -> Document[Probe]:
    """A host without a GPU and one drive of so many blocks, by the seconds that it takes for a token."""
    ends = {"granule": GiB, "depth": 1, "p50_latency_s": 0.0}
    links = (
        samples.link("read", rate=KV / read_s / GB, **ends),  # type: ignore[arg-type]
        samples.link("write", rate=KV / write_s / GB, **ends),  # type: ignore[arg-type]
    )
    disk = replace(samples.disk(), free_bytes=math.ceil((blocks + 0.5) * GiB / 0.85), rated_endurance_bytes=10**30)
    return samples.envelope("probe", Probe(host=samples.host(gpus=0), links=links, capacity=(disk,)))


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6),
    st.integers(1, 20),
    st.integers(0, 30),
    st.floats(0.02, 0.4),
    st.floats(1.0, 2.5),  # never slower than recomputing: then the gain is exact, not a lower bound
    st.floats(0.1, 2.0),
    st.integers(1, 50),
    st.sampled_from([0.0, 1e-9]),
)
def test_host_and_disk_equal_brute_force(
    seed: int, blocks: int, hosts: int, s: float, slower: float, writing: float, disks: int, b: float
) -> None:
    """Every size of host memory, then every size of disk beneath the one chosen; no link is too busy here."""
    log, rules = tiny_log(seed), {"tolerance_ratio": 0.02, "minimum_gain_ratio": 0.001}
    s, hour = s * A, 3600 / samples.SPAN_S
    read, write = s * slower, writing * A
    policy = Policy(
        gpu_memory_utilization=1.0,
        headroom_ratio=0.0,
        host_memory_bytes=(hosts + 10) * GiB,
        host_link_bytes_per_s=KV / s,
        reserves=tuple(Reserve(name=name, bytes=10 * GiB if name == "system" else 0) for name in RESERVES),
        **rules,
    )
    probe = drive(read, write, disks)
    plan = make(tiny_estimate(b=b), tiny_workload(log), probe, tiny_gpu(blocks), policy)
    near = samples.replay(log, blocks)
    floor = 0.001 * prefill_s(log, near, b) * hour
    host = [0.0]
    for size in range(1, hosts + 1):
        far = samples.replay(log, max(size, blocks))
        host.append((gains(near, far, s, b) - 0.5 * s * computed(log, far)) * hour)
    first = chosen(host, 0.02, floor)
    beneath = samples.replay(log, max(first, blocks))
    disk, share = [0.0], 0.0 if first else 0.5
    for size in range(1, disks + 1):
        far = samples.replay(log, max(size, first, blocks))
        disk.append((gains(beneath, far, read, b) - share * write * computed(log, far)) * hour)
    second = chosen(disk, 0.02, floor)
    assert plan.budgets.host.requested_bytes == first * GiB
    assert plan.budgets.disk.requested_bytes == second * GiB
    assert plan.benefit.gpu_s_per_hour_saved == pytest.approx(host[first] + disk[second], rel=1e-9, abs=1e-9)


def two_tiers(log: tuple[samples.Request, ...], blocks: int, size: int) -> tuple[list[int], int]:
    """Hit blocks where a host tier takes what the GPU drops and gives back what is used; blocks dropped to it."""
    gpu, host, hits, dropped = OrderedDict[int, None](), OrderedDict[int, None](), [], 0
    for request in log:
        held = {*gpu, *host}
        hits.append(next((i for i, block in enumerate(request.blocks) if block not in held), len(request.blocks)))
        for block in reversed(request.blocks):
            host.pop(block, None)
            gpu[block] = None
            gpu.move_to_end(block)
        while len(gpu) > blocks:
            host[gpu.popitem(last=False)[0]] = None
            dropped += 1
        while len(host) > size:
            host.popitem(last=False)
    return hits, dropped


@settings(max_examples=60, deadline=None)
@given(
    st.integers(0, 10**6), st.integers(1, 20), st.floats(0.02, 0.98), st.integers(1, 40), st.sampled_from([0.0, 1e-9])
)
def test_a_tier_of_evictions_equals_brute_force(seed: int, blocks: int, slowness: float, sizes: int, b: float) -> None:
    """TensorRT-LLM's host tier holds what the GPU dropped: capacities add up, and only evictions are stored."""
    log, s, hour = tiny_log(seed), slowness * A, 3600 / samples.SPAN_S
    document = tiny_estimate(b=b)
    estimate = replace(document, data=replace(document.data, engine="tensorrt-llm"))
    spec = replace(tiny_gpu(blocks), memory_bytes=blocks * GiB)
    policy = Policy(
        gpu_memory_utilization=1.0,
        headroom_ratio=0.0,
        host_memory_bytes=(sizes + 20) * GiB,
        host_link_bytes_per_s=KV / s,
        tolerance_ratio=0.02,
        minimum_gain_ratio=0.0,
    )
    plan = make(estimate, tiny_workload(log), None, spec, policy)
    near = samples.replay(log, blocks)
    assert two_tiers(log, blocks, 0)[0] == near
    net = [0.0]
    for size in range(1, room((sizes + 20) * GiB) + 1):
        far, dropped = two_tiers(log, blocks, size)
        assert dropped <= computed(log, near) // TOKENS
        net.append((gains(near, far, s, b) - 0.5 * s * computed(log, near)) * hour)
    size = chosen(net, 0.02, 0.0)
    assert plan.budgets.host.requested_bytes == size * GiB
    assert plan.benefit.gpu_s_per_hour_saved == pytest.approx(net[size], rel=1e-9, abs=1e-9)
    assert plan.budgets.host.bytes == plan.budgets.host.requested_bytes


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 20))
def test_more_host_memory_never_lowers_hits_or_gain(seed: int, blocks: int) -> None:
    log = tiny_log(seed)
    plans = [tiny_plan(log, blocks, A / 4, size * GiB, minimum_gain_ratio=0.0) for size in (8, 12, 20, 40, 90)]
    nets = [plan.benefit.gpu_s_per_hour_saved for plan in plans]
    assert all(later >= earlier - 0.02 * abs(earlier) - 1e-9 for earlier, later in pairwise(nets))
    best = [max([0.0, *(point.net_s_per_hour for point in plan.curve)]) for plan in plans]
    assert best == sorted(best)
    for plan in plans:
        ratios = [point.hit_ratio for point in plan.curve]
        assert ratios == sorted(ratios)
        assert [point.net_s_per_hour for point in plan.curve] == sorted(point.net_s_per_hour for point in plan.curve)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 20))
def test_a_free_and_infinitely_fast_tier_is_taken_where_there_are_hits_to_gain(seed: int, blocks: int) -> None:
    log = tiny_log(seed)
    plan = tiny_plan(log, blocks, A * 1e-12, 2 * TiB, minimum_gain_ratio=0.0, tolerance_ratio=0.0)
    unique = len({block for request in log for block in request.blocks})
    more = sum(samples.replay(log, unique)) > sum(samples.replay(log, blocks))
    assert (plan.verdict == "host") == more
    if more:
        assert plan.budgets.host.hit_ratio == pytest.approx(plan.inputs.workload.data.ceiling_hit_ratio)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 20), st.floats(1.001, 50))
def test_a_tier_slower_than_recomputing_is_never_taken(seed: int, blocks: int, slowness: float) -> None:
    plan = tiny_plan(tiny_log(seed), blocks, slowness * A, TiB, minimum_gain_ratio=0.0)
    assert plan.verdict == "nothing"
    assert plan.budgets.host.requested_bytes == 0


def test_slower_than_recomputing_says_so() -> None:
    plan = tiny_plan(tiny_log(1), 4, 2 * A, TiB)
    assert "nothing: give no host memory and no disk" in plan.decision
    assert "recomputing is quicker than loading from host memory at every length" in plan.decision.lower()


def test_no_reuse_gives_nothing() -> None:
    log = tuple(replace(request, blocks=(10**6 + i,)) for i, request in enumerate(tiny_log(3)))
    log = tuple(replace(request, input_tokens=TOKENS) for request in log)
    plan = tiny_plan(log, 4, A / 100, TiB, minimum_gain_ratio=0.0)
    assert plan.verdict == "nothing"
    assert "the log reuses no prefix" in plan.decision.lower()
