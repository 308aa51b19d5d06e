"""What each layer of a model keeps: a folder, a config file, a Hub id or a catalogue name -> Model.

The config's own JSON is read first. Where it leaves a key out, the family's class defaults answer (families.py), and
where they do not either, transformers is asked, which costs seconds; a key that nobody states is an error by name.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from msgspec.structs import replace

from kvplan.catalog import models as catalogued
from kvplan.documents import CatalogueModel, Finding, Model, ModelConfig, ModelRef, Weights
from kvplan.errors import KvplanError
from kvplan.files import reason
from kvplan.models import architecture, params, quantization, weights
from kvplan.models.compute import compute
from kvplan.models.config import Config, Json, shown
from kvplan.models.drafts import with_draft as with_draft

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
    quantization: bytes | None = None


def load_model(spec: str, revision: str | None = None) -> Model:
    """The model that `spec` names: a folder with config.json, a config or GGUF file, a catalogue name or a Hub id.

    Tried in this order; a revision asks the Hub. Raises KvplanError, one line, for what is not found, not readable or
    not understood.
    """
    path = Path(spec).expanduser()
    if path.suffix == ".gguf" and path.is_file():
        from kvplan.models import gguf

        return gguf.load(path, spec)
    return _model(_find(spec, revision))


def load_config(spec: str, revision: str | None = None) -> ModelConfig:
    """The model that `spec` names together with its config's own JSON, for whoever builds it.

    Raises what `load_model` raises, and KvplanError for a GGUF file, which holds no such config.
    """
    if Path(spec).suffix == ".gguf":
        raise KvplanError(f"{spec}: a GGUF file has no config.json to build a model from: give the original model")
    source = _find(spec, revision)
    return ModelConfig(model=_model(source), raw=_raw(source))


def _find(spec: str, revision: str | None) -> Source:
    path = Path(spec).expanduser()
    if path.exists():
        return _from_path(path, spec)
    if looks_like_path(spec):
        raise KvplanError(f"{spec}: no such file or folder")
    entry = catalogued.find(spec)
    if entry is not None:
        if revision is not None:
            raise KvplanError(f"{spec}: a catalogue entry has no revisions: --revision goes with a Hub id")
        return _from_catalogue(entry)
    if "/" not in spec:
        near = catalogued.nearest(spec)
        raise KvplanError(
            f"{spec}: no such file or folder, and no model of that name in the catalogue"
            f" (nearest: {', '.join(near)}); a Hub id is written organisation/name"
        )
    return _from_hub(spec, revision)


def catalogue() -> tuple[CatalogueModel, ...]:
    """The built-in catalogue of models, one line each."""
    found = []
    for entry in catalogued.models().values():
        facts = architecture.read(entry.config, f"catalogue entry {entry.name}")
        counted = params.count(facts)
        found.append(
            CatalogueModel(
                name=entry.name,
                hub_id=entry.hub_id,
                source=entry.source,
                date=entry.date,
                params=counted.total if counted else None,
                max_context_tokens=context_tokens(facts.config),
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
    if str(config.get("kind", "")).startswith("kvplan."):
        raise KvplanError(f"{name}: a {config['kind']} document, not a model's config: `kvplan report` shows it")
    return config


def _from_path(path: Path, spec: str) -> Source:
    folder = path if path.is_dir() else path.parent
    file = path / "config.json" if path.is_dir() else path
    if path.is_dir() and not file.exists():
        raise KvplanError(f"{spec}: no config.json in this folder")
    if file.suffix == ".safetensors":
        raise KvplanError(f"{spec}: holds weights, not a config: give the folder with its config.json")
    try:
        if file.stat().st_size > CONFIG_LIMIT:
            raise KvplanError(f"{file}: too large for a config.json: give the config or its folder")
        text = file.read_bytes()
    except OSError as error:
        raise KvplanError(f"{file}: {reason(error)}") from None
    whole = file.name == "config.json"
    return Source(
        text=text,
        name=str(file),
        id=spec,
        kind="path",
        weights=weights.of_folder(folder) if whole else None,
        quantization=_beside(folder / quantization.BESIDE) if whole else None,
    )


def _beside(file: Path) -> bytes | None:
    try:
        return file.read_bytes() if file.is_file() else None
    except OSError as error:
        raise KvplanError(f"{file}: {reason(error)}") from None


def _from_hub(repo: str, revision: str | None) -> Source:
    from kvplan.models import hub

    entry = catalogued.find_hub(repo)
    hint = f"; the catalogue has its figures: --model {entry.name}" if entry else ""
    found = hub.fetch(repo, revision, hint=hint)
    return Source(
        text=found.config,
        name=f"{repo}/config.json",
        id=repo,
        kind="hub",
        revision=found.commit,
        weights=found.weights,
        quantization=found.quantization,
    )


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
    return from_config(_raw(source), ref, source.name, stored=source.weights)


def _raw(source: Source) -> Json:
    """The config's JSON, with the quantisation that a file beside it states."""
    raw = parse_config(source.text, source.name)
    if source.quantization is not None and not raw.get("quantization_config"):
        beside = parse_config(source.quantization, quantization.BESIDE)
        raw = {**raw, "quantization_config": quantization.from_beside(beside)}
    return raw


def from_config(root: Json, ref: ModelRef, name: str, *, stored: Weights | None = None) -> Model:
    """The Model of a config's JSON; `name` is what errors call it, `stored` the weights found beside it.

    Raises KvplanError naming the key that is missing, wrong or not understood.
    """
    facts = architecture.read(root, name)
    c = facts.config
    notes = [*facts.findings]
    dtype = _dtype(c)
    if dtype is None:
        dtype = "bf16"
        notes.append(Finding(severity="info", code="dtype-assumed", text="the config states no dtype: bf16 assumed"))
    unread = quantization.unread_scheme(root, c)
    notes += [unread] if unread else []
    counted = params.count(facts)
    held = quantization.weights(counted, root, c, dtype)
    if stored is not None and stored.params is None and held is not None:
        stored = replace(stored, params=held.params)
    return Model(
        ref=replace(ref, model_type=c.model_type, max_context_tokens=context_tokens(c)),
        dtype=dtype,
        layers=facts.layers,
        order=facts.order,
        num_layers=facts.count,
        vocab_size=c.optional("vocab_size"),
        hidden_size=c.optional("hidden_size"),
        num_attention_heads=c.optional("num_attention_heads"),
        kv_dtype=quantization.kv_dtype(root, c),
        weights=stored or held,
        compute=compute(counted, facts),
        draft=facts.draft,
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
    if isinstance(scaling, dict) and isinstance(scaling.get("full_attention"), dict):
        scaling = scaling["full_attention"]  # stated by type of layer: those that see everything bound the context
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
