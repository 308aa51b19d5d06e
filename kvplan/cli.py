"""The command line: which commands there are, and how an expected failure ends.

Only the commands are lazy: a stage is imported inside its command, so that `kvplan --help` costs a fraction of a second
and no command pays for a library that it does not use.
"""

from __future__ import annotations

import contextlib
import os
import sys
from typing import Annotated

import typer

from kvplan.commands.catalogue import models, schema
from kvplan.commands.compare import compare
from kvplan.commands.estimate import estimate
from kvplan.commands.export import export
from kvplan.commands.observe import observe
from kvplan.commands.plan import plan
from kvplan.commands.probe import probe
from kvplan.commands.replay import replay
from kvplan.commands.report import report
from kvplan.commands.residency import residency
from kvplan.commands.simulate import simulate
from kvplan.commands.workload import workload
from kvplan.errors import KvplanError

app = typer.Typer(
    help="How much GPU, host and disk memory to give to the KV cache, and why.",
    context_settings={"help_option_names": ["-h", "--help"]},
    add_completion=False,
    pretty_exceptions_enable=False,
)


def _version(wanted: bool) -> None:
    if wanted:
        from kvplan import __version__

        print(f"kvplan {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def _root(
    context: typer.Context,
    version: Annotated[
        bool, typer.Option("--version", callback=_version, is_eager=True, help="Print the version and exit.")
    ] = False,
) -> None:
    if context.invoked_subcommand is None:
        with contextlib.redirect_stdout(sys.stderr):  # help that nobody asked for is no answer
            print(context.get_help())
        raise typer.Exit(2)


for command in (estimate, workload, probe, plan, simulate, compare, residency, observe, report, models, schema):
    app.command()(command)
app.add_typer(replay, name="replay")

app.command()(export)


def main() -> None:
    """Run the command line. Expected failures are one line on standard error; KVPLAN_DEBUG=1 shows where they rose."""
    # That torch is absent is no news to somebody who left it out; transformers would print it between our lines.
    os.environ.setdefault("TRANSFORMERS_NO_ADVISORY_WARNINGS", "1")
    try:
        app()
    except KvplanError as error:
        if os.environ.get("KVPLAN_DEBUG"):
            raise
        print(f"kvplan: {error}", file=sys.stderr)
        sys.exit(error.exit_code)
