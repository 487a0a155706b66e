"""All runs in a few reads, and series over steps: over a real store of either kind, with numbers by hand."""

import json
from typing import Any

from server.lib.clock import ScaledClock
from server.query import Reader
from server.query.steps import joined
from server.signals.model import TargetState
from server.store import Store
from server.store.types import Batch, Bucket, LatestRow, PointState, SeriesKey, StepStamp, StepTime

NOW = 1_790_000_000.0
MS = round(NOW * 1000)
WAIT, STEP = SeriesKey("", "trainer_wait_ratio"), SeriesKey("", "trainer_step_seconds")
TRUST = SeriesKey("", "trusted_targets_ratio")


def reader(store: Store) -> Reader:
    return Reader(store, ScaledClock(NOW))


def verdict(outcome: str, as_of: float) -> tuple[int, str]:
    found = {"outcome": outcome, "cause": None, "confidence": 0.8, "since": as_of - 60, "summary": "Words"}
    return 1, json.dumps({"as_of": as_of, "verdict": found})


def put(store: Store, run: str, lifecycle: str, wait: float | None, age: float, **more: Any) -> None:
    """A run whose wait was measured ``age`` seconds ago, and that our own tick has told of just now."""
    ids = store.series.intern(run, [WAIT, STEP, TRUST])
    at = MS - round(age * 1000)
    state = PointState.VALUE if wait is not None else PointState.UNKNOWN
    store.write(
        Batch(
            run,
            latest=[
                LatestRow(ids[0], at, wait, state, "" if wait is not None else "log the wait"),
                LatestRow(ids[1], at - 1000, 40.0, PointState.VALUE),
                LatestRow(ids[2], MS, 1.0, PointState.VALUE),
            ],
            run_fields={"lifecycle": lifecycle, "framework": "slime", "mode": "async", "watermark": MS},
            **more,
        )
    )


def test_every_run_with_what_holds_it_back(store: Store) -> None:
    up = TargetState("a", "vllm", "generator", True, NOW - 2)
    down = TargetState("b", "vllm", "generator", False, NOW - 2, error="refused", error_kind="unreachable")
    silent = TargetState("c", "vllm", "generator", True, NOW - 80)  # a minute and three intervals are 75 s
    gone = TargetState("d", "vllm", "generator", False, NOW - 2, error_kind="gone")
    steps = [StepStamp("trainer", 0, n, MS - 400_000 + 40_000 * n) for n in range(9)]
    steps += [StepStamp("trainer", 1, n, MS - 40_000 + 10_000 * n) for n in (4, 5)] + [StepStamp("orch", 0, 99, MS)]
    put(store, "b", "running", 0.62, 10, steps=steps, targets=[up, down, silent, gone],
        states={"verdict": verdict("trainer_bound", NOW - 5)})  # fmt: skip
    put(store, "a", "finished", 0.2, 90_000, states={"verdict": verdict("balanced", NOW - 90_000)})
    put(store, "c", "running", 0.3, 4000, states={"verdict": verdict("balanced", NOW - 4000)})
    store.ensure_run("d")
    found = {one.info.name: one for one in reader(store).runs.now()}
    assert list(found) == ["a", "b", "c", "d"]
    b = found["b"]
    assert b.verdict is not None and (b.verdict.outcome, b.verdict.as_of) == ("trainer_bound", NOW - 5)
    # Of the newer life, though the older one came further; another counter's steps are none of the trainer's.
    assert (b.step, b.up, b.targets, b.newest) == (5, 1, 3, NOW - 10)
    now = {one.name: (one.value, one.state) for one in b.signals}
    assert now == {"trainer_wait_ratio": (0.62, "critical"), "trainer_step_seconds": (40.0, "ok")}
    # What is over stays as it was; what nobody collects is not said to be so now.
    a, c = found["a"], found["c"]
    assert a.verdict is not None and a.verdict.outcome == "balanced" and a.newest == NOW - 90_000
    assert c.verdict is not None and c.verdict.outcome == "unknown"
    assert (c.signals[0].value, c.signals[0].why) == (None, "no step for 67 min; the last value was 30%")
    d = found["d"]
    assert (d.verdict, d.signals, d.step, d.newest, d.up, d.targets) == (None, (), None, None, 0, 0)
    assert d.info.lifecycle == "starting"
    # Each tick has just written values derived for all of them.
    assert [run.name for run in reader(store).runs.all()] == ["b", "c", "a", "d"]


def test_without_new_data_only_a_stall_describes_the_present(store: Store) -> None:
    """A dead engine's totals are computed each tick: they made the run look live, with a limiter of an hour ago."""
    up = TargetState("a", "vllm", "generator", True, NOW - 2)
    for run, outcome in (("bound", "reward_bound"), ("stuck", "stalled")):
        put(store, run, "running", 0.57, 4000, targets=[up], states={"verdict": verdict(outcome, NOW - 5)})
        [number] = store.series.intern(run, [SeriesKey("", "generator_generated_tokens_total")])
        store.write(Batch(run, latest=[LatestRow(number, MS, 9e6, PointState.VALUE)]))
    for run, shown, last in (("bound", "unknown", "reward_bound"), ("stuck", "stalled", None)):
        status = reader(store).status(run)
        assert (status.state.name, status.state.since) == ("stale", NOW - 4000)
        assert status.verdict is not None and status.verdict.outcome == shown
        assert (status.verdict.last.outcome if status.verdict.last else None) == last


def test_the_list_says_what_the_status_says(store: Store) -> None:
    put(store, "r", "running", 0.62, 10, states={"verdict": verdict("trainer_bound", NOW - 5)})
    one = reader(store)
    listed, status = one.runs.now()[0], one.status("r")
    assert listed.verdict == status.verdict
    assert len(listed.signals) == 2 and all(one in status.signals.values() for one in listed.signals)


def test_an_empty_store_has_no_runs(store: Store) -> None:
    assert reader(store).runs.now() == []


def points(store: Store, key: SeriesKey, rows: list[tuple[float, float | None]], **more: Any) -> None:
    [number] = store.series.intern("r", [key])
    made = [(number, MS + round(1000 * ts), v, 0 if v is not None else 1) for ts, v in rows]
    store.write(Batch("r", points=made, **more))


def test_series_over_steps(store: Store) -> None:
    steps = [StepStamp("trainer", 0, n, MS + 40_000 * n) for n in (1, 2, 3)]
    points(store, WAIT, [(40, 0.1), (80, 0.2), (120, 0.3)], steps=steps)
    # While step 2 is under way (40 to 80 s) 10 and 20 were measured; after step 3 the fourth is.
    points(store, TRUST, [(45, 10.0), (60, 20.0), (100, None), (130, 50.0)])
    found = reader(store).steps.series(
        "r", ["trainer_wait_ratio", "trusted_targets_ratio", "reward"], NOW, NOW + 200, 200
    )
    wait, ticks, none = found
    assert (wait.step, wait.mean, wait.unit) == ((1, 2, 3), (0.1, 0.2, 0.3), "ratio")
    assert (ticks.step, ticks.mean, ticks.low, ticks.high) == ((2, 4), (15.0, 50.0), (10.0, 50.0), (20.0, 50.0))
    assert (none.step, none.mean) == ((), ())


def test_more_steps_than_points_are_as_many_as_asked_for(store: Store) -> None:
    steps = [StepStamp("trainer", 0, n, MS + 1000 * n) for n in range(400)]
    points(store, WAIT, [(float(n), float(n)) for n in range(400)], steps=steps)
    [found] = reader(store).steps.series("r", ["trainer_wait_ratio"], NOW, NOW + 400, 40)
    assert len(found.step) == 40
    # Ten of each: 0 to 9 have the mean 4.5.
    assert (found.step[:2], found.mean[:2], found.high[:2]) == ((0, 10), (4.5, 14.5), (9.0, 19.0))


def test_without_steps_there_is_nothing_over_them(store: Store) -> None:
    points(store, WAIT, [(40, 0.1)])
    assert reader(store).steps.series("r", ["trainer_wait_ratio"], NOW, NOW + 200)[0].step == ()


def bucket(ts: int, value: float) -> Bucket:
    return Bucket(ts, 1, value, value, value, value)


def test_a_step_trained_twice_has_the_newer_lifes_value() -> None:
    # Steps 1 to 3 end at 10, 20, 30; the next life goes on from step 2, at 40.
    marks = [StepTime(10, 1, 0), StepTime(20, 2, 0), StepTime(30, 3, 0), StepTime(40, 2, 1), StepTime(50, 3, 1)]
    found = joined([bucket(ts, float(ts)) for ts in (10, 20, 30, 40, 50)], marks)
    assert {step: total for step, (_, total, _, _) in found.items()} == {1: 10.0, 2: 40.0, 3: 50.0}
    # A late point of the first life does not take the place of the second's.
    again = joined([bucket(40, 4.0), bucket(20, 2.0)], marks)
    assert again == {2: (1, 4.0, 4.0, 4.0)}
