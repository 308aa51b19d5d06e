"""Plans side by side: one row for a plan with something changed, and an earlier plan against this one."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from msgspec.structs import fields, replace

from kvplan.documents import Against, Changed, Document, Plan, PlanInputs, Policy, WhatIf
from kvplan.errors import KvplanError
from kvplan.units import show_bytes, show_duration, show_percent, show_rate

Maker = Callable[[PlanInputs, Policy], Plan]

_SHOWN: tuple[tuple[str, Callable[[Any], str]], ...] = (  # how a policy's field reads, by the unit in its name
    ("_bytes_per_s", show_rate),
    ("_bytes", show_bytes),
    ("_ratio", show_percent),
    ("_s", show_duration),
)
_PARTS = ("estimate", "workload", "probe", "gpu", "prices")


def row(change: str, plan: Plan) -> WhatIf:
    """What a plan comes to, in one line."""
    budgets = plan.budgets
    return WhatIf(
        change=change,
        verdict=plan.verdict,
        gpu_bytes=budgets.gpu.bytes,
        host_bytes=budgets.host.requested_bytes,
        disk_bytes=budgets.disk.requested_bytes,
        hit_ratio=budgets.disk.hit_ratio,
        gpu_busy_ratio=max(0.0, plan.benefit.gpu_busy_ratio_on),
        net_s_per_hour=plan.benefit.gpu_s_per_hour_saved,
        grade=plan.confidence.grade,
        limits=tuple(limit.name for limit in plan.limits if not limit.ok),
    )


def compared(new: Plan, old: Document[Plan], make: Maker) -> Against:
    """What moved since an earlier plan, and why.

    The earlier plan is made again by this version with its own inputs, then with one of them replaced at a time; what
    is left beyond these rows comes from several of them together.
    """
    return Against(
        created=old.created,
        decision=old.data.decision,
        results=tuple(_differing(_results(old.data), _results(new))),
        inputs=tuple(_differing(_inputs(old.data), _inputs(new))),
        causes=tuple(_causes(new, old.data, make)),
    )


def _differing(before: dict[str, str], after: dict[str, str]) -> Iterator[Changed]:
    for what in (*before, *(what for what in after if what not in before)):
        pair = before.get(what, "not there"), after.get(what, "not there")
        if pair[0] != pair[1]:
            yield Changed(what=what, before=pair[0], after=pair[1])


def _results(plan: Plan) -> dict[str, str]:
    budgets, benefit = plan.budgets, plan.benefit
    return {
        "verdict": plan.verdict,
        "reusable blocks on the GPU": show_bytes(budgets.gpu.bytes),
        "host memory": show_bytes(budgets.host.requested_bytes),
        "disk": show_bytes(budgets.disk.requested_bytes),
        "hits": show_percent(budgets.disk.hit_ratio),
        "GPU time saved an hour": show_duration(benefit.gpu_s_per_hour_saved),
        "GPU busy with prefill": show_percent(benefit.gpu_busy_ratio_on),
        "confidence": plan.confidence.grade,
        "limits that do not hold": ", ".join(limit.name for limit in plan.limits if not limit.ok) or "none",
    }


def _inputs(plan: Plan) -> dict[str, str]:
    """Every line of evidence but the policy's, and every policy field, as printed."""
    lines = {one.what: f"{one.value} ({one.provenance})" for one in plan.evidence if one.source != "policy"}
    return {
        **lines,
        **{f"policy: {_called(one.name)}": _shown(plan.policy, one.name) for one in fields(Policy)},
    }


def _shown(policy: Policy, name: str) -> str:
    if name == "reserves":
        return ", ".join(f"{one.name} {show_bytes(one.bytes)}" for one in policy.reserves) or "none"
    value = getattr(policy, name)
    if value is None:
        return "not set"
    show = next((show for end, show in _SHOWN if name.endswith(end)), str)
    return show(value)


def _called(name: str) -> str:
    """A field's name without its unit, which stands with its value."""
    return name.removesuffix(next((end for end, _ in _SHOWN if name.endswith(end)), "")).replace("_", " ")


def _causes(new: Plan, old: Plan, make: Maker) -> Iterator[WhatIf]:
    yield row("the earlier inputs", make(old.inputs, old.policy))
    for name in _PARTS:
        after = getattr(new.inputs, name)
        if after != getattr(old.inputs, name):
            yield from _alone(name, replace(old.inputs, **{name: after}), old.policy, make)
    if new.policy != old.policy:
        yield from _alone("policy", old.inputs, new.policy, make)
    yield row("all of them", new)


def _alone(name: str, inputs: PlanInputs, policy: Policy, make: Maker) -> Iterator[WhatIf]:
    """The earlier plan with one input replaced; nothing where the two do not go together."""
    try:
        yield row(f"the new {name} alone", make(inputs, policy))
    except KvplanError:
        return
