"""Evidence has a time: our own pauses and restarts are nobody's fault, and resolve nothing. Both databases."""

import pytest

from collectors.model import Reading, Sample, Target
from server.derive.driver import RunDriver, carry_of
from server.lib.secret import Secret
from server.push.heartbeats import HeartbeatSettings, HeartbeatWatch
from server.store import Store
from tests.derive.test_alerts import HOOK, WAITING, running, settings, states, told, wait
from tests.driven_run import ENGINE, ON_SQLITE, T0, TRAINER, Bench, bench, page, steps

E1 = Target("engine-1", "run", "vllm", "generator", url="http://127.0.0.1:2")


def firing(run: Bench) -> list[str]:
    return [alert.name for alert in run.reader.alerts.active("run") if alert.state == "firing"]


def test_one_failed_scrape_after_a_pause_of_ours_is_not_minutes_of_outage(store: Store) -> None:
    with bench(store, settings(HOOK)) as run:
        run.commit(TRAINER, steps(1, 10, wait=1, start=T0 - 300), T0)
        for at in range(0, 60, 5):
            wait(run, at, 0)
        run.fail(ENGINE, "timeout", "x", T0 + 240)
        run.commit(TRAINER, steps(11, 16, wait=1, start=T0 - 300), T0 + 240)
        run.advance(T0 + 240, live=True)
        (alert,) = [alert for alert in run.reader.alerts.active("run") if alert.name == "TargetDown"]
        assert (alert.state, alert.active_at) == ("pending", T0 + 240)
        assert told(store) == []


def test_history_that_is_read_after_hours_invents_no_outage(store: Store) -> None:
    with bench(store, settings(HOOK)) as run:
        run.fail(ENGINE, "unreachable", "x", T0 + 7200)
        run.commit(TRAINER, steps(1, 240, wait=1), T0 + 7200)
        run.advance(T0 + 7200, live=True)
        assert firing(run) == [] and told(store) == []
        assert run.reader.alerts.history("run") == []


@ON_SQLITE
def test_a_trainer_that_logs_every_ten_steps_does_not_stall_between_rows(store: Store) -> None:
    with bench(store, settings(HOOK)) as run:
        for row in range(1, 4):
            at = row * 3000
            sample = Sample("trainer_step_seconds", 300.0, ts=T0 + at, step=10 * row, axis="trainer")
            run.commit(
                TRAINER, Reading(samples=(sample,), facts={"mode": "sync_colocated"}, cursor={"row": row}), T0 + at
            )
            for now in range(at, at + 3000, 60):
                run.commit(TRAINER, Reading(cursor={"row": row}), T0 + now)
                wait(run, now, 0)
        assert [alert.name for alert in run.reader.alerts.history("run")] == []
        assert firing(run) == []


def test_our_downtime_is_not_the_trainers_silence(store: Store) -> None:
    beats = (HeartbeatSettings("beat", Secret("t" * 32), 1800.0),)
    with bench(store) as run:
        store.alerts.beat("run", "beat", round((T0 + 1) * 1000))
        ((batch, arrivals),) = HeartbeatWatch(store, "run", beats, T0 + 2400).look(run.ingest, T0 + 2400)
        assert arrivals.health[0].up and batch.targets[0].error == ""
        ((_, arrivals),) = HeartbeatWatch(store, "run", beats, T0 + 2400).look(run.ingest, T0 + 4205)
        assert not arrivals.health[0].up


def test_a_run_that_only_beats_is_judged(store: Store) -> None:
    """Engines, and a trainer of which nothing can be read but its heartbeat."""
    beats = (HeartbeatSettings("beat", Secret("t" * 32), 1800.0),)
    with bench(store, settings(WAITING)) as run:
        watch = HeartbeatWatch(store, "run", beats, T0)
        store.alerts.beat("run", "beat", round(T0 * 1000))
        for at in range(0, 30, 5):
            for batch, arrivals in watch.look(run.ingest, T0 + at):
                run.writer.submit(batch)
                run.driver.feed(arrivals)
            wait(run, at, 50)
        assert firing(run) == ["QueueLong"]


def test_what_generates_beside_an_unreadable_trainer_is_judged(store: Store) -> None:
    with bench(store, settings(WAITING)) as run:
        for at in range(0, 30, 5):
            run.fail(TRAINER, "missing", "not there", T0 + at)
            wait(run, at, 50)
        assert firing(run) == ["QueueLong"]


@ON_SQLITE
def test_what_generates_for_an_hour_is_no_start_any_more(store: Store) -> None:
    with bench(store, settings(WAITING)) as run:
        run.commit(TRAINER, Reading(facts={"framework": "x"}, cursor={}), T0)
        for at in range(0, 3600, 60):
            run.commit(TRAINER, Reading(cursor={}), T0 + at)
            wait(run, at, 50)
        assert run.reader.status("run").lifecycle == "starting"
        for at in range(3600, 3800, 5):
            wait(run, at, 50)
        assert firing(run) == ["QueueLong"]


def two(run: Bench) -> None:
    """A driver that knows both engines."""
    targets = {one.name: (one, 5.0) for one in (ENGINE, E1, TRAINER)}
    alerts = run.reader.alerts._settings
    run.driver = RunDriver(store=run.store, submit=run._submit, run="run", carry=carry_of(targets), alerts=alerts)


@ON_SQLITE
@pytest.mark.parametrize("restart", [pytest.param(False, marks=pytest.mark.long), True])
def test_an_alert_of_a_dead_target_holds_for_hours_and_over_restarts(store: Store, restart: bool) -> None:
    with bench(store, settings(WAITING)) as run:
        two(run)
        running(run)
        for at in range(0, 15, 5):
            run.commit(E1, page(1, at), T0 + at)
            wait(run, at, 50)
        for at in (*range(15, 900, 15), *range(900, 4500, 60)):
            if restart and at == 600:
                two(run)
            run.fail(ENGINE, "unreachable", "x", T0 + at)
            run.commit(E1, page(1, at), T0 + at)
            run.advance(T0 + at, live=True)
        assert firing(run) == ["QueueLong"]
        assert told(store) == [("firing", ["QueueLong firing"])]


def test_an_engine_one_scrape_older_than_the_others_survives_our_restart(store: Store) -> None:
    with bench(store, settings(WAITING)) as run:
        two(run)
        running(run)
        for at in range(0, 60, 5):
            run.commit(E1, page(1, at), T0 + at)
            if at < 55:
                run.commit(ENGINE, page(1, at, waiting=50), T0 + at)
            run.advance(T0 + at, live=True)
        two(run)
        for at in range(120, 200, 5):
            run.commit(E1, page(1, at), T0 + at)
            wait(run, at, 50)
        assert firing(run) == ["QueueLong"]
        assert told(store) == [("firing", ["QueueLong firing"])]


def test_a_series_that_its_answering_target_left_out_is_over(store: Store) -> None:
    with bench(store, settings(WAITING)) as run:
        running(run)
        for at in (0, 5, 10):
            wait(run, at, 50)
        for at in range(15, 60, 5):
            run.commit(
                ENGINE, Reading(samples=(Sample("generator_tokens_total", float(at)),), samples_scraped=1), T0 + at
            )
            run.advance(T0 + at, live=True)
        assert states(run) == []


def test_a_run_that_is_resumed_has_the_time_of_a_new_start(store: Store) -> None:
    with bench(store, settings(HOOK)) as run:
        run.commit(TRAINER, steps(1, 10, wait=1), T0 + 300)
        run.advance(T0 + 300, live=True)
        run.commit(TRAINER, Reading(facts={"lifecycle": "finished"}, cursor={}), T0 + 305)
        run.advance(T0 + 305, live=True)
        later = T0 + 36_000
        row = Sample("orchestrator_step_seconds", 30.0, ts=later, step=11, axis="orchestrator")
        for at in range(0, 600, 60):
            run.commit(TRAINER, Reading(samples=(row,), cursor={}), later + at)
            run.advance(later + at, live=True)
        assert run.reader.status("run").lifecycle == "running"
        assert "RunStalled" not in dict(states(run))
        assert (run.value("trainer_stall_ratio") or 0) < 0.5


def test_a_finished_run_is_not_revived_by_its_engines(store: Store) -> None:
    with bench(store, settings(HOOK)) as run:
        broken = tuple(Sample("gradient_nonfinite", 1.0, ts=T0 + n, step=n, axis="trainer") for n in range(1, 5))
        run.commit(TRAINER, Reading(samples=broken, facts={"lifecycle": "finished"}, cursor={}), T0 + 10)
        wait(run, 10, 0)
        before = len(run.reader.alerts.history("run"))
        for at in (60, 65, 120, 125, 300):  # the loop is late: a later page waits while earlier ticks are caught up
            run.commit(ENGINE, page(1, at), T0 + at)
        run.advance(T0 + 300, live=True)
        assert len(run.reader.alerts.history("run")) == before and states(run) == []


def test_the_end_of_a_run_outlives_a_crash_between_the_two_commits(store: Store) -> None:
    with bench(store, settings(HOOK)) as run:
        running(run)
        wait(run, 0, 0)
        run.commit_only(TRAINER, Reading(facts={"lifecycle": "finished"}, cursor={}), T0 + 5)
    with bench(store, settings(HOOK)) as run:
        wait(run, 10, 0)
        assert run.reader.status("run").lifecycle == "finished"
        run.commit(TRAINER, steps(4, 6, seconds=1.0, start=T0 + 10), T0 + 20)
        wait(run, 20, 0)
        assert run.reader.status("run").lifecycle == "running"
    with bench(store, settings(HOOK)) as run:
        wait(run, 25, 0)
        assert run.reader.status("run").lifecycle == "running"


def test_an_old_run_that_was_killed_pages_nobody(store: Store) -> None:
    with bench(store, settings(HOOK)) as run:
        run.commit(TRAINER, steps(1, 240, wait=1), T0 + 7 * 86_400)
        for at in range(0, 300, 5):
            run.commit(TRAINER, Reading(cursor={}), T0 + 7 * 86_400 + at)
            run.advance(T0 + 7 * 86_400 + at, live=True)
        assert run.reader.status("run").lifecycle == "finished"
        assert told(store) == [] and states(run) == []
        run.commit(TRAINER, steps(241, 243, wait=1, start=T0 + 7 * 86_400 - 7000), T0 + 7 * 86_400 + 400)
        run.advance(T0 + 7 * 86_400 + 400, live=True)
        assert run.reader.status("run").lifecycle == "running"


def test_alerts_of_a_run_that_is_configured_no_more_are_over(store: Store) -> None:
    with bench(store, settings(WAITING)) as run:
        running(run)
        for at in (0, 5, 10):
            wait(run, at, 50)
        assert store.alerts.abandon(["run"], 1) == 0
        assert firing(run) == ["QueueLong"]
        assert store.alerts.abandon(["other"], round((T0 + 60) * 1000)) == 1
        (past,) = run.reader.alerts.history("run")
        assert (past.resolved_at, past.reason) == (T0 + 60, "the run is no longer configured")
        assert states(run) == []
