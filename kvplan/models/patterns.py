"""Which type each layer of a model is: from its own list, a pattern string, an interval, or the class default.

Every function here makes or is a pattern: config and number of layers in, one layer type per layer out. A model of
a hybrid family whose layer map is nowhere stated raises MissingMap: it is never read as dense.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from kvplan.errors import KvplanError
from kvplan.models.config import Config, MissingKey, MissingMap

Pattern = Callable[[Config, int], Sequence[str]]

# The names that releases of transformers and of model authors have used for the same layer.
SYNONYMS = {
    "attention": "full_attention",
    "full": "full_attention",
    "global": "full_attention",
    "global_attention": "full_attention",
    "sliding": "sliding_attention",
    "local": "sliding_attention",
    "local_attention": "sliding_attention",
    "swa": "sliding_attention",
    "chunked": "chunked_attention",
    "mamba": "linear_attention",
    "mamba2": "linear_attention",
    "linear": "linear_attention",
    "recurrent": "linear_attention",
    "short_conv": "conv",
}
LETTERS = {"M": "linear_attention", "*": "full_attention", "-": "mlp", "E": "moe"}


def only(kind: str) -> Pattern:
    """Every layer alike."""
    return lambda c, n: [kind] * n


def stated(c: Config, n: int, *keys: str) -> list[str] | None:
    """The config's own list of layer types, under one of `keys`; entries after the n-th are draft layers."""
    for key in keys:
        types = c.words(key)
        if types:
            if len(types) < n:
                raise KvplanError(f"{c.where}: {key!r} lists {len(types)} layers, but the model has {n}")
            return [SYNONYMS.get(kind, kind) for kind in types[:n]]
    return None


def layer_types(*keys: str) -> Pattern:
    """The list must be in the config: the class's own default is no map of this model."""

    def pattern(c: Config, n: int) -> list[str]:
        found = stated(c, n, "layer_types", *keys)
        if found is None:
            raise MissingMap("layer_types", c.where)
        return found

    return pattern


def alternating(period: int, *, last_full: bool = False) -> Pattern:
    """Windows with every `period`-th layer full, where the config lists nothing else."""

    def pattern(c: Config, n: int) -> list[str]:
        found = stated(c, n, "layer_types")
        if found is None:
            every = c.optional("sliding_window_pattern") or c.optional("_sliding_window_pattern") or period
            found = ["full_attention" if (i + 1) % every == 0 else "sliding_attention" for i in range(n)]
        if last_full and found:
            found[-1] = "full_attention"
        return found

    return pattern


def exaone_types(c: Config, n: int) -> list[str]:
    """EXAONE 4: no window means all full; else a period, or letters with L for a window and G for full."""
    found = stated(c, n, "layer_types")
    if found is not None:
        return found
    if c.optional("sliding_window", least=0) in (None, 0):
        return ["full_attention"] * n
    every = c.get("sliding_window_pattern")
    if isinstance(every, str) and every:
        return ["full_attention" if every[i % len(every)] == "G" else "sliding_attention" for i in range(n)]
    period = c.number("sliding_window_pattern")
    return ["full_attention" if (i + 1) % period == 0 else "sliding_attention" for i in range(n)]


def window_if_set(c: Config, n: int) -> list[str]:
    """All layers slide where `sliding_window` is set (and not switched off), else none does."""
    found = stated(c, n, "layer_types")
    if found is not None:
        return found
    on = c.flag("use_sliding_window", True) and c.optional("sliding_window", least=0)
    return ["sliding_attention" if on else "full_attention"] * n


def qwen_window(c: Config, n: int) -> list[str]:
    """Layers from `max_window_layers` on slide where `use_sliding_window` says so."""
    found = stated(c, n, "layer_types")
    if found is not None:
        return found
    first = n
    if c.flag("use_sliding_window", False) and c.optional("sliding_window", least=0):
        first = c.number("max_window_layers", least=0)
    return ["sliding_attention" if i >= first else "full_attention" for i in range(n)]


def qwen_moe_window(c: Config, n: int) -> list[str]:
    """Qwen2-MoE: every other layer below `max_window_layers` slides, where switched on."""
    found = stated(c, n, "layer_types")
    if found is not None:
        return found
    last = 0
    if c.flag("use_sliding_window", False) and c.optional("sliding_window", least=0):
        last = c.number("max_window_layers", least=0)
    return ["sliding_attention" if i % 2 == 0 and i < last else "full_attention" for i in range(n)]


def chunk_schedule(c: Config, n: int) -> list[str]:
    """Llama 4: layers with rotary positions attend within chunks, those without see everything."""
    if c.optional("attention_chunk_size") is None:
        return ["full_attention"] * n
    found = stated(c, n, "layer_types")
    if found is not None:
        return found
    rotary = c.items("no_rope_layers")
    if rotary:
        if len(rotary) < n:
            raise KvplanError(f"{c.where}: 'no_rope_layers' lists {len(rotary)} layers, but the model has {n}")
        return ["chunked_attention" if on else "full_attention" for on in rotary[:n]]
    every = c.number("no_rope_layer_interval")
    return ["full_attention" if (i + 1) % every == 0 else "chunked_attention" for i in range(n)]


def full_interval(c: Config, n: int) -> list[str]:
    """Linear attention with every `full_attention_interval`-th layer full (Qwen3-Next, Qwen3.5)."""
    found = stated(c, n, "layer_types")
    if found is not None:
        return found
    every = c.number("full_attention_interval")
    return ["full_attention" if (i + 1) % every == 0 else "linear_attention" for i in range(n)]


def jamba_types(c: Config, n: int) -> list[str]:
    """Attention at `attn_layer_offset` of every `attn_layer_period` layers, Mamba elsewhere."""
    period, offset = c.number("attn_layer_period"), c.number("attn_layer_offset", least=0)
    return ["full_attention" if i % period == offset else "linear_attention" for i in range(n)]


def indices(*keys: str, inside: str, outside: str) -> Pattern:
    """A list of the layers (from 0) that attend, or a list of types; there is no default."""

    def pattern(c: Config, n: int) -> list[str]:
        found = stated(c, n, "layer_types", "layers_block_type")
        if found is not None:
            return found
        for key in keys:
            chosen = c.items(key)
            if chosen is not None:
                wanted = {c.checked(key, i, 0) for i in chosen}
                if wanted and max(wanted) >= n:
                    raise KvplanError(f"{c.where}: {key!r} names layer {max(wanted)}, but the model has {n}")
                return [inside if i in wanted else outside for i in range(n)]
        raise MissingMap(keys[0], c.where)

    return pattern


def kimi_types(c: Config, n: int) -> list[str]:
    """Kimi Linear: `linear_attn_config` lists both kinds of layer, counted from 1."""
    table: Mapping[str, object] = c.table("linear_attn_config") or {}
    full, linear = table.get("full_attn_layers"), table.get("kda_layers")
    if full is None and linear is None:
        found = stated(c, n, "layer_types")
        if found is None:
            raise MissingMap("linear_attn_config.full_attn_layers", c.where)
        return found
    types = [""] * n
    for kind, listed in (("full_attention", full), ("linear_attention", linear)):
        if not isinstance(listed, list):
            raise KvplanError(f"{c.where}: 'linear_attn_config' must list both full_attn_layers and kda_layers")
        for place in listed:
            if c.checked("linear_attn_config", place, 1) <= n:
                types[place - 1] = kind
    if "" in types:
        raise KvplanError(f"{c.where}: 'linear_attn_config' leaves out layer {types.index('') + 1} (counted from 1)")
    return types


def nemotron_types(c: Config, n: int) -> list[str]:
    """Nemotron-H: one letter or word a block: Mamba, attention, MLP, experts."""
    pattern = c.get("hybrid_override_pattern")
    if pattern is None:
        found = stated(c, n, "layers_block_type", "layer_types")
        if found is None:
            raise MissingMap("hybrid_override_pattern", c.where)
        return found
    if not isinstance(pattern, str) or set(pattern) - set(LETTERS):
        raise KvplanError(f"{c.where}: 'hybrid_override_pattern' must be a string of {', '.join(LETTERS)}")
    if len(pattern) != n:
        raise KvplanError(f"{c.where}: 'hybrid_override_pattern' has {len(pattern)} layers, but the model has {n}")
    return [LETTERS[letter] for letter in pattern]


def block_configs(c: Config, n: int) -> list[str]:
    """Nemotron-NAS: each block says whether it attends at all."""
    blocks = c.items("block_configs")
    if blocks is None and c.states("num_key_value_heads_per_layer"):
        return ["listed_attention"] * n
    if blocks is None:
        raise MissingMap("block_configs", c.where)
    types = []
    for index, block in enumerate(blocks):
        attends = block.get("attention") if isinstance(block, Mapping) else None
        if not isinstance(attends, Mapping):
            raise KvplanError(f"{c.where}: 'block_configs' entry {index} has no 'attention'")
        silent = attends.get("no_op") or attends.get("replace_with_linear")
        types.append("none" if silent else "full_attention")
    if len(types) != n:
        raise KvplanError(f"{c.where}: 'block_configs' has {len(types)} blocks, but the model has {n} layers")
    return types


def indexer_types(c: Config, n: int) -> list[str]:
    """Sparse latent attention: layers marked shared use the index of an earlier layer."""
    listed = c.words("indexer_types")
    if listed is None:
        pattern = c.get("index_topk_pattern")
        if isinstance(pattern, str | list):
            listed = [{"F": "full", "S": "shared"}.get(str(mark), str(mark)) for mark in pattern]
    if listed is None:
        every = max(c.optional("index_topk_freq", least=0) or 1, 1)
        offset = c.optional("index_skip_topk_offset", least=0)
        first = 2 if offset is None else offset
        listed = ["full" if max(i - first + 1, 0) % every == 0 else "shared" for i in range(n)]
    if len(listed) < n:
        raise KvplanError(f"{c.where}: 'indexer_types' lists {len(listed)} layers, but the model has {n}")
    return [f"indexed_{kind}" for kind in listed[:n]]


def sparse_freq(c: Config, n: int) -> list[str]:
    """MiniMax-M3: layers marked 1 search an index, the others attend in full."""
    table = c.table("sparse_attention_config") or {}
    marks = table.get("sparse_attention_freq")
    if marks is None:
        found = stated(c, n, "layer_types")
        if found is None:
            raise MissingMap("sparse_attention_config.sparse_attention_freq", c.where)
        return found
    if not isinstance(marks, list) or len(marks) < n:
        raise KvplanError(f"{c.where}: 'sparse_attention_freq' must list all {n} layers")
    return ["minimax_m3_sparse" if mark else "full_attention" for mark in marks[:n]]


def by_class(c: Config, n: int) -> list[str]:
    """The file's own list, or the one that the transformers class derives from the file's other keys."""
    found = stated(c, n, "layer_types")
    if found is None:
        raise MissingKey("layer_types", c.where)
    return found


def interval(key: str, at: str, elsewhere: str) -> Pattern:
    """A list of types, or one type at every `key`-th layer and another elsewhere."""

    def pattern(c: Config, n: int) -> list[str]:
        found = stated(c, n, "layer_types")
        if found is not None:
            return found
        every = c.number(key)
        return [at if (i + 1) % every == 0 else elsewhere for i in range(n)]

    return pattern


def repeating(key: str) -> Pattern:
    """A short list that repeats (RecurrentGemma's `block_types`)."""

    def pattern(c: Config, n: int) -> list[str]:
        unit = c.words(key)
        if not unit:
            raise MissingMap(key, c.where)
        return [unit[i % len(unit)] for i in range(n)]

    return pattern


def mimo_types(c: Config, n: int) -> list[str]:
    """MiMo-V2: a list of types, or of marks with 1 for a window; else as its class derives it."""
    marks = c.items("hybrid_layer_pattern") if c.states("hybrid_layer_pattern") else None
    if marks is None:
        return by_class(c, n)
    if len(marks) < n:
        raise KvplanError(f"{c.where}: 'hybrid_layer_pattern' lists {len(marks)} layers, but the model has {n}")
    return ["sliding_attention" if mark else "full_attention" for mark in marks[:n]]


def searched_types(c: Config, n: int) -> list[str]:
    """Qwen4: layers listed as full attention search an index where the config states one."""
    found = list(layer_types()(c, n))
    if c.optional("indexer_n_heads", least=0):
        return ["indexed_attention" if kind == "full_attention" else kind for kind in found]
    return found


def pooled_types(c: Config, n: int) -> list[str]:
    """GLM-5-Next: delta layers and latent layers, of which some use an earlier layer's index."""
    found, index = layer_types()(c, n), c.words("indexer_types")
    if index is None:
        raise MissingKey("indexer_types", c.where)
    if len(index) < n:
        raise KvplanError(f"{c.where}: 'indexer_types' lists {len(index)} layers, but the model has {n}")
    latent = ("indexed_attention", "full_attention")
    return [f"indexed_{index[i]}" if kind in latent else kind for i, kind in enumerate(found)]


def mistral_large4_types(c: Config, n: int) -> list[str]:
    """Which layers own a cache, an index, and a rotary key."""
    index, rotary, sources = c.words("indexer_types"), c.items("no_rope_layers"), c.items("kv_source_layers")
    for key, listed in (("indexer_types", index), ("no_rope_layers", rotary), ("kv_source_layers", sources)):
        if listed is None:
            raise MissingKey(key, c.where)
        if len(listed) < n:
            raise KvplanError(f"{c.where}: {key!r} lists {len(listed)} layers, but the model has {n}")
    assert index is not None
    assert rotary is not None
    assert sources is not None
    types = [f"{'indexed' if rotary[i] else 'unrotated'}_{index[i]}" for i in range(n)]
    return [kind if sources[i] == i else "shared" for i, kind in enumerate(types)]


def local_only(c: Config, n: int) -> list[str]:
    """Reformer's local layers; those that hash keep their buckets as well, which nothing here counts."""
    listed = c.words("attn_layers")
    if not listed:
        raise MissingMap("attn_layers", c.where)
    if set(listed) != {"local"}:
        raise KvplanError(f"{c.where}: 'attn_layers' has layers that hash (lsh), whose cache kvplan does not know")
    return ["full_attention"] * n


# ------------------------------------------------------------------------------------------ beside an encoder


def beside_encoder(base: Pattern | None = None) -> Pattern:
    """Layers that also attend to an encoder, unless the config is of the decoder alone."""

    def pattern(c: Config, n: int) -> list[str]:
        types = list(base(c, n)) if base else ["full_attention"] * n
        return [f"crossed_{kind}" if _has_encoder(c) else kind for kind in types]

    return pattern


def _has_encoder(c: Config) -> bool:
    if not c.prefix:
        return c.flag("is_encoder_decoder", True)
    said = [place["is_encoder_decoder"] for place in (c.root, c.raw) if place.get("is_encoder_decoder") is not None]
    return any(said) if said else True


def as_decoder(c: Config, n: int) -> list[str]:
    """An encoder's architecture run as a decoder: alone, or behind another encoder; as an encoder it keeps nothing."""
    if c.flag("add_cross_attention", False) or (c.prefix and c.root.get("is_encoder_decoder", True)):
        return ["crossed_full_attention"] * n
    return (["full_attention"] if c.flag("is_decoder", False) else ["none"]) * n
