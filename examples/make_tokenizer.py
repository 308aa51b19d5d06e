"""Write examples/tokenizer: a small byte-level BPE tokenizer with a chat template, so that no example needs a network.

    python examples/make_tokenizer.py [FOLDER]

It is learned from text like that of make_chat_log.py and belongs to no model. For a real log use the tokenizer folder
of the model that was served: other tokenizers cut text elsewhere and count other numbers of tokens.
"""

from __future__ import annotations

import json
import random
import re
import sys
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TypeAlias

from make_chat_log import SEED, TOOLS, Prompts, prose, readings

Word: TypeAlias = tuple[str, ...]

MERGES = 1200
SPECIAL = ("<|im_start|>", "<|im_end|>")
TEMPLATE = """\
{%- for message in messages %}
{{- '<|im_start|>' + message.role + '\\n' + (message.content or '') }}
{%- if loop.first and tools %}
{{- '\\n\\nTools:' }}
{%- for tool in tools %}{{ '\\n' + (tool | tojson) }}{% endfor %}
{%- endif %}
{%- for call in message.tool_calls or [] %}
{{- '\\n<call>' + call.function.name + ' ' + (call.function.arguments | tojson) + '</call>' }}
{%- endfor %}
{{- '<|im_end|>\\n' }}
{%- endfor %}
{%- if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}
"""


def byte_letters() -> dict[int, str]:
    """The printable letter that byte-level tokenizers write for each byte."""
    kept = [*range(33, 127), *range(161, 173), *range(174, 256)]
    moved = [byte for byte in range(256) if byte not in kept]
    return {byte: chr(byte) for byte in kept} | {byte: chr(256 + i) for i, byte in enumerate(moved)}


def corpus() -> str:
    """Text like the log's."""
    rng = random.Random(SEED + 2)
    prompts = Prompts.written()
    parts = [prompts.support, prompts.agent, prompts.reader, json.dumps(TOOLS), prose(rng, 400), readings(rng, 200)]
    return "\n".join([*parts, "user assistant system tool"])


def pairs_of(word: Word) -> Counter[tuple[str, str]]:
    """Each pair of neighbours in a word, counted."""
    return Counter(pairwise(word))


def merged(word: Word, pair: tuple[str, str]) -> Word:
    """The word with every occurrence of the pair made one piece, from the left."""
    out: list[str] = []
    i = 0
    while i < len(word):
        step = 2 if word[i : i + 2] == pair else 1
        out.append("".join(word[i : i + step]))
        i += step
    return tuple(out)


def learn(text: str, merges: int) -> list[tuple[str, str]]:
    """Byte-pair merges, the most frequent pair first, ties by the pair itself: the same on every machine."""
    letters = byte_letters()
    found = Counter(re.findall(r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+", text))
    words = {tuple(letters[byte] for byte in word.encode()): count for word, count in found.items() if count > 1}
    learned: list[tuple[str, str]] = []
    while len(learned) < merges:
        totals: Counter[tuple[str, str]] = Counter()
        for word, count in words.items():
            for pair, times in pairs_of(word).items():
                if not any(letter.isdigit() for letter in pair[0] + pair[1]):
                    totals[pair] += times * count
        if not totals:
            break
        best = min(totals, key=lambda pair: (-totals[pair], pair))
        learned.append(best)
        changed: Counter[Word] = Counter()
        for word, count in words.items():
            changed[merged(word, best)] += count
        words = dict(changed)
    return learned


def write(folder: Path) -> int:
    """Write the tokenizer's files, the same bytes every time. Returns the size of its vocabulary."""
    merges = learn(corpus(), MERGES)
    pieces = [*byte_letters().values(), *dict.fromkeys("".join(pair) for pair in merges)]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tokenizer = {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": [{"id": len(pieces) + i, "content": token, **flags} for i, token in enumerate(SPECIAL)],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": None,
            "end_of_word_suffix": None,
            "fuse_unk": False,
            "byte_fallback": False,
            "ignore_merges": False,
            "vocab": {piece: i for i, piece in enumerate(pieces)},
            "merges": [list(pair) for pair in merges],
        },
    }
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "model_max_length": 131072,
        "eos_token": SPECIAL[1],
        "chat_template": TEMPLATE,
    }
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "tokenizer.json").write_text(json.dumps(tokenizer, ensure_ascii=False) + "\n", encoding="utf-8")
    (folder / "tokenizer_config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    return len(pieces) + len(SPECIAL)


if __name__ == "__main__":
    target = Path(sys.argv[1]) if len(sys.argv) > 1 else Path(__file__).with_name("tokenizer")
    print(f"{target}: {write(target):,} tokens")
