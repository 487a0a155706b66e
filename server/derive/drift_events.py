"""Turns change points of the drift watch into events. Charts draw an event at the step with which a change began."""

from dataclasses import dataclass

from collectors.model import Event
from server.derive.deriver import Deriver
from server.signals.drift_answers import Announced, announced

SIGNAL = "drift_since_step"


@dataclass(slots=True)
class DriftEvents:
    """Lists change points that are not yet events. After a restart it lists all again; the store drops duplicates."""

    _newest: tuple[str, str, int] | None = None

    def fresh(self, deriver: Deriver) -> list[tuple[int, Event]]:
        """(time in ms, event) of the new change points."""
        changes = announced(deriver.memory(SIGNAL))
        keys = [(change.of, change.environment, change.step) for change in changes]
        # The list is bounded and drops its oldest, so a count would not show which are new.
        listed = keys.index(self._newest) + 1 if self._newest in keys else 0
        self._newest = keys[-1] if keys else self._newest
        return [(round(change.ts * 1000), _event(change)) for change in changes[listed:]]


def _event(change: Announced) -> Event:
    return Event("drift", f"drift:{change.of}:{change.environment}:{change.step}", change.ts, change.message)
