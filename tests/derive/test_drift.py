"""Drift and forecast in the driver: the pack's rules fire with the numbers, charts get marks, restarts change none."""

import pytest

from collectors.model import Event, Reading, Sample
from server.alerts.settings import AlertSettings
from server.push import records as push_records
from server.store import Store
from tests.derive.test_alerts import HOOK, settings
from tests.driven_run import ENGINE, T0, TRAINER, Bench, bench, page
from tests.signals.test_drift import NEAR, flat

ALWAYS = 2**53


def rows(values: list[float], first: int = 1) -> Reading:
    """A row a minute."""
    samples = []
    for number, value in enumerate(values, first):
        for metric, one in (("trainer_step_seconds", 60.0), ("response_tokens_mean", value)):
            samples.append(Sample(metric, one, ts=T0 + 60 * number, step=number, axis="trainer"))
    facts: dict[str, str | float] = {"framework": "prime_rl", "mode": "async"}
    return Reading(samples=tuple(samples), facts=facts, cursor={"row": first + len(values)})


def marks(store: Store) -> list[Event]:
    return [event for _, event in store.runs.events("run", 0, ALWAYS, ["drift"], 100)]


def pack() -> AlertSettings:
    return settings(HOOK)


def _live(run: Bench, minutes: int, first: int) -> None:
    """An engine is looked at every half a minute, so that there are ticks."""
    for at in range(60 * first, 60 * (first + minutes), 30):
        run.commit(ENGINE, page(8, 1000.0 * at), T0 + at)
        run.advance(T0 + at)


def test_response_length_drift_fires_with_its_factor_and_marks_the_charts(store: Store) -> None:
    with bench(store, pack()) as run:
        run.commit(TRAINER, rows([*flat(63), *flat(21, 40.0)]), T0)
        run.advance(T0 + 60 * 84)
        _live(run, 12, 84)
        (alert,) = [one for one in run.reader.alerts.active("run") if one.name == "ResponseLengthDrift"]
        assert (alert.state, alert.value) == ("firing", pytest.approx(2.0, rel=0.02))
        assert alert.annotations["summary"].startswith("Responses of run run are 2 times as long")
        assert run.why("response_length_drift_ratio").startswith("x2 since step ")
        since = run.value('drift_since_step{of="response_length"}')
        (mark,) = marks(store)
    assert since is not None and abs(since - 64) <= NEAR
    assert (mark.ts, mark.key) == (T0 + 60 * since, f"drift:response_length::{since:.0f}")
    assert mark.detail == f"response length x2 from step {since:.0f} on"


def test_a_flat_run_fires_and_marks_nothing(store: Store) -> None:
    with bench(store, pack()) as run:
        run.commit(TRAINER, rows(flat(84)), T0)
        run.advance(T0 + 60 * 84)
        _live(run, 12, 84)
        assert "ResponseLengthDrift" not in {one.name for one in run.reader.alerts.active("run")}
        assert run.value("response_length_drift_ratio") == pytest.approx(1.0, abs=0.01)
    assert marks(store) == []


@pytest.mark.parametrize("died", [20, 36, 66, 75])
def test_a_restart_at_any_step_changes_no_number_and_marks_nothing_twice(store: Store, died: int) -> None:
    values = [*flat(63), *flat(30, 40.0)]
    with bench(store) as run:
        run.commit(TRAINER, rows(values[:died]), T0)
        run.advance(T0 + 60 * died)
    with bench(store) as run:
        run.commit(TRAINER, rows(values[died:], died + 1), T0)
        run.advance(T0 + 60 * 93)
        found = run.value("response_length_drift_ratio"), run.why("response_length_drift_ratio")
        since = run.value('drift_since_step{of="response_length"}')
    # By the one that never died: 2.000 over a baseline of 19.97.
    assert found == (
        pytest.approx(40 / 19.967, rel=1e-3),
        f"x2 since step {since:.0f}, against 19.97 over steps 6 to 35",
    )
    assert len(marks(store)) == 1


def test_change_points_are_found_here_and_nobody_else_tells_them() -> None:
    told = push_records.parse(b'{"kind": "drift", "key": "mine"}', "events", T0)
    ((line, why),) = told.refused
    assert line == 1 and why.startswith("kind must be one of weights_published, ") and "drift" not in why


def cache(first: int, last: int) -> Reading:
    """40 sequences in a cache of a million tokens, every 10 s: of 10,000 tokens, and one more every second."""
    samples = []
    for at in range(first, last, 10):
        for metric, value in (
            ("generator_requests_running", 40.0),
            ("kv_cache_capacity_tokens", 1_000_000.0),
            ("kv_cache_usage_ratio", 40 * (10_000 + at) / 1_000_000),
        ):
            samples.append(Sample(metric, value, ts=T0 + at))
    return Reading(samples=tuple(samples), samples_scraped=3)


def ahead(run: Bench) -> list[tuple[str, float | None, str]]:
    found = [one for one in run.reader.alerts.active("run") if one.name == "KVCeilingAhead"]
    return [(one.state, one.value, one.labels["bound"]) for one in found]


def test_the_kv_ceiling_ahead_fires_with_its_seconds(store: Store) -> None:
    name = 'kv_concurrency_limit_forecast_seconds{bound="mid"}'
    with bench(store, pack(), max_in_flight=50.0) as run:
        run.commit(TRAINER, rows([20.0] * 100), T0)
        run.commit(ENGINE, cache(0, 6000), T0)
        run.advance(T0 + 4500)
        # 14,500 tokens now, and 14,350 in the mean of five minutes; 5,650 more until 20,000, of which the cache holds
        # the 50 that are configured.
        assert run.value(name) == pytest.approx(5650, rel=0.02)
        assert [state for state, _, _ in ahead(run)] == ["pending"]
        run.advance(T0 + 5990)
        assert run.value(name) == pytest.approx(4160, rel=0.02)
        assert ahead(run) == [("firing", run.value(name), "mid")]
