"""The overview: which elements exist, and which key of the view fills each (see `dashboard.shell.page.t`)."""

from typing import Any

from dashboard.charts.elements import lane, read, read_own
from dashboard.charts.panels import BEHAVIOUR, CARDS, FIRST, PANELS, names_by_slot
from dashboard.pages.alerts.data import brief
from dashboard.pages.overview.cost import CAUSES
from dashboard.pages.overview.data import view
from dashboard.shell.page import Json, Load, Page, Scope, t
from dashboard.state import deltas
from dashboard.widgets import card, chart
from dashboard.widgets.base import figure_of, html, split_bar
from dashboard.widgets.status import View
from server.query.types import Delta, Status

# Which page an actor opens.
_PAGE_OF = {"generator": "generator", "queue": "rollouts", "trainer": "trainer", "sandbox": "sandboxes"}


def tree() -> list[Any]:
    """The page's elements."""
    return [_banner(), _cards(), _flow(), lane(), _charts(), _cost()]


def cells(scope: Scope) -> View:
    """The page's texts."""
    alerts = brief(scope.alerts, scope.resolved(2), scope.status.state)
    if scope.facts.at is not None:
        # The list stays that of the present.
        alerts["brief_alerts.sum"] = f"{alerts['brief_alerts.sum']} now"
    return view(scope.facts, scope.reader.signals.infos) | alerts


def charts(load: Load) -> Json:
    """Figures, the slots that have a line, and the cards' small lines."""
    return read(load, PANELS, CARDS) | read_own(load)


def points(delta: Delta, status: Status) -> Json:
    """New points by slot."""
    return deltas.points(delta, names_by_slot(status.signals.values()))


def _banner() -> Any:
    """The answer: what limits the run since when, what to do next, where the gap comes from, and what it costs."""
    clock = html.Span(**{"data-c": "answer.clock"})
    head = html.H1([t(html.Span, "answer.before"), figure_of("answer.figure"), t(html.Span, "answer.clock_word"), clock,
                    t(html.Span, "answer.after")])  # fmt: skip
    at = html.P([t(html.Span, "answer.at_word"), " ", html.Span(**{"data-c": "answer.at"})], className="meta at")
    last = html.P(
        ["Verdict as of ", html.B(**{"data-c": "answer.last_at"}), ": ", t(html.Span, "answer.last")],
        className="last",
        **{"data-s": "answer.last"},
    )
    chip, cause = t(html.Span, "answer.chip", "chip", s="answer.chip_state"), t(html.Span, "answer.cause", "cause")
    row = html.Div([chip, cause, at], className="row", **{"data-s": "answer.kind"})
    cost = html.P([figure_of("answer.usd", ""), t(html.Span, "answer.share")], className="idle")
    rates = html.P([t(html.Span, "answer.step"), t(html.Span, "answer.note", "note")], className="meta")
    answer = [row, head, t(html.P, "answer.text", "text"), t(html.P, "answer.meta", "meta"), last]
    answer += [html.Ul(**{"data-answer": "contradictions"})]
    answer += [html.Div([rates, split_bar("answer.split")], className="step"), cost]
    answer += [html.Div(**{"data-answer": "gap"}), html.Details(**{"data-answer": "why"})]
    return html.Section(
        [html.Div(answer), html.Div(className="next-steps", **{"data-answer": "advice"})],
        className="banner answer card",
        **{"data-s": "answer.chip_state"},
    )


def _cards() -> Any:
    return html.Div([card.element(one) for one in CARDS], className="cards figures")


def _flow() -> Any:
    nodes = [_actor("generator", "Generator", "orange"), _arrow("to_queue"), _actor("queue", "Queue", "teal")]
    nodes += [_arrow("to_trainer"), _actor("trainer", "Trainer", "blue"), _actor("sandbox", "Sandboxes", "purple")]
    weights = html.Div([t(html.Span, "weights")], className="weights")
    # The verdict's colour marks the limiting actor, independent of the states of its numbers.
    return html.Section(
        [*nodes, weights], className="flow card", **{"aria-label": "Actors", "data-s": "answer.chip_state"}
    )


def _actor(key: str, title: str, colour: str) -> Any:
    cell = f"actor.{key}"
    numbers = [
        html.Span([html.B(**{"data-f": f"{cell}.numbers.{i}"}), html.Span(**{"data-u": f"{cell}.numbers.{i}"})])
        for i in range(3)
    ]
    return html.Div(
        [
            html.Div(
                [html.H2(_opens(key, title)), t(html.Span, f"{cell}.word", "pill", s=f"{cell}.state")], className="row"
            ),
            t(html.P, f"{cell}.sub", "note"),
            html.Div(html.Span(className=f"c-{colour}", **{"data-p": f"{cell}.bar"}), className="bar"),
            html.P(numbers, className="numbers"),
        ],
        className=f"actor {key}",
        **{"data-s": f"{cell}.state"},
    )


def _opens(key: str, title: str) -> Any:
    """The name as a link to the actor's page, over all of its box (`assets/page-generator.css`)."""
    page = _PAGE_OF[key]
    return html.A(title, href=page, **{"data-goto": page})


def _arrow(key: str) -> Any:
    parts = [figure_of(f"arrow.{key}.figure", ""), html.I(className="shaft"), t(html.Span, f"arrow.{key}.sub", "note")]
    parts.append(t(html.Span, f"arrow.{key}.limit", "limit"))
    return html.Div(parts, className=f"arrow {key}")


def _charts() -> Any:
    panels, behaviour = ([chart.element(panel) for panel in panels] for panels in (FIRST, BEHAVIOUR))
    head = html.H2("Behaviour", className="group", id="behaviour")
    chosen = [html.H2("Your panels", className="group", id="own-panels", hidden=True), html.Div(id="own-charts")]
    return html.Div([_alerts(), *panels, head, *behaviour, *chosen], className="charts", id="charts")


def _alerts() -> Any:
    """Alerts that fire now; the Alerts page has the rest."""
    title = html.H2(html.A("Alerts", href="alerts", **{"data-goto": "alerts"}))
    head = html.Div([title, t(html.Span, "brief_alerts.sum", "pill", s="brief_alerts.s")], className="row")
    more = html.P(html.A("", id="more-alerts", href="alerts", **{"data-goto": "alerts"}), className="note")
    return html.Section([head, html.Ol(**{"data-rows": "brief-alerts"}), more], className="card short", id="alerts")


def _cost() -> Any:
    """Cost per million tokens and per hour, and idle cost by cause."""
    state = t(html.Span, "cost.million_word", "pill", s="cost.million_state")
    million = _figure("Per 1M trained tokens", "cost.million", "", state, ("cost.million_note", "cost.million_why"))
    hour = _figure("Per hour", "cost.hour", "", None, ("cost.basis",))
    idle = _figure("Idle", "cost.idle", "/h", None, ("cost.idle_share", "cost.nothing"))
    causes = html.Ul([_cause(f"cost.causes.{cause}", label) for cause, label in CAUSES.items()], className="causes")
    figures = html.Div([million, hour, idle, html.Div([causes, t(html.P, "cost.also", "note")])], className="money")
    title = html.Div([html.H2("Cost")], className="row")
    return html.Section(
        [title, figures, t(html.P, "cost.why", "note")], className="card cost", id="cost", **{"data-s": "cost.state"}
    )


def _figure(title: str, key: str, unit: str, state: Any, notes: tuple[str, ...]) -> Any:
    head = html.Div([html.H3(title), state], className="row")
    value = html.P([figure_of(key), html.Span(unit, className="unit")], className="big")
    return html.Div([head, value, *(t(html.P, note, "note") for note in notes)])


def _cause(key: str, label: str) -> Any:
    bar = html.Div(html.Span(className="c-orange", **{"data-p": f"{key}.share"}), className="bar")
    return html.Li([html.Span(label), bar, figure_of(f"{key}.usd", "")])


PAGE = Page("overview", "", "Overview", tree, cells, charts, points, timed=True)
