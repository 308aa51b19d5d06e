"""Prompts that share what a schedule's block numbers share, made from the numbers alone.

A block's first symbols spell its number, lowest digit first, so that two different blocks differ as soon as they can;
the rest is a fixed mixture of number and place. The same number gives the same symbols in every file, on every machine.
"""

from __future__ import annotations

import math
import string
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from kvplan.errors import KvplanError, UsageError
from kvplan.files import reason

Ints: TypeAlias = NDArray[np.int64]

_CHARACTERS = string.ascii_lowercase + string.ascii_uppercase + string.digits + "_-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Symbols:
    """What prompts are made of, one symbol a token: token ids from `first` on, words between spaces, or characters."""

    kind: Literal["tokens", "words", "characters"]
    count: int
    first: int = 0
    words: tuple[str, ...] = ()

    def json(self, indices: Ints) -> bytes:
        """A piece of the JSON text of a prompt, without what opens, divides and closes it."""
        if self.kind == "tokens":
            return ",".join(map(str, (indices + self.first).tolist())).encode()
        return self.divider.join([self.words[i] for i in indices.tolist()]).encode()

    @property
    def divider(self) -> str:
        """What stands between two pieces of a prompt."""
        return {"tokens": ",", "words": " ", "characters": ""}[self.kind]

    @property
    def ends(self) -> tuple[bytes, bytes]:
        """What opens and closes a prompt."""
        return (b"[", b"]") if self.kind == "tokens" else (b'"', b'"')


def symbols_of(vocab: str | None, words: Path | None) -> Symbols:
    """Token ids of `vocab` ('1000' or '256:32000', the last one left out), words of a file, or else characters.

    Raises UsageError for a range without sense, KvplanError for a file of words that cannot be used.
    """
    if vocab is not None and words is not None:
        raise UsageError("--vocab makes prompts of token ids and --words of text: give one")
    if vocab is not None:
        low, colon, high = vocab.partition(":")
        if not (low.isdecimal() and (high.isdecimal() if colon else True)):
            raise UsageError(f"--vocab {vocab}: write how many token ids there are, or a range such as 256:32000")
        first, last = (int(low), int(high)) if colon else (0, int(low))
        if last - first < 2:
            raise UsageError(f"--vocab {vocab}: at least two token ids are needed to tell prompts apart")
        return Symbols(kind="tokens", count=last - first, first=first)
    if words is not None:
        return _of_words(words)
    return Symbols(kind="characters", count=len(_CHARACTERS), words=tuple(_CHARACTERS))


def _of_words(path: Path) -> Symbols:
    try:
        text = path.read_text(encoding="utf-8")
    except OSError as error:
        raise KvplanError(f"{path}: {reason(error)}") from None
    except UnicodeDecodeError:
        raise KvplanError(f"{path}: is no UTF-8 text: give a file with a word on each line") from None
    words = tuple(dict.fromkeys(text.split()))
    if len(words) < 2:
        raise KvplanError(f"{path}: needs at least two different words, one a line")
    bad = next((word for word in words if not word.isprintable() or '"' in word or "\\" in word), None)
    if bad is not None:
        raise KvplanError(f"{path}: the word {bad!r} holds a quote, a backslash or a control character: leave it out")
    return Symbols(kind="words", count=len(words), words=words)


class Prompts:
    """The prompts of one schedule as JSON texts. Raises KvplanError where its blocks cannot all be told apart."""

    def __init__(self, symbols: Symbols, block_tokens: int, unique: int) -> None:
        self.symbols = symbols
        self.block_tokens = block_tokens
        self.digits = max(1, math.ceil(math.log(max(unique, 2)) / math.log(symbols.count) - 1e-12))
        while symbols.count**self.digits < unique:  # where the logarithm was a hair too small
            self.digits += 1
        if self.digits > block_tokens:
            raise KvplanError(
                f"{symbols.count} different symbols cannot tell {unique:,} blocks of {block_tokens} tokens apart: "
                "give a larger --vocab or longer blocks"
            )
        self._full = lru_cache(maxsize=8192)(lambda number: self.symbols.json(self.indices(number, block_tokens)))

    def indices(self, number: int, tokens: int) -> Ints:
        """The first `tokens` symbols of a block, as indices below the count of symbols."""
        count = self.symbols.count
        place = np.arange(self.digits, tokens, dtype=np.uint64)
        mixed = (_mixed(np.uint64(number) * np.uint64(1 << 32) + place) % np.uint64(count)).astype(np.int64)
        spelled = [number // count**digit % count for digit in range(min(self.digits, tokens))]
        return np.concatenate((np.array(spelled, np.int64), mixed))

    def json(self, numbers: Ints, tokens: int) -> bytes:
        """A prompt of `tokens` tokens over the blocks `numbers`, as JSON: a list of token ids or a text."""
        full, rest = divmod(tokens, self.block_tokens)
        blocks = numbers.tolist()
        pieces = [self._full(number) for number in blocks[:full]]
        if rest:
            pieces.append(self.symbols.json(self.indices(blocks[full], rest)))
        opening, closing = self.symbols.ends
        return opening + self.symbols.divider.encode().join(pieces) + closing


def _mixed(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finalizer of SplitMix64, which spreads consecutive numbers over all bits."""
    with np.errstate(over="ignore"):
        values = values + np.uint64(0x9E3779B97F4A7C15)
        values = (values ^ (values >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        values = (values ^ (values >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return values ^ (values >> np.uint64(31))
