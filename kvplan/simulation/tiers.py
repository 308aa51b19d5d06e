"""A host or disk tier: which blocks it holds, which it gives up, and why.

A block is first reserved (it takes room, nobody can read it), then there, and leaves for one reason that is counted.
Blocks that a transfer reads are pinned and stay.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable, Sequence
from typing import Literal, Protocol

from kvplan.simulation.books import Books


class Order(Protocol):
    """Which block goes next."""

    def insert(self, block: int) -> None:
        """A block arrives."""

    def touch(self, block: int, again: bool) -> None:
        """A block that is there is used: `again` by another request, or still by the one that has it."""

    def victim(self, pinned: Counter[int], arriving: int) -> int | None:
        """The block to give up for `arriving`, taken out; None where all are pinned."""

    def remove(self, block: int) -> None:
        """A block leaves for another reason."""


def _first_unpinned(blocks: OrderedDict[int, None], pinned: Counter[int]) -> int | None:
    return next((block for block in blocks if block not in pinned), None)


class Lru:
    """Least recently used."""

    def __init__(self) -> None:
        self.blocks: OrderedDict[int, None] = OrderedDict()

    def insert(self, block: int) -> None:
        """The newcomer is the most recent."""
        self.blocks[block] = None

    def touch(self, block: int, again: bool) -> None:
        """Used: the most recent now."""
        self.blocks.move_to_end(block)

    def victim(self, pinned: Counter[int], arriving: int) -> int | None:
        """The least recent block that is not pinned."""
        block = _first_unpinned(self.blocks, pinned)
        if block is not None:
            del self.blocks[block]
        return block

    def remove(self, block: int) -> None:
        """Out of the order."""
        del self.blocks[block]


class Arc:
    """Adaptive replacement (Megiddo and Modha, FAST 2003): recency and frequency lists, balanced by ghost hits."""

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.target = 0.0  # blocks that the recency list should have
        self.recent: OrderedDict[int, None] = OrderedDict()
        self.frequent: OrderedDict[int, None] = OrderedDict()
        self.recent_ghosts: OrderedDict[int, None] = OrderedDict()
        self.frequent_ghosts: OrderedDict[int, None] = OrderedDict()

    def insert(self, block: int) -> None:
        """A newcomer is recent; one whose ghost is remembered is frequent, and its list grows."""
        if block in self.recent_ghosts:
            step = max(1.0, len(self.frequent_ghosts) / len(self.recent_ghosts))
            self.target = min(float(self.capacity), self.target + step)
            del self.recent_ghosts[block]
            self.frequent[block] = None
        elif block in self.frequent_ghosts:
            step = max(1.0, len(self.recent_ghosts) / len(self.frequent_ghosts))
            self.target = max(0.0, self.target - step)
            del self.frequent_ghosts[block]
            self.frequent[block] = None
        else:
            self.recent[block] = None
        while len(self.recent) + len(self.recent_ghosts) > self.capacity and self.recent_ghosts:
            self.recent_ghosts.popitem(last=False)
        while len(self.recent_ghosts) + len(self.frequent_ghosts) > self.capacity:
            (self.frequent_ghosts or self.recent_ghosts).popitem(last=False)

    def touch(self, block: int, again: bool) -> None:
        """Used again: frequent."""
        if block in self.frequent:
            self.frequent.move_to_end(block)
        elif again:
            del self.recent[block]
            self.frequent[block] = None
        else:
            self.recent.move_to_end(block)

    def victim(self, pinned: Counter[int], arriving: int) -> int | None:
        """From the list that is over its target, else from the other."""
        over = len(self.recent) > self.target or (arriving in self.frequent_ghosts and len(self.recent) >= self.target)
        pairs = [(self.recent, self.recent_ghosts), (self.frequent, self.frequent_ghosts)]
        for blocks, ghosts in pairs if over and self.recent else reversed(pairs):
            block = _first_unpinned(blocks, pinned)
            if block is not None:
                del blocks[block]
                ghosts[block] = None
                return block
        return None

    def remove(self, block: int) -> None:
        """Out of whichever list it is in."""
        (self.recent if block in self.recent else self.frequent).pop(block)


class Tier:
    """A tier of `capacity` blocks; `generation` rises when it loses everything, so that late transfers know."""

    def __init__(
        self,
        capacity: int,
        policy: Literal["lru", "arc"] = "lru",
        second_use: bool = False,
        ttl_s: float | None = None,
    ) -> None:
        self.capacity = capacity
        self.policy = policy
        self.ttl_s = ttl_s
        self.seen: set[int] | None = set() if second_use else None
        self.used_at: OrderedDict[int, float] = OrderedDict()  # by block that is there, least recent first
        self.reserved: set[int] = set()
        self.pinned: Counter[int] = Counter()
        self.order: Order = self._fresh()
        self.removed: Counter[str] = Counter()
        self.refused: Counter[str] = Counter()
        self.hit: set[int] = set()  # blocks that are there and were read since they came
        self.never_hit = 0  # of those removed
        self.full_at: float | None = None
        self.inserted = 0
        self.generation = 0

    def _fresh(self) -> Order:
        return Arc(self.capacity) if self.policy == "arc" else Lru()

    @property
    def used(self) -> int:
        """Blocks of room taken."""
        return len(self.used_at) + len(self.reserved)

    def holds(self, block: int) -> bool:
        """Whether a block can be read."""
        return block in self.used_at

    def expire(self, now: float) -> None:
        """Drop what was not used for longer than the TTL; pinned blocks wait."""
        if self.ttl_s is None:
            return
        stale = []
        for block, used in self.used_at.items():
            if used >= now - self.ttl_s:
                break
            if block not in self.pinned:
                stale.append(block)
        for block in stale:
            self._drop(block, "ttl")

    def touch(self, path: Sequence[int], now: float, again: bool = True) -> None:
        """A request uses the blocks of its path, leaf first, so that a leaf always leaves before its root.

        `again` is false when it lets go of them, which is no second use.
        """
        for block in reversed(path):
            if block in self.used_at:
                self.order.touch(block, again)
                self.used_at[block] = now
                self.used_at.move_to_end(block)

    def reserve(self, blocks: Iterable[int], now: float) -> list[int]:
        """Make room for blocks that are not there yet; those that get it. The rest is counted as refused."""
        self.expire(now)
        admitted = []
        for block in blocks:
            if block in self.used_at or block in self.reserved:
                continue
            if self.seen is not None and block not in self.seen:
                self.seen.add(block)
                self.refused["first use"] += 1
            elif self._room(block, now):
                self.reserved.add(block)
                admitted.append(block)
            else:
                self.refused["no room"] += 1
        return admitted

    def _room(self, block: int, now: float) -> bool:
        if self.used < self.capacity:
            return True
        if self.full_at is None and self.capacity:
            self.full_at = now
        victim = self.order.victim(self.pinned, block)
        if victim is None:
            return False
        del self.used_at[victim]
        self._left(victim, "capacity")
        return True

    def commit(self, blocks: Sequence[int], now: float) -> None:
        """Reserved blocks arrived and can be read, leaf least recent."""
        for block in reversed(blocks):
            self.reserved.discard(block)
            self.used_at[block] = now
            self.order.insert(block)
            self.inserted += 1

    def give_back(self, blocks: Iterable[int]) -> None:
        """Reserved blocks never came."""
        self.reserved.difference_update(blocks)

    def pin(self, blocks: Sequence[int]) -> None:
        """A transfer reads the blocks."""
        self.pinned.update(blocks)
        self.hit.update(blocks)

    def unpin(self, blocks: Iterable[int]) -> None:
        """The transfer is over."""
        for block in blocks:
            if self.pinned[block] <= 1:
                del self.pinned[block]
            else:
                self.pinned[block] -= 1

    def _drop(self, block: int, reason: str) -> None:
        self.order.remove(block)
        del self.used_at[block]
        self._left(block, reason)

    def _left(self, block: int, reason: str) -> None:
        self.removed[reason] += 1
        if block in self.hit:
            self.hit.remove(block)
        else:
            self.never_hit += 1

    def clear(self, reason: str, closed: bool = False) -> None:
        """Lose every block; a `closed` tier takes no more."""
        self.removed[reason] += len(self.used_at)
        self.never_hit += len(self.used_at) - len(self.hit)
        self.hit.clear()
        self.used_at.clear()
        self.reserved.clear()
        self.pinned.clear()
        self.order = self._fresh()
        self.generation += 1
        if closed:
            self.capacity = 0

    def books(self) -> Books:
        """What came, what left and why, what is there."""
        return Books(
            capacity=self.capacity,
            blocks=len(self.used_at),
            inserted=self.inserted,
            removed=self.removed,
            refused=self.refused,
            never_hit=self.never_hit,
            kept_never_hit=len(self.used_at.keys() - self.hit),
            full_at=self.full_at,
        )
