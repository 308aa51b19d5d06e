"""What a plan costs and saves in money, where prices were given; without prices it says nothing."""

from __future__ import annotations

from kvplan.documents import Cost, KeepFor, Plan, Prices, PriceView
from kvplan.page import Axis, Block, Fact, Facts, Figure, Plot, Role, Row, Rule, Section, Series
from kvplan.pages import parts
from kvplan.units import show_bytes, show_duration, show_percent

_HIGHEST = 2.0  # the cost chart ends at twice what no tier costs
_VIEWS: dict[PriceView, tuple[str, Role]] = {
    "owned": ("memory in the box already", "main"),
    "bought": ("memory bought", "second"),
    "rented": ("memory rented", "fourth"),
}


def money(plan: Plan) -> tuple[Section, ...]:
    """Every view of the money, and how long a prefix is worth keeping."""
    prices = plan.inputs.prices
    if prices is None or not plan.costs:
        return ()
    chosen = next((one for one in plan.costs if one.view == plan.policy.price_view), plan.costs[0])
    blocks: list[Block] = [Facts(items=_facts(plan, chosen)), *_figure(plan), _views(plan)]
    if plan.keep_for:
        blocks.append(parts.table(_KEEP, [_keep(one) for one in plan.keep_for], title="How long to keep a prefix"))
    reading = (
        f"For one replica an hour, at the prices of {prices.date} ({prices.source}); prefill alone, decoding not "
        "counted. GPU time that is freed is worth its price only where it is used."
    )
    return (Section(name="cost", heading="What it costs", reading=reading, blocks=tuple(blocks)),)


def _facts(plan: Plan, cost: Cost) -> tuple[Fact, ...]:
    off, on = cost.usd_per_million_input_tokens_off, cost.usd_per_million_input_tokens_on
    view = _VIEWS[cost.view][0]
    facts = [
        Fact(label="a million input tokens", value=f"{parts.dollars(off)} to {parts.dollars(on)}", note=view),
        Fact(label="net", value=f"{parts.dollars(cost.net_usd_per_hour)} an hour", note=view),
    ]
    hours = plan.benefit.gpu_hours_per_month
    if hours is not None:
        facts.append(Fact(label="GPU hours freed", value=f"{hours:,.0f} a month", note="all replicas together"))
    return tuple(facts)


def _views(plan: Plan) -> Block:
    columns = (
        "view|>GPU time freed|>memory and space|>wear of the drive|>net an hour|>a million tokens without|>with"
        "|>would choose, host|>disk"
    )
    rows = [
        Row(
            cells=(
                _VIEWS[one.view][0],
                parts.dollars(one.gpu_usd_per_hour),
                parts.dollars(one.hold_usd_per_hour) if one.hold_usd_per_hour else parts.NONE,
                parts.dollars(one.wear_usd_per_hour) if one.wear_usd_per_hour else parts.NONE,
                parts.dollars(one.net_usd_per_hour),
                parts.dollars(one.usd_per_million_input_tokens_off),
                parts.dollars(one.usd_per_million_input_tokens_on),
                parts.bytes_or_none(one.best_host_bytes),
                parts.bytes_or_none(one.best_disk_bytes),
            ),
            strong=one.view == plan.policy.price_view,
            tone="warning" if one.net_usd_per_hour < 0 else "plain",
        )
        for one in plan.costs
    ]
    return parts.table(columns, rows, title="The recommendation under each view, and what that view would choose")


_KEEP = "tier|view|>prefix tokens|>recomputing a million tokens|>keep for|>writing it, of recomputing it"


def _keep(one: KeepFor) -> tuple[str, ...]:
    kept = "for ever" if one.interval_s is None else show_duration(one.interval_s) if one.interval_s else "never"
    written = "" if one.write_ratio is None else show_percent(one.write_ratio)
    cost = parts.dollars(one.recompute_usd_per_million_tokens)
    return (parts.TIERS[one.tier], one.view, f"{one.prefix_tokens:,}", cost, kept, written)


# ------------------------------------------------------------------------------------------------- figure


def byte_usd_per_hour(prices: Prices, view: PriceView) -> float | None:
    """What a byte of host memory costs an hour: nothing when owned, its price over its life, or its rent."""
    match view:
        case "owned":
            return 0.0
        case "bought":
            price, life = prices.memory_usd_per_gb, prices.memory_life_s
            return None if price is None or not life else price / 1e9 / life * 3600
        case "rented":
            rent = prices.memory_usd_per_gb_hour
            return None if rent is None else rent / 1e9


def _figure(plan: Plan) -> tuple[Figure, ...]:
    """Dollars a million input tokens against the size of the host tier, one line a view, its cheapest size marked."""
    points = sorted((one.bytes, one.net_s_per_hour) for one in plan.curve if one.tier == "host" and one.bytes)
    off = plan.costs[0].usd_per_million_input_tokens_off
    busy_s = plan.benefit.gpu_busy_ratio_off * 3600
    prices = plan.inputs.prices
    if len(points) < 2 or not off or not busy_s or prices is None:
        return ()
    gpu_usd_per_s = prices.gpu_usd_per_hour * plan.inputs.estimate.data.parallel.gpus / 3600
    millions = busy_s * gpu_usd_per_s / off
    series, cheapest = [], []
    for one in plan.costs:
        usd = byte_usd_per_hour(prices, one.view)
        if usd is None:
            continue
        name, role = _VIEWS[one.view]
        line = [(float(size), off * (1 - net / busy_s) + size * usd / millions) for size, net in points]
        shown = tuple(point for point in line if point[1] <= _HIGHEST * off)
        series.append(Series(name=name, points=shown, role=role))
        size, least = min(line, key=lambda point: point[1])
        cheapest.append(
            f"{name}: {parts.dollars(least)} at {show_bytes(size)}" if least < off else f"{name}: no size is cheaper"
        )
    plot = Plot(
        x=Axis(title="size of the host tier", unit="bytes", log=True),
        y=Axis(title="dollars a million input tokens", unit="usd", domain=(0.0, _HIGHEST * off)),
        series=tuple(series),
        rules=(Rule(axis="y", value=off, label="without"),),
    )
    reading = f"Without a tier {parts.dollars(off)} a million input tokens; cheapest with {'; '.join(cheapest)}."
    alt = f"Dollars a million input tokens against the size of the host tier. {reading}"
    return (Figure(name="cost", title="Cost against size", reading=reading, alt=alt, charts=(plot,)),)
