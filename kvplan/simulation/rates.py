"""One log at other rates: the highest that still meets the target time to first token, and what lies below it.

The log is compressed in time: order and shape of its arrivals stay, their rate does not.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Sequence

from msgspec.structs import replace

from kvplan.documents import Arm, EngineModel, LoadPoint, RatePoint, Requests, SustainableRate
from kvplan.errors import KvplanError
from kvplan.progress import Progress
from kvplan.simulation.measures import curve, quantile, ttfts
from kvplan.simulation.schedule import schedule_for
from kvplan.simulation.summary import summarise
from kvplan.simulation.world import World

SHARE = 0.9
SPAN = 4.0  # the first guess is tried from a fourth of it to four times it
LOADS = (0.5, 0.7, 0.85)


class Paced:
    """The first `limit` requests of a log, to be played at any rate in one arm, from a cold start."""

    def __init__(self, requests: Requests, engine: EngineModel, arm: Arm, limit: int) -> None:
        self.engine = engine
        self.arm = arm
        self.base = schedule_for(engine, requests, arm, 1.0, limit)
        self.count, span = len(self.base.times), self.base.times[-1]
        if not span:
            raise KvplanError("the schedule spans no time, so it has no rate: play more requests")
        self.logged = self.count / span

    def guess(self) -> float:
        """The rate at which prefill without any hit would keep the engine busy."""
        a, b, t0 = self.engine.a_s_per_token, self.engine.b_s_per_token_sq, self.engine.t0_s
        work = sum(a * tokens + b * tokens**2 + t0 for tokens, _ in self.base.sizes)
        return self.engine.replicas * self.count / work if work else self.logged

    def at(self, rate: float) -> World:
        """The log at so many requests a second, played to its end."""
        times = [when * self.logged / rate for when in self.base.times]
        world = World(dataclasses.replace(self.base, times=times), self.engine, self.arm)
        world.play()
        return world

    def p90(self, rate: float) -> float | None:
        """p90 TTFT at a rate; None where nobody had a first token."""
        times = sorted(ttfts(self.at(rate).requests))
        return quantile(times, SHARE) if times else None


def sustained(paced: Paced, slo_s: float, points: int, progress: Progress) -> SustainableRate:
    """The highest rate of an arm."""

    def p90_at(rate: float) -> float | None:
        progress(f"arm {paced.arm.name}: sustainable rate, {rate:.3g}/s", len(tried) / points)
        return paced.p90(rate)

    tried: list[RatePoint] = []
    search(p90_at, paced.guess(), slo_s, points, tried)
    holds = [one.requests_per_s for one in tried if one.holds]
    fails = [one.requests_per_s for one in tried if not one.holds]
    return SustainableRate(
        slo_ttft_s=slo_s,
        share=SHARE,
        requests=paced.count,
        points=points,
        requests_per_s=max(holds, default=None),
        fails_at=min(fails, default=None),
        tried=tuple(tried),
    )


def banded(found: SustainableRate, lower: Sequence[LoadPoint], band: tuple[float, float]) -> SustainableRate:
    """With what the rate would be if true times were `band` (lowest, highest) times those modelled.

    Between all rates played: those of the search, and the lower ones at which distributions were taken.
    """
    played = {one.requests_per_s: one.ttft_p90_s for one in found.tried}
    for load in lower:
        played[load.requests_per_s] = next((one.seconds for one in load.ttft if one.share == SHARE), None)
    points = [(rate, p90) for rate, p90 in sorted(played.items()) if p90]
    return replace(
        found,
        low_per_s=crossing(points, found.slo_ttft_s / band[1]),
        high_per_s=crossing(points, found.slo_ttft_s / band[0]) if band[0] else None,
    )


def search(
    p90_at: Callable[[float], float | None], guess: float, slo_s: float, points: int, tried: list[RatePoint]
) -> None:
    """Bisect between guess / 4 and guess * 4 on a geometric scale; `tried` gets every rate that was played."""
    low, high = math.log(guess / SPAN), math.log(guess * SPAN)
    for _ in range(points):
        middle = (low + high) / 2
        p90 = p90_at(math.exp(middle))
        holds = p90 is not None and p90 <= slo_s
        if holds:
            low = middle
        else:
            high = middle
        tried.append(RatePoint(requests_per_s=math.exp(middle), ttft_p90_s=p90, holds=holds))


def crossing(points: Sequence[tuple[float, float]], target_s: float) -> float | None:
    """The rate at which p90 TTFT passes a target, straight between two of `points` (rate, p90) on logarithmic axes.

    Points are in order of rates. None where all of them lie on one side of the target.
    """
    below = [number for number, (_, p90) in enumerate(points) if p90 <= target_s]
    if not below or below[-1] + 1 == len(points):
        return None
    (rate, under), (next_rate, over) = points[below[-1]], points[below[-1] + 1]
    part = math.log(target_s / under) / math.log(over / under)
    return math.exp(math.log(rate) + part * math.log(next_rate / rate))


def loads(paced: Paced, sustained_per_s: float, progress: Progress) -> tuple[LoadPoint, ...]:
    """The arm at shares of one rate, which is that of another arm too."""
    points = []
    for number, share in enumerate(LOADS):
        rate = share * sustained_per_s
        progress(f"arm {paced.arm.name}: TTFT at {rate:.3g}/s", number / len(LOADS))
        world = paced.at(rate)
        result = summarise(world)
        points.append(
            LoadPoint(
                load_ratio=share,
                requests_per_s=rate,
                hit_ratio=result.hit_ratio,
                gpu_busy_ratio=result.gpu_busy_ratio,
                ttft=curve(ttfts(world.requests)),
            )
        )
    return tuple(points)
