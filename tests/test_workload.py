"""The workload document: golden figures of a real trace, and each definition against arithmetic done by hand."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from records import replace
from test_reuse import B, logs, lru, make, paths_of, tokens_of

from kvplan import files, report, reuse
from kvplan.documents import CurvePoint, Requests, ServiceModel, Workload
from kvplan.errors import KvplanError, UsageError
from kvplan.logs import read
from kvplan.profiling import timeline, whatif
from kvplan.profiling.comparison import compared
from kvplan.workload import profile, profiled

PEER = {
    352: 3_083_336,
    1409: 3_320_864,
    5637: 8_928_755,
    11_275: 15_849_049,
    22_550: 21_501_492,
    45_100: 25_426_292,
    90_200: 26_550_644,
}


@pytest.fixture(scope="module")
def conversation(shared: Path) -> Workload:
    """A real trace: 12,031 requests over an hour, 288,500 block references."""
    capacities = (1000, 10_000, 30_000, 50_000, 100_000, *PEER)
    return profile(read([shared / "traces/mooncake-conversation.jsonl.gz"]), capacity_blocks=capacities, ttl_s=None)


def points(workload: Workload) -> dict[int, CurvePoint]:
    return {point.capacity_blocks: point for point in workload.curve}


def codes(workload: Workload) -> set[str]:
    return {finding.code for finding in workload.findings}


def test_golden_hits_of_the_conversation_trace(conversation: Workload) -> None:
    hits = {capacity: point.hit_blocks for capacity, point in points(conversation).items()}
    assert (conversation.block_references, conversation.unique_blocks) == (288_500, 182_790)
    assert [hits[c] for c in (1000, 10_000, 30_000, 50_000, 100_000, 182_790)] == [
        *(12_847, 61_046, 93_978, 102_290, 104_924, 105_710),
    ]
    assert round(conversation.ceiling_hit_ratio, 6) == 0.373624
    assert conversation.input_tokens - conversation.novel_tokens == 54_098_411


def test_golden_warm_hits_of_the_conversation_trace(conversation: Workload) -> None:
    """The last half, as the cache simulator of the trace's authors measures it: file order, same capacities."""
    warm, cold = conversation.warm, conversation.cold
    assert warm is not None
    assert cold is not None
    assert (warm.measured_from, warm.hit_tokens, warm.input_tokens) == (6015, 27_038_068, 67_915_607)
    assert (cold.measured_from, cold.hit_blocks, cold.block_references) == (0, 105_710, 288_500)
    assert round(cold.block_hit_ratio, 4) == 0.3664
    assert round(cold.token_hit_ratio, 5) == 0.37362
    assert (cold.hit_requests, cold.requests) == (12_030, 12_031)
    hits = {point.capacity_blocks: point.hit_tokens for point in conversation.warm_curve}
    assert {c: hits[c] for c in PEER} == PEER


def test_golden_residency_of_the_conversation_trace(shared: Path) -> None:
    """Mean blocks resident if all stay for 1, 60, 300, 600 and 3,600 s after their last use."""
    requests = read([shared / "traces/mooncake-conversation.jsonl.gz"])
    runs = reuse.find_runs(requests)
    left = np.diff(requests.offsets).astype(np.int64)
    np.subtract.at(left, runs.toucher, runs.length)
    time_s = requests.time_s
    windows = np.array([1.0, 60.0, 300.0, 600.0, 3600.0])
    means = timeline.mean_resident(timeline.gaps(runs, requests, runs.length.astype(np.int64)), time_s, left, windows)
    assert np.round(means).tolist() == [78, 4552, 18_896, 33_126, 94_143]
    gaps = timeline.percentiles(time_s[runs.request] - time_s[runs.toucher], runs.length)
    assert (round(gaps.p50), round(gaps.p99)) == (114, 1578)


@pytest.fixture(scope="module")
def coding(shared: Path) -> Requests:
    """A real trace of coding agents: 49,334 requests, 94,310,647 block references."""
    parquet = pytest.importorskip("pyarrow.parquet", reason="pyarrow is not installed: the long trace was not read")
    table = parquet.read_table(shared / "traces/claude-code-710-sessions.parquet")
    ids = table["hash_ids"].combine_chunks()
    rows = table.num_rows
    return Requests(
        block_tokens=64,
        time_s=table["timestamp"].to_numpy(),
        input_tokens=table["input_length"].to_numpy(),
        output_tokens=table["output_length"].to_numpy(),
        duration_s=np.full(rows, np.nan),
        offsets=ids.offsets.to_numpy().astype(np.int64),
        paths=ids.values.to_numpy(),
        tenant=np.full(rows, -1),
        session=table["sess"].to_numpy(),
        tenants=(),
        sources=(),
    )


def test_golden_hits_of_the_coding_trace(coding: Requests) -> None:
    runs = reuse.find_runs(coding)
    curve = whatif.curve(runs, coding, [50_000, 100_000, 250_000, 500_000, 1_000_000, 4_000_000])
    hits = [point.hit_blocks for point in curve]
    assert [hits[i] for i in (0, 1, 4, 5)] == [24_254_199, 42_808_161, 89_589_765, 90_859_688]
    assert [round(hit / coding.blocks.size, 4) for hit in hits[2:4]] == [0.7297, 0.8876]
    half = len(coding.input_tokens) // 2
    warm = whatif.curve(runs.where(runs.request >= half), coding, [4_000_000])[0]
    in_blocks = int(np.diff(coding.offsets)[half:].sum()) * 64
    assert (warm.hit_tokens, in_blocks) == (3_362_474_432, 3_457_256_704)
    gap = coding.time_s[runs.request] - coding.time_s[runs.toucher]
    within = [runs.length[gap <= ttl].sum() / coding.blocks.size for ttl in (10, 60, 300, 3600)]
    assert np.round(within, 3).tolist() == [0.149, 0.788, 0.916, 0.960]
    gaps = timeline.percentiles(gap, runs.length)
    assert (round(gaps.p50), round(gaps.p99)) == (20, 1799)


def test_golden_ttl_hits_of_the_conversation_trace(shared: Path) -> None:
    """Block hits under a TTL alone: .038 at 1 s, .103 at 60 s, .288 at 300 s, .343 at 600 s, .366 at 3,600 s."""
    requests = read([shared / "traces/mooncake-conversation.jsonl.gz"])
    for ttl, expected in ((1, 0.038), (60, 0.103), (300, 0.288), (600, 0.343), (3600, 0.366)):
        last = profile(requests, ttl_s=ttl).curve[-1]
        assert round(last.hit_blocks / 288_500, 3) == expected


def test_the_document_is_the_same_every_time_and_survives_its_file(conversation: Workload, shared: Path) -> None:
    again = profile(
        read([shared / "traces/mooncake-conversation.jsonl.gz"]),
        capacity_blocks=(1000, 10_000, 30_000, 50_000, 100_000, *PEER),
    )
    assert again == conversation
    assert files.parse(files.dump(files.wrap(again)).encode(), "memory").data == conversation


def test_the_grid_has_ten_points_a_decade_the_ends_and_what_was_asked(conversation: Workload) -> None:
    capacities = [point.capacity_blocks for point in conversation.curve]
    assert capacities == sorted(set(capacities))
    assert 40 <= len(capacities) <= 65
    assert capacities[-1] == conversation.unique_blocks
    assert {1000, 1250, 1600, 2000, 2500, 3150, 4000, 5000, 6300, 8000} <= set(capacities)


def test_capacities_in_tokens_are_whole_blocks_and_may_exceed_the_log() -> None:
    requests = make([[0, 1], [0, 1]], [8, 8])
    curve = points(profile(requests, capacity_tokens=(7, 4000)))
    assert set(curve) == {1, 2, 1000}
    assert (curve[1].hit_tokens, curve[1000].hit_tokens, curve[1000].fill_time_s) == (4, 8, None)
    with pytest.raises(UsageError, match="--capacity-tokens 3: less than one block, which holds 4 tokens here"):
        profile(requests, capacity_tokens=(3, 8))
    with pytest.raises(UsageError, match="--tiers 1: less than one block"):
        profiled([Path("log")], lambda _: requests, tier_tokens=(1, 8))


@settings(max_examples=60, deadline=None)
@given(logs())
def test_every_point_adds_up(requests: Requests) -> None:
    workload = profile(requests)
    for point in workload.curve:
        hits = tokens_of(requests, lru(requests, point.capacity_blocks))
        assert point.hit_tokens == sum(hits) == sum(group.tokens for group in point.prefixes)
        assert point.hit_requests == sum(hit > 0 for hit in hits) == sum(group.requests for group in point.prefixes)
        assert point.reused_prefix_tokens_sq == sum(hit**2 for hit in hits)
        assert all(group.at_most_tokens & (group.at_most_tokens - 1) == 0 for group in point.prefixes)
    infinite = sum(tokens_of(requests, lru(requests, 10**6)))
    assert workload.novel_tokens == workload.input_tokens - infinite
    assert workload.ceiling_hit_ratio == (infinite / workload.input_tokens if workload.input_tokens else 0)
    assert sum(interval.tokens for interval in workload.reuse_intervals[-1:]) == infinite


@settings(max_examples=60, deadline=None)
@given(logs())
def test_one_off_tokens_are_those_of_blocks_referenced_once(requests: Requests) -> None:
    size: dict[int, int] = {}
    times: dict[int, int] = {}
    for path, n in zip(paths_of(requests), requests.input_tokens.tolist(), strict=True):
        size.update((block, min(B, n - B * i)) for i, block in enumerate(path))
        for block in path:
            times[block] = times.get(block, 0) + 1
    workload = profile(requests)
    reused = sum(size[block] for block, count in times.items() if count > 1)
    assert workload.one_off_tokens_ratio == pytest.approx(1 - reused / max(workload.novel_tokens, 1))


@settings(max_examples=40, deadline=None)
@given(logs())
def test_tenants_hits_sum_to_the_ceiling_and_isolation_never_gains(requests: Requests) -> None:
    workload = profile(requests)
    assert sum(tenant.hit_tokens for tenant in workload.tenants) == workload.input_tokens - workload.novel_tokens
    assert sum(tenant.requests for tenant in workload.tenants) == workload.requests
    for tenant in workload.tenants:
        rows = np.flatnonzero(requests.tenant == requests.tenants.index(tenant.tenant))
        alone = make([paths_of(requests)[row] for row in rows], requests.input_tokens[rows].tolist())
        assert tenant.isolated_hit_tokens == sum(tokens_of(alone, lru(alone, 10**6))) <= tenant.hit_tokens


@pytest.mark.parametrize(
    ("tokens", "reused"), [(2015, 0), (8015, 7168), (32_015, 28_672), (47_074, 46_592), (240, 0), (3584, 0)]
)
def test_an_engine_reuses_full_blocks_and_computes_the_last_token(tokens: int, reused: int) -> None:
    """An identical prompt of n tokens reuses floor((n - 1) / block) * block."""
    path = list(range(-(-tokens // 3584)))
    requests = replace(make([path, path], [tokens, tokens]), block_tokens=3584)
    workload = profile(requests)
    assert workload.engine_hit_ratio == pytest.approx(reused / (2 * tokens))
    assert workload.ceiling_hit_ratio == 0.5


def test_the_engine_rule_takes_the_block_size_of_a_hybrid_model() -> None:
    """With blocks of 528 tokens, repeats of 552 and 979 tokens reuse 95.7 % and 53.9 %, an exact 528 nothing."""
    for tokens, ratio in ((552, 0.957), (979, 0.539), (528, 0.0)):
        path = list(range(-(-tokens // 528)))
        workload = profile(replace(make([path, path], [tokens, tokens]), block_tokens=528))
        assert round(2 * workload.engine_hit_ratio, 3) == ratio


def test_fill_time_is_when_as_many_distinct_blocks_have_come() -> None:
    curve = points(profile(make([[0], [0], [1, 2], [3]], [4, 4, 8, 4], times=[10, 11, 14, 20])))
    assert {capacity: point.fill_time_s for capacity, point in curve.items()} == {1: 0, 2: 4, 3: 4, 4: 10}


def test_the_mean_working_set_is_the_integral_over_the_log() -> None:
    """Block 0 (4 tokens) is touched at 0, 30 and 100 s, block 1 (2 tokens) at 30 s; the window is a minute."""
    requests = make([[0], [0, 1], [0]], [4, 6, 4], times=[0.0, 30.0, 100.0])
    sets = {item.window_s: item for item in profile(requests).working_set}
    assert sets[60.0].mean_tokens == round((4 * 90 + 2 * 60) / 100)
    assert sets[60.0].max_tokens == 6
    assert max(sets) <= 100


def test_tokens_in_flight_follow_from_the_logs_own_durations() -> None:
    """10 tokens for 50 of 100 s, 20 more from 40 s to 60 s: 10 for 40 s, 30 for 10 s, 20 for 10 s, 0 for 40 s."""
    requests = replace(
        make([[], [], []], [8, 18, 0], times=[0.0, 40.0, 100.0]),
        output_tokens=np.array([2, 2, 0]),
        duration_s=np.array([50.0, 20.0, 1.0]),
    )
    workload = profile(requests)
    assert workload.service is not None
    assert workload.service.provenance == "measured"
    active, concurrent = workload.active_tokens, workload.active_requests
    assert active is not None
    assert concurrent is not None
    assert (active.p50, active.p95, active.max, active.mean) == (10, 30, 30, pytest.approx(9))
    assert (concurrent.max, concurrent.mean) == (2, pytest.approx(0.7))


def test_durations_the_log_leaves_out_are_assumed_and_said() -> None:
    requests = replace(make([[], []], [100, 0], times=[0.0, 10.0]), output_tokens=np.array([20, 0]))
    service = ServiceModel(provenance="configured", prefill_tokens_per_s=50.0, decode_s_per_token=0.1)
    workload = profile(requests, service=service)
    assert workload.service == service
    assert workload.active_requests is not None
    assert workload.active_requests.mean == pytest.approx(0.4)  # 2 s of prefill and 2 s of decoding in 10 s
    assert "service-assumed" in codes(workload)
    default = profile(requests).service
    assert default is not None
    assert default.provenance == "assumed"


def test_load_counts_every_request_once(conversation: Workload) -> None:
    assert len(conversation.load) <= 200
    assert sum(stretch.requests for stretch in conversation.load) == conversation.requests
    assert sum(stretch.input_tokens for stretch in conversation.load) == conversation.input_tokens
    assert sum(stretch.output_tokens for stretch in conversation.load) == conversation.output_tokens
    assert conversation.active_tokens is not None
    assert max(stretch.active_tokens for stretch in conversation.load) >= conversation.active_tokens.max
    sets = {item.window_s: item.max_tokens for item in conversation.working_set}
    assert conversation.load_window_s == 300
    assert 0.9 * sets[300] < max(stretch.working_set_tokens for stretch in conversation.load) <= sets[300]


def test_long_logs_have_few_stretches_too() -> None:
    requests = make([[0], [0]], [4, 4], times=[0.0, 400 * 86400.0])
    stretches = profile(requests).load
    assert len(stretches) <= 200
    assert (stretches[0].requests, stretches[-1].requests) == (1, 1)


def test_without_time_stamps_nothing_over_time_is_claimed() -> None:
    requests = make([[0], [0]], [4, 4], times=[np.nan, np.nan])
    workload = profile(requests)
    assert workload.ceiling_hit_ratio == 0.5
    assert workload.span_s is workload.active_tokens is workload.service is workload.load_window_s is None
    assert workload.load == workload.working_set == workload.reuse_intervals == ()
    assert all(point.fill_time_s is None for point in workload.curve)
    with pytest.raises(KvplanError, match="--ttl needs time stamps"):
        profile(requests, ttl_s=60)


def test_reuse_at_the_same_moment_is_pointed_out() -> None:
    assert "same-moment" in codes(profile(make([[0], [0]], [4, 4], times=[1.0, 1.0])))
    assert "same-moment" not in codes(profile(make([[0], [0]], [4, 4], times=[1.0, 2.0])))


def test_a_cache_smaller_than_the_longest_request_is_pointed_out() -> None:
    requests = make([[0, 1, 2], [0]], [12, 4])
    assert "longer-than-cache" in codes(profile(requests, capacity_blocks=(2,)))
    assert "longer-than-cache" not in codes(profile(requests, capacity_blocks=(3,)))


def test_many_tenants_are_summed_up() -> None:
    requests = make([[i] for i in range(150)], [4] * 150, tenants=list(range(150)))
    tenants = profile(requests).tenants
    assert len(tenants) == 101
    assert tenants[-1].tenant == "(50 others)"
    assert sum(tenant.requests for tenant in tenants) == 150


def test_one_request_alone_is_a_workload() -> None:
    workload = profile(make([[0]], [3]))
    assert (workload.span_s, workload.ceiling_hit_ratio, workload.one_off_tokens_ratio) == (0, 0, 1)
    assert workload.active_requests is not None
    assert workload.active_requests.max == 1


def test_what_has_no_meaning_is_refused() -> None:
    requests = make([[0]], [4])
    with pytest.raises(UsageError, match="not negative"):
        profile(requests, capacity_blocks=(-1,))
    with pytest.raises(UsageError, match="TTL"):
        profile(requests, ttl_s=0)
    with pytest.raises(KvplanError, match="64 bits"):
        profile(make([[0]], [2**40]))


def test_an_id_of_two_sizes_leaves_a_document_that_can_be_written() -> None:
    """One id at 182 tokens and at 512: more is reused of it than was ever stored, which must not go below zero."""
    requests = replace(make([[0, 1], [0, 1], [0, 1]], [694, 1024, 694]), block_tokens=512)
    workload = profile(requests)
    assert workload.one_off_tokens_ratio == 0
    assert files.parse(files.dump(files.wrap(workload)).encode(), "memory").data == workload
    shrinking = profile(replace(make([[0, 1], [0, 1]], [1024, 694]), block_tokens=512))
    assert shrinking.one_off_tokens_ratio == pytest.approx(330 / 1024)


@settings(max_examples=40, deadline=None)
@given(logs(), st.floats(0, 0.99))
def test_warm_figures_count_the_later_requests_of_a_cache_that_all_use(requests: Requests, share: float) -> None:
    workload = profile(requests, capacity_blocks=(3,), measure_from=share)
    first = int(share * len(requests.input_tokens))
    hits = lru(requests, 3)[first:]
    point = next(point for point in workload.warm_curve if point.capacity_blocks == 3)
    assert (point.hit_blocks, point.hit_requests) == (sum(hits), sum(hit > 0 for hit in hits))
    assert point.hit_tokens == sum(tokens_of(requests, lru(requests, 3))[first:])
    warm = workload.warm
    assert warm is not None
    assert warm.hit_blocks == sum(lru(requests, 10**6)[first:])
    assert warm.input_tokens == requests.input_tokens[first:].sum()
    assert max(warm.token_hit_ratio, warm.block_hit_ratio, warm.request_any_hit_ratio) <= 1
    with pytest.raises(UsageError, match="measure-from"):
        profile(requests, measure_from=1)


def test_other_policies_and_the_optimal_one_where_it_is_quick(conversation: Workload) -> None:
    requests = make([[0, 1], [2, 3], [0, 1], [2, 3]], [8] * 4)
    workload = profile(requests, capacity_blocks=(2,), other_policies=("fifo", "arc"))
    assert [curve.policy for curve in workload.policies] == ["fifo", "arc"]
    assert {point.capacity_blocks: point.hit_blocks for point in workload.optimal}[2] == 2
    assert points(workload)[2].hit_blocks == 0
    best = {point.capacity_blocks: point for point in conversation.optimal}
    assert best[1000].hit_blocks > points(conversation)[1000].hit_blocks
    assert best[1000].fill_time_s == points(conversation)[1000].fill_time_s
    assert sum(group.tokens for group in best[1000].prefixes) == best[1000].hit_tokens


def test_what_ifs_on_the_log_itself_and_two_periods() -> None:
    whole = make([[0, 1], [0, 1], [0, 1, 2]], [8, 8, 12], tenants=[0, 1, 0])
    later = replace(make([[0, 1]], [8]), time_s=np.array([9.0]))
    both = make([[0, 1], [0, 1], [0, 1, 2], [0, 1]], [8, 8, 12, 8], times=[0, 1, 2, 9])
    logs = {("a",): whole, ("b",): later, ("a", "b"): both}

    def one(*names: str, **asked: Any) -> Workload:
        return profiled([Path(name) for name in names], lambda some: logs[tuple(map(str, some))], **asked)

    assert one("a").input_tokens - one("a").novel_tokens == 16
    assert one("a", isolate=True).input_tokens - one("a", isolate=True).novel_tokens == 8
    assert one("a", join_blocks=8).block_tokens == 8
    assert one("a", tier_tokens=(4, 10)).tiers[1].capacity_blocks == 2
    assert one("a", workers=2) == one("a")
    periods = one("a", "b", compare=True).compared
    assert periods is not None
    assert (periods.requests, periods.known_hit_ratio) == (3, 1)
    with pytest.raises(UsageError, match="two logs, the earlier period first, not 1"):
        one("a", compare=True)
    with pytest.raises(KvplanError, match="names no tenants to keep apart: leave --isolate out"):
        one("b", isolate=True)
    logs["alone",] = replace(later, tenant=np.zeros(1, np.int64), tenants=("a",))
    assert "one-tenant" in {finding.code for finding in one("alone", isolate=True).findings}
    assert "one-tenant" not in {finding.code for finding in one("a", isolate=True).findings}


def test_a_log_of_lengths_has_no_curve_and_says_why() -> None:
    lengths = replace(make([[], []], [3, 9], times=[0, 5]), hashed=False, block_tokens=1)
    workload = profile(lengths)
    assert workload.curve == ()
    assert (workload.ceiling_hit_ratio, workload.novel_tokens, workload.load_window_s) == (None, None, None)
    assert (workload.input_tokens, workload.input_tokens_sq, workload.span_s) == (12, 90, 5)
    assert sum(one.input_tokens for one in workload.load) == 12
    assert {one.working_set_tokens for one in workload.load} == {None}
    assert workload.findings[0].code == "lengths-only"
    with pytest.raises(KvplanError, match="the log: has lengths only, so what it reuses cannot be known"):
        profile(lengths, capacity_blocks=[4])


def test_a_log_of_lengths_has_a_page_and_no_claim_of_reuse() -> None:
    workload = profile(replace(make([[], []], [3, 9], times=[0, 5]), hashed=False, block_tokens=1))
    text, _ = report.markdown(report.sections(files.wrap(workload)), "files")
    assert "lengths only" in text
    assert "ceiling" not in text


def test_the_page_shows_every_what_if() -> None:
    before = profile(make([[0], [0]], [4, 4], times=[0, 1]))
    paths = [[0, 1], [0, 1], [0, 2], [0, 1, 3]]
    requests = replace(
        make(paths, [8, 8, 8, 12], tenants=[0, 1, 0, 1], times=[1.7e9, 1.7e9 + 1, 1.7e9 + 4000, 1.7e9 + 9000]),
        session=np.array([0, 0, 1, 1]),
        output_tokens=np.array([9, 0, 0, 0]),
    )
    after = profile(requests, other_policies=("arc",), replicas=2, tiers=(1, 2))
    text = report.markdown(report.sections(files.wrap(compared(before, after, None))), "files")[0]
    for heading in ("Hit rates", "What is shared", "What if", "Against the earlier period"):
        assert f"## {heading}" in text
    for title in ("Replacement policies", "Tenants kept apart", "2 servers", "Tiers", "By hour", "Hot set", "Whose"):
        assert f"*{title}" in text
    assert "decoded blocks cached too, at most" in text
    assert "| arc" in text.lower()
