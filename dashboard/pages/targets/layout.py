"""The Targets page: can the numbers be believed, and which are missing. Drawn by `assets/widgets/targets.mjs`."""

from typing import Any

from dashboard.pages.targets.data import ASKS, GROUPS, cells
from dashboard.shell.page import Page, html, t

_NAMES = ("Target", "Run", "State", "Last read", "Took", "Samples", "Unmapped keys")


def tree() -> list[Any]:
    """The page's elements; it has no charts."""
    return [_head(), _list(), _coverage()]


def _head() -> Any:
    heading = html.Div([html.H1(t(html.Span, "tg.head")), t(html.P, "tg.sub", "text")])
    only = html.Button("Only unhealthy", id="tg-only", type="button", **{"aria-pressed": "false"})
    tools = html.Div([html.Div(id="tg-find", className="find"), only], className="row tools")
    return html.Section([heading, tools], className="banner card targets-head", **{"data-s": "tg.s"})


def _list() -> Any:
    head = html.Thead(html.Tr([html.Th(name, scope="col") for name in _NAMES]))
    table = html.Table([head, html.Tbody(**{"data-rows": "targets"})])
    notes = [t(html.P, "tg.more", "note"), t(html.P, "tg.none", "note")]
    return html.Section([html.H2("Targets, unhealthy first"), table, *notes], className="card grid targets")


def _coverage() -> Any:
    title = html.Div(
        [
            html.H2(["Signals of ", t(html.Span, "tg.c.run")]),
            html.Span("from what its targets report", className="unit"),
        ],
        className="row",
    )
    groups = [
        html.Details(
            [
                html.Summary([html.Span(label), t(html.B, f"tg.c.{group}")]),
                html.Ul(className="signals", **{"data-rows": f"coverage-{group}"}),
            ],
            open=group == "lack",
            id=f"coverage-{group}",
        )
        for group, label in GROUPS.items()
    ]
    return html.Section([title, *groups], className="card coverage", id="coverage", **{"data-s": "tg.c.run"})


PAGE = Page("targets", "targets", "Targets", tree, cells, asks=ASKS, whole=True)
