"""The HTML page in a real browser: it draws, it asks nobody, it complains of nothing, it fits a phone and a sheet."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import chromium
import pytest
import samples
from records import replace

from kvplan import report
from kvplan.page import Figure, Page

pytestmark = pytest.mark.browser

HOSTILE = '</script><script>window.pwned=1</script><img src=x onerror="window.pwned=1">'


@pytest.fixture(scope="module")
def tab() -> Iterator[chromium.Tab]:
    program = chromium.find()
    if program is None:
        pytest.skip(f"no browser of {', '.join(chromium.NAMES)} on this machine: HTML was not opened in one")
    with chromium.tab(program) as tab:
        yield tab


def pages() -> dict[str, Page]:
    return {kind: report.sections(getattr(samples, kind)()) for kind in ("estimate", "workload", "probe", "plan")}


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("pages")
    paths = {}
    for kind, page in pages().items():
        paths[kind] = folder / f"{kind}.html"
        paths[kind].write_text(report.html(page), encoding="utf-8")
    return paths


def charts(page: Page) -> int:
    figures = (block for section in page.sections for block in section.blocks if isinstance(block, Figure))
    return sum(len(figure.charts) for figure in figures)


@pytest.mark.parametrize("kind", ["estimate", "workload", "probe", "plan"])
def test_charts_are_drawn_without_a_request_or_a_complaint(
    tab: chromium.Tab, files: dict[str, Path], kind: str
) -> None:
    tab.open(files[kind])
    count = charts(pages()[kind])
    assert count > 0
    assert tab.evaluate("document.querySelectorAll('.chart.drawn .live svg').length") == count
    assert tab.evaluate("[...document.querySelectorAll('.live svg')].every(e => e.getBoundingClientRect().width > 300)")
    assert tab.evaluate("[...document.querySelectorAll('.still')].every(e => !e.offsetHeight)")
    assert tab.requests() == []
    assert tab.complaints() == []


@pytest.mark.parametrize("width", [320, 375, 768])
def test_the_page_is_never_wider_than_the_screen(tab: chromium.Tab, files: dict[str, Path], width: int) -> None:
    for kind in files:
        tab.open(files[kind], width=width, height=800)
        assert tab.evaluate("document.documentElement.scrollWidth") <= width, kind
        assert tab.complaints() == []


def test_colours_follow_the_reader(tab: chromium.Tab, files: dict[str, Path]) -> None:
    words = "getComputedStyle(document.querySelector('.live svg text')).fill"
    bars = "getComputedStyle(document.querySelector('#figure-budgets .live svg path[fill^=var]')).fill"
    ask = f"[getComputedStyle(document.body).backgroundColor, {words}, {bars}]"
    tab.open(files["plan"])
    light = tab.evaluate(ask)
    tab.open(files["plan"], dark=True)
    dark = tab.evaluate(ask)
    assert light[0] == "rgb(255, 255, 255)"
    assert all(a != b for a, b in zip(light, dark, strict=True)), (light, dark)


def test_without_script_the_still_pictures_are_there(tab: chromium.Tab, files: dict[str, Path]) -> None:
    tab.open(files["plan"], script=False)
    tree = tab.send("DOMSnapshot.captureSnapshot", computedStyles=["display"])
    strings, nodes = tree["strings"], tree["documents"][0]["nodes"]
    laid_out = {strings[nodes["nodeName"][index]] for index in tree["documents"][0]["layout"]["nodeIndex"]}
    assert "svg" in laid_out
    assert tab.requests() == []


def test_it_prints_the_still_pictures_on_more_than_one_sheet(
    tab: chromium.Tab, files: dict[str, Path], tmp_path: Path
) -> None:
    tab.open(files["plan"], dark=True)
    tab.pdf(tmp_path / "plan.pdf")
    printed = (tmp_path / "plan.pdf").read_bytes()
    assert printed.startswith(b"%PDF")
    assert printed.count(b"/Type /Page\n") > 2
    tab.send("Emulation.setEmulatedMedia", media="print", features=[])
    shown = "[...document.querySelectorAll('.still svg')].every(e => e.getBoundingClientRect().height > 20)"
    assert tab.evaluate(shown)
    assert tab.evaluate("[...document.querySelectorAll('.live')].every(e => !e.offsetHeight)")
    assert tab.evaluate("getComputedStyle(document.body).backgroundColor") == "rgb(255, 255, 255)"
    tab.send("Emulation.setEmulatedMedia", media="")


def test_a_hostile_document_runs_nothing(tab: chromium.Tab, tmp_path: Path) -> None:
    workload = samples.workload().data
    source = replace(workload.sources[0], name=HOSTILE, format=HOSTILE)
    tenants = tuple(replace(tenant, tenant=HOSTILE) for tenant in workload.tenants)
    path = tmp_path / "hostile.html"
    page = report.sections(samples.envelope("workload", replace(workload, sources=(source,), tenants=tenants)))
    path.write_text(report.html(page), encoding="utf-8")
    tab.open(path)
    assert tab.evaluate("typeof window.pwned") == "undefined"
    assert tab.evaluate("document.querySelectorAll('img').length") == 0
    assert HOSTILE in tab.evaluate("document.querySelector('h1').textContent")
    assert tab.requests() == []
    assert tab.complaints() == []


def test_even_a_script_that_got_in_would_not_run(tab: chromium.Tab, files: dict[str, Path], tmp_path: Path) -> None:
    text = files["estimate"].read_text(encoding="utf-8")
    path = tmp_path / "injected.html"
    path.write_text(text.replace("</main>", HOSTILE.removeprefix("</script>") + "</main>"), encoding="utf-8")
    tab.open(path)
    assert tab.evaluate("typeof window.pwned") == "undefined"
    assert any("Content Security Policy" in words for words in tab.complaints())
