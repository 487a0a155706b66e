"""What a commit contains, for the driver: samples, steps, facts, health, sandboxes, rollouts."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from msgspec import Struct

from collectors.model import Histogram, Labels
from server.ingest.sandboxes import SandboxArrival
from server.rollouts.model import RolloutGroupRow, RolloutRow
from server.signals.model import TargetState
from server.signals.window import StepKey

SampleArrival = tuple[float, str, str, Labels, float | Histogram]
"""(event time in seconds, target, metric, labels, value; or a histogram as read)."""


@dataclass(frozen=True, slots=True)
class StepArrival:
    """Values of one step of one axis from one reading."""

    axis: str
    incarnation: int
    number: int
    ts: float
    target: str
    values: Mapping[StepKey, float]


class RolloutArrival(Struct, frozen=True):
    """A change of a rollout and of its group. ``ts``: event time of the change, epoch seconds.

    Attributes:
        before: the rollout's previous row; None: it is new.
        group: the group's current row; None: the rollout has no group, or a group of one.
        closed: this change closed the group.
    """

    ts: float
    row: RolloutRow
    before: RolloutRow | None = None
    group: RolloutGroupRow | None = None
    closed: bool = False


@dataclass(slots=True)
class Arrivals:
    """Everything that one commit added, for the driver. Times are event times in seconds."""

    samples: list[SampleArrival] = field(default_factory=list)
    steps: list[StepArrival] = field(default_factory=list)
    facts: dict[str, str | float] = field(default_factory=dict)
    health: list[TargetState] = field(default_factory=list)
    sandboxes: list[SandboxArrival] = field(default_factory=list)
    rollouts: list[RolloutArrival] = field(default_factory=list)
    published: list[tuple[float, int]] = field(default_factory=list)  # (event time, policy version)
    # Targets that reported all of their sandboxes: name -> (time, seconds the list is valid).
    heard: dict[str, tuple[float, float]] = field(default_factory=dict)

    def newest(self) -> float | None:
        """Returns the earliest of the newest times per stream: up to it every stream is complete."""
        newest: dict[str, float] = {}
        for ts, *_ in self.samples:
            newest[""] = max(ts, newest.get("", ts))
        for step in self.steps:
            newest[step.axis] = max(step.ts, newest.get(step.axis, step.ts))
        if self.rollouts:
            newest["rollouts"] = max(arrival.ts for arrival in self.rollouts)
        return min(newest.values(), default=None)
