"""The Explore page: any metric or signal of a run as a chart. The address holds what is shown: ``signal`` and
``metric`` (names as `/series` takes them, separated by commas), ``split`` (a label: one chart per value) and ``log=1``.

The browser reads the catalogue and the series from the API (`assets/widgets/explore.mjs`).
"""

from typing import Any

from dashboard.charts.elements import lane, read, read_own
from dashboard.shell.page import Json, Load, Page, Scope
from dashboard.widgets.base import html
from dashboard.widgets.status import View
from server.query.types import Delta, Status

ASKS = ("signal", "metric", "split", "log")


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
    """No figure of the server's: what the browser needs for its own."""
    return read(load, (), ()) | read_own(load)


def points(delta: Delta, status: Status) -> Json:
    """None: the browser reads them."""
    return {}


PAGE = Page("explore", "explore", "Explore", tree, cells, charts, points, asks=ASKS, kind="tool")
