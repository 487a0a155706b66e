"""Restarts of ours, late rows, gaps and ends: what is stored is what was reported, and no more."""

from collectors.model import Reading, Sample
from server.store import Store
from server.store.types import PointState, SeriesKey, StepRow
from tests.driven_run import ENGINE, T0, TRAINER, bench, page, steps

Points = list[tuple[int, float | None, int]]


def points(store: Store, name: str) -> Points:
    series = store.series.find("run", SeriesKey("", name))
    return store.samples.points([series], 0, 1 << 60)[series] if series is not None else []


def growing(first: int, last: int) -> Reading:
    """Steps that take 1 s longer each: every window has its own mean."""
    rows = (
        Sample("trainer_step_seconds", 10.0 + n, ts=T0 + 30 * n, step=n, axis="trainer") for n in range(first, last + 1)
    )
    return Reading(samples=tuple(rows), facts={"framework": "prime_rl", "mode": "async"}, cursor={"row": last})


def sources(run: object) -> dict[str, str]:
    return {signal.name: signal.source for signal in run.reader.status("run").signals.values()}  # type: ignore[attr-defined]


def test_a_restart_rewrites_no_point_of_a_long_run(store: Store) -> None:
    """200 steps: more than are kept, so the first windows of what is read back would be short."""
    with bench(store) as run:
        run.commit(TRAINER, growing(1, 200), T0 + 6100)
        run.advance(T0 + 6100)
        before, told = points(store, "trainer_step_seconds"), sources(run)
    with bench(store) as run:
        run.advance(T0 + 6100)
        assert points(store, "trainer_step_seconds") == before
        assert sources(run) == told and told["trainer_step_seconds"] == "trainer"
        run.commit(TRAINER, growing(201, 201), T0 + 6100)
        run.advance(T0 + 6105)
        assert run.value("trainer_step_seconds") == 10.0 + 196.5
        assert sources(run)["trainer_step_seconds"] == "trainer"


def test_a_late_step_does_not_move_now_back(store: Store) -> None:
    with bench(store) as run:
        every = growing(1, 8)
        late = tuple(sample for sample in every.samples if sample.step == 4)
        rest = tuple(sample for sample in every.samples if sample.step != 4)
        run.commit(TRAINER, Reading(samples=rest, cursor={}), T0 + 250)
        run.advance(T0 + 250)
        assert run.value("policy_version") == 8.0
        run.commit(TRAINER, Reading(samples=late, cursor={}), T0 + 255)
        run.advance(T0 + 255)
        assert run.value("policy_version") == 8.0
        assert store.runs.incarnation("run") == 0


def test_an_old_file_read_again_changes_nothing(store: Store) -> None:
    with bench(store) as run:
        run.commit(TRAINER, growing(1, 100), T0 + 3100)
        run.advance(T0 + 3100)
        before, cursor = points(store, "trainer_step_seconds"), run.reader.signals.cursor("run")
        run.commit(TRAINER, growing(1, 100), T0 + 3105)
        run.advance(T0 + 3105)
        assert points(store, "trainer_step_seconds") == before
        assert "trainer_step_seconds" not in run.reader.signals.since("run", cursor).points


def test_the_history_of_a_finished_run_was_lived_while_it_ran(store: Store) -> None:
    """A queue that fell silent after 100 s of 1,000 is a line of 100 s, also when the end is known beforehand."""
    gauges = [Sample("queue_samples", 500.0, ts=T0 + 5 * n) for n in range(21)]
    alive = [Sample("in_flight_rollouts", 7.0, (("state", "generating"),), T0 + 5 * n) for n in range(201)]
    facts: dict[str, str | float] = {"framework": "prime_rl", "mode": "async", "lifecycle": "finished"}
    with bench(store) as run:
        rows = steps(1, 33)
        run.commit(TRAINER, Reading(samples=(*rows.samples, *gauges, *alive), facts=facts, cursor={}), T0 + 5000)
        run.advance(T0 + 5000)
        assert run.reader.status("run").lifecycle == "finished"
        assert run.state("queue_samples_now") == "unknown", "it was silent long before the end"
        assert run.value('in_flight_rollouts{state="generating"}') == 7.0, "it stands as of the end"
    known = [ts for ts, _, state in points(store, "queue_samples_now") if state == PointState.VALUE]
    assert (min(known) / 1000 - T0, max(known) / 1000 - T0) == (0.0, 115.0)  # 100 s and the 15 s it is carried


def test_age_is_the_datas_not_the_ticks(store: Store) -> None:
    with bench(store) as run:
        run.commit(ENGINE, page(7, 100), T0)
        run.advance(T0 + 10)
        ages = {signal.name: signal.age_seconds for signal in run.reader.status("run").signals.values()}
        assert ages['generator_requests_now{state="running"}'] == 10.0


def test_nothing_is_fresh_a_day_after_the_collector_died(store: Store) -> None:
    with bench(store) as run:
        run.commit(ENGINE, page(7, 100), T0)
        run.advance(T0)
        run.clock.set(T0 + 86_400)
        status = run.reader.status("run")
        assert [
            s.name for s in status.signals.values() if s.value is not None and not s.signal.endswith("_total")
        ] == []
        assert [(target.up, "no collector follows" in target.error) for target in status.trust] == [(False, True)]


def test_a_silent_engine_keeps_the_base_of_its_counters_over_our_restart(store: Store) -> None:
    """Down for 10 min, Rollscope restarted meanwhile, the engine went on counting: its tokens are counted."""
    with bench(store) as run:
        run.commit(ENGINE, page(1, 1000), T0)
        run.commit(TRAINER, steps(1, 30), T0)
        run.advance(T0 + 600)
    with bench(store) as run:
        run.advance(T0 + 900)
        run.commit(ENGINE, page(1, 1600), T0 + 905)
        run.advance(T0 + 910)
        assert run.value("generator_generated_tokens_total") == 600.0


def test_a_long_history_that_was_never_derived_is_read_back_in_one_pass(store: Store) -> None:
    """A search per step would be quadratic: minutes before the first tick of a run of 20,000."""
    with bench(store) as run:
        run.commit_only(TRAINER, growing(1, 3_000), T0 + 700_000)
    compared = 0
    original = StepRow.__eq__

    def count(self: StepRow, other: object) -> bool:
        nonlocal compared
        compared += 1
        return original(self, other)

    StepRow.__eq__ = count  # type: ignore[method-assign]
    try:
        with bench(store) as run:
            assert len(run.driver._steps) == 3_000
    finally:
        StepRow.__eq__ = original  # type: ignore[method-assign]
    assert compared == 0
