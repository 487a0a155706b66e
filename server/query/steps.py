"""Series over the trainer's steps instead of time: points are joined with the steps in progress, in whole buckets."""

from bisect import bisect_left
from collections.abc import Sequence

from server.query.names import parse_name
from server.query.signals import ITEMS
from server.query.types import StepSeries
from server.signals.window import TRAINER
from server.store import Store
from server.store.ranges import fit_width
from server.store.types import Bucket, SeriesKey, StepTime

_Sum = tuple[int, float, float, float]
"""(how many points, their sum, lowest, highest)."""


class StepReader:
    """Reads series over steps. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def series(self, run: str, names: Sequence[str], start: float, end: float, points: int) -> list[StepSeries]:
        """See `Reader.by_step`."""
        first, last = round(start * 1000), round(end * 1000)
        width = fit_width(max(1, round((last - first) / max(1, points))))
        marks = self._marks(run, first - first % width, last + width, width)
        return [self._one(run, name, marks, first, last, width) for name in names]

    def _marks(self, run: str, start: int, end: int, width: int) -> list[StepTime]:
        """Steps that ended from ``start`` (where a bucket begins) on; of more than two a bucket, its newest."""
        buckets = -(-(end - start) // width)
        found = self._store.step_times(run, TRAINER, start, start + buckets * width, 2 * buckets)
        return [mark for mark in found if mark.ts >= start]

    def _one(self, run: str, name: str, marks: Sequence[StepTime], start: int, end: int, width: int) -> StepSeries:
        signal, labels = parse_name(name)
        item = ITEMS.get(signal)
        number = self._store.find(run, SeriesKey("", signal, labels)) if marks else None
        buckets = self._store.buckets(number, start, end, width) if number is not None else []
        by_step = joined(buckets, marks)
        sums = [by_step[step] for step in sorted(by_step)]
        return StepSeries(
            name=name,
            unit=item.unit if item else "",
            step=tuple(sorted(by_step)),
            mean=tuple(total / n for n, total, _, _ in sums),
            low=tuple(low for _, _, low, _ in sums),
            high=tuple(high for _, _, _, high in sums),
        )


def joined(buckets: Sequence[Bucket], marks: Sequence[StepTime]) -> dict[int, _Sum]:
    """step -> values measured while it was in progress, or at its end; ``marks`` by time.

    A bucket counts for the step that ends first from its beginning on: a step's own point lies at its end. After a
    restart that rewinds, a step's values are those of the newer incarnation.
    """
    times = [mark.ts for mark in marks]
    found: dict[int, tuple[int, _Sum]] = {}
    for bucket in buckets:
        if not bucket.n or bucket.low is None or bucket.high is None or not marks:
            continue
        at = bisect_left(times, bucket.ts)
        mark = marks[at] if at < len(marks) else StepTime(0, marks[-1].step + 1, marks[-1].incarnation)
        life, known = found.get(mark.step, (-1, None))
        if mark.incarnation < life:
            continue
        new: _Sum = (bucket.n, bucket.total, bucket.low, bucket.high)
        found[mark.step] = mark.incarnation, _added(known, new) if known and life == mark.incarnation else new
    return {step: kept for step, (_, kept) in found.items()}


def _added(a: _Sum, b: _Sum) -> _Sum:
    return a[0] + b[0], a[1] + b[1], min(a[2], b[2]), max(a[3], b[3])
