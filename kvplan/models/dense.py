"""Decoders whose layers all grow with the prompt."""

from __future__ import annotations

from kvplan.models import caches, loops, patterns
from kvplan.models.family import AS_HEADS, Family, types

DENSE = (
    # KV heads default to the query heads, the head width follows from the hidden size.
    Family(
        types=types(
            "llama apertus apertus1p5_text arcee aria_text cohere diffllama flex_olmo granite granitemoe "
            "granitemoeshared hunyuan_v1_dense hunyuan_v1_moe hyperclovax jais2 nanochat nemotron olmo "
            "olmo2 olmoe phi"
        ),
        defaults=AS_HEADS,
    ),
    # Multi-head attention: no KV head count in the config at all.
    Family(
        types=types("biogpt bloom codegen ctrl gpt2 gpt_neox gpt_neox_japanese gptj opt persimmon"),
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
        types=types("seed_oss minimax_m2 ministral3 hy_v3 solar_open"),
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
    Family(types=types("qwen baichuan internlm"), defaults=AS_HEADS, weights=""),
    Family(types=("chatglm",), layers={"full_attention": caches.query_groups}, weights=""),
    Family(
        types=("openelm",),
        names={
            "num_hidden_layers": ("num_transformer_layers",),
            "num_key_value_heads": ("num_kv_heads",),
            "hidden_size": ("model_dim",),
        },
        weights="",
    ),
    Family(
        types=("nemotron-nas", "deci"),
        pattern=patterns.block_configs,
        layers={"full_attention": caches.nas_block, "listed_attention": caches.attention},
        names={"num_key_value_heads": ("num_key_value_heads_per_layer",)},
        weights="nas",
    ),
    # Plain decoders whose class answers for what a file leaves out.
    Family(
        types=types(
            "bitnet cosmos3_edge_text doge emu3_text_model ernie4_5_vl_moe_text evolla glm4v_text glm_ocr_text "
            "granite4_vision_text granite_docling_text helium hunyuan_vl_text iquestcoder jetmoe molmo2_text "
            "paddleocr_vl_text sarvam_moe"
        ),
        weights="",
    ),
    Family(types=("dbrx",), layers={"full_attention": caches.grouped_in_table}, weights=""),
    # Multi-head attention under other names.
    Family(types=types("git idefics moshi_depth mpt"), defaults=AS_HEADS, weights=""),
    # GPT-Neo's local layers keep every token: its windows are masks.
    Family(types=("gpt_neo",), defaults=AS_HEADS, weights=""),
    Family(
        types=types("kosmos_2_text_model kosmos_2_5_text_model"),
        names={
            "num_hidden_layers": ("layers",),
            "num_attention_heads": ("attention_heads",),
            "hidden_size": ("embed_dim",),
        },
        defaults=AS_HEADS,
        weights="",
    ),
    Family(
        types=("xglm",),
        names={"num_attention_heads": ("attention_heads",)},
        defaults=AS_HEADS,
        weights="",
    ),
    Family(types=("xlm",), names={"hidden_size": ("emb_dim",)}, defaults=AS_HEADS, weights=""),
    Family(
        types=("cpmant",),
        layers={"full_attention": caches.prompted("prompt_length")},
        names={"head_dim": ("dim_head",)},
        defaults=AS_HEADS,
        weights="",
    ),
    # Both stacks run several times over a prompt, each time with a cache of its own.
    Family(types=("hrm_text",), pattern=loops.cycled, defaults=AS_HEADS, weights=""),
    # The prompt stays whole beside a window of what was generated: no less than plain attention while it is read.
    Family(types=("unlimited_ocr_text",), weights=""),
    Family(
        types=("reformer",),
        pattern=patterns.local_only,
        layers={"full_attention": caches.hidden_states},
        weights="",
    ),
    Family(
        types=("xlnet",),
        layers={"full_attention": caches.memories},
        weights="",
    ),
)
