"""Chart descriptions (page.py) as Vega-Lite, and as SVG: one description, the same picture in HTML and in Markdown.

Colours are names of roles until the last moment: a `Palette` makes them hexadecimal for a picture that stands alone
and CSS variables for a page that can be light or dark. Specifications are written as the JSON that they are, since a
library that builds them takes longer than drawing them; the tests hold each against the Vega-Lite schema.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, TypeAlias

import vl_convert

from kvplan.page import Axis, Bars, Bins, Chart, Marks, Plot, Rule, Series, Stack, Swing, Tornado, clean
from kvplan.render import bundle, labels, scales

Spec: TypeAlias = dict[str, Any]
VEGA_LITE = "6.4"
WIDTH = 680
_ROOM = 0.16  # of a tornado's span at either side, for the names of its ends
_PHONE = 400  # a plot narrower than this is on a phone
_SIDE = 62  # every plot leaves this for the labels of its y axis, so that charts of one figure line up
_SCREEN_FONT = "system-ui, -apple-system, 'Segoe UI', Roboto, 'Liberation Sans', Arial, sans-serif"
_ALONE_FONT = "Arial, 'Liberation Sans', Helvetica, sans-serif"  # the renderer knows its widths: legends do not collide


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours by role, and whether a chart carries its own legend and paper."""

    colours: Mapping[str, str]
    alone: bool

    def __getitem__(self, role: str) -> str:
        return self.colours[role]


# Told apart by people with any common colour vision deficiency, in this order, and 3:1 against white.
PRINT = Palette(
    {
        "main": "#2456b8",
        "second": "#b35a00",
        "third": "#0b7a6f",
        "fourth": "#8a3d9e",
        "gpu": "#2456b8",
        "host": "#0b7a6f",
        "disk": "#b35a00",
        "recompute": "#8a3d9e",
        "muted": "#606a78",
        "danger": "#c0263c",
        "ink": "#1c2430",
        "soft": "#5a6472",
        "grid": "#e4e8ee",
        "paper": "#ffffff",
        "faint": "#c9d0da",
    },
    alone=True,
)
SCREEN = Palette({role: f"var(--{role})" for role in PRINT.colours}, alone=False)


def spec(chart: Chart, palette: Palette, width: int | str = WIDTH) -> Spec:
    """The Vega-Lite spec of one chart; `width` 'container' follows the page and answers a pointer."""
    match chart:
        case Plot():
            drawn = _plot(chart, palette, live=width == "container")
        case Stack():
            drawn = _stack(chart, palette)
        case Tornado():
            drawn = _tornado(chart, palette, live=width == "container")
        case Bars():
            drawn = _bars(chart, palette)
    frame: Spec = {"$schema": f"https://vega.github.io/schema/vega-lite/v{VEGA_LITE}.json", "width": width}
    return {**frame, "autosize": {"type": "fit-x", "contains": "padding"}, **drawn, "config": _config(palette)}


def svg(chart: Chart, palette: Palette) -> str:
    """One chart as SVG text."""
    return str(vl_convert.vegalite_to_svg(spec(chart, palette), vl_version=VEGA_LITE))


def script() -> str:
    """Vega, Vega-Lite and Vega-Embed as one script that defines `vegaEmbed`, for a page that asks nobody for it."""
    maker = f"vl-convert-{version('vl-convert-python')}-vega-lite-{VEGA_LITE}"
    return bundle.kept(
        maker, lambda: str(vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;", vl_version=VEGA_LITE))
    )


def _config(palette: Palette) -> Spec:
    font = _ALONE_FONT if palette.alone else _SCREEN_FONT
    words = {"labelColor": palette["soft"], "titleColor": palette["soft"], "labelFont": font, "titleFont": font}
    return {
        "aria": False,  # the page describes each chart in words
        "mark": {"aria": False},
        "background": palette["paper"] if palette.alone else "transparent",
        "font": font,
        "padding": 8 if palette.alone else 2,
        "view": {"stroke": None},
        "axis": {
            **words,
            "gridColor": palette["grid"],
            "domainColor": palette["faint"],
            "tickColor": palette["faint"],
            "labelFontSize": 11,
            "titleFontSize": 11,
            "titleFontWeight": "normal",
            "labelOverlap": "greedy",
            "tickSize": 4,
        },
        "legend": {
            **words,
            "orient": "bottom",
            "direction": "horizontal",
            "labelFontSize": 11,
            "title": None,
            "columns": 3,
            "labelLimit": 300,
            "columnPadding": 24,
        },
        "title": {
            "font": font,
            "color": palette["soft"],
            "anchor": "start",
            "frame": "bounds",
            "fontSize": 11,
            "fontWeight": "normal",
            "offset": 6,
        },
    }


# ------------------------------------------------------------------------------------------------- pieces


def _layer(rows: Iterable[Spec], mark: str, look: Spec, **encoding: Spec | Sequence[Spec]) -> Spec:
    """One layer over its own rows; words in them are made harmless."""
    cleaned = [{key: clean(one) if isinstance(one, str) else one for key, one in row.items()} for row in rows]
    return {"data": {"values": cleaned}, "mark": {"type": mark, **look}, "encoding": encoding}


def _number(field: str, axis: Spec | None, scale: Spec) -> Spec:
    return {"field": field, "type": "quantitative", "axis": axis, "scale": scale}


def _word(field: str, **more: Any) -> Spec:
    return {"field": field, "type": "nominal", **more}


def _axis(axis: Axis, span: tuple[float, float], **more: Any) -> tuple[Spec, Spec]:
    """An axis with the marks that people expect, and its scale."""
    marks = scales.ticks(span, axis)
    drawn = {"values": [value for value, _ in marks], "labelExpr": _named(marks), **more}
    return drawn, {"type": "log" if axis.log else "linear", "domain": list(span), "nice": False, "clamp": True}


def _named(marks: Iterable[tuple[float, str]]) -> str:
    """An expression that gives each value of an axis its label."""
    label = "''"
    for value, text in reversed(tuple(marks)):
        label = f"datum.value == {value!r} ? {json.dumps(text)} : {label}"
    return label


def _colour(named: Sequence[tuple[str, str]], palette: Palette) -> Spec:
    """Colours by name, with a legend where the chart stands alone and has something to tell apart."""
    scale = {"domain": [clean(name) for name, _ in named], "range": [palette[role] for _, role in named]}
    return _word("name", scale=scale, legend={} if palette.alone and len(named) > 1 else None)


# -------------------------------------------------------------------------------------------------- plots


def _plot(plot: Plot, palette: Palette, live: bool) -> Spec:
    x_domain, y_domain = scales.domains(plot)
    x_axis, x_scale = _axis(plot.x, x_domain, title=clean(plot.x.title), grid=False)
    side: Spec = {"domain": False, "ticks": False, "labelPadding": 6, "minExtent": _SIDE, "maxExtent": _SIDE}
    y = _number("y", *_axis(plot.y, y_domain, title=None, **side))
    x = _number("x", x_axis if plot.above is None else None, x_scale)
    named = [(bins.name, bins.role) for bins in plot.bins] + [(series.name, series.role) for series in plot.series]
    colour = _colour(named, palette)
    layers = [_histogram(bins, plot, x, y, colour) for bins in plot.bins]
    layers += [_line(series, plot, x, y, colour) for series in plot.series]
    if live:
        layers += [_hover(series, plot, x, y, colour) for series in plot.series if series.style != "dots"]
    layers += _rules(plot, palette, x, y, live)
    drawn: Spec = {"title": clean(plot.y.title), "height": plot.height, "layer": layers}
    if plot.above is not None:
        drawn["layer"] = [*_two_axes(plot.above, x_axis, x_scale), *layers]
        drawn["resolve"] = {"axis": {"x": "independent"}}
    return drawn


def _two_axes(above: Marks, below: Spec, scale: Spec) -> list[Spec]:
    """An axis below and one above of the same scale, each drawn once by an empty layer of its own."""
    upper: Spec = {
        "orient": "top",
        "values": [value for value, _ in above.marks],
        "labelExpr": _named(above.marks),
        "title": clean(above.title),
        "titleAnchor": "end",
        "grid": False,
        "domain": False,
    }
    rows: list[Spec] = [{"x": value} for value, _ in above.marks]
    return [_layer(rows, "point", {"opacity": 0}, x=_number("x", axis, scale)) for axis in (below, upper)]


def _rows(series: Series, plot: Plot) -> list[Spec]:
    return [
        {"x": x, "y": y, "name": series.name, "at": scales.show(x, plot.x.unit), "value": scales.show(y, plot.y.unit)}
        for x, y in scales.visible(series.points, plot)
    ]


def _tooltip(plot: Plot) -> list[Spec]:
    titles = {"name": " ", "at": clean(plot.x.title), "value": clean(plot.y.title)}
    return [_word(field, title=title) for field, title in titles.items()]


_LOOKS: dict[str, Spec] = {
    "line": {"strokeWidth": 2.5},
    "thin": {"strokeWidth": 1.25},
    "dashed": {"strokeWidth": 1.75, "strokeDash": [6, 4]},
    "step": {"strokeWidth": 2, "interpolate": "step-after"},
}


def _line(series: Series, plot: Plot, x: Spec, y: Spec, colour: Spec) -> Spec:
    rows = _rows(series, plot)
    if series.style == "dots":
        look: Spec = {"filled": True, "size": 46, "opacity": 0.95}
        return _layer(rows, "point", look, x=x, y=y, color=colour, tooltip=_tooltip(plot))
    look = {"strokeJoin": "round", "strokeCap": "round", **_LOOKS[series.style]}
    return _layer(rows, "line", look, x=x, y=y, color=colour, order={"field": "x", "type": "quantitative"})


def _hover(series: Series, plot: Plot, x: Spec, y: Spec, colour: Spec) -> Spec:
    """Generous invisible points, so that a finger or a pointer near a line reads its figures."""
    look: Spec = {"filled": True, "size": 220, "opacity": 0}
    return _layer(_rows(series, plot), "point", look, x=x, y=y, color=colour, tooltip=_tooltip(plot))


def _histogram(bins: Bins, plot: Plot, x: Spec, y: Spec, colour: Spec) -> Spec:
    rows = [
        {
            "x": start,
            "x2": high,
            "y": value,
            "y2": 0,
            "name": bins.name,
            "at": f"{scales.brief(low, plot.x.unit)} to {scales.brief(high, plot.x.unit)}",
            "value": scales.show(value, plot.y.unit),
        }
        for (low, _, _), (start, high, value) in zip(bins.bins, scales.drawn(bins, plot.x), strict=True)
    ]
    look: Spec = {"opacity": 0.85, "xOffset": 0.5, "x2Offset": -0.5}
    ends: Spec = {"x2": {"field": "x2"}, "y2": {"field": "y2"}}
    return _layer(rows, "rect", look, x=x, y=y, color=colour, tooltip=_tooltip(plot), **ends)


def _rules(plot: Plot, palette: Palette, x: Spec, y: Spec, live: bool) -> list[Spec]:
    """Lines across with their names; on a live chart the names of upright ones follow its width."""
    layers = []
    narrow = labels.upright(plot, labels.NARROW)
    for one, small in zip(labels.upright(plot), narrow, strict=True):
        rows = [{"x": one.rule.value, "text": one.rule.label}]
        wide_look, narrow_look = (
            {"align": "right", "dx": -6} if at.left else {"align": "left", "dx": 6} for at in (one, small)
        )
        place = {key: _by_width(narrow_look[key], value, live) for key, value in wide_look.items()}
        layers += _named_line(
            rows, one.rule, palette, place, {"x": x}, {"y": {"value": _by_width(small.y, one.y, live)}}
        )
    for name in labels.level(plot):
        rows = [{"y": name.rule.value, "text": name.rule.label}]
        place = {"align": "right" if name.right else "left", "dx": -4 if name.right else 4, "dy": name.dy}
        at: Spec = {"value": "width" if name.right else 0}
        layers += _named_line(rows, name.rule, palette, place, {"y": y}, {"x": at})
    return layers


def _by_width(narrow: Any, wide: Any, live: bool) -> Any:
    """A value that depends on how wide a live chart came out, halfway between a phone and a desk."""
    if not live or narrow == wide:
        return wide
    return {"expr": f"width < {_PHONE} ? {json.dumps(narrow)} : {json.dumps(wide)}"}


def _named_line(rows: list[Spec], rule: Rule, palette: Palette, place: Spec, line: Spec, name: Spec) -> list[Spec]:
    """A line across, and its name in its colour over a band of paper, so that what is behind does not cross it out."""
    look: Spec = {"fontSize": 11, "baseline": "middle", **place}
    band = {"stroke": palette["paper"], "strokeWidth": 4, "color": palette["paper"], **look}
    words = {"color": palette[rule.role], **look}
    stroke: Spec = {"strokeDash": [3, 3], "strokeWidth": 1.25, "color": palette[rule.role]}
    named = [_layer(rows, "text", one, **line, **name, text=_word("text")) for one in (band, words)]
    return [_layer(rows, "rule", stroke, **line), *named]


# ---------------------------------------------------------------------------------- stacked bars, tornado


def _stack(stack: Stack, palette: Palette) -> Spec:
    total = sum(part.value for part in stack.parts)
    reach = max(total, stack.limit or 0) or 1.0
    x = _number("x", *_axis(Axis(title="", unit=stack.unit), (0.0, reach), title=None, grid=False))
    rows, start = [], 0.0
    for part in stack.parts:
        size = scales.show(part.value, stack.unit)
        rows.append({"name": part.name, "x": start, "x2": start + part.value, "value": size})
        start += part.value
    colour = _colour([(part.name, part.role) for part in stack.parts], palette)
    tip = [_word("name", title=" "), _word("value", title="size")]
    look: Spec = {"height": 34, "stroke": palette["paper"], "strokeWidth": 1}
    layers = [_layer(rows, "bar", look, x=x, x2={"field": "x2"}, color=colour, tooltip=tip)]
    if stack.limit is not None:
        limit = [{"x": stack.limit, "name": stack.limit_label, "value": scales.show(stack.limit, stack.unit)}]
        tick: Spec = {"thickness": 2.5, "size": 48, "color": palette["danger"]}
        layers.append(_layer(limit, "tick", tick, x=x, tooltip=tip))
    titled = {"title": clean(stack.title)} if palette.alone else {}  # a page writes it above the legend
    return {"height": 52, "layer": layers, **titled}


def _tornado(tornado: Tornado, palette: Palette, live: bool) -> Spec:
    ends = [value for swing in tornado.swings for value in (swing.low, swing.high)]
    low, high = min(tornado.base, *ends), max(tornado.base, *ends)
    room = (high - low or abs(high) or 1.0) * _ROOM
    axis = Axis(title=tornado.title, unit=tornado.unit)
    axis_x, scale = _axis(axis, (low - room, high + room), title=clean(tornado.title), grid=True)
    names = {swing.name: "\n".join(textwrap.wrap(clean(swing.name), 22)) for swing in tornado.swings}
    side: Spec = {"title": None, "domain": False, "ticks": False, "labelLimit": 180, "labelPadding": 8}
    y = _word("name", sort=list(names.values()), axis={**side, "labelExpr": "split(datum.value, '\\n')"})
    rows = [row | {"name": names[swing.name]} for swing in tornado.swings for row in _swing(swing, tornado)]
    ways = {"domain": ["down", "up"], "range": [palette["second"], palette["main"]]}
    colour = _word("low", scale=ways, legend=None)
    tip = [_word("name", title=" "), _word("side", title="input"), _word("value", title="outcome")]
    x = _number("x", axis_x, scale)
    layers = [_layer(rows, "bar", {"height": 16}, x=x, x2={"field": "x2"}, y=y, color=colour, tooltip=tip)]
    for left in (True, False):
        there = [row for row in rows if row["label"] and (row["x2"] < tornado.base) == left]
        place = {"align": "right" if left else "left", "dx": -5 if left else 5}
        look = {**place, "fontSize": 11, "color": palette["soft"], "opacity": _by_width(0, 1, live)}
        layers.append(_layer(there, "text", look, x=_number("x2", axis_x, scale), y=y, text=_word("label")))
    base: Spec = {"color": palette["ink"], "strokeWidth": 1.25}
    layers.append(_layer([{"x": tornado.base}], "rule", base, x=x))
    return {"height": max(60, 34 * len(tornado.swings)), "layer": layers}


def _bars(bars: Bars, palette: Palette) -> Spec:
    """Bars from zero, a whisker over each that has an interval, its value behind whichever is longer."""
    ends = [max(bar.value, bar.interval[1] if bar.interval else 0.0) for bar in bars.bars]
    span = (0.0, max(ends, default=0.0) * (1 + _ROOM) or 1.0)
    axis_x, scale = _axis(Axis(title=bars.title, unit=bars.unit), span, title=clean(bars.title), grid=True)
    names = {bar.name: "\n".join(textwrap.wrap(clean(bar.name), 22)) for bar in bars.bars}
    rows: list[Spec] = [
        {
            "name": names[bar.name],
            "role": clean(bar.name),
            "x": bar.value,
            "end": end,
            "value": scales.show(bar.value, bars.unit),
            "between": " to ".join(scales.show(one, bars.unit) for one in bar.interval or ()),
        }
        for bar, end in zip(bars.bars, ends, strict=True)
    ]
    whiskers = [
        {"name": names[bar.name], "x": bar.interval[0], "x2": bar.interval[1]} for bar in bars.bars if bar.interval
    ]
    side: Spec = {"title": None, "domain": False, "ticks": False, "labelLimit": 180, "labelPadding": 8}
    y = _word("name", sort=list(names.values()), axis={**side, "labelExpr": "split(datum.value, '\\n')"})
    x = _number("x", axis_x, scale)
    colours = {"domain": [row["role"] for row in rows], "range": [palette[bar.role] for bar in bars.bars]}
    tip = [_word("name", title=" "), _word("value", title=clean(bars.title)), _word("between", title="between")]
    colour = _word("role", scale=colours, legend=None)
    layers = [_layer(rows, "bar", {"height": 18, "opacity": 0.85}, x=x, y=y, color=colour, tooltip=tip)]
    ink: Spec = {"color": palette["ink"], "strokeWidth": 1.5}
    layers.append(_layer(whiskers, "rule", ink, x=x, x2={"field": "x2"}, y=y))
    for end in ("x", "x2"):
        tick: Spec = {"color": palette["ink"], "thickness": 1.5, "size": 10}
        layers.append(_layer(whiskers, "tick", tick, x=_number(end, axis_x, scale), y=y))
    look: Spec = {"align": "left", "dx": 6, "fontSize": 11, "color": palette["ink"]}
    layers.append(_layer(rows, "text", look, x=_number("end", axis_x, scale), y=y, text=_word("value")))
    return {"height": max(60, 34 * len(rows)), "layer": layers}


def _swing(swing: Swing, tornado: Tornado) -> list[Spec]:
    """The two halves of a bar, the farther end first, so that the nearer is drawn over it; labels stand at the ends."""
    ends = [(swing.low, swing.low_label, "down"), (swing.high, swing.high_label, "up")]
    ends.sort(key=lambda end: -abs(end[0] - tornado.base))
    moved = [end for end in ends if end[0] != tornado.base]
    same_side = len(moved) == 2 and (moved[0][0] < tornado.base) == (moved[1][0] < tornado.base)
    rows = []
    for index, (end, label, which) in enumerate(moved):
        text = f"{label}, {moved[1][1]}" if same_side and index == 0 else "" if same_side else label
        value = scales.show(end, tornado.unit)
        rows.append({"x": tornado.base, "x2": end, "side": label, "label": text, "value": value, "low": which})
    return rows
