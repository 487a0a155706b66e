"""The driver of event time, on both databases."""

import asyncio
import random
from collections.abc import Sequence
from concurrent.futures import Future
from functools import cache
from pathlib import Path

import pytest

from collectors.model import Reading, Sample, Target
from server.lib.clock import ScaledClock
from server.query import UnknownRun
from server.scrape.run_loop import LoopServices, RunLoop
from server.store import Store, Writer
from server.store.types import Batch, PointState, SeriesKey
from server.targets.model import Attached
from tests.driven_run import ENGINE, T0, TRAINER, bench, page, steps

WAIT = "trainer_wait_ratio"


def points(store: Store, name: str, labels: tuple[tuple[str, str], ...] = ()) -> list[tuple[int, float | None, int]]:
    series = store.series.find("run", SeriesKey("", name, labels))
    return store.samples.points([series], 0, 1 << 60)[series] if series is not None else []


def test_ticks_stand_on_the_grid_of_event_time(store: Store) -> None:
    with bench(store) as run:
        for n in range(4):
            run.commit(ENGINE, page(10 + n, 100 * n), T0 + 5 * n)
        run.advance(T0 + 17)
    assert [ts / 1000 - T0 for ts, _, _ in points(store, "generator_requests_now", (("state", "running"),))] == [
        0,
        5,
        10,
        15,
    ]
    assert [v for _, v, _ in points(store, "generator_requests_now", (("state", "running"),))] == [10, 11, 12, 13]


@pytest.mark.parametrize(
    ("begin", "age", "ticks"),
    [
        (7_200, 1_200, range(0, 605, 5)),  # the last half hour
        (0, 50_000, range(0, 605, 5)),  # the first half hour of a run of today
        (7_200, 50_000, range(0, 601, 60)),
        (0, 7 * 86_400, range(0, 601, 60)),
        (25_200, 7 * 86_400, (0, 300, 600)),
    ],
)
def test_ticks_of_long_history_are_further_apart_in_whatever_pieces_it_comes(
    store: Store, begin: int, age: int, ticks: Sequence[int]
) -> None:
    """A piece's end is no present: a week in a hundred pieces would have its last half hour of each on the 5 s grid."""
    first = T0 - T0 % 300
    with bench(store) as run:
        run.commit(ENGINE, page(10, 0), first)
        run.driver.advance(first, present=first + begin + age)
        for n in range(121):
            run.commit(ENGINE, page(10, 100 * n), first + begin + 5 * n)
            run.driver.advance(first + begin + 5 * n, present=first + begin + age)
    found = points(store, "generator_requests_now", (("state", "running"),))
    assert [at for ts, _, _ in found if (at := ts / 1000 - first - begin) >= 0] == [*ticks]


def test_steps_are_points_at_their_own_time(store: Store) -> None:
    with bench(store) as run:
        run.commit(TRAINER, steps(1, 6), T0 + 200)
        run.advance(T0 + 200)
    found = points(store, WAIT)
    assert [(ts / 1000 - T0, v) for ts, v, state in found if state == PointState.VALUE] == [
        (90.0, 0.4),
        (120.0, 0.4),
        (150.0, 0.4),
        (180.0, 0.4),
    ]  # fmt: skip  the first two steps are too few to judge


def test_history_and_live_give_the_same_points(store: Store) -> None:
    """Twelve minutes at once, or in pieces of any size: what is stored does not depend on how fast t grew."""
    with bench(store) as run:
        run.commit(TRAINER, steps(1, 24), T0)
        for ts, reading in _pages():
            run.commit(ENGINE, reading, ts)
        run.advance(T0 + 720)
        at_once = {name: points(store, *name) for name in NAMES}
    assert all(at_once.values())
    assert at_once == _live()


NAMES = [
    (WAIT, ()),
    ("generator_requests", (("state", "running"),)),
    ("generator_tokens_per_second", ()),
    ("policy_version", ()),
]


def _pages() -> list[tuple[float, Reading]]:
    rng = random.Random(7)
    return [(T0 + 5 * n, page(rng.randint(0, 99), 50.0 * n)) for n in range(144)]


@cache
def _live() -> dict[object, object]:
    """The same data into a second store, one tick at a time."""
    import tempfile  # noqa: PLC0415

    from server.store import migrate  # noqa: PLC0415

    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/live.db"
        migrate(url)
        other = Store.open(url)
        with bench(other) as run:
            done = 0
            for ts, reading in _pages():
                number = int((ts - T0) // 30)
                if number > done:
                    run.commit(TRAINER, steps(done + 1, number), ts)
                    done = number
                run.commit(ENGINE, reading, ts)
                run.advance(ts)
            run.commit(TRAINER, steps(done + 1, 24), T0 + 720)
            run.advance(T0 + 720)
        found = {name: points(other, *name) for name in NAMES}
        other.close()
    return found


def test_a_restart_changes_no_number(store: Store) -> None:
    """Windows, counters and lines go on as if nothing had happened."""
    with bench(store) as run:
        run.commit(TRAINER, steps(1, 8), T0 + 250)
        for n in range(50):
            run.commit(ENGINE, page(n, 100.0 * n), T0 + 5 * n)
        run.advance(T0 + 250)
        before = {s.name: (s.value, s.state, s.why) for s in run.reader.status("run").signals.values()}
    with bench(store) as run:
        run.advance(T0 + 250)
        after = {s.name: (s.value, s.state, s.why) for s in run.reader.status("run").signals.values()}
        assert after == before
        run.commit(ENGINE, page(50, 100.0 * 50), T0 + 255)
        run.advance(T0 + 255)
        assert run.value("generator_generated_tokens_total") == 5000.0
        assert run.value("trainer_wait_seconds_total") == 96.0
        assert run.value('generator_requests{state="running"}') == pytest.approx(sum(range(50)) * 5 / 250, rel=0.03)


def test_a_death_between_commit_and_derivation_loses_nothing(store: Store) -> None:
    with bench(store) as run:
        run.commit(ENGINE, page(1, 1000), T0)
        run.commit(TRAINER, steps(1, 3), T0 + 90)
        run.advance(T0 + 95)
        run.commit_only(ENGINE, page(2, 1600), T0 + 100)
        run.commit_only(TRAINER, steps(4, 6), T0 + 100)
    with bench(store) as run:
        run.advance(T0 + 185)
        assert run.value("generator_generated_tokens_total") == 600.0
        assert run.value("trained_tokens_total") == 6000.0
        assert run.value("policy_version") == 6.0
        assert len(points(store, "policy_version")) == 6


def test_a_death_before_anything_was_derived_loses_nothing(store: Store) -> None:
    """500 steps of history were committed with their cursor; the process died before the first tick."""
    with bench(store) as run:
        run.commit_only(TRAINER, steps(1, 500), T0 + 16_000)
        run.commit_only(ENGINE, page(7, 100), T0 + 16_000)
    with bench(store) as run:
        run.advance(T0 + 16_000)
        assert run.value("trained_tokens_total") == 500_000.0
        assert len(points(store, "policy_version")) == 500
        assert run.value('generator_requests_now{state="running"}') == 7.0


def test_a_death_in_the_middle_of_history_loses_nothing(store: Store) -> None:
    """Derived up to step 20 of 181, across a restart of the trainer; then kill -9."""
    with bench(store) as run:
        run.commit(TRAINER, steps(1, 20), T0)
        run.advance(T0 + 600)
        run.commit_only(TRAINER, steps(21, 120), T0)
        run.commit_only(TRAINER, steps(80, 140, start=T0 + 4_000), T0)
    with bench(store) as run:
        run.advance(T0 + 12_000)
        assert run.value("trained_tokens_total") == 1000.0 * (120 + 61)
        assert len(points(store, "policy_version")) == 120 + 61


def test_a_driver_that_could_not_write_is_made_anew(store: Store, tmp_path: Path) -> None:
    """The store fails once in the middle of a tick: what that tick derived is derived again."""
    clock, writer = ScaledClock(T0), Writer(store)
    run_dir = tmp_path / "run"
    run_dir.mkdir()
    row = '{{"step": {n}, "time": {ts}, "time/step": 2.0, "time/wait_for_batch": 1.0, "time/forward_backward": 1.0}}\n'
    target = Target("trainer", "run", "prime_rl", "trainer", path=str(run_dir))
    (run_dir / "metrics.jsonl").write_text("".join(row.format(n=n, ts=T0 + n) for n in range(6)))
    loop = RunLoop(Attached("run", (target,)), LoopServices(store, writer, clock))

    async def drive() -> None:
        submit, failing = loop._commit, [True]

        def once(batch: Batch) -> "Future[int]":
            if failing.pop() if failing else False:
                raise OSError("disk full")
            return submit(batch)

        loop.pipeline.driver._submit = once
        stop = asyncio.Event()
        live = asyncio.create_task(loop.live(stop))
        clock.run(1000.0)
        while not points(store, "policy_version"):
            await asyncio.sleep(0.01)
        stop.set()
        await live

    asyncio.run(drive())
    writer.close()
    assert len(points(store, "policy_version")) == 6


def test_counters_follow_resets_and_count_every_step_once(store: Store) -> None:
    with bench(store) as run:
        for n, tokens in enumerate((500, 800, 100, 400)):  # restart of the engine after 800
            run.commit(ENGINE, page(1, tokens), T0 + 5 * n)
        run.commit(TRAINER, steps(1, 3), T0 + 20)
        run.commit(TRAINER, steps(1, 3), T0 + 20)  # the same rows again
        run.advance(T0 + 100)
        assert run.value("generator_generated_tokens_total") == 300 + 100 + 300
        assert run.value("trained_tokens_total") == 3000.0


def windows(*numbers: int, **facts: str | float) -> Reading:
    """Rows of several steps each: the mean of their tokens is 1000."""
    samples = [Sample("trained_tokens", 1000.0, ts=T0 + n, step=n, axis="trainer") for n in numbers]
    return Reading(samples=tuple(samples), facts={"framework": "trl", "mode": "async", **facts})


def test_a_row_of_several_steps_counts_for_all_of_them(store: Store) -> None:
    """Step 1 is logged alone (`logging_first_step`), then every tenth: 30 steps, and 10 behind a restart."""
    with bench(store) as run:
        run.commit(TRAINER, windows(1, 10, 20, 30, logging_steps=10.0), T0 + 31)
        run.advance(T0 + 40)
        assert run.value("trained_tokens_total") == 30_000.0
    with bench(store) as run:
        run.commit(TRAINER, windows(40), T0 + 41)  # the fact is in the store
        run.advance(T0 + 50)
        assert run.value("trained_tokens_total") == 40_000.0
        run.commit(TRAINER, windows(60), T0 + 61)  # the row of step 50 was lost: its steps are not made up
        run.advance(T0 + 70)
        assert run.value("trained_tokens_total") == 50_000.0


@pytest.mark.parametrize(("facts", "tokens"), [({}, 3000.0), ({"logging_steps": 1.0}, 3000.0)])
def test_rows_apart_without_a_window_are_one_step_each(store: Store, facts: dict[str, float], tokens: float) -> None:
    with bench(store) as run:
        run.commit(TRAINER, windows(10, 20, 30, **facts), T0 + 31)
        run.advance(T0 + 40)
        assert run.value("trained_tokens_total") == tokens


def test_a_step_going_back_begins_a_new_incarnation_once(store: Store) -> None:
    with bench(store) as run:
        run.commit(TRAINER, steps(1, 8), T0 + 250)
        other = tuple(Sample("trainer_samples", 64.0, ts=T0 + 30 * n, step=n, axis="orchestrator") for n in range(1, 9))
        run.commit(TRAINER, Reading(samples=other, cursor={}), T0 + 250)
        run.advance(T0 + 250)
        first = store.runs.incarnation("run")
        run.commit(TRAINER, steps(5, 6, start=T0 + 300), T0 + 500)
        again = tuple(
            Sample("trainer_samples", 64.0, ts=T0 + 300 + 30 * n, step=n, axis="orchestrator") for n in (5, 6)
        )
        run.commit(TRAINER, Reading(samples=again, cursor={}), T0 + 500)
        run.advance(T0 + 500)
    assert store.runs.incarnation("run") == first + 1
    assert [event.kind for _, event in store.runs.events("run", 0, 1 << 60)] == ["restart"]
    assert {row.step for row in store.steps.newest("run", axis="trainer")} == {5, 6}


def test_a_lost_engine_breaks_the_line_and_says_why(store: Store) -> None:
    with bench(store) as run:
        run.commit(ENGINE, page(9, 1), T0)
        run.advance(T0)
        run.fail(ENGINE, "unreachable", "connection refused", T0 + 5)
        for n in range(1, 8):
            run.advance(T0 + 5 * n)
        assert run.value('generator_requests{state="running"}') is None
        assert run.state('generator_requests{state="running"}') == "unknown"
        trust = run.reader.targets("run")[0]
        assert (trust.up, trust.error, trust.age_seconds) == (False, "connection refused", 35.0)
    states = [state for _, _, state in points(store, "generator_requests", (("state", "running"),))]
    assert states == [0, 0, 0, 0, 1]  # carried for 15 s, then one break, not one per tick


def test_a_finished_run_stands_as_of_its_last_step(store: Store) -> None:
    done = steps(1, 5, lifecycle="finished", mode="sync_colocated")
    with bench(store) as run:
        run.commit(TRAINER, done, T0 + 1000)
        run.advance(T0 + 1000)
        run.advance(T0 + 86_400)
        status = run.reader.status("run")
        assert (status.lifecycle, status.mode) == ("finished", "sync_colocated")
        assert run.value("trainer_step_seconds") == 30.0
        ages = {s.name: s.age_seconds for s in status.signals.values()}
        assert ages["trainer_step_seconds"] == 86_400 - 150
        assert run.state(WAIT) == run.state("queue_samples") == "not_applicable"
    assert len(points(store, "trainer_step_seconds")) == 3  # no line yet while there were too few steps


def test_steps_after_the_end_make_it_run_again(store: Store) -> None:
    with bench(store) as run:
        run.commit(TRAINER, steps(1, 5, lifecycle="finished"), T0 + 160)
        run.advance(T0 + 160)
        run.commit(TRAINER, steps(6, 7), T0 + 220)
        run.advance(T0 + 220)
        assert run.reader.status("run").lifecycle == "running"


def test_a_run_that_stopped_logging_is_unknown_after_its_patience(store: Store) -> None:
    with bench(store) as run:
        run.commit(TRAINER, steps(1, 5), T0 + 160)
        run.advance(T0 + 160)
        run.advance(T0 + 150 + 1799)
        assert run.value(WAIT) == 0.4
        run.advance(T0 + 150 + 1801)
        assert run.value(WAIT) is None and "no step for 30 min" in run.why(WAIT)


def test_stated_facts_win(store: Store) -> None:
    with bench(store, batch_samples=64.0) as run:
        run.commit(TRAINER, steps(1, 4, batch_samples=512.0), T0 + 130)
        run.advance(T0 + 130)
        assert run.reader.status("run").facts["batch_samples"] == 64.0
        assert run.value("trainer_samples_per_second") == pytest.approx(64 / 30)


def test_going_back_does_nothing(store: Store) -> None:
    with bench(store) as run:
        run.commit(ENGINE, page(1, 1), T0 + 50)
        run.advance(T0 + 60)
        before = points(store, "generator_requests_now", (("state", "running"),))
        run.advance(T0 + 10)
        assert points(store, "generator_requests_now", (("state", "running"),)) == before


def test_late_steps_are_new_seqs_for_readers(store: Store) -> None:
    with bench(store) as run:
        run.commit(TRAINER, steps(1, 4), T0 + 130)
        run.advance(T0 + 130)
        cursor = run.reader.signals.cursor("run")
        run.commit(TRAINER, steps(5, 5), T0 + 600)
        run.advance(T0 + 600)
        delta = run.reader.signals.since("run", cursor)
        assert not delta.reset
        assert delta.points[WAIT] == ((T0 + 150, 0.4),)
        assert run.reader.signals.since("run", delta.cursor).points == {}


@pytest.mark.parametrize("cursor", ["", "x", "99:1", "0:999999999", "1:-3"])
def test_a_foreign_cursor_answers_reset(store: Store, cursor: str) -> None:
    with bench(store) as run:
        run.commit(TRAINER, steps(1, 4), T0 + 130)
        run.advance(T0 + 130)
        assert run.reader.signals.since("run", cursor).reset


def test_an_unknown_run_is_named(store: Store) -> None:
    with bench(store) as run, pytest.raises(UnknownRun, match="nobody"):
        run.reader.status("nobody")
