"""A server's own count of hits, from its /metrics pages before and after a run: a row a serving system."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from kvplan.errors import KvplanError
from kvplan.files import reason

_SAMPLE = re.compile(r"""^([a-zA-Z_:][a-zA-Z0-9_:]*)(?:\{(?:[^"}]|"(?:[^"\\]|\\.)*")*\})?\s+(\S+)""")


@dataclass(frozen=True, slots=True, kw_only=True)
class Hits:
    """How one serving system counts: `cached` of prompt tokens in all, from the growth of its counters `names`."""

    names: tuple[str, ...]
    cached: Callable[[Mapping[str, float], int], float]
    prompts: Callable[[Mapping[str, float], int], float]


# A counter of hits and one of what was asked for; llama.cpp counts what it computed, newer versions also reuse.
SYSTEMS = (
    Hits(
        names=("vllm:prefix_cache_hits_total", "vllm:prefix_cache_queries_total"),
        cached=lambda grown, _: (
            grown["vllm:prefix_cache_hits_total"] + grown.get("vllm:external_prefix_cache_hits_total", 0.0)
        ),
        prompts=lambda grown, _: grown["vllm:prefix_cache_queries_total"],
    ),
    Hits(
        names=("sglang:cached_tokens_total", "sglang:prompt_tokens_total"),
        cached=lambda grown, _: grown["sglang:cached_tokens_total"],
        prompts=lambda grown, _: grown["sglang:prompt_tokens_total"],
    ),
    Hits(
        names=("llamacpp:prompt_tokens_cached_total", "llamacpp:prompt_tokens_total"),
        cached=lambda grown, _: grown["llamacpp:prompt_tokens_cached_total"],
        prompts=lambda grown, _: grown["llamacpp:prompt_tokens_cached_total"] + grown["llamacpp:prompt_tokens_total"],
    ),
    Hits(
        names=("llamacpp:prompt_tokens_total",),
        cached=lambda grown, prompts: prompts - grown["llamacpp:prompt_tokens_total"],
        prompts=lambda _, prompts: float(prompts),
    ),
)


def read(path: Path) -> dict[str, float]:
    """Each metric of a saved page, summed over its labels. Raises KvplanError naming the file."""
    try:
        text = path.read_text(encoding="utf-8", errors="replace")
    except OSError as error:
        raise KvplanError(f"{path}: {reason(error)}") from None
    totals: dict[str, float] = {}
    for line in text.splitlines():
        found = _SAMPLE.match(line)
        if found is None:
            continue
        try:
            totals[found[1]] = totals.get(found[1], 0.0) + float(found[2])
        except ValueError:
            raise KvplanError(f"{path}: {found[1]} has the value {found[2]!r}, which is no number") from None
    return totals


def hit_ratio(before: Mapping[str, float], after: Mapping[str, float], prompt_tokens: int) -> float | None:
    """Cached over all prompt tokens between two pages; None where the server counts neither, or nothing was asked.

    A counter that fell means that the server was started anew in between: None too.
    """
    grown = {name: value - before.get(name, 0.0) for name, value in after.items()}
    for system in SYSTEMS:
        if all(name in after for name in system.names):
            asked = system.prompts(grown, prompt_tokens)
            cached = system.cached(grown, prompt_tokens)
            return cached / asked if asked > 0 and 0 <= cached <= asked else None
    return None
