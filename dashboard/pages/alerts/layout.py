"""The Alerts page: firing alerts, notifications, silences and rules. Drawn by `assets/widgets/alerts.mjs`."""

from typing import Any

from dashboard.pages.alerts.data import board
from dashboard.shell.page import Page, Scope, t
from dashboard.widgets.base import html
from dashboard.widgets.status import View
from server.query.run_state import LIVE

HISTORY, DELIVERIES = 50, 30

_EXAMPLE = """[[alerts.receiver]]
name = "team"
kind = "slack"   # or webhook, alertmanager, discord, pagerduty
url_env = "SLACK_WEBHOOK_URL"
"""


def tree() -> list[Any]:
    """The page's elements; it has no charts."""
    left = [
        _list("firing"),
        _list("pending", "Pending"),
        _list("muted", "Silenced and inhibited"),
        _history(),
    ]
    columns = [html.Div(left, className="col"), html.Div([_deliveries(), _silences()], className="col")]
    return [_head(), html.Div([*columns, _rules()], className="board")]


def cells(scope: Scope) -> View:
    """The page's texts. Deliveries are of the runs shown; a silence is of all."""
    reader, run = scope.reader, scope.about
    return board(
        scope.alerts,
        reader.alerts.history(run, HISTORY),
        scope.rules,
        reader.alerts.deliveries(run, DELIVERIES),
        scope.silences,
        scope.receivers,
        LIVE if scope.everything else scope.status.state,
    )


def _head() -> Any:
    title = html.H1(t(html.Span, "alerts.head"))
    sub = html.P([t(html.Span, "alerts.sub")], className="meta")
    switch = html.Button("All runs", id="all-runs", type="button", **{"aria-pressed": "false"})
    return html.Section(
        [html.Div([title, sub]), switch, html.P(id="alerts-said", role="status", className="said")],
        className="banner card alerts-head",
        **{"data-s": "alerts.s"},
    )


def _list(name: str, heading: str = "") -> Any:
    """A section of alert cards. An empty section is hidden, except the first one, which shows that it is empty."""
    head = [html.H2(heading, id=f"h-{name}")] if heading else [html.H2("Firing", id="h-firing", className="sr")]
    rows = html.Div(className="rows", **{"data-alerts": name})
    none = [t(html.P, "alerts.none", "card quiet")] if name == "firing" else []
    more = t(html.P, f"alerts.{name}.more", "note")
    return html.Section([*head, rows, more, *none], className=f"group {name}", **{"aria-labelledby": f"h-{name}"})


def _table(rows: str, *names: str) -> Any:
    head = html.Thead(html.Tr([html.Th(name, scope="col") for name in names]))
    return html.Table([head, html.Tbody(**{"data-rows": rows})])


def _history() -> Any:
    table = _table("history", "Alert", "Began", "Lasted", "Last value", "Reason", "")
    return html.Section([html.H2("Resolved"), table], className="card grid history", id="history")


def _rules() -> Any:
    table = _table("rules", "Rule", "Class", "Severity", "Fires when", "Now")
    return html.Section(
        [html.H2("Rules"), table, t(html.P, "rules.none", "note")], className="card grid rules", id="rules"
    )


def _deliveries() -> Any:
    how = html.Details(
        [
            html.Summary("How to add a receiver"),
            html.Pre(html.Code(_EXAMPLE)),
            html.P(["Then test it: ", html.Code("rollscope alerts send-test team")], className="note"),
        ],
        className="how",
        open=True,
        **{"data-s": "deliveries.how"},
    )
    body = [t(html.P, "deliveries.who", "note"), html.Ol(className="brief sent", **{"data-rows": "deliveries"})]
    return html.Section(
        [html.H2("Notifications"), *body, t(html.P, "deliveries.none", "note"), how],
        className="card side",
        id="deliveries",
    )


def _silences() -> Any:
    rows = html.Ul(className="brief quieted", **{"data-rows": "silences"})
    return html.Section(
        [html.H2("Silences"), rows, t(html.P, "silences.none", "note")], className="card side", id="silences"
    )


PAGE = Page("alerts", "alerts", "Alerts", tree, cells)
