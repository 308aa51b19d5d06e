"""Which size of a tier to take: the value of each candidate from the exact hit curve, and the choice among them.

Everything here is for one replica, per hour. Candidates are the sizes at which the curve has an exact point, and the
largest that fits: between two points nothing more is certain, so no other size can be better.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import Literal

from kvplan.documents import CurvePoint, Prefill
from kvplan.engines.profiles import power_of_two_above
from kvplan.planning.curves import second_use
from kvplan.planning.economics import Curve, LoadPath, Worth, busy_s, worth
from kvplan.units import show_percent

BUSY_LIMIT = 0.7


@dataclass(frozen=True, slots=True, kw_only=True)
class Demand:
    """How the log relates to one replica: `per_hour` turns sums over the log into an hour of one replica.

    With R replicas that share the log by prefix affinity and a growth of g, each serves g/R of its requests, and a
    cache of C tokens does what one of C R/g tokens did for the log: `log_tokens_per_token` is R/g. `peak` is the
    busiest stretch over the mean. Of the `ceiling_tokens` that infinite caches hit, `first_reuse_tokens` are the first
    reuse of their block.
    """

    requests: int
    input_tokens: int
    input_tokens_sq: float
    block_tokens: int
    per_hour: float
    log_tokens_per_token: float = 1.0
    peak: float = 1.0
    ceiling_tokens: int = 0
    first_reuse_tokens: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Tier:
    """One tier that could be given memory.

    A pool of `requested` bytes is filled to `fill_percent` with chunks of `chunk_tokens` tokens, at `bytes_per_token`;
    `beside_bytes_per_token` come on top of what the size says. Sizes come in steps of `step_bytes` and may not exceed
    `limit_bytes` as the host pays for them (`padded_pieces` page-locked tensors that are rounded up to powers of two; 0
    where the engine maps memory exactly). `store_s_per_token` is link time; the GPU is charged `store_share` of it
    where `stores_disturb`. `lifetime_bytes` of writes wear a drive out. With `second_use` only what is computed again
    is stored. `hold_s_per_byte` is what a byte costs an hour, `wear_s_per_token` what storing a token wears off a
    drive, both as GPU time that the same money buys; a drive costs the larger of its time and its wear.
    """

    name: Literal["host", "disk"]
    path: LoadPath
    store_s_per_token: float
    bytes_per_token: int
    chunk_tokens: int
    step_bytes: int
    limit_bytes: int | None
    inclusive: bool = True
    shared_path: bool = False
    stores_disturb: bool = True
    padded_pieces: int = 0
    lifetime_bytes: int | None = None
    minimum_life_s: float = 0.0
    beside_bytes_per_token: int = 0
    second_use: bool = False
    hold_s_per_byte: float = 0.0
    wear_s_per_token: float = 0.0
    fill_percent: int = 100
    store_share: float = 0.5

    @property
    def chunk_bytes(self) -> int:
        """Bytes of one chunk, all ranks together."""
        return self.chunk_tokens * self.bytes_per_token

    def tokens(self, requested: int) -> int:
        """Tokens that a pool of `requested` bytes holds."""
        return requested * self.fill_percent // 100 // self.chunk_bytes * self.chunk_tokens

    def cost(self, requested: int) -> int:
        """Bytes that a pool of `requested` bytes takes from the host."""
        return self.padded(requested) + self.beside(requested)

    def padded(self, requested: int) -> int:
        """Bytes of the pool itself once its pieces are rounded up."""
        if not self.padded_pieces or not requested:
            return requested
        return self.padded_pieces * power_of_two_above(-(-requested // self.padded_pieces))

    def beside(self, requested: int) -> int:
        """Bytes that the engine takes beside the pool for the same tokens."""
        return self.tokens(requested) * self.beside_bytes_per_token

    def request(self, tokens: int) -> int:
        """The smallest size that holds `tokens` tokens."""
        needed = -(-(-(-tokens // self.chunk_tokens) * self.chunk_bytes * 100) // self.fill_percent)
        return -(-needed // self.step_bytes) * self.step_bytes

    def fits(self, requested: int) -> bool:
        """Whether a size stays within the limit."""
        return self.limit_bytes is None or self.cost(requested) <= self.limit_bytes

    def largest(self) -> int:
        """The largest size within the limit, 0 where none is known."""
        if self.limit_bytes is None:
            return 0
        share = self.bytes_per_token / (self.bytes_per_token + self.beside_bytes_per_token)
        size = int(self.limit_bytes * share) // self.step_bytes * self.step_bytes
        if self.padded_pieces and not self.fits(size):
            each = int(self.limit_bytes * share) // self.padded_pieces
            whole = self.padded_pieces * (1 << each.bit_length() - 1) if each else 0
            size = whole // self.step_bytes * self.step_bytes
        return size


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """What is held nearer to the GPU: at least the hits of `low`, at most those of `high`, in `tokens` tokens."""

    tokens: int
    low: CurvePoint
    high: CurvePoint


@dataclass(frozen=True, slots=True, kw_only=True)
class Option:
    """One size of one tier; seconds, tokens and bytes are an hour of one replica."""

    requested: int
    tokens: int
    level: Level
    saved_s: float = 0.0
    load_s: float = 0.0
    store_s: float = 0.0
    hold_s: float = 0.0
    loaded_tokens: float = 0.0
    stored_tokens: float = 0.0
    link_busy: float = 0.0
    life_s: float | None = None
    refused: str = ""

    @property
    def net_s(self) -> float:
        """GPU seconds an hour that this size gains after loads and stores."""
        return self.saved_s - self.load_s - self.store_s

    @property
    def value_s(self) -> float:
        """The same once the memory is paid, which is what sizes are chosen by."""
        return self.net_s - self.hold_s


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """How to choose: at least `minimum_s` an hour, the smallest size within `tolerance` of the best."""

    tolerance: float
    minimum_s: float


def level(curve: Curve, demand: Demand, tokens: int) -> Level:
    """The hits of a cache of `tokens` tokens of one replica, bounded by the exact points on either side."""
    log = math.floor(tokens * demand.log_tokens_per_token + 1e-6)
    low = curve.below(log)
    high = low if low.capacity_tokens == log else curve.above(log)
    return Level(tokens=tokens, low=low, high=high)


def options(curve: Curve, demand: Demand, prefill: Prefill, tier: Tier, base: Level) -> tuple[Option, ...]:
    """Every candidate size above zero, smallest first, each with the best gain that it or a smaller size reaches."""
    found = []
    best = Worth()
    for requested in _sizes(curve, demand, tier, base):
        held = tier.tokens(requested)
        reach = max(held, base.tokens) if tier.inclusive else held + base.tokens
        here = level(curve, demand, reach)
        if tier.second_use:
            here = replace(here, low=second_use(here.low, demand.first_reuse_tokens))
        gain = worth(here.low, base.high, prefill, tier.path, demand.block_tokens)
        best = max(best, gain, key=lambda one: one.net_s)
        found.append(_option(demand, tier, base, requested, here, best))
    return tuple(found)


def _sizes(curve: Curve, demand: Demand, tier: Tier, base: Level) -> Iterable[int]:
    sizes = {tier.largest()}
    for point in curve.points:
        tokens = math.ceil(point.capacity_tokens / demand.log_tokens_per_token)
        sizes.add(tier.request(tokens if tier.inclusive else max(0, tokens - base.tokens)))
    return sorted(size for size in sizes if size > 0 and tier.fits(size))


def _option(demand: Demand, tier: Tier, base: Level, requested: int, here: Level, best: Worth) -> Option:
    hits = max(here.low.hit_tokens if tier.inclusive else base.low.hit_tokens, base.low.hit_tokens)
    known = demand.ceiling_tokens if tier.second_use else demand.input_tokens
    stored = max(0, known - hits) * demand.per_hour
    link_s = best.load_s * demand.per_hour, stored * tier.store_s_per_token
    busy = (sum(link_s) if tier.shared_path else max(link_s)) * demand.peak / 3600
    written = stored * tier.bytes_per_token / 3600
    life = tier.lifetime_bytes / written if tier.lifetime_bytes is not None and written else None
    option = Option(
        requested=requested,
        tokens=tier.tokens(requested),
        level=replace(here, low=max(here.low, base.low, key=lambda point: point.hit_tokens)),
        saved_s=best.saved_s * demand.per_hour,
        load_s=link_s[0],
        store_s=link_s[1] * tier.store_share if tier.stores_disturb else 0.0,
        hold_s=max(tier.cost(requested) * tier.hold_s_per_byte, stored * tier.wear_s_per_token),
        loaded_tokens=best.tokens * demand.per_hour,
        stored_tokens=stored,
        link_busy=busy,
        life_s=life,
    )
    return replace(option, refused=_refusal(tier, option))


def _refusal(tier: Tier, option: Option) -> str:
    if option.link_busy > BUSY_LIMIT:
        return f"its link would be busy {show_percent(option.link_busy)} of the time at the peak"
    if option.life_s is not None and option.life_s < tier.minimum_life_s:
        what = "what is computed again" if tier.second_use else "everything"
        return f"writing {what} wears the drive out in {option.life_s / 86400:,.1f} days"
    return ""


def best_of(found: Iterable[Option]) -> Option | None:
    """The feasible option with the greatest net gain, memory paid, the smallest of equals."""
    allowed = [option for option in found if not option.refused]
    return max(allowed, key=lambda option: option.value_s, default=None)


def choose(found: tuple[Option, ...], rules: Rules) -> Option | None:
    """The smallest feasible size whose net gain is within the tolerance of the best; None where nothing pays."""
    best = best_of(found)
    if best is None or best.value_s <= 0 or best.value_s < rules.minimum_s:
        return None
    enough = (1 - rules.tolerance) * best.value_s
    return next(option for option in found if not option.refused and option.value_s >= enough)


def knee(found: tuple[Option, ...]) -> Option | None:
    """Where the gain curve bends most: the feasible size farthest above the chord from nothing to the largest."""
    allowed = [option for option in found if not option.refused and option.net_s > 0]
    if not allowed:
        return None
    last = allowed[-1]
    if last.net_s <= 0:
        return None
    return max(allowed, key=lambda option: option.net_s / last.net_s - option.requested / last.requested)


def busy_per_hour(demand: Demand, prefill: Prefill, hits: CurvePoint) -> float:
    """GPU seconds of prefill an hour of one replica with these hits."""
    whole = busy_s(demand.requests, demand.input_tokens, demand.input_tokens_sq, hits, prefill)
    return whole * demand.per_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """All that a choice depends on, so that one input can be moved and the choice made again."""

    curve: Curve
    kept: Curve
    disk_kept: Curve
    demand: Demand
    prefill: Prefill
    gpu_tokens: int
    host: Tier | None
    disk: Tier | None
    tolerance: float
    minimum_gain: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """The choice for a case: the host tier first, since it is quicker at the same hits, then a disk tier on top."""

    base: Level
    busy_s: float
    host_options: tuple[Option, ...]
    host: Option | None
    disk_options: tuple[Option, ...]
    disk: Option | None

    @property
    def net_s(self) -> float:
        """GPU seconds an hour gained by both tiers."""
        return sum(option.net_s for option in (self.host, self.disk) if option)

    @property
    def value_s(self) -> float:
        """The same once memory and space are paid."""
        return sum(option.value_s for option in (self.host, self.disk) if option)

    @property
    def level(self) -> Level:
        """What all tiers together hold."""
        last = self.disk or self.host
        return last.level if last else self.base


def solve(case: Case) -> Outcome:
    """Choose the host size, then whether a disk tier pays for itself beside it."""
    base = level(case.curve, case.demand, case.gpu_tokens)
    busy = busy_per_hour(case.demand, case.prefill, base.low)
    rules = Rules(tolerance=case.tolerance, minimum_s=case.minimum_gain * busy)
    host_options = options(case.kept, case.demand, case.prefill, case.host, base) if case.host else ()
    host = choose(host_options, rules)
    beneath = _beneath(case, base, host)
    disk_options: tuple[Option, ...] = ()
    if case.disk:
        tier = replace(case.disk, stores_disturb=host is None)
        curve = case.kept if host is None else case.disk_kept  # alone, a disk tier starts empty like a host tier
        disk_options = options(curve, case.demand, case.prefill, tier, beneath)
    return Outcome(
        base=base,
        busy_s=busy,
        host_options=host_options,
        host=host,
        disk_options=disk_options,
        disk=choose(disk_options, rules),
    )


def _beneath(case: Case, base: Level, host: Option | None) -> Level:
    """What a disk tier comes beneath: the GPU and the chosen host tier."""
    if host is None:
        return base
    low = host.level.low
    high = level(case.kept, case.demand, host.level.tokens).high
    return Level(tokens=host.level.tokens, low=low, high=max(high, base.high, key=lambda point: point.hit_tokens))
