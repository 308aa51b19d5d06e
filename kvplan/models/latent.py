"""Decoders that keep a latent, compressed or searched by an indexer."""

from __future__ import annotations

from kvplan.models import caches, loops, patterns
from kvplan.models.family import Family, plain_and, types

LATENT = (
    Family(
        types=types("deepseek_v2 deepseek_v3 kimi_k2 glm4_moe_lite sarvam_mla youtu mistral4"),
        pattern=patterns.only("latent_attention"),
        layers={"latent_attention": caches.latent},
        draft="latent_attention",
        weights="latent",
    ),
    Family(
        types=("deepseek_v32", "glm_moe_dsa"),
        pattern=patterns.indexer_types,
        layers={"indexed_full": caches.indexed_latent, "indexed_shared": caches.latent},
        draft="indexed_full",
        weights="latent",
    ),
    Family(
        types=("deepseek_v4", "deepseek_ref"),
        pattern=patterns.only("compressed_attention"),
        layers={"compressed_attention": caches.compressed},
        draft="compressed_attention",
        defaults={"sliding_window": 128, "index_head_dim": 128},
        weights="",
    ),
    Family(
        types=("minimax_m3", "minimax_m3_vl_text"),
        pattern=patterns.sparse_freq,
        layers=plain_and(minimax_m3_sparse=caches.indexed_attention),
        defaults={"num_key_value_heads": 4, "head_dim": 128, "index_head_dim": 128, "index_block_size": 128},
        weights="",
    ),
    Family(
        types=("axk1", "minicpm3"),
        pattern=patterns.only("latent_attention"),
        layers={"latent_attention": caches.latent},
        draft="latent_attention",
        weights="",
    ),
    Family(
        types=("axk2", "hy_v4", "hy_v4_vl_text"),
        pattern=patterns.indexer_types,
        layers={"indexed_full": caches.indexed_latent, "indexed_shared": caches.latent},
        draft="indexed_full",
        weights="",
    ),
    Family(
        types=("mistral_large4_text",),
        pattern=patterns.mistral_large4_types,
        layers={
            "indexed_full": caches.indexed_latent,
            "indexed_shared": caches.latent,
            "unrotated_full": caches.unrotated_latent,
            "unrotated_shared": caches.unrotated,
        },
        draft="indexed_full",
        weights="",
    ),
    Family(
        types=("dots3_note_text",),
        pattern=patterns.by_class,
        layers={"indexed_attention": caches.indexed_latent, "sliding_attention": caches.sliding_latent},
        draft="indexed_attention",
        weights="",
    ),
    # Two latent attentions a layer.
    Family(
        types=("longcat_flash",),
        pattern=loops.repeated(2, "latent_attention"),
        layers={"latent_attention": caches.latent},
        names={"num_hidden_layers": ("num_layers",)},
        draft="latent_attention",
        weights="",
    ),
)
