"""Pages of every kind of document in all three forms: nothing lost, nothing let out, nothing made up."""

from __future__ import annotations

import base64
import hashlib
import html as stdlib_html
import io
import json
import os
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import msgspec
import pytest
import samples
from hypothesis import given
from hypothesis import strategies as st
from markdown_it import MarkdownIt
from msgspec.structs import fields
from records import replace
from rich.console import Console
from typer.testing import CliRunner

from kvplan import cli, documents, report
from kvplan.documents import Document, Finding
from kvplan.errors import KvplanError
from kvplan.files import dump, load
from kvplan.page import Decision, Figure, Findings, Page, Row, Table, alts, clean, prose
from kvplan.pages import parts, workload_figures
from kvplan.pages.plan_inputs import policy_flags, unflagged
from kvplan.render import html, markdown

GOLDEN = Path(__file__).parent / "golden"
KINDS = ("estimate", "workload", "probe", "plan", "model", "reviewed")
HOSTILE = "</script><script>window.pwned=1</script><img src=x onerror=pwned()>[bold]|`*_ \x1b[31m\u202e\"'&amp;"


def model() -> Document[documents.Model]:
    """A model of two kinds of layer."""
    full = documents.LayerCache(kind="full", heads=8, k_dim=128, v_dim=128, keys=("num_key_value_heads",))
    state = documents.StateTensor(role="state", shape=(16, 64, 128))
    layers = (
        documents.Layer(caches=(full,)),
        documents.Layer(caches=(documents.LayerCache(kind="recurrent", state=(state,)),)),
        documents.Layer(note="an MLP"),
    )
    ref = samples.estimate().data.model
    return samples.envelope(
        "model", documents.Model(ref=ref, dtype="bf16", layers=layers, order=(0, 1, 1, 2), num_layers=4)
    )


def sample(kind: str) -> Document[Any]:
    document: Document[Any] = model() if kind == "model" else getattr(samples, kind)()
    return document


@cache
def page(kind: str) -> Page:
    return report.sections(sample(kind))


@cache
def whole(kind: str) -> str:
    return report.html(page(kind))


def printed(page: Page, width: int = 100, full: bool = False, **options: Any) -> str:
    stream = io.StringIO()
    report.print_page(page, Console(file=stream, width=width, highlight=False, **options), full)
    return stream.getvalue()


def blocks(page: Page, kind: type) -> Iterator[Any]:
    return (block for section in page.sections for block in section.blocks if isinstance(block, kind))


def squeezed(text: str) -> str:
    return re.sub(r"\s+", "", text)


class Tags(HTMLParser):
    """Elements and visible text of an HTML document."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.words: list[str] = []
        self.scripts: list[str] = []
        self.open: list[str] = []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append((tag, dict(attrs)))
        self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        if tag in self.open:
            while self.open.pop() != tag:
                pass

    def handle_data(self, data: str) -> None:
        if self.open and self.open[-1] == "script":
            self.scripts.append(data)
        elif not self.open or self.open[-1] != "style":
            self.words.append(data)


# ------------------------------------------------------------------------------------------------- any page


@pytest.mark.parametrize("kind", KINDS)
def test_every_section_is_in_every_form(kind: str) -> None:
    shown = page(kind)
    text, images = report.markdown(shown, "figures")
    screen = printed(shown, full=True)
    assert shown.sections
    for section in shown.sections:
        assert f"## {markdown.escape(section.heading)}\n" in text
        assert f'<section id="{section.name}"' in whole(kind)
        assert section.heading in screen
    names = [section.name for section in shown.sections]
    assert len(set(names)) == len(names)
    assert set(re.findall(r"\]\(figures/([^)]+)\)", text)) == set(images)
    assert all(svg.startswith("<svg") for svg in images.values())


@pytest.mark.parametrize("kind", KINDS)
def test_a_first_screen_answers_and_leaves_the_rest_out(kind: str) -> None:
    shown = page(kind)
    first, whole = printed(shown), printed(shown, full=True)
    assert squeezed(shown.lead) in squeezed(re.sub("[│╭╮╰╯─]", "", first))
    assert len(first) < len(whole) or kind == "model"


def test_a_kind_without_a_page_is_refused() -> None:
    with pytest.raises(KvplanError, match=r"kvplan\.weather.*known: kvplan\.model, kvplan\.estimate"):
        report.sections(replace(sample("estimate"), kind="kvplan.weather"))


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("width", [60, 80, 100, 200])
def test_no_number_of_a_table_is_cut(kind: str, width: int) -> None:
    shown = page(kind)
    lines = {squeezed(line) for line in printed(shown, width, full=True).splitlines()}
    for table in blocks(shown, Table):
        for row in table.rows:
            for cell, column in zip(row.cells, table.columns, strict=True):
                if column.kind == "number":
                    assert any(squeezed(cell) in line for line in lines), (table.title, cell)


@pytest.mark.parametrize("kind", KINDS)
def test_a_pipe_gets_every_cell_whole(kind: str) -> None:
    shown = page(kind)
    out = squeezed(printed(shown, 2000, full=True))
    for table in blocks(shown, Table):
        for row in table.rows:
            for cell in row.cells:
                assert squeezed(cell) in out


@pytest.mark.parametrize("kind", KINDS)
def test_a_stream_that_knows_only_ascii_gets_ascii(kind: str) -> None:
    raw = io.BytesIO()
    stream = io.TextIOWrapper(raw, encoding="ascii", errors="strict", write_through=True)
    report.print_page(page(kind), Console(file=stream, width=100, highlight=False), full=True)
    text = raw.getvalue().decode("ascii")
    assert page(kind).sections[-1].heading in text
    assert "\\u" not in text, "a character of ours has no ASCII spelling"


def test_no_escape_codes_without_a_terminal_nor_on_a_dumb_one(monkeypatch: pytest.MonkeyPatch) -> None:
    assert "\x1b" not in printed(page("plan"))
    monkeypatch.setenv("TERM", "dumb")
    monkeypatch.delenv("NO_COLOR")
    assert "\x1b" not in printed(page("plan"), force_terminal=True)


def test_colour_only_where_it_is_wanted(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm-256color")
    assert not re.search("\x1b\\[[0-9;]*3[0-9]", printed(page("plan"), force_terminal=True)), "NO_COLOR is set"
    monkeypatch.delenv("NO_COLOR")
    assert re.search("\x1b\\[[0-9;]*3[0-9]", printed(page("plan"), force_terminal=True))


@pytest.mark.parametrize("kind", KINDS)
def test_every_figure_has_a_reading_and_words_for_those_who_do_not_see_it(kind: str) -> None:
    seen = Tags(whole(kind))
    labels = [attrs.get("aria-label") for tag, attrs in seen.tags if tag == "div" and attrs.get("role") == "img"]
    wanted = [alt for figure in blocks(page(kind), Figure) for alt in alts(figure)]
    assert [label.replace("\xa0", " ") for label in labels if label] == wanted
    for figure in blocks(page(kind), Figure):
        assert figure.reading.endswith(".")
        assert "\n" not in figure.reading
        assert len(figure.alt) > 30


def test_provenance_is_shown_beside_the_figure_it_vouches_for() -> None:
    text = whole("plan")
    for evidence in samples.plan().data.evidence:
        row = f'<td><span class="badge {evidence.provenance}">{evidence.provenance}</span></td>'
        assert row in text
    assert "assumed" in printed(page("workload"))


# -------------------------------------------------------------------------------------------- one file, alone


def test_html_asks_nobody_for_anything() -> None:
    for kind in KINDS:
        seen = Tags(whole(kind))
        for tag, attrs in seen.tags:
            for name, value in attrs.items():
                if name in ("src", "href", "srcset", "action", "data", "poster", "xlink:href"):
                    assert value is not None
                    assert value.startswith("#"), (tag, name, value)
            assert tag not in ("link", "iframe", "object", "embed", "base")
        css = whole(kind).split("<style>")[1].split("</style>")[0]
        assert "url(" not in css
        assert "@import" not in css


def test_the_policy_allows_the_page_its_own_script_and_nothing_else() -> None:
    seen = Tags(whole("workload"))
    policy = next(a["content"] for tag, a in seen.tags if a.get("http-equiv") == "Content-Security-Policy")
    assert policy is not None
    assert policy.startswith("default-src 'none'")
    assert "unsafe-eval" not in policy
    programs = [one for one in seen.scripts if not one.startswith("{")]
    assert len(programs) == 1
    digest = base64.b64encode(hashlib.sha256(programs[0].encode()).digest()).decode()
    assert f"script-src 'sha256-{digest}'" in policy
    assert "vegaEmbed" in programs[0]


def test_a_page_without_charts_has_no_script() -> None:
    assert "<script" not in whole("model")


def test_each_chart_is_there_still_and_as_a_spec() -> None:
    seen = Tags(whole("plan"))
    charts = sum(len(figure.charts) for figure in blocks(page("plan"), Figure))
    specs = [json.loads(one) for one in seen.scripts if one.startswith("{")]
    assert len(specs) == charts > 5
    assert sum(tag == "div" and attrs.get("class") == "still" for tag, attrs in seen.tags) == charts


# ------------------------------------------------------------------------------------------ foreign strings


@cache
def poisoned(kind: str) -> Page:
    return report.sections(replace(sample(kind), data=poison(sample(kind).data)))


def poison(value: Any) -> Any:
    """The same document with every free text replaced by something that wants out."""
    if isinstance(value, str):
        return HOSTILE
    if isinstance(value, tuple):
        return tuple(poison(one) for one in value)
    if isinstance(value, dict):
        return {HOSTILE + key: poison(one) for key, one in value.items()}
    if isinstance(value, msgspec.Struct):
        closed = (
            "view",
            "routing",
            "share",
            "disk_admission",
            "price_view",
            "kind",
            "severity",
            "provenance",
            "direction",
            "verdict",
            "tier",
            "grade",
            "unit",
            "source",
            "direct",
        )
        keep = {"name"} if isinstance(value, documents.Alternative) else set()
        kept = (
            {*closed, *keep} if not isinstance(value, documents.Evidence | documents.Link) else set(closed) - {"source"}
        )
        if isinstance(value, documents.Weights | documents.Prefill | documents.ServiceModel):
            kept.discard("source")
        names = (one.name for one in fields(value))
        return replace(value, **{name: poison(getattr(value, name)) for name in names if name not in kept})
    return value


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_names_stay_text_in_html(kind: str) -> None:
    text = report.html(poisoned(kind))
    seen = Tags(text)
    assert not [tag for tag, _ in seen.tags if tag == "img"]
    assert not [name for _, attrs in seen.tags for name in attrs if name.startswith("on")]
    charts = sum(len(figure.charts) for figure in blocks(poisoned(kind), Figure))
    assert sum(tag == "script" for tag, _ in seen.tags) == (charts + 1 if charts else 0)
    assert "\x1b" not in text
    assert "\u202e" not in text
    shown = "".join(seen.words).replace("\xa0", " ")
    assert "</script><script>window.pwned=1</script><img src=x onerror=pwned()>[bold]|" in shown
    for spec in (one for one in seen.scripts if one.startswith("{")):
        json.loads(spec)
        assert "</" not in spec


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_names_stay_text_on_a_terminal(kind: str) -> None:
    out = printed(poisoned(kind), 4000, full=True)
    assert "\x1b" not in out
    assert "\u202e" not in out
    assert "[bold]|" in out
    assert "\\x1b[31m" in out


@pytest.mark.parametrize("kind", KINDS)
def test_hostile_names_stay_text_in_markdown(kind: str) -> None:
    text, _ = report.markdown(poisoned(kind), "figures of [mine]")
    rendered = MarkdownIt("commonmark", {"html": True}).enable("table").render(text)
    seen = Tags(rendered)
    allowed = {"h1", "h2", "p", "ul", "li", "strong", "em", "code", "pre", "blockquote", "img"}
    allowed |= {"table", "thead", "tbody", "tr", "th", "td"}
    assert {tag for tag, _ in seen.tags} <= allowed
    pictures = sum(len(figure.charts) for figure in blocks(poisoned(kind), Figure))
    assert sum(tag == "img" for tag, _ in seen.tags) == pictures
    tables = [table for table in blocks(poisoned(kind), Table) if table.rows]
    assert sum(tag == "table" for tag, _ in seen.tags) == len(tables)


@given(st.text())
def test_markdown_shows_exactly_the_text(text: str) -> None:
    rendered = MarkdownIt("commonmark", {"html": True}).enable(["table", "strikethrough"]).render(markdown.escape(text))
    words = "".join(Tags(rendered).words)
    assert " ".join(words.split()) == " ".join(clean(text).split())


@given(st.text(min_size=1).filter(lambda text: text.split()))
def test_markdown_code_shows_exactly_the_text(text: str) -> None:
    spans = MarkdownIt("commonmark").parseInline(markdown.code(text).replace("\\|", "|"))[0].children or []
    assert [(span.type, span.content) for span in spans] == [("code_inline", " ".join(clean(text).split()))]


@given(st.text())
def test_html_shows_exactly_the_text(text: str) -> None:
    assert "<" not in html.escape(text)
    assert stdlib_html.unescape(html.escape(text)).replace("\xa0", " ") == clean(text).replace("\xa0", " ")


@given(st.text())
def test_clean_text_has_no_control_and_cleaning_it_again_changes_nothing(text: str) -> None:
    cleaned = clean(text)
    assert clean(cleaned) == cleaned
    assert all(c == "\n" or c.isprintable() or ord(c) >= 160 for c in cleaned)


def test_words_between_backticks_are_code() -> None:
    assert prose("run `a b` now") == [("run ", False), ("a b", True), (" now", False)]
    assert html.words("run `a<b`") == "run <code>a&lt;b</code>"
    assert markdown.words("run `a|b` *") == "run `a\\|b` \\*"
    assert prose("one ` alone") == [("one ` alone", False)]


# -------------------------------------------------------------------------------------------------- unknowns


def test_a_log_without_time_stamps_has_a_page() -> None:
    workload = samples.workload().data
    untimed = replace(
        workload,
        span_s=None,
        active_tokens=None,
        active_requests=None,
        service=None,
        reuse_intervals=(),
        working_set=(),
        load=(),
        curve=tuple(replace(point, fill_time_s=None) for point in workload.curve),
    )
    out = printed(report.sections(samples.envelope("workload", untimed)), full=True)
    assert "no time stamps" in out
    assert "fills in" not in out
    assert "unknown" in out


def test_a_log_that_repeats_nothing_says_so() -> None:
    workload = replace(samples.workload().data, ceiling_hit_ratio=0.0, curve=())
    shown = report.sections(samples.envelope("workload", workload))
    assert "no cache of any size would help" in shown.lead
    report.html(shown)
    printed(shown)


def test_a_gpu_of_which_only_the_cache_is_known_has_a_page() -> None:
    memory = documents.GpuMemory(
        gpu="stated",
        total_bytes=None,
        usable_bytes=None,
        weights_bytes=None,
        overhead_bytes=None,
        kv_bytes=20 * 2**30,
        kv_tokens=163_840,
    )
    shown = report.sections(samples.envelope("estimate", replace(samples.estimate().data, memory=memory)))
    out = printed(shown, full=True)
    assert "KV cache 20.00 GiB" in out
    assert "weights 0" not in out
    report.html(shown)


def test_a_host_without_gpu_links_or_limits_has_a_page() -> None:
    host = replace(samples.host(gpus=0), memlock_bytes=None, shm_total_bytes=None, shm_free_bytes=None, numa=())
    shown = report.sections(samples.envelope("probe", documents.Probe(host=host)))
    out = printed(shown, full=True)
    assert "no link measured" in out
    assert "no limit" in out
    assert "unknown" in out
    report.html(shown)


# ------------------------------------------------------------------------------------------------------ plan


def plan_with(**changes: Any) -> Page:
    return report.sections(samples.envelope("plan", replace(samples.plan().data, **changes)))


def decision(page: Page) -> Decision:
    return next(iter(blocks(page, Decision)))


def test_an_exceeded_limit_turns_the_decision_red_and_is_named() -> None:
    limit = documents.Limit(
        name="/dev/shm",
        limit=2.0**30,
        needed=2.0**31,
        unit="bytes",
        ok=False,
        why="the host tier is mapped there",
        provenance="measured",
    )
    shown = plan_with(limits=(*samples.plan().data.limits, limit))
    assert decision(shown).tone == "bad"
    assert ("Exceeds", "/dev/shm") in decision(shown).notes
    out = printed(shown)
    assert "the host tier is mapped there" in out
    assert "1 limit exceeded" in out


def test_what_would_flip_the_decision_is_what_the_sensitivity_says() -> None:
    flip = documents.Sensitivity(what="demand", change="-50 %", host_bytes=0, disk_bytes=0, net_s_per_hour=0.0)
    stay = replace(flip, change="+50 %", host_bytes=2**37, net_s_per_hour=200.0)
    budgets = samples.plan().data.budgets
    chosen = replace(budgets, host=replace(budgets.host, requested_bytes=2**37))
    notes = dict(decision(plan_with(sensitivity=(flip, stay), budgets=chosen)).notes)
    assert notes["What would flip it"] == "demand -50 %: without host memory"
    assert dict(decision(plan_with(sensitivity=(stay,), budgets=chosen)).notes)["What would flip it"].startswith(
        "none of"
    )
    assert dict(decision(plan_with(sensitivity=())).notes)["What would flip it"] == "not tested"


def test_no_price_no_dollars() -> None:
    benefit = samples.plan().data.benefit
    assert "$" not in report.html(plan_with(benefit=replace(benefit, usd_per_hour=None))).split("<script")[0]
    assert "$1.25 an hour" in printed(plan_with(benefit=replace(benefit, usd_per_hour=1.25)), full=True)


def test_the_command_that_does_it_again_is_one_that_a_shell_understands() -> None:
    policy = documents.Policy(engine="a b;rm", host_memory_bytes=2**39, forbid_disk=True, ttl_s=600.0, replicas=2)
    out = printed(plan_with(policy=policy), 4000, full=True)
    words = shlex.split(next(line for line in out.splitlines() if line.strip().startswith("kvplan plan")))
    assert words[words.index("--engine") + 1] == "a b;rm"
    assert words[words.index("--host-memory") + 1] == f"{2**39}B"
    assert {"--forbid-disk", "--ttl", "--replicas"} <= set(words)
    assert policy_flags(documents.Policy()) == ["--engine", "vllm"]
    assert "Python interface" not in out


def test_what_no_flag_can_set_is_said() -> None:
    policy = documents.Policy(growth=2.0, tolerance_ratio=0.2, forbid_host=True)
    assert unflagged(policy) == ["tolerance_ratio", "forbid_host"]
    out = printed(plan_with(policy=policy), 4000, full=True)
    assert "through the Python interface: tolerance ratio, forbid host." in out
    assert re.search(r"growth +2 +configured", out)
    assert re.search(r"tolerance +20.0 % +configured", out)
    assert re.search(r"headroom +10.0 % +default", out)


def test_every_flag_named_is_one_that_the_command_line_has() -> None:
    policy = documents.Policy(
        gpu_memory_utilization=0.5,
        host_memory_bytes=1,
        disk_bytes=1,
        disk_own_bytes=1,
        disk_admission="second-use",
        ttl_s=1.0,
        slo_ttft_s=1.0,
        restart_every_s=1.0,
        replicas=2,
        replicas_per_host=2,
        routing="round-robin",
        share="none",
        growth=2.0,
        headroom_ratio=0.5,
        expansion=2.0,
        host_link_bytes_per_s=1.0,
        price_view="rented",
        forbid_disk=True,
        allow_flagged_links=True,
        reserves=(documents.Reserve(name="other models", bytes=2**30),),
    )
    assert "other models=1073741824B" in policy_flags(policy)
    arguments = [sys.executable, "-m", "kvplan", "plan", "--help"]
    shown = subprocess.run(arguments, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "200"})
    for flag in (word for word in policy_flags(policy) if word.startswith("--")):
        assert flag in shown.stdout


def test_a_long_table_shows_its_short_form_first() -> None:
    workload = samples.workload().data
    points = tuple(replace(workload.curve[0], capacity_tokens=1000 * n, hit_ratio=n / 200) for n in range(1, 61))
    text = report.html(report.sections(samples.envelope("workload", replace(workload, curve=points))))
    before, after = text.split("<summary>All 60 rows</summary>")
    assert 5 <= before.rpartition("<tbody>")[2].count("</tr>") <= 12
    assert after.count("</tr>") >= 60


def test_a_table_of_many_columns_stands_closer() -> None:
    """So that a usual screen shows all of it; one of few columns is as wide as it was."""
    for count, dense in ((7, False), (8, True)):
        text = html._grid(parts.table("|".join(f"c{n}" for n in range(count)), [("1",) * count]))
        assert ('<table class="dense">' in text) == dense


def test_findings_come_gravest_first() -> None:
    items = tuple(Finding(severity=s, code=s, text=f"a {s}") for s in ("info", "error", "warning"))  # type: ignore[arg-type]
    shown = plan_with(findings=items)
    found = next(iter(blocks(shown, Findings)))
    assert [one.severity for one in found.items] == ["error", "warning", "info"]
    assert decision(shown).tone == "bad"


def test_the_recommended_row_stands_out() -> None:
    rows: list[Row] = [row for table in blocks(page("plan"), Table) for row in table.rows if row.strong]
    assert [row.cells[0] for row in rows] == ["recommended"]


def test_markdown_of_a_plan_is_as_it_was() -> None:
    """Fixed document, fixed page. To accept a new page: KVPLAN_UPDATE_GOLDEN=1 pytest tests/test_report.py."""
    source, golden = GOLDEN / "plan.v1.json", GOLDEN / "plan.v1.md"
    if os.environ.get("KVPLAN_UPDATE_GOLDEN"):
        source.write_text(dump(samples.plan()), encoding="utf-8")
        golden.write_text(report.markdown(report.sections(load(source)), "plan-files")[0], encoding="utf-8")
    assert report.markdown(report.sections(load(source)), "plan-files")[0] == golden.read_text(encoding="utf-8")


# -------------------------------------------------------------------------------- what stands beside a plan


def cells(page: Page, section: str, title: str = "") -> list[tuple[str, ...]]:
    """The rows of one table of a section."""
    found = next(one for one in page.sections if one.name == section)
    return [row.cells for one in found.blocks if isinstance(one, Table) and one.title == title for row in one.rows]


def test_a_restriction_is_shown_with_the_hits_that_it_gives_up() -> None:
    costs = samples.reviewed().data.policy_costs
    assert {one.policy for one in costs} >= {"forbidding disks", "the time to live", "restarts"}
    rows = cells(page("reviewed"), "policy", "Given up because of policy, one replica")
    assert [row[0] for row in rows] == [one.policy for one in costs]
    assert [row[1] for row in rows] == [f"{one.hit_ratio * 100:.1f} %" for one in costs]
    rules = dict(cells(page("reviewed"), "policy"))
    assert rules["disk"].startswith("forbidden")
    assert rules["retention"] == "dropped 5 min after the last use"
    assert "own tenant" in rules["sharing"]
    assert "none" in printed(page("plan"), full=True).split("Hits given up because of policy:")[1][:8]


def test_what_ifs_and_an_earlier_plan_stand_beside_the_plan() -> None:
    plan = samples.reviewed().data
    assert plan.against is not None
    assert [row[0] for row in cells(page("reviewed"), "what-if")] == [one.change for one in plan.what_if]
    changed = cells(page("reviewed"), "against", "What changed")
    assert changed == [(one.what, one.before, one.after) for one in plan.against.results] != []
    causes = cells(page("reviewed"), "against", "Why: the earlier plan with one new input at a time")
    assert [row[0] for row in causes] == [one.change for one in plan.against.causes]
    out = printed(page("reviewed"))
    assert "Since the earlier plan" in out
    assert samples.plan().data.decision.split(". ")[0] in " ".join(re.sub("[│]", "", out).split())
    assert "against" not in {section.name for section in page("plan").sections}


def test_the_same_plan_twice_says_that_nothing_differs() -> None:
    plan = samples.reviewed().data
    assert plan.against is not None
    same = replace(plan, against=replace(plan.against, results=(), inputs=(), causes=()))
    found = next(one for one in report.sections(samples.envelope("plan", same)).sections if one.name == "against")
    assert found.reading == "Nothing differs: the same inputs, the same plan."


def test_money_is_that_of_the_documents() -> None:
    plan = samples.reviewed().data
    assert {one.view for one in plan.costs} == {"owned", "bought", "rented"}
    rows = cells(page("reviewed"), "cost", "The recommendation under each view, and what that view would choose")
    for row, cost in zip(rows, plan.costs, strict=True):
        assert row[4] == parts.dollars(cost.net_usd_per_hour)
        assert row[6] == parts.dollars(cost.usd_per_million_input_tokens_on)
    chart = next(one for one in blocks(page("reviewed"), Figure) if one.name == "cost").charts[0]
    for series, cost in zip(chart.series, plan.costs, strict=True):
        drawn = dict(series.points)
        assert drawn.get(float(plan.budgets.host.requested_bytes)) == (
            None
            if cost.usd_per_million_input_tokens_on > 2 * cost.usd_per_million_input_tokens_off
            else pytest.approx(cost.usd_per_million_input_tokens_on, rel=1e-6)
        ), series.name
    assert "cost" not in {section.name for section in page("plan").sections}


@pytest.mark.parametrize(
    ("amount", "text"),
    [(0.0, "$0.00"), (1234.5, "$1,234.50"), (0.02034, "$0.0203"), (-0.1, "-$0.10"), (2e-6, "$2.0e-06")],
)
def test_dollars_keep_the_digits_that_matter(amount: float, text: str) -> None:
    assert parts.dollars(amount) == text


def test_a_tier_that_is_not_used_has_no_zeros() -> None:
    budgets = samples.plan().data.budgets
    assert budgets.disk.requested_bytes == 0
    row = next(row for row in cells(page("plan"), "budgets") if row[0] == "disk")
    assert row[1:4] == ("none", "", "")
    rows = cells(page("plan"), "limits")
    assert {row[1] for row in rows if row[0].startswith("disk")} == {"none"}
    assert "0.0 kB/s" not in printed(page("plan"), full=True)


def test_limits_that_matter_come_first() -> None:
    limits = samples.plan().data.limits
    broken = replace(limits[-1], name="the last", ok=False, needed=9.0, limit=1.0)
    rows = cells(plan_with(limits=(*limits[:-1], broken)), "limits")
    assert rows[0][0] == "the last"
    assert [row[1] == "none" for row in rows] == sorted(row[1] == "none" for row in rows)


def test_a_restart_and_the_links_are_told() -> None:
    plan = samples.reviewed().data
    rows = cells(page("reviewed"), "restart", "After a restart of the engine")
    assert [row[0] for row in rows] == [parts.TIERS[one.tier] for one in plan.warm_up] != []
    assert "GPU busy if every tier is lost" in printed(page("reviewed"), full=True)
    names = {figure.name for figure in blocks(page("reviewed"), Figure)}
    assert {"traffic", "link-use"} <= names
    traffic = next(figure for figure in blocks(page("reviewed"), Figure) if figure.name == "traffic").charts[0]
    chosen = next(one for one in plan.alternatives if one.name == "recommended")
    widths = [one.width_s for one in plan.inputs.workload.data.load]
    for series in traffic.series:
        sent = sum(y * width for (_, y), width in zip(series.points, widths, strict=False))
        whole = {"loads": chosen.loaded_bytes_per_hour, "stores": chosen.stored_bytes_per_hour}[series.name]
        assert sent == pytest.approx(whole * sum(widths) / 3600)


def test_the_time_to_fill_is_read_off_the_curve_both_ways() -> None:
    workload = samples.workload().data
    timed = [one for one in workload.curve if one.fill_time_s]
    for one in timed:
        assert one.fill_time_s is not None
        assert workload_figures.filled_by(workload, one.fill_time_s) == pytest.approx(one.capacity_tokens)
        assert workload_figures.fill_time(workload, one.capacity_tokens) == pytest.approx(one.fill_time_s)
    assert workload_figures.fill_time(workload, 1e18) is None
    above = next(figure for figure in blocks(page("workload"), Figure) if figure.name == "hit-ratio").charts[0].above
    assert above is not None
    assert [name for _, name in above.marks] == ["10 s", "1 min", "5 min"] or len(above.marks) > 1
    assert list(above.marks) == sorted(above.marks)


@pytest.mark.parametrize(
    ("source", "id", "name"),
    [
        ("hub", "meta-llama/Llama-3.1-8B", "meta-llama/Llama-3.1-8B"),
        ("path", "/models/Llama-3.1-8B/config.json", "Llama-3.1-8B"),
        ("path", "configs/Qwen3-8B.json", "Qwen3-8B"),
        ("path", "/models/gemma-3-27b-it", "gemma-3-27b-it"),
        ("gguf", "/data/qwen3-8b-q4_k_m.gguf", "qwen3-8b-q4_k_m"),
        ("path", "config.json", "config"),
    ],
)
def test_a_model_read_from_files_goes_by_a_short_name(source: Any, id: str, name: str) -> None:
    assert parts.model_name(replace(samples.estimate().data.model, source=source, id=id)) == name


# ------------------------------------------------------------------------------------------- several plans


def several() -> list[Document[Any]]:
    return [samples.plan(), samples.reviewed(), samples.plan()]


def test_several_plans_make_one_review() -> None:
    shown = report.page_of(several())
    names = [section.name for section in shown.sections]
    figures = [figure.name for figure in blocks(shown, Figure)]
    assert len(set(names)) == len(names)
    assert len(set(figures)) == len(figures)
    rows = cells(shown, "overview")
    assert len({row[0] for row in rows}) == 3, "every plan has a name of its own"
    assert [row[3] for row in rows] == [parts.bytes_or_none(one.data.budgets.host.requested_bytes) for one in several()]
    text, images = report.markdown(shown, "files")
    assert set(re.findall(r"\]\(files/([^)]+)\)", text)) == set(images)
    whole = report.html(shown)
    assert len(re.findall(r"<nav.*</nav>", whole)[0].split("<li>")) - 1 < len(names) / 4
    assert "together" in printed(shown)
    for one in several():
        assert squeezed(one.data.decision) in squeezed(re.sub("[│╭╮╰╯─]", "", printed(shown)))


def test_memory_of_one_host_is_added_up() -> None:
    shown = report.page_of(several())
    title = next(table.title for table in blocks(shown, Table) if "EPYC" in table.title)
    sizes = [one.data.budgets.host.requested_bytes for one in several()]
    assert dict(cells(shown, "one-host", title))["together"] == f"{sum(sizes) / 2**30:,.2f} GiB"
    elsewhere = replace(
        samples.plan().data.inputs, probe=samples.envelope("probe", documents.Probe(host=samples.host(2**40)))
    )
    other = samples.envelope("plan", replace(samples.plan().data, inputs=elsewhere))
    assert "one-host" not in {section.name for section in report.page_of([samples.plan(), other]).sections}


def test_only_plans_make_a_review() -> None:
    assert report.page_of([samples.plan()]).kind == "kvplan.plan"
    with pytest.raises(KvplanError, match=r"made of plans, and one of them is a kvplan\.workload"):
        report.page_of([samples.plan(), samples.workload()])


def command(*arguments: str) -> Any:
    result = CliRunner().invoke(cli.app, ["report", *arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    return result


def test_the_command_takes_several_plans_and_an_earlier_one(tmp_path: Path) -> None:
    new, old = tmp_path / "new.json", tmp_path / "old.json"
    new.write_text(dump(samples.reviewed()), encoding="utf-8")
    old.write_text(dump(samples.plan()), encoding="utf-8")
    both = command(str(new), str(old), "-o", str(tmp_path / "both.html"))
    assert "KV cache review of 2 plans" in (tmp_path / "both.html").read_text(encoding="utf-8"), both.output
    first, whole = command(str(old)).stdout, command(str(old), "--full").stdout
    assert "Evidence" in whole
    assert "Evidence" not in first
    assert "Since the earlier plan" in command(str(old), "--against", str(new)).stdout
    with pytest.raises(KvplanError, match="2 plans are not one document"):
        command(str(new), str(old), "--json")


def test_the_command_plans_every_combination(tmp_path: Path) -> None:
    for kind in ("estimate", "workload", "probe"):
        (tmp_path / f"{kind}.json").write_text(dump(sample(kind)), encoding="utf-8")
    bare = samples.envelope("probe", documents.Probe(host=samples.host(256 * 2**30)))
    (tmp_path / "other.json").write_text(dump(bare), encoding="utf-8")
    inputs = [str(tmp_path / f"{kind}.json") for kind in ("estimate", "workload")]
    hosts = ["--probe", str(tmp_path / "probe.json"), "--probe", str(tmp_path / "other.json")]
    out = command(*inputs, *hosts, "--gpu", "h100-80gb", "--gpu", "h200-141gb").stdout
    assert "4 plans" in out
    for words in ("h100-80gb, AMD EPYC 9354 with 512.00 GiB", "h200-141gb, AMD EPYC 9354 with 256.00 GiB"):
        assert words in out


# ------------------------------------------------------------------------------------------------------ cost


def test_a_terminal_page_loads_no_chart_library_and_no_page_loads_more_than_the_renderer() -> None:
    program = """
import sys, io
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from rich.console import Console
from kvplan import report
from kvplan.files import load
page = report.sections(load(Path(sys.argv[2])))
report.print_page(page, Console(file=io.StringIO(), width=100))
print(sorted({"altair", "vl_convert", "pandas", "numpy", "torch", "transformers"} & set(sys.modules)))
report.html(page)
print(sorted({"altair", "pandas", "numpy", "torch", "transformers"} & set(sys.modules)))
"""
    arguments = [sys.executable, "-c", program, str(Path(__file__).parents[1]), str(GOLDEN / "plan.v1.json")]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "[]"]
