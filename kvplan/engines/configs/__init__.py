"""Configurations of serving systems: a table of what each can be told, how it is written, and how it is read back."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal

from msgspec import structs

from kvplan.engines.configs import (
    dynamo_kvbm,
    kubernetes,
    llamacpp,
    lmcache,
    lmcache_server,
    mooncake_store,
    production_stack,
    sglang,
    switches,
    tensorrt_llm,
    vllm,
    vllm_read,
)
from kvplan.engines.configs.common import Asked, Emission, Given, Reading, comments, taken
from kvplan.engines.configs.source import Source
from kvplan.errors import KvplanError, LimitError, UsageError
from kvplan.units import show_bytes, show_duration

_KVPLAN = re.compile(r'\s*\{\s*"kind":\s*"(kvplan\.\w+)"')
Tiers = Literal["nothing", "host", "disk", "host+disk"]
_ANY: tuple[Tiers, ...] = ("nothing", "host", "disk", "host+disk")
_OVER_HOST: tuple[Tiers, ...] = ("host", "host+disk")


@dataclass(frozen=True, slots=True, kw_only=True)
class System:
    """One system as kvplan configures it. `tiers` are those it can be given, `why` says what else it lacks.

    `salt`: whether its tiers keep requests of different tenants apart; `engines` are those it runs in, `layer` the
    offload layer whose planning rules are its own. `kubernetes`: whether a manifest can be written. `written` is None
    where a file of this kind can only be read.
    """

    name: str
    title: str
    engines: tuple[str, ...]
    tiers: tuple[Tiers, ...]
    salt: Literal["kept", "ignored", "unknown"]
    why: str
    written: Callable[[Given], Emission] | None
    read: Callable[[Source, Asked], Reading]
    looks: Callable[[Source], bool]
    layer: str = "native"
    kubernetes: bool = False


def tiers_of(given: Given) -> Tiers:
    """Which tiers a plan gives."""
    if given.host_bytes:
        return "host+disk" if given.disk_bytes else "host"
    return "disk" if given.disk_bytes else "nothing"


def refusal(system: System, given: Given) -> str | None:
    """Why a system cannot do what the plan asks; None where it can."""
    asked = tiers_of(given)
    if asked not in system.tiers:
        what = "gives no tier" if asked == "nothing" else f"asks for {asked.replace('+', ' and ')}"
        return f"the plan {what}, and {system.title} {system.why}"
    if asked != "nothing" and given.share != "all" and system.salt != "kept":
        what = "keeps tenants apart" if given.share == "tenant" else "shares no cached block"
        how = "leaves the salt out of its keys" if system.salt == "ignored" else "is not known to keep the salt"
        return f"the plan {what}, and {system.title} {how}"
    if asked != "nothing" and given.ttl_s is not None:
        return (
            f"the plan keeps blocks {show_duration(given.ttl_s)} at most, and {system.title} has no setting that drops "
            "blocks by their age: plan without --ttl, or empty the tier on a timer"
        )
    return None


def emit(system: System, given: Given, in_kubernetes: bool = False) -> Emission:
    """One system's texts for a plan. Raises LimitError saying why where it cannot do what the plan asks."""
    if system.written is None:
        able = ", ".join(one.name for one in SYSTEMS.values() if one.kubernetes)
        raise UsageError(
            f"--for {system.name} goes with --check alone: to write a manifest, name the system that runs in it and "
            f"add --kubernetes, such as --for vllm --kubernetes (manifests: {able})"
        )
    if why := refusal(system, given):
        raise LimitError(f"--for {system.name}: {why}")
    if in_kubernetes and not system.kubernetes:
        able = ", ".join(one.name for one in SYSTEMS.values() if one.kubernetes)
        raise UsageError(f"--kubernetes: no manifest for {system.name} (known: {able})")
    made = written(system, given)
    for tier, size in (("host", given.host_bytes), ("disk", given.disk_bytes)):
        if size and taken(made.knobs, tier) == 0:  # type: ignore[arg-type]
            what = "host memory" if tier == "host" else "disk"
            text = f"{show_bytes(size)} of {what} are less than the least step that {system.title} can be told"
            raise LimitError(f"--for {system.name}: {text}")
    return kubernetes.emit(given, system.name, made) if in_kubernetes else made


def written(system: System, given: Given) -> Emission:
    """One system's texts, which say what of the estimate is not in them. `system` is one that can be written."""
    assert system.written is not None
    made = system.written(given)
    lacking = tuple(switches.left_out(system.engines[0], given))
    if not lacking:
        return made
    scripts = [one for one in made.parts if one.form == "shell"]
    begun = next((one for one in scripts if one.name == vllm.SCRIPT), scripts[0] if scripts else made.parts[0])
    said = comments(f"{one.severity}: {one.text}" for one in lacking)
    parts = tuple(structs.replace(one, text=said + one.text) if one is begun else one for one in made.parts)
    return replace(made, parts=parts, findings=(*lacking, *made.findings))


def system(name: str, writing: bool = False) -> System:
    """A system by name. Raises UsageError naming those known, for `writing` only those that can be written."""
    if name not in SYSTEMS:
        known = ", ".join(one.name for one in SYSTEMS.values() if one.written or not writing)
        raise UsageError(f"no system is called {name!r} (known: {known})")
    return SYSTEMS[name]


def recognised(source: Source) -> System:
    """The system that a file is for, told from its words. Raises KvplanError where none or nothing tells."""
    if document := _KVPLAN.match(source.text):
        raise KvplanError(
            f"{source.name}: a document of kvplan ({document[1]}), no configuration of a serving system: a plan "
            "becomes one with `kvplan export PLAN --for SYSTEM`"
        )
    for one in SYSTEMS.values():
        if one.looks(source):
            return one
    raise KvplanError(f"{source.name}: of no system known: say which with --for ({', '.join(SYSTEMS)})")


def _has(*words: str) -> Callable[[Source], bool]:
    """Whether any of the words stands outside comments."""

    def looks(source: Source) -> bool:
        lines = [line for line in source.text.splitlines() if not line.lstrip().startswith(("#", ";"))]
        return any(word in line for line in lines for word in words)

    return looks


def _manifest(source: Source) -> bool:
    return "apiVersion:" in source.text or '"apiVersion"' in source.text


def _preset(source: Source) -> bool:
    return any(line.strip().startswith("[") and line.strip().endswith("]") for line in source.text.splitlines())


def _of_vllm(name: str, title: str, tiers: tuple[Tiers, ...], why: str, written: Callable[[Given], Emission]) -> System:
    return System(
        name=name,
        title=title,
        engines=("vllm",),
        tiers=tiers,
        salt="kept",
        why=why,
        written=written,
        read=vllm_read.read,
        looks=_has(
            "kv-offloading-size", "kv_offloading_size", "kv-transfer-config", "kv_transfer_config", "vllm serve"
        ),
        kubernetes=True,
    )


def _row(name: str, title: str, module: Any, words: tuple[str, ...], **more: Any) -> System:
    """A system whose module has `emit` and `read`."""
    fields: dict[str, Any] = {
        "engines": ("vllm",),
        "tiers": _OVER_HOST,
        "salt": "ignored",
        "written": module.emit,
        "read": module.read,
        "looks": _has(*words),
    }
    return System(name=name, title=title, **{**fields, **more})


_NEEDS_HOST = "moves everything through its host pool: give it host memory"
_NO_DISK = "has no disk tier whose size it bounds: plan with --forbid-disk"
_SERVER_WORDS = ("lmcache server", "--l1-size-gb", "LMCacheMPConnector")
_LLAMA: dict[str, Any] = {
    "engines": ("llama.cpp",),
    "tiers": ("nothing", "host"),
    "salt": "ignored",
    "why": _NO_DISK,
}

# In the order in which a file is recognised: what contains others comes first.
SYSTEMS: dict[str, System] = {
    one.name: one
    for one in (
        System(
            name="kubernetes",
            title="Kubernetes",
            engines=(),
            tiers=_ANY,
            salt="kept",
            why="",
            written=None,
            read=kubernetes.read,
            looks=_manifest,
        ),
        _row(
            "production-stack",
            "production-stack",
            production_stack,
            ("servingEngineSpec",),
            why=_NEEDS_HOST,
            layer="lmcache",
        ),
        _row(
            "mooncake-store",
            "Mooncake Store",
            mooncake_store,
            ("global_segment_size", "MOONCAKE_OFFLOAD_"),
            salt="unknown",
            why=_NEEDS_HOST,
        ),
        _row(
            "dynamo-kvbm",
            "Dynamo KVBM",
            dynamo_kvbm,
            ("DYN_KVBM_",),
            tiers=("host", "disk", "host+disk"),
            salt="unknown",
            why="keeps a tier or is left out",
        ),
        _row(
            "lmcache-server",
            "LMCache's server",
            lmcache_server,
            _SERVER_WORDS,
            salt="kept",
            why=_NEEDS_HOST,
            layer="lmcache-server",
            kubernetes=True,
        ),
        _row(
            "lmcache",
            "LMCache in vLLM's workers",
            lmcache,
            ("max_local_cpu_size", "max_local_disk_size", "LMCACHE_"),
            why=_NEEDS_HOST,
            layer="lmcache",
            kubernetes=True,
        ),
        _of_vllm("vllm", "vLLM", _ANY, "", vllm.emit),
        _of_vllm("vllm-native", "vLLM's host tier", ("host",), "is host memory alone", vllm.native),
        _of_vllm("vllm-tiered", "vLLM's fs tier", ("host+disk",), "is files behind host memory", vllm.tiered),
        _of_vllm("vllm-disk", "vLLM's simple disk backend", ("disk",), "is a drive without host memory", vllm.disk),
        _row(
            "sglang",
            "SGLang",
            sglang,
            ("sglang", "hicache"),
            engines=("sglang",),
            tiers=("nothing", "host"),
            salt="kept",
            why=_NO_DISK,
        ),
        _row(
            "tensorrt-llm",
            "TensorRT-LLM",
            tensorrt_llm,
            ("kv_cache_config",),
            engines=("tensorrt-llm",),
            tiers=("nothing", "host", "host+disk"),
            salt="unknown",
            why="keeps a disk tier behind host memory alone",
        ),
        _row("llama.cpp", "llama.cpp", llamacpp, ("llama-server", "--cache-ram", "-cram "), **_LLAMA),
        _row(
            "llama.cpp-router",
            "llama.cpp's router",
            llamacpp,
            (),
            written=llamacpp.emit_router,
            read=llamacpp.read_router,
            looks=_preset,
            **_LLAMA,
        ),
    )
}
