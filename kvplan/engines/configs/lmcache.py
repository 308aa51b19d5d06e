"""LMCache inside vLLM's workers: a file of options, or LMCACHE_ variables. Its GB are GiB, and they count by rank.

Where the model keeps one latent for all heads, the first rank alone stores, so that its size is the whole size.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from kvplan.documents import Finding
from kvplan.engines.configs import conditions, vllm, vllm_read
from kvplan.engines.configs.common import (
    GIB,
    Asked,
    Emission,
    Given,
    Reading,
    command,
    finding,
    knob,
    notes,
    part,
    ranks_of,
    says,
)
from kvplan.engines.configs.lmcache_sizes import DISK, SIZE, of_env, of_options
from kvplan.engines.configs.source import Source
from kvplan.engines.profiles import power_of_two_above
from kvplan.units import GiB, show_bytes

FLOOR = "LMCache 0.5.6 or newer"
FILE = "lmcache.yaml"
CHUNK = 256


def emit(given: Given) -> Emission:
    """A YAML file, and the vLLM command that names it. LMCache moves a disk tier through its host pool."""
    ranks = given.storing
    size, disk = given.host_bytes // ranks // GiB, given.disk_bytes // ranks // GiB
    sizes = [knob(SIZE, size, GIB, "rank", ranks, "host", "LMCache writes GB and means GiB")]
    if disk:
        sizes.append(knob(DISK, disk, GIB, "rank", ranks, "disk", "LMCache writes GB and means GiB"))
    found = tuple(_conditions(given, size * GiB, disk * GiB * ranks))
    path = f"{given.folder}/kvplan-lmcache"
    lines = [
        *(f"# {note}" for note in notes(FLOOR, (), found)),
        f"chunk_size: {CHUNK}  # tokens",
        f"local_cpu: {'true' if size else 'false'}",
        f"{SIZE}: {size}",
        f"# {says(sizes[0])}",
    ]
    if disk:
        lines += [f"local_disk: {path}/", f"{DISK}: {disk}", f"# {says(sizes[1])}"]
    words = [*vllm.engine_words(given), vllm.transfer("LMCacheConnectorV1")]
    text = command(words, ["save the second file beside this one"], [f"LMCACHE_CONFIG_FILE={FILE}", "PYTHONHASHSEED=0"])
    parts = (part(vllm.SCRIPT, "shell", text), part(FILE, "yaml", "\n".join(lines) + "\n"))
    return Emission(floor=f"{FLOOR} in {vllm.FLOOR}", parts=parts, knobs=tuple(sizes), findings=found)


def _conditions(given: Given, each: int, disk: int) -> Iterator[Finding]:
    yield conditions.chunk_multiple(given, CHUNK, "LMCache")
    yield from conditions.page_locking(given, each)
    yield from rounding(given, each)
    if disk:
        yield conditions.disk_room(given, disk)
        yield conditions.paths(given, False, f"{given.folder}/kvplan-lmcache")
        text = "least recently used chunks make room on disk; the count of the folder begins at nothing with each start"
        yield finding("info", "eviction", text)
    yield conditions.hash_seed("in front of the command")
    yield conditions.failure_policy()
    if given.latent and given.ranks > 1:
        text = f"the first of {given.ranks} ranks stores the latent, so that its size is the whole size"
        yield finding("info", "first-rank", text)
    yield from conditions.ages(given)


def rounding(given: Given, each: int) -> Iterator[Finding]:
    """What builds take that page-lock the pool as one PyTorch tensor; 0.5.6 has an allocator of its own."""
    padded = power_of_two_above(each) * given.storing
    if padded > given.host_bytes:
        text = (
            f"older builds page-lock each pool as one PyTorch tensor, rounded to a power of two: {show_bytes(padded)} "
            "on the host; 0.5.6 allocates what it is told"
        )
        yield finding("info", "page-locked-rounding", text)


def read(source: Source, asked: Asked) -> Reading:
    """Sizes of an LMCache file or of LMCACHE_ variables, with the ranks of a vLLM command in the same file."""
    if not source.is_keys:
        return _of_script(source, asked)
    ranks = ranks_of(asked, None, source.name, SIZE)
    options = {str(name).removeprefix("LMCACHE_").lower(): value for name, value in source.mapping.items()}
    return Reading(
        knobs=tuple(of_options(options, source.name, ranks, 1, asked)),
        ranks=ranks,
        findings=tuple(_read_findings(options, asked)),
    )


def _of_script(source: Source, asked: Asked) -> Reading:
    started = [engine for engine in vllm_read.engines(source) if engine.command.words]
    if started:
        return vllm_read.read(source, asked)
    ranks = ranks_of(asked, None, source.name, "LMCACHE_MAX_LOCAL_CPU_SIZE")
    return Reading(knobs=tuple(of_env(source.env, source.name, ranks, 1, asked)), ranks=ranks)


def _read_findings(options: Mapping[str, Any], asked: Asked) -> Iterator[Finding]:
    if not asked.latent:
        text = "if the model keeps a latent (MLA), the first rank alone stores: then a size is the whole size"
        yield finding("info", "first-rank", text)
    if options.get("local_disk") and not options.get(DISK):
        yield finding("error", "disk-size", f"local_disk is set and {DISK} is not: nothing is kept on disk")
    if options.get("local_disk"):
        text = "PYTHONHASHSEED has to be set where the engine starts: this file cannot say it"
        yield finding("warning", "hash-seed", text)
