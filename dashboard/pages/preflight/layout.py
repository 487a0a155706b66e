"""The Preflight page: whether the plan fits the limits. Its rows are drawn by `assets/widgets/preflight.mjs`."""

from typing import Any

from dashboard.pages.preflight.data import GROUPS, cells
from dashboard.shell.page import Page, html, t


def tree() -> list[Any]:
    """The page's elements; it has no charts. Which of them are seen depends on ``pf.mode``."""
    groups = html.Div([_group(status) for status in GROUPS], className="col checks")
    columns = html.Div([groups, html.Div([_plan(), _how()], className="col")], className="board")
    return [html.Div([_head(), columns], className="preflight", **{"data-s": "pf.mode"})]


def _head() -> Any:
    title = html.H1([t(html.Span, "pf.head")])
    paragraph = html.P(
        [
            t(html.Span, "pf.text"),
            html.Span(html.Span(className="ago", **{"data-a": "pf.at"}), className="meta when-read"),
        ],
        className="text",
    )
    button = html.Button(t(html.Span, "pf.btn"), id="pf-run", type="button", className="strong")
    wait = html.P(id="pf-wait", className="note")
    status = html.P(id="pf-said", role="status", className="said")
    return html.Section(
        [html.Div([title, paragraph]), html.Div([button, wait], className="start"), status],
        className="banner card pf-head",
        **{"data-s": "pf.s"},
    )


def _group(status: str) -> Any:
    head = t(html.H2, f"pf.{status}")
    rows = html.Div(className="rows", **{"data-checks": status})
    return html.Section([head, rows], className=f"group {status}", **{"data-group": status})


def _plan() -> Any:
    title = html.Div([html.H2("The plan"), html.Span("from the configuration", className="unit")], className="row")
    return html.Section(
        [title, html.Ul(className="plan", **{"data-rows": "pf-plan"})], className="card side", id="plan"
    )


def _how() -> Any:
    body = [
        html.H2("Complete the plan"),
        html.Div(
            [
                html.P(
                    "Add these to rollscope.toml and restart:",
                    className="note",
                ),
                html.Pre(html.Code(**{"data-t": "pf.toml"})),
            ],
            className="to-say",
        ),
        html.P("Or run it from a shell, even before the run starts:", className="note"),
        html.Pre(html.Code(**{"data-t": "pf.cmd"})),
        html.P(["Preflight is read-only: ", html.B("Rollscope creates and deletes nothing"), "."], className="note"),
    ]
    return html.Section(body, className="card side how-plan")


PAGE = Page("preflight", "preflight", "Preflight", tree, cells)
