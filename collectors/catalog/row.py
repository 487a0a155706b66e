"""The type of a catalogue row, and functions to write one of each kind.

A row defines a metric independently of its source. The keys of a framework are in the collector's table.
"""

from dataclasses import dataclass, field
from typing import Literal

from collectors.model import Actor

Kind = Literal["gauge", "counter", "histogram"]
Reduction = Literal["instant", "cumulative", "per_step", "window_delta"]

# A larger count, amount or time is an error of the source: 10^15 tokens are 300 years of an engine's work, 10^15
# seconds 30 million years. Beyond 9 x 10^15 a float no longer counts by one.
LARGEST = 1e15
# Losses, norms and estimates are 32-bit floats and may be as large in a run that diverges; FLOPs are counted by the
# 10^15 a second. Sums and products over a whole fleet of them still fit.
LARGEST_FLOAT = 3.5e38
_FLOATS = frozenset({"", "nats", "flops"})
# May be below zero: estimates, a temperature, an account that is overdrawn, a difference of versions.
_SIGNED = frozenset({"", "nats", "celsius", "usd", "versions"})
# A share is at most 1; up to 5 % more is the source's rounding (blocks, two clocks) and is stored unchanged.
LARGEST_RATIO = 1.05


@dataclass(frozen=True, slots=True)
class Metric:
    """One metric a collector may report.

    Attributes:
        unit: the name of the base unit; empty for a pure number.
        kind: Prometheus' type.
        reduction: what one value covers. ``instant``: the moment; ``cumulative``: since the process began;
            ``per_step``: one trainer step; ``window_delta``: since the previous value.
        actor: the actor that the number describes, which may differ from the reporting one.
        lowest, highest: the range that its unit allows; other values are errors.
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
        """Why the value is impossible, as text; "" if it is possible (NaN is no value)."""
        if value < self.lowest:
            return f"{self.name} {value:.4g}: {self.unit or 'it'} cannot be below {self.lowest:g}"
        if value > self.highest:
            return f"{self.name} {value:.4g}: {self.unit or 'it'} cannot be above {self.highest:g}"
        return ""


@dataclass(frozen=True, slots=True)
class Rows:
    """Writes rows of one actor, so that the tables stay narrow."""

    actor: Actor

    def gauge(self, name: str, unit: str, help: str) -> Metric:
        """A value of the moment."""
        return Metric(name, unit, "gauge", "instant", self.actor, help)

    def step(self, name: str, unit: str, help: str) -> Metric:
        """A value of one trainer step."""
        return Metric(name, unit, "gauge", "per_step", self.actor, help)

    def delta(self, name: str, unit: str, help: str) -> Metric:
        """The amount since the previous report: add values up, never take differences."""
        return Metric(name, unit, "gauge", "window_delta", self.actor, help)

    def counter(self, name: str, unit: str, help: str) -> Metric:
        """A count since the process began; a decrease is a restart."""
        return Metric(name, unit, "counter", "cumulative", self.actor, help)

    def histogram(self, name: str, unit: str, help: str) -> Metric:
        """Cumulative counts with the source's own edges."""
        return Metric(name, unit, "histogram", "cumulative", self.actor, help)
