"""What a log is played on: requests as columns, and units, the models that are loaded and evicted as one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Literal, TypeAlias

State: TypeAlias = Literal["unloaded", "loading", "ready", "busy", "sleeping", "stopping"]

WAITING, SERVING, SERVED, INTERRUPTED, LEFT = range(5)
KILL_S = 10.0  # a loading process does not read its stop message; llama.cpp kills it after its stop timeout
KEPT = 2000  # spans and swaps that are kept; all are counted


@dataclass(frozen=True, slots=True, kw_only=True)
class Log:
    """Requests in order of arrival, one column a field.

    `model` indexes the model list; `timeout_s` is infinite where the client waits for ever; `session` is -1 where the
    log names none; `context_tokens` are found in the cache if the model stayed since the session's last request.
    `behind` counts the lines that stood behind a later one in the file.
    """

    name: str
    time_s: Sequence[float]
    model: Sequence[int]
    service_s: Sequence[float]
    timeout_s: Sequence[float]
    session: Sequence[int]
    context_tokens: Sequence[int]
    behind: int = 0

    def first(self, count: int) -> Log:
        """The first `count` requests."""
        return Log(
            name=self.name,
            time_s=self.time_s[:count],
            model=self.model[:count],
            service_s=self.service_s[:count],
            timeout_s=self.timeout_s[:count],
            session=self.session[:count],
            context_tokens=self.context_tokens[:count],
        )


@dataclass(slots=True, kw_only=True, eq=False)
class Unit:
    """One model, or a group that is loaded and evicted together: what it takes, and where it stands in the play."""

    index: int
    members: tuple[int, ...]
    bytes: int
    cold_s: float
    warm_s: float
    stop_s: float
    pinned: bool
    state: State = "unloaded"
    since: float = 0.0
    last_used: int = -1  # order of its last start of service or load
    last_request: float = 0.0
    in_flight: set[int] = field(default_factory=set)
    counted: int = 0  # requests in flight as the engine believes; a what-if makes it wrong
    waiters: list[int] = field(default_factory=list)
    waiting: int = 0  # waiters whose client is still there
    queued: bool = False
    queued_at: float = 0.0
    closed: bool = False  # takes no new request, so that it becomes idle
    generation: int = 0  # counts what has emptied its KV cache
    held: dict[tuple[int, int], int] = field(default_factory=dict)  # (model, session): tokens in its KV cache
    leaving_bytes: int = 0  # what it still holds while it stops
    deadlines: dict[int, float] = field(default_factory=dict)
    held_since: float = -1.0  # since when it is idle though counted busy; -1: it is not
    held_idle_s: float = 0.0
    timers: set[int] = field(default_factory=set)
    refused_for: set[int] = field(default_factory=set)
    loaded_before: bool = False
    loads: int = 0
    cold_loads: int = 0
    refused: int = 0
    evictions: dict[str, int] = field(default_factory=dict)
    resident_s: float = 0.0
    busy_s: float = 0.0
    loading_s: float = 0.0

    @property
    def count(self) -> int:
        """Models in it."""
        return len(self.members)
