"""A Grafana dashboard of the systems' rows: the classic JSON model, which every Grafana since 11 imports."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from typing import Any

from kvplan.documents import Plan
from kvplan.engines.metrics.system import Hits, System
from kvplan.observing import promql

_SCHEMA = 39  # Grafana 11; later ones bring it up to theirs when they load it
_WINDOW = "$__rate_interval"
_LABELS = 'job=~"$job",instance=~"$instance"'
_SOURCE = {"type": "prometheus", "uid": "${datasource}"}
_WIDTH, _HEIGHT = 12, 8
_UNITS = {"ratio": "percentunit", "bytes": "bytes"}
_TIERS = {
    "all": "all tiers",
    "gpu": "GPU",
    "host": "host memory",
    "remote": "remote store",
    "external": "below the GPU",
}

Panel = dict[str, Any]
Target = tuple[str, str]  # what the legend says, and the expression


def build(systems: Sequence[System], plan: Plan | None = None) -> str:
    """The dashboard as JSON text, a row a system."""
    panels: list[Panel] = []
    top = 0
    for system in systems:
        rows = list(_panels(system, plan))
        panels.append(_row(system.title, len(panels) + 1, top))
        for index, panel in enumerate(rows):
            place = {"h": _HEIGHT, "w": _WIDTH, "x": _WIDTH * (index % 2), "y": top + 1 + _HEIGHT * (index // 2)}
            panels.append({"id": len(panels) + 1, "gridPos": place, **panel})
        top += 1 + _HEIGHT * -(-len(rows) // 2)
    board = {
        "annotations": {"list": []},
        "description": "Hits by tier, bytes moved, waits and losses of the KV cache, as kvplan observe defines them.",
        "editable": True,
        "fiscalYearStartMonth": 0,
        "graphTooltip": 1,
        "links": [],
        "panels": panels,
        "refresh": "30s",
        "schemaVersion": _SCHEMA,
        "tags": ["kvplan"],
        "templating": {"list": _variables(systems)},
        "time": {"from": "now-3h", "to": "now"},
        "timepicker": {},
        "timezone": "",
        "title": "KV cache: " + ", ".join(system.title for system in systems),
        "uid": "kvplan-" + "-".join(system.name.replace(".", "") for system in systems)[:32],
        "version": 1,
    }
    return json.dumps(board, indent=2, ensure_ascii=False) + "\n"


def _variables(systems: Sequence[System]) -> list[Panel]:
    """Which Prometheus, which of its jobs and which of their instances; jobs are those that any system's metric has."""
    names = "|".join(sorted({pick.names[0] for system in systems for pick in system.needed}))
    held = f'{{__name__=~"{names}"}}'
    source = {"name": "datasource", "label": "Data source", "type": "datasource", "query": "prometheus"}
    shared = {"hide": 0, "current": {}, "options": []}
    return [
        {**shared, **source, "multi": False, "includeAll": False, "refresh": 1, "regex": ""},
        {**shared, **_label("job", "Job", f"label_values({held}, job)")},
        {**shared, **_label("instance", "Instance", f'label_values({held[:-1]},job=~"$job"}}, instance)')},
    ]


def _label(name: str, label: str, query: str) -> Panel:
    return {
        "name": name,
        "label": label,
        "type": "query",
        "datasource": _SOURCE,
        "definition": query,
        "query": {"query": query, "refId": f"kvplan-{name}", "qryType": 1},
        "multi": True,
        "includeAll": True,
        "current": {"selected": True, "text": ["All"], "value": ["$__all"]},
        "allValue": ".*",
        "refresh": 2,
        "regex": "",
        "sort": 1,
    }


def _row(title: str, number: int, top: int) -> Panel:
    place = {"h": 1, "w": 24, "x": 0, "y": top}
    return {"id": number, "type": "row", "title": title, "collapsed": False, "gridPos": place, "panels": []}


def _panels(system: System, plan: Plan | None) -> Iterator[Panel]:
    yield from _hits(system, plan)
    yield from _traffic(system)
    yield from _transfers(system)
    for wait in system.waits:
        targets = [(f"p{q * 100:g}", promql.quantile(q, wait.name, _LABELS, _WINDOW)) for q in (0.5, 0.9, 0.99)]
        yield _series(wait.what, targets, "s", "Quantiles lie within a bucket of the histogram.")
    yield from _levels(system)
    yield from _losses(system)
    yield from _settings(system)


def _first_rows(system: System) -> list[Hits]:
    """Of each tier the row with today's names."""
    return list({row.tier: row for row in reversed(system.hits)}.values())[::-1]


def _hits(system: System, plan: Plan | None) -> Iterator[Panel]:
    targets = [
        (
            _TIERS.get(row.tier, row.tier),
            f"{promql.gained(row.hits, _LABELS, _WINDOW)} / {promql.gained(row.of, _LABELS, _WINDOW)}",
        )
        for row in _first_rows(system)
    ]
    if not targets:
        return
    if plan is not None:
        targets.append(("planned, all tiers", f"vector({planned_ratio(plan):.6g})"))
    yield _series("Hit ratio by tier", targets, "percentunit", "Shares of all prompt tokens.", most=1.0)


def planned_ratio(plan: Plan) -> float:
    """The hit ratio that a plan expects of all tiers it recommends."""
    budgets = plan.budgets
    return max(budgets.gpu.hit_ratio, budgets.host.hit_ratio, budgets.disk.hit_ratio)


def _traffic(system: System) -> Iterator[Panel]:
    rows = (("prompt tokens", system.prompts), ("computed", system.computed), ("found below the GPU", system.matched))
    targets = [(name, promql.gained(picks, _LABELS, _WINDOW)) for name, picks in rows if picks]
    if targets:
        yield _series("Tokens a second", targets, "short")
    if system.requests:
        yield _series("Requests ended a second", [("ended", promql.gained(system.requests, _LABELS, _WINDOW))], "reqps")


def _transfers(system: System) -> Iterator[Panel]:
    moved: dict[str, list[Target]] = {"bytes": [], "blocks": [], "tokens": []}
    busy: list[Target] = []
    seen = set()
    for row in system.transfers:
        if (row.way, row.source, row.target) in seen:
            continue  # an older name of the same copies
        seen.add((row.way, row.source, row.target))
        name = f"{row.way}, {_TIERS.get(row.source, row.source)} to {_TIERS.get(row.target, row.target)}"
        for what, targets in moved.items():
            if getattr(row, what):
                targets.append((name, promql.gained(getattr(row, what), _LABELS, _WINDOW)))
        if row.bytes and row.seconds:
            rate = promql.gained(row.bytes, _LABELS, _WINDOW)
            busy.append((name, f"{rate} / {promql.gained(row.seconds, _LABELS, _WINDOW)}"))
        if row.rates:
            busy.append((f"{name}, p50", f"{promql.quantile(0.5, row.rates, _LABELS, _WINDOW)} * 1e9"))
    for what, targets in moved.items():
        if targets:
            yield _series(f"{what.capitalize()} moved a second", targets, "Bps" if what == "bytes" else "short")
    if busy:
        yield _series("Rate while copies run", busy, "Bps", "Bytes over the time in which copies ran.")


def _levels(system: System) -> Iterator[Panel]:
    by_unit: dict[str, list[Target]] = {}
    for row in system.levels:
        by_unit.setdefault(row.unit, []).append((row.what, promql.level(row.pick, _LABELS, row.over)))
    for unit, targets in by_unit.items():
        yield _series(f"Gauges: {unit}", targets, _UNITS.get(unit, "short"))


def _losses(system: System) -> Iterator[Panel]:
    targets = []
    for row in system.losses:
        name = f"{row.what}, {_TIERS.get(row.tier, row.tier)} ({row.unit}): "
        name += f"{{{{{row.by}}}}}" if row.by else row.reason
        targets.append((name, promql.gained((row.pick,), _LABELS, _WINDOW, row.by)))
    if targets:
        yield _series("Evicted, refused, failed a second", targets, "short")


def _settings(system: System) -> Iterator[Panel]:
    """A table of the info metrics that say how a server is configured."""
    infos = dict.fromkeys(promql.selected(row.pick, _LABELS) for row in system.settings if row.label)
    if not infos:
        return
    targets = [_target(chr(ord("A") + index), "", expression) for index, expression in enumerate(infos)]
    for target in targets:
        target |= {"format": "table", "instant": True, "range": False}
    yield {
        "type": "table",
        "title": "As configured",
        "datasource": _SOURCE,
        "targets": targets,
        "fieldConfig": {"defaults": {}, "overrides": []},
        "options": {"showHeader": True},
        "transformations": [{"id": "merge", "options": {}}],
    }


def _series(
    title: str, targets: Sequence[Target], unit: str, description: str = "", most: float | None = None
) -> Panel:
    bounds = {"min": 0} | ({} if most is None else {"max": most})
    return {
        "type": "timeseries",
        "title": title,
        "description": description,
        "datasource": _SOURCE,
        "targets": [_target(_letters(index), legend, text) for index, (legend, text) in enumerate(targets)],
        "fieldConfig": {
            "defaults": {
                "unit": unit,
                **bounds,
                "color": {"mode": "palette-classic"},
                "custom": {"drawStyle": "line", "lineWidth": 1, "fillOpacity": 8, "showPoints": "never"},
            },
            "overrides": [],
        },
        "options": {
            "legend": {"displayMode": "list", "placement": "bottom", "showLegend": True, "calcs": []},
            "tooltip": {"mode": "multi", "sort": "desc"},
        },
    }


def _letters(index: int) -> str:
    return chr(ord("A") + index % 26) + (str(index // 26) if index >= 26 else "")


def _target(letter: str, legend: str, expression: str) -> Panel:
    return {"refId": letter, "datasource": _SOURCE, "expr": expression, "legendFormat": legend, "range": True}
