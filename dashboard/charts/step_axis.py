"""Maps times to steps, for charts over steps: cells for the browser and a pure mapping.

A step's number is at its end, when it is reported; times during the step lie between the previous number
and its own. After a restart numbers come a second time: what is shown is how each step was done last, and the time of
the lost work has no position.

``step_axis.N``: [[seconds into column N, step], ...]; where it does not go on from the one before, two numbers more:
how many seconds it took, and where it began. `assets/widgets/step_axis.mjs` places points by them.
"""

from bisect import bisect_left
from collections.abc import Sequence
from dataclasses import dataclass
from math import floor

from dashboard.charts.time_columns import grid
from dashboard.state.cache import TimedCache
from dashboard.state.url import Span
from dashboard.widgets.status import View
from server.query import Reader
from server.query.types import StepAt

MOST = 1000
"""Steps of a time; of more the newest at half as many instants, and a line between them."""


@dataclass(frozen=True, slots=True)
class Knot:
    """A step was in progress from ``begin`` to ``end`` (epoch seconds), while x went from ``low`` to ``step``."""

    begin: float
    end: float
    low: float
    step: float


def knots(found: Sequence[StepAt]) -> list[Knot]:
    """The mapping, oldest first: both times and steps ascend. The first step has no beginning, and is none."""
    kept: list[Knot] = []
    least = float("inf")
    for i in range(len(found) - 1, 0, -1):
        one, before = found[i], found[i - 1]
        if one.step >= least or one.ts <= before.ts:
            continue
        least = one.step
        same = before.life == one.life and before.step < one.step
        kept.append(Knot(before.ts, one.ts, before.step if same else one.step - 1, one.step))
    return kept[::-1]


class Steps:
    """Converts times to positions on the step axis, and back."""

    def __init__(self, found: Sequence[StepAt]) -> None:
        self._knots = knots(found)
        self._ends, self._steps = [one.end for one in self._knots], [one.step for one in self._knots]

    def __bool__(self) -> bool:
        return bool(self._knots)

    @property
    def low(self) -> float:
        return self._knots[0].low if self._knots else 0.0

    @property
    def high(self) -> float:
        return self._knots[-1].step if self._knots else 0.0

    def at(self, ts: float) -> float | None:
        """The position in steps at a time; None before the first, after the last and for lost work."""
        place = bisect_left(self._ends, ts)
        if place == len(self._knots) or ts < (one := self._knots[place]).begin:
            return None
        return one.low + (one.step - one.low) * (ts - one.begin) / (one.end - one.begin)

    def when(self, step: float) -> float | None:
        """The time of a position in steps; None outside the known steps."""
        place = bisect_left(self._steps, step)
        if place == len(self._knots) or step < (one := self._knots[place]).low:
            return None
        return one.begin + (one.end - one.begin) * (step - one.low) / (one.step - one.low)


def cells(reader: Reader, run: str, span: Span, shared: TimedCache) -> View:
    """Keys ``st.*`` for the time shown, as read a few seconds ago at most."""
    columns = grid(span)

    def read() -> list[StepAt]:
        return reader.steps.times(run, columns.start, columns.end, MOST)

    found: dict[str, list[list[float]]] = {}
    last: Knot | None = None
    for one in knots(shared.get(("step times", run, columns), columns.keep_seconds, read)):
        number = floor(one.end / columns.width)
        goes_on = last is not None and (last.end, last.step) == (one.begin, one.low)
        apart = [] if goes_on else [round(one.end - one.begin, 3), one.low]
        found.setdefault(f"step_axis.{number}", []).append(
            [round(one.end - number * columns.width, 3), one.step, *apart]
        )
        last = one
    return {**found, "step_axis.width": columns.width}
