"""`kvplan models` and `kvplan schema`: what is built in."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from kvplan.commands.options import Json


def models(as_json: Json = False) -> None:
    """List the built-in catalogue of models, with the source and date of each entry."""
    from kvplan.console import printing, stdout
    from kvplan.model import catalogue

    entries = catalogue()
    if as_json:
        import msgspec

        sys.stdout.write(msgspec.json.format(msgspec.json.encode(entries), indent=2).decode() + "\n")
        return
    from rich.table import Table

    table = Table("name", "Hub id", "params", "context", "source", "date", box=None, pad_edge=False)
    for entry in entries:
        size = f"{entry.params / 1e9:.3g} B" if entry.params else "unknown"
        context = f"{entry.max_context_tokens:,}" if entry.max_context_tokens else "unknown"
        table.add_row(entry.name, entry.hub_id, size, context, entry.source, entry.date)
    with printing():
        stdout().print(table)


def schema(
    kind: Annotated[str, typer.Argument(help="estimate, workload, probe, plan, …")],
) -> None:
    """Print the JSON Schema of a document kind.

    Example: kvplan schema plan
    """
    import json

    from kvplan.files import json_schema

    print(json.dumps(json_schema(kind), indent=2))
