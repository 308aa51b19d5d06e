"""What one layer of each type keeps per sequence, from the keys of its config.

Every builder takes the config and the layer's index and returns the caches that this layer owns. Sizes are in
elements, whole model, before any parallelism; how an engine stores them is the engine's business.
"""

from __future__ import annotations

from kvplan.documents import LayerCache, LayerKind, Recurrence, StateTensor
from kvplan.errors import KvplanError
from kvplan.models.config import Config, MissingKey, shown

Caches = tuple[LayerCache, ...]

STATE_DTYPES = {"float32": "fp32", "bfloat16": "bf16", "float16": "fp16"}
OVERLAPPING = 4  # DeepSeek-V4: the compression ratio whose groups overlap and are searched by an indexer
FP8_SCALE_GROUP = 128  # an indexer key is stored in fp8 with one fp32 scale per 128 elements


def head_dim(c: Config) -> int:
    """Width of one head: the config's own, or hidden size over heads where it has none (or null, or 0)."""
    width = c.optional("head_dim", least=0)
    if width:
        return width
    width = _share("hidden_size", c.number("hidden_size"), c.number("num_attention_heads"), c)
    c.used["head_dim derived: hidden_size / num_attention_heads"] = None
    return width


def _share(key: str, hidden: int, heads: int, c: Config) -> int:
    if hidden % heads:
        raise KvplanError(f"{c.where}: no head width, and {key!r} {hidden} is no multiple of {heads} heads")
    return hidden // heads


def kv_heads(c: Config, index: int) -> int:
    """KV heads of one layer; a class default "num_attention_heads" means as many as there are query heads."""
    value = c.get("num_key_value_heads")
    if isinstance(value, list | tuple):
        if index >= len(value):
            raise KvplanError(f"{c.where}: 'num_key_value_heads' lists {len(value)} layers, layer {index} is missing")
        return c.checked("num_key_value_heads", value[index], 0)
    if value == "num_attention_heads" or (value is None and c.states("num_key_value_heads")):
        return c.number("num_attention_heads")
    if value is None:
        raise MissingKey("num_key_value_heads", c.where)
    return c.checked("num_key_value_heads", value, 1)


def attention(c: Config, index: int) -> Caches:
    """Full attention: K and V of every token."""
    c = c.asking()
    heads, width = kv_heads(c, index), head_dim(c)
    if heads == 0:
        return ()
    return (LayerCache(kind="full", heads=heads, k_dim=width, v_dim=width, keys=c.keys()),)


def _windowed(c: Config, index: int, kind: LayerKind, key: str) -> Caches:
    c = c.asking()
    heads, width, window = kv_heads(c, index), head_dim(c), c.number(key)
    if heads == 0:
        return ()
    return (LayerCache(kind=kind, heads=heads, k_dim=width, v_dim=width, window_tokens=window, keys=c.keys()),)


def sliding(c: Config, index: int) -> Caches:
    """Sliding-window attention: K and V of the last `sliding_window` tokens."""
    return _windowed(c, index, "sliding", "sliding_window")


def chunked(c: Config, index: int) -> Caches:
    """Chunked attention: K and V of at most `attention_chunk_size` tokens."""
    return _windowed(c, index, "chunked", "attention_chunk_size")


def falcon(c: Config, index: int) -> Caches:
    """Falcon: `multi_query` overrides the KV head count unless the new decoder groups heads."""
    c = c.asking()
    if c.flag("new_decoder_architecture", False):
        heads = kv_heads(c, index)
    else:
        heads = 1 if c.flag("multi_query", True) else c.number("num_attention_heads")
    width = head_dim(c)
    return (LayerCache(kind="full", heads=heads, k_dim=width, v_dim=width, keys=c.keys()),)


def multi_query(c: Config, index: int) -> Caches:
    """A `multi_query` flag: one KV head for all where set (GPT-BigCode)."""
    c = c.asking()
    heads = 1 if c.flag("multi_query", True) else c.number("num_attention_heads")
    width = head_dim(c)
    return (LayerCache(kind="full", heads=heads, k_dim=width, v_dim=width, keys=c.keys()),)


def latent(c: Config, index: int) -> Caches:
    """Multi-head latent attention: one latent of `kv_lora_rank` and one shared rotary key per token, no V."""
    c = c.asking()
    rank, rope = c.number("kv_lora_rank"), c.number("qk_rope_head_dim", least=0)
    return (LayerCache(kind="latent", heads=1, k_dim=rank + rope, rope_dim=rope, keys=c.keys()),)


def _fp8_slot(width: int) -> int:
    return width + 4 * -(-width // FP8_SCALE_GROUP)


def indexer(c: Config, index: int) -> Caches:
    """The key that sparse attention searches: fp8 with an fp32 scale, as the DeepSeek-V3.2 release stores it."""
    c = c.asking()
    width = c.number("index_head_dim")
    return (LayerCache(kind="indexer", heads=1, k_dim=width, slot_bytes=_fp8_slot(width), keys=c.keys()),)


def indexed_latent(c: Config, index: int) -> Caches:
    """A latent with its own indexer key."""
    return latent(c, index) + indexer(c, index)


def indexed_attention(c: Config, index: int) -> Caches:
    """MiniMax-M3's sparse layers: K and V of every token, and one index key in the KV dtype to pick blocks by."""
    mine = c.asking()
    sparse = mine.table("sparse_attention_config") or {}
    width, block = sparse.get("sparse_index_dim"), sparse.get("sparse_block_size")
    width = mine.number("index_head_dim") if width is None else mine.checked("sparse_index_dim", width, 1)
    block = mine.number("index_block_size") if block is None else mine.checked("sparse_block_size", block, 1)
    key = LayerCache(kind="indexer", heads=1, k_dim=width, selects_tokens=block, keys=mine.keys())
    return (*attention(c, index), key)


def _compression(c: Config, index: int) -> int:
    """Tokens per compressed entry of one DeepSeek-V4 layer, 0 for a layer that only keeps its window."""
    ratios = c.items("compress_ratios")
    if ratios is not None:
        if index >= len(ratios):
            raise KvplanError(f"{c.where}: 'compress_ratios' lists {len(ratios)} layers, layer {index} is missing")
        return c.checked("compress_ratios", ratios[index], 0)
    types, rates = c.words("layer_types"), c.table("compress_rates")
    if types is None or rates is None or index >= len(types):
        raise MissingKey("compress_ratios", c.where)
    return c.checked("compress_rates", rates.get(types[index], 0), 0)


def compressed(c: Config, index: int) -> Caches:
    """DeepSeek-V4: a window of shared K = V; where the layer compresses, also one latent per group of tokens.

    Groups of 4 overlap, and those layers keep an index key per group. Tokens whose group is still open wait as
    projected values and gates: one group, and where groups overlap twice the width plus the group before.
    """
    c = c.asking()
    width, window, ratio = c.number("head_dim"), c.number("sliding_window"), _compression(c, index)
    kept = [LayerCache(kind="sliding", heads=1, k_dim=width, window_tokens=window, keys=c.keys())]
    if ratio:
        sparse = ratio == OVERLAPPING
        widths: list[tuple[LayerKind, int]] = [("latent", width)]
        if sparse:
            widths.append(("indexer", c.number("index_head_dim")))
        for kind, size in widths:
            waiting = ratio * size * (6 if sparse else 2)
            state = (StateTensor(role="buffer", shape=(waiting,)),)
            kept.append(LayerCache(kind=kind, heads=1, k_dim=size, tokens_per_entry=ratio, state=state, keys=c.keys()))
    return tuple(kept)


def gemma4_attention(c: Config, index: int) -> Caches:
    """Gemma 4's full layers: wider heads, and their own KV head count where K doubles as V. Both are still stored."""
    if c.overridden:
        return attention(c, index)
    c = c.asking()
    width = c.number("global_head_dim")
    heads = c.optional("num_global_key_value_heads") if c.flag("attention_k_eq_v", False) else None
    heads = heads or kv_heads(c, index)
    return (LayerCache(kind="full", heads=heads, k_dim=width, v_dim=width, keys=c.keys()),)


def nas_block(c: Config, index: int) -> Caches:
    """Nemotron-NAS: each block states how many query heads share a KV head."""
    c = c.asking()
    blocks = c.items("block_configs") or []
    block = blocks[index].get("attention", {})
    heads, group = c.number("num_attention_heads"), c.checked("n_heads_in_group", block.get("n_heads_in_group"), 1)
    if heads % group:
        raise KvplanError(f"{c.where}: block {index} groups {group} of {heads} heads, which does not divide")
    width = head_dim(c)
    window = block.get("window_length")
    return (
        LayerCache(
            kind="full" if window is None else "sliding",
            heads=heads // group,
            k_dim=width,
            v_dim=width,
            window_tokens=None if window is None else c.checked("window_length", window, 1),
            keys=c.keys(),
        ),
    )


def self_and_cross(c: Config, index: int) -> Caches:
    """A decoder layer of an encoder-decoder model: its own K and V, and those of the encoder's output."""
    c = c.asking()
    heads = c.number("decoder_attention_heads")
    width = c.optional("d_kv") or _share("d_model", c.number("d_model"), heads, c)
    own = LayerCache(kind="full", heads=heads, k_dim=width, v_dim=width, keys=c.keys())
    positions = c.optional("max_source_positions")
    far = LayerCache(kind="cross", heads=heads, k_dim=width, v_dim=width, fixed_tokens=positions, keys=c.keys())
    return (own, far)


# ------------------------------------------------------------------------------------------ recurrent state


def _recurrent(c: Config, recurrence: Recurrence, *state: StateTensor) -> Caches:
    return (LayerCache(kind="recurrent", state=state, recurrence=recurrence, keys=c.keys()),)


def _state_dtype(c: Config) -> str | None:
    stated = c.get("ssm_dtype")
    if stated is None or stated == "auto":
        return None
    if not isinstance(stated, str) or stated not in STATE_DTYPES:
        raise KvplanError(f"{c.where}: unknown state dtype {shown(stated)} (known: {', '.join(STATE_DTYPES)})")
    return STATE_DTYPES[stated]


def mamba1(c: Config, index: int) -> Caches:
    """Mamba: state of (inner width, state size), convolution over the inner width."""
    c = c.asking()
    inner = c.optional("mamba_intermediate_size") or c.number("ssm_expand") * c.number("hidden_size")
    state, kernel = c.number("ssm_state"), c.number("ssm_kernel")
    return _recurrent(
        c,
        "mamba1",
        StateTensor(role="conv", shape=(inner, kernel - 1), split=((inner, 1),)),
        StateTensor(role="state", shape=(inner, state), dtype=_state_dtype(c), split=((inner, 1),)),
    )


def mamba2(c: Config, index: int) -> Caches:
    """Mamba-2: state of (heads, head width, state size); the convolution also runs over both state projections."""
    c = c.asking()
    heads, groups = c.number("ssm_heads"), c.number("ssm_groups")
    width = c.get("ssm_head_dim")
    if width is None or width == "auto":
        width = c.number("ssm_expand") * c.number("hidden_size") // heads
    width = c.checked("ssm_head_dim", width, 1)
    state, kernel = c.number("ssm_state"), c.number("ssm_kernel")
    channels = heads * width + 2 * groups * state
    return _recurrent(
        c,
        "mamba2",
        StateTensor(role="conv", shape=(channels, kernel - 1), split=((heads, width), (groups, 2 * state))),
        StateTensor(role="state", shape=(heads, width, state), dtype=_state_dtype(c), split=((heads, 1),)),
    )


def attention_and_mamba2(c: Config, index: int) -> Caches:
    """Both in one layer: Falcon-H1 side by side, Zamba2's hybrid layers one after the other."""
    return attention(c, index) + mamba2(c, index)


def delta_net(c: Config, index: int) -> Caches:
    """Gated delta net: a (key width, value width) state per value head, convolution over queries, keys, values."""
    c = c.asking()
    key_heads, key_dim = c.number("linear_num_key_heads"), c.number("linear_key_head_dim")
    value_heads, value_dim = c.number("linear_num_value_heads"), c.number("linear_value_head_dim")
    kernel = c.number("linear_conv_kernel_dim")
    channels = 2 * key_heads * key_dim + value_heads * value_dim
    split = ((key_heads, 2 * key_dim), (value_heads, value_dim))
    shape = (value_heads, key_dim, value_dim)
    return _recurrent(
        c,
        "delta",
        StateTensor(role="conv", shape=(channels, kernel - 1), split=split),
        StateTensor(role="state", shape=shape, dtype=_state_dtype(c), split=((value_heads, 1),)),
    )


def kimi_delta(c: Config, index: int) -> Caches:
    """Kimi delta attention: one square state per head, convolutions over queries, keys and values."""
    c = c.asking()
    sizes = c.table("linear_attn_config") or {}
    heads = sizes.get("num_heads") or c.number("linear_num_heads")
    width = sizes.get("head_dim") or c.number("linear_head_dim")
    kernel = sizes.get("short_conv_kernel_size") or c.number("linear_conv_kernel_dim")
    heads, width = c.checked("num_heads", heads, 1), c.checked("head_dim", width, 1)
    columns = c.checked("short_conv_kernel_size", kernel, 1) - 1
    return _recurrent(
        c,
        "kimi-delta",
        StateTensor(role="conv", shape=(3 * heads * width, columns), split=((heads, 3 * width),)),
        StateTensor(role="state", shape=(heads, width, width), dtype=_state_dtype(c), split=((heads, 1),)),
    )


def lightning(c: Config, index: int) -> Caches:
    """Lightning attention (MiniMax-01): one square state per query head."""
    c = c.asking()
    heads, width = c.number("num_attention_heads"), head_dim(c)
    return _recurrent(
        c,
        "lightning",
        StateTensor(role="state", shape=(heads, width, width), dtype=_state_dtype(c), split=((heads, 1),)),
    )


def convolution(c: Config, index: int) -> Caches:
    """A short gated convolution (LFM2): its last inputs, as wide as the hidden state."""
    c = c.asking()
    hidden, kernel = c.number("hidden_size"), c.number("conv_L_cache")
    return _recurrent(c, "short-conv", StateTensor(role="conv", shape=(hidden, kernel - 1), split=((hidden, 1),)))
