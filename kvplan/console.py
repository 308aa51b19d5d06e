"""What the command line says and where: the answer on standard output, words and progress on standard error."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kvplan.errors import KvplanError, UsageError
from kvplan.files import can_replace, dump, reason, write_atomically
from kvplan.progress import Progress, silent

if TYPE_CHECKING:
    from rich.console import Console

    from kvplan.documents import Document

_OTHER = (".pdf", ".docx", ".odt", ".svg", ".png", ".csv", ".tsv", ".xlsx", ".txt")
_PIPED_WIDTH = 200  # a pipe has no width; a narrow guess would fold every table


def note(text: str, quiet: bool = False) -> None:
    """Say something on standard error, where there is one."""
    if not quiet and sys.stderr is not None:
        print(text, file=sys.stderr)


def stdout() -> Console:
    """The console of the answer: as wide as the terminal, or wide enough for whole tables when piped."""
    from rich.console import Console

    known = sys.stdout.isatty() or "COLUMNS" in os.environ
    return Console(width=None if known else _PIPED_WIDTH, highlight=False)


def expect(output: Path | None) -> None:
    """Refuse, before long work is done, a file that could not take its document. Raises KvplanError naming it."""
    if output is None:
        return
    kind = output.suffix.lower()
    if kind in _OTHER:
        raise UsageError(
            f"{output}: what this command writes is a document, and no {kind}: give FILE.json, and make pages of it "
            "with `kvplan report FILE.json -o FILE.html`"
        )
    if kind in (".html", ".htm", ".md"):
        raise UsageError(
            f"{output}: what this command writes is a document: give FILE.json, and make pages of it with "
            f"`kvplan report FILE.json -o {output.name}`"
        )
    can_replace(output)


@contextmanager
def printing() -> Iterator[None]:
    """Standard output that is closed or full is an expected failure; a reader that left is the caller's to end."""
    if sys.stdout is None:
        raise KvplanError("standard output is closed: nowhere to print to (-o FILE -q writes a file alone)")
    try:
        yield
        sys.stdout.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        with open(os.devnull, "wb") as nowhere:  # else what is left in the buffer fails once more at exit
            os.dup2(nowhere.fileno(), sys.stdout.fileno())
        raise KvplanError(f"standard output: cannot write: {reason(error)}") from None


def answer(document: Document[Any], *, as_json: bool, output: Path | None, quiet: bool, full: bool = False) -> None:
    """Give a document the way the user asked: JSON on standard output, a file, or a page, all of it if `full`."""
    if output is not None:
        write_atomically(output, dump(document))
        note(f"wrote {output}", quiet)
    if as_json:
        with printing():
            sys.stdout.write(dump(document))
        return
    if output is None or (not quiet and sys.stdout is not None):
        show(document, full)


def show(document: Document[Any], full: bool = False) -> None:
    """Print a document as a page on standard output: its first screen, or all of it."""
    from kvplan.report import print_page, sections

    page = sections(document)
    with printing():
        print_page(page, stdout(), full)


@contextmanager
def progress(quiet: bool = False) -> Iterator[Progress]:
    """A progress line on standard error while work runs, where that is a terminal; otherwise nothing."""
    if quiet or sys.stderr is None or not sys.stderr.isatty():
        yield silent
        return
    from rich.console import Console
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), TimeElapsedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)

        def listen(what: str, done: float | None = None) -> None:
            bar.update(task, description=what, completed=(done or 0.0) * 100, total=None if done is None else 100)

        yield listen
