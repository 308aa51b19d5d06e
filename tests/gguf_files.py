"""GGUF files for tests, written with the gguf package from metadata; keys without "general." get the model's prefix."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gguf
import numpy as np


def write(
    path: Path, meta: Mapping[str, Any], tensors: Mapping[str, tuple[tuple[int, ...], str]] | None = None
) -> Path:
    """A header with this metadata, and tensors of zeros given as (shape, "F16" or another type name)."""
    architecture = meta["general.architecture"]
    writer = gguf.GGUFWriter(str(path), architecture)
    for key, value in meta.items():
        if key == "general.architecture":
            continue
        name = key if key.startswith(("general.", "tokenizer.", "split.")) else f"{architecture}.{key}"
        if isinstance(value, bool):
            writer.add_bool(name, value)
        elif isinstance(value, int):
            writer.add_uint32(name, value)
        elif isinstance(value, float):
            writer.add_float32(name, value)
        elif isinstance(value, str):
            writer.add_string(name, value)
        else:
            writer.add_array(name, value)
    for name, (shape, kind) in (tensors or {}).items():
        form = gguf.GGMLQuantizationType[kind]
        elements, size = gguf.GGML_QUANT_SIZES[form]
        stored = (*shape[:-1], shape[-1] // elements * size)
        writer.add_tensor(name, np.zeros(stored, dtype=np.uint8), raw_shape=stored, raw_dtype=form)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


LLAMA: dict[str, Any] = {
    "general.architecture": "llama",
    "context_length": 8192,
    "embedding_length": 1024,
    "block_count": 4,
    "attention.head_count": 8,
    "attention.head_count_kv": 2,
}
