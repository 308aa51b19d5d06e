"""GGUF files: what the header says, layer by layer, weights by tensor type, and every way a file can be bad."""

from __future__ import annotations

import struct
from pathlib import Path
from typing import Any

import gguf
import gguf_files
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from kvplan.documents import EstimateOptions
from kvplan.errors import KvplanError
from kvplan.estimate import estimate
from kvplan.model import load_model
from kvplan.models.gguf_header import read_header


def file(tmp_path: Path, **changes: Any) -> str:
    meta = {**gguf_files.LLAMA, **{key.replace("__", "."): value for key, value in changes.items()}}
    return str(
        gguf_files.write(tmp_path / "model.gguf", {key: value for key, value in meta.items() if value is not None})
    )


def test_a_plain_model(tmp_path: Path) -> None:
    model = load_model(file(tmp_path))
    assert (model.ref.source, model.ref.model_type, model.ref.max_context_tokens) == ("gguf", "llama", 8192)
    (layer,) = model.layers
    (cache,) = layer.caches
    assert (cache.kind, cache.heads, cache.k_dim, cache.v_dim) == ("full", 2, 128, 128)
    assert model.order == (0, 0, 0, 0)
    assert "attention.head_count_kv" in cache.keys
    assert estimate(model, EstimateOptions()).kv.bytes_per_token == 4 * 2 * 256 * 2


def test_kv_heads_default_to_heads(tmp_path: Path) -> None:
    model = load_model(file(tmp_path, attention__head_count_kv=None))
    assert model.layers[0].caches[0].heads == 8


def test_the_header_agrees_with_the_packages_own_reader(tmp_path: Path) -> None:
    tensors = {"token_embd.weight": ((64, 256), "Q4_K"), "output.weight": ((64, 32), "F16"), "norm": ((32,), "F32")}
    tokens = [f"token {index}" for index in range(20_000)]
    meta = {**gguf_files.LLAMA, "tokenizer.ggml.tokens": tokens, "tokenizer.ggml.scores": [0.5] * 20_000}
    path = gguf_files.write(tmp_path / "m.gguf", meta, tensors)
    ours, theirs = read_header(path), gguf.GGUFReader(str(path))
    assert [(t.name, t.shape, t.type, t.bytes) for t in ours.tensors] == [
        (t.name, tuple(t.shape.tolist()), t.tensor_type.name, t.n_bytes) for t in theirs.tensors
    ]
    for key, field in theirs.fields.items():
        if not key.startswith(("GGUF.", "tokenizer.")):
            assert ours.metadata[key] == field.contents(), key
    assert ours.metadata["tokenizer.ggml.tokens"].length == 20_000
    model = load_model(str(path))
    assert model.vocab_size == 20_000
    weights = model.weights
    assert weights is not None
    assert (weights.bytes, weights.params) == (64 * 256 // 256 * 144 + 64 * 32 * 2 + 32 * 4, 64 * 256 + 64 * 32 + 32)
    assert "Q4_K 9,216 B" in weights.source
    assert weights.provenance == "measured"


def test_weights_of_every_shard_count(tmp_path: Path) -> None:
    first = gguf_files.write(tmp_path / "m-00001-of-00002.gguf", gguf_files.LLAMA, {"a": ((32, 32), "F16")})
    with pytest.raises(KvplanError, match=r"m-00002-of-00002\.gguf: missing"):
        load_model(str(first))
    second = gguf_files.write(
        tmp_path / "m-00002-of-00002.gguf", {"general.architecture": "llama"}, {"b": ((32, 32), "Q8_0")}
    )
    weights = load_model(str(first)).weights
    assert weights is not None
    assert weights.bytes == 32 * 32 * 2 + 32 * 34
    with pytest.raises(KvplanError, match="give the first"):
        load_model(str(second))


def test_per_layer_heads(tmp_path: Path) -> None:
    """Case A21: LFM2-1.2B, whose first entry is zero."""
    heads = [0, 0, 8, 0, 0, 8, 0, 0, 8, 0, 8, 0, 8, 0, 8, 0]
    meta = {
        "general.architecture": "lfm2",
        "context_length": 128000,
        "embedding_length": 2048,
        "block_count": 16,
        "attention.head_count": 32,
        "attention.head_count_kv": heads,
        "shortconv.l_cache": 3,
    }
    model = load_model(str(gguf_files.write(tmp_path / "lfm2.gguf", meta)))
    found = estimate(model, EstimateOptions(at=(4096, 32768)))
    assert found.kv.bytes_per_token == 12288
    state = 10 * 2048 * 2 * 2
    assert [at.steady_bytes - state for at in found.kv.bytes_at] == [48 * 2**20, 384 * 2**20]


def test_windows_only_where_llama_cpp_reads_them(tmp_path: Path) -> None:
    plain = load_model(file(tmp_path, attention__sliding_window=4096))
    assert plain.layers[0].caches[0].window_tokens is None
    assert [finding.code for finding in plain.findings] == ["window-not-read"]
    gemma = load_model(file(tmp_path, general__architecture="gemma2"))
    assert [gemma.layers[kind].caches[0].window_tokens for kind in gemma.order] == [4096, None, 4096, None]
    listed = load_model(
        file(
            tmp_path,
            general__architecture="gemma4",
            attention__sliding_window=64,
            attention__sliding_window_pattern=[True, False, False, True],
            attention__shared_kv_layers=1,
        )
    )
    assert [[cache.window_tokens for cache in listed.layers[kind].caches] for kind in listed.order] == [
        [64],
        [None],
        [None],
        [],
    ]
    with pytest.raises(KvplanError, match="which layers slide is not said"):
        load_model(file(tmp_path, general__architecture="gemma4", attention__sliding_window=64))


def test_layers_that_predict_further_tokens_keep_nothing(tmp_path: Path) -> None:
    model = load_model(file(tmp_path, nextn_predict_layers=1))
    assert len(model.order) == 3
    assert [finding.code for finding in model.findings] == ["draft-layers"]


@pytest.mark.parametrize("architecture", ["deepseek4", "bert", "novel"])
def test_caches_of_another_shape_are_refused_by_name(tmp_path: Path, architecture: str) -> None:
    with pytest.raises(KvplanError, match=f"architecture '{architecture}'"):
        load_model(file(tmp_path, general__architecture=architecture, ssm__state_size=16))


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"block_count": None}, r"no 'llama\.block_count'"),
        ({"block_count": 0}, "which no model has"),
        ({"embedding_length": None}, r"no 'llama\.embedding_length'"),
        ({"attention__head_count_kv": [2, 2]}, "no list of 4 whole numbers"),
        ({"attention__head_count_kv": "two"}, "not a whole number"),
        ({"attention__key_length": 1.5}, "not a whole number"),
    ],
)
def test_bad_metadata_names_its_key(tmp_path: Path, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(KvplanError, match=message):
        load_model(file(tmp_path, **changes))


def test_files_that_are_none(tmp_path: Path) -> None:
    path = tmp_path / "x.gguf"
    for content, message in (
        (b"", "empty or damaged"),
        (b"GGUF", "ends in its header"),
        (b"PK\x03\x04" * 20, "not a GGUF file"),
        (struct.pack("<4sIQQ", b"GGUF", 9, 0, 0), "version 9 is not known"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 2**60), "ends in its header"),
        (struct.pack("<4sIQQ", b"GGUF", 3, 0, 0), "no 'general.architecture'"),
    ):
        path.write_bytes(content)
        with pytest.raises(KvplanError, match=message):
            load_model(str(path))


def test_big_endian_files_are_read(tmp_path: Path) -> None:
    text = b"llama"
    key = b"general.architecture"
    body = struct.pack(f">4sIQQQ{len(key)}sIQ{len(text)}s", b"GGUF", 3, 0, 1, len(key), key, 8, len(text), text)
    (tmp_path / "b.gguf").write_bytes(body)
    assert read_header(tmp_path / "b.gguf").metadata == {"general.architecture": "llama"}


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    path = tmp_path_factory.mktemp("whole") / "m.gguf"
    return gguf_files.write(path, gguf_files.LLAMA, {"a": ((32, 32), "Q8_0")}).read_bytes()


@settings(max_examples=200, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(cut=st.integers(0, 700), place=st.integers(0, 400), value=st.integers(0, 255))
def test_damage_is_an_error_of_one_line(tmp_path: Path, whole: bytes, cut: int, place: int, value: int) -> None:
    damaged = bytearray(whole)
    damaged[place % len(damaged)] = value
    path = tmp_path / "d.gguf"
    path.write_bytes(bytes(damaged[: max(1, len(damaged) - cut)]))
    try:
        load_model(str(path))
    except KvplanError as error:
        assert "\n" not in str(error)  # noqa: PT017 - either it reads or it says why in one line
