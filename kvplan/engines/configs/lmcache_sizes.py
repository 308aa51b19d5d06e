"""Sizes that LMCache's options or LMCACHE_ variables say, in its own file or beside an engine's command."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvplan.documents import Knob
from kvplan.engines.configs.common import GIB, Asked, knob
from kvplan.engines.configs.source import number, true
from kvplan.errors import KvplanError

SIZE, DISK = "max_local_cpu_size", "max_local_disk_size"
_DEFAULT = 5.0  # GiB a rank where nothing is said


def of_env(env: Mapping[str, str], source: str, ranks: int, engines: int, asked: Asked) -> Iterator[Knob]:
    """Sizes that LMCACHE_ variables say; those of a file that LMCACHE_CONFIG_FILE names are not in them."""
    if "LMCACHE_CONFIG_FILE" in env:
        file = env["LMCACHE_CONFIG_FILE"]
        raise KvplanError(f"{source}: the sizes are in LMCACHE_CONFIG_FILE: check {file!r} with --ranks {ranks}")
    options = {
        name.removeprefix("LMCACHE_").lower(): value for name, value in env.items() if name.startswith("LMCACHE_")
    }
    return of_options(options, source, ranks, engines, asked)


def of_options(options: Mapping[str, Any], source: str, ranks: int, engines: int, asked: Asked) -> Iterator[Knob]:
    """Sizes that options say, LMCache's default where they are silent."""
    extra = options.get("extra_config") or {}
    first = extra.get("save_only_first_rank", asked.latent) if isinstance(extra, Mapping) else asked.latent
    times = engines * (1 if asked.latent and true(first) else ranks)
    size = number(options.get(SIZE, _DEFAULT), source, SIZE, "GB")
    why = "" if SIZE in options else "LMCache's default"
    if true(options.get("local_cpu", True)) or options.get("local_disk"):
        yield knob(SIZE, size, GIB, "rank", times, "host", why)
    if options.get("local_disk"):
        yield knob(DISK, number(options.get(DISK, 0.0), source, DISK, "GB"), GIB, "rank", times, "disk")
