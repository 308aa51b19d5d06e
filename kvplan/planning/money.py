"""What GPU time, memory and space cost at the prices given: three views, and how long a prefix is worth keeping.

A dollar enters the choice of a size only as a ratio of prices, so that scaling them all changes no byte.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from kvplan.documents import Cost, KeepFor, Prefill, Prices, PriceView
from kvplan.errors import KvplanError
from kvplan.planning.choice import Option, Outcome, Tier
from kvplan.planning.economics import LoadPath
from kvplan.planning.facts import Facts
from kvplan.units import GB

VIEWS: tuple[PriceView, ...] = ("owned", "bought", "rented")
HOURS_PER_MONTH = 730.0
TierName = Literal["host", "disk"]


def hold_usd(prices: Prices, tier: TierName, view: PriceView) -> float | None:
    """Dollars an hour for one byte of a tier; 0 where it is owned already, None where the price is not given."""
    if view == "owned":
        return 0.0
    host = tier == "host"
    if view == "rented":
        rent = prices.memory_usd_per_gb_hour if host else prices.disk_usd_per_gb_hour
        return None if rent is None else rent / GB
    price, life_s = (
        (prices.memory_usd_per_gb, prices.memory_life_s) if host else (prices.disk_usd_per_gb, prices.disk_life_s)
    )
    return None if price is None or not life_s else price / GB / (life_s / 3600)


def write_usd(prices: Prices) -> float | None:
    """Dollars that writing one byte wears off a bought drive; None where its price, life or rating is not given."""
    price, life_s, writes = prices.disk_usd_per_gb, prices.disk_life_s, prices.disk_writes_per_day
    if price is None or not life_s or not writes:
        return None
    return price / GB / (writes * life_s / 86400)


def hold_s_per_byte(facts: Facts, tier: TierName, view: PriceView) -> float:
    """GPU seconds an hour of one replica that cost as much as a byte does. Raises KvplanError without a price."""
    if view == "owned":
        return 0.0
    if facts.prices is None:
        raise KvplanError(f"sizes can only be chosen as if memory were {view} with prices: give --prices FILE")
    usd = hold_usd(facts.prices, tier, view)
    if usd is None:
        key = {"bought": "usd_per_gb and its life_years", "rented": "usd_per_gb_hour"}[view]
        raise KvplanError(f"the prices of {facts.prices.date} have no [{_TABLES[tier]}] {key}: add it for {view}")
    return usd / _gpu_usd_per_s(facts)


def wear_s_per_token(facts: Facts, bytes_per_token: int, view: PriceView) -> float:
    """GPU seconds of one replica that cost what writing one token wears off a bought drive."""
    usd = write_usd(facts.prices) if facts.prices and view == "bought" else None
    return 0.0 if usd is None or facts.prices is None else usd * bytes_per_token / _gpu_usd_per_s(facts)


def _gpu_usd_per_s(facts: Facts) -> float:
    """Dollars a second for the GPUs of one replica."""
    return facts.prices.gpu_usd_per_hour * facts.gpus / 3600 if facts.prices else 0.0


_TABLES = {"host": "memory", "disk": "drive"}


def keep_for(
    prices: Prices, tier: TierName, view: PriceView, tokens: int, gpus: int, prefill: Prefill, path: LoadPath, kv: int
) -> KeepFor | None:
    """How long a prefix of `tokens` tokens, `kv` bytes each, may wait for its reuse; None without the price.

    (recompute $ - load $) / (holding $ an hour): loading occupies the GPUs as recomputing does.
    """
    usd = hold_usd(prices, tier, view)
    if usd is None:
        return None
    gpu_s = prices.gpu_usd_per_hour * gpus / 3600
    recompute, load = prefill.seconds(tokens) * gpu_s, path.seconds(tokens) * gpu_s
    wear = write_usd(prices) if tier == "disk" and view == "bought" else None
    saved = recompute - load
    hold = usd * kv * tokens
    interval = 0.0 if saved <= 0 else saved / hold * 3600 if hold else None
    return KeepFor(
        tier=tier,
        view=view,
        prefix_tokens=tokens,
        recompute_usd_per_million_tokens=recompute / tokens * 1e6,
        interval_s=interval,
        write_ratio=None if wear is None else wear * kv * tokens / recompute,
    )


def cost(facts: Facts, view: PriceView, tiers: tuple[Tier | None, Tier | None], got: Outcome, best: Outcome) -> Cost:
    """One view of a plan `got`; `best` is what this view alone would choose."""
    prices = facts.prices
    if prices is None:
        raise KvplanError("no prices were given")
    gpu_s = _gpu_usd_per_s(facts)
    hold, wear = 0.0, 0.0
    for tier, option in zip(tiers, (got.host, got.disk), strict=True):
        if tier and option:
            space = tier.cost(option.requested) * (hold_usd(prices, tier.name, view) or 0.0)
            hold += space
            wear += max(0.0, _wear(prices, tier, option) - space) if view == "bought" else 0.0
    tokens = facts.demand.input_tokens * facts.demand.per_hour / 1e6
    off, on = got.busy_s * gpu_s, (got.busy_s - got.net_s) * gpu_s + hold + wear
    return Cost(
        view=view,
        gpu_usd_per_hour=got.net_s * gpu_s,
        hold_usd_per_hour=hold,
        wear_usd_per_hour=wear,
        net_usd_per_hour=off - on,
        usd_per_million_input_tokens_off=off / tokens if tokens else 0.0,
        usd_per_million_input_tokens_on=on / tokens if tokens else 0.0,
        best_host_bytes=best.host.requested if best.host else 0,
        best_disk_bytes=best.disk.requested if best.disk else 0,
    )


def _wear(prices: Prices, tier: Tier, option: Option) -> float:
    """Dollars an hour that a disk tier's writes wear off the drive."""
    if tier.name != "disk":
        return 0.0
    return option.stored_tokens * tier.bytes_per_token * (write_usd(prices) or 0.0)


def priced(prices: Prices, tiers: tuple[Tier | None, ...]) -> Iterator[PriceView]:
    """The views for which every tier that could be had has a price."""
    for view in VIEWS:
        if all(tier is None or hold_usd(prices, tier.name, view) is not None for tier in tiers):
            yield view
