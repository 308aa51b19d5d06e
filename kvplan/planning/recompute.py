"""What recomputing costs: the probe's measurement of this model on this device, or the GPU catalogue with its range."""

from __future__ import annotations

from kvplan.documents import CurvePoint, Estimate, Finding, GpuSpec, Prefill, Probe
from kvplan.errors import KvplanError

STEP_S = 1e-3
SPARSE = 0.33
SPARSE_EFFICIENCY = 0.6


def prefill_cost(estimate: Estimate, probe: Probe | None, gpu: GpuSpec | None) -> tuple[Prefill, tuple[Finding, ...]]:
    """The cost to plan with, measured where that is possible. Raises KvplanError naming what is missing."""
    findings: list[Finding] = []
    for prefill in probe.prefill if probe else ():
        problem = _mismatch(prefill, estimate, probe, gpu)
        if not problem:
            return prefill, tuple(findings)
        findings.append(Finding(severity="warning", code="prefill-not-used", text=problem))
    return _published(estimate, gpu), tuple(findings)


def _mismatch(prefill: Prefill, estimate: Estimate, probe: Probe | None, gpu: GpuSpec | None) -> str:
    """Why a measured prefill does not speak for this plan; empty where it does."""
    if _name(prefill.model) != _name(estimate.model.id):
        return f"the prefill measured for {prefill.model} is not used: the plan is for {estimate.model.id}"
    wanted = estimate.parallel.gpus
    if prefill.gpus is not None and prefill.gpus != wanted:
        return f"the prefill measured on {prefill.gpus} GPU(s) is not used: a replica of this plan has {wanted}"
    devices = [device.name for device in probe.host.gpus] if probe else []
    served = prefill.device.startswith("server ")  # asked for by its address: it speaks for itself
    here = prefill.device in devices or (not devices and gpu is None)
    if prefill.provenance == "measured" and not (here or served):
        target = gpu.name if gpu is not None else devices[0]
        return f"the prefill measured on {prefill.device} is not used: the plan is for {target}"
    return ""


def _name(model: str) -> str:
    """A model's own name: the last part of a path or Hub id, its folder's for a config.json."""
    return model.removesuffix("/config.json").rstrip("/").rsplit("/", 1)[-1].lower()


def _published(estimate: Estimate, gpu: GpuSpec | None) -> Prefill:
    """a and b from the model's operations and the GPU's published rate; see docs/prefill.md for the efficiency."""
    if estimate.compute is None:
        raise KvplanError(
            f"no prefill cost for {estimate.model.id}: its operations per token are unknown, and the probe holds no "
            "measured prefill of it: run `kvplan probe --only prefill --model …` on the target"
        )
    if gpu is None:
        raise KvplanError(
            f"no prefill cost for {estimate.model.id}: give --gpu NAME, or a probe that measured its prefill"
        )
    compute, (low, middle, high) = estimate.compute, gpu.prefill_efficiency
    sparse = _is_sparse(estimate)
    share = middle * (SPARSE_EFFICIENCY if sparse else 1.0)
    rate = gpu.flops["bf16"] * share * estimate.parallel.gpus
    kind = f", times {SPARSE_EFFICIENCY} for its experts" if sparse else ""
    return Prefill(
        model=estimate.model.id,
        device=gpu.name,
        t0_s=STEP_S,
        a_s_per_token=compute.linear_flops_per_token / rate,
        b_s_per_token_sq=compute.attention_flops_per_token_sq / rate,
        provenance="assumed",
        source=(
            f"operations of the model over {middle:.0%} ({low:.0%} to {high:.0%}) of the published bf16 peak of "
            f"{estimate.parallel.gpus} x {gpu.name}{kind}; {STEP_S * 1e3:g} ms a step"
        ),
        low_ratio=middle / high,
        high_ratio=middle / low,
    )


def _is_sparse(estimate: Estimate) -> bool:
    """Whether a token passes through so few of the parameters that the model must be a mixture of experts."""
    if estimate.weights is None or estimate.compute is None or not estimate.weights.params:
        return False
    return estimate.compute.linear_flops_per_token < SPARSE * 2 * estimate.weights.params


def whole_value(hits: CurvePoint, prefill: Prefill) -> float:
    """Seconds of prefill that a log's hits avoid: a Σp + b Σp²."""
    return prefill.a_s_per_token * hits.hit_tokens + prefill.b_s_per_token_sq * hits.reused_prefix_tokens_sq
