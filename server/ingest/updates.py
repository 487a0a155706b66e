"""What was just committed, on its way from ingest to the driver."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from collectors.model import Histogram, Labels
from server.ingest.sandboxes import SandboxArrival
from server.signals.model import TargetHealth
from server.signals.window import StepKey
from server.store.types import RolloutGroupRow, RolloutRow

SampleArrival = tuple[float, str, str, Labels, float | Histogram]
"""(event time in seconds, target, metric, labels, value; or a histogram as read)."""


@dataclass(frozen=True, slots=True)
class StepArrival:
    """What one reading brought for one step of one axis."""

    axis: str
    incarnation: int
    number: int
    ts: float
    target: str
    values: Mapping[StepKey, float]


@dataclass(frozen=True, slots=True)
class RolloutArrival:
    """What became newly known of a rollout, and of its group. ``ts``: event time of that, epoch seconds.

    Attributes:
        before: its row as it was known before; None: it is new.
        group: its group as it is now; None: it names none, or a group of one.
        closed: the group's outcome became known with this.
    """

    ts: float
    row: RolloutRow
    before: RolloutRow | None = None
    group: RolloutGroupRow | None = None
    closed: bool = False


@dataclass(slots=True)
class Arrivals:
    """What was just committed, for the driver: event times in seconds."""

    samples: list[SampleArrival] = field(default_factory=list)
    steps: list[StepArrival] = field(default_factory=list)
    facts: dict[str, str | float] = field(default_factory=dict)
    health: list[TargetHealth] = field(default_factory=list)
    sandboxes: list[SandboxArrival] = field(default_factory=list)
    rollouts: list[RolloutArrival] = field(default_factory=list)
    published: list[tuple[float, int]] = field(default_factory=list)  # (event time, policy version)
    # Targets that told all of their sandboxes: name -> (when, seconds it stays good).
    heard: dict[str, tuple[float, float]] = field(default_factory=dict)

    def newest(self) -> float | None:
        """The earliest of the newest times per stream: how far every stream is known."""
        newest: dict[str, float] = {}
        for ts, *_ in self.samples:
            newest[""] = max(ts, newest.get("", ts))
        for step in self.steps:
            newest[step.axis] = max(step.ts, newest.get(step.axis, step.ts))
        if self.rollouts:
            newest["rollouts"] = max(arrival.ts for arrival in self.rollouts)
        return min(newest.values(), default=None)
