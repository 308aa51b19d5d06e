"""One plan in the making: inputs resolved, rooms measured, sizes chosen. What is compared with it is made likewise."""

from __future__ import annotations

from dataclasses import dataclass

from kvplan.documents import PlanInputs, Policy
from kvplan.planning.budgets import GpuRoom, case_of, gpu_room
from kvplan.planning.choice import Case, Outcome, Tier, solve
from kvplan.planning.facts import Facts, gather
from kvplan.planning.hostroom import HostRoom, host_room


@dataclass(frozen=True, slots=True, kw_only=True)
class Solved:
    """A plan before it is written down."""

    inputs: PlanInputs
    facts: Facts
    gpu: GpuRoom
    host: HostRoom
    case: Case
    outcome: Outcome

    @property
    def tiers(self) -> tuple[Tier | None, Tier | None]:
        """The host tier and the disk tier that could be had."""
        return self.case.host, self.case.disk

    @property
    def host_cost(self) -> int:
        """Bytes that the recommended host tier takes of one replica's host."""
        tier, option = self.case.host, self.outcome.host
        return tier.cost(option.requested) if tier and option else 0


def solved(inputs: PlanInputs, policy: Policy) -> Solved:
    """Resolve, divide, choose. Raises KvplanError naming what is missing."""
    facts = gather(inputs, policy)
    room, host = gpu_room(facts), host_room(facts)
    case = case_of(facts, room, host)
    return Solved(inputs=inputs, facts=facts, gpu=room, host=host, case=case, outcome=solve(case))
