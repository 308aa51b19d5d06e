"""The same request in every run, whatever order the files have."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan.comparing.records import Record, Run
from kvplan.errors import KvplanError

Floats: TypeAlias = NDArray[np.float64]
Ints: TypeAlias = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Pairs:
    """Requests as columns, in the order they were meant to be sent; figures have shape (runs, requests).

    `cached_tokens` is NaN where an answer does not say. `by_order` tells that runs name their requests differently, so
    that they were paired by their place.
    """

    sessions: tuple[str, ...]
    turns: tuple[int, ...]
    prompt_tokens: Ints
    output_tokens: Ints
    cached_tokens: Floats
    ttft_s: Floats
    latency_s: Floats
    dropped: int
    by_order: bool

    @property
    def session_numbers(self) -> Ints:
        """By request: the number of its session, from 0."""
        numbers: dict[str, int] = {}
        return np.array([numbers.setdefault(name, len(numbers)) for name in self.sessions], np.int64)

    def part(self, keep: NDArray[np.bool_]) -> Pairs:
        """The requests for which `keep` is true."""
        at = np.flatnonzero(keep).tolist()
        return Pairs(
            sessions=tuple(self.sessions[i] for i in at),
            turns=tuple(self.turns[i] for i in at),
            prompt_tokens=self.prompt_tokens[:, keep],
            output_tokens=self.output_tokens[:, keep],
            cached_tokens=self.cached_tokens[:, keep],
            ttft_s=self.ttft_s[:, keep],
            latency_s=self.latency_s[:, keep],
            dropped=self.dropped,
            by_order=self.by_order,
        )


def paired(runs: Sequence[Run], sessions: Sequence[str] | None = None) -> Pairs:
    """Pair requests by what names them, or by their place where runs name them differently.

    `sessions` says by place which session a request is of, where results do not. Requests that failed in a run are
    left out of all. Raises KvplanError where runs have different requests.
    """
    tables = [{record.key: record for record in run.result.records} for run in runs]
    every = [set(table) | set(run.result.failed) for table, run in zip(tables, runs, strict=True)]
    by_order = any(keys != every[0] for keys in every)
    if by_order:
        rows = _by_place(runs)
    else:
        common = set.intersection(*(set(table) for table in tables))
        first = sorted((record for record in runs[0].result.records if record.key in common), key=lambda r: r.order)
        rows = [[table[record.key] for record in first] for table in tables]
    names = tuple(record.session for record in rows[0])
    if sessions is not None:
        names = _told(rows[0], sessions)
    return Pairs(
        sessions=names,
        turns=tuple(record.turn for record in rows[0]),
        prompt_tokens=_column(rows, "prompt_tokens").astype(np.int64),
        output_tokens=_column(rows, "output_tokens").astype(np.int64),
        cached_tokens=_column(rows, "cached_tokens"),
        ttft_s=_column(rows, "ttft_s"),
        latency_s=_column(rows, "latency_s"),
        dropped=len(every[0]) - len(rows[0]),
        by_order=by_order,
    )


def _by_place(runs: Sequence[Run]) -> list[list[Record]]:
    counts = [len(run.result.records) for run in runs]
    if len(set(counts)) > 1 or any(run.result.failed for run in runs):
        names = " and ".join(f"{count:,}" for count in sorted(set(counts)))
        raise KvplanError(
            f"the runs do not have the same requests ({names} in them, named differently): replay one schedule in both "
            "arms"
        )
    return [sorted(run.result.records, key=lambda record: record.order) for run in runs]


def _told(rows: Sequence[Record], sessions: Sequence[str]) -> tuple[str, ...]:
    if len(sessions) != len(rows):
        raise KvplanError(
            f"the schedule has {len(sessions):,} requests, the results {len(rows):,}: name what was played"
        )
    return tuple(sessions)


def _column(rows: Sequence[Sequence[Record]], name: str) -> Floats:
    return np.array([[np.nan if (v := getattr(r, name)) is None else v for r in row] for row in rows], np.float64)
