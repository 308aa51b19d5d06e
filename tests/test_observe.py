"""Pages of metrics into figures: the format against the reference parser, increases and quantiles by brute force, and
each system's page against figures worked out by hand."""

from __future__ import annotations

import itertools
import math
from pathlib import Path

import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st
from records import replace
from typer.testing import CliRunner

from kvplan import files, report
from kvplan.cli import app
from kvplan.documents import Observation, ServingSystem, TierHits, TierTransfer
from kvplan.engines.metrics import SYSTEMS, found, plain
from kvplan.engines.metrics.system import Pick, pick, total
from kvplan.errors import KvplanError, UsageError
from kvplan.observe import observe, saved, watch
from kvplan.observing import beside, histogram
from kvplan.observing.alarms import only_grows
from kvplan.observing.exposition import Page, parse
from kvplan.observing.recording import Recording, Track, gains
from kvplan.observing.scrape import Taken

PAGES = Path(__file__).parent / "metrics"


def pair(name: str, elapsed_s: float | None = 100.0) -> Observation:
    return observe(saved([PAGES / f"{name}_before.txt", PAGES / f"{name}_after.txt"], elapsed_s))


def tier(seen: Observation, name: str) -> TierHits:
    return next(one for one in seen.hits if one.tier == name)


def copies(seen: Observation, way: str, source: str, target: str) -> TierTransfer:
    return next(one for one in seen.transfers if (one.way, one.source, one.target) == (way, source, target))


def codes(seen: Observation) -> list[str]:
    return [finding.code for finding in seen.findings]


def recording(*pages: str | None, every_s: float = 10.0) -> Recording:
    """One source's pages, a round each."""
    read = tuple(None if text is None else parse(text, "page") for text in pages)
    return Recording([index * every_s for index in range(len(pages))], [Track("page", read)])


# ------------------------------------------------------------------------------------------------ the format


def test_pages_are_read_as_the_reference_parser_reads_them() -> None:
    reason = "prometheus-client is not installed: pages were not compared with its reading"
    reference = pytest.importorskip("prometheus_client.parser", reason=reason)
    for path in sorted(PAGES.glob("*.txt")):
        text = path.read_text()
        expected = {
            (plain(sample.name), tuple(sorted(sample.labels.items()))): float(sample.value)
            for family in reference.text_string_to_metric_families(text)
            for sample in family.samples
        }
        assert dict(parse(text, path.name).samples) == expected, path.name


_names = st.from_regex(r"[a-zA-Z_][a-zA-Z0-9_:]{0,12}", fullmatch=True)
_values = st.floats(allow_nan=False) | st.sampled_from([0.0, 1e300, -0.5])
_texts = st.text(st.characters(exclude_categories=["Cs", "Cc"]) | st.sampled_from('\\"\n{}#,= '), max_size=12)


@settings(deadline=None, max_examples=60)
@given(st.lists(st.tuples(_names, st.dictionaries(_names.filter(lambda n: ":" not in n), _texts, max_size=3), _values)))
def test_what_is_written_as_the_format_says_is_read_back(samples_: list[tuple[str, dict[str, str], float]]) -> None:
    lines, expected = [], {}
    for name, labels, value in samples_:
        escaped = {k: v.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") for k, v in labels.items()}
        inner = ",".join(f'{k}="{v}"' for k, v in escaped.items())
        lines.append(f"{name}{'{' + inner + '}' if inner else ''} {value!r}")
        expected[plain(name), tuple(sorted(labels.items()))] = value
    text = "# HELP anything\n" + "".join(f"{line}\n" for line in lines)
    page = parse(text, "page")
    assert dict(page.samples) == expected
    assert not page.cut


@settings(deadline=None, max_examples=60)
@given(st.integers(min_value=1, max_value=5000))
def test_a_page_cut_anywhere_is_read_up_to_its_last_whole_line(length: int) -> None:
    text = (PAGES / "vllm_tiers_after.txt").read_text()
    cut = text[: min(length, len(text) - 1)]
    page = parse(cut, "page") if cut.strip() else Page(cut=True)
    whole = dict(parse(text, "page").samples)
    assert page.cut == (not cut.endswith("\n"))
    assert all(whole[key] == value for key, value in page.samples.items()), "a number cut short was taken for whole"


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("", "empty page"),
        ("\n \n", "empty page"),
        ("<!doctype html><html>Sign in</html>", "a web page"),
        ('{"status":"success"}', "JSON"),
        ("a 1\nb{x=1} 2\n", "line 2: not a metric"),
        ("a 1\nb 1_000\n", "line 2: '1_000' is not a number"),
        ('a 1\n{x="1"} 2\n', "line 2: a value without a metric's name"),
        ("a one\n", "line 1: 'one' is not a number"),
        ("\x00\x01\n", "not text"),
    ],
)
def test_what_is_no_metrics_page_is_refused_in_one_line(text: str, says: str) -> None:
    with pytest.raises(KvplanError, match=r"^where: ") as caught:
        parse(text, "where")
    assert says in str(caught.value)
    assert "\n" not in str(caught.value)


def test_openmetrics_exemplars_and_times() -> None:
    text = 'a_bucket{le="1.0"} 3 1700000000.5 # {trace_id="x}y"} 0.7 1700000000\n# EOF\n'
    page = parse(text, "page")
    assert dict(page.samples) == {("a_bucket", (("le", "1.0"),)): 3.0}
    assert page.at == 1700000000.5
    assert parse("a 3 1700000000500\n", "page").at == 1700000000.5  # Prometheus' own text counts milliseconds
    assert dict(parse('{"a.b", x="1"} 2\n', "page").samples) == {("a.b", (("x", "1"),)): 2.0}


# ------------------------------------------------------------------------------------------------ increases


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(0, 1e6).map(round), min_size=1, max_size=12), st.sets(st.integers(1, 11)))
def test_a_counter_that_restarts_loses_nothing_that_a_page_saw(steps: list[int], restarts: set[int]) -> None:
    """A counter played forward: what it gained between pages is what was added, with what a restart threw away gone."""
    value, values, expected = 0.0, [], 0.0
    for index, step in enumerate(steps):
        if index in restarts and step < value:  # a restart is seen only where the new value is below the old one
            value = 0.0
        value += step
        expected += step if index else 0.0
        values.append(value)
    assert math.fsum(gains(values, [True] * len(values))) == pytest.approx(expected)


def test_a_series_born_in_the_window_counts_from_nothing_but_not_after_a_cut_page() -> None:
    assert gains([None, 5.0, 7.0], [True, True, True]) == [5.0, 2.0]
    assert gains([None, 5.0, 7.0], [False, True, True]) == [0.0, 2.0]  # cut or missed: it may have been there before
    assert gains([3.0, None, 7.0], [True, False, True]) == [0.0, 4.0]
    assert gains([3.0, None, 2.0], [True, True, True]) == [0.0, 2.0]  # gone and back lower: it began anew


def test_ranks_that_count_alike_are_read_once_and_engines_are_added() -> None:
    line = 'x_total{{dp_rank="{}",tp_rank="{}"}} {}\n'
    before = "".join(line.format(d, t, 0) for d in (0, 1) for t in (0, 1))
    after = "".join(line.format(d, t, 10 * (d + 1)) for d in (0, 1) for t in (0, 1))
    read = recording(before, after)
    assert read.increase(total("x_total")) == 60
    assert read.increase(total("x_total", ranks="one")) == 30


def test_older_and_relabelled_names_are_found_and_an_absent_metric_is_unknown_not_zero() -> None:
    read = recording("vllm_gpu_prefix_cache_hits 1\n", "vllm_gpu_prefix_cache_hits 4\n")
    hits = pick("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
    assert read.increase((hits,)) == 3
    assert read.increase(total("vllm:prefix_cache_queries_total")) is None
    assert read.increase((Pick(hits.names, (("engine", "7"),)),)) == 0  # the metric is there, this engine is not


def test_every_prefix_belongs_to_one_system() -> None:
    for system in SYSTEMS:
        assert found([plain(f"{system.prefix}anything_total")]) == (system,)


# ------------------------------------------------------------------------------------------------ quantiles


@settings(deadline=None, max_examples=60)
@given(st.lists(st.floats(0.001, 20), min_size=1, max_size=200), st.sampled_from([0.1, 0.5, 0.9, 0.99]))
def test_a_quantile_lies_in_the_bucket_that_the_true_one_lies_in(values: list[float], q: float) -> None:
    limits = (0.01, 0.1, 1.0, 5.0, math.inf)
    counts = [(limit, float(sum(value <= limit for value in values))) for limit in limits]
    read = histogram.Histogram(count=len(values), sum=sum(values), buckets=tuple(counts)).quantile(q)
    true = sorted(values)[math.ceil(q * len(values)) - 1]
    assert read is not None
    assert read.low < true <= (math.inf if read.high is None else read.high) * (1 + 1e-9)
    assert read.low <= read.value <= (read.low if read.high is None else read.high)


def test_the_mean_bounds_a_quantile_closer_than_a_wide_bucket() -> None:
    read = histogram.Histogram(count=100, sum=0.0029, buckets=((0.3, 100.0), (math.inf, 100.0))).quantile(0.5)
    assert read is not None
    assert (read.low, read.high) == (0.0, pytest.approx(58e-6))


def test_a_quantile_is_that_of_the_window_alone() -> None:
    head = 't_bucket{{le="1"}} {}\nt_bucket{{le="2"}} {}\nt_bucket{{le="+Inf"}} {}\nt_count {}\nt_sum {}\n'
    read = histogram.read(
        recording(head.format(1000, 1000, 1000, 1000, 1), head.format(1000, 1010, 1010, 1010, 16)), ["t"]
    )
    assert read is not None
    assert (read.count, read.mean) == (10, 1.5)
    middle = read.quantile(0.5)
    assert middle is not None
    assert (middle.low, middle.value, middle.high) == (1.0, 1.5, 2.0)


# ------------------------------------------------------------------------------------------------ systems, by hand


def test_vllm_with_tiers() -> None:
    seen = pair("vllm_tiers", 600.0)
    # Queries grew by 600,000 and 400,000 tokens; the two engines' tiers by 500,000, 80,000 and 20,000.
    assert seen.prompt_tokens == 1_000_000
    assert (seen.hit_ratio, seen.computed_tokens, seen.requests) == (0.6, 400_000, 200)
    assert [tier(seen, name).hit_ratio for name in ("all", "gpu", "host", "disk", "external")] == [
        0.6,
        0.5,
        0.08,
        0.02,
        0.1,
    ]
    assert tier(seen, "external").asked_tokens == 500_000
    store, load = copies(seen, "store", "gpu", "host"), copies(seen, "load", "host", "gpu")
    assert (store.bytes, store.busy_s, store.busy_bytes_per_s, store.mean_bytes_per_s) == (60 * 10**9, 3.0, 20e9, 1e8)
    assert (load.bytes, load.busy_bytes_per_s) == (30 * 10**9, 30e9)
    assert store.blocks == round(60e9 / 2**21)  # 171,798,691,840 bytes in 81,920 chunks are 2 MiB each
    assert store.derived == ("blocks", "tokens")
    disk = copies(seen, "load", "disk", "host")
    assert (disk.bytes, disk.busy_bytes_per_s, disk.blocks, disk.derived) == (6 * 10**9, 3e9, 3000, ("tokens",))
    wait = next(one for one in seen.waits if one.what == "queue wait")
    assert (wait.count, wait.mean_s) == (100, 0.4)
    # 50, 80, 99 of 100 observations lie under 0.3, 0.5 and 1 s.
    assert [(q.low_s, q.high_s) for q in wait.quantiles] == [(0.0, 0.3), (0.5, 1.0), (0.5, 1.0)]
    assert wait.quantiles[1].value_s == pytest.approx(0.5 + 0.5 * 10 / 19)
    assert seen.systems[0].engines == 2
    assert seen.systems[0].models == ('org/model "8b"',)
    running = next(one for one in seen.gauges if one.what == "requests running")
    assert (running.low, running.high, running.last) == (6, 10, 10)
    assert {one.key: one.value for one in seen.configured}["host_bytes"] == 160 * 2**30
    assert next(one for one in seen.configured if one.key == "gpu_blocks").engines == 2
    assert codes(seen) == ["failed-host"]


def test_vllm_of_older_names() -> None:
    seen = pair("vllm_old")
    assert (seen.hit_ratio, seen.prompt_tokens) == (0.25, 2000)
    assert copies(seen, "store", "gpu", "host").busy_bytes_per_s == 4e9
    assert copies(seen, "load", "host", "gpu").busy_bytes_per_s == 8e9
    assert codes(seen) == []


def test_vllm_simple_connector_that_only_stores() -> None:
    seen = pair("vllm_simple")
    assert seen.hit_ratio == 0.3
    assert copies(seen, "store", "gpu", "external").blocks == 4000
    assert [(one.reason, one.amount) for one in seen.losses if one.what == "refused"] == [("dropped cpu full", 50)]
    assert codes(seen) == ["stores-without-loads", "external-hits-zero"]


def test_sglang_on_two_ranks() -> None:
    seen = pair("sglang")
    assert (seen.prompt_tokens, seen.hit_ratio, seen.requests) == (100_000, 0.5, 100)
    assert [tier(seen, name).hit_ratio for name in ("gpu", "host", "disk")] == [0.3, 0.15, 0.05]
    store = copies(seen, "store", "gpu", "host")
    assert (store.bytes, store.tokens, store.busy_s, store.operations) == (6 * 10**9, 48_000, 1.0, 100)
    assert copies(seen, "load", "host", "gpu").busy_bytes_per_s == 10e9
    assert {one.key: one.value for one in seen.configured} == {
        "gpu_tokens": 400_000,
        "block_tokens": 1,
        "host_tokens": 800_000,
    }
    assert next(one for one in seen.gauges if one.what == "requests running").last == 5
    assert [(one.what, one.reason, one.amount) for one in seen.losses if one.amount] == [
        ("evicted", "to make room, whether the host has them or not", 70_000),
        ("failed", "host full", 640),
    ]


def test_llama_cpp_counts_what_it_computes_and_hits_follow_from_what_was_sent() -> None:
    seen = pair("llama_cpp")
    assert (seen.hit_ratio, seen.prompt_tokens, seen.computed_tokens) == (None, None, 20_000)
    pages = [PAGES / "llama_cpp_before.txt", PAGES / "llama_cpp_after.txt"]
    assert observe(saved(pages), prompt_tokens=80_000).hit_ratio == 0.75
    with pytest.raises(UsageError, match="more than were sent"):
        observe(saved(pages), prompt_tokens=19_999)


def test_lmcache_server() -> None:
    seen = pair("lmcache_server")
    assert (seen.hit_ratio, seen.prompt_tokens, seen.computed_tokens) == (0.3, 100_000, None)
    assert [tier(seen, name).hit_ratio for name in ("host", "disk")] == [0.22, 0.08]
    load = copies(seen, "load", "host", "gpu")
    assert load.blocks == 100
    assert load.spread_bytes_per_s == pytest.approx((5e9, 9e9, 21.25e9))  # ranks 10, 50, 90 of 100
    assert next(one for one in seen.configured if one.key == "shared_host_bytes").value == 100 * 2**30
    assert [(one.reason, one.amount) for one in seen.losses if one.amount] == [("to make room", 40), ("l1 oom", 3)]
    assert seen.systems[0].models == ("m", "n")
    kept = next(one for one in seen.waits if one.age)
    # 40, 80 and 100 of 100 chunks rested up to 60 s, 120 s and longer, 90 s on average: half of them under 75 s.
    assert (kept.count, kept.mean_s, kept.quantiles[0].value_s) == (100, 90.0, 75.0)
    assert (kept.quantiles[1].low_s, kept.quantiles[1].high_s) == (120.0, pytest.approx(900.0))


def test_lmcache_in_the_engine() -> None:
    seen = pair("lmcache")
    assert (seen.hit_ratio, seen.prompt_tokens) == (0.4, 50_000)
    assert copies(seen, "store", "gpu", "host").tokens == 30_000
    assert next(one for one in seen.gauges if one.what == "host pool in use").last == 10e9
    assert codes(seen) == ["unhealthy"]


def test_kvbm_alone_and_with_the_engine_that_counts_prompts() -> None:
    alone = pair("kvbm")
    assert alone.hit_ratio is None
    assert (tier(alone, "external").hit_tokens, tier(alone, "external").hit_ratio) == (15_680, None)
    assert copies(alone, "load", "disk", "gpu").blocks == 80
    pages = [
        [parse((PAGES / f"{name}_{when}.txt").read_text(), name) for when in ("before", "after")]
        for name in ("kvbm", "vllm_simple")
    ]
    both = observe(Taken(Recording([0.0, 10.0], [Track("a", tuple(pages[0])), Track("b", tuple(pages[1]))])))
    found_ = next(one for one in both.hits if one.system == "kvbm")
    assert (both.hit_ratio, found_.hit_ratio) == (0.3, 0.1568)


@pytest.mark.parametrize("name", ["vllm_cpu"])
def test_a_real_vllm_counted_what_its_clients_were_told(name: str) -> None:
    """Pages of vLLM 0.32 around a replay of 250 requests, whose usage fields said 77,984 of 139,135 tokens cached."""
    seen = pair(name)
    assert (seen.prompt_tokens, seen.hit_ratio, seen.requests) == (139_135, 77_984 / 139_135, 250)
    assert tier(seen, "gpu").hit_tokens == 77_984
    values = {one.key: one.value for one in seen.configured}
    assert (values["gpu_blocks"], values["block_tokens"], values["engine_tokens"]) == (120, 32, 3840)
    assert seen.systems[0].models == ("tiny",)
    first = next(one for one in seen.waits if one.what == "time to first token")
    assert first.count == 250
    assert [finding.severity for finding in seen.findings] == []


def test_a_real_llama_cpp_counted_what_its_clients_were_told() -> None:
    """Pages around a replay of 240 requests, whose usage fields said 58,814 of 90,820 tokens cached."""
    seen = pair("llamacpp_live")
    assert (seen.prompt_tokens, seen.hit_ratio, seen.computed_tokens) == (90_820, 58_814 / 90_820, 32_006)
    assert seen.systems[0].uncounted == ()


def test_two_engines_of_different_systems_are_one_answer() -> None:
    tracks = [
        Track(name, tuple(parse((PAGES / f"{name}_{when}.txt").read_text(), name) for when in ("before", "after")))
        for name in ("vllm_tiers", "sglang")
    ]
    seen = observe(Taken(Recording([0.0, 100.0], tracks)))
    assert (seen.prompt_tokens, seen.requests) == (1_100_000, 300)
    assert seen.hit_ratio == pytest.approx((600_000 + 50_000) / 1_100_000)
    assert seen.moments[0].hit_ratio == seen.hit_ratio
    assert seen.moments[0].running == 10 + 5
    assert seen.moments[0].store_bytes_per_s == pytest.approx((60e9 + 6e9) / 100)


def test_tokens_given_although_the_server_counts_them_are_said_not_to_be_used() -> None:
    seen = observe(saved([PAGES / "vllm_cpu_before.txt", PAGES / "vllm_cpu_after.txt"], 60.0), prompt_tokens=1)
    assert seen.prompt_tokens == 139_135
    assert codes(seen) == ["prompt-tokens"]


def test_one_page_is_the_total_since_the_server_started() -> None:
    seen = observe(saved([PAGES / "vllm_tiers_after.txt"]))
    assert seen.since_start
    assert seen.prompt_tokens == 2_500_000
    assert seen.hit_ratio == pytest.approx(1_350_000 / 2_500_000)
    assert seen.moments == ()


# ----------------------------------------------------------------------------------------- pages that are not right


def test_a_missing_series_is_said_with_what_is_there_under_a_name_like_it() -> None:
    before = (PAGES / "vllm_tiers_before.txt").read_text().replace("prefix_cache_hits", "prefix_caches_hit")
    after = (PAGES / "vllm_tiers_after.txt").read_text().replace("prefix_cache_hits", "prefix_caches_hit")
    seen = observe(Taken(recording(before, after)))
    said = next(finding.text for finding in seen.findings if finding.code == "metric-missing")
    assert "vllm:prefix_cache_hits_total" in said
    assert "vllm_prefix_caches_hit" in said
    assert seen.hit_ratio == 0.6  # the counter by source still tells
    assert tier(seen, "gpu").hit_ratio == 0.5


def test_a_restart_is_said_and_costs_only_what_no_page_saw() -> None:
    page = "vllm:prefix_cache_queries_total {}\nvllm:prefix_cache_hits_total {}\nvllm:num_requests_running 1\n"
    seen = observe(Taken(recording(page.format(1000, 900), page.format(1100, 950), page.format(100, 10))))
    assert (seen.prompt_tokens, tier(seen, "gpu").hit_tokens) == (200, 60)
    assert seen.sources[0].restarts == 1
    assert "restart" in codes(seen)


def test_a_cut_page_is_said_and_what_it_lacks_is_not_taken_for_born() -> None:
    before = (PAGES / "vllm_tiers_before.txt").read_text()
    cut = before[: before.index("vllm:kv_offload_load_bytes_total") + 60]
    seen = observe(Taken(recording(cut, before, (PAGES / "vllm_tiers_after.txt").read_text())))
    assert "page-cut" in codes(seen)
    assert copies(seen, "load", "host", "gpu").bytes == 30 * 10**9
    assert seen.hit_ratio == 0.6


def test_rounds_without_a_page_lose_nothing() -> None:
    texts = [(PAGES / f"vllm_tiers_{when}.txt").read_text() for when in ("before", "after")]
    seen = observe(Taken(recording(texts[0], None, texts[1]), missed={0: "http://x: connection refused"}))
    assert seen.hit_ratio == 0.6
    assert (seen.sources[0].pages, seen.sources[0].missed) == (2, 1)
    assert "connection refused" in next(one.text for one in seen.findings if one.code == "page-missed")


def test_metrics_of_something_else_are_refused() -> None:
    with pytest.raises(KvplanError, match=r"no serving system known .* it has go_threads"):
        observe(Taken(recording("go_threads 1\n", "go_threads 1\n")))


# ------------------------------------------------------------------------------------------------ silent failures


def growing(*queue: float, stored: tuple[float, ...]) -> Observation:
    text = (
        "vllm:prefix_cache_queries_total {at}\nvllm:prefix_cache_hits_total {at}\nvllm:num_requests_running 1\n"
        'vllm:cache_config_info{{block_size="16"}} 1\nvllm:simple_kv_offload_load_blocks_total {at}\n'
        "vllm:simple_kv_offload_pending_store_blocks {queue}\n"
        'vllm:simple_kv_offload_save_outcomes_total{{outcome="stored"}} {stored}\n'
    )
    rounds = [text.format(at=10 * i, queue=q, stored=s) for i, (q, s) in enumerate(zip(queue, stored, strict=True))]
    return observe(Taken(recording(*rounds)))


def test_a_queue_of_stores_that_only_grows_and_one_that_is_worked_off() -> None:
    assert codes(growing(0, 5, 9, 20, stored=(0, 10, 20, 30))) == ["pending-stores-growing"]
    assert codes(growing(0, 5, 2, 6, stored=(0, 10, 20, 30))) == []
    assert codes(growing(4, 4, 4, 4, stored=(0, 10, 10, 10))) == ["stores-stuck"]
    assert codes(growing(0, 4, stored=(0, 0))) == []  # two pages are no trend


def test_stores_that_are_begun_and_never_end_threads_that_died_and_a_gauge_that_stays_at_zero() -> None:
    server = "lmcache_mp_lookup_requested_tokens_total {0}0\nlmcache_mp_lookup_hit_tokens_total {0}\n"
    server += "lmcache_mp_num_submitted_stores_total {0}\nlmcache_mp_num_finished_stores_total {1}\n"
    stuck = observe(Taken(recording(*(server.format(10 * index, index) for index in range(4)))))
    assert codes(stuck) == ["pending-stores-growing"]
    fine = observe(Taken(recording(*(server.format(10 * index, 10 * index) for index in range(4)))))
    assert codes(fine) == []
    library = (
        "lmcache:num_lookup_tokens_total {0}0\nlmcache:num_lookup_hits_total {0}\nlmcache:num_hit_tokens_total {0}\n"
    )
    library += "lmcache:pinned_memory_objs_count {1}\nlmcache:periodic_threads_total_count 3\n"
    library += "lmcache:periodic_threads_running_count {2}\n"
    dead = observe(Taken(recording(*(library.format(index, 0, 3 - (index > 4)) for index in range(6)))))
    assert codes(dead) == ["pinned-zero", "threads-dead"]
    assert [finding.severity for finding in dead.findings] == ["info", "error"]
    alive = observe(Taken(recording(*(library.format(index, index % 2, 3) for index in range(6)))))
    assert codes(alive) == []


@settings(deadline=None, max_examples=60)
@given(st.lists(st.integers(0, 50), min_size=3, max_size=10))
def test_a_queue_that_ends_no_higher_than_it_began_never_counts_as_growing(queue: list[int]) -> None:
    if queue[-1] <= queue[0]:
        assert not only_grows([float(value) for value in queue])
    assert only_grows([float(value) for value in itertools.accumulate([1, *queue, 1])])


# ------------------------------------------------------------------------------------------------ beside a plan


def played(plan: object, **changes: object) -> beside.Seen:
    usual: dict[str, object] = {
        "engines": 1,
        "span_s": 3600.0,
        "since_start": False,
        "started_within": False,
        "restarts": 0,
        "hit_ratio": None,
        "prompt_tokens": None,
        "computed_tokens": None,
        "requests": None,
        "hits": (),
        "transfers": (),
        "waits": (),
        "configured": (),
        "findings": (),
    }
    return beside.Seen(**{**usual, **changes})  # type: ignore[arg-type]


def test_hits_as_planned_agree_and_others_are_explained() -> None:
    plan = samples.plan().data
    planned = plan.budgets.host.hit_ratio
    same = beside.checks(plan, played(plan, hit_ratio=planned - 0.04))
    assert [(one.what, one.agrees, one.why) for one in same if one.unit == "ratio"] == [("hits, all tiers", True, ())]
    cold = beside.checks(plan, played(plan, hit_ratio=0.2, since_start=True, computed_tokens=10_000, requests=50))[0]
    assert not cold.agrees
    assert cold.why[0].startswith("cold start: 10,000 tokens computed since")
    assert cold.why[1].startswith("the window is short: 50 requests")
    assert "salts" in cold.why[-1]


def test_a_connector_that_does_not_name_its_tiers_is_held_against_all_of_them() -> None:
    plan = samples.plan().data
    made = {
        name: TierHits(system="vllm", tier=name, hit_tokens=1, of_tokens=10, hit_ratio=ratio, formula="")  # type: ignore[arg-type]
        for name, ratio in (("gpu", 0.5), ("host", 0.0), ("disk", 0.0), ("external", 0.14))
    }
    checks = beside.checks(plan, played(plan, hit_ratio=0.64, hits=tuple(made.values())))
    below = plan.budgets.host.hit_ratio - plan.budgets.gpu.hit_ratio
    assert [(one.what, round(one.planned, 9), one.observed) for one in checks if one.unit == "ratio"][1:] == [
        ("hits, GPU", round(plan.budgets.gpu.hit_ratio, 9), 0.5),
        ("hits, below the GPU", round(below, 9), 0.14),
    ]


def test_another_pool_than_planned_is_explained_by_the_curve_of_the_log() -> None:
    plan = samples.plan().data
    planned = beside.pool_tokens(plan)
    assert planned is not None
    blocks = round(planned / 16 / 2)
    config = (
        'vllm:cache_config_info{block_size="16",engine="0",num_gpu_blocks="%d"} 1\n'
        "vllm:prefix_cache_queries_total %d\nvllm:prefix_cache_hits_total %d\nvllm:num_requests_running 1\n"
    )
    taken = Taken(recording(config % (blocks, 10, 0), config % (blocks, 10_000_010, 2_000_000), every_s=3600.0))
    seen = observe(taken, samples.plan())
    hits = next(one for one in seen.beside_plan if one.what == "hits, all tiers")
    left = plan.budgets.gpu.tokens + blocks * 16 - planned
    expected = beside.at(plan.inputs.workload.data, left)
    assert expected is not None
    assert f"curve gives {expected * 100:.1f} %" in " ".join(hits.why)
    size = next(one for one in seen.beside_plan if one.what == "tokens in the GPU pool of one engine")
    assert not size.agrees
    missing = next(one for one in seen.beside_plan if one.what == "host pool of one engine")
    assert (missing.observed, missing.agrees) == (None, False)


def test_the_curve_between_its_points() -> None:
    workload = samples.plan().data.inputs.workload.data
    first, second = workload.curve[0], workload.curve[1]
    assert beside.at(workload, first.capacity_tokens) == first.hit_ratio
    middle = (first.capacity_tokens + second.capacity_tokens) / 2
    assert beside.at(workload, middle) == pytest.approx((first.hit_ratio + second.hit_ratio) / 2)
    assert beside.at(workload, 1e15) == workload.curve[-1].hit_ratio


def test_more_hits_than_planned_are_not_explained_by_what_makes_fewer() -> None:
    plan = samples.plan().data
    high = beside.checks(plan, played(plan, hit_ratio=0.99, since_start=True, computed_tokens=10, restarts=2))[0]
    said = " ".join(high.why)
    assert not high.agrees
    assert "profile a log of this time" in said
    assert not any(word in said for word in ("cold start", "restarted", "salts"))


@pytest.mark.parametrize(("rate", "says"), [(1e6, "page-locked"), (1e15, "run `kvplan probe`")])
def test_a_link_is_explained_by_whether_it_is_slower_or_faster(rate: float, says: str) -> None:
    plan = samples.plan().data
    load = TierTransfer(system="vllm", source="host", target="gpu", way="load", busy_bytes_per_s=rate)
    rows = beside.checks(plan, played(plan, transfers=(load,)))
    links = [one for one in rows if one.what.startswith("loads from host memory")]
    assert [says in " ".join(one.why) for one in links] == [True]


@pytest.mark.parametrize(
    ("names", "says"),
    [
        (("vllm_cpu_after", "vllm_cpu_before"), "counts less on the later page"),
        (("vllm_cpu_before", "llama_cpp_after"), "give pages of one server"),
        (("vllm_cpu_before", "vllm_tiers_after"), "started earlier"),
    ],
)
def test_pages_that_cannot_be_of_one_server_in_this_order_are_refused(names: tuple[str, str], says: str) -> None:
    with pytest.raises(KvplanError, match=says) as raised:
        saved([PAGES / f"{name}.txt" for name in names])
    assert all(f"{name}.txt" in str(raised.value) for name in names)


@pytest.mark.parametrize("option", [("--selector", '{job="vllm"}'), ("--token-file", "token")])
def test_options_of_live_servers_are_refused_beside_saved_pages(option: tuple[str, str], tmp_path: Path) -> None:
    (tmp_path / "token").write_text("secret")
    words = [word if word != "token" else str(tmp_path / "token") for word in option]
    pages = [str(PAGES / f"vllm_cpu_{when}.txt") for when in ("before", "after")]
    done = CliRunner().invoke(app, ["observe", *pages, *words])
    assert isinstance(done.exception, UsageError)
    assert option[0] in str(done.exception)


def test_an_address_named_twice_is_refused_before_anything_is_read() -> None:
    with pytest.raises(UsageError, match=r"http://localhost:1/metrics is named twice"):
        watch(["http://localhost:1", "http://localhost:1/metrics"])


def test_a_window_without_a_prompt_and_hits_of_an_unknown_whole_are_said_so() -> None:
    quiet = report.sections(files.wrap(observe(saved([PAGES / "vllm_cpu_after.txt"] * 2, 10.0))))
    assert "No prompt came over 10 s" in report.markdown(quiet, "figures")[0]
    alone = report.markdown(report.sections(files.wrap(pair("kvbm"))), "figures")[0]
    row = next(line for line in alone.splitlines() if "any tier below the GPU" in line)
    assert [cell.strip() for cell in row.split("|")][2:5] == ["unknown", "15,680", "unknown"]


@pytest.mark.parametrize("rest", ["", "vllm:prefix_cache_hits_total NaN\n"])
def test_a_counter_that_one_page_alone_has_gained_nobody_knows_what(rest: str) -> None:
    """Not zero: what is known of a count is two readings of it."""
    page = "vllm:prefix_cache_queries_total {}\nvllm:num_requests_running 1\n"
    seen = observe(Taken(recording(page.format(1000) + "vllm:prefix_cache_hits_total 900\n", page.format(2000) + rest)))
    assert (seen.hit_ratio, seen.prompt_tokens, seen.hits) == (None, None, ())
    assert "hits-zero" not in codes(seen)
    assert any("hits_total can be read on one page alone" in one.text for one in seen.findings)
    assert "These pages do not tell them." in report.markdown(report.sections(files.wrap(seen)), "figures")[0]


def test_what_a_cut_second_page_lacks_is_not_known() -> None:
    before, after = ((PAGES / f"vllm_cpu_{when}.txt").read_text() for when in ("before", "after"))
    cut = after[: after.index("vllm:prefix_cache_queries_total{") + 40]
    seen = observe(Taken(recording(before, cut)))
    assert "page-cut" in codes(seen)
    assert (seen.prompt_tokens, seen.hit_ratio, seen.hits) == (None, None, ())
    assert "No prompt came" not in report.markdown(report.sections(files.wrap(seen)), "figures")[0]
    one_round_later = observe(Taken(recording(before, after, cut)))  # what was seen until then stands
    assert one_round_later.hit_ratio == observe(Taken(recording(before, after))).hit_ratio


def test_a_plan_of_another_engine_or_model_is_said_to_be_one() -> None:
    plan = samples.plan()
    own = observe(saved([PAGES / f"vllm_tiers_{when}.txt" for when in ("before", "after")], 600.0), plan)
    assert "plan-engine" not in codes(own)
    assert plan.data.inputs.estimate.data.model.id in next(f.text for f in own.findings if f.code == "plan-model")
    other = observe(saved([PAGES / f"sglang_{when}.txt" for when in ("before", "after")], 600.0), plan)
    assert "the plan is for vllm and the pages are of SGLang" in other.findings[0].text
    layer = observe(saved([PAGES / f"lmcache_server_{when}.txt" for when in ("before", "after")], 600.0), plan)
    assert not {"plan-engine", "plan-model"} & set(codes(layer)), "a layer below the engine is no engine"


@pytest.mark.parametrize(
    ("served", "alike"), [("Llama-3.1-8B-Instruct", True), ("llama-3.1-8b", True), ("qwen3", False), ("x/", False)]
)
def test_names_that_may_be_one_model(served: str, alike: bool) -> None:
    plan = samples.plan().data
    model = replace(plan.inputs.estimate.data.model, id="meta-llama/Llama-3.1-8B")
    estimate = replace(plan.inputs.estimate, data=replace(plan.inputs.estimate.data, model=model))
    plan = replace(plan, inputs=replace(plan.inputs, estimate=estimate))
    engine = ServingSystem(name="vllm", title="vLLM", engines=1, models=(served,))
    assert [one.code for one in beside.mistaken(plan, [engine])] == ([] if alike else ["plan-model"])
