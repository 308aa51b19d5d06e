"""A model as transformers builds it from a config alone: its kinds of layer, and small models made of a few of them.

The whole model is laid out on torch's meta device, which costs neither memory nor time. Layers are of one kind where
all their modules, parameter shapes and settings are alike. A cut model is believed only where each of its layers is of
the kind it was cut for.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from kvplan.errors import KvplanError
from kvplan.probing.cutting import NUMBERED, Json, cut_config

MORE = 3
_DRAWN = 2**20 - 3  # weights that are drawn of a large tensor; odd, so that its rows are not alike
# What transformers does in another way than serving engines, by a word in the name of a kind of layer.
_DIFFERENCES = (
    ("sliding", "windows as a mask over the whole square: an engine's long prompts are quicker"),
    ("chunked", "chunks as a mask over the whole square: an engine's long prompts are quicker"),
    ("linear", "recurrent layers in transformers' own code, slow where their kernels are not installed"),
    ("experts", "experts chosen by random weights, so nearly evenly: real text chooses less evenly"),
)
INSTEAD = "measure a running server instead: --server URL"
# Settings that count layers or say what else reads a cache: they cost nothing.
_COSTLESS = ("idx", "index", "layer_id", "layer_number", "training", "store_full_length_kv")
_EXPERTS = ("num_experts", "num_local_experts", "n_routed_experts")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """One kind of layer: what it is in words, and which layers of the model are of it."""

    words: str
    layers: tuple[int, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Whole:
    """A model laid out from its config: the decoder's own config, and its kinds of layer in the order first met.

    `notes` say in words what the measurement leaves out or does in another way than a server would.
    """

    name: str
    config: Any
    kinds: tuple[Kind, ...]
    notes: tuple[str, ...] = ()

    @property
    def layers(self) -> int:
        """Number of layers, all kinds together."""
        return sum(len(kind.layers) for kind in self.kinds)


def read(raw: Json, name: str) -> Whole:
    """Lay out the model of a config's JSON. Raises KvplanError where it cannot be cut, saying why."""
    config, notes = _decoder_config(raw, name)
    with _quiet(name):
        skeleton = _laid_out(config)
    layers = decoder_layers(skeleton, config.num_hidden_layers, name)
    if getattr(config, "num_kv_shared_layers", 0):
        raise KvplanError(f"{name}: some layers read the cache of another, so none can be measured alone: {INSTEAD}")
    groups: dict[Any, list[int]] = {}
    for number, layer in enumerate(layers):
        groups.setdefault(signature(layer, config, number), []).append(number)
    kinds = tuple(Kind(words=_words(layers[of[0]], config, of[0]), layers=tuple(of)) for of in groups.values())
    if sum(len(kind.layers) for kind in kinds) != config.num_hidden_layers:
        raise KvplanError(f"{name}: its kinds of layer do not add up to its {config.num_hidden_layers} layers")
    words = " ".join(kind.words for kind in kinds)
    notes = (*notes, *(text for sign, text in _DIFFERENCES if sign in words))
    if skeleton.config._attn_implementation == "eager":
        notes = (*notes, "attention in plain torch, which holds the whole square")
    return Whole(name=name, config=config, kinds=kinds, notes=notes)


def _decoder_config(raw: Json, name: str) -> tuple[Any, tuple[str, ...]]:
    from transformers import CONFIG_MAPPING, MODEL_FOR_CAUSAL_LM_MAPPING, MODEL_MAPPING

    kind = raw.get("model_type")
    if kind not in CONFIG_MAPPING:
        raise KvplanError(f"{name}: transformers has no model of type {kind!r}: {INSTEAD}")
    notes = []
    if raw.get("quantization_config"):
        notes.append("the checkpoint is quantised, this was measured unquantised")
    with _quiet(name):
        outer = CONFIG_MAPPING[kind].from_dict({k: v for k, v in raw.items() if k != "quantization_config"})
    if getattr(outer, "is_encoder_decoder", False):
        raise KvplanError(f"{name}: has an encoder, which a cut to decoder layers cannot measure: {INSTEAD}")
    config = outer.get_text_config()
    if type(config) not in MODEL_FOR_CAUSAL_LM_MAPPING:
        if type(config) not in MODEL_MAPPING:
            raise KvplanError(f"{name}: transformers cannot build its decoder alone: {INSTEAD}")
        notes.append("without the output layer, which runs for one token only")
    return config, tuple(notes)


@contextmanager
def _quiet(name: str) -> Iterator[None]:
    """Foreign code at work: its warnings kept down, its errors told in one line."""
    from transformers.utils import logging

    logging.set_verbosity_error()
    try:
        with warnings.catch_warnings(action="ignore"):
            yield
    except KvplanError:
        raise
    except Exception as error:  # a foreign class may raise anything; its words are all there is to report
        line = " ".join(str(error).split())
        raise KvplanError(f"{name}: transformers cannot build this: {line[:200]}: {INSTEAD}") from None


def _laid_out(config: Any) -> Any:
    """The model of a config without any memory."""
    import torch

    with torch.device("meta"):
        return _new(config)


def _new(config: Any) -> Any:
    from transformers import MODEL_FOR_CAUSAL_LM_MAPPING, AutoModel, AutoModelForCausalLM

    kind = AutoModelForCausalLM if type(config) in MODEL_FOR_CAUSAL_LM_MAPPING else AutoModel
    return kind.from_config(config)


def decoder_layers(model: Any, count: int, name: str) -> Any:
    """The list of the model's layers: the only outermost list of modules with `count` of them."""
    import torch

    lists = [(path, m) for path, m in model.named_modules() if isinstance(m, torch.nn.ModuleList) and len(m) == count]
    outermost = [found for path, found in lists if path.count(".") == min(p.count(".") for p, _ in lists)]
    if len(outermost) != 1:
        raise KvplanError(f"{name}: its {count} layers cannot be told apart from other parts of the model: {INSTEAD}")
    return outermost[0]


def signature(layer: Any, config: Any, number: int) -> tuple[Any, ...]:
    """What makes a layer cost what it costs: its modules, their shapes and settings, and its entry in each list."""
    modules = tuple(
        (
            path,
            type(module).__name__,
            tuple((name, tuple(p.shape)) for name, p in module.named_parameters(recurse=False)),
            tuple(sorted(_settings(module))),
        )
        for path, module in layer.named_modules()
    )
    return (modules, tuple(_entries(config, number)))


def _settings(module: Any) -> Iterator[tuple[str, str]]:
    """A module's plain settings; of fractions only whether they are zero, since a scale costs nothing."""
    for key, value in vars(module).items():
        if key.startswith("_") or any(key.endswith(name) for name in _COSTLESS):
            continue
        if isinstance(value, float):
            yield key, str(value > 0)
        elif value is None or isinstance(value, int | str):
            yield key, repr(value)


def _entries(config: Any, number: int) -> Iterator[tuple[str, str]]:
    for key, value in sorted(config.to_dict().items()):
        if key in NUMBERED or key == "architectures":
            continue
        if isinstance(value, list | tuple) and len(value) == config.num_hidden_layers:
            entry = value[number]
            if isinstance(entry, int | str):
                yield key, repr(entry)


def _words(layer: Any, config: Any, number: int) -> str:
    types = getattr(config, "layer_types", None) or getattr(config, "layers_block_type", None)
    attention = str(types[number]).replace("_", " ") if types else "attention"
    sparse = any("expert" in name for name, _ in layer.named_parameters())
    return f"{attention}, {'experts' if sparse else 'dense'}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Pair:
    """Two cuts whose cost differs by `MORE` layers of one kind; layers by their number in the whole model."""

    kind: Kind
    base: tuple[int, ...]
    more: tuple[int, ...]
    base_config: Any
    more_config: Any

    def missing(self, base: tuple[int, ...]) -> int:
        """Layers of this kind that the whole model has beyond those in `base`."""
        return len(self.kind.layers) - sum(pick in self.kind.layers for pick in base)


def pairs(whole: Whole, **changes: Any) -> tuple[Pair, ...]:
    """One pair a kind of layer: the first layer and `MORE` of the kind, against the first layer alone.

    Where a family's rules admit no such model, a pair of the kind's own layers, or before the model's last layer.
    `changes` are settings to build with. Raises KvplanError where no way gives the layers wanted.
    """
    return tuple(_pair(whole, kind, changes) for kind in whole.kinds)


def _pair(whole: Whole, kind: Kind, changes: Json) -> Pair:
    own, last = kind.layers[0], whole.layers - 1
    for head, tail in (((0,), ()), ((own,), ()), ((), (last,)), ((0,), (last,))):
        base, more = (*head, *tail), (*head, *(own,) * MORE, *tail)
        configs = [_cut(whole, picks, changes) for picks in (base, more)]
        if None not in configs:
            return Pair(kind=kind, base=base, more=more, base_config=configs[0], more_config=configs[1])
    raise KvplanError(f"{whole.name}: its layers of {kind.words} cannot be cut out: {INSTEAD}")


def _cut(whole: Whole, picks: tuple[int, ...], changes: Json) -> Any:
    """The config of the model cut to these layers; None where transformers would build other layers from it."""
    key = (getattr(whole.config, "attribute_map", None) or {}).get("num_hidden_layers", "num_hidden_layers")
    fields = {**whole.config.to_dict(), **changes}
    with _quiet(whole.name):
        large = _laid_out(type(whole.config).from_dict(fields) if changes else whole.config)
    theirs = decoder_layers(large, whole.layers, whole.name)
    try:
        with _quiet(whole.name):
            config = type(whole.config).from_dict(cut_config(fields, whole.layers, picks, key))
            ours = decoder_layers(_laid_out(config), len(picks), whole.name)
    except KvplanError:
        return None
    alike = all(
        signature(ours[place], config, place) == signature(theirs[pick], whole.config, pick)
        for place, pick in enumerate(picks)
    )
    return config if alike else None


def parameters(config: Any) -> int:
    """Number of parameters of the model that `build` would make."""
    return sum(p.numel() for p in _laid_out(config).parameters())


def build(config: Any, device: Any, dtype: Any, name: str) -> Any:
    """The model with random weights on the device, ready to run."""
    import torch

    config = copy.deepcopy(config)
    config.dtype = dtype
    before = torch.get_default_dtype()
    with _quiet(name):
        torch.set_default_dtype(dtype)
        try:
            with torch.device(device), _drawn_in_part():
                return _new(config).eval()
        finally:
            torch.set_default_dtype(before)


@contextmanager
def _drawn_in_part() -> Iterator[None]:
    """Large tensors on a processor repeat a piece that is drawn: what a pass costs is not in the values of weights, and
    drawing billions of them takes minutes, twice over, as torch draws what transformers then draws again."""
    import torch

    kinds = {name: getattr(torch.Tensor, name) for name in ("normal_", "uniform_")}

    def in_part(draw: Any) -> Any:
        def fill(tensor: Any, *args: Any, **more: Any) -> Any:
            if tensor.device.type != "cpu" or tensor.numel() <= _DRAWN or not tensor.is_contiguous():
                return draw(tensor, *args, **more)
            flat, done = tensor.detach().view(-1), _DRAWN
            draw(flat[:done], *args, **more)
            while done < flat.numel():
                step = min(done, flat.numel() - done)
                flat[done : done + step] = flat[:step]
                done += step
            return tensor

        return fill

    try:
        for name, draw in kinds.items():
            setattr(torch.Tensor, name, in_part(draw))
        yield
    finally:
        for name, draw in kinds.items():
            setattr(torch.Tensor, name, draw)


def fewer_experts(config: Any, most: int) -> dict[str, int]:
    """The change that leaves about `most` experts a layer, never fewer than a token is sent to; empty where none helps.

    Experts in groups stay so: the number remains a multiple of the groups.
    """
    keys = [key for key in _EXPERTS if isinstance(config.to_dict().get(key), int)]
    chosen = getattr(config, "num_experts_per_tok", None) or getattr(config, "top_k_experts", None)
    if not keys or not chosen:
        return {}
    groups = int(getattr(config, "n_group", None) or 1)
    wanted = -(-max(most, int(chosen)) // groups) * groups
    return {key: wanted for key in keys if wanted < getattr(config, key)}


def experts(config: Any) -> int | None:
    """Experts of one layer; None for a model without."""
    return next((int(n) for key in _EXPERTS if isinstance(n := getattr(config, key, None), int)), None)
