"""Cells of Help: every signal with its bands, its inputs, its sources and how to get it reported.

All of it comes from the signals' own descriptions and from the registries behind `docs/reference/coverage.md`.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from dashboard.shell.page import Scope
from dashboard.state.status import View
from dashboard.widgets.format import system, text
from server.query.signals import Coverage, coverage
from server.query.types import SignalInfo

ACTORS: Mapping[str, str] = {
    "trainer": "Trainer",
    "generator": "Generator",
    "queue": "Queue",
    "sandbox": "Sandboxes",
}
_REPORTED = {"native": "reported directly", "derived": "derived"}
_CADENCE = {
    "tick": "state, every 5 s",
    "step": "one point per trainer step",
    "counter": "counter, kept across restarts",
}


def cells(scope: Scope) -> View:
    """Keys ``hp.0`` ..: a row per signal."""
    infos, collected = scope.reader.signals.infos, coverage()
    # Signals are constant, so their rows are made once for all browsers.
    return {f"hp.{i}": _cached_row(info, collected) for i, info in enumerate(infos.values())}


_ROWS: dict[tuple[Any, ...], list[Any]] = {}


def _cached_row(info: SignalInfo, collected: Coverage) -> list[Any]:
    # Without the series, which are a run's.
    key = structs.astuple(info)[:-1]
    if key not in _ROWS:
        _ROWS[key] = row(info, collected)
    return _ROWS[key]


def row(info: SignalInfo, collected: Coverage) -> list[Any]:
    """[name, title, actor, unit, what it means, bands, when, inputs, how to enable, frameworks, the rest's hints]."""
    by_framework = collected.cells.get(info.name, {})
    reported = [[system(name), _REPORTED[cell]] for name, cell in by_framework.items() if cell in _REPORTED]
    not_applicable = [system(name) for name, cell in by_framework.items() if cell == "n/a"]
    hints = [[system(name), how] for name, how in collected.hints.get(info.name, {}).items()]
    return [
        info.name,
        info.title,
        ACTORS.get(info.actor, info.actor.capitalize()),
        info.unit,
        info.help,
        bands(info),
        _CADENCE.get(info.cadence, ""),
        list(info.inputs),
        info.enable,
        reported,
        not_applicable,
        hints,
        len(by_framework),
    ]


def bands(info: SignalInfo) -> str:
    """``watch ≥ 15% · critical ≥ 40%``; empty for a signal without bands."""
    sign = "≥" if info.higher_is_worse else "<"
    levels = (("watch", info.watch), ("critical", info.critical))
    return " · ".join(f"{level} {sign} {text(band, info.unit)}" for level, band in levels if band is not None)
