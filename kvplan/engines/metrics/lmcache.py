"""LMCache's metrics: of its server, which engines of a node share, and of the library inside an engine."""

from __future__ import annotations

from kvplan.engines.metrics.system import (
    Hits,
    Level,
    Loss,
    Setting,
    Sum,
    System,
    Transfer,
    Wait,
    Watch,
    pick,
    total,
)

_HASH = (
    "lookups never find a token although chunks are stored: set the same PYTHONHASHSEED in every process that shares "
    "them, check that the chunk size is a multiple of the engine's block, and that models and salts agree"
)


def _server(name: str, unit: str) -> Sum:
    """A counter of the server. OpenTelemetry's exporter appends the unit, or leaves it out where told to."""
    return total(f"lmcache_mp_{name}_{unit}_total", f"lmcache_mp_{name}_total")


_ASKED, _FOUND = _server("lookup_requested", "tokens"), _server("lookup_hit", "tokens")
_IN_L1, _IN_L2 = _server("lookup_hit_l1", "tokens"), _server("lookup_hit_l2", "tokens")
_WRITTEN, _READ = _server("l1_write", "chunks"), _server("l1_read", "chunks")
_STARTED, _FINISHED = total("lmcache_mp_num_submitted_stores_total"), total("lmcache_mp_num_finished_stores_total")

LMCACHE_SERVER = System(
    name="lmcache-server",
    title="LMCache server",
    version="0.5.6",
    prefix="lmcache_mp_",
    needed=(_ASKED[0], _FOUND[0]),
    hits=(
        Hits(tier="all", hits=_FOUND, of=_ASKED, asked=_ASKED, note="of tokens looked up, the GPU's own hits included"),
        Hits(tier="host", hits=_IN_L1, of=_ASKED, note="L1"),
        Hits(tier="disk", hits=_IN_L2, of=_ASKED, note="L2, beyond what L1 held"),
    ),
    transfers=(
        Transfer(
            way="store",
            source="gpu",
            target="host",
            blocks=_WRITTEN,
            operations=_FINISHED,
            rates="lmcache_mp_l0_l1_store_throughput_GB_per_second",
        ),
        Transfer(
            way="load",
            source="host",
            target="gpu",
            blocks=_READ,
            operations=total("lmcache_mp_num_finished_retrieves_total"),
            rates="lmcache_mp_l0_l1_load_throughput_GB_per_second",
        ),
        Transfer(
            way="store",
            source="host",
            target="disk",
            blocks=_server("l2_store_completed_objects", "chunks"),
            operations=_server("l2_store_completed", "requests"),
            rates="lmcache_mp_l2_store_throughput_GB_per_second",
        ),
        Transfer(
            way="load",
            source="disk",
            target="host",
            blocks=_server("l2_prefetch_load_completed", "chunks"),
            operations=_server("l2_load_completed", "requests"),
            rates="lmcache_mp_l2_load_throughput_GB_per_second",
        ),
    ),
    waits=(
        Wait(what="life of a chunk in L1 (sampled)", name="lmcache_mp_l1_chunk_lifetime_seconds", age=True),
        Wait(
            what="unused before it was evicted from L1 (sampled)",
            name="lmcache_mp_l1_chunk_idle_before_evict_seconds",
            age=True,
        ),
        Wait(
            what="from eviction to the next wish for it (sampled)",
            name="lmcache_mp_l1_chunk_evict_reuse_gap_seconds",
            age=True,
        ),
    ),
    levels=(
        Level(what="host pool in use", pick=pick("lmcache_mp_l1_memory_usage_bytes"), unit="bytes"),
        Level(what="host pool filled", pick=pick("lmcache_mp_l1_usage_ratio"), unit="ratio", over="max"),
        Level(what="lower tiers in use", pick=pick("lmcache_mp_l2_usage_bytes"), unit="bytes"),
    ),
    losses=(
        Loss(
            tier="host", what="evicted", pick=_server("l1_evicted", "chunks")[0], unit="chunks", reason="to make room"
        ),
        Loss(
            tier="disk",
            what="evicted",
            pick=_server("l2_evicted_objects", "chunks")[0],
            unit="chunks",
            reason="to make room",
        ),
        Loss(
            tier="host",
            what="failed",
            pick=_server("l1_allocation_failure", "chunks")[0],
            unit="chunks",
            by="during",
            trouble="chunks find no room in L1: raise --l1-size-gb or lower --eviction-trigger-watermark",
        ),
        Loss(
            tier="host",
            what="failed",
            pick=_server("l1_read_failure", "chunks")[0],
            unit="chunks",
            by="reason",
            trouble="chunks were gone when they should be read: L1 evicts between lookup and load, it is too small",
        ),
        Loss(
            tier="disk",
            what="failed",
            pick=_server("l2_prefetch_failure", "chunks")[0],
            unit="chunks",
            by="reason",
            trouble="chunks found in L2 did not reach L1: l1_oom says that L1 is too small, not_found that L2 lost it",
        ),
        Loss(
            tier="all",
            what="refused",
            pick=_server("lookup_early_exit", "requests")[0],
            unit="requests",
            by="reason",
            trouble="lookups end before the cache is asked: a worker did not register its KV cache with the server",
        ),
    ),
    settings=(
        Setting(
            key="shared_host_bytes",
            what="host pool of the node (in use / filled)",
            pick=pick("lmcache_mp_l1_memory_usage_bytes"),
            per=pick("lmcache_mp_l1_usage_ratio"),
            unit="bytes",
        ),
    ),
    watches=(
        Watch(
            code="pending-stores-growing",
            kind="growing",
            started=_STARTED,
            done=_FINISHED,
            text="stores are begun faster than they end throughout: a transfer thread is stuck or too slow",
        ),
        Watch(
            code="stores-without-loads",
            kind="silent",
            work=_WRITTEN,
            use=_READ,
            text="chunks are written to L1 and none was ever read: nothing comes back, or keys never match",
        ),
        Watch(code="external-hits-zero", kind="silent", work=_ASKED, use=_FOUND, text=_HASH),
    ),
    uncounted=("bytes: L1 is counted in chunks, rates as a histogram of single transfers",),
    source="LMCache 0.5.6: v1/mp_observability",
)

_LOOKED, _HIT = total("lmcache:num_lookup_tokens_total"), total("lmcache:num_lookup_hits_total")
_STORED = total("lmcache:num_stored_tokens_total", ranks="one")
_RETRIEVED = total("lmcache:num_hit_tokens_total", ranks="one")

LMCACHE = System(
    name="lmcache",
    title="LMCache in the engine",
    version="0.5.6",
    prefix="lmcache:",
    needed=(_LOOKED[0], _HIT[0]),
    hits=(
        Hits(tier="all", hits=_HIT, of=_LOOKED, asked=_LOOKED, note="of tokens looked up, the GPU's own hits included"),
        Hits(tier="all", hits=_RETRIEVED, of=total("lmcache:num_requested_tokens_total", ranks="one")),
    ),
    transfers=(
        Transfer(
            way="store",
            source="gpu",
            target="host",
            tokens=_STORED,
            operations=total("lmcache:num_store_requests_total"),
            seconds=total("lmcache:time_to_store_sum"),
        ),
        Transfer(
            way="load",
            source="host",
            target="gpu",
            tokens=_RETRIEVED,
            operations=total("lmcache:num_retrieve_requests_total"),
            seconds=total("lmcache:time_to_retrieve_sum"),
        ),
        Transfer(
            way="store",
            source="host",
            target="remote",
            bytes=total("lmcache:num_remote_write_bytes_total"),
            operations=total("lmcache:num_remote_write_requests_total"),
        ),
        Transfer(
            way="load",
            source="remote",
            target="host",
            bytes=total("lmcache:num_remote_read_bytes_total"),
            operations=total("lmcache:num_remote_read_requests_total"),
        ),
    ),
    waits=(
        Wait(what="retrieve", name="lmcache:time_to_retrieve"),
        Wait(what="store", name="lmcache:time_to_store"),
        Wait(what="lookup", name="lmcache:time_to_lookup"),
    ),
    levels=(
        Level(what="host pool in use", pick=pick("lmcache:local_cache_usage"), unit="bytes"),
        Level(what="local disk in use", pick=pick("lmcache:local_storage_usage"), unit="bytes"),
        Level(what="remote store in use", pick=pick("lmcache:remote_cache_usage"), unit="bytes"),
        Level(what="memory objects pinned", pick=pick("lmcache:pinned_memory_objs_count"), unit="operations"),
        Level(what="writes to the remote store waiting", pick=pick("lmcache:remote_put_task_num"), unit="operations"),
    ),
    losses=(
        Loss(
            tier="host",
            what="evicted",
            pick=pick("lmcache:local_cpu_evict_keys_count_total"),
            unit="chunks",
            reason="to make room",
        ),
        Loss(
            tier="host",
            what="failed",
            pick=pick("lmcache:local_cpu_evict_failed_count_total"),
            unit="operations",
            reason="nothing could be evicted",
            trouble="the host pool is full of chunks that are in use: it is too small for what is in flight",
        ),
        Loss(
            tier="host",
            what="failed",
            pick=pick("lmcache:forced_unpin_count_total"),
            unit="operations",
            reason="pinned too long",
            trouble="chunks stayed pinned until a timeout: requests end without releasing them",
        ),
    ),
    watches=(
        Watch(
            code="pending-stores-growing",
            kind="growing",
            waiting=pick("lmcache:remote_put_task_num"),
            done=total("lmcache:num_remote_write_requests_total"),
            text="writes to the remote store wait longer and longer: it is slower than what is computed, or gone",
        ),
        Watch(
            code="pinned-zero",
            kind="idle",
            waiting=pick("lmcache:pinned_memory_objs_count"),
            work=_RETRIEVED,
            text="no memory object was pinned at any page although tokens were retrieved: the gauge shows what lookups "
            "and loads hold at that moment, never how full the cache is",
        ),
        Watch(
            code="stores-without-loads",
            kind="silent",
            work=_STORED,
            use=_RETRIEVED,
            text="tokens are stored and none was ever retrieved: nothing comes back, or keys never match",
        ),
        Watch(code="external-hits-zero", kind="silent", work=_LOOKED, use=_HIT, text=_HASH),
        Watch(
            code="unhealthy",
            kind="down",
            waiting=pick("lmcache:lmcache_is_healthy"),
            text="LMCache says that it is not healthy: it serves nothing until it is; see its log",
        ),
        Watch(
            code="threads-dead",
            kind="down",
            waiting=pick("lmcache:periodic_threads_running_count"),
            full=pick("lmcache:periodic_threads_total_count"),
            text="fewer of LMCache's threads run than there should: writes, health checks or eviction have stopped",
        ),
    ),
    uncounted=("bytes between GPU and host: tokens are counted",),
    source="LMCache 0.5.6: observability.py",
)
