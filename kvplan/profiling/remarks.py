"""What a reader of a workload should know: what was assumed, and where its figures stop short."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from kvplan.documents import Finding, Requests, ServiceModel, Tenant
from kvplan.profiling.ceilings import ratio
from kvplan.units import show_duration, show_percent

_WORTH_SAYING = 0.01
NOT_HELD = Finding(
    severity="info",
    code="blocks-not-held",
    text=(
        "The log's blocks were not held in memory: what needs them all at once (tenants, shared prefixes, other "
        "policies, replicas) is left out. The curve and all other figures are exact."
    ),
)


def about_time(
    requests: Requests, held_by: ServiceModel | None, same_moment: int, input_tokens: int, ttl_s: float | None
) -> list[Finding]:
    """What was assumed about time; `same_moment` tokens repeat those of a request with the same time stamp."""
    findings = []
    if ttl_s is not None:
        text = f"The curve is that of an LRU cache that drops what was not used for {show_duration(ttl_s)}."
        findings.append(Finding(severity="info", code="ttl", text=text))
    if held_by is not None and held_by.provenance != "measured":
        text = (
            "The log does not say how long requests ran: tokens in flight follow from "
            f"{held_by.prefill_tokens_per_s or 0:,.0f} prefill tokens/s and "
            f"{show_duration(held_by.decode_s_per_token or 0)} a decoded token ({held_by.provenance}). "
            "Where it does, --columns duration_s=NAME names the column or field."
        )
        findings.append(Finding(severity="warning", code="service-assumed", text=text))
    if same_moment > _WORTH_SAYING * input_tokens:
        text = (
            f"{show_percent(same_moment / input_tokens)} of the input tokens repeat those of a request with the same "
            "time stamp: a server reuses them only if the first is computed before the second starts."
        )
        findings.append(Finding(severity="warning", code="same-moment", text=text))
    if not requests.output_tokens.any():
        text = "The log has no output lengths: tokens in flight and decode time leave them out."
        findings.append(Finding(severity="warning", code="no-output-lengths", text=text))
    return findings


def about_blocks(requests: Requests, asked: Sequence[int], tenants: Sequence[Tenant]) -> list[Finding]:
    """What to know of the capacities asked for, and of tenants."""
    findings = []
    longest = int(np.diff(requests.offsets).max(initial=0))
    if small := [capacity for capacity in asked if capacity < longest]:
        text = (
            f"The longest request has {longest:,} blocks, more than a cache of {max(small):,}: whether a server "
            "admits it is its own policy; here its leading blocks stay."
        )
        findings.append(Finding(severity="info", code="longer-than-cache", text=text))
    if len(tenants) > 1:
        lost = sum(tenant.hit_tokens - tenant.isolated_hit_tokens for tenant in tenants)
        whole = sum(tenant.input_tokens for tenant in tenants)
        text = f"Keeping tenants apart would lose {show_percent(ratio(lost, whole))} of the input tokens as hits."
        findings.append(Finding(severity="info", code="tenant-isolation", text=text))
    return findings
