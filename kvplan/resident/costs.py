"""What a swap costs: loading weights cold or warm, and making good the KV cache that went with the model."""

from __future__ import annotations

from collections.abc import Sequence

from kvplan.documents import Machine, ResidentModel, SharedMemory
from kvplan.errors import KvplanError
from kvplan.resident.table import Unit

PATTERN_RATIO = {"mmap": 0.67, "direct": 1.0}


def cold_load_s(model: ResidentModel, machine: Machine) -> float:
    """Seconds to load a model from the drive: bytes / (sequential read rate * pattern), or as the list says.

    Raises KvplanError where neither is known.
    """
    if model.load_s is not None:
        return model.load_s
    if machine.read_bytes_per_s is None:
        message = f"model {model.name!r}: no load time: give it load_s, or the machine read_rate"
        raise KvplanError(message)
    ratio = PATTERN_RATIO[machine.pattern] if machine.pattern_ratio is None else machine.pattern_ratio
    return model.weights_bytes / (machine.read_bytes_per_s * ratio)


def shared_memory(models: Sequence[ResidentModel], machine: Machine) -> SharedMemory:
    """Host memory between weight files, the KV tier and the rest. Beyond it every swap is cold.

    In unified memory the models' KV cache and buffers are in it too; weights that are mapped count once.
    """
    weights = sum(model.weights_bytes for model in models)
    left, host = None, machine.host_bytes
    if host is not None:
        left = max(0, host - machine.host_kv_bytes - machine.reserved_bytes)
        if machine.unified:
            left = max(0, left - sum(model.kv_bytes + model.compute_bytes for model in models))
    return SharedMemory(
        ram_bytes=host,
        host_kv_bytes=machine.host_kv_bytes,
        reserved_bytes=machine.reserved_bytes,
        weights_bytes=weights,
        page_cache_bytes=left,
        every_swap_cold=None if left is None else weights > left,
    )


def warm_load_s(model: ResidentModel, machine: Machine, shared: SharedMemory) -> float:
    """Seconds to load a model again: from the page cache where all weights fit there, else as cold as the first time.

    Direct reads pass the page cache by. A warm rate that nobody gave is not guessed: such a load counts as cold.
    """
    cold = cold_load_s(model, machine)
    if shared.every_swap_cold is not False or machine.pattern == "direct":
        return cold
    if model.warm_load_s is not None:
        return model.warm_load_s
    if machine.warm_bytes_per_s is not None:
        return min(cold, model.weights_bytes / machine.warm_bytes_per_s)
    return cold


def stay_cold(models: Sequence[ResidentModel], machine: Machine, shared: SharedMemory) -> tuple[str, ...]:
    """Models whose files would stay in the page cache and whose later loads count as cold all the same."""
    if shared.every_swap_cold is not False:
        return ()
    return tuple(one.name for one in models if warm_load_s(one, machine, shared) >= cold_load_s(one, machine) > 0)


def kv_restore_s(tokens: int, bytes_per_token: int, bytes_per_s: float) -> float:
    """Seconds to read the saved KV cache of `tokens` back."""
    return tokens * bytes_per_token / bytes_per_s


def units(models: Sequence[ResidentModel], machine: Machine, shared: SharedMemory) -> list[Unit]:
    """Fresh units: each model alone, or the models of one group as one; their loads follow one another."""
    members: dict[str, list[int]] = {}
    for index, model in enumerate(models):
        members.setdefault(f"group {model.group}" if model.group is not None else f"model {index}", []).append(index)
    made = []
    for index, group in enumerate(members.values()):
        inside = [models[member] for member in group]
        made.append(
            Unit(
                index=index,
                members=tuple(group),
                bytes=sum(model.total_bytes for model in inside),
                cold_s=sum(cold_load_s(model, machine) for model in inside),
                warm_s=sum(warm_load_s(model, machine, shared) for model in inside),
                stop_s=max(model.stop_s for model in inside),
                pinned=any(model.pinned for model in inside),
            )
        )
    return made
