"""What a row of the table of families says: see families.py, which collects the rows."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from kvplan.documents import LayerCache
from kvplan.models import caches, patterns
from kvplan.models.config import Config

Pattern = Callable[[Config, int], Sequence[str]]
Builder = Callable[[Config, int], tuple[LayerCache, ...]]

# A class default that follows another key.
AS_HEADS = {"num_key_value_heads": "num_attention_heads"}

PLAIN: Mapping[str, Builder] = {
    "full_attention": caches.attention,
    "sliding_attention": caches.sliding,
    "chunked_attention": caches.chunked,
}
# Layers that keep nothing of their own, and why.
SILENT = {
    "mlp": "an MLP block keeps no cache",
    "moe": "an expert block keeps no cache",
    "none": "this layer has no attention",
    "shared": "reads the cache of an earlier layer",
}
ALL_FULL = patterns.only("full_attention")


@dataclass(frozen=True)
class Family:
    """One row. `types` are the model types it reads, nested text types included.

    `pattern` gives each layer's type, in order of execution and once for every cache that it keeps, and `layers` the
    caches of a type. `shared` names the key that counts the last layers which read an earlier layer's cache.
    `defaults` are class defaults (the figures of transformers, checked by a test), `names` other names of keys in
    this family. `draft` is the type of a layer that predicts further tokens, `weights` the weight layout in params.py,
    "" for none.
    """

    types: tuple[str, ...]
    pattern: Pattern = ALL_FULL
    layers: Mapping[str, Builder] = field(default_factory=lambda: PLAIN)
    defaults: Mapping[str, Any] = field(default_factory=dict)
    names: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    shared: str = ""
    draft: str = "full_attention"
    weights: str = "decoder"


def types(names: str) -> tuple[str, ...]:
    """Model types from one line of words."""
    return tuple(names.split())


def plain_and(**layers: Builder) -> Mapping[str, Builder]:
    """Plain layers and others beside them."""
    return {**PLAIN, **layers}
