"""A plan as configurations are written from it: budgets, engine, policy and the host they are for."""

from __future__ import annotations

from pathlib import PurePath

from kvplan.documents import Budgets, EngineSettings, Estimate, ModelRef, Policy, Probe
from kvplan.engines.configs.common import Given

# Lines of the host's budget that are no memory of the engine's own container, as planning/hostroom.py names them.
_NOT_BESIDE = ("KV cache", "free", "headroom", "operating system and page cache", "other models")


def given(settings: EngineSettings, estimate: Estimate, policy: Policy, budgets: Budgets, probe: Probe | None) -> Given:
    """What a plan gives one replica. Where it is for another host than the one probed, nothing is known of the host."""
    host = probe.host if probe and settings.host_known else None
    drives = [one for one in probe.capacity if one.path == settings.disk_path] if probe else []
    stopped = [one.pinned_bytes for one in probe.pinning if one.stopped] if probe and host else []
    view = estimate.engine_view.get("bytes_per_block")
    block = view if isinstance(view, int) else estimate.kv.bytes_per_token_per_gpu * settings.block_tokens
    memory = estimate.memory
    beside = [item.bytes for item in budgets.host.items if item.name not in _NOT_BESIDE]
    return Given(
        host_bytes=budgets.host.requested_bytes,
        disk_bytes=budgets.disk.requested_bytes,
        ranks=settings.ranks,
        latent=keeps_latent(estimate),
        block_tokens=settings.block_tokens,
        utilization=settings.utilization,
        disk_path=settings.disk_path,
        model=served(estimate.model),
        tp=estimate.parallel.tp,
        pp=estimate.parallel.pp,
        dcp=estimate.parallel.dcp,
        dealt_over=estimate.parallel.dp if estimate.parallel.expert_parallel else 1,
        kv_dtype=estimate.kv_dtype,
        kv_bytes=memory.kv_bytes if memory and memory.usable_bytes is None else None,
        kv_tokens=memory.kv_tokens if memory and memory.usable_bytes is None else None,
        max_model_len=estimate.max_model_len,
        context_tokens=_count(estimate, "n_ctx"),
        slots=_count(estimate, "n_seq_max"),
        cache_types=_cache_types(estimate),
        switches=estimate.switches,
        block_bytes=block or None,
        gpu_bytes=budgets.gpu.usable_bytes,
        beside_bytes=sum(beside) if budgets.host.items else None,
        share=policy.share,
        ttl_s=policy.ttl_s,
        on_host=settings.on_host,
        machine=host,
        pinned_bytes=min(stopped, default=None),
        disk_free_bytes=drives[0].free_bytes if drives else None,
        disk_own_bytes=policy.disk_own_bytes,
    )


def served(model: ModelRef) -> str:
    """What an engine is told to serve: its name, or a placeholder where only a config file is known."""
    path = PurePath(model.id)
    if model.source != "path" or path.suffix != ".json":
        return model.id
    return str(path.parent) if path.name == "config.json" and path.parent.name else f"FOLDER-OR-HUB-ID-OF-{path.stem}"


def _count(estimate: Estimate, name: str) -> int | None:
    value = estimate.engine_view.get(name)
    return value if isinstance(value, int) else None


def _cache_types(estimate: Estimate) -> tuple[str, str] | None:
    keys, values = (estimate.engine_view.get(name) for name in ("type_k", "type_v"))
    return (keys, values) if isinstance(keys, str) and isinstance(values, str) else None


def keeps_latent(estimate: Estimate) -> bool:
    """Whether every layer keeps one latent for all heads, so that all ranks hold the same bytes."""
    return all(group.kind in ("latent", "indexer") for group in estimate.groups)
