"""SGLang's HiCache: --hicache-size in decimal GB of one rank. Its storage backends have no size: no disk is planned."""

from __future__ import annotations

from collections.abc import Iterator

from kvplan.documents import Finding, Knob
from kvplan.engines.configs import conditions, switches
from kvplan.engines.configs.common import (
    DECIMAL_GB,
    Asked,
    Emission,
    Given,
    Reading,
    command,
    finding,
    knob,
    notes,
    part,
    unbounded,
)
from kvplan.engines.configs.source import Command, Source, number, whole
from kvplan.engines.profiles import power_of_two_above
from kvplan.errors import KvplanError
from kvplan.units import GB, show_bytes

FLOOR = "SGLang 0.5.23 or newer"
SCRIPT = "sglang.sh"
SALT = "extra_key (cache_salt in the OpenAI API), which keeps branches of the radix tree apart"
_DTYPES = {"fp8": "fp8_e4m3", "fp8_e4m3": "fp8_e4m3", "fp8_e5m2": "fp8_e5m2"}


def emit(given: Given) -> Emission:
    """The launch command, with a host tier that is written as blocks are computed."""
    each = given.host_bytes // given.ranks // GB
    words: list[tuple[str, ...]] = [
        ("python", "-m", "sglang.launch_server"),
        ("--model-path", given.model),
        ("--tp-size", str(given.tp or given.ranks)),
    ]
    if given.kv_tokens is None:
        words.append(("--mem-fraction-static", f"{given.utilization:g}"))
    else:
        words.append(("--max-total-tokens", str(given.kv_tokens)))
    if given.pp > 1:
        words.append(("--pp-size", str(given.pp)))
    if given.block_tokens > 1:
        words.append(("--page-size", str(given.block_tokens)))
    if given.max_model_len:
        words.append(("--context-length", str(given.max_model_len)))
    if given.kv_dtype in _DTYPES:
        words.append(("--kv-cache-dtype", _DTYPES[given.kv_dtype]))
    words += switches.words("sglang", given)
    if not each:
        return Emission(floor=FLOOR, parts=(part(SCRIPT, "shell", command(words, ["no host tier"])),))
    sizes = (knob("--hicache-size", each, DECIMAL_GB, "rank", given.ranks, "host"),)
    found = tuple(_conditions(given, each * GB))
    words.append(
        ("--enable-hierarchical-cache", "--hicache-size", str(each), "--hicache-write-policy", "write_through")
    )
    text = command(words, notes(FLOOR, sizes, found))
    return Emission(floor=FLOOR, parts=(part(SCRIPT, "shell", text),), knobs=sizes, findings=found)


def _conditions(given: Given, each: int) -> Iterator[Finding]:
    yield from conditions.page_locking(given, each)
    padded = power_of_two_above(each) * given.ranks
    if padded > given.host_bytes:
        least = 1 << (given.host_bytes // given.ranks).bit_length() - 1
        text = (
            f"builds that page-lock through PyTorch round a rank's pool up to a power of two: {show_bytes(padded)} on "
            f"the host. 0.5.23 on CUDA registers the pool as it is; {least // GB} GB a rank fit either way"
        )
        yield finding("warning", "page-locked-rounding", text)
    yield from conditions.inclusive(given, each * given.ranks, "the host tier")
    text = "indexer and draft caches come on top of this size, as pools of their own"
    yield finding("info", "side-pools", text)
    yield from conditions.salt(given, SALT)
    yield from conditions.ages(given)


def read(source: Source, asked: Asked) -> Reading:
    """Host pools of every server that the file starts. Raises KvplanError where a ratio hides the bytes."""
    found = [one for one in source.commands if "sglang" in " ".join(one.words) or _flags(one)]
    if not found:
        raise KvplanError(f"{source.name}: starts no SGLang server")
    knobs: list[Knob] = []
    findings: list[Finding] = []
    worlds: set[int] = set()
    for one in found:
        ranks, engines = _ranks(one, source.name)
        worlds.add(ranks)
        knobs += _pools(one, source.name, ranks * engines, findings)
    return Reading(knobs=tuple(knobs), ranks=worlds.pop() if len(worlds) == 1 else None, findings=tuple(findings))


def _flags(one: Command) -> bool:
    return any(name.startswith("hicache") or name == "enable_hierarchical_cache" for name in one.flags)


def _ranks(one: Command, source: str) -> tuple[int, int]:
    """Ranks of one engine and engines, from the flags' long and short names."""
    counts = []
    for names in (("tp_size", "tp", "tensor_parallel_size"), ("pp_size", "pp", "pipeline_parallel_size")):
        text = one.last(*names)
        counts.append(1 if text is None else whole(text, source, f"--{names[0]}", "ranks"))
    text = one.last("dp_size", "dp", "data_parallel_size")
    # With attention data parallelism the engines live inside the tensor parallel ranks.
    apart = text is not None and "enable_dp_attention" not in one.flags
    return counts[0] * counts[1], whole(text, source, "--dp-size", "engines") if apart else 1


def _pools(one: Command, source: str, times: int, findings: list[Finding]) -> Iterator[Knob]:
    on = {"enable_hierarchical_cache", "enable_hicache"} & set(one.flags)
    size = one.last("hicache_size")
    if not on:
        if size is not None:
            text = "--hicache-size without --enable-hierarchical-cache does nothing"
            findings.append(finding("warning", "size-ignored", text))
        return
    if size is None or not float(number(size, source, "--hicache-size", "GB")):
        ratio = one.last("hicache_ratio") or "2.0 by default"
        text = (
            f"{source}: the host pool is a ratio ({ratio}) of the GPU's, which only a running server knows: set "
            "--hicache-size, the decimal GB of one rank"
        )
        raise KvplanError(text)
    count = whole(size, source, "--hicache-size", "GB")
    padded = power_of_two_above(count * GB) * times
    why = f"{show_bytes(padded)} in builds that page-lock through PyTorch" if padded > count * GB * times else ""
    yield knob("--hicache-size", count, DECIMAL_GB, "rank", times, "host", why)
    if why:
        findings.append(finding("warning", "page-locked-rounding", f"{times} pools of {count} GB: {why}"))
    backend = one.last("hicache_storage_backend")
    if backend is not None:
        reason = "no size of its own: a folder or a store that something else has to bound"
        yield unbounded("--hicache-storage-backend", backend, "disk", reason)
        findings.append(finding("warning", "eviction", f"storage backend {backend}: {reason}"))
