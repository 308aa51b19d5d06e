"""Flags to paste in a plan's page: one text an engine or offload layer, each size converted to bytes of the host."""

from __future__ import annotations

from dataclasses import replace

from kvplan.engines.configs import SYSTEMS, tiers_of, vllm, written
from kvplan.engines.configs.common import Given
from kvplan.units import show_bytes

_LAYERS = {"vllm": ("lmcache", "lmcache-server")}


def texts(engine: str, given: Given, offload: str = "native") -> dict[str, str]:
    """Texts for an engine and, where a tier is given, for the offload layers that run in it.

    With a layer chosen, the engine's own text has its connector and that layer alone follows. Sizes never exceed what
    was given.
    """
    if engine not in SYSTEMS:
        return {}
    tier = given.host_bytes or given.disk_bytes
    if offload != "native" and tier:
        found = _parts(offload, given)
        return {engine: found.pop(vllm.SCRIPT), offload: "\n".join(found.values())}
    made = {engine: _text(engine, given)}
    for layer in _LAYERS.get(engine, ()) if tier else ():
        made[layer] = "\n".join(text for name, text in _parts(layer, given).items() if name != vllm.SCRIPT)
    return made


def _parts(system: str, given: Given) -> dict[str, str]:
    """Texts of one system by name. A tier that it lacks is said instead of dropped in silence."""
    row = SYSTEMS[system]
    if row.written is None:
        return {}
    lacking = given.disk_bytes and tiers_of(given) not in row.tiers and "host" in row.tiers
    made = written(row, replace(given, disk_bytes=0) if lacking and given.host_bytes else given)
    note = f"# {show_bytes(given.disk_bytes)} of disk are not in here: {row.title} {row.why}\n" if lacking else ""
    return {one.name: note + one.text.strip("\n") for one in made.parts}


def _text(engine: str, given: Given) -> str:
    return "\n\n".join(_parts(engine, given).values())


__all__ = ["Given", "texts"]
