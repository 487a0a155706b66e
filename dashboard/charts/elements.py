"""What a load reads for the charts and cards of a page, and the lane of events above them."""

from collections.abc import Mapping, Sequence
from typing import Any

from dashboard.charts.comparison import Comparison, behind, compared, drawn, traces
from dashboard.charts.figures import figure, has_points, layout, limit_line
from dashboard.charts.panels import names_by_slot
from dashboard.shell.page import Json, Load, t
from dashboard.state import deltas
from dashboard.state.url import points
from dashboard.widgets.base import html
from dashboard.widgets.card import Card
from dashboard.widgets.chart import Limit, Panel, limits, thresholds
from server.query import Reader
from server.query.types import Series

_SPARK_POINTS = 60
_ROOM = 1.6


def read(load: Load, panels: Sequence[Panel], cards: Sequence[Card]) -> Json:
    """Figures, the slots that have a line, and the cards' small lines."""
    status = load.scope.status
    slots = names_by_slot(status.signals.values(), panels, cards)
    series = _series(load, slots)
    found, rules = compared(load, panels), _rules(load, panels)
    near = {panel.key: [one for one in rules[panel.key] if _near(one, panel, series)] for panel in panels}
    sparks = {f"card.{one.key}": one.peaks for one in cards if f"card.{one.key}" in series}
    return {
        "figures": _figures(load, panels, series, found, near),
        "drawn": [slot for one in panels for slot, _ in one.slots() if slot in series],
        "sparks": {key: deltas.spark(series[key], peaks) for key, peaks in sparks.items()},
        "rules": {key: [[one[0], one[2], one in near[key]] for one in lines] for key, lines in rules.items() if lines},
        **_asked(load, panels, found),
    }


def _asked(load: Load, panels: Sequence[Panel], found: Comparison) -> Json:
    """``compared``: [what lies behind the lines, which]; ``stepped``, over steps: slots with one point per step."""
    over: Json = {"behind": [found.label, drawn(panels, found)]} if found.label else {}
    if not load.address.by_step:
        return over
    infos = load.scope.reader.signals.infos
    lines = [(slot, line.want.signal) for panel in panels for slot, line in panel.slots()]
    return over | {"stepped": [slot for slot, name in lines if name in infos and infos[name].cadence == "step"]}


def _near(limit: Limit, panel: Panel, series: Mapping[str, Series]) -> bool:
    """Would its line leave room for the data? One far off would press them flat."""
    edges = [series[slot] for slot, _ in panel.slots() if slot in series]
    values = [value for one in edges for value in (*one.low, *one.high) if value is not None]
    return bool(values) and min(*values, 0.0) * _ROOM <= limit[1] <= max(values) * _ROOM


def _rules(load: Load, panels: Sequence[Panel]) -> dict[str, list[Limit]]:
    """Lines of alert rules by panel, in addition to those of its bands."""
    facts, infos, rules = load.scope.facts, load.scope.reader.signals.infos, load.scope.rules if panels else ()
    return {panel.key: thresholds(panel, rules, limits(panel, facts, infos), infos) for panel in panels}


def _series(load: Load, slots: Mapping[str, Sequence[str]]) -> dict[str, Series]:
    """Chart series at full width, card series at a sparkline's."""
    reader: Reader = load.scope.reader
    found: dict[str, Series] = {}
    for of_cards, width in ((False, points(load.span)), (True, _SPARK_POINTS)):
        part = {slot: names for slot, names in slots.items() if slot.startswith("card.") == of_cards}
        wanted = sorted({name for names in part.values() for name in names})
        got = reader.signals.series(load.scope.run, wanted, load.span.start, load.span.end, width)
        found |= deltas.by_slot(part, {series.name: series for series in got})
    return {slot: series for slot, series in found.items() if has_points(series)}


def _figures(
    load: Load,
    panels: Sequence[Panel],
    series: Mapping[str, Series],
    found: Comparison,
    rules: Mapping[str, list[Limit]],
) -> Json:
    tz, address = float(load.wanted.get("tz") or 0), load.address
    facts, infos = load.scope.facts, load.scope.reader.signals.infos
    revision = f"{load.scope.run}|{address.range}|{address.start}|{address.by_step}"

    def chart_of(panel: Panel) -> Json:
        chart = figure(panel, series, load.span, tz, revision)
        shapes = [limit_line(value, level) for level, value, _ in limits(panel, facts, infos)]
        shapes += [limit_line(value, level, "dash") for level, value, _ in rules[panel.key]]
        # On touch screens a drag over a chart scrolls the page.
        drag = {"dragmode": False} if load.wanted.get("touch") else {}
        return {"data": traces(panel, found, tz) + chart["data"], "layout": chart["layout"] | {"shapes": shapes} | drag}

    return {panel.key: chart_of(panel) for panel in panels}


# Units whose axis is written in a way of its own, and one of all others.
_AXES = ("", "ratio", "seconds", "other")


def read_own(load: Load) -> Json:
    """What the browser needs for charts of series that it reads itself (`assets/widgets/own_chart.mjs`).

    ``axes``: layouts by unit. ``compared``: the run drawn behind the lines, and the seconds added to its times.
    """
    tz = float(load.wanted.get("tz") or 0)
    axes = {unit: layout(Panel("", "", "", unit, ()), load.span, tz, "") for unit in _AXES}
    source = behind(load) if load.address.over and not load.address.by_step else None
    return {"axes": axes} | ({"compared": {"run": source.run, "shift": source.place(0.0)}} if source else {})


def lane() -> Any:
    """What happened in the time shown, in one row above the charts: verdicts, alerts, restarts, checkpoints, changes.

    `assets/widgets/verdicts.mjs` and `events.mjs` fill it.
    """
    head = html.Div(
        [html.H2("Events"), html.P(className="legend keys"), t(html.Span, "verdicts.note", "note")], className="row"
    )
    rows = [html.Ol(className="pins"), html.Ol(className="ribbon"), html.Div(className="density")]
    drawn = html.Div([*rows, html.I(className="cross")], className="lane-rows")
    return html.Section([head, drawn], className="card lane", **{"data-lane": "1"})
