"""Change points of the drift watch as events: charts draw them at the step with which the change began."""

from dataclasses import dataclass

from collectors.model import Event
from server.derive.deriver import Deriver
from server.signals.drift_answers import announced

SIGNAL = "drift_since_step"


@dataclass(slots=True)
class DriftEvents:
    """Which change points of a run were made events. After a restart all are made again, and the store knows them."""

    _newest: tuple[str, str, int] | None = None

    def fresh(self, deriver: Deriver) -> list[tuple[int, Event]]:
        """(time in ms, event) of those that were not."""
        found = announced(deriver.memory(SIGNAL))
        keys = [(one.of, one.environment, one.step) for one in found]
        # The list is bounded: its oldest go, and its newest is told by its name.
        known = keys.index(self._newest) + 1 if self._newest in keys else 0
        self._newest = keys[-1] if keys else self._newest
        return [
            (round(one.ts * 1000), Event("drift", f"drift:{one.of}:{one.environment}:{one.step}", one.ts, one.words))
            for one in found[known:]
        ]
