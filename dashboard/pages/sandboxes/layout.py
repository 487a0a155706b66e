"""The Sandboxes page. Heat map, funnel, bars and rows are drawn by `assets/widgets/sandboxes.mjs` from the cells."""

from typing import Any

from dashboard.charts.elements import lane, read
from dashboard.charts.panels import names_by_slot
from dashboard.pages.sandboxes.data import CARDS, PANELS, SPARKS, cells
from dashboard.shell.page import Json, Load, Page, t
from dashboard.state import deltas
from dashboard.widgets import card, chart
from dashboard.widgets.base import headline, html
from server.query.types import Delta, Status


def tree() -> list[Any]:
    """The page's elements; which of them are seen depends on ``sandboxes.mode``."""
    cards = html.Div([card.element(one) for one in CARDS], className="cards eight")
    charts = [_heat(), _funnel(), chart.element(PANELS[0]), _infra(), *map(chart.element, PANELS[2:])]
    lists = [_causes(), _quota(), _failures(), _pending(), _dangling()]
    content = html.Div([cards, lane(), html.Div([*charts, *lists], className="boxgrid")], className="known")
    return [html.Div([_head(), _needs_none(), _how(), content], className="boxes", **{"data-s": "sandboxes.mode"})]


def charts(load: Load) -> Json:
    """The states' chart, and the small lines; the heat map draws two of them over its cells."""
    return read(load, PANELS, SPARKS)


def points(delta: Delta, status: Status) -> Json:
    """New points by slot."""
    return deltas.points(delta, names_by_slot(status.signals.values(), PANELS, SPARKS))


def _head() -> Any:
    title = headline("head.sandboxes")
    sources = [html.Ul(className="brief", **{"data-rows": "box-sources"}), t(html.P, "sandbox_sources.more", "note")]
    return html.Section(
        [
            html.Div([title, t(html.P, "head.sandboxes.text", "text"), t(html.P, "sandboxes.rest", "note")]),
            html.Div(sources),
        ],
        className="banner card boxes-head",
        **{"data-s": "head.sandboxes.state"},
    )


def _needs_none() -> Any:
    parts = [
        "If it does use sandboxes, set ",
        html.Code("has_sandbox = 1"),
        " in the run's facts in the configuration.",
    ]
    return html.P(parts, className="card quiet needs-none")


def _how() -> Any:
    provider = [
        html.H2("Read a provider"),
        html.P("Read-only. The key comes from the environment and is never shown.", className="note"),
        html.Pre(html.Code(**{"data-t": "sandboxes.toml"})),
        html.P(
            ["No access to the provider? ", html.A("Report from where you call create()", href="#recipe")],
            className="note",
        ),
    ]
    recipe = [
        html.H2("Or wrap create()"),
        html.P(
            "Never stops the run: errors go to stderr.",
            className="note",
        ),
        html.Pre(html.Code(**{"data-code": "recipe"})),
    ]
    sides = [html.Div(provider, className="way"), html.Div(recipe, className="way", id="recipe")]
    return html.Section(sides, className="card how-to", **{"aria-label": "How to read sandboxes"})


def _heat() -> Any:
    unit = html.Span("sandboxes that became ready", className="unit")
    title = html.Div([html.H2("Spin-up over time"), unit], className="row")
    scale = html.Span(className="scale", **{"data-scale": "heat"})
    legend = html.P(
        [
            html.Span([html.I(className="swatch"), "oldest pending", t(html.B, "sandboxes.oldest")], className="item"),
            html.Span(
                [html.I(className="swatch dashed"), "p95 of started ones", t(html.B, "sandboxes.p95")], className="item"
            ),
            scale,
            t(html.Span, "sandboxes.clock"),
        ],
        className="legend",
    )
    drawn = [
        html.Div(className="heat", **{"data-draw": "heat"}),
        t(html.P, "spin_ups.none", "note"),
        t(html.P, "sandboxes.split", "note"),
    ]
    return html.Section([title, legend, *drawn], className="card panel w8", id="panel-spinups")


def _funnel() -> Any:
    head = html.Div([html.H2("Funnel"), html.Span("since Rollscope started", className="unit")], className="row")
    drawn = html.Div(className="funnel", **{"data-draw": "funnel"})
    notes = [t(html.P, "sandboxes.funnel.n", "note"), t(html.P, "sandboxes.funnel.none", "note")]
    return html.Section([head, drawn, *notes], className="card panel w4", id="box-funnel")


def _infra() -> Any:
    panel = chart.element(PANELS[1])
    panel.children.append(t(html.P, "sandboxes.infra", "note"))
    return panel


def _failures() -> Any:
    """The newest ones, and a field (`assets/widgets/find.mjs`) to find any sandbox, in any state."""
    names = ("Sandbox", "What happened", "When")
    head = html.Thead(html.Tr([html.Th(name, scope="col") for name in names]))
    table = html.Table([head, html.Tbody(**{"data-rows": "box-failures"})])
    title = html.Div(
        [html.H2("Failures, newest first", id="box-found"), html.Div(id="box-find", className="find")], className="row"
    )
    status = html.P(id="box-said", role="status", className="note")
    return html.Section(
        [title, status, table, t(html.P, "failed_boxes.none", "note")], className="card grid w6", id="box-failed"
    )


def _list(title: str, rows: str, *notes: str) -> Any:
    body = [html.Ul(className="bars", **{"data-rows": rows}), *(t(html.P, key, "note") for key in notes)]
    return html.Section([html.H2(title), *body], className="card side", id=rows)


def _causes() -> Any:
    return _list("Failures by cause", "box-causes", "failure_causes.none")


def _quota() -> Any:
    return _list("Quota", "box-quota", "quotas.none", "quotas.limits")


def _table(title: str, rows: str, names: tuple[str, ...], *notes: Any) -> Any:
    head = html.Thead(html.Tr([html.Th(name, scope="col") for name in names]))
    table = html.Table([head, html.Tbody(**{"data-rows": rows})])
    return html.Section([html.H2(title), table, *notes], className="card grid w6", id=rows)


def _pending() -> Any:
    names = ("Sandbox", "Image", "Waiting for", "State")
    return _table(
        "Oldest pending", "box-pending", names, t(html.P, "pending.none", "note"), t(html.P, "pending.more", "note")
    )


def _dangling() -> Any:
    note = html.P(
        [
            "Still alive although their run is over or unknown; they use quota. ",
            html.B("Rollscope deletes nothing"),
            ": ",
            html.A("Setup", href="sources?tab=setup", **{"data-goto": "sources", "data-changes": "tab=setup"}),
            " lists the provider's delete command for each.",
        ],
        className="note",
    )
    names = ("Sandbox", "Belongs to", "Age", "Provider")
    notes = (t(html.P, "dangling.none", "note"), t(html.P, "dangling.more", "note"), note)
    return _table("Dangling", "box-dangling", names, *notes)


PAGE = Page("sandboxes", "sandboxes", "Sandboxes", tree, cells, charts, points, timed=True)
