"""One run told by several logs at once (TensorBoard, trackio, wandb, ...): every step counts once. Both databases."""

import pytest

from collectors.model import Reading, Sample, Target
from server.store import Store
from tests.driven_run import T0, Bench, bench

LOGS = [Target(name, "run", "trl", "trainer", path="/nowhere") for name in ("trackio", "tb", "wandb", "state")]
TRACKIO, TB, WANDB, _ = LOGS


def rows(*numbers: int, late: float = 0.0, start: float = T0, **facts: str | float) -> Reading:
    """Steps of 1 s each with 1,000 trained tokens and a queue of 7; ``late``: how much later this log dates them."""
    samples = []
    for number in numbers:
        for metric, value in (("trainer_step_seconds", 1.0), ("trained_tokens", 1000.0), ("queue_samples", 7.0)):
            samples.append(Sample(metric, value, ts=start + number + late, step=number, axis="trainer"))
    return Reading(samples=tuple(samples), facts={"framework": "trl", "mode": "async", **facts}, cursor={})


def restarts(run: Bench) -> int:
    return sum(event.kind == "restart" for _, event in run.store.runs.events("run", 0, 1 << 60))


def trained(run: Bench) -> float | None:
    return run.value("trained_tokens_total")


def test_four_histories_count_once(store: Store) -> None:
    with bench(store) as run:
        for log, late in zip(LOGS, (0.6, 0.0, 0.1, 40.0), strict=True):
            run.commit(log, rows(*range(1, 91), late=late), T0 + 200)
            run.advance(T0 + 200)
        assert (trained(run), restarts(run)) == (90_000, 0)
        assert len(run.store.steps.newest("run", axis="trainer")) == 90


def test_logs_that_lag_behind_each_other_are_no_restarts(store: Store) -> None:
    """trackio dates a row by its flush: step 9 there is later than step 10 in TensorBoard."""
    with bench(store) as run:
        for number in range(1, 31):
            run.commit(TB, rows(number), T0 + number)
            if number > 1:
                run.commit(TRACKIO, rows(number - 1, late=1.2), T0 + number)
            if number % 15 == 0:
                run.commit(WANDB, rows(*range(number - 14, number + 1), late=0.1), T0 + number)
            run.advance(T0 + number)
        assert (restarts(run), run.store.runs.incarnation("run")) == (0, 0)
        assert trained(run) == 30_000


def test_a_lagging_log_is_no_restart_after_one_of_ours(store: Store) -> None:
    with bench(store) as run:
        run.commit(TB, rows(*range(1, 11)), T0 + 11)
        run.advance(T0 + 11)
    with bench(store) as run:  # where each log stood is not known any more
        run.commit(TRACKIO, rows(9, late=1.2), T0 + 12)
        run.commit(TB, rows(11), T0 + 12)
        run.advance(T0 + 12)
        assert (restarts(run), trained(run)) == (0, 11_000)


@pytest.mark.parametrize("order", [LOGS[:3], LOGS[2::-1]])
def test_a_resume_is_one_restart_in_all_of_them(store: Store, order: list[Target]) -> None:
    """Steps 6 to 10 are done again from T0 + 500 on; each log tells it in its own time, one the old life's end last."""
    with bench(store) as run:
        for log in order:
            run.commit(log, rows(*range(1, 9), late=0.2 * LOGS.index(log)), T0 + 20)
        run.commit(order[0], rows(9, 10), T0 + 21)
        run.advance(T0 + 21)
        for log in order:
            late = 0.2 * LOGS.index(log)
            if log is not order[0]:
                run.commit(log, rows(9, 10, late=late), T0 + 540)
            run.commit(log, rows(6, 7, late=late, start=T0 + 500), T0 + 540)
        run.advance(T0 + 540)
        assert (restarts(run), run.store.runs.incarnation("run")) == (1, 1)
        assert [row.step for row in run.store.steps.newest("run", axis="trainer", incarnation=0)] == list(range(1, 11))
        assert [row.step for row in run.store.steps.newest("run", axis="trainer", incarnation=1)] == [6, 7]
        assert trained(run) == 12_000


def test_a_queue_told_by_every_log_is_one_queue(store: Store) -> None:
    with bench(store) as run:
        for log in LOGS:
            run.commit(log, rows(*range(1, 11)), T0 + 11)
        run.advance(T0 + 11)
        assert run.value("queue_samples_now") == 7.0


def test_a_queue_goes_on_in_another_log_when_its_own_falls_silent(store: Store) -> None:
    with bench(store) as run:
        run.commit(TRACKIO, rows(*range(1, 11)), T0 + 11)
        run.commit(TB, rows(*range(1, 60)), T0 + 60)
        run.advance(T0 + 60)
        assert run.value("queue_samples_now") == 7.0


def test_a_log_that_is_read_later_does_not_revive_a_finished_run(store: Store) -> None:
    end = {"lifecycle": "finished", "lifecycle_why": "the closing row"}
    with bench(store) as run:
        run.commit(TRACKIO, rows(*range(1, 11), **end), T0 + 11)
        run.advance(T0 + 11)
        run.commit(WANDB, rows(*range(1, 11), late=0.1), T0 + 25)
        run.advance(T0 + 25)
        assert run.reader.status("run").lifecycle == "finished"
        run.commit(WANDB, rows(11), T0 + 40)
        run.advance(T0 + 40)
        assert run.reader.status("run").lifecycle == "running"
