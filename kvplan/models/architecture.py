"""A config's JSON -> the facts of a Model: which decoder, which family, every layer in order.

Where the file and the family's class defaults leave a key open, transformers' own class completes the config and the
same reading runs again. An architecture that is not known, or a map of layers that nobody states, is refused by name.
"""

from __future__ import annotations

import dataclasses
import math
import re
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from msgspec.structs import replace

from kvplan.documents import Finding, Layer
from kvplan.errors import KvplanError
from kvplan.models import drafts
from kvplan.models.config import NESTS, Config, Json, MissingKey
from kvplan.models.families import BY_TYPE, NESTED, SILENT, Family

MAX_LAYERS = 10_000
MAX_ELEMENTS = 2**36  # per token, or per state tensor, of one layer

# Keys that say a decoder is more than plain attention: an unknown model type with one of them set is refused.
UNUSUAL = re.compile(
    r"sliding|window|chunk|layer_?types|block_?type|pattern|mamba|ssm|state_size|d_state|conv_|_conv|recur|lora_rank"
    r"|linear_(num|key|value|attn|conv)|index_|compress|shared_layers|block_configs|hybrid|interval|attn_layer|latent"
    r"|cross_(att|layer)|multi_query|sparse_att|lightning|retention|rwkv|delta|time_mix|loop"
)
HARMLESS = frozenset({"chunk_size_feed_forward", "max_window_layers"})
PLAIN_TYPE = Family(types=(), weights="")


@dataclass(frozen=True, slots=True)
class Facts:
    """What a config says of the cache: the decoder's config as read, its family, and its layers in order.

    `count` is the number of layers as stated; `types` and `order` list a layer once for every cache that it keeps.
    """

    config: Config
    family: Family
    count: int
    layers: tuple[Layer, ...]
    order: tuple[int, ...]
    types: tuple[str, ...]
    draft: tuple[Layer, ...]
    findings: tuple[Finding, ...]


def locate(root: Json, name: str) -> Config:
    """The config of the decoder that generates, the deepest one where configs are nested."""
    raw, prefix, kind = root, "", root.get("model_type")
    while True:
        key = next((key for key in NESTS if isinstance(raw.get(key), Mapping) and raw[key]), None)
        if key is None:
            break
        outer, raw, prefix = kind, raw[key], f"{prefix}{key}."
        kind = raw.get("model_type") or NESTED.get(str(outer), outer)
    found = kind if isinstance(kind, str) else ""
    return Config(raw={**raw, "model_type": found}, root=root, prefix=prefix, name=name)


def read(root: Json, name: str) -> Facts:
    """The cache facts of one config. Raises KvplanError naming the key that is missing, wrong or not understood."""
    config = locate(root, name)
    family = BY_TYPE.get(config.model_type)
    if family is None:
        config = _named(root, config)
        family = BY_TYPE.get(config.model_type)
    if family is None:
        return _unknown(config)
    config = dataclasses.replace(config, defaults=family.defaults, names=family.names)
    try:
        return assemble(config, family)
    except MissingKey as missing:
        defaults = completed(root, config)
        if defaults is None:
            raise
        try:
            return assemble(dataclasses.replace(config, defaults={**family.defaults, **defaults}), family)
        except MissingKey:
            raise missing from None


def _named(root: Json, config: Config) -> Config:
    """The same config with the model type that transformers gives a nested decoder which states none of its own."""
    nested = _inside(root, config.prefix)
    if not config.prefix or nested.get("model_type"):
        return config
    whole = _whole(root, config)
    kind = _inside(whole, config.prefix).get("model_type") if whole else None
    return dataclasses.replace(config, raw={**config.raw, "model_type": kind}) if kind else config


def _inside(whole: Json, prefix: str) -> Json:
    for key in prefix.rstrip(".").split(".") if prefix else ():
        whole = whole.get(key) or {}
    return whole


def _whole(own: Json, config: Config) -> Json | None:
    """A config as transformers' class of its model type completes it; None where there is no such class."""
    from transformers import CONFIG_MAPPING
    from transformers.utils import logging

    logging.set_verbosity_error()  # what it has to say of rotary settings does not touch the cache
    kind = own.get("model_type")
    if not isinstance(kind, str) or kind not in CONFIG_MAPPING:
        return None
    try:
        with warnings.catch_warnings(action="ignore"):
            whole: dict[str, Any] = CONFIG_MAPPING[kind].from_dict(dict(own)).to_dict()
    except Exception as error:  # a foreign class may raise anything; its words are all there is to report
        line = " ".join(str(error).split())
        raise KvplanError(f"{config.where}: transformers refuses this config: {line[:300]}") from None
    return whole


def completed(root: Json, config: Config) -> Json | None:
    """The decoder's config as transformers' own class completes it; None where transformers has no such class.

    No code of a model's author is ever run. Raises KvplanError where the class itself refuses the config.
    """
    from transformers import CONFIG_MAPPING

    if config.model_type in CONFIG_MAPPING:
        return _whole(config.raw, config)
    whole = _whole(root, config)
    return _inside(whole, config.prefix) if whole is not None else None


def _unknown(config: Config) -> Facts:
    """A model type in no row: plain dense attention where nothing in the config speaks of anything else."""
    kind = config.model_type or "(none)"
    for key in ("num_hidden_layers", "num_attention_heads", "num_key_value_heads"):
        if config.get(key) is None:
            raise KvplanError(f"{config.where}: unknown model type, and no {key!r} to read it as a plain decoder")
    off = config.raw.get("use_sliding_window") is False
    for key, value in _flat(config.raw):
        silent = key in HARMLESS or not value or (off and "window" in key)
        if not silent and UNUSUAL.search(key):
            raise KvplanError(
                f"{config.where}: unknown model type, and {key!r} says that not all its layers are plain attention"
            )
    facts = assemble(config.asking(), PLAIN_TYPE)
    text = f"model type {kind} is not known to kvplan: read as plain attention in every layer, as its keys say"
    return dataclasses.replace(
        facts, findings=(Finding(severity="warning", code="unknown-model-type", text=text), *facts.findings)
    )


def _flat(raw: Mapping[str, Any]) -> Iterator[tuple[str, Any]]:
    for key, value in raw.items():
        yield key.lower(), value


def layer_count(config: Config) -> int:
    """Number of decoder layers. Some hybrids state it only by the length of their layer map."""
    stated = config.optional("num_hidden_layers")
    if stated is None:
        for key in ("layers_block_type", "hybrid_override_pattern", "block_configs"):
            listed = config.get(key)
            if isinstance(listed, list | str) and listed:
                stated = len(listed)
                break
    if stated is None:
        raise MissingKey("num_hidden_layers", config.where)
    if stated > MAX_LAYERS:
        raise KvplanError(f"{config.where}: 'num_hidden_layers' is {stated}, which no model can have")
    return stated


def assemble(config: Config, family: Family) -> Facts:
    """The layers of a config read by one family's row. Raises MissingKey for a key that nobody states."""
    config = config.asking()
    count = layer_count(config)
    types = tuple(family.pattern(config, count))
    types = _share(config, family, types)
    common = config.keys()
    layers: dict[Layer, int] = {}
    built = [_layer(config, family, kind, index, common) for index, kind in enumerate(types)]
    order = tuple(layers.setdefault(layer, len(layers)) for layer in built)
    predicting, notes = drafts.stated(config, family, count)
    return Facts(
        config=config,
        family=family,
        count=count,
        layers=tuple(layers),
        order=order,
        types=types,
        draft=predicting,
        findings=notes,
    )


def _share(config: Config, family: Family, types: Sequence[str]) -> tuple[str, ...]:
    """The last layers of some families read the cache of an earlier layer of their type: they own none."""
    shared = config.optional(family.shared, least=0) if family.shared else 0
    if not shared:
        return tuple(types)
    if shared > len(types):
        raise KvplanError(f"{config.where}: {family.shared!r} is {shared}, but the model has {len(types)} layers")
    return (*types[: len(types) - shared], *["shared"] * shared)


def _layer(config: Config, family: Family, kind: str, index: int, common: tuple[str, ...]) -> Layer:
    if kind in SILENT:
        return Layer(note=SILENT[kind])
    builder = family.layers.get(kind)
    if builder is None:
        known = ", ".join([*family.layers, *SILENT])
        raise KvplanError(f"{config.where}: layer {index} is of unknown type {kind!r} (known here: {known})")
    caches = builder(config.layer(index), index)
    if not caches:
        return Layer(note=SILENT["none"])
    for cache in caches:
        if max([cache.heads * (cache.k_dim + cache.v_dim), *(math.prod(t.shape) for t in cache.state)]) > MAX_ELEMENTS:
            raise KvplanError(f"{config.where}: layer {index} would keep more than any model can have")
    return Layer(caches=tuple(replace(cache, keys=tuple(dict.fromkeys((*common, *cache.keys)))) for cache in caches))
