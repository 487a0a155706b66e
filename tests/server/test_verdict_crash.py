"""kill -9 while verdicts are made: each change is a row, once, and each tick was judged once."""

import json
import random

import pytest

from server.store import Store
from tests.killed import begin
from tests.server import verdict_child
from tests.server.support import T0, bench
from tests.server.verdict_child import SPELL, judge, tick

KILLS = 4


def run_and_kill(url: str, first: int, ticks: int, spin: int) -> int:
    """Start the child at a tick, read ``ticks`` words of it, burn ``spin`` turns, kill it: the last tick told."""
    child, said = begin(verdict_child.main, url, first)
    printed = [said.readline().strip() for _ in range(ticks + 1)][1:]
    for _ in range(spin):
        pass  # a seeded moment later
    child.kill()
    printed += said.read().split("\n")[:-1]  # the last line may be torn
    child.join()
    said.close()
    return int(printed[-1])


@pytest.mark.crash
def test_killed_between_any_two_writes(store_url: str) -> None:
    rng, last = random.Random(8), -1
    for _ in range(KILLS):
        last = run_and_kill(store_url, last + 1, rng.randrange(2, 9), rng.randrange(2_000_000))
    store = Store.open(store_url)
    with bench(store, judge=judge) as run:
        end = last + 5  # a tick or two may have been kept without a word
        for n in range(last + 1, end + 1):
            tick(run, n)
    kept = json.loads(store.verdicts.newest("run") or "{}")
    rows = store.verdicts.page("run", 0, 1 << 50, 10_000)
    store.close()
    assert [row.ts / 1000 - T0 for row in rows] == [5.0 * n for n in range(0, end + 1, SPELL)]
    assert [row.outcome for row in rows] == ["balanced", "stalled"] * (len(rows) // 2) + ["balanced"] * (len(rows) % 2)
    assert (kept["memory"], kept["as_of"]) == ({"asked": end + 1}, T0 + 5 * end)
