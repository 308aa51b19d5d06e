"""Cases from public threads of engines and calculators: what was got wrong in the field, and what is right.

One test a case, named by its number; the list of cases itself is checked for one that has none.
"""

from __future__ import annotations

import json
import re
from functools import cache
from pathlib import Path
from typing import Any

import gguf_files
import pytest

from kvplan.documents import Estimate, EstimateOptions, LlamaCppOptions, Model, ModelRef, Parallel, Weights
from kvplan.errors import KvplanError
from kvplan.estimate import estimate
from kvplan.model import from_config, load_model
from kvplan.models.drafts import with_draft
from kvplan.startuplog import fit
from kvplan.units import GiB, MiB


@cache
def catalogued(name: str) -> Model:
    return load_model(name)


def of(config: dict[str, Any]) -> Model:
    config = {"torch_dtype": "bfloat16", **config}
    return from_config(config, ModelRef(id="case", source="path", model_type="", config_sha256=""), "config.json")


def run(model: Model | str, tp: int = 1, dcp: int = 1, pp: int = 1, **options: Any) -> Estimate:
    facts = catalogued(model) if isinstance(model, str) else model
    return estimate(facts, EstimateOptions(parallel=Parallel(tp=tp, dcp=dcp, pp=pp), **options))


def plain(layers: int, heads: int, kv_heads: int, hidden: int, **more: Any) -> Model:
    return of(
        {
            "model_type": "llama",
            "num_hidden_layers": layers,
            "num_attention_heads": heads,
            "num_key_value_heads": kv_heads,
            "hidden_size": hidden,
            "max_position_embeddings": 262144,
            **more,
        }
    )


def test_every_case_has_a_test(shared: Path) -> None:
    text = (shared / "cases" / "cases.md").read_text()
    cases = re.findall(r"^### A(\d+)", text, flags=re.MULTILINE)
    assert len(cases) > 25
    missing = [number for number in cases if f"test_a{number}" not in {name[:8] for name in globals()}]
    assert not missing


def test_a01_head_dim_is_read_not_derived() -> None:
    size = {"layers": 36, "heads": 32, "kv_heads": 8, "hidden": 2560}
    assert run(plain(**size, head_dim=128)).kv.bytes_per_token == 147456
    assert run(plain(**size, hidden_size_per_head=128)).kv.bytes_per_token == 147456
    derived = run(plain(**size))
    assert derived.kv.bytes_per_token == 92160
    assert any("derived" in key for key in derived.groups[0].keys)
    for absent in (None, 0):
        assert run(plain(**size, head_dim=absent)).kv.bytes_per_token == 92160


def test_a02_a_latent_is_never_doubled() -> None:
    assert run("deepseek-v3").kv.bytes_per_token == 70272
    assert run("deepseek-v3", kv_dtype="fp8").kv.bytes_per_token == 35136
    assert round(run("deepseek-v3", at=(163840,)).kv.bytes_at[0].steady_bytes / GiB, 2) == 10.72


def test_a03_latent_or_expanded_is_how_the_file_stores_it(tmp_path: Path) -> None:
    meta = {
        "general.architecture": "deepseek2",
        "context_length": 163840,
        "embedding_length": 7168,
        "block_count": 61,
        "attention.head_count": 128,
        "rope.dimension_count": 64,
    }
    latent = {"attention.head_count_kv": 1, "attention.key_length": 576, "attention.value_length": 512}
    latent |= {"attention.key_length_mla": 192, "attention.value_length_mla": 128}
    expanded = {"attention.head_count_kv": 128, "attention.key_length": 192, "attention.value_length": 128}
    small = load_model(str(gguf_files.write(tmp_path / "latent.gguf", {**meta, **latent})))
    large = load_model(str(gguf_files.write(tmp_path / "expanded.gguf", {**meta, **expanded})))
    packed = LlamaCppOptions(ctx_size=32768, type_k="q8_0", type_v="q8_0")
    found = run(small, engine="llama.cpp", llama_cpp=packed)
    assert (found.kv.bytes_per_token, found.engine_view["context_bytes"]) == (37332, 1166.625 * MiB)
    assert run(large, engine="llama.cpp", llama_cpp=LlamaCppOptions(ctx_size=65536)).kv.bytes_per_token == 4997120


def test_a04_head_keys_of_a_latent_model_mislead(shared: Path) -> None:
    glm = load_model(str(shared / "configs" / "zai-org--GLM-5.json"))
    latent = [group for group in run(glm).groups if group.kind == "latent"]
    assert sum(group.bytes_per_token for group in latent) == 89856


def test_a05_index_keys_are_shown_apart() -> None:
    found = run("deepseek-v3.2", engine="vllm", kv_dtype="fp8_ds_mla", tp=8)
    assert {group.kind: group.bytes_per_token for group in found.groups} == {"latent": 40016, "indexer": 8052}
    assert found.kv.bytes_per_token == 48068
    assert round(1_462_784 * 48068 / GiB, 2) == 65.48


def test_a06_slots_are_looked_up(shared: Path) -> None:
    glm = with_draft(load_model(str(shared / "configs" / "zai-org--GLM-5.2-FP8.json")), "mtp")
    assert run(glm, engine="vllm", kv_dtype="fp8_ds_mla").kv.bytes_per_token == 79 * 656 + 22 * 132 == 54728
    assert run(glm, engine="vllm", kv_dtype="nvfp4_ds_mla_432").kv.bytes_per_token == 37032
    assert run(glm, engine="vllm", kv_dtype="nvfp4_ds_mla").kv.bytes_per_token == 79 * 352 + 22 * 132


def test_a07_a_compressed_cache_is_never_generic() -> None:
    found = run("deepseek-v4-flash", engine="vllm")
    assert found.kv.bytes_per_token < 88_064 / 20
    assert found.kv.bytes_per_sequence > 0
    assert 3900 < found.kv.offload_bytes_per_token < 4200
    with pytest.raises(KvplanError, match=r"known: .*fp8_ds_mla"):
        run("deepseek-v4-flash", engine="vllm", kv_dtype="fp4_ds_mla")


def test_a08_a_rate_needs_two_lengths() -> None:
    points = ["tokens=398000,len=50000,pool=24.5GiB", "tokens=2450000,len=500000,pool=24.5GiB"]
    found = fit(points)
    assert found.bytes_per_token == pytest.approx(4586, rel=0.02)
    assert found.bytes_per_sequence == pytest.approx(3.08e9, rel=0.02)
    for hybrid in (True, None):
        with pytest.raises(KvplanError, match="one length cannot tell a slope from a fixed part"):
            fit(points[:1], hybrid=hybrid)
    assert 7.01 * GiB / 1_009_661 == pytest.approx(7455, abs=1)  # KiB read as bytes, in the report
    assert fit(["tokens=1009661,len=8192,pool=7.01GiB"], hybrid=False).bytes_per_token == pytest.approx(7455, abs=1)


def test_a09_a_pure_window_model_is_not_planned_by_its_context() -> None:
    model = plain(30, 24, 2, 3072, model_type="starcoder2", sliding_window=4096, max_position_embeddings=16384)
    for batched, wanted in ((8192, 178.68), (2048, 356.90)):
        view = run(
            model,
            engine="vllm",
            kv_memory_bytes=137_407 * 16 * 30 * 2 * 2 * 128 * 2,
            max_num_batched_tokens=batched,
            async_scheduling=False,
        ).engine_view
        assert round(float(str(view["max_concurrency"])), 2) == wanted


def test_a10_three_answers_for_a_mixed_model() -> None:
    asked = {"engine": "vllm", "at": (8192,), "sequences": 32, "async_scheduling": False}
    point = run("gpt-oss-20b", max_num_batched_tokens=2048, **asked).kv.bytes_at[0]
    sizes = (point.steady_bytes, point.admission_bytes, point.hybrid_off_bytes)
    assert [round(size / GiB, 3) for size in sizes] == [6.094, 7.605, 12.0]
    wide = run("gpt-oss-20b", max_num_batched_tokens=8192, **asked).kv.bytes_at[0]
    assert round(wide.admission_bytes / GiB, 3) == 12.012


def test_a11_two_geometries_in_one_config() -> None:
    pattern = ["sliding_attention"] * 5 + ["full_attention"]
    text = {
        "model_type": "gemma4_text",
        "num_hidden_layers": 60,
        "num_attention_heads": 32,
        "num_key_value_heads": 16,
        "num_global_key_value_heads": 4,
        "attention_k_eq_v": True,
        "head_dim": 256,
        "global_head_dim": 512,
        "hidden_size": 5376,
        "sliding_window": 1024,
        "layer_types": pattern * 10,
        "max_position_embeddings": 262144,
        "dtype": "bfloat16",
    }
    found = run(of({"model_type": "gemma4", "text_config": text}))
    assert (found.kv.bytes_per_token, found.kv.bytes_per_sequence) == (81920, 800 * MiB)
    alike = run(of({"model_type": "gemma4", "text_config": {**text, "num_global_key_value_heads": None}}))
    assert alike.kv.bytes_per_token == 4 * 81920
    growth = found.kv.growth
    assert [(one.from_tokens, one.bytes_per_token) for one in growth] == [(0, 81920 + 819200), (1024, 81920)]


def test_a12_layers_are_never_averaged(shared: Path) -> None:
    model = load_model(str(shared / "configs" / "google--gemma-4-26B-A4B.json"))
    for tokens, wanted in ((4096, 0.398), (8192, 0.482), (32768, 0.986), (131072, 2.999)):
        view = run(model, engine="llama.cpp", llama_cpp=LlamaCppOptions(ctx_size=tokens, ubatch=512)).engine_view
        assert round(float(str(view["context_bytes"])) / 1e9, 3) == wanted


def gemma3(layers: int, heads: int, width: int, window: int) -> Model:
    return plain(layers, 4, heads, 640, model_type="gemma3_text", head_dim=width, sliding_window=window)


def test_a14_window_cells_multiply_with_slots() -> None:
    model = gemma3(18, 1, 256, 512)
    wanted = {(1, 4096): 27, (2, 4096): 42, (4, 4096): 72, (8, 4096): 72, (1, 8192): 39, (2, 8192): 54}
    for (slots, tokens), size in wanted.items():
        asked = LlamaCppOptions(ctx_size=tokens, slots=slots)
        assert run(model, engine="llama.cpp", llama_cpp=asked).engine_view["context_bytes"] == size * MiB
    one = gemma3(26, 1, 256, 512)
    assert run(one, at=(32768,)).kv.bytes_at[0].steady_bytes == 4 * 32 * MiB + 22 * 512 * 1024
    assert run(one, at=(32768,)).kv.bytes_at[0].hybrid_off_bytes == 832 * MiB


def test_a15_borrowed_layers_own_nothing() -> None:
    base = {
        "model_type": "gemma4_text",
        "num_hidden_layers": 35,
        "num_kv_shared_layers": 20,
        "num_attention_heads": 8,
        "num_key_value_heads": 1,
        "hidden_size": 1536,
        "max_position_embeddings": 131072,
    }
    model = of({"model_type": "gemma4", "text_config": base})
    assert sum(group.layers for group in run(model).groups) == 15
    none = of({"model_type": "gemma4", "text_config": {**base, "num_hidden_layers": 4, "num_kv_shared_layers": 4}})
    assert run(none, engine="vllm", kv_memory_bytes=GiB, at=(100,)).kv.bytes_per_token == 0
    with pytest.raises(KvplanError, match="num_kv_shared_layers"):
        of({"model_type": "gemma4", "text_config": {**base, "num_kv_shared_layers": 36}})


def test_a16_linear_attention_keeps_no_tokens(shared: Path) -> None:
    configs = shared / "configs"
    for name, wanted in (
        ("Qwen--Qwen3-Next-80B-A3B-Instruct", 24576),
        ("nvidia--Qwen3.6-35B-A3B-NVFP4", 20480),
        ("Qwen--Qwen3.5-27B", 65536),
    ):
        found = run(load_model(str(configs / f"{name}.json")), at=(262144,), kv_dtype="bf16")
        assert found.kv.bytes_per_token == wanted
    assert found.kv.bytes_at[0].steady_bytes - found.kv.bytes_per_sequence == 16 * GiB
    bare = json.loads((configs / "nvidia--Nemotron-H-56B-Base-8K.json").read_text())
    for key in ("hybrid_override_pattern", "layers_block_type", "layer_types"):
        bare.pop(key, None)
    with pytest.raises(KvplanError, match="nobody knows which layers of this hybrid attend"):
        of(bare)


def test_a17_the_state_sets_the_block(shared: Path) -> None:
    assert run("qwen3-next-80b-a3b", engine="vllm").block_tokens == 544
    small = {
        "model_type": "qwen3_5_text",
        "num_hidden_layers": 32,
        "full_attention_interval": 4,
        "num_attention_heads": 16,
        "num_key_value_heads": 4,
        "head_dim": 256,
        "hidden_size": 2560,
        "linear_num_key_heads": 16,
        "linear_num_value_heads": 32,
        "linear_key_head_dim": 128,
        "linear_value_head_dim": 128,
        "linear_conv_kernel_dim": 4,
        "mamba_ssm_dtype": "float32",
        "max_position_embeddings": 262144,
    }
    assert run(of(small), engine="vllm").block_tokens == 528
    super_ = load_model(str(shared / "configs" / "nvidia--NVIDIA-Nemotron-3-Super-120B-A12B-NVFP4.json"))
    found = run(super_, engine="vllm", kv_dtype="fp8", max_model_len=4096)
    assert found.block_tokens == 8320
    assert any("no prefix is ever reused" in finding.text for finding in found.findings)


def test_a21_a_first_entry_of_zero_is_no_answer(tmp_path: Path) -> None:
    meta = {
        "general.architecture": "lfm2",
        "context_length": 128000,
        "embedding_length": 2048,
        "block_count": 16,
        "attention.head_count": 32,
        "attention.head_count_kv": [0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0],
        "shortconv.l_cache": 3,
    }
    model = load_model(str(gguf_files.write(tmp_path / "lfm2.gguf", meta)))
    found = run(model, at=(4096, 32768))
    assert found.kv.bytes_per_token == 12288
    first, second = found.kv.bytes_at
    assert second.steady_bytes - first.steady_bytes == 12288 * (32768 - 4096)


def test_a23_no_op_layers_keep_nothing() -> None:
    live = {"attention": {"n_heads_in_group": 8, "no_op": False}}
    idle = {"attention": {"no_op": True, "n_heads_in_group": None}}
    config = {"model_type": "nemotron-nas", "head_dim": 128, "block_configs": [live, idle, live, idle, live]}
    model = plain(5, 64, 8, 8192, **config)
    assert run(model).kv.bytes_per_token == 12288
    assert run(model, engine="vllm", pp=5).kv.bytes_per_token_per_gpu == 4096


def test_a25_cross_attention_is_a_fixed_part() -> None:
    found = run("whisper-large-v3", at=(448,))
    (cross,) = [group for group in found.groups if group.kind == "cross"]
    assert cross.bytes_per_sequence == 245760000
    assert round(cross.bytes_per_sequence / MiB, 1) == 234.4
    assert found.kv.bytes_at[0].steady_bytes - cross.bytes_per_sequence == 70 * MiB
    assert found.kv.offload_bytes_per_token == 163840


def test_a26_the_deepest_decoder_is_read() -> None:
    text = {"num_hidden_layers": 40, "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128}
    text |= {"model_type": "llama", "hidden_size": 4096}
    outer = {"model_type": "llava", "num_hidden_layers": 33}
    assert run(of({**outer, "text_config": text})).kv.bytes_per_token == 163840
    assert run(of({**outer, "thinker_config": {"text_config": text}})).kv.bytes_per_token == 163840
    with pytest.raises(KvplanError, match="num_attention_heads"):
        of({"model_type": "novel", "num_hidden_layers": 33, "brain": text})


def test_a27_block_types_carry_scales() -> None:
    model = plain(28, 28, 4, 3584, model_type="qwen2")

    def size(**more: Any) -> int:
        asked = LlamaCppOptions(ctx_size=16384, slots=2, **more)
        return int(str(run(model, engine="llama.cpp", llama_cpp=asked).engine_view["context_bytes"]))

    assert (size(), size(type_k="q8_0", type_v="q8_0")) == (896 * MiB, 476 * MiB)
    assert size(type_k="q4_0") / size() == 0.640625
    assert size(type_k="q4_0", type_v="q4_0") / size() == 0.28125
    with pytest.raises(KvplanError, match="does not divide heads of 80"):
        run(gemma3(6, 1, 80, 512), engine="llama.cpp", llama_cpp=LlamaCppOptions(ctx_size=512, type_k="q8_0"))


def test_a28_scales_norms_and_skipped_layers_count() -> None:
    model = plain(36, 32, 1, 4096, head_dim=128)

    def slot(dtype: str, **more: Any) -> int:
        return run(model, engine="vllm", kv_dtype=dtype, **more).kv.bytes_per_token_per_gpu

    per_side = {dtype: slot(dtype) // 72 for dtype in ("fp8", "fp8_per_token_head", "nvfp4")}
    assert per_side == {"fp8": 128, "fp8_per_token_head": 132, "nvfp4": 72}
    # vLLM 0.32 pads a slot to an even number of bytes: 134, 118 and 102 where an older build had 136, 120 and 104.
    packed = [slot(f"turboquant_{kind}", kv_skip_layers=0) // 36 for kind in ("k8v4", "4bit_nc", "k3v4_nc", "3bit_nc")]
    assert packed == [196, 134, 118, 102]
    assert round(36 * 512 / (32 * 136 + 4 * 512), 2) == 2.88
    assert 36 * 512 / slot("turboquant_4bit_nc") == pytest.approx(2.88, rel=0.015)
    assert slot("turboquant_4bit_nc") == slot("turboquant_4bit_nc", kv_skip_layers=4) == 32 * 134 + 4 * 512
    budget = run(model, engine="vllm", kv_dtype="nvfp4", kv_memory_bytes=GiB, max_model_len=65536).memory
    assert budget is not None
    assert budget.kv_tokens == pytest.approx(GiB / (36 * 144), rel=0.001)


def test_a29_heads_are_copied_and_latents_are_not_cut() -> None:
    rates = [run("llama-3.1-70b", engine="vllm", tp=tp).kv.bytes_per_token_per_gpu for tp in (1, 2, 4, 8, 16, 32, 64)]
    assert rates == [327680, 163840, 81920, 40960, 40960, 40960, 40960]
    assert run("deepseek-v3", engine="vllm", tp=8).kv.bytes_per_token_per_gpu == 70272
    assert run("deepseek-v3", engine="vllm", tp=8, dcp=8).kv.bytes_per_token_per_gpu == 8784
    with pytest.raises(KvplanError, match="neither divides 8 KV heads"):
        run("llama-3.1-70b", engine="vllm", tp=12)
    with pytest.raises(KvplanError, match="full and latent attention only"):
        run("gemma-3-27b", engine="vllm", tp=8, dcp=8)
    held = [run("llama-3.1-70b", engine="vllm", tp=tp, kv_memory_bytes=20 * GiB).memory for tp in (8, 16)]
    assert held[0] is not None
    assert held[1] is not None
    assert held[0].kv_tokens == held[1].kv_tokens


def test_a31_draft_layers_by_method(shared: Path) -> None:
    deepseek = load_model(str(shared / "configs" / "deepseek-ai--DeepSeek-V3.json"))
    assert run(with_draft(deepseek, "mtp")).kv.bytes_per_token == 62 * 1152 == 71424
    assert run(with_draft(deepseek, "ngram")).kv.bytes_per_token == 70272
    staged = run(with_draft(deepseek, "mtp"), engine="vllm", pp=61)
    assert staged.kv.bytes_per_token_per_gpu == 2 * 1152  # the last stage runs the draft too
    draft = plain(1, 64, 8, 2880, head_dim=64)
    found = run(with_draft(catalogued("gpt-oss-20b"), "eagle", draft), engine="vllm", at=(8192,))
    assert found.engine_view["bytes_per_block"] == 13 * 16 * 2048
    plain_one = run("gpt-oss-20b", engine="vllm", at=(8192,))
    assert plain_one.engine_view["bytes_per_block"] == 12 * 16 * 2048
    with pytest.raises(KvplanError, match="needs a draft model"):
        with_draft(deepseek, "eagle")


def test_a32_the_concurrency_is_trusted(tmp_path: Path) -> None:
    log = tmp_path / "start.log"
    log.write_text(
        "INFO gpu_worker: Available KV cache memory: 44.50 GiB\n"
        "INFO kv_cache_utils: GPU KV cache size: 290,864 tokens\n"
        "INFO kv_cache_utils: Maximum concurrency for 32,768 tokens per request: 33.04x\n"
    )
    point = fit([str(log)], hybrid=False).points[0]
    assert (point.tokens, point.stated_tokens) == (1_082_655, 290_864)
    (finding,) = fit([str(log)], hybrid=False).findings
    assert "3.72 times" in finding.text


def test_a34_golden_rates_of_plain_models() -> None:
    assert run(plain(32, 32, 32, 4096)).kv.bytes_per_token == 524288
    assert run("llama-3.1-8b").kv.bytes_per_token == 131072
    assert run("llama-3.1-70b").kv.bytes_per_token == 327680


def test_a35_slots_and_context_mean_opposite_things() -> None:
    four = run("llama-3.1-8b", engine="llama.cpp", llama_cpp=LlamaCppOptions(ctx_size=32768, slots=4)).engine_view
    each = run("llama-3.1-8b", engine="llama.cpp", max_model_len=8192, llama_cpp=LlamaCppOptions(slots=4)).engine_view
    assert four["context_bytes"] == each["context_bytes"] == 4 * 8192 * 131072
    assert four["n_ctx_seq"] == 8192


def test_a36_a_fraction_means_what_that_engine_means() -> None:
    from records import replace

    weights = Weights(bytes=16 * GiB, bytes_per_gpu=16 * GiB, params=8, provenance="measured", source="")
    model = replace(catalogued("llama-3.1-8b"), weights=weights)
    for engine, wanted in (("vllm", 52), ("tensorrt-llm", 54), ("sglang", 56)):
        asked = {"gpu_memory_bytes": 80 * GiB, "utilization": 0.9, "overhead_bytes": 4 * GiB}
        memory = run(model, engine=engine, **asked).memory
        assert memory is not None
        assert memory.kv_bytes == wanted * GiB
