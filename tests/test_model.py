"""Facts of a model against hand derivations, against transformers, and against whatever may be wrong in a file."""

from __future__ import annotations

import copy
import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from mutated_configs import NESTED, WORDS, mutate, originals, outcome, places
from records import replace

from kvplan.catalog import models as catalogued
from kvplan.documents import Layer, LayerCache, Model, ModelRef
from kvplan.errors import KvplanError
from kvplan.files import json_schema
from kvplan.model import catalogue, context_tokens, from_config, load_model, with_draft
from kvplan.models import architecture, params
from kvplan.models.families import BY_TYPE, FAMILIES

SHARED_CONFIGS = Path(__file__).resolve().parents[2] / "shared" / "configs"
CONFIGS = sorted(path.stem for path in SHARED_CONFIGS.glob("*.json")) or ["(no reference configs)"]
LLAMA = {
    "model_type": "llama",
    "num_hidden_layers": 32,
    "hidden_size": 4096,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "intermediate_size": 14336,
    "vocab_size": 128256,
    "max_position_embeddings": 131072,
    "torch_dtype": "bfloat16",
}


def read(config: Mapping[str, Any]) -> Model:
    """The model of a config given as a mapping."""
    return from_config(config, ModelRef(id="m", source="path", model_type="", config_sha256=""), "config.json")


def per_token(model: Model) -> int:
    """bf16 bytes that one more token costs, windows counted as if they never filled."""
    return sum(
        times * (cache.slot_bytes or cache.heads * (cache.k_dim + cache.v_dim) * 2) // cache.tokens_per_entry
        for layer, times in model.counted()
        for cache in layer.caches
        if cache.kind != "cross"
    )


def caches(model: Model) -> list[tuple[LayerCache, int]]:
    return [(cache, times) for layer, times in model.counted() for cache in layer.caches]


# ------------------------------------------------------------------------------- against hand derivations


def hand_view(model: Model) -> dict[str, Any]:
    """The figures of hand.json from the facts alone, without estimate.py."""
    growing = settled = cross = at = state16 = state32 = 0
    windows = set()
    for cache, times in caches(model):
        entry = times * (cache.slot_bytes or cache.heads * (cache.k_dim + cache.v_dim) * 2)
        if cache.kind == "cross":
            cross += entry * (cache.fixed_tokens or 0)
        elif cache.window_tokens is not None:
            windows.add(cache.window_tokens)
            settled += entry
            at += entry * min(cache.window_tokens, 32768)
        else:
            growing += entry
            at += entry * 32768
        for tensor in cache.state:
            size = times * math.prod(tensor.shape)
            state16 += 2 * size
            state32 += (4 if tensor.role == "state" else 2) * size
    return {
        "bytes_per_token": growing,
        "bytes_per_token_below_window": growing + settled,
        "window_tokens": windows.pop() if windows else None,
        "kv_bytes_at_32768": at,
        "state_bytes_bf16": state16,
        "state_bytes_fp32_recurrent": state32,
        "cross_bytes_per_sequence": cross,
    }


def test_the_facts_equal_every_hand_derivation(shared: Path) -> None:
    truth = json.loads((shared / "truth" / "hand.json").read_text())
    assert len(truth) == 22
    for name, wanted in truth.items():
        assert hand_view(load_model(str(shared / "configs" / f"{name}.json"))) == wanted, name


def test_layers_keep_their_order(shared: Path) -> None:
    model = load_model(str(shared / "configs" / "google--gemma-3-27b-it.json"))
    kinds = [model.layers[index].caches[0].kind for index in model.order]
    assert kinds == ["full" if (i + 1) % 6 == 0 else "sliding" for i in range(62)]
    jamba = load_model(str(shared / "configs" / "ai21labs--Jamba-v0.1.json"))
    assert [i for i, index in enumerate(jamba.order) if jamba.layers[index].caches[0].kind == "full"] == [4, 12, 20, 28]


def test_every_fact_names_the_key_or_the_class_default_that_gave_it(shared: Path) -> None:
    model = load_model(str(shared / "configs" / "google--gemma-3-27b-it.json"))
    full = next(cache for cache, _ in caches(model) if cache.kind == "full")
    assert "text_config.num_key_value_heads" in full.keys
    gemma2 = load_model(str(shared / "configs" / "google--gemma-2-9b.json"))
    assert "sliding_window" in next(cache for cache, _ in caches(gemma2) if cache.kind == "sliding").keys
    plain = read({"model_type": "gpt_oss", "num_hidden_layers": 4, "num_attention_heads": 8, "hidden_size": 64})
    assert "sliding_window (class default)" in plain.layers[0].caches[0].keys


# ------------------------------------------------------------------------------- against transformers


def without_keys(layers: tuple[Layer, ...]) -> tuple[Layer, ...]:
    return tuple(replace(layer, caches=tuple(replace(c, keys=()) for c in layer.caches)) for layer in layers)


@pytest.fixture(scope="module")
def mapping() -> Any:
    return pytest.importorskip("transformers").CONFIG_MAPPING


@pytest.mark.parametrize("name", CONFIGS)
def test_asking_transformers_gives_the_same_model(shared: Path, mapping: Any, name: str) -> None:
    root = json.loads((shared / "configs" / f"{name}.json").read_text())
    config = architecture.locate(root, name)
    completed = architecture.completed(root, config)
    if completed is None:
        pytest.skip(f"transformers has no class for {config.model_type}")
    facts = architecture.read(root, name)
    family = BY_TYPE[config.model_type]
    # First: the file, completed by the class. Second: nothing but what the class made of the file.
    both = replace(config, defaults={**family.defaults, **completed}, names=family.names)
    alone = replace(both, raw={"model_type": config.model_type}, defaults={**completed})
    for completion in (both, alone):
        other = architecture.assemble(completion, family)
        assert (without_keys(other.layers), other.order) == (without_keys(facts.layers), facts.order)


def test_what_the_file_leaves_out_comes_from_the_class(mapping: Any) -> None:
    bare = {"model_type": "qwen2", "num_hidden_layers": 4, "num_attention_heads": 32, "hidden_size": 256}
    cache = read(bare).layers[0].caches[0]
    assert cache.heads == mapping["qwen2"](**bare).num_key_value_heads
    assert "num_key_value_heads (class default)" in cache.keys


def test_the_class_defaults_here_are_those_of_transformers(mapping: Any) -> None:
    """Each default of the table is what the class gives to a config that leaves the key out."""
    checked, wrong = 0, []
    for family in FAMILIES:
        for kind in family.types:
            if kind not in mapping or not family.defaults:
                continue
            heads = {name: 6 for name in ("num_attention_heads", "n_head") if hasattr(mapping[kind](), name)}
            odd = {**heads, "hidden_size": 6 * 64} if kind != "ctrl" else {}
            try:
                made = mapping[kind](**odd).to_dict()
            except Exception:
                made = mapping[kind]().to_dict()
            if isinstance(made.get("text_config"), dict):
                made = made["text_config"]
            for key, value in family.defaults.items():
                if value == "num_attention_heads" and key in made:
                    value = made.get("num_attention_heads", made.get("n_head"))
                if made.get(key) is not None and key not in odd:
                    wrong += [(kind, key, made[key], value)] if made[key] != value else []
                    checked += 1
    assert not wrong, str(wrong)
    assert checked > 100


# ------------------------------------------------------------------------------- the case log


def test_head_width_is_the_configs_own_before_it_is_derived() -> None:
    """Case A01: an explicit head_dim wins; without one it is hidden size over heads."""
    small = {**LLAMA, "num_hidden_layers": 36, "hidden_size": 2560, "head_dim": 128}
    assert per_token(read(small)) == 147456
    for absent in ({}, {"head_dim": None}, {"head_dim": 0}):
        derived = {key: value for key, value in small.items() if key != "head_dim"} | absent
        assert per_token(read(derived)) == 92160
        assert any("head_dim derived" in key for key in read(derived).layers[0].caches[0].keys)
    del derived["head_dim"]
    assert per_token(read({**derived, "hidden_size_per_head": 128})) == 147456


def test_latent_attention_is_one_latent_whatever_the_head_keys_say() -> None:
    """Cases A02 and A04: no factor of two, the rotary part kept, misleading head keys ignored."""
    glm = {
        "model_type": "glm_moe_dsa",
        "num_hidden_layers": 78,
        "num_attention_heads": 64,
        "num_key_value_heads": 64,
        "head_dim": 64,
        "kv_lora_rank": 512,
        "qk_rope_head_dim": 64,
        "index_head_dim": 128,
        "hidden_size": 6144,
    }
    model = read(glm)
    latent = sum(times * cache.k_dim * 2 for cache, times in caches(model) if cache.kind == "latent")
    index = sum(times * (cache.slot_bytes or 0) for cache, times in caches(model) if cache.kind == "indexer")
    assert (latent, index) == (89856, 78 * 132)
    assert per_token(read({**glm, "model_type": "deepseek_v3", "num_hidden_layers": 61})) == 70272


def test_indexers_sit_only_on_the_layers_that_own_one(shared: Path) -> None:
    """Case A06: layers marked shared search an earlier layer's index."""
    model = load_model(str(shared / "configs" / "zai-org--GLM-5.3.json"))
    assert sum(times for cache, times in caches(model) if cache.kind == "indexer") == 21


def test_compressed_caches_are_never_read_as_plain_heads(shared: Path) -> None:
    """Case A07: a latent every few tokens beside a window, no dense formula."""
    model = load_model(str(shared / "configs" / "deepseek-ai--DeepSeek-V4-Flash.json"))
    growth = sum(
        times * cache.k_dim * 2 / cache.tokens_per_entry for cache, times in caches(model) if not cache.window_tokens
    )
    assert growth == 21 * (512 + 128) * 2 / 4 + 20 * 512 * 2 / 128 == 6880
    with pytest.raises(KvplanError, match="compress_ratios"):
        read({"model_type": "deepseek_ref", "num_hidden_layers": 4, "head_dim": 512, "num_attention_heads": 64})


def gemma4(**keys: Any) -> Model:
    text = {
        "model_type": "gemma4_text",
        "num_hidden_layers": 60,
        "hidden_size": 5376,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "head_dim": 256,
        "global_head_dim": 512,
        "num_global_key_value_heads": 4,
        "attention_k_eq_v": True,
        "sliding_window": 1024,
        "num_kv_shared_layers": 0,
        **keys,
    }
    return read({"model_type": "gemma4", "text_config": text})


def test_two_geometries_in_one_config() -> None:
    """Case A11: Gemma 4 31B."""
    view = hand_view(gemma4())
    assert view["bytes_per_token"] == 81920
    assert (view["bytes_per_token_below_window"] - 81920) * 1024 == 838860800
    fallback = {cache.heads for cache, _ in caches(gemma4(num_global_key_value_heads=None)) if cache.kind == "full"}
    assert fallback == {16}


def test_layers_that_share_a_cache_hold_none() -> None:
    """Case A15: the last layers of some models read an earlier layer's cache."""
    for shared_layers in (0, 20, 59):
        model = gemma4(num_kv_shared_layers=shared_layers)
        assert sum(times for _, times in caches(model)) == 60 - shared_layers
        assert len(model.order) == 60
    assert caches(gemma4(num_kv_shared_layers=60)) == []
    with pytest.raises(KvplanError, match="'num_kv_shared_layers' is 61, but the model has 60"):
        gemma4(num_kv_shared_layers=61)


def test_hybrids_count_only_the_layers_that_attend(shared: Path) -> None:
    """Case A16: and a hybrid whose layer map is nowhere stated is refused, never read as dense."""
    for name, wanted in (("Qwen--Qwen3-Next-80B-A3B-Instruct", 24576), ("nvidia--Qwen3.6-35B-A3B-NVFP4", 20480)):
        assert per_token(load_model(str(shared / "configs" / f"{name}.json"))) == wanted
    plain = {"num_hidden_layers": 8, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 512}
    for kind in ("nemotron_h", "bamba", "granitemoehybrid", "lfm2", "kimi_linear", "zamba2", "minimax"):
        assert "nobody knows which layers" in refused({"model_type": kind, **plain}), kind


def test_per_layer_heads_are_read_layer_by_layer() -> None:
    """Case A21: LFM2-1.2B attends in six of sixteen layers, the first is not one of them."""
    where = [2, 5, 8, 10, 12, 14]
    lfm2 = {
        "model_type": "lfm2",
        "num_hidden_layers": 16,
        "hidden_size": 2048,
        "num_attention_heads": 32,
        "num_key_value_heads": 8,
        "full_attn_idxs": where,
    }
    model = read(lfm2)
    assert per_token(model) == 12288
    assert [i for i, index in enumerate(model.order) if model.layers[index].caches[0].kind == "full"] == where
    by_layer = {**LLAMA, "num_hidden_layers": 4, "num_key_value_heads": [0, 8, 0, 2]}
    assert per_token(read(by_layer)) == (8 + 2) * 2 * 128 * 2
    with pytest.raises(KvplanError, match="lists 4 layers, layer 4 is missing"):
        read({**by_layer, "num_hidden_layers": 5})
    deci = {"model_type": "deci", "num_hidden_layers": 3, "hidden_size": 4096, "num_attention_heads": 32}
    assert per_token(read({**deci, "num_key_value_heads_per_layer": [4, 2, 1]})) == 7 * 2 * 128 * 2


def test_the_stored_form_of_a_latent_is_not_its_expanded_one() -> None:
    """Case A03: what the config's heads would take if keys and values were expanded is another figure altogether."""
    deepseek = {
        "model_type": "deepseek_v3",
        "num_hidden_layers": 61,
        "num_attention_heads": 128,
        "num_key_value_heads": 128,
        "kv_lora_rank": 512,
        "qk_nope_head_dim": 128,
        "qk_rope_head_dim": 64,
        "v_head_dim": 128,
        "hidden_size": 7168,
    }
    ((cache, layers),) = caches(read(deepseek))
    assert layers * cache.heads * cache.k_dim * 2 == 70272
    assert layers * 128 * (128 + 64 + 128) * 2 == 4_997_120
    assert (cache.rope_dim, cache.v_dim) == (64, 0)


def test_an_indexer_has_a_line_of_its_own(shared: Path) -> None:
    """Case A05: 128 fp8 bytes and a scale beside every latent."""
    model = load_model(str(shared / "configs" / "deepseek-ai--DeepSeek-V3.2.json"))
    index = sum(times * (cache.slot_bytes or 0) for cache, times in caches(model) if cache.kind == "indexer")
    assert index == 8052
    assert index + 61 * 656 == 48068


def test_blocks_without_attention_keep_nothing() -> None:
    """Case A23: live blocks state their own grouping, no-op blocks hold nothing."""
    live = {"attention": {"n_heads_in_group": 8, "no_op": False}, "ffn": {"ffn_mult": 2.0}}
    dead = {"attention": {"n_heads_in_group": None, "no_op": True}, "ffn": {"ffn_mult": 2.0}}
    nas = {
        "model_type": "nemotron-nas",
        "num_hidden_layers": 5,
        "num_attention_heads": 64,
        "num_key_value_heads": None,
        "hidden_size": 8192,
        "block_configs": [live, dead, live, dead, live],
    }
    model = read(nas)
    assert per_token(model) == 12288
    assert [bool(model.layers[index].caches) for index in model.order] == [True, False, True, False, True]


def test_cross_attention_is_fixed_by_the_encoder(shared: Path) -> None:
    """Case A25: Whisper pads its encoder to 1,500 positions."""
    model = load_model(str(shared / "configs" / "openai--whisper-large-v3.json"))
    cross = [(cache, times) for cache, times in caches(model) if cache.kind == "cross"]
    assert [(times, cache.heads, cache.k_dim, cache.fixed_tokens) for cache, times in cross] == [(32, 20, 64, 1500)]
    turbo = json.loads((shared / "configs" / "openai--whisper-large-v3.json").read_text()) | {"decoder_layers": 4}
    assert hand_view(read(turbo))["cross_bytes_per_sequence"] == 4 * 2 * 20 * 64 * 2 * 1500


def test_the_deepest_decoder_config_counts() -> None:
    """Case A26: the keys beside a nested decoder config belong to something else."""
    inner = {"num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    outer = {"model_type": "unheard_of", "num_hidden_layers": 33, "text_config": inner}
    model = read(outer)
    assert per_token(model) == 163840
    assert [finding.code for finding in model.findings] == ["unknown-model-type", "dtype-assumed"]
    assert per_token(read({"thinker_config": {"num_hidden_layers": 2, "text_config": inner}})) == 163840
    with pytest.raises(KvplanError, match="no 'num_hidden_layers'"):
        read({"model_type": "unheard_of", "vlm_backbone": inner})


def test_a_nested_decoder_without_a_type_has_the_one_that_its_class_gives_it(mapping: Any) -> None:
    """So a hybrid inside a multimodal config is never read as dense because it does not say what it is."""
    inner = {"num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 2, "hidden_size": 128}
    model = read({"model_type": "glm4v", "text_config": inner, "torch_dtype": "bfloat16"})
    assert (model.ref.model_type, per_token(model), model.findings) == ("glm4v_text", 4 * 2 * 2 * 16 * 2, ())
    assert "nobody knows which layers" in refused({"model_type": "lfm3_vl", "text_config": inner})
    named = read({"model_type": "lfm3_vl", "text_config": {**inner, "layer_types": ["conv", "full_attention"] * 2}})
    assert named.ref.model_type == "lfm3"


def test_plain_models_have_their_known_figures() -> None:
    """Case A34."""
    llama2 = {**LLAMA, "num_key_value_heads": 32}
    assert per_token(read(llama2)) == 524288
    assert per_token(read(LLAMA)) == 131072
    assert per_token(read({**LLAMA, "num_hidden_layers": 80, "hidden_size": 8192, "num_attention_heads": 64})) == 327680


def test_multi_query_flags_override_head_counts(shared: Path) -> None:
    raw = json.loads((shared / "configs" / "tiiuae--falcon-7b.json").read_text())
    assert per_token(read(raw)) == 8192
    assert per_token(read({**raw, "new_decoder_architecture": True, "num_kv_heads": 8})) == 65536
    assert per_token(read({**raw, "multi_query": False})) == 71 * 8192


def test_grouped_queries_by_a_flag_and_in_a_nested_table() -> None:
    glm = {
        "model_type": "chatglm",
        "num_layers": 28,
        "num_attention_heads": 32,
        "hidden_size": 4096,
        "kv_channels": 128,
    }
    grouped = {**glm, "multi_query_attention": True, "multi_query_group_num": 2}
    assert per_token(read(grouped)) == 28 * 2 * 2 * 128 * 2
    assert per_token(read({**grouped, "multi_query_attention": False})) == 28 * 2 * 32 * 128 * 2
    dbrx = {"model_type": "dbrx", "n_layers": 40, "n_heads": 48, "d_model": 6144, "attn_config": {"kv_n_heads": 8}}
    assert per_token(read(dbrx)) == 40 * 2 * 8 * 128 * 2


# ------------------------------------------------------------------------------- draft layers


def drafted(model: Model) -> int:
    """bf16 bytes a token of the layers that speculative decoding added."""
    return sum(times * cache.heads * (cache.k_dim + cache.v_dim) * 2 for cache, times in caches(model) if cache.draft)


def test_draft_layers_come_from_their_own_config(shared: Path) -> None:
    """Case A31: one layer of multi-token prediction, every layer of a draft model, nothing for n-grams."""
    model = load_model(str(shared / "configs" / "deepseek-ai--DeepSeek-V3.json"))
    assert not any(cache.draft for cache, _ in caches(model))
    one = with_draft(model, "mtp")
    assert per_token(one) == 71424
    assert (one.num_layers, len(one.order), drafted(one)) == (61, 62, 1152)
    assert drafted(with_draft(model, "mtp", layers=3)) == 3 * 1152
    assert with_draft(model, "ngram") == with_draft(model, "none") == model
    eagle = with_draft(model, "eagle", draft=read({**LLAMA, "num_hidden_layers": 1}))
    assert drafted(eagle) == 4096
    with pytest.raises(KvplanError, match="needs a draft model"):
        with_draft(model, "eagle")
    with pytest.raises(KvplanError, match="states no layers of multi-token prediction"):
        with_draft(read(LLAMA), "mtp")
    with pytest.raises(KvplanError, match="unknown method"):
        with_draft(model, "medusa")


def test_a_predicting_layer_has_an_index_where_the_model_has(shared: Path) -> None:
    """Case A06: 79 latents and 22 indices with the layer that predicts."""
    model = with_draft(load_model(str(shared / "configs" / "zai-org--GLM-5.3.json")), "mtp")
    assert sum(times for cache, times in caches(model) if cache.kind == "latent") == 79
    assert sum(times for cache, times in caches(model) if cache.kind == "indexer") == 22
    nemotron = load_model(str(shared / "configs" / "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4.json"))
    assert [len(layer.caches) for layer in nemotron.draft] == [1, 0]


def test_draft_layers_that_cannot_be_read_are_said_and_change_nothing() -> None:
    heads = {**LLAMA, "num_hidden_layers": 2, "num_key_value_heads": [8, 8], "num_nextn_predict_layers": 1}
    model = read(heads)
    assert model.draft == ()
    assert "draft-unknown" in {finding.code for finding in model.findings}


# ------------------------------------------------------------------------------- layers that run more than once


def test_looping_models_keep_a_cache_for_every_run() -> None:
    dory = {
        **LLAMA,
        "model_type": "dory",
        "num_hidden_layers": 8,
        "head_dim": 128,
        "sliding_window": 64,
        "layer_types": ["full_attention", "mlp"] * 4,
        "n_input_layers": 2,
        "n_output_layers": 2,
        "n_recurrent_loops": 3,
        "recurrent_kv_cache_mode": "per_loop",
    }
    assert per_token(read(dory)) == (1 + 2 * 3 + 1) * 4096
    assert per_token(read({**dory, "recurrent_kv_cache_mode": "last_loop"})) == 4 * 4096
    longcat = {
        "model_type": "longcat_flash",
        "num_layers": 3,
        "num_attention_heads": 8,
        "kv_lora_rank": 32,
        "qk_rope_head_dim": 8,
        "hidden_size": 64,
    }
    model = read(longcat)
    assert (model.num_layers, len(model.order), per_token(model)) == (3, 6, 6 * 40 * 2)
    with pytest.raises(KvplanError, match="nobody knows which layers"):
        read({key: value for key, value in dory.items() if key != "layer_types"})


def test_windows_only_where_they_are_switched_on() -> None:
    qwen = {**LLAMA, "model_type": "qwen2", "sliding_window": 4096, "max_window_layers": 28}
    assert all(cache.window_tokens is None for cache, _ in caches(read({**qwen, "use_sliding_window": False})))
    on = read({**qwen, "use_sliding_window": True})
    assert [bool(on.layers[index].caches[0].window_tokens) for index in on.order] == [False] * 28 + [True] * 4
    mistral = {**LLAMA, "model_type": "mistral"}
    assert {cache.window_tokens for cache, _ in caches(read(mistral))} == {4096}
    assert {cache.window_tokens for cache, _ in caches(read({**mistral, "sliding_window": None}))} == {None}


@pytest.mark.parametrize(
    ("scaling", "wanted"),
    [
        (None, 4096),
        ({"rope_type": "yarn", "factor": 40, "original_max_position_embeddings": 4096}, 163840),
        ({"type": "linear", "factor": 4.0}, 16384),
        ({"rope_type": "llama3", "factor": 8.0, "original_max_position_embeddings": 8192}, 4096),
        ({"rope_type": "longrope", "short_factor": [1.0]}, 4096),
    ],
)
def test_rotary_scaling_and_the_true_context(scaling: Any, wanted: int) -> None:
    root = {**LLAMA, "max_position_embeddings": 4096, "rope_scaling": scaling}
    assert context_tokens(architecture.locate(root, "config.json")) == wanted


def test_rotary_scaling_stated_by_type_of_layer() -> None:
    by_type = {"full_attention": {"rope_type": "yarn", "factor": 4, "original_max_position_embeddings": 4096}}
    root = {**LLAMA, "max_position_embeddings": 4096, "rope_parameters": by_type}
    assert context_tokens(architecture.locate(root, "config.json")) == 16384


def test_a_kv_scheme_that_is_not_read_is_said() -> None:
    scheme = {"quant_method": "compressed-tensors", "kv_cache_scheme": {"num_bits": 8, "type": "int"}}
    model = read({**LLAMA, "quantization_config": scheme})
    assert model.kv_dtype is None
    assert [finding.code for finding in model.findings] == ["kv-scheme-unread"]


def test_the_checkpoints_own_kv_dtype(shared: Path) -> None:
    expected = {
        "nvidia--Kimi-K2.5-NVFP4": "fp8",
        "nvidia--GLM-5.3-NVFP4": "fp8",
        "Qwen--Qwen3-32B": None,
        "Qwen--Qwen3-32B-FP8": None,
        "nvidia--MiniMax-M3-NVFP4": None,
    }
    for name, wanted in expected.items():
        assert load_model(str(shared / "configs" / f"{name}.json")).kv_dtype == wanted, name


# ------------------------------------------------------------------------------- parameters and the catalogue

# Published sizes, in parameters of the language model.
PUBLISHED = {
    "llama-2-7b": 6_738_415_616,
    "llama-3.1-8b": 8_030_261_248,
    "llama-3.1-70b": 70_553_706_496,
    "llama-3.2-1b": 1_235_814_400,
    "llama-3.2-3b": 3_212_749_824,
    "qwen2.5-7b": 7_615_616_512,
    "qwen3-32b": 32_762_123_264,
    "qwen3-30b-a3b": 30_532_122_624,
    "mistral-7b-v0.1": 7_241_732_096,
    "mixtral-8x7b": 46_702_792_704,
    "mixtral-8x22b": 140_620_634_112,
    "gemma-2-9b": 9_241_705_984,
    "gemma-2-27b": 27_227_128_320,
    "deepseek-v3": 671_026_419_200,
    "jamba-v0.1": 51_570_323_328,
    "gpt-oss-120b": 116_829_156_672,
    "phi-4": 14_659_507_200,
}


def test_counted_parameters_match_published_ones() -> None:
    found = {entry.name: entry.params for entry in catalogue()}
    for name, published in PUBLISHED.items():
        counted = found[name]
        assert counted is not None
        assert abs(counted / published - 1) < 0.001, f"{name}: {counted} counted, {published} published"


def test_only_the_chosen_experts_work_for_a_token() -> None:
    mixtral = architecture.read(catalogued.models()["mixtral-8x7b"].config, "mixtral")
    counts = params.count(mixtral)
    assert counts is not None
    assert counts.active_experts * 4 == counts.experts  # 2 of 8
    model = load_model("mixtral-8x7b")
    assert model.compute is not None
    assert model.compute.linear_flops_per_token == 2 * counts.active
    assert model.compute.attention_flops_per_token_sq == 32 * 32 * 256


def test_windows_and_selection_move_attention_to_the_linear_term() -> None:
    windowed, full = load_model("mistral-7b-v0.1"), load_model("mistral-7b-v0.3")
    assert windowed.compute is not None
    assert full.compute is not None
    assert windowed.compute.attention_flops_per_token_sq == 0
    assert full.compute.attention_flops_per_token_sq == 32 * 32 * 256
    extra = windowed.compute.linear_flops_per_token - full.compute.linear_flops_per_token
    assert extra == 2 * 4096 * 32 * 32 * 256


def test_the_catalogue_has_the_layers_of_the_real_configs(shared: Path) -> None:
    compared = 0
    by_hub = {path.stem.replace("--", "/"): path for path in (shared / "configs").glob("*.json")}
    for entry in catalogued.models().values():
        path = next((by_hub[name] for name in (entry.hub_id, *entry.same) if name in by_hub), None)
        if path is None:
            continue
        mine, real = load_model(entry.name), load_model(str(path))
        assert (mine.layers, mine.order, mine.dtype) == (real.layers, real.order, real.dtype), entry.name
        assert (mine.compute, mine.ref.max_context_tokens) == (real.compute, real.ref.max_context_tokens), entry.name
        assert mine.weights == real.weights, entry.name
        compared += 1
    assert compared >= 40


def test_the_catalogue_is_complete_and_unambiguous() -> None:
    entries = catalogued.models()
    assert len(entries) >= 40
    names = [name for entry in entries.values() for name in (entry.name, *entry.aliases)]
    hubs = [hub for entry in entries.values() for hub in (entry.hub_id, *entry.same)]
    assert len(names) == len(set(names))
    assert len(hubs) == len(set(hubs))
    for entry, line in zip(entries.values(), catalogue(), strict=True):
        assert entry.name == entry.name.lower()
        assert line.source == f"https://huggingface.co/{entry.hub_id}"
        assert line.date == entry.date >= "2026-01-01"
        model = load_model(entry.name.upper())
        assert model.ref.source == "catalogue"
        assert model.ref.id == entry.hub_id
        assert len(model.ref.config_sha256) == 64


def test_another_name_of_a_catalogue_entry() -> None:
    assert load_model("llama-3.3-70b").order == load_model("llama-3.1-70b").order


# ------------------------------------------------------------------------------- what may be wrong


def refused(config: Mapping[str, Any]) -> str:
    with pytest.raises(KvplanError) as caught:
        read(config)
    text = str(caught.value)
    assert "\n" not in text
    return text


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"num_key_value_heads": 0}, "'num_key_value_heads' is 0"),
        ({"num_attention_heads": 0}, "'num_attention_heads' is 0"),
        ({"hidden_size": -4096}, "'hidden_size' is -4096"),
        ({"num_hidden_layers": -1}, "'num_hidden_layers' is -1"),
        ({"num_hidden_layers": "32"}, "'num_hidden_layers' must be a whole number, not '32'"),
        ({"num_hidden_layers": 1e9}, "'num_hidden_layers' is 1000000000"),
        ({"hidden_size": 4097}, "'hidden_size' 4097 is no multiple of 32 heads"),
        ({"torch_dtype": "int3"}, "'torch_dtype' is 'int3'"),
        ({"model_type": "unheard_of", "num_key_value_heads": None}, "no 'num_key_value_heads'"),
        ({"model_type": "unheard_of", "sliding_window": 4096}, "'sliding_window' says"),
        ({"model_type": "unheard_of", "kv_lora_rank": 512}, "'kv_lora_rank' says"),
        ({"model_type": "gemma2", "layer_types": ["full_attention"] * 31}, "'layer_types' lists 31 layers"),
        ({"model_type": "gemma2", "layer_types": ["quantum"] * 32}, "layer 0 is of unknown type 'quantum'"),
        ({"model_type": "gemma2", "sliding_window": 0}, "'sliding_window' is 0"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M*X"}, "'hybrid_override_pattern' must be a string"),
        ({"model_type": "nemotron_h", "hybrid_override_pattern": "M*"}, "has 2 layers, but the model has 32"),
    ],
)
def test_a_wrong_key_is_named(change: Mapping[str, Any], said: str) -> None:
    assert said in refused({**LLAMA, **change})


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b'{"model_type": "llama", "num_hidden', "not valid JSON"),
        (b"[1, 2]", "a config is a JSON object"),
        (b"\xff\xfe\x00", "not valid JSON"),
        (b"", "not valid JSON"),
        (b"[" * 100_000, "not valid JSON"),
    ],
)
def test_a_broken_file_is_named(tmp_path: Path, content: bytes, said: str) -> None:
    (tmp_path / "config.json").write_bytes(content)
    with pytest.raises(KvplanError, match=said) as caught:
        load_model(str(tmp_path))
    assert str(tmp_path / "config.json") in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("spec", ["./nowhere", "/nowhere/config.json", "a/b/c", "nowhere.json", "~/nowhere"])
def test_a_mistyped_path_is_no_hub_id(spec: str) -> None:
    with pytest.raises(KvplanError, match="no such file or folder"):
        load_model(spec)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(KvplanError, match=r"nearest: .*llama-3\.1-8b"):
        load_model("llama-3.1-8")
    with pytest.raises(KvplanError, match="no revisions"):
        load_model("llama-3.1-8b", "main")


def test_other_files_are_refused_by_what_they_are(tmp_path: Path) -> None:
    with pytest.raises(KvplanError, match=r"no config\.json in this folder"):
        load_model(str(tmp_path))
    for name, said in (("model.gguf", "GGUF"), ("model.safetensors", "holds weights")):
        (tmp_path / name).write_bytes(b"x")
        with pytest.raises(KvplanError, match=said):
            load_model(str(tmp_path / name))


def test_the_reference_is_of_the_bytes_read(tmp_path: Path) -> None:
    import hashlib

    text = json.dumps(LLAMA, indent=3).encode()
    (tmp_path / "config.json").write_bytes(text)
    ref = load_model(str(tmp_path)).ref
    assert ref.config_sha256 == hashlib.sha256(text).hexdigest()
    assert (ref.source, ref.model_type, ref.max_context_tokens) == ("path", "llama", 131072)


def test_a_model_is_a_document(shared: Path) -> None:
    from kvplan.files import dump, parse, wrap

    document = wrap(load_model(str(shared / "configs" / "deepseek-ai--DeepSeek-V4-Flash.json")))
    assert parse(dump(document).encode(), "model") == document
    assert json_schema("model")["title"] == "kvplan.model"


# ------------------------------------------------------------------------------- mutated configs

JUNK = st.one_of(st.integers(-5, 300), st.sampled_from([*WORDS, *NESTED]))


@settings(max_examples=400, deadline=None, suppress_health_check=list(HealthCheck), derandomize=True)
@given(data=st.data())
def test_a_mutated_config_gives_a_model_or_one_line(mutants: dict[str, dict[str, Any]], data: Any) -> None:

    config = copy.deepcopy(mutants[data.draw(st.sampled_from(sorted(mutants)))])
    for _ in range(data.draw(st.integers(1, 3))):
        spots = places(config)
        if spots:
            place = data.draw(st.sampled_from(spots))
            mutate(config, place, data.draw(JUNK), drop=data.draw(st.booleans()))
    assert outcome(config)


@pytest.fixture(scope="module")
def mutants() -> dict[str, dict[str, Any]]:
    return originals()
