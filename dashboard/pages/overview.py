"""The overview: which elements exist, and which key of the view fills each.

The tree is static. `data-t` names the key whose cell becomes the element's text, `data-s` its `data-state`,
`data-w` its width in percent, `data-h` its tip, `data-a` a time shown as an age. React never owns those
texts, so a live update cannot fight with a re-render.
"""

from typing import Any

from dash import dcc
from dash import html as _html

from dashboard.banner import PHASES
from dashboard.panels import CARDS, PANELS, Card, Line, Panel

# Dash's own types know no `data-*` attributes.
html: Any = _html

INTERVAL_MS = 2000
_GRAPH: Any = {"displayModeBar": False, "doubleClick": False, "responsive": True, "scrollZoom": False}


def layout() -> Any:
    """The page, with every store and timer it needs."""
    return html.Div(
        [
            html.A("Skip to the charts", href="#charts", className="skip"),
            _header(),
            html.Main([_message(), html.Div([_banner(), _cards(), _flow(), _charts(), _trust()], className="body")]),
            *_machinery(),
        ],
        id="app",
        **{"data-page": "loading"},
    )


def _machinery() -> list[Any]:
    stores = [dcc.Store(id=name) for name in ("view", "boot", "pull", "delta", "sink")]
    return [dcc.Location(id="url", refresh=False), dcc.Interval(id="clock", interval=INTERVAL_MS), *stores]


def _t(tag: Any, key: str, name: str = "", **data: str) -> Any:
    """An element whose text is the cell ``key``."""
    return tag(className=name or None, **{"data-t": key, **{f"data-{k}": v for k, v in data.items()}})


def _pill(key: str, state: str = "s") -> Any:
    return _t(html.Span, f"{key}.p", "pill", s=f"{key}.{state}")


def _header() -> Any:
    menu = html.Details(
        [
            html.Summary([html.Span("Run: ", className="sr"), html.Span("…", id="run-name")]),
            html.Nav(id="runs", **{"aria-label": "Runs"}),
        ],
        id="run-menu",
    )
    # A zoom stays while the charts go on: without a word of it, an old hour looks like the last one.
    reset = html.Button("Reset zoom", id="unzoom", type="button")
    return html.Header(
        [
            html.A([html.Span(className="logo"), "Rollscope"], href="?", className="brand"),
            html.Div([menu, html.Nav(id="ranges", **{"aria-label": "Time range"}), reset], className="where"),
            html.Div([_live(), _theme()], className="when"),
        ]
    )


def _live() -> Any:
    dot = html.Span(className="dot")
    words = [html.Span("…", id="live-word"), html.Span(id="live-age", className="age")]
    return html.Button([dot, html.Span(words)], id="live", type="button", **{"data-live": "wait"})


def _theme() -> Any:
    word = html.Span("Theme", id="theme-word")
    return html.Button([html.Span(className="half"), word], id="theme", type="button")


def _message() -> Any:
    return html.Section([html.H1("Nothing to show", id="message-title"), html.P(id="message")], className="message")


def _banner() -> Any:
    head = html.H1([_t(html.Span, "b.head"), _t(html.B, "b.num", "num"), _t(html.Span, "b.tail")])
    meta = html.P([_t(html.Span, "b.meta"), html.Span(className="ago", **{"data-a": "b.age"})], className="meta")
    chip = _t(html.Span, "b.chip", "chip", s="b.chip.s")
    slices = [
        html.Span(_t(html.Span, f"b.l.{phase}"), className=f"slice {phase}", **{"data-w": f"b.w.{phase}"})
        for phase, _ in PHASES
    ]
    right = [_t(html.P, "b.step", "meta"), html.Div(slices, className="split", **{"data-s": "b.split.s"})]
    return html.Section(
        [
            html.Div([html.Div([chip, meta], className="row"), head, _t(html.P, "b.text", "text")]),
            html.Div([*right, _t(html.P, "b.note", "note")]),
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
            html.Div([html.H2(card.title), _pill(key)], className="row"),
            html.P([_t(html.B, f"{key}.v", "num"), _t(html.Span, f"{key}.u", "unit")], className="big"),
            _t(html.P, f"{key}.n", "note", h=f"{key}.tip"),
            html.Div(className=f"spark c-{card.colour}", **{"data-spark": key}),
        ],
        className="card kpi",
        id=f"card-{card.key}",
        **{"data-s": f"{key}.s"},
    )


def _flow() -> Any:
    nodes = [_actor("generator", "Generator", "orange"), _arrow("to_queue"), _actor("queue", "Queue", "teal")]
    nodes += [_arrow("to_trainer"), _actor("trainer", "Trainer", "blue"), _actor("sandbox", "Sandboxes", "purple")]
    weights = html.Div([_t(html.Span, "f.weights")], className="weights")
    return html.Section([*nodes, weights, _next()], className="flow card", **{"aria-label": "Actors"})


def _actor(key: str, title: str, colour: str) -> Any:
    cell = f"f.{key}"
    numbers = [html.Span([_t(html.B, f"{cell}.{i}.v"), _t(html.Span, f"{cell}.{i}.u")]) for i in range(3)]
    return html.Div(
        [
            html.Div([html.H2(title), _pill(cell)], className="row"),
            _t(html.P, f"{cell}.sub", "note"),
            html.Div(html.Span(className=f"c-{colour}", **{"data-w": f"{cell}.bar"}), className="bar"),
            html.P(numbers, className="numbers"),
        ],
        className=f"actor {key}",
        **{"data-s": f"{cell}.s"},
    )


def _arrow(key: str) -> Any:
    words = [_t(html.B, f"f.{key}"), html.I(className="shaft"), _t(html.Span, f"f.{key}.sub", "note")]
    return html.Div(words, className=f"arrow {key}")


def _next() -> Any:
    """Until a verdict says what to try, the same place says whether the numbers can be believed."""
    steps = html.Ol([_t(html.Li, f"f.next.{i}") for i in range(3)], className="steps")
    trust = html.Div(
        [
            html.Div([html.H2("Data trust"), _t(html.Span, "t.sum", "pill", s="t.s")], className="row"),
            html.Ul(className="brief", **{"data-rows": "brief"}),
            _t(html.P, "t.keys", "note"),
        ],
        className="believe",
    )
    return html.Div([html.H2("Try next", className="try"), steps, trust], className="next")


def _charts() -> Any:
    return html.Div([_panel(panel) for panel in PANELS], className="charts", id="charts")


def _panel(panel: Panel) -> Any:
    key = f"p.{panel.key}"
    title = [html.H2(panel.title), html.Span(panel.shown, className="unit"), html.Span(className="at")]
    graph = dcc.Graph(id=f"graph-{panel.key}", config=_GRAPH, responsive=True, className="graph")
    why = html.Div([_pill(key, "h"), _t(html.P, f"{key}.w")], className="why")
    return html.Section(
        [
            html.Div(title, className="row"),
            _legend(panel),
            html.Div([graph, html.I(className="cross")], className="plot"),
            why,
            _t(html.P, f"{key}.src", "src"),
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
    bands = [_t(html.Span, f"p.{panel.key}.{level}", f"limit {level}") for level in ("watch", "critical")]
    return html.P([*items, *bands], className="legend")


def _item(slot: str, line: Line) -> Any:
    swatch = html.I(className=f"swatch c-{line.colour}" + (" thin" if line.thin else ""))
    words = [swatch, _t(html.Span, f"p.{slot}.l"), html.B(**{"data-t": f"p.{slot}.v", "data-slot": slot})]
    return html.Span(words, className="item", **{"data-s": f"p.{slot}.s"})


def _trust() -> Any:
    names = ("Target", "Actor", "Status", "Last read", "Samples then", "Unmapped keys")
    head = html.Thead(html.Tr([html.Th(name, scope="col") for name in names]))
    table = html.Table([head, html.Tbody(**{"data-rows": "trust"})])
    title = html.Div([html.H2("Data trust"), _t(html.Span, "t.sum", "pill", s="t.s")], className="row")
    notes = [_t(html.P, "t.none", "note"), _t(html.P, "t.more", "note")]
    return html.Section([title, table, *notes], className="card trust", id="trust")
