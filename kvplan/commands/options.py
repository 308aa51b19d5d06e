"""Options that several commands take, and how their texts are read."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from kvplan.errors import UsageError
from kvplan.units import parse_tokens

if TYPE_CHECKING:
    from kvplan.documents import Document, GpuSpec

V = TypeVar("V")
Json = Annotated[bool, typer.Option("--json", help="Print the document as JSON on standard output, nothing else.")]


def _file(text: str) -> Path:
    """A file to write. A name that ends as a folder's does is one: a file of that name is not what was meant."""
    path = Path(text)
    if text.endswith("/") and not path.is_dir():
        raise UsageError(f"-o {text}: there is no such folder: make it first, or leave out the / to write a file")
    return path


Output = Annotated[
    Path | None,
    typer.Option("-o", "--output", metavar="FILE", parser=_file, help="Write to FILE, whole or not at all."),
]
Quiet = Annotated[bool, typer.Option("-q", "--quiet", help="No notes or progress on standard error.")]
ModelName = Annotated[
    str | None,
    typer.Option("--model", metavar="MODEL", help="A folder, config.json, Hub id, or a name from `kvplan models`."),
]
Revision = Annotated[str | None, typer.Option(help="Branch, tag or commit of a Hub model.")]
Engine = Annotated[str, typer.Option(help="Engine that will hold the cache; none is the logical need.")]
KvDtype = Annotated[str, typer.Option(help="KV cache dtype: auto, bf16, fp16, fp8, …")]
Tp = Annotated[int, typer.Option(min=1, help="Tensor parallel size.")]
Pp = Annotated[int, typer.Option(min=1, help="Pipeline parallel size.")]
Dp = Annotated[int, typer.Option(min=1, help="Data parallel size.")]
Dcp = Annotated[int, typer.Option(min=1, help="Decode context parallel size.")]
Gpu = Annotated[str | None, typer.Option(metavar="NAME", help="A GPU of the catalogue, such as h100-80gb.")]
MaxModelLen = Annotated[str | None, typer.Option(metavar="TOKENS", help="Longest sequence the engine will accept.")]
BlockTokens = Annotated[int | None, typer.Option(min=1, help="Tokens of one block.")]
Ttl = Annotated[str | None, typer.Option(metavar="TIME", help="Longest time a cached block may be kept, such as 10m.")]
SloTtft = Annotated[str | None, typer.Option(metavar="TIME", help="Target time to first token, such as 2s.")]
PricesFile = Annotated[
    Path | None, typer.Option("--prices", metavar="FILE", help="Dated, confirmed prices (TOML); none, no dollars.")
]
WhatIf = Annotated[
    list[str] | None,
    typer.Option("--what-if", metavar="KEY=VALUE,…", help="Plan again with changes: kv-dtype=fp8,gpu=h200-141gb."),
]
Earlier = Annotated[
    Path | None, typer.Option("--against", metavar="PLAN", help="An earlier plan: what changed, and why.")
]


def opt(flag: str, text: str | None, parse: Callable[[str], V]) -> V | None:
    """Parse one option's text; an error names the flag."""
    if text is None:
        return None
    try:
        return parse(text)
    except UsageError as error:
        raise UsageError(f"{flag}: {error}") from None


def lengths(text: str) -> tuple[int, ...]:
    found = tuple(parse_tokens(part) for part in text.split(",") if part.strip())
    if not all(found):
        raise UsageError("a length of 0 tokens has nothing to count: give lengths above 0")
    return found


def gpu_spec(name: str | None) -> GpuSpec | None:
    if name is None:
        return None
    from kvplan.catalog import gpu

    return gpu(name)


def required(value: V | None, flag: str) -> V:
    if value is None:
        raise UsageError(f"{flag} is missing")
    return value


def pick(documents: list[Document[Any]], kind: str, needed: bool) -> Any:
    """The one document of a kind among those given."""
    found = [document for document in documents if document.kind == f"kvplan.{kind}"]
    if len(found) > 1:
        raise UsageError(f"{len(found)} {kind} documents given, one is wanted")
    if not found and needed:
        raise UsageError(f"no {kind} document given: make one with `kvplan {kind} … -o {kind}.json`")
    return found[0] if found else None
