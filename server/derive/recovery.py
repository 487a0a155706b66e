"""What the windows of a run held, read back from the store: a restart changes no number.

Values that nobody can mean are left out: a store of before they were refused may hold some.
"""

from collections.abc import Iterable, Iterator, Mapping
from itertools import accumulate

from collectors.model import Histogram
from server.derive.deriver import Deriver
from server.derive.restarts import STARTED
from server.ingest.readings import SampleArrival, StepArrival
from server.ingest.validation import implausible_reason
from server.signals.observed_histograms import REMEMBERED_SECONDS, WINDOWED
from server.signals.window import KEPT_STEPS
from server.store import Store
from server.store.types import StepRow


def samples(store: Store, run: str, deriver: Deriver, since: int) -> list[SampleArrival]:
    """Every sample of a tick signal from ``since`` (ms) on, in the order of time."""
    found: list[SampleArrival] = [
        (ts / 1000, key.target, key.metric, key.labels, value)
        for _, key, points in store.samples.window(run, sorted(deriver.tick_metrics), since)
        for ts, value in points
        if key.target
        and not implausible_reason(key.metric, value)  # without a target: a signal of ours of a metric's name
    ]
    # As on a page, the start of a process comes before what it counted.
    return sorted(found, key=lambda sample: (sample[0], sample[2] != STARTED))


def histograms(store: Store, run: str, deriver: Deriver, since: int) -> None:
    """Minutes from ``since`` (ms) on, and the readings that the next ones are held against.

    A process that died had committed more than it derived, by a tick at most: the minutes hold that already.
    """
    minutes, last = store.histograms.windows(run, sorted(WINDOWED), since // 60_000 * 60_000)
    for key, total in last:
        if key.target and total.ts / 1000 >= since / 1000 - REMEMBERED_SECONDS:
            item = Histogram(key.metric, total.edges, total.counts, total.total, key.labels)
            deriver.sample(total.ts / 1000, key.target, key.metric, key.labels, item)
    for key, minute, delta in minutes:
        pool = deriver.histograms.pool(key.target, key.metric, key.labels, delta.edges)
        pool.add(minute // 60_000, [*accumulate(delta.counts), delta.total])


def steps(store: Store, run: str, done: Mapping[str, tuple[int, int]]) -> tuple[list[StepArrival], list[StepArrival]]:
    """(those of the window that were answered already, those that were not) of a run."""
    known: list[StepArrival] = []
    fresh: list[StepArrival] = []
    newest = store.runs.incarnation(run)
    for life in range(newest, -1, -1):
        rows = _steps_back_to(store, run, life, done)
        new = [row for row in rows if _is_new(row, done)]
        known += _words(row for row in rows if life == newest and not _is_new(row, done))
        fresh += _words(new)
        if len(new) < len(rows):
            break
    return known, fresh


def _steps_back_to(store: Store, run: str, life: int, done: Mapping[str, tuple[int, int]]) -> list[StepRow]:
    """Every step of a life not yet done and, per axis, at least a window of those before it."""
    count = KEPT_STEPS
    while True:
        rows = store.steps.newest(run, last=count, incarnation=life)
        by_axis = {axis: [row for row in rows if row.axis == axis] for axis in {row.axis for row in rows}}
        if all(len(of) < count or (life, of[0].step) <= done.get(axis, (-1, -1)) for axis, of in by_axis.items()):
            return rows
        count *= 8


def _is_new(row: StepRow, done: Mapping[str, tuple[int, int]]) -> bool:
    return (row.incarnation, row.step) > done.get(row.axis, (-1, -1))


def _words(rows: Iterable[StepRow]) -> Iterator[StepArrival]:
    """Stored steps as they arrived: each target's word by itself."""
    for row in rows:
        for target, told in row.told.items():
            values = {key: value for key, value in told.items() if not implausible_reason(key[0], value)}
            yield StepArrival(row.axis, row.incarnation, row.step, row.ts / 1000, target, values)
