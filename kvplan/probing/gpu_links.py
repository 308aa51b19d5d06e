"""From what a cell's copies showed to the links of the document."""

from __future__ import annotations

import numpy as np
from msgspec.structs import replace

from kvplan.documents import Link
from kvplan.probing import together
from kvplan.probing.gpu_cells import ALL_GPUS, OPPOSITE, Cell
from kvplan.probing.gpu_copies import Seen
from kvplan.probing.mechanisms import WORDS, Direction


def link(name: str, node: int | None, cell: Cell, seen: Seen, *, remote: bool = False) -> Link:
    """The document of a cell of GPU `name`; its host memory was on `node`, `remote` where that is not the GPU's."""
    p5, p50, p95 = (float(value) for value in np.percentile(seen.rates, [5, 50, 95]))
    p50_s, p99_s = (float(value) for value in np.percentile(seen.latencies, [50, 99], method="inverted_cdf"))
    place = "unknown" if node is None else str(node)
    memory = f"page-locked by cudaHostRegister, node {place}" if cell.pinned else "pageable"
    if cell.duplex and cell.beside is not None:
        memory += f", beside {cell.beside.piece_bytes:,} B a piece by {WORDS[cell.beside.mechanism]}"
    flags = (
        *(() if cell.pinned else ("pageable",)),
        *(("remote-node",) if remote else ()),
        *(("corrupt",) if seen.wrong_words else ()),
        *(() if seen.settled else ("not-steady",)),
        *(() if seen.concurrent else ("not-concurrent",)),
    )
    return Link(
        source="host" if cell.direction == "h2d" else name,
        target=name if cell.direction == "h2d" else "host",
        direction=cell.direction,
        granule_bytes=cell.granule,
        depth=1,
        samples=seen.copies,
        p5_bytes_per_s=p5,
        p50_bytes_per_s=p50,
        p95_bytes_per_s=p95,
        p50_latency_s=p50_s,
        p99_latency_s=p99_s,
        method=f"{WORDS[cell.mechanism]}, one stream, {memory}, CUDA events, data verified",
        concurrent=OPPOSITE if cell.duplex else "none",
        preset=None if cell.mechanism == "loop" else cell.mechanism,
        flags=flags,
    )


def link_beside_all(name: str, node: int | None, way: Direction, granule: int, shared: together.Shared) -> Link:
    """The document of copies while every other GPU copied too; a train's time stands for that of its pieces."""
    seen = Seen(rates=list(shared.rates), copies=len(shared.rates), wrong_words=shared.wrong_words)
    seen.latencies = [granule / rate for rate in shared.rates]
    return replace(link(name, node, Cell(direction=way, granule=granule), seen), concurrent=ALL_GPUS)
