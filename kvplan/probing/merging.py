"""Several probes of one host as one: made at different times, or of different parts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from functools import reduce
from typing import Any, TypeVar

from msgspec.structs import fields, replace

from kvplan.documents import Document, Finding, Link, Probe
from kvplan.errors import KvplanError, UsageError
from kvplan.units import show_bytes

T = TypeVar("T")

# Kernels reserve a little more or less of the same memory.
_SAME_MEMORY = 0.02
# Findings that something was not measured, and whether a merged probe has it after all.
_SUPERSEDED: dict[str, Callable[[Probe], bool]] = {
    "no-disk": lambda probe: bool(probe.capacity),
    "no-gpu": lambda probe: bool(probe.pinning),
    "gpu-not-measured": lambda probe: bool(probe.pinning),
    "prefill-not-measured": lambda probe: bool(probe.prefill),
}
# What tells two entries of one list apart; a later entry replaces an earlier one of the same.
_KEYS: dict[str, Callable[[Any], Any]] = {
    "links": lambda link: _cell(link),
    "capacity": lambda disk: disk.path,
    "pinning": lambda pinning: pinning.gpu,
    "contention": lambda one: (one.gpu, one.direction, one.mechanism, one.granule_bytes),
    "pipeline": lambda one: (one.gpu, one.disk, one.direction, one.slots),
    "prefill": lambda prefill: (prefill.model, prefill.device, prefill.provenance),
}
_SUMS = ("written_bytes", "wall_s")


def merge(documents: Sequence[Document[Probe]]) -> Probe:
    """One probe of all: of what was measured more than once, the latest.

    Raises UsageError for less than two, KvplanError where they are not of one host.
    """
    if len(documents) < 2:
        raise UsageError("merging takes at least two probe documents")
    in_order = sorted(documents, key=lambda document: document.created)
    merged = reduce(_merged, (document.data for document in in_order))
    kept = [one for one in merged.findings if not (one.code in _SUPERSEDED and _SUPERSEDED[one.code](merged))]
    return replace(merged, findings=tuple(kept))


def _merged(older: Probe, newer: Probe) -> Probe:
    _check_same(older, newer)
    changes: dict[str, Any] = {"findings": _findings(older, newer)}
    for field in fields(Probe):
        name, one, two = field.name, getattr(older, field.name), getattr(newer, field.name)
        if name in _SUMS:
            changes[name] = one + two
        elif isinstance(two, tuple) and name != "findings":
            changes[name] = _latest(one, two, _KEYS.get(name, lambda entry: entry))
    # A probe that looked for GPUs and could not see them knows less than one that did.
    if older.host.gpus and not newer.host.gpus:
        changes["host"] = replace(newer.host, gpus=older.host.gpus, gpu_status=older.host.gpu_status)
    return replace(newer, **changes)


def _latest(older: Iterable[T], newer: Iterable[T], key: Callable[[T], Any]) -> tuple[T, ...]:
    return tuple({key(entry): entry for entry in (*older, *newer)}.values())


def _cell(link: Link) -> tuple[object, ...]:
    ends = (link.source, link.target, link.direction)
    return (*ends, link.granule_bytes, link.depth, link.concurrent, link.preset, link.method)


def _findings(older: Probe, newer: Probe) -> tuple[Finding, ...]:
    """Both, without what the older one says of a folder that was measured again."""
    again = tuple(f"{disk.path}: " for disk in newer.capacity)
    kept = [finding for finding in older.findings if not (again and finding.text.startswith(again))]
    return tuple(dict.fromkeys((*kept, *newer.findings)))


def _check_same(older: Probe, newer: Probe) -> None:
    one, two = older.host, newer.host
    if one.cpu != two.cpu:
        raise KvplanError(f"these probes are of different hosts: {one.cpu} and {two.cpu}")
    least, most = sorted((one.memory_total_bytes, two.memory_total_bytes))
    if most - least > _SAME_MEMORY * most:
        sizes = f"{show_bytes(one.memory_total_bytes)} and {show_bytes(two.memory_total_bytes)}"
        raise KvplanError(f"these probes are of different hosts: {sizes} of memory")
    names = [[gpu.name for gpu in host.gpus] for host in (one, two)]
    if all(names) and names[0] != names[1]:
        raise KvplanError(f"these probes are of different hosts: {', '.join(names[0])} and {', '.join(names[1])}")
