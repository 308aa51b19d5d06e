"""What each serving system counts: one module a system, and the systems found on a page by how its names begin."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import fields, is_dataclass

from kvplan.engines.metrics.kvbm import KVBM
from kvplan.engines.metrics.llamacpp import LLAMA_CPP
from kvplan.engines.metrics.lmcache import LMCACHE, LMCACHE_SERVER
from kvplan.engines.metrics.sglang import SGLANG
from kvplan.engines.metrics.system import Pick, System, Transfer, Wait
from kvplan.engines.metrics.vllm import VLLM
from kvplan.errors import KvplanError

_HISTOGRAM = re.compile("_(bucket|count|sum)$")

SYSTEMS: tuple[System, ...] = (VLLM, SGLANG, LLAMA_CPP, LMCACHE, LMCACHE_SERVER, KVBM)


def plain(name: str) -> str:
    """A metric's name without what exporters, relabelling and versions change: colons, and `_total` of counters."""
    return name.replace(":", "_").removesuffix("_total")


def found(names: Iterable[str]) -> tuple[System, ...]:
    """The systems whose metrics are among `names` (as `plain` writes them)."""
    known = tuple(names)
    return tuple(system for system in SYSTEMS if any(_is_of(name, system) for name in known))


def names_of(system: System, names: Iterable[str]) -> tuple[str, ...]:
    """Those of `names` that are this system's."""
    return tuple(name for name in names if _is_of(name, system))


def read_of(system: System) -> tuple[str, ...]:
    """Every name that this system's rows read, as `plain` writes it and without what histograms append."""
    names = {plain(name) for name in _named(system)} - {""}
    return tuple(sorted({_HISTOGRAM.sub("", name) for name in names}))


def _named(part: object) -> Iterator[str]:
    match part:
        case Pick():
            yield from part.names
        case Wait():
            yield from (part.name, *part.also)
        case Transfer():
            yield part.rates
            yield from _named(tuple(getattr(part, field.name) for field in fields(part)))
        case tuple():
            for one in part:
                yield from _named(one)
        case _ if is_dataclass(part):
            yield from _named(tuple(getattr(part, field.name) for field in fields(part)))


def _is_of(name: str, system: System) -> bool:
    """Whether a name is this system's and not that of one whose prefix begins alike (lmcache_ and lmcache_mp_)."""
    longest = max(
        (plain(other.prefix) for other in SYSTEMS if name.startswith(plain(other.prefix))), key=len, default=""
    )
    return longest == plain(system.prefix)


def by_name(name: str) -> System:
    """A system by its name. Raises KvplanError naming those known."""
    for system in SYSTEMS:
        if system.name == name:
            return system
    raise KvplanError(f"no metrics known of {name!r} (known: {', '.join(system.name for system in SYSTEMS)})")
