"""The Sources page in two tabs: can the numbers be believed, and which are missing (`assets/widgets/targets.mjs`); and
before a launch, whether the plan fits the limits (`assets/widgets/preflight.mjs`).
"""

from typing import Any

from dashboard.pages.sources import setup
from dashboard.pages.sources.data import ASKS, GROUPS, cells
from dashboard.shell.page import Page, t
from dashboard.widgets.base import html
from server.query.health import TOPICS

_NAMES = ("Target", "Run", "State", "Last read", "Took", "Samples", "Unmapped keys")


def tree() -> list[Any]:
    """The page's elements; it has no charts."""
    tabs = [
        html.A(
            title, href=f"sources?tab={tab}", **{"data-goto": "sources", "data-changes": f"tab={tab}", "data-tab": tab}
        )
        for tab, title in (("list", "Sources"), ("setup", "Setup"))
    ]
    listed = html.Div([_head(), _list(), _coverage(), _health()], className="of-list")
    return [
        html.Div(
            [html.Nav(tabs, className="tabs", **{"aria-label": "Sources and setup"}), listed, _setup()],
            className="sources",
            **{"data-s": "sources.tab"},
        )
    ]


def _head() -> Any:
    heading = html.Div([html.H1(t(html.Span, "targets.head")), t(html.P, "targets.sub", "text")])
    only = html.Button("Only unhealthy", id="tg-only", type="button", **{"aria-pressed": "false"})
    switch = html.Button("All runs", id="tg-all", type="button", **{"aria-pressed": "false"})
    tools = html.Div([html.Div(id="tg-find", className="find"), only, switch], className="row tools")
    return html.Section([heading, tools], className="banner card targets-head", **{"data-s": "targets.s"})


def _list() -> Any:
    head = html.Thead(html.Tr([html.Th(name, scope="col") for name in _NAMES]))
    table = html.Table([head, html.Tbody(**{"data-rows": "targets"})])
    notes = [t(html.P, "targets.more", "note"), t(html.P, "targets.none", "note")]
    return html.Section([html.H2("Targets, unhealthy first"), table, *notes], className="card grid targets")


def _coverage() -> Any:
    title = html.Div(
        [
            html.H2(["Signals of ", t(html.Span, "coverage.run")]),
            html.Span("from what its targets report", className="unit"),
        ],
        className="row",
    )
    groups = [
        html.Details(
            [
                html.Summary([html.Span(label), t(html.B, f"coverage.{group}")]),
                html.Ul(className="signals", **{"data-rows": f"coverage-{group}"}),
            ],
            open=group == "lack",
            id=f"coverage-{group}",
        )
        for group, label in GROUPS.items()
    ]
    return html.Section([title, *groups], className="card coverage", id="coverage", **{"data-s": "coverage.run"})


def _health() -> Any:
    """Of Rollscope itself; a topic without a number is not shown."""
    unit = html.Span("the numbers of /metrics", className="unit")
    rows = [html.P([html.B(title), " ", t(html.Span, f"health.{topic}")]) for topic, title in TOPICS.items()]
    head = html.Div([html.H2("Rollscope itself"), unit], className="row")
    return html.Section([head, *rows], className="card side health", id="health")


def _setup() -> Any:
    """Whether the plan fits the limits. Which of its elements are seen depends on ``preflight.mode``."""
    groups = html.Div([_group(status) for status in setup.GROUPS], className="col checks")
    columns = html.Div([groups, html.Div([_plan(), _how()], className="col")], className="board")
    return html.Div([_setup_head(), columns], className="preflight of-setup", **{"data-s": "preflight.mode"})


def _setup_head() -> Any:
    title = html.H1([t(html.Span, "preflight.head")])
    paragraph = html.P(
        [
            t(html.Span, "preflight.text"),
            html.Span(html.Span(className="ago", **{"data-a": "preflight.at"}), className="meta when-read"),
        ],
        className="text",
    )
    button = html.Button(t(html.Span, "preflight.btn"), id="pf-run", type="button", className="strong")
    wait = html.P(id="pf-wait", className="note")
    status = html.P(id="pf-said", role="status", className="said")
    return html.Section(
        [html.Div([title, paragraph]), html.Div([button, wait], className="start"), status],
        className="banner card pf-head",
        **{"data-s": "preflight.s"},
    )


def _group(status: str) -> Any:
    head = t(html.H2, f"preflight.{status}")
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
                html.Pre(html.Code(**{"data-t": "preflight.toml"})),
            ],
            className="to-say",
        ),
        html.P("Or run it from a shell, even before the run starts:", className="note"),
        html.Pre(html.Code(**{"data-t": "preflight.cmd"})),
        html.P(["Preflight is read-only: ", html.B("Rollscope creates and deletes nothing"), "."], className="note"),
    ]
    return html.Section(body, className="card side how-plan")


PAGE = Page("sources", "sources", "Sources", tree, cells, asks=ASKS, kind="tool")
