"""What happened between each two pages, for pictures."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from kvplan.documents import Moment
from kvplan.engines.metrics.system import System
from kvplan.observing import figures
from kvplan.observing.recording import Recording

Steps = list[float] | None


def moments(recording: Recording, engines: Sequence[System], systems: Sequence[System]) -> tuple[Moment, ...]:
    """One for each interval between two pages whose times are known; none of what came before a single page.

    Hits and queues are the engines', bytes those of all systems.
    """
    first = recording.times[0]
    if recording.since_start or first is None:
        return ()
    rows = [row for system in engines if (row := figures.hit_row(system, recording, "all")) is not None]
    hit, of = _added(recording.steps(row.hits) for row in rows), _added(recording.steps(row.of) for row in rows)
    stores, loads = _bytes(recording, systems, "store"), _bytes(recording, systems, "load")
    running, waiting = _level(recording, engines, "requests running"), _level(recording, engines, "requests waiting")
    found = []
    for index in range(recording.rounds - 1):
        begin, end = recording.times[index], recording.times[index + 1]
        if begin is None or end is None or end <= begin:
            continue
        asked, width = None if of is None else of[index], end - begin
        found.append(
            Moment(
                from_s=begin - first,
                span_s=width,
                hit_ratio=min(1.0, hit[index] / asked) if hit is not None and asked else None,
                prompt_tokens=None if asked is None else round(asked),
                store_bytes_per_s=None if stores is None else stores[index] / width,
                load_bytes_per_s=None if loads is None else loads[index] / width,
                running=running[index + 1],
                waiting=waiting[index + 1],
            )
        )
    return tuple(found)


def _added(series: Iterable[Steps]) -> Steps:
    """The sum of those that are counted, interval by interval; None where none is."""
    total: Steps = None
    for steps in series:
        if steps is not None:
            total = steps if total is None else [a + b for a, b in zip(total, steps, strict=True)]
    return total


def _bytes(recording: Recording, systems: Sequence[System], way: str) -> Steps:
    """Bytes that crossed the GPU's border one way. Of rows for the same copies one counts: others are older names."""
    chosen: dict[tuple[str, str, str], Steps] = {}
    for system in systems:
        for row in system.transfers:
            if row.way == way and "gpu" in (row.source, row.target):
                steps = recording.steps(row.bytes)
                if steps is not None:
                    chosen.setdefault((system.name, row.source, row.target), steps)
    return _added(chosen.values())


def _level(recording: Recording, systems: Sequence[System], what: str) -> list[float | None]:
    """A gauge of all systems together at each round."""
    rows = [recording.levels(row.pick) for system in systems for row in system.levels if row.what == what]
    together = []
    for values in zip(*rows, strict=True):
        known = [value for value in values if value is not None]
        together.append(sum(known) if known else None)
    return together or [None] * recording.rounds
