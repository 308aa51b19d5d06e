"""Schedules for llama.cpp's router, what kvplan says of them, and what the router's log says happened."""

from __future__ import annotations

import itertools
import math
import random
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace

from kvplan.documents import Machine, ResidencyPolicy, ResidentModel
from kvplan.resident.costs import shared_memory, units
from kvplan.resident.play import Play
from kvplan.resident.table import INTERRUPTED, LEFT, SERVED, Log, Unit

NAMES = ("a", "b", "c")
TICK_S = 0.5  # requests come and go on this grid, far apart against what a busy machine adds
FATES = {SERVED: "served", LEFT: "left", INTERRUPTED: "cut"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """One request: when it comes, for which model, how long it runs alone, and when its client hangs up (or never)."""

    at_s: float
    model: int
    runs_s: float
    patience_s: float = math.inf


@dataclass(frozen=True, slots=True, kw_only=True)
class Story:
    """What happened, in order: ("queue", model, position), ("join", model, waiting), ("evict", model, ""), ("load", …).

    `fates` says of each request whether it was served, left, or was cut.
    """

    events: tuple[tuple[str, str, str], ...]
    fates: tuple[str, ...]
    resident: frozenset[str]


def draw(seed: int, models_max: int, load_s: float) -> tuple[Ask, ...]:
    """A schedule in which models are busy, share waiters, and a client leaves; none that hangs on a split second.

    It is drawn again until the story is the same with loads and answers a good deal shorter or longer.
    """
    for more_s, attempt in itertools.product((0.6, 0.4, 0.2), range(6_000)):  # as steady as can be found
        asks = _drawn(random.Random(f"{seed} {models_max} {attempt}"), models_max, load_s)
        if asks is None:
            continue
        story = predicted(asks, models_max, load_s)
        kinds = {kind for kind, _, _ in story.events}
        if {"evict", "join"} <= kinds and "left" in story.fates and steady(asks, models_max, load_s, 0.1, more_s):
            return asks
    raise RuntimeError(f"seed {seed} gives no schedule at {load_s:.2f} s a load: is this machine very busy?")


def steady(asks: Sequence[Ask], models_max: int, load_s: float, spread: float, more_s: float = 0.2) -> bool:
    """Whether the story stays the same where loads, stops and answers last somewhat shorter or longer.

    Loads vary by a quarter and 0.2 s, and up by `more_s`, as the one that is timed may have met another program;
    answers vary by `spread` of their length. The router looks whether a client is still there five times a
    second, so that one leaves up to 0.2 s late.
    """
    story = predicted(asks, models_max, load_s)
    loads, stops = (max(0.02, 0.75 * load_s - 0.2), 1.25 * load_s + more_s), (0.02, 0.3)
    for load, stop, late, pace in itertools.product(loads, stops, (0.0, 0.3), (1 - spread, 1 + spread)):
        other = [replace(ask, runs_s=ask.runs_s * pace, patience_s=ask.patience_s + late) for ask in asks]
        if predicted(other, models_max, load, stop) != story:
            return False
    return True


def _drawn(chance: random.Random, models_max: int, load_s: float) -> tuple[Ask, ...] | None:
    """Random requests; one more for a model that another one waits for, and one that does not wait to the end."""
    ticks = sorted(chance.sample(range(9), chance.randint(4, 6)))
    most = 4.0 * models_max
    asks = [
        Ask(at_s=TICK_S * (tick - ticks[0]), model=chance.randrange(3), runs_s=TICK_S * chance.uniform(0.4, most))
        for tick in ticks
    ]
    waits = _played(asks, models_max, load_s).wait_s
    late = [place for place, wait in enumerate(waits) if wait > 3 * TICK_S]
    if len(late) < 2:
        return None
    shared, leaver = chance.sample(late, 2)
    if leaver == 0:  # whose load is the one that is timed
        return None
    asks[leaver] = replace(asks[leaver], patience_s=1.5 * TICK_S)
    joined = asks[shared].at_s + TICK_S / 2
    asks.append(Ask(at_s=joined, model=asks[shared].model, runs_s=TICK_S * chance.uniform(0.4, 2)))
    return tuple(sorted(asks, key=lambda ask: ask.at_s))


# ------------------------------------------------------------------------------------------- kvplan


class _Watched(Play):
    """A play that notes what joins the queue, is loaded, is evicted, with the router's words for it."""

    told: list[tuple[str, str, str]]

    def _name(self, unit: Unit) -> str:
        return self.models[unit.members[0]].name

    def _arrive(self, request: int) -> None:
        unit = self.unit_of[self.log.model[request]]
        was = unit.queued and unit.state != "loading"
        place = len(self.told)
        before = len(self.queue)
        fresh = not unit.queued and unit.state in ("unloaded", "stopping")
        super()._arrive(request)
        if was:
            self.told.insert(place, ("join", self._name(unit), str(unit.waiting)))
        elif fresh:
            self.told.insert(place, ("queue", self._name(unit), str(before + 1)))

    def _load(self, unit: Unit) -> None:
        self.told.append(("load", self._name(unit), ""))
        super()._load(unit)

    def _evict(self, unit: Unit, reason: str, wanted_by: Unit | None) -> None:
        self.told.append(("evict", self._name(unit), ""))
        super()._evict(unit, reason, wanted_by)


def predicted(asks: Sequence[Ask], models_max: int, load_s: float, stop_s: float = 0.05) -> Story:
    """What kvplan's residency stage says of the schedule under the router's policy."""
    play = _played(asks, models_max, load_s, stop_s)
    return Story(
        events=tuple(play.told),
        fates=tuple(FATES[one] for one in play.status),
        resident=frozenset(NAMES[unit.members[0]] for unit in play.units if unit.state in ("ready", "busy")),
    )


def _played(asks: Sequence[Ask], models_max: int, load_s: float, stop_s: float = 0.05) -> _Watched:
    models = [ResidentModel(name=name, weights_bytes=1, load_s=load_s, stop_s=stop_s) for name in NAMES]
    machine = Machine(memory_bytes=len(NAMES))
    log = Log(
        name="live",
        time_s=[ask.at_s for ask in asks],
        model=[ask.model for ask in asks],
        service_s=[ask.runs_s for ask in asks],
        timeout_s=[ask.patience_s for ask in asks],
        session=[-1] * len(asks),
        context_tokens=[0] * len(asks),
    )
    fresh = units(models, machine, shared_memory(models, machine))
    play = _Watched(models, fresh, log, ResidencyPolicy(name="router", max_models=models_max), machine)
    play.told = []
    play.run()
    return play


# ----------------------------------------------------------------------------------------- the router

_LINES = (
    ("queue", re.compile(r"request for name=(\w+) queued at position (\d+)")),
    ("join", re.compile(r"request for name=(\w+) joined the queue, (\d+) waiting")),
    ("evict", re.compile(r"(?:evicting idle LRU|limit reached, removing LRU) name=(\w+)()")),
    ("load", re.compile(r"spawning server instance with name=(\w+)()")),
)


def events(lines: Iterable[str]) -> tuple[tuple[str, str, str], ...]:
    """What the router's log says, in the words of `Story.events`."""
    made = []
    for line in lines:
        for kind, pattern in _LINES:
            if (match := pattern.search(line)) is not None:
                made.append((kind, match[1], match[2]))
    return tuple(made)
