"""The Runs page as cells: every run with its limiter. The browser compares runs (`assets/widgets/compare.mjs`).

A run's row changes when a step ends; how old its data is changes at every tick, and stands in a cell of its own.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping, Sequence

from dashboard.pages.alerts.data import NOT_EVALUATED, firing, worst
from dashboard.pages.verdict import because, colour, confidence, word
from dashboard.shell.page import Json, Scope
from dashboard.state.run_state import TONES, progress
from dashboard.state.run_state import word as state_word
from dashboard.widgets.format import DASH, system, text, tight
from dashboard.widgets.signal_lookup import Want, want
from dashboard.widgets.status import View, joined
from server.query.run_state import StateName
from server.query.types import AlertInfo, RunNow, SignalInfo, SignalNow, Verdict, mode_words

# A tick's grid: nothing is younger.
KEEP_SECONDS = 5.0
ASKS = ("compare", "signal", "by", "find", "sort")
WANTS: Mapping[str, Want] = {
    "wait": want("trainer_wait_ratio"),
    "stale": want("staleness_versions", level="trajectory", stat="mean"),
    "cost": want("cost_usd_per_million_tokens", of="trained"),
}
"""Columns of signals, by the row's key."""


def cells(scope: Scope) -> View:
    """Keys ``runs.0`` .. (rows by name), ``runs.at`` (their newest data), ``runs.info`` (the signals to compare by)."""
    fleet = scope.shared.get("fleet", KEEP_SECONDS, scope.reader.runs.now)
    alerts = _by_run(scope.alerts)
    rows: View = {f"runs.{i}": row(one, alerts[one.info.name]) for i, one in enumerate(fleet)}
    # To the second: finer times would change, and be sent, on every tick.
    times = [None if one.newest is None else round(one.newest) for one in fleet]
    newest = max((ts for ts in times if ts is not None), default=None)
    return rows | _head(fleet) | {"runs.at": times, "newest": newest, "runs.info": _infos(scope.reader.signals.infos)}


def _by_run(alerts: Iterable[AlertInfo]) -> dict[str, list[AlertInfo]]:
    found: dict[str, list[AlertInfo]] = defaultdict(list)
    for alert in alerts:
        found[alert.run].append(alert)
    return found


def row(one: RunNow, alerts: Sequence[AlertInfo]) -> Json:
    """The row of a run: texts, and the plain values that it is sorted by."""
    info, verdict = one.info, one.verdict or Verdict("unknown")
    mode = mode_words(info.mode, info.facts) if info.mode else ""
    tone = "critical" if info.lifecycle == "crashed" else TONES[one.state.name]
    since = verdict.since
    over, blind = one.state.over, one.state.name == "not_collected"
    fire = 0 if one.state.name in NOT_EVALUATED else firing(alerts)
    waits = info.lifecycle if info.lifecycle in ("starting", "paused") else ""
    found: Json = {
        "name": info.name,
        "life": info.lifecycle,
        "state": {
            "name": one.state.name,
            "word": state_word(one.state, info.lifecycle),
            "tone": tone,
            "says": joined(waits, progress(one.state)),
        },
        "about": joined(*(text for text in (system(info.framework), mode) if text and text != "unknown")),
        "verdict": word(verdict.outcome, verdict.cause),
        "colour": colour(verdict.outcome),
        "cause": because(verdict.cause) if verdict.named else "",
        "sure": confidence(verdict),
        # Of a run that is over nothing lasts on.
        "since": round(since) if since is not None and one.state.name in ("live", "stale") else None,
        "says": tight(verdict.summary),
        "step": one.step,
        "fire": fire,
        "dark": one.state.name in NOT_EVALUATED,
        "grave": worst(alerts) if fire else "",
        "up": "" if over or blind or not one.targets else f"{one.up} of {one.targets} up",
        "down": 0 if over or blind else one.targets - one.up,
        "start": None if info.first_ts is None else round(info.first_ts),
    }
    return found | {key: _number(wanted.explain(one.signals)) for key, wanted in WANTS.items()}


def _number(found: SignalNow | None) -> Json:
    """``why``: there is no value."""
    if found is None or found.value is None:
        na = found is not None and found.state == "not_applicable"
        state, why = (found.state, found.why) if found else ("unknown", "")
        return {"text": "n/a" if na else DASH, "state": state, "why": why, "value": None}
    value_text = text(found.value, found.unit if found.unit in ("ratio", "seconds") else "")
    return {"text": value_text, "state": found.state, "why": "", "value": float(f"{found.value:.5g}")}


def _head(fleet: Sequence[RunNow]) -> View:
    """How many there are in each state, and the header's word: live as long as one of them is."""
    counts = Counter(one.state.name for one in fleet)
    live = counts["live"]
    plural = "" if live == 1 else "s"
    others = (f"{counts[name]:,} {label}" for name, label in _COUNTED.items() if counts[name])
    none = {"run_state": {"name": "none", "word": "No live run"}} if fleet and not live else {}
    return {
        "runs.head": f"{live:,} live run{plural}" if fleet else "No run yet",
        "runs.sub": joined(*others, "Select two to eight runs to compare" if len(fleet) > 1 else ""),
        "runs.none": "" if fleet else "Start with: rollscope watch http://127.0.0.1:8000 ./outputs/my-run",
        **none,
    }


_COUNTED: Mapping[StateName, str] = {
    "catching_up": "catching up",
    "stale": "stale",
    "not_collected": "not collected",
    "finished": "finished or crashed",
}


def _infos(infos: Mapping[str, SignalInfo]) -> Json:
    """What can be drawn over time, by signal. A counter has no points."""
    return {
        name: {"title": info.title, "unit": info.unit, "actor": info.actor}
        for name, info in infos.items()
        if info.cadence != "counter"
    }
