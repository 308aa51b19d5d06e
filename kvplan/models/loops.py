"""Patterns of models that run layers more than once, each run with a cache of its own.

They list a layer once for every cache, in order of execution, so the list may be longer than the number of layers.
"""

from __future__ import annotations

from kvplan.errors import KvplanError
from kvplan.models.config import Config, MissingKey, MissingMap
from kvplan.models.patterns import Pattern, stated

MOST_CACHES = 20_000  # of all runs of all layers together


def repeated(times: int, kind: str) -> Pattern:
    """Every layer holds `times` attentions of one kind (LongCat)."""
    return lambda c, n: [kind] * (n * times)


def cycled(c: Config, n: int) -> list[str]:
    """HRM: `num_hidden_layers` counts every run of both stacks where `num_layers_per_stack` stands beside it."""
    if not c.states("num_layers_per_stack"):
        n *= c.number("H_cycles") * (c.number("L_cycles") + 1)
    if n > MOST_CACHES:
        raise KvplanError(f"{c.where}: cycles through {n} layers, which no model can have")
    return ["full_attention"] * n


def dory_types(c: Config, n: int) -> list[str]:
    """Dory: the layers between input and output sections loop; only with `last_loop` they keep one cache."""
    if not c.states("layer_types"):
        raise MissingMap("layer_types", c.where)
    types = stated(c, n, "layer_types")
    if types is None:
        raise MissingMap("layer_types", c.where)
    mode = c.get("recurrent_kv_cache_mode")
    if mode not in ("per_loop", "last_loop"):
        raise MissingKey("recurrent_kv_cache_mode", c.where)
    start = c.number("n_input_layers", least=0)
    middle = c.optional("n_recurrent_layers", least=0)
    end = n - c.number("n_output_layers", least=0) if middle is None else start + middle
    return _loop(types, start, end, 1 if mode == "last_loop" else c.number("n_recurrent_loops"), c)


def looped(c: Config, n: int) -> list[str]:
    """Inkling: a list of types, or of the layers that slide; of the looping kind, a core that runs several times."""
    types = stated(c, n, "layer_types")
    if types is None:
        local = c.items("local_layer_ids")
        if local is None:
            raise MissingMap("layer_types", c.where)
        types = ["hybrid_sliding" if i in local else "hybrid" for i in range(n)]
    if "loop" not in c.model_type:
        return types
    core = c.table("loop_config") or {}
    if core:
        start, end, runs = core.get("core_start"), core.get("core_end"), core.get("num_passes")
        start, end = c.checked("loop_config.core_start", start, 0), c.checked("loop_config.core_end", end, 0)
        return _loop(types, start, end, c.checked("loop_config.num_passes", runs, 1), c)
    start, end = c.number("loop_layer_index_start", least=0), c.number("loop_layer_index_end", least=0)
    return _loop(types, start, end, c.number("loop_num_passes"), c)


def _loop(types: list[str], start: int, end: int, runs: int, c: Config) -> list[str]:
    if not start <= end <= len(types) or len(types) * runs > MOST_CACHES:
        raise KvplanError(f"{c.where}: loops layers {start} to {end} {runs} times, but the model has {len(types)}")
    return types[:start] + types[start:end] * runs + types[end:]
