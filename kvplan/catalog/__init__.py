"""Dated facts that ship with kvplan, and the lookups into them. The facts are the data files beside this one."""

from __future__ import annotations

import difflib
import tomllib
from functools import cache
from importlib.resources import files

from kvplan.documents import GpuSpec
from kvplan.errors import KvplanError
from kvplan.units import parse_rate, parse_size


@cache
def gpus() -> dict[str, GpuSpec]:
    """Every GPU of the catalogue by its name."""
    table = tomllib.loads(files(__name__).joinpath("gpus.toml").read_text(encoding="utf-8"))
    return {
        name: GpuSpec(
            name=name,
            memory_bytes=parse_size(row["memory"]),
            memory_bytes_per_s=parse_rate(row["bandwidth"]),
            flops={dtype: value * 1e12 for dtype, value in row["tflops"].items()},
            link_bytes_per_s=parse_rate(row["link"]),
            achievable_link_bytes_per_s=parse_rate(row["achievable"]),
            prefill_efficiency=tuple(row["efficiency"]),
            source=table["source"],
            date=table["date"],
            aliases=tuple(row.get("aliases", ())),
        )
        for name, row in table["gpus"].items()
    }


def gpu(name: str) -> GpuSpec:
    """One GPU by its name or alias. Raises KvplanError with the nearest names for an unknown one."""
    wanted = name.lower().replace("_", "-").replace(" ", "-")
    known = {alias: spec for spec in gpus().values() for alias in (spec.name, *spec.aliases)}
    if wanted in known:
        return known[wanted]
    near = difflib.get_close_matches(wanted, known, n=3, cutoff=0.4) or sorted(gpus())
    raise KvplanError(f"unknown GPU {name!r}: try {', '.join(near)}, or give --gpu-memory 80GiB")
