"""What was observed beside what the plan said, and where they differ, why that may be."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvplan.documents import (
    Configured,
    Finding,
    Plan,
    PlanCheck,
    ServingSystem,
    TierHits,
    TierTransfer,
    Waiting,
    Workload,
)
from kvplan.units import GiB, show_bytes, show_duration, show_percent, show_tokens

_HITS, _SIZE, _RATE = 0.05, 0.05, 0.25  # how far figures may lie apart and agree: points, and shares of the planned
_FEW_REQUESTS = 200
_TIERS = (("gpu", "GPU"), ("host", "host memory"), ("disk", "disk"))
_SLOWER = (
    "the time counted may span waits and several workers at once; sizes of transfers differ",
    "the pool may not be page-locked (see the engine's log), or other traffic shares the link",
)
_PROBED = "the plan's rate is less than this link carries: run `kvplan probe` on this host and plan again"
_FASTER = {
    "host": (_PROBED, "several workers may each count their own rate at once"),
    "disk": (_PROBED, "the page cache may answer what the drive is asked for: is direct I/O on?"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What a comparison needs of an observation. Counts are of all engines together, `engines` of them."""

    engines: int
    span_s: float | None
    since_start: bool
    started_within: bool
    restarts: int
    hit_ratio: float | None
    prompt_tokens: int | None
    computed_tokens: int | None
    requests: int | None
    hits: Sequence[TierHits]
    transfers: Sequence[TierTransfer]
    waits: Sequence[Waiting]
    configured: Sequence[Configured]
    findings: Sequence[Finding]


def checks(plan: Plan, seen: Seen) -> tuple[PlanCheck, ...]:
    """Every figure that both sides have."""
    rows = [*_sizes(plan, seen), *_traffic(plan, seen), *_links(plan, seen), *_times(plan, seen)]
    return (*_ratios(plan, seen, rows), *rows)


def mistaken(plan: Plan, engines: Sequence[ServingSystem]) -> Iterator[Finding]:
    """Whether the plan may be another server's: another engine is, another name of the model may be."""
    planned = plan.policy.engine
    others = [one.title for one in engines if one.name != planned]
    if planned != "none" and others and len(others) == len(engines):
        text = f"the plan is for {planned} and the pages are of {', '.join(others)}: its figures are another engine's"
        yield Finding(severity="warning", code="plan-engine", text=text)
    model = plan.inputs.estimate.data.model.id
    served = sorted({name for one in engines for name in one.models})
    if served and not any(_alike(name, model) for name in served):
        text = f"the pages name the model {', '.join(served)} and the plan is for {model}: is that the same one?"
        yield Finding(severity="info", code="plan-model", text=text)


def _alike(one: str, other: str) -> bool:
    """Whether two names may be one model's: its last part in both, or in one a beginning of it."""
    a, b = ("".join(filter(str.isalnum, name.rsplit("/", 1)[-1].lower())) for name in (one, other))
    return bool(a and b) and (a in b or b in a)


def _check(what: str, unit: str, planned: float, observed: float, within: float, why: Sequence[str] = ()) -> PlanCheck:
    apart = abs(observed - planned)
    agrees = apart <= (within if unit == "ratio" else within * abs(planned))
    reasons = () if agrees else tuple(why)
    return PlanCheck(
        what=what,
        unit=unit,  # type: ignore[arg-type]
        planned=planned,
        observed=observed,
        agrees=agrees,
        why=reasons,
    )


# -------------------------------------------------------------------------------------------- sizes


def _setting(seen: Seen, key: str) -> float | None:
    return next((one.value for one in seen.configured if one.key == key and one.value is not None), None)


def bytes_per_token(plan: Plan) -> float | None:
    """Bytes of one cached token on the GPUs of a replica, as the plan's budget has it."""
    gpu = plan.budgets.gpu
    return gpu.bytes / gpu.tokens if gpu.tokens else None


def pool_tokens(plan: Plan) -> float | None:
    """Tokens that the GPU pool of one replica was planned to hold, active requests among them."""
    each = bytes_per_token(plan)
    return plan.budgets.gpu.usable_bytes / each if each else None


def observed_pool_tokens(plan: Plan, seen: Seen) -> float | None:
    """Tokens of one engine's pool. Blocks times their size says so only where all layers grow alike."""
    tokens = _setting(seen, "gpu_tokens")
    if tokens is not None:
        return tokens
    blocks, size = _setting(seen, "gpu_blocks"), _setting(seen, "block_tokens")
    plain = {group.kind for group in plan.inputs.estimate.data.groups} <= {"full", "latent"}
    return blocks * size if blocks is not None and size is not None and plain else None


def observed_host_bytes(plan: Plan, seen: Seen) -> float | None:
    """Bytes of one engine's host pool, as it states them."""
    stated = _setting(seen, "host_bytes") or _setting(seen, "shared_host_bytes")
    if stated is None and (gib := _setting(seen, "host_gib")) is not None:
        return gib * GiB
    tokens, each = _setting(seen, "host_tokens"), bytes_per_token(plan)
    if stated is None and tokens is not None and each:
        return tokens * each
    return stated


def _sizes(plan: Plan, seen: Seen) -> Iterator[PlanCheck]:
    planned, found = pool_tokens(plan), observed_pool_tokens(plan, seen)
    if planned and found is not None:
        why = "weights, overhead or the memory fraction differ from the plan's: read the engine's start-up log"
        yield _check("tokens in the GPU pool of one engine", "tokens", planned, found, _SIZE, [why])
    wanted, given = plan.budgets.host.requested_bytes, observed_host_bytes(plan, seen)
    if given is not None:
        whys = ["the flag was set to another size, or its unit was taken for another (GiB or GB, total or a rank)"]
        if _setting(seen, "shared_host_bytes") is not None:
            whys.append("the pool belongs to a server that all engines of a node share, the plan's is one engine's")
        yield _check("host pool of one engine", "bytes", wanted, given, _SIZE, whys)
    elif wanted and not any(one.way == "store" for one in seen.transfers):
        why = "no metric of a host pool is on the pages: it is switched off, or runs in a process not observed"
        yield PlanCheck(
            what="host pool of one engine", unit="bytes", planned=wanted, observed=None, agrees=False, why=(why,)
        )


# -------------------------------------------------------------------------------------------- traffic, links, times


def _traffic(plan: Plan, seen: Seen) -> Iterator[PlanCheck]:
    workload, policy = plan.inputs.workload.data, plan.policy
    if seen.requests and seen.span_s and workload.span_s:
        planned = workload.requests / workload.span_s * policy.growth / max(1, policy.replicas)
        why = "the log is of other hours, or the load has moved: profile a log of this time"
        yield _check(
            "requests of one engine", "per_s", planned, seen.requests / seen.span_s / seen.engines, _RATE, [why]
        )
    if seen.requests and seen.prompt_tokens and workload.requests:
        planned = workload.input_tokens / workload.requests
        why = "prompts are of another length than in the log: profile a log of this time"
        yield _check("prompt of a request", "tokens", planned, seen.prompt_tokens / seen.requests, _RATE, [why])


def _links(plan: Plan, seen: Seen) -> Iterator[PlanCheck]:
    for one in seen.transfers:
        if one.busy_bytes_per_s is None or one.way != "load":
            continue
        tier = "disk" if one.source == "disk" else "host"
        link = next((cell.link_bytes_per_s for cell in plan.break_even if cell.tier == tier), None)
        if link is not None:
            reached = _SLOWER if one.busy_bytes_per_s < link else _FASTER[tier]
            yield _check(
                f"loads from {_words(tier)}, while they run", "bytes_per_s", link, one.busy_bytes_per_s, 0.5, reached
            )
    stored = next((one for one in plan.alternatives if one.name == "recommended"), None)
    rates = [one.mean_bytes_per_s for one in seen.transfers if one.way == "store" and one.source == "gpu"]
    known = [rate for rate in rates if rate is not None]
    if stored is not None and stored.stored_bytes_per_hour and known:
        planned = stored.stored_bytes_per_hour / 3600
        why = [
            "more or less is computed anew than in the log",
            "the engine leaves some blocks out (decoded, too short)",
        ]
        yield _check("stores of one engine", "bytes_per_s", planned, sum(known) / seen.engines, _RATE, why)


def _words(tier: str) -> str:
    return dict(_TIERS)[tier]


def _times(plan: Plan, seen: Seen) -> Iterator[PlanCheck]:
    slo = plan.policy.slo_ttft_s
    for one in seen.waits:
        middle = next((q for q in one.quantiles if q.q == 0.9), None)
        if slo is not None and one.what == "time to first token" and middle is not None:
            reasons = [] if middle.value_s <= slo else ["see queue waits and hits for where the time goes"]
            yield PlanCheck(
                what="p90 time to first token, against the target",
                unit="s",
                planned=slo,
                observed=middle.value_s,
                agrees=middle.value_s <= slo,
                why=tuple(reasons),
            )


# -------------------------------------------------------------------------------------------- hits


def _ratios(plan: Plan, seen: Seen, others: Sequence[PlanCheck]) -> Iterator[PlanCheck]:
    budgets = plan.budgets

    def held(what: str, planned: float, found: float) -> PlanCheck:
        return _check(what, "ratio", planned, found, _HITS, reasons(plan, seen, others, found > planned))

    if seen.hit_ratio is not None:
        planned = max(budgets.gpu.hit_ratio, budgets.host.hit_ratio, budgets.disk.hit_ratio)
        yield held("hits, all tiers", planned, seen.hit_ratio)
    below = _found(seen, "external")
    untold = bool(below) and not any(_found(seen, tier) for tier in ("host", "disk", "remote"))
    before = 0.0
    for tier, name in _TIERS:
        planned = max(0.0, getattr(budgets, tier).hit_ratio - before)
        before = max(before, getattr(budgets, tier).hit_ratio)
        found = _found(seen, tier)
        if found is not None and (planned or found) and not (untold and tier != "gpu"):
            yield held(f"hits, {name}", planned, found)
    if untold and below is not None:  # a connector that does not say which of its tiers had a token
        yield held("hits, below the GPU", before - budgets.gpu.hit_ratio, below)


def _found(seen: Seen, tier: str) -> float | None:
    """The hit ratio of a tier, as the first system that counts it says."""
    return next((one.hit_ratio for one in seen.hits if one.tier == tier and one.hit_ratio is not None), None)


def reasons(plan: Plan, seen: Seen, others: Sequence[PlanCheck], more: bool) -> list[str]:
    """Why hits may differ from those planned, those that the figures show before those that they cannot.

    `more` hits than planned have other reasons than fewer: a cold cache or a smaller pool explains none of them.
    """
    return _why_more(plan, seen, others) if more else _why_fewer(plan, seen, others)


def _why_more(plan: Plan, seen: Seen, others: Sequence[PlanCheck]) -> list[str]:
    pools = (observed_pool_tokens(plan, seen) or 0.0) > (pool_tokens(plan) or math.inf)
    found = [text for text in (_short(seen), _pool(plan, seen) if pools else "", *_apart(others, larger=True)) if text]
    found.append("prompts of now share more than those of the log: profile a log of this time and plan again")
    found.append("not visible in metrics: the same prompts sent again, as benchmarks and health checks do")
    return found


def _why_fewer(plan: Plan, seen: Seen, others: Sequence[PlanCheck]) -> list[str]:
    pools = (observed_pool_tokens(plan, seen) or 0.0) < (pool_tokens(plan) or 0.0)
    pool = _pool(plan, seen) if pools else ""
    found = [text for text in (_off(seen), _cold(plan, seen), _short(seen), pool) if text]
    found += _apart(others, larger=False)
    if seen.restarts:
        found.append(f"servers restarted within the window ({seen.restarts} times): caches began empty")
    if seen.engines > 1 and plan.policy.routing == "affinity":
        found.append(f"{seen.engines} engines: the plan sends a conversation back to its engine, does the router?")
    found.append("not visible in metrics: salts or tenants that keep requests apart, templates that change the prompt")
    return found


def _apart(others: Sequence[PlanCheck], larger: bool) -> list[str]:
    """Other figures that differ and move hits: a host pool by its size, traffic whichever way."""
    return [
        f"{one.what}: {_figure(one.observed, one.unit)}, planned with {_figure(one.planned, one.unit)}"
        for one in others
        if not one.agrees
        and (
            one.what in ("requests of one engine", "prompt of a request")
            or (one.what == "host pool of one engine" and ((one.observed or 0.0) > one.planned) == larger)
        )
    ]


def _off(seen: Seen) -> str:
    caching = next((one.text for one in seen.configured if one.key == "prefix_caching"), "")
    if caching.lower() == "false":
        return "prefix caching is switched off"
    dead = [one.code for one in seen.findings if one.severity == "error" or one.code.endswith("-zero")]
    return f"alarms below: {', '.join(dict.fromkeys(dead))}" if dead else ""


def _cold(plan: Plan, seen: Seen) -> str:
    """A cache that has not been filled yet: fewer tokens computed since it was empty than it holds."""
    if not (seen.since_start or seen.started_within) or seen.computed_tokens is None:
        return ""
    holds = _held_tokens(plan, seen) * seen.engines
    if not holds or seen.computed_tokens >= holds:
        return ""
    filled = show_percent(seen.computed_tokens / holds)
    return f"cold start: {show_tokens(seen.computed_tokens)} tokens computed since, {filled} of what the tiers hold"


def _held_tokens(plan: Plan, seen: Seen) -> float:
    """Tokens that one engine's tiers hold when full: as configured where that is known, else as planned."""
    pool, host, each = observed_pool_tokens(plan, seen), observed_host_bytes(plan, seen), bytes_per_token(plan)
    gpu = plan.budgets.gpu.tokens if pool is None else pool
    if host is not None and each:
        return max(gpu, host / each)  # a host tier repeats what the GPU holds, or adds to it: the less is claimed
    return gpu


def _short(seen: Seen) -> str:
    if seen.requests is not None and seen.requests < _FEW_REQUESTS:
        span = f" in {show_duration(seen.span_s)}" if seen.span_s else ""
        return f"the window is short: {seen.requests:,} requests{span} ended"
    return ""


def _pool(plan: Plan, seen: Seen) -> str:
    """With another pool than planned: what the log's own curve gives for it."""
    planned, found = pool_tokens(plan), observed_pool_tokens(plan, seen)
    if not planned or found is None or abs(found - planned) <= _SIZE * planned:
        return ""
    left = max(0.0, plan.budgets.gpu.tokens + found - planned)
    expected = at(plan.inputs.workload.data, left)
    said = "" if expected is None else f": for that the log's curve gives {show_percent(expected)} on the GPU"
    return f"the GPU pool holds {show_tokens(found)} tokens, planned with {show_tokens(planned)}{said}"


def at(workload: Workload, tokens: float) -> float | None:
    """The hit ratio of the workload's curve at a capacity, on a straight line between its points."""
    before = (0.0, 0.0)
    for point in workload.curve:
        if point.capacity_tokens >= tokens:
            width = point.capacity_tokens - before[0]
            share = (tokens - before[0]) / width if width else 1.0
            return before[1] + (point.hit_ratio - before[1]) * share
        before = (float(point.capacity_tokens), point.hit_ratio)
    return before[1] if workload.curve else None


def _figure(value: float | None, unit: str) -> str:
    if value is None:
        return "not seen"
    match unit:
        case "bytes":
            return show_bytes(value)
        case "per_s":
            return f"{value:.3g}/s"
        case "ratio":
            return show_percent(value)
        case _:
            return show_tokens(value)
