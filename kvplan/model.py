"""What each layer of a model keeps: a folder, a config file, a Hub id or a catalogue name -> Model.

The config's own JSON is read first. Where it leaves a key out, the family's class defaults answer (families.py), and
where they do not either, transformers is asked, which costs seconds; a key that nobody states is an error by name.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Literal

from kvplan import architecture, params, quantization, weights
from kvplan.catalog import models as catalogued
from kvplan.documents import CatalogueModel, Finding, Model, ModelRef, Weights
from kvplan.errors import KvplanError
from kvplan.files import reason
from kvplan.modelconfig import Config, Json, shown

DTYPES = {"bfloat16": "bf16", "float16": "fp16", "half": "fp16", "float32": "fp32", "float": "fp32"}
CONFIG_LIMIT = 64 * 2**20  # no config.json is larger; a weights file given by mistake is


@dataclass(frozen=True, slots=True, kw_only=True)
class Source:
    """A config as found: its bytes, what to call it in errors, its reference, and what lies beside it."""

    text: bytes
    name: str
    id: str
    kind: Literal["hub", "path", "gguf", "catalogue"]
    revision: str | None = None
    date: str | None = None
    weights: Weights | None = None
    findings: tuple[Finding, ...] = ()


def load_model(spec: str, revision: str | None = None) -> Model:
    """The model that `spec` names: a folder with config.json, a config file, a catalogue name or a Hub id.

    Tried in this order; a revision asks the Hub. Raises KvplanError, one line, for what is not found, not readable or
    not understood.
    """
    path = Path(spec).expanduser()
    if path.exists():
        return _model(_from_path(path, spec))
    if looks_like_path(spec):
        raise KvplanError(f"{spec}: no such file or folder")
    entry = catalogued.find(spec)
    if entry is not None and (spec == entry.name or revision is None):
        return _model(_from_catalogue(entry))
    if "/" not in spec:
        near = catalogued.nearest(spec)
        raise KvplanError(
            f"{spec}: no such file or folder, and no model of that name in the catalogue"
            f" (nearest: {', '.join(near)}); a Hub id is written organisation/name"
        )
    from kvplan import hub

    found = hub.fetch(spec, revision)
    return _model(
        Source(text=found.config, name=spec, id=spec, kind="hub", revision=found.commit, weights=found.weights)
    )


def catalogue() -> tuple[CatalogueModel, ...]:
    """The built-in catalogue of models, one line each."""
    found = []
    for entry in catalogued.models().values():
        model = _model(_from_catalogue(entry))
        found.append(
            CatalogueModel(
                name=entry.name,
                hub_id=entry.hub_id,
                source=entry.source,
                date=entry.date,
                params=model.weights.params if model.weights else None,
                max_context_tokens=model.ref.max_context_tokens,
            )
        )
    return tuple(found)


def looks_like_path(spec: str) -> bool:
    """Whether `spec` can only be meant as a file or a folder."""
    return spec.startswith((".", "/", "~")) or spec.endswith((".json", ".gguf")) or spec.count("/") > 1 or not spec


def parse_config(text: bytes, name: str) -> Json:
    """A config from its JSON text. Raises KvplanError naming the file for what is no JSON object."""
    try:
        config = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise KvplanError(f"{name}: not valid JSON: {error}") from None
    if not isinstance(config, dict):
        raise KvplanError(f"{name}: a config is a JSON object, this holds {shown(config)}")
    return config


def _from_path(path: Path, spec: str) -> Source:
    folder = path if path.is_dir() else path.parent
    file = path / "config.json" if path.is_dir() else path
    if path.is_dir() and not file.exists():
        raise KvplanError(f"{spec}: no config.json in this folder")
    if file.suffix == ".gguf":
        raise KvplanError(f"{spec}: GGUF files are not read yet: give the config.json of the original model")
    if file.suffix == ".safetensors":
        raise KvplanError(f"{spec}: holds weights, not a config: give the folder with its config.json")
    try:
        if file.stat().st_size > CONFIG_LIMIT:
            raise KvplanError(f"{file}: too large for a config.json: give the config or its folder")
        text = file.read_bytes()
    except OSError as error:
        raise KvplanError(f"{file}: {reason(error)}") from None
    stored = weights.of_folder(folder) if file.name == "config.json" else None
    return Source(text=text, name=str(file), id=spec, kind="path", weights=stored)


def _from_catalogue(entry: catalogued.Entry) -> Source:
    text = json.dumps(entry.config, sort_keys=True).encode()
    return Source(text=text, name=f"catalogue entry {entry.name}", id=entry.hub_id, kind="catalogue", date=entry.date)


def _model(source: Source) -> Model:
    ref = ModelRef(
        id=source.id,
        source=source.kind,
        model_type="",
        config_sha256=hashlib.sha256(source.text).hexdigest(),
        revision=source.revision,
        date=source.date,
    )
    raw = parse_config(source.text, source.name)
    return from_config(raw, ref, source.name, stored=source.weights, findings=source.findings)


def from_config(
    root: Json, ref: ModelRef, name: str, *, stored: Weights | None = None, findings: tuple[Finding, ...] = ()
) -> Model:
    """The Model of a config's JSON; `name` is what errors call it, `stored` the weights found beside it.

    Raises KvplanError naming the key that is missing, wrong or not understood.
    """
    facts = architecture.read(root, name)
    c = facts.config
    notes = [*findings, *facts.findings]
    dtype = _dtype(c)
    if dtype is None:
        dtype = "bf16"
        notes.append(Finding(severity="info", code="dtype-assumed", text="the config states no dtype: bf16 assumed"))
    counted = params.count(facts)
    held = quantization.weights(counted, root, c, dtype)
    if stored is not None and stored.params is None and held is not None:
        stored = replace(stored, params=held.params)
    return Model(
        ref=replace(ref, model_type=c.model_type, max_context_tokens=context_tokens(c)),
        dtype=dtype,
        layers=facts.layers,
        order=facts.order,
        num_layers=len(facts.types),
        vocab_size=c.optional("vocab_size"),
        hidden_size=c.optional("hidden_size"),
        num_attention_heads=c.optional("num_attention_heads"),
        kv_dtype=quantization.kv_dtype(root, c),
        weights=stored or held,
        compute=params.compute(counted, facts),
        findings=tuple(notes),
    )


def _dtype(c: Config) -> str | None:
    """The checkpoint's dtype, at the decoder or at the top; None where neither says."""
    for place in (c.raw, c.root):
        for key in ("dtype", "torch_dtype"):
            stated = place.get(key)
            if isinstance(stated, str):
                name = stated.removeprefix("torch.")
                if name not in DTYPES:
                    raise KvplanError(f"{c.where}: {key!r} is {shown(stated)}, not one of {', '.join(DTYPES)}")
                return DTYPES[name]
    return None


def context_tokens(c: Config) -> int | None:
    """The longest context the config allows, rotary scaling included; None where nothing says.

    YaRN states the length before scaling; llama3, longrope and su state the length after it in
    `max_position_embeddings` itself, and so does Gemma 3. Linear and dynamic scaling multiply.
    """
    longest = c.optional("max_position_embeddings")
    scaling = next((found for key in ("rope_scaling", "rope_parameters") if (found := c.raw.get(key))), None)
    if not isinstance(scaling, dict):
        return longest
    kind, factor = scaling.get("rope_type", scaling.get("type")), scaling.get("factor")
    if not isinstance(factor, int | float) or isinstance(factor, bool) or not 0 < factor < 10**6:
        return longest
    before = scaling.get("original_max_position_embeddings")
    if kind == "yarn" and isinstance(before, int) and before > 0:
        return round(before * factor)
    if kind in ("linear", "dynamic", "yarn") and longest and not c.model_type.startswith("gemma3"):
        return round(longest * factor)
    return longest
