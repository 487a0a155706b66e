"""The shape of a catalogue row, and the four ways to write one.

A row says what a number means, whoever reports it. It does not say where a framework keeps it: that is the
collector's table.
"""

from dataclasses import dataclass, field
from typing import Literal

from collectors.model import Actor

Kind = Literal["gauge", "counter", "histogram"]
Reduction = Literal["instant", "cumulative", "per_step", "window_delta"]

# A count, an amount or a time beyond it is a fault of the source: 10^15 tokens are 300 years of an engine's work, 10^15
# seconds 30 million years; and beyond 9 x 10^15 a number no longer counts by one.
LARGEST = 1e15
# Losses, norms and estimates come out of 32-bit floats and may be as large as those in a run that diverges; FLOPs are
# counted by the 10^15 a second. Sums and products of a whole fleet of them are still numbers.
LARGEST_FLOAT = 3.5e38
_FLOATS = frozenset({"", "nats", "flops"})
# May be below zero: estimates, a temperature, an account that is overdrawn, a difference of versions.
_SIGNED = frozenset({"", "nats", "celsius", "usd", "versions"})
# A share is at most 1; up to 5 % more is the source's rounding (blocks, two clocks), and is kept as it was told.
LARGEST_RATIO = 1.05


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric a collector may report.

    Attributes:
        unit: base unit in words; empty for a pure number.
        kind: Prometheus' word: what may be done with two values in a row.
        reduction: what one value covers. ``instant``: the moment; ``cumulative``: since the process began;
            ``per_step``: one trainer step; ``window_delta``: what happened since the value before.
        actor: whose number it is, which may differ from who reports it.
        lowest, highest: what its unit allows; nobody can mean a value beyond.
    """

    name: str
    unit: str
    kind: Kind
    reduction: Reduction
    actor: Actor
    help: str
    lowest: float = field(init=False)
    highest: float = field(init=False)

    def __post_init__(self) -> None:
        highest = LARGEST_FLOAT if self.unit in _FLOATS else LARGEST_RATIO if self.unit == "ratio" else LARGEST
        object.__setattr__(self, "highest", highest)
        object.__setattr__(self, "lowest", -highest if self.unit in _SIGNED and self.kind != "counter" else 0.0)

    def cannot_be(self, value: float) -> str:
        """Why nobody can mean the value, in words; "" for one that may be (NaN is no value at all)."""
        if value < self.lowest:
            return f"{self.name} {value:.4g}: {self.unit or 'it'} cannot be below {self.lowest:g}"
        if value > self.highest:
            return f"{self.name} {value:.4g}: {self.unit or 'it'} cannot be above {self.highest:g}"
        return ""


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
