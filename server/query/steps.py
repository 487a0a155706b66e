"""Reads the trainer's steps, and series over steps instead of time."""

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence

from server.query.run_state import stored_run
from server.query.signals import ITEMS
from server.query.types import MOST_STEPS, StepAt, StepInfo, StepSeries, format_name, parse_name
from server.signals.window import EVALUATION, TRAINER
from server.store import Store
from server.store.samples import fit_width
from server.store.types import Bucket, SeriesKey, StepRow, StepTime

# The metrics of a step that pages and scripts read; trainers log hundreds more.
_STEP = frozenset(
    {
        "trainer_step_seconds", "trainer_wait_seconds", "generation_seconds", "trainer_compute_seconds",
        "trainer_weight_sync_seconds", "trainer_checkpoint_seconds", "trainer_eval_seconds", "trainer_other_seconds",
        "trainer_samples", "trained_tokens", "trainer_mfu_ratio", "staleness_versions_mean", "staleness_versions_max",
        "reward_mean", "gradient_norm", "gradient_nonfinite", "learning_rate", "entropy_mean", "clip_ratio",
        "mismatch_kl_mean", "mismatch_logprob_difference_mean", "importance_ratio_mean", "effective_sample_ratio",
        "reference_kl_mean", "loss_mean", "response_tokens_mean",
        "truncation_ratio", "policy_version",
    }
)  # fmt: skip

_Sum = tuple[int, float, float, float]
"""(how many points, their sum, lowest, highest)."""


class StepReader:
    """Reads steps. Thread-safe."""

    def __init__(self, store: Store) -> None:
        self._store = store

    def newest(self, run: str, last: int = 40) -> list[StepInfo]:
        """The trainer's newest steps, oldest first, at most `MOST_STEPS`; values of other axes join by step number."""
        row = stored_run(self._store, run)
        last = max(1, min(last, MOST_STEPS))
        incarnation = self._store.runs.incarnation(row.name)
        steps = _by_step(self._store.steps.newest(row.name, None, last, incarnation=incarnation), last)
        # A trainer that has just restarted has few steps, so use steps before the restart, too.
        if len(steps) < last and incarnation > 0:
            before = _by_step(self._store.steps.newest(row.name, None, last, incarnation=incarnation - 1), last)
            steps = before[len(steps) - last :] + steps
        return steps

    def times(self, run: str, start: float, end: float, limit: int = 1000) -> list[StepAt]:
        """The trainer's steps within [start, end] and the step before, oldest first.

        If there are more than ``limit``, some of them.
        """
        name = stored_run(self._store, run).name
        rows = self._store.steps.times(name, TRAINER, round(start * 1000), round(end * 1000), limit)
        return [StepAt(row.ts / 1000, row.step, row.incarnation) for row in rows]

    def series(self, run: str, names: Sequence[str], start: float, end: float, points: int = 600) -> list[StepSeries]:
        """As `SignalReader.series`, over the trainer's steps; a run without steps gives empty series.

        Points are joined with the steps in progress, in whole buckets.
        """
        run = stored_run(self._store, run).name
        first, last = round(start * 1000), round(end * 1000)
        width = fit_width(max(1, round((last - first) / max(1, points))))
        marks = self._marks(run, first - first % width, last + width, width)
        return [self._step_series(run, name, marks, first, last, width) for name in names]

    def _marks(self, run: str, start: int, end: int, width: int) -> list[StepTime]:
        """Steps that ended from ``start`` (where a bucket begins) on; of more than two a bucket, its newest."""
        buckets = -(-(end - start) // width)
        marks = self._store.steps.times(run, TRAINER, start, start + buckets * width, 2 * buckets)
        return [mark for mark in marks if mark.ts >= start]

    def _step_series(
        self, run: str, name: str, marks: Sequence[StepTime], start: int, end: int, width: int
    ) -> StepSeries:
        signal, labels = parse_name(name)
        item = ITEMS.get(signal)
        number = self._store.series.find(run, SeriesKey("", signal, labels)) if marks else None
        buckets = self._store.samples.buckets(number, start, end, width) if number is not None else []
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
    by_step: dict[int, tuple[int, _Sum]] = {}
    for bucket in buckets:
        if not bucket.n or bucket.low is None or bucket.high is None or not marks:
            continue
        at = bisect_left(times, bucket.ts)
        mark = marks[at] if at < len(marks) else StepTime(0, marks[-1].step + 1, marks[-1].incarnation)
        incarnation, previous = by_step.get(mark.step, (-1, None))
        if mark.incarnation < incarnation:
            continue
        new: _Sum = (bucket.n, bucket.total, bucket.low, bucket.high)
        by_step[mark.step] = (
            mark.incarnation,
            _added(previous, new) if previous and incarnation == mark.incarnation else new,
        )
    return {step: total for step, (_, total) in by_step.items()}


def _added(a: _Sum, b: _Sum) -> _Sum:
    return a[0] + b[0], a[1] + b[1], min(a[2], b[2]), max(a[3], b[3])


def _by_step(rows: Sequence[StepRow], last: int) -> list[StepInfo]:
    """Steps of the trainer's axis, or without one of the axis that was reported last."""
    rows = [row for row in rows if row.axis != EVALUATION]
    if not rows:
        return []
    axis = TRAINER if any(row.axis == TRAINER for row in rows) else rows[-1].axis
    others: dict[int, dict[str, float]] = defaultdict(dict)
    for row in rows:
        if row.axis != axis:
            others[row.step] |= _step_values(row)
    axis_rows = [row for row in rows if row.axis == axis][-last:]
    return [
        StepInfo(row.step, row.ts / 1000, row.incarnation, others[row.step] | _step_values(row)) for row in axis_rows
    ]


def _step_values(row: StepRow) -> dict[str, float]:
    return {format_name(metric, labels): value for (metric, labels), value in row.values.items() if metric in _STEP}
