"""`rollscope alerts test --replay`: stored runs, written by the real ingest, writer and driver."""

import json
import math

import pytest

from server.alerts.settings import AlertSettings
from server.cli import alerts_replay
from server.cli.alerts import ENDED, Track
from server.cli.alerts_replay import Episode, Replay
from server.config.alerts import load_rules
from server.derive.driver import RunDriver, carry_of
from server.lib.errors import ConfigError, Problems
from server.store import Store
from server.store.types import Batch, PointState, SeriesKey
from tests.alerts.support import rule
from tests.driven_run import ENGINE, T0, TRAINER, bench, page, steps
from tests.ingest.test_sandboxes import PRIME, box, listing

RUNNING = rule("Busy", on="generator_requests_running", threshold=40, source="metric", for_seconds=10)
DOWN = rule("Down", on="target_up", threshold=0, op="==", severity="critical", for_seconds=10)


def signal(
    store: Store, name: str, rows: list[tuple[float, float | None]], labels: tuple[tuple[str, str], ...] = ()
) -> None:
    """Points of one signal, seconds after T0; None is unknown."""
    number = store.series.intern("run", [SeriesKey("", name, labels)])[0]
    states = {True: PointState.VALUE, False: PointState.UNKNOWN}
    points = [(number, round((T0 + at) * 1000), value, int(states[value is not None])) for at, value in rows]
    store.write(Batch("run", points=points))


def times(replay: Replay) -> list[tuple[str, float, float, float | None, float | None]]:
    """(rule, active, fired, ended, peak), seconds after T0."""
    return [
        (e.rule, e.active_at - T0, e.fired_at - T0, e.ended_at - T0 if e.ended_at else None, e.peak)
        for e in replay.episodes
    ]


def as_live(store: Store) -> list[tuple[str, float, float, float | None]]:
    """(rule, active, fired, ended) of the alerts that the driver wrote, seconds after T0."""
    return sorted(
        (row.rule, row.active_at - T0, row.fired_at - T0, row.resolved_at - T0 if row.resolved_at else None)
        for row in store.alerts.active("run", 0)
        if row.fired_at
    )


def test_when_how_long_and_how_bad(store: Store) -> None:
    signal(store, "trainer_wait_ratio", [(0, 0.1), (60, 0.5), (90, 0.7), (120, 0.6), (150, 0.2), (240, 0.2)])
    one = rule("Starved", on="trainer_wait_ratio", threshold=0.4, for_seconds=30, severity="critical")
    found = alerts_replay.run(store, "run", [one])
    assert found.episodes == [
        Episode(
            "Starved", "critical", {}, T0 + 60, T0 + 90, T0 + 150, 60, 0.7, "ratio", "the condition is no longer true"
        )
    ]  # fmt: skip
    assert (found.start, found.end, found.every, found.never, found.quiet) == (T0, T0 + 240, 5, {}, [])


def test_still_firing_at_the_end(store: Store) -> None:
    signal(store, "trainer_wait_ratio", [(0, 0.1), (60, 0.5), (303, 0.6)])
    found = alerts_replay.run(store, "run", [rule("Starved", on="trainer_wait_ratio", threshold=0.4)])
    assert times(found) == [("Starved", 60, 60, None, 0.6)]
    assert found.episodes[0].seconds == 243
    assert "for 4m3s (still firing at the end), peak 60%" in alerts_replay.text(found, [rule("Starved")])


def test_unknown_is_held_and_a_label_that_left_has_ended(store: Store) -> None:
    a, b = (("stat", "max"),), (("stat", "mean"),)
    signal(store, "reward", [(0, 2.0), (10, None), (30, 2.0), (40, None)], a)
    signal(store, "reward", [(0, 0.0), (10, None), (30, 0.0), (40, 0.0), (60, 0.0)], b)
    assert times(alerts_replay.run(store, "run", [rule("R", on="reward")])) == [("R", 0, 0, 40, 2.0)]


def test_a_step_signal_of_long_ago_is_not_judged(store: Store) -> None:
    """Held like a gap: the state stays, and the open step's half hour counts for nothing."""
    signal(store, "trainer_wait_ratio", [(0, 0.5), (4000, 0.5), (4060, 0.1)])
    one = rule("Starved", on="trainer_wait_ratio", threshold=0.4, for_seconds=3000, no_data_after=9000)
    assert times(alerts_replay.run(store, "run", [one])) == []
    assert times(alerts_replay.run(store, "run", [rule("S", on="trainer_wait_ratio", threshold=0.4)])) == [
        ("S", 0, 0, 4060, 0.5)
    ]


def test_metrics_and_targets_of_a_driven_run(store: Store) -> None:
    with bench(store) as run:
        for n in range(60):
            now = T0 + 5 * n
            if 30 <= n < 40:
                run.fail(ENGINE, "timeout", "no answer", now)
            else:
                run.commit(ENGINE, page(50.0 + n if 10 <= n < 50 else 3.0, 100.0 * n), now)
            run.advance(now)
    found = alerts_replay.run(store, "run", [RUNNING, DOWN])
    assert times(found) == [
        ("Busy", 50, 60, 250, 99.0),  # held while the engine does not answer, from 165 to 200
        ("Down", 150, 160, 200, 0.0),
    ]
    assert [episode.labels for episode in found.episodes] == [
        {"target": "engine-0"}, {"kind": "vllm", "target": "engine-0"},
    ]  # fmt: skip


def test_increase_of_a_metric(store: Store) -> None:
    with bench(store) as run:
        for n in range(40):
            run.commit(ENGINE, page(3.0, 100.0 * min(n, 20)), T0 + 5 * n)
            run.advance(T0 + 5 * n)
    one = rule("Frozen", on="generator_tokens_total", source="metric", of="increase", window=30.0, op="==", threshold=0)
    assert times(alerts_replay.run(store, "run", [one])) == [("Frozen", 130, 130, None, 0.0)]


def test_running_from_the_first_step_on(store: Store) -> None:
    with bench(store, AlertSettings((RUNNING,))) as run:
        for n in range(60):
            run.commit(ENGINE, page(50.0, 100.0), T0 + 5 * n)  # loaded, but generates nothing
            if n in (18, 24):
                run.commit(TRAINER, steps(n // 6, n // 6), T0 + 5 * n)
            run.advance(T0 + 5 * n)
    found = alerts_replay.run(store, "run", [RUNNING])
    assert found.running_since == T0 + 90
    assert times(found) == [("Busy", 90, 100, None, 50.0)]
    assert sorted(item[:4] for item in times(found)) == as_live(store)


def test_running_as_soon_as_engines_generate_without_a_trainer(store: Store) -> None:
    with bench(store, AlertSettings((RUNNING,))) as run:
        for n in range(60):
            run.commit(ENGINE, page(50.0, 100.0 * max(0, n - 10)), T0 + 5 * n)
            if n == 54:
                run.commit(TRAINER, steps(9, 9), T0 + 270)
            run.advance(T0 + 5 * n)
    found = alerts_replay.run(store, "run", [RUNNING])
    assert times(found) == [("Busy", 55, 65, None, 50.0)]
    assert sorted(item[:4] for item in times(found)) == as_live(store)


def test_totals_of_counters_are_those_of_the_driver(store: Store) -> None:
    """Of an engine's counter, of steps, of sandboxes, and of a signal over time."""
    watched = {
        "Tokens": ("generator_generated_tokens_total", 900.0), "Waited": ("trainer_wait_seconds_total", 15.0),
        "Broken": ("sandbox_failures_total", 1.5), "Idle": ("idle_usd_total", 0.003),
    }  # fmt: skip
    rules = tuple(
        rule(name, on=on, of="increase", window=120.0, threshold=level) for name, (on, level) in watched.items()
    )
    with bench(store, AlertSettings(rules), trainer_gpus=8.0, usd_per_gpu_hour=2.0) as run:
        for n in range(120):
            now = T0 + 5 * n
            if n % 6 == 0 and n:
                run.commit(TRAINER, steps(n // 6, n // 6, wait=20.0 if 30 < n < 60 else 1.0), now)
            run.commit(ENGINE, page(50.0, 100.0 * min(n, 70) if n < 40 else 4000.0), now)
            if n in (20, 40, 60):
                run.commit(PRIME, listing(*(box(k, "failed", cause="image") for k in range(n // 10))), now)
            run.advance(now)
    found = alerts_replay.run(store, "run", rules)
    assert not found.never
    assert {episode.rule for episode in found.episodes} == set(watched)
    assert sorted(item[:4] for item in times(found)) == as_live(store)


def test_an_increase_looks_back_into_the_hour_before(store: Store) -> None:
    number = store.series.intern("run", [SeriesKey("engine-0", "generator_tokens_total")])[0]
    rows = [(number, round((T0 + at) * 1000), 0.0 if at < 3250 else 1000.0) for at in range(0, 7201, 5)]
    store.write(Batch("run", samples=rows))
    one = rule("Burst", on="generator_tokens_total", source="metric", of="increase", window=300.0, threshold=500)
    assert times(alerts_replay.run(store, "run", [one])) == [("Burst", 3250, 3250, 3550, 1000.0)]


def test_a_rule_without_source_is_named(store: Store) -> None:
    signal(store, "reward", [(0, 0.0), (60, 0.0)])
    rules = [
        rule("Quiet", on="reward"), rule("None", on="sandbox_oldest_pending_seconds"),
        rule("Also", on="reward", also=(rule(on="failure_ratio").condition,)),
        rule("Total", on="generator_preemptions_total", of="increase", window=60.0),
        rule("Absent", on="kv_cache_usage_ratio", kind="absence", for_seconds=60),
    ]  # fmt: skip
    found = alerts_replay.run(store, "run", rules)
    assert found.never == {
        "None": "the signal sandbox_oldest_pending_seconds is not stored",
        "Also": "the signal failure_ratio is not stored",
        "Total": "the store has no history of the counter generator_preemptions_total",
    }
    assert found.quiet == ["Quiet"]
    assert times(found) == [("Absent", 0, 60, None, None)]


def test_days_are_replayed_by_the_minute_and_hour_by_hour(store: Store) -> None:
    signal(store, "queue_samples", [(600 * n, float(n % 36 == 35)) for n in range(300)])
    found = alerts_replay.run(store, "run", [rule("Q", on="queue_samples", threshold=0.5)])
    assert found.every == 60
    assert times(found)[:2] == [("Q", 21_000, 21_000, 21_600, 1.0), ("Q", 42_600, 42_600, 43_200, 1.0)]
    assert len(found.episodes) == 8


def test_no_such_run_and_an_empty_one(store: Store) -> None:
    with pytest.raises(ConfigError, match="no run is named 'run'; runs: "):
        alerts_replay.run(store, "run", [])
    store.ensure_run("run")
    with pytest.raises(ConfigError, match="has no data"):
        alerts_replay.run(store, "run", [])


def test_text_and_json(store: Store) -> None:
    signal(store, "trainer_wait_ratio", [(0, 0.1), (60, 0.5), (150, 0.2)])
    rules = [rule("Starved", on="trainer_wait_ratio", threshold=0.4, for_seconds=30), rule("Never", on="turns")]
    found = alerts_replay.run(store, "run", rules)
    assert alerts_replay.text(found, rules).splitlines() == [
        "run run: 2027-01-15 08:00:00 UTC to 2027-01-15 08:02:30 UTC (2m30s), every 5s",
        "  running from 2027-01-15 08:00:00 UTC on",
        "would have fired:",
        "  2027-01-15 08:01:30 UTC  Starved{} (warning) for 1m, peak 50%",
        "      trainer_wait_ratio > 0.4 for 30s; true since 2027-01-15 08:01:00 UTC; "
        "ended: the condition is no longer true",
        "could not fire:",
        "  Never: the signal turns is not stored",
    ]
    assert json.loads(alerts_replay.dump(found))["episodes"][0]["fired_at"] == T0 + 90


def test_the_default_pack_replays_as_the_driver_saw_it(store: Store) -> None:
    """Live and replayed, the same rules on the same run begin and end at the same ticks."""
    rules = load_rules({}, Problems())
    with bench(store) as run:
        carry = carry_of({"engine-0": (ENGINE, 5.0), "trainer": (TRAINER, 5.0)})
        run.driver = RunDriver(store, run._submit, "run", carry, alerts=AlertSettings(rules))
        for n in range(120):
            now = T0 + 5 * n
            if n % 6 == 0 and n:
                run.commit(TRAINER, steps(n // 6, n // 6, wait=20.0), now)
            if 40 <= n < 70:
                run.fail(ENGINE, "timeout", "no answer", now)
            else:
                run.commit(ENGINE, page(50.0, 100.0 * n), now)
            run.advance(now)
    found = alerts_replay.run(store, "run", rules)
    assert {episode.rule for episode in found.episodes} >= {"TrainerStarved", "TargetDown"}
    live = [row for row in store.alerts.active("run", 0) if row.fired_at]
    assert sorted((row.rule, row.active_at, row.fired_at, row.resolved_at, row.reason) for row in live) == sorted(
        (e.rule, e.active_at, e.fired_at, e.ended_at, e.reason) for e in found.episodes
    )


def test_a_track_knows_its_past() -> None:
    track = Track(())
    for at, value in ((0, 1.0), (5, 3.0), (10, 1.0), (15, math.nan), (20, 4.0), (25, ENDED)):
        track.add(at, value)
    track.add(25, 9.0)
    assert [track.at(t) for t in (-1, 0, 7, 12, 24, 25, 99)] == [None, 1.0, 3.0, 1.0, 4.0, None, None]
    assert math.isnan(track.at(15) or 0)
    assert [track.increase(20, window) for window in (20, 15, 10, 5)] == [6.0, 4.0, 3.0, 3.0]
