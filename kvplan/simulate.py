"""One schedule, played with offload off and on: what a plan's tiers do to waiting, by a discrete-event model.

Every arm sees the same arrivals (open loop). docs/simulation.md says what a step takes, what is modelled and what is
not, and how far absolute times can be trusted.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence

from msgspec.structs import replace

from kvplan.documents import (
    Arm,
    ArmResult,
    EngineModel,
    Fault,
    Finding,
    Plan,
    Requests,
    Simulation,
    SustainableRate,
)
from kvplan.errors import KvplanError, UsageError
from kvplan.progress import Progress, silent
from kvplan.simulation import rates, setup
from kvplan.simulation.schedule import schedule_of
from kvplan.simulation.setup import Options
from kvplan.simulation.summary import quantile, summarise, ttfts
from kvplan.simulation.variants import arm_of, fault_of
from kvplan.simulation.world import World

__all__ = ["Options", "arm_of", "fault_of", "play", "run", "sustainable"]

RATE_POINTS = 7
RATE_REQUESTS = 6000
SATURATED = 0.97


def run(
    plan: Plan,
    requests: Requests,
    *,
    arms: Sequence[Arm] = (),
    faults: Sequence[Fault] = (),
    rate_scale: float = 1.0,
    limit: int | None = None,
    slo_ttft_s: float | None = None,
    options: Options | None = None,
    progress: Progress = silent,
) -> Simulation:
    """Play a log in the arms `off`, `on` (what the plan recommends) and `arms`, all on the plan's engine.

    With `slo_ttft_s` the sustainable rate of each arm is searched too, on the first 6,000 requests at most. Raises
    KvplanError for a log that cannot be played or a plan that lacks a link or a memory rate.
    """
    if not (math.isfinite(rate_scale) and rate_scale > 0):
        raise UsageError(f"a rate scale of {rate_scale:g} has no meaning: give a factor above 0")
    engine, evidence = setup.engine_of(plan, requests.block_tokens, options or Options())
    played = [*setup.default_arms(plan), *arms]
    names = [arm.name for arm in played]
    if len(set(names)) < len(names):
        raise UsageError(f"arms need names of their own: {', '.join(names)} has one twice")
    results = []
    for arm in played:
        result = play(requests, engine, arm, faults, rate_scale, limit, progress)
        if slo_ttft_s is not None:
            found = sustainable(requests, engine, arm, slo_ttft_s, limit or RATE_REQUESTS, progress=progress)
            result = replace(result, sustainable=found)
        results.append(result)
    low, high = setup.band(plan.prefill)
    count = results[0].submitted
    span = float(requests.time_s[count - 1] - requests.time_s[0]) / rate_scale
    return Simulation(
        sources=requests.sources,
        model=plan.inputs.estimate.data.model,
        engine=engine,
        requests=count,
        rate_scale=rate_scale,
        requests_per_s=count / span if span else 0.0,
        arms=tuple(results),
        faults=tuple(faults),
        time_low_ratio=low,
        time_high_ratio=high,
        band=setup.BAND,
        not_modelled=setup.NOT_MODELLED,
        evidence=evidence,
        findings=(*_findings(results), *_about(plan, requests)),
    )


def play(
    requests: Requests,
    engine: EngineModel,
    arm: Arm,
    faults: Sequence[Fault] = (),
    rate_scale: float = 1.0,
    limit: int | None = None,
    progress: Progress = silent,
) -> ArmResult:
    """One arm of one schedule on one engine."""
    schedule = schedule_of(requests, rate_scale, limit, arm.share)
    world = World(schedule, engine, arm, faults)
    world.play(progress)
    return summarise(world)


def sustainable(
    requests: Requests,
    engine: EngineModel,
    arm: Arm,
    slo_ttft_s: float,
    limit: int = RATE_REQUESTS,
    points: int = RATE_POINTS,
    progress: Progress = silent,
) -> SustainableRate:
    """The highest rate at which p90 TTFT stays within the SLO, from a cold start, by time compression of the log."""
    base = schedule_of(requests, 1.0, limit, arm.share)
    count, span = len(base.times), base.times[-1]
    if not span:
        raise KvplanError("the schedule spans no time, so it has no rate: play more requests")
    logged = count / span
    works = [
        engine.a_s_per_token * tokens + engine.b_s_per_token_sq * tokens**2 + engine.t0_s for tokens, _ in base.sizes
    ]
    guess = engine.replicas * count / sum(works) if sum(works) else logged
    tried = 0

    def p90_at(rate: float) -> float | None:
        nonlocal tried
        progress(f"arm {arm.name}: sustainable rate, {rate:.3g}/s", tried / points)
        tried += 1
        schedule = dataclasses.replace(base, times=[when * logged / rate for when in base.times])
        world = World(schedule, engine, arm)
        world.play()
        times = sorted(ttfts(world.requests))
        return quantile(times, rates.SHARE) if times else None

    return rates.search(p90_at, guess, slo_ttft_s, points, count)


def _findings(results: Sequence[ArmResult]) -> tuple[Finding, ...]:
    findings = []
    if len(results) == 1:
        text = "the plan gives no tier any memory, so there is only the arm without: add one with --arm to compare"
        findings.append(Finding(severity="info", code="one-arm", text=text))
    unfit = max(result.cancelled.get("does not fit", 0) for result in results)
    if unfit:
        text = f"{unfit:,} requests are longer than the GPU's whole KV cache: turned away in every arm"
        findings.append(Finding(severity="warning", code="does-not-fit", text=text))
    full = [result.arm.name for result in results if result.gpu_busy_ratio > SATURATED]
    if full:
        text = (
            f"the engine is busy more than {SATURATED:.0%} of the time in {', '.join(full)}: at or past saturation a "
            "queue grows with the log, and its waiting says little; compare sustainable rates (--slo-ttft)"
        )
        findings.append(Finding(severity="warning", code="saturated", text=text))
    return tuple(findings)


def _about(plan: Plan, requests: Requests) -> tuple[Finding, ...]:
    """What the plan or the log makes of the model."""
    policy, groups = plan.policy, plan.inputs.estimate.data.groups
    kinds = sorted({group.kind for group in groups if group.kind in ("sliding", "chunked", "recurrent", "cross")})
    cases: tuple[tuple[bool, str, str], ...] = (
        (
            not requests.output_tokens.any(),
            "no-output",
            "the log states no output lengths: every answer is played as one token, so decoding is not there",
        ),
        (
            bool(kinds),
            "layers-not-modelled",
            f"{', '.join(kinds)} layers are played as if they kept every token at the plan's bytes a token",
        ),
        (
            policy.growth != 1,
            "growth",
            f"the plan is for {policy.growth:g} times the log's demand: play that with --rate-scale {policy.growth:g}",
        ),
        (
            policy.routing == "session" and not (requests.session >= 0).any(),
            "no-sessions",
            "the log names no sessions: requests go where most of their prompt went last, else to the least busy",
        ),
    )
    return tuple(Finding(severity="warning", code=code, text=text) for holds, code, text in cases if holds)
