"""Tiny configs of every type that transformers has: a class's default, shrunk key by key.

They keep as few layers as show every kind of layer that the default has. Needs transformers.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from transformers import CONFIG_MAPPING

VOCABULARY = 320
LAYERS, MOST_LAYERS = 4, 12

# Sizes by key, wherever a key stands; a key that a config lacks is not added.
COUNTS = (
    "num_hidden_layers n_layer n_layers num_layers decoder_layers encoder_layers num_decoder_layers layers num_blocks "
    "speech_encoder_layers t2u_encoder_layers t2u_decoder_layers num_encoder_layers encoder_num_hidden_layers "
    "decoder_num_hidden_layers"
)
GROUPS: tuple[tuple[Any, str], ...] = (
    (
        128,
        "hidden_size d_model n_embd text_hidden_size embed_dim emb_dim lru_width input_size embedding_size "
        "word_embed_proj_dim cross_attention_hidden_size out_hidden_size",
    ),
    (
        64,
        "intermediate_size moe_intermediate_size ffn_dim d_ff dim_ff encoder_ffn_dim decoder_ffn_dim ffn_hidden_size "
        "shared_expert_intermediate_size shared_intermediate_size expert_ffn_hidden_size intermediate_size_mlp dff "
        "moe_shared_expert_intermediate_size feed_forward_size dense_intermediate_size share_expert_dim "
        "speech_encoder_intermediate_size t2u_encoder_ffn_dim t2u_decoder_ffn_dim shared_experts_intermediate_size",
    ),
    (
        8,
        "num_attention_heads n_head n_heads num_heads decoder_attention_heads encoder_attention_heads attention_heads "
        "swa_num_attention_heads speech_encoder_attention_heads t2u_encoder_attention_heads "
        "num_encoder_attention_heads t2u_decoder_attention_heads num_decoder_attention_heads num_query_groups "
        "num_sliding_attention_heads encoder_num_attention_heads decoder_num_attention_heads mamba_n_heads "
        "mamba_num_heads mamba_dt_rank "
        "time_step_rank laurel_rank hc_lowrank loop_gate_rank qk_rope_head_dim",
    ),
    (32, "head_dim attention_head_dim swa_head_dim kv_channels indexer_head_dim kv_lora_rank rel_extent"),
    (32, "mamba_d_head mamba_head_dim mamba_headdim"),
    (24, "q_lora_rank"),
    (
        16,
        "qk_nope_head_dim d_kv d_head rotary_dim o_lora_rank index_head_dim index_topk index_block_size indexer_budget "
        "sliding_window attention_chunk_size attention_window_size local_attention window_size sliding_window_size "
        "chunk_size mamba_chunk_size mamba_d_state ssm_state_size state_size linear_key_head_dim linear_value_head_dim "
        "linear_head_dim ple_embed_dim hidden_size_per_layer_input router_hidden_size",
    ),
    (12, "v_head_dim"),
    (4, "index_n_heads indexer_n_heads indexer_compress_ratio linear_num_value_heads linear_num_heads"),
    (4, "num_experts num_local_experts n_routed_experts moe_num_experts"),
    (2, "num_experts_per_tok num_experts_per_token experts_per_token top_k_experts moe_k moe_topk moe_top_k depth"),
    (2, "o_groups index_topk_blocks n_groups mamba_n_groups mamba_ngroups linear_num_key_heads n_mamba_heads"),
    (2, "n_layers_per_attn_res_block loop_layer_index_start"),
    (4, "loop_layer_index_end"),
    ([3], "cross_attention_layers"),
    (1, "n_shared_experts n_group topk_group num_expert_group first_k_dense_replace num_dense_layers indexer_kv_heads"),
    (0, "num_nextn_predict_layers mtp_num_hidden_layers"),
    (256, "mamba_d_ssm d_inner attention_hidden_size"),
    (VOCABULARY, "vocab_size vocab_size_per_layer_input"),
    (48, "global_head_dim"),
    (500, "ngram_vocab_size_base"),
    ([8, 8], "axial_pos_shape"),
    ([64, 64], "axial_pos_embds_dim"),
    ([0, 1], "deepstack_visual_indexes fullatt_block_indexes"),
    (64, "mem_len"),
    (True, "is_decoder use_cache"),
)
SIZES: Mapping[str, Any] = {key: value for value, keys in GROUPS for key in keys.split()}
KV_HEADS = frozenset(["num_key_value_heads", "num_kv_heads", "kv_n_heads", "swa_num_key_value_heads"])
# What a class derives from the sizes above, where it is left out.
DERIVED_KEYS = (
    "layer_types mlp_layer_types indexer_types no_rope_layers layers_block_type per_layer_config kv_source_layers "
    "num_attention_heads_per_layer attention_layers compress_ratios rope_parameters rope_scaling qk_head_dim "
    "num_layers_per_stack moe_layers layer_rope_theta activation_sparsity_pattern kv_sharing_modes dtype "
    "n_recurrent_layers"
)
DERIVED = frozenset(DERIVED_KEYS.split())
# What a file must say, or a class's default leaves open: filled in where it is null.
FILLED_KEYS = (
    "head_dim num_experts_per_tok n_shared_experts n_routed_experts attention_hidden_size num_key_value_heads "
    "indexer_n_heads indexer_kv_heads indexer_head_dim indexer_budget indexer_compress_ratio moe_intermediate_size "
    "num_experts top_k_experts"
)
FILLED = frozenset(FILLED_KEYS.split())
# What only one type needs.
_THETA = {"rope_type": "default", "rope_theta": 10000.0}
_BY_TYPE = {"rope_parameters": {"sliding_attention": _THETA, "full_attention": _THETA}}
_MIXED = ["linear_attention", "linear_attention", "full_attention", "linear_attention"]
_SMALL_CODEC = {"depths": [1] * 7, "num_filters": 4}
OVERRIDES: Mapping[str, Mapping[str, Any]] = {
    "apertus1p5": {"text_config": {"vocab_size": 270_000}},
    "bamba": {"attn_layer_indices": [2]},
    "blip-2": {"image_token_index": 300},
    "chameleon": {"vocabulary_map": {"<image>": 300}},
    "cohere_compass": {"text_config": _BY_TYPE},
    "cohere_compass_text": _BY_TYPE,
    "dbrx": {"attn_config": {"rope_theta": 10000.0, "clip_qkv": 8}},
    "deepseek_v4": {"head_dim": 32, "qk_rope_head_dim": 4},
    "dia": {"decoder_config": {"num_key_value_heads": 4, "cross_num_key_value_heads": 8}},
    "dory": {"num_hidden_layers": 12, "n_input_layers": 4, "n_output_layers": 4},
    "emu3": {"vocabulary_map": {"<image>": 300, "<|extra_200|>": 301}},
    "gemma3n_text": {"num_hidden_layers": 10, "num_kv_shared_layers": 4},
    "glm5_next": {"text_config": {"qk_rope_head_dim": 0, "head_dim": 0, "num_key_value_heads": 8}},
    "gpt_neo": {"attention_types": [[["global", "local"], 2]]},
    "granite4_vision": {"deepstack_layer_map": [[0, 0]], "downsample_rate": "1/2"},
    "granitemoehybrid": {"layer_types": _MIXED},
    "helium": {"head_dim": 16},
    "instructblip": {"image_token_index": 300},
    "lfm2_moe": {"layer_types": ["conv", "conv", "full_attention", "conv"]},
    "molmo2": {"adapter_config": {"vision_feature_layer": [1, 0]}},
    "moonshine_streaming": {"num_key_value_heads": 8},
    "reformer": {"attn_layers": ["local", "local"]},
    "rwkv": {"attention_hidden_size": 128},
    "vibevoice_asr": {
        "acoustic_tokenizer_encoder_config": _SMALL_CODEC,
        "semantic_tokenizer_encoder_config": _SMALL_CODEC,
    },
    "step3p7": {"text_config": {"sliding_window": 16}},
    "xlstm": {"embedding_dim": 128, "num_heads": 4},
    "xmod": {"default_language": "en_XX"},
    "zamba": {"num_hidden_layers": 8},
    "zamba2": {
        "num_hidden_layers": 6,
        "layers_block_type": ["linear_attention", "linear_attention", "hybrid"] * 2,
        "hybrid_layer_ids": [2, 5],
        "num_mem_blocks": 1,
        "n_mamba_heads": 8,
    },
    "zaya": {"num_experts_per_tok": 1},
}
# Nested configs of the model that generates or of its text encoder; others are towers of images and sound.
TEXT_KEYS = "text_config decoder decoder_config encoder text_encoder thinker_config attn_config ffn_config"
TEXT = frozenset(TEXT_KEYS.split())
SPECIAL = re.compile(r"_token_(id|index)$")


@dataclass(frozen=True, slots=True)
class Recipe:
    """One way to shrink.

    `kv_heads` where the config has a key for them; `fill` nulls that must be set; `towers` keep their widths and lose
    only layers; `sections` of a rotary embedding for images; or the number of layers alone, not the `sizes`.
    """

    kv_heads: int
    fill: bool = False
    towers: bool = False
    sections: tuple[int, ...] = ()
    sizes: bool = True


SECTIONS = ((4, 2, 2), (3, 3, 2), (2, 1, 1), (6, 5, 5), (4, 4, 4, 4))
RECIPES = (
    *[Recipe(heads, fill, towers) for towers in (False, True) for heads in (2, 8) for fill in (False, True)],
    *[Recipe(heads, True, True, sections) for sections in SECTIONS for heads in (2, 8)],
    Recipe(8, sizes=False),
)


def shrink(config: Mapping[str, Any], recipe: Recipe, layers: int) -> dict[str, Any]:
    """A config as a mapping with every size in it made small."""
    small: dict[str, Any] = {}
    special = VOCABULARY
    for key, value in config.items():
        if isinstance(value, Mapping) and "model_type" in value:
            tower = recipe.towers and key not in TEXT
            small[key] = lowered(value) if tower else shrink(value, recipe, layers)
        elif SPECIAL.search(key) and isinstance(value, int) and value >= VOCABULARY:
            special -= 1
            small[key] = special
        elif key not in DERIVED:
            small[key] = _small(key, value, recipe, layers, latent="qk_rope_head_dim" in config)
    if recipe.sections and "vocab_size" in config and "num_hidden_layers" in config:
        small["rope_parameters"] = {**_THETA, "mrope_section": list(recipe.sections)}
    return small


def lowered(tower: Mapping[str, Any]) -> dict[str, Any]:
    """A tower of images or sound with fewer layers, as wide as it was."""
    few = {key: 2 for key in (*COUNTS.split(), "depth") if isinstance(tower.get(key), int)}
    narrow = {"intermediate_size": 128} if isinstance(tower.get("intermediate_size"), int) else {}
    parts = {
        key: lowered(value) for key, value in tower.items() if isinstance(value, Mapping) and "model_type" in value
    }
    kept = {key: value for key, value in tower.items() if key not in ("layer_types", "dtype")}
    return {**kept, **few, **narrow, **parts}


def _small(key: str, value: Any, recipe: Recipe, layers: int, *, latent: bool) -> Any:
    if key in COUNTS.split() and isinstance(value, int):
        return layers
    if key == "vocab_size":
        return VOCABULARY
    if not recipe.sizes or (value is None and not (recipe.fill and key in FILLED)):
        return value
    if latent and key == "head_dim":
        return SIZES["qk_rope_head_dim"]
    if key in KV_HEADS:
        return recipe.kv_heads
    size = SIZES.get(key, value)
    pair = isinstance(value, list) and len(value) == 2 and isinstance(size, int)
    return [size, size] if pair else size


def tiny_config(kind: str, recipe: Recipe) -> Any:
    """The smallest config of a type that has every kind of layer of the class's own default."""
    cls = CONFIG_MAPPING[kind]
    default = cls()
    wanted = layer_kinds(default)
    for layers in range(LAYERS, MOST_LAYERS + 1):
        small = shrink(default.to_dict(), recipe, layers)
        for key, value in OVERRIDES.get(kind, {}).items():
            small[key] = {**small[key], **value} if isinstance(small.get(key), dict) else value
        config = cls.from_dict(small)
        if layer_kinds(config) >= wanted:
            break
    return config


def layer_kinds(config: Any) -> set[str]:
    """The kinds of layer that a config names, empty where it names none."""
    text = config.get_text_config(decoder=True)
    for key in ("layer_types", "layers_block_type"):
        listed = getattr(text, key, None)
        if listed:
            return {str(kind) for kind in listed}
    return set()
