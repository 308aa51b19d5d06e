"""Chart descriptions become correct axes, valid Vega-Lite, colours that follow the page, and plots of characters."""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import altair as alt
import pytest
from hypothesis import given
from hypothesis import strategies as st
from records import replace

from kvplan import charts
from kvplan.page import Axis, Bar, Bars, Bins, Chart, Marks, Part, Plot, Rule, Series, Stack, Swing, Tornado, Unit
from kvplan.render import bundle, labels, plot, scales

UNITS: tuple[Unit, ...] = ("bytes", "bytes_per_s", "tokens", "length", "s", "ratio", "count", "per_s")
CURVE = Plot(
    x=Axis(title="capacity", unit="tokens", log=True),
    y=Axis(title="hits", unit="ratio"),
    series=(Series(name="LRU", points=((0.0, 0.0), (1e3, 0.1), (1e4, 0.3), (1e5, 0.35))),),
    rules=(Rule(axis="x", value=2e4, label='the "GPU" \\ end', role="gpu"), Rule(axis="y", value=0.4, label="ceiling")),
)
BARS = Plot(
    x=Axis(title="time", unit="s", log=True),
    y=Axis(title="tokens", unit="tokens"),
    bins=(Bins(name="reused", bins=((0.0, 1.0, 5e4), (1.0, 10.0, 2e5), (10.0, 60.0, 1e4))),),
    rules=(Rule(axis="x", value=20.0, label="fills", role="host"),),
)
BAR = Stack(
    title="GPU",
    unit="bytes",
    parts=(Part(name="weights", value=16e9, role="fourth"), Part(name="KV cache", value=40e9, role="main")),
    limit=64e9,
)
SWINGS = Tornado(
    title="saved",
    unit="s",
    base=80.0,
    swings=(
        Swing(name="demand", low=60.0, high=100.0, low_label="-25 %", high_label="+25 %"),
        Swing(name="bytes a token takes in host memory", low=80.0, high=70.0, low_label="x 1", high_label="x 1.5"),
    ),
)
RATES = Bars(
    title="requests a second",
    unit="per_s",
    bars=(Bar(name="off", value=1.2, role="muted", interval=(1.0, 1.5)), Bar(name='"on"', value=1.6, role="host")),
)
CHARTS: dict[str, Chart] = {"curve": CURVE, "bins": BARS, "stack": BAR, "tornado": SWINGS, "bars": RATES}


def values(spec: Any) -> Iterator[dict[str, Any]]:
    """Every datum anywhere in a spec."""
    if isinstance(spec, dict):
        data = spec.get("data")
        if isinstance(data, dict) and isinstance(data.get("values"), list):
            yield from data["values"]
        yield from itertools.chain.from_iterable(values(part) for key, part in spec.items() if key != "data")
    elif isinstance(spec, list):
        yield from itertools.chain.from_iterable(values(part) for part in spec)


# --------------------------------------------------------------------------------------------------- scales


@pytest.mark.parametrize("unit", UNITS)
@pytest.mark.parametrize("log", [False, True])
@given(low=st.floats(1e-6, 1e15), reach=st.floats(1.01, 1e9))
def test_ticks_lie_on_the_axis_in_order_and_read_differently(unit: Unit, log: bool, low: float, reach: float) -> None:
    if unit in ("count", "length", "tokens"):
        low = max(1.0, low)
    span = (low, low * reach) if log else (0.0, low * reach)
    marks = scales.ticks(span, Axis(title="", unit=unit, log=log))
    places = [value for value, _ in marks]
    assert all(span[0] * (1 - 1e-9) <= value <= span[1] * (1 + 1e-9) for value in places)
    assert places == sorted(set(places))
    assert len(marks) <= 11
    if unit in ("length", "tokens", "count") or (unit == "bytes" and low >= 1024):
        labels = [text for _, text in marks]
        assert len(set(labels)) == len(labels), labels


def test_ticks_are_round_in_the_unit_that_is_printed() -> None:
    axes = {
        ("bytes", True, 1e9, 1e12): ["1 GiB", "4 GiB", "16 GiB", "64 GiB", "256 GiB"],
        ("bytes", False, 0.0, 80 * 2.0**30): ["0", "20 GiB", "40 GiB", "60 GiB", "80 GiB"],
        ("ratio", False, 0.0, 0.41): ["0", "10 %", "20 %", "30 %", "40 %"],
        ("s", False, 0.0, 3600.0): ["0", "20 min", "40 min", "60 min"],
        ("s", True, 1.0, 604800.0): ["1 s", "1 min", "1 h", "1 d"],
        ("s", True, 0.021, 0.4): ["50 ms", "100 ms", "200 ms"],  # not the one power of ten between them
        ("s", True, 15.0, 400.0): ["20 s", "30 s", "1 min", "2 min", "5 min"],
        ("length", True, 512.0, 131072.0): ["1k", "4k", "16k", "64k"],
        ("bytes_per_s", False, 0.0, 54e9): ["0", "10 GB/s", "20 GB/s", "30 GB/s", "40 GB/s", "50 GB/s"],
    }
    for (unit, log, low, high), wanted in axes.items():
        axis = Axis(title="", unit=unit, log=log)  # type: ignore[arg-type]
        assert [text for _, text in scales.ticks((low, high), axis)] == wanted


def test_a_logarithmic_axis_leaves_out_what_is_not_above_zero() -> None:
    assert scales.visible(CURVE.series[0].points, CURVE) == [(1e3, 0.1), (1e4, 0.3), (1e5, 0.35)]
    (low, high), (bottom, top) = scales.domains(CURVE)
    assert (low, high) == (1e3, 1e5)
    assert bottom == 0
    assert top >= 0.4


NUMBERS = st.floats(-1e300, 1e300) | st.sampled_from([math.nan, math.inf, -math.inf])


@given(st.lists(st.tuples(NUMBERS, NUMBERS), max_size=8), st.booleans(), st.booleans())
def test_any_numbers_make_an_axis(points: list[tuple[float, float]], log_x: bool, log_y: bool) -> None:
    drawn = Plot(
        x=Axis(title="x", unit="count", log=log_x),
        y=Axis(title="y", unit="count", log=log_y),
        series=(Series(name="s", points=tuple(points)),),
    )
    for low, high in scales.domains(drawn):
        assert math.isfinite(low)
        assert math.isfinite(high)
        assert low < high or low == high == 0


# ----------------------------------------------------------------------------------------------------- specs


@pytest.mark.parametrize("name", CHARTS)
@pytest.mark.parametrize("palette", [charts.PRINT, charts.SCREEN], ids=["print", "screen"])
def test_specs_are_valid_vega_lite(name: str, palette: charts.Palette) -> None:
    spec = charts.spec(CHARTS[name], palette)
    alt.Chart.from_dict(json.loads(json.dumps(spec)), validate=True)
    assert spec["$schema"].endswith(f"/v{charts.VEGA_LITE}.1.json") or f"/v{charts.VEGA_LITE}." in spec["$schema"]


@pytest.mark.parametrize("name", CHARTS)
def test_pictures_are_well_formed_and_coloured_for_where_they_stand(name: str) -> None:
    alone, inside = charts.svg(CHARTS[name], charts.PRINT), charts.svg(CHARTS[name], charts.SCREEN)
    ElementTree.fromstring(alone)
    ElementTree.fromstring(inside)
    assert "var(" not in alone
    colours = set(re.findall(r'(?:fill|stroke)="([^"]+)"', inside)) - {"none", "transparent"}
    assert colours
    assert all(colour.startswith("var(--") for colour in colours), colours


@pytest.mark.parametrize("name", CHARTS)
def test_a_spec_holds_its_data_and_asks_for_none(name: str) -> None:
    text = json.dumps({k: v for k, v in charts.spec(CHARTS[name], charts.SCREEN).items() if k != "$schema"})
    assert '"url"' not in text
    assert "http" not in text


def test_the_numbers_drawn_are_the_numbers_given() -> None:
    drawn = {(one["x"], one["y"]) for one in values(charts.spec(CURVE, charts.SCREEN)) if one.get("name") == "LRU"}
    assert drawn == {(1e3, 0.1), (1e4, 0.3), (1e5, 0.35)}
    parts = [one for one in values(charts.spec(BAR, charts.SCREEN)) if "x2" in one]
    assert [(one["x"], one["x2"]) for one in parts] == [(0.0, 16e9), (16e9, 56e9)]
    ends = {(one["low"], one["x2"]) for one in values(charts.spec(SWINGS, charts.SCREEN)) if "low" in one}
    assert ends == {("down", 60.0), ("up", 100.0), ("up", 70.0)}, "an end that moves nothing is not drawn"
    rates = [one for one in values(charts.spec(RATES, charts.SCREEN)) if "between" in one]
    assert {(one["x"], one["between"]) for one in rates} == {(1.2, "1/s to 1.5/s"), (1.6, "")}
    bins = [one for one in values(charts.spec(BARS, charts.SCREEN)) if "y2" in one]
    assert [one["y"] for one in bins] == [5e4, 2e5, 1e4]
    assert all(0 < one["x"] < one["x2"] for one in bins), "a bin from zero still shows on a logarithmic axis"


def brightness(colour: str) -> float:
    """Relative luminance of a colour such as '#1c2430' (WCAG 2)."""
    shares = [int(colour[at : at + 2], 16) / 255 for at in (1, 3, 5)]
    red, green, blue = (c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in shares)
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue


def test_colours_can_be_read_light_and_dark_and_are_those_of_print() -> None:
    css = Path(bundle.__file__).with_name("page.css").read_text(encoding="utf-8")
    themes = [
        dict(re.findall(r"--([\w-]+): (#[0-9a-f]{6})", block)) for block in re.findall(r":root \{(.*?)\}", css, re.S)
    ]
    assert len(themes) == 2
    assert {role: themes[0][role] for role in charts.PRINT.colours} == charts.PRINT.colours
    for theme in themes:
        for role in set(charts.PRINT.colours) - {"paper", "grid", "faint"}:
            high, low = sorted((brightness(theme[role]), brightness(theme["paper"])), reverse=True)
            assert (high + 0.05) / (low + 0.05) >= 4.5, (role, theme[role])


def test_names_with_quotes_are_drawn_as_they_are() -> None:
    words = "".join(ElementTree.fromstring(charts.svg(CURVE, charts.PRINT)).itertext())
    assert 'the "GPU" \\ end' in words


def test_a_second_reading_of_the_x_axis_stands_above_at_the_same_places() -> None:
    twice = replace(CURVE, above=Marks(title="full after", marks=((2e3, "1 min"), (5e4, "1 h"))))
    words = list(ElementTree.fromstring(charts.svg(twice, charts.PRINT)).itertext())
    assert {"1 min", "1 h", "full after", "capacity"} <= set(words)
    axes = [one["encoding"]["x"] for one in charts.spec(twice, charts.SCREEN)["layer"] if one["encoding"].get("x")]
    drawn = [one["axis"] for one in axes if one.get("axis")]
    assert [axis.get("orient", "bottom") for axis in drawn] == ["bottom", "top"], "each axis is drawn once"
    assert len({json.dumps(one["scale"]) for one in axes if "scale" in one}) == 1


def test_only_a_chart_on_a_screen_answers_a_pointer() -> None:
    assert sum(one["mark"].get("opacity") == 0 for one in charts.spec(CURVE, charts.SCREEN, "container")["layer"]) == 1
    assert not any(one["mark"].get("opacity") == 0 for one in charts.spec(CURVE, charts.SCREEN)["layer"])


def test_an_end_that_moves_as_the_other_does_shares_its_name() -> None:
    both = replace(SWINGS, swings=(Swing(name="demand", low=60.0, high=70.0, low_label="-25 %", high_label="+25 %"),))
    words = list(ElementTree.fromstring(charts.svg(both, charts.PRINT)).itertext())
    assert "-25 %, +25 %" in words


# ----------------------------------------------------------------------------------------------- names


@given(
    st.lists(st.tuples(st.floats(0, 100), st.floats(0, 100)), min_size=2, max_size=6),
    st.lists(st.tuples(st.floats(1, 99), st.integers(1, 24)), min_size=1, max_size=4, unique_by=lambda one: one[0]),
)
def test_every_upright_line_keeps_its_name_on_the_plot(
    points: list[tuple[float, float]], rules: list[tuple[float, int]]
) -> None:
    drawn = Plot(
        x=Axis(title="x", unit="count", domain=(0.0, 100.0)),
        y=Axis(title="y", unit="count"),
        series=(Series(name="s", points=tuple(sorted(points))),),
        rules=tuple(Rule(axis="x", value=at, label="n" * length) for at, length in rules),
    )
    placed = labels.upright(drawn)
    assert [one.rule.value for one in placed] == sorted(at for at, _ in rules)
    assert all(0 < one.y < drawn.height for one in placed)


def test_names_neither_cross_a_curve_nor_each_other() -> None:
    flat = Plot(
        x=Axis(title="x", unit="count", domain=(0.0, 100.0)),
        y=Axis(title="y", unit="count", domain=(0.0, 100.0)),
        series=(Series(name="s", points=((0.0, 4.0), (100.0, 4.0))),),
        rules=tuple(Rule(axis="x", value=at, label="a rather long name") for at in (20.0, 22.0, 24.0, 80.0)),
    )
    placed = labels.upright(flat)
    curve = flat.height * 0.96
    assert all(abs(one.y - curve) >= 8 for one in placed)
    near = [one for one in placed if one.rule.value < 50]
    for one, other in itertools.combinations(near, 2):
        assert one.left != other.left or abs(one.y - other.y) >= 11
    assert placed[-1].left is False or placed[-1].rule.value > 70


def test_the_name_of_a_level_line_keeps_clear_of_a_curve_beside_it() -> None:
    def named(start: float, end: float, at: float) -> labels.Level:
        drawn = Plot(
            x=Axis(title="x", unit="count", domain=(0.0, 100.0)),
            y=Axis(title="y", unit="count", domain=(0.0, 100.0)),
            series=(Series(name="s", points=((0.0, start), (100.0, end))),),
            rules=(Rule(axis="y", value=at, label="without"),),
        )
        return labels.level(drawn)[0]

    assert (named(10.0, 90.0, 50.0).dy, named(10.0, 90.0, 50.0).right) == (-8, False)
    assert named(53.0, 53.0, 50.0).dy == 10, "a curve just above: the name goes below"
    assert named(96.0, 10.0, 98.0).right, "no room above and a curve below: the other end"


# ------------------------------------------------------------------------------------------ the script


def test_the_script_is_made_once_and_kept_for_this_user(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    made: list[int] = []

    def make() -> str:
        made.append(1)
        return "let text = 'é\\n';\n"

    assert [bundle.kept("maker-1", make) for _ in range(3)] == [make()] * 3
    assert len(made) == 2, "once by the cache, once by this test"
    assert [path.name for path in (tmp_path / "cache" / "kvplan").iterdir()] == ["maker-1.js"]
    bundle.kept("maker-2", make)
    assert len(made) == 3, "another maker is another script"


@pytest.mark.parametrize("damage", ["", "short", "/* kvplan maker-1 0 */\nlet text;", "\x00\xff"])
def test_a_kept_script_that_is_not_whole_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, damage: str
) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    bundle.kept("maker-1", lambda: "whole")
    path = tmp_path / "kvplan" / "maker-1.js"
    kept = path.read_bytes()
    path.write_text(damage, encoding="latin-1")
    assert bundle.kept("maker-1", lambda: "whole") == "whole"
    assert path.read_bytes() == kept


@pytest.mark.parametrize("place", ["/proc/none/here", "relative", "\0"])
def test_no_place_to_keep_it_only_costs_time(monkeypatch: pytest.MonkeyPatch, place: str, tmp_path: Path) -> None:
    monkeypatch.setattr("sys.platform", "linux")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(bundle.os, "environ", {"XDG_CACHE_HOME": place})
    assert bundle.kept("maker-1", lambda: "whole") == "whole"
    assert not list(tmp_path.iterdir())


# --------------------------------------------------------------------------------------------- characters


def lines(drawn: Plot, width: int = 80, height: int = 12, ascii: bool = False) -> list[str]:
    return ["".join(character for character, _ in row) for row in plot.draw(drawn, width, height, ascii)]


@pytest.mark.parametrize("ascii", [False, True])
@pytest.mark.parametrize("width", [40, 80, 120])
def test_a_plot_of_characters_keeps_its_width(width: int, ascii: bool) -> None:
    text = lines(CURVE, width, ascii=ascii)
    assert len(text) == 12 + 3
    assert max(map(len, text)) <= width + 12
    assert all(len(line) <= width for line in text[:12])
    assert "100 k" in text[-2]
    assert text[-1].strip() == "capacity"
    if ascii:
        assert "".join(text).isascii()


def test_a_rising_curve_rises() -> None:
    steep = Plot(
        x=Axis(title="x", unit="count"),
        y=Axis(title="y", unit="count"),
        series=(Series(name="s", points=tuple((float(n), float(n)) for n in range(21))),),
    )
    rows = lines(steep, 70, 20, ascii=True)[:20]
    body = [row.partition("|")[2] for row in rows]
    starts = [row.index("*") for row in body if "*" in row]
    assert len(starts) >= 18
    assert starts == sorted(starts, reverse=True)


@pytest.mark.parametrize("ascii", [False, True])
def test_a_bar_of_characters_is_in_proportion(ascii: bool) -> None:
    cells = plot.bar(BAR, 64, ascii)
    assert len(cells) == 64
    assert sum(role == "fourth" for _, role in cells) == 16
    assert sum(role == "main" for _, role in cells) == 40
    over = Stack(title="", unit="bytes", parts=(Part(name="a", value=2.0, role="main"),), limit=1.0)
    assert plot.bar(over, 10, ascii)[5][1] == "danger", "the limit is marked where the bar exceeds it"


def test_a_step_of_characters_holds_until_the_next_x() -> None:
    step = Plot(
        x=Axis(title="x", unit="count", domain=(0.0, 10.0)),
        y=Axis(title="y", unit="count", domain=(0.0, 1.0)),
        series=(Series(name="s", points=((0.0, 0.0), (5.0, 1.0), (10.0, 1.0)), style="step"),),
    )
    rows = [row.partition("|")[2] for row in lines(step, 60, 9, ascii=True)[:9]]
    middle = len(rows[0]) // 2
    assert abs(rows[-1].rindex("*") - middle) <= 1, "low up to the next x"
    assert abs(rows[0].index("*") - middle) <= 1, "and high from there"
    assert all(row.count("*") == 1 for row in rows[1:-1]), "with nothing but an upright line between"
