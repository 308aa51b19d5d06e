"""Words that every document uses: units in types, provenance, findings, the envelope."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Generic, Literal, TypeVar

import msgspec

Bytes = Annotated[int, msgspec.Meta(ge=0, description="bytes")]
Tokens = Annotated[int, msgspec.Meta(ge=0, description="tokens")]
Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0, description="seconds")]
Ratio = Annotated[float, msgspec.Meta(ge=0, le=1, description="0..1")]
Rate = Annotated[float, msgspec.Meta(ge=0, description="bytes per second")]

Provenance = Literal["measured", "configured", "published", "assumed", "default"]
Severity = Literal["info", "warning", "error"]
LayerKind = Literal["full", "sliding", "chunked", "latent", "indexer", "recurrent", "cross", "draft"]
Recurrence = Literal[
    "mamba1", "mamba2", "delta", "kimi-delta", "lightning", "short-conv", "rg-lru", "rwkv", "mlstm", "cca"
]


class Finding(msgspec.Struct, frozen=True, kw_only=True):
    """Something a reader should know: `code` is stable and for scripts, `text` is for people."""

    severity: Severity
    code: str
    text: str


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    """One input to a conclusion: what it is, its value as printed, and where it came from."""

    what: str
    value: str
    provenance: Provenance
    source: str
    date: str | None = None


class GpuSpec(msgspec.Struct, frozen=True, kw_only=True):
    """A GPU of the catalogue: published facts with their source and date.

    `prefill_efficiency` is the (low, middle, high) share of `flops` that real servers reach in prefill.
    """

    name: str
    memory_bytes: Bytes
    memory_bytes_per_s: Rate
    flops: Mapping[str, float]
    link_bytes_per_s: Rate
    achievable_link_bytes_per_s: Rate
    prefill_efficiency: tuple[float, float, float]
    source: str
    date: str
    aliases: tuple[str, ...] = ()


T = TypeVar("T")


class Document(msgspec.Struct, Generic[T], frozen=True, kw_only=True):
    """One stage's result in its envelope: `schema` is the version of the kind, `kvplan` the tool's version."""

    kind: str
    schema: int
    kvplan: str
    created: str
    data: T
