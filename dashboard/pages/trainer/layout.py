"""The Trainer page. Steps one by one, lists and rows are drawn by `assets/widgets/trainer.mjs` from the cells."""

from typing import Any

from dashboard.charts.elements import lane, read
from dashboard.charts.panels import names_by_slot
from dashboard.pages.trainer import gradient, scores, weight_update
from dashboard.pages.trainer.data import CARDS, PANELS, cells
from dashboard.pages.trainer.steps import PHASES
from dashboard.shell.page import Json, Load, Page, t
from dashboard.state import deltas
from dashboard.widgets import card, chart
from dashboard.widgets.base import headline, html, split_bar
from server.query.types import Delta, Status

_SLICES = ("wait", "compute", "weight_sync", "checkpoint", "eval", "other")
_MEASURED = ("Samples", "Tokens", "Staleness", "Reward", "Gradient")


def tree() -> list[Any]:
    """The page's elements."""
    cards = html.Div([card.element(one) for one in CARDS], className="cards eight")
    drawn = {panel.key: chart.element(panel) for panel in PANELS}
    first = html.Div([drawn.pop("tphase"), _one_by_one(), _last()], className="step-grid")
    names = ("trate", "tstep", "tmfu", "tsync")
    speed = html.Div([drawn.pop(name) for name in names], className="charts")
    pays, trusted, updates = (
        html.Div([*(drawn.pop(panel.key) for panel in panels), *more], className="charts")
        for panels, more in ((scores.PANELS, (_scores(),)), (gradient.PANELS, ()), (weight_update.PANELS, ()))
    )
    heading = html.Div([html.H2("Learning"), html.Span("with staleness", className="unit")], className="row part")
    health = [*drawn.values(), _learning(), _life()]
    parts = [
        _head(),
        cards,
        lane(),
        first,
        speed,
        _part("scores", "Rewards and evaluations"),
        pays,
        _part("weights", "Weight update"),
        updates,
        _part("gradient", "Can the gradient be trusted?"),
        trusted,
        heading,
        html.Div(health, className="charts"),
        _table(),
    ]
    return [html.Div(parts, className="actor-page trainer-page")]


def charts(load: Load) -> Json:
    """Figures, the slots that have a line, and the cards' small lines."""
    return read(load, PANELS, CARDS)


def points(delta: Delta, status: Status) -> Json:
    """New points by slot."""
    return deltas.points(delta, names_by_slot(status.signals.values(), PANELS, CARDS))


def _head() -> Any:
    title = headline("head.trainer")
    left = [title, t(html.P, "head.trainer.text", "text"), t(html.P, "trainer.sync", "note")]
    right = [
        t(html.P, "trainer.step", "meta"),
        split_bar("head.trainer.split"),
        t(html.P, "last_step.words", "note"),
    ]
    return html.Section(
        [html.Div(left), html.Div(right)], className="banner card actor-head", **{"data-s": "head.trainer.state"}
    )


def _part(key: str, title: str) -> Any:
    """The heading of a group of charts, with the sentence of ``head.KEY``, a `Headline`."""
    words = [html.H2(title), t(html.P, f"head.{key}.before"), t(html.P, f"head.{key}.text", "note")]
    return html.Section(words, className="part said", id=key, **{"data-s": f"head.{key}.state"})


def _one_by_one() -> Any:
    heading = [html.H2("Step by step"), html.Span("seconds", className="unit")]
    legend = [html.Span([html.I(className="swatch dashed"), t(html.Span, "step_bars.words")], className="item")]
    drawn = [html.Div(className="heat bars-of-steps", **{"data-draw": "steps"}), t(html.P, "step_bars.none", "note")]
    head = [html.Div(heading, className="row"), html.P(legend, className="legend")]
    return html.Section([*head, *drawn], className="card panel", id="step-bars")


def _last() -> Any:
    head = html.Div([html.H2("Last step"), html.Span("compared with the median", className="unit")], className="row")
    rows = html.Ul(className="bars pairs", **{"data-rows": "last-step"})
    return html.Section([head, rows, t(html.P, "last_step.none", "note")], className="card side", id="last-step")


def _learning() -> Any:
    head = html.Div([html.H2("Single steps"), html.Span("last · median", className="unit")], className="row")
    rows = html.Ul(className="learning", **{"data-rows": "learning"})
    notes = [t(html.P, "learning.bad", "error"), t(html.P, "learning.none", "note")]
    return html.Section([head, rows, *notes], className="card side", id="learning")


def _scores() -> Any:
    unit = html.Span("newest · change", className="unit")
    head = html.Div([html.H2("Newest scores"), unit], className="row")
    rows = html.Ul(className="complaints", **{"data-rows": "scores"})
    return html.Section([head, rows, t(html.P, "scores.none", "note")], className="card side", id="newest-scores")


def _life() -> Any:
    head = html.Div([html.H2("Restarts and checkpoints"), t(html.Span, "restarts.sum", "unit")], className="row")
    rows = html.Ul(className="complaints", **{"data-rows": "life"})
    notes = [t(html.P, "restarts.none", "note"), t(html.P, "restarts.updates", "note")]
    return html.Section([head, rows, *notes], className="card side", id="life")


def _table() -> Any:
    heads = [html.Th(name, scope="col") for name in ("Step", "Ended", "Total")]
    heads += [html.Th(label, scope="col", **{"data-phase": key}) for key, label, *_ in PHASES]
    heads += [html.Th(name, scope="col") for name in _MEASURED]
    table = html.Table(
        [html.Thead(html.Tr(heads)), html.Tbody(**{"data-rows": "steps"})], **{"aria-labelledby": "steps-title"}
    )
    label = html.Span("seconds; newest first", className="unit")
    title = html.Div([html.H2("Last 20 steps", id="steps-title"), label], className="row")
    frame = html.Div(table, className="frame", tabIndex="0", role="region", **{"aria-labelledby": "steps-title"})
    return html.Section(
        [title, frame, t(html.P, "step_rows.none", "note")],
        className="card grid",
        id="steps",
    )


PAGE = Page("trainer", "trainer", "Trainer", tree, cells, charts, points, timed=True)
