"""vLLM: pages, blocks, groups and concurrency against vLLM's own planner; slot formats; DeepSeek-V4."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import pytest
from records import replace
from typer.testing import CliRunner

from kvplan.cli import app
from kvplan.documents import Estimate, EstimateOptions, Model, PageKind, Parallel
from kvplan.engines.vllm_pages import Pages, merged, packed_pool, pool
from kvplan.errors import KvplanError
from kvplan.estimate import estimate
from kvplan.model import load_model
from kvplan.units import GiB


@cache
def model(name: str) -> Model:
    return load_model(name)


def run(name: str, tp: int = 1, **options: Any) -> Estimate:
    return estimate(model(name), EstimateOptions(engine="vllm", parallel=Parallel(tp=tp), **options))


def truth(shared: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (shared / "truth" / "vllm.jsonl").read_text().splitlines()]


def facts_of(shared: Path, row: dict[str, Any]) -> Model:
    facts = model(str(shared / "configs" / f"{row['model']}.json"))
    return facts if row["variant"] == "with_quantization_config" else replace(facts, kv_dtype=None)


def options_of(row: dict[str, Any]) -> EstimateOptions:
    extra = row["extra"] or {}
    return EstimateOptions(
        engine="vllm",
        kv_dtype=row["kv_cache_dtype_requested"],
        parallel=Parallel(tp=row["tp"]),
        block_tokens=row["block_size_flag"],
        max_model_len=row["max_model_len_requested"],
        kv_memory_bytes=20 * GiB,
        max_num_batched_tokens=extra.get("max_num_batched_tokens"),
        async_scheduling=extra.get("async_scheduling", True),
        prefix_caching=extra.get("enable_prefix_caching", True),
        hybrid_manager=not extra.get("disable_hybrid_kv_cache_manager", False),
    )


def test_vllm_plans_the_same_blocks(shared: Path) -> None:
    """Every recorded plan of vLLM's own planner; what it cannot plan is refused or said."""
    outcome: Counter[str] = Counter()
    for row in truth(shared):
        facts, options = facts_of(shared, row), options_of(row)
        if "num_blocks" not in row:
            if row["block_size_flag"] is None:
                with pytest.raises(KvplanError, match="needs its hybrid KV cache manager"):
                    estimate(facts, options)
                outcome["refused"] += 1
            else:  # vLLM divides by zero; the block is raised instead, and the reader told
                assert "does not start" in " ".join(finding.text for finding in estimate(facts, options).findings)
                outcome["said"] += 1
            continue
        view = estimate(facts, options).engine_view
        wanted = {
            "block_tokens": row["block_size_used"],
            "bytes_per_block": row["bytes_per_block"],
            "num_blocks": row["num_blocks"],
            "kv_cache_size_tokens": row["kv_cache_size_tokens"],
            "max_concurrency": row["max_concurrency"],
        }
        assert {key: view[key] for key in wanted} == wanted, (row["model"], row["variant"], row["tp"])
        assert pages_of(view["pages"]) == specs_of(row), (row["model"], row["variant"], row["tp"])
        outcome["equal"] += 1
    assert outcome == {"equal": 491, "refused": 4, "said": 1}


def pages_of(kinds: object) -> Counter[tuple[int, int]]:
    assert isinstance(kinds, tuple)
    found: Counter[tuple[int, int]] = Counter()
    for kind in kinds:
        assert isinstance(kind, PageKind)
        found[kind.block_tokens, kind.page_bytes] += kind.layers
    return found


def specs_of(row: dict[str, Any]) -> Counter[tuple[int, int]]:
    found: Counter[tuple[int, int]] = Counter()
    for spec in row["layer_specs"]:
        found[spec["block_size"], spec["page_size_bytes"]] += spec["count"]
    return found


def test_a_request_takes_the_same_bytes(shared: Path) -> None:
    checked = 0
    for row in truth(shared):
        if row["tp"] > 1 or "num_blocks" not in row or "whisper" in row["model"]:
            continue
        options = replace(options_of(row), at=(row["max_model_len"],))
        at = estimate(facts_of(shared, row), options).kv.bytes_at[0]
        assert at.admission_bytes == row["request_bytes_at_max_model_len"], (row["model"], row["variant"])
        checked += 1
    assert checked > 200


def test_the_block_given_to_deepseek_v4_is_a_wish(shared: Path) -> None:
    """The same plan whatever block is asked for; 512 doubles the pages of latents, not those of windows."""
    name = str(shared / "configs" / "deepseek-ai--DeepSeek-V4-Flash.json")
    asked = {"kv_memory_bytes": 20 * GiB, "max_model_len": 8192}
    small, large = run(name, **asked), run(name, block_tokens=512, **asked)
    assert small.engine_view == run(name, block_tokens=16, **asked).engine_view
    assert small.engine_view["kv_cache_size_tokens"] == 52176
    assert large.block_tokens == 512
    assert small.kv_dtype == run(name, kv_dtype="bf16").kv_dtype == "bf16"
    assert small.engine_view["kv_cache_dtype"] == "fp8_ds_mla"
    with pytest.raises(KvplanError, match="in fp8_ds_mla, not nvfp4"):
        run(name, kv_dtype="nvfp4")


def test_deepseek_v4_needs_a_fixed_part_and_a_slope(shared: Path) -> None:
    """Case A07: no single rate, and never the generic formula's 88,064 bytes a token."""
    found = run(str(shared / "configs" / "deepseek-ai--DeepSeek-V4-Flash.json"), at=(1_000_000,))
    assert found.kv.bytes_per_token_per_gpu == 1002240 // 256
    assert found.kv.offload_bytes_per_token == 3915  # a canonical host tier was seen at about 4.1 KB
    assert found.kv.bytes_per_sequence_per_gpu == (2 * 2 + 2 + 16) * 1002240
    assert found.kv.bytes_at[0].steady_bytes < 88_064 * 1_000_000 / 20
    assert [group.kind for group in found.groups] == ["sliding", "latent", "indexer", "latent"]


def kind(layers: int, size: int, **more: Any) -> Pages:
    return Pages(**{"kind": "full", "tokens": 16, "layers": layers, "bytes": size, **more})


def test_pages_that_do_not_divide_are_padded() -> None:
    found = pool([kind(4, 4096), kind(8, 3000, kind="sliding", window=128)])
    assert found.block_bytes == 4 * 4096
    assert [(page.tokens, page.bytes, groups) for page, groups in found.kinds] == [(16, 4096, 1), (16, 4096, 2)]
    with pytest.raises(KvplanError, match="cannot pad pages of a latent"):
        pool([kind(4, 4096, kind="sliding", window=128), kind(4, 3000, kind="latent")])


def test_smaller_pages_get_longer_blocks() -> None:
    found = pool([kind(5, 65536), kind(25, 32768, kind="sliding", window=1024)])
    assert found.block_bytes == 5 * 65536
    assert [(page.tokens, groups) for page, groups in found.kinds] == [(16, 1), (32, 5)]


def test_kinds_of_nearly_equal_count_are_padded_not_cut() -> None:
    """Case A31: 12 windows and 13 full layers become two groups of 13."""
    found = pool([kind(12, 4096, kind="sliding", window=128), kind(13, 4096)])
    assert found.block_bytes == 13 * 4096
    assert [groups for _, groups in found.kinds] == [1, 1]
    cut = pool([kind(10, 4096, kind="sliding", window=128), kind(15, 4096)])
    assert (cut.block_bytes, [groups for _, groups in cut.kinds]) == (10 * 4096, [1, 2])


def test_packed_kinds_are_split_evenly() -> None:
    window = {"kind": "sliding", "tokens": 64, "window": 128}
    state = {"kind": "sliding", "tokens": 4, "window": 8}
    found = packed_pool([kind(43, 10, **window), kind(21, 30), kind(21, 10, **state), kind(21, 20, **state)])
    assert found.block_bytes == 630
    assert [groups for _, groups in found.kinds] == [2, 1, 1]
    assert packed_pool([kind(3, 10)]).block_bytes == 30


def test_alike_pages_are_one_kind() -> None:
    assert merged([kind(1, 10), kind(2, 20), kind(3, 10)]) == [kind(4, 10), kind(2, 20)]


@pytest.mark.parametrize(
    ("dtype", "slot"),
    [
        ("bf16", 512),
        ("fp8", 256),
        ("fp8_e4m3", 256),
        ("fp8_per_token_head", 264),
        ("int8_per_token_head", 264),
        ("int4_per_token_head", 136),
        ("nvfp4", 144),
    ],
)
def test_slots_carry_their_scales(dtype: str, slot: int) -> None:
    """Llama 3.1 8B: K and V of one head of 128."""
    found = run("llama-3.1-8b", kv_dtype=dtype)
    assert found.kv.bytes_per_token == 32 * 8 * slot
    assert found.engine_view["bytes_per_block"] == 32 * 8 * slot * 16
    assert run("llama-3.1-8b", kv_dtype=dtype, tp=8).kv.bytes_per_token_per_gpu == 32 * slot


@pytest.mark.parametrize(
    ("dtype", "slot", "block"),
    [
        ("turboquant_k8v4", 196, 48),
        ("turboquant_4bit_nc", 134, 64),
        ("turboquant_k3v4_nc", 118, 80),
        ("turboquant_3bit_nc", 102, 96),
    ],
)
def test_turboquant_leaves_the_ends_unquantised(dtype: str, slot: int, block: int) -> None:
    found = run("llama-3.1-8b", kv_dtype=dtype)
    assert found.kv.bytes_per_token_per_gpu == 8 * (28 * slot + 4 * 512)
    assert found.block_tokens == block
    assert "layers-skipped" in [finding.code for finding in found.findings]
    assert run("llama-3.1-8b", kv_dtype=dtype, kv_skip_layers=0).kv.bytes_per_token_per_gpu == 8 * 32 * slot


def test_a_latent_has_formats_of_its_own() -> None:
    latent = 61 * 132
    for dtype, slot in (("fp8", 656), ("fp8_ds_mla", 656), ("nvfp4_ds_mla", 352), ("fp8_per_token_head", 656)):
        found = run("deepseek-v3.2", kv_dtype=dtype)
        assert found.kv.bytes_per_token == found.kv.bytes_per_token_per_gpu == 61 * slot + latent, dtype
    assert run("deepseek-v3", kv_dtype="fp8").kv.bytes_per_token == 61 * 576
    assert run("deepseek-v3", kv_dtype="fp8_per_token_head").kv.bytes_per_token == 61 * (576 + 8)
    for name, dtype, message in (
        ("deepseek-v3", "fp8_ds_mla", "a slot of sparse latent attention"),
        ("deepseek-v3", "nvfp4", "no slot for a latent"),
        ("llama-3.1-8b", "fp8_ds_mla", "a slot of sparse latent attention"),
        ("gemma-3-27b", "turboquant_k8v4", "this model has windows"),
    ):
        with pytest.raises(KvplanError, match=message):
            run(name, kv_dtype=dtype)


def test_an_unknown_format_lists_those_known() -> None:
    with pytest.raises(KvplanError, match=r"has no KV dtype 'int3_ds_mla' \(known: auto, .*fp8_ds_mla"):
        run("deepseek-v3.2", kv_dtype="int3_ds_mla")


def test_quantising_doubles_the_block_of_a_hybrid() -> None:
    """Case A17: fewer bytes a token mean more tokens until a page holds a state."""
    assert run("qwen3-next-80b-a3b").block_tokens == 544
    assert run("qwen3-next-80b-a3b", kv_dtype="fp8").block_tokens == 1072
    inert = run("nemotron-h-56b", kv_dtype="fp8", max_model_len=4096)
    assert any("no prefix is ever reused" in finding.text for finding in inert.findings)


def test_blocks_of_a_hybrid_keep_to_the_step_asked_for() -> None:
    assert run("qwen3-next-80b-a3b", block_tokens=128).block_tokens == 640
    assert run("qwen3-next-80b-a3b", block_tokens=1024).block_tokens == 1024


def test_the_command_gives_the_same(shared: Path) -> None:
    """The form that scripts use, one plan of every model that vLLM plans at its own dtype."""
    seen: set[str] = set()
    for row in truth(shared):
        plain = row["variant"] is None and row["kv_cache_dtype_requested"] == "auto" and "num_blocks" in row
        name = str(shared / "configs" / f"{row['model']}.json")
        if not plain or row["model"] in seen or model(name).kv_dtype is not None:
            continue
        seen.add(row["model"])
        form = ["estimate", "--model", name, "--engine", "vllm", "--kv-memory", "20GiB", "--tp", str(row["tp"])]
        form += ["--kv-dtype", "auto", "--max-model-len", str(row["max_model_len_requested"])]
        done = CliRunner().invoke(app, [*form, "--block-tokens", "16", "--json"])
        assert done.exit_code == 0, done.output
        view = json.loads(done.stdout)["data"]["engine_view"]
        wanted = {key: row[key] for key in ("bytes_per_block", "num_blocks", "kv_cache_size_tokens", "max_concurrency")}
        assert {key: view[key] for key in wanted} == wanted, row["model"]
        assert view["block_tokens"] == row["block_size_used"]
    assert len(seen) >= 40
