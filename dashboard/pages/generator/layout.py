"""The Generator page. Heat map, bars and rows are drawn by `assets/widgets/generator.mjs` from the cells."""

from collections.abc import Sequence
from typing import Any

from dashboard.charts.elements import lane, read
from dashboard.charts.panels import names_by_slot
from dashboard.pages.generator.data import CARDS, GPUS, PANELS, REPORTED, ROLES, ROUTER, SPARKS, SPECULATIVE, cells
from dashboard.pages.generator.engines import HEATS
from dashboard.shell.page import Json, Load, Page, simulate, t
from dashboard.state import deltas
from dashboard.widgets import card, chart
from dashboard.widgets.base import headline, html
from dashboard.widgets.chart import Panel
from server.query.types import Delta, Status

_COLUMNS = (
    "Engine",
    "State",
    "Running",
    "Waiting",
    "KV cache",
    "Tokens/s",
    "Prefix hits",
    "Preempted/min",
    "Weights",
    "Last read",
)


def tree() -> list[Any]:
    """The page's elements."""
    cards = html.Div([card.element(one) for one in CARDS], className="cards eight")
    load, *rest = [chart.element(panel) for panel in PANELS]
    sides = [html.Div([_heat(), load], className="stack"), html.Div([_sick(), _room()], className="stack")]
    first = html.Div(sides, className="actor-grid")
    charts = html.Div([_speed(), *rest], className="charts")
    named = (
        ("Prefill and decode", "roles", ROLES),
        ("GPUs", "gpus", GPUS),
        ("Router", "router", ROUTER),
        ("Speculative decoding", "speculative", SPECULATIVE),
    )
    groups = [_group(*one) for one in named]
    parts = [_head(), cards, lane(), first, charts, *groups, _table()]
    return [html.Div(parts, className="actor-page generator-page")]


def _group(title: str, key: str, panels: Sequence[Panel]) -> Any:
    """Charts that only some runs have: the cell ``key`` is "absent" where no source reports them."""
    head = [html.H2(title), t(html.Span, f"{key}.note", "unit")]
    drawn = html.Div([chart.element(panel) for panel in panels], className="charts")
    parts = [html.Div(head, className="row"), t(html.P, f"{key}.none", "note"), drawn]
    return html.Section(parts, className="reported", id=f"gen-{key}", **{"data-s": key})


def charts(load: Load) -> Json:
    """Figures, the slots that have a line, and the cards' small lines."""
    return read(load, (*PANELS, *REPORTED), SPARKS)


def points(delta: Delta, status: Status) -> Json:
    """New points by slot."""
    return deltas.points(delta, names_by_slot(status.signals.values(), (*PANELS, *REPORTED), SPARKS))


def _head() -> Any:
    title = headline("head.generator")
    states = html.Ul(className="states", **{"data-rows": "gen-states"})
    side = [t(html.P, "engine_states.kinds", "meta"), states, t(html.P, "engine_states.weights", "note")]
    advice = html.P([t(html.Span, "generator.next"), simulate("generator.try")], className="text advice")
    return html.Section(
        [html.Div([title, t(html.P, "head.generator.text", "text"), advice]), html.Div(side)],
        className="banner card actor-head",
        **{"data-s": "head.generator.state"},
    )


def _heat() -> Any:
    buttons = [
        html.Button(heading, type="button", **{"data-heat": name, "aria-pressed": "false"})
        for name, (heading, _) in HEATS.items()
    ]
    choice = html.Div(buttons, className="choice", role="group", **{"aria-label": "What the map shows"})
    heading = [html.H2("Engines over time"), t(html.Span, "engine_heat.unit", "unit")]
    scale = html.Span(className="shades", **{"data-shades": "fleet"})
    legend = html.P([scale, t(html.Span, "engine_heat.more")], className="legend")
    drawn = [html.Div(className="heat fleet", **{"data-draw": "fleet"}), t(html.P, "engine_heat.none", "note")]
    head = html.Div([html.Div(heading, className="row"), choice], className="head-row")
    return html.Section([head, legend, *drawn], className="card panel", id="gen-heat")


def _speed() -> Any:
    """Tokens/s of an engine against its requests (`server.verdict.advice.engine_curve`)."""
    unit = html.Span("tokens/s per engine", className="unit")
    head = html.Div([html.H2("Engine speed"), unit], className="row")
    drawn = html.Div(className="speed lines", **{"data-draw": "speed"})
    notes = [t(html.P, "engine_speed.none", "note"), t(html.P, "engine_speed.note", "note")]
    return html.Section([head, drawn, *notes], className="card panel", id="gen-speed")


def _sick() -> Any:
    head = html.Div([html.H2("Outliers"), t(html.Span, "outliers.p", "pill", s="outliers.s")], className="row")
    rows = html.Ul(className="complaints", **{"data-rows": "gen-sick"})
    notes = [t(html.P, "outliers.none", "note"), t(html.P, "outliers.more", "note")]
    note = html.P("5 min means compared with the fleet's median.", className="note")
    return html.Section([head, rows, *notes, note], className="card side", id="gen-sick")


def _room() -> Any:
    head = html.Div(
        [html.H2("Room for more requests"), html.Span("at the current response length", className="unit")],
        className="row",
    )
    rows = html.Ul(className="bars", **{"data-rows": "gen-room"})
    ahead = html.Div(
        [t(html.B, "kv_room.next"), t(html.P, "kv_room.why", "note")], className="ahead", **{"data-s": "kv_room.s"}
    )
    return html.Section([head, rows, t(html.P, "kv_room.none", "note"), ahead], className="card side", id="gen-room")


def _table() -> Any:
    head = html.Thead(html.Tr([html.Th(name, scope="col") for name in _COLUMNS]))
    table = html.Table([head, html.Tbody(**{"data-rows": "engines"})], **{"aria-labelledby": "engines-title"})
    # It scrolls where there are many: the keyboard must get there, too.
    frame = html.Div(table, className="frame", tabIndex="0", role="region", **{"aria-labelledby": "engines-title"})
    unit = html.Span("now; tokens and preemptions: 5 min means", className="unit")
    title = html.Div([html.H2("Engines", id="engines-title"), unit], className="row")
    notes = [t(html.P, "engine_rows.none", "note"), t(html.P, "engine_rows.more", "note")]
    return html.Section([title, frame, *notes], className="card grid", id="engines")


PAGE = Page("generator", "generator", "Generator", tree, cells, charts, points, timed=True, asks=("heat",))
