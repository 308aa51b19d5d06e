"""vLLM's metrics, with those of its native offloading connectors."""

from __future__ import annotations

from kvplan.engines.metrics.system import (
    Hits,
    Level,
    Loss,
    Setting,
    System,
    Transfer,
    Wait,
    Watch,
    pick,
    total,
)

_QUERIES = total("vllm:prefix_cache_queries_total", "vllm:gpu_prefix_cache_queries_total")
_LOCAL = total("vllm:prefix_cache_hits_total", "vllm:gpu_prefix_cache_hits_total")
_EXTERNAL = total("vllm:external_prefix_cache_hits_total", "vllm:connector_prefix_cache_hits_total")
_ASKED = total("vllm:external_prefix_cache_queries_total", "vllm:connector_prefix_cache_queries_total")
_BY_SOURCE = "vllm:prompt_tokens_cached_by_source_total"
_OUTCOMES = "vllm:simple_kv_offload_save_outcomes_total"
_TIER_HITS = ("vllm:kv_offload_tiering_chunk_hits_total", "vllm:kv_offload_tiering_block_hits_total")
_LOADED = "vllm:simple_kv_offload_load_blocks_total"
_CONFIG, _OFFLOAD, _SIMPLE = "vllm:cache_config_info", "vllm:kv_offload_config_info", "vllm:simple_kv_offload_info"


def _counted(tier: str, source: str) -> Hits:
    """vLLM counts the tier that supplied a token when the request is admitted, as it counts queries."""
    return Hits(tier=tier, hits=total(_BY_SOURCE, source=source), of=_QUERIES)  # type: ignore[arg-type]


VLLM = System(
    name="vllm",
    title="vLLM",
    version="0.33.0",
    prefix="vllm:",
    engine=True,
    needed=(_QUERIES[0], _LOCAL[0], pick("vllm:num_requests_running"), pick(_CONFIG)),
    prompts=total("vllm:prompt_tokens_total"),
    requests=total("vllm:request_success_total"),
    hits=(
        Hits(tier="all", hits=(*_LOCAL, *_EXTERNAL), of=_QUERIES),
        Hits(tier="all", hits=total(_BY_SOURCE), of=_QUERIES),
        Hits(tier="all", hits=_LOCAL, of=_QUERIES),
        Hits(tier="all", hits=total("vllm:prompt_tokens_cached_total"), of=total("vllm:prompt_tokens_total")),
        _counted("gpu", "device"),
        Hits(tier="gpu", hits=_LOCAL, of=_QUERIES),
        _counted("host", "host"),
        _counted("disk", "disk"),
        _counted("remote", "p2p"),
        Hits(tier="external", hits=_EXTERNAL, of=_QUERIES, asked=_ASKED, note="what any connector supplied"),
    ),
    transfers=(
        Transfer(
            way="store",
            source="gpu",
            target="host",
            bytes=total("vllm:kv_offload_store_bytes_total"),
            seconds=total("vllm:kv_offload_store_time_total"),
            operations=total("vllm:kv_offload_store_size_count"),
        ),
        Transfer(
            way="load",
            source="host",
            target="gpu",
            bytes=total("vllm:kv_offload_load_bytes_total"),
            seconds=total("vllm:kv_offload_load_time_total"),
            operations=total("vllm:kv_offload_load_size_count"),
        ),
        Transfer(  # before the names above
            way="store",
            source="gpu",
            target="host",
            bytes=total("vllm:kv_offload_total_bytes_total", transfer_type="GPU_to_CPU"),
            seconds=total("vllm:kv_offload_total_time_total", transfer_type="GPU_to_CPU"),
        ),
        Transfer(
            way="load",
            source="host",
            target="gpu",
            bytes=total("vllm:kv_offload_total_bytes_total", transfer_type="CPU_to_GPU"),
            seconds=total("vllm:kv_offload_total_time_total", transfer_type="CPU_to_GPU"),
        ),
        Transfer(
            way="store",
            source="host",
            target="disk",
            bytes=total("vllm:kv_offload_tiering_write_bytes_total"),
            seconds=total("vllm:kv_offload_tiering_write_time_total"),
        ),
        Transfer(
            way="load",
            source="disk",
            target="host",
            bytes=total("vllm:kv_offload_tiering_read_bytes_total"),
            seconds=total("vllm:kv_offload_tiering_read_time_total"),
            blocks=total(*_TIER_HITS, tier="1:fs"),
        ),
        Transfer(way="store", source="gpu", target="external", blocks=total(_OUTCOMES, outcome="stored")),
        Transfer(way="load", source="external", target="gpu", blocks=total(_LOADED, phase="completed")),
        Transfer(way="load", source="external", target="gpu", blocks=total(_LOADED)),
    ),
    waits=(
        Wait(what="queue wait", name="vllm:request_queue_time_seconds"),
        Wait(what="time to first token", name="vllm:time_to_first_token_seconds"),
        Wait(what="offload lookup, within a step", name="vllm:kv_offload_lookup_sync_delay_seconds"),
        Wait(what="offload lookup, request deferred", name="vllm:kv_offload_lookup_async_delay_seconds"),
        Wait(what="promotion from a lower tier", name="vllm:kv_offload_tiering_promotion_latency_seconds"),
        Wait(what="prefill", name="vllm:request_prefill_time_seconds"),
        Wait(what="life of a GPU block (sampled)", name="vllm:kv_block_lifetime_seconds", age=True),
        Wait(what="unused before it was evicted (sampled)", name="vllm:kv_block_idle_before_evict_seconds", age=True),
        Wait(what="between two uses of a block (sampled)", name="vllm:kv_block_reuse_gap_seconds", age=True),
    ),
    levels=(
        Level(what="requests running", pick=pick("vllm:num_requests_running"), unit="requests"),
        Level(what="requests waiting", pick=pick("vllm:num_requests_waiting"), unit="requests"),
        Level(
            what="waiting for capacity",
            pick=pick("vllm:num_requests_waiting_by_reason", reason="capacity"),
            unit="requests",
        ),
        Level(
            what="deferred, as for a KV transfer",
            pick=pick("vllm:num_requests_waiting_by_reason", reason="deferred"),
            unit="requests",
        ),
        Level(
            what="KV cache in use by requests",
            pick=pick("vllm:kv_cache_usage_perc", "vllm:gpu_cache_usage_perc"),
            unit="ratio",
            over="max",
            note="cached blocks that nobody uses count as free",
        ),
        Level(
            what="host pool pinned by transfers",
            pick=pick("vllm:kv_offload_cpu_cache_usage_perc"),
            unit="ratio",
            over="max",
            note="not how full it is",
        ),
        Level(
            what="offload blocks pinned",
            pick=pick("vllm:simple_kv_offload_used_blocks"),
            unit="blocks",
            note="not how full it is",
        ),
        Level(
            what="offload blocks waiting to be stored",
            pick=pick("vllm:simple_kv_offload_pending_store_blocks"),
            unit="blocks",
        ),
        Level(
            what="copies to a lower tier under way",
            pick=pick("vllm:kv_offload_tiering_active_cascade_jobs"),
            unit="operations",
        ),
    ),
    losses=(
        Loss(tier="gpu", what="preempted", pick=pick("vllm:num_preemptions_total"), unit="requests", reason="no room"),
        Loss(
            tier="host",
            what="failed",
            pick=pick("vllm:kv_offload_allocation_failure_total"),
            unit="operations",
            reason="no room in the host pool",
            trouble="stores find no room: the pool is too small, or transfers pin all of it",
        ),
        Loss(
            tier="host",
            what="refused",
            pick=pick("vllm:kv_offload_stores_skipped_total"),
            unit="operations",
            reason="seen too seldom (store_threshold)",
        ),
        Loss(
            tier="host",
            what="failed",
            pick=pick("vllm:kv_offload_tiering_promotion_allocation_failures_total"),
            unit="operations",
            reason="no room in the host pool for a prefix of a lower tier",
            trouble="hits of the lower tier are thrown away: the host pool must hold the longest prefix whole",
        ),
        Loss(
            tier="disk",
            what="failed",
            pick=pick("vllm:kv_offload_tiering_promotion_job_failures_total"),
            unit="operations",
            reason="reads failed",
            trouble="reads of the lower tier fail: look for I/O errors in the engine's log and on the drive",
        ),
        Loss(
            tier="disk",
            what="failed",
            pick=pick("vllm:kv_offload_tiering_cascade_job_failures_total"),
            unit="operations",
            reason="writes failed",
            trouble="writes to the lower tier fail: is the file system full, or its path not writable?",
        ),
        Loss(
            tier="disk",
            what="refused",
            pick=pick("vllm:kv_offload_tiering_backpressure_blocks_dropped_total"),
            unit="blocks",
            reason="the tier was too slow (backpressure)",
        ),
        Loss(
            tier="external",
            what="refused",
            pick=pick(_OUTCOMES),
            unit="blocks",
            by="outcome",
            only=("dropped_cpu_full", "dropped_request_gone", "dropped_null_block", "dropped_not_hashed"),
        ),
    ),
    settings=(
        Setting(key="gpu_blocks", what="GPU blocks", pick=pick(_CONFIG), label="num_gpu_blocks", unit="blocks"),
        Setting(key="block_tokens", what="tokens of a block", pick=pick(_CONFIG), label="block_size", unit="tokens"),
        Setting(
            key="engine_tokens",
            what="KV cache size as the engine prints it",
            pick=pick(_CONFIG),
            label="kv_cache_size_tokens",
            unit="tokens",
        ),
        Setting(
            key="gpu_fraction",
            what="GPU memory fraction",
            pick=pick(_CONFIG),
            label="gpu_memory_utilization",
            unit="ratio",
        ),
        Setting(key="kv_dtype", what="KV cache dtype", pick=pick(_CONFIG), label="cache_dtype", unit="text"),
        Setting(
            key="prefix_caching",
            what="prefix caching",
            pick=pick(_CONFIG),
            label="enable_prefix_caching",
            unit="text",
        ),
        Setting(key="hash", what="block hash", pick=pick(_CONFIG), label="prefix_caching_hash_algo", unit="text"),
        Setting(
            key="host_gib",
            what="--kv-offloading-size in GiB",
            pick=pick(_CONFIG),
            label="kv_offloading_size",
            unit="text",
        ),
        Setting(
            key="host_bytes",
            what="host pool",
            pick=pick(_OFFLOAD),
            label="cpu_kv_cache_size_bytes",
            unit="bytes",
        ),
        Setting(key="host_chunks", what="host chunks", pick=pick(_OFFLOAD), label="cpu_num_chunks", unit="chunks"),
        Setting(
            key="host_tokens",
            what="tokens in the host pool",
            pick=pick(_OFFLOAD),
            label="cpu_kv_cache_size_tokens",
            unit="tokens",
        ),
        Setting(
            key="offload_blocks", what="offload blocks", pick=pick(_SIMPLE), label="capacity_blocks", unit="blocks"
        ),
        Setting(key="offload_backend", what="offload backend", pick=pick(_SIMPLE), label="backend", unit="text"),
    ),
    chunk=("host_bytes", "host_chunks", "host_tokens"),
    watches=(
        Watch(
            code="stores-stuck",
            kind="stuck",
            waiting=pick("vllm:simple_kv_offload_pending_store_blocks"),
            done=total(_OUTCOMES, outcome="stored"),
            text="blocks wait to be stored and none is any more: the thread that writes is dead or hangs (an I/O error "
            "ends it without a message to clients): look for OSError in the engine's log, check the drive, restart",
        ),
        Watch(
            code="copies-stuck",
            kind="stuck",
            waiting=pick("vllm:kv_offload_tiering_active_cascade_jobs"),
            done=total("vllm:kv_offload_tiering_write_bytes_total"),
            text="copies to a lower tier are under way and no byte is written any more: its threads hang, or the file "
            "system does",
        ),
        Watch(
            code="pinned-zero",
            kind="idle",
            waiting=pick("vllm:kv_offload_cpu_cache_usage_perc", "vllm:simple_kv_offload_used_blocks"),
            work=(*total("vllm:kv_offload_store_bytes_total"), *total(_OUTCOMES, outcome="stored")),
            text="nothing was pinned at any page although copies were counted: this gauge shows what transfers hold "
            "at that moment, never how full the tier is",
        ),
        Watch(
            code="pending-stores-growing",
            kind="growing",
            waiting=pick("vllm:simple_kv_offload_pending_store_blocks"),
            done=total(_OUTCOMES, outcome="stored"),
            text="blocks waiting to be stored grew throughout: a transfer thread is stuck or dead (an I/O error ends "
            "it without a message to clients): look for OSError in the engine's log, check the drive, restart",
        ),
        Watch(
            code="stores-without-loads",
            kind="silent",
            work=(
                *total("vllm:kv_offload_store_bytes_total"),
                *total("vllm:kv_offload_total_bytes_total", transfer_type="GPU_to_CPU"),
                *total(_OUTCOMES, outcome="stored"),
            ),
            use=(
                *total("vllm:kv_offload_load_bytes_total"),
                *total("vllm:kv_offload_total_bytes_total", transfer_type="CPU_to_GPU"),
                *total(_LOADED),
            ),
            text="blocks are stored and none was ever loaded: the tier only mirrors the GPU (it must be larger than "
            "the GPU's cache to add hits), prompts do not come back, or keys never match",
        ),
        Watch(
            code="external-hits-zero",
            kind="silent",
            work=_ASKED,
            use=_EXTERNAL,
            text="the connector was asked and never had a token: for a cache shared between processes or kept over a "
            "restart set the same PYTHONHASHSEED everywhere; check its block or chunk size, and that salts agree",
        ),
        Watch(
            code="hits-zero",
            kind="silent",
            work=_QUERIES,
            use=(*_LOCAL, *_EXTERNAL),
            text="no token of any prompt was found cached: prefix caching is off, prompts are shorter than a block, "
            "every request has its own salt, or nothing repeats",
        ),
    ),
    source="vLLM 0.33.0: v1/metrics/loggers.py, the offloading and simple offloading connectors' metrics",
)
