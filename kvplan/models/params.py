"""Parameters of a model, counted from its architecture where no checkpoint is at hand.

Only matrices are counted: norms, biases and rotary tables are left out (less than 0.1 % of any model here).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from kvplan.errors import KvplanError
from kvplan.models.architecture import Facts
from kvplan.models.caches import head_dim, kv_heads, nas_block
from kvplan.models.config import Config, MissingKey

MAX_PARAMS = 10**15


@dataclass(frozen=True, slots=True)
class Counts:
    """Weights of a whole model by what they do; `active_experts` is what one token passes of `experts`."""

    embedding: int = 0
    head: int = 0
    mixers: int = 0
    dense: int = 0
    experts: int = 0
    active_experts: int = 0
    shared_experts: int = 0
    routers: int = 0
    encoder: int = 0

    @property
    def total(self) -> int:
        """Every weight stored."""
        return self.embedding + self.head + self.blocks + self.experts + self.encoder

    @property
    def blocks(self) -> int:
        """What every token passes in the decoder's layers, experts apart."""
        return self.mixers + self.dense + self.shared_experts + self.routers

    @property
    def active(self) -> int:
        """Weights that one token passes in the decoder's layers: no embedding, no output head."""
        return self.blocks + self.active_experts


@dataclass(frozen=True, slots=True)
class Mlp:
    """One layer's feed-forward weights."""

    dense: int = 0
    experts: int = 0
    active_experts: int = 0
    shared: int = 0
    router: int = 0


Mixer = Callable[[Config, int], int]


# ------------------------------------------------------------------------------------------ token mixers


def dense_attention(c: Config, index: int) -> int:
    """Query, key, value and output projections; a gated query is twice as wide."""
    hidden, heads, width = c.number("hidden_size"), c.number("num_attention_heads"), head_dim(c)
    gate = 2 if c.flag("attn_output_gate", False) else 1
    return hidden * width * (heads * (gate + 1) + 2 * kv_heads(c, index))


def gated_attention(c: Config, index: int) -> int:
    """Qwen3-Next and Qwen3.5: the query projection also makes the output gate."""
    hidden, heads, width = c.number("hidden_size"), c.number("num_attention_heads"), head_dim(c)
    return hidden * width * (3 * heads + 2 * kv_heads(c, index))


def gemma4_full(c: Config, index: int) -> int:
    """Gemma 4's full layers: wide heads, and no value projection where K doubles as V."""
    hidden, heads, width = c.number("hidden_size"), c.number("num_attention_heads"), c.number("global_head_dim")
    tied = c.flag("attention_k_eq_v", False)
    own = (c.optional("num_global_key_value_heads") if tied else None) or kv_heads(c, index)
    return hidden * width * (2 * heads + own * (1 if tied else 2))


def falcon_attention(c: Config, index: int) -> int:
    """Falcon: one KV head, or as many groups as the new decoder states."""
    hidden, heads, width = c.number("hidden_size"), c.number("num_attention_heads"), head_dim(c)
    if c.flag("new_decoder_architecture", False):
        own = kv_heads(c, index)
    else:
        own = 1 if c.flag("multi_query", True) else heads
    return hidden * width * (2 * heads + 2 * own)


def nas_attention(c: Config, index: int) -> int:
    """Nemotron-NAS: KV heads as the block groups them."""
    own = nas_block(c, index)[0]
    return c.number("hidden_size") * own.k_dim * (2 * c.number("num_attention_heads") + 2 * own.heads)


def nas_silent(c: Config, index: int) -> int:
    """A block whose attention was removed, or replaced by one matrix."""
    block = (c.items("block_configs") or [])[index]
    return c.number("hidden_size") ** 2 if block["attention"].get("replace_with_linear") else 0


def latent_attention(c: Config, index: int) -> int:
    """Low-rank queries (where there are), the latent down and up projections, the output."""
    hidden, heads = c.number("hidden_size"), c.number("num_attention_heads")
    nope, rope, value = c.number("qk_nope_head_dim"), c.number("qk_rope_head_dim"), c.number("v_head_dim")
    rank, query_rank = c.number("kv_lora_rank"), c.optional("q_lora_rank")
    wide = heads * (nope + rope)
    query = hidden * query_rank + query_rank * wide if query_rank else hidden * wide
    return query + hidden * (rank + rope) + rank * heads * (nope + value) + heads * value * hidden


def indexed_latent(c: Config, index: int) -> int:
    """Latent attention and the indexer: its queries from the low-rank ones, its key and head weights."""
    heads, width, hidden = c.number("index_n_heads"), c.number("index_head_dim"), c.number("hidden_size")
    return latent_attention(c, index) + c.number("q_lora_rank") * heads * width + hidden * (width + heads)


def delta_net(c: Config, index: int) -> int:
    """Queries, keys, values and gate; two scalars a value head; convolution; output."""
    hidden = c.number("hidden_size")
    keys = c.number("linear_num_key_heads") * c.number("linear_key_head_dim")
    heads = c.number("linear_num_value_heads")
    values = heads * c.number("linear_value_head_dim")
    kernel = c.number("linear_conv_kernel_dim")
    return hidden * (2 * keys + 2 * values + 2 * heads) + (2 * keys + values) * kernel + values * hidden


def mamba1(c: Config, index: int) -> int:
    """Input, convolution, state projections and output of a Mamba layer."""
    hidden = c.number("hidden_size")
    inner, state, rank = c.number("ssm_expand") * hidden, c.number("ssm_state"), c.number("mamba_dt_rank")
    return hidden * 2 * inner + inner * (c.number("ssm_kernel") + 2 * rank + 3 * state) + inner * hidden


def mamba2(c: Config, index: int) -> int:
    """Input, convolution and output of a Mamba-2 layer."""
    hidden, heads = c.number("hidden_size"), c.number("ssm_heads")
    inner = heads * c.number("ssm_head_dim")
    channels = inner + 2 * c.number("ssm_groups") * c.number("ssm_state")
    return hidden * (inner + channels + heads) + channels * c.number("ssm_kernel") + inner * hidden


# ------------------------------------------------------------------------------------------ feed forward


def _experts(c: Config, width: int, matrices: int = 3, hidden: int | None = None) -> Mlp:
    """Routed experts of `width`, with the router; `hidden` where experts work in a narrower space."""
    outer = c.number("hidden_size")
    inner = hidden or outer
    count, chosen = c.number("num_experts"), c.number("num_experts_per_tok")
    if chosen > count:
        raise KvplanError(f"{c.where}: chooses {chosen} of {count} experts")
    one = matrices * inner * width
    return Mlp(experts=count * one, active_experts=chosen * one, router=outer * count)


def _is_sparse(c: Config, index: int) -> bool:
    """Whether a layer routes to experts, by whichever key the family states it."""
    listed = c.words("mlp_layer_types")
    if listed:
        return index < len(listed) and listed[index] == "sparse"
    first = c.optional("first_k_dense_replace", least=0)
    if first is not None and index < first:
        return False
    only = c.items("mlp_only_layers")
    if only and index in only:
        return False
    step = c.optional("decoder_sparse_step", least=0)
    return step is None or step == 0 or (index + 1) % step == 0


def swiglu(c: Config, index: int) -> Mlp:
    """A gated block, or routed and shared gated experts where the config counts experts."""
    hidden = c.number("hidden_size")
    if not c.optional("num_experts", least=0) or not _is_sparse(c, index):
        return Mlp(dense=3 * hidden * c.number("intermediate_size"))
    width = c.optional("moe_intermediate_size") or c.number("intermediate_size")
    routed = _experts(c, width)
    shared = c.optional("shared_expert_intermediate_size", least=0) or 0
    if not shared:
        shared = (c.optional("n_shared_experts", least=0) or 0) * width
    gate = hidden if c.optional("shared_expert_intermediate_size", least=0) else 0
    return Mlp(
        experts=routed.experts,
        active_experts=routed.active_experts,
        router=routed.router + gate,
        shared=3 * hidden * shared,
    )


def plain_mlp(c: Config, index: int) -> Mlp:
    """Two matrices, four times as wide unless the config says otherwise."""
    hidden = c.number("hidden_size")
    return Mlp(dense=2 * hidden * (c.optional("intermediate_size") or 4 * hidden))


def jamba_mlp(c: Config, index: int) -> Mlp:
    """Experts at `expert_layer_offset` of every `expert_layer_period` layers."""
    period, offset = c.number("expert_layer_period"), c.number("expert_layer_offset", least=0)
    if c.number("num_experts") > 1 and index % period == offset:
        return _experts(c, c.number("intermediate_size"))
    return Mlp(dense=3 * c.number("hidden_size") * c.number("intermediate_size"))


def llama4_mlp(c: Config, index: int) -> Mlp:
    """Every `interleave_moe_layer_step`-th layer routes; a shared expert of the same width goes with it."""
    step, hidden = c.optional("interleave_moe_layer_step") or 1, c.number("hidden_size")
    if (index + 1) % step:
        return Mlp(dense=3 * hidden * c.number("intermediate_size_mlp"))
    width = c.number("intermediate_size")
    routed = _experts(c, width)
    shared = 3 * hidden * width
    return Mlp(experts=routed.experts, active_experts=routed.active_experts, router=routed.router, shared=shared)


def gemma4_mlp(c: Config, index: int) -> Mlp:
    """A gated block in every layer, and experts beside it where switched on."""
    dense = 3 * c.number("hidden_size") * c.number("intermediate_size")
    if not c.flag("enable_moe_block", False):
        return Mlp(dense=dense)
    routed = _experts(c, c.number("moe_intermediate_size"))
    return Mlp(dense=dense, experts=routed.experts, active_experts=routed.active_experts, router=routed.router)


def nas_mlp(c: Config, index: int) -> Mlp:
    """Each block states its own width as a multiple, rounded up to 256."""
    hidden = c.number("hidden_size")
    blocks = c.items("block_configs") or []
    block = blocks[index].get("ffn") if isinstance(blocks[index], Mapping) else None
    if not isinstance(block, Mapping):
        raise MissingKey("block_configs.ffn", c.where)  # the cache is known without it, the weights are not
    if block.get("no_op"):
        return Mlp()
    if block.get("replace_with_linear"):
        return Mlp(dense=hidden * hidden)
    multiple = block.get("ffn_mult")
    if not isinstance(multiple, int | float) or not 0 < multiple < 1000:
        raise KvplanError(f"{c.where}: 'block_configs' entry {index} has no usable 'ffn_mult'")
    width = int(2 * multiple * hidden / 3)
    return Mlp(dense=3 * hidden * (-(-width // 256) * 256))


def no_mlp(c: Config, index: int) -> Mlp:
    """A layer whose feed-forward part is a layer of its own."""
    return Mlp()


def nemotron_mlp(c: Config, index: int) -> Mlp:
    """A plain MLP block of two matrices."""
    return Mlp(dense=2 * c.number("hidden_size") * c.number("intermediate_size"))


def nemotron_moe(c: Config, index: int) -> Mlp:
    """Experts of two matrices, in a narrower latent where stated, and a shared one."""
    hidden, inner = c.number("hidden_size"), c.optional("moe_latent_size")
    routed = _experts(c, c.number("moe_intermediate_size"), matrices=2, hidden=inner)
    shared = (c.optional("n_shared_experts", least=0) or 0) * (c.optional("moe_shared_expert_intermediate_size") or 0)
    around = 2 * hidden * inner if inner else 0
    return Mlp(
        dense=around,
        experts=routed.experts,
        active_experts=routed.active_experts,
        router=routed.router,
        shared=2 * hidden * shared,
    )


# ------------------------------------------------------------------------------------------ layouts


@dataclass(frozen=True)
class Layout:
    """How the layers of a family hold weights: the mixer of each layer type, and the feed-forward part."""

    mixers: Mapping[str, Mixer]
    mlp: Callable[[Config, int], Mlp] = swiglu
    blocks: Mapping[str, Callable[[Config, int], Mlp]] = field(default_factory=dict)  # layers that only feed forward


ATTENTION: Mapping[str, Mixer] = {
    "full_attention": dense_attention,
    "sliding_attention": dense_attention,
    "chunked_attention": dense_attention,
}
LATENT: Mapping[str, Mixer] = {
    "latent_attention": latent_attention,
    "indexed_full": indexed_latent,
    "indexed_shared": latent_attention,
}
LAYOUTS: Mapping[str, Layout] = {
    "decoder": Layout(ATTENTION),
    "two_matrices": Layout(ATTENTION, plain_mlp),
    "falcon": Layout({"full_attention": falcon_attention}, plain_mlp),
    "latent": Layout(LATENT),
    "delta": Layout({"full_attention": gated_attention, "linear_attention": delta_net}),
    "jamba": Layout({**ATTENTION, "linear_attention": mamba1}, jamba_mlp),
    "llama4": Layout(ATTENTION, llama4_mlp),
    "gemma4": Layout({**ATTENTION, "full_attention": gemma4_full}, gemma4_mlp),
    "nas": Layout({"full_attention": nas_attention, "none": nas_silent}, nas_mlp),
    "nemotron_h": Layout({**ATTENTION, "linear_attention": mamba2}, no_mlp, {"mlp": nemotron_mlp, "moe": nemotron_moe}),
}


def count(facts: Facts) -> Counts | None:
    """The weights of a model, or None where its weight layout, or a key that it needs, is not known.

    Raises KvplanError for a key whose value no model can have.
    """
    layout = LAYOUTS.get(facts.family.weights)
    if facts.family.weights == "encoder_decoder":
        return _whisper(facts.config)
    c = facts.config
    if layout is None or c.optional("hidden_size_per_layer_input", least=0):
        return None
    try:
        return _count(c, facts, layout)
    except MissingKey:
        return None


def _count(c: Config, facts: Facts, layout: Layout) -> Counts:
    mixers, parts = 0, []
    for index, kind in enumerate(facts.types):
        if kind in layout.blocks:
            parts.append(layout.blocks[kind](c, index))
            continue
        mixer = layout.mixers.get(kind)
        if mixer is None:
            raise MissingKey(f"weights of a {kind} layer", c.where)
        mixers += mixer(c, index)
        parts.append(layout.mlp(c, index))
    table = c.number("vocab_size") * c.number("hidden_size")
    counts = Counts(
        embedding=table,
        head=0 if c.flag("tie_word_embeddings", False) else table,
        mixers=mixers,
        dense=sum(part.dense for part in parts),
        experts=sum(part.experts for part in parts),
        active_experts=sum(part.active_experts for part in parts),
        shared_experts=sum(part.shared for part in parts),
        routers=sum(part.router for part in parts),
    )
    if counts.total > MAX_PARAMS:
        raise KvplanError(f"{c.where}: counts {counts.total:.3g} parameters, which no model can have")
    return counts


def _whisper(c: Config) -> Counts | None:
    """Encoder and decoder of Whisper: two convolutions, positions, two-matrix blocks, cross attention."""
    try:
        width, wide = c.number("d_model"), c.number("decoder_ffn_dim")
        layers, encoders = c.number("decoder_layers"), c.number("encoder_layers")
        table = c.number("vocab_size") * width
        positions = (c.number("max_source_positions") + c.number("max_target_positions")) * width
        front = 3 * width * (c.number("num_mel_bins") + width)
        encoder = encoders * (4 * width * width + 2 * width * c.number("encoder_ffn_dim"))
    except MissingKey:
        return None
    return Counts(
        embedding=table + positions,
        mixers=layers * 8 * width * width,
        dense=layers * 2 * width * wide,
        encoder=encoder + front,
    )
