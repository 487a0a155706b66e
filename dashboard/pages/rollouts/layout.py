"""The Rollouts page. Drawn by `assets/widgets/{rollouts,rollout_table,timeline}.mjs` from the cells."""

from typing import Any

from dashboard.charts.elements import lane, read
from dashboard.charts.panels import names_by_slot
from dashboard.pages.rollouts.data import CARDS, cells
from dashboard.pages.rollouts.filters import PARAMETERS
from dashboard.shell.page import Json, Load, Page, t
from dashboard.state import deltas
from dashboard.widgets import card
from dashboard.widgets.base import headline, html, split_bar
from server.query.types import Delta, Status

# (heading, sort key; "" for a column that cannot be sorted by)
COLUMNS = (
    ("Rollout", ""),
    ("State", ""),
    ("Took", "seconds"),
    ("Tokens", "response_tokens"),
    ("Turns", ""),
    ("Reward", "reward"),
    ("Versions", ""),
    ("Staleness", "staleness"),
    ("Last change", "moved"),
)
_READERS = (
    "verifiers and prime-rl (traces.jsonl), AReaL (rollout dumps, session traces), PipelineRL (streams), "
    "TRL (completions, traces), verl, open-instruct, miles, ROLL, ART, NeMo-RL and tinker-cookbook rollout logs"
)


def tree() -> list[Any]:
    """The page's elements; which of them are seen depends on ``rollouts.mode``."""
    cards = html.Div([card.element(one) for one in CARDS], className="cards eight")
    content = html.Div([_funnel(), _census(), _stale(), _length(), _groups(), _side(), _table()], className="known")
    return [
        html.Div(
            [_head(), cards, lane(), _how(), content, _panel()], className="rollouts", **{"data-s": "rollouts.mode"}
        )
    ]


def charts(load: Load) -> Json:
    """The cards' small lines; what is drawn here comes in cells."""
    return read(load, (), CARDS)


def points(delta: Delta, status: Status) -> Json:
    """New points by slot."""
    return deltas.points(delta, names_by_slot(status.signals.values(), (), CARDS))


def _head() -> Any:
    title = headline("head.rollouts")
    parts = [t(html.P, "rollouts.live", "meta"), split_bar("head.rollouts.split")]
    return html.Section(
        [
            html.Div([title, t(html.P, "head.rollouts.text", "text")]),
            html.Div([*parts, t(html.P, "rollouts.parts", "note")]),
        ],
        className="banner card ro-head",
        **{"data-s": "head.rollouts.state"},
    )


def _how() -> Any:
    push = [
        html.H2("Or push them from anywhere"),
        html.P("One JSON line per rollout; later lines add fields. Never stops the run.", className="note"),
        html.Pre(html.Code(**{"data-code": "push"}), tabIndex="0", **{"aria-label": "Python that pushes rollouts"}),
    ]
    files = [
        html.H2("Read what the framework writes"),
        html.P(f"Found in a run directory: {_READERS}.", className="note"),
        html.Pre(html.Code(**{"data-t": "rollouts.watch"})),
        html.P("Prompts and responses are not stored, only times, counts, versions and rewards.", className="note"),
    ]
    sides = [html.Div(files, className="way"), html.Div(push, className="way")]
    return html.Section(sides, className="card how-to", **{"aria-label": "How to report rollouts"})


def _funnel() -> Any:
    title = [
        html.H2("Where rollouts went"),
        html.Span(["ended in this range · ", t(html.B, "exits.of")], className="unit"),
    ]
    drawn = html.Div(className="exits", **{"data-draw": "exits"})
    notes = [t(html.P, f"exits.{key}", "note") for key in ("none", "bias", "lost", "why")]
    notes.append(html.P(html.Span(**{"data-a": "exits.first"}), className="note first-record"))
    return html.Section([html.Div(title, className="row"), drawn, *notes], className="card panel", id="ro-funnel")


def _census() -> Any:
    head = html.Div([html.H2("In flight now"), html.Span("state · oldest", className="unit")], className="row")
    rows = html.Ul(className="bars", **{"data-rows": "ro-census"})
    return html.Section([head, rows, t(html.P, "census.none", "note")], className="card panel", id="ro-census")


def _heat(key: str, title: str, unit: str, colour: str, *legend: Any) -> Any:
    head = html.Div([html.H2(title), html.Span(unit, className="unit")], className="row")
    drawn = html.Div(className=f"heat h-{colour}", **{"data-draw": key})
    line = html.P([*legend, html.Span(className="scale", **{"data-scale": key})], className="legend")
    return html.Section([head, line, drawn, t(html.P, f"{key}.none", "note")], className="card panel", id=f"ro-{key}")


def _key(name: str, label: str) -> Any:
    return html.Span([html.I(className=f"swatch {name}"), label], className="item")


def _stale() -> Any:
    bound = html.Span(
        [html.I(className="swatch bound"), t(html.Span, "staleness_heat.limit")], className="item marks-key"
    )
    legend = (_key("solid", "p95"), _key("dashed", "p50"), bound)
    return _heat("staleness_heat", "Staleness over time", "versions behind, when consumed", "blue", *legend)


def _length() -> Any:
    return _heat(
        "length_heat",
        "Response length over time",
        "tokens, when ended",
        "orange",
        _key("solid", "p95"),
        _key("dashed", "p50"),
    )


def _side() -> Any:
    rows = html.Ul(className="bars", **{"data-rows": "ro-zero"})
    unit = html.Span("by environment", className="unit")
    head = html.Div([html.H2("Zero advantage"), unit], className="row")
    zero = html.Section([head, rows, t(html.P, "zero_causes.none", "note")], className="card panel", id="ro-zero")
    unit = html.Span("share by environment", className="unit")
    head = html.Div([html.H2("Discarded"), unit], className="row")
    rows = html.Ul(className="bars", **{"data-rows": "ro-discarded"})
    left = html.Section([head, rows, t(html.P, "discards.none", "note")], className="card panel", id="ro-discarded")
    return html.Div([_solve(), zero, left], className="ro-side")


def _solve() -> Any:
    head = html.Div([html.H2("Solve rates"), html.Span("groups by share solved", className="unit")], className="row")
    drawn = html.Div(className="solve", **{"data-draw": "solve"})
    return html.Section([head, drawn, t(html.P, "solve_rates.n", "note")], className="card panel", id="ro-solve")


def _groups() -> Any:
    head = html.Div(
        [html.H2("Groups, newest first"), html.Div(id="group-filter", className="filters")], className="row"
    )
    names = ("Group", "Rewards", "Solved", "Outcome", "Spread")
    table = html.Table([_heads((name, "") for name in names), html.Tbody(**{"data-rows": "groups"})])
    frame = html.Div(table, className="frame")
    return html.Section([head, frame, _more("groups")], className="card grid", id="ro-groups")


def _heads(names: Any) -> Any:
    """Sortable columns are buttons; the browser marks the current one (`aria-sort`)."""
    cells = [
        html.Th(html.Button(name, type="button", **{"data-sort": sort}) if sort else name, scope="col")
        for name, sort in names
    ]
    return html.Thead(html.Tr(cells))


def _table() -> Any:
    exports = html.Div(
        [
            html.A("CSV", id="ro-csv", href="#", download="", title="All rows that match, as CSV"),
            html.A("Perfetto", id="ro-trace", href="#", download="", title="The time shown, for ui.perfetto.dev"),
        ],
        className="exports",
    )
    unit = html.Span([t(html.Span, "rollout_rows.n")], className="unit")
    head = html.Div([html.H2("Rollouts", id="ro-title"), unit, exports], className="row")
    table = html.Table([_heads(COLUMNS), html.Tbody(**{"data-rows": "rollouts"})], **{"aria-labelledby": "ro-title"})
    frame = html.Div(table, className="frame")
    status = html.P(id="ro-said", role="status", className="note")
    filters = html.Div(id="ro-filters", className="filters", role="search")
    return html.Section([head, filters, status, frame, _more("rollouts")], className="card grid", id="ro-table")


def _more(name: str) -> Any:
    button = html.Button("More", id=f"more-{name}", type="button", className="more")
    return html.P([button, html.Span(id=f"said-{name}", className="note")], className="more-row")


def _panel() -> Any:
    """What a row opens: filled by `assets/widgets/timeline.mjs`."""
    return html.Aside(
        id="ro-open", className="open", hidden=True, role="dialog", **{"aria-labelledby": "ro-open-title"}
    )


PAGE = Page("rollouts", "rollouts", "Rollouts", tree, cells, charts, points, timed=True, asks=PARAMETERS)
