"""Any document as a page for people: `sections` makes the page, the rest shows it.

A page is data (page.py); what it says of each kind of document is in pages/, how it looks is in render/.
Charts cost a renderer's start, so only Markdown and HTML load one.
"""

from __future__ import annotations

from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, Any

from kvplan.documents import Document
from kvplan.errors import KvplanError
from kvplan.page import Page

if TYPE_CHECKING:
    from rich.console import Console

# Module and function of each kind's page: a command shows one kind and need not load the others.
_PAGES: dict[str, tuple[str, str]] = {
    "kvplan.model": ("model", "page"),
    "kvplan.estimate": ("estimate", "page"),
    "kvplan.estimates": ("estimate_more", "side_by_side"),
    "kvplan.fit": ("estimate_more", "fit_page"),
    "kvplan.workload": ("workload", "page"),
    "kvplan.probe": ("probe", "page"),
    "kvplan.plan": ("plan", "page"),
    "kvplan.simulation": ("simulation", "page"),
    "kvplan.residency": ("residency", "page"),
    "kvplan.export": ("export", "page"),
    "kvplan.check": ("export", "check_page"),
    "kvplan.observation": ("observation", "page"),
    "kvplan.replay": ("comparison", "replay_page"),
    "kvplan.comparison": ("comparison", "page"),
}


def sections(document: Document[Any]) -> Page:
    """The page of a document. Raises KvplanError for a kind that has none."""
    if document.kind not in _PAGES:
        raise KvplanError(f"no report for a document of kind {document.kind!r} (known: {', '.join(_PAGES)})")
    module, function = _PAGES[document.kind]
    page: Page = getattr(import_module(f"kvplan.pages.{module}"), function)(document)
    return page


def page_of(documents: Sequence[Document[Any]]) -> Page:
    """The page of one document, or the review of plans with their simulations.

    Raises KvplanError for several documents of another kind, or a simulation of another model than the plans'.
    """
    if len(documents) == 1:
        return sections(documents[0])
    plans = [document for document in documents if document.kind == "kvplan.plan"]
    simulations = [document for document in documents if document.kind == "kvplan.simulation"]
    other = next((one.kind for one in documents if one.kind not in ("kvplan.plan", "kvplan.simulation")), None)
    if other is not None:
        raise KvplanError(f"a review of {len(documents)} documents is made of plans, and one of them is a {other}")
    if not plans:
        raise KvplanError(f"{len(simulations)} simulations make no review: name the plan that they play, or just one")
    from kvplan.pages import review

    page = sections(plans[0]) if len(plans) == 1 else review.page(plans)
    return review.with_simulations(page, [one.data for one in plans], simulations)


def print_page(page: Page, console: Console, full: bool = False) -> None:
    """Print the first screen of a page, or all of it; see render/terminal.py."""
    from kvplan.render import terminal

    terminal.print_page(page, console, full)


def markdown(page: Page, figures: str) -> tuple[str, dict[str, str]]:
    """Markdown text whose pictures lie in the folder `figures`, and SVG text by file name in that folder."""
    from kvplan.render.markdown import render

    return render(page, figures)


def html(page: Page) -> str:
    """One self-contained HTML file: no request ever leaves it."""
    from kvplan.render.html import render

    return render(page)
