"""One request to render and count, what becomes of it, and the keys of its blocks."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import msgspec
from numpy.typing import NDArray

from kvplan.formats.parts import Reply

KEY_BYTES = 8


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """One request to render and count: its body as sent, what keeps its cache apart, and the answer where logged."""

    body: dict[str, Any]
    seed: tuple[str, ...]
    reply: Reply | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Done:
    """A prompt in tokens and block keys (64-bit, one after another), and its answer in tokens where that was logged.

    `parts` are those of a chat prompt (parts.PART, in bytes) and `head_tokens` the tokens before its first message that
    is not the system's, -1 unknown. `answer_keys` are those of the full blocks of prompt and answer together, from the
    first that the answer fills.
    """

    tokens: int
    keys: bytes
    reply_tokens: int | None
    images: int
    parts: bytes = b""
    head_tokens: int = -1
    answer_keys: bytes = b""


def chained(tokens: NDArray[Any], answer: NDArray[Any], block_tokens: int, seed: Sequence[str]) -> tuple[bytes, bytes]:
    """The keys of a prompt's blocks, and of those that its answer fills behind it: 64-bit, one after another.

    Each is a hash of `seed` (what keeps caches apart: the model, a cache salt) and of all tokens up to the block's end.
    The prompt's partial last block has one; of prompt and answer together only full blocks do, from the first that
    holds any of the answer.
    """
    digest = hashlib.blake2b(msgspec.json.encode(seed), digest_size=KEY_BYTES)
    step = block_tokens * tokens.itemsize
    data = memoryview(tokens.tobytes())
    whole = len(data) // step * step
    keys, more = bytearray(), bytearray()
    for start in range(0, whole, step):
        digest.update(data[start : start + step])
        keys += digest.digest()
    rest = data[whole:]
    if rest:
        partial_block = digest.copy()
        partial_block.update(rest)
        keys += partial_block.digest()
    if answer.size:
        decoded = bytes(rest) + answer.tobytes()
        for start in range(0, len(decoded) // step * step, step):
            digest.update(decoded[start : start + step])
            more += digest.digest()
    return bytes(keys), bytes(more)
