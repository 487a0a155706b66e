"""Records of a what-if: its result, and the range of each change."""

from collections.abc import Mapping
from dataclasses import dataclass

from server.verdict.what_if.types import Changes, CurrentNumbers, RunSituation, WhatIf

__all__ = ["Changes", "OutOfRange", "Range", "WhatIfAnswer", "WhatIfEstimate"]


@dataclass(frozen=True, slots=True)
class Range:
    """What a slider of a change spans.

    Attributes:
        today: None if unknown, so that it cannot be changed: ``needs`` says how to report it.
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
    """A change that is impossible in this run; its text states the possible range."""
