"""One schedule, played with offload off and on: what a plan's tiers do to waiting, by a discrete-event model.

Every arm sees the same arrivals, or in a closed loop the same clients. docs/simulation.md says what a step takes, what
is modelled and what is not, and how far absolute times can be trusted.
"""

from __future__ import annotations

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
from kvplan.errors import UsageError
from kvplan.progress import Progress, silent
from kvplan.simulation import rates, remarks, setup, shocks
from kvplan.simulation.loops import OPEN, check
from kvplan.simulation.schedule import schedule_for, schedule_of
from kvplan.simulation.setup import Options
from kvplan.simulation.summary import summarise
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
    With `slo_ttft_s` the sustainable rate of each arm is searched too, on the first 6,000 requests at most, and TTFT in
    all arms at 50, 70 and 85 % of what the first arm sustains. Raises KvplanError for a log that cannot be played or a
    plan that lacks a link or a memory rate.
    """
    if not (math.isfinite(rate_scale) and rate_scale > 0):
        raise UsageError(f"a rate scale of {rate_scale:g} has no meaning: give a factor above 0")
    if slo_ttft_s is not None and not slo_ttft_s > 0:
        raise UsageError("--slo-ttft: no first token comes in no time: give a target above 0")
    check(loop, rate_scale, slo_ttft_s is not None)
    count = len(requests.time_s) if limit is None else min(limit, len(requests.time_s))
    subject = setup.subject_of(plan, requests.block_tokens, options or Options())
    shocks.check(faults, subject.engine, loop, count)
    setup.check_arms(subject.engine, arms)
    engine, played = subject.engine, [*subject.arms, *arms]
    names = [arm.name for arm in played]
    if len(set(names)) < len(names):
        twice = next(name for name in names if names.count(name) > 1)
        raise UsageError(f"two arms are named {twice}: give each --arm a name of its own (off and on are taken)")
    results = [play(requests, engine, arm, faults, rate_scale, limit, progress, loop) for arm in played]
    if slo_ttft_s is not None:
        results = _with_rates(results, requests, engine, slo_ttft_s, limit or RATE_REQUESTS, subject.band, progress)
    span = float(requests.time_s[count - 1] - requests.time_s[0]) / rate_scale
    after = schedule_of(requests, rate_scale, limit, loop=loop).after if loop.kind == "sessions" else ()
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
        not_modelled=setup.not_modelled(engine, loop),
        evidence=subject.evidence,
        loop=loop,
        follow_ups=sum(turn is not None for turn in after),
        findings=(
            *remarks.of_results(results, loop),
            *remarks.of_log(requests),
            *remarks.of_plan(plan, requests, count, any(arm.host_bytes or arm.disk_bytes for arm in played)),
            *remarks.of_source(plan, requests),
            *remarks.of_answers(engine, requests, count),
            *remarks.of_faults(faults, span, loop),
            *remarks.of_rates(faults, slo_ttft_s is not None),
            *remarks.of_loop(requests, loop, after),
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
    schedule = schedule_for(engine, requests, arm, rate_scale, limit, loop)
    world = World(shocks.shocked(schedule, faults), engine, arm, faults)
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
    paced = rates.Paced(requests, engine, arm, limit)
    return rates.sustained(paced, slo_ttft_s, points, progress)


def _with_rates(
    results: Sequence[ArmResult],
    requests: Requests,
    engine: EngineModel,
    slo_ttft_s: float,
    limit: int,
    band: tuple[float, float],
    progress: Progress,
) -> list[ArmResult]:
    """The rate that each arm sustains, and TTFT in all of them at shares of the first arm's."""
    paced = [rates.Paced(requests, engine, one.arm, limit) for one in results]
    found = [rates.sustained(one, slo_ttft_s, RATE_POINTS, progress) for one in paced]
    first = found[0].requests_per_s
    loads = [rates.loads(one, first, progress) if first else () for one in paced]
    return [
        replace(result, sustainable=rates.banded(rate, lower, band), loads=lower)
        for result, rate, lower in zip(results, found, loads, strict=True)
    ]
