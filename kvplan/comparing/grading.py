"""A simulation of the same schedule against what was measured: errors, and a word for their size."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from kvplan.documents import ArmResult, Grade, MeasuredArm, Simulation
from kvplan.errors import KvplanError

# Hit ratios within 5 points and TTFT within 15 % are what published simulators of serving engines hold themselves to.
HIT_GOOD, HIT_FAIR = 0.02, 0.05
TIME_GOOD, TIME_FAIR = 0.15, 0.30

What = Literal["hit ratio", "TTFT mean", "TTFT p90", "TTFT change"]


def grades(simulation: Simulation, off: MeasuredArm, on: MeasuredArm, requests: int, name: str) -> tuple[Grade, ...]:
    """Grade the arms `off` and `name` of a simulation. Raises KvplanError where it played something else."""
    if simulation.requests != requests:
        raise KvplanError(
            f"the simulation played {simulation.requests:,} requests and the servers {requests:,}: simulate the "
            "schedule that was replayed"
        )
    played = {result.arm.name: result for result in simulation.arms}
    missing = [arm for arm in ("off", name) if arm not in played]
    if missing:
        raise KvplanError(f"the simulation has no arm {missing[0]!r} (it has: {', '.join(played)})")
    both = ((played["off"], off), (played[name], on))
    return tuple(grade for result, arm in both for grade in _arm(result, arm)) + tuple(_change(both))


def _arm(result: ArmResult, measured: MeasuredArm) -> Iterator[Grade]:
    if measured.hit_ratio is not None:
        yield _graded(measured, "hit ratio", result.hit_ratio, measured.hit_ratio, HIT_GOOD, HIT_FAIR, relative=False)
    if result.ttft is not None:
        yield _graded(measured, "TTFT mean", result.ttft.mean, measured.ttft.mean, TIME_GOOD, TIME_FAIR)
        yield _graded(measured, "TTFT p90", result.ttft.p90, measured.ttft.p90, TIME_GOOD, TIME_FAIR)


def _change(both: tuple[tuple[ArmResult, MeasuredArm], tuple[ArmResult, MeasuredArm]]) -> Iterator[Grade]:
    """What offload changes: error that both simulated arms share cancels in it."""
    (simulated_off, off), (simulated_on, on) = both
    if simulated_off.ttft and simulated_on.ttft and simulated_off.ttft.mean and off.ttft.mean:
        predicted = simulated_on.ttft.mean / simulated_off.ttft.mean - 1
        measured = on.ttft.mean / off.ttft.mean - 1
        yield _graded(on, "TTFT change", predicted, measured, TIME_GOOD, TIME_FAIR, relative=False)


def _graded(
    arm: MeasuredArm, what: What, predicted: float, measured: float, good: float, fair: float, relative: bool = True
) -> Grade:
    error = predicted - measured
    if relative:
        error = error / measured if measured else 0.0
    grade: Literal["good", "fair", "poor"] = "good" if abs(error) <= good else "fair" if abs(error) <= fair else "poor"
    return Grade(
        arm=arm.arm,
        what=what,
        predicted=predicted,
        measured=measured,
        error=error,
        good=good,
        fair=fair,
        grade=grade,
    )
