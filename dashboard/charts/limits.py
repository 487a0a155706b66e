"""The dotted lines of a panel: bands of the signal's own rules, or a size of the run's configuration."""

from collections.abc import Iterable, Mapping

from dashboard.charts.panels import Panel
from dashboard.state.status import StatusFacts
from dashboard.widgets.format import number, text
from server.query.types import RuleInfo, SignalInfo

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
    if panel.limits in _FACTS:
        name, _, level, _ = _FACTS[panel.limits]
        value = facts.number(name)
        return [(level, value, fixed_limit(panel.limits, facts))] if value is not None else []
    info = infos.get(panel.limits)
    bands = (("watch", info.watch), ("critical", info.critical)) if info else ()
    return [(level, band, f"{level} {text(band, info.unit)}") for level, band in bands if info and band is not None]


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
