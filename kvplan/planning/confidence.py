"""How far a plan can be trusted, and every input it rests on."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from kvplan.documents import Confidence, Evidence
from kvplan.planning.facts import Facts, evidence_of
from kvplan.planning.links import Rates
from kvplan.units import show_bytes, show_duration, show_exact, show_percent, show_rate, show_tokens

WEEK_S = 7 * 86400
# Findings on the hit curve that make it less than a replay of this deployment, and what would settle each.
_CURVES = (
    ("affinity-assumed", "routing by prefix affinity is assumed", "profile the log spread over these replicas"),
    ("round-robin-bound", "hits under round robin are a lower bound", "profile the log spread over these replicas"),
    ("isolation-scaled", "hits of separate tenants are scaled from infinite caches", "profile the log by tenant"),
)


def confidence(facts: Facts) -> Confidence:
    """Grade B with measured links, a measured prefill and a request log; C with less.

    A needs a week of log and a live comparison with the tier off and on as well, which no plan has yet when it is made.
    """
    reasons, raise_by = [], []
    if facts.host_link is None:
        reasons.append("the host link is unknown")
    elif facts.host_link.provenance != "measured":
        reasons.append(f"the host link is {facts.host_link.provenance}, not measured")
    if facts.host_link is None or facts.host_link.provenance != "measured":
        raise_by.append("run `kvplan probe` on the GPU host")
    if facts.prefill.provenance != "measured":
        reasons.append(f"the prefill cost is {facts.prefill.provenance}, within {_band(facts)}")
        raise_by.append("measure prefill on the target")
    if facts.host_memory is None:
        reasons.append("the host's memory is unknown")
        raise_by.append("probe the host, or state --host-memory")
    for code, reason, step in _CURVES:
        if any(finding.code == code for finding in facts.curves.findings):
            reasons.append(reason)
            raise_by.append(step)
    grade: Literal["B", "C"] = "C" if reasons else "B"
    span = facts.workload.span_s or 0.0
    reasons += _positive(facts)
    if span < WEEK_S:
        raise_by.append(f"profile a week of logs (this one spans {show_duration(span)})")
    raise_by.append("compare the live server with the tier off and on")
    return Confidence(grade=grade, reasons=tuple(reasons), raise_by=tuple(raise_by))


def _positive(facts: Facts) -> Iterator[str]:
    if facts.host_link and facts.host_link.provenance == "measured":
        as_moved = (
            "as the engine moves its cache" if facts.host_link.as_moved else "near the pieces that the engine moves"
        )
        yield f"the host link was measured {as_moved}"
    if facts.prefill.provenance == "measured":
        yield "prefill was measured for this model"
    yield (
        f"{facts.workload.requests:,} requests of a real log" if facts.workload.sources else "a workload without a log"
    )


def _band(facts: Facts) -> str:
    return f"x {facts.prefill.low_ratio:.2f} to x {facts.prefill.high_ratio:.2f}"


def evidence(facts: Facts) -> tuple[Evidence, ...]:
    """Every input with its origin, as the report's evidence table lists it."""
    return (*_model(facts), *_machine(facts), *_prefill(facts), *_log(facts), *_policy(facts), *_prices(facts))


def _model(facts: Facts) -> Iterator[Evidence]:
    kv, model = facts.estimate.kv, facts.estimate.model
    date = facts.dates["estimate"]
    own = facts.estimate.engine != "none"
    yield Evidence(
        what="engine rules",
        value=f"{facts.profile.name} {facts.profile.version}, {facts.policy.offload} tiers",
        provenance="configured",
        source="the estimate's engine" if own else "--engine, as the estimate is engine-free",
        date=date if own else None,
    )
    for what, size in (
        ("KV bytes per token", kv.bytes_per_token),
        ("bytes per token and GPU", facts.bytes_per_token_per_gpu),
        ("bytes per token in a tier", kv.offload_bytes_per_token),
    ):
        yield Evidence(
            what=what,
            value=show_exact(size),
            provenance="published",
            source=f"config of {model.id} ({model.source}), {facts.estimate.engine}, {facts.estimate.kv_dtype}",
            date=date,
        )
    yield evidence_of("weights per GPU", show_bytes(facts.weights.value), facts.weights)
    yield evidence_of("engine overhead per GPU", show_bytes(facts.overhead.value), facts.overhead)


def _machine(facts: Facts) -> Iterator[Evidence]:
    yield evidence_of(f"memory of {facts.gpu_name}", show_bytes(facts.gpu_total.value), facts.gpu_total)
    default = facts.utilization == facts.profile.utilization
    yield Evidence(
        what="GPU memory utilization",
        value=f"{facts.utilization:g}",
        provenance="default" if default else "configured",
        source=f"default of {facts.profile.name} {facts.profile.version}" if default else "policy or estimate",
        date=facts.profile.date if default else None,
    )
    if facts.host_memory:
        yield evidence_of("usable host memory", show_bytes(facts.host_memory.value), facts.host_memory)
    yield from _moves(facts)
    for what, rates in (("host link", facts.host_link), ("disk", facts.disk_link)):
        if rates:
            yield _link(what, rates, facts)
    yield Evidence(
        what="nesting of tiers",
        value="inclusive" if facts.profile.inclusive else "exclusive",
        provenance="published",
        source=facts.profile.source,
        date=facts.profile.date,
    )


def _moves(facts: Facts) -> Iterator[Evidence]:
    if facts.host_link is None:
        return
    load, store = facts.moves
    yield Evidence(
        what="pieces on the host link",
        value=f"load {load.text}, store {store.text}",
        provenance="published",
        source=load.source if load.source == store.source else f"{load.source}; {store.source}",
        date=facts.profile.date,
    )


def _link(what: str, rates: Rates, facts: Facts) -> Evidence:
    return Evidence(
        what=what,
        value=f"load {show_rate(rates.load_bytes_per_s)}, store {show_rate(rates.store_bytes_per_s)}",
        provenance=rates.provenance,
        source=rates.source,
        date=facts.dates["probe" if rates.provenance == "measured" else "gpu"],
    )


def _prefill(facts: Facts) -> Iterator[Evidence]:
    prefill = facts.prefill
    yield Evidence(
        what="prefill cost",
        value=(
            f"{show_duration(prefill.t0_s)} + {prefill.a_s_per_token * 1e6:.3g} µs a token + "
            f"{prefill.b_s_per_token_sq * 1e12:.3g} ps a token², {_band(facts)}"
        ),
        provenance=prefill.provenance,
        source=f"{prefill.device}: {prefill.source}",
        date=facts.dates["probe" if prefill.provenance == "measured" else "gpu"],
    )
    yield Evidence(
        what="GPU time lost to stores",
        value=show_percent(facts.store_share.ratio) + " of their link time",
        provenance=facts.store_share.provenance,
        source=facts.store_share.source,
    )


def _log(facts: Facts) -> Iterator[Evidence]:
    workload, date = facts.workload, facts.dates["workload"]
    for source in workload.sources:
        value = f"{source.requests:,} requests, SHA-256 {source.sha256[:12]}"
        yield Evidence(what=f"log {source.name}", value=value, provenance="measured", source=source.format, date=date)
    ceiling = show_percent(workload.ceiling_hit_ratio or 0.0)  # a plan has a curve, and a curve has a ceiling
    yield Evidence(
        what="hit curve",
        value=f"{len(workload.curve)} exact points, ceiling {ceiling} of input tokens",
        provenance="measured",
        source="LRU replay of the log, cold start",
        date=date,
    )
    tokens, requests = facts.active
    service = workload.service
    yield Evidence(
        what=f"active state ({facts.policy.active_percentile})",
        value=f"{show_tokens(tokens)} tokens in {requests:g} requests",
        provenance=service.provenance if service else "assumed",
        source=service.source if service and service.source else "durations of the log",
        date=date,
    )
    if workload.input_tokens_sq is None:
        yield Evidence(
            what="sum of squared input lengths",
            value=f"{facts.demand.input_tokens_sq:.3g}",
            provenance="assumed",
            source="upper bound from the length percentiles",
            date=date,
        )


def _policy(facts: Facts) -> Iterator[Evidence]:
    policy = facts.policy
    rows = (
        ("growth of demand", f"{policy.growth:g}", policy.growth == 1.0),
        ("replicas", f"{facts.replicas} ({facts.on_host} a host)", policy.replicas == 1),
        ("host memory headroom", show_percent(policy.headroom_ratio), policy.headroom_ratio == 0.1),
        ("tolerance of the choice", show_percent(policy.tolerance_ratio), policy.tolerance_ratio == 0.02),
        ("least gain", show_percent(policy.minimum_gain_ratio) + " of prefill time", policy.minimum_gain_ratio == 0.02),
        ("who may share cached blocks", policy.share, policy.share == "all"),
        ("routing", policy.routing, policy.routing == "affinity"),
        ("bytes a tier takes over the estimate's", f"x {policy.expansion:g}", policy.expansion == 1.0),
        ("what memory costs in the choice", policy.price_view, policy.price_view == "owned"),
    )
    for what, value, default in rows:
        yield Evidence(what=what, value=value, provenance="default" if default else "configured", source="policy")


def _prices(facts: Facts) -> Iterator[Evidence]:
    prices = facts.prices
    if prices is None:
        return
    rows = (
        ("GPU price", prices.gpu_usd_per_hour, "an hour"),
        ("memory price", prices.memory_usd_per_gb, "a GB"),
        ("memory rent", prices.memory_usd_per_gb_hour, "a GB an hour"),
        ("drive price", prices.disk_usd_per_gb, "a GB"),
        ("drive rent", prices.disk_usd_per_gb_hour, "a GB an hour"),
    )
    for what, value, unit in rows:
        if value is not None:
            yield Evidence(
                what=what, value=f"${value:g} {unit}", provenance="configured", source=prices.source, date=prices.date
            )
