"""Which NUMA node each byte of the host budget lies on: beside the GPU that loads it, where the probe knows it."""

from __future__ import annotations

from kvplan.documents import NodeBytes
from kvplan.planning.facts import Facts


def by_node(facts: Facts, cost: int) -> tuple[NodeBytes, ...]:
    """A host tier of `cost` bytes a replica over the host's nodes, all its replicas together; empty where unknown.

    A GPU's share goes to the node the GPU hangs on. Where a GPU's node is unknown, or the host was probed without its
    GPUs, the tier is spread evenly. A node offers the share of its memory that the whole host had usable.
    """
    machine = facts.machine
    if machine is None or not machine.numa or not machine.memory_total_bytes:
        return ()
    nodes = machine.numa
    whole = cost * facts.on_host
    used = machine.gpus[: facts.gpus * facts.on_host]
    homes = [gpu.numa_node for gpu in used]
    known = {node.node for node in nodes}
    if len(used) < facts.gpus * facts.on_host or not set(homes) <= known:
        weights = {node.node: 1.0 / len(nodes) for node in nodes}
    else:
        weights = {node.node: homes.count(node.node) / len(homes) for node in nodes}
    usable = min(1.0, machine.usable_memory_bytes / machine.memory_total_bytes)
    rows, given = [], 0
    for place, node in enumerate(nodes):
        last = place == len(nodes) - 1
        size = whole - given if last else int(whole * weights[node.node])
        given += size
        rows.append(
            NodeBytes(
                node=node.node,
                bytes=size,
                available_bytes=int(node.total_bytes * usable),
                gpus=tuple(gpu.index for gpu in used if gpu.numa_node == node.node),
            )
        )
    return tuple(rows)
