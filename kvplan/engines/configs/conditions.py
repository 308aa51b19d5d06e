"""Conditions that a configuration rests on, each checked and said: where one does not hold, what to do."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan.documents import Finding
from kvplan.engines.configs.common import Given, finding
from kvplan.units import GiB, show_bytes, show_duration

SHM_SPARE = GiB // 4
SECTOR = 4096
DISK_PERCENT = 85


def shm_room(given: Given, size: int) -> Iterator[Finding]:
    """Whether /dev/shm holds a mapped tier of `size` bytes for every replica of the host."""
    needed = (size + SHM_SPARE) * given.on_host
    free = given.machine.shm_free_bytes if given.machine else None
    each = f" for each of {given.on_host} engines" if given.on_host > 1 else ""
    what = (
        f"/dev/shm must have {show_bytes(needed)} free: {show_bytes(size)} of cache and {show_bytes(SHM_SPARE)}{each}"
    )
    if free is None:
        text = (
            f"{what}. It was not checked: no probe of the host that is planned for; containers have 64 MiB there "
            "unless told otherwise"
        )
        yield finding("warning", "shm-room", text)
    elif free < needed:
        text = (
            f"{what}, and has {show_bytes(free)}: the engine will not start. Give the container --shm-size "
            f"{-(-needed // GiB)}g, or run `mount -o remount,size={-(-needed // GiB)}g /dev/shm`"
        )
        yield finding("error", "shm-room", text)
    else:
        yield finding("info", "shm-room", f"{what}; it has {show_bytes(free)}")


def page_locking(given: Given, each: int) -> Iterator[Finding]:
    """Whether the probe could page-lock a rank's share, and what the memlock limit has to do with it."""
    if given.pinned_bytes is not None and each > given.pinned_bytes:
        text = (
            f"a rank page-locks {show_bytes(each)} and the probe got no more than {show_bytes(given.pinned_bytes)} on "
            "this host: the rest stays pageable, which is slower, or the engine stops"
        )
        yield finding("warning", "page-locking", text)
    elif given.machine is None:
        text = "page-locking was not checked: no probe of the host"
        yield finding("info", "page-locking", text)
    elif given.machine.memlock_bytes is None:
        yield finding("info", "page-locking", "memlock is unlimited")
    elif given.machine.memlock_bytes < each:
        text = (
            f"memlock is {show_bytes(given.machine.memlock_bytes)}, below the {show_bytes(each)} of a rank: CUDA "
            "page-locks through its driver and is not bound by it, other platforms are (ulimit -l unlimited)"
        )
        yield finding("info", "page-locking", text)
    else:
        limit = show_bytes(given.machine.memlock_bytes)
        yield finding("info", "page-locking", f"memlock allows {limit} for {show_bytes(each)} a rank")


def direct_io(given: Given) -> tuple[bool, Finding]:
    """Whether blocks of one rank are whole sectors of 4,096 bytes, as direct I/O asks."""
    size = given.block_bytes
    if size is None:
        text = "the bytes of a block are not known: direct I/O needs whole sectors of 4,096 B"
        return True, finding("warning", "direct-io", text)
    if size % SECTOR:
        text = (
            f"a block of {given.block_tokens} tokens is {size:,} B on a rank, {size % SECTOR:,} B over whole sectors "
            "of 4,096 B: direct I/O would stop at start-up, so the page cache is used, which takes host memory that no "
            "budget counts. A larger block may come out even"
        )
        return False, finding("warning", "direct-io", text)
    text = f"a block of {given.block_tokens} tokens is {size:,} B on a rank, whole sectors of 4,096 B"
    return True, finding("info", "direct-io", text)


def chunk_multiple(given: Given, chunk: int, what: str) -> Finding:
    """Whether a chunk is whole blocks of the engine."""
    if chunk % given.block_tokens:
        text = (
            f"{what} keeps chunks of {chunk} tokens, no multiple of the engine's blocks of {given.block_tokens}: it "
            "stops at start-up. Use the engine's own offloading, or a chunk size that is"
        )
        return finding("error", "chunk-multiple", text)
    text = f"chunks of {chunk} tokens are {chunk // given.block_tokens} blocks of {given.block_tokens}"
    return finding("info", "chunk-multiple", text)


def disk_room(given: Given, size: int) -> Finding:
    """Whether the drive has room: at most 85 % of what is free and what an earlier cache in the folder holds."""
    if given.disk_free_bytes is None:
        text = f"{show_bytes(size)} of disk: free space was not checked, no probe of the drive"
        return finding("warning", "disk-room", text)
    room = (given.disk_free_bytes + given.disk_own_bytes) * DISK_PERCENT // 100
    needed = size * given.on_host
    free, own = show_bytes(given.disk_free_bytes), show_bytes(given.disk_own_bytes)
    text = f"{show_bytes(needed)} of disk; 85 % of {free} free and {own} of its own are {show_bytes(room)}"
    return finding("error" if needed > room else "info", "disk-room", text)


def hash_seed(where: str) -> Finding:
    """Block hashes have to be the same in every process that shares a tier, and after a restart."""
    text = f"PYTHONHASHSEED=0 is set {where}: the same value in every engine that shares the tier, or nothing ever hits"
    return finding("info", "hash-seed", text)


def failure_policy() -> Finding:
    """What a block that cannot be loaded does to its request."""
    text = 'kv_load_failure_policy is "recompute": a failed load is computed again; the default fails the request'
    return finding("info", "load-failure", text)


def watermark(percent: int, what: str, size: int) -> Finding:
    """A pool that evicts before it is full."""
    held = show_bytes(size * percent // 100)
    return finding("info", "watermark", f"{what} evicts from {percent} % on: {held} of {show_bytes(size)} stay filled")


def paths(given: Given, shared: bool, what: str) -> Finding:
    """Whether replicas of one host may use one folder."""
    if given.on_host == 1:
        return finding("info", "disk-paths", f"one engine on the host uses {what}")
    if shared:
        text = f"{given.on_host} engines on the host share {what} and its blocks; each counts the whole folder"
        return finding("info", "disk-paths", text)
    text = (
        f"{given.on_host} engines on the host: give each a path of its own in place of {what}, or one removes the "
        "other's file and both keep the space"
    )
    return finding("warning", "disk-paths", text)


def salt(given: Given, how: str) -> Iterator[Finding]:
    """How tenants are kept apart, where the plan keeps them apart."""
    if given.share == "all":
        return
    one = "its tenant's" if given.share == "tenant" else "one of its own as"
    yield finding("warning", "salt", f"the plan keeps cached blocks apart: every request must carry {one} {how}")


def inclusive(given: Given, size: int, what: str) -> Iterator[Finding]:
    """A tier that repeats what the GPU holds brings nothing unless it is larger."""
    if size and given.gpu_bytes and size <= given.gpu_bytes:
        text = (
            f"{what} of {show_bytes(size)} is no larger than the {show_bytes(given.gpu_bytes)} of cache on the GPUs, "
            "which it repeats: no benefit expected"
        )
        yield finding("warning", "inclusive", text)


def ages(given: Given) -> Iterator[Finding]:
    """A time to live that no setting here keeps."""
    if given.ttl_s is not None:
        text = f"nothing here drops blocks after {show_duration(given.ttl_s)}"
        yield finding("warning", "time-to-live", text)


def together(given: Given) -> Iterator[Finding]:
    """Engines that share their experts start as one: each has the sizes of one, and the host needs them all."""
    if given.dealt_over > 1:
        text = (
            f"experts are dealt over {given.dealt_over} data-parallel engines, which start together and have each the "
            f"sizes said here: the host, and a pod, need {given.dealt_over} times them"
        )
        yield finding("warning", "engines-together", text)
