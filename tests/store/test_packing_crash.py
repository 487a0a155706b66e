"""kill -9 after every change of packing and of unpacking for a late sample: no sample is lost, none is stored twice."""

import signal

import pytest
from sqlalchemy import text

from server.store import Store
from tests.killed import begin
from tests.store import packing_child
from tests.store.helpers import DAY, HOUR, T0, put
from tests.store.test_chunks import STEP, filled, pack

HOURS = 4
LAST_PACKED = T0 + 2 * HOUR
"""Of four hours three are packed."""
CLOSED = T0 + HOURS * HOUR

UNPACKING = (
    "INSERT INTO samples", "DELETE FROM chunks", "UPDATE expiry", "INSERT INTO rollups", "INSERT INTO rollups",
    "INSERT INTO rollups", "DELETE FROM dirty", "before commit", "after commit",
)  # fmt: skip
PACKING = ("DELETE FROM samples", "INSERT INTO chunks", "INSERT INTO expiry", "before commit", "after commit")
NEXT_HOUR = ("INSERT INTO expiry", "before commit", "after commit")


def stored(store: Store) -> int:
    """Samples in rows and in chunks. Readers would hide one that is stored in both."""
    with store._engines.reading() as connection:
        rows = connection.execute(text("SELECT count(*) FROM samples")).scalar_one()
        packed = connection.execute(text("SELECT coalesce(sum(n), 0) FROM chunks")).scalar_one()
    return int(rows) + int(packed)


def child(url: str, moment: int) -> tuple[list[str], int | None]:
    """Runs the process to its end; the points it reached, and its return code (negative for a signal)."""
    process, output = begin(packing_child.main, url, moment, CLOSED)
    reached = output.read().split("\n")[:-1]
    process.join()
    output.close()
    return reached, process.exitcode


@pytest.mark.crash
def test_killed_after_every_change(store_url: str) -> None:
    """Each process finds a late sample in a packed hour: it unpacks the hour, recomputes rollups and packs it again."""
    store = Store.open(store_url)
    ids = filled(store, HOURS, series=2)
    expected = {n: [(T0 + i * STEP, 1000.0 * place + i) for i in range(HOURS * 240)] for place, n in enumerate(ids)}
    points = (*UNPACKING, *PACKING, *NEXT_HOUR)
    for moment in range(1, len(points) + 1):
        pack(store)
        late = (LAST_PACKED + moment, -float(moment))
        expected[ids[1]].append(late)
        put(store, ids[1], [late])

        reached, code = child(store_url, moment)
        found = {n: rows for n, _, rows in store.samples.window("run", None, 0)}
        assert found == {n: sorted(rows) for n, rows in expected.items()}, reached
        assert stored(store) == sum(map(len, expected.values())), reached
        assert (tuple(reached), code) == (points[:moment], -signal.SIGKILL)
        store.rollup("run", CLOSED)
        (bucket,) = store.samples.buckets(ids[1], T0, T0 + 1, DAY)
        values = [value for _, value in expected[ids[1]]]
        assert (bucket.n, bucket.low, bucket.total) == (len(values), min(values), sum(values)), reached
    store.close()
