"""Slot formats: the bytes of one stored token, looked up by name, never worked out from bits per element alone.

Scales, norms and padding are part of a format: "4 bit" formats take from 4.5 to 9 bits an element. Sources: vLLM 0.32
(spec classes and attention backends of each cache dtype) and ggml's block types, as docs/engines.md lists them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from fractions import Fraction

from kvplan.errors import KvplanError

Content = Callable[[int, int], Fraction]  # K width, V width -> bytes of one token of one head


def _elements(size: int) -> Content:
    return lambda k, v: Fraction((k + v) * size)


def _per_token_head(bits: int) -> Content:
    """Packed elements and two fp32 scales, one for K and one for V (a latent keeps both beside its one side)."""
    return lambda k, v: Fraction(k * bits // 8 + v * bits // 8 + 8)


def _nvfp4(k: int, v: int) -> Fraction:
    """Two elements a byte, and one fp8 scale for 16 of them."""
    return Fraction(k // 2 + k // 16 + v // 2 + v // 16)


def _turboquant(key_bits: int, value_bits: int) -> Content:
    """K as fp8, or as indices with an fp16 norm; V with an fp16 scale and zero point; an even number of bytes."""

    def content(k: int, v: int) -> Fraction:
        keys = k if key_bits == 8 else -(-k * key_bits // 8) + 2
        slot = keys + -(-v * value_bits // 8) + 4
        return Fraction(slot + slot % 2)

    return content


# vLLM's --kv-cache-dtype, bytes of K and V of one head and token.
FORMATS: Mapping[str, Content] = {
    "fp32": _elements(4),
    "bf16": _elements(2),
    "fp16": _elements(2),
    "fp8": _elements(1),
    "fp8_per_token_head": _per_token_head(8),
    "int8_per_token_head": _per_token_head(8),
    "int4_per_token_head": _per_token_head(4),
    "nvfp4": _nvfp4,
    "turboquant_k8v4": _turboquant(8, 4),
    "turboquant_4bit_nc": _turboquant(4, 4),
    "turboquant_k3v4_nc": _turboquant(3, 4),
    "turboquant_3bit_nc": _turboquant(3, 3),
}
# Formats of a whole latent (512 and a rotary key of 64), which is one opaque slot whatever its width says.
LATENT_SLOTS: Mapping[str, int] = {
    "fp8_ds_mla": 656,  # 512 fp8, 4 fp32 scales, 64 bf16
    "nvfp4_ds_mla": 352,  # 256 B of fp4, 32 fp8 scales, 64 fp8
    "nvfp4_ds_mla_432": 432,  # builds that keep the rotary key in bf16: 256 B of fp4, 32 scales, 16 padding, 128
}
LATENT_WIDTHS = (576, 64)  # of a latent, and of the rotary key in it
COMPRESSED_WIDTH = 512
INDEX_SCALE_GROUP = 128  # an index key in fp8 has one fp32 scale for 128 elements
COMPRESSED_SLOT = 584  # DeepSeek-V4's latent of 512 in fp8_ds_mla: 448 fp8, 64 bf16, 7 scales and 1 padding

# ggml's types: elements of a block, and its bytes.
GGML: Mapping[str, tuple[int, int]] = {
    "f32": (1, 4),
    "f16": (1, 2),
    "bf16": (1, 2),
    "q8_0": (32, 34),
    "q5_1": (32, 24),
    "q5_0": (32, 22),
    "q4_1": (32, 20),
    "q4_0": (32, 18),
    "iq4_nl": (32, 18),
}
GGML_SPELLINGS = {"fp32": "f32", "fp16": "f16", "float32": "f32", "float16": "f16", "bfloat16": "bf16"}


def ggml_type(name: str, flag: str) -> str:
    """The ggml type of a name. Raises KvplanError with the names known."""
    found = GGML_SPELLINGS.get(name.lower(), name.lower())
    if found not in GGML:
        raise KvplanError(f"{flag}: llama.cpp has no KV type {name!r} (known: {', '.join(GGML)})")
    return found


def ggml_row(kind: str, elements: int) -> int:
    """Bytes of a row of elements. Raises KvplanError where blocks do not divide it."""
    size, each = GGML[kind]
    if elements % size:
        raise KvplanError(f"KV type {kind} packs {size} elements a block, and a row of {elements} is no multiple of it")
    return elements // size * each
