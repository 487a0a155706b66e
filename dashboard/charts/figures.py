"""Figures as plain dicts: SVG lines, transparent ground, no colour that a theme would have to change.

Plain, because building graph objects costs more than drawing them; SVG, because twelve WebGL contexts on
one page get lost.
"""

from collections.abc import Mapping
from typing import Any

from dashboard.shell import theme
from dashboard.state.url import Span
from dashboard.widgets.chart import Panel, PanelLine
from dashboard.widgets.format import escape, milliseconds, short
from server.query.types import Series

Figure = dict[str, Any]
Values = list[float | None]

# "0.02 s", "0.5 s", "1,200 s": with an SI prefix alone twenty milliseconds are "20m", which reads as minutes.
_SECONDS: Mapping[str, Any] = {
    "ticksuffix": " s",
    "tickformatstops": [{"dtickrange": [None, 0.09], "value": "~g"}, {"dtickrange": [0.09, None], "value": ",~f"}],
}

# Half a turn, not "500m".
_COUNTS: Mapping[str, Any] = {
    "tickformatstops": [{"dtickrange": [None, 0.99], "value": "~g"}, {"dtickrange": [0.99, None], "value": "~s"}]
}

# A learning rate: with an SI prefix a millionth is "1µ", and with Plotly's own exponent half of it "0.5e-6".
_BARE: Mapping[str, Any] = {
    "tickformatstops": [{"dtickrange": [None, 1e-4], "value": "~e"}, {"dtickrange": [1e-4, None], "value": "~g"}]
}

# Below this many points a line may be a single dot between two gaps, which only a marker shows.
_FEW = 40


def _values(values: tuple[float | None, ...]) -> Values:
    return [short(value) for value in values]


def has_points(series: Series) -> bool:
    return any(value is not None for value in series.mean)


def figure(panel: Panel, series: Mapping[str, Series], span: Span, tz: float, revision: str) -> Figure:
    """The chart of a panel; ``series`` by slot, missing or empty ones are left out."""
    traces: list[Figure] = []
    drawn = [(slot, line, series[slot]) for slot, line in panel.slots() if slot in series and has_points(series[slot])]
    for i, (slot, line, found) in enumerate(drawn):
        traces.extend(_line(panel, slot, line, found, tz))
        if line.fill and panel.kind == "lines":
            below = drawn[i - 1] if line.fill == "band" and i else None
            # Under everything drawn so far, so that no fill covers a line.
            traces[:0] = _fill(slot, line, found, below, tz)
    return {"data": traces, "layout": layout(panel, span, tz, revision)}


def _line(panel: Panel, slot: str, line: PanelLine, series: Series, tz: float) -> list[Figure]:
    xs = [milliseconds(ts, tz) for ts in series.ts]
    main = _trace(slot, xs, _values(series.mean), line)
    if panel.kind != "lines":
        return [main | _stacked(panel, line)]
    # A point that is a whole bucket (live data, short ranges) has no extremes of its own to show.
    spread = line.envelope and series.low != series.high
    return [*(_envelope(slot, xs, series, line) if spread else []), main]


def _fill(
    slot: str, line: PanelLine, series: Series, below: tuple[str, PanelLine, Series] | None, tz: float
) -> list[Figure]:
    """The area as a trace of its own, under the lines.

    Plotly fills across gaps. So an area down to zero is a held zero in a gap, and a band between two lines is closed
    shapes that the browser draws from the lines themselves, where both have a value (`assets/widgets/bands.mjs`). A
    band needs both lines; one whose lower line is missing is not drawn.
    """
    shade = {"mode": "lines", "fillcolor": theme.fade(theme.TRACE[line.colour], 0.14), "line": {"width": 0}}
    if line.fill == "band":
        return (
            []
            if below is None
            else [_trace(f"{slot}:band", [], [], line) | shade | {"fill": "toself", "customdata": [below[0]]}]
        )
    xs = [milliseconds(ts, tz) for ts in series.ts]
    held = {"fill": "tozeroy", "line": {"width": 0, "shape": "hv"}}
    return [_trace(f"{slot}:fill", xs, [short(y or 0) for y in series.mean], line) | shade | held]


def _trace(slot: str, xs: list[int], ys: Values, line: PanelLine) -> Figure:
    few = sum(y is not None for y in ys) < _FEW
    return {
        "type": "scatter",
        "mode": "lines+markers" if few else "lines",
        "meta": slot,
        "name": escape(line.label),
        "x": xs,
        "y": ys,
        "connectgaps": False,
        # No floating box: the panel's header shows the value under the cursor.
        "hoverinfo": "skip",
        # An area keeps its edge: line and fill are held alike (see `_fill`).
        # An instant that saws (thin, with its envelope) stays behind the mean that can be read.
        "line": {
            "color": theme.fade(theme.TRACE[line.colour], 0.45)
            if line.thin and line.envelope
            else theme.TRACE[line.colour],
            "width": 1.2 if line.thin else 2.4,
            "shape": "hv" if line.fill else "linear",
        },
        "marker": {"size": 4, "color": theme.TRACE[line.colour]},
    }


def _stacked(panel: Panel, line: PanelLine) -> Figure:
    colour = theme.TRACE[line.colour]
    share = {"groupnorm": "percent"} if panel.kind == "share" else {}
    # A step's value holds until the next step; with the held shape a gap is an empty hole, not a slope to zero.
    return share | {
        "stackgroup": panel.key,
        "mode": "lines",
        "fillcolor": theme.fade(colour, 0.9),
        "line": {"color": colour, "width": 0, "shape": "hv"},
    }


def _envelope(slot: str, xs: list[int], series: Series, line: PanelLine) -> list[Figure]:
    edges: list[tuple[str, tuple[float | None, ...], Figure]]
    edges = [("lo", series.low, {}), ("hi", series.high, {"fill": "tonexty"})]
    shade = theme.fade(theme.TRACE[line.colour], 0.22)
    flat = _held(series.mean)
    return [
        # Plotly fills across gaps: in one the band has no height.
        _trace(f"{slot}:{edge}", xs, [short(flat[i] if y is None else y) for i, y in enumerate(values)], line)
        | {"mode": "lines", "line": {"width": 0, "color": shade}, "fillcolor": shade, **extra}
        for edge, values, extra in edges
    ]


def _held(values: tuple[float | None, ...]) -> list[float]:
    """Gaps closed with the value before, at the start with the first."""
    last = next((value for value in values if value is not None), 0.0)
    held = []
    for value in values:
        last = value if value is not None else last
        held.append(last)
    return held


def layout(panel: Panel, span: Span, tz: float, revision: str) -> Figure:
    """Axes without colour (CSS paints them); y is fixed, so a drag always means "this time".

    The left margin grows with labels that are wider than usual ("1234.5671").
    """
    return {
        "uirevision": revision,
        "margin": {"l": 40, "r": 10, "t": 8, "b": 26},
        "paper_bgcolor": "rgba(0,0,0,0)",
        "plot_bgcolor": "rgba(0,0,0,0)",
        "showlegend": False,
        "hovermode": False,
        "dragmode": "zoom",
        "font": {"family": "Inter, system-ui, sans-serif", "size": 11},
        "xaxis": _time_axis(span, tz),
        "yaxis": _value_axis(panel),
        # The slot of the line that is a limit: the browser keeps the others readable below it (`chart.mjs`).
        "meta": next((slot for slot, line in panel.slots() if line.limit), ""),
    }


def _time_axis(span: Span, tz: float) -> Figure:
    return {
        "type": "date",
        "range": [milliseconds(span.start, tz), milliseconds(span.end, tz)],
        "nticks": 5,
        # Invisible ticks keep the labels clear of the value axis' zero.
        "ticks": "outside",
        "ticklen": 5,
        "tickcolor": "rgba(0,0,0,0)",
        "showgrid": False,
        "zeroline": False,
        # One line per tick; Plotly adds the date below the first one, which needs the margin it has not.
        "tickformatstops": [
            {"dtickrange": [None, 60_000], "value": "%H:%M:%S"},
            {"dtickrange": [60_000, 86_400_000], "value": "%H:%M"},
            {"dtickrange": [86_400_000, None], "value": "%b %e"},
        ],
    }


def _value_axis(panel: Panel) -> Figure:
    axis: Figure = {"fixedrange": True, "nticks": 4, "zeroline": False, "automargin": "left"}
    axis["tickformat"] = _tick_format(panel)
    if axis["tickformat"] == "~s":
        axis |= _COUNTS
    if panel.unit == "seconds" and panel.kind != "share":
        axis |= _SECONDS
    if not panel.unit:
        axis |= _BARE
    if panel.kind == "share":
        axis["ticksuffix"] = "%"
    if panel.ceiling is not None:
        axis["range"] = [0, panel.ceiling]
    elif panel.from_zero:
        axis["rangemode"] = "tozero"
    return axis


def _tick_format(panel: Panel) -> str:
    if panel.unit == "ratio":
        # "0.2%" where a whole percent would be nothing, and no digit more than there is.
        return "~%"
    return "" if panel.kind == "share" or panel.unit in ("versions", "reward", "nats", "") else "~s"


def limit_line(value: float, level: str, dash: str = "dot") -> Figure:
    """A dotted line over the whole width. It has no label in the chart, where it would cover data: the legend has."""
    return {
        "type": "line",
        "xref": "paper",
        "x0": 0,
        "x1": 1,
        "y0": value,
        "y1": value,
        "line": {"color": theme.LIMIT[level], "width": 1, "dash": dash},
    }
