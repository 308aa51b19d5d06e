"""Tokens that an image or a second of audio adds to a request, from the configs that say so.

Rules are keyed by the keys themselves, not by model names: a count stated outright, or patches of a stated size merged
in a stated way. Where the configs leave it open the answer is "unknown", never a typical figure.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kvplan.catalog import models as catalogued
from kvplan.documents import MediaTokens
from kvplan.errors import KvplanError, UsageError
from kvplan.files import reason

Json = Mapping[str, Any]

BESIDE = ("preprocessor_config.json", "processor_config.json")
PER_IMAGE = ("mm_tokens_per_image", "vision_soft_tokens_per_image", "image_seq_length", "image_seq_len")
NESTS = ("vision_config", "audio_config", "thinker_config", "image_processor", "feature_extractor")
# Layers between a Whisper encoder and the decoder that halve its positions again: stated in code, not in configs.
AUDIO_POOLING = {"qwen2_audio": 2, "qwen2_5_omni_thinker": 2, "qwen2_5_omni": 2}


@dataclass(frozen=True, slots=True)
class Configs:
    """A model's config and the processor configs beside it, by file name."""

    files: Mapping[str, Json]

    def first(self, *keys: str) -> tuple[str, Any] | None:
        """The first of `keys` that any file states, at its top or in a nested config, and where it was found."""
        for key in keys:
            for name, config in self.files.items():
                for place, part in _nested(config):
                    if part.get(key) is not None:
                        return f"{place}{key} of {name}", part[key]
        return None

    @property
    def model_type(self) -> str:
        """The whole model's type."""
        return str(self.files.get("config.json", {}).get("model_type", ""))


def _nested(config: Json) -> list[tuple[str, Json]]:
    found: list[tuple[str, Json]] = [("", config)]
    for key in NESTS:
        part = config.get(key)
        if isinstance(part, Mapping):
            found += [(f"{key}.{inner}", more) for inner, more in _nested(part)]
    return found


def image_size(text: str) -> tuple[int, int]:
    """Width and height from '1024x768'."""
    width, cross, height = text.lower().partition("x")
    if not cross or not (width.isdecimal() and height.isdecimal()) or not 0 < int(width) * int(height) < 10**10:
        raise UsageError(f"{text!r} is no image size: write 1024x768")
    return int(width), int(height)


def tokens(spec: str, images: int = 0, size: tuple[int, int] | None = None, audio_s: float = 0.0) -> list[MediaTokens]:
    """What `images` images of `size` pixels and `audio_s` seconds of audio add to a request of the model `spec`.

    Raises KvplanError for a config that is damaged; a model whose configs do not say gets None.
    """
    configs = _configs(spec)
    if not configs.files and (images or audio_s):
        source = f"unknown: {spec} is neither a folder, a config file nor in the catalogue: give the model's folder"
        kinds: tuple[tuple[Literal["image", "audio"], float], ...] = (("image", images), ("audio", audio_s))
        return [
            MediaTokens(kind=kind, count=count, tokens_each=None, tokens=None, source=source)
            for kind, count in kinds
            if count
        ]
    found = []
    if images:
        each, source = _image(configs, size)
        total = None if each is None else math.ceil(each * images)
        found.append(MediaTokens(kind="image", count=images, tokens_each=each, tokens=total, source=source))
    if audio_s:
        each, source = _audio(configs)
        total = None if each is None else math.ceil(each * audio_s)
        found.append(MediaTokens(kind="audio", count=audio_s, tokens_each=each, tokens=total, source=source))
    return found


def _configs(spec: str) -> Configs:
    path = Path(spec).expanduser()
    entry = None if path.exists() else catalogued.find(spec)
    if entry is not None:
        return Configs({"config.json": entry.config})
    if not path.exists() or path.suffix == ".gguf":
        return Configs({})
    folder, file = (path, path / "config.json") if path.is_dir() else (path.parent, path)
    files = {"config.json": file} | {name: folder / name for name in BESIDE}
    return Configs({name: _json(place) for name, place in files.items() if place.is_file()})


def _json(path: Path) -> Json:
    try:
        config = json.loads(path.read_bytes())
    except OSError as error:
        raise KvplanError(f"{path}: {reason(error)}") from None
    except (ValueError, RecursionError) as error:
        raise KvplanError(f"{path}: not valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise KvplanError(f"{path}: a config is a JSON object")
    return config


def _image(configs: Configs, size: tuple[int, int] | None) -> tuple[float | None, str]:
    stated = configs.first(*PER_IMAGE)
    if stated is not None and _is_count(stated[1]):
        return float(stated[1]), f"{stated[0]}, whatever the size"
    patch, merge = configs.first("patch_size"), configs.first("spatial_merge_size", "merge_kernel_size", "merge_size")
    if patch is None or not _is_count(patch[1]):
        return None, "unknown: no config states tokens per image or a patch size"
    if merge is None:
        whole = configs.first("image_size")
        if whole is None or not _is_count(whole[1]):
            return None, "unknown: no config states how patches are merged, or one size for every image"
        return float((whole[1] // patch[1]) ** 2), f"{whole[0]} over {patch[0]}, squared"
    step = patch[1] * (merge[1][0] if isinstance(merge[1], list) and merge[1] else merge[1])
    if size is None:
        return None, f"depends on the image: one token every {step} x {step} pixels; give --image-size"
    width, height = _resized(size, step, configs)
    return float((width // step) * (height // step)), f"{patch[0]} and {merge[0]}: {width} x {height} after resizing"


def _is_count(value: object) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _resized(size: tuple[int, int], step: int, configs: Configs) -> tuple[int, int]:
    """The size that a processor brings an image to: multiples of `step`, within the pixels it allows."""
    least, most = _bounds(configs)
    width, height = (max(step, round(side / step) * step) for side in size)
    pixels = size[0] * size[1]
    if most is not None and width * height > most:
        scale = math.sqrt(pixels / most)
        width, height = (max(step, math.floor(side / scale / step) * step) for side in size)
    elif least is not None and width * height < least:
        scale = math.sqrt(least / pixels)
        width, height = (math.ceil(side * scale / step) * step for side in size)
    return width, height


def _bounds(configs: Configs) -> tuple[int | None, int | None]:
    """The least and most pixels of an image, where a processor config states them."""
    least, most = configs.first("min_pixels"), configs.first("max_pixels")
    edges = configs.first("size")
    if edges is not None and isinstance(edges[1], Mapping):
        # Processors of this kind call pixel counts edges.
        short, long = edges[1].get("shortest_edge"), edges[1].get("longest_edge")
        least = least or (("", short) if _is_count(short) else None)
        most = most or (("", long) if _is_count(long) else None)
    return (
        int(least[1]) if least is not None and _is_count(least[1]) else None,
        int(most[1]) if most is not None and _is_count(most[1]) else None,
    )


def _audio(configs: Configs) -> tuple[float | None, str]:
    """Tokens of one second."""
    step = configs.first("audio_ms_per_token")
    if step is not None and _is_count(step[1]):
        return 1000 / step[1], step[0]
    rate = configs.first("position_id_per_seconds", "audio_tokens_per_second")
    if rate is not None and _is_count(rate[1]):
        return float(rate[1]), rate[0]
    positions, window = configs.first("max_source_positions"), configs.first("chunk_length")
    pooling = AUDIO_POOLING.get(configs.model_type)
    if positions and window and pooling and _is_count(positions[1]) and _is_count(window[1]):
        return positions[1] / window[1] / pooling, f"{positions[0]} over {window[0]}, pooled by {pooling}"
    if configs.model_type == "whisper":
        return 0.0, "audio goes to the encoder: its positions are a fixed part of every request, no tokens of it"
    return None, "unknown: no config states tokens of a second of audio"
