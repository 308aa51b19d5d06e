"""Prometheus alert rules for what serving systems count but do not report, and for a plan that no longer holds."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from kvplan.documents import Plan
from kvplan.engines.metrics import plain
from kvplan.engines.metrics.system import Loss, System, Watch
from kvplan.observing import promql
from kvplan.observing.dashboard import planned_ratio
from kvplan.units import show_duration, show_percent

_POINTS_BELOW = 0.10  # a ratio moves by a few points from hour to hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One alert: it fires when `expression` gave something for `minutes`."""

    name: str
    expression: str
    minutes: int
    severity: str
    summary: str
    description: str


def build(systems: Sequence[System], selector: str = "", plan: Plan | None = None) -> str:
    """A rule file as YAML text, a group a system; `selector` is labels without braces that every expression carries."""
    lines = [
        "# Alert rules for the KV cache, written by kvplan observe --dashboard. promtool check rules reads them.",
        "groups:",
    ]
    for system in systems:
        lines += [f"  - name: {_text(f'kvplan-{system.name}')}", "    rules:"]
        for rule in _rules(system, selector, plan):
            lines += _yaml(rule)
    return "\n".join(lines) + "\n"


def _yaml(rule: Rule) -> list[str]:
    return [
        f"      - alert: {rule.name}",
        f"        expr: {_text(rule.expression)}",
        f"        for: {rule.minutes}m",
        "        labels:",
        f"          severity: {rule.severity}",
        "        annotations:",
        f"          summary: {_text(rule.summary)}",
        f"          description: {_text(rule.description)}",
    ]


def _text(text: str) -> str:
    """A single-quoted YAML scalar: of all characters only the quote itself needs care, so PromQL stays readable."""
    return "'" + " ".join(text.split()).replace("'", "''") + "'"


def _rules(system: System, selector: str, plan: Plan | None) -> Iterator[Rule]:
    for watch in system.watches:
        rule = _watch(system, watch, selector, _name(system, watch.code))
        if rule is not None:
            yield rule
    for loss in system.losses:
        if loss.trouble:
            yield _loss(system, loss, selector)
    for pick in system.needed[:1]:
        yield Rule(
            name=_name(system, "metric-missing"),
            expression=f"absent({promql.selected(pick, selector)})",
            minutes=15,
            severity="warning",
            summary=f"{system.title}: no {pick.names[0]}",
            description="No server is scraped, or the metric was renamed: figures and alerts made of it are silent.",
        )
    if plan is not None:
        yield from _plan(system, selector, plan)


def _name(system: System, code: str) -> str:
    words = re.split(r"[^a-zA-Z0-9]+", f"{system.name} {code}")
    return "KvCache" + "".join(word[:1].upper() + word[1:] for word in words)


def _watch(system: System, watch: Watch, selector: str, name: str) -> Rule | None:
    by = promql.BY
    match watch.kind:
        case "growing" if watch.waiting is not None:
            held = promql.selected(watch.waiting, selector)
            expression = f"sum by ({by}) (deriv({held}[15m])) > 0 and sum by ({by}) (min_over_time({held}[15m])) > 0"
            minutes, severity = 15, "critical"
        case "growing":
            begun, done = (
                promql.gained(picks, selector, "30m", by, "increase") for picks in (watch.started, watch.done)
            )
            expression, minutes, severity = f"{begun} - {done} > 0.1 * {begun}", 15, "critical"
        case "stuck" if watch.waiting is not None:
            held = promql.selected(watch.waiting, selector)
            done = promql.gained(watch.done, selector, "10m", by, "increase")
            expression = f"sum by ({by}) (min_over_time({held}[10m])) > 0 unless {done} > 0"
            minutes, severity = 5, "critical"
        case "silent":
            work, use = (promql.gained(picks, selector, "1h", by, "increase") for picks in (watch.work, watch.use))
            expression, minutes, severity = f"{work} > 0 and {use} == 0", 60, "warning"
        case "down" if watch.waiting is not None:
            least = promql.level(watch.waiting, selector, "min" if watch.full is None else "sum", by)
            full = "1" if watch.full is None else promql.level(watch.full, selector, "sum", by)
            expression, minutes, severity = f"{least} < {full}", 5, "critical"
        case _:
            return None  # a gauge at zero is a note to a reader, nothing to wake somebody for
    return Rule(
        name=name,
        expression=expression,
        minutes=minutes,
        severity=severity,
        summary=f"{system.title}: {watch.code.replace('-', ' ')} on {{{{ $labels.instance }}}}",
        description=_sentence(watch.text),
    )


def _loss(system: System, loss: Loss, selector: str) -> Rule:
    by = promql.BY + (f", {loss.by}" if loss.by else "")
    picked = promql.gained((loss.pick,), selector, "15m", by, "increase")
    if loss.only:
        wanted = f'{loss.by}=~"{"|".join(loss.only)}"'
        picked = promql.gained((loss.pick,), f"{selector},{wanted}" if selector else wanted, "15m", by, "increase")
    why = loss.reason or f"{{{{ $labels.{loss.by} }}}}"
    return Rule(
        name=_name(system, plain(loss.pick.names[0]).removeprefix(plain(system.prefix))),
        expression=f"{picked} > 0",
        minutes=15,
        severity="warning",
        summary=f"{system.title}: {loss.unit} {loss.what} ({why}) on {{{{ $labels.instance }}}}",
        description=_sentence(loss.trouble),
    )


def _sentence(text: str) -> str:
    return text[0].upper() + text[1:] + ("" if text.endswith("?") else ".")


def _plan(system: System, selector: str, plan: Plan) -> Iterator[Rule]:
    row = next((row for row in system.hits if row.tier == "all"), None)
    if row is not None and system.prompts:
        planned = planned_ratio(plan)
        hit, of = (promql.gained(picks, selector, "1h") for picks in (row.hits, row.of))
        yield Rule(
            name=_name(system, "hits-below-plan"),
            expression=f"{hit} / {of} < {max(0.0, planned - _POINTS_BELOW):.4g}",
            minutes=60,
            severity="warning",
            summary=f"{system.title}: hits more than 10 points below the plan's {show_percent(planned)}",
            description="Run kvplan observe --plan to see which tier falls short and why, then plan from a newer log.",
        )
    wait = next((wait for wait in system.waits if wait.what == "time to first token"), None)
    slo = plan.policy.slo_ttft_s
    if wait is not None and slo is not None:
        yield Rule(
            name=_name(system, "ttft-above-target"),
            expression=f"{promql.quantile(0.9, wait.name, selector, '15m')} > {slo:g}",
            minutes=15,
            severity="warning",
            summary=f"{system.title}: p90 time to first token above {show_duration(slo)}",
            description="The plan's target is missed: compare queue waits, hits and arrivals with the plan.",
        )
