"""kill -9 while verdicts are made: each change is a row, once, and each tick was judged once."""

import json
import random

import pytest

from server.store import Store
from tests.derive import verdict_child
from tests.derive.verdict_child import SPELL, judge, tick
from tests.driven_run import T0, bench
from tests.killed import run_and_kill

KILLS = 4


@pytest.mark.crash
def test_killed_between_any_two_writes(store_url: str) -> None:
    rng, last = random.Random(8), -1
    for _ in range(KILLS):
        lines, spin = rng.randrange(2, 9), rng.randrange(2_000_000)
        *_, told = run_and_kill(verdict_child.main, store_url, last + 1, lines=lines, spin=spin)
        last = int(told)
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
