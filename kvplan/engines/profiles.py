"""What planning must know of each serving engine: how its tiers nest, in which units its sizes are given, and
what it takes beside the cache. One row an engine; docs/planning.md names the source of each figure."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any, Literal

from kvplan.documents import Estimate, Finding, Plan
from kvplan.errors import KvplanError
from kvplan.units import GB, GiB, KiB, MiB

Mechanism = Literal["loop", "batch", "gather"]

MECHANISMS: dict[Mechanism, str] = {
    "loop": "one copy call a piece",
    "batch": "cuMemcpyBatchAsync",
    "gather": "a kernel on mapped host memory",
}
_SPANS = {"token": "one token", "block": "one block", "chunk": "one chunk", "sequence": "a whole sequence"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Move:
    """How an engine moves cached bytes one way between a GPU and host memory: in which pieces, and by what.

    A piece holds the `span` of one layer, or of `all_layers`; keys and values are two pieces where they lie `apart`.
    Pieces below `below_bytes` go by the mechanism `small`. `pageable`: the host memory is not page-locked.
    """

    span: Literal["token", "block", "chunk", "sequence"]
    mechanism: Mechanism
    source: str
    all_layers: bool = False
    apart: bool = False
    small: Mechanism | None = None
    below_bytes: int = 0
    pageable: bool = False

    def piece_bytes(self, estimate: Estimate, per_token: int, tokens: int) -> int:
        """Bytes of one piece of `tokens` tokens, `per_token` bytes each on one GPU: of unlike layers, the mean."""
        pieces = 1
        if not self.all_layers:
            layers = sum(group.layers for group in estimate.groups if group.bytes_per_token)
            pieces = -(-max(1, layers) // max(1, estimate.parallel.pp))
        halves = any(group.kind not in ("latent", "indexer") for group in estimate.groups)
        return max(1, tokens * per_token // pieces // (2 if self.apart and halves else 1))

    def by(self, piece_bytes: int) -> Mechanism:
        """The mechanism that moves pieces of this size."""
        return self.small if self.small is not None and piece_bytes < self.below_bytes else self.mechanism

    @property
    def words(self) -> str:
        """The piece for a person: 'one block of one layer'."""
        halves = ", keys and values apart" if self.apart else ""
        return f"{_SPANS[self.span]} of {'all layers' if self.all_layers else 'one layer'}{halves}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Profile:
    """One engine's planning facts.

    `inclusive`: the host tier is written as blocks are computed, so it repeats what the GPU holds and capacities do
    not add. `fraction_of` says what the engine's memory fraction is a fraction of. `host_unit_bytes` is the step of
    the host size flag, `host_scope` whether that flag is the engine's total or one rank's. `padded_tensors`: the host
    pool is page-locked through an allocator that rounds each tensor up to a power of two. `shm`: the pool is mapped
    in /dev/shm. `null_blocks` can never be used. `side_pools`: indexer and draft caches come on top of the size flag.
    `one_piece`: the pool is page-locked in one call a rank. `staging_blocks` are page-locked blocks a rank through
    which a disk tier moves. `disk_survives` a restart: never, or only where it lies behind a host tier.
    `ignores_salt` names the layers whose tiers mix tenants even where requests carry a salt. A pool is kept
    `fill_percent` full at most, in chunks of `tier_chunk_tokens` (None: the engine's blocks); with
    `first_rank_stores_latent` a size a rank is the whole size where every rank holds the same latent. `disk_presets`
    name the shapes in which a probe measures its disk tier, alone and behind a host tier. `load` and `store` say how it
    moves bytes over the host link. `whole_prompts`: it keeps prompts of slots and no pool of blocks, which a hit curve
    of blocks overstates. `block_tokens` is its default block, for an estimate without an engine. The other sizes
    are assumptions until a running server is measured.
    """

    name: str
    version: str
    inclusive: bool
    load: Move
    store: Move
    block_tokens: int
    utilization: float
    fraction_of: Literal["total", "static", "free"]
    host_unit_bytes: int
    host_scope: Literal["total", "rank"]
    padded_tensors: bool = False
    shm: bool = False
    whole_prompts: bool = False
    null_blocks: int = 0
    side_pools: bool = False
    one_piece: bool = False
    staging_blocks: int = 0
    disk_survives: Literal["never", "behind-host"] = "never"
    ignores_salt: tuple[str, ...] = ()
    fill_percent: int = 100
    tier_chunk_tokens: int | None = None
    first_rank_stores_latent: bool = False
    disk_presets: tuple[str | None, str | None] = (None, None)
    overhead_bytes: int = 4 * GiB
    worker_bytes: int = 4 * GiB
    front_end_bytes: int = 2 * GiB
    source: str = ""
    date: str = "2026-11-29"

    def usable_bytes(self, total: int, utilization: float, weights: int, overhead: int) -> int:
        """Bytes of one GPU that the engine takes: weights, overhead and everything kept for requests.

        vLLM counts its fraction on the whole memory, overhead inside; SGLang too, but leaves activations outside;
        TensorRT-LLM counts it on what weights and activations left.
        """
        if self.fraction_of == "static":
            return min(total, math.ceil(total * utilization) + overhead)
        if self.fraction_of == "free":
            return weights + overhead + math.floor(max(0, total - weights - overhead) * utilization)
        return math.ceil(total * utilization)

    def host_request_bytes(self, needed: int, ranks: int) -> int:
        """The least total over all ranks that the host size flag can express and that holds `needed` bytes."""
        step = self.host_unit_bytes * (ranks if self.host_scope == "rank" else 1)
        return -(-needed // step) * step

    def host_cost_bytes(self, requested: int, ranks: int, tensors: int) -> int:
        """What the host really gives for a total of `requested` bytes, held in `tensors` tensors a rank."""
        if not self.padded_tensors or not requested:
            return requested
        pieces = ranks * max(1, tensors)
        return pieces * power_of_two_above(-(-requested // pieces))


def power_of_two_above(size: int) -> int:
    """The least power of two that is not below `size`, which is what PyTorch's page-locked allocator takes for it."""
    return 1 << (size - 1).bit_length() if size > 0 else 0


def largest_without_padding(limit: int, pieces: int) -> int:
    """The largest total in `pieces` equal page-locked tensors whose powers of two fit in `limit` bytes."""
    each = limit // pieces
    return pieces * (1 << each.bit_length() - 1) if each else 0


_VLLM = "vLLM 0.32 kv_offload/cpu/gpu_worker.py; its connector asks for the layout LBHNC, layers outermost"
_TENSORRT = "TensorRT-LLM 1.2 kvCacheTransferManager.cpp, copyBlock: one copy a block and pool, layers inside"
_LLAMA = "llama.cpp server prompt cache: states a sequence in regular RAM, written tensor by tensor"
_LMCACHE = "LMCache 0.5.6 gpu_connector (multi_layer_kv_transfer in, a staged chunk out)"
_LMCACHE_SERVER = "LMCache 0.5.6 multiprocess/object_group_transfer.py, run_direct_transfer"

_PROFILES = {
    profile.name: profile
    for profile in (
        Profile(
            name="vllm",
            version="0.32.0",
            inclusive=True,
            load=Move(span="block", mechanism="batch", small="gather", below_bytes=28 * KiB, source=_VLLM),
            store=Move(span="block", mechanism="batch", source=_VLLM),
            block_tokens=16,
            utilization=0.92,
            fraction_of="total",
            host_unit_bytes=GiB,
            host_scope="total",
            shm=True,
            null_blocks=1,
            staging_blocks=4,
            disk_survives="behind-host",
            disk_presets=("vllm-disk", "vllm-fs"),
            ignores_salt=("lmcache",),
            source="vLLM 0.32.0: gpu_memory_utilization, kv_offload (shared mapping in /dev/shm, eager stores)",
        ),
        Profile(
            name="sglang",
            version="0.5.23",
            inclusive=True,
            load=Move(
                span="token",
                mechanism="gather",
                apart=True,
                source="SGLang 0.5.23 mem_cache/pool_host, load_to_device_per_layer with --hicache-io-backend kernel",
            ),
            store=Move(
                span="block",
                mechanism="batch",
                all_layers=True,
                apart=True,
                source="SGLang 0.5.23 kvcacheio/staged_write_back.cuh with --hicache-mem-layout page_first",
            ),
            block_tokens=1,
            utilization=0.88,
            fraction_of="static",
            host_unit_bytes=GB,
            host_scope="rank",
            padded_tensors=True,
            side_pools=True,
            one_piece=True,
            source="SGLang 0.5.23: --mem-fraction-static, --hicache-size in decimal GB a rank, write_through",
        ),
        Profile(
            name="tensorrt-llm",
            version="1.2.1",
            inclusive=False,
            load=Move(span="block", mechanism="loop", all_layers=True, source=_TENSORRT),
            store=Move(span="block", mechanism="loop", all_layers=True, source=_TENSORRT),
            block_tokens=32,
            utilization=0.9,
            fraction_of="free",
            host_unit_bytes=MiB,
            host_scope="rank",
            one_piece=True,
            source="TensorRT-LLM 1.2.1: free_gpu_memory_fraction, host_cache_size in bytes a rank, filled on eviction",
        ),
        Profile(
            name="llama.cpp",
            version="0.5.0-dev",
            inclusive=False,
            load=Move(span="sequence", mechanism="loop", apart=True, pageable=True, source=_LLAMA),
            store=Move(span="sequence", mechanism="loop", apart=True, pageable=True, source=_LLAMA),
            block_tokens=1,
            utilization=1.0,
            fraction_of="total",
            host_unit_bytes=MiB,
            host_scope="total",
            worker_bytes=GiB,
            front_end_bytes=GiB,
            overhead_bytes=2 * GiB,
            whole_prompts=True,
            source="llama.cpp: --cache-ram in MiB a server process, whole sequence states",
        ),
    )
}


# Offload layers that run inside an engine and keep its tiers in their own way: what they change of its facts.
_LAYERS = {
    ("vllm", "lmcache"): {
        "host_scope": "rank",
        "shm": False,
        "one_piece": True,
        "disk_survives": "never",
        "tier_chunk_tokens": 256,
        "disk_presets": ("lmcache", "lmcache"),
        "first_rank_stores_latent": True,
        "load": Move(span="token", mechanism="gather", apart=True, source=_LMCACHE),
        "store": Move(span="chunk", mechanism="loop", all_layers=True, source=_LMCACHE),
        "source": "LMCache 0.5.6 in process: max_local_cpu_size in GiB a rank, chunks of 256 tokens",
    },
    ("vllm", "lmcache-server"): {
        "shm": False,
        "disk_survives": "never",
        "fill_percent": 80,
        "load": Move(span="block", mechanism="batch", apart=True, source=_LMCACHE_SERVER),
        "store": Move(span="block", mechanism="batch", apart=True, source=_LMCACHE_SERVER),
        "tier_chunk_tokens": 256,
        "disk_presets": ("lmcache", "lmcache"),
        "source": "LMCache 0.5.6 server: --l1-size-gb in GiB a node, evicts at 80 % full, chunks of 256 tokens",
    },
}


def engine_of(plan: Plan) -> str:
    """The engine that a plan is for: its estimate's, or where that is engine-free its policy's."""
    return engine_between(plan.inputs.estimate.data.engine, plan.policy.engine)


def engine_between(estimated: str, asked: str) -> str:
    """The estimate's engine rules; the policy's where the estimate is engine-free."""
    return asked if estimated == "none" else estimated


def whole_prompt_cache(engine: str) -> tuple[Finding, ...]:
    """What to know of figures that are of a cache of blocks, where the engine keeps whole prompts instead."""
    if not profile(engine).whole_prompts:
        return ()
    text = (
        f"{engine} keeps whole prompts in slots and has no cache of blocks, for which these hits are: an upper bound, "
        "12 and 22 points above a real server's in docs/live.md. `kvplan simulate` plays its slots: take the hits "
        "from there"
    )
    return (Finding(severity="warning", code="whole-prompt-cache", text=text),)


def layers_of(engine: str) -> tuple[tuple[str, str], ...]:
    """(engine, offload layer) of every profile of an engine, of all engines for "none"; nothing for one not known."""
    pairs = (*((name, "native") for name in _PROFILES), *_LAYERS)
    return tuple(pair for pair in pairs if engine in ("none", pair[0]))


def profile(engine: str, offload: str = "native") -> Profile:
    """The facts of one engine with an offload layer. Raises KvplanError naming those known."""
    if engine not in _PROFILES:
        known = ", ".join(_PROFILES)
        raise KvplanError(f"no planning rules for engine {engine!r}: make the estimate with --engine {known} or none")
    if offload == "native":
        return _PROFILES[engine]
    if (engine, offload) not in _LAYERS:
        known = ", ".join(layer for name, layer in _LAYERS if name == engine) or "native alone"
        raise KvplanError(f"no planning rules for --offload {offload} in {engine} (known: {known})")
    changed: dict[str, Any] = _LAYERS[engine, offload]
    return replace(_PROFILES[engine], **changed)
