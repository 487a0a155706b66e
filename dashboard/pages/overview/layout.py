"""The overview: which elements exist, and which key of the view fills each (see `dashboard.shell.page.t`)."""

from typing import Any

from dashboard.charts.elements import lane, read
from dashboard.charts.panels import BEHAVIOUR, CARDS, FIRST, PANELS, names_by_slot
from dashboard.pages.alerts.data import brief
from dashboard.pages.overview.banner import PHASES
from dashboard.pages.overview.cost import CAUSES
from dashboard.pages.overview.data import view
from dashboard.shell.page import Json, Load, Page, Scope, pill, t
from dashboard.state import deltas
from dashboard.state.status import View
from dashboard.widgets import card, chart
from dashboard.widgets.base import html
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
        alerts["o.sum"] = f"{alerts['o.sum']} now"
    return view(scope.facts, scope.reader.signals.infos) | alerts


def charts(load: Load) -> Json:
    """Figures, the slots that have a line, and the cards' small lines."""
    return read(load, PANELS, CARDS)


def points(delta: Delta, status: Status) -> Json:
    """New points by slot."""
    return deltas.points(delta, names_by_slot(status.signals.values()))


def _banner() -> Any:
    """The answer: what limits the run since when, what to do next, where the gap comes from, and what it costs."""
    clock = html.Span(**{"data-c": "b.clock"})
    head = html.H1([t(html.Span, "b.head"), t(html.B, "b.num", "num"), t(html.Span, "b.clock.w"), clock,
                    t(html.Span, "b.tail")])  # fmt: skip
    at = html.P([t(html.Span, "b.at.w"), " ", html.Span(**{"data-c": "b.at"})], className="meta at")
    last = html.P(
        ["Verdict as of ", html.B(**{"data-c": "b.last.at"}), ": ", t(html.Span, "b.last")],
        className="last",
        **{"data-s": "b.last"},
    )
    meta = html.P([t(html.Span, "b.meta"), html.Span(className="ago", **{"data-a": "b.age"})], className="meta")
    chip, cause = t(html.Span, "b.chip", "chip", s="b.chip.s"), t(html.Span, "b.cause", "cause")
    row = html.Div([chip, cause, at], className="row", **{"data-s": "b.kind"})
    slices = [
        html.Span(t(html.Span, f"b.l.{phase}"), className=f"slice {phase}", **{"data-w": f"b.w.{phase}"})
        for phase, _ in PHASES
    ]
    cost = html.P([t(html.B, "b.usd"), t(html.Span, "b.share")], className="idle")
    rates = html.P([t(html.Span, "b.step"), t(html.Span, "b.note", "note")], className="meta")
    step = [rates, html.Div(slices, className="split", **{"data-s": "b.split.s"})]
    answer = [row, head, t(html.P, "b.text", "text"), meta, last, html.Ul(**{"data-answer": "contradictions"})]
    answer += [html.Div(step, className="step"), cost]
    answer += [html.Div(**{"data-answer": "gap"}), html.Details(**{"data-answer": "why"})]
    return html.Section(
        [html.Div(answer), html.Div(className="next-steps", **{"data-answer": "advice"})],
        className="banner answer card",
        **{"data-s": "b.chip.s"},
    )


def _cards() -> Any:
    return html.Div([card.element(one) for one in CARDS], className="cards figures")


def _flow() -> Any:
    nodes = [_actor("generator", "Generator", "orange"), _arrow("to_queue"), _actor("queue", "Queue", "teal")]
    nodes += [_arrow("to_trainer"), _actor("trainer", "Trainer", "blue"), _actor("sandbox", "Sandboxes", "purple")]
    weights = html.Div([t(html.Span, "f.weights")], className="weights")
    # The verdict's colour marks the limiting actor, independent of the states of its numbers.
    return html.Section([*nodes, weights], className="flow card", **{"aria-label": "Actors", "data-s": "b.chip.s"})


def _actor(key: str, title: str, colour: str) -> Any:
    cell = f"f.{key}"
    numbers = [html.Span([t(html.B, f"{cell}.{i}.v"), t(html.Span, f"{cell}.{i}.u")]) for i in range(3)]
    return html.Div(
        [
            html.Div([html.H2(_opens(key, title)), pill(cell)], className="row"),
            t(html.P, f"{cell}.sub", "note"),
            html.Div(html.Span(className=f"c-{colour}", **{"data-w": f"{cell}.bar"}), className="bar"),
            html.P(numbers, className="numbers"),
        ],
        className=f"actor {key}",
        **{"data-s": f"{cell}.s"},
    )


def _opens(key: str, title: str) -> Any:
    """The name as a link to the actor's page, over all of its box (`assets/page-generator.css`)."""
    page = _PAGE_OF[key]
    return html.A(title, href=page, **{"data-goto": page})


def _arrow(key: str) -> Any:
    parts = [t(html.B, f"f.{key}"), html.I(className="shaft"), t(html.Span, f"f.{key}.sub", "note")]
    parts.append(t(html.Span, f"f.{key}.limit", "limit"))
    return html.Div(parts, className=f"arrow {key}")


def _charts() -> Any:
    panels, behaviour = ([chart.element(panel) for panel in panels] for panels in (FIRST, BEHAVIOUR))
    head = html.H2("Behaviour", className="group", id="behaviour")
    return html.Div([_alerts(), *panels, head, *behaviour], className="charts", id="charts")


def _alerts() -> Any:
    """Alerts that fire now; the Alerts page has the rest."""
    title = html.H2(html.A("Alerts", href="alerts", **{"data-goto": "alerts"}))
    head = html.Div([title, t(html.Span, "o.sum", "pill", s="o.s")], className="row")
    more = html.P(html.A("", id="more-alerts", href="alerts", **{"data-goto": "alerts"}), className="note")
    return html.Section([head, html.Ol(**{"data-rows": "brief-alerts"}), more], className="card short", id="alerts")


def _cost() -> Any:
    """Cost per million tokens and per hour, and idle cost by cause."""
    million = _figure("Per 1M trained tokens", "m.v", "", pill("m", "j"), ("m.n", "m.why"))
    hour = _figure("Per hour", "m.hour", "", None, ("m.basis",))
    idle = _figure("Idle", "m.idle", "/h", None, ("m.share", "m.none"))
    causes = html.Ul([_cause(f"m.c.{cause}") for cause in CAUSES], className="causes")
    figures = html.Div([million, hour, idle, html.Div([causes, t(html.P, "m.also", "note")])], className="money")
    title = html.Div([html.H2("Cost")], className="row")
    return html.Section(
        [title, figures, t(html.P, "m.w", "note")], className="card cost", id="cost", **{"data-s": "m.s"}
    )


def _figure(title: str, key: str, unit: str, state: Any, notes: tuple[str, ...]) -> Any:
    head = html.Div([html.H3(title), state], className="row")
    value = html.P([t(html.Span, key, "num"), html.Span(unit, className="unit")], className="big")
    return html.Div([head, value, *(t(html.P, note, "note") for note in notes)])


def _cause(key: str) -> Any:
    bar = html.Div(html.Span(className="c-orange", **{"data-w": f"{key}.w"}), className="bar")
    return html.Li([t(html.Span, f"{key}.l"), bar, t(html.B, f"{key}.v")], **{"data-s": f"{key}.s"})


PAGE = Page("overview", "", "Overview", tree, cells, charts, points, timed=True)
