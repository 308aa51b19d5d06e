"""One schedule, played with offload off and on: what a plan's tiers do to waiting, by a discrete-event model.

Every arm sees the same arrivals, or in a closed loop the same clients. docs/simulation.md says what a step takes, what
is modelled and what is not, and how far absolute times can be trusted.
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
    Loop,
    Plan,
    Requests,
    Simulation,
    SustainableRate,
)
from kvplan.errors import KvplanError, UsageError
from kvplan.progress import Progress, silent
from kvplan.simulation import rates, remarks, setup
from kvplan.simulation.loops import OPEN, check
from kvplan.simulation.schedule import schedule_of
from kvplan.simulation.setup import Options
from kvplan.simulation.summary import quantile, summarise, ttfts
from kvplan.simulation.variants import arm_of, fault_of, loop_of, output_rule
from kvplan.simulation.world import World

__all__ = ["Options", "arm_of", "fault_of", "loop_of", "output_rule", "play", "run", "sustainable"]

RATE_POINTS = 7
RATE_REQUESTS = 6000


def run(
    plan: Plan | EngineModel,
    requests: Requests,
    *,
    arms: Sequence[Arm] = (),
    faults: Sequence[Fault] = (),
    rate_scale: float = 1.0,
    limit: int | None = None,
    slo_ttft_s: float | None = None,
    options: Options | None = None,
    loop: Loop = OPEN,
    progress: Progress = silent,
) -> Simulation:
    """Play a log in the arms `off`, `on` (what the plan recommends) and `arms`, all on the plan's engine.

    An engine given by its figures instead of a plan is played in `off` and `arms`; `options` say nothing of it then.
    With `slo_ttft_s` the sustainable rate of each arm is searched too, on the first 6,000 requests at most. Raises
    KvplanError for a log that cannot be played or a plan that lacks a link or a memory rate.
    """
    if not (math.isfinite(rate_scale) and rate_scale > 0):
        raise UsageError(f"a rate scale of {rate_scale:g} has no meaning: give a factor above 0")
    check(loop, rate_scale, slo_ttft_s is not None)
    subject = setup.subject_of(plan, requests.block_tokens, options or Options())
    engine, played = subject.engine, [*subject.arms, *arms]
    names = [arm.name for arm in played]
    if len(set(names)) < len(names):
        raise UsageError(f"arms need names of their own: {', '.join(names)} has one twice")
    results = []
    for arm in played:
        result = play(requests, engine, arm, faults, rate_scale, limit, progress, loop)
        if slo_ttft_s is not None:
            found = sustainable(requests, engine, arm, slo_ttft_s, limit or RATE_REQUESTS, progress=progress)
            result = replace(result, sustainable=found)
        results.append(result)
    count = results[0].submitted
    span = float(requests.time_s[count - 1] - requests.time_s[0]) / rate_scale
    schedule = schedule_of(requests, rate_scale, limit, loop=loop)
    return Simulation(
        sources=requests.sources,
        model=subject.model,
        engine=engine,
        requests=count,
        rate_scale=rate_scale,
        requests_per_s=count / span if loop.kind == "open" and span > 0 else None,
        arms=tuple(results),
        faults=tuple(faults),
        time_low_ratio=subject.band[0],
        time_high_ratio=subject.band[1],
        band=setup.BAND,
        not_modelled=setup.not_modelled(loop),
        evidence=subject.evidence,
        loop=loop,
        follow_ups=sum(turn is not None for turn in schedule.after),
        findings=(
            *remarks.of_results(results),
            *remarks.of_log(requests),
            *remarks.of_plan(plan, requests),
            *remarks.of_loop(requests, loop, schedule.after),
        ),
    )


def play(
    requests: Requests,
    engine: EngineModel,
    arm: Arm,
    faults: Sequence[Fault] = (),
    rate_scale: float = 1.0,
    limit: int | None = None,
    progress: Progress = silent,
    loop: Loop = OPEN,
) -> ArmResult:
    """One arm of one schedule on one engine."""
    schedule = schedule_of(requests, rate_scale, limit, arm.share, loop, engine.output_blocks == "reuse")
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
    base = schedule_of(requests, 1.0, limit, arm.share, OPEN, engine.output_blocks == "reuse")
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
