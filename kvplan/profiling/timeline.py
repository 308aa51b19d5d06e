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
from kvplan.kernels import compiled

Ints: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]

_MOST_STRETCHES = 200
_SOME = 1 << 16  # steps at a time
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
    requests: NDArray[np.int32]
    tokens: Ints


def percentiles(values: NDArray[Any], weights: NDArray[Any] | None = None) -> Percentiles:
    """Percentiles of `values` by `weights` (1 each): the least value that the given share does not exceed."""
    shares, slack = np.array((0.5, 0.95, 0.99)), 1 - 1e-12
    evenly = weights is None or not weights.sum()
    if weights is None or evenly:
        weights = np.broadcast_to(1.0, len(values))
    total = (values * weights).sum()
    most = values.max(where=weights > 0, initial=values.min())
    order = np.argsort(values, kind="stable")
    if evenly:
        reached = float(len(values))
        at = np.maximum(np.ceil(shares * reached * slack).astype(np.int64) - 1, 0)
    else:
        at, reached = _reached(weights, order, shares, slack)
    p50, p95, p99 = (float(values[order[index]]) for index in at)
    return Percentiles(p50=p50, p95=p95, p99=p99, max=float(most), mean=float(total / reached))


@compiled
def _reached(weights: Floats, order: Ints, shares: Floats, slack: float) -> tuple[Ints, float]:
    """Where, in that order, the sum of weights reaches each share of the whole, or just before; and the whole."""
    whole = 0.0
    for i in order:
        whole += weights[i]
    at = np.zeros(shares.size, np.int64)
    so_far, place = weights[order[0]], 0
    for share in range(shares.size):
        while place < order.size - 1 and so_far < shares[share] * whole * slack:
            place += 1
            so_far += weights[order[place]]
        at[share] = place
    return at, whole


def durations(requests: Requests, service: ServiceModel | None) -> tuple[Floats, ServiceModel]:
    """Seconds each request was in flight, and where that comes from: the log, or `service` for those it leaves out."""
    known = ~np.isnan(requests.duration_s)
    if known.all():
        return np.asarray(requests.duration_s, np.float64), ServiceModel(
            provenance="measured", source="durations in the log"
        )
    model = service or ASSUMED_SERVICE
    assumed = np.asarray(requests.output_tokens * (model.decode_s_per_token or 0.0), np.float64)
    if model.prefill_tokens_per_s:
        assumed += requests.input_tokens / model.prefill_tokens_per_s
    np.copyto(assumed, requests.duration_s, where=known)
    return assumed, model


def flight(requests: Requests, duration_s: Floats) -> Flight:
    """Requests in flight over time, each holding its input and its whole output from arrival to end.

    An upper bound: the output grows only as it is decoded, and requests that share a prefix share its blocks.
    """
    starts, ends = np.ascontiguousarray(requests.time_s, np.float64), requests.time_s + duration_s
    order = np.argsort(ends).astype(np.int32)
    lengths = (reuse.as_ints(requests.input_tokens), reuse.as_ints(requests.output_tokens))
    time_s, count, tokens = _stepped(starts, ends, order, *lengths)
    return Flight(time_s=time_s, requests=count, tokens=tokens)


@compiled
def _stepped(
    starts: Floats, ends: Floats, order: NDArray[np.int32], input_tokens: Ints, output_tokens: Ints
) -> tuple[Floats, NDArray[np.int32], Ints]:
    """The steps of what starts at ascending times and ends in that order, one for all events of a moment."""
    time_s = np.empty(2 * starts.size, np.float64)
    count, tokens = np.empty(time_s.size, np.int32), np.empty(time_s.size, np.int64)
    steps, started, ended, flying, holding = 0, 0, 0, 0, 0
    while ended < ends.size:
        now = ends[order[ended]]
        if started < starts.size and starts[started] <= now:
            now = starts[started]
        while started < starts.size and starts[started] == now:
            flying, holding = flying + 1, holding + input_tokens[started] + output_tokens[started]
            started += 1
        while ended < ends.size and ends[order[ended]] == now:
            over = order[ended]
            flying, holding = flying - 1, holding - input_tokens[over] - output_tokens[over]
            ended += 1
        time_s[steps], count[steps], tokens[steps] = now, flying, holding
        steps += 1
    return time_s[:steps], count[:steps], tokens[:steps]


def in_flight(steps: Flight, until_s: float) -> tuple[Percentiles, Percentiles]:
    """Percentiles over time of tokens and of requests in flight, from the first arrival to `until_s`.

    Where everything arrives at one moment, to the end of the last request.
    """
    spent = _spent(steps.time_s, until_s)
    if not spent.any():
        spent = _spent(steps.time_s, float(steps.time_s[-1]))
    return percentiles(steps.tokens, spent), percentiles(steps.requests, spent)


@compiled
def _spent(time_s: Floats, until_s: float) -> Floats:
    """How long each step lasts before `until_s`."""
    spent = np.empty(time_s.size, np.float64)
    for i in range(time_s.size):
        after = time_s[i + 1] if i + 1 < time_s.size else until_s
        spent[i] = max(min(after, until_s) - min(time_s[i], until_s), 0.0)
    return spent


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Gaps:
    """How long after its last use each run was used again, how many tokens that are, and the runs by gap."""

    gap_s: Floats
    tokens: reuse.Whole
    order: reuse.Whole


def gaps(runs: reuse.Runs, requests: Requests, tokens: reuse.Whole) -> Gaps:
    """The gaps of a log's runs, which have so many `tokens`."""
    gap_s = np.asarray(requests.time_s[runs.request], np.float64)
    gap_s -= requests.time_s[runs.toucher]
    return Gaps(gap_s=gap_s, tokens=tokens, order=np.argsort(gap_s, kind="stable").astype(np.int32))


def intervals(between: Gaps, extra_s: float | None) -> tuple[Interval, ...]:
    """Tokens reused within each of a ladder of times since their last use: also the hits under that TTL, cold start."""
    if not between.gap_s.size:
        return ()
    longest = float(between.gap_s[between.order[-1]])
    ladder = [float(bound) for bound in _INTERVALS_S]
    end = next((i for i, bound in enumerate(ladder) if bound >= longest), len(ladder) - 1)
    bounds = sorted({*ladder[: end + 1], *({longest} if longest > ladder[-1] else ()), *({extra_s} if extra_s else ())})
    at = np.searchsorted(between.gap_s, bounds, side="right", sorter=between.order)
    total = np.cumsum(between.tokens[between.order], dtype=np.int64)
    counts = [int(total[i - 1]) if i else 0 for i in at.tolist()]
    return tuple(Interval(at_most_s=bound, tokens=count) for bound, count in zip(bounds, counts, strict=True))


def mean_resident(between: Gaps, time_s: NDArray[Any], left: Ints, windows_s: Floats) -> Floats:
    """Mean of what is resident if all stays for a window after its last use: Σ weight · min(hold, window) / span.

    `hold` is the time from a use to the next of the same block, or to the end of the log; `left` of each request, by
    `time_s`, is not used again. Windows ascend.
    """
    whole = int(between.tokens.sum()) + int(left.sum())
    columns = (between.gap_s, between.tokens, between.order, np.ascontiguousarray(time_s, np.float64), left)
    sums = _held(*columns, whole, windows_s)
    mean: Floats = sums / float(time_s[-1] - time_s[0])
    return mean


@compiled
def _held(
    gap_s: Floats, tokens: reuse.Whole, order: reuse.Whole, time_s: Floats, left: Ints, whole: int, windows_s: Floats
) -> Floats:
    end = time_s[-1]
    within, counted, i, j = 0.0, 0, 0, time_s.size - 1
    sums = np.empty(windows_s.size, np.float64)
    for w in range(windows_s.size):
        while True:  # the shortest hold: of runs, then of what is left of the requests from the last on
            hold = np.inf if j < 0 else end - time_s[j]
            if i < order.size:
                hold = min(hold, gap_s[order[i]])
            if hold > windows_s[w]:
                break
            while i < order.size and gap_s[order[i]] == hold:
                within += tokens[order[i]] * hold
                counted += tokens[order[i]]
                i += 1
            first = j
            while first >= 0 and end - time_s[first] == hold:
                first -= 1
            for r in range(first + 1, j + 1):
                within += left[r] * hold
                counted += left[r]
            j = first
        sums[w] = within + windows_s[w] * (whole - counted)
    return sums


def working_sets(runs: reuse.Runs, requests: Requests, between: Gaps, extra_s: float | None) -> tuple[WorkingSet, ...]:
    """Mean and maximum of the Denning working set for a ladder of windows up to the log's span."""
    time_s = requests.time_s
    span = float(time_s[-1] - time_s[0])
    windows = sorted({*(float(window) for window in _WINDOWS_S if window <= span), *({extra_s} if extra_s else ())})
    if span == 0 or not windows:
        return ()
    left = reuse.covered_tokens(requests)
    np.subtract.at(left, runs.toucher, between.tokens)
    means = mean_resident(between, time_s, left, np.array(windows))
    peaks, _ = reuse.working_set(runs, requests, windows, np.zeros(0))
    return tuple(
        WorkingSet(window_s=window, mean_tokens=round(mean), max_tokens=peak)
        for window, mean, peak in zip(windows, means.tolist(), peaks, strict=True)
    )


def load(runs: reuse.Runs, requests: Requests, steps: Flight, window_s: float) -> tuple[Load, ...]:
    """The log in at most 200 stretches of equal, round width, with the working set of `window_s` at each one's end."""
    span = float(requests.time_s[-1] - requests.time_s[0])
    days = float(np.ceil((span + 1) / (_MOST_STRETCHES - 1) / 86400)) * 86400
    width = next((float(width) for width in _WIDTHS_S if span / width < _MOST_STRETCHES), days)
    count = int(span // width) + 1
    ends = requests.time_s[0] + width * np.arange(1, count + 1)
    before_end = np.minimum(np.nextafter(ends, -np.inf), float(requests.time_s[-1])).astype(np.float64)
    _, (resident,) = reuse.working_set(runs, requests, [window_s], before_end)
    starts = width * np.arange(count)
    active = _most_active(steps, float(requests.time_s[0]), width, count)
    since_s = requests.time_s - requests.time_s[0]
    since_s //= width
    at = since_s.astype(np.int64)
    arrived = [
        np.bincount(at, weights=weight, minlength=count).astype(np.int64)
        for weight in (None, requests.input_tokens, requests.output_tokens)
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


def _most_active(steps: Flight, start_s: float, width: float, count: int) -> Ints:
    """The most tokens in flight in each of `count` stretches of `width` seconds."""
    moved = steps.time_s - start_s
    active = steps.tokens[np.searchsorted(moved, width * np.arange(count), side="right") - 1]
    for first in range(0, int(np.searchsorted(moved, width * count)), _SOME):
        some = slice(first, first + _SOME)
        inside = moved[some] < width * count
        np.maximum.at(active, (moved[some][inside] // width).astype(np.int64), steps.tokens[some][inside])
    return active


def by_hour(requests: Requests) -> tuple[Arrivals, ...]:
    """What arrived in each hour of the day (UTC).

    Empty for a log of an hour or less, and for one whose stamps are no dates (after 2001).
    """
    time_s = np.asarray(requests.time_s, np.float64)
    if time_s[0] < _DATED_S or time_s[-1] - time_s[0] <= 3600:
        return ()
    clock_s = time_s // 3600
    clock_s %= 24
    hour = clock_s.astype(np.int64)
    arrived = np.bincount(hour, minlength=24)
    tokens = np.zeros(24, np.int64)
    np.add.at(tokens, hour, requests.input_tokens)
    return tuple(
        Arrivals(hour=i, requests=int(arrived[i]), input_tokens=int(tokens[i]))
        for i in np.flatnonzero(arrived).tolist()
    )
