"""The Runs page: all runs, and a comparison of some of them. Drawn by `assets/widgets/{runs,compare}.mjs`."""

from typing import Any

from dashboard.pages.runs.data import ASKS, cells
from dashboard.shell.page import Page, t
from dashboard.widgets.base import html

# (column, what it is sorted by, narrow?)
COLUMNS: tuple[tuple[str, str], ...] = (
    ("Run", "name"),
    ("Limiter", "verdict"),
    ("Step", "step"),
    ("Wait", "wait"),
    ("Staleness", "stale"),
    ("$ / 1M tokens", "cost"),
    ("Alerts", "fire"),
    ("Last data", "at"),
)


def tree() -> list[Any]:
    """The page's elements; it has no charts of the usual kind."""
    return [_head(), _compare(), _list()]


def _head() -> Any:
    title = html.H1(t(html.Span, "runs.head"))
    heading = html.Div([title, t(html.P, "runs.sub", "text")])
    tools = html.Div([html.Div(id="rn-find", className="find"), html.Div(id="rn-chosen", className="chosen")])
    return html.Section([heading, tools], className="banner card runs-head")


def _list() -> Any:
    sorts = [
        html.Th(html.Button(name, type="button", className="sort", **{"data-sort": key}), scope="col")
        for name, key in COLUMNS
    ]
    head = html.Thead(html.Tr([html.Th(html.Span("Compare", className="sr"), scope="col"), *sorts]))
    table = html.Table([head, html.Tbody(**{"data-rows": "runs"})])
    status = html.P(id="rn-said", role="status", className="note")
    return html.Section([html.H2("All runs", className="sr"), table, status, t(html.P, "runs.none", "note")],
                        className="card grid fleet")  # fmt: skip


def _compare() -> Any:
    """Filled in the browser when two runs are chosen."""
    status = html.P(id="cm-said", role="status", className="note")
    return html.Section(
        [html.Div(id="cm-head"), status, html.Div(id="cm-panels", className="compared")],
        id="compare",
        className="compare",
        hidden=True,
        **{"aria-label": "Runs compared"},
    )


PAGE = Page("runs", "runs", "Runs", tree, cells, asks=ASKS, whole=True)
