"""What a host holds beside the cache, line by line: stated by the operator, else assumed and said so."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass

from kvplan.documents import Provenance
from kvplan.errors import KvplanError
from kvplan.planning.facts import Facts
from kvplan.units import GiB, MiB, show_bytes, show_tokens

SYSTEM_SHARE = 0.05
SYSTEM_FLOOR = 2 * GiB
REQUEST_BYTES_PER_TOKEN = 128
STORAGE_CLIENT = 512 * MiB

# What `--reserve NAME=SIZE` may name, and the line it becomes.
RESERVES = {
    "system": "operating system and page cache",
    "engine": "engine processes",
    "front-end": "front end and tokenizers",
    "requests": "request buffers",
    "storage-clients": "storage clients",
    "buffers": "page-locked transfer buffers",
    "other-models": "other models",
    "weight-offload": "weights kept in host memory",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One line of what is taken before the cache."""

    name: str
    bytes: int
    provenance: Provenance
    why: str


@dataclass(frozen=True, slots=True, kw_only=True)
class HostRoom:
    """One replica's share of a host's memory. `limit` None: nothing is known of the host."""

    limit: int | None
    parts: tuple[Part, ...]
    headroom: int

    @property
    def taken(self) -> int:
        """Bytes of everything but the cache and the headroom."""
        return sum(part.bytes for part in self.parts)

    @property
    def available(self) -> int | None:
        """What the KV cache may take at most."""
        return None if self.limit is None else max(0, self.limit - self.taken - self.headroom)


def host_room(facts: Facts) -> HostRoom:
    """What a host leaves for the cache after everything else. Raises KvplanError for a reserve of no known name."""
    memory, stated = facts.host_memory, {one.name: one.bytes for one in facts.policy.reserves}
    if unknown := sorted(set(stated) - set(RESERVES)):
        raise KvplanError(f"--reserve {unknown[0]}: not a part of host memory (known: {', '.join(RESERVES)})")
    limit = memory.value // facts.on_host if memory else None
    parts = []
    for name, size, provenance, why in _assumed(facts, limit or 0):
        if name in stated:
            size, provenance = stated[name], "configured"
            why = "stated" if name != "weight-offload" else f"stated; {why}"
        if size:
            parts.append(Part(name=RESERVES[name], bytes=size, provenance=provenance, why=why))
    return HostRoom(limit=limit, parts=tuple(parts), headroom=math.ceil((limit or 0) * facts.policy.headroom_ratio))


def _assumed(facts: Facts, limit: int) -> Iterator[tuple[str, int, Provenance, str]]:
    rules = facts.profile
    system = max(SYSTEM_FLOOR // facts.on_host, math.ceil(limit * SYSTEM_SHARE))
    yield "system", system, "assumed", f"{SYSTEM_SHARE:.0%} of the memory, at least 2 GiB a host"
    yield "engine", rules.worker_bytes * facts.gpus, "assumed", f"{show_bytes(rules.worker_bytes)} a GPU worker"
    yield "front-end", rules.front_end_bytes, "assumed", "API server and tokenizers of one replica"
    tokens = facts.active[0] * facts.policy.growth / facts.replicas
    text = f"{REQUEST_BYTES_PER_TOKEN} B for each of {show_tokens(tokens)} tokens in flight: text, ids, output"
    yield "requests", math.ceil(tokens * REQUEST_BYTES_PER_TOKEN), "assumed", text
    disk = facts.disk_link is not None and not facts.policy.forbid_disk
    clients = STORAGE_CLIENT * facts.gpus if disk else 0
    yield "storage-clients", clients, "assumed", f"{show_bytes(STORAGE_CLIENT)} a rank, kept for a disk tier"
    block = facts.chunk_tokens * facts.bytes_per_token_per_gpu
    staging = rules.staging_blocks * block * facts.gpus if disk else 0
    text = f"{rules.staging_blocks} blocks of {show_bytes(block)} a rank through which a disk tier moves"
    yield "buffers", staging, "published", text
    yield "other-models", 0, "assumed", "none stated"
    yield "weight-offload", 0, "assumed", "weights the engine streams from host memory, no part of the KV cache"
