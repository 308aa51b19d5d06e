"""The hit curve as this deployment would see it: who may share, how requests are spread, what time and restarts undo.

The workload's curve is that of one cache that everybody shares. Each rule here only ever takes hits away: what the
workload measured for a rule is used, what it did not is bounded from below, and a finding says which it was.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass

from msgspec.structs import replace

from kvplan.documents import CurvePoint, Finding, Hits, Policy, PrefixClass, Replicas, Workload
from kvplan.errors import KvplanError
from kvplan.planning.economics import Curve
from kvplan.units import show_percent


@dataclass(frozen=True, slots=True, kw_only=True)
class Curves:
    """What each tier can give back, and what second-use admission costs it.

    `one_server`: capacities are those of one replica's cache, the log already being spread over them. `ceiling_tokens`
    are the hits of infinite caches over the log, `first_reuse_tokens` how many of them are a block's first reuse.
    """

    gpu: Curve
    host: Curve
    disk: Curve
    one_server: bool
    ceiling_tokens: int
    first_reuse_tokens: int
    findings: tuple[Finding, ...] = ()


def scaled(point: CurvePoint, ratio: float) -> CurvePoint:
    """A point with a share of its hits, rounded down, alike at every prefix length."""
    return replace(
        point,
        hit_blocks=int(point.hit_blocks * ratio),
        hit_tokens=int(point.hit_tokens * ratio),
        hit_ratio=point.hit_ratio * ratio,
        hit_requests=int(point.hit_requests * ratio),
        reused_prefix_tokens_sq=int(point.reused_prefix_tokens_sq * ratio),
        prefixes=tuple(
            PrefixClass(
                at_most_tokens=part.at_most_tokens,
                requests=int(part.requests * ratio),
                tokens=int(part.tokens * ratio),
                tokens_sq=int(part.tokens_sq * ratio),
            )
            for part in point.prefixes
        ),
    )


def curves_of(workload: Workload, policy: Policy, replicas: int, disk_survives: bool) -> Curves:
    """The curves of a policy. Raises KvplanError where the workload cannot say what the policy asks."""
    findings: list[Finding] = []
    if workload.sampled is not None:
        raise KvplanError(
            "the workload's curve is estimated from a sample, and a plan needs the exact one: profile the log without "
            "--sample, or with --buckets where it does not fit in memory"
        )
    if workload.novel_tokens is None or workload.one_off_tokens_ratio is None:
        raise KvplanError(
            "the workload is of a log that has lengths only, so what a cache would hit is not known: "
            "profile a log with block ids or with the text of its prompts"
        )
    first = math.ceil(workload.novel_tokens * (1 - workload.one_off_tokens_ratio))
    ceiling = workload.input_tokens - workload.novel_tokens
    points, ceiling, first = _shared(workload, policy, ceiling, first, findings)
    points, one_server = _routed(workload, policy, replicas, points, findings)
    if one_server:
        first *= replicas
    lasting, brief = Curve(points), Curve(_restarted(workload, policy, points, findings))
    replayed = any(finding.code == "routing-replayed" for finding in findings)
    own = not replayed and (policy.share != "tenant" or workload.isolation is None)
    return Curves(
        gpu=brief,
        host=_retained(workload, policy, brief, own=own),
        disk=_retained(workload, policy, lasting if disk_survives else brief, own=own),
        one_server=one_server,
        ceiling_tokens=ceiling,
        first_reuse_tokens=first,
        findings=tuple(findings),
    )


def _shared(
    workload: Workload, policy: Policy, ceiling: int, first: int, findings: list[Finding]
) -> tuple[tuple[CurvePoint, ...], int, int]:
    """The curve among those who may share; its ceiling and first reuses in tokens."""
    points = workload.curve
    if policy.share == "all":
        return points, ceiling, first
    if policy.share == "none":
        return tuple(scaled(point, 0.0) for point in points), 0, 0
    alone = workload.isolation
    if alone is not None and alone.curve:
        first = math.ceil(first * alone.isolated_blocks / max(1, alone.blocks))
        return _with_hits(points, alone.curve), alone.isolated_hit_tokens, first
    if not workload.tenants:
        raise KvplanError(
            "sharing within a tenant only needs to know the tenants, and the workload names none: profile the log "
            "with `kvplan workload --tenant-by FIELD`"
        )
    hits = sum(tenant.hit_tokens for tenant in workload.tenants)
    own = min(hits, sum(tenant.isolated_hit_tokens for tenant in workload.tenants))
    if own == hits:  # no request reuses another tenant's blocks, so keeping them apart changes nothing
        return points, ceiling, first
    keep = own / hits if hits else 0.0
    copies = (workload.input_tokens - own) / max(1, workload.novel_tokens or 0)
    text = (
        f"no curve of separate tenants is in the workload: every capacity is taken to need {copies:.3g} x its room and "
        f"to keep {show_percent(keep)} of its hits, as an infinite cache does"
    )
    findings.append(Finding(severity="warning", code="isolation-scaled", text=text))
    wider = (replace(point, capacity_tokens=math.ceil(point.capacity_tokens * copies)) for point in points)
    return tuple(scaled(point, keep) for point in wider), own, math.ceil(first * copies)


def _routed(
    workload: Workload, policy: Policy, replicas: int, points: tuple[CurvePoint, ...], findings: list[Finding]
) -> tuple[tuple[CurvePoint, ...], bool]:
    """The curve of requests spread over replicas, and whether its capacities are those of one of them."""
    if replicas == 1:
        return points, False
    measured = _measured(workload.replicas, policy, replicas) if policy.share == "all" else None
    if measured is not None:
        text = (
            f"{policy.routing} over {replicas} replicas as replayed from the log: the busiest gets "
            f"{measured.load_imbalance:.3g} x the mean input and computes {measured.computed_imbalance:.3g} x the mean"
        )
        findings.append(Finding(severity="info", code="routing-replayed", text=text))
        slower = tuple(_later(point, replicas) for point in points)
        return _with_hits(slower, measured.curve), True
    if policy.routing == "affinity":
        text = f"{replicas} replicas share the log by prefix affinity; round robin would reuse less"
        findings.append(Finding(severity="warning", code="affinity-assumed", text=text))
        return points, False
    if policy.routing == "session":
        raise KvplanError(
            f"hits of {replicas} replicas that keep a session each are not in the workload: profile a log that names "
            f"sessions with `kvplan workload --replicas {replicas}`, and let tenants share"
        )
    text = (
        f"round robin over {replicas} replicas: a reuse finds the replica of the last use again one time in "
        f"{replicas}; only these hits are counted, which is a lower bound"
    )
    findings.append(Finding(severity="warning", code="round-robin-bound", text=text))
    return tuple(_later(scaled(point, 1 / replicas), replicas) for point in points), True


def _measured(found: Iterable[Replicas], policy: Policy, replicas: int) -> Replicas | None:
    """The workload's own replay of this routing, if it holds one."""
    return next(
        (one for one in found if one.replicas == replicas and policy.routing == one.routing and one.curve), None
    )


def _later(point: CurvePoint, times: int) -> CurvePoint:
    """One of several servers takes in so many times less, and fills so many times later."""
    return point if point.fill_time_s is None else replace(point, fill_time_s=point.fill_time_s * times)


def _with_hits(shape: tuple[CurvePoint, ...], hits: Iterable[Hits]) -> tuple[CurvePoint, ...]:
    """Points with exact hits whose split by prefix length is that of the shared curve at the same capacity."""
    known = Curve(shape)
    found = []
    for hit in hits:
        near = min(known.points, key=lambda point: abs(point.capacity_blocks - hit.capacity_blocks), default=None)
        if near is None or not near.hit_tokens:
            continue
        tokens = hit.capacity_blocks * (near.capacity_tokens // near.capacity_blocks if near.capacity_blocks else 0)
        part = scaled(near, hit.hit_tokens / near.hit_tokens)
        found.append(
            replace(
                part,
                capacity_blocks=hit.capacity_blocks,
                capacity_tokens=tokens,
                hit_blocks=hit.hit_blocks,
                hit_tokens=hit.hit_tokens,
                hit_ratio=hit.hit_ratio,
                hit_requests=hit.hit_requests,
            )
        )
    return tuple(found)


def _restarted(
    workload: Workload, policy: Policy, points: tuple[CurvePoint, ...], findings: list[Finding]
) -> tuple[CurvePoint, ...]:
    """What is left where the engine restarts every T: a reuse after x survives with probability 1 - x / T."""
    every = policy.restart_every_s
    whole = sum(interval.tokens for interval in workload.reuse_intervals)
    if every is None or not points:
        return points
    if not whole:
        raise KvplanError("restarts need the log's reuse intervals: give a log with a time stamp on every request")
    kept = sum(part.tokens * max(0.0, 1 - part.at_most_s / every) for part in workload.reuse_intervals)
    text = (
        f"a restart every {every / 3600:.3g} h keeps {show_percent(kept / whole)} of the reuse in tiers that start "
        "empty: of what is reused after x, the share 1 - x / T has no restart in between"
    )
    findings.append(Finding(severity="info", code="restarts", text=text))
    return tuple(scaled(point, kept / whole) for point in points)


def _retained(workload: Workload, policy: Policy, curve: Curve, *, own: bool) -> Curve:
    """The part of a curve that a tier can use under the retention policy.

    A cache that drops what was not used for longer than it takes to fill holds no more than it took in by then. The
    workload's `own` curve has its TTL in it already; those of separate tenants and replicas are free of it.
    """
    ttl = policy.ttl_s
    if ttl is None or (own and workload.ttl_s is not None and workload.ttl_s <= ttl):
        return curve
    span = workload.span_s or 0.0
    return Curve([point for point in curve.points if (span if point.fill_time_s is None else point.fill_time_s) <= ttl])


def second_use(point: CurvePoint, lost_tokens: int) -> CurvePoint:
    """A lower bound of a point's hits where a block is stored when it is computed for the second time.

    A block's first reuse then misses; every later one that the same capacity held is still held, since the tier keeps
    fewer blocks and each as fresh. First reuses end a hit prefix, so at most `lost_tokens` are cut off the ends of
    prefixes; they are taken from the longest, where they are worth most.
    """
    left = min(lost_tokens, point.hit_tokens)
    kept, square = [], point.reused_prefix_tokens_sq
    for part in sorted(point.prefixes, key=lambda one: -one.at_most_tokens):
        cut = min(left, part.tokens)
        left -= cut
        gone = part.tokens_sq if cut == part.tokens else min(part.tokens_sq, 2 * part.at_most_tokens * cut)
        square -= gone
        kept.append(replace(part, tokens=part.tokens - cut, tokens_sq=part.tokens_sq - gone))
    hits = max(0, point.hit_tokens - lost_tokens)
    share = hits / point.hit_tokens if point.hit_tokens else 0.0
    return replace(
        point,
        hit_blocks=int(point.hit_blocks * share),
        hit_tokens=hits,
        hit_ratio=point.hit_ratio * share,
        reused_prefix_tokens_sq=max(0, square) if point.prefixes or not lost_tokens else 0,
        prefixes=tuple(part for part in reversed(kept) if part.tokens),
    )
