"""Prices: the file that must be confirmed, published break-even intervals, and choices that only ratios can move."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st
from records import replace
from test_plan import Plan, Policy, planned
from test_plan_oracle import A, tiny_estimate, tiny_gpu, tiny_log, tiny_workload

from kvplan import prices as prices_file
from kvplan.documents import Prefill, Prices
from kvplan.errors import KvplanError
from kvplan.files import dump
from kvplan.plan import make
from kvplan.planning.economics import LoadPath
from kvplan.planning.money import keep_for, write_usd
from kvplan.units import GB, GiB, TiB

YEAR = 8760 * 3600.0
PRICES = Prices(
    date="2026-01-31",
    source="test",
    gpu_usd_per_hour=3.0,
    memory_usd_per_gb=14.0,
    memory_life_s=4 * YEAR,
    memory_usd_per_gb_hour=0.008,
    disk_usd_per_gb=0.20,
    disk_life_s=5 * YEAR,
    disk_usd_per_gb_hour=0.0001,
    disk_writes_per_day=1.0,
)
FREE = LoadPath(s_per_token=0.0)


def h200(scale: float = 1.0) -> Prefill:
    """Llama-3.1-8B on one H200, or a model that takes `scale` times as long."""
    return Prefill(
        model="m",
        device="d",
        t0_s=0.91e-3 * scale,
        a_s_per_token=20.3e-6 * scale,
        b_s_per_token_sq=4.11e-10 * scale,
        provenance="measured",
        source="fit",
    )


def flat(usd_per_million: float) -> Prefill:
    """A prefill at $3 an hour that costs so many dollars a million tokens."""
    a = usd_per_million / 1e6 / (3.0 / 3600)
    return replace(h200(), t0_s=0.0, a_s_per_token=a, b_s_per_token_sq=0.0)


@pytest.mark.parametrize(
    ("prefill", "tokens", "kv", "recompute", "dram_min", "dear_min", "rented_min", "nvme_h", "write"),
    [
        (h200(), 8192, 131_072, 0.020, 23, 9, 1.1, 34, 0.71),
        (h200(), 65_536, 131_072, 0.039, 45, 18, 2.2, 66, 0.36),
        (flat(0.262), 8192, 327_680, 0.262, 120, 47, 5.8, 7 * 24, 0.14),
    ],
)
def test_five_minute_rule_of_the_published_table(
    prefill: Prefill,
    tokens: int,
    kv: int,
    recompute: float,
    dram_min: float,
    dear_min: float,
    rented_min: float,
    nvme_h: float,
    write: float,
) -> None:
    """$3 a GPU hour, loads free: DRAM at $14 and $36 a GB over 4 years, rented RAM, flash at $0.20 over 5 at 1 DWPD."""

    def row(tier: str, view: str, prices: Prices = PRICES) -> tuple[float, float, float | None]:
        found = keep_for(prices, tier, view, tokens, 1, prefill, FREE, kv)  # type: ignore[arg-type]
        assert found is not None
        assert found.interval_s is not None
        return found.interval_s, found.recompute_usd_per_million_tokens, found.write_ratio

    dear = replace(PRICES, memory_usd_per_gb=36.0)
    assert row("host", "bought")[1] == pytest.approx(recompute, rel=0.05)
    assert row("host", "bought")[0] / 60 == pytest.approx(dram_min, rel=0.05)
    assert row("host", "bought", dear)[0] / 60 == pytest.approx(dear_min, rel=0.05)
    assert row("host", "rented")[0] / 60 == pytest.approx(rented_min, rel=0.05)
    assert row("disk", "bought")[0] / 3600 == pytest.approx(nvme_h, rel=0.05)
    assert row("disk", "bought")[2] == pytest.approx(write, rel=0.05)


def test_intervals_at_the_edges() -> None:
    slow = LoadPath(s_per_token=1.0)
    never = keep_for(PRICES, "host", "bought", 2048, 1, h200(), slow, 131_072)
    ever = keep_for(PRICES, "host", "owned", 2048, 1, h200(), FREE, 131_072)
    assert never is not None
    assert never.interval_s == 0.0
    assert ever is not None
    assert ever.interval_s is None
    assert keep_for(replace(PRICES, memory_usd_per_gb_hour=None), "host", "rented", 8, 1, h200(), FREE, 8) is None
    assert write_usd(replace(PRICES, disk_writes_per_day=None)) is None
    assert write_usd(PRICES) == pytest.approx(0.20 / 1825 / 1e9)


# ---------------------------------------------------------------------------------------------- views of a plan


def test_without_prices_no_dollar_is_shown() -> None:
    plan = planned()
    assert plan.costs == plan.keep_for == ()
    assert plan.benefit.usd_per_hour is None
    text = json.dumps(json.loads(dump(samples.envelope("plan", plan)))["data"])
    assert "$" not in text
    assert not re.search(r'_usd[a-z_]*": [0-9]', text)


def test_three_views_with_figures_by_hand() -> None:
    plan = planned(prices=PRICES)
    views = {one.view: one for one in plan.costs}
    assert list(views) == ["owned", "bought", "rented"]
    host, net = plan.budgets.host.requested_bytes, plan.benefit.gpu_s_per_hour_saved
    tokens = samples.workload().data.input_tokens * 3600 / samples.SPAN_S / 1e6
    busy = plan.benefit.gpu_busy_ratio_off * 3600
    for view, hold in (("owned", 0.0), ("bought", 14.0 / (4 * 8760)), ("rented", 0.008)):
        one = views[view]  # type: ignore[index]
        assert one.gpu_usd_per_hour == pytest.approx(net / 3600 * 3.0)
        assert one.hold_usd_per_hour == pytest.approx(hold * host / GB)
        assert one.net_usd_per_hour == pytest.approx(one.gpu_usd_per_hour - one.hold_usd_per_hour)
        assert one.usd_per_million_input_tokens_off == pytest.approx(busy / 3600 * 3.0 / tokens)
        gap = one.usd_per_million_input_tokens_off - one.usd_per_million_input_tokens_on
        assert gap == pytest.approx(one.net_usd_per_hour / tokens)
    assert views["owned"].best_host_bytes == host
    assert views["rented"].best_host_bytes <= views["bought"].best_host_bytes <= host
    assert plan.benefit.usd_per_hour == pytest.approx(net / 3600 * 3.0)
    assert plan.benefit.gpu_hours_per_month == pytest.approx(net / 3600 * 730)


def test_gpu_hours_count_every_gpu_of_every_replica() -> None:
    two = planned(Policy(replicas=2), probe=samples.probe_without_gpu())
    assert two.benefit.gpu_hours_per_month == pytest.approx(two.benefit.gpu_s_per_hour_saved / 3600 * 2 * 730)


def test_a_view_chooses_what_it_says_it_would() -> None:
    plan = planned(prices=PRICES)
    for one in plan.costs:
        chosen = planned(Policy(price_view=one.view), prices=PRICES)
        assert chosen.budgets.host.requested_bytes == one.best_host_bytes
        assert chosen.budgets.disk.requested_bytes == one.best_disk_bytes


def test_a_missing_price_names_its_line() -> None:
    with pytest.raises(KvplanError, match="give --prices FILE"):
        planned(Policy(price_view="bought"))
    with pytest.raises(KvplanError, match=r"\[memory\] usd_per_gb_hour: add it"):
        planned(Policy(price_view="rented"), prices=replace(PRICES, memory_usd_per_gb_hour=None))
    some = planned(prices=replace(PRICES, memory_usd_per_gb_hour=None, disk_usd_per_gb=None))
    assert [one.view for one in some.costs] == ["owned"]


def test_a_drive_costs_its_time_or_its_wear_whichever_is_more() -> None:
    document = samples.probe()
    quick = (samples.link("read", 2 * 2**20, 1, 40.0), samples.link("write", 2 * 2**20, 1, 30.0))
    probe = replace(document, data=replace(document.data, links=(*document.data.links, *quick)))
    easy = Policy(forbid_host=True, minimum_disk_life_s=0.0)
    plan = planned(easy, probe=probe, prices=PRICES)
    assert plan.verdict == "disk"
    bought = next(one for one in plan.costs if one.view == "bought")
    hold = plan.budgets.disk.requested_bytes / GB * 0.20 / (5 * 8760)
    wear = plan.alternatives[1].stored_bytes_per_hour / GB * 0.20 / 1825
    assert bought.hold_usd_per_hour == pytest.approx(hold)
    assert bought.hold_usd_per_hour + bought.wear_usd_per_hour == pytest.approx(max(hold, wear))
    assert wear > hold


def priced_plan(seed: int, blocks: int, prices: Prices, view: str = "bought") -> Plan:
    policy = Policy(
        gpu_memory_utilization=1.0,
        headroom_ratio=0.0,
        host_memory_bytes=TiB,
        host_link_bytes_per_s=GiB / 512 / (A / 50),
        minimum_gain_ratio=0.0,
        tolerance_ratio=0.0,
        price_view=view,  # type: ignore[arg-type]
    )
    return make(tiny_estimate(), tiny_workload(tiny_log(seed)), None, tiny_gpu(blocks), policy, prices)


def times(prices: Prices, factor: float, memory: float = 1.0) -> Prices:
    return replace(
        prices,
        gpu_usd_per_hour=prices.gpu_usd_per_hour * factor,
        memory_usd_per_gb=(prices.memory_usd_per_gb or 0) * factor * memory,
        memory_usd_per_gb_hour=(prices.memory_usd_per_gb_hour or 0) * factor * memory,
    )


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 20), st.sampled_from([2.0**-20, 0.5, 4.0, 1024.0]), st.floats(1e-5, 1.0))
def test_scaling_all_prices_changes_no_byte(seed: int, blocks: int, factor: float, memory: float) -> None:
    """Powers of two, so that not even the last digit moves."""
    base = times(PRICES, 1.0, memory)
    one, other = priced_plan(seed, blocks, base), priced_plan(seed, blocks, times(base, factor))
    assert one.budgets == other.budgets
    assert one.alternatives == other.alternatives
    for before, after in zip(one.costs, other.costs, strict=True):
        assert after.net_usd_per_hour == pytest.approx(before.net_usd_per_hour * factor)


@settings(max_examples=25, deadline=None)
@given(st.integers(0, 10**6), st.integers(1, 20))
def test_dearer_memory_never_buys_more_of_it(seed: int, blocks: int) -> None:
    sizes = []
    for memory in (0.0, 1e-6, 1e-4, 1e-2, 1.0, 100.0):
        plan = priced_plan(seed, blocks, times(PRICES, 1.0, memory))
        sizes.append(plan.budgets.host.requested_bytes)
        chosen = plan.alternatives[1]
        assert chosen.net_s_per_hour >= chosen.hold_s_per_hour - 1e-9
    assert sizes == sorted(sizes, reverse=True)
    assert sizes[0] == priced_plan(seed, blocks, PRICES, "owned").budgets.host.requested_bytes


# ---------------------------------------------------------------------------------------------- the file


EXAMPLE = Path(__file__).resolve().parents[1] / "examples/prices.toml"


def written(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "prices.toml"
    path.write_text(text, encoding="utf-8")
    return path


def test_the_example_is_refused_until_it_is_confirmed(tmp_path: Path) -> None:
    with pytest.raises(KvplanError, match="not confirmed"):
        prices_file.read(EXAMPLE)
    text = EXAMPLE.read_text(encoding="utf-8").replace("confirmed = false", "confirmed = true")
    found = prices_file.read(written(tmp_path, text))
    assert found.date == "2000-01-01"
    assert found.memory_life_s == YEAR
    assert all(getattr(found, field) is not None for field in Prices.__slots__)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("date = ", "not valid TOML"),
        ("confirmed = true\n[gpu]\nusd_per_hour = 3", "date is missing"),
        ('date = "yesterday"\nconfirmed = true\n[gpu]\nusd_per_hour = 3', "no date"),
        ("date = 2026-01-31\nconfirmed = true", r"\[gpu\] usd_per_hour is missing"),
        ("date = 2026-01-31\nconfirmed = true\n[gpu]\nusd_per_hour = 0", r"\[gpu\] usd_per_hour is missing or 0"),
        ("date = 2026-01-31\nconfirmed = true\ngpu = 3", r"write \[gpu\]"),
        ("date = 2026-01-31\nconfirmed = true\n[gpu]\nusd_per_hour = -1", "is no price"),
        ("date = 2026-01-31\nconfirmed = true\n[gpu]\nusd_per_hour = true", "is no price"),
        ("date = 2026-01-31\nconfirmed = true\n[gpu]\nusd_per_hour = inf", "is no price"),
        ("date = 2026-01-31\nconfirmed = true\n[gpu]\nusd_per_day = 3", "unknown key 'usd_per_day'"),
        ("date = 2026-01-31\nconfirmed = true\n[cpu]\nusd_per_hour = 3", "unknown key 'cpu'"),
        ('date = 2026-01-31\nconfirmed = "yes"\n[gpu]\nusd_per_hour = 3', "not confirmed"),
    ],
)
def test_a_price_file_that_is_not_right_says_what_is_wrong(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(KvplanError, match=words) as caught:
        prices_file.read(written(tmp_path, text))
    assert "prices.toml" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_price_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(KvplanError, match="no such file"):
        prices_file.read(tmp_path / "prices.toml")
