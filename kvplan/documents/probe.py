"""Measurements of one host."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

from kvplan.documents.common import Bytes, Count, Finding, Provenance, Rate, Seconds, Tokens
from kvplan.documents.model import Model


class KvBlock(msgspec.Struct, frozen=True, kw_only=True):
    """How a model's cache comes in pieces on a disk: a block of `block_bytes` from `pieces` tensors, one a layer.

    `chunk_bytes` are the 256 tokens that some tiers keep in a file. `source` says what they are of.
    """

    block_bytes: Bytes
    pieces: Count
    chunk_bytes: Bytes
    source: str


class KvPieces(msgspec.Struct, frozen=True, kw_only=True):
    """In which pieces one direction of the host link moves a cache, and by which mechanism."""

    piece_bytes: Bytes
    mechanism: Literal["loop", "batch", "gather"]


class KvMove(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine moves one rank's cache to and from host memory; `pageable`: memory that is not page-locked.

    `source` names the engine and the layer in it that does.
    """

    load: KvPieces
    store: KvPieces
    source: str
    pageable: bool = False


class ModelConfig(msgspec.Struct, frozen=True, kw_only=True):
    """A model with its config's own JSON as published, from which it can be built."""

    model: Model
    raw: Mapping[str, Any]


class ProbeOptions(msgspec.Struct, frozen=True, kw_only=True):
    """What to measure and what it may cost. `only` picks the parts (probe.PARTS); empty means all that is there.

    `disks` are folders, one a drive. `granule_bytes` adds sizes to the sweep, such as the bytes of one KV block.
    `file_bytes` fixes the size of the scratch file; None chooses it from the write budget and the free space. `kv`
    shapes the engines' cells; None takes a typical model. `moves` are pieces to measure on the host link, by their own
    mechanism and with their opposite at work. `sweep_only` leaves those and the comparisons out.
    `allow_memory` measures a folder that lies in memory (tmpfs) instead of refusing it; every cell is flagged.
    `allow_pageable` goes on where no host memory can be page-locked; every cell of that GPU is flagged.
    `model` is what to measure the prefill of, at `prefill_tokens` (none: lengths that double), here or, where `server`
    is the address of an OpenAI-compatible server, on that server.
    """

    disks: tuple[str, ...] = ()
    only: tuple[str, ...] = ()
    budget_s: Seconds = 60.0
    write_budget_bytes: Bytes = 8 * 1024**3
    file_bytes: Bytes | None = None
    granule_bytes: tuple[int, ...] = ()
    kv: KvBlock | None = None
    moves: tuple[KvMove, ...] = ()
    sweep_only: bool = False
    allow_memory: bool = False
    allow_pageable: bool = False
    model: ModelConfig | None = None
    server: str | None = None
    prefill_tokens: tuple[int, ...] = ()
    seed: Count = 0


class NumaNode(msgspec.Struct, frozen=True, kw_only=True):
    """One memory node of the host."""

    node: Count
    total_bytes: Bytes
    free_bytes: Bytes
    cpus: str


class CgroupLevel(msgspec.Struct, frozen=True, kw_only=True):
    """Memory limit of one cgroup on the path from the process to the root; None means no limit at this level."""

    path: str
    limit_bytes: Bytes | None
    current_bytes: Bytes | None
    reclaimable_bytes: Bytes | None


class GpuDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One GPU as its driver describes it; None is unknown, never a guess."""

    index: Count
    name: str
    total_bytes: Bytes
    free_bytes: Bytes
    pci: str | None = None
    numa_node: int | None = None
    link_generation: int | None = None
    link_width: int | None = None
    max_link_generation: int | None = None
    max_link_width: int | None = None
    driver: str | None = None
    compute_capability: str | None = None


class Host(msgspec.Struct, frozen=True, kw_only=True):
    """What the machine is and what it allows. `usable_memory_bytes` honours every cgroup level and clean page cache.

    `cores` are those this process may run on. `memlock_bytes` is the soft limit of mlock, None where there is none; it
    does not bound what CUDA page-locks. `container` names the kind (docker, kubernetes, wsl2, …), None where nothing
    tells of one. `gpu_status` says in words what was found, and why where nothing was.
    """

    system: str
    kernel: str
    cpu: str
    cores: Count
    memory_total_bytes: Bytes
    memory_available_bytes: Bytes
    usable_memory_bytes: Bytes
    container: str | None = None
    cgroups: tuple[CgroupLevel, ...] = ()
    memlock_bytes: Bytes | None = None
    shm_total_bytes: Bytes | None = None
    shm_free_bytes: Bytes | None = None
    numa: tuple[NumaNode, ...] = ()
    gpus: tuple[GpuDevice, ...] = ()
    gpu_status: str = "no GPU"


class Link(msgspec.Struct, frozen=True, kw_only=True):
    """One measured cell of one link: `granule_bytes` a piece, `depth` pieces in flight.

    `source` and `target` are "host", "gpu<index>" or "disk:<folder>". Rates are percentiles over the cell's windows of
    time (disk) or trains of copies (GPU), latencies over single transfers; `samples` transfers were timed in all. GPU
    cells have depth 1: one stream, whose copies run one after another. `concurrent` names what else ran at the same
    time ("none", "opposite direction", "decode", …). `preset` names the engine whose way of moving data it is
    ("vllm-disk", "vllm-fs", "lmcache"; "sustained" for a long write; "batch" and "gather" for GPU pieces moved by one
    call or by a kernel), None a plain cell. `flags` say why a planner must not trust the cell ("page-cache",
    "unproven-direct", "first-write", "above-memory", "pageable", "remote-node", "not-steady", "corrupt",
    "comparison", …); an empty list is a clean measurement.
    """

    source: str
    target: str
    direction: Literal["read", "write", "h2d", "d2h", "mixed"]
    granule_bytes: Bytes
    depth: Count
    samples: Count
    p5_bytes_per_s: Rate
    p50_bytes_per_s: Rate
    p95_bytes_per_s: Rate
    p50_latency_s: Seconds
    p99_latency_s: Seconds
    method: str
    concurrent: str = "none"
    cpu_s_per_gb: float | None = None
    p95_latency_s: Seconds | None = None
    preset: str | None = None
    flags: tuple[str, ...] = ()


class BlockDevice(msgspec.Struct, frozen=True, kw_only=True):
    """One physical or virtual drive under a folder, as sysfs describes it; None is unknown.

    `link` is the PCI Express link as it runs, `max_link` the fastest it could, `bridges` the ports above it, the root
    first. `used_ratio` and `lifetime_written_bytes` are what an NVMe drive says of its own wear, and
    `rated_endurance_bytes` what it says may be written in its life. They need the right to ask the drive.
    """

    name: str
    size_bytes: Bytes | None = None
    model: str | None = None
    rotational: bool | None = None
    pci: str | None = None
    link: str | None = None
    max_link: str | None = None
    link_bytes_per_s: Rate | None = None
    bridges: tuple[str, ...] = ()
    numa_node: int | None = None
    scheduler: str | None = None
    requests: Count | None = None
    max_io_bytes: Bytes | None = None
    max_segments: Count | None = None
    logical_block_bytes: Bytes | None = None
    used_ratio: float | None = None
    lifetime_written_bytes: Bytes | None = None
    rated_endurance_bytes: Bytes | None = None


class Disk(msgspec.Struct, frozen=True, kw_only=True):
    """One folder's drive: what it is, how much is free, and whether I/O to it was proven to bypass the page cache.

    `device` is what the folder is mounted from, `members` the drives below it (several under RAID or LVM).
    `scratch_bytes` is the size of the file that was measured, `memory_copy_bytes_per_s` what this host copies in
    memory, which a drive is held against to tell it from a cache.
    """

    path: str
    filesystem: str
    device: str
    total_bytes: Bytes
    free_bytes: Bytes
    direct: Literal["proven", "unproven", "no"]
    proof: tuple[str, ...] = ()
    model: str | None = None
    rotational: bool | None = None
    rated_endurance_bytes: Bytes | None = None
    members: tuple[BlockDevice, ...] = ()
    scratch_bytes: Bytes | None = None
    memory_copy_bytes_per_s: Rate | None = None
    flags: tuple[str, ...] = ()


class Pinning(msgspec.Struct, frozen=True, kw_only=True):
    """What page-locking host memory for one GPU gave: all of `requested_bytes`, or `pinned_bytes` and why no more.

    `largest_bytes` is the largest single registration that worked. `touch_s` is what first touch of `requested_bytes`
    took, `register_s` what page-locking `pinned_bytes` of them took.
    """

    gpu: Count
    requested_bytes: Bytes
    pinned_bytes: Bytes
    largest_bytes: Bytes
    touch_s: Seconds
    register_s: Seconds
    stopped: str | None = None


class Contention(msgspec.Struct, frozen=True, kw_only=True):
    """Copies of `granule_bytes` pieces beside a decode-like load on one GPU: what each takes from the other.

    `steps` steps ran while copies did. `load` says what a step was. Flags as for links.
    """

    gpu: Count
    direction: Literal["h2d", "d2h"]
    mechanism: str
    granule_bytes: Bytes
    copy_alone_bytes_per_s: Rate
    copy_loaded_bytes_per_s: Rate
    step_alone_p50_s: Seconds
    step_alone_p99_s: Seconds
    step_loaded_p50_s: Seconds
    step_loaded_p99_s: Seconds
    steps: Count
    load: str
    flags: tuple[str, ...] = ()


class Pipeline(msgspec.Struct, frozen=True, kw_only=True):
    """Blocks between one GPU and one drive through `slots` page-locked buffers: "store" to the drive, "load" from it.

    Rates of each stage alone, of one block after another (`serial`), and of both stages at once (`overlapped`), whose
    share of the slower stage is `overlap_ratio`.
    """

    gpu: Count
    disk: str
    direction: Literal["store", "load"]
    slots: Count
    block_bytes: Bytes
    blocks: Count
    copy_bytes_per_s: Rate
    disk_bytes_per_s: Rate
    serial_bytes_per_s: Rate
    overlapped_bytes_per_s: Rate
    overlap_ratio: float
    flags: tuple[str, ...] = ()


class PrefillPoint(msgspec.Struct, frozen=True, kw_only=True):
    """One measured prefill: `tokens` new tokens behind `prefix_tokens` cached ones took `seconds`."""

    tokens: Tokens
    prefix_tokens: Tokens
    seconds: Seconds


class Prefill(msgspec.Struct, frozen=True, kw_only=True):
    """Recompute cost of tokens [p, n): t0 + a * (n - p) + b * (n² - p²) seconds of one replica's GPUs.

    `low_ratio` and `high_ratio` bound the true time as multiples of this; `worst_relative_error` is that of the fit
    over `points`. `gpus` is how many GPUs ran it together: None for a processor, or where a server does not say.
    """

    model: str
    device: str
    t0_s: Seconds
    a_s_per_token: Seconds
    b_s_per_token_sq: Seconds
    provenance: Provenance
    source: str
    points: tuple[PrefillPoint, ...] = ()
    worst_relative_error: float | None = None
    low_ratio: float = 1.0
    high_ratio: float = 1.0
    max_measured_tokens: Tokens | None = None
    gpus: Count | None = None

    def seconds(self, tokens: float, prefix: float = 0) -> float:
        """Seconds to prefill `tokens` tokens of which the first `prefix` are cached."""
        new, square = tokens - prefix, tokens**2 - prefix**2
        return self.t0_s + self.a_s_per_token * new + self.b_s_per_token_sq * square


class Probe(msgspec.Struct, frozen=True, kw_only=True):
    """Measurements of one host."""

    host: Host
    links: tuple[Link, ...] = ()
    capacity: tuple[Disk, ...] = ()
    pinning: tuple[Pinning, ...] = ()
    prefill: tuple[Prefill, ...] = ()
    contention: tuple[Contention, ...] = ()
    pipeline: tuple[Pipeline, ...] = ()
    written_bytes: Bytes = 0
    wall_s: Seconds = 0.0
    findings: tuple[Finding, ...] = ()
