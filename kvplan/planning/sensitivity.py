"""The choice made again with one input moved at a time."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from msgspec.structs import replace

from kvplan.documents import Prefill, Sensitivity
from kvplan.planning.budgets import disk_tier, gpu_room
from kvplan.planning.choice import Case, Tier, solve
from kvplan.planning.curves import scaled
from kvplan.planning.economics import Curve
from kvplan.planning.facts import Facts, demand
from kvplan.planning.solved import Solved, solved
from kvplan.planning.variants import with_kv_dtype

LEAST_BAND = 0.1


def sensitivities(made: Solved) -> tuple[Sensitivity, ...]:
    """How the recommended sizes and their gain move, one line a change."""
    return tuple(_line(what, change, moved) for what, change, moved in changes(made))


def _line(what: str, change: str, case: Case) -> Sensitivity:
    outcome = solve(case)
    return Sensitivity(
        what=what,
        change=change,
        host_bytes=outcome.host.requested if outcome.host else 0,
        disk_bytes=outcome.disk.requested if outcome.disk else 0,
        net_s_per_hour=outcome.net_s,
    )


def changes(made: Solved) -> Iterator[tuple[str, str, Case]]:
    """What is moved, by how much, and the case that results."""
    facts, case = made.facts, made.case
    for change, factor in (("-25 %", 0.75), ("+25 %", 1.25)):
        yield "demand", change, _demand(facts, case, factor)
    fewer = dataclasses.replace(
        case, curve=_fewer(case.curve), kept=_fewer(case.kept), disk_kept=_fewer(case.disk_kept)
    )
    yield "hits of the log", "-20 %", fewer
    if case.host:
        yield "host link", "half as fast", dataclasses.replace(case, host=_slower(case.host, 2.0))
    for change, factor in (("half as fast", 0.5), ("twice as fast", 2.0)) if case.disk else ():
        yield "disk", change, dataclasses.replace(case, disk=disk_tier(_other_drive(facts, factor)))
    low = min(facts.prefill.low_ratio, 1 - LEAST_BAND)
    high = max(facts.prefill.high_ratio, 1 + LEAST_BAND)
    for factor in (low, high):
        yield "prefill cost", f"x {factor:.2f}", dataclasses.replace(case, prefill=_priced(case.prefill, factor))
    if case.host:
        wider = dataclasses.replace(case.host, bytes_per_token=case.host.bytes_per_token * 3 // 2)
        yield "bytes a token takes in host memory", "x 1.5", dataclasses.replace(case, host=wider)
        yield (
            "GPU time lost to stores",
            "all of it",
            dataclasses.replace(case, host=dataclasses.replace(case.host, store_share=1.0)),
        )
        yield (
            "GPU time lost to stores",
            "none",
            dataclasses.replace(case, host=dataclasses.replace(case.host, stores_disturb=False)),
        )
    yield from _dtypes(made)


def _dtypes(made: Solved) -> Iterator[tuple[str, str, Case]]:
    """Half or twice the bytes of a token, where the estimate's groups say that this is another KV dtype."""
    estimate = made.inputs.estimate
    other = {"fp8": "bf16", "bf16": "fp8"}.get(estimate.data.kv_dtype)
    derived = with_kv_dtype(estimate.data, other) if other else None
    if derived and other:
        inputs = replace(made.inputs, estimate=replace(estimate, data=derived))
        yield "KV dtype", other, solved(inputs, made.facts.policy).case


def _demand(facts: Facts, case: Case, factor: float) -> Case:
    growth = facts.policy.growth * factor
    return dataclasses.replace(
        case,
        demand=demand(facts.workload, facts.curves, growth, facts.replicas),
        gpu_tokens=gpu_room(facts, growth).tokens,
    )


def _fewer(curve: Curve) -> Curve:
    """The same curve with a fifth fewer hits."""
    return Curve([scaled(point, 0.8) for point in curve.points])


def _other_drive(facts: Facts, factor: float) -> Facts:
    """A drive of the same size and wear whose every cell is so many times as fast; loads still pass the host link."""
    drive = facts.disk_link
    if drive is None:
        return facts
    other = dataclasses.replace(
        drive,
        load_bytes_per_s=drive.load_bytes_per_s * factor,
        store_bytes_per_s=drive.store_bytes_per_s * factor,
        latency_s=drive.latency_s / factor,
    )
    return dataclasses.replace(facts, disk_link=other)


def _slower(tier: Tier, factor: float) -> Tier:
    path = dataclasses.replace(tier.path, s_per_token=tier.path.s_per_token * factor)
    return dataclasses.replace(_stored(tier, factor), path=path)


def _stored(tier: Tier, factor: float) -> Tier:
    return dataclasses.replace(tier, store_s_per_token=tier.store_s_per_token * factor)


def _priced(prefill: Prefill, factor: float) -> Prefill:
    return replace(
        prefill,
        t0_s=prefill.t0_s * factor,
        a_s_per_token=prefill.a_s_per_token * factor,
        b_s_per_token_sq=prefill.b_s_per_token_sq * factor,
    )
