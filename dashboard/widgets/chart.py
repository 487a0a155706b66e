"""Charts: lines over time with their newest values, limits and sources. `assets/widgets/legend.mjs` writes what
stands around a chart, `assets/widgets/chart.mjs` draws it.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from msgspec import Struct, structs

from dashboard.widgets.base import Infos, absent, drift_text, html, state_word
from dashboard.widgets.format import number, text
from dashboard.widgets.signal_lookup import Want
from dashboard.widgets.status import StatusFacts, View, joined
from server.query.types import RuleInfo, SignalInfo, SignalNow


@dataclass(frozen=True, slots=True)
class PanelLine:
    """One line of a panel. ``fill``: ``zero`` to the axis, ``band`` to the line before it."""

    label: str
    want: Want
    colour: str
    fill: Literal["", "zero", "band"] = ""
    thin: bool = False
    # Draws the extremes inside each bucket behind the mean, so a long range hides no spike.
    envelope: bool = False
    # Takes the label shown from this label of the series found: a run may report max and no p90.
    named_by: str = ""
    # What the others may reach: where it is far above them for a while, it does not flatten them.
    limit: bool = False


@dataclass(frozen=True, slots=True)
class Panel:
    """One chart. ``kind``: ``share`` stacks to 100%, ``stack`` stacks, ``lines`` does neither."""

    key: str
    title: str
    shown: str
    unit: str
    lines: tuple[PanelLine, ...]
    kind: Literal["lines", "stack", "share"] = "lines"
    limits: str = ""
    ceiling: float | None = None
    from_zero: bool = True
    # The behaviour whose drift is stated below the legend (`drift_since_step{of}`); its initial level and the steps at
    # which it changed are drawn.
    drift: str = ""

    def slots(self) -> list[tuple[str, PanelLine]]:
        """``queue.0``, ``queue.1``: ids on the wire and in the page, 12 times shorter than series names."""
        return [(f"{self.key}.{i}", line) for i, line in enumerate(self.lines)]


class LineNow(Struct, frozen=True, omit_defaults=True):
    """The newest value of a line. ``unit``: "ratio", "seconds" or "" where the panel's title names it."""

    label: str
    value: float | None = None
    unit: str = ""
    source: str = ""


class ChartNow(Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What stands around a chart.

    Attributes:
        state: "ok" with a value now; else the state of the first line that has none.
        health, word: its judgement, shown where there is no chart.
        why: the reason for having no value.
        limits: texts of the limits drawn, by level (base, watch, critical).
    """

    state: str
    health: str
    word: str = ""
    why: str = ""
    source: str = ""
    limits: dict[str, str] = {}
    drift: str = ""
    drift_state: str = ""
    lines: tuple[LineNow, ...]


def bind(panel: Panel, facts: StatusFacts, infos: Infos) -> ChartNow:
    """A chart's texts and newest values for a status."""
    found = [line.want.explain(facts.signals) for line in panel.lines]
    first = next((one for one in found if one is not None and one.value is not None), None)
    silent = next((one for one in found if one is not None), None)
    shown = first or silent
    health = shown.state if shown else "unknown"
    drift, drift_state = drift_text(facts, panel.drift, levels=True) if panel.drift else ("", "")
    return ChartNow(
        state="ok" if first else health,
        health=health,
        word=state_word(facts, health),
        why="" if first else silent.why if silent else absent(panel.lines[0].want.signal, infos),
        source=_source(panel, shown),
        limits={level: note for level, _, note in limits(panel, facts, infos)},
        drift=drift if first else "",
        drift_state=drift_state,
        lines=_lines(panel, found),
    )


def bind_all(panels: Iterable[Panel], facts: StatusFacts, infos: Infos) -> dict[str, ChartNow]:
    """The charts of a page by key."""
    return {panel.key: bind(panel, facts, infos) for panel in panels}


def cells(found: Mapping[str, ChartNow]) -> View:
    """The cells of charts by key."""
    return {f"chart.{key}": one for key, one in found.items()}


def _lines(panel: Panel, found: list[SignalNow | None]) -> tuple[LineNow, ...]:
    lines = [_line(line, one) for line, one in zip(panel.lines, found, strict=True)]
    total = sum(line.value for line in lines if line.value is not None)
    if panel.kind == "share" and total > 0:
        # A panel in percent shows percent in its header too.
        shares = [None if line.value is None else line.value / total for line in lines]
        lines = [structs.replace(line, value=share, unit="ratio") for line, share in zip(lines, shares, strict=True)]
    return tuple(lines)


def _line(line: PanelLine, found: SignalNow | None) -> LineNow:
    label = found.labels.get(line.named_by, line.label) if line.named_by and found is not None else line.label
    if found is None or found.value is None:
        return LineNow(label)
    return LineNow(label, found.value, found.unit if found.unit in ("ratio", "seconds") else "", found.source)


def _source(panel: Panel, found: SignalNow | None) -> str:
    signal = found.signal if found else panel.lines[0].want.signal
    source = _short(found.source) if found else ""
    return joined(signal, source, "" if found and found.value is not None else "no value now")


def _short(source: str) -> str:
    """``engine-0, engine-1 and 6 more`` as ``engine-0 and 7 more``: the line under a chart is short."""
    first, *others = [name for name in source.split(", ") if name] or [""]
    if not others:
        return first
    more = re.search(r" and (\d+) more$", source)
    return f"{first} and {len(others) + (int(more[1]) if more else 0)} more"


# ---- limits: bands of the signal's own rules, or a size of the run's configuration

MOST = 3
"""Lines that a chart has, bands and alerts together."""

Limit = tuple[str, float, str]

# Limits that come from the run's configuration: (fact, unit, level, text).
_FACTS = {
    "batch": ("batch_samples", "samples", "watch", "one batch"),
    "in_flight": ("max_in_flight", "rollouts", "watch", "configured"),
    "bound": ("max_staleness_versions", "versions", "critical", "bound"),
}


def limits(panel: Panel, facts: StatusFacts, infos: Mapping[str, SignalInfo]) -> list[Limit]:
    """Lines as (level, value, text); the value is in the unit of the panel's axis."""
    if panel.drift and panel.limits == "":
        return _initial(panel, facts, infos)
    if panel.limits == "starting_limit":
        return _starting(facts)
    if panel.limits in _FACTS:
        name, _, level, _ = _FACTS[panel.limits]
        value = facts.number(name)
        return [(level, value, fixed_limit(panel.limits, facts))] if value is not None else []
    info = infos.get(panel.limits)
    bands = (("watch", info.watch), ("critical", info.critical)) if info else ()
    return [(level, band, f"{level} {text(band, info.unit)}") for level, band in bands if info and band is not None]


def _starting(facts: StatusFacts) -> list[Limit]:
    """How many sandboxes start at once at most: as the provider reports it, or as the verdict infers it."""
    quotas = [
        one for one in facts.signals if one.signal == "sandbox_quota_limit" and one.labels.get("resource") == "starting"
    ]
    reported = [one.value for one in quotas if one.value is not None]
    value = sum(reported) if reported else facts.status.verdict.numbers.get("sandbox_starting_limit")
    basis = "" if reported else " (inferred)"
    return [] if value is None else [("watch", value, f"start at once {number(value)}{basis}")]


def fixed_limit(limit: str, facts: StatusFacts) -> str:
    """A limit of the run's configuration as text ("bound 8"); "" if there is none."""
    if limit not in _FACTS:
        return ""
    name, unit, _, note = _FACTS[limit]
    value = facts.number(name)
    return f"{note} {text(value, unit).removesuffix(' ' + unit)}" if value is not None else ""


def _initial(panel: Panel, facts: StatusFacts, infos: Mapping[str, SignalInfo]) -> list[Limit]:
    """The behaviour's initial level, and where it has moved as far as its band allows."""
    level, info = facts.value("drift_baseline", of=panel.drift), infos.get(f"{panel.drift}_drift_ratio")
    if level is None:
        return []
    lines: list[Limit] = [("base", level, f"first steps {number(level)}")]
    if info is not None and info.watch is not None:
        lines.append(("watch", info.watch * level, f"x{info.watch:g}"))
    return lines


def thresholds(
    panel: Panel, rules: Iterable[RuleInfo], bands: Iterable[Limit], infos: Mapping[str, SignalInfo]
) -> list[Limit]:
    """Lines of alert rules on the panel's signals, critical ones first, up to `MOST` lines with its bands.

    A rule at a band has its line already. Rules with one threshold have one line.
    """
    drawn = {value for _, value, _ in bands}
    found: dict[float, list[RuleInfo]] = {}
    for rule in sorted(rules, key=lambda rule: rule.severity != "critical"):
        if rule.threshold is not None and rule.threshold not in drawn and _judges(rule, panel):
            found.setdefault(rule.threshold, []).append(rule)
    return [_threshold(value, same, infos) for value, same in found.items()][: max(0, MOST - len(drawn))]


def _judges(rule: RuleInfo, panel: Panel) -> bool:
    """Shares of a whole are on another scale than what a rule compares."""
    about = {panel.limits, *(line.want.signal for line in panel.lines)}
    return panel.kind != "share" and not rule.why and rule.signal in about


def _threshold(value: float, rules: list[RuleInfo], infos: Mapping[str, SignalInfo]) -> Limit:
    info = infos.get(rules[0].signal)
    level = "critical" if rules[0].severity == "critical" else "watch"
    return level, value, f"alert at {text(value, info.unit if info else '')}"


# ---- elements


def element(panel: Panel) -> Any:
    """A chart with its legend, or why there is none: the browser fills it from the cell ``chart.KEY``.

    Its figure comes with each load (`dashboard.charts.elements.read`).
    """
    # Opens the tip of the title, which the keyboard opens by focus on the title itself.
    info = html.Button("i", className="info", type="button", tabIndex=-1, **{"aria-label": f"About {panel.title}"})
    title = [html.H2(panel.title), info, html.Span(panel.shown, className="unit")]
    graph = html.Div(id=f"graph-{panel.key}", className="graph")
    return html.Section(
        [
            html.Div(title, className="row"),
            _legend(panel),
            *([html.P(className="drift")] if panel.drift else ()),
            html.Div([graph, html.I(className="cross")], className="plot"),
            html.Div([html.Span(className="pill"), html.P()], className="why"),
            html.P(className="src"),
        ],
        className="card panel",
        id=f"panel-{panel.key}",
        **{
            "data-panel": panel.key,
            "data-share": "1" if panel.kind == "share" else "",
            "data-unit": panel.unit if panel.unit in ("ratio", "seconds") else "",
            "data-units": panel.unit,
            "data-drift": panel.drift,
        },
    )


def _legend(panel: Panel) -> Any:
    items = [_item(slot, line) for slot, line in panel.slots()]
    bands = [html.Span(className=f"limit {level}", **{"data-limit": level}) for level in ("base", "watch", "critical")]
    return html.P([*items, *bands], className="legend")


def _item(slot: str, line: PanelLine) -> Any:
    swatch = html.I(className=f"swatch c-{line.colour}" + (" thin" if line.thin else ""))
    parts = [swatch, html.Span(), html.B(**{"data-slot": slot})]
    return html.Span(parts, className="item", **{"data-signal": line.want.signal})
