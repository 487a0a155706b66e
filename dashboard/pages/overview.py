"""The overview: which elements exist, and which key of the view fills each (see `dashboard.page.t`)."""

from collections.abc import Mapping, Sequence
from typing import Any

from dash import dcc

from dashboard import live
from dashboard.alerts import brief
from dashboard.banner import PHASES
from dashboard.facts import View
from dashboard.figures import figure, has_points, limit_line
from dashboard.limits import limits
from dashboard.page import Json, Load, Page, Scope, html, pill, t
from dashboard.panels import CARDS, PANELS, Card, Line, Panel, names_by_slot
from dashboard.urlstate import Span, points
from dashboard.view import view
from server.query.types import Reader, Series

_GRAPH: Any = {"displayModeBar": False, "doubleClick": False, "responsive": True, "scrollZoom": False}
_SPARK_POINTS = 60


def tree(figures: Json) -> list[Any]:
    """The page's elements."""
    return [_banner(), _cards(), _flow(), _charts(figures), _trust()]


def cells(scope: Scope) -> View:
    """The page's texts."""
    return view(scope.status, scope.reader.infos()) | brief(scope.alerts, scope.reader.alert_history(scope.about, 2))


def charts(load: Load) -> Json:
    """Figures, the slots that have a line, and the cards' small lines."""
    status = load.scope.status
    slots = names_by_slot(status.signals)
    series = _read(load.scope.reader, status.run, slots, load.span)
    return {
        "figures": _figures(load, series),
        "drawn": [slot for panel in PANELS for slot, _ in panel.slots() if slot in series],
        "sparks": {key: live.spark(series[key]) for card in CARDS if (key := f"k.{card.key}") in series},
    }


def _read(reader: Reader, run: str, slots: Mapping[str, Sequence[str]], span: Span) -> dict[str, Series]:
    """Chart series at full width, card series at a sparkline's."""
    found: dict[str, Series] = {}
    for of_cards, width in ((False, points(span)), (True, _SPARK_POINTS)):
        part = {slot: names for slot, names in slots.items() if slot.startswith("k.") == of_cards}
        wanted = sorted({name for names in part.values() for name in names})
        read = reader.series(run, wanted, span.start, span.end, width)
        found |= live.by_slot(part, {series.name: series for series in read})
    return {slot: series for slot, series in found.items() if has_points(series)}


def _figures(load: Load, series: Mapping[str, Series]) -> Json:
    tz, address = float(load.wanted.get("tz") or 0), load.address
    facts, infos = load.scope.facts, load.scope.reader.infos()
    revision = f"{load.scope.run}|{address.range}|{address.start}"

    def drawn(panel: Panel) -> Json:
        chart = figure(panel, series, load.span, tz, revision)
        shapes = [limit_line(value, level) for level, value, _ in limits(panel, facts, infos)]
        # A finger that drags over a chart wants to scroll the page.
        drag = {"dragmode": False} if load.wanted.get("touch") else {}
        return {"data": chart["data"], "layout": chart["layout"] | {"shapes": shapes} | drag}

    return {panel.key: drawn(panel) for panel in PANELS}


def _banner() -> Any:
    head = html.H1([t(html.Span, "b.head"), t(html.B, "b.num", "num"), t(html.Span, "b.tail")])
    meta = html.P([t(html.Span, "b.meta"), html.Span(className="ago", **{"data-a": "b.age"})], className="meta")
    chip = t(html.Span, "b.chip", "chip", s="b.chip.s")
    slices = [
        html.Span(t(html.Span, f"b.l.{phase}"), className=f"slice {phase}", **{"data-w": f"b.w.{phase}"})
        for phase, _ in PHASES
    ]
    right = [t(html.P, "b.step", "meta"), html.Div(slices, className="split", **{"data-s": "b.split.s"})]
    return html.Section(
        [
            html.Div([html.Div([chip, meta], className="row"), head, t(html.P, "b.text", "text")]),
            html.Div([*right, t(html.P, "b.note", "note")]),
        ],
        className="banner card",
        **{"data-s": "b.chip.s"},
    )


def _cards() -> Any:
    return html.Div([_card(card) for card in CARDS], className="cards")


def _card(card: Card) -> Any:
    key = f"k.{card.key}"
    return html.Section(
        [
            html.Div([html.H2(card.title), pill(key)], className="row"),
            html.P([t(html.B, f"{key}.v", "num"), t(html.Span, f"{key}.u", "unit")], className="big"),
            t(html.P, f"{key}.n", "note", h=f"{key}.tip"),
            html.Div(className=f"spark c-{card.colour}", **{"data-spark": key}),
        ],
        className="card kpi",
        id=f"card-{card.key}",
        **{"data-s": f"{key}.s"},
    )


def _flow() -> Any:
    nodes = [_actor("generator", "Generator", "orange"), _arrow("to_queue"), _actor("queue", "Queue", "teal")]
    nodes += [_arrow("to_trainer"), _actor("trainer", "Trainer", "blue"), _actor("sandbox", "Sandboxes", "purple")]
    weights = html.Div([t(html.Span, "f.weights")], className="weights")
    return html.Section([*nodes, weights, _next()], className="flow card", **{"aria-label": "Actors"})


def _actor(key: str, title: str, colour: str) -> Any:
    cell = f"f.{key}"
    numbers = [html.Span([t(html.B, f"{cell}.{i}.v"), t(html.Span, f"{cell}.{i}.u")]) for i in range(3)]
    return html.Div(
        [
            html.Div([html.H2(title), pill(cell)], className="row"),
            t(html.P, f"{cell}.sub", "note"),
            html.Div(html.Span(className=f"c-{colour}", **{"data-w": f"{cell}.bar"}), className="bar"),
            html.P(numbers, className="numbers"),
        ],
        className=f"actor {key}",
        **{"data-s": f"{cell}.s"},
    )


def _arrow(key: str) -> Any:
    words = [t(html.B, f"f.{key}"), html.I(className="shaft"), t(html.Span, f"f.{key}.sub", "note")]
    return html.Div(words, className=f"arrow {key}")


def _next() -> Any:
    """Until a verdict says what to try, the same place says whether the numbers can be believed."""
    steps = html.Ol([t(html.Li, f"f.next.{i}") for i in range(3)], className="steps")
    trust = html.Div(
        [
            html.Div([html.H2("Data trust"), t(html.Span, "t.sum", "pill", s="t.s")], className="row"),
            html.Ul(className="brief", **{"data-rows": "brief"}),
            t(html.P, "t.keys", "note"),
        ],
        className="believe",
    )
    return html.Div([html.H2("Try next", className="try"), steps, trust], className="next")


def _charts(figures: Json) -> Any:
    return html.Div(
        [_alerts(), *(_panel(panel, figures.get(panel.key)) for panel in PANELS)], className="charts", id="charts"
    )


def _alerts() -> Any:
    """What fires now, beside the charts; the page of its own has the rest."""
    title = html.H2(html.A("Alerts", href="alerts", **{"data-goto": "alerts"}))
    head = html.Div([title, t(html.Span, "o.sum", "pill", s="o.s")], className="row")
    more = html.P(t(html.A, "o.more", goto="alerts"), className="note")
    return html.Section([head, html.Ol(**{"data-rows": "brief-alerts"}), more], className="card short", id="alerts")


def _panel(panel: Panel, drawn: Json | None) -> Any:
    key = f"p.{panel.key}"
    title = [html.H2(panel.title), html.Span(panel.shown, className="unit"), html.Span(className="at")]
    graph = dcc.Graph(id=f"graph-{panel.key}", figure=drawn, config=_GRAPH, responsive=True, className="graph")
    why = html.Div([pill(key, "h"), t(html.P, f"{key}.w")], className="why")
    return html.Section(
        [
            html.Div(title, className="row"),
            _legend(panel),
            html.Div([graph, html.I(className="cross")], className="plot"),
            why,
            t(html.P, f"{key}.src", "src"),
        ],
        className="card panel",
        id=f"panel-{panel.key}",
        **{
            "data-panel": panel.key,
            "data-share": "1" if panel.kind == "share" else "",
            "data-unit": panel.unit if panel.unit in ("ratio", "seconds") else "",
        },
    )


def _legend(panel: Panel) -> Any:
    items = [_item(slot, line) for slot, line in panel.slots()]
    bands = [t(html.Span, f"p.{panel.key}.{level}", f"limit {level}") for level in ("watch", "critical")]
    return html.P([*items, *bands], className="legend")


def _item(slot: str, line: Line) -> Any:
    swatch = html.I(className=f"swatch c-{line.colour}" + (" thin" if line.thin else ""))
    words = [swatch, t(html.Span, f"p.{slot}.l"), html.B(**{"data-t": f"p.{slot}.v", "data-slot": slot})]
    return html.Span(words, className="item", **{"data-s": f"p.{slot}.s"})


def _trust() -> Any:
    names = ("Target", "Actor", "Status", "Last read", "Samples then", "Unmapped keys")
    head = html.Thead(html.Tr([html.Th(name, scope="col") for name in names]))
    table = html.Table([head, html.Tbody(**{"data-rows": "trust"})])
    title = html.Div([html.H2("Data trust"), t(html.Span, "t.sum", "pill", s="t.s")], className="row")
    notes = [t(html.P, "t.none", "note"), t(html.P, "t.more", "note")]
    return html.Section([title, table, *notes], className="card trust", id="trust")


PAGE = Page("overview", "", "Overview", tree, cells, charts, live.points)
