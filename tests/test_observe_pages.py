"""An observation as a page, in every form; and whole commands: what they load, what damaged pages do to them."""

from __future__ import annotations

import io
import random
import re
from pathlib import Path

import pytest
import samples
from hypothesis import example, given, settings
from hypothesis import strategies as st
from records import replace
from rich.console import Console
from test_startup import loaded_by

from kvplan import report
from kvplan.documents import Document, Observation, PlanCheck
from kvplan.errors import KvplanError
from kvplan.files import dump, parse, wrap
from kvplan.observe import observe, saved
from kvplan.observing.exposition import Page
from kvplan.observing.exposition import parse as parse_page
from kvplan.observing.recording import Recording, Track
from kvplan.observing.scrape import Taken
from kvplan.pages.observation import _whys

PAGES = Path(__file__).parent / "metrics"
PLAN = samples.plan()
SYSTEMS = sorted({path.stem.removesuffix("_before") for path in PAGES.glob("*_before.txt")})


def of(name: str, **more: object) -> Document[Observation]:
    taken = saved([PAGES / f"{name}_before.txt", PAGES / f"{name}_after.txt"], 600.0)
    return wrap(observe(taken, **more))  # type: ignore[arg-type]


def series(rounds: int = 20) -> Document[Observation]:
    """The made-up load of vLLM with tiers, a page every 30 seconds, each counter growing evenly."""
    first, last = (
        parse_page((PAGES / f"vllm_tiers_{when}.txt").read_text(), when).samples for when in ("before", "after")
    )
    pages = tuple(
        Page({key: first[key] + (value - first[key]) * index / rounds for key, value in last.items()})
        for index in range(rounds + 1)
    )
    recording = Recording([30.0 * index for index in range(rounds + 1)], [Track("http://host/metrics", pages)])
    return wrap(observe(Taken(recording), PLAN))


def terminal(document: Document[Observation], full: bool = True) -> str:
    out = io.StringIO()
    report.print_page(report.sections(document), Console(file=out, width=200, highlight=False), full)
    return out.getvalue()


@pytest.mark.parametrize("name", SYSTEMS)
def test_every_system_has_a_page_in_every_form(name: str) -> None:
    document = of(name)
    shown = document.data.hit_ratio
    for text in (
        terminal(document),
        report.markdown(report.sections(document), "files")[0],
        report.html(report.sections(document)),
    ):
        plain = text.replace("\u202f", " ").replace("\u00a0", " ").replace("&#x27;", "'")
        assert document.data.systems[0].title in plain
        if shown is not None:
            assert f"{shown * 100:.1f} %" in plain
        assert "None" not in re.sub(r"<style.*?</style>|<script.*?</script>", "", text, flags=re.DOTALL)


@pytest.mark.parametrize("name", SYSTEMS)
def test_a_document_survives_its_file(name: str) -> None:
    document = of(name)
    assert parse(dump(document).encode(), "file") == document


def test_the_terminal_says_tiers_rates_waits_and_what_differs_from_the_plan() -> None:
    text = terminal(series(), full=False)
    for words in (
        "60.0 % of 1 M prompt tokens hit, over 10 min",
        "GPU to host memory (store)",
        "20.00 GB/s",
        "763 ms (500 ms to 1 s)",
        "hits, host memory",
        "-6.7 points",
        "where it differs",
        "failed-host",
    ):
        assert words in text, words


def test_intervals_become_steps_of_the_right_width() -> None:
    document = series(rounds=4)
    moments = document.data.moments
    assert [(one.from_s, one.span_s) for one in moments] == [(0, 30), (30, 30), (60, 30), (90, 30)]
    assert all(one.hit_ratio == pytest.approx(0.6) for one in moments)
    assert all(one.store_bytes_per_s == pytest.approx(60e9 / 120) for one in moments)
    section = next(section for section in report.sections(document).sections if section.name == "time")
    ratio, rates, queue = section.blocks
    points = ratio.charts[0].series[0].points  # type: ignore[union-attr]
    assert [at for at, _ in points] == [0, 30, 60, 90, 120]
    assert [line.name for line in rates.charts[0].series] == ["stored", "loaded"]  # type: ignore[union-attr]
    assert [at for at, _ in queue.charts[0].series[0].points] == [30, 60, 90, 120]  # type: ignore[union-attr]


def test_markdown_has_the_pictures_and_the_planned_line() -> None:
    text, pictures = report.markdown(report.sections(series()), "files")
    assert sorted(pictures) == ["hit-ratio.svg", "queue.svg", "rates.svg"]
    assert "files/hit-ratio.svg" in text
    assert "planned" in pictures["hit-ratio.svg"]


def test_tiers_that_a_server_counts_and_does_not_have_are_left_out_of_the_page() -> None:
    text = terminal(of("vllm_cpu"))
    assert "any tier below the GPU" not in text
    assert "remote store" not in text


def test_observing_loads_nothing_heavy(tmp_path: Path) -> None:
    pages = [str(PAGES / f"vllm_tiers_{when}.txt") for when in ("before", "after")]
    assert loaded_by(["observe", *pages, "--elapsed", "10m"], tmp_path) == set()
    assert loaded_by(["observe", *pages, "--elapsed", "10m", "--json"], tmp_path) == set()
    assert loaded_by(["observe", "--dashboard", "out"], tmp_path) == set()


@example(340, "vllm_tiers")  # a bucket whose limit became -1
@settings(deadline=None, max_examples=60)
@given(st.integers(0, 2**32), st.sampled_from(SYSTEMS))
def test_damaged_pages_are_read_or_refused_in_one_line(seed: int, name: str) -> None:
    """Bytes changed, lines dropped, doubled, swapped and cut: figures come out, or one line; never anything else."""
    chance = random.Random(seed)
    pages = []
    for when in ("before", "after"):
        lines = (PAGES / f"{name}_{when}.txt").read_text().split("\n")[-120:]
        for _ in range(chance.randrange(6)):
            at = chance.randrange(len(lines))
            match chance.randrange(4):
                case 0:
                    lines.pop(at) if len(lines) > 1 else None
                case 1:
                    lines.insert(at, chance.choice(lines))
                case 2:
                    lines[at] = lines[at].replace("1", chance.choice(["9", "-1", "NaN", "+Inf", "e", ""]))
                case 3:
                    lines[at] = lines[at][: chance.randrange(len(lines[at]) + 1)]
        pages.append("\n".join(lines))
    try:
        read = tuple(parse_page(text, "page") for text in pages)
        document = wrap(observe(Taken(Recording([0.0, 10.0], [Track("page", read)])), PLAN))
    except KvplanError as error:
        lines = str(error).splitlines()
        if len(lines) != 1:
            raise
        return
    assert parse(dump(document).encode(), "file") == document
    report.sections(document)


def test_reasons_of_higher_and_of_lower_hits_stand_apart() -> None:
    def check(what: str, observed: float, why: str) -> PlanCheck:
        return PlanCheck(what=what, unit="ratio", planned=0.5, observed=observed, agrees=False, why=(why, "both"))

    rows = (check("hits, all tiers", 0.8, "more is shared"), check("hits, host memory", 0.2, "a cold start"))
    mixed = _whys(replace(of("vllm_tiers").data, beside_plan=rows))
    assert mixed == [("hits, all tiers", "more is shared"), ("", "both"), ("hits, host memory", "a cold start")]
    alike = _whys(replace(of("vllm_tiers").data, beside_plan=(replace(rows[0], observed=0.1), rows[1])))
    assert alike == [("hits", "more is shared"), ("", "both"), ("", "a cold start")]
