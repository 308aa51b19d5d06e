"""The HTML pages by axe-core's rules of accessibility: on a desk and a phone, light and dark, and as they print.

axe-core comes from npm and belongs to nobody's installation: `make check-page` fetches it into a temporary folder and
says where in KVPLAN_AXE.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import chromium
import pytest
import samples

from kvplan import report

pytestmark = pytest.mark.browser

PAGES = ("estimate", "workload", "probe", "plan", "reviewed", "several")
SCREENS: dict[str, dict[str, int | bool]] = {
    "desk": {},
    "desk, dark": {"dark": True},
    "phone": {"width": 390, "height": 800},
    "phone, dark": {"width": 390, "height": 800, "dark": True},
    "print": {"width": 794},
}
RUN = """axe.run(document, {resultTypes: ['violations']}).then(result => ({
    passes: result.passes.length,
    violations: result.violations.map(one => one.id + ': ' + one.help + ': ' + one.nodes.length + ' times, first '
        + one.nodes[0].html.slice(0, 200) + ' (' + one.nodes[0].failureSummary.slice(0, 300) + ')')
}))"""


@pytest.fixture(scope="module")
def axe() -> str:
    place = os.environ.get("KVPLAN_AXE")
    if not place:
        pytest.skip("KVPLAN_AXE names no axe.min.js: the pages were not held against axe-core (make check-page does)")
    return Path(place).read_text(encoding="utf-8")


@pytest.fixture(scope="module")
def tab(axe: str) -> Iterator[chromium.Tab]:
    program = chromium.find()
    if program is None:
        pytest.skip(f"no browser of {', '.join(chromium.NAMES)} on this machine: axe-core was not run")
    with chromium.tab(program) as tab:
        yield tab


@pytest.fixture(scope="module", params=PAGES)
def file(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory, axe: str) -> Path:
    kind = request.param
    documents = [samples.plan(), samples.reviewed()] if kind == "several" else [getattr(samples, kind)()]
    path = tmp_path_factory.mktemp("axe") / f"{kind}.html"
    path.write_text(report.html(report.page_of(documents)), encoding="utf-8")
    return path


@pytest.mark.parametrize("screen", SCREENS)
def test_axe_finds_no_violation(tab: chromium.Tab, file: Path, axe: str, screen: str) -> None:
    tab.open(file, **SCREENS[screen])  # type: ignore[arg-type]
    if screen == "print":
        tab.send("Emulation.setEmulatedMedia", media="print", features=[])
    tab.evaluate("document.querySelectorAll('details').forEach(one => one.open = true)")
    tab.evaluate(f"{axe};0")
    result = tab.evaluate(RUN)
    tab.send("Emulation.setEmulatedMedia", media="")
    assert result["passes"] > 20, "axe-core did not run"
    assert result["violations"] == []
