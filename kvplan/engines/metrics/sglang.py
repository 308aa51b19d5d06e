"""SGLang's metrics, with HiCache's. Tokens are counted alike on every rank, bytes are each rank's own."""

from __future__ import annotations

from kvplan.engines.metrics.system import Hits, Level, Loss, Setting, System, Transfer, Wait, Watch, pick, total

_PROMPTS = total("sglang:prompt_tokens_total")
_CACHED, _PREFILL = "sglang:cached_tokens_total", "sglang:prefill_effective_tokens_total"
_BACKUP = total("sglang:hicache_backup_bytes_total")
_BACK = total("sglang:load_back_bytes_total")
_MODES = ("device_hit", "host_hit", "storage_hit")
_EFFECTIVE = tuple(pick(_PREFILL, ranks="one", mode=mode) for mode in (*_MODES, "input"))

SGLANG = System(
    name="sglang",
    title="SGLang",
    version="0.5.23",
    prefix="sglang:",
    engine=True,
    needed=(_PROMPTS[0], pick("sglang:num_running_reqs"), pick("sglang:token_usage")),
    prompts=_PROMPTS,
    requests=total("sglang:num_requests_total"),
    hits=(
        Hits(tier="all", hits=total(_CACHED), of=_PROMPTS),
        Hits(tier="all", hits=_EFFECTIVE[:3], of=_EFFECTIVE, note="as prefill counted them"),
        Hits(tier="gpu", hits=total(_CACHED, cache_source="device"), of=_PROMPTS),
        Hits(tier="host", hits=total(_CACHED, cache_source="host"), of=_PROMPTS),
        Hits(
            tier="disk",
            hits=(pick(_CACHED, cache_source="storage"),),
            of=_PROMPTS,
            note="HiCache's storage backend, on a drive or in a store",
        ),
    ),
    transfers=(
        Transfer(
            way="store",
            source="gpu",
            target="host",
            bytes=_BACKUP,
            seconds=total("sglang:hicache_backup_duration_seconds_sum"),
            tokens=total("sglang:hicache_backup_tokens_total", ranks="one", pool="kv"),
            operations=total("sglang:hicache_backup_duration_seconds_count"),
        ),
        Transfer(
            way="load",
            source="host",
            target="gpu",
            bytes=_BACK,
            seconds=total("sglang:load_back_duration_seconds_sum"),
            tokens=total("sglang:load_back_tokens_total", ranks="one", pool="kv"),
            operations=total("sglang:load_back_duration_seconds_count"),
        ),
        Transfer(
            way="store",
            source="host",
            target="disk",
            tokens=total("sglang:backuped_tokens_total", ranks="one"),
            rates="sglang:backup_bandwidth",
        ),
        Transfer(
            way="load",
            source="disk",
            target="host",
            tokens=total("sglang:prefetched_tokens_total", ranks="one"),
            rates="sglang:prefetch_bandwidth",
        ),
    ),
    waits=(
        Wait(what="queue wait", name="sglang:queue_time_seconds"),
        Wait(what="time to first token", name="sglang:time_to_first_token_seconds"),
        Wait(what="load from host", name="sglang:load_back_duration_seconds"),
        Wait(what="eviction", name="sglang:eviction_duration_seconds"),
    ),
    levels=(
        Level(what="requests running", pick=pick("sglang:num_running_reqs", ranks="one"), unit="requests"),
        Level(what="requests waiting", pick=pick("sglang:num_queue_reqs", ranks="one"), unit="requests"),
        Level(what="KV cache in use by requests", pick=pick("sglang:token_usage"), unit="ratio", over="max"),
        Level(what="host pool in use", pick=pick("sglang:hicache_host_used_tokens", ranks="one"), unit="tokens"),
    ),
    losses=(
        Loss(
            tier="gpu",
            what="evicted",
            pick=pick("sglang:evicted_tokens_total", ranks="one"),
            unit="tokens",
            reason="to make room, whether the host has them or not",
        ),
        Loss(
            tier="gpu",
            what="failed",
            pick=pick("sglang:hicache_dropped_tokens_total", ranks="one"),
            unit="tokens",
            by="reason",
            trouble="tokens left the GPU without a copy in host memory: it is full of what is in use, or copies lag",
        ),
        Loss(
            tier="host",
            what="refused",
            pick=pick("sglang:hicache_backup_dropped_tokens_total", ranks="one"),
            unit="tokens",
            reason="the write path lagged",
            trouble="copies to storage are given up: it writes more slowly than the GPU computes",
        ),
        Loss(
            tier="disk",
            what="failed",
            pick=pick("sglang:storage_prefetch_unfulfilled_tokens_total", ranks="one"),
            unit="tokens",
            by="reason",
        ),
        Loss(
            tier="gpu",
            what="preempted",
            pick=pick("sglang:num_retracted_requests_total", ranks="one"),
            unit="requests",
            reason="no room",
        ),
    ),
    settings=(
        Setting(
            key="gpu_tokens",
            what="tokens in the GPU's pool",
            pick=pick("sglang:max_total_num_tokens", ranks="one"),
            unit="tokens",
        ),
        Setting(key="block_tokens", what="tokens of a page", pick=pick("sglang:page_size", ranks="one"), unit="tokens"),
        Setting(
            key="host_tokens",
            what="tokens in the host pool",
            pick=pick("sglang:hicache_host_total_tokens", ranks="one"),
            unit="tokens",
        ),
    ),
    watches=(
        Watch(
            code="stores-without-loads",
            kind="silent",
            work=_BACKUP,
            use=_BACK,
            text="tokens are copied to host memory and none was ever loaded back: the host pool must be larger than "
            "the GPU's to add hits, or prompts do not come back",
        ),
        Watch(
            code="hits-zero",
            kind="silent",
            work=_PROMPTS,
            use=total(_CACHED),
            text="no token of any prompt was found cached: the radix cache is off, or nothing repeats",
        ),
    ),
    source="SGLang 0.5.23: srt/observability/metrics_collector.py",
)
