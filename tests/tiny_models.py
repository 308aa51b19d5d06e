"""Tiny models of every type that transformers can build, and the cache that their forward pass returns.

Needs torch and transformers; shared by the tests and by benchmarks/truth_transformers.py. A class's default config is
shrunk key by key, to as few layers as show every kind of layer that the default has. Weights are random: only the
shapes and dtypes of what comes back count.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from transformers import CONFIG_MAPPING
from transformers.models.auto import modeling_auto as auto

VOCABULARY = 320
ENCODER_TOKENS = 12
LAYERS, MOST_LAYERS = 4, 12
MOST_PARAMETERS = 300_000_000

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


@dataclass(frozen=True, slots=True)
class Built:
    """A model with random weights, and the inputs that its forward takes beside the tokens."""

    model: Any
    kind: str

    @property
    def config(self) -> dict[str, Any]:
        """The whole config, as a file would state it."""
        whole: dict[str, Any] = self.model.config.to_dict()
        return whole


def model_types() -> dict[str, tuple[str, ...]]:
    """Every model type that generates, with the classes that may run it: causal, sequence to sequence, images."""
    found: dict[str, dict[str, None]] = {}
    for mapping in (
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
        auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
        auto.MODEL_FOR_TEXT_TO_WAVEFORM_MAPPING_NAMES,
    ):
        for kind, names in mapping.items():
            for name in [names] if isinstance(names, str) else names:
                found.setdefault(kind, {})[name] = None
    return {kind: tuple(names) for kind, names in found.items()}


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


def any_build(kind: str) -> tuple[Built, list[str]]:
    """The first way to build a type whose forward returns a cache, and why those before it did not.

    Raises ValueError with all the reasons where none does.
    """
    reasons: list[str] = []
    names = model_types()[kind]
    for name in sorted(names, key=lambda name: getattr(transformers, name).config_class is not CONFIG_MAPPING[kind]):
        for recipe in RECIPES:
            try:
                built = build(kind, name, tiny_config(kind, recipe))
                forward(built, 8)
            except Exception as error:  # a foreign class may refuse in any way: its words are the reason
                reasons.append(" ".join(f"{type(error).__name__}: {error}".split())[:200])
                continue
            return built, reasons
    raise ValueError("; ".join(dict.fromkeys(reasons)))


def layer_kinds(config: Any) -> set[str]:
    """The kinds of layer that a config names, empty where it names none."""
    text = config.get_text_config(decoder=True)
    for key in ("layer_types", "layers_block_type"):
        listed = getattr(text, key, None)
        if listed:
            return {str(kind) for kind in listed}
    return set()


def build(kind: str, name: str, config: Any) -> Built:
    """A model of a class with random weights, in evaluation; a text class takes the text part of a config."""
    torch.manual_seed(0)
    cls = getattr(transformers, name)
    text = config.get_text_config(decoder=True)
    if type(text) is not type(config) and isinstance(text, cls.config_class or ()):
        config = text
    with warnings.catch_warnings(action="ignore"):
        with torch.device("meta"):
            size = sum(parameter.numel() for parameter in cls(copy.deepcopy(config)).parameters())
        if size > MOST_PARAMETERS:
            raise ValueError(f"has {size / 1e6:.0f} million parameters even when shrunk")
        model = cls(config)
    return Built(model.eval(), kind)


def inputs(built: Built, tokens: int) -> Iterator[dict[str, Any]]:
    """What a forward over `tokens` tokens may want beside them, the likely first."""
    dtype = next(built.model.parameters()).dtype
    ids = torch.arange(tokens).remainder(200).add(20).unsqueeze(0)
    if built.model.config.is_encoder_decoder:
        for given in _encoded(dtype):
            yield {**given, "decoder_input_ids": ids}
            yield {**given, "decoder_input_ids": ids.expand(4, -1)}
            yield {**given, "decoder_input_ids": ids.unsqueeze(-1).expand(-1, -1, 9)}
        return
    yield {"input_ids": ids}
    yield {"input_ids": ids.expand(4, -1)}
    yield {"input_ids": ids.unsqueeze(-1).expand(-1, -1, 33)}
    yield {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.randn(1, 1, 3, 224, 224, dtype=dtype),
        "image_attention_mask": torch.ones(1, tokens, 1, dtype=torch.long),
    }
    yield from _seen(built, ids, dtype)


def _seen(built: Built, ids: torch.Tensor, dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """An image as so many tokens before the text, for models that cannot do without one."""
    config = built.model.config
    queries = getattr(config, "num_query_tokens", None) or getattr(config, "latent_query_num", None)
    if not queries:
        return
    marker = getattr(config, "image_token_index", None) or 4
    whole = {
        "input_ids": torch.cat([torch.full((1, queries), marker), ids], dim=1),
        "pixel_values": torch.randn(1, 3, 224, 224, dtype=dtype),
    }
    yield whole
    yield {**whole, "qformer_input_ids": ids[:, :4], "qformer_attention_mask": torch.ones_like(ids[:, :4])}
    places = torch.cat([torch.ones(1, queries), torch.zeros(ids.shape)], dim=1).bool()
    yield {**whole, "image_embeds_position_mask": places}


def _encoded(dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """What an encoder may want: text, text with places, sound, an image."""
    text = torch.arange(ENCODER_TOKENS).add(20).unsqueeze(0)
    yield {"input_ids": text}
    yield {"input_ids": text, "bbox": torch.zeros(1, ENCODER_TOKENS, 4, dtype=torch.long)}
    for mel, frames in ((80, 3000), (128, 3000), (80, 200), (128, 400)):
        yield {"input_features": torch.randn(1, mel, frames, dtype=dtype)}
        yield {"input_features": torch.randn(1, frames, mel, dtype=dtype)}
    for samples in (8000, 16000):
        yield {"input_values": torch.randn(1, samples, dtype=dtype)}
    for side in (224, 512):
        yield {"pixel_values": torch.randn(1, 3, side, side, dtype=dtype)}
    yield {"flattened_patches": torch.randn(1, ENCODER_TOKENS, 770, dtype=dtype)}


# ------------------------------------------------------------------------------- what comes back

RETURNED = ("cache", "past_key_values", "cache_params", "state", "mems", "past_buckets_states")
BOOKKEEPING = re.compile(
    r"cumulative_length|_sliding_window_tensor|entry_count|seqlen_offset|has_previous|position_ids"
)
IN_MODULES = re.compile(r"(conv1d_state|recurrent_states)$")


@dataclass(frozen=True, slots=True)
class Returned:
    """One cache: the tokens given, bytes of its tensors and of the storages behind them, the encoder's length."""

    tokens: int
    bytes: int
    storage_bytes: int
    encoder_tokens: int | None


def forward(built: Built, tokens: int) -> Returned:
    """Run one prefill and measure the cache. Raises the first error where no way of asking works."""
    reasons: list[Exception] = []
    for given in inputs(built, tokens):
        for more in ({"use_cache": True}, {"use_cache": True, "cache": None}, {}):
            if "cache" in more:
                more["cache"] = transformers.DynamicCache(config=built.model.config)
            try:
                with torch.no_grad(), warnings.catch_warnings(action="ignore"):
                    out = built.model(**given, **more)
                return measure(built, given, out, more.get("cache"))
            except Exception as error:  # a foreign forward may raise anything: the next way of asking may fit
                reasons.append(error)
    raise reasons[0]


def measure(built: Built, inputs: Mapping[str, Any], out: Any, given: Any) -> Returned:
    """Every tensor reachable from the cache, returned or given, an alias counted once. Raises ValueError for none."""
    held: dict[tuple[int, int, tuple[int, ...]], torch.Tensor] = {}
    for tensor in _kept(built, out, given):
        place = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tuple(tensor.shape))
        held[place if tensor.numel() else (id(tensor), 0, ())] = tensor
    if not held:
        raise ValueError("returns no cache")
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held.values()}
    return Returned(
        inputs.get("decoder_input_ids", inputs.get("input_ids")).shape[1],
        sum(tensor.numel() * tensor.element_size() for tensor in held.values()),
        sum(storages.values()),
        _encoder_tokens(inputs, out),
    )


def _encoder_tokens(inputs: Mapping[str, Any], out: Any) -> int | None:
    """Positions of the encoder's output, be it a sequence or a map of (channels, height, width)."""
    hidden = getattr(out, "encoder_last_hidden_state", None)
    if hidden is not None:
        return int(hidden[0].numel() // hidden.shape[1 if hidden.dim() > 3 else 2])
    return int(inputs["input_ids"].shape[1]) if {"input_ids", "decoder_input_ids"} <= set(inputs) else None


def _kept(built: Built, out: Any, given: Any) -> Iterator[torch.Tensor]:
    out = getattr(out, "language_model_outputs", out)
    returned = next((getattr(out, key) for key in RETURNED if getattr(out, key, None) is not None), given)
    if returned is None:
        raise ValueError("returns no cache")
    yield from _tensors(returned)
    for module in built.model.modules():
        for name, value in vars(module).items():
            if IN_MODULES.search(name) and isinstance(value, torch.Tensor):
                yield value


def _tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth > 6 or isinstance(value, str | bytes | int | float | torch.device | torch.dtype):
        return
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors(part, depth + 1)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part, depth + 1)
    elif hasattr(value, "__dict__") and not isinstance(value, transformers.PreTrainedConfig):
        for name, part in vars(value).items():
            if not BOOKKEEPING.search(name):
                yield from _tensors(part, depth + 1)
