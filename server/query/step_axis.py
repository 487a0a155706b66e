"""The trainer's steps over time."""

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StepAt:
    """When a step of the trainer was told (epoch seconds). ``life``: it rises with each restart."""

    ts: float
    step: int
    life: int
