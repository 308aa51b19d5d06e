"""Faults that change what arrives: a flood of prompts that are used once, and a working set that becomes another."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from kvplan.documents import EngineModel, Fault, Loop
from kvplan.errors import UsageError
from kvplan.simulation.world import Schedule


def check(faults: Sequence[Fault], engine: EngineModel, loop: Loop, requests: int) -> None:
    """Raises UsageError for a fault that cannot happen to this engine, in this loop or to so many requests."""
    scanned = sum(int(fault.value) for fault in faults if fault.kind == "scan")
    for fault in faults:
        if fault.kind == "client-gone" and (fault.request or 0) >= requests + scanned:
            raise UsageError(
                f"--fault client-gone={fault.request}: requests are numbered 0 to {requests + scanned - 1:,}"
            )
    if engine.slots is not None and any("host" in fault.survives for fault in faults):
        raise UsageError("--fault restart-keep-host: llama.cpp keeps contexts in its own process: play a restart")
    gone = {int(fault.value) for fault in faults if fault.kind == "worker-gone"}
    if any(number >= engine.replicas for number in gone):
        raise UsageError(f"--fault worker-gone: replicas are numbered 0 to {engine.replicas - 1}")
    if gone and len(gone) >= engine.replicas:
        raise UsageError("--fault worker-gone: no replica would be left; a replica that comes back is a restart")
    if loop.kind == "concurrency" and any(fault.kind in ("scan", "churn") for fault in faults):
        raise UsageError("--fault scan and churn strike at a time of the log, and --concurrency plays none")


def shocked(schedule: Schedule, faults: Sequence[Fault]) -> Schedule:
    """The schedule with its scans added at the end (World plays them at their times) and its churns carried out."""
    for fault in sorted(faults, key=lambda one: one.at_s):
        if fault.kind == "churn":
            schedule = _churned(schedule, fault.at_s)
    logged = len(schedule.times)
    gap_s = max(schedule.times) / logged
    for fault in faults:
        if fault.kind == "scan":
            schedule = _scanned(schedule, fault.at_s, int(fault.value), logged, gap_s)
    return schedule


def _churned(schedule: Schedule, at_s: float) -> Schedule:
    """New names for every block of the requests that the log has at `at_s` or later."""
    move = schedule.unique

    def renamed(lists: Sequence[list[int]]) -> list[list[int]]:
        pairs = zip(lists, schedule.times, strict=True)
        return [[block + move for block in one] if when >= at_s else one for one, when in pairs]

    return dataclasses.replace(
        schedule,
        paths=renamed(schedule.paths),
        answers=renamed(schedule.answers) if schedule.answers else (),
        unique=2 * move,
    )


def _scanned(schedule: Schedule, at_s: float, count: int, logged: int, gap_s: float) -> Schedule:
    """`count` more requests from `at_s` on, as long as the `logged` ones in order, each with blocks of its own."""
    sizes = [schedule.sizes[index % logged] for index in range(count)]
    paths, unique = list[list[int]](), schedule.unique
    for index in range(count):
        blocks = len(schedule.paths[index % logged])
        paths.append(list(range(unique, unique + blocks)))
        unique += blocks
    return dataclasses.replace(
        schedule,
        times=[*schedule.times, *(at_s + index * gap_s for index in range(count))],
        sizes=[*schedule.sizes, *sizes],
        paths=[*schedule.paths, *paths],
        sessions=[*schedule.sessions, *[-1] * count],
        after=[*schedule.after, *[None] * count] if schedule.after else (),
        unique=unique,
        scans_over=(*schedule.scans_over, at_s + count * gap_s),
    )
