"""The process that the crash test kills: tails an endless source through the real writer.

Source row n becomes one sample, one point and one histogram reading, and the cursor n + 1: so whatever is in
the database must agree with the cursor. Prints n after the commit was acknowledged.
"""

from collectors.model import Event, Histogram
from server.store import Store, Writer
from server.store.types import Batch, SeriesKey

T0 = 1_700_006_400_000
KEYS = [SeriesKey("tail", "row"), SeriesKey("", "row"), SeriesKey("tail", "hist")]
IN_FLIGHT = 4


def batch_of(n: int, ids: list[int]) -> Batch:
    """Everything that source row ``n`` says; several hundred rows, so that a kill often lands inside."""
    sample, point, hist = ids
    ts = T0 + n * 1_000
    return Batch(
        "run",
        samples=[(sample, ts + i, float(n)) for i in range(300)],
        points=[(point, ts, float(n), 0)],
        histograms=[(hist, ts, Histogram("hist", (1.0,), (float(n), float(n)), float(n)))],
        events=[(ts, Event("checkpoint", f"row-{n}"))],
        cursors={"tail": str(n + 1)},
    )


def main(url: str) -> None:
    """Go on from the stored cursor until killed. A few batches are in flight at a time, so that they merge."""
    store = Store.open(url)
    ids = store.series.intern("run", KEYS)
    n = int(store.runs.cursors("run").get("tail", "0"))
    print(f"from {n}", flush=True)
    writer = Writer(store, commit_seconds=0.001)
    while True:
        waiting = [(n + i, writer.submit(batch_of(n + i, ids), block=True)) for i in range(IN_FLIGHT)]
        for number, done in waiting:
            done.result()
            print(number, flush=True)
        n += IN_FLIGHT
