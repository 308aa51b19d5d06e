"""The paged KV cache of one replica's GPUs: blocks in use are pinned, the rest is a prefix cache under LRU."""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Iterable

from kvplan.simulation.books import Books

ABSENT, COMING, READY = 0, 1, 2


class GpuCache:
    """`capacity` blocks: private ones (tails, output, copies), shared ones in use, cached ones, free ones.

    `state` says of each block of the log whether it is absent, being computed or loaded, or ready. `version` changes
    whenever room may have appeared.
    """

    def __init__(self, capacity: int, blocks: int, ttl_s: float | None = None) -> None:
        self.capacity = capacity
        self.ttl_s = ttl_s
        self.free = capacity
        self.private = 0
        self.state = bytearray(blocks)
        self.users: dict[int, int] = {}
        self.cached: OrderedDict[int, float] = OrderedDict()  # ready and unused, least recent first: when released
        self.version = 0
        self.unnamed = 0  # cached blocks that no request of the log can ask for: keys below 0
        self.last_key = 0
        self.inserted = 0
        self.removed: Counter[str] = Counter()
        self.hit: set[int] = set()  # blocks that are there and were hit since they came
        self.never_hit = 0  # of those removed
        self.full_at: float | None = None

    @property
    def used(self) -> int:
        """Blocks of room taken."""
        return self.capacity - self.free

    def room(self, used_anyway: Iterable[int] = ()) -> int:
        """Blocks that could be had, given that the cached ones of `used_anyway` are about to be used."""
        return self.free + len(self.cached) - sum(block in self.cached for block in used_anyway)

    def use(self, blocks: Iterable[int]) -> None:
        """Pin blocks that are ready or coming."""
        for block in blocks:
            self.cached.pop(block, None)
            self.users[block] = self.users.get(block, 0) + 1

    def take(self, count: int, now: float) -> list[int]:
        """Take `count` blocks for private use, giving up cached ones where none is free; those given up."""
        gone = []
        if self.free < count and self.full_at is None:
            self.full_at = now
        while self.free < count:
            block, _ = self.cached.popitem(last=False)
            self._drop(block, "capacity")
            if block >= 0:
                gone.append(block)
        self.free -= count
        self.private += count
        return gone

    def _drop(self, block: int, reason: str) -> None:
        """A block that is no longer cached is free."""
        if block < 0:
            self.unnamed -= 1
        else:
            self.state[block] = ABSENT
        if block in self.hit:
            self.hit.remove(block)
        else:
            self.never_hit += 1
        self.removed[reason] += 1
        self.free += 1

    def keep(self, count: int, now: float) -> None:
        """Private blocks that are full of tokens nobody will ask for stay cached until their turn comes to go."""
        for _ in range(count):
            self.last_key -= 1
            self.cached[self.last_key] = now
        self.unnamed += count
        self.private -= count
        self.inserted += count
        self.version += 1

    def name(self, block: int) -> None:
        """A private block will hold this block of the log, for others to use once it is ready."""
        self.private -= 1
        self.state[block] = COMING
        self.users[block] = 1

    def ready(self, block: int) -> None:
        """A coming block is complete."""
        self.state[block] = READY
        self.inserted += 1

    def drop_private(self, count: int) -> None:
        """Private blocks are free again."""
        self.private -= count
        self.free += count
        self.version += 1

    def release(self, blocks: list[int], now: float) -> None:
        """Unpin blocks of one path, leaf first: what nobody uses any more is cached if ready, else free."""
        for block in reversed(blocks):
            left = self.users[block] - 1
            if left:
                self.users[block] = left
                continue
            del self.users[block]
            if self.state[block] == READY:
                self.cached[block] = now
            else:
                self.state[block] = ABSENT
                self.hit.discard(block)
                self.free += 1
        self.version += 1

    def expire(self, now: float) -> None:
        """Drop cached blocks that nobody used for longer than the TTL."""
        while self.ttl_s is not None and self.cached:
            block, released = next(iter(self.cached.items()))
            if released >= now - self.ttl_s:
                return
            del self.cached[block]
            self._drop(block, "ttl")

    def clear(self) -> None:
        """A restart: every block is gone."""
        there = self.state.count(READY) + self.unnamed
        self.removed["restart"] += there
        self.never_hit += there - sum(self.state[block] == READY for block in self.hit)
        self.hit.clear()
        self.unnamed = 0
        self.state = bytearray(len(self.state))
        self.users.clear()
        self.cached.clear()
        self.private = 0
        self.free = self.capacity
        self.version += 1

    def books(self) -> Books:
        """What came, what left and why, what is cached."""
        return Books(
            capacity=self.capacity,
            blocks=len(self.cached),
            inserted=self.inserted,
            removed=self.removed,
            refused={},
            never_hit=self.never_hit,
            kept_never_hit=len(self.cached.keys() - self.hit),
            full_at=self.full_at,
        )
