"""What the layers of each model family keep: one row a family; no other place knows an architecture by its name.

A row says in which order the layers come (`pattern`), what a layer of each type keeps (`layers`), and the class
defaults that published configs leave out. Adding a family is adding a row, in the module of its kind. A model type in
no row is read as a plain dense decoder only where its config leaves no doubt (architecture.py).
"""

from __future__ import annotations

from collections.abc import Mapping

from kvplan.models.crossed import ENCODER_DECODER
from kvplan.models.dense import DENSE
from kvplan.models.family import SILENT, Family
from kvplan.models.hybrid import HYBRID
from kvplan.models.latent import LATENT
from kvplan.models.windowed import WINDOWED

FAMILIES = (*DENSE, *WINDOWED, *LATENT, *HYBRID, *ENCODER_DECODER)
BY_TYPE: Mapping[str, Family] = {kind: family for family in FAMILIES for kind in family.types}

__all__ = ["BY_TYPE", "FAMILIES", "NESTED", "SILENT", "Family"]

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
