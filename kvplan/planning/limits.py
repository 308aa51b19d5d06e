"""Bounds of the machine and of the policy, each with its number and what the plan needs of it."""

from __future__ import annotations

import math
from collections.abc import Iterator

from kvplan.documents import Limit, NodeBytes
from kvplan.planning.budgets import GpuRoom
from kvplan.planning.choice import BUSY_LIMIT, Option, Outcome, Tier
from kvplan.planning.drive import is_stated
from kvplan.planning.economics import break_even_length, break_even_rate
from kvplan.planning.facts import Facts
from kvplan.planning.hostroom import HostRoom
from kvplan.planning.longest import longest_limit
from kvplan.planning.wear import endurance
from kvplan.units import GiB, show_bytes, show_duration, show_rate, show_tokens

SHM_SPARE = GiB // 4


def limits(
    facts: Facts,
    gpu: GpuRoom,
    host: HostRoom,
    tiers: tuple[Tier | None, Tier | None],
    outcome: Outcome,
    numa: tuple[NodeBytes, ...],
) -> tuple[Limit, ...]:
    """Every limit that was checked; one that is not `ok` makes the plan's exit code 3."""
    cost = tiers[0].cost(outcome.host.requested) if tiers[0] and outcome.host else 0
    return (
        *_gpu(facts, gpu),
        *longest_limit(facts, gpu),
        _prefill(facts, outcome),
        *_first_token(facts),
        *_host(facts, host, cost),
        *_cgroups(facts, host, cost),
        *_shared_memory(facts, cost),
        *_page_locked(facts, cost),
        *_numa(numa),
        *_disk(facts, tiers[1], outcome.disk),
        *_link(facts, tiers[0], outcome.host),
        *_link(facts, tiers[1], outcome.disk),
        *_retention(facts, outcome),
    )


def _gpu(facts: Facts, room: GpuRoom) -> Iterator[Limit]:
    yield Limit(
        name="GPU memory",
        limit=float(room.usable),
        needed=float(room.needed),
        unit="bytes",
        ok=room.fits,
        why=(
            f"weights {show_bytes(room.weights)} + overhead {show_bytes(room.overhead)} + {room.held} a GPU, "
            f"of {facts.utilization:g} x {show_bytes(facts.gpu_total.value)}"
        ),
        provenance=facts.gpu_total.provenance,
    )


def _prefill(facts: Facts, outcome: Outcome) -> Limit:
    """Whether one replica can compute its share of the log's prompts at all, with the tiers recommended."""
    busy = max(0.0, outcome.busy_s - outcome.net_s) / 3600
    why = "prefill of one replica's share of the log with the tiers recommended; decoding is not counted"
    if busy > 1:
        least = math.ceil(facts.replicas * busy)
        why = f"the log's prompts are more than {facts.replicas} replica(s) can compute: at least {least} are needed"
    return Limit(
        name="GPU time",
        limit=1.0,
        needed=busy,
        unit="ratio",
        ok=busy <= 1,
        why=why,
        provenance=facts.prefill.provenance,
    )


def _first_token(facts: Facts) -> Iterator[Limit]:
    """Whether a long prompt alone, without a hit or a queue, meets the time to first token that is wanted."""
    wanted, length = facts.policy.slo_ttft_s, facts.workload.input_lengths.p95
    if wanted is None:
        return
    needed = facts.prefill.seconds(length)
    yield Limit(
        name="time to first token",
        limit=wanted,
        needed=needed,
        unit="s",
        ok=needed <= wanted,
        why=f"prefill of the log's p95 prompt, {show_tokens(length)} tokens, alone, no hit; waiting comes on top",
        provenance=facts.prefill.provenance,
    )


def _host(facts: Facts, room: HostRoom, cost: int) -> Iterator[Limit]:
    if room.available is None or facts.host_memory is None:
        return
    shared = "" if facts.on_host == 1 else f" / {facts.on_host} replicas on the host"
    parts = ", ".join(f"{part.name} {show_bytes(part.bytes)}" for part in room.parts)
    yield Limit(
        name="host memory",
        limit=float(room.available),
        needed=float(cost),
        unit="bytes",
        ok=cost <= room.available,
        why=f"{show_bytes(facts.host_memory.value)}{shared} less {parts} and headroom {show_bytes(room.headroom)}",
        provenance=facts.host_memory.provenance,
    )


def _cgroups(facts: Facts, room: HostRoom, cost: int) -> Iterator[Limit]:
    """Every memory limit on the way to the root, against what the replicas on the host add to it."""
    if facts.machine is None:
        return
    for level in facts.machine.cgroups:
        if level.limit_bytes is None:
            continue
        used = max(0, (level.current_bytes or 0) - (level.reclaimable_bytes or 0))
        needed = used + (room.taken + cost) * facts.on_host
        yield Limit(
            name=f"memory limit of cgroup {level.path}",
            limit=float(level.limit_bytes),
            needed=float(needed),
            unit="bytes",
            ok=needed <= level.limit_bytes,
            why=(
                f"{show_bytes(used)} in use there that cannot be reclaimed, and all that this plan takes on the host; "
                "a pool in /dev/shm counts once"
            ),
            provenance="measured",
        )


def _shared_memory(facts: Facts, cost: int) -> Iterator[Limit]:
    machine = facts.machine
    if machine is None or not facts.profile.shm or machine.shm_free_bytes is None:
        return
    needed = (cost + SHM_SPARE) * facts.on_host if cost else 0
    yield Limit(
        name="/dev/shm",
        limit=float(machine.shm_free_bytes),
        needed=float(needed),
        unit="bytes",
        ok=needed <= machine.shm_free_bytes,
        why=(
            f"{facts.profile.name} maps its host tier there and does not start without room: enlarge it with "
            f"--shm-size or `mount -o remount,size={-(-needed // GiB)}g /dev/shm`"
            if needed > machine.shm_free_bytes
            else f"{facts.profile.name} maps its host tier there"
        ),
        provenance="measured",
    )


def _page_locked(facts: Facts, cost: int) -> Iterator[Limit]:
    """What page-locking gave on this host where the probe met its end, and the limit of mlock, which does not bind."""
    machine = facts.machine
    if machine is None or facts.probe is None:
        return
    stopped = [one for one in facts.probe.pinning if one.stopped and one.pinned_bytes < one.requested_bytes]
    if stopped:
        worst = min(stopped, key=lambda one: one.pinned_bytes)
        each = -(-cost // facts.gpus)
        yield Limit(
            name="page-locked memory",
            limit=float(worst.pinned_bytes),
            needed=float(each),
            unit="bytes",
            ok=each <= worst.pinned_bytes,
            why=f"a GPU's share of the tier; the probe could page-lock no more for GPU {worst.gpu}: {worst.stopped}",
            provenance="measured",
        )
    if machine.memlock_bytes is not None:
        yield Limit(
            name="memlock",
            limit=float(machine.memlock_bytes),
            needed=0.0,
            unit="bytes",
            ok=True,
            why="reported only: CUDA page-locks through its driver, which this limit does not bound",
            provenance="measured",
        )


def _numa(nodes: tuple[NodeBytes, ...]) -> Iterator[Limit]:
    """Reported only: memory that one node lacks comes from the next, which is slower but not refused."""
    for node in nodes if len(nodes) > 1 else ():
        over = node.bytes > node.available_bytes
        yield Limit(
            name=f"NUMA node {node.node}",
            limit=float(node.available_bytes),
            needed=float(node.bytes),
            unit="bytes",
            ok=True,
            why=(
                "the rest comes from other nodes, over the link between sockets: interleave it, or give less"
                if over
                else "page-locked pages stay where they were first touched: bind each engine to its GPU's node"
            ),
            provenance="measured",
        )


def _disk(facts: Facts, tier: Tier | None, option: Option | None) -> Iterator[Limit]:
    if tier is None or tier.limit_bytes is None or facts.disk_link is None or facts.disk_link.disk is None:
        return
    drive = facts.disk_link.disk
    yield Limit(
        name="disk space",
        limit=float(tier.limit_bytes),
        needed=float(option.requested if option else 0),
        unit="bytes",
        ok=not option or option.requested <= tier.limit_bytes,
        why=(
            f"85 % of {show_bytes(drive.free_bytes + facts.policy.disk_own_bytes)} "
            f"{'of a drive as stated' if is_stated(drive) else f'free or its own on {drive.path}'}, or what the policy "
            "allows"
        ),
        provenance="configured" if is_stated(drive) else "measured",
    )
    if option and option.life_s is not None:
        daily = option.stored_tokens * tier.bytes_per_token * 24
        wear = endurance(drive)
        yield Limit(
            name="disk endurance",
            limit=option.life_s,
            needed=tier.minimum_life_s,
            unit="s",
            ok=option.life_s >= tier.minimum_life_s,
            why=(
                f"{show_bytes(daily)} written a day against {wear.source}: worn out in "
                f"{option.life_s / 86400:,.0f} days"
            ),
            provenance=wear.provenance,
        )


def _link(facts: Facts, tier: Tier | None, option: Option | None) -> Iterator[Limit]:
    rates = facts.host_link if tier and tier.name == "host" else facts.disk_link
    if tier is None or rates is None:
        return
    yield Limit(
        name=f"{tier.name} link use",
        limit=BUSY_LIMIT,
        needed=option.link_busy if option else 0.0,
        unit="ratio",
        ok=not option or option.link_busy <= BUSY_LIMIT,
        why=f"share of time busy in the busiest stretch, {facts.demand.peak:.2g} x the mean; beyond it loads queue",
        provenance=rates.provenance,
    )
    length = break_even_length(facts.prefill, tier.path)
    per_gpu = facts.bytes_per_token_per_gpu if tier.name == "host" else facts.offload_bytes_per_token / facts.gpus
    rate = per_gpu / tier.path.s_per_token if tier.path.s_per_token else math.inf
    typical = _typical_prefix(facts)
    needed = break_even_rate(facts.prefill, per_gpu, typical) if typical else 0.0
    yield Limit(
        name=f"{tier.name} load against recompute",
        limit=rate,
        needed=needed if option else 0.0,
        unit="bytes_per_s",
        ok=True,
        why=_against(tier, typical, needed, rate, length),
        provenance=rates.provenance,
    )


def _against(tier: Tier, typical: int, needed: float, rate: float, length: float) -> str:
    if length == 0:
        shortest = "loading is quicker at every length"
    elif length == math.inf:
        shortest = "recomputing is quicker at every length"
    else:
        shortest = f"loading is quicker from {show_tokens(length)} tokens on"
    if not typical:
        return f"the log reuses nothing; {shortest}"
    return (
        f"a reused prefix of {show_tokens(typical)} tokens, the log's mean, is worth loading above "
        f"{show_rate(needed)} a GPU and the {tier.name} link gives {show_rate(rate)}; {shortest}"
    )


def _typical_prefix(facts: Facts) -> int:
    """Mean reused prefix of a request with a hit, in a cache that holds everything."""
    last = max(facts.workload.curve, key=lambda point: point.capacity_tokens, default=None)
    return last.hit_tokens // last.hit_requests if last and last.hit_requests else 0


def _retention(facts: Facts, outcome: Outcome) -> Iterator[Limit]:
    ttl = facts.policy.ttl_s
    if ttl is None:
        return
    fill = outcome.level.low.fill_time_s
    span = facts.workload.span_s or 0.0
    needed = span if fill is None else fill
    yield Limit(
        name="time to live",
        limit=ttl,
        needed=needed if outcome.host or outcome.disk else 0.0,
        unit="s",
        ok=True,
        why=(
            f"a tier that takes longer than {show_duration(ttl)} to fill holds nothing more for it: sizes beyond that "
            "are not considered"
        ),
        provenance="configured",
    )
