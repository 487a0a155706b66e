"""What the windows of a run held, read back from the store: a restart changes no number.

Values that nobody can mean are left out: a store of before they were refused may hold some.
"""

from collections.abc import Iterable, Iterator
from itertools import accumulate

from collectors.model import Histogram
from server.derive import Deriver
from server.ingest import SampleArrival, StepArrival
from server.lives import STARTED
from server.plausible import cannot_be
from server.signals._observed import REMEMBERED_SECONDS, WINDOWED
from server.store import Store
from server.store.types import StepRow


def samples(store: Store, run: str, deriver: Deriver, since: int) -> list[SampleArrival]:
    """Every sample of a tick signal from ``since`` (ms) on, in the order of time."""
    found: list[SampleArrival] = [
        (ts / 1000, key.target, key.metric, key.labels, value)
        for _, key, points in store.window(run, sorted(deriver.tick_metrics), since)
        for ts, value in points
        if key.target and not cannot_be(key.metric, value)  # without a target: a signal of ours of a metric's name
    ]
    # As on a page, the start of a process comes before what it counted.
    return sorted(found, key=lambda sample: (sample[0], sample[2] != STARTED))


def histograms(store: Store, run: str, deriver: Deriver, since: int) -> None:
    """Minutes from ``since`` (ms) on, and the readings that the next ones are held against.

    A process that died had committed more than it derived, by a tick at most: the minutes hold that already.
    """
    minutes, last = store.histogram_windows(run, sorted(WINDOWED), since // 60_000 * 60_000)
    for key, total in last:
        if key.target and total.ts / 1000 >= since / 1000 - REMEMBERED_SECONDS:
            item = Histogram(key.metric, total.edges, total.counts, total.total, key.labels)
            deriver.sample(total.ts / 1000, key.target, key.metric, key.labels, item)
    for key, minute, delta in minutes:
        pool = deriver.histograms.pool(key.target, key.metric, key.labels, delta.edges)
        pool.add(minute // 60_000, [*accumulate(delta.counts), delta.total])


def steps(rows: Iterable[StepRow]) -> Iterator[StepArrival]:
    """Stored steps as they arrived: each target's word by itself."""
    for row in rows:
        for target, told in row.told.items():
            values = {key: value for key, value in told.items() if not cannot_be(key[0], value)}
            yield StepArrival(row.axis, row.incarnation, row.step, row.ts / 1000, target, values)
