"""The exact size of a checkpoint: from safetensors headers, or from the index file that lists them.

Only headers are read (8 bytes of length, then JSON), never a weight: a checkpoint of a terabyte costs milliseconds.
"""

from __future__ import annotations

import json
import math
import re
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kvplan.documents import Weights
from kvplan.errors import KvplanError
from kvplan.files import reason

INDEX = "model.safetensors.index.json"
HEADER_LIMIT = 100 * 2**20  # the format's own limit
# Integer tensors hold several quantised weights each, or indices: their element count is no parameter count.
FLOATS = frozenset({"F64", "F32", "F16", "BF16", "F8_E4M3", "F8_E5M2"})

Header = Mapping[str, Any]

# What a tensor's name says of where it lives: routed experts are dealt out, the two ends sit on one stage each.
ROLES = {
    "experts": re.compile(r"(^|\.)experts\.|_exps\."),
    "embedding": re.compile(r"(^|\.)(embed_tokens|wte|word_embeddings|tok_embeddings|embed_in)\.|^token_embd\."),
    "head": re.compile(r"(^|\.)(lm_head|embed_out)\.|^output\.weight"),
}


def parts(sizes: Mapping[str, int]) -> dict[str, int]:
    """Bytes of experts, embedding and head among tensors given as name and bytes; a tied head has none."""
    found = dict.fromkeys(ROLES, 0)
    for name, size in sizes.items():
        role = next((role for role, pattern in ROLES.items() if pattern.search(name)), None)
        if role is not None:
            found[role] += size
    return found


def of_folder(folder: Path) -> Weights | None:
    """Weights of the checkpoint in a folder: every safetensors header, else the index, else None.

    Raises KvplanError naming the file for a header or an index that is damaged.
    """
    index = folder / INDEX
    listed = read_index(_read(index), str(index)) if index.is_file() else None
    shards = sorted({folder / name for name in listed[1]}) if listed else sorted(folder.glob("*.safetensors"))
    if shards and all(shard.is_file() for shard in shards):
        return from_headers([read_header(shard) for shard in shards], f"headers of {len(shards)} safetensors files")
    return from_index(listed[0], INDEX) if listed else None


def _read(path: Path) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise KvplanError(f"{path}: {reason(error)}") from None


def read_index(text: bytes, name: str) -> tuple[Mapping[str, Any], set[str]]:
    """The metadata of an index file and the names of its shards. Raises KvplanError naming the file."""
    try:
        index = json.loads(text)
    except ValueError as error:
        raise KvplanError(f"{name}: not valid JSON: {error}") from None
    table = index.get("weight_map") if isinstance(index, dict) else None
    metadata = index.get("metadata") if isinstance(index, dict) else None
    if not isinstance(table, dict) or not all(isinstance(shard, str) and "/" not in shard for shard in table.values()):
        raise KvplanError(f"{name}: no 'weight_map' from tensors to files: not a safetensors index")
    return metadata if isinstance(metadata, dict) else {}, set(table.values())


def from_index(metadata: Mapping[str, Any], source: str) -> Weights | None:
    """Weights as the index states them; None where it states no size."""
    size, params = metadata.get("total_size"), metadata.get("total_parameters")
    if not isinstance(size, int | float) or size <= 0:
        return None
    count = int(params) if isinstance(params, int) and params > 0 else None
    return Weights(
        bytes=int(size), bytes_per_gpu=int(size), params=count, provenance="published", source=f"total_size of {source}"
    )


def read_header(path: Path) -> Header:
    """The header of one safetensors file. Raises KvplanError naming the file for a damaged one."""
    try:
        size = path.stat().st_size
        with path.open("rb") as stream:
            prefix = stream.read(8)
            length = struct.unpack("<Q", prefix)[0] if len(prefix) == 8 else 0
            text = stream.read(length) if 0 < length <= HEADER_LIMIT else b""
    except OSError as error:
        raise KvplanError(f"{path}: {reason(error)}") from None
    if not text or len(text) != length:
        raise KvplanError(f"{path}: not a safetensors file, or cut off")
    return parse_header(text, str(path), size - 8 - length)


def parse_header(text: bytes, name: str, data_bytes: int | None = None) -> Header:
    """A header's tensors by name. `data_bytes`, where known, must be what the header promises."""
    try:
        header = json.loads(text)
        tensors = {key: value for key, value in header.items() if key != "__metadata__"}
        end = max((tensor["data_offsets"][1] for tensor in tensors.values()), default=0)
    except (ValueError, AttributeError, KeyError, TypeError, IndexError):
        raise KvplanError(f"{name}: damaged safetensors header") from None
    if data_bytes is not None and end != data_bytes:
        raise KvplanError(
            f"{name}: holds {data_bytes} bytes of weights where its header says {end}: incomplete download?"
        )
    return tensors


def from_headers(headers: list[Header], source: str) -> Weights:
    """Bytes by the tensors' own offsets; parameters only where no tensor packs several into one element."""
    size, params, packed, by_dtype, sizes = 0, 0, False, dict[str, int](), dict[str, int]()
    for header in headers:
        for name, tensor in header.items():
            start, end = tensor["data_offsets"]
            dtype = str(tensor["dtype"])
            size += end - start
            sizes[name] = end - start
            params += math.prod(tensor["shape"])
            packed = packed or dtype not in FLOATS
            by_dtype[dtype] = by_dtype.get(dtype, 0) + end - start
    shares = ", ".join(f"{dtype} {size:,} B" for dtype, size in sorted(by_dtype.items(), key=lambda part: -part[1]))
    role = parts(sizes)
    return Weights(
        bytes=size,
        bytes_per_gpu=size,
        params=None if packed else params,
        provenance="measured",
        source=f"{source}: {shares}",
        experts_bytes=role["experts"],
        embedding_bytes=role["embedding"],
        head_bytes=role["head"],
    )
