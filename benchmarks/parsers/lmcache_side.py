"""LMCache's own loader and server parser on our texts. Run by LMCache's Python, not by kvplan's."""

from __future__ import annotations

import argparse
import json
import os
import sys
from importlib import import_module
from importlib.metadata import version
from typing import Any

GIB = 1 << 30


def main() -> None:
    """Every case, an error of LMCache's as its words."""
    with open(sys.argv[1]) as stream:
        cases = json.load(stream)
    found: dict[str, Any] = {}
    for case in cases:
        try:
            found[case["id"]] = server(case["argv"]) if case["argv"] else engine(case)
        except (Exception, SystemExit) as error:
            found[case["id"]] = {"error": f"{type(error).__name__}: {error}"}
    print(json.dumps({"version": version("lmcache"), "cases": found}))


def engine(case: dict[str, Any]) -> dict[str, Any]:
    """The in-process configuration: sizes of one rank, as its loader reads the file."""
    config = import_module("lmcache.v1.config").LMCacheEngineConfig.from_file(
        os.path.join(case["folder"], case["file"])
    )
    sizes = {"max_local_cpu_size": int(config.max_local_cpu_size * 1024**3)}
    if config.local_disk is not None:
        sizes["max_local_disk_size"] = int(config.max_local_disk_size * 1024**3)
    return {"sizes": sizes, "disk": str(config.local_disk), "chunk": config.chunk_size}


def server(words: list[str]) -> dict[str, Any]:
    """The server's command: its pool and its adapters, as its parser and config classes make them."""
    module = import_module("lmcache.v1.distributed.config")
    parser = argparse.ArgumentParser()
    import_module("lmcache.v1.multiprocess.config").add_mp_server_args(parser)
    module.add_storage_manager_args(parser)
    args = parser.parse_args(words[1:] if words[0] == "server" else words)
    config = module.parse_args_to_config(args)
    pool = sum(module.get_configured_capacity_bytes(config.l1_manager_config).values())
    sizes = {"--l1-size-gb": pool}
    evicting = True
    for adapter in config.l2_adapter_config.adapters:
        sizes["max_capacity_gb"] = int(adapter.max_capacity_gb * GIB)
        evicting = adapter.eviction_config is not None and adapter.eviction_config.eviction_policy == "LRU"
    trigger = config.eviction_config.trigger_watermark
    return {"sizes": sizes, "evicting": evicting, "watermark": trigger, "chunk": args.chunk_size}


if __name__ == "__main__":
    main()
