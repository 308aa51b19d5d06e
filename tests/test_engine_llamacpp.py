"""llama.cpp: what it allocates for a context, against what it allocated."""

from __future__ import annotations

import json
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import gguf_files
import pytest
from records import replace
from typer.testing import CliRunner

from kvplan.cli import app
from kvplan.documents import EstimateOptions, LlamaCppOptions, Model, ModelRef, Parallel
from kvplan.errors import KvplanError
from kvplan.estimate import estimate
from kvplan.model import from_config, load_model
from kvplan.units import GiB, MiB


def options(**llama: Any) -> EstimateOptions:
    return EstimateOptions(engine="llama.cpp", llama_cpp=LlamaCppOptions(**llama))


def test_context_bytes_are_what_llama_cpp_allocates(shared: Path, tmp_path: Path) -> None:
    """Every recorded context, from a GGUF header to bytes; what llama.cpp refuses is refused."""
    outcome: Counter[str] = Counter()
    models: dict[str, Model] = {}
    for line in (shared / "truth" / "llamacpp.jsonl").read_text().splitlines():
        row = json.loads(line)
        name = row["model"]
        if name not in models:
            models[name] = load_model(str(gguf_files.write(tmp_path / f"{len(models)}.gguf", row["meta"])))
        asked = options(
            ctx_size=row["n_ctx_req"],
            slots=row["n_seq_max"],
            type_k=row["type_k"],
            type_v=row["type_v"],
            unified=bool(row["kv_unified"]),
            swa_full=bool(row["swa_full"]),
            ubatch=row["n_ubatch"],
            flash_attention=bool(row["flash_attn"]),
        )
        if "context_bytes" not in row:
            with pytest.raises(KvplanError, match="refuses K"):
                estimate(models[name], asked)
            outcome["refused"] += 1
            continue
        view = estimate(models[name], asked).engine_view
        wanted = {key: row[key] for key in ("context_bytes", "n_ctx", "n_ctx_seq")}
        assert {key: view[key] for key in wanted} == wanted, (name, row["kv_lines"])
        outcome["equal"] += 1
    assert outcome == {"equal": 458, "refused": 4}
    assert len(models) == 22


@cache
def catalogued(name: str) -> Model:
    return load_model(name)


def test_a_config_lays_out_as_its_converted_file_does(shared: Path, tmp_path: Path) -> None:
    """The same model from config.json and from GGUF takes the same bytes."""
    rows = [json.loads(line) for line in (shared / "truth" / "llamacpp.jsonl").read_text().splitlines()]
    same = {
        "Llama-3.1-8B": "meta-llama--Meta-Llama-3.1-8B",
        "gemma-3-27b": "google--gemma-3-27b-it",
        "gemma-4-26B-A4B": "google--gemma-4-26B-A4B",
        "gpt-oss-20b": "openai--gpt-oss-20b",
        "Qwen3-Next-80B-A3B": "Qwen--Qwen3-Next-80B-A3B-Instruct",
        "DeepSeek-V3.2": "deepseek-ai--DeepSeek-V3.2",
        "Jamba-v0.1": "ai21labs--Jamba-v0.1",
        "falcon-7b": "tiiuae--falcon-7b",
        "Nemotron-H-56B": "nvidia--Nemotron-H-56B-Base-8K",
        "Mistral-7B-v0.1 (llama arch, window 4096 in config)": "mistralai--Mistral-7B-v0.1",
        "Llama-4-Scout": "meta-llama--Llama-4-Scout-17B-16E-Instruct",
    }
    for name, config in same.items():
        model = load_model(str(shared / "configs" / f"{config}.json"))
        for row in rows:
            if row["model"] == name and "context_bytes" in row and row["n_seq_max"] == 1 and row["flash_attn"]:
                asked = options(
                    ctx_size=row["n_ctx_req"],
                    type_k=row["type_k"],
                    type_v=row["type_v"],
                    swa_full=bool(row["swa_full"]),
                    ubatch=row["n_ubatch"],
                )
                assert estimate(model, asked).engine_view["context_bytes"] == row["context_bytes"], name


def gemma(layers: int, heads: int, width: int, **more: Any) -> Model:
    config = {
        "model_type": "gemma3_text",
        "num_hidden_layers": layers,
        "num_attention_heads": 4,
        "num_key_value_heads": heads,
        "head_dim": width,
        "hidden_size": 640,
        "sliding_window": 512,
        "torch_dtype": "bfloat16",
        **more,
    }
    return from_config(config, ModelRef(id="g", source="path", model_type="", config_sha256=""), "config.json")


@pytest.mark.parametrize(
    ("slots", "tokens", "wanted"),
    [(1, 4096, 27), (2, 4096, 42), (4, 4096, 72), (8, 4096, 72), (1, 8192, 39), (2, 8192, 54)],
)
def test_window_cells_multiply_with_slots(slots: int, tokens: int, wanted: int) -> None:
    """Case A14: Gemma 3 270M, as the server was measured."""
    model = gemma(18, 1, 256)
    view = estimate(model, options(ctx_size=tokens, slots=slots)).engine_view
    assert view["context_bytes"] == wanted * MiB
    full = estimate(model, options(ctx_size=tokens, slots=slots, swa_full=True)).engine_view
    assert full["context_bytes"] == 18 * 1024 * tokens


def test_two_geometries_are_never_averaged(shared: Path) -> None:
    """Case A12: Gemma 4 26B-A4B."""
    model = load_model(str(shared / "configs" / "google--gemma-4-26B-A4B.json"))
    sizes = [
        estimate(model, options(ctx_size=tokens, ubatch=512)).engine_view for tokens in (4096, 8192, 32768, 131072)
    ]
    assert [f"{float(view['context_bytes'] or 0) / 1e9:.3g}" for view in sizes] == ["0.398", "0.482", "0.986", "3"]
    assert sizes[-1]["context_bytes"] == 2998927360


def test_block_types_carry_their_scales() -> None:
    """Case A27: K and V set apart, q8_0 is 34 bytes for 32 elements."""
    config = {"num_hidden_layers": 28, "num_attention_heads": 28, "num_key_value_heads": 4, "hidden_size": 3584}
    config |= {"model_type": "qwen2", "torch_dtype": "bfloat16", "max_position_embeddings": 32768}  # type: ignore[dict-item]
    model = from_config(config, ModelRef(id="q", source="path", model_type="", config_sha256=""), "config.json")

    def size(**llama: Any) -> int:
        return int(estimate(model, options(ctx_size=16384, slots=2, **llama)).engine_view["context_bytes"] or 0)

    plain = size()
    assert (plain, size(type_k="q8_0", type_v="q8_0")) == (896 * MiB, 476 * MiB)
    assert size(type_k="q4_0", type_v="f16") / plain == 0.640625
    assert size(type_k="q4_0", type_v="q4_0") / plain == 0.28125
    assert estimate(model, options(ctx_size=16384, type_k="q4_0")).kv_dtype == "q4_0 keys, f16 values"
    assert "compute-buffer" in [f.code for f in estimate(model, options(ctx_size=512, type_k="q4_0")).findings]


def test_latent_or_expanded_is_the_files_choice(tmp_path: Path) -> None:
    """Case A03: DeepSeek-V3, a latent in q8_0 and expanded heads in f16."""
    meta = {
        "general.architecture": "deepseek2",
        "context_length": 163840,
        "embedding_length": 7168,
        "block_count": 61,
        "attention.head_count": 128,
        "attention.kv_lora_rank": 512,
        "rope.dimension_count": 64,
    }
    latent = {"attention.head_count_kv": 1, "attention.key_length": 576, "attention.value_length": 512}
    latent |= {"attention.key_length_mla": 192, "attention.value_length_mla": 128}
    expanded = {"attention.head_count_kv": 128, "attention.key_length": 192, "attention.value_length": 128}
    small = load_model(str(gguf_files.write(tmp_path / "latent.gguf", {**meta, **latent})))
    large = load_model(str(gguf_files.write(tmp_path / "expanded.gguf", {**meta, **expanded})))
    found = estimate(small, options(ctx_size=32768, type_k="q8_0", type_v="q8_0"))
    assert found.kv.bytes_per_token == 37332
    assert found.engine_view["context_bytes"] == 1166.625 * MiB
    assert "latent-stored" in [finding.code for finding in found.findings]
    four = estimate(small, options(ctx_size=65536, type_k="q4_0", type_v="q4_0")).engine_view["context_bytes"]
    assert round(float(four or 0) / GiB, 3) == 1.206
    assert estimate(large, options(ctx_size=65536)).kv.bytes_per_token == 4997120
    assert round(float(estimate(large, options(ctx_size=65536)).engine_view["context_bytes"] or 0) / GiB) == 305


def test_slots_times_context() -> None:
    """Case A35: the context counts all slots together; unified slots may each take all of it."""
    model = catalogued("llama-3.1-8b")
    view = estimate(model, options(ctx_size=32768, slots=4)).engine_view
    assert (view["n_ctx"], view["n_ctx_seq"], view["context_bytes"]) == (32768, 8192, 32768 * 131072)
    by_length = estimate(model, replace(options(slots=4), max_model_len=8192)).engine_view
    assert by_length["context_bytes"] == view["context_bytes"]
    assert estimate(model, options(ctx_size=327680, slots=6)).engine_view["n_ctx_seq"] == 54784  # 54,613 padded
    shared_cells = estimate(model, options(ctx_size=32768, slots=4, unified=True))
    assert shared_cells.engine_view["n_ctx_seq"] == 32768
    assert "slots-share" in [finding.code for finding in shared_cells.findings]


def test_budgets_and_gpus() -> None:
    model = catalogued("llama-3.1-8b")
    asked = replace(options(), kv_memory_bytes=8 * GiB, max_model_len=8192)
    memory = estimate(model, asked).memory
    assert memory is not None
    assert memory.kv_tokens == 65536
    two = estimate(model, replace(asked, parallel=Parallel(pp=2)))
    assert two.memory is not None
    assert two.memory.kv_tokens == 131072
    assert two.kv.bytes_per_token_per_gpu == 65536
    point = estimate(model, replace(asked, at=(1000,), sequences=3)).kv.bytes_at[0]
    assert (point.steady_bytes, point.admission_bytes) == (3000 * 131072, 3 * 1024 * 131072)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"llama_cpp": LlamaCppOptions(type_k="fp8")}, r"no KV type 'fp8' \(known: f32, f16, bf16, q8_0"),
        ({"llama_cpp": LlamaCppOptions(type_v="q8_0", flash_attention=False)}, "needs flash attention"),
        ({"parallel": Parallel(tp=2)}, "use --pp"),
        ({"block_tokens": 16}, "no blocks"),
        ({"kv_dtype": "fp4"}, "--kv-dtype: llama.cpp has no KV type"),
        ({"llama_cpp": LlamaCppOptions(slots=0)}, "--parallel is 0"),
    ],
)
def test_what_llama_cpp_refuses(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(KvplanError, match=message):
        estimate(catalogued("llama-3.1-8b"), replace(options(), **changes))


def test_types_must_divide_the_heads() -> None:
    with pytest.raises(KvplanError, match=r"--cache-type-k q8_0 packs 32 elements, which does not divide heads of 80"):
        estimate(gemma(6, 1, 80), options(ctx_size=512, type_k="q8_0"))


def test_other_shapes_are_refused_by_name() -> None:
    for name in ("deepseek-v4-flash", "whisper-large-v3"):
        with pytest.raises(KvplanError, match="not laid out here"):
            estimate(catalogued(name), options(ctx_size=512))


def test_the_command_gives_the_same(shared: Path, tmp_path: Path) -> None:
    """The form that scripts use, on a model with windows and on one with state."""
    for line in (shared / "truth" / "llamacpp.jsonl").read_text().splitlines():
        row = json.loads(line)
        if row["model"] not in ("gemma-3-27b", "Jamba-v0.1") or "context_bytes" not in row:
            continue
        path = tmp_path / f"{row['arch']}.gguf"
        if not path.exists():
            gguf_files.write(path, row["meta"])
        form = ["estimate", "--model", str(path), "--engine", "llama.cpp", "--ctx-size", str(row["n_ctx_req"])]
        form += ["--parallel", str(row["n_seq_max"]), "--cache-type-k", row["type_k"], "--cache-type-v", row["type_v"]]
        form += ["--kv-unified" if row["kv_unified"] else "--no-kv-unified", "--ubatch", str(row["n_ubatch"])]
        form += ["--swa-full"] * row["swa_full"] + ["--no-flash-attn"] * (not row["flash_attn"])
        done = CliRunner().invoke(app, [*form, "--json"])
        assert done.exit_code == 0, done.output
        assert json.loads(done.stdout)["data"]["engine_view"]["context_bytes"] == row["context_bytes"]
