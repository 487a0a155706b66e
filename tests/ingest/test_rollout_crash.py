"""kill -9 between inbox and merge: what was acknowledged becomes rows and sums, once."""

import random

import pytest

from server.store import Store
from tests.ingest import rollout_child
from tests.ingest.rollout_child import MANY, offer
from tests.killed import run_and_kill
from tests.push.test_pushed_targets import lived, waiting

KILLS = 4


@pytest.mark.crash
def test_killed_between_inbox_and_merge(store_url: str) -> None:
    rng, acknowledged = random.Random(7), [-1]
    store = Store.open(store_url)
    for _ in range(KILLS):
        bodies, spin = rng.randrange(1, 8), rng.randrange(3_000_000)
        _, *told = run_and_kill(rollout_child.main, store_url, acknowledged[-1] + 1, lines=bodies, spin=spin)
        acknowledged += map(int, told)
    last = acknowledged[-1] + 2  # one body may have been kept without a word
    offer(store, last)
    with lived(store, last) as run:
        run.loop._collect_pushes(run.clock.now())
    assert waiting(store) == 0
    told = [f"{n}-{k}" for n in acknowledged[1:] for k in range(MANY)]
    rows = store.rollouts.get("run", told)
    assert len(rows) == len(told) and {row.response_tokens for row in rows} == {10}
    # All but what nobody told of after: the last body of each life, unless the next one was the same.
    everything = store.rollouts.get("run", [f"{n}-{k}" for n in range(-1, last + 1) for k in range(MANY)])
    trained = [row for row in everything if row.state == "trained"]
    assert len(trained) >= len(told) - MANY
    sums = store.rollouts.sums("run", 0, 1 << 41)
    counted = {one.exit: (one.rollouts, one.response_tokens) for one in sums}
    tokens = sum(row.response_tokens or 0 for row in trained)
    assert counted["trained"] == (len(trained), tokens)
    store.close()
