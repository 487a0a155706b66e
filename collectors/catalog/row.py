"""The shape of a catalogue row, and the four ways to write one.

A row says what a number means, whoever reports it. It does not say where a framework keeps it: that is the
collector's table.
"""

from dataclasses import dataclass
from typing import Literal

from collectors.model import Actor

Kind = Literal["gauge", "counter", "histogram"]
Reduction = Literal["instant", "cumulative", "per_step", "window_delta"]


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric a collector may report.

    Attributes:
        unit: base unit in words; empty for a pure number.
        kind: Prometheus' word: what may be done with two values in a row.
        reduction: what one value covers. ``instant``: the moment; ``cumulative``: since the process began;
            ``per_step``: one trainer step; ``window_delta``: what happened since the value before.
        actor: whose number it is, which may differ from who reports it.
    """

    name: str
    unit: str
    kind: Kind
    reduction: Reduction
    actor: Actor
    help: str


@dataclass(frozen=True, slots=True)
class Rows:
    """Writes rows of one actor; keeps the tables narrow enough to read."""

    actor: Actor

    def gauge(self, name: str, unit: str, help: str) -> Metric:
        """A value of the moment."""
        return Metric(name, unit, "gauge", "instant", self.actor, help)

    def step(self, name: str, unit: str, help: str) -> Metric:
        """A value of one trainer step."""
        return Metric(name, unit, "gauge", "per_step", self.actor, help)

    def delta(self, name: str, unit: str, help: str) -> Metric:
        """What was added since the report before: sum it, never difference it."""
        return Metric(name, unit, "gauge", "window_delta", self.actor, help)

    def counter(self, name: str, unit: str, help: str) -> Metric:
        """A count since the process began; a decrease is a restart."""
        return Metric(name, unit, "counter", "cumulative", self.actor, help)

    def histogram(self, name: str, unit: str, help: str) -> Metric:
        """Cumulative counts with the source's own edges."""
        return Metric(name, unit, "histogram", "cumulative", self.actor, help)
