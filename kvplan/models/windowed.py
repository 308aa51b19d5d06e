"""Decoders some or all of whose layers see a window, or chunks, of the prompt."""

from __future__ import annotations

from kvplan.models import caches, loops, patterns
from kvplan.models.family import AS_HEADS, Family, plain_and, types

WINDOWED = (
    Family(
        types=types("qwen2 qwen2_vl qwen2_vl_text qwen2_5_vl qwen2_5_vl_text qwen2_5_omni_text"),
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
        layers=plain_and(full_attention=caches.gemma4_attention),
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
    # Families whose class derives the list of layers from other keys where a file leaves it out.
    Family(
        types=types(
            "afmoe beam cohere2_moe cohere_compass_text cwm exaone_moe flint granite_swa granitemoe_swa kolibri1 "
            "laguna mellum muse_glimmer_text muse_spark_text"
        ),
        pattern=patterns.by_class,
        weights="",
    ),
    Family(
        types=("modernbert-decoder",),
        pattern=patterns.by_class,
        defaults=AS_HEADS,
        weights="",
    ),
    Family(
        types=types("kyutai_speech_to_text moshi"),
        pattern=patterns.window_if_set,
        weights="",
    ),
    Family(
        types=("gemma4_unified_text", "diffusion_gemma_text"),
        pattern=patterns.alternating(6, last_full=True),
        shared="num_kv_shared_layers",
        layers=plain_and(full_attention=caches.gemma4_attention),
        defaults={"head_dim": 256, "global_head_dim": 512, "num_kv_shared_layers": 0},
        weights="",
    ),
    Family(
        types=("mimo_v2_flash",),
        pattern=patterns.mimo_types,
        layers=plain_and(full_attention=caches.narrow_values, sliding_attention=caches.narrow_window),
        weights="",
    ),
    Family(
        types=("dory",),
        pattern=loops.dory_types,
        weights="",
    ),
)
