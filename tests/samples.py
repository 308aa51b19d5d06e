"""Small, realistic documents for tests of what reads them: a chat service on one H100 host.

The workload is not typed in but replayed: a seeded log of growing conversations through a plain prefix LRU, so
that its curve obeys every rule a real one does. Everything is cached: treat the documents as read-only
(they are frozen) and vary them with records.replace.
"""

from __future__ import annotations

import random
from collections import Counter, OrderedDict
from dataclasses import dataclass
from functools import cache
from typing import TypeVar

import numpy as np

from kvplan import simulate
from kvplan.catalog import gpu
from kvplan.documents import (
    BytesAt,
    CacheGroup,
    Compute,
    CurvePoint,
    Disk,
    Document,
    Estimate,
    Finding,
    GpuDevice,
    Host,
    Interval,
    KvCost,
    Link,
    Load,
    LogSource,
    ModelRef,
    NumaNode,
    Parallel,
    Percentiles,
    Plan,
    Policy,
    Prefill,
    PrefillPoint,
    PrefixClass,
    Prices,
    Probe,
    Requests,
    Reserve,
    ServiceModel,
    Simulation,
    Tenant,
    Weights,
    WorkingSet,
    Workload,
)
from kvplan.plan import against, make, what_if
from kvplan.units import GB, GiB, KiB, MiB, TiB

T = TypeVar("T")

BLOCK_TOKENS = 512
SPAN_S = 900.0
CREATED = "2026-11-20T09:00:00Z"


def envelope(kind: str, data: T) -> Document[T]:
    """Any data in an envelope with a fixed date."""
    return Document(kind=f"kvplan.{kind}", schema=1, kvplan="0.1.0", created=CREATED, data=data)


# ---------------------------------------------------------------------------------------------- estimate


@cache
def estimate() -> Document[Estimate]:
    """Llama-3.1-8B in bf16 on vLLM, one GPU: 128 KiB a token."""
    token = 131_072
    return envelope(
        "estimate",
        Estimate(
            model=ModelRef(
                id="meta-llama/Llama-3.1-8B-Instruct",
                source="catalogue",
                model_type="llama",
                config_sha256="5f0a" * 16,
                max_context_tokens=131_072,
                date="2026-11-01",
            ),
            engine="vllm",
            kv_dtype="bf16",
            parallel=Parallel(),
            block_tokens=16,
            groups=(
                CacheGroup(
                    kind="full",
                    layers=32,
                    bytes_per_token=token,
                    bytes_per_sequence=0,
                    arithmetic="32 layers x 8 heads x (128 + 128) x 2 B",
                ),
            ),
            kv=KvCost(
                bytes_per_token=token,
                bytes_per_sequence=0,
                bytes_per_token_per_gpu=token,
                bytes_per_sequence_per_gpu=0,
                offload_bytes_per_token=token,
                bytes_at=(
                    BytesAt(
                        tokens=8192,
                        sequences=1,
                        steady_bytes=GiB,
                        admission_bytes=GiB,
                        hybrid_off_bytes=GiB,
                    ),
                ),
            ),
            weights=Weights(
                bytes=16_060_522_496,
                bytes_per_gpu=16_060_522_496,
                params=8_030_261_248,
                provenance="published",
                source="catalogue",
            ),
            compute=Compute(
                linear_flops_per_token=1.396e10,
                attention_flops_per_token_sq=262_144.0,
                provenance="published",
                source="config.json of the model",
            ),
        ),
    )


# ---------------------------------------------------------------------------------------------- workload


@dataclass(frozen=True)
class Request:
    """One line of the sample log."""

    time_s: float
    blocks: tuple[int, ...]
    input_tokens: int
    output_tokens: int
    tenant: str


@cache
def requests(count: int = 900, seed: int = 1) -> tuple[Request, ...]:
    """Conversations of two tenants with shared system prompts, and one-off uploads in between."""
    dice = random.Random(seed)
    fresh = iter(range(10**9))
    systems = [tuple(next(fresh) for _ in range(n)) for n in (3, 6, 2)]
    sessions: list[tuple[str, list[int]]] = []
    log = []
    for number in range(count):
        if dice.random() < 0.12:
            tenant, blocks = "batch", [next(fresh) for _ in range(dice.randint(8, 40))]
        else:
            if len(sessions) < 8 or dice.random() < 0.3:
                sessions.append((dice.choice(["chat", "agents"]), list(dice.choice(systems))))
            tenant, blocks = dice.choice(sessions[-90:])
            if len(blocks) > 60:  # the user starts over
                del blocks[6:]
            blocks += [next(fresh) for _ in range(dice.randint(1, 7))]
        log.append(
            Request(
                time_s=SPAN_S * number / count,
                blocks=tuple(blocks),
                input_tokens=len(blocks) * BLOCK_TOKENS,
                output_tokens=dice.randint(40, 700),
                tenant=tenant,
            )
        )
    return tuple(log)


def replay(log: tuple[Request, ...], capacity_blocks: int) -> list[int]:
    """Hit blocks of each request in a prefix LRU: lookup first, then the leaf is touched before the root."""
    store: OrderedDict[int, None] = OrderedDict()
    hits = []
    for request in log:
        found = next((i for i, block in enumerate(request.blocks) if block not in store), len(request.blocks))
        hits.append(found)
        for block in reversed(request.blocks):
            store[block] = None
            store.move_to_end(block)
        while len(store) > capacity_blocks:
            store.popitem(last=False)
    return hits


def curve_point(log: tuple[Request, ...], capacity_blocks: int) -> CurvePoint:
    """The exact curve at one capacity, prefix classes in powers of two."""
    prefixes = [found * BLOCK_TOKENS for found in replay(log, capacity_blocks) if found]
    tokens = sum(prefixes)
    novel_per_s = len({block for request in log for block in request.blocks}) / SPAN_S
    fill = capacity_blocks / novel_per_s
    return CurvePoint(
        capacity_blocks=capacity_blocks,
        capacity_tokens=capacity_blocks * BLOCK_TOKENS,
        hit_blocks=tokens // BLOCK_TOKENS,
        hit_tokens=tokens,
        hit_ratio=tokens / sum(request.input_tokens for request in log),
        hit_requests=len(prefixes),
        reused_prefix_tokens_sq=sum(prefix**2 for prefix in prefixes),
        fill_time_s=fill if fill <= SPAN_S else None,
        prefixes=prefix_classes(prefixes),
    )


def prefix_classes(prefixes: list[int]) -> tuple[PrefixClass, ...]:
    """Hit prefixes (tokens) split at powers of two, empty classes left out."""
    bound = {prefix: 1 << (prefix - 1).bit_length() for prefix in prefixes}
    members: Counter[int] = Counter()
    total: Counter[int] = Counter()
    square: Counter[int] = Counter()
    for prefix in prefixes:
        members[bound[prefix]] += 1
        total[bound[prefix]] += prefix
        square[bound[prefix]] += prefix**2
    return tuple(
        PrefixClass(at_most_tokens=top, requests=members[top], tokens=total[top], tokens_sq=square[top])
        for top in sorted(members)
    )


def grid(unique: int) -> list[int]:
    """Capacities in blocks: ten a decade from 64 on, and the whole log."""
    steps = [round(64 * 10 ** (n / 10)) for n in range(60)]
    return [step for step in steps if step < unique] + [unique]


def workload_of(log: tuple[Request, ...], capacities: list[int] | None = None) -> Workload:
    """The workload document of a log of Request lines."""
    seen = {block for request in log for block in request.blocks}
    references = sum(len(request.blocks) for request in log)
    used = Counter(block for request in log for block in request.blocks)
    inputs = sum(request.input_tokens for request in log)
    points = tuple(curve_point(log, capacity) for capacity in capacities or grid(len(seen)))
    ceiling = curve_point(log, len(seen))
    return Workload(
        sources=(LogSource(name="chat.jsonl.gz", format="mooncake", sha256="ab12" * 16, requests=len(log)),),
        requests=len(log),
        span_s=SPAN_S,
        block_tokens=BLOCK_TOKENS,
        input_tokens=inputs,
        output_tokens=sum(request.output_tokens for request in log),
        novel_tokens=len(seen) * BLOCK_TOKENS,
        block_references=references,
        unique_blocks=len(seen),
        ceiling_hit_ratio=ceiling.hit_ratio,
        engine_hit_ratio=ceiling.hit_ratio,
        one_off_tokens_ratio=sum(count == 1 for count in used.values()) / len(seen),
        curve=points,
        active_tokens=Percentiles(p50=31_000, p95=74_000, p99=96_000, max=131_000, mean=34_500),
        active_requests=Percentiles(p50=3, p95=7, p99=9, max=12, mean=3.4),
        service=ServiceModel(
            provenance="assumed",
            prefill_tokens_per_s=8000,
            decode_s_per_token=0.02,
            source="stated service model",
        ),
        input_lengths=percentiles([request.input_tokens for request in log]),
        output_lengths=percentiles([request.output_tokens for request in log]),
        input_tokens_sq=sum(request.input_tokens**2 for request in log),
        reuse_intervals=_intervals(log),
        reused_prefix_lengths=ceiling.prefixes,
        working_set=(
            WorkingSet(window_s=60, mean_tokens=260_000, max_tokens=410_000),
            WorkingSet(window_s=300, mean_tokens=900_000, max_tokens=1_200_000),
        ),
        load=_load(log),
        tenants=tuple(
            Tenant(
                tenant=name,
                requests=sum(request.tenant == name for request in log),
                input_tokens=sum(request.input_tokens for request in log if request.tenant == name),
                hit_tokens=_tenant_hits(log, name, shared=True),
                isolated_hit_tokens=_tenant_hits(log, name, shared=False),
            )
            for name in sorted({request.tenant for request in log})
        ),
        findings=(Finding(severity="info", code="sorted", text="the log was in order of arrival"),),
    )


def _tenant_hits(log: tuple[Request, ...], tenant: str, *, shared: bool) -> int:
    """Tokens that one tenant reuses in an infinite cache, of everybody's blocks or of its own alone."""
    part = log if shared else tuple(request for request in log if request.tenant == tenant)
    hits = replay(part, sum(len(request.blocks) for request in part))
    return BLOCK_TOKENS * sum(hit for request, hit in zip(part, hits, strict=True) if request.tenant == tenant)


def percentiles(values: list[int]) -> Percentiles:
    """Nearest-rank percentiles."""
    ordered = sorted(values)
    p50, p95, p99 = (float(ordered[int((len(ordered) - 1) * share)]) for share in (0.5, 0.95, 0.99))
    return Percentiles(p50=p50, p95=p95, p99=p99, max=float(ordered[-1]), mean=sum(ordered) / len(ordered))


def _intervals(log: tuple[Request, ...]) -> tuple[Interval, ...]:
    """Tokens reused within each time, shorter times included."""
    last: dict[int, float] = {}
    bounds = (1.0, 10.0, 60.0, 300.0, 900.0)
    tokens: Counter[float] = Counter()
    for request in log:
        for block in request.blocks:
            if block in last:
                waited = request.time_s - last[block]
                tokens.update({top: BLOCK_TOKENS for top in bounds if waited <= top})
            last[block] = request.time_s
    return tuple(Interval(at_most_s=top, tokens=tokens[top]) for top in bounds)


def _load(log: tuple[Request, ...], width_s: float = 60.0) -> tuple[Load, ...]:
    slots: dict[int, list[Request]] = {}
    for request in log:
        slots.setdefault(int(request.time_s // width_s), []).append(request)
    return tuple(
        Load(
            start_s=slot * width_s,
            width_s=width_s,
            requests=len(part),
            input_tokens=sum(request.input_tokens for request in part),
            output_tokens=sum(request.output_tokens for request in part),
            active_tokens=34_000 + 900 * (slot % 7),
            working_set_tokens=BLOCK_TOKENS * len({block for request in part for block in request.blocks}),
        )
        for slot, part in sorted(slots.items())
    )


@cache
def workload() -> Document[Workload]:
    """Fifteen minutes of a chat service: about 900 requests, half their tokens seen before."""
    return envelope("workload", workload_of(requests()))


# ---------------------------------------------------------------------------------------------- probe


def link(direction: str, granule: int, depth: int, rate: float, **more: object) -> Link:
    """One clean cell; `rate` in GB/s."""
    ends = {
        "h2d": ("host", "gpu0"),
        "d2h": ("gpu0", "host"),
        "read": ("disk:/mnt/nvme", "host"),
        "write": ("host", "disk:/mnt/nvme"),
    }[direction]
    fields: dict[str, object] = {
        "source": ends[0],
        "target": ends[1],
        "direction": direction,
        "granule_bytes": granule,
        "depth": depth,
        "samples": 40,
        "p5_bytes_per_s": 0.94 * rate * GB,
        "p50_bytes_per_s": rate * GB,
        "p95_bytes_per_s": 1.03 * rate * GB,
        "p50_latency_s": granule / (rate * GB),
        "p99_latency_s": 1.6 * granule / (rate * GB),
        "method": "pinned, cudaMemcpyAsync" if direction in ("h2d", "d2h") else "threads, O_DIRECT",
    }
    return Link(**{**fields, **more})  # type: ignore[arg-type]


def links() -> tuple[Link, ...]:
    """A Gen5 link and one Gen4 drive, by granule."""
    host = {64 * KiB: (21.0, 20.1), MiB: (46.0, 45.0), 2 * MiB: (49.5, 48.7), 64 * MiB: (54.8, 53.9)}
    disk = {128 * KiB: (1.9, 1.3), MiB: (3.6, 2.4), 4 * MiB: (5.9, 3.1)}
    return (
        *(link("h2d", size, 1, down) for size, (down, _) in host.items()),
        *(link("d2h", size, 1, up) for size, (_, up) in host.items()),
        *(link("read", size, 1, read) for size, (read, _) in disk.items()),
        *(link("write", size, 1, write) for size, (_, write) in disk.items()),
        *(link("read", size, 16, read * 1.15) for size, (read, _) in disk.items()),
        *(link("write", size, 16, write * 1.1) for size, (_, write) in disk.items()),
    )


@cache
def pieces() -> tuple[Link, ...]:
    """The pieces of the sample model, keys alone and one layer's page of a block, by the mechanisms of engines."""
    rates = {
        ("batch", 32 * KiB): (38.2, 36.9),
        ("batch", 64 * KiB): (46.4, 45.3),
        ("gather", 32 * KiB): (44.0, 40.5),
        ("gather", 64 * KiB): (44.6, 41.0),
    }
    return tuple(
        link(way, size, 1, rate, preset=name)
        for (name, size), both in rates.items()
        for way, rate in zip(("h2d", "d2h"), both, strict=True)
    )


def host(memory: int = 512 * GiB, gpus: int = 1) -> Host:
    """A two-socket server with `gpus` H100 cards."""
    return Host(
        system="Linux",
        kernel="6.8.0",
        cpu="AMD EPYC 9354",
        cores=64,
        memory_total_bytes=memory,
        memory_available_bytes=memory - 22 * GiB,
        usable_memory_bytes=memory - 24 * GiB,
        memlock_bytes=8 * MiB,
        shm_total_bytes=memory,
        shm_free_bytes=memory - GiB,
        numa=tuple(
            NumaNode(node=node, total_bytes=memory // 2, free_bytes=memory // 2 - 11 * GiB, cpus=cpus)
            for node, cpus in enumerate(("0-31", "32-63"))
        ),
        gpus=tuple(
            GpuDevice(
                index=index,
                name="NVIDIA H100 80GB HBM3",
                total_bytes=81_559 * MiB,
                free_bytes=81_000 * MiB,
                pci=f"0000:{index + 1:02x}:00.0",
                numa_node=0,
                link_generation=5,
                link_width=16,
                driver="580.65.06",
            )
            for index in range(gpus)
        ),
        gpu_status=f"{gpus} GPU" if gpus else "no GPU",
    )


def prefill() -> Prefill:
    """Measured prefill of the sample model on the sample GPU."""
    a, b, t0 = 24e-6, 4.6e-10, 0.9e-3
    return Prefill(
        model="meta-llama/Llama-3.1-8B-Instruct",
        device="NVIDIA H100 80GB HBM3",
        t0_s=t0,
        a_s_per_token=a,
        b_s_per_token_sq=b,
        provenance="measured",
        source="cut-layer timing on this device",
        points=tuple(
            PrefillPoint(tokens=n, prefix_tokens=0, seconds=(t0 + a * n + b * n * n) * (1.01 if n < 4096 else 0.99))
            for n in (512, 2048, 8192, 32_768)
        ),
        worst_relative_error=0.0101,
        low_ratio=0.97,
        high_ratio=1.03,
        max_measured_tokens=32_768,
    )


def disk() -> Disk:
    """One NVMe drive of about 3.5 TiB, 2.9 TiB free, rated 7 PB written."""
    return Disk(
        path="/mnt/nvme",
        filesystem="xfs",
        device="nvme1n1",
        total_bytes=3840 * GB,
        free_bytes=int(2.9 * TiB),
        direct="proven",
        proof=("statx DIOALIGN", "no page of the file was in the page cache"),
        model="SAMPLE 3.84TB",
        rotational=False,
        rated_endurance_bytes=7_000_000 * GB,
    )


@cache
def probe(with_prefill: bool = True) -> Document[Probe]:
    """A full probe of the sample host: GPU link, disk and, unless left out, prefill."""
    return envelope(
        "probe",
        Probe(
            host=host(),
            links=(*links(), *pieces()),
            capacity=(disk(),),
            prefill=(prefill(),) if with_prefill else (),
            written_bytes=32 * GiB,
            wall_s=74.0,
        ),
    )


@cache
def probe_without_gpu() -> Document[Probe]:
    """The same host seen where no GPU is: inventory and disk only."""
    measured = tuple(cell for cell in links() if cell.direction in ("read", "write"))
    return envelope("probe", Probe(host=host(gpus=0), links=measured, capacity=(disk(),), wall_s=31.0))


# ---------------------------------------------------------------------------------------------- plan


@cache
def plan() -> Document[Plan]:
    """The plan for the sample service on the sample host: a host tier pays."""
    return envelope("plan", make(estimate(), workload(), probe(), gpu("h100-80gb"), Policy()))


@cache
def reviewed() -> Document[Plan]:
    """The same plan with everything that can stand beside one: prices, restrictions, what-ifs, an earlier plan."""
    policy = Policy(
        forbid_disk=True,
        ttl_s=300.0,
        restart_every_s=3600.0,
        slo_ttft_s=2.0,
        share="tenant",
        replicas=2,
        growth=1.5,
        reserves=(Reserve(name="other-models", bytes=40 * GiB),),
    )
    prices = Prices(
        date="2026-11-01",
        source="sample prices",
        gpu_usd_per_hour=3.0,
        memory_usd_per_gb=14.0,
        memory_life_s=4 * 365 * 86400.0,
        memory_usd_per_gb_hour=0.008,
        disk_usd_per_gb=0.2,
        disk_life_s=5 * 365 * 86400.0,
        disk_usd_per_gb_hour=0.0001,
        disk_writes_per_day=1.0,
    )
    made = make(estimate(), workload(), probe(), gpu("h100-80gb"), policy, prices)
    made = what_if(made, ["kv-dtype=fp8", "replicas=1,forbid-disk=no"])
    return envelope("plan", against(made, plan()))


@cache
def simulation() -> Document[Simulation]:
    """The plan played on the first 120 requests of the sample log, with one more arm and a fault."""
    log = requests()[:120]
    names: dict[int, int] = {}
    made = simulate.run(
        plan().data,
        Requests(
            block_tokens=BLOCK_TOKENS,
            time_s=np.array([one.time_s for one in log]),
            input_tokens=np.array([one.input_tokens for one in log]),
            output_tokens=np.array([one.output_tokens for one in log]),
            duration_s=np.full(len(log), np.nan),
            offsets=np.cumsum([0, *(len(one.blocks) for one in log)]),
            paths=np.array([names.setdefault(block, len(names)) for one in log for block in one.blocks]),
            tenant=np.full(len(log), -1),
            session=np.full(len(log), -1),
            tenants=(),
            sources=workload().data.sources,
        ),
        arms=(simulate.arm_of("arc:host=16GiB,policy=arc"),),
        faults=(simulate.fault_of("1m:lose-host"),),
        slo_ttft_s=2.0,
    )
    return envelope("simulation", made)
