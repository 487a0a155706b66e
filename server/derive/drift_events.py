"""Turns change points of the drift watch, and changes of a series' source, into events, which charts draw as lines."""

from dataclasses import dataclass

from collectors.model import Event
from server.derive.deriver import Deriver
from server.signals import recorded
from server.signals.drift import Announced, announced

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


@dataclass(slots=True)
class SourceEvents:
    """Announces that values come from rollout records which came from the trainer's log before, or the reverse.

    The two have other populations, so a step in a line at this time is no change of behaviour.
    """

    _basis: str = ""

    def fresh(self, deriver: Deriver, ts: float) -> list[tuple[int, Event]]:
        """(time in ms, event) of a change of source; ``ts``: event time, epoch seconds."""
        if not deriver.rollouts.met:
            self._basis = "log"
            return []
        before, self._basis = self._basis, recorded.basis(deriver.view(ts))
        if not before or before == self._basis:
            return []
        names = {"log": "the trainer's log", "records": "rollout records"}
        detail = f"zero advantage, staleness and discarded share come from {names[self._basis]} from here on"
        at = round(ts * 1000)
        return [(at, Event("source", f"source:{self._basis}:{at}", ts, f"{detail}, before from {names[before]}"))]


def _event(change: Announced) -> Event:
    return Event("drift", f"drift:{change.of}:{change.environment}:{change.step}", change.ts, change.message)
