"""kill -9 at twenty points: what was acknowledged is there once, and the cursor is where the rows end."""

import random
import sqlite3

import pytest

from server.store import Store
from tests.killed import run_and_kill
from tests.store import crash_child
from tests.store.crash_child import KEYS, T0
from tests.store.helpers import FOREVER

KILLS = 20


def check(store: Store, acknowledged: set[int], resumed: list[int]) -> int:
    """Rows, points, events and histogram all end where the cursor says; the number of source rows."""
    cursor = int(store.runs.cursors("run")["tail"])
    sample, point, _ = store.series.intern("run", KEYS)
    rows = next(rows for number, _, rows in store.samples.window("run", ["row"], T0) if number == sample)
    want = [float(n) for n in range(cursor)]
    assert [v for _, v in rows] == [v for v in want for _ in range(300)]
    assert [value for _, value, _ in store.samples.points([point], 0, FOREVER)[point]] == want
    assert [event.key for _, event in store.runs.events("run", 0, FOREVER)] == [f"row-{n}" for n in range(cursor)]
    # The reading of row n counts n observations, the first is the base line: in all, the last row's number.
    assert sum(delta.n for delta in store.histograms.merged("run", KEYS[2], 0, FOREVER)) == cursor - 1
    assert acknowledged <= set(range(cursor))
    assert all(n <= cursor for n in resumed)
    return cursor


@pytest.mark.crash
def test_killed_at_twenty_points(store_url: str) -> None:
    rng = random.Random(20)
    acknowledged: set[int] = set()
    resumed: list[int] = []
    for _ in range(KILLS):
        lines, spin = rng.randrange(1, 12), rng.randrange(400_000)
        first, *numbers = run_and_kill(crash_child.main, store_url, lines=lines, spin=spin)
        resumed.append(int(first.removeprefix("from ")))
        assert not acknowledged or resumed[-1] > max(acknowledged)
        acknowledged |= {int(number) for number in numbers}
    store = Store.open(store_url)
    cursor = check(store, acknowledged, resumed)
    assert cursor >= KILLS
    store.close()
    if store_url.startswith("sqlite"):
        connection = sqlite3.connect(store_url.removeprefix("sqlite:///"))
        assert connection.execute("PRAGMA integrity_check").fetchall() == [("ok",)]
        connection.close()
