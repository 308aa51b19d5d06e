"""vLLM's own parser and connectors on commands: how many bytes they come to. Run by vLLM's Python, not by kvplan's.

Reads a JSON list of cases from the file named, writes a JSON object of results to standard output's last line.
"""

from __future__ import annotations

import json
import os
import sys
from importlib import import_module
from types import SimpleNamespace
from typing import Any

RANK_BLOCK = 2**20


def main() -> None:
    """Every case through the argument parser, then through what its connector makes of the config."""
    os.environ.setdefault("VLLM_LOGGING_LEVEL", "ERROR")
    arguments = import_module("vllm.utils.argparse_utils")
    parser = import_module("vllm.entrypoints.launchers.cli_args").make_arg_parser(arguments.FlexibleArgumentParser())
    with open(sys.argv[1]) as stream:
        cases = json.load(stream)
    found = {case["id"]: attempted(parser, case) for case in cases}
    print(json.dumps({"version": import_module("vllm").__version__, "cases": found}))


def attempted(parser: Any, case: dict[str, Any]) -> dict[str, Any]:
    """One case, an error of vLLM's as its words."""
    try:
        return parsed(parser, case)
    except (Exception, SystemExit) as error:
        return {"error": f"{type(error).__name__}: {error}"}


def parsed(parser: Any, case: dict[str, Any]) -> dict[str, Any]:
    """Ranks, failure policy and bytes of one command."""
    words = case["argv"]
    args = parser.parse_args(words[1:] if words[0] == "serve" else words)
    ranks = args.tensor_parallel_size * args.pipeline_parallel_size
    transfer = args.kv_transfer_config
    cache = SimpleNamespace(
        kv_offloading_size=args.kv_offloading_size, kv_offloading_backend=args.kv_offloading_backend
    )
    engine = SimpleNamespace(cache_config=cache, kv_transfer_config=transfer)
    import_module("vllm.config").VllmConfig._post_init_kv_transfer_config(engine)
    transfer = engine.kv_transfer_config
    result: dict[str, Any] = {"ranks": ranks, "sizes": {}}
    if transfer is None or transfer.kv_connector is None:
        return result
    factory = import_module("vllm.distributed.kv_transfer.kv_connector.factory").KVConnectorFactory
    name = transfer.kv_connector
    result["connector"] = name
    result["known"] = name in factory._registry or transfer.kv_connector_module_path is not None
    result["policy"] = transfer.kv_load_failure_policy
    if name == "OffloadingConnector":
        result["sizes"] = offloading(transfer.kv_connector_extra_config, ranks)
    elif name == "SimpleCPUOffloadConnector":
        result["sizes"] = simple(transfer, ranks)
    elif name == "MooncakeStoreConnector":
        path = os.path.join(case["folder"], case["env"]["MOONCAKE_CONFIG_PATH"])
        store = import_module("vllm.distributed.mooncake_store").MooncakeStoreConfig.from_file(path)
        buffers = store.local_buffer_size * ranks
        result["sizes"] = {"global_segment_size": store.global_segment_size * ranks, "local_buffer_size": buffers}
    return result


def offloading(extra: dict[str, Any], ranks: int) -> dict[str, int]:
    """Bytes of the chunks that vLLM's own spec makes of its host tier, with blocks of a mebibyte a rank."""
    config = import_module("vllm.v1.kv_offload.config")
    parallel = config.OffloadingParallelConfig(
        rank=0,
        world_size=ranks,
        tp_size=ranks,
        pp_size=1,
        pcp_size=1,
        dcp_size=1,
        data_parallel_index=0,
        data_parallel_size=1,
        data_parallel_rank_local=None,
        is_parallelism_agnostic=False,
    )
    tiered = extra.get("spec_name") == "TieringOffloadingSpec"
    module, name = ("tiering", "TieringOffloadingSpec") if tiered else ("cpu", "CPUOffloadingSpec")
    made = getattr(import_module(f"vllm.v1.kv_offload.{module}.spec"), name)(
        config.OffloadingConfig(
            groups=(config.OffloadingGroupConfig(tokens_per_block=16, layer_names=("layer",), group_id=0),),
            worker_kv_bytes_per_block=RANK_BLOCK,
            enable_kv_cache_events=False,
            extra_config=extra,
            engine_id="check",
            model=config.OffloadingModelConfig("model", "bfloat16"),
            cache=config.OffloadingCacheConfig(16, 1),
            parallel=parallel,
        )
    )
    whole = made.num_chunks * made.kv_bytes_per_chunk
    return {"cpu_bytes_to_use": int(extra["cpu_bytes_to_use"]), "chunks": whole}


def simple(transfer: Any, ranks: int) -> dict[str, int]:
    """What the simple connector hands to its worker, which is caught before it opens anything."""
    module = import_module("vllm.distributed.kv_transfer.kv_connector.v1.simple_cpu_offload_connector")
    role = import_module("vllm.distributed.kv_transfer.kv_connector.v1.base").KVConnectorRole.WORKER
    caught: dict[str, Any] = {}
    vars(module)["SimpleCPUOffloadWorker"] = lambda *_, **options: caught.update(options)
    engine = SimpleNamespace(
        cache_config=SimpleNamespace(enable_prefix_caching=True),
        parallel_config=SimpleNamespace(world_size=ranks),
        kv_transfer_config=transfer,
    )
    module.SimpleCPUOffloadConnector(engine, role, None)
    return {"disk_capacity_bytes": caught["disk_capacity_bytes"] * ranks}


if __name__ == "__main__":
    main()
