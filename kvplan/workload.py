"""What a request log really reuses: the exact hit curve, its ceilings, who reuses, how soon, and what is in flight.

Everything is in tokens and blocks, free of any model; docs/workload.md defines each figure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from msgspec.structs import replace
from numpy.typing import NDArray

from kvplan import reuse
from kvplan.documents import Finding, Requests, Sampling, ServiceModel, Workload
from kvplan.errors import KvplanError, UsageError
from kvplan.profiling import (
    buckets,
    ceilings,
    drift,
    hitcurve,
    large,
    policies,
    ray_profile,
    remarks,
    sampling,
    sharing,
    timeline,
    whatif,
)
from kvplan.profiling.comparison import compared
from kvplan.progress import Progress, silent

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

_LOAD_WINDOW_S = 300.0
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
    asked = [*capacity_blocks, *_blocks("--capacity-tokens", capacity_tokens, requests)]
    timed = not np.isnan(requests.time_s).any()
    _refuse_nonsense(requests, asked, ttl_s, timed, measure_from)
    if not requests.hashed:
        return _load_only(requests, timed, service)
    runs = reuse.find_runs(requests, progress) if runs is None else runs
    progress("measuring the curve")
    alive = (
        runs if ttl_s is None else runs.where(requests.time_s[runs.request] - requests.time_s[runs.toucher] <= ttl_s)
    )
    grid = hitcurve.grid(reuse.unique_blocks(requests), asked)
    fields, same_moment = _of_runs(runs, requests, timed, ttl_s)
    times, held_by = _times(runs, requests, ttl_s, service) if timed else ({}, None)
    core = Workload(
        sources=requests.sources,
        curve=hitcurve.points(alive, requests, grid),
        active_tokens=None,
        active_requests=None,
        service=held_by,
        ttl_s=ttl_s,
        **_totals(runs, requests, timed),
        **_starts(runs, alive, requests, grid, measure_from),
    )
    core = replace(core, **fields, **times)
    progress("measuring what-ifs")
    extras, said = _what_ifs_of_runs(runs, requests, tiers), [remarks.NOT_HELD]
    if requests.unique is None:  # the log's paths are in memory
        extras |= _what_ifs(runs, requests, asked, replicas)
        played, said = _policies(runs, requests, hitcurve.handful(requests, asked), other_policies, progress)
        extras |= played
    findings = (
        *requests.findings,
        *remarks.about_time(requests, held_by, same_moment, core.input_tokens, ttl_s),
        *remarks.about_blocks(requests, asked, core.tenants),
        *said,
    )
    return replace(core, **extras, findings=findings)


def _of_runs(runs: reuse.Runs, requests: Requests, timed: bool, ttl_s: float | None) -> tuple[dict[str, Any], int]:
    """The fields that are sums over the runs' tokens, and how many tokens repeat those of a request at that moment."""
    tokens = reuse.run_tokens(runs, requests)
    fields: dict[str, Any] = {
        "tenants": ceilings.tenants(runs, requests, tokens) if requests.unique is None else (),
        "reused_from": sharing.reused_from(runs, requests, tokens),
    }
    if not timed:
        return fields, 0
    between = timeline.gaps(runs, requests, tokens)
    fields |= {
        "reuse_intervals": timeline.intervals(between, ttl_s),
        "working_set": timeline.working_sets(runs, requests, between, ttl_s),
    }
    return fields, int(tokens[between.gap_s == 0].sum())


def _load_only(requests: Requests, timed: bool, service: ServiceModel | None) -> Workload:
    """What a log of lengths says: who asked for how much and when, and nothing about reuse."""
    names = ", ".join(source.name for source in requests.sources) or "the log"
    text = (
        f"{names} has lengths only: what it reuses cannot be known, so there is no hit curve and nothing to plan "
        "a cache with. Give a log with block ids or with the text of its prompts."
    )
    return _without_reuse(requests, timed, service, Finding(severity="warning", code="lengths-only", text=text))


def from_sample(requests: Requests, sampled: Sampling, service: ServiceModel | None = None) -> Workload:
    """What a sample of a log's blocks says: the curve with its error, and of reuse nothing else."""
    bare = replace(requests, hashed=False, offsets=np.zeros(len(requests.input_tokens) + 1, np.int64))
    worst = max((point.standard_error_ratio for point in sampled.points), default=0.0)
    text = (
        f"The curve is estimated from one block in {1 / sampled.rate:.4g} and {sampled.hot_blocks:,} hot ones: "
        f"{sampled.sampled_references:,} of {sampled.block_references:,} references. Its standard error, measured on "
        f"{sampled.samples} parts of the sample, is at most {100 * worst:.2f} points of block hits. A plan needs the "
        "exact curve."
    )
    if least := sampling.least_capacity(sampled.rate):
        text += (
            f" Caches under {least:,} blocks are left out: too little of the sample fits in them. A larger share shows "
            "smaller ones."
        )
    finding = Finding(severity="warning", code="sampled", text=text)
    found = _without_reuse(bare, not np.isnan(requests.time_s).any(), service, finding)
    return replace(
        found,
        block_tokens=requests.block_tokens,
        block_references=sampled.block_references,
        unique_blocks=sampled.unique_blocks,
        sampled=sampled,
    )


def _without_reuse(requests: Requests, timed: bool, service: ServiceModel | None, why: Finding) -> Workload:
    times, held_by = _times(reuse.find_runs(requests), requests, None, service) if timed else ({}, None)
    core = Workload(
        sources=requests.sources,
        curve=(),
        active_tokens=None,
        active_requests=None,
        service=held_by,
        block_references=0,
        unique_blocks=0,
        novel_tokens=None,
        ceiling_hit_ratio=None,
        engine_hit_ratio=None,
        one_off_tokens_ratio=None,
        **_sums(requests, timed),
    )
    findings = (
        why,
        *requests.findings,
        *remarks.about_time(requests, held_by, 0, core.input_tokens, None),
    )
    return replace(core, **times, findings=findings)


def _sums(requests: Requests, timed: bool) -> dict[str, Any]:
    """What the log holds, reuse aside."""
    return {
        "requests": len(requests.input_tokens),
        "span_s": float(requests.time_s[-1] - requests.time_s[0]) if timed else None,
        "block_tokens": requests.block_tokens,
        "input_tokens": int(requests.input_tokens.sum()),
        "input_tokens_sq": int(np.square(requests.input_tokens.astype(np.int64)).sum()),
        "output_tokens": int(requests.output_tokens.sum()),
        "input_lengths": timeline.percentiles(requests.input_tokens),
        "output_lengths": timeline.percentiles(requests.output_tokens),
    }


def _totals(runs: reuse.Runs, requests: Requests, timed: bool) -> dict[str, Any]:
    """What the log holds, and the ceilings."""
    ceiling = hitcurve.points(runs, requests, np.array([reuse.unique_blocks(requests)]))[0]
    sums = _sums(requests, timed)
    input_tokens = sums["input_tokens"]
    novel_tokens = input_tokens - ceiling.hit_tokens
    return sums | {
        "novel_tokens": novel_tokens,
        "block_references": int(requests.offsets[-1]),
        "unique_blocks": reuse.unique_blocks(requests),
        "ceiling_hit_ratio": ceilings.ratio(ceiling.hit_tokens, input_tokens),
        "engine_hit_ratio": ceilings.ratio(ceilings.engine_hit_tokens(runs, requests), input_tokens),
        "one_off_tokens_ratio": 1 - ceilings.ratio(ceilings.reused_novel_tokens(runs, requests), novel_tokens),
        "reused_prefix_lengths": ceiling.prefixes,
    }


def profiled(
    logs: Sequence[Path],
    read: Callable[[Sequence[Path]], Requests],
    *,
    compare: bool = False,
    isolate: bool = False,
    join_blocks: int | None = None,
    workers: int = 1,
    tier_tokens: Sequence[int] = (),
    ray: str | None = None,
    progress: Progress = silent,
    **asked: Any,
) -> Workload:
    """Read logs and profile them, as `profile` does with `asked`, after what-ifs on the log itself.

    With `compare` the two logs are two periods, and the second is profiled against the first. `isolate` keeps tenants
    apart, `join_blocks` makes blocks of so many tokens, `workers` is the number of processes that find the reuse,
    `ray` the address of a Ray cluster that finds it instead ('local' starts one here). Raises UsageError for `compare`
    without two logs.
    """

    def one(requests: Requests) -> Workload:
        if join_blocks is not None:
            requests = whatif.coarser(requests, join_blocks)
        if isolate:
            requests = _isolated(requests)
        found = buckets.find_runs(requests, workers, progress) if workers > 1 else None
        if ray is not None:
            found = ray_profile.find_runs(requests, ray, progress)
        tiers = _blocks("--tiers", tier_tokens, requests)
        return profile(requests, tiers=tiers, runs=found, progress=progress, **asked)

    if not compare:
        return one(read(logs))
    if len(logs) != 2:
        raise UsageError(f"--compare takes two logs, the earlier period first, not {len(logs)}")
    before, after = read(logs[:1]), read(logs[1:])
    follows = bool(before.time_s[-1] <= after.time_s[0])  # false without time stamps
    return compared(one(before), one(after), read(logs) if follows and not isolate else None)


def _isolated(requests: Requests) -> Requests:
    """The log with tenants kept apart. Raises KvplanError where it names none."""
    names = ", ".join(source.name for source in requests.sources) or "the log"
    if (requests.tenant < 0).all():
        raise KvplanError(f"{names}: names no tenants to keep apart: leave --isolate out, or give --tenant-by FIELD")
    if len(np.unique(requests.tenant)) < 2:
        text = f"{names} names one tenant only: --isolate changes nothing."
        finding = Finding(severity="warning", code="one-tenant", text=text)
        requests = replace(requests, findings=(*requests.findings, finding))
    return whatif.isolated(requests)


def profiled_in_stream(
    logs: Sequence[Path],
    stream: large.Stream,
    *,
    rate: float | None = None,
    folder: Path | None = None,
    bucket_count: int = 64,
    workers: int = 1,
    tier_tokens: Sequence[int] = (),
    progress: Progress = silent,
    **asked: Any,
) -> Workload:
    """Profile logs whose blocks do not fit in memory: from a sample at `rate`, else exactly by buckets in `folder`.

    `asked` are arguments of `profile`; a sample takes capacities only. Raises UsageError where neither way is named, or
    both are.
    """
    if (rate is None) == (folder is None):
        raise UsageError("--sample takes a sample, --buckets splits the log: name one of them")
    if rate is not None:

        def capacities(requests: Requests) -> list[int]:
            tokens = _blocks("--capacity-tokens", asked.get("capacity_tokens", ()), requests)
            return [*asked.get("capacity_blocks", ()), *tokens]

        return from_sample(*large.sampled(stream, rate, capacities, progress))
    assert folder is not None
    requests, runs = large.bucketed(stream, logs, folder, bucket_count, workers, progress)
    tiers = _blocks("--tiers", tier_tokens, requests)
    return profile(requests, runs=runs, tiers=tiers, progress=progress, **asked)


def _times(
    runs: reuse.Runs, requests: Requests, ttl_s: float | None, service: ServiceModel | None
) -> tuple[dict[str, Any], ServiceModel]:
    """The fields that need time stamps, and how long requests were held to be in flight."""
    window_s = ttl_s or _LOAD_WINDOW_S
    fields, held_by = _in_flight(runs, requests, window_s, service)
    return fields | {
        "load_window_s": window_s if requests.hashed else None,
        "arrivals": timeline.by_hour(requests),
    }, held_by


def _in_flight(
    runs: reuse.Runs, requests: Requests, window_s: float, service: ServiceModel | None
) -> tuple[dict[str, Any], ServiceModel]:
    """The fields that hang on how long requests are in flight."""
    duration_s, held_by = timeline.durations(requests, service)
    steps = timeline.flight(requests, duration_s)
    active_tokens, active_requests = timeline.in_flight(steps, float(requests.time_s[-1]))
    return {
        "active_tokens": active_tokens,
        "active_requests": active_requests,
        "load": timeline.load(runs, requests, steps, window_s),
    }, held_by


def _starts(runs: reuse.Runs, alive: reuse.Runs, requests: Requests, grid: Ints, measure_from: float) -> dict[str, Any]:
    """Cold and warm figures side by side: all requests, and the later ones of a cache that the earlier warmed."""
    first = int(measure_from * len(requests.input_tokens))
    return {
        "cold": ceilings.hit_rates(runs, requests, 0),
        "warm": ceilings.hit_rates(runs, requests, first),
        "warm_curve": whatif.curve(alive.where(alive.request >= first), requests, grid.tolist(), first),
    }


def _what_ifs_of_runs(runs: reuse.Runs, requests: Requests, tiers: Sequence[int]) -> dict[str, Any]:
    """The fields that look at the log otherwise and follow from its runs."""
    return {
        "drift": drift.find(runs, requests),
        "granularities": whatif.granularities(runs, requests),
        "tiers": whatif.tiers(runs, requests, tiers) if tiers else (),
    }


def _what_ifs(runs: reuse.Runs, requests: Requests, asked: Sequence[int], replicas: int | None) -> dict[str, Any]:
    """The fields that look at the log otherwise and need its block ids."""
    some = hitcurve.handful(requests, asked)
    whole = int(requests.input_tokens.sum())
    hits = int(reuse.run_tokens(runs, requests).sum())
    rendered = whatif.decoded_hit_tokens(requests)
    more = whatif.decoded_hit_blocks(runs, requests) * requests.block_tokens if requests.output_tokens.any() else None
    references = reuse.references(requests)
    shared = {
        "top_prefixes": sharing.top_prefixes(requests, references),
        "hot_set": sharing.hot_set(references),
    }
    keep = whatif.shared_blocks(requests, references)
    del references  # it is as large as the runs
    return shared | {
        "isolation": whatif.isolation(runs, requests, some),
        "without_one_off": whatif.curve(reuse.find_runs(requests, keep=keep), requests, some),
        "prompt_end_hit_ratio": ceilings.ratio(whatif.prompt_end_hit_tokens(runs, requests), whole),
        "decoded_ceiling_hit_ratio": None if more is None else ceilings.ratio(hits + more, whole),
        "decoded_hit_ratio": None if rendered is None else ceilings.ratio(rendered, whole),
        "replicas": whatif.replicas(requests, replicas, some) if replicas is not None else (),
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
    if "optimal" not in named and len(some) * int(requests.offsets[-1]) > _QUICK:
        text = "The optimal policy was not played, as the log is long: --policies optimal does it."
        return {"policies": others}, [Finding(severity="info", code="optimal-not-played", text=text)]
    progress(f"playing the optimal policy at {len(some)} capacities")
    points = []
    for capacity in some:
        depths = policies.hit_depths(requests, "optimal", capacity, runs)
        points.append(hitcurve.points(reuse.as_hits(depths), requests, np.array([capacity]), runs)[0])
    return {"policies": others, "optimal": tuple(points)}, []


def _blocks(option: str, sizes: Sequence[int], requests: Requests) -> list[int]:
    """Capacities in tokens as whole blocks. Raises UsageError for one of less than a block of the log's."""
    if requests.hashed and (small := [tokens for tokens in sizes if tokens < requests.block_tokens]):
        raise UsageError(f"{option} {min(small)}: less than one block, which holds {requests.block_tokens} tokens here")
    return [tokens // requests.block_tokens for tokens in sizes]


def _refuse_nonsense(
    requests: Requests, asked: Sequence[int], ttl_s: float | None, timed: bool, measure_from: float
) -> None:
    if not requests.hashed and (asked or ttl_s is not None):
        names = ", ".join(source.name for source in requests.sources) or "the log"
        raise KvplanError(
            f"{names}: has lengths only, so what it reuses cannot be known and no hit curve is drawn: "
            "give a log with block ids or with the text of its prompts"
        )
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
