"""What one layer of each type keeps per sequence, from the keys of its config.

Every builder takes the config and the layer's index and returns the caches that this layer owns. Sizes are in
elements, whole model, before any parallelism; how an engine stores them is the engine's business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from msgspec.structs import replace

from kvplan.documents import LayerCache, LayerKind, StateTensor
from kvplan.errors import KvplanError
from kvplan.models.config import LIMIT, Config, MissingKey

Caches = tuple[LayerCache, ...]

OVERLAPPING = 4  # DeepSeek-V4: the compression ratio whose groups overlap and are searched by an indexer
PATCH_TOKENS = {"vit": 1, "beit": 1, "dinov2": 1, "deit": 2}  # class tokens beside the patches of an image encoder
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
    copied = 0
    if c.flag("new_decoder_architecture", False):
        heads, copied = kv_heads(c, index), c.number("num_attention_heads")
    else:
        heads = 1 if c.flag("multi_query", True) else c.number("num_attention_heads")
    width = head_dim(c)
    return (LayerCache(kind="full", heads=heads, k_dim=width, v_dim=width, copied_heads=copied, keys=c.keys()),)


def multi_query(c: Config, index: int) -> Caches:
    """A `multi_query` flag: one KV head for all where set (GPT-BigCode)."""
    c = c.asking()
    heads = 1 if c.flag("multi_query", True) else c.number("num_attention_heads")
    width = head_dim(c)
    return (LayerCache(kind="full", heads=heads, k_dim=width, v_dim=width, keys=c.keys()),)


def query_groups(c: Config, index: int) -> Caches:
    """ChatGLM: `multi_query_attention` shares KV heads among as many groups of queries as `multi_query_group_num`."""
    c = c.asking()
    key = "multi_query_group_num" if c.flag("multi_query_attention", False) else "num_attention_heads"
    heads, width = c.number(key), head_dim(c)
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
            state = [StateTensor(role="buffer", shape=(ratio, size * (4 if sparse else 2)))]
            if sparse:
                state.append(StateTensor(role="overlap", shape=(ratio, size * 2)))
            kept.append(
                LayerCache(kind=kind, heads=1, k_dim=size, tokens_per_entry=ratio, state=tuple(state), keys=c.keys())
            )
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


# ------------------------------------------------------------------------------------------ wider, narrower, shared


def narrow_values(c: Config, index: int) -> Caches:
    """Full attention whose values have a width of their own (`v_head_dim`)."""
    own = attention(c, index)
    c = c.asking()
    width = c.number("v_head_dim")
    return tuple(replace(cache, v_dim=width, keys=(*cache.keys, *c.keys())) for cache in own)


def narrow_window(c: Config, index: int) -> Caches:
    """MiMo-V2's windows: twice the KV heads of its full layers, or as many as it states for them.

    `sliding_window_size` counts the tokens before the current one.
    """
    own = sliding(c, index)
    c = c.asking()
    heads = c.optional("swa_num_key_value_heads") or 2 * kv_heads(c, index)
    before = c.optional("sliding_window_size")
    window = before + 1 if before else c.number("sliding_window")
    keys = c.optional("swa_head_dim") or head_dim(c)
    values = c.optional("swa_v_head_dim") or c.number("v_head_dim")
    return tuple(
        replace(cache, heads=heads, k_dim=keys, v_dim=values, window_tokens=window, keys=(*cache.keys, *c.keys()))
        for cache in own
    )


def own_window(c: Config, index: int) -> Caches:
    """A window whose layers have head counts and widths of their own (`swa_num_key_value_heads`, `swa_head_dim`)."""
    c = c.asking()
    heads, width, window = c.number("swa_num_key_value_heads"), c.number("swa_head_dim"), c.number("sliding_window")
    return (LayerCache(kind="sliding", heads=heads, k_dim=width, v_dim=width, window_tokens=window, keys=c.keys()),)


def sliding_latent(c: Config, index: int) -> Caches:
    """Latent attention within a window."""
    own = latent(c, index)
    c = c.asking()
    window = c.number("sliding_window")
    return tuple(replace(cache, kind="sliding", window_tokens=window, keys=(*cache.keys, *c.keys())) for cache in own)


def pooled_latent(c: Config, index: int) -> Caches:
    """GLM-5-Next: a latent whose indexer keeps a key, a gate and a position per token, to pool them when searched."""
    own = latent(c, index)
    c = c.asking()
    width = 2 * c.number("index_head_dim") + 1
    return (
        *own,
        LayerCache(kind="indexer", heads=1, k_dim=width, selects_tokens=c.number("index_kpool"), keys=c.keys()),
    )


def unrotated_latent(c: Config, index: int) -> Caches:
    """Latent and indexer of a layer without rotary positions: no rotary key beside the latent."""
    own, key = indexed_latent(c, index)
    return (replace(own, k_dim=own.k_dim - own.rope_dim, rope_dim=0), key)


def unrotated(c: Config, index: int) -> Caches:
    """A latent without rotary key, whose layer searches an earlier layer's index."""
    return unrotated_latent(c, index)[:1]


def searched_attention(c: Config, index: int) -> Caches:
    """Qwen4's sparse layers: K and V of every token, and one index key in the KV dtype."""
    mine = c.asking()
    width, step = mine.number("indexer_head_dim"), mine.optional("indexer_compress_ratio") or 1
    key = LayerCache(kind="indexer", heads=1, k_dim=width, selects_tokens=step, keys=mine.keys())
    return (*attention(c, index), key)


def grouped_in_table(c: Config, index: int) -> Caches:
    """DBRX: KV heads stand in `attn_config`."""
    mine = c.asking()
    table = mine.table("attn_config") or {}
    stated = table.get("kv_n_heads")
    heads = mine.number("num_key_value_heads") if stated is None else mine.checked("kv_n_heads", stated, 1)
    width = head_dim(mine)
    return (LayerCache(kind="full", heads=heads, k_dim=width, v_dim=width, keys=mine.keys()),)


def hidden_states(c: Config, index: int) -> Caches:
    """Layers that keep the hidden state of every token and project it anew (Reformer)."""
    c = c.asking()
    return (LayerCache(kind="full", heads=1, k_dim=c.number("hidden_size"), keys=c.keys()),)


def memories(c: Config, index: int) -> Caches:
    """XLNet: the hidden states of the last `mem_len` tokens before the current one; nothing where it is not set."""
    c = c.asking()
    length, width = c.optional("mem_len", least=0), c.number("hidden_size")
    if not length:
        return ()
    return (LayerCache(kind="sliding", heads=1, k_dim=width, window_tokens=length + 1, keys=c.keys()),)


def prompted(key: str) -> Callable[[Config, int], Caches]:
    """Full attention behind a prefix of the model's own, as long as `key` says."""

    def build(c: Config, index: int) -> Caches:
        own = attention(c, index)
        c = c.asking()
        length = c.number(key, least=0)
        return tuple(replace(cache, prefix_tokens=length, keys=(*cache.keys, *c.keys())) for cache in own)

    return build


# ------------------------------------------------------------------------------------------ cross attention


def crossing(own: Callable[[Config, int], Caches]) -> Callable[[Config, int], Caches]:
    """A decoder layer that keeps what `own` says, and K and V of the encoder's output."""

    def build(c: Config, index: int) -> Caches:
        kept = own(c, index)
        c = c.asking()
        heads = c.optional("cross_num_key_value_heads") or kept[0].heads
        width = c.optional("cross_head_dim") or kept[0].k_dim
        positions = encoder_positions(c)
        far = LayerCache(kind="cross", heads=heads, k_dim=width, v_dim=width, fixed_tokens=positions, keys=c.keys())
        return (*kept, far)

    return build


def cross_only(c: Config, index: int) -> Caches:
    """A layer that attends to what an encoder made of the request's images, and to nothing else (Mllama)."""
    own = attention(c, index)
    return tuple(replace(cache, kind="cross") for cache in own)


def conditioned(c: Config, index: int) -> Caches:
    """MusicGen Melody: melody and text come before the decoder's own tokens, in the same cache."""
    (own,) = attention(c, index)
    length = c.root.get("chroma_length")
    prefix = 0 if length is None else c.checked("chroma_length", length, 0)
    text = replace(own, kind="cross")
    return (replace(own, prefix_tokens=prefix), text)


def encoder_positions(c: Config) -> int | None:
    """Positions of the encoder where the model fixes them: as stated, or patches of a square image.

    None means as many as the encoder is given.
    """
    stated = c.optional("max_source_positions")
    if stated is not None:
        return stated
    encoder = c.root.get("encoder")
    if not isinstance(encoder, Mapping) or encoder.get("model_type") not in PATCH_TOKENS:
        return None
    image, patch = encoder.get("image_size"), encoder.get("patch_size")
    if not isinstance(image, int) or not isinstance(patch, int) or not 0 < patch <= image < LIMIT:
        return None
    c.used["encoder.image_size"] = c.used["encoder.patch_size"] = None
    return (image // patch) ** 2 + PATCH_TOKENS[str(encoder["model_type"])]
