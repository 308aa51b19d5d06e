"""The inputs of a plan, each resolved once: what is known, where from, and what its absence means."""

from __future__ import annotations

import math
from dataclasses import dataclass

from kvplan.documents import (
    Document,
    Estimate,
    Evidence,
    Finding,
    GpuDevice,
    GpuSpec,
    Host,
    PlanInputs,
    Policy,
    Prefill,
    Prices,
    Probe,
    Provenance,
    Workload,
)
from kvplan.engines.profiles import Profile, engine_between, profile, whole_prompt_cache
from kvplan.errors import KvplanError
from kvplan.planning.choice import Demand
from kvplan.planning.curves import Curves, curves_of
from kvplan.planning.drive import stated_drive
from kvplan.planning.links import (
    Rates,
    Shape,
    StoreShare,
    disk_rates,
    host_rates,
    published_pieces,
    shape,
    store_share,
)
from kvplan.planning.recompute import prefill_cost
from kvplan.units import show_bytes

SAME_GPU = 0.1


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """A count of bytes or tokens with its origin."""

    value: int
    provenance: Provenance
    source: str
    date: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Facts:
    """Everything a plan is computed from. GPU memory is per GPU, `host_memory` and `shm` of the whole host.

    `gpus` serve one replica, `replicas` share the log, `on_host` of them share one host. `bytes_per_token_per_gpu` is
    what a reusable token takes on the fullest rank, and what that rank has to load for it. `moves` are the pieces of
    loads and of stores on the host link.
    """

    estimate: Estimate
    workload: Workload
    probe: Probe | None
    policy: Policy
    profile: Profile
    gpus: int
    replicas: int
    on_host: int
    gpu_name: str
    gpu_total: Known
    weights: Known
    overhead: Known
    utilization: float
    bytes_per_token_per_gpu: int
    curves: Curves
    demand: Demand
    prefill: Prefill
    prices: Prices | None
    moves: tuple[Shape, Shape]
    host_link: Rates | None
    disk_link: Rates | None
    store_share: StoreShare
    machine: Host | None
    host_memory: Known | None
    dates: dict[str, str | None]
    findings: tuple[Finding, ...]

    @property
    def chunk_tokens(self) -> int:
        """Tokens of one engine block."""
        return max(1, self.estimate.block_tokens)

    @property
    def tier_chunk_tokens(self) -> int:
        """Tokens of one chunk of a tier. Raises KvplanError where the layer's chunks are no whole number of blocks."""
        size = self.profile.tier_chunk_tokens
        if size is None:
            return self.chunk_tokens
        if size % self.chunk_tokens:
            raise KvplanError(
                f"chunks of {size} tokens are no whole number of the engine's blocks of {self.chunk_tokens} tokens, "
                f"which {self.policy.offload} asks for: plan with --offload native"
            )
        return size

    @property
    def ranks_that_store(self) -> int:
        """Ranks that a size a rank is multiplied with."""
        latent = all(group.kind in ("latent", "indexer") for group in self.estimate.groups)
        return 1 if latent and self.profile.first_rank_stores_latent else self.gpus

    @property
    def offload_bytes_per_token(self) -> int:
        """Bytes of one token in a host or disk tier, all ranks together."""
        return self.estimate.kv.offload_bytes_per_token

    @property
    def active(self) -> tuple[float, float]:
        """Tokens and requests in flight over the whole log, at the policy's percentile."""
        tokens, requests = self.workload.active_tokens, self.workload.active_requests
        name = self.policy.active_percentile
        return (getattr(tokens, name) if tokens else 0.0), (getattr(requests, name) if requests else 0.0)


def gather(inputs: PlanInputs, policy: Policy) -> Facts:
    """Resolve every input. Raises KvplanError for what a plan cannot do without."""
    estimate, workload, probe, gpu = inputs.estimate, inputs.workload, inputs.probe, inputs.gpu
    data, host = estimate.data, probe.data if probe else None
    rules = profile(engine_between(data.engine, policy.engine), policy.offload)
    machine, differs = _machine(host, policy)
    gpus, replicas = data.parallel.gpus, policy.replicas * data.parallel.dp
    if not gpus or not replicas:
        raise KvplanError("a plan needs at least one replica with one GPU: check --replicas, --tp, --pp and --dp")
    if policy.growth <= 0:
        raise KvplanError(f"a growth of {policy.growth:g} leaves no demand to plan for: give a factor above 0")
    device, findings = _device(host, gpu)
    per_gpu = _bytes_per_token(data)
    prefill, more = prefill_cost(data, host, gpu)
    mean = workload.data.input_tokens // max(1, workload.data.requests)
    load, store = (shape(move, data, per_gpu, rules, mean) for move in (rules.load, rules.store))
    links, flagged = _links(data, host, device, gpu, policy, per_gpu, rules, (load, store))
    drive, larger = stated_drive(links[1], policy)
    lasts = rules.disk_survives == "behind-host" and not policy.forbid_host
    curves = curves_of(workload.data, policy, replicas, lasts)
    return Facts(
        estimate=data,
        workload=workload.data,
        probe=host,
        policy=policy,
        profile=rules,
        gpus=gpus,
        replicas=replicas,
        on_host=_on_host(host, policy, replicas, gpus),
        gpu_name=device.name if device else gpu.name if gpu else data.memory.gpu if data.memory else "GPU",
        gpu_total=_gpu_total(data, device, gpu, probe, estimate.created),
        weights=_weights(data, estimate.created),
        overhead=_overhead(data, rules, estimate.created),
        utilization=_utilization(data, rules, policy),
        bytes_per_token_per_gpu=per_gpu,
        curves=curves,
        demand=demand(workload.data, curves, policy.growth, replicas),
        prefill=prefill,
        prices=inputs.prices,
        moves=(load, store),
        host_link=links[0],
        disk_link=drive,
        store_share=store_share(host, store, links[0], policy.allow_flagged_links),
        machine=machine,
        host_memory=_host_memory(machine, policy, probe.created if probe else None),
        dates={
            "estimate": estimate.created,
            "workload": workload.created,
            "probe": probe.created if probe else None,
            "gpu": gpu.date if gpu else None,
        },
        findings=(
            *findings,
            *differs,
            *more,
            *flagged,
            *larger,
            *curves.findings,
            *_assumptions(data, policy),
            *_unbounded(host, policy),
        ),
    )


def demand(workload: Workload, curves: Curves, growth: float, replicas: int) -> Demand:
    """The log's load on one replica. Raises KvplanError where the log is empty or has no time."""
    if not workload.requests:
        raise KvplanError("the workload has no requests: there is nothing to plan for")
    if not workload.span_s:
        raise KvplanError(
            "the workload spans no time, so nothing can be said per hour: give a log with a time stamp on every request"
        )
    square = workload.input_tokens_sq
    rates = [slot.input_tokens / slot.width_s for slot in workload.load if slot.width_s]
    return Demand(
        requests=workload.requests,
        input_tokens=workload.input_tokens,
        input_tokens_sq=float(square) if square is not None else _square_bound(workload),
        block_tokens=max(1, workload.block_tokens),
        per_hour=3600 / workload.span_s * growth / replicas,
        log_tokens_per_token=(1 if curves.one_server else replicas) / growth,
        peak=max(1.0, max(rates) * workload.span_s / workload.input_tokens) if rates and workload.input_tokens else 1.0,
        ceiling_tokens=curves.ceiling_tokens,
        first_reuse_tokens=curves.first_reuse_tokens,
    )


def _square_bound(workload: Workload) -> float:
    """An upper bound on Σ n² from the length percentiles, so that a share of prefill time is never overstated."""
    lengths = workload.input_lengths
    steps = ((0.5, lengths.p50), (0.45, lengths.p95), (0.04, lengths.p99), (0.01, lengths.max))
    return workload.requests * math.fsum(share * length**2 for share, length in steps)


def _device(probe: Probe | None, gpu: GpuSpec | None) -> tuple[GpuDevice | None, list[Finding]]:
    """The probe's GPU (the one with the least memory) where it is the GPU that is planned for."""
    if probe is None or not probe.host.gpus:
        return None, []
    device = min(probe.host.gpus, key=lambda one: one.total_bytes)
    if gpu is None or abs(device.total_bytes - gpu.memory_bytes) <= SAME_GPU * gpu.memory_bytes:
        return device, []
    text = f"the probe saw {device.name}, the plan is for {gpu.name}: the probe's GPU and its link are not used"
    return None, [Finding(severity="warning", code="gpu-differs", text=text)]


def _gpu_total(
    estimate: Estimate, device: GpuDevice | None, gpu: GpuSpec | None, probe: Document[Probe] | None, created: str
) -> Known:
    if _kv_stated(estimate) and estimate.memory:
        source = "--kv-memory of the estimate: what is left after weights and overhead"
        return Known(value=estimate.memory.kv_bytes, provenance="configured", source=source, date=created)
    if device:
        return Known(
            value=device.total_bytes,
            provenance="measured",
            source=f"driver of {device.name}",
            date=probe.created if probe else None,
        )
    if gpu:
        return Known(value=gpu.memory_bytes, provenance="published", source=gpu.source, date=gpu.date)
    if estimate.memory and estimate.memory.total_bytes:
        return Known(value=estimate.memory.total_bytes, provenance="configured", source="the estimate", date=created)
    raise KvplanError("no GPU memory is known: give --gpu NAME, or a probe of a host with a GPU")


def _kv_stated(estimate: Estimate) -> bool:
    """Whether the estimate was made for a stated cache size, so that weights and overhead are already outside."""
    return estimate.memory is not None and estimate.memory.usable_bytes is None


def _utilization(estimate: Estimate, rules: Profile, policy: Policy) -> float:
    """The engine's memory fraction: the policy's, else the one the estimate was made with, else its default."""
    if _kv_stated(estimate):
        return 1.0
    if policy.gpu_memory_utilization is not None:
        return policy.gpu_memory_utilization
    if estimate.switches.utilization is not None and estimate.engine != "none":
        return estimate.switches.utilization
    memory = estimate.memory
    if estimate.engine == "none" or rules.fraction_of != "total" or memory is None:
        return rules.utilization
    if not memory.total_bytes or not memory.usable_bytes:
        return rules.utilization
    return min(1.0, round(memory.usable_bytes / memory.total_bytes, 6))


def _weights(estimate: Estimate, created: str) -> Known:
    if _kv_stated(estimate):
        return Known(value=0, provenance="configured", source="outside the cache size stated", date=created)
    if estimate.weights is None:
        raise KvplanError(
            f"the weights of {estimate.model.id} are unknown, so what they leave for the cache is too: make the "
            "estimate from a folder or Hub id with its safetensors index"
        )
    weights = estimate.weights
    return Known(value=weights.bytes_per_gpu, provenance=weights.provenance, source=weights.source, date=created)


def _overhead(estimate: Estimate, rules: Profile, created: str) -> Known:
    memory = estimate.memory
    if _kv_stated(estimate):
        return Known(value=0, provenance="configured", source="outside the cache size stated", date=created)
    if memory and memory.overhead_bytes is not None:
        source = memory.overhead_source or "the estimate"
        return Known(value=memory.overhead_bytes, provenance=memory.overhead_provenance, source=source, date=created)
    source = f"activations, graphs and context of {rules.name}, until a start-up log is read"
    return Known(value=rules.overhead_bytes, provenance="assumed", source=source, date=rules.date)


def _bytes_per_token(estimate: Estimate) -> int:
    """Bytes of one reusable token on the fullest rank: what it keeps, or its share of what a tier would store.

    The second is larger where windowed layers keep less on the GPU than a stored prefix needs.
    """
    shared = -(-estimate.kv.offload_bytes_per_token // max(1, estimate.parallel.gpus))
    largest = max(estimate.kv.bytes_per_token_per_gpu, shared)
    if not largest or not estimate.kv.offload_bytes_per_token:
        raise KvplanError(f"{estimate.model.id} keeps nothing per token: it has no prefix cache to give memory to")
    return largest


def _links(
    estimate: Estimate,
    probe: Probe | None,
    device: GpuDevice | None,
    gpu: GpuSpec | None,
    policy: Policy,
    per_gpu: int,
    rules: Profile,
    moves: tuple[Shape, Shape],
) -> tuple[tuple[Rates | None, Rates | None], list[Finding]]:
    granule = max(1, estimate.block_tokens) * per_gpu
    host, disk, findings = None, None, list[Finding]()
    if probe and (device or gpu is None):
        host, flagged = host_rates(probe, *moves, policy.allow_flagged_links)
        findings += flagged
    if probe:
        shape = rules.disk_presets[0 if policy.forbid_host else 1]
        disk, flagged = disk_rates(probe, granule, estimate.parallel.gpus, policy.allow_flagged_links, shape)
        findings += flagged
    if policy.host_link_bytes_per_s:
        rate, source = policy.host_link_bytes_per_s, "--host-link, per GPU"
        host = Rates(
            load_bytes_per_s=rate, store_bytes_per_s=rate, latency_s=0.0, provenance="configured", source=source
        )
    elif host is None and gpu:
        rate = gpu.achievable_link_bytes_per_s
        source = f"what large page-locked copies reach on {gpu.name}'s link in public measurements; {gpu.source}"
        findings += published_pieces(moves[0], rate)
        host = Rates(
            load_bytes_per_s=rate, store_bytes_per_s=rate, latency_s=0.0, provenance="published", source=source
        )
    return (host, disk), findings


def _machine(probe: Probe | None, policy: Policy) -> tuple[Host | None, list[Finding]]:
    """The probed host where it can be the one that is planned for: it has the memory that the user states."""
    if probe is None:
        return None, []
    stated, total = policy.host_memory_bytes, probe.host.memory_total_bytes
    if stated is None or stated <= total:
        return probe.host, []
    text = (
        f"--host-memory {show_bytes(stated)} is more than the {show_bytes(total)} of the probed host: the plan is for "
        "another host, and the probe's memory, /dev/shm and memlock are not used"
    )
    return None, [Finding(severity="warning", code="host-differs", text=text)]


def _host_memory(host: Host | None, policy: Policy, created: str | None) -> Known | None:
    measured, configured = host.usable_memory_bytes if host else None, policy.host_memory_bytes
    if configured is not None and (measured is None or configured <= measured):
        return Known(value=configured, provenance="configured", source="--host-memory")
    if measured is None:
        return None
    source = "memory available now, every cgroup level honoured"
    return Known(value=measured, provenance="measured", source=source, date=created)


def _on_host(probe: Probe | None, policy: Policy, replicas: int, gpus: int) -> int:
    """Replicas that share one host: as stated, else as many as its GPUs hold, else all of them."""
    if policy.replicas_per_host:
        return min(replicas, policy.replicas_per_host)
    if probe and probe.host.gpus:
        return min(replicas, max(1, len(probe.host.gpus) // gpus))
    return replicas


def _assumptions(estimate: Estimate, policy: Policy) -> list[Finding]:
    findings = [*whole_prompt_cache(engine_between(estimate.engine, policy.engine))]
    if estimate.engine == "none":
        text = f"the estimate is engine-free: its bytes carry no block rounding or replication of {policy.engine}"
        findings.append(Finding(severity="warning", code="engine-free-bytes", text=text))
    if any(group.window_tokens or group.bytes_per_sequence for group in estimate.groups):
        text = (
            "layers with a window or a state: a reusable token is charged what a stored prefix takes, the larger figure"
        )
        findings.append(Finding(severity="info", code="windowed-layers", text=text))
    return findings


def _unbounded(probe: Probe | None, policy: Policy) -> list[Finding]:
    if probe or policy.host_memory_bytes is not None:
        return []
    text = "no host memory is known, so no size is checked against one: give a probe of the host, or --host-memory"
    return [Finding(severity="warning", code="host-unknown", text=text)]


def evidence_of(what: str, value: str, known: Known) -> Evidence:
    """One line of the evidence table."""
    return Evidence(what=what, value=value, provenance=known.provenance, source=known.source, date=known.date)
