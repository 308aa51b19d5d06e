"""What a reader must know of a simulation, from its results, its log, its plan and its loop."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvplan.documents import ArmResult, EngineModel, Fault, Finding, Loop, Plan, Requests
from kvplan.engines.profiles import engine_of, profile
from kvplan.simulation.loops import OPEN, Turn
from kvplan.simulation.setup import assumed_stores, room_for_kv
from kvplan.units import show_bytes, show_duration, show_tokens

SATURATED = 0.97
BACKLOG = 0.05  # of the requests
_LEAST_BACKLOG = 8  # fewer may have come together by chance


def of_results(results: Sequence[ArmResult], loop: Loop = OPEN) -> tuple[Finding, ...]:
    """What the results themselves say; so many clients as there are keep an engine busy by design."""
    findings = []
    if len(results) == 1:
        text = "no tier has any memory, so there is only the arm without: add one with --arm to compare"
        findings.append(Finding(severity="info", code="one-arm", text=text))
    unfit = max(result.cancelled.get("does not fit", 0) for result in results)
    if unfit:
        text = (
            f"{parts_of(unfit, results[0].submitted)} longer than what one request may have of the KV cache: turned "
            "away in every arm, and in no figure but the count of completed"
        )
        findings.append(Finding(severity="warning", code="does-not-fit", text=text))
    lost = [one.arm.name for one in results[:1] if one.sustainable and one.sustainable.requests_per_s is None]
    if lost:
        text = (
            f"arm {lost[0]} meets the target at no rate that was tried, so there is no load to show TTFT at: give a "
            "longer --slo-ttft"
        )
        findings.append(Finding(severity="warning", code="slo-never-met", text=text))
    full = [result.arm.name for result in results if result.gpu_busy_ratio > SATURATED or _queues(result)]
    if full and loop.kind != "concurrency":
        text = (
            f"the engine is busy more than {SATURATED:.0%} of the time, or more than {BACKLOG:.0%} of the requests "
            f"still wait when the last one arrives, in {', '.join(full)}: at or past saturation a queue grows with the "
            "log, and its waiting says little; compare sustainable rates (--slo-ttft)"
        )
        findings.append(Finding(severity="warning", code="saturated", text=text))
    return tuple(findings)


def _queues(result: ArmResult) -> bool:
    """Whether requests come faster than they are let in."""
    return (result.backlog or 0) > max(_LEAST_BACKLOG, BACKLOG * result.submitted)


def of_log(requests: Requests) -> tuple[Finding, ...]:
    """What the log leaves out."""
    if requests.output_tokens.any():
        return ()
    text = "the log states no output lengths: every answer is played as one token, so decoding is not there"
    return (Finding(severity="warning", code="no-output", text=text),)


def of_plan(plan: Plan | EngineModel, requests: Requests, count: int, tiers: bool = True) -> tuple[Finding, ...]:
    """What the plan asks for that the model takes otherwise; an engine given by its figures asks for nothing."""
    if isinstance(plan, EngineModel):
        return ()
    policy, groups = plan.policy, plan.inputs.estimate.data.groups
    room, longest = room_for_kv(plan), plan.inputs.estimate.data.model.max_context_tokens
    wanted = plan.budgets.gpu.usable_bytes + plan.budgets.gpu.missing_bytes
    needs = requests.input_tokens[:count] + requests.output_tokens[:count]
    long = 0 if longest is None else int((needs > longest).sum())
    kinds = sorted({group.kind for group in groups if group.kind in ("sliding", "chunked", "recurrent", "cross")})
    cases: tuple[tuple[bool, str, str], ...] = (
        (
            bool(kinds),
            "layers-not-modelled",
            f"{', '.join(kinds)} layers are played as if they kept every token at the plan's bytes a token",
        ),
        (
            wanted > room,
            "gpu-does-not-fit",
            f"the plan's own requests need {show_bytes(wanted)} of KV cache, and the GPUs of a "
            f"replica have room for {show_bytes(room)}: requests wait for that room, or are preempted",
        ),
        (
            long > 0,
            "longer-than-context",
            f"{parts_of(long, count)} longer than the model's context of {longest or 0:,} tokens, answer included: "
            "a server would refuse or cut them, here they are played whole",
        ),
        (
            policy.growth != 1,
            "growth",
            f"the plan is for {policy.growth:g} times the log's demand: play that with --rate-scale {policy.growth:g}",
        ),
        (
            policy.routing == "session" and not (requests.session >= 0).any(),
            "no-sessions",
            "the log names no sessions: requests go where most of their prompt went last, else to the least busy",
        ),
    )
    named = [Finding(severity="warning", code=code, text=text) for holds, code, text in cases if holds]
    named += _without_blocks(plan) if profile(engine_of(plan)).whole_prompts else []
    for tier in assumed_stores(plan) if tiers else ():
        text = (
            f"no clean store to the {tier} tier was measured: it is played as storing as fast as it loads, which is "
            "assumed; probe the target host to know"
        )
        named.append(Finding(severity="warning", code="store-rate-assumed", text=text))
    return tuple(named)


def _without_blocks(plan: Plan) -> list[Finding]:
    """What a plan for an engine with slots asks for and cannot have."""
    cases = (
        (plan.budgets.disk.usable_bytes > 0, "no-disk-tier", "the plan's disk tier is left out: llama.cpp has none"),
        (
            plan.policy.ttl_s is not None,
            "no-ttl",
            "the plan's time to live is left out: llama.cpp drops nothing by age",
        ),
    )
    return [Finding(severity="warning", code=code, text=text) for holds, code, text in cases if holds]


def of_answers(engine: EngineModel, requests: Requests, count: int) -> tuple[Finding, ...]:
    """Answers that a slot's context has no room for."""
    if engine.slots is None:
        return ()
    room = engine.slots.context_tokens - requests.input_tokens[:count]
    cut = int(((room > 0) & (requests.output_tokens[:count] > room)).sum())
    if not cut:
        return ()
    text = (
        f"{parts_of(cut, count)} cut in the answer: prompt and answer together are longer than a slot's context of "
        f"{show_tokens(engine.slots.context_tokens)} tokens"
    )
    return (Finding(severity="warning", code="answers-cut", text=text),)


def of_source(plan: Plan | EngineModel, requests: Requests) -> tuple[Finding, ...]:
    """Whether the log is another one than the plan was made from."""
    if isinstance(plan, EngineModel):
        return ()
    planned = {source.sha256 for source in plan.inputs.workload.data.sources}
    if not planned or planned & {source.sha256 for source in requests.sources}:
        return ()
    names = ", ".join(source.name for source in plan.inputs.workload.data.sources)
    text = f"the plan was made from another log ({names}): its tiers are sized for that one's reuse"
    return (Finding(severity="info", code="another-log", text=text),)


def of_rates(faults: Sequence[Fault], searched: bool) -> tuple[Finding, ...]:
    """What a search for the sustainable rate leaves out."""
    if not (faults and searched):
        return ()
    text = "sustainable rates and TTFT at equal load are played without the faults"
    return (Finding(severity="info", code="rates-without-faults", text=text),)


def of_faults(faults: Sequence[Fault], span_s: float, loop: Loop) -> tuple[Finding, ...]:
    """Faults that come when no request does any more."""
    late = [fault for fault in faults if fault.at_s > span_s]
    if not late or loop.kind != "open":
        return ()
    names = ", ".join(f"{fault.kind} at {show_duration(fault.at_s)}" for fault in late)
    text = f"{names}: after the last arrival, {show_duration(span_s)} from the first: few requests or none see it"
    return (Finding(severity="warning", code="fault-after-arrivals", text=text),)


def parts_of(some: int, count: int) -> str:
    """'1 of 5 requests is', '2 of 5 requests are'."""
    return f"{some:,} of {count:,} requests {'is' if some == 1 else 'are'}"


def of_loop(requests: Requests, loop: Loop, after: Sequence[Turn | None]) -> tuple[Finding, ...]:
    """How conversations were found and how long people think, in a closed loop of sessions."""
    if loop.kind != "sessions":
        return ()
    waiting = [index for index, turn in enumerate(after) if turn is not None]
    if not waiting:
        text = "no request goes on from an answer: in this log a closed loop of sessions is an open one"
        return (Finding(severity="warning", code="no-conversations", text=text),)
    found = []
    named = sum(bool(requests.session[index] >= 0) for index in waiting)
    if named < len(waiting):
        text = (
            f"{len(waiting) - named:,} requests are taken as later turns because their prompt goes on from a whole "
            "earlier one that nobody else had: the log names no session for them"
        )
        found.append(Finding(severity="info", code="turns-by-prefix", text=text))
    untimed = sum(bool(np.isnan(requests.duration_s[turn.after])) for turn in after if turn is not None)
    if untimed:
        text = (
            f"for {untimed:,} answers the log does not say how long they took: people are played as thinking from one "
            "arrival to the next, so that later turns come late by what the answer took then"
        )
        found.append(Finding(severity="warning", code="thinking-too-long", text=text))
    return tuple(found)
