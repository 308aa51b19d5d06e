"""Chart descriptions (page.py) as Vega-Lite, and as SVG: one description, the same picture in HTML and in Markdown.

Colours are names of roles until the last moment: a `Palette` makes them hexadecimal for a picture that stands alone
and CSS variables for a page that can be light or dark. This module takes a third of a second to import (Altair, and
the renderer once it draws), so whoever wants no picture does not import it.
"""

from __future__ import annotations

import json
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib.metadata import version
from typing import Any, TypeAlias

import altair as alt
import vl_convert

from kvplan.page import Axis, Bins, Chart, Marks, Plot, Rule, Series, Stack, Swing, Tornado, clean
from kvplan.render import bundle, labels, scales

Spec: TypeAlias = dict[str, Any]
VEGA_LITE = "6.4"
WIDTH = 680
_ROOM = 0.16  # of a tornado's span at either side, for the names of its ends
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
        "muted": "#6b7482",
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
            drawn = _tornado(chart, palette)
    sized = drawn.properties(width=width, autosize=alt.AutoSizeParams(type="fit-x", contains="padding"))
    return {**sized.to_dict(validate=False), "config": _config(palette)}


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


def _values(rows: list[Spec]) -> Any:
    cleaned = [{key: clean(one) if isinstance(one, str) else one for key, one in row.items()} for row in rows]
    return alt.Data(values=cleaned)  # type: ignore[no-untyped-call]


def _axis(axis: Axis, span: tuple[float, float], **more: Any) -> tuple[alt.Axis, alt.Scale]:
    marks = scales.ticks(span, axis)
    drawn = alt.Axis(values=[value for value, _ in marks], labelExpr=_named(marks), **more)
    return drawn, alt.Scale(type="log" if axis.log else "linear", domain=list(span), nice=False, clamp=True)


def _named(marks: Iterable[tuple[float, str]]) -> str:
    """An expression that gives each value of an axis its label."""
    label = "''"
    for value, text in reversed(tuple(marks)):
        label = f"datum.value == {value!r} ? {json.dumps(text)} : {label}"
    return label


def _legend(palette: Palette, names: list[str]) -> alt.Legend | None:
    return alt.Legend() if palette.alone and len(names) > 1 else None


# -------------------------------------------------------------------------------------------------- plots


def _plot(plot: Plot, palette: Palette, live: bool) -> Any:
    x_domain, y_domain = scales.domains(plot)
    x_axis, x_scale = _axis(plot.x, x_domain, title=plot.x.title, grid=False)
    y_axis, y_scale = _axis(
        plot.y, y_domain, title=None, domain=False, ticks=False, labelPadding=6, minExtent=_SIDE, maxExtent=_SIDE
    )
    below = alt.X("x:Q", axis=x_axis, scale=x_scale)
    x = below if plot.above is None else alt.X("x:Q", axis=None, scale=x_scale)
    y = alt.Y("y:Q", axis=y_axis, scale=y_scale)
    named: list[Bins | Series] = [*plot.bins, *plot.series]
    names = [clean(one.name) for one in named]
    colour = alt.Color(
        "name:N",
        scale=alt.Scale(domain=names, range=[palette[one.role] for one in named]),
        legend=_legend(palette, names),
    )
    layers = [_histogram(bins, plot, x, y, colour) for bins in plot.bins]
    layers += [_line(series, plot, x, y, colour) for series in plot.series]
    if live:
        layers += [_hover(series, plot, x, y, colour) for series in plot.series if series.style != "dots"]
    layers += _rules(plot, palette, x, y)
    drawn = alt.layer(*layers) if plot.above is None else _two_axes(layers, plot.above, below, x_scale)
    return drawn.properties(title=clean(plot.y.title), height=plot.height)


def _two_axes(layers: list[Any], above: Marks, below: alt.X, scale: alt.Scale) -> Any:
    """The layers between two axes of the same scale, each axis drawn once by an empty layer of its own."""
    values = [value for value, _ in above.marks]
    axis = alt.Axis(
        orient="top",
        values=values,
        labelExpr=_named(above.marks),
        title=clean(above.title),
        titleAnchor="end",
        grid=False,
        domain=False,
    )
    empty = alt.Chart(_values([{"x": value} for value in values])).mark_point(opacity=0)
    upper = empty.encode(alt.X("x:Q", axis=axis, scale=scale))
    return alt.layer(empty.encode(below), upper, *layers).resolve_axis(x="independent")


def _rows(series: Series, plot: Plot) -> list[dict[str, Any]]:
    return [
        {"x": x, "y": y, "name": series.name, "at": scales.show(x, plot.x.unit), "value": scales.show(y, plot.y.unit)}
        for x, y in scales.visible(series.points, plot)
    ]


def _tooltip(plot: Plot) -> list[alt.Tooltip]:
    return [
        alt.Tooltip("name:N", title=" "),
        alt.Tooltip("at:N", title=clean(plot.x.title)),
        alt.Tooltip("value:N", title=clean(plot.y.title)),
    ]


def _line(series: Series, plot: Plot, x: alt.X, y: alt.Y, colour: alt.Color) -> Any:
    base = alt.Chart(_values(_rows(series, plot)))
    if series.style == "dots":
        return base.mark_point(filled=True, size=46, opacity=0.95).encode(x, y, colour, tooltip=_tooltip(plot))
    looks: dict[str, Spec] = {
        "line": {"strokeWidth": 2.5},
        "thin": {"strokeWidth": 1.25},
        "dashed": {"strokeWidth": 1.75, "strokeDash": [6, 4]},
        "step": {"strokeWidth": 2, "interpolate": "step-after"},
    }
    return base.mark_line(strokeJoin="round", strokeCap="round", **looks[series.style]).encode(
        x, y, colour, order=alt.Order("x:Q")
    )


def _hover(series: Series, plot: Plot, x: alt.X, y: alt.Y, colour: alt.Color) -> Any:
    """Generous invisible points, so that a finger or a pointer near a line reads its figures."""
    base = alt.Chart(_values(_rows(series, plot)))
    return base.mark_point(filled=True, size=220, opacity=0).encode(x, y, colour, tooltip=_tooltip(plot))


def _histogram(bins: Bins, plot: Plot, x: alt.X, y: alt.Y, colour: alt.Color) -> Any:
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
    marks = alt.Chart(_values(rows)).mark_rect(opacity=0.85, xOffset=0.5, x2Offset=-0.5)
    return marks.encode(x, y, colour, x2=alt.X2("x2:Q"), y2=alt.Y2("y2:Q"), tooltip=_tooltip(plot))


def _rules(plot: Plot, palette: Palette, x: alt.X, y: alt.Y) -> list[Any]:
    layers: list[Any] = []
    for one in labels.upright(plot):
        base = alt.Chart(_values([{"x": one.rule.value, "text": one.rule.label}]))
        words = _words(base, one.rule, palette, align="right" if one.left else "left", dx=-6 if one.left else 6)
        layers.append(_line_across(base, one.rule, palette).encode(x))
        layers += [word.encode(x, y=alt.value(one.y), text="text:N") for word in words]
    for rule in plot.rules:
        if rule.axis == "y":
            base = alt.Chart(_values([{"y": rule.value, "text": rule.label}]))
            words = _words(base, rule, palette, align="left", dx=4, dy=10 if labels.hangs(plot, rule) else -8)
            layers.append(_line_across(base, rule, palette).encode(y=y))
            layers += [word.encode(y=y, x=alt.value(0), text="text:N") for word in words]
    return layers


def _line_across(base: Any, rule: Rule, palette: Palette) -> Any:
    return base.mark_rule(strokeDash=[3, 3], strokeWidth=1.25, color=palette[rule.role])


def _words(base: Any, rule: Rule, palette: Palette, **place: Any) -> list[Any]:
    """A name in its colour over a band of paper, so that lines behind it do not cross it out."""
    look = {"fontSize": 11, "baseline": "middle", **place}
    band = base.mark_text(stroke=palette["paper"], strokeWidth=4, color=palette["paper"], **look)
    return [band, base.mark_text(color=palette[rule.role], **look)]


# ---------------------------------------------------------------------------------- stacked bars, tornado


def _stack(stack: Stack, palette: Palette) -> Any:
    total = sum(part.value for part in stack.parts)
    reach = max(total, stack.limit or 0) or 1.0
    axis = Axis(title="", unit=stack.unit, domain=(0.0, reach))
    x_axis, x_scale = _axis(axis, (0.0, reach), title=None, grid=False)
    rows, start = [], 0.0
    for part in stack.parts:
        rows.append(
            {"name": part.name, "x": start, "x2": start + part.value, "value": scales.show(part.value, stack.unit)}
        )
        start += part.value
    names = [clean(part.name) for part in stack.parts]
    colour = alt.Color(
        "name:N",
        scale=alt.Scale(domain=names, range=[palette[part.role] for part in stack.parts]),
        legend=_legend(palette, names),
    )
    tip = [alt.Tooltip("name:N", title=" "), alt.Tooltip("value:N", title="size")]
    base = alt.Chart(_values(rows))
    x = alt.X("x:Q", axis=x_axis, scale=x_scale)
    bars = base.mark_bar(height=34, stroke=palette["paper"], strokeWidth=1).encode(x, colour, x2="x2:Q", tooltip=tip)
    layers = [bars]
    if stack.limit is not None:
        limit = alt.Chart(
            _values([{"x": stack.limit, "name": stack.limit_label, "value": scales.show(stack.limit, stack.unit)}])
        )
        layers.append(limit.mark_tick(thickness=2.5, size=48, color=palette["danger"]).encode(x, tooltip=tip))
    titled = {"title": clean(stack.title)} if palette.alone else {}  # a page writes it above the legend
    return alt.layer(*layers).properties(height=52, **titled)


def _tornado(tornado: Tornado, palette: Palette) -> Any:
    ends = [value for swing in tornado.swings for value in (swing.low, swing.high)]
    low, high = min(tornado.base, *ends), max(tornado.base, *ends)
    room = (high - low or abs(high) or 1.0) * _ROOM
    axis = Axis(title=tornado.title, unit=tornado.unit, domain=(low - room, high + room))
    x_axis, x_scale = _axis(axis, (low - room, high + room), title=tornado.title, grid=True)
    x = alt.X("x:Q", axis=x_axis, scale=x_scale)
    names = {swing.name: "\n".join(textwrap.wrap(clean(swing.name), 22)) for swing in tornado.swings}
    lines = alt.Axis(
        title=None, domain=False, ticks=False, labelLimit=180, labelPadding=8, labelExpr="split(datum.value, '\\n')"
    )
    y = alt.Y("name:N", sort=list(names.values()), axis=lines)
    rows = [row | {"name": names[swing.name]} for swing in tornado.swings for row in _swing(swing, tornado)]
    colour = alt.Color(
        "low:N", scale=alt.Scale(domain=["down", "up"], range=[palette["second"], palette["main"]]), legend=None
    )
    tip = [
        alt.Tooltip("name:N", title=" "),
        alt.Tooltip("side:N", title="input"),
        alt.Tooltip("value:N", title="outcome"),
    ]
    bars = alt.Chart(_values(rows)).mark_bar(height=16).encode(x, y, colour, x2="x2:Q", tooltip=tip)
    words = []
    for left in (True, False):
        named = alt.Chart(_values([row for row in rows if row["label"] and (row["x2"] < tornado.base) == left]))
        text = named.mark_text(
            align="right" if left else "left", dx=-5 if left else 5, fontSize=11, color=palette["soft"]
        )
        words.append(text.encode(alt.X("x2:Q", axis=x_axis, scale=x_scale), y, text="label:N"))
    base = alt.Chart(_values([{"x": tornado.base}])).mark_rule(color=palette["ink"], strokeWidth=1.25).encode(x)
    return alt.layer(bars, *words, base).properties(height=max(60, 34 * len(tornado.swings)))


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
