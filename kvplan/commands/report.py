"""`kvplan report`: documents as pages."""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from kvplan.commands.estimate import estimated
from kvplan.commands.grouped import grouped
from kvplan.commands.limits import Limits
from kvplan.commands.options import (
    Earlier,
    Json,
    KvDtype,
    MaxModelLen,
    Pp,
    PricesFile,
    Quiet,
    Revision,
    Tp,
    WhatIf,
    gpu_spec,
    opt,
    pick,
)
from kvplan.commands.plan import cases_of, planned, profiled_for
from kvplan.commands.reading import Reading
from kvplan.errors import UsageError
from kvplan.units import parse_tokens

if TYPE_CHECKING:
    from kvplan.documents import Document, Plan, Policy
    from kvplan.page import Page


@grouped
def report(
    *,
    documents: Annotated[list[Path] | None, typer.Argument(metavar="[DOCUMENT…]", help="Documents to render.")] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", metavar="MODEL", help="A model, as for `kvplan estimate`; repeat for several plans."),
    ] = None,
    revision: Revision = None,
    log: Annotated[list[Path] | None, typer.Option(metavar="LOG", help="A request log to profile.")] = None,
    probe_file: Annotated[
        list[Path] | None,
        typer.Option("--probe", metavar="FILE", help="A probe of the target host; repeat for several hosts."),
    ] = None,
    gpu: Annotated[
        list[str] | None,
        typer.Option("--gpu", metavar="NAME", help="A GPU of the catalogue; repeat for several plans."),
    ] = None,
    engine: Annotated[str, typer.Option(help="Engine to plan for.")] = "vllm",
    kv_dtype: KvDtype = "auto",
    tp: Tp = 1,
    pp: Pp = 1,
    max_model_len: MaxModelLen = None,
    reading: Reading,
    limits: Limits,
    prices: PricesFile = None,
    what_if: WhatIf = None,
    against: Earlier = None,
    full: Annotated[bool, typer.Option("--full", help="Print the whole page, not its first screen.")] = False,
    as_json: Json = False,
    output: Annotated[
        list[Path] | None, typer.Option("-o", "--output", metavar="FILE", help="FILE.html, FILE.md or FILE.json.")
    ] = None,
    quiet: Quiet = False,
) -> None:
    """A review document: from one document, from several, or straight from a model, a log and a probe.

    Several plans, models, hosts or GPUs make one review, a plan for each of their combinations. A simulation beside its
    plan is part of the review.

    Example: kvplan report --model llama-3.1-8b --log trace.jsonl --probe host.json --gpu h100-80gb -o review.html
    """
    from kvplan.console import note, printing, progress, stdout
    from kvplan.documents import EstimateOptions, Parallel
    from kvplan.files import dump, load
    from kvplan.report import page_of, print_page

    inputs: list[Document[Any]] = [load(path) for path in (*(documents or ()), *(probe_file or ()))]
    gpus: Sequence[str | None] = gpu or [None]
    options = EstimateOptions(
        engine=engine,
        kv_dtype=kv_dtype,
        parallel=Parallel(tp=tp, pp=pp),
        max_model_len=opt("--max-model-len", max_model_len, parse_tokens),
        gpu=gpu_spec(gpus[0]) if len(gpus) == 1 else None,
    )
    inputs += [estimated(one, revision, options) for one in model or ()]
    policy = limits.policy(engine)
    if log:
        with progress(quiet) as listen:
            requests = reading.requests(log, listen)
            inputs = profiled_for(inputs, requests, gpus, policy, listen)
    if not inputs:
        raise UsageError("nothing to report: name a document, or give --model and --log")
    made = _reviewed(inputs, gpus, policy, prices, what_if, against)
    page = page_of(made)
    for path in output or ():
        _write_report(page, made, path)
        note(f"wrote {path}", quiet)
    if as_json:
        text = dump(_single(made, "--json"))
        with printing():
            sys.stdout.write(text)
    elif not output:
        with printing():
            print_page(page, stdout(), full)


def _reviewed(
    inputs: list[Document[Any]],
    gpus: Sequence[str | None],
    policy: Policy,
    prices: Path | None,
    what_if: list[str] | None,
    earlier: Path | None,
) -> list[Document[Any]]:
    """The plans among the inputs, those that the rest of them makes, simulations; one that is alone stays itself."""
    plans = [document for document in inputs if document.kind == "kvplan.plan"]
    played = [document for document in inputs if document.kind == "kvplan.simulation"]
    rest = [document for document in inputs if document.kind not in ("kvplan.plan", "kvplan.simulation")]
    if len(rest) + len(played) == 1 and not plans and not what_if and not earlier:
        return [*rest, *played]
    made = [_beside(document, what_if, earlier) for document in plans]
    for documents, gpu in cases_of(rest, gpus) if rest else ():
        made.append(planned(documents, gpu, policy, prices, what_if, earlier))
    return [*made, *played]


def _beside(document: Document[Plan], what_if: list[str] | None, earlier: Path | None) -> Document[Plan]:
    """A finished plan with what-ifs or an earlier plan beside it, where they are asked for."""
    from msgspec.structs import replace

    from kvplan import plan
    from kvplan.files import load

    data = document.data
    if what_if:
        data = plan.what_if(data, what_if)
    if earlier:
        data = plan.against(data, pick([load(earlier)], "plan", True))
    return replace(document, data=data)


def _single(documents: list[Document[Any]], what: str) -> Document[Any]:
    """The one document of a review. Raises UsageError where there are several, which are no document."""
    if len(documents) > 1:
        kinds = {document.kind.removeprefix("kvplan.") + "s" for document in documents}
        names = kinds.pop() if len(kinds) == 1 else "documents"
        raise UsageError(
            f"{what}: {len(documents)} {names} are not one document: save each with its own command and -o FILE"
        )
    return documents[0]


def _write_report(page: Page, documents: list[Document[Any]], path: Path) -> None:
    """Write a page as HTML, Markdown with its pictures beside it, or its document as JSON, by the file's ending."""
    from kvplan.files import dump, make_folder, write_atomically
    from kvplan.report import html, markdown

    match path.suffix.lower():
        case ".html" | ".htm":
            write_atomically(path, html(page))
        case ".md":
            folder = path.with_name(f"{path.stem}-files")
            text, figures = markdown(page, folder.name)
            if figures:
                make_folder(folder)
            for name, svg in figures.items():
                write_atomically(folder / name, svg)
            write_atomically(path, text)
        case ".json":
            write_atomically(path, dump(_single(documents, f"-o {path}")))
        case other:
            raise UsageError(f"-o {path}: {other or 'no ending'} is no report format: use .html, .md or .json")
