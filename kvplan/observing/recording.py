"""Pages in order of time, from one server or several, and what happened between them, in Prometheus' sense.

A round is one moment at which every source was asked; a source that did not answer has no page in it. What a counter
did between two pages is its increase: the difference, or all of its value where it fell, because then it began anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass

from kvplan.engines.metrics import plain
from kvplan.engines.metrics.system import Pick, Sum
from kvplan.observing.exposition import Labels, Page

RANKS = frozenset({"tp_rank", "pp_rank", "moe_ep_rank", "worker_id", "rank"})


@dataclass(frozen=True, slots=True)
class Track:
    """One source: a page for each round, None where it gave none."""

    where: str
    pages: tuple[Page | None, ...]


@dataclass(frozen=True, slots=True)
class Series:
    """One sample's values over the rounds; None where there was none."""

    track: int
    labels: Mapping[str, str]
    values: tuple[float | None, ...]


class Recording:
    """Rounds at `times` (Unix seconds; None: not known), and each source's pages.

    With `since_start` the first round is the empty page of a server just started: totals are what came since.
    """

    def __init__(self, times: Sequence[float | None], tracks: Sequence[Track], since_start: bool = False) -> None:
        self.times, self.tracks, self.since_start = tuple(times), tuple(tracks), since_start
        self.rounds = len(self.times)
        self._series: dict[str, list[Series]] = {}
        for index, track in enumerate(self.tracks):
            rows: dict[tuple[str, Labels], list[float | None]] = {}
            for moment, page in enumerate(track.pages):
                for key, value in (page.samples if page else {}).items():
                    if math.isfinite(value) and value >= 0:  # what is read here counts or fills: else it is no reading
                        rows.setdefault(key, [None] * self.rounds)[moment] = value
            for (name, labels), values in rows.items():
                self._series.setdefault(name, []).append(Series(index, dict(labels), tuple(values)))
        self._whole = [[page is not None and not page.cut for page in track.pages] for track in self.tracks]

    @property
    def span_s(self) -> float | None:
        """Seconds from the first round to the last."""
        first, last = self.times[0], self.times[-1]
        return None if first is None or last is None else last - first

    @property
    def names(self) -> frozenset[str]:
        """Every name on any page, as `plain` writes it."""
        return frozenset(self._series)

    def has(self, *picks: Pick) -> bool:
        """Whether each pick's metric is on some page, with whatever labels."""
        return all(self._name(pick) is not None for pick in picks)

    def _name(self, pick: Pick) -> str | None:
        return next((name for name in map(plain, pick.names) if name in self._series), None)

    def series(self, pick: Pick) -> list[Series]:
        """The series of a pick: those of the first of its names that is there, with all of its labels."""
        name = self._name(pick)
        wanted = pick.labels
        return [one for one in self._series.get(name or "", ()) if all(one.labels.get(k) == v for k, v in wanted)]

    def named(self, name: str) -> list[Series]:
        """All series of one name."""
        return self._series.get(name, [])

    # -------------------------------------------------------------------------------------------- counters

    def steps(self, picks: Sum) -> list[float] | None:
        """What the sum of `picks` gained in each interval between rounds; None where one of them is on no page, or on
        pages that tell no gain (see `untold`)."""
        if not picks or not self.has(*picks) or any(map(self.untold, picks)):
            return None
        total = [0.0] * (self.rounds - 1)
        for pick in picks:
            for gained in self._gains(pick):
                total = [a + b for a, b in zip(total, gained, strict=True)]
        return total

    def increase(self, picks: Sum) -> float | None:
        """What the sum of `picks` gained over all rounds; None as in `steps`."""
        steps = self.steps(picks)
        return None if steps is None else math.fsum(steps)

    def untold(self, pick: Pick) -> bool:
        """Whether a pick is there and what it gained is not: none of its series can be held against another reading of
        it, or one cannot because the other page is cut. Then nothing is known, which is not that nothing happened.
        """
        rows = self.series(pick)
        lacking = [one for one in rows if not _told(one.values, self._whole[one.track])]
        cut = any(page is not None and page.cut for one in lacking for page in self.tracks[one.track].pages)
        return bool(lacking) and (cut or len(lacking) == len(rows))

    def _gains(self, pick: Pick) -> list[list[float]]:
        gains = [(one, self._gained(one)) for one in self.series(pick)]
        if pick.ranks == "sum":
            return [gained for _, gained in gains]
        groups: dict[tuple[object, ...], list[list[float]]] = {}
        for one, gained in gains:
            kept = tuple(sorted((k, v) for k, v in one.labels.items() if k not in RANKS))
            groups.setdefault((one.track, kept), []).append(gained)
        return [max(group, key=math.fsum) for group in groups.values()]  # ranks count alike: read the one that saw most

    def _gained(self, one: Series) -> list[float]:
        return gains(one.values, self._whole[one.track])

    def gain(self, one: Series) -> float:
        """What one series gained over all rounds."""
        return math.fsum(self._gained(one))

    def restarts(self, picks: Sum) -> list[tuple[int, int]]:
        """Sources and rounds at which one of these counters was lower than before: the server had started anew."""
        found = {(one.track, moment) for pick in picks for one in self.series(pick) for moment in _falls(one.values)}
        return sorted(found)

    # -------------------------------------------------------------------------------------------- gauges

    def levels(self, pick: Pick, over: Callable[[Iterable[float]], float] = math.fsum) -> list[float | None]:
        """A gauge at each round, all of its series put together by `over`; None where no source showed it."""
        rows = self.series(pick)
        if pick.ranks == "one":
            rows = self._one_a_group(rows)
        result: list[float | None] = []
        for moment in range(self.rounds):
            seen = [value for one in rows if (value := one.values[moment]) is not None]
            result.append(over(seen) if seen else None)
        return result

    def _one_a_group(self, rows: list[Series]) -> list[Series]:
        groups: dict[tuple[object, ...], Series] = {}
        for one in rows:
            kept = tuple(sorted((k, v) for k, v in one.labels.items() if k not in RANKS))
            groups.setdefault((one.track, kept), one)
        return list(groups.values())

    def last(self, pick: Pick) -> list[tuple[Mapping[str, str], float]]:
        """The labels and latest value of each series of a pick."""
        rows = self.series(pick)
        if pick.ranks == "one":
            rows = self._one_a_group(rows)
        latest = [(one.labels, [value for value in one.values if value is not None]) for one in rows]
        return [(labels, values[-1]) for labels, values in latest if values]


def gains(values: Sequence[float | None], whole: Sequence[bool]) -> list[float]:
    """The increase of one counter in each interval between rounds.

    `whole` says which pages were complete. A counter that was not on a complete page and later is began at nothing;
    one first seen after pages that are missing or cut may be as old as the server: what it gains from there counts.
    """
    gained = [0.0] * (len(values) - 1)
    before: float | None = None
    absent = False
    for moment, value in enumerate(values):
        if value is None:
            absent = absent or (whole[moment] and before is None)
            continue
        if before is not None:
            gained[moment - 1] += value - before if value >= before else value
        elif absent:
            gained[moment - 1] += value
        before = value
    return gained


def _told(values: Sequence[float | None], whole: Sequence[bool]) -> bool:
    """Whether at least one gain of a counter is known: two readings, or one after a complete page without it."""
    first = next(moment for moment, value in enumerate(values) if value is not None)
    return any(whole[:first]) or sum(value is not None for value in values) > 1


def _falls(values: Sequence[float | None]) -> list[int]:
    falls = []
    before: float | None = None
    for moment, value in enumerate(values):
        if value is None:
            continue
        if before is not None and value < before:
            falls.append(moment)
        before = value
    return falls
