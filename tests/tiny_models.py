"""Tiny models of every type that transformers can build, and the cache that their forward pass returns.

Needs torch and transformers; shared by the tests and by benchmarks/truth_transformers.py. Weights are random: only the
shapes and dtypes of what comes back count.
"""

from __future__ import annotations

import copy
import re
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import torch
import transformers
from tiny_configs import RECIPES, tiny_config
from transformers import CONFIG_MAPPING
from transformers.models.auto import modeling_auto as auto

ENCODER_TOKENS = 12
MERGED = 16  # PP-FormulaNet, the one type with a map of places, merges 4 x 4 of them behind its encoder
MOST_PARAMETERS = 450_000_000


@dataclass(frozen=True, slots=True)
class Built:
    """A model with random weights, and the inputs that its forward takes beside the tokens."""

    model: Any
    kind: str

    @property
    def config(self) -> dict[str, Any]:
        """The whole config, as a file would state it."""
        whole: dict[str, Any] = self.model.config.to_dict()
        return whole


def model_types() -> dict[str, tuple[str, ...]]:
    """Every model type that generates, with the classes that may run it: causal, sequence to sequence, images."""
    found: dict[str, dict[str, None]] = {}
    for mapping in (
        auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
        auto.MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES,
    ):
        for kind, names in mapping.items():
            for name in [names] if isinstance(names, str) else names:
                found.setdefault(kind, {})[name] = None
    return {kind: tuple(names) for kind, names in found.items()}


def any_build(kind: str) -> tuple[Built, list[str]]:
    """The first way to build a type whose forward returns a cache, and why those before it did not.

    Raises ValueError with all the reasons where none does.
    """
    reasons: list[str] = []
    names = model_types()[kind]
    for name in sorted(names, key=lambda name: getattr(transformers, name).config_class is not CONFIG_MAPPING[kind]):
        for recipe in RECIPES:
            try:
                built = build(kind, name, tiny_config(kind, recipe))
                forward(built, 8)
            except Exception as error:  # a foreign class may refuse in any way: its words are the reason
                reasons.append(" ".join(f"{type(error).__name__}: {error}".split())[:200])
                continue
            return built, reasons
    raise ValueError("; ".join(dict.fromkeys(reasons)))


def build(kind: str, name: str, config: Any) -> Built:
    """A model of a class with random weights, in evaluation; a text class takes the text part of a config."""
    torch.manual_seed(0)
    cls = getattr(transformers, name)
    text = config.get_text_config(decoder=True)
    if type(text) is not type(config) and isinstance(text, cls.config_class or ()):
        config = text
    with warnings.catch_warnings(action="ignore"):
        with torch.device("meta"):
            size = sum(parameter.numel() for parameter in cls(copy.deepcopy(config)).parameters())
        if size > MOST_PARAMETERS:
            raise ValueError(f"has {size / 1e6:.0f} million parameters even when shrunk")
        model = cls(config)
    return Built(model.eval(), kind)


def inputs(built: Built, tokens: int) -> Iterator[dict[str, Any]]:
    """What a forward over `tokens` tokens may want beside them, the likely first."""
    dtype = next(built.model.parameters()).dtype
    ids = torch.arange(tokens).remainder(200).add(20).unsqueeze(0)
    if built.model.config.is_encoder_decoder:
        for given in _encoded(dtype):
            yield {**given, "decoder_input_ids": ids}
            yield {**given, "decoder_input_ids": ids.expand(4, -1)}
            yield {**given, "decoder_input_ids": ids.unsqueeze(-1).expand(-1, -1, 9)}
        return
    yield {"input_ids": ids}
    yield {"input_ids": ids.expand(4, -1)}
    yield {"input_ids": ids.unsqueeze(-1).expand(-1, -1, 33)}
    yield {
        "input_ids": ids,
        "attention_mask": torch.ones_like(ids),
        "pixel_values": torch.randn(1, 1, 3, 224, 224, dtype=dtype),
        "image_attention_mask": torch.ones(1, tokens, 1, dtype=torch.long),
    }
    yield from _seen(built, ids, dtype)


def _seen(built: Built, ids: torch.Tensor, dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """An image as so many tokens before the text, for models that cannot do without one."""
    config = built.model.config
    queries = getattr(config, "num_query_tokens", None) or getattr(config, "latent_query_num", None)
    if not queries:
        return
    marker = getattr(config, "image_token_index", None) or 4
    whole = {
        "input_ids": torch.cat([torch.full((1, queries), marker), ids], dim=1),
        "pixel_values": torch.randn(1, 3, 224, 224, dtype=dtype),
    }
    yield whole
    yield {**whole, "qformer_input_ids": ids[:, :4], "qformer_attention_mask": torch.ones_like(ids[:, :4])}
    places = torch.cat([torch.ones(1, queries), torch.zeros(ids.shape)], dim=1).bool()
    yield {**whole, "image_embeds_position_mask": places}


def _encoded(dtype: torch.dtype) -> Iterator[dict[str, Any]]:
    """What an encoder may want: text, text with places, sound, an image."""
    text = torch.arange(ENCODER_TOKENS).add(20).unsqueeze(0)
    yield {"input_ids": text}
    yield {"input_ids": text, "bbox": torch.zeros(1, ENCODER_TOKENS, 4, dtype=torch.long)}
    for mel, frames in ((80, 3000), (128, 3000), (80, 200), (128, 400)):
        yield {"input_features": torch.randn(1, mel, frames, dtype=dtype)}
        yield {"input_features": torch.randn(1, frames, mel, dtype=dtype)}
    for samples in (8000, 16000):
        yield {"input_values": torch.randn(1, samples, dtype=dtype)}
    for side in (224, 512):
        yield {"pixel_values": torch.randn(1, 3, side, side, dtype=dtype)}
    yield {"flattened_patches": torch.ones(1, ENCODER_TOKENS, 770, dtype=dtype)}


# ------------------------------------------------------------------------------- what comes back

RETURNED = ("cache", "past_key_values", "cache_params", "state", "mems", "past_buckets_states")
BOOKKEEPING = re.compile(
    r"cumulative_length|_sliding_window_tensor|entry_count|seqlen_offset|has_previous|position_ids"
)
IN_MODULES = re.compile(r"(conv1d_state|recurrent_states)$")


@dataclass(frozen=True, slots=True)
class Returned:
    """One cache: the tokens given, bytes of its tensors and of the storages behind them, the encoder's length."""

    tokens: int
    bytes: int
    storage_bytes: int
    encoder_tokens: int | None


def forward(built: Built, tokens: int) -> Returned:
    """Run one prefill and measure the cache. Raises the first error where no way of asking works."""
    reasons: list[Exception] = []
    for given in inputs(built, tokens):
        for more in ({"use_cache": True}, {"use_cache": True, "cache": None}, {}):
            if "cache" in more:
                more["cache"] = transformers.DynamicCache(config=built.model.config)
            try:
                with torch.no_grad(), warnings.catch_warnings(action="ignore"):
                    out = built.model(**given, **more)
                return measure(built, given, out, more.get("cache"))
            except Exception as error:  # a foreign forward may raise anything: the next way of asking may fit
                reasons.append(error)
    raise reasons[0]


def measure(built: Built, inputs: Mapping[str, Any], out: Any, given: Any) -> Returned:
    """Every tensor reachable from the cache, returned or given, an alias counted once. Raises ValueError for none."""
    held: dict[tuple[int, int, tuple[int, ...]], torch.Tensor] = {}
    for tensor in _kept(built, out, given):
        place = (tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tuple(tensor.shape))
        held[place if tensor.numel() else (id(tensor), 0, ())] = tensor
    if not held:
        raise ValueError("returns no cache")
    storages = {t.untyped_storage().data_ptr(): t.untyped_storage().nbytes() for t in held.values()}
    return Returned(
        inputs.get("decoder_input_ids", inputs.get("input_ids")).shape[1],
        sum(tensor.numel() * tensor.element_size() for tensor in held.values()),
        sum(storages.values()),
        _encoder_tokens(inputs, out),
    )


def _encoder_tokens(inputs: Mapping[str, Any], out: Any) -> int | None:
    """Positions of the encoder's output, be it a sequence or a map of (channels, height, width)."""
    hidden = getattr(out, "encoder_last_hidden_state", None)
    if hidden is not None and hidden.dim() > 3:
        return int(hidden[0].numel() // hidden.shape[1] // MERGED)
    if hidden is not None:
        return int(hidden.shape[1])
    return int(inputs["input_ids"].shape[1]) if {"input_ids", "decoder_input_ids"} <= set(inputs) else None


def _kept(built: Built, out: Any, given: Any) -> Iterator[torch.Tensor]:
    out = getattr(out, "language_model_outputs", out)
    returned = next((getattr(out, key) for key in RETURNED if getattr(out, key, None) is not None), given)
    if returned is None:
        raise ValueError("returns no cache")
    yield from _tensors(returned)
    for module in built.model.modules():
        for name, value in vars(module).items():
            if IN_MODULES.search(name) and isinstance(value, torch.Tensor):
                yield value


def _tensors(value: Any, depth: int = 0) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        yield value
    elif depth > 6 or isinstance(value, str | bytes | int | float | torch.device | torch.dtype):
        return
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from _tensors(part, depth + 1)
    elif isinstance(value, list | tuple):
        for part in value:
            yield from _tensors(part, depth + 1)
    elif hasattr(value, "__dict__") and not isinstance(value, transformers.PreTrainedConfig):
        for name, part in vars(value).items():
            if not BOOKKEEPING.search(name):
                yield from _tensors(part, depth + 1)
