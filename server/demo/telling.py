"""Base class of collectors of posts about rollouts: NDJSON for `POST /api/v1/runs/RUN/rollouts`."""

import json
from collections import deque

from server.demo.harness import trace_id
from server.demo.rollouts import Rollout
from server.demo.scenarios import Scenario

# Lines kept while they cannot be posted; older ones are dropped.
KEPT_LINES = 50_000


class Telling:
    """`_say` adds a line, `take` returns them. `start`: the run's, epoch seconds; `since` too.

    Subclasses leave out what ends before `since`; `is_live`: starts are posted too.
    """

    def __init__(self, scenario: Scenario, seed: int, start: float, since: float = 0.0) -> None:
        self._scenario, self._seed, self._start, self._since = scenario, seed, start, since - start
        self._lines: deque[str] = deque(maxlen=KEPT_LINES)
        self.is_live = False

    def take(self) -> list[str]:
        """Returns the lines since the last call, oldest first."""
        lines = list(self._lines)
        self._lines.clear()
        return lines

    def _say(self, rollout: Rollout, **values: object) -> None:
        """Adds a record without its None values, which are unknown."""
        known = {key: value for key, value in values.items() if value is not None}
        self._lines.append(json.dumps({"rollout_id": self._name(rollout), **known}, separators=(",", ":")))

    def _name(self, rollout: Rollout) -> str:
        return trace_id(self._seed, rollout)

    def _at(self, seconds: float) -> float:
        return round(self._start + seconds, 3)
