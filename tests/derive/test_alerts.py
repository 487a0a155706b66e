"""Alerts in the driver: evaluated at every tick, told at live ones, in the tick's own transaction. Both databases."""

import json
import tomllib

import pytest

from collectors.model import Reading, Sample
from server.alerts.model import Silence
from server.alerts.settings import AlertSettings
from server.config.alerts import build
from server.lib.errors import Problems
from server.lib.matchers import Matcher
from server.store import Store
from tests.driven_run import ENGINE, ON_SQLITE, T0, TRAINER, Bench, bench, page, steps

HOOK = '[[receiver]]\nname="hook"\nkind="webhook"\nurl="http://127.0.0.1:1/x"\n'
WAITING = (
    HOOK
    + """
default_pack = false
[[rule]]
name = "QueueLong"
metric = "generator_requests_waiting"
above = 10
recover = 5
for = "10s"
annotations.summary = "$value at $label_target"
"""
)


def settings(toml: str) -> AlertSettings:
    problems = Problems()
    # The keys of the table itself must come before its subtables.
    lines = toml.splitlines()
    top = [line for line in lines if line.startswith("default_pack")]
    found = build(tomllib.loads("\n".join(top + [line for line in lines if line not in top])), {}, problems)
    assert problems.messages == []
    return found


def told(store: Store) -> list[tuple[str, list[str]]]:
    """(status, alerts) of every notification, in order."""
    found = []
    for row in reversed(store.alerts.deliveries("run", 100)):
        payload = json.loads(row.payload)
        found.append((payload["status"], [a["labels"]["alertname"] + " " + a["status"] for a in payload["alerts"]]))
    return found


def states(run: Bench) -> list[tuple[str, str]]:
    return [(alert.name, alert.state) for alert in run.reader.alerts.active("run")]


def wait(run: Bench, at: float, waiting: float, *, live: bool = True) -> None:
    run.commit(ENGINE, page(1, 10 * at, waiting=waiting), T0 + at)
    run.advance(T0 + at, live=live)


def running(run: Bench) -> None:
    """A step makes the run one that is judged."""
    run.commit(TRAINER, steps(1, 3, seconds=1.0, start=T0 - 10), T0 - 5)


def test_from_pending_to_firing_to_told_to_resolved(store: Store) -> None:
    with bench(store, settings(WAITING)) as run:
        running(run)
        wait(run, 0, 50)
        assert states(run) == [("QueueLong", "pending")]
        wait(run, 5, 50)
        assert told(store) == []
        wait(run, 10, 60)
        assert states(run) == [("QueueLong", "firing")]
        (alert,) = run.reader.alerts.active("run")
        assert (alert.value, alert.active_at, alert.fired_at) == (60.0, T0, T0 + 10)
        assert alert.annotations["summary"] == "60 requests at engine-0"
        assert alert.labels == {
            "alertname": "QueueLong", "class": "tuning", "run": "run", "severity": "warning", "target": "engine-0",
        }  # fmt: skip
        wait(run, 15, 6)  # below the level, above recovery
        assert states(run) == [("QueueLong", "firing")]
        wait(run, 20, 5)
        assert states(run) == []
        assert told(store) == [("firing", ["QueueLong firing"])]
        for at in range(25, 75, 5):
            wait(run, at, 0)
        assert told(store)[1:] == [("resolved", ["QueueLong resolved"])]
        (past,) = run.reader.alerts.history("run")
        assert (past.resolved_at, past.reason) == (T0 + 20, "the condition is no longer true")


def test_replayed_history_notifies_nobody_and_what_still_fires_at_the_present_does(store: Store) -> None:
    with bench(store, settings(WAITING)) as run:
        running(run)
        for at in range(0, 60, 5):  # fires and resolves in history
            run.commit(ENGINE, page(1, at, waiting=50 if at < 30 else 0), T0 + at)
        for at in range(60, 200, 5):  # fires, and still does
            run.commit(ENGINE, page(1, at, waiting=50), T0 + at)
        run.advance(T0 + 195)
        assert told(store) == []
        assert states(run) == [("QueueLong", "firing")]
        assert run.reader.alerts.active("run")[0].replayed
        wait(run, 200, 50)
        assert told(store) == [("firing", ["QueueLong firing"])]
        assert len(run.reader.alerts.history("run")) == 1


def test_a_failed_scrape_resolves_nothing(store: Store) -> None:
    with bench(store, settings(WAITING)) as run:
        running(run)
        for at in (0, 5, 10):
            wait(run, at, 50)
        for at in range(15, 400, 5):
            run.fail(ENGINE, "unreachable", "no route", T0 + at)
            run.advance(T0 + at, live=True)
        (alert,) = run.reader.alerts.active("run")
        assert (alert.state, alert.held, alert.reason) == ("firing", True, "target engine-0 does not answer")
        assert told(store) == [("firing", ["QueueLong firing"])]
        wait(run, 400, 0)
        assert states(run) == []


def test_a_restart_at_any_tick_changes_nothing(store: Store) -> None:
    """A new driver before each tick: the same alert, the same two notifications."""
    values = [0, 50, 50, 50, 50, 6, 6, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0]
    for at, value in enumerate(values):
        with bench(store, settings(WAITING)) as run:
            if at == 0:
                running(run)
            wait(run, 5 * at, value)
    with bench(store, settings(WAITING)) as run:
        (past,) = run.reader.alerts.history("run")
    assert (past.active_at, past.fired_at, past.resolved_at) == (T0 + 5, T0 + 15, T0 + 35)
    assert told(store) == [("firing", ["QueueLong firing"]), ("resolved", ["QueueLong resolved"])]


def test_a_silence_keeps_quiet_and_its_end_tells(store: Store) -> None:
    quiet = (Matcher("alertname", "=", "QueueLong"),)
    with bench(store, settings(WAITING)) as run:
        running(run)
        store.alerts.put_silence(Silence("s1", quiet, T0, T0 + 60, "alice", "planned", T0))
        for at in range(0, 60, 5):
            wait(run, at, 50)
        (alert,) = run.reader.alerts.active("run")
        assert alert.state == "firing" and alert.muted.startswith("silenced by alice until")
        assert told(store) == []
        for at in range(60, 180, 5):
            wait(run, at, 50)
        assert run.reader.alerts.active("run")[0].muted == ""
        assert told(store) == [("firing", ["QueueLong firing"])]


def test_liveness_inhibits_tuning(store: Store) -> None:
    rules = (
        WAITING
        + '[[rule]]\nname="Down"\nsignal="target_up"\nequals=0\nclass="liveness"\nmatch=[\'target="trainer"\']\n'
    )
    with bench(store, settings(rules)) as run:
        running(run)
        for at in range(0, 30, 5):
            run.fail(TRAINER, "missing", "gone", T0 + at)
            wait(run, at, 50)
        found = {alert.name: alert.muted for alert in run.reader.alerts.active("run")}
        assert found == {"Down": "", "QueueLong": "inhibited by Down (liveness)"}
        assert told(store) == [("firing", ["Down firing"])]


@pytest.mark.parametrize("lifecycle", ["finished", "crashed"])
def test_a_run_that_is_over_pages_nobody_and_resolves_what_fired(store: Store, lifecycle: str) -> None:
    with bench(store, settings(WAITING)) as run:
        running(run)
        for at in (0, 5, 10):
            wait(run, at, 50)
        over = Reading(facts={"lifecycle": lifecycle}, cursor={})
        run.commit(TRAINER, over, T0 + 12)
        for at in range(15, 120, 5):
            wait(run, at, 50)
        assert states(run) == []
        assert run.reader.alerts.history("run")[0].reason == f"the run is {lifecycle}"
        assert told(store) == [("firing", ["QueueLong firing"]), ("resolved", ["QueueLong resolved"])]


def test_before_the_first_step_nothing_is_judged(store: Store) -> None:
    """Loading and compiling take 10 to 40 minutes: an engine that is not there yet is no alert."""
    with bench(store, settings(HOOK)) as run:
        for at in range(0, 300, 5):
            run.fail(TRAINER, "missing", "not yet", T0 + at)
            run.commit(ENGINE, page(0, 0, waiting=50), T0 + at)
            run.advance(T0 + at, live=True)
        assert states(run) == [] and told(store) == []


def test_engines_without_a_trainer_are_judged_once_they_generate(store: Store) -> None:
    with bench(store, settings(WAITING)) as run:
        for at, tokens in ((0, 0.0), (5, 0.0)):
            run.commit(ENGINE, page(1, tokens, waiting=50), T0 + at)
            run.advance(T0 + at, live=True)
        assert states(run) == [] and run.reader.status("run").lifecycle == "starting"
        for at in (10, 15, 20):
            wait(run, at, 50)
        assert states(run) == [("QueueLong", "firing")] and run.reader.status("run").lifecycle == "running"


def test_the_pack_sees_a_target_go_down_and_names_it(store: Store) -> None:
    with bench(store, settings(HOOK)) as run:
        running(run)
        wait(run, 0, 0)
        for at in range(5, 75, 5):
            run.fail(ENGINE, "unreachable", "no route", T0 + at)
            run.advance(T0 + at, live=True)
        (alert,) = [alert for alert in run.reader.alerts.active("run") if alert.state == "firing"]
        assert alert.annotations["summary"] == "engine-0 of run run cannot be read: no route"
        assert (alert.fired_at or 0) - alert.active_at == 60.0


def test_the_pack_sees_an_engine_that_answers_and_does_not_work(store: Store) -> None:
    with bench(store, settings(HOOK)) as run:
        running(run)
        for at in range(0, 300, 5):
            run.commit(ENGINE, page(4, min(at, 60.0)), T0 + at)
            run.advance(T0 + at, live=True)
        (alert,) = [alert for alert in run.reader.alerts.active("run") if alert.name == "EngineFrozen"]
        assert (alert.state, alert.labels["target"]) == ("firing", "engine-0")
        # Still since 60 s: a minute makes it frozen, another one is `for`.
        assert (alert.active_at, alert.fired_at) == (T0 + 120, T0 + 180)
        assert run.value('generator_frozen{target="engine-0"}') == 1.0


def test_a_step_signal_that_goes_stale_holds_its_alert(store: Store) -> None:
    rules = 'default_pack=false\n[[rule]]\nname="Starved"\nsignal="trainer_wait_ratio"\nabove=0.3\n'
    with bench(store, settings(rules)) as run:
        run.commit(TRAINER, steps(1, 5, start=T0 - 150), T0)  # waits 40 % of each step
        for at in range(0, 2000, 50):
            wait(run, at, 0)
        (alert,) = run.reader.alerts.active("run")
        assert (alert.value, alert.held, alert.reason) == (0.4, True, "no step for more than 1800 s")


def test_rules_say_what_they_lack(store: Store) -> None:
    with bench(store, settings(HOOK)) as run:
        running(run)
        wait(run, 0, 0)
        why = {rule.name: rule.why for rule in run.reader.alerts.rules(run.reader.status("run"))}
    assert why["TrainerStarved"] == why["TargetDown"] == why["EngineFrozen"] == ""
    assert why["ResponseLengthDrift"].startswith("no source: not reported by prime_rl: ")
    assert why["CostOverTarget"].startswith("no source: no target price")
    assert why["ZeroAdvantageHigh"].startswith("no source: not reported by prime_rl: newer versions log")
    assert why["AllZeroRewards"].startswith("no source: ")


def test_status_and_metrics_carry_the_alert(store: Store) -> None:
    with bench(store, settings(WAITING)) as run:
        running(run)
        for at in (0, 5, 10, 15):
            wait(run, at, 50)
        found = run.reader.status("run").alerts[0]
    assert (found.name, found.state, found.value, found.age_seconds) == ("QueueLong", "firing", 50.0, 5.0)


@ON_SQLITE
def test_a_growing_counter_of_ours_is_judged_within_its_window(store: Store) -> None:
    rules = (
        'default_pack=false\n[[rule]]\nname="Burst"\nsignal="generator_preemptions_total"\n'
        'increase_over="60s"\nabove=5\n'
    )
    total, fired = 0.0, []
    for n in range(36):
        total += 2.0 if 20 <= n < 24 else 0.0
        with bench(store, settings(rules)) as run:  # a restart at every tick: the past is in the store
            if n == 0:
                running(run)
            reading = Reading(samples=(Sample("generator_preemptions_total", total),), samples_scraped=1)
            run.commit(ENGINE, reading, T0 + 5 * n)
            run.advance(T0 + 5 * n, live=True)
            fired.append(bool(states(run)))
    # 8 within 20 s from the 20th page on: over 5 with the third, and 60 s after the second one out of the window.
    assert [n for n, one in enumerate(fired) if one] == list(range(22, 33))
