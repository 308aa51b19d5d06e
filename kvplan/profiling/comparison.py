"""Two periods of one service: an earlier log's figures beside a later one's, and what carries over."""

from __future__ import annotations

from msgspec.structs import replace

from kvplan import reuse
from kvplan.documents import Comparison, Finding, Hits, Requests, Workload
from kvplan.errors import KvplanError
from kvplan.units import show_percent

_MOVED = 0.02  # a change of the ceiling worth a warning


def compared(earlier: Workload, later: Workload, both: Requests | None) -> Workload:
    """`later` with `earlier` beside it. `both` is the two logs read as one, None where they overlap in time."""
    if earlier.ceiling_hit_ratio is None or later.ceiling_hit_ratio is None:
        raise KvplanError("--compare needs two logs whose reuse is known, and one has lengths only")
    known = None if both is None else _known(earlier, both)
    comparison = Comparison(
        sources=earlier.sources,
        requests=earlier.requests,
        span_s=earlier.span_s,
        input_tokens=earlier.input_tokens,
        output_tokens=earlier.output_tokens,
        input_lengths=earlier.input_lengths,
        ceiling_hit_ratio=earlier.ceiling_hit_ratio,
        known_hit_ratio=known,
        curve=_common(earlier, later),
    )
    return replace(
        later,
        compared=comparison,
        findings=(*later.findings, *_findings(earlier.ceiling_hit_ratio, later.ceiling_hit_ratio, known)),
    )


def _known(earlier: Workload, both: Requests) -> float:
    runs = reuse.find_runs(both)
    tokens = reuse.run_tokens(runs, both)[runs.request >= earlier.requests]
    whole = int(both.input_tokens[earlier.requests :].sum())
    return int(tokens.sum()) / whole if whole else 0.0


def _common(earlier: Workload, later: Workload) -> tuple[Hits, ...]:
    """The earlier period's curve where the later one has a point too."""
    shared = {point.capacity_blocks for point in later.curve}
    if earlier.block_tokens != later.block_tokens:
        return ()
    return tuple(
        Hits(
            capacity_blocks=point.capacity_blocks,
            hit_requests=point.hit_requests,
            hit_blocks=point.hit_blocks,
            hit_tokens=point.hit_tokens,
            hit_ratio=point.hit_ratio,
        )
        for point in earlier.curve
        if point.capacity_blocks in shared
    )


def _findings(before: float, after: float, known: float | None) -> list[Finding]:
    change = f"The ceiling went from {show_percent(before)} to {show_percent(after)} of the input tokens"
    severity = "warning" if after < before - _MOVED else "info"
    findings = [Finding(severity="warning", code="ceiling-fell", text=f"{change}: requests share less than before.")]
    if severity == "info":
        findings = [Finding(severity="info", code="ceiling-moved", text=f"{change}.")]
    if known is not None:
        text = (
            f"A cache that is warm from the earlier period would hit {show_percent(known)} of the later one's tokens, "
            f"{show_percent(known - after)} of them only because it is."
        )
        findings.append(Finding(severity="info", code="carried-over", text=text))
    return findings
