"""Tokens of images and audio: from the configs that state them, and "unknown" from all others."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kvplan.documents import EstimateOptions
from kvplan.errors import KvplanError, UsageError
from kvplan.estimate import estimate
from kvplan.media import image_size, tokens
from kvplan.model import load_model


def folder(tmp_path: Path, config: dict[str, Any], **beside: dict[str, Any]) -> str:
    (tmp_path / "config.json").write_text(json.dumps(config))
    for name, content in beside.items():
        (tmp_path / f"{name}.json").write_text(json.dumps(content))
    return str(tmp_path)


def test_a_count_that_is_stated(shared: Path) -> None:
    gemma = str(shared / "configs" / "google--gemma-3-27b-it.json")
    (found,) = tokens(gemma, images=3)
    assert (found.kind, found.tokens_each, found.tokens) == ("image", 256.0, 768)
    assert found.source == "mm_tokens_per_image of config.json, whatever the size"
    (newer,) = tokens(str(shared / "configs" / "google--gemma-4-26B-A4B.json"), images=1)
    assert newer.tokens == 280


def test_patches_are_merged(tmp_path: Path) -> None:
    vision = {"vision_config": {"patch_size": 16, "spatial_merge_size": 2}}
    name = folder(tmp_path, {"model_type": "qwen3_vl", **vision})
    (found,) = tokens(name, images=2, size=(1024, 768))
    assert (found.tokens_each, found.tokens) == (32 * 24, 2 * 32 * 24)
    (unsized,) = tokens(name, images=2)
    assert unsized.tokens is None
    assert "one token every 32 x 32 pixels; give --image-size" in unsized.source


def test_processors_bound_the_pixels(tmp_path: Path) -> None:
    config = {"model_type": "qwen2_vl", "vision_config": {"patch_size": 14, "spatial_merge_size": 2}}
    name = folder(tmp_path, config, preprocessor_config={"min_pixels": 3136, "max_pixels": 1003520})
    (found,) = tokens(name, images=1, size=(4000, 3000))
    assert found.tokens is not None
    assert found.tokens * 28 * 28 <= 1003520
    assert found.tokens > 0.95 * 1003520 / (28 * 28)
    (tiny,) = tokens(name, images=1, size=(10, 10))
    assert tiny.tokens == 4
    edges = {"size": {"shortest_edge": 65536, "longest_edge": 262144}}
    (tmp_path / "preprocessor_config.json").write_text(json.dumps(edges))
    (bounded,) = tokens(name, images=1, size=(4000, 3000))
    assert bounded.tokens is not None
    assert bounded.tokens * 28 * 28 <= 262144


def test_one_size_for_every_image(tmp_path: Path) -> None:
    name = folder(tmp_path, {"model_type": "llava", "vision_config": {"patch_size": 14, "image_size": 336}})
    (found,) = tokens(name, images=1)
    assert found.tokens == 576


def test_audio_by_the_second(tmp_path: Path) -> None:
    name = folder(tmp_path, {"model_type": "gemma3n"}, processor_config={"audio_ms_per_token": 40})
    (found,) = tokens(name, audio_s=30)
    assert (found.tokens_each, found.tokens) == (25.0, 750)
    encoder = {"model_type": "qwen2_audio", "audio_config": {"max_source_positions": 1500}}
    name = folder(tmp_path, encoder, preprocessor_config={"chunk_length": 30}, processor_config={})
    assert tokens(name, audio_s=30)[0].tokens == 750


def test_audio_of_an_encoder_decoder_adds_nothing() -> None:
    (found,) = tokens("whisper-large-v3", audio_s=30)
    assert found.tokens == 0
    assert "encoder" in found.source


@pytest.mark.parametrize("config", [{"model_type": "llama"}, {"vision_config": {"patch_size": 14}}])
def test_what_nobody_states_is_unknown(tmp_path: Path, config: dict[str, Any]) -> None:
    found = tokens(folder(tmp_path, config), images=1, size=(100, 100), audio_s=2)
    assert [one.tokens for one in found] == [None, None]
    assert all(one.source.startswith("unknown") for one in found)


def test_nothing_asked_nothing_said() -> None:
    assert tokens("llama-3.1-8b") == []


def test_images_lengthen_the_request(shared: Path) -> None:
    name = str(shared / "configs" / "google--gemma-3-27b-it.json")
    model = load_model(name)
    found = estimate(model, EstimateOptions(at=(1000,)), media=tokens(name, images=4))
    assert found.kv.bytes_at[0].tokens == 2024
    assert "media-added" in [finding.code for finding in found.findings]
    unknown = estimate(load_model("llama-3.1-8b"), EstimateOptions(at=(1000,)), media=tokens("llama-3.1-8b", images=1))
    assert unknown.kv.bytes_at[0].tokens == 1000
    assert "media-unknown" in [finding.code for finding in unknown.findings]


def test_bad_input(tmp_path: Path) -> None:
    for text in ("1024", "0x10", "axb", "1024x", "-1x4"):
        with pytest.raises(UsageError, match="no image size"):
            image_size(text)
    assert image_size("1024X768") == (1024, 768)
    (tmp_path / "config.json").write_text("{")
    with pytest.raises(KvplanError, match="not valid JSON"):
        tokens(str(tmp_path), images=1)
    (tmp_path / "config.json").write_text("[]")
    with pytest.raises(KvplanError, match="a JSON object"):
        tokens(str(tmp_path), images=1)
