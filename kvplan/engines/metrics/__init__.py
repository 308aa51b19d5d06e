"""What each serving system counts: one module a system, and the systems found on a page by how its names begin."""

from __future__ import annotations

from collections.abc import Iterable

from kvplan.engines.metrics.kvbm import KVBM
from kvplan.engines.metrics.llamacpp import LLAMA_CPP
from kvplan.engines.metrics.lmcache import LMCACHE, LMCACHE_SERVER
from kvplan.engines.metrics.sglang import SGLANG
from kvplan.engines.metrics.system import System
from kvplan.engines.metrics.vllm import VLLM
from kvplan.errors import KvplanError

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
