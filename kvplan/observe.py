"""Running servers' metrics -> Observation: what they counted over a while, and beside a plan, whether it holds.

Pages come live, from files or from a Prometheus server; which systems they are of is told by their names. See
docs/observe.md for each figure's definition.
"""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from pathlib import Path

from kvplan.documents import Document, Evidence, Finding, MetricSource, Observation, Plan
from kvplan.engines.metrics import SYSTEMS, by_name, found, names_of
from kvplan.engines.metrics.system import Sum, System, pick
from kvplan.errors import KvplanError, UsageError
from kvplan.observing import alarms, beside, figures, rangequery, scrape
from kvplan.observing.fetch import address, shown
from kvplan.observing.moments import moments
from kvplan.observing.scrape import Taken
from kvplan.progress import Progress, silent
from kvplan.units import show_duration, show_tokens

_START = pick("process_start_time_seconds")


def watch(
    urls: Sequence[str],
    *,
    seconds: float | None = None,
    every_s: float = 15.0,
    token: str | None = None,
    progress: Progress = silent,
) -> Taken:
    """Read live pages: once, or every `every_s` for `seconds`. Raises KvplanError for an address that gives none."""
    if every_s <= 0 or (seconds is not None and seconds < every_s):
        raise UsageError("--for must be at least as long as --every, and --every above zero")
    targets = [address(url, "/metrics") for url in urls]
    if len(set(targets)) < len(targets):
        twice = next(one for one in targets if targets.count(one) > 1)
        raise UsageError(f"--url {shown(twice)} is named twice: what it counts would count double")
    return scrape.live(targets, seconds=seconds, every_s=every_s, token=token, progress=progress)


def saved(paths: Sequence[Path], elapsed_s: float | None = None) -> Taken:
    """Read pages of one server that were saved, oldest first. Raises KvplanError naming the file."""
    return scrape.saved(paths, elapsed_s)


def ask(server: str, selector: str, *, seconds: float, every_s: float, token: str | None = None) -> Taken:
    """Read what a Prometheus server kept. Raises KvplanError with its own words."""
    return rangequery.query(server, selector, seconds=seconds, every_s=every_s, token=token)


def monitoring(systems: Sequence[str], selector: str = "{}", plan: Plan | None = None) -> tuple[str, str]:
    """A Grafana dashboard (JSON) and Prometheus alert rules (YAML) for systems by name, or for all known.

    `selector` restricts the alerts, the dashboard lets its reader choose. Raises KvplanError for an unknown system.
    """
    from kvplan.observing import dashboard, rules

    chosen = tuple(map(by_name, systems)) or SYSTEMS
    rangequery.matcher(selector)
    labels = selector.strip()[1:-1].strip().rstrip(",")
    return dashboard.build(chosen, plan), rules.build(chosen, labels, plan)


def observe(taken: Taken, plan: Document[Plan] | None = None, *, prompt_tokens: int | None = None) -> Observation:
    """Everything the pages say. `prompt_tokens` is what clients sent meanwhile, for a server that does not count hits.

    Raises KvplanError where the pages are of no serving system known.
    """
    recording = taken.recording
    systems = found(recording.names)
    if not systems:
        some = ", ".join(sorted(recording.names)[:5]) or "nothing"
        known = ", ".join(system.prefix for system in SYSTEMS)
        where = recording.tracks[0].where
        raise KvplanError(f"{where}: metrics of no serving system known ({known}): it has {some}")
    return _Reading(taken, systems, prompt_tokens).observation(plan)


class _Reading:
    """One recording, read for the systems found in it: `engines` see whole prompts, or a layer stands in for them."""

    def __init__(self, taken: Taken, systems: tuple[System, ...], sent_tokens: int | None) -> None:
        self.taken, self.recording, self.systems = taken, taken.recording, systems
        self.engines = [system for system in systems if system.engine] or [systems[0]]
        self.hits = tuple(row for system in systems for row in figures.hits(system, self.recording))
        self.losses = [(system, figures.losses(system, self.recording)) for system in systems]
        self.prompts, self.computed, self.ratio = self._totals(sent_tokens)
        self.hits += tuple(row for one in systems for row in figures.matched(one, self.recording, self.prompts))
        self.sent_tokens = sent_tokens

    def _totals(self, sent: int | None) -> tuple[int | None, int | None, float | None]:
        """Tokens of prompts, those of them computed, and the share that was found cached."""
        names = [system.name for system in self.engines]
        whole = [row for row in self.hits if row.system in names and row.tier == "all"]
        if whole:
            of, hit = sum(row.of_tokens or 0 for row in whole), sum(row.hit_tokens for row in whole)
            computed = max(0, of - hit) if self.engines[0].engine else None
            return of, computed, min(1.0, hit / of) if of else None
        counts = [self.recording.increase(system.computed) for system in self.engines]
        known = [count for count in counts if count is not None]
        if not known:
            return None, None, None
        gained = sum(known)
        if sent is None:
            return None, round(gained), None
        if gained > sent:
            raise UsageError(
                f"--prompt-tokens {sent:,}: the server computed {gained:,.0f} tokens meanwhile, more than were sent: "
                "count all clients, over the same time"
            )
        return sent, round(gained), 1 - gained / sent

    def observation(self, plan: Document[Plan] | None) -> Observation:
        recording, systems = self.recording, self.systems
        counts = [recording.increase(one.requests) for one in self.engines]
        requests = [count for count in counts if count is not None]
        data = Observation(
            sources=self._sources(),
            systems=tuple(figures.serving(one, recording, names_of(one, recording.names)) for one in systems),
            span_s=recording.span_s,
            rounds=recording.rounds - recording.since_start,
            since_start=recording.since_start,
            hit_ratio=self.ratio,
            prompt_tokens=self.prompts,
            computed_tokens=self.computed,
            requests=round(sum(requests)) if requests else None,
            hits=self.hits,
            transfers=tuple(row for one in systems for row in figures.transfers(one, recording)),
            waits=tuple(row for one in systems for row in figures.waits(one, recording)),
            gauges=tuple(row for one in systems for row in figures.gauges(one, recording)),
            losses=tuple(row for _, rows in self.losses for _, row in rows),
            configured=tuple(row for one in systems for row in figures.settings(one, recording)),
            moments=moments(recording, self.engines, systems),
            evidence=self._evidence(),
            findings=tuple(self._findings()),
        )
        return data if plan is None else self._beside(data, plan)

    # ------------------------------------------------------------------------------------ where it came from

    def _sources(self) -> tuple[MetricSource, ...]:
        sources = []
        restarts = self._restarts()
        for index, track in enumerate(self.recording.tracks):
            pages = [page for page in track.pages if page is not None]
            names = frozenset[str]().union(*(page.names for page in pages))
            sources.append(
                MetricSource(
                    where=track.where,
                    systems=tuple(system.name for system in found(names)),
                    pages=len(pages) - self.recording.since_start,
                    missed=track.pages.count(None),
                    cut=sum(page.cut for page in pages),
                    restarts=len({moment for source, moment in restarts if source == index}),
                    reason=self.taken.missed.get(index),
                )
            )
        return tuple(sources)

    def _restarts(self) -> list[tuple[int, int]]:
        counters = [pick for system in self.systems for row in system.hits for pick in (*row.hits, *row.of)]
        counters += [pick for system in self.systems for pick in (*system.prompts, *system.computed, *system.requests)]
        return self.recording.restarts(tuple(counters))

    def _evidence(self) -> tuple[Evidence, ...]:
        told = tuple(
            Evidence(
                what=f"names of {system.title}'s metrics",
                value=f"as of {system.version}",
                provenance="published",
                source=system.source,
            )
            for system in self.systems
        )
        if self.sent_tokens is None:
            return told
        sent = Evidence(
            what="tokens that clients sent",
            value=show_tokens(self.sent_tokens),
            provenance="configured",
            source="--prompt-tokens",
        )
        return (*told, sent)

    # ------------------------------------------------------------------------------------ findings

    def _findings(self) -> list[Finding]:
        found: list[Finding] = []
        for system, losses in self.losses:
            found += alarms.watched(system, self.recording)
            found += alarms.lost(system, losses)
            found += alarms.missing(system, self.recording)
        return [*found, *self._about_tokens(), *self._about_pages()]

    def _about_tokens(self) -> Iterator[Finding]:
        """Counts that do not fit together, or were given although the server keeps them."""
        for row in self.hits:
            if row.of_tokens and row.hit_tokens > row.of_tokens:
                text = (
                    f"{row.system}: {row.hit_tokens:,} tokens hit of {row.of_tokens:,}, more than all: shown as 100 %"
                )
                yield Finding(severity="warning", code="hits-above-all", text=text)
        if self.sent_tokens is not None and self.prompts not in (None, self.sent_tokens):
            text = f"--prompt-tokens {self.sent_tokens:,}: not used, the server counts prompts itself: {self.prompts:,}"
            yield Finding(severity="warning", code="prompt-tokens", text=text)

    def _about_pages(self) -> list[Finding]:
        found = [Finding(severity="info", code="page-times", text=note) for note in self.taken.notes]
        for source in self._sources():
            if source.cut:
                text = f"{source.where}: {source.cut} of {source.pages} pages end within a line: the rest is lost"
                found.append(Finding(severity="warning", code="page-cut", text=text))
            if source.missed:
                why = f", the last time: {source.reason}" if source.reason else ""
                text = f"{source.where}: {source.missed} of {self.recording.rounds} rounds gave no page{why}"
                found.append(Finding(severity="warning", code="page-missed", text=text))
            if source.restarts:
                often = "once" if source.restarts == 1 else f"{source.restarts} times"
                text = f"{source.where}: counters began anew {often}: the server restarted, its cache too"
                found.append(Finding(severity="warning", code="restart", text=text))
        if self.taken.stopped:
            span = show_duration(self.recording.span_s or 0.0)
            text = f"stopped by hand after {span}: figures are of what was seen until then"
            found.append(Finding(severity="info", code="stopped", text=text))
        return found

    # ------------------------------------------------------------------------------------ beside the plan

    def _beside(self, data: Observation, plan: Document[Plan]) -> Observation:
        from msgspec.structs import replace

        names = [system.name for system in self.engines]
        own = [one for one in data.systems if one.name in names]
        engines = sum(one.engines for one in own)
        other = beside.mistaken(plan.data, own) if self.engines[0].engine else ()
        seen = beside.Seen(
            engines=max(1, engines),
            span_s=data.span_s,
            since_start=data.since_start,
            started_within=self._started_within(),
            restarts=sum(source.restarts for source in data.sources),
            hit_ratio=data.hit_ratio,
            prompt_tokens=data.prompt_tokens,
            computed_tokens=data.computed_tokens,
            requests=data.requests,
            hits=data.hits,
            transfers=data.transfers,
            waits=data.waits,
            configured=data.configured,
            findings=data.findings,
        )
        rows = beside.checks(plan.data, seen)
        return replace(data, beside_plan=rows, plan=plan.data.decision, findings=(*other, *data.findings))

    def _started_within(self) -> bool:
        """Whether the caches were about empty when the recording began, or became so during it."""
        if self._restarts():
            return True
        first = self.recording.times[0]
        starts = [value for _, value in self.recording.last(_START)]
        if first is not None and starts and statistics.median(starts) >= first - 1:
            return True
        rows = [figures.hit_row(system, self.recording, "all") for system in self.engines]
        return all(row is not None and self._held_before(row.of) == 0 for row in rows)

    def _held_before(self, picks: Sum) -> float:
        values = [one.values[0] for pick in picks for one in self.recording.series(pick)]
        return sum(value for value in values if value is not None)
