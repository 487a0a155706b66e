"""Cells of Help: every signal with its bands, its inputs, its sources and how to get it reported.

All of it comes from the signals' own descriptions and from the registries behind `docs/reference/coverage.md`.
"""

from collections.abc import Mapping
from typing import Any

from msgspec import structs

from dashboard.shell.page import Json, Scope
from dashboard.widgets.format import system, text
from dashboard.widgets.status import View
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
    """Keys ``help.0`` ..: a row per signal."""
    infos, collected = scope.reader.signals.infos, coverage()
    # Signals are constant, so their rows are made once for all browsers.
    return {f"help.{i}": _cached_row(info, collected) for i, info in enumerate(infos.values())}


_ROWS: dict[tuple[Any, ...], Json] = {}


def _cached_row(info: SignalInfo, collected: Coverage) -> Json:
    # Without the series, which are a run's.
    key = structs.astuple(info)[:-1]
    if key not in _ROWS:
        _ROWS[key] = row(info, collected)
    return _ROWS[key]


def row(info: SignalInfo, collected: Coverage) -> Json:
    """``hints``: how other frameworks can report it; ``frameworks``: how many there are."""
    by_framework = collected.cells.get(info.name, {})
    reported = [
        {"framework": system(name), "text": _REPORTED[cell]} for name, cell in by_framework.items() if cell in _REPORTED
    ]
    not_applicable = [system(name) for name, cell in by_framework.items() if cell == "n/a"]
    hints = [{"framework": system(name), "text": how} for name, how in collected.hints.get(info.name, {}).items()]
    return {name: getattr(info, name) for name in ("name", "title", "unit", "help", "inputs", "enable")} | {
        "actor": ACTORS.get(info.actor, info.actor.capitalize()),
        "bands": bands(info),
        "cadence": _CADENCE.get(info.cadence, ""),
        "reported": reported,
        "not_applicable": not_applicable,
        "hints": hints,
        "frameworks": len(by_framework),
    }


def bands(info: SignalInfo) -> str:
    """``watch ≥ 15% · critical ≥ 40%``; empty for a signal without bands."""
    sign = "≥" if info.higher_is_worse else "<"
    levels = (("watch", info.watch), ("critical", info.critical))
    return " · ".join(f"{level} {sign} {text(band, info.unit)}" for level, band in levels if band is not None)
