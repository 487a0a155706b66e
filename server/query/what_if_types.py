"""What is asked of a run with a what-if, and how far it may be changed."""

from collections.abc import Mapping
from dataclasses import dataclass

from server.verdict.what_if.types import Changes, CurrentNumbers, RunSituation, WhatIf

__all__ = ["Changes", "OutOfRange", "Range", "WhatIfAnswer", "WhatIfEstimate"]


@dataclass(frozen=True, slots=True)
class Range:
    """What a slider of a change spans.

    Attributes:
        today: None where it is not known, so that it cannot be changed: ``needs`` says how to tell it.
    """

    name: str
    low: float
    high: float
    step: float
    today: float | None
    unit: str
    needs: str = ""


@dataclass(frozen=True, slots=True)
class WhatIfAnswer:
    """A run's numbers, how far they may be changed, and what comes of the changes."""

    run: str
    inputs: CurrentNumbers
    ranges: Mapping[str, Range]
    found: WhatIf


@dataclass(frozen=True, slots=True)
class WhatIfEstimate:
    """A what-if as the API returns it. ``then``: the run with the changes. ``missing``: input -> how to report it."""

    run: str
    label: str
    changes: Mapping[str, float]
    now: RunSituation
    then: RunSituation
    assumptions: tuple[str, ...]
    missing: Mapping[str, str]
    inputs: CurrentNumbers
    ranges: Mapping[str, Range]


class OutOfRange(ValueError):
    """A change that this run cannot make; its text says what it can."""
