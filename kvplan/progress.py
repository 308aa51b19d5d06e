"""How long work says where it is, without knowing who listens."""

from __future__ import annotations

from typing import Protocol


class Progress(Protocol):
    """Called with what is being done and, where known, the share done (0..1)."""

    def __call__(self, what: str, done: float | None = None) -> None: ...


def silent(what: str, done: float | None = None) -> None:
    """A listener that hears nothing."""
