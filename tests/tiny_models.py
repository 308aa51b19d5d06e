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
MOST_PARAMETERS = 150_000_000

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
        "swa_num_attention_heads speech_encoder_attention_heads t2u_encoder_attention_heads num_encoder_attention_heads "
        "t2u_decoder_attention_heads num_decoder_attention_heads num_query_groups num_sliding_attention_heads "
        "encoder_num_attention_heads decoder_num_attention_heads mamba_n_heads mamba_num_heads mamba_dt_rank "
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
    (1, "n_group topk_group num_expert_group first_k_dense_replace num_dense_layers indexer_kv_heads"),
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
DERIVED = frozenset(
    ["layer_types", "mlp_layer_types", "indexer_types", "no_rope_layers", "layers_block_type", "per_layer_config", "kv_source_layers", "num_attention_heads_per_layer", "attention_layers", "compress_ratios", "rope_parameters", "rope_scaling", "qk_head_dim", "num_layers_per_stack", "moe_layers", "layer_rope_theta", "activation_sparsity_pattern", "kv_sharing_modes", "dtype"]
)
SPECIAL = re.compile(r"_token_(id|index)$")


@dataclass(frozen=True, slots=True)
class Recipe:
    """One way to shrink: KV heads where the config has a key for them, all sizes or only the number of layers."""

    kv_heads: int
    sizes: bool = True


RECIPES = (Recipe(2), Recipe(8), Recipe(8, sizes=False))


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


def model_types() -> dict[str, str]:
    """Every model type that generates, with the class to build: causal, then sequence to sequence, then images."""
    found: dict[str, str] = {}
    for names in (
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
        auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    ):
        for kind, name in names.items():
            found.setdefault(kind, name if isinstance(name, str) else name[0])
    return found


def shrink(config: Mapping[str, Any], recipe: Recipe, layers: int) -> dict[str, Any]:
    """A config as a mapping with every size in it made small."""
    small: dict[str, Any] = {}
    special = VOCABULARY
    for key, value in config.items():
        if isinstance(value, Mapping) and key not in DERIVED and "model_type" in value:
            small[key] = shrink(value, recipe, layers)
        elif key in DERIVED:
            continue
        elif key in COUNTS.split() and isinstance(value, int):
            small[key] = layers
        elif SPECIAL.search(key) and isinstance(value, int) and value >= VOCABULARY:
            special -= 1
            small[key] = special
        elif key == "head_dim" and "qk_rope_head_dim" in config:
            continue  # latent attention: the class derives it
        elif key == "vocab_size" or (recipe.sizes and key in SIZES and value is not None):
            small[key] = SIZES[key] if not isinstance(value, list) or isinstance(SIZES[key], list) else value
        elif recipe.sizes and key in KV_HEADS:
            small[key] = recipe.kv_heads
        else:
            small[key] = value
    return small


def tiny_config(kind: str, recipe: Recipe, **overrides: Any) -> Any:
    """The smallest config of a type that has every kind of layer of the class's own default."""
    cls = CONFIG_MAPPING[kind]
    default = cls()
    wanted = layer_kinds(default)
    for layers in range(LAYERS, MOST_LAYERS + 1):
        small = shrink(default.to_dict(), recipe, layers)
        config = cls.from_dict({**small, **overrides})
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


def build(kind: str, name: str, config: Any) -> Built:
    """A model of a class with random weights, in evaluation."""
    torch.manual_seed(0)
    cls = getattr(transformers, name)
    with warnings.catch_warnings(action="ignore"):
        with torch.device("meta"):
            size = sum(parameter.numel() for parameter in cls(copy.deepcopy(config)).parameters())
        if size > MOST_PARAMETERS:
            raise ValueError(f"has {size / 1e6:.0f} million parameters even when shrunk")
        model = cls(config)
    return Built(model.eval(), kind)


def inputs(built: Built, tokens: int) -> Iterator[dict[str, Any]]:
    """What a forward over `tokens` tokens may want, the likely first."""
    dtype = next(built.model.parameters()).dtype
    ids = torch.arange(tokens).remainder(200).add(20).unsqueeze(0)
    given = torch.arange(ENCODER_TOKENS).add(20).unsqueeze(0)
    if not built.model.config.is_encoder_decoder:
        yield {"input_ids": ids}
        return
    yield {"input_ids": given, "decoder_input_ids": ids}
    yield {"input_ids": given, "decoder_input_ids": ids, "bbox": torch.zeros(1, ENCODER_TOKENS, 4, dtype=torch.long)}
    for mel, frames in ((80, 3000), (128, 3000), (80, 200), (128, 400)):
        yield {"input_features": torch.randn(1, mel, frames, dtype=dtype), "decoder_input_ids": ids}
        yield {"input_features": torch.randn(1, frames, mel, dtype=dtype), "decoder_input_ids": ids}
    for samples in (8000, 16000):
        yield {"input_values": torch.randn(1, samples, dtype=dtype), "decoder_input_ids": ids}
    for side in (224, 512):
        yield {"pixel_values": torch.randn(1, 3, side, side, dtype=dtype), "decoder_input_ids": ids}
    yield {"flattened_patches": torch.randn(1, ENCODER_TOKENS, 770, dtype=dtype), "decoder_input_ids": ids}
    yield {"input_ids": given, "decoder_input_ids": ids.unsqueeze(-1).expand(-1, -1, 9)}
    yield {"input_ids": given, "decoder_input_ids": ids.expand(4, -1)}


# ------------------------------------------------------------------------------- what comes back

RETURNED = ("cache", "past_key_values", "cache_params", "state", "mems", "past_buckets_states")
BOOKKEEPING = re.compile(r"cumulative_length|_sliding_window_tensor|entry_count|seqlen_offset|has_previous")
IN_MODULES = re.compile(r"(conv1d_state|recurrent_states)$")


@dataclass(frozen=True, slots=True)
class Returned:
    """Bytes of the tensors of one returned cache, of the storages behind them, and the encoder's length if any."""

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
                return measure(built, out, more.get("cache"))
            except Exception as error:  # a foreign forward may raise anything: the next way of asking may fit
                reasons.append(error)
    raise reasons[0]


def measure(built: Built, out: Any, given: Any = None) -> Returned:
    """Every tensor reachable from the cache, returned or given, an alias counted once. Raises ValueError for none."""
    held: dict[tuple[int, int, tuple[int, ...]], torch.Tensor] = {}
    for tensor in _kept(built, out, given):
        place = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tuple(tensor.shape))
        held[place if tensor.numel() else (id(tensor), 0, ())] = tensor
    if not held:
        raise ValueError("returns no cache")
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held.values()}
    hidden = getattr(out, "encoder_last_hidden_state", None)
    return Returned(
        sum(tensor.numel() * tensor.element_size() for tensor in held.values()),
        sum(storages.values()),
        None if hidden is None else hidden.shape[1],
    )


def _kept(built: Built, out: Any, given: Any) -> Iterator[torch.Tensor]:
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
