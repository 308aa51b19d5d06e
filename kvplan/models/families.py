"""What the layers of each model family keep: one row a family; no other place knows an architecture by its name.

A row says in which order the layers come (`pattern`), what a layer of each type keeps (`layers`), and the class
defaults that published configs leave out. Adding a family is adding a row. A model type in no row is read as a plain
dense decoder only where its config leaves no doubt (model.py).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvplan.documents import LayerCache
from kvplan.models import caches, patterns
from kvplan.models.config import Config

Pattern = Callable[[Config, int], Sequence[str]]
Builder = Callable[[Config, int], tuple[LayerCache, ...]]

# A class default that follows another key.
AS_HEADS = {"num_key_value_heads": "num_attention_heads"}

PLAIN: Mapping[str, Builder] = {
    "full_attention": caches.attention,
    "sliding_attention": caches.sliding,
    "chunked_attention": caches.chunked,
}
# Layers that keep nothing of their own, and why.
SILENT = {
    "mlp": "an MLP block keeps no cache",
    "moe": "an expert block keeps no cache",
    "none": "this layer has no attention",
    "shared": "reads the cache of an earlier layer",
}


ALL_FULL = patterns.only("full_attention")


@dataclass(frozen=True)
class Family:
    """One row. `types` are the model types it reads, nested text types included.

    `pattern` gives each layer's type and `layers` the caches of a type. `shared` names the key that counts the last
    layers which read an earlier layer's cache. `defaults` are class defaults (the figures of transformers, checked by
    a test), `names` other names of keys in this family. `weights` names the weight layout in params.py, "" for none.
    """

    types: tuple[str, ...]
    pattern: Pattern = ALL_FULL
    layers: Mapping[str, Builder] = field(default_factory=lambda: PLAIN)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    shared: str = ""
    weights: str = "decoder"


def _types(names: str) -> tuple[str, ...]:
    return tuple(names.split())


def _with(**layers: Builder) -> Mapping[str, Builder]:
    return {**PLAIN, **layers}


DENSE = (
    # KV heads default to the query heads, the head width follows from the hidden size.
    Family(
        types=_types(
            "llama apertus apertus1p5_text arcee aria_text cohere diffllama flex_olmo granite granitemoe "
            "granitemoeshared hunyuan_v1_dense hunyuan_v1_moe hyperclovax jais2 nanochat nemotron olmo "
            "olmo2 olmoe phi"
        ),
        defaults=AS_HEADS,
    ),
    # Multi-head attention: no KV head count in the config at all.
    Family(
        types=_types("biogpt bloom codegen ctrl gpt2 gpt_neox gpt_neox_japanese gptj opt persimmon"),
        defaults=AS_HEADS,
        weights="",
    ),
    Family(
        types=("mixtral", "phimoe", "phi4_multimodal"),
        pattern=patterns.window_if_set,
        defaults={"num_key_value_heads": 8, "sliding_window": None},
    ),
    Family(types=("gemma",), defaults={"num_key_value_heads": 16, "head_dim": 256, "tie_word_embeddings": True}),
    Family(types=("glm", "glm4", "ernie4_5", "internlm3"), defaults={"num_key_value_heads": 2, "head_dim": 128}),
    Family(types=("glm4_moe", "glm4v_moe_text"), defaults={"num_key_value_heads": 8}),
    Family(types=("ernie4_5_moe",), defaults={"num_key_value_heads": 4}, weights=""),
    Family(
        types=("dots1", "stablelm", "chameleon"),
        pattern=patterns.qwen_window,
        defaults={"num_key_value_heads": 32},
        weights="",
    ),
    Family(
        types=_types("seed_oss minimax_m2 ministral3 hy_v3 solar_open"),
        defaults={"num_key_value_heads": 8, "head_dim": 128},
    ),
    Family(types=("smollm3",), pattern=patterns.qwen_window, defaults={"num_key_value_heads": 4}),
    Family(
        types=("exaone",),
        names={"num_hidden_layers": ("num_layers", "num_hidden_layers")},
        defaults={"num_key_value_heads": 8},
        weights="",
    ),
    Family(
        types=("falcon",),
        layers={"full_attention": caches.falcon},
        defaults={"max_position_embeddings": 2048},
        weights="falcon",
    ),
    Family(types=("gpt_bigcode",), layers={"full_attention": caches.multi_query}, weights=""),
    # Decoders of their authors' own code, whose configs state every size that the cache depends on.
    Family(types=("mimo",), pattern=patterns.qwen_window, defaults={"head_dim": None}),
    Family(types=("internlm2",)),
    Family(
        types=("nemotron-nas", "deci"),
        pattern=patterns.block_configs,
        layers={"full_attention": caches.nas_block},
        weights="nas",
    ),
)

WINDOWED = (
    Family(
        types=_types("qwen2 qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text qwen2_5_omni_text"),
        pattern=patterns.qwen_window,
        defaults={"use_sliding_window": False},
    ),
    Family(
        types=("qwen3", "qwen3_vl_text"),
        pattern=patterns.qwen_window,
        defaults={"head_dim": 128, "use_sliding_window": False},
    ),
    Family(
        types=("qwen2_moe",),
        pattern=patterns.qwen_moe_window,
        defaults={"num_key_value_heads": 16, "use_sliding_window": False},
    ),
    Family(
        types=("qwen3_moe", "qwen3_vl_moe_text", "qwen3_omni_moe_text"),
        pattern=patterns.window_if_set,
        defaults={"use_sliding_window": False},
    ),
    Family(
        types=("mistral",), pattern=patterns.window_if_set, defaults={"num_key_value_heads": 8, "sliding_window": 4096}
    ),
    Family(
        types=("ministral",),
        pattern=patterns.window_if_set,
        defaults={"num_key_value_heads": 8, "sliding_window": 4096},
    ),
    Family(types=("phi3",), pattern=patterns.window_if_set, defaults={**AS_HEADS, "sliding_window": None}),
    Family(
        types=("starcoder2",),
        pattern=patterns.window_if_set,
        defaults={"num_key_value_heads": 2, "sliding_window": None},
        weights="",
    ),
    Family(
        types=("gemma2", "vaultgemma"),
        pattern=patterns.alternating(2),
        defaults={"num_key_value_heads": 4, "head_dim": 256, "sliding_window": 4096, "tie_word_embeddings": True},
    ),
    Family(
        types=("gemma3_text",),
        pattern=patterns.alternating(6),
        defaults={
            "num_attention_heads": 8,
            "num_key_value_heads": 4,
            "head_dim": 256,
            "sliding_window": 4096,
            "vocab_size": 262208,
            "max_position_embeddings": 131072,
            "tie_word_embeddings": True,
        },
    ),
    Family(
        types=("gemma3n_text",),
        pattern=patterns.alternating(5),
        shared="num_kv_shared_layers",
        defaults={"num_key_value_heads": 2, "head_dim": 256, "sliding_window": 512, "num_kv_shared_layers": 15},
        weights="",
    ),
    Family(
        types=("gemma4_text",),
        pattern=patterns.alternating(6, last_full=True),
        shared="num_kv_shared_layers",
        layers=_with(full_attention=caches.gemma4_attention),
        defaults={
            "num_key_value_heads": 4,
            "head_dim": 256,
            "global_head_dim": 512,
            "sliding_window": 512,
            "num_kv_shared_layers": 0,
            "attention_k_eq_v": False,
            "tie_word_embeddings": True,
        },
        weights="gemma4",
    ),
    Family(
        types=("cohere2",), pattern=patterns.alternating(4), defaults={**AS_HEADS, "sliding_window": 4096}, weights=""
    ),
    Family(types=("olmo3",), pattern=patterns.alternating(4), defaults={**AS_HEADS, "sliding_window": 4096}),
    Family(
        types=("exaone4",),
        pattern=patterns.exaone_types,
        defaults={"num_key_value_heads": 32, "sliding_window": 4096, "sliding_window_pattern": 4},
    ),
    Family(
        types=("gpt_oss",),
        pattern=patterns.alternating(2),
        defaults={"num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128},
    ),
    Family(
        types=("llama4_text",),
        pattern=patterns.chunk_schedule,
        defaults={"num_key_value_heads": 8, "head_dim": 128, "attention_chunk_size": 8192, "no_rope_layer_interval": 4},
        weights="llama4",
    ),
    Family(types=("step3p7", "step3p5"), pattern=patterns.layer_types(), weights=""),
)

LATENT = (
    Family(
        types=_types("deepseek_v2 deepseek_v3 kimi_k2 glm4_moe_lite sarvam_mla youtu mistral4"),
        pattern=patterns.only("latent_attention"),
        layers={"latent_attention": caches.latent},
        weights="latent",
    ),
    Family(
        types=("deepseek_v32", "glm_moe_dsa"),
        pattern=patterns.indexer_types,
        layers={"indexed_full": caches.indexed_latent, "indexed_shared": caches.latent},
        weights="latent",
    ),
    Family(
        types=("deepseek_v4", "deepseek_ref"),
        pattern=patterns.only("compressed_attention"),
        layers={"compressed_attention": caches.compressed},
        defaults={"sliding_window": 128, "index_head_dim": 128},
        weights="",
    ),
    Family(
        types=("minimax_m3", "minimax_m3_vl_text"),
        pattern=patterns.sparse_freq,
        layers=_with(minimax_m3_sparse=caches.indexed_attention),
        defaults={"num_key_value_heads": 4, "head_dim": 128, "index_head_dim": 128, "index_block_size": 128},
        weights="",
    ),
)

HYBRID = (
    Family(
        types=_types("qwen3_next qwen3_5_text qwen3_5_moe_text qwen3_5 qwen3_5_moe"),
        pattern=patterns.full_interval,
        layers=_with(linear_attention=caches.delta_net),
        defaults={"full_attention_interval": 4, "head_dim": 256, "linear_conv_kernel_dim": 4},
        weights="delta",
    ),
    Family(
        types=("jamba",),
        pattern=patterns.jamba_types,
        layers=_with(linear_attention=caches.mamba1),
        defaults={
            "num_key_value_heads": 8,
            "attn_layer_period": 8,
            "attn_layer_offset": 4,
            "mamba_d_state": 16,
            "mamba_d_conv": 4,
            "mamba_expand": 2,
        },
        weights="jamba",
    ),
    Family(
        types=("nemotron_h",),
        pattern=patterns.nemotron_types,
        layers=_with(linear_attention=caches.mamba2),
        defaults={"num_key_value_heads": 8, "head_dim": 128, "mamba_ssm_cache_dtype": "float32", "expand": 2},
        weights="nemotron_h",
    ),
    Family(
        types=("bamba",),
        pattern=patterns.indices("attn_layer_indices", inside="full_attention", outside="linear_attention"),
        layers=_with(linear_attention=caches.mamba2),
        defaults={"num_key_value_heads": 8, "mamba_d_conv": 4, "mamba_expand": 2},
        weights="",
    ),
    Family(
        types=("granitemoehybrid",),
        pattern=patterns.layer_types("layers_block_type"),
        layers=_with(linear_attention=caches.mamba2),
        defaults={**AS_HEADS, "mamba_d_conv": 4, "mamba_expand": 2},
        weights="",
    ),
    Family(
        types=("falcon_h1",),
        pattern=patterns.only("hybrid"),
        layers={"hybrid": caches.attention_and_mamba2},
        defaults={"num_key_value_heads": 8, "mamba_d_conv": 4, "mamba_expand": 2},
        weights="",
    ),
    Family(
        types=("zamba2",),
        pattern=patterns.layer_types("layers_block_type"),
        layers={"linear_attention": caches.mamba2, "hybrid": caches.attention_and_mamba2},
        names={"head_dim": ("attention_head_dim",), "ssm_head_dim": ("mamba_headdim",)},
        defaults={**AS_HEADS, "mamba_ngroups": 1, "mamba_d_conv": 4, "mamba_expand": 2},
        weights="",
    ),
    Family(
        types=("mamba", "falcon_mamba"),
        names={"mamba_intermediate_size": ("intermediate_size",)},
        pattern=patterns.only("linear_attention"),
        layers={"linear_attention": caches.mamba1},
        defaults={"state_size": 16, "conv_kernel": 4, "expand": 2},
        weights="",
    ),
    Family(
        types=("mamba2",),
        pattern=patterns.only("linear_attention"),
        layers={"linear_attention": caches.mamba2},
        names={"ssm_heads": ("num_heads",), "ssm_head_dim": ("head_dim",)},
        defaults={"conv_kernel": 4, "expand": 2},
        weights="",
    ),
    Family(
        types=("lfm2", "lfm2_moe"),
        pattern=patterns.indices("full_attn_idxs", inside="full_attention", outside="conv"),
        layers=_with(conv=caches.convolution),
        defaults={"num_key_value_heads": 8, "conv_L_cache": 3},
        weights="",
    ),
    Family(
        types=("minimax",),
        pattern=patterns.layer_types(),
        layers=_with(linear_attention=caches.lightning),
        defaults={"num_key_value_heads": 8},
        weights="",
    ),
    Family(
        types=("kimi_linear",),
        pattern=patterns.kimi_types,
        layers={"full_attention": caches.latent, "linear_attention": caches.kimi_delta},
        weights="",
    ),
)

_BART = {"num_hidden_layers": ("decoder_layers",), "num_attention_heads": ("decoder_attention_heads",)}
ENCODER_DECODER = (
    Family(
        types=("whisper",),
        pattern=patterns.only("decoder"),
        layers={"decoder": caches.self_and_cross},
        names=_BART,
        defaults={"max_source_positions": 1500, "max_target_positions": 448},
        weights="encoder_decoder",
    ),
    Family(
        types=_types("bart mbart pegasus marian blenderbot blenderbot-small m2m_100 plbart"),
        pattern=patterns.only("decoder"),
        layers={"decoder": caches.self_and_cross},
        names={**_BART, "max_source_positions": ("max_position_embeddings",)},
        weights="",
    ),
    Family(
        types=_types("t5 mt5 umt5 longt5 switch_transformers"),
        pattern=patterns.only("decoder"),
        layers={"decoder": caches.self_and_cross},
        names={
            "num_hidden_layers": ("num_decoder_layers", "num_layers"),
            "decoder_attention_heads": ("num_heads",),
            "num_attention_heads": ("num_heads",),
            "max_source_positions": ("n_positions",),
        },
        weights="",
    ),
)

FAMILIES = (*DENSE, *WINDOWED, *LATENT, *HYBRID, *ENCODER_DECODER)
BY_TYPE: Mapping[str, Family] = {kind: family for family in FAMILIES for kind in family.types}

# Multimodal configs whose nested decoder may leave out its own model type: the type that their class gives it.
NESTED = {
    "gemma3": "gemma3_text",
    "gemma3n": "gemma3n_text",
    "gemma4": "gemma4_text",
    "internvl": "qwen2",
    "kimi_k25": "deepseek_v3",
    "llama4": "llama4_text",
    "llava": "llama",
    "llava_next": "llama",
    "minimax_m3_vl": "minimax_m3_vl_text",
    "mistral3": "mistral",
    "paligemma": "gemma",
    "qwen3_5": "qwen3_5_text",
    "qwen3_5_moe": "qwen3_5_moe_text",
    "qwen3_vl": "qwen3_vl_text",
    "qwen3_vl_moe": "qwen3_vl_moe_text",
}
