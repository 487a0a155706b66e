"""The trainer's steps over time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepAt:
    """When a trainer step was reported (epoch seconds). ``life``: the incarnation; it rises with each restart."""

    ts: float
    step: int
    life: int
