"""How a request log is read: the options of every command that takes one, and the reading."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.errors import UsageError

if TYPE_CHECKING:
    from kvplan.documents import Requests
    from kvplan.progress import Progress


@dataclass(frozen=True, kw_only=True)
class Reading:
    """What the command line says about a log."""

    format: Annotated[str | None, typer.Option(help="Log format; detected when left out.")] = None
    block_tokens: Annotated[int | None, typer.Option(min=1, help="Tokens of one block.")] = None
    tokenizer: Annotated[Path | None, typer.Option(metavar="DIR", help="Local tokenizer folder, for logs of text.")] = (
        None
    )
    approximate_tokens: Annotated[
        float | None, typer.Option(metavar="BYTES", help="Without a tokenizer: bytes of text that count as a token.")
    ] = None
    tenant_by: Annotated[str | None, typer.Option(metavar="FIELD", help="Log field that names the tenant.")] = None
    columns: Annotated[
        list[str] | None,
        typer.Option(metavar="ROLE=NAME,…", help="What a column, or a field of a line, holds: time_s=when."),
    ] = None
    skip_bad: Annotated[int, typer.Option(min=0, help="Bad lines to leave out, counted, before giving up.")] = 0

    def requests(
        self, logs: Sequence[Path], listen: Progress, sink: Any = None, estimate: Path | None = None
    ) -> Requests:
        """The logs as one table of requests; the tokens of a block and of an image as `estimate` has them."""
        from kvplan.logs import read

        block, image = (None, None) if estimate is None else _of_model(estimate)
        return read(
            list(logs),
            format=self.format,
            block_tokens=self.block_tokens,
            tokenizer=self.tokenizer,
            tenant_by=self.tenant_by,
            columns=_columns(self.columns or ()),
            bytes_per_token=self.approximate_tokens,
            text_block_tokens=block,
            image_tokens=image,
            processes=os.cpu_count() or 1,
            skip_bad=self.skip_bad,
            sink=sink,
            progress=listen,
        )


def _of_model(path: Path) -> tuple[int, int | None]:
    """The tokens of a block, and of an image where they are known, from an estimate."""
    from kvplan.documents import Estimate
    from kvplan.files import load

    data = load(path).data
    if not isinstance(data, Estimate):
        raise UsageError(f"--estimate {path}: is no document that kvplan estimate wrote of one model")
    each = [media.tokens_each for media in data.media if media.kind == "image" and media.tokens_each is not None]
    return data.block_tokens, round(each[0]) if each else None


def _columns(pairs: Sequence[str]) -> dict[str, str]:
    """What columns or fields hold, from texts such as `time_ms=when`."""
    found: dict[str, str] = {}
    for pair in (part for text in pairs for part in text.split(",")):
        role, _, name = pair.partition("=")
        if not role.strip() or not name.strip():
            raise UsageError(f"--columns {pair}: write what a column holds and its name, such as time_ms=when")
        if found.setdefault(role.strip(), name.strip()) != name.strip():
            raise UsageError(f"--columns {pair}: {role.strip()}={found[role.strip()]} says it already: leave one out")
    return found
