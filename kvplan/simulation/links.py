"""A link that carries transfers one after the other, first come first served, in one direction."""

from __future__ import annotations


class Fifo:
    """One direction of a link: `bytes_per_s` may change on the way, for transfers that are queued afterwards."""

    __slots__ = ("busy_s", "bytes_per_s", "free_at", "latency_s", "moved_bytes")

    def __init__(self, bytes_per_s: float, latency_s: float) -> None:
        self.bytes_per_s = bytes_per_s
        self.latency_s = latency_s
        self.free_at = 0.0
        self.busy_s = 0.0
        self.moved_bytes = 0

    def queue(self, now: float, size: int) -> float:
        """Queue a transfer of `size` bytes; the time at which it will be done."""
        seconds = self.latency_s + size / self.bytes_per_s
        self.free_at = max(now, self.free_at) + seconds
        self.busy_s += seconds
        self.moved_bytes += size
        return self.free_at
