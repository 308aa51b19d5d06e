"""What a request log really reuses: the exact hit curve, its ceilings, who reuses, how soon, and what is in flight.

Everything is in tokens and blocks, free of any model; docs/workload.md defines each figure.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan import drift, policies, reuse, sharing, timeline, whatif
from kvplan.documents import CurvePoint, Finding, HitRates, PrefixClass, Requests, ServiceModel, Tenant, Workload
from kvplan.errors import KvplanError, UsageError
from kvplan.progress import Progress, silent
from kvplan.units import show_duration, show_percent

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

_PREFERRED = (10, 12.5, 16, 20, 25, 31.5, 40, 50, 63, 80)  # Renard's R10: ten steps a decade, the same for every log
_DECADES = 5
_HANDFUL = (0.003, 0.01, 0.03, 0.1, 0.3)  # of the unique blocks: where policies and what-ifs are measured
_LEAST_CLASS_TOKENS = 64
_LOAD_WINDOW_S = 300.0
_MOST_TENANTS = 100
_WORTH_SAYING = 0.01
_QUICK = 40_000_000  # block references that the optimal policy may play unasked: some seconds


def profile(
    requests: Requests,
    *,
    capacity_blocks: Sequence[int] = (),
    capacity_tokens: Sequence[int] = (),
    ttl_s: float | None = None,
    service: ServiceModel | None = None,
    measure_from: float = 0.5,
    other_policies: Sequence[str] = (),
    replicas: int | None = None,
    tiers: Sequence[int] = (),
    runs: reuse.Runs | None = None,
    progress: Progress = silent,
) -> Workload:
    """Profile a log. The curve has about ten points a decade up to its unique blocks, and every capacity asked for.

    `capacity_blocks` and `capacity_tokens` (rounded down to whole blocks) are exact extra points. With `ttl_s` the
    cache also drops what was not used for so long. `service` says how long a request is in flight where the log does
    not. The warm figures count only requests from the share `measure_from` of the log on. `other_policies`, `replicas`
    and `tiers` (blocks, from the top) are what-ifs; `runs` are the log's, where they have been found already.
    Raises KvplanError for a log too large to count in 64 bits, UsageError for an argument without meaning.
    """
    asked = [*capacity_blocks, *(tokens // requests.block_tokens for tokens in capacity_tokens)]
    timed = not np.isnan(requests.time_s).any()
    _refuse_nonsense(requests, asked, ttl_s, timed, measure_from)
    runs = reuse.find_runs(requests, progress) if runs is None else runs
    progress("measuring the curve")
    tokens = reuse.run_tokens(runs, requests)
    gap_s = requests.time_s[runs.request] - requests.time_s[runs.toucher]
    alive = runs if ttl_s is None else runs.where(gap_s <= ttl_s)
    grid = _capacities(reuse.unique_blocks(requests), asked)
    ceiling = _curve(runs, requests, np.array([reuse.unique_blocks(requests)]))[0]
    input_tokens = int(requests.input_tokens.sum())
    novel_tokens = input_tokens - ceiling.hit_tokens
    progress("measuring tenants and time")
    tenants = _tenants(runs, requests, tokens)
    same_moment = int(tokens[gap_s == 0].sum())
    times, held_by = _times(runs, requests, gap_s, tokens, ttl_s, service) if timed else ({}, None)
    core = Workload(
        sources=requests.sources,
        requests=len(requests.input_tokens),
        span_s=float(requests.time_s[-1] - requests.time_s[0]) if timed else None,
        block_tokens=requests.block_tokens,
        input_tokens=input_tokens,
        input_tokens_sq=int(np.square(requests.input_tokens.astype(np.int64)).sum()),
        output_tokens=int(requests.output_tokens.sum()),
        novel_tokens=novel_tokens,
        block_references=int(requests.offsets[-1]),
        unique_blocks=reuse.unique_blocks(requests),
        ceiling_hit_ratio=_ratio(ceiling.hit_tokens, input_tokens),
        engine_hit_ratio=_ratio(_engine_hit_tokens(runs, requests), input_tokens),
        one_off_tokens_ratio=1 - _ratio(_reused_novel_tokens(runs, requests), novel_tokens),
        curve=_curve(alive, requests, grid),
        active_tokens=None,
        active_requests=None,
        service=held_by,
        input_lengths=timeline.percentiles(requests.input_tokens),
        output_lengths=timeline.percentiles(requests.output_tokens),
        ttl_s=ttl_s,
        reused_prefix_lengths=ceiling.prefixes,
        tenants=tenants,
        reused_from=sharing.reused_from(runs, requests, tokens),
        **_starts(runs, alive, requests, grid, measure_from),
    )
    progress("measuring what-ifs")
    extras = _what_ifs(runs, requests, asked, replicas, tiers)
    played, said = _policies(runs, requests, _handful(requests, asked), other_policies, progress)
    findings = (
        *requests.findings,
        *_about_time(requests, held_by, same_moment, input_tokens, ttl_s),
        *_about_blocks(requests, asked, tenants),
        *said,
    )
    return replace(core, **times, **extras, **played, findings=findings)


def _times(
    runs: reuse.Runs,
    requests: Requests,
    gap_s: Floats,
    tokens: Ints,
    ttl_s: float | None,
    service: ServiceModel | None,
) -> tuple[dict[str, Any], ServiceModel]:
    """The fields that need time stamps, and how long requests were held to be in flight."""
    window_s = ttl_s or _LOAD_WINDOW_S
    duration_s, held_by = timeline.durations(requests, service)
    steps = timeline.flight(requests, duration_s)
    active_tokens, active_requests = timeline.in_flight(steps, float(requests.time_s[-1]))
    fields = {
        "active_tokens": active_tokens,
        "active_requests": active_requests,
        "load_window_s": window_s,
        "reuse_intervals": timeline.intervals(gap_s, tokens, ttl_s),
        "working_set": timeline.working_sets(runs, requests, ttl_s),
        "load": timeline.load(runs, requests, steps, window_s),
        "arrivals": timeline.by_hour(requests),
    }
    return fields, held_by


def _starts(runs: reuse.Runs, alive: reuse.Runs, requests: Requests, grid: Ints, measure_from: float) -> dict[str, Any]:
    """Cold and warm figures side by side: all requests, and the later ones of a cache that the earlier warmed."""
    first = int(measure_from * len(requests.input_tokens))
    return {
        "cold": hit_rates(runs, requests, 0),
        "warm": hit_rates(runs, requests, first),
        "warm_curve": whatif.curve(alive.where(alive.request >= first), requests, grid.tolist(), first),
    }


def hit_rates(runs: reuse.Runs, requests: Requests, first: int) -> HitRates:
    """The infinite cache's hits of the requests from `first` on, by token, by block and by request."""
    depths = reuse.hit_depths(runs, requests)[first:]
    references = int(np.diff(requests.offsets)[first:].sum())
    covered = reuse.covered_tokens(requests)[first:]
    tokens = int(np.minimum(depths * requests.block_tokens, covered).sum())
    whole, blocks, any_hit = int(requests.input_tokens[first:].sum()), int(depths.sum()), int((depths > 0).sum())
    return HitRates(
        measured_from=first,
        requests=depths.size,
        block_references=references,
        input_tokens=whole,
        hit_requests=any_hit,
        hit_blocks=blocks,
        hit_tokens=tokens,
        token_hit_ratio=_ratio(tokens, whole),
        block_hit_ratio=_ratio(blocks, references),
        request_any_hit_ratio=_ratio(any_hit, depths.size),
    )


def _handful(requests: Requests, asked: Sequence[int]) -> list[int]:
    """A few capacities of the grid, and those asked for."""
    unique = reuse.unique_blocks(requests)
    grid = _capacities(unique, ())
    near = {
        int(grid[np.abs(np.log(np.maximum(grid, 1)) - np.log(max(share * unique, 1))).argmin()]) for share in _HANDFUL
    }
    return sorted({*(one for one in near if one), *asked})


def _what_ifs(
    runs: reuse.Runs, requests: Requests, asked: Sequence[int], replicas: int | None, tiers: Sequence[int]
) -> dict[str, Any]:
    """The fields that look at the log otherwise; all need its block ids."""
    some = _handful(requests, asked)
    references = reuse.references(requests)
    whole = int(requests.input_tokens.sum())
    hits = int(reuse.run_tokens(runs, requests).sum())
    more = whatif.decoded_hit_blocks(runs, requests) * requests.block_tokens if requests.output_tokens.any() else None
    return {
        "isolation": whatif.isolation(runs, requests, some),
        "top_prefixes": sharing.top_prefixes(runs, requests, references),
        "hot_set": sharing.hot_set(references),
        "without_one_off": whatif.without_one_off(requests, references, some),
        "drift": drift.find(runs, requests),
        "granularities": whatif.granularities(runs, requests),
        "prompt_end_hit_ratio": _ratio(whatif.prompt_end_hit_tokens(runs, requests), whole),
        "decoded_ceiling_hit_ratio": None if more is None else _ratio(hits + more, whole),
        "replicas": whatif.replicas(requests, replicas, some) if replicas is not None else (),
        "tiers": whatif.tiers(runs, requests, tiers) if tiers else (),
    }


def _policies(
    runs: reuse.Runs,
    requests: Requests,
    some: Sequence[int],
    named: Sequence[str],
    progress: Progress,
) -> tuple[dict[str, Any], list[Finding]]:
    """Other policies where asked for, the optimal one also where it is quick."""
    others = policies.curves(runs, requests, [name for name in named if name != "optimal"], some, progress)
    if "optimal" not in named and len(some) * len(requests.blocks) > _QUICK:
        text = "The optimal policy was not played, as the log is long: --policies optimal does it."
        return {"policies": others}, [Finding(severity="info", code="optimal-not-played", text=text)]
    progress(f"playing the optimal policy at {len(some)} capacities")
    points = []
    for capacity in some:
        depths = policies.hit_depths(requests, "optimal", capacity, runs)
        points.append(_curve(reuse.as_hits(depths), requests, np.array([capacity]), runs)[0])
    return {"policies": others, "optimal": tuple(points)}, []


def _refuse_nonsense(
    requests: Requests, asked: Sequence[int], ttl_s: float | None, timed: bool, measure_from: float
) -> None:
    if not 0 <= measure_from < 1:
        raise UsageError(f"--measure-from {measure_from:g}: a share of the log from 0 to below 1")
    if any(capacity < 0 for capacity in asked):
        raise UsageError(f"a cache of {min(asked)} blocks: a capacity is not negative")
    if ttl_s is not None and not ttl_s > 0:
        raise UsageError(f"a TTL of {ttl_s:g} s: a cached block lives longer than that")
    if ttl_s is not None and not timed:
        raise KvplanError("--ttl needs time stamps, and this log has none")
    if float(np.square(requests.input_tokens.astype(np.float64)).sum()) >= 2**63:
        raise KvplanError("the squares of this log's prompt lengths do not add up in 64 bits: split the log by time")


def _ratio(part: int, whole: int) -> float:
    return part / whole if whole else 0.0


def _capacities(unique: int, asked: Sequence[int]) -> Ints:
    """About ten capacities a decade over the five decades up to `unique`, that itself, and those asked for."""
    grid = {unique, *asked}
    decade = 1.0
    while decade <= unique:
        grid.update(round(step / 10 * decade) for step in _PREFERRED)
        decade *= 10
    least = unique / 10**_DECADES
    return np.array(sorted(c for c in grid if c in asked or least <= c <= unique), np.int64)


def _class_ends(longest: int) -> Ints:
    last = max(longest - 1, 1).bit_length()
    return 2 ** np.arange(_LEAST_CLASS_TOKENS.bit_length() - 1, max(last, 6) + 1, dtype=np.int64)


def _curve(
    runs: reuse.Runs, requests: Requests, capacities: Ints, stored: reuse.Runs | None = None
) -> tuple[CurvePoint, ...]:
    """The curve of `runs`; the cache fills with what `stored`, the runs of a cache without limit, leaves to store."""
    covered = reuse.covered_tokens(requests)
    ends = _class_ends(int(covered.max(initial=0)))
    hits = reuse.sweep(runs, requests, capacities, ends)
    counts = np.diff(requests.offsets)
    fills = _fill_times(requests, counts - reuse.hit_depths(stored or runs, requests), capacities)
    whole = int(requests.input_tokens.sum())
    points = []
    for i, capacity in enumerate(capacities.tolist()):
        hit_tokens = int(hits.tokens[i].sum())
        point = CurvePoint(
            capacity_blocks=capacity,
            capacity_tokens=capacity * requests.block_tokens,
            hit_blocks=int(hits.hit_blocks[i]),
            hit_tokens=hit_tokens,
            hit_ratio=_ratio(hit_tokens, whole),
            hit_requests=int(hits.requests[i].sum()),
            reused_prefix_tokens_sq=int(hits.tokens_sq[i].sum()),
            fill_time_s=fills[i],
            prefixes=_classes(ends, hits.requests[i], hits.tokens[i], hits.tokens_sq[i]),
        )
        points.append(point)
    return tuple(points)


def _classes(ends: Ints, requests: Ints, tokens: Ints, tokens_sq: Ints) -> tuple[PrefixClass, ...]:
    return tuple(
        PrefixClass(at_most_tokens=end, requests=count, tokens=total, tokens_sq=square)
        for end, count, total, square in zip(
            ends.tolist(), requests.tolist(), tokens.tolist(), tokens_sq.tolist(), strict=True
        )
        if count
    )


def _fill_times(requests: Requests, novel_blocks: Ints, capacities: Ints) -> list[float | None]:
    """When, after the first arrival, as many distinct blocks have come as each capacity holds; None if never."""
    seen = np.cumsum(novel_blocks)
    full = np.searchsorted(seen, capacities)
    since = requests.time_s - requests.time_s[0]
    return [None if i >= len(since) or np.isnan(since[i]) else float(since[i]) for i in full.tolist()]


def _engine_hit_tokens(runs: reuse.Runs, requests: Requests) -> int:
    """Hits under an engine's rule: full blocks only, and the last token of a prompt is always computed."""
    usable = np.maximum(requests.input_tokens - 1, 0) // requests.block_tokens
    return int(np.minimum(reuse.hit_depths(runs, requests), usable).sum()) * requests.block_tokens


def _reused_novel_tokens(runs: reuse.Runs, requests: Requests) -> int:
    """Tokens that were reused at least once, each counted once: where a run reaches what its toucher brought in.

    Where one id names blocks of two sizes, at most what the toucher brought in: more of it nobody stored.
    """
    created_from = reuse.hit_depths(runs, requests)[runs.toucher]
    whole = reuse.covered_tokens(requests)
    covered = np.minimum(whole[runs.request], whole[runs.toucher])
    first = np.maximum(runs.depth, created_from) * requests.block_tokens
    end = np.minimum((runs.depth + runs.length) * requests.block_tokens, covered)
    return int(np.maximum(end - first, 0).sum())


def _tenants(runs: reuse.Runs, requests: Requests, tokens: Ints) -> tuple[Tenant, ...]:
    """Each tenant's hits in a shared infinite cache and in one of its own, largest first."""
    if not requests.tenants:
        return ()
    names = ("(none)", *requests.tenants)
    tenant = np.asarray(requests.tenant, np.int64) + 1
    depths = reuse.hit_depths_within(requests, tenant)
    alone = np.minimum(depths * requests.block_tokens, reuse.covered_tokens(requests))
    hits = np.zeros(tenant.size, np.int64)
    np.add.at(hits, runs.request, tokens)
    columns = (np.ones(tenant.size, np.int64), requests.input_tokens, hits, alone)
    sums = np.zeros((4, len(names)), np.int64)
    for row, column in zip(sums, columns, strict=True):
        np.add.at(row, tenant, column)
    order = [i for i in np.argsort(-sums[1], kind="stable").tolist() if sums[0, i]]
    rows = [(names[i], *sums[:, i].tolist()) for i in order[:_MOST_TENANTS]]
    if rest := order[_MOST_TENANTS:]:
        rows.append((f"({len(rest)} others)", *sums[:, rest].sum(axis=1).tolist()))
    return tuple(
        Tenant(tenant=name, requests=count, input_tokens=total, hit_tokens=hit, isolated_hit_tokens=own)
        for name, count, total, hit, own in rows
    )


def _about_time(
    requests: Requests, held_by: ServiceModel | None, same_moment: int, input_tokens: int, ttl_s: float | None
) -> list[Finding]:
    findings = []
    if ttl_s is not None:
        text = f"The curve is that of an LRU cache that drops what was not used for {show_duration(ttl_s)}."
        findings.append(Finding(severity="info", code="ttl", text=text))
    if held_by is not None and held_by.provenance != "measured":
        text = (
            "The log does not say how long requests ran: tokens in flight follow from "
            f"{held_by.prefill_tokens_per_s or 0:,.0f} prefill tokens/s and "
            f"{show_duration(held_by.decode_s_per_token or 0)} a decoded token ({held_by.provenance})."
        )
        findings.append(Finding(severity="warning", code="service-assumed", text=text))
    if same_moment > _WORTH_SAYING * input_tokens:
        text = (
            f"{show_percent(same_moment / input_tokens)} of the input tokens repeat those of a request with the same "
            "time stamp: a server reuses them only if the first is computed before the second starts."
        )
        findings.append(Finding(severity="warning", code="same-moment", text=text))
    if not requests.output_tokens.any():
        text = "The log has no output lengths: tokens in flight and decode time leave them out."
        findings.append(Finding(severity="warning", code="no-output-lengths", text=text))
    return findings


def _about_blocks(requests: Requests, asked: Sequence[int], tenants: Sequence[Tenant]) -> list[Finding]:
    findings = []
    longest = int(np.diff(requests.offsets).max(initial=0))
    if small := [capacity for capacity in asked if capacity < longest]:
        text = (
            f"The longest request has {longest:,} blocks, more than a cache of {max(small):,}: whether a server "
            "admits it is its own policy; here its leading blocks stay."
        )
        findings.append(Finding(severity="info", code="longer-than-cache", text=text))
    if len(tenants) > 1:
        lost = sum(tenant.hit_tokens - tenant.isolated_hit_tokens for tenant in tenants)
        whole = sum(tenant.input_tokens for tenant in tenants)
        text = f"Keeping tenants apart would lose {show_percent(_ratio(lost, whole))} of the input tokens as hits."
        findings.append(Finding(severity="info", code="tenant-isolation", text=text))
    return findings
