"""The run's one state (`server.query.run_state`) as text: the same in header, banner, Runs and the run menu."""

from dashboard.widgets.format import text
from dashboard.widgets.status import View, joined
from server.query.run_state import RunState, StateName

WORDS: dict[StateName, str] = {
    "live": "Live",
    "catching_up": "Catching up",
    "stale": "Stale",
    "not_collected": "Not collected",
    "finished": "Finished",
}
TONES: dict[StateName, str] = {
    "live": "ok",
    "catching_up": "unknown",
    "stale": "watch",
    "not_collected": "watch",
    "finished": "unknown",
}
"""State -> the colour of its pill (`data-state`); the word always stands with it."""


def word(state: RunState, lifecycle: str) -> str:
    """``Catching up``; a run that is over by its lifecycle: ``Finished`` or ``Crashed``."""
    return lifecycle.capitalize() if state.over and lifecycle else WORDS[state.name]


def progress(state: RunState) -> str:
    """``41% · 38 s left``; nothing where neither is known."""
    done = text(state.progress, "ratio") if state.progress is not None else ""
    left = f"{text(float(round(state.seconds_left)), 'seconds')} left" if state.seconds_left is not None else ""
    return joined(done, left)


def cell(state: RunState, lifecycle: str) -> View:
    """Key ``rs``, which the header shows: to the second, as finer times would be sent on every tick."""
    since = None if state.since is None else round(state.since)
    found = {"name": state.name, "word": word(state, lifecycle), "since": since, "says": progress(state)}
    return {"run_state": {key: value for key, value in found.items() if value not in (None, "")}}
