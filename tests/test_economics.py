"""Recompute against load: published figures, and the sums over a log against a loop over its requests."""

from __future__ import annotations

import math
from itertools import pairwise

import pytest
import samples
from hypothesis import given
from hypothesis import strategies as st

from kvplan.documents import CurvePoint, Prefill, PrefixClass
from kvplan.planning.economics import (
    Curve,
    LoadPath,
    break_even_length,
    break_even_rate,
    break_even_row,
    busy_s,
    verdict,
    worth,
)
from kvplan.units import GB, GiB

LLAMA_8B = 131_072


def cost(t0: float = 0.0, a: float = 20e-6, b: float = 4e-10) -> Prefill:
    return Prefill(
        model="m", device="d", t0_s=t0, a_s_per_token=a, b_s_per_token_sq=b, provenance="measured", source="test"
    )


H200 = cost(0.91e-3, 20.3e-6, 4.11e-10)


@pytest.mark.parametrize(("tokens", "rate"), [(2048, 6.07), (8192, 5.51), (32_768, 3.88), (131_072, 1.77)])
def test_break_even_bandwidth_of_the_h200_fit(tokens: int, rate: float) -> None:
    assert round(break_even_rate(H200, LLAMA_8B, tokens) / GB, 2) == rate


@pytest.mark.parametrize(
    ("tokens", "recompute_s", "load_s"),
    [
        (2048, 0.043, {50: 0.005, 25: 0.011, 6.5: 0.041, 3: 0.089}),
        (8192, 0.199, {50: 0.021, 25: 0.043, 6.5: 0.165, 3: 0.358}),
        (32_768, 1.11, {50: 0.086, 25: 0.172, 6.5: 0.661, 3: 1.432}),
        (131_072, 9.70, {50: 0.344, 25: 0.687, 6.5: 2.643, 3: 5.727}),
    ],
)
def test_recompute_and_load_times_of_the_measured_table(
    tokens: int, recompute_s: float, load_s: dict[float, float]
) -> None:
    for rate, seconds in load_s.items():
        row = break_even_row("host", tokens, H200, LoadPath(s_per_token=LLAMA_8B / (rate * GB)), LLAMA_8B)
        assert row.load_s == pytest.approx(seconds, rel=0.002, abs=0.0005)
        assert row.recompute_s == pytest.approx(recompute_s, rel=0.03)
        assert row.link_bytes_per_s == pytest.approx(rate * GB)


@pytest.mark.parametrize(
    ("rate", "expected"), [(1 * GB, "recompute"), (3 * GB, "load"), (1.4e9, "measure"), (1.6e9, "measure")]
)
def test_15000_tokens_a_second_against_a_drive_for_qwen3_30b(rate: float, expected: str) -> None:
    """98,304 B a token: 1 GB/s loads 10,173 tokens a second, 3 GB/s 30,518; within 20 % only a measurement tells."""
    path = LoadPath(s_per_token=98_304 / rate)
    assert round(1 / LoadPath(s_per_token=98_304 / GB).s_per_token) == 10_173
    row = break_even_row("disk", 8192, cost(a=1 / 15_000, b=0.0), path, 98_304)
    assert row.verdict == expected


def test_gib_per_second_and_gb_per_second_differ_by_seven_percent() -> None:
    slow, fast = (LoadPath(s_per_token=LLAMA_8B / rate).seconds(8000) for rate in (64 * GB, 64 * GiB))
    assert slow / fast == pytest.approx(1.0737, abs=1e-4)


def test_verdict_is_symmetric_and_allows_a_fifth() -> None:
    assert verdict(1.21, 1.0) == "load"
    assert verdict(1.0, 1.21) == "recompute"
    assert verdict(1.19, 1.0) == verdict(1.0, 1.19) == "measure"


rates = st.floats(1e-7, 1e-3)
squares = st.one_of(st.just(0.0), st.floats(1e-14, 1e-8))
latencies = st.one_of(st.just(0.0), st.floats(1e-7, 0.1))


@given(rates, squares, rates, latencies)
def test_break_even_length_parts_recomputing_from_loading(a: float, b: float, s: float, latency: float) -> None:
    path = LoadPath(s_per_token=s, latency_s=latency)
    length = break_even_length(cost(a=a, b=b), path)

    def gain(p: float) -> float:
        return a * p + b * p * p - path.seconds(p)

    if math.isinf(length):
        assert gain(1e6) <= 0
        return
    assert gain(2 * length + 1) >= 0
    if length > 1:
        assert gain(length / 2) <= 0
        assert abs(gain(length)) <= 1e-6 * max(1e-9, path.seconds(length), b * length**2)


def point_of(prefixes: list[int]) -> CurvePoint:
    """A curve point from every request's hit prefix."""
    hits = [prefix for prefix in prefixes if prefix]
    return CurvePoint(
        capacity_blocks=1,
        capacity_tokens=1,
        hit_blocks=0,
        hit_tokens=sum(hits),
        hit_ratio=0.5,
        hit_requests=len(hits),
        reused_prefix_tokens_sq=sum(hit**2 for hit in hits),
        prefixes=samples.prefix_classes(hits),
    )


pairs = st.lists(st.tuples(st.integers(0, 60_000), st.integers(0, 60_000)).map(sorted), max_size=30)


@given(pairs, rates, squares, rates, latencies)
def test_gain_is_never_above_that_of_deciding_each_request(
    hits: list[list[int]], a: float, b: float, s: float, latency: float
) -> None:
    """Each request has p tokens near and q >= p in the tier, and loads p..q only where that is quicker."""
    prefill, path = cost(a=a, b=b), LoadPath(s_per_token=s, latency_s=latency)
    near, far = point_of([p for p, _ in hits]), point_of([q for _, q in hits])
    gains = (a * (q - p) + b * (q * q - p * p) - s * (q - p) - latency for p, q in hits if q > p)
    best = math.fsum(max(0.0, gain) for gain in gains)
    found = worth(far, near, prefill, path, block_tokens=1)
    scale = math.fsum(a * q + b * q * q + s * q for _, q in hits)
    assert found.net_s <= best + 1e-9 * scale + 1e-12
    if s <= a and not latency:
        assert found.net_s == pytest.approx(best, rel=1e-6, abs=1e-9 * scale + 1e-12)


def test_gain_without_prefix_classes_uses_the_totals() -> None:
    whole = point_of([5000, 9000])
    bare = CurvePoint(
        capacity_blocks=1,
        capacity_tokens=1,
        hit_blocks=0,
        hit_tokens=whole.hit_tokens,
        hit_ratio=0.5,
        hit_requests=2,
        reused_prefix_tokens_sq=whole.reused_prefix_tokens_sq,
    )
    empty = point_of([])
    path = LoadPath(s_per_token=1e-6)
    assert worth(bare, empty, cost(), path, 1) == worth(whole, empty, cost(), path, 1)


def test_short_prefixes_are_recomputed_and_long_ones_loaded() -> None:
    """At 3 GB/s this model is loaded from 40,000 tokens on: 1,000-token prefixes must not be charged loads."""
    path = LoadPath(s_per_token=LLAMA_8B / (3 * GB))
    assert 55_000 < break_even_length(H200, path) < 60_000
    mixed = worth(point_of([1000] * 500 + [131_072] * 3), point_of([]), H200, path, 512)
    alone = worth(point_of([131_072] * 3), point_of([]), H200, path, 512)
    assert mixed == alone
    assert mixed.tokens == 3 * 131_072


def test_curve_answers_with_exact_points_only() -> None:
    points = samples.workload().data.curve
    curve = Curve(tuple(reversed(points)))
    for left, right in pairwise(points):
        middle = (left.capacity_tokens + right.capacity_tokens) / 2
        assert curve.below(middle) == left
        assert curve.above(middle) == right
        assert curve.below(left.capacity_tokens) == curve.above(left.capacity_tokens) == left
    assert curve.below(1).hit_tokens == 0
    assert curve.above(10**15) == points[-1]


def test_busy_time_is_the_sum_over_requests() -> None:
    log = samples.requests()
    hits = [512 * found for found in samples.replay(log, 1024)]
    prefill = samples.prefill()
    expected = math.fsum(prefill.seconds(request.input_tokens, hit) for request, hit in zip(log, hits, strict=True))
    total = sum(request.input_tokens for request in log)
    square = sum(request.input_tokens**2 for request in log)
    assert busy_s(len(log), total, square, samples.curve_point(log, 1024), prefill) == pytest.approx(expected)


def test_prefix_classes_of_the_samples_add_up() -> None:
    for point in samples.workload().data.curve:
        parts: tuple[PrefixClass, ...] = point.prefixes
        assert sum(part.tokens for part in parts) == point.hit_tokens
        assert sum(part.requests for part in parts) == point.hit_requests
        assert sum(part.tokens_sq for part in parts) == point.reused_prefix_tokens_sq
