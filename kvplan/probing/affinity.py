"""Where this process runs: the first touch of a page decides which memory node it is on, for good once page-locked."""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from kvplan.documents import GpuDevice, Host


def parse_cpus(text: str) -> set[int]:
    """{0, 1, 2, 8} of the kernel's '0-2,8'."""
    cpus: set[int] = set()
    for part in filter(None, text.split(",")):
        first, _, last = part.partition("-")
        cpus.update(range(int(first), int(last or first) + 1))
    return cpus


def cpus_near(device: GpuDevice | None, host: Host) -> set[int]:
    """Processors of the GPU's memory node that this process may use; empty where the node is unknown."""
    nodes = {node.node: node.cpus for node in host.numa}
    if device is None or device.numa_node is None:
        return set()
    return parse_cpus(nodes.get(device.numa_node, "")) & os.sched_getaffinity(0)


def far_nodes(device: GpuDevice | None, host: Host, cpus: set[int]) -> list[tuple[int, set[int]]]:
    """(node, processors of it among `cpus`) of every memory node that is not the GPU's; none where that is unknown."""
    own = device.numa_node if device else None
    others = [(node.node, parse_cpus(node.cpus) & cpus) for node in host.numa if own is not None and node.node != own]
    return [(node, there) for node, there in others if there]


@contextmanager
def running_on(cpus: set[int]) -> Iterator[None]:
    """Run on these processors, where any are given."""
    before = os.sched_getaffinity(0)
    if cpus:
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        os.sched_setaffinity(0, before)


def node_of(address: int, maps: Path = Path("/proc/self/numa_maps")) -> int | None:
    """The memory node that most pages of this process's mapping at `address` are on; None where the kernel is silent.

    What was asked for need not be what was given: a container may be kept from a node's memory or its processors.
    """
    found = ""
    try:
        with maps.open() as lines:
            for line in lines:
                if int(line.partition(" ")[0], 16) > address:
                    break
                found = line
    except (OSError, ValueError):
        return None
    pages = {int(node): int(count) for node, count in re.findall(r" N(\d+)=(\d+)", found)}
    return max(pages, key=lambda node: pages[node]) if pages else None
