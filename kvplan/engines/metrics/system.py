"""How a serving system's metrics are said once: rows that `observe` reads pages with and that dashboards are made of.

A row names samples; it never computes. What increases, quantiles and ratios are is in kvplan/observing/, in the terms
of Prometheus, so that a figure on a page and the same figure in Grafana are one expression.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, TypeAlias

Tier = Literal["all", "gpu", "host", "disk", "remote", "external"]
Unit = Literal["requests", "tokens", "blocks", "chunks", "bytes", "ratio", "operations", "threads", "flag", "text"]


@dataclass(frozen=True, slots=True)
class Pick:
    """Samples of one metric that carry all of `labels`.

    `names`: today's first, then those it had before or has in other builds, in the order to try. `ranks` "one": every
    rank of a group counts the same, so one is read instead of their sum.
    """

    names: tuple[str, ...]
    labels: tuple[tuple[str, str], ...] = ()
    ranks: Literal["sum", "one"] = "sum"


Sum: TypeAlias = tuple[Pick, ...]  # samples whose values are added


def pick(*names: str, ranks: Literal["sum", "one"] = "sum", **labels: str) -> Pick:
    """Samples of the metric called the first of `names`, or as long as there is none, one of the others."""
    return Pick(names, tuple(sorted(labels.items())), ranks)


def total(*names: str, ranks: Literal["sum", "one"] = "sum", **labels: str) -> Sum:
    """The sum over the samples of one metric."""
    return (pick(*names, ranks=ranks, **labels),)


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """Tokens found in a tier: `hits` of the tokens in `of`; `asked` counts those that this tier was asked for.

    Several rows of one tier are alternatives: the first whose metrics are all there counts. `note` is for the reader.
    """

    tier: Tier
    hits: Sum
    of: Sum
    asked: Sum = ()
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer:
    """Copies between tiers. `seconds` is time in which copies ran, summed over workers; `rates` a histogram of GB/s."""

    way: Literal["store", "load"]
    source: Tier
    target: Tier
    bytes: Sum = ()
    seconds: Sum = ()
    tokens: Sum = ()
    blocks: Sum = ()
    operations: Sum = ()
    rates: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait:
    """A histogram of seconds: what requests wait for, or with `age` how long cached blocks live, rest or are missed."""

    what: str
    name: str
    age: bool = False
    also: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Level:
    """A gauge. `over` says how the values of several engines make one: requests add, ratios are averaged."""

    what: str
    pick: Pick
    unit: Unit
    over: Literal["sum", "mean", "max", "min"] = "sum"
    note: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Loss:
    """Cached data that went or was never kept. `by` is the label that names the reason, `only` the reasons that count.

    `trouble` says what to do about it where any at all is a sign of something wrong.
    """

    tier: Tier
    what: Literal["evicted", "refused", "failed", "preempted"]
    pick: Pick
    unit: Unit
    by: str = ""
    only: tuple[str, ...] = ()
    reason: str = ""
    trouble: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Setting:
    """Something as configured: the value of a gauge, or with `label` that label of an info metric whose value is 1.

    With `per` it is the gauge over another one: bytes in use over the share in use.
    """

    key: str
    what: str
    pick: Pick
    unit: Unit
    label: str = ""
    per: Pick | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """A pair of figures that together show a failure nobody reports.

    `growing`: the level `waiting`, or what was `started` over what was `done`, only grows. `stuck`: something waits and
    nothing is done any more. `silent`: `work` was done and `use` stayed 0. `idle`: `work` was done and the level
    `waiting` read 0 on every page. `down`: the level `waiting` is below the level `full`, or below 1.
    """

    code: str
    kind: Literal["growing", "stuck", "silent", "idle", "down"]
    text: str
    waiting: Pick | None = None
    started: Sum = ()
    done: Sum = ()
    work: Sum = ()
    use: Sum = ()
    full: Pick | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One serving system's metrics. `prefix` is how all of its names begin; `needed` are those it always has.

    An `engine` sees whole prompts; other systems are layers below one, and their hits are of what they were asked.

    `prompts` counts tokens of prompts, `computed` those of them that were computed, in `computed_s` seconds, `matched`
    those found below the GPU by a system that does not see prompts. `chunk` are the keys of settings of a host tier:
    its bytes, its chunks and the tokens in it, from which counts of bytes become those. `uncounted` is what it keeps
    no count of, `without_hits` what builds that count no hits at all leave to be given.
    """

    name: str
    title: str
    version: str
    prefix: str
    engine: bool = False
    needed: tuple[Pick, ...] = ()
    prompts: Sum = ()
    computed: Sum = ()
    computed_s: Sum = ()
    matched: Sum = ()
    chunk: tuple[str, str, str] | None = None
    requests: Sum = ()
    hits: tuple[Hits, ...] = ()
    transfers: tuple[Transfer, ...] = ()
    waits: tuple[Wait, ...] = ()
    levels: tuple[Level, ...] = ()
    losses: tuple[Loss, ...] = ()
    settings: tuple[Setting, ...] = ()
    watches: tuple[Watch, ...] = ()
    uncounted: tuple[str, ...] = ()
    without_hits: str = ""
    source: str = ""
