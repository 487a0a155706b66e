"""The Explore page: any metric or signal of a run as a chart. The address holds what is shown: ``signal`` and
``metric`` (names as `/series` takes them, separated by commas), ``split`` (a label: one chart per value) and ``log=1``.

The browser reads the catalogue and the series from the API (`assets/widgets/explore.mjs`).
"""

from typing import Any

from dashboard.charts.comparison import behind
from dashboard.charts.elements import lane
from dashboard.charts.figures import layout
from dashboard.shell.page import Json, Load, Page, Scope
from dashboard.widgets.base import html
from dashboard.widgets.chart import Panel
from dashboard.widgets.status import View
from server.query.types import Delta, Status

ASKS = ("signal", "metric", "split", "log")
# Units whose axis is written in a way of its own, and one of all others.
_AXES = ("", "ratio", "seconds", "other")


def tree() -> list[Any]:
    """The page's elements."""
    text = "Every metric that a target reports and every signal made of them. Signals are summaries over a window; "
    head = html.Section(
        html.Div([html.H1("Explore"), html.P(text + "metrics are as reported.", className="text")]),
        className="banner card",
    )
    tools = html.Div([html.Div(id="ex-find", className="find"), html.P(id="ex-said", className="note", role="status")])
    listed = html.Div(id="ex-list", className="choices-of", role="group", **{"aria-label": "Metrics and signals"})
    left = html.Section([tools, listed], className="card side", **{"aria-label": "Catalogue"})
    right = html.Div([lane(), html.Div(id="ex-chosen"), html.Div(id="ex-charts", className="charts")])
    return [html.Div([head, html.Div([left, right], className="explore-grid")], className="explore", id="explore")]


def cells(scope: Scope) -> View:
    """None: what is shown comes from the API."""
    return {}


def charts(load: Load) -> Json:
    """What the browser needs to draw charts of its own: an empty list of figures, axes by unit, and what is behind.

    ``beside``: the run or the time drawn behind the lines, and the seconds added to its times.
    """
    tz = float(load.wanted.get("tz") or 0)
    axes = {unit: layout(Panel("", "", "", unit, ()), load.span, tz, "") for unit in _AXES}
    found: Json = {"figures": {}, "drawn": [], "sparks": {}, "rules": {}, "axes": axes}
    if load.address.by_step:
        return found | {"stepped": []}
    source = behind(load) if load.address.over else None
    if source is None:
        return found
    return found | {"behind": [source.label, []], "beside": {"run": source.run, "shift": source.place(0.0)}}


def points(delta: Delta, status: Status) -> Json:
    """None: the browser reads them."""
    return {}


PAGE = Page("explore", "explore", "Explore", tree, cells, charts, points, asks=ASKS, kind="tool")
