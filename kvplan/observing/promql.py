"""Rows of metrics as PromQL, so that a dashboard and an alert show what `observe` computes."""

from __future__ import annotations

from kvplan.engines.metrics.system import Pick, Sum
from kvplan.observing.recording import RANKS

BY = "job, instance"


def selected(pick: Pick, selector: str, suffix: str = "") -> str:
    """'vllm:x_total{job="vllm",tier="1:fs"}': `selector` is labels without braces."""
    labels = [selector] if selector else []
    labels += [f'{name}="{value}"' for name, value in pick.labels]
    inner = ",".join(labels)
    return f"{pick.names[0]}{suffix}" + (f"{{{inner}}}" if inner else "")


def gained(picks: Sum, selector: str, window: str, by: str = "", function: str = "rate") -> str:
    """The rate or increase of a sum of counters over a window, added up or by labels.

    A sum of several metrics keeps those that a server has: each is given its name as a label, as they would else shadow
    each other.
    """
    terms = [_counter(pick, selector, window, function) for pick in picks]
    if len(terms) > 1:
        named = [f'label_replace({term}, "of", "{number}", "", "")' for number, term in enumerate(terms)]
        terms = [" or ".join(named)]
    return f"sum{f' by ({by})' if by else ''} ({terms[0]})"


def _counter(pick: Pick, selector: str, window: str, function: str) -> str:
    term = f"{function}({selected(pick, selector)}[{window}])"
    return f"max without ({', '.join(sorted(RANKS))}) ({term})" if pick.ranks == "one" else term


def level(pick: Pick, selector: str, over: str = "sum", by: str = "") -> str:
    """A gauge, put together as its row says."""
    term = selected(pick, selector)
    if pick.ranks == "one":
        term = f"max without ({', '.join(sorted(RANKS))}) ({term})"
    return f"{'avg' if over == 'mean' else over}{f' by ({by})' if by else ''} ({term})"


def quantile(q: float, name: str, selector: str, window: str) -> str:
    """A quantile of a histogram, all engines together."""
    inner = f"{{{selector}}}" if selector else ""
    return f"histogram_quantile({q:g}, sum by (le) (rate({name}_bucket{inner}[{window}])))"
