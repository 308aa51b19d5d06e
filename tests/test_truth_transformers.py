"""Bytes of --engine transformers against caches that transformers really returned: recorded, and built here."""

from __future__ import annotations

import gzip
import json
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.documents import BytesAt, EstimateOptions, Model, ModelRef
from kvplan.errors import KvplanError
from kvplan.estimate import estimate
from kvplan.model import from_config, load_model

Row = Mapping[str, Any]


def read(config: Mapping[str, Any]) -> Model:
    """The model of a config given as a mapping."""
    return from_config(config, ModelRef(id="m", source="path", model_type="", config_sha256=""), "config.json")


def at(model: Model, tokens: int, dtype: str = "bf16", encoder_tokens: int | None = None) -> BytesAt:
    options = EstimateOptions(engine="transformers", kv_dtype=dtype, at=(tokens,), encoder_tokens=encoder_tokens)
    (found,) = estimate(model, options).kv.bytes_at
    return found


# ------------------------------------------------------------------------------- recorded sweeps


def recorded(shared: Path) -> Iterator[Row]:
    with gzip.open(shared / "truth" / "hf.jsonl.gz", "rt") as stream:
        for line in stream:
            row = json.loads(line)
            if "error" not in row:
                yield row


def tokens_of(row: Row) -> int:
    """The length of the decoder's input: image placeholders included, an encoder's input not."""
    given = row["input_shapes"]
    length: int = given["decoder_input_ids"][1] if "decoder_input_ids" in given else given["input_ids"][1]
    return length


def encoder_tokens_of(row: Row) -> int | None:
    """The positions that the row's encoder put out; Mllama's lie in plain layers, MusicGen's before the prompt."""
    apart = {"mllama+image": 4 * ((56 // 14) ** 2 + 1), "musicgen_melody": 12}
    seen = {tensor["shape"][2] for tensor in row["tensors"] if tensor["kind"] == "cross_attention"}
    return apart.get(row["model_type"], seen.pop() if seen else None)


def test_every_recorded_cache_is_equal_to_the_byte(shared: Path) -> None:
    """Bytes of the tensors, and of the storages that prefill leaves behind them, of 344 kinds at four settings."""
    models: dict[str, Model] = {}
    wrong, rows = [], 0
    for row in recorded(shared):
        model = models.setdefault(row["model_type"], read(row["config"]))
        held = at(model, tokens_of(row), row["dtype"], encoder_tokens_of(row))
        if (held.steady_bytes, held.admission_bytes) != (row["bytes"], row["storage_bytes"]):
            wrong.append((row["model_type"], row["N"], row["dtype"], held, row["bytes"], row["storage_bytes"]))
        rows += 1
    assert not wrong, str(wrong[:5])
    assert (len(models), rows) == (344, 1372)


def test_a_step_of_decoding_adds_what_one_more_token_costs(shared: Path) -> None:
    """Two types are left out: the recording of a step did not find where they keep their state."""
    wrong, rows = [], 0
    models: dict[str, Model] = {}
    for row in recorded(shared):
        step = row.get("after_decode_step") or {}
        if "bytes" not in step or row["model_type"] in ("recurrent_gemma", "reformer"):
            continue
        model = models.setdefault(row["model_type"], read(row["config"]))
        held = at(model, tokens_of(row) + 1, row["dtype"], encoder_tokens_of(row)).steady_bytes
        if held != step["bytes"]:
            wrong.append((row["model_type"], row["N"], held, step["bytes"]))
        rows += 1
    assert not wrong, str(wrong[:5])
    assert rows == 972


def test_no_recorded_type_is_read_as_an_unknown_one(shared: Path) -> None:
    for row in recorded(shared):
        if row["N"] == 8 and row["dtype"] == "bfloat16":
            assert "unknown-model-type" not in {finding.code for finding in read(row["config"]).findings}


def test_full_size_models_are_equal_to_the_byte(shared: Path) -> None:
    rows = [json.loads(line) for line in (shared / "truth" / "hf_full_size.jsonl").read_text().splitlines()]
    checked = 0
    for row in rows:
        if "bytes" not in row:
            continue
        model = load_model(str(shared / "configs" / f"{row['model']}.json"))
        assert at(model, row["N"], row["dtype"]).steady_bytes == row["bytes"], row["model"]
        checked += 1
    assert checked == 140


# ------------------------------------------------------------------------------- built here

# One type for every behaviour of a cache, with what is special about it.
KINDS = {
    "llama": "grouped heads",
    "gpt2": "multi-head",
    "gpt_bigcode": "one head by a flag",
    "falcon": "one head unless the flags say otherwise",
    "qwen3": "a head width of its own",
    "dbrx": "KV heads in a nested table",
    "mistral": "a window in every layer",
    "gemma3_text": "windows by a pattern",
    "gemma4_text": "wider full layers, shared layers",
    "llama4_text": "chunks",
    "gpt_oss": "windows by turns",
    "mimo_v2_flash": "narrow values, more heads in windows",
    "dory": "a loop over middle layers",
    "hrm_text": "two stacks that cycle",
    "deepseek_v3": "a latent",
    "longcat_flash": "two latents a layer",
    "deepseek_v32": "a latent and an index",
    "glm_moe_dsa": "shared indices",
    "mistral_large4": "latents without rotary key",
    "deepseek_v4": "compressed streams",
    "minimax_m3_vl_text": "an index beside plain attention",
    "mamba": "a state and a convolution",
    "mamba2": "heads of state",
    "jamba": "states and attention by a period",
    "falcon_h1": "both in one layer",
    "zamba": "both in some layers",
    "nemotron_h": "blocks by a list",
    "qwen3_next": "delta nets",
    "kimi_linear": "delta nets and latents",
    "lfm2": "short convolutions",
    "minimax": "lightning attention",
    "recurrent_gemma": "a gated recurrence",
    "rwkv": "no attention at all",
    "xlstm": "matrices of state",
    "zaya": "convolved queries and keys",
    "inkling_text": "four convolutions a layer",
    "cpmant": "a prompt of its own",
    "xlnet": "memories",
    "bert": "an encoder run as decoder",
    "bart": "an encoder beside it",
    "t5": "widths of its own and an encoder",
    "t5gemma": "windows and an encoder",
    "whisper": "an encoder of fixed length",
    "llava": "a nested decoder",
    "mllama": "layers for images only",
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_model_built_here_returns_what_kvplan_says(kind: str) -> None:
    tiny_models = pytest.importorskip("tiny_models", reason="torch is not installed: no model was built")
    built, _ = tiny_models.any_build(kind)
    for tokens in (5, 24, 40):
        real = tiny_models.forward(built, tokens)
        model = read({**built.config, "dtype": None})
        held = at(model, real.tokens, "fp32", real.encoder_tokens)
        assert (held.steady_bytes, held.admission_bytes) == (real.bytes, real.storage_bytes), tokens


# ------------------------------------------------------------------------------- rules and properties

BASE = {
    "model_type": "llama",
    "num_hidden_layers": 3,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "torch_dtype": "bfloat16",
}
SHAPES: tuple[dict[str, Any], ...] = (
    BASE,
    {**BASE, "model_type": "mistral", "sliding_window": 7},
    {**BASE, "model_type": "falcon", "new_decoder_architecture": True},
    {**BASE, "model_type": "deepseek_v3", "kv_lora_rank": 16, "qk_rope_head_dim": 4},
    {
        **BASE,
        "model_type": "deepseek_v4",
        "head_dim": 16,
        "sliding_window": 8,
        "index_head_dim": 8,
        "compress_ratios": [0, 4, 16],
    },
    {**BASE, "model_type": "mamba", "state_size": 8, "expand": 2, "conv_kernel": 4},
    {**BASE, "model_type": "bart", "decoder_layers": 2, "decoder_attention_heads": 4, "d_model": 32},
)


@settings(max_examples=60, deadline=None, derandomize=True)
@given(st.sampled_from(SHAPES), st.integers(1, 300), st.sampled_from(["none", "transformers"]), st.integers(0, 20))
def test_more_tokens_never_cost_less(config: dict[str, Any], tokens: int, engine: str, encoder: int) -> None:
    """Whole groups of the compressed cache close at once, so there only whole groups are compared."""
    step = 16 if config["model_type"] == "deepseek_v4" else 1
    model = read(config)
    options = EstimateOptions(
        engine=engine, at=(tokens * step, (tokens + 1) * step), sequences=3, encoder_tokens=encoder
    )
    less, more = estimate(model, options).kv.bytes_at
    assert less.steady_bytes <= more.steady_bytes
    assert less.steady_bytes <= less.admission_bytes
    assert less.admission_bytes <= more.admission_bytes


def test_a_window_of_one_token_keeps_everything() -> None:
    model = read({**BASE, "model_type": "mistral", "sliding_window": 1})
    assert at(model, 50).steady_bytes == at(read(BASE), 50).steady_bytes


def test_copied_heads_are_this_engines_alone() -> None:
    model = read(SHAPES[2])
    none = estimate(model, EstimateOptions()).kv.bytes_per_token
    assert estimate(model, EstimateOptions(engine="transformers")).kv.bytes_per_token == 2 * none


def test_only_dtypes_that_a_model_runs_in() -> None:
    model = read({**BASE, "quantization_config": {"quant_method": "x", "kv_cache_quant_algo": "FP8"}})
    assert model.kv_dtype == "fp8"
    assert estimate(model, EstimateOptions(engine="transformers")).kv_dtype == "bf16"
    with pytest.raises(KvplanError, match="not 'fp8'"):
        estimate(model, EstimateOptions(engine="transformers", kv_dtype="fp8"))
    with pytest.raises(KvplanError, match="no blocks"):
        estimate(model, EstimateOptions(engine="transformers", block_tokens=16))


def test_a_checkpoint_keeps_its_gates_in_fp32() -> None:
    """DeepSeek-V4 adds an fp32 bias to the gates it keeps of a group; cast as a whole, the bias is cast as well."""
    bare = {key: value for key, value in SHAPES[4].items() if key != "torch_dtype"}
    loaded, cast = (at(read(config), 64).steady_bytes for config in (SHAPES[4], bare))
    assert loaded - cast == 4 * (16 + 8) * 2  # one layer, one group of 4: latent and index gates, 2 more bytes each
