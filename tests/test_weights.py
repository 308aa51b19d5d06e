"""The size of a checkpoint, from headers written here byte by byte, and from what an index says."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kvplan.errors import KvplanError
from kvplan.model import load_model
from kvplan.models import weights

SIZES = {"F32": 4, "BF16": 2, "F8_E4M3": 1, "U8": 1, "I32": 4}
CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "intermediate_size": 128,
    "vocab_size": 100,
    "torch_dtype": "bfloat16",
}


def checkpoint(tensors: dict[str, tuple[str, list[int]]]) -> bytes:
    """A safetensors file of zeros."""
    header: dict[str, Any] = {"__metadata__": {"format": "pt"}}
    end = 0
    for name, (dtype, shape) in tensors.items():
        size = SIZES[dtype]
        for side in shape:
            size *= side
        header[name] = {"dtype": dtype, "shape": shape, "data_offsets": [end, end + size]}
        end += size
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(end)


def model_folder(folder: Path) -> Path:
    (folder / "config.json").write_text(json.dumps(CONFIG))
    return folder


def test_one_file(tmp_path: Path) -> None:
    (tmp_path / "model.safetensors").write_bytes(
        checkpoint({"a": ("BF16", [10, 20]), "b": ("F32", [5]), "c": ("F32", [])})
    )
    found = weights.of_folder(tmp_path)
    assert found is not None
    assert (found.bytes, found.params, found.provenance) == (10 * 20 * 2 + 5 * 4 + 4, 206, "measured")
    assert "BF16 400 B, F32 24 B" in found.source


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(
        st.text("abc.", min_size=1, max_size=8),
        st.tuples(st.sampled_from(sorted(SIZES)), st.lists(st.integers(0, 9), max_size=3)),
        min_size=1,
        max_size=5,
    )
)
def test_any_header_adds_up(
    tmp_path_factory: pytest.TempPathFactory, tensors: dict[str, tuple[str, list[int]]]
) -> None:
    folder = tmp_path_factory.mktemp("checkpoint")
    content = checkpoint(tensors)
    (folder / "model.safetensors").write_bytes(content)
    found = weights.of_folder(folder)
    assert found is not None
    assert found.bytes == len(content) - 8 - struct.unpack("<Q", content[:8])[0]
    assert (found.params is None) == any(dtype in ("U8", "I32") for dtype, _ in tensors.values())


def test_shards_are_those_of_the_index(tmp_path: Path) -> None:
    for number in (1, 2):
        content = checkpoint({f"w{number}": ("BF16", [8, number])})
        (tmp_path / f"model-0000{number}-of-00002.safetensors").write_bytes(content)
    (tmp_path / "consolidated.safetensors").write_bytes(checkpoint({"again": ("BF16", [8, 3])}))
    index = {
        "metadata": {"total_size": 1},
        "weight_map": {f"w{number}": f"model-0000{number}-of-00002.safetensors" for number in (1, 2)},
    }
    (tmp_path / weights.INDEX).write_text(json.dumps(index))
    found = weights.of_folder(tmp_path)
    assert found is not None
    assert (found.bytes, found.params, found.provenance) == (48, 24, "measured")


def test_the_index_alone(tmp_path: Path) -> None:
    index = {"metadata": {"total_size": 16060522496}, "weight_map": {"w": "model-00001-of-00001.safetensors"}}
    (model_folder(tmp_path) / weights.INDEX).write_text(json.dumps(index))
    found = load_model(str(tmp_path)).weights
    assert found is not None
    assert (found.bytes, found.provenance) == (16060522496, "published")
    assert found.params == load_model(str(tmp_path)).weights.params  # type: ignore[union-attr]
    assert found.params is not None  # counted from the config, which the index does not state


def test_from_the_architecture_where_nothing_is_beside_the_config(tmp_path: Path) -> None:
    found = load_model(str(model_folder(tmp_path))).weights
    assert found is not None
    attention = 64 * 16 * (2 * 4 + 2 * 2)
    counted = 2 * 100 * 64 + 2 * (attention + 3 * 64 * 128)
    assert (found.params, found.bytes, found.provenance) == (counted, 2 * counted, "configured")


def test_quantised_checkpoints() -> None:
    """Block-quantised FP8 halves the matrices but not the embedding; MXFP4 takes 4.25 bits, experts alone."""
    deepseek, oss = load_model("deepseek-v3").weights, load_model("gpt-oss-20b").weights
    assert deepseek is not None
    assert oss is not None
    assert abs(deepseek.bytes / 688_586_727_753 - 1) < 0.03  # the published repository, with its extra layer
    assert abs(oss.bytes / 13_761_264_768 - 1) < 0.01
    assert "4.25 bits" in oss.source


def test_a_modelopt_file_beside_the_config_states_the_kv_dtype(tmp_path: Path) -> None:
    folder = model_folder(tmp_path)
    assert load_model(str(folder)).kv_dtype is None
    beside = {"producer": {"name": "modelopt"}, "quantization": {"quant_algo": "FP8", "kv_cache_quant_algo": "FP8"}}
    (folder / "hf_quant_config.json").write_text(json.dumps(beside))
    assert load_model(str(folder)).kv_dtype == "fp8"


@pytest.mark.parametrize(
    ("name", "content", "said"),
    [
        ("model.safetensors", b"", "not a safetensors file, or cut off"),
        ("model.safetensors", b"\x10\0\0\0\0\0\0\0{}", "not a safetensors file, or cut off"),
        ("model.safetensors", b"\xff" * 8 + b"{}", "not a safetensors file, or cut off"),
        ("model.safetensors", b"\x02\0\0\0\0\0\0\0[]", "damaged safetensors header"),
        ("model.safetensors", b"\x04\0\0\0\0\0\0\0nope", "damaged safetensors header"),
        ("model.safetensors", checkpoint({"a": ("BF16", [4])})[:-1], "incomplete download"),
        (weights.INDEX, b"{", "not valid JSON"),
        (weights.INDEX, b"[]", "not a safetensors index"),
        (weights.INDEX, b'{"weight_map": {"a": "../../etc/passwd"}}', "not a safetensors index"),
    ],
)
def test_a_damaged_file_is_named(tmp_path: Path, name: str, content: bytes, said: str) -> None:
    (model_folder(tmp_path) / name).write_bytes(content)
    with pytest.raises(KvplanError, match=said) as caught:
        load_model(str(tmp_path))
    assert name in str(caught.value)
    assert "\n" not in str(caught.value)
