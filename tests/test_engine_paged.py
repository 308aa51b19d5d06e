"""SGLang and TensorRT-LLM: pages, pools and what each engine's memory fraction means."""

from __future__ import annotations

from functools import cache
from pathlib import Path
from typing import Any

import pytest
from records import replace

from kvplan.documents import Estimate, EstimateOptions, Model, Parallel, Weights
from kvplan.errors import KvplanError
from kvplan.estimate import estimate
from kvplan.model import load_model
from kvplan.units import GiB


@cache
def model(name: str) -> Model:
    return load_model(name)


def run(name: str, engine: str = "sglang", tp: int = 1, pp: int = 1, **options: Any) -> Estimate:
    return estimate(model(name), EstimateOptions(engine=engine, parallel=Parallel(tp=tp, pp=pp), **options))


# ------------------------------------------------------------------------------- SGLang


def test_a_pool_of_token_slots() -> None:
    found = run("llama-3.1-8b", kv_memory_bytes=10 * GiB + 5, max_model_len=8192)
    assert found.engine_view["max_total_num_tokens"] == 10 * GiB // 131072
    assert (found.block_tokens, found.engine_view["bytes_per_token"]) == (1, 131072)
    assert found.memory is not None
    assert found.memory.kv_tokens == 81920
    paged = run("llama-3.1-8b", kv_memory_bytes=10 * GiB - 1, block_tokens=64)
    assert paged.engine_view["max_total_num_tokens"] == 81920 - 64
    assert run("llama-3.1-8b", tp=16).engine_view["bytes_per_token"] == 131072 // 8


def test_the_pool_of_sparse_latent_attention() -> None:
    """Case A05: both logged pools, with the index keys counted."""
    found = run("deepseek-v3.2", kv_dtype="fp8", tp=8, kv_memory_bytes=975_424 * 48_068)
    assert found.kv.bytes_per_token_per_gpu == 48_068
    assert (found.block_tokens, found.engine_view["max_total_num_tokens"]) == (64, 975_424)
    assert round(1_462_784 * 48_068 / GiB, 2) == 65.48
    assert {group.kind: group.bytes_per_token for group in found.groups} == {"latent": 61 * 656, "indexer": 61 * 132}


def test_windows_have_a_pool_in_a_fixed_ratio() -> None:
    found = run("gpt-oss-20b", kv_memory_bytes=10 * GiB, at=(8192,))
    each = 12 * 2048
    full = int(10 * GiB / (each + 0.8 * each))
    assert found.engine_view["max_total_num_tokens"] == full
    assert found.engine_view["swa_max_total_num_tokens"] == int(full * 0.8)
    assert found.memory is not None
    assert found.memory.max_concurrency[0].sequences == pytest.approx(full / 8192)
    at = found.kv.bytes_at[0]
    assert at.steady_bytes == each * (8192 + 128)
    assert at.hybrid_off_bytes == 2 * each * 8192


def test_windows_that_sglang_keeps_in_full_are_said() -> None:
    found = run("gemma-3-27b", at=(8192,))
    assert found.kv.bytes_at[0].steady_bytes == 62 * 16 * 256 * 2 * 8192
    assert "windows-in-full" in [finding.code for finding in found.findings]
    assert found.kv.bytes_per_token_per_gpu == 62 * 16 * 256 * 2


def test_state_takes_its_share_of_the_bytes() -> None:
    found = run("qwen3-next-80b-a3b", kv_memory_bytes=10 * GiB)
    slot = 36 * (8192 * 3 * 2 + 32 * 128 * 128 * 4)
    slots = (int(10 * GiB * 9 / 19) - slot) // slot
    assert found.engine_view["max_mamba_cache_size"] == slots
    assert found.engine_view["max_total_num_tokens"] == (10 * GiB - (slots + 1) * slot) // 24576
    assert found.memory is not None
    assert found.memory.max_concurrency[0].sequences <= slots / 3


def test_a_smallest_stage_counts() -> None:
    found = run("deepseek-v3", pp=2, kv_memory_bytes=31 * 1152 * 1000)
    assert found.engine_view["max_total_num_tokens"] == 1000
    assert found.kv.offload_bytes_per_token == 70272


# ------------------------------------------------------------------------------- TensorRT-LLM


def test_blocks_of_32_and_windows() -> None:
    found = run("gemma-3-27b", engine="tensorrt-llm", at=(8200,), kv_memory_bytes=10 * GiB, tp=2)
    each = 62 * 16 * 256 * 2
    full, window = each * 10 // 62, each * 52 // 62
    assert found.kv.bytes_at[0].steady_bytes == full * 8224 + window * 1024
    assert (found.block_tokens, found.engine_view["tokens_per_block"]) == (32, 32)
    assert found.engine_view["bytes_per_block"] == 32 * full // 2
    assert "documentation-only" in [finding.code for finding in found.findings]
    assert found.memory is not None
    assert found.memory.max_concurrency[0].sequences == pytest.approx(10 * GiB * 2 / found.kv.bytes_at[0].steady_bytes)


@pytest.mark.parametrize(
    ("engine", "fraction", "kv_gib"), [("vllm", 0.9, 52), ("tensorrt-llm", 0.9, 54), ("sglang", 0.9, 56)]
)
def test_a_fraction_means_what_the_engine_means(engine: str, fraction: float, kv_gib: int) -> None:
    """Case A36: 80 GiB, 16 of weights, 4 besides. Of all; of what weights left; of weights and cache."""
    weights = Weights(bytes=16 * GiB, bytes_per_gpu=16 * GiB, params=8, provenance="measured", source="")
    options = EstimateOptions(engine=engine, gpu_memory_bytes=80 * GiB, utilization=fraction, overhead_bytes=4 * GiB)
    memory = estimate(replace(model("llama-3.1-8b"), weights=weights), options).memory
    assert memory is not None
    assert memory.kv_bytes == kv_gib * GiB


# ------------------------------------------------------------------------------- refusals


@pytest.mark.parametrize(
    ("name", "engine", "options", "message"),
    [
        ("deepseek-v4-flash", "sglang", {}, "not laid out here: use --engine vllm"),
        ("deepseek-v4-flash", "tensorrt-llm", {}, "not laid out here"),
        ("whisper-large-v3", "sglang", {}, "encoder-decoder"),
        ("llama-3.1-8b", "sglang", {"kv_dtype": "int8"}, r"has no KV dtype 'int8' \(known: auto, bf16"),
        ("deepseek-v3", "tensorrt-llm", {"kv_dtype": "nvfp4"}, "no nvfp4 cache for latent"),
        ("llama-3.1-8b", "tensorrt-llm", {"block_tokens": 48}, "a power of two"),
        ("llama-3.1-8b", "sglang", {"tp": 3}, "neither divides 8 KV heads"),
    ],
)
def test_what_is_refused(name: str, engine: str, options: dict[str, Any], message: str) -> None:
    with pytest.raises(KvplanError, match=message):
        run(name, engine=engine, **options)
    with pytest.raises(KvplanError, match="--dcp is not laid out"):
        estimate(model("deepseek-v3"), EstimateOptions(engine=engine, parallel=Parallel(tp=8, dcp=8)))


def test_every_reference_config_lays_out_or_says_why(shared: Path) -> None:
    done = 0
    for path in sorted((shared / "configs").glob("*.json")):
        for engine in ("sglang", "tensorrt-llm"):
            try:
                found = run(str(path), engine=engine, kv_memory_bytes=40 * GiB, at=(1000, 5000))
            except KvplanError as error:
                assert "not laid out" in str(error) or "encoder-decoder" in str(error), path.name  # noqa: PT017
                continue
            first, second = found.kv.bytes_at
            assert first.steady_bytes <= second.steady_bytes
            done += 1
    assert done > 130
