"""What to say of models that share a machine: who fits beside whom, what thrashes, what to keep, what to save."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from kvplan.documents import (
    CoAccess,
    Finding,
    Machine,
    MemorySplit,
    PolicyRun,
    ResidentModel,
    Severity,
    SharedMemory,
)
from kvplan.resident.costs import cold_load_s, kv_restore_s, stay_cold
from kvplan.resident.search import models_that_fit
from kvplan.resident.table import Log
from kvplan.units import show_bytes, show_duration, show_percent, show_tokens

OFTEN = 0.5  # share of requests that another model's follow, beyond chance, from which both belong in memory
SURE = 0.9  # chance of being followed from which nothing can be told: that model is asked for all the time
NAMED = 4  # models that one finding names


def _found(severity: Severity, code: str, text: str) -> Finding:
    return Finding(severity=severity, code=code, text=text)


def findings(
    models: Sequence[ResidentModel],
    machine: Machine,
    log: Log,
    run: PolicyRun,
    together: CoAccess,
    shared: SharedMemory,
    split: MemorySplit | None = None,
) -> tuple[Finding, ...]:
    """Everything worth saying, in the order of the log, the machine, the traffic, the policy."""
    return (
        *_sorted(log),
        *_memory(models, machine),
        *_divided(split),
        *_page_cache(shared, models, machine),
        *_pairs(models, machine, log, together, run),
        *_outcome(run),
        *_contexts(models, machine, log, run),
    )


def _sorted(log: Log) -> Iterator[Finding]:
    if log.behind:
        stood = "1 request stood" if log.behind == 1 else f"{log.behind:,} requests stood"
        text = f"{stood} behind a later one in {log.name}: sorted by time, equal times kept as they stood."
        yield _found("info", "sorted", text)


def _memory(models: Sequence[ResidentModel], machine: Machine) -> Iterator[Finding]:
    """Whether all fit together; else how much KV cache the one with the most would have to give up."""
    total = sum(model.total_bytes for model in models)
    over = total - machine.models_bytes
    if over <= 0:
        yield _found("info", "all-fit", f"All models fit together: {show_bytes(total)} of {_of(machine)}.")
        return
    text = f"The models take {show_bytes(total)} together and the machine has {_of(machine)}: "
    most = max(models, key=lambda model: model.kv_bytes)
    fit = models_that_fit(models, machine.models_bytes)
    text += f"at most {fit} of them fit whichever they are" if fit > 1 else _not_together(models, machine)
    if most.kv_bytes > over:
        cap = most.kv_bytes - over
        text += f", or cap the KV cache of {most.name} at {show_bytes(cap)}"
        if most.kv_bytes_per_token:
            text += f" ({cap // most.kv_bytes_per_token:,} tokens)"
        text += ", and all fit"
    yield _found("warning", "exclusive", text + ".")


def _not_together(models: Sequence[ResidentModel], machine: Machine) -> str:
    """What to do where the two largest do not fit: the rest may still fit beside either of them."""
    *small, second, first = sorted(models, key=lambda model: model.total_bytes)
    if not small or small[0].total_bytes + first.total_bytes > machine.models_bytes:
        return "load them exclusively, one at a time"
    return f"{first.name} and {second.name} do not fit together, so load those exclusively"


def _of(machine: Machine) -> str:
    return show_bytes(machine.models_bytes)


def _divided(split: MemorySplit | None) -> Iterator[Finding]:
    """What the KV tier is given where the models want the same memory; a warning where the plan alone takes more."""
    if split is None:
        return
    given = f"{show_bytes(split.best_bytes)} of host memory to the KV tier" if split.best_bytes else "No KV tier"
    each = " of each replica" if split.replicas > 1 and split.best_bytes else ""
    severity: Severity = "info" if _as_good_for_models(split) else "warning"
    yield _found(severity, "host-memory", f"{given}{each}. {split.why}")


def _as_good_for_models(split: MemorySplit) -> bool:
    """Whether the plan's own size costs the models no more than the best one."""
    own = next((point for point in split.points if point.host_kv_bytes == split.plan_bytes), None)
    cost = [(one.harm, one.loading_s_per_hour + one.reprefill_s_per_hour) for one in (own, split.best) if one]
    return own is not None and cost[0] <= cost[1]


def _page_cache(shared: SharedMemory, models: Sequence[ResidentModel], machine: Machine) -> Iterator[Finding]:
    if shared.every_swap_cold:
        beside = sum(model.kv_bytes + model.compute_bytes for model in models) if machine.unified else 0
        tier = f" and the host KV tier ({show_bytes(shared.host_kv_bytes)})" if shared.host_kv_bytes else ""
        more = f", {show_bytes(beside)} of their KV cache and buffers" if beside else ""
        text = (
            f"Every swap is counted as cold: the weights of all models ({show_bytes(shared.weights_bytes)}){more}"
            f"{tier} exceed the host memory that is left for them, so the page cache does not keep the files."
        )
        room = (shared.ram_bytes or 0) - shared.reserved_bytes - shared.weights_bytes - beside
        if room > 0:
            text += f" A KV tier of at most {show_bytes(room)} leaves it the room."
        elif tier:
            text += " Without a KV tier it would not either."
        yield _found("warning", "every-swap-cold", text)
    elif shared.every_swap_cold is None:
        text = "Every load is counted as cold: the machine's host memory is not given (ram)."
        yield _found("info", "ram-unknown", text)
    elif machine.pattern == "direct":
        text = "Every load is counted as cold: direct reads leave nothing in the page cache, however much there is."
        yield _found("info", "direct-cold", text)
    elif cold := stay_cold(models, machine, shared):
        whose = "Every load" if len(cold) == len(models) else f"Every load of {_named(cold)}"
        text = f"{whose} is counted as cold: no rate from the page cache is given that beats the drive's (warm_rate)."
        yield _found("warning", "warm-rate-unknown", text)


def _pairs(
    models: Sequence[ResidentModel], machine: Machine, log: Log, together: CoAccess, run: PolicyRun
) -> Iterator[Finding]:
    """Models that are asked for in turns: both in memory, or two loads a request.

    A model that is asked for all the time follows any other by chance (that of a Poisson process of its mean rate);
    what counts is how many of the requests that chance leaves alone it follows.
    """
    by_name = {model.name: model for model in models}
    loads = {one.name: one.loads for one in run.models}
    span_s = log.time_s[-1] - log.time_s[0]
    rate = {one.name: one.requests / span_s if span_s > 0 else 0.0 for one in run.models}
    chance = [1 - math.exp(-rate[name] * together.window_s) for name in together.models]
    for row, first in enumerate(together.models):
        for column, second in enumerate(together.models):
            ratio = together.ratios[row][column]
            a, b = by_name[first], by_name[second]
            beyond = (ratio - chance[column]) / max(1e-9, 1 - chance[column])
            if first == second or beyond < OFTEN or chance[column] > SURE:
                continue
            if a.group is not None and a.group == b.group:
                continue
            cost = cold_load_s(a, machine) + cold_load_s(b, machine)
            fit = a.total_bytes + b.total_bytes <= machine.models_bytes
            often = f"{show_percent(ratio)} of requests for {first} are followed by one for {second} within "
            text = often + f"{show_duration(together.window_s)} (by chance {show_percent(chance[column])}): "
            text += "keep both resident" if fit else "they do not fit together, so shrink one until they do"
            text += f"; sharing one place costs two loads a request, {show_duration(cost)} cold"
            text += f" (loads in this run: {loads[first]:,} and {loads[second]:,})."
            yield _found("warning" if min(loads[first], loads[second]) > 1 else "info", "keep-together", text)


def _outcome(run: PolicyRun) -> Iterator[Finding]:
    if run.interrupted:
        text = f"{run.interrupted:,} requests are cut: their model was evicted while it answered or loaded for them."
        yield _found("error", "interrupted", text)
    if run.unserved:
        text = f"{run.unserved:,} requests are never served: no model ever became idle to make room for theirs."
        yield _found("error", "unserved", text)
    if run.over_memory_loads:
        loads = "1 load exceeds" if run.over_memory_loads == 1 else f"{run.over_memory_loads:,} loads exceed"
        given = run.policy.budget_bytes
        why = "the policy counts models, not bytes" if given is None else f"the budget is {show_bytes(given)}"
        text = f"{loads} the machine's memory (up to {show_bytes(run.peak_bytes)}): {why}, and a real load fails here."
        yield _found("error", "over-memory", text)
    wait = run.wait.mean * run.wait.requests if run.wait else 0.0
    if run.loads > len(run.models) and (run.loads * 2 > run.requests or wait > run.service_s):
        text = (
            f"The machine thrashes: {run.loads:,} loads for {run.requests:,} requests, {show_duration(run.loading_s)} "
            f"of loading; requests waited {show_duration(wait)} in all for {show_duration(run.service_s)} of service."
        )
        yield _found("warning", "thrash", text)


def _contexts(models: Sequence[ResidentModel], machine: Machine, log: Log, run: PolicyRun) -> Iterator[Finding]:
    """Saving the KV cache against computing it again, for the longest context of each model."""
    longest = [0] * len(models)
    for model, tokens in zip(log.model, log.context_tokens, strict=True):
        if tokens > longest[model]:
            longest[model] = tokens
    unknown, saved = [], []
    for facts, tokens in zip(models, longest, strict=True):
        if not tokens:
            continue
        if facts.prefill_tokens_per_s is None:
            unknown.append(facts.name)
        elif facts.kv_bytes_per_token and machine.kv_restore_bytes_per_s and run.policy.kv_on_swap == "lost":
            again = tokens / facts.prefill_tokens_per_s
            back = kv_restore_s(tokens, facts.kv_bytes_per_token, machine.kv_restore_bytes_per_s)
            if back < again:
                size = show_bytes(tokens * facts.kv_bytes_per_token)
                saved.append(
                    f"{show_tokens(tokens)} tokens of {facts.name} are {size}, read back in {show_duration(back)}, "
                    f"against {show_duration(again)} of prefill"
                )
    if unknown:
        text = f"What re-prefilling costs {_named(unknown)} is not counted: no prefill_tokens_per_s is given."
        yield _found("warning", "prefill-unknown", text)
    if saved:
        yield _found("info", "save-kv", f"Save the KV cache before a swap: {_named(saved, '; ')}.")


def _named(items: Sequence[str], between: str = ", ") -> str:
    """The first of them, and how many more there are."""
    more = f"{between}and {len(items) - NAMED:,} more" if len(items) > NAMED else ""
    return between.join(items[:NAMED]) + more
