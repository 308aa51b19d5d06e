"""What a request log does over time: arrivals, tokens in flight, working sets, and how soon blocks are reused.

All figures are exact sums over the log's requests and runs of reuse; none is sampled on a clock.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan import reuse
from kvplan.documents import Arrivals, Interval, Load, Percentiles, Requests, ServiceModel, WorkingSet

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

_MOST_STRETCHES = 200
_DATED_S = 1e9
_WIDTHS_S = (1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 14400, 21600, 43200, 86400)
_WINDOWS_S = (1, 10, 60, 300, 600, 1800, 3600, 7200, 14400, 28800, 86400, 604800)
_INTERVALS_S = (
    *(0, 1, 2, 5, 10, 20, 30, 60, 120, 300, 600, 1200, 1800, 3600),
    *(7200, 14400, 28800, 43200, 86400, 172800, 604800, 2592000),
)

ASSUMED_SERVICE = ServiceModel(
    provenance="assumed",
    prefill_tokens_per_s=8000.0,
    decode_s_per_token=0.03,
    source="assumed for want of durations in the log: prefill of every input token, then decoding; no queueing",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Flight:
    """Requests in flight as a step function: from `time_s[i]` on, `requests[i]` hold `tokens[i]` tokens."""

    time_s: Floats
    requests: Ints
    tokens: Ints


def percentiles(values: NDArray[Any], weights: NDArray[Any] | None = None) -> Percentiles:
    """Percentiles of `values` by `weights` (1 each): the least value that the given share does not exceed."""
    if weights is None or not weights.sum():
        weights = np.ones(len(values))
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order])
    at = np.searchsorted(reached, np.array((0.5, 0.95, 0.99)) * reached[-1] * (1 - 1e-12))
    p50, p95, p99 = (float(values[order][index]) for index in at)
    present = values[weights > 0]
    mean = float((values * weights).sum() / reached[-1])
    return Percentiles(p50=p50, p95=p95, p99=p99, max=float(present.max()), mean=mean)


def durations(requests: Requests, service: ServiceModel | None) -> tuple[Floats, ServiceModel]:
    """Seconds each request was in flight, and where that comes from: the log, or `service` for those it leaves out."""
    known = ~np.isnan(requests.duration_s)
    if known.all():
        return np.asarray(requests.duration_s, np.float64), ServiceModel(
            provenance="measured", source="durations in the log"
        )
    model = service or ASSUMED_SERVICE
    assumed = requests.output_tokens * (model.decode_s_per_token or 0.0)
    if model.prefill_tokens_per_s:
        assumed = assumed + requests.input_tokens / model.prefill_tokens_per_s
    return np.where(known, requests.duration_s, assumed), model


def flight(requests: Requests, duration_s: Floats) -> Flight:
    """Requests in flight over time, each holding its input and its whole output from arrival to end.

    An upper bound: the output grows only as it is decoded, and requests that share a prefix share its blocks.
    """
    time_s = np.concatenate((requests.time_s, requests.time_s + duration_s))
    order = np.argsort(time_s, kind="stable")
    sign = np.repeat((1, -1), len(duration_s))[order]
    held = np.tile(requests.input_tokens + requests.output_tokens, 2)[order]
    time_s = time_s[order]
    last = np.append(np.diff(time_s) > 0, True)  # of events at one moment only the sum is a state
    return Flight(time_s=time_s[last], requests=np.cumsum(sign)[last], tokens=np.cumsum(sign * held)[last])


def in_flight(steps: Flight, until_s: float) -> tuple[Percentiles, Percentiles]:
    """Percentiles over time of tokens and of requests in flight, from the first arrival to `until_s`.

    Where everything arrives at one moment, to the end of the last request.
    """
    spent = np.diff(np.minimum(steps.time_s, until_s), append=until_s)
    if not spent.clip(min=0).sum():
        spent = np.diff(steps.time_s, append=steps.time_s[-1])
    spent = spent.clip(min=0)
    return percentiles(steps.tokens, spent), percentiles(steps.requests, spent)


def intervals(gap_s: Floats, tokens: Ints, extra_s: float | None) -> tuple[Interval, ...]:
    """Tokens reused within each of a ladder of times since their last use: also the hits under that TTL, cold start."""
    if not gap_s.size:
        return ()
    order = np.argsort(gap_s, kind="stable")
    total = np.concatenate((np.zeros(1, np.int64), np.cumsum(tokens[order])))
    longest = float(gap_s[order[-1]])
    ladder = [float(bound) for bound in _INTERVALS_S]
    end = next((i for i, bound in enumerate(ladder) if bound >= longest), len(ladder) - 1)
    bounds = sorted({*ladder[: end + 1], *({longest} if longest > ladder[-1] else ()), *({extra_s} if extra_s else ())})
    counts = total[np.searchsorted(gap_s[order], bounds, side="right")]
    return tuple(Interval(at_most_s=bound, tokens=int(count)) for bound, count in zip(bounds, counts, strict=True))


def mean_resident(hold_s: Floats, weight: Ints, windows_s: Floats, span_s: float) -> Floats:
    """Mean of what is resident if all stays for a window after its last use: Σ weight · min(hold, window) / span.

    `hold_s` is the time from a use to the next of the same block, or to the end of the log.
    """
    order = np.argsort(hold_s, kind="stable")
    hold, weight = hold_s[order], weight[order]
    within = np.concatenate((np.zeros(1), np.cumsum(weight * hold)))
    counted = np.concatenate((np.zeros(1), np.cumsum(weight, dtype=np.float64)))
    at = np.searchsorted(hold, windows_s, side="right")
    mean: Floats = (within[at] + windows_s * (counted[-1] - counted[at])) / span_s
    return mean


def working_sets(runs: reuse.Runs, requests: Requests, extra_s: float | None) -> tuple[WorkingSet, ...]:
    """Mean and maximum of the Denning working set for a ladder of windows up to the log's span."""
    time_s = requests.time_s
    span = float(time_s[-1] - time_s[0])
    windows = sorted({*(float(window) for window in _WINDOWS_S if window <= span), *({extra_s} if extra_s else ())})
    if span == 0 or not windows:
        return ()
    tokens = reuse.run_tokens(runs, requests)
    left = reuse.covered_tokens(requests)
    np.subtract.at(left, runs.toucher, tokens)
    hold = np.concatenate((time_s[runs.request] - time_s[runs.toucher], time_s[-1] - time_s))
    means = mean_resident(hold, np.concatenate((tokens, left)), np.array(windows), span)
    return tuple(
        WorkingSet(
            window_s=window,
            mean_tokens=round(mean),
            max_tokens=reuse.working_set(runs, requests, window, np.zeros(0))[0],
        )
        for window, mean in zip(windows, means.tolist(), strict=True)
    )


def load(runs: reuse.Runs, requests: Requests, steps: Flight, window_s: float) -> tuple[Load, ...]:
    """The log in at most 200 stretches of equal, round width, with the working set of `window_s` at each one's end."""
    time_s = requests.time_s - requests.time_s[0]
    span = float(time_s[-1])
    days = float(np.ceil((span + 1) / (_MOST_STRETCHES - 1) / 86400)) * 86400
    width = next((float(width) for width in _WIDTHS_S if span / width < _MOST_STRETCHES), days)
    count = int(span // width) + 1
    at = (time_s // width).astype(np.int64)
    ends = requests.time_s[0] + width * np.arange(1, count + 1)
    before_end = np.minimum(np.nextafter(ends, -np.inf), float(requests.time_s[-1])).astype(np.float64)
    _, resident = reuse.working_set(runs, requests, window_s, before_end)
    starts = width * np.arange(count)
    step_s = steps.time_s - requests.time_s[0]
    active = steps.tokens[np.searchsorted(step_s, starts, side="right") - 1]
    inside = step_s < width * count
    np.maximum.at(active, (step_s[inside] // width).astype(np.int64), steps.tokens[inside])
    arrived = [
        np.bincount(at, weights=weight, minlength=count).astype(np.int64)
        for weight in (np.ones(at.size), requests.input_tokens, requests.output_tokens)
    ]
    return tuple(
        Load(
            start_s=float(starts[i]),
            width_s=width,
            requests=int(arrived[0][i]),
            input_tokens=int(arrived[1][i]),
            output_tokens=int(arrived[2][i]),
            active_tokens=int(active[i]),
            working_set_tokens=int(resident[i]) if requests.hashed else None,
        )
        for i in range(count)
    )


def by_hour(requests: Requests) -> tuple[Arrivals, ...]:
    """What arrived in each hour of the day: UTC where the stamps are dates (after 2001), else from the log's start.

    Empty for a log of an hour or less.
    """
    time_s = np.asarray(requests.time_s, np.float64)
    start = 0.0 if time_s[0] >= _DATED_S else float(time_s[0])
    if time_s[-1] - time_s[0] <= 3600:
        return ()
    hour = ((time_s - start) // 3600 % 24).astype(np.int64)
    arrived = np.bincount(hour, minlength=24)
    tokens = np.zeros(24, np.int64)
    np.add.at(tokens, hour, requests.input_tokens)
    return tuple(
        Arrivals(hour=i, requests=int(arrived[i]), input_tokens=int(tokens[i]))
        for i in np.flatnonzero(arrived).tolist()
    )
