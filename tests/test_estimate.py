"""Bytes of a token and of a sequence, without an engine and in vLLM, against hand figures and vLLM's own planner."""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import samples
from hypothesis import given, settings
from hypothesis import strategies as st
from records import replace

from kvplan.catalog import gpu
from kvplan.catalog import models as catalogued
from kvplan.documents import Estimate, EstimateOptions, LlamaCppOptions, Model, Parallel, Weights, Workload
from kvplan.errors import KvplanError, LimitError, UsageError
from kvplan.estimate import LLAMA_FLAGS, estimate
from kvplan.files import dump, parse, wrap
from kvplan.model import load_model
from kvplan.models.weights import parts
from kvplan.units import GiB

LATENT = 61 * 576 * 2


@cache
def model(name: str) -> Model:
    return load_model(name)


def run(name: str, tp: int = 1, pp: int = 1, dcp: int = 1, **options: Any) -> Estimate:
    return estimate(model(name), EstimateOptions(parallel=Parallel(tp=tp, pp=pp, dcp=dcp), **options))


# ------------------------------------------------------------------------------- without an engine


@pytest.mark.parametrize(
    ("name", "token", "sequence"),
    [
        ("meta-llama--Meta-Llama-3.1-8B", 131072, 0),
        ("meta-llama--Meta-Llama-3.1-70B", 327680, 0),
        ("Qwen--Qwen3-32B", 262144, 0),
        ("deepseek-ai--DeepSeek-V3", 70272, 0),
        ("google--gemma-3-27b-it", 81920, 436207616),
        ("openai--gpt-oss-20b", 24576, 3145728),
        ("Qwen--Qwen3-Next-80B-A3B-Instruct", 24576, 36 * (8192 * 3 * 2 + 32 * 128 * 128 * 4)),
        ("ai21labs--Jamba-v0.1", 16384, 28 * (8192 * 3 * 2 + 8192 * 16 * 4)),
        ("tiiuae--falcon-7b", 8192, 0),
        ("mistralai--Mistral-7B-v0.1", 0, 536870912),
        ("meta-llama--Llama-4-Scout-17B-16E-Instruct", 49152, 36 * 4096 * 8192),
        ("openai--whisper-large-v3", 163840, 245760000),
    ],
)
def test_the_logical_need_in_bf16(shared: Path, name: str, token: int, sequence: int) -> None:
    found = run(str(shared / "configs" / f"{name}.json"))
    assert (found.kv.bytes_per_token, found.kv.bytes_per_sequence) == (token, sequence)
    assert (found.engine, found.block_tokens, found.parallel) == ("none", 1, Parallel())
    assert sum(group.bytes_per_sequence for group in found.groups) == sequence
    growing = [group for group in found.groups if group.window_tokens is None and group.kind != "cross"]
    assert sum(group.bytes_per_token for group in growing) == token


def test_cross_attention_has_a_group_of_its_own(shared: Path) -> None:
    groups = run(str(shared / "configs" / "openai--whisper-large-v3.json")).groups
    assert [(g.kind, g.layers, g.bytes_per_token, g.bytes_per_sequence) for g in groups] == [
        ("full", 32, 163840, 0),
        ("cross", 32, 0, 245760000),
    ]


def test_the_arithmetic_is_written_out() -> None:
    groups = run("gemma-3-27b").groups
    assert groups[0].arithmetic == "52 layers x 16 heads x (128 + 128) x 2 B, at most 1024 tokens"
    assert groups[1].arithmetic == "10 layers x 16 heads x (128 + 128) x 2 B"
    assert run("deepseek-v3").groups[0].arithmetic == "61 layers x 576 x 2 B"


def test_lengths_below_and_above_the_window() -> None:
    at = run("gemma-3-27b", at=(0, 100, 1024, 8192)).kv.bytes_at
    layers, window = 425984, 1024
    assert [point.steady_bytes for point in at] == [
        0,
        100 * (81920 + layers),
        1024 * (81920 + layers),
        8192 * 81920 + window * layers,
    ]
    assert at[-1].hybrid_off_bytes == 8192 * (81920 + layers)


def test_precision_scales_everything_but_fixed_formats() -> None:
    assert run("llama-3.1-8b", kv_dtype="fp8").kv.bytes_per_token == 65536
    assert run("llama-3.1-8b", kv_dtype="float32").kv.bytes_per_token == 262144
    sixteen, eight = run("deepseek-v3.2"), run("deepseek-v3.2", kv_dtype="fp8_e4m3")
    assert sixteen.kv.bytes_per_token - eight.kv.bytes_per_token == LATENT // 2  # the indexer is fp8 in both
    assert sixteen.kv.bytes_per_token == LATENT + 61 * 132
    for name in ("q4_0", "fp4", "", "int8"):
        with pytest.raises(KvplanError, match="has no KV dtype"):
            run("llama-3.1-8b", kv_dtype=name)


def test_an_encoder_without_a_fixed_length_asks_for_it(tmp_path: Path) -> None:
    t5 = {"model_type": "t5", "num_layers": 6, "num_heads": 8, "d_kv": 64, "d_model": 512, "torch_dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps(t5))
    bare = run(str(tmp_path))
    assert (bare.kv.bytes_per_token, bare.kv.bytes_per_sequence) == (12288, 0)
    assert [finding.code for finding in bare.findings] == ["encoder-length"]
    assert run(str(tmp_path), encoder_tokens=100).kv.bytes_per_sequence == 1228800


def test_an_estimate_is_a_document() -> None:
    document = wrap(run("qwen3-next-80b-a3b", engine="vllm", gpu=gpu("h200"), tp=4, at=(8192,)))
    assert parse(dump(document).encode(), "estimate") == document


# ------------------------------------------------------------------------------- ranks


def test_tensor_parallelism_beyond_the_kv_heads_copies_them() -> None:
    """Case A29: Llama 3 70B."""
    per_gpu = [run("llama-3.1-70b", engine="vllm", tp=tp).kv.bytes_per_token_per_gpu for tp in (1, 2, 4, 8, 16, 32, 64)]
    assert per_gpu == [327680, 163840, 81920, 40960, 40960, 40960, 40960]
    copied = run("llama-3.1-70b", engine="vllm", tp=32)
    assert copied.kv.offload_bytes_per_token == 4 * 327680
    assert "heads-copied" in [finding.code for finding in copied.findings]
    with pytest.raises(KvplanError, match="neither divides 8 KV heads"):
        run("llama-3.1-70b", engine="vllm", tp=3)


@pytest.mark.parametrize("kind", ["vllm", "sglang", "tensorrt-llm"])
def test_no_engine_deals_query_heads_out_unevenly(kind: str) -> None:
    with pytest.raises(KvplanError, match="--tp 64 does not divide 32 query heads"):
        run("llama-3.1-8b", engine=kind, tp=64)
    with pytest.raises(KvplanError, match="--tp 2 does not divide 71 query heads"):
        run("falcon-7b", engine=kind, tp=2)


@pytest.mark.parametrize(
    ("name", "tp", "dcp", "least"),
    [
        ("llama-3.1-8b", 8, 2, 16),
        ("llama-3.1-8b", 8, 8, 64),
        ("qwen3-235b-a22b", 4, 2, 8),
        ("qwen3-235b-a22b", 8, 4, 16),
    ],
)
def test_only_ranks_with_copies_of_a_head_share_its_tokens(name: str, tp: int, dcp: int, least: int) -> None:
    """vLLM's documentation of decode context parallelism: from 1 to tp / H, H the KV heads."""
    with pytest.raises(KvplanError, match=f"vLLM refuses it.*--tp {least} at least"):
        run(name, engine="vllm", tp=tp, dcp=dcp)


def test_context_parallelism_undoes_the_copies_of_heads() -> None:
    """vLLM's own example: Qwen3-235B-A22B has 4 KV heads, so that --tp 8 keeps two copies and --dcp 2 none."""
    copied, shared = (run("qwen3-235b-a22b", engine="vllm", tp=8, dcp=dcp).kv for dcp in (1, 2))
    assert copied.bytes_per_token_per_gpu * 8 == 2 * copied.bytes_per_token
    assert shared.bytes_per_token_per_gpu * 8 == shared.bytes_per_token


# ------------------------------------------------------------------------------- lengths that do not fit


def codes(found: Estimate) -> dict[str, str]:
    return {finding.code: finding.text for finding in found.findings}


def test_a_context_that_does_not_fit_names_the_longest_that_does() -> None:
    found = run("llama-3.1-8b", engine="vllm", kv_memory_bytes=3 * GiB)
    assert "131,072 tokens does not fit in 3.00 GiB" in codes(found)["context-does-not-fit"]
    assert "vLLM does not start" in codes(found)["context-does-not-fit"]
    longest = 3 * GiB // 131_072
    assert f"--max-model-len {longest:,} would fit" in codes(found)["context-does-not-fit"]
    for tokens, fits in ((longest, True), (longest + 16, False)):
        again = run("llama-3.1-8b", engine="vllm", kv_memory_bytes=3 * GiB, max_model_len=tokens)
        assert ("context-does-not-fit" not in codes(again)) is fits
        assert again.max_model_len == tokens
    assert found.max_model_len is None


def test_llama_cpp_allocates_its_context_whole_or_does_not_start() -> None:
    cut = LlamaCppOptions(ctx_size=32_768, slots=4)
    text = codes(run("llama-3.1-8b", engine="llama.cpp", kv_memory_bytes=7 * GiB))["context-does-not-fit"]
    assert "16.00 GiB for 131,072 tokens" in text
    assert "--ctx-size" in text
    fitting = run("llama-3.1-8b", engine="llama.cpp", kv_memory_bytes=7 * GiB, llama_cpp=cut)
    assert "context-does-not-fit" not in codes(fitting)
    assert "context-does-not-fit" in codes(
        run("llama-3.1-8b", engine="llama.cpp", kv_memory_bytes=3 * GiB, llama_cpp=cut)
    )


def test_lengths_beyond_the_context_are_said() -> None:
    found = run("llama-3.1-8b", engine="vllm", max_model_len=1 << 20, at=(1 << 20,))
    assert "1,048,576 is longer than the 131,072 tokens" in codes(found)["context-cut"]
    assert "1,048,576 tokens are beyond the context" in codes(found)["beyond-context"]
    assert found.max_model_len == 131_072
    assert not codes(run("llama-3.1-8b", engine="vllm", max_model_len=131_072, at=(131_072,)))


def test_options_of_llama_cpp_are_not_dropped_in_silence() -> None:
    asked = LlamaCppOptions(ctx_size=8192, swa_full=True, flash_attention=False)
    for kind in ("none", "vllm", "sglang"):
        with pytest.raises(UsageError, match=f"--ctx-size, --swa-full, --no-flash-attn: .* the engine is {kind}"):
            run("llama-3.1-8b", engine=kind, llama_cpp=asked)
    assert {field for field, _ in LLAMA_FLAGS} == set(LlamaCppOptions.__struct_fields__)


@pytest.mark.parametrize(
    ("name", "mib"), [("h200", 143_771), ("b200", 183_359), ("b300", 275_040), ("gb200", 189_471), ("l40s", 46_068)]
)
def test_memory_is_what_the_driver_reports_not_the_number_in_the_name(name: str, mib: int) -> None:
    assert gpu(name).memory_bytes == mib * 2**20


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("nvidia--DeepSeek-V3.1-NVFP4", True),
        ("nvidia--Llama-3.1-70B-Instruct-FP8", True),
        ("Qwen--Qwen3-32B-FP8", False),
        ("Qwen--Qwen3-32B", False),
        ("nvidia--Kimi-K2.5-NVFP4", False),
    ],
)
def test_a_precision_in_the_name_that_the_config_does_not_state_is_said(shared: Path, name: str, said: bool) -> None:
    """Checkpoints of NVIDIA's optimizer state it in hf_quant_config.json beside the config."""
    found = run(str(shared / "configs" / f"{name}.json"))
    assert ("quantisation-unstated" in codes(found)) is said
    if said:
        assert found.weights is not None
        assert found.weights.params is not None
        assert found.weights.bytes == pytest.approx(2 * found.weights.params, rel=0.01)


def test_a_dtype_that_is_not_obeyed_is_said() -> None:
    found = run("falcon-7b", engine="vllm", kv_dtype="fp8")
    assert found.kv_dtype == "bf16"
    assert "does not obey --kv-dtype fp8: it keeps bf16" in codes(found)["dtype-ignored"]
    assert "dtype-ignored" not in codes(run("falcon-7b", engine="vllm"))


def test_a_cache_larger_than_its_gpu_is_refused() -> None:
    with pytest.raises(UsageError, match=r"--kv-memory 100\.00 GiB is more than the 80\.00 GiB of one GPU"):
        run("llama-3.1-8b", engine="vllm", gpu=gpu("h100"), kv_memory_bytes=100 * GiB)


def test_the_catalogue_knows_the_layers_of_multi_token_prediction(shared: Path) -> None:
    """What a published config states of them, its catalogue entry states too."""
    keys = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_modules", "num_mtp_layers")
    checked = 0
    for entry in catalogued.models().values():
        path = shared / "configs" / f"{entry.hub_id.replace('/', '--')}.json"
        if not path.exists():
            continue
        published = json.loads(path.read_text())
        inner, kept = published.get("text_config") or {}, entry.config.get("text_config") or {}
        for key in keys:
            stated = published.get(key) or inner.get(key)
            assert not stated or stated == (entry.config.get(key) or kept.get(key)), (entry.name, key)
            checked += bool(stated)
    assert checked > 10


def test_tensor_parallelism_never_divides_a_latent() -> None:
    """Case A29: DeepSeek-V3; context parallelism does."""
    assert run("deepseek-v3", engine="vllm", tp=8).kv.bytes_per_token_per_gpu == 70272
    assert run("deepseek-v3", engine="vllm", tp=8, dcp=8).kv.bytes_per_token_per_gpu == 8784
    assert run("deepseek-v3", engine="vllm", tp=8).kv.offload_bytes_per_token == 70272
    for options in ({"tp": 8, "dcp": 3}, {"tp": 4, "dcp": 8}):
        with pytest.raises(KvplanError, match="does not divide"):
            run("deepseek-v3", engine="vllm", **options)
    with pytest.raises(KvplanError, match="full and latent attention only"):
        run("gemma-3-27b", engine="vllm", tp=8, dcp=2)


def test_pipeline_stages_share_the_layers() -> None:
    assert run("llama-3.1-70b", engine="vllm", pp=4).kv.bytes_per_token_per_gpu == 81920
    uneven = run("deepseek-v3", engine="vllm", pp=2)  # 61 layers: 31 and 30
    assert uneven.kv.bytes_per_token_per_gpu == 31 * 1152
    assert uneven.kv.offload_bytes_per_token == 70272
    with pytest.raises(KvplanError, match="at most one stage a layer"):
        run("llama-3.1-8b", engine="vllm", pp=33)


PLACED = sorted(set(catalogued.models()) - {"deepseek-v4-flash", "whisper-large-v3"})
REFUSALS = re.compile(
    r"neither divides|does not divide \d+ query heads|not --tp|reads no|no multiple|not laid out|cannot pad"
)


@settings(max_examples=150, deadline=None)
@given(
    name=st.sampled_from(PLACED),
    kind=st.sampled_from(["vllm", "sglang", "tensorrt-llm", "llama.cpp"]),
    tp=st.sampled_from([1, 2, 4, 8, 16]),
    pp=st.sampled_from([1, 2, 3]),
    shorter=st.integers(0, 100_000),
    more=st.integers(0, 100_000),
)
def test_properties_of_every_layout(name: str, kind: str, tp: int, pp: int, shorter: int, more: int) -> None:
    """Monotone in length; admission at least steady use; ranks together at least the logical bytes; TP never saves."""
    asked: dict[str, Any] = {"kv_dtype": "fp16" if kind == "llama.cpp" else "bf16", "at": (shorter, shorter + more)}
    tp = 1 if kind == "llama.cpp" else tp
    logical = run(name, **asked)
    try:
        placed, alone = run(name, tp=tp, pp=pp, engine=kind, **asked), run(name, engine=kind, **asked)
    except KvplanError as error:
        assert REFUSALS.search(str(error)), str(error)  # noqa: PT017 - some head counts cannot be split: that is the rule
        return
    for found in (logical, placed, alone):
        first, second = found.kv.bytes_at
        assert first.steady_bytes <= second.steady_bytes
        assert first.admission_bytes <= second.admission_bytes
        assert second.steady_bytes <= second.admission_bytes
        assert second.steady_bytes <= second.hybrid_off_bytes or kind in ("llama.cpp", "vllm")  # padding slots
    for own, whole, need in zip(placed.kv.bytes_at, alone.kv.bytes_at, logical.kv.bytes_at, strict=True):
        assert own.steady_bytes >= whole.steady_bytes or placed.block_tokens != alone.block_tokens or pp > 1
        assert own.steady_bytes >= need.steady_bytes or states_differ(name)
    assert placed.kv.bytes_per_token_per_gpu * tp * pp >= logical.kv.bytes_per_token
    assert parse(dump(wrap(placed)).encode(), "placed").data == placed


def states_differ(name: str) -> bool:
    """Engines keep recurrent states in dtypes of their own, which may be smaller than reference code's."""
    return any(cache.state for layer in model(name).layers for cache in layer.caches)


# ------------------------------------------------------------------------------- cases of vLLM


def test_a_pure_window_model_is_not_planned_by_its_context() -> None:
    """Case A09: starcoder2-3b, in a scheduler that does not run ahead."""
    starcoder = {
        "model_type": "starcoder2",
        "num_hidden_layers": 30,
        "hidden_size": 3072,
        "num_attention_heads": 24,
        "num_key_value_heads": 2,
        "sliding_window": 4096,
        "max_position_embeddings": 16384,
        "torch_dtype": "bfloat16",
    }
    from kvplan.documents import ModelRef
    from kvplan.model import from_config

    facts = from_config(starcoder, ModelRef(id="s", source="path", model_type="", config_sha256=""), "config.json")
    for batched, wanted in ((8192, 178.68), (2048, 356.90)):
        options = EstimateOptions(
            engine="vllm",
            kv_memory_bytes=137_407 * 16 * 30 * 2 * 2 * 128 * 2,
            max_num_batched_tokens=batched,
            async_scheduling=False,
        )
        view = estimate(facts, options).engine_view
        assert view["num_blocks"] == 137_407
        assert round(float(view["max_concurrency"] or 0), 2) == wanted


def test_three_answers_for_a_mixed_window_model() -> None:
    """Case A10: gpt-oss-20b, 32 sequences of 8,192 tokens: steady, admission, hybrid manager off."""
    for batched, admitted in ((2048, 7.605), (8192, 12.012)):
        point = run(
            "gpt-oss-20b",
            engine="vllm",
            at=(8192,),
            sequences=32,
            max_num_batched_tokens=batched,
            async_scheduling=False,
        ).kv.bytes_at[0]
        assert round(point.steady_bytes / GiB, 3) == 6.094
        assert round(point.admission_bytes / GiB, 3) == admitted
        assert point.hybrid_off_bytes == 12 * GiB


def test_the_slots_of_sparse_latent_attention() -> None:
    """Case A05: 656 B of latent and 132 B of index key a token and layer."""
    found = run("deepseek-v3.2", engine="vllm", kv_dtype="fp8", tp=8)
    assert found.kv.bytes_per_token_per_gpu == 48068
    assert found.kv.offload_bytes_per_token == 48068
    assert found.engine_view["kv_cache_dtype"] == "fp8_ds_mla"
    assert found.block_tokens == 64


def test_a_recurrent_state_sets_the_block_size() -> None:
    """Case A17: the block grows until the attention page holds a state."""
    assert run("qwen3-next-80b-a3b", engine="vllm").block_tokens == 544
    assert run("qwen3-next-80b-a3b", engine="vllm", kv_dtype="fp8").block_tokens == 1072
    raised = run("jamba-v0.1", engine="vllm")
    assert raised.block_tokens == 80
    assert "block-raised" in [finding.code for finding in raised.findings]


def test_a_checkpoints_kv_scheme_is_followed_and_can_be_overruled(shared: Path) -> None:
    name = str(shared / "configs" / "nvidia--Kimi-K2.5-NVFP4.json")
    assert run(name, engine="vllm").kv_dtype == "fp8"
    assert run(name, engine="vllm", kv_dtype="bf16").kv_dtype == "bf16"


# ------------------------------------------------------------------------------- one GPU's memory


def test_memory_adds_up() -> None:
    found = run("llama-3.1-8b", engine="vllm", gpu=gpu("h100-80gb"), max_model_len=8192, at=(4096,))
    memory = found.memory
    assert memory is not None
    assert memory.total_bytes == gpu("h100-80gb").memory_bytes
    assert None not in (memory.usable_bytes, memory.weights_bytes, memory.overhead_bytes)
    assert memory.usable_bytes == (memory.weights_bytes or 0) + (memory.overhead_bytes or 0) + memory.kv_bytes
    assert abs((memory.usable_bytes or 0) / (memory.total_bytes or 1) - 0.92) < 1e-6
    assert memory.overhead_provenance == "assumed"
    assert memory.kv_tokens == found.engine_view["kv_cache_size_tokens"]
    assert memory.kv_tokens // 16 == memory.kv_bytes // (16 * 131072)
    assert [point.context_tokens for point in memory.max_concurrency] == [4096, 8192]


def test_an_engines_fraction_means_what_that_engine_means() -> None:
    """Case A36: 80 GiB, 16 of weights, 4 of everything else, vLLM at 0.9 -> 52 GiB."""
    weights = Weights(bytes=16 * GiB, bytes_per_gpu=16 * GiB, params=8, provenance="measured", source="")
    facts = replace(model("llama-3.1-8b"), weights=weights)
    options = EstimateOptions(engine="vllm", gpu_memory_bytes=80 * GiB, utilization=0.9, overhead_bytes=4 * GiB)
    memory = estimate(facts, options).memory
    assert memory is not None
    assert memory.kv_bytes == 52 * GiB
    assert memory.overhead_provenance == "configured"


def test_what_is_left_for_the_cache_can_be_stated() -> None:
    memory = run("llama-3.1-8b", engine="vllm", kv_memory_bytes=20 * GiB).memory
    assert memory is not None
    assert (memory.total_bytes, memory.usable_bytes, memory.kv_bytes) == (None, None, 20 * GiB)
    assert memory.kv_tokens == 20 * GiB // (16 * 131072) * 16


def test_weights_that_leave_nothing_are_a_limit() -> None:
    with pytest.raises(LimitError, match=r"nothing is left for the cache.*more GPUs"):
        run("llama-3.1-70b", gpu=gpu("h100-80gb"))
    assert run("llama-3.1-70b", gpu=gpu("h100-80gb"), tp=4).memory is not None


def test_unknown_weights_are_said() -> None:
    found = run("gemma-3n-e4b", gpu=gpu("h100-80gb"))
    assert found.memory is None
    assert "weights-unknown" in [finding.code for finding in found.findings]


def test_a_draft_that_shares_every_layer_costs_nothing(tmp_path: Path) -> None:
    """Case A15: no division by zero, and a note."""
    text = {"model_type": "gemma4_text", "num_hidden_layers": 4, "num_kv_shared_layers": 4, "hidden_size": 64}
    text |= {"num_attention_heads": 4, "dtype": "bfloat16"}
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "gemma4", "text_config": text}))
    for name in ("none", "vllm"):
        found = run(str(tmp_path), engine=name, kv_memory_bytes=GiB, at=(100,))
        assert found.kv.bytes_per_token == found.kv.bytes_at[0].steady_bytes == 0
        assert [finding.code for finding in found.findings] == ["no-cache"]


def test_a_pipeline_stage_without_any_cache_is_not_the_fullest() -> None:
    staged = run("nemotron-h-56b", engine="vllm", pp=118, kv_memory_bytes=20 * GiB)
    assert staged.kv.bytes_per_token_per_gpu == 4096
    assert staged.engine_view["num_blocks"]


def test_no_budget_without_a_gpu() -> None:
    found = run("llama-3.1-8b", engine="vllm")
    assert found.memory is None
    assert found.engine_version == "0.32"
    assert {key: value for key, value in found.engine_view.items() if key != "pages"} == {
        "block_tokens": 16,
        "kv_cache_dtype": "bf16",
        "bytes_per_block": 2097152,
    }


def test_the_context_is_never_longer_than_the_models() -> None:
    view = run("mixtral-8x7b", engine="vllm", kv_memory_bytes=20 * GiB, max_model_len=10**6).engine_view
    assert view["max_model_len"] == 32768


# ------------------------------------------------------------------------------- refusals


def test_engines_have_names_that_people_write() -> None:
    found = run("llama-3.1-8b", engine="llamacpp", gpu=gpu("h100-80gb"))
    assert (found.engine, found.memory is not None) == ("llama.cpp", True)
    assert run("llama-3.1-8b", engine="trtllm").engine == "tensorrt-llm"


def test_unknown_engines_and_options_are_refused() -> None:
    with pytest.raises(KvplanError, match=r"unknown engine 'vlm'.*none, .*vllm"):
        run("llama-3.1-8b", engine="vlm")
    with pytest.raises(UsageError, match="--tp is 0"):
        run("llama-3.1-8b", tp=0)
    with pytest.raises(UsageError, match="--sequences"):
        run("llama-3.1-8b", sequences=0)
    with pytest.raises(KvplanError, match="--block-tokens needs an engine"):
        run("llama-3.1-8b", block_tokens=16)
    with pytest.raises(KvplanError, match="hybrid KV cache manager"):
        run("jamba-v0.1", engine="vllm", hybrid_manager=False)


# ------------------------------------------------------------------------------- growth


def test_the_slope_below_and_above_each_window() -> None:
    growth = run("gemma-3-27b").kv.growth
    assert [(one.from_tokens, one.to_tokens, one.bytes_per_token, one.bytes_at_start) for one in growth] == [
        (0, 1024, 507904, 0),
        (1024, None, 81920, 1024 * 507904),
    ]
    assert len(run("llama-3.1-8b").kv.growth) == 1


@settings(max_examples=80, deadline=None)
@given(name=st.sampled_from(PLACED), tokens=st.integers(0, 300_000))
def test_the_curve_is_the_bytes_at_every_length(name: str, tokens: int) -> None:
    found = run(name, at=(tokens,))
    stretch = [one for one in found.kv.growth if one.from_tokens <= tokens][-1]
    wanted = stretch.bytes_at_start + stretch.bytes_per_token * (tokens - stretch.from_tokens)
    assert found.kv.bytes_at[0].steady_bytes == wanted


# ------------------------------------------------------------------------------- weights on one GPU


def parted(experts: int, embedding: int, head: int) -> Model:
    weights = Weights(
        bytes=32 * 100 + embedding + head + experts,
        bytes_per_gpu=0,
        params=None,
        provenance="measured",
        source="",
        experts_bytes=experts,
        embedding_bytes=embedding,
        head_bytes=head,
    )
    return replace(model("llama-3.1-8b"), weights=weights)


@pytest.mark.parametrize(
    ("parallel", "held"),
    [
        (Parallel(tp=2), (3200 + 50 + 70) // 2 + 6400 // 2),
        (Parallel(pp=2), 1600 + 70 + 3200),
        (Parallel(tp=4, pp=2), (1600 + 70 + 3) // 4 + 800),
        (Parallel(tp=2, dp=4), (3200 + 120) // 2 + 3200),
        (Parallel(tp=2, dp=4, expert_parallel=True), (3200 + 120) // 2 + 800),
        (Parallel(dp=8, expert_parallel=True), 3200 + 120 + 800),
    ],
)
def test_weights_are_dealt_by_what_they_are(parallel: Parallel, held: int) -> None:
    """Layers by stage, the ends on theirs, experts over all data-parallel ranks where asked."""
    found = estimate(parted(6400, 50, 70), EstimateOptions(parallel=parallel)).weights
    assert found is not None
    assert found.bytes_per_gpu == held


def test_a_tied_head_is_copied_to_the_last_stage() -> None:
    tied, apart = parted(0, 64, 0), parted(0, 64, 64)
    for facts, alone in ((tied, 3200 + 64), (apart, 3200 + 128)):
        for pp, held in ((1, alone), (2, 1600 + 64)):
            found = estimate(facts, EstimateOptions(parallel=Parallel(pp=pp, tp=2))).weights
            assert found is not None
            assert found.bytes_per_gpu == held // 2


def test_tensor_names_say_where_weights_live() -> None:
    sizes = {
        "model.embed_tokens.weight": 1,
        "lm_head.weight": 2,
        "model.layers.0.mlp.experts.7.up_proj.weight": 4,
        "model.layers.0.mlp.experts.gate_up_proj_blocks": 8,
        "model.layers.0.mlp.shared_experts.up_proj.weight": 16,
        "model.layers.0.self_attn.q_proj.weight": 32,
        "blk.3.ffn_gate_exps.weight": 64,
        "token_embd.weight": 128,
        "output.weight": 256,
        "output_norm.weight": 512,
    }
    assert parts(sizes) == {"experts": 76, "embedding": 129, "head": 258}
    assert parts({"model.embed_tokens.weight": 5}) == {"experts": 0, "embedding": 5, "head": 0}


def test_weights_of_unknown_parts_are_shared_evenly() -> None:
    bare = replace(
        parted(0, 0, 0), weights=Weights(bytes=100, bytes_per_gpu=100, params=1, provenance="measured", source="")
    )
    found = estimate(bare, EstimateOptions(parallel=Parallel(tp=3)))
    assert found.weights is not None
    assert found.weights.bytes_per_gpu == 34
    assert "weights-even-share" in [finding.code for finding in found.findings]


# ------------------------------------------------------------------------------- a mix of lengths


def test_what_a_workloads_lengths_need() -> None:
    workload = samples.workload().data
    found = run_with(workload, engine="vllm", kv_memory_bytes=40 * GiB)
    mix = found.mix
    assert mix is not None
    assert [one.share for one in mix.classes] == [0.5, 0.95, 0.99, 1.0]
    lengths = workload.input_lengths, workload.output_lengths
    assert [one.tokens for one in mix.classes][-1] == lengths[0].max + lengths[1].max
    assert all(one.bytes == -(-one.tokens // 16) * 16 * 131072 for one in mix.classes)
    assert mix.classes[0].bytes <= mix.mean_bytes_at_most <= mix.classes[-1].bytes
    assert workload.active_tokens is None or len(mix.loads) == 4
    assert all(load.fits == (load.bytes <= 40 * GiB) for load in mix.loads)
    assert run_with(workload).mix is not None


def run_with(workload: Workload, **options: Any) -> Estimate:
    return estimate(model("llama-3.1-8b"), EstimateOptions(**options), workload=workload)
