"""A GGUF file -> Model: what llama.cpp's own loader makes of its metadata, layer by layer.

GGUF speaks one language for all architectures (head counts, key and value widths, a window, a state), and per-layer
differences are arrays. What an architecture adds beyond that - which layers slide, which are recurrent - is one row of
a table below, as llama.cpp 0c1e570 reads it. An architecture with a cache of its own shape is refused by name.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from kvplan.documents import Finding, Layer, LayerCache, Model, ModelRef, Recurrence, StateTensor, Weights
from kvplan.errors import KvplanError
from kvplan.models.gguf_header import LONGEST_KEPT, Counted, Header, Tensor, read_header
from kvplan.models.weights import parts

Recurrent = Literal["none", "all", "both", "no-kv-heads", "no-kv-heads-no-mlp", "interval"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Architecture:
    """What one architecture adds to the common keys.

    `period`: every `period`-th layer is full and the rest slide, the first of each period where `full_first`, 0 for
    every layer, None where the file must list them. `window` is what holds where the file names none, `fixed` where it
    may not change it. `recurrent` says how its recurrent layers are found.
    """

    windows: bool = False
    period: int | None = None
    full_first: bool = False
    window: int = 0
    fixed: bool = False
    chunked: bool = False
    recurrent: Recurrent = "none"
    recurrence: Recurrence | None = None
    owning: int | None = None


ARCHITECTURES: Mapping[str, Architecture] = {
    "afmoe": Architecture(windows=True, period=4),
    "cohere2": Architecture(windows=True, period=4),
    "cohere2moe": Architecture(windows=True, period=4, full_first=True),
    "exaone-moe": Architecture(windows=True, period=4, window=128),
    "exaone4": Architecture(windows=True, period=4, window=4096),
    "falcon-h1": Architecture(recurrent="both", recurrence="mamba2"),
    "gemma2": Architecture(windows=True, period=2, window=4096),
    "gemma3": Architecture(windows=True, period=6),
    "gemma3n": Architecture(windows=True, period=5, owning=20),
    "gemma4": Architecture(windows=True),
    "gpt-oss": Architecture(windows=True, period=2),
    "granite_swa": Architecture(windows=True),
    "granitehybrid": Architecture(recurrent="no-kv-heads", recurrence="mamba2"),
    "jamba": Architecture(recurrent="no-kv-heads", recurrence="mamba1"),
    "kimi-linear": Architecture(recurrent="no-kv-heads", recurrence="kimi-delta"),
    "laguna": Architecture(windows=True, period=4, full_first=True),
    "lfm2": Architecture(windows=True, period=0, recurrent="no-kv-heads", recurrence="short-conv"),
    "lfm2moe": Architecture(recurrent="no-kv-heads", recurrence="short-conv"),
    "llama4": Architecture(windows=True, period=4, window=8192, fixed=True, chunked=True),
    "mamba": Architecture(recurrent="all", recurrence="mamba1"),
    "mamba2": Architecture(recurrent="all", recurrence="mamba2"),
    "maple": Architecture(windows=True),
    "mellum": Architecture(windows=True, period=4),
    "mimo2": Architecture(windows=True),
    "muse-glimmer": Architecture(windows=True, period=4),
    "nemotron_h": Architecture(recurrent="no-kv-heads-no-mlp", recurrence="mamba2"),
    "nemotron_h_moe": Architecture(recurrent="no-kv-heads-no-mlp", recurrence="mamba2"),
    "olmo2": Architecture(windows=True, period=4),
    "plamo3": Architecture(windows=True, period=8),
    "qwen35": Architecture(recurrent="interval", recurrence="delta"),
    "qwen35moe": Architecture(recurrent="interval", recurrence="delta"),
    "qwen3next": Architecture(recurrent="interval", recurrence="delta"),
    "smallthinker": Architecture(windows=True, period=4, full_first=True, window=4096, fixed=True),
    "spark2_5": Architecture(windows=True),
    "step35": Architecture(windows=True),
}
PLAIN = Architecture()
INDEXED = ("deepseek32", "glm-dsa", "minimax-m3")
# Architectures with memory of a shape that no rule here describes.
OTHER = re.compile(r"\.(ssm|wkv|kda|shortconv|attention\.indexer|attention\.recurrent|attention\.compress)|token_shift")
UNREAD = frozenset({"deepseek4", "dflash", "dots3note", "glm5-next", "hy_v4", "kimi-k3", "qwen4exp", "bailingmoe3"})
CACHELESS = frozenset({"bert", "modern-bert", "nomic-bert", "jina-bert-v2", "clip", "t5encoder", "gemma-embedding"})
FULL_INTERVAL = 4
SHARD = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


class Metadata:
    """A file's metadata with the architecture's prefix left out; every key asked is remembered."""

    def __init__(self, values: Mapping[str, Any], name: str) -> None:
        self.values, self.name, self.used = values, name, dict[str, None]()
        kind = values.get("general.architecture")
        if not isinstance(kind, str) or not kind:
            raise KvplanError(f"{name}: no 'general.architecture': not a model")
        self.architecture = kind

    def get(self, key: str) -> Any:
        """A value, or None; vocabularies are only counted."""
        value = self.values.get(f"{self.architecture}.{key}")
        if value is not None:
            self.used[key] = None
        return value

    def number(self, key: str, default: int | None = None) -> int:
        """A whole number, the same for every layer. Raises KvplanError naming the key."""
        value = self.get(key)
        if value is None:
            if default is None:
                raise KvplanError(f"{self.name}: no '{self.architecture}.{key}', and the cache depends on it")
            return default
        if isinstance(value, bool) or not isinstance(value, int) or not 0 <= value < 2**40:
            raise KvplanError(f"{self.name}: '{self.architecture}.{key}' is {value!r}, not a whole number")
        return value

    def layers(self, key: str, count: int, default: int | None = None) -> list[int]:
        """One whole number a layer: a list of the file's, or the same number for each."""
        value = self.get(key)
        if not isinstance(value, list):
            return [self.number(key, default)] * count
        if len(value) < count or not all(isinstance(one, int) and 0 <= one < 2**40 for one in value):
            raise KvplanError(f"{self.name}: '{self.architecture}.{key}' is no list of {count} whole numbers")
        return [int(one) for one in value[:count]]

    def asked(self) -> tuple[str, ...]:
        """The keys asked since the last call."""
        used, self.used = tuple(self.used), {}
        return used


def load(path: Path, spec: str) -> Model:
    """The Model of a GGUF file, all its shards where it is split.

    Raises KvplanError naming the file and the key that is missing, damaged or not understood.
    """
    header = read_header(path)
    shards = [header, *(read_header(other) for other in _others(path, header))]
    digest = hashlib.sha256(header.text).hexdigest()
    return from_header(header, str(path), ModelRef(id=spec, source="gguf", model_type="", config_sha256=digest), shards)


def _others(path: Path, header: Header) -> list[Path]:
    """The further shards of a split file. Raises KvplanError for a missing one, or for one that is not the first."""
    found = SHARD.search(path.name)
    if found is None or int(found[2]) < 2:
        return []
    if int(found[1]) != 1:
        raise KvplanError(f"{path}: shard {int(found[1])} of {int(found[2])}: give the first, which has the metadata")
    stem = path.name[: found.start()]
    others = [path.with_name(f"{stem}-{index:05d}-of-{found[2]}.gguf") for index in range(2, int(found[2]) + 1)]
    missing = next((other for other in others if not other.is_file()), None)
    if missing is not None:
        raise KvplanError(f"{missing}: missing: {path.name} is one of {int(found[2])} shards")
    return others


def from_header(header: Header, name: str, ref: ModelRef, shards: list[Header] | None = None) -> Model:
    """The Model of a header; `name` is what errors call the file."""
    meta = Metadata(header.metadata, name)
    findings: list[Finding] = []
    traits = _traits(meta)
    count = meta.number("block_count")
    ahead = meta.number("nextn_predict_layers", 0)
    if not 0 < count <= LONGEST_KEPT or ahead >= count:
        raise KvplanError(f"{name}: '{meta.architecture}.block_count' is {count}, which no model has")
    if ahead:
        text = f"the last {ahead} of {count} layers predict further tokens: the main context keeps no cache for them"
        findings.append(Finding(severity="info", code="draft-layers", text=text))
    if not traits.windows and meta.get("attention.sliding_window"):
        text = f"llama.cpp reads no window for architecture {meta.architecture}: every layer counts in full"
        findings.append(Finding(severity="info", code="window-not-read", text=text))
    layers, order = _distinct(_Reader(meta, traits, count, count - ahead).layers())
    heads = meta.layers("attention.head_count", count, 0)
    return Model(
        ref=_named(ref, meta),
        dtype="fp16",
        layers=layers,
        order=order,
        num_layers=count - ahead,
        vocab_size=_vocabulary(meta),
        hidden_size=meta.number("embedding_length"),
        num_attention_heads=max(heads) or None,
        weights=_weights([tensor for shard in shards or [header] for tensor in shard.tensors], len(shards or [header])),
        findings=tuple(findings),
    )


def _named(ref: ModelRef, meta: Metadata) -> ModelRef:
    return ModelRef(
        id=ref.id,
        source=ref.source,
        model_type=meta.architecture,
        config_sha256=ref.config_sha256,
        max_context_tokens=meta.number("context_length", 0) or None,
    )


def _traits(meta: Metadata) -> Architecture:
    kind = meta.architecture
    if kind in UNREAD:
        raise KvplanError(f"{meta.name}: the cache of architecture {kind!r} has a shape that is not read here yet")
    if kind in CACHELESS:
        raise KvplanError(f"{meta.name}: architecture {kind!r} generates nothing and keeps no cache")
    if kind in ARCHITECTURES or kind in INDEXED:
        return ARCHITECTURES.get(kind, PLAIN)
    odd = next((key for key in meta.values if key.startswith(f"{kind}.") and OTHER.search(key)), None)
    if odd is not None:
        raise KvplanError(f"{meta.name}: architecture {kind!r} is not known here, and {odd!r} says it is no plain one")
    return PLAIN


def _vocabulary(meta: Metadata) -> int | None:
    tokens = meta.values.get("tokenizer.ggml.tokens")
    if isinstance(tokens, Counted):
        return tokens.length
    return len(tokens) if isinstance(tokens, list) else meta.number("vocab_size", 0) or None


def _weights(tensors: list[Tensor], files: int) -> Weights | None:
    """Bytes by tensor type, from the tensors' own shapes; None for a file that lists none."""
    if not tensors:
        return None
    by_type: dict[str, int] = {}
    params = 0
    for tensor in tensors:
        by_type[tensor.type] = by_type.get(tensor.type, 0) + tensor.bytes
        elements = 1
        for side in tensor.shape:
            elements *= side
        params += elements
    size = sum(by_type.values())
    shares = ", ".join(f"{kind} {part:,} B" for kind, part in sorted(by_type.items(), key=lambda item: -item[1]))
    plural = "header" if files == 1 else f"headers of {files} shards"
    role = parts({tensor.name: tensor.bytes for tensor in tensors})
    return Weights(
        bytes=size,
        bytes_per_gpu=size,
        params=params,
        provenance="measured",
        source=f"GGUF {plural}: {shares}",
        experts_bytes=role["experts"],
        embedding_bytes=role["embedding"],
        head_bytes=role["head"],
    )


def _distinct(layers: list[Layer]) -> tuple[tuple[Layer, ...], tuple[int, ...]]:
    kinds: dict[Layer, int] = {}
    order = tuple(kinds.setdefault(layer, len(kinds)) for layer in layers)
    return tuple(kinds), order


class _Reader:
    """Every layer of one file, as llama.cpp's loader decides it."""

    def __init__(self, meta: Metadata, traits: Architecture, count: int, trunk: int) -> None:
        self.meta, self.traits, self.count, self.trunk = meta, traits, count, trunk
        self.heads = meta.layers("attention.head_count", count, 0)
        stated = meta.get("attention.head_count_kv") is not None
        self.kv_heads = meta.layers("attention.head_count_kv", count) if stated else self.heads
        self.window = self._window()
        self.slides = self._slides()
        self.recurs = self._recurs()

    def _window(self) -> int:
        stated = self.meta.number("attention.sliding_window", self.traits.window) if self.traits.windows else 0
        return self.traits.window if stated and self.traits.fixed else stated

    def _slides(self) -> list[bool]:
        """Which layers slide: the file's own list, or the architecture's period."""
        none = [False] * self.count
        if not self.window or (self.meta.architecture == "exaone4" and self.trunk != 64):
            return none  # the small EXAONE 4 has no window whatever its file says
        listed, traits = self.meta.get("attention.sliding_window_pattern"), self.traits
        if isinstance(listed, list):
            return [bool(flag) for flag in self.meta.layers("attention.sliding_window_pattern", self.count)]
        period = listed if isinstance(listed, int) else traits.period
        if period is None:
            key = f"{self.meta.architecture}.attention.sliding_window_pattern"
            raise KvplanError(f"{self.meta.name}: no '{key}': which layers slide is not said")
        if not period:
            return [True] * self.count
        full = 0 if traits.full_first else period - 1
        return [index % period != full for index in range(self.trunk)] + none[self.trunk :]

    def _recurs(self) -> list[bool]:
        rule, every = self.traits.recurrent, range(self.count)
        if rule == "interval":
            if self.meta.get("attention.recurrent_layers") is not None:
                return [bool(flag) for flag in self.meta.layers("attention.recurrent_layers", self.count)]
            interval = self.meta.number("full_attention_interval", FULL_INTERVAL) or 1
            return [(index + 1) % interval != 0 for index in every]
        if rule == "no-kv-heads-no-mlp":
            inner = self.meta.layers("feed_forward_length", self.count, 0)
            return [not self.kv_heads[index] and not inner[index] for index in every]
        if rule == "no-kv-heads":
            return [not heads for heads in self.kv_heads]
        return [rule in ("all", "both")] * self.count

    def layers(self) -> list[Layer]:
        """The layers of the main context, each with what it keeps."""
        shared = self.meta.number("attention.shared_kv_layers", 0) if self.meta.architecture == "gemma4" else 0
        owning = self.count - shared if self.traits.owning is None else self.traits.owning
        if owning < 0:
            raise KvplanError(f"{self.meta.name}: more shared layers ({shared}) than layers ({self.count})")
        found = []
        for index in range(self.trunk):
            if index >= owning:
                found.append(Layer(note="reads the cache of an earlier layer"))
                continue
            kept = self._attention(index) + self._state(index)
            found.append(Layer(caches=kept, note="" if kept else "this layer keeps no cache"))
        return found

    def _attention(self, index: int) -> tuple[LayerCache, ...]:
        if (self.recurs[index] and self.traits.recurrent != "both") or not self.kv_heads[index]:
            return ()
        if self.traits.recurrent == "no-kv-heads-no-mlp" and self._inner(index):
            return ()
        meta, slides = self.meta, self.slides[index]
        meta.asked()
        width = meta.number("embedding_length") // max(1, self.heads[0])
        k, v = meta.number("attention.key_length", width), meta.number("attention.value_length", width)
        if slides:
            k = meta.number("attention.key_length_swa", k)
            v = meta.number("attention.value_length_swa", v)
        heads = self.kv_heads[index]
        if meta.number("attention.key_length_mla", 0) and meta.number("attention.value_length_mla", 0):
            rope = meta.number("rope.dimension_count", 0)
            latent = LayerCache(kind="latent", heads=heads, k_dim=k, rope_dim=rope, keys=self._keys())
            return (latent, *self._indexer(index))
        kind: Literal["full", "sliding", "chunked"] = "full"
        if slides:
            kind = "chunked" if self.traits.chunked else "sliding"
        window = self.window if slides else None
        own = LayerCache(kind=kind, heads=heads, k_dim=k, v_dim=v, window_tokens=window, keys=self._keys(slides))
        return (own, *self._indexer(index))

    def _keys(self, slides: bool = False) -> tuple[str, ...]:
        also = ("attention.sliding_window", "attention.sliding_window_pattern")
        stated = [key for key in also if slides and self.meta.get(key) is not None]
        return ("attention.head_count_kv", *(key for key in self.meta.asked() if key not in also), *stated)

    def _inner(self, index: int) -> int:
        return self.meta.layers("feed_forward_length", self.count, 0)[index]

    def _indexer(self, index: int) -> tuple[LayerCache, ...]:
        """The key that sparse attention searches; llama.cpp stores it in the K type."""
        meta = self.meta
        if meta.architecture not in INDEXED:
            return ()
        if meta.architecture == "minimax-m3" and index < meta.number("leading_dense_block_count", 0):
            return ()
        if meta.architecture == "glm-dsa" and not self._indexes(index):
            return ()
        width = meta.number("attention.indexer.key_length")
        return (LayerCache(kind="indexer", heads=1, k_dim=width, keys=meta.asked()),)

    def _indexes(self, index: int) -> bool:
        meta = self.meta
        if meta.get("attention.indexer.types") is not None:
            return bool(meta.layers("attention.indexer.types", self.trunk)[index])
        if meta.number("context_length", 0) < 2**20:
            return True  # GLM-5 and 5.1: every layer searches
        return index < 2 or index % 4 == 2  # GLM-5.2, where the file leaves its map out

    def _state(self, index: int) -> tuple[LayerCache, ...]:
        if not self.recurs[index] or self.traits.recurrence is None:
            return ()
        meta, recurrence = self.meta, self.traits.recurrence
        meta.asked()
        if recurrence == "short-conv":
            hidden, kernel = meta.number("embedding_length"), meta.number("shortconv.l_cache")
            tensors: tuple[StateTensor, ...] = (StateTensor(role="conv", shape=(hidden, max(0, kernel - 1))),)
        elif recurrence == "kimi-delta":
            heads, width = self.heads[0], meta.number("kda.head_dim")
            kernel = meta.number("ssm.conv_kernel")
            conv = StateTensor(role="conv", shape=(3 * heads * width, kernel - 1))
            tensors = (conv, StateTensor(role="state", shape=(heads, width, width)))
        else:
            inner, state, kernel = (meta.number(f"ssm.{key}") for key in ("inner_size", "state_size", "conv_kernel"))
            channels = inner + 2 * meta.number("ssm.group_count", 0) * state
            conv = StateTensor(role="conv", shape=(channels, max(0, kernel - 1)))
            tensors = (conv, StateTensor(role="state", shape=(inner, state)))
        return (LayerCache(kind="recurrent", state=tensors, recurrence=recurrence, keys=meta.asked()),)
