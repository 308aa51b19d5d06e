"""Dynamo's KV block manager. It counts blocks moved and tokens matched; prompts are counted by the engine."""

from __future__ import annotations

from kvplan.engines.metrics.system import Level, Loss, Sum, System, Transfer, Watch, pick, total


def _moved(name: str) -> Sum:
    return total(f"kvbm_{name}", f"kvbm_{name}_total")


_STORES = (*_moved("offload_blocks_d2h"), *_moved("offload_blocks_d2d"))
_LOADS = (*_moved("onboard_blocks_h2d"), *_moved("onboard_blocks_d2d"))

KVBM = System(
    name="kvbm",
    title="Dynamo KVBM",
    version="1.6.1",
    prefix="kvbm_",
    needed=(_moved("matched_tokens")[0], _moved("offload_blocks_d2h")[0]),
    matched=_moved("matched_tokens"),
    transfers=(
        Transfer(way="store", source="gpu", target="host", blocks=_moved("offload_blocks_d2h")),
        Transfer(way="store", source="host", target="disk", blocks=_moved("offload_blocks_h2d")),
        Transfer(way="store", source="gpu", target="disk", blocks=_moved("offload_blocks_d2d")),
        Transfer(way="store", source="gpu", target="remote", blocks=_moved("offload_blocks_d2o")),
        Transfer(way="load", source="host", target="gpu", blocks=_moved("onboard_blocks_h2d")),
        Transfer(way="load", source="disk", target="gpu", blocks=_moved("onboard_blocks_d2d")),
        Transfer(way="load", source="remote", target="gpu", blocks=_moved("onboard_blocks_o2d")),
    ),
    levels=(
        Level(
            what="host hit ratio, as it says",
            pick=pick("kvbm_host_cache_hit_rate"),
            unit="ratio",
            over="mean",
            note="over a sliding window",
        ),
        Level(
            what="disk hit ratio, as it says",
            pick=pick("kvbm_disk_cache_hit_rate"),
            unit="ratio",
            over="mean",
            note="over a sliding window",
        ),
    ),
    losses=(
        Loss(
            tier="remote",
            what="failed",
            pick=_moved("object_read_failures")[0],
            unit="blocks",
            reason="reads failed",
            trouble="reads of the object store fail",
        ),
        Loss(
            tier="remote",
            what="failed",
            pick=_moved("object_write_failures")[0],
            unit="blocks",
            reason="writes failed",
            trouble="writes to the object store fail",
        ),
    ),
    watches=(
        Watch(
            code="stores-without-loads",
            kind="silent",
            work=_STORES,
            use=_LOADS,
            text="blocks are offloaded and none was ever brought back: each tier must be larger than the one above it",
        ),
        Watch(
            code="external-hits-zero",
            kind="silent",
            work=_STORES,
            use=_moved("matched_tokens"),
            text="blocks are offloaded and no token was ever matched: nothing comes back, or keys never match",
        ),
    ),
    uncounted=(
        "tokens of prompts: give the engine's own metrics with another --url for a hit ratio",
        "bytes: blocks are counted",
    ),
    source="Dynamo KVBM 1.6.1, DYN_KVBM_METRICS=true",
)
