"""`kvplan export`: a plan as a serving system's configuration, or an existing configuration checked."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from kvplan.commands.options import Json, Output, Quiet, pick
from kvplan.errors import KvplanError, UsageError

if TYPE_CHECKING:
    from kvplan.documents import ConfigCheck, Document, Export, Plan, Probe, Residency

System = Annotated[
    str | None,
    typer.Option("--for", metavar="SYSTEM", help="vllm, sglang, llama.cpp, lmcache, …: without it, all are named."),
]
Checked = Annotated[
    Path | None, typer.Option("--check", metavar="FILE", help="Read a configuration: what it reserves on a host.")
]
Limit = Annotated[
    Path | None, typer.Option("--against", metavar="DOCUMENT", help="Hold it against a plan or a probe; 3 if over.")
]
Ranks = Annotated[int | None, typer.Option(min=1, help="Ranks of one engine, where the configuration does not say.")]
Kubernetes = Annotated[
    bool, typer.Option("--kubernetes", help="With --for: a manifest, its requests, limits and a /dev/shm that fit.")
]


def export(
    plan: Annotated[
        Path | None, typer.Argument(metavar="PLAN", help="A plan, or a residency.", show_default=False)
    ] = None,
    system: System = None,
    kubernetes: Kubernetes = False,
    checked: Checked = None,
    against: Limit = None,
    ranks: Ranks = None,
    as_json: Json = False,
    output: Output = None,
    quiet: Quiet = False,
) -> None:
    """A plan as the configuration of a serving system; or what an existing configuration reserves.

    Exit status 3 says that the system cannot do what the plan asks, that a condition does not hold, or that the
    configuration reserves more than it may.

    Example: kvplan export plan.json --for vllm

    Example: kvplan export --check lmcache.yaml --ranks 8 --against host.json
    """
    if (plan is None) == (checked is None):
        raise UsageError("give a plan to export, or --check with a configuration to read")
    if checked is not None:
        _check(checked, system, against, ranks, as_json, output, quiet)
        return
    if ranks is not None:
        raise UsageError("--ranks belongs to --check")
    from kvplan.files import load

    assert plan is not None
    host = pick([load(against)], "probe", True) if against else None
    document = load(plan)
    if document.kind == "kvplan.residency":
        give_residency(document, system, as_json, output, quiet)
        return
    give(pick([document], "plan", True), system, kubernetes, as_json, output, quiet, host)


def _text(path: Path) -> str:
    """A configuration's text, from standard input for '-'."""
    from kvplan.files import reason

    try:
        raw = sys.stdin.buffer.read() if str(path) == "-" else path.read_bytes()
        return raw.decode()
    except OSError as error:
        raise KvplanError(f"{path}: {reason(error)}") from None
    except UnicodeDecodeError:
        raise KvplanError(f"{path}: not a text file in UTF-8") from None


def _check(
    path: Path,
    system: str | None,
    against: Path | None,
    ranks: int | None,
    as_json: bool,
    output: Path | None,
    quiet: bool,
) -> None:
    from kvplan.console import answer
    from kvplan.export import check
    from kvplan.files import load, wrap

    name = "standard input" if str(path) == "-" else str(path)
    found = check(_text(path), name, system, load(against) if against else None, ranks)
    answer(wrap(found), as_json=as_json, output=output, quiet=quiet)
    _exit_on_error(found)


def give(
    plan: Document[Plan],
    system: str | None,
    kubernetes: bool,
    as_json: bool,
    output: Path | None,
    quiet: bool,
    host: Document[Probe] | None = None,
) -> None:
    """Print a plan's configuration, or write it: to `output`, and what belongs to it beside it."""
    from kvplan.export import SYSTEMS, export

    if system is None:
        raise UsageError(f"--for is missing: {', '.join(SYSTEMS)}")
    _answer(export(plan.data, system, kubernetes, host.data if host else None), as_json, output, quiet)


def give_residency(
    document: Document[Residency], system: str | None, as_json: bool, output: Path | None, quiet: bool
) -> None:
    """Print or write what the router is given for several models."""
    from kvplan.export import export_residency

    if system != "llama.cpp-router":
        raise UsageError("several models on one machine go to --for llama.cpp-router alone")
    _answer(export_residency(document.data), as_json, output, quiet)


def _answer(made: Export, as_json: bool, output: Path | None, quiet: bool) -> None:
    from kvplan.console import note
    from kvplan.files import dump, wrap

    if output is not None:
        _write(made, output, quiet)
    if as_json:
        sys.stdout.write(dump(wrap(made)))
    elif output is None:
        sys.stdout.write(text_of(made))
    for one in made.findings:
        if one.severity != "info":
            note(f"{one.severity}: {one.text}", quiet)
    _exit_on_error(made)


def text_of(made: Export) -> str:
    """All texts, each under its name where there are several."""
    if len(made.parts) == 1:
        return made.parts[0].text
    return "\n".join(f"# ---- {one.name}\n{one.text}" for one in made.parts)


def _write(made: Export, output: Path, quiet: bool) -> None:
    """The first text to `output`, the others under their names beside it; into `output` where it is a folder."""
    from kvplan.console import note
    from kvplan.files import write_atomically

    folder = output if output.is_dir() else output.parent
    first = made.parts[0].name if output.is_dir() else output.name
    names = [first, *(one.name for one in made.parts[1:])]
    if len(set(names)) < len(names):
        raise UsageError(f"-o {output}: this is the name of another of the files: {', '.join(names[1:])}")
    for name, one in zip(names, made.parts, strict=True):
        write_atomically(folder / name, one.text.replace(made.parts[0].name, first))
        note(f"wrote {folder / name}", quiet)


def _exit_on_error(found: Export | ConfigCheck) -> None:
    wrong = [one for one in found.findings if one.severity == "error"]
    if wrong:
        print(f"kvplan: {'; '.join(one.code for one in wrong)}: {wrong[0].text}", file=sys.stderr)
        raise typer.Exit(3)
