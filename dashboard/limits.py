"""The dotted lines of a panel: bands of the signal's own rules, or a size of the run's configuration."""

from collections.abc import Mapping

from dashboard.facts import Facts
from dashboard.format import text
from dashboard.panels import Panel
from server.query.types import SignalInfo

Limit = tuple[str, float, str]

# Limits that come from the run's configuration: (fact, unit, level, words).
_FACTS = {
    "batch": ("batch_samples", "samples", "watch", "one batch"),
    "bound": ("max_staleness_versions", "versions", "critical", "bound"),
}


def limits(panel: Panel, facts: Facts, infos: Mapping[str, SignalInfo]) -> list[Limit]:
    """(level, value, words), the value in the unit of the panel's axis."""
    if panel.limits in _FACTS:
        name, unit, level, words = _FACTS[panel.limits]
        value = facts.number(name)
        return [(level, value, f"{words} {text(value, unit).removesuffix(' ' + unit)}")] if value is not None else []
    info = infos.get(panel.limits)
    bands = (("watch", info.watch), ("critical", info.critical)) if info else ()
    return [(level, band, f"{level} {text(band, info.unit)}") for level, band in bands if info and band is not None]
