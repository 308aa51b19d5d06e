"""A model for people: what each kind of its layers keeps."""

from __future__ import annotations

from kvplan.documents import Document, LayerCache, Model
from kvplan.page import Fact, Facts, Page, Section
from kvplan.pages import parts
from kvplan.units import show_bytes


def page(document: Document[Model]) -> Page:
    """What a person wants to see of a model."""
    model = document.data
    facts = [
        Fact(label="layers", value=f"{model.num_layers}", note=model.ref.model_type),
        Fact(label="checkpoint dtype", value=model.dtype, note=f"KV cache {model.kv_dtype or 'in the same'}"),
    ]
    if model.ref.max_context_tokens is not None:
        facts.append(Fact(label="longest sequence", value=f"{model.ref.max_context_tokens:,} tokens"))
    if model.weights is not None:
        facts.append(
            Fact(
                label="weights",
                value=show_bytes(model.weights.bytes),
                note=model.weights.source,
                provenance=model.weights.provenance,
            )
        )
    rows = [_row(cache, count, layer.note) for layer, count in model.counted() for cache in (layer.caches or (None,))]
    layers = parts.table("cache|>layers|>heads|>key|>value|>window|note|`config keys", rows)
    return Page(
        kind=document.kind,
        title=f"What {parts.model_name(model.ref)} keeps",
        lead=f"{parts.plural(model.num_layers, 'layer')} of {parts.plural(len(model.layers), 'kind')}.",
        origin=parts.origin(document),
        sections=(
            Section(name="summary", heading="At a glance", blocks=(Facts(items=tuple(facts)),), first=True),
            Section(name="layers", heading="Layers", blocks=(layers,), first=True),
            *parts.findings(model.findings),
        ),
    )


def _row(cache: LayerCache | None, layers: int, note: str) -> tuple[str, ...]:
    if cache is None:
        return ("none", f"{layers}", "", "", "", "", note, "")
    state = ", ".join(f"{one.role} {'×'.join(map(str, one.shape))}" for one in cache.state)
    window = "" if cache.window_tokens is None else f"{cache.window_tokens:,}"
    numbers = (str(value) if value else "" for value in (cache.heads, cache.k_dim, cache.v_dim))
    return (cache.kind, f"{layers}", *numbers, window, "; ".join(t for t in (state, note) if t), ", ".join(cache.keys))
