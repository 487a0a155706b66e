"""The simulator's noise of real runs: what stops, dies, or is reported rarely does so, and goes on."""

from dataclasses import replace

import pytest

from bench.verdict.config import Config, draw
from bench.verdict.feed import Feed
from bench.verdict.sim import Sim

SHORT = Config(1, "trainer", engines=2, slots=32, tokens=100.0, cap=64, batch=16, group=4, compute=4.0, horizon=300.0)


# The same with a trainer that is always faster: engines are full.
FAST = replace(SHORT, compute=0.1, publish=0.1)


def test_a_process_that_stops_makes_no_step_and_goes_on() -> None:
    sim = Sim(replace(FAST, fault=(100.0, "stopped"), resumes=90.0)).run()
    ends = [row.end for row in sim.rows]
    before, during, after = (
        len([end for end in ends if low < end <= high]) for low, high in ((10, 100), (100, 190), (190, 280))
    )
    assert during == 0
    assert before == pytest.approx(after, rel=0.1)
    # A rollout takes about a second: ten seconds after the stop the engines have nothing left.
    loads = {page.at: [read[0] for read in page.engines if read is not None] for page in sim.pages}
    assert min(loads[95.0]) > 20
    assert {load for at, engines in loads.items() if 110 <= at < 190 for load in engines} == {0}


def test_requests_of_a_dead_engine_begin_again_on_the_other() -> None:
    sim = Sim(replace(FAST, fault=(100.0, "one_dead"))).run()
    late = [page.engines for page in sim.pages if page.at > 100.0]
    assert {tuple(read is None for read in engines) for engines in late} == {(True, False)}
    assert sim.in_flight == sim.census["generating"] + sim.census["scoring"] == 64
    assert sim.rows[-1].end > 290.0


def test_engines_stand_still_in_bursts() -> None:
    runs = [Sim(replace(FAST, burst_every=8.0, burst=burst)).run() for burst in (0.0, 8.0)]
    tokens = [sum(engine.tokens for engine in run.engines) for run in runs]
    # Half of the time.
    assert tokens[1] / tokens[0] == pytest.approx(0.5, abs=0.03)


def test_a_log_alone_and_sampled_records_give_queue_and_groups() -> None:
    sim = Sim(replace(SHORT, zero=0.5, row_only=True, traced=8, lag=1.0)).run()
    feed = Feed(sim.c)
    assert not [name for row in sim.rows for name in row.values if name.startswith("groups_")]
    for _ in feed.play(sim.rows, sim.pages):
        pass
    assert feed.seen is not None
    assert feed.seen.get("queue_samples_now") == sim.rows[-1].values["queue_samples"]
    # Two groups of each 8th batch: of the last ten versions with records, which are those of 7 batches.
    traced = [group for row in sim.rows if row.number % 8 == 0 for group in row.groups[:2]]
    assert len(traced) == 14
    share = sum(dull for _, dull, _ in traced) / len(traced)
    assert feed.seen.get("zero_advantage_ratio", basis="completed") == pytest.approx(share)


def test_seeds_with_noise_are_small_and_the_others_as_before() -> None:
    runs = [draw(seed) for seed in range(200_000, 200_100)]
    assert {run.engines for run in runs} == {1, 2, 3}
    assert {run.group for run in runs} == {4, 8}
    assert not any(run.sync or run.census for run in runs)
    assert not any(run.traced for run in runs if run.filtered)
    assert (sum(run.traced > 0 for run in runs), sum(run.row_only for run in runs)) == (53, 73)
    assert not any(draw(seed).row_only or draw(seed).traced or draw(seed).burst for seed in range(100))
