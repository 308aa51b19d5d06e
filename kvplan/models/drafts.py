"""Layers that speculative decoding adds: those a checkpoint brings to predict further tokens, or a draft model's.

An n-gram method keeps nothing. Multi-token prediction keeps the caches of its own layers, of the shape of the
model's; EAGLE and draft models keep what their own config says, layer by layer, whatever their depth in tokens.
"""

from __future__ import annotations

from msgspec.structs import replace

from kvplan.documents import Finding, Layer, Model
from kvplan.errors import KvplanError
from kvplan.models.config import Config
from kvplan.models.family import SILENT, Family
from kvplan.models.patterns import LETTERS, SYNONYMS

# Keys that count the layers, the first that is stated: two families multiply modules by the layers of one.
COUNTS = ("num_nextn_predict_layers", "mtp_num_hidden_layers", "num_mtp_layers", "num_mtp_modules")
METHODS = ("none", "ngram", "mtp", "eagle", "draft-model")
MOST = 64


def stated(c: Config, family: Family, count: int) -> tuple[tuple[Layer, ...], tuple[Finding, ...]]:
    """The layers that predict further tokens, one by one, as a config states them; a finding where they are unclear."""
    c = c.asking()
    try:
        key = next((key for key in COUNTS if c.raw.get(key) is not None), None)
        times = c.optional(key, least=0) if key else 0
        if not times:
            return (), ()
        if times > MOST:
            raise KvplanError(f"{c.where}: {key!r} is {times}, which no model can have")
        kinds = _kinds(c, family) * times
        return tuple(_layer(c, family, kind, count + i) for i, kind in enumerate(kinds)), ()
    except KvplanError as error:
        text = f"its layers of multi-token prediction are not counted: {error}"
        return (), (Finding(severity="info", code="draft-unknown", text=text),)


def _kinds(c: Config, family: Family) -> list[str]:
    """The types of the blocks of one predicting layer."""
    letters, words = c.get("mtp_hybrid_override_pattern"), c.words("mtp_layers_block_type")
    if isinstance(letters, str) and letters and not set(letters) - set(LETTERS):
        return [LETTERS[letter] for letter in letters]
    if words:
        return [SYNONYMS.get(word, word) for word in words]
    return [family.draft]


def _layer(c: Config, family: Family, kind: str, index: int) -> Layer:
    if kind in SILENT:
        return Layer(note=SILENT[kind])
    builder = family.layers.get(kind)
    if builder is None:
        raise KvplanError(f"{c.where}: no layer of type {kind!r} is known here")
    caches = builder(c.layer(index), index)
    return Layer(caches=tuple(replace(c, draft=True) for c in caches), note="predicts further tokens")


def with_draft(model: Model, method: str, draft: Model | None = None, layers: int | None = None) -> Model:
    """The model with the caches that a method of speculative decoding adds, after its own layers.

    "mtp" adds the checkpoint's own layers (`layers` of them where given, the last kind repeated), "eagle" and
    "draft-model" every layer of `draft`, "ngram" and "none" nothing. Raises KvplanError for a method that is not known
    or whose layers are not.
    """
    if method not in METHODS:
        raise KvplanError(f"unknown method of speculative decoding {method!r} (known: {', '.join(METHODS)})")
    if method in ("none", "ngram"):
        return model
    if method == "mtp":
        added = _predicting(model, layers)
    elif draft is None:
        raise KvplanError(f"{method} needs a draft model: its own config says what its layers keep")
    else:
        kinds = tuple(
            replace(layer, caches=tuple(replace(cache, draft=True) for cache in layer.caches)) for layer in draft.layers
        )
        added = tuple(kinds[index] for index in draft.order)
    places: dict[Layer, int] = {layer: i for i, layer in enumerate(model.layers)}
    order = tuple(places.setdefault(layer, len(places)) for layer in added)
    return replace(model, layers=tuple(places), order=(*model.order, *order))


def _predicting(model: Model, layers: int | None) -> tuple[Layer, ...]:
    if not model.draft:
        raise KvplanError(
            f"{model.ref.id}: states no layers of multi-token prediction ({', '.join(COUNTS)}): give the draft model"
        )
    if layers is None:
        return model.draft
    if layers < 1:
        raise KvplanError(f"{layers} layers of multi-token prediction: at least 1")
    return (*model.draft[:layers], *[model.draft[-1]] * (layers - len(model.draft)))
