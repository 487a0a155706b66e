"""Metrics below the level of signals: the catalogue with the series of a run, and series over time. Both databases."""

from collections.abc import Iterable
from typing import Any

import pytest
from fastapi.testclient import TestClient

from collectors.catalog import METRICS
from collectors.model import Histogram, Labels
from server.api.app import create_api
from server.lib.clock import ScaledClock
from server.query import Reader
from server.store import Store
from server.store.retention import Retention
from server.store.types import Batch, SeriesKey, StepStamp
from tests.store.helpers import DAY, HOUR, MINUTE, T0

RUN = "run"
TOKENS, WAITING, STEP, QUEUE = (
    "generator_tokens_total", "generator_requests_waiting", "trainer_step_seconds", "generator_queue_seconds",
)  # fmt: skip

pytestmark = pytest.mark.filterwarnings("ignore:.*httpx.*:DeprecationWarning")


def put(
    store: Store, metric: str, rows: Iterable[tuple[float, float]], target: str = "vllm-0", labels: Labels = ()
) -> None:
    """Samples of one series as (seconds after T0, value)."""
    [series] = store.series.intern(RUN, [SeriesKey(target, metric, labels)])
    store.write(Batch(RUN, samples=[(series, T0 + round(at * 1000), value) for at, value in rows]))


def put_steps(store: Store, rows: Iterable[tuple[float, int, float]], incarnation: int = 0, metric: str = STEP) -> None:
    """Values of steps as (seconds after T0, step, value)."""
    [series] = store.series.intern(RUN, [SeriesKey("log", metric, (), "trainer")])
    stamps = [StepStamp("trainer", incarnation, step, T0 + round(at * 1000)) for at, step, _ in rows]
    store.write(Batch(RUN, steps=stamps, step_values=[(series, incarnation, step, value) for _, step, value in rows]))


def put_histogram(store: Store, rows: Iterable[tuple[float, float, float]]) -> None:
    """Readings as (seconds after T0, observations so far, their sum so far)."""
    [series] = store.series.intern(RUN, [SeriesKey("vllm-0", QUEUE)])
    for at, count, total in rows:
        reading = Histogram(QUEUE, (1.0,), (count, count), total)
        store.write(Batch(RUN, histograms=[(series, T0 + round(at * 1000), reading)]))


def client(store: Store, at: float = 600.0) -> TestClient:
    reader = Reader(store, ScaledClock(T0 / 1000 + at))
    return TestClient(create_api(reader, version="1", ready=lambda: None))


def test_every_metric_of_the_catalogue_is_listed_with_its_unit(store: Store) -> None:
    found = client(store).get("/api/v1/metrics").json()
    assert [(row["name"], row["unit"], row["kind"]) for row in found] == [
        (name, metric.unit, metric.kind) for name, metric in METRICS.items()
    ]
    assert all(row["help"] and row["series"] == [] and row["newest"] is None for row in found)
    # Only gauges are pure numbers: what is counted or observed has a unit.
    assert {row["kind"] for row in found if not row["unit"]} == {"gauge"}


def test_the_series_of_a_run_with_the_time_of_the_newest_sample(store: Store) -> None:
    put(store, TOKENS, [(0, 1.0), (5, 2.0)], labels=(("engine", "1"),))
    put(store, TOKENS, [(7, 1.0), (1300, 9.0)], "vllm-1")
    put(store, "up", [(7, 1.0)], "vllm-1")
    put_steps(store, [(30, 1, 28.0), (60, 2, 30.0)])
    put_steps(store, [(90, 2, 31.0)], incarnation=1)
    put_histogram(store, [(10, 1, 0.5), (20, 2, 1.5)])
    store.series.intern(RUN, [SeriesKey("", "queue_samples"), SeriesKey("vllm-0", WAITING)])
    found = {row["name"]: row for row in client(store).get("/api/v1/metrics?run=run").json()}
    assert found.keys() == {*METRICS, "up", "scrape_duration_seconds", "scrape_samples_scraped"}
    start = T0 / 1000
    assert (found[TOKENS]["newest"], found[TOKENS]["unlisted"]) == (start + 1300, 0)
    assert found[TOKENS]["series"] == [
        {"name": f'{TOKENS}{{engine="1",target="vllm-0"}}', "target": "vllm-0", "labels": {"engine": "1"}, "axis": "",
         "ts": start + 5},
        {"name": f'{TOKENS}{{target="vllm-1"}}', "target": "vllm-1", "labels": {}, "axis": "", "ts": start + 1300},
    ]  # fmt: skip
    assert [(row["name"], row["ts"]) for row in found[STEP]["series"]] == [
        (f'{STEP}{{axis="trainer",target="log"}}', start + 90)
    ]
    assert (found[QUEUE]["newest"], found["up"]["newest"]) == (start + 20, start + 7)
    # A series that never had a value is listed, without a time.
    assert [(row["target"], row["ts"]) for row in found[WAITING]["series"]] == [("vllm-0", None)]
    assert client(store).get("/api/v1/metrics?run=nope").status_code == 404


def test_the_newest_sample_is_found_when_it_is_packed_or_its_run_ended_long_ago(store: Store) -> None:
    put(store, WAITING, [(at, 1.0) for at in range(0, 600, 5)])
    put(store, TOKENS, [(at, 1.0) for at in range(0, 7200, 5)])
    store.rollup(RUN, T0 + 2 * HOUR + MINUTE)
    while store.chunks.step():
        pass
    # Another run goes on: its slots are not read.
    [other] = store.series.intern("other", [SeriesKey("vllm-9", WAITING)])
    store.write(Batch("other", samples=[(other, T0 + hour * HOUR, 1.0) for hour in range(3, 30)]))
    found = {row["name"]: row for row in client(store).get("/api/v1/metrics?run=run").json()}
    assert (found[WAITING]["newest"], found[TOKENS]["newest"]) == (T0 / 1000 + 595, T0 / 1000 + 7195)


def test_of_many_series_the_first_are_listed_and_the_others_counted(store: Store) -> None:
    keys = [SeriesKey("vllm-0", WAITING, (("engine", f"{n:03}"),)) for n in range(203)]
    ids = store.series.intern(RUN, keys)
    store.write(Batch(RUN, samples=[(series, T0 + n, 0.0) for n, series in enumerate(ids)]))
    found = next(row for row in client(store).get("/api/v1/metrics?run=run").json() if row["name"] == WAITING)
    assert (len(found["series"]), found["unlisted"]) == (200, 3)
    assert found["series"][-1]["labels"] == {"engine": "199"}
    # Of all series, listed or not.
    assert found["newest"] == T0 / 1000 + 0.202


def ask(store: Store, metric: str, start: float, end: float, points: int) -> list[dict[str, Any]]:
    query: dict[str, str | float] = {
        "metric": metric,
        "start": T0 / 1000 + start,
        "end": T0 / 1000 + end,
        "points": points,
    }
    answer = client(store).get("/api/v1/runs/run/series", params=query)
    assert answer.status_code == 200, answer.text
    series: list[dict[str, Any]] = answer.json()["series"]
    return series


def rows(series: dict[str, Any]) -> list[tuple[float, float | None, float | None, float | None]]:
    """(seconds after T0, mean, low, high), rounded."""
    columns = [series[name] for name in ("mean", "low", "high")]
    rounded = [[None if v is None else round(v, 4) for v in column] for column in columns]
    return list(zip([ts - T0 / 1000 for ts in series["ts"]], *rounded, strict=True))


def gap(at: float) -> tuple[float, None, None, None]:
    return at, None, None, None


def flat(at: float, value: float) -> tuple[float, float, float, float]:
    return at, value, value, value


def test_a_counter_is_answered_as_its_rate_between_samples(store: Store) -> None:
    # 40 tokens in 5 s, then 80; at 30 s the engine begins again; from 35 s to 60 s it does not answer.
    put(store, TOKENS, [(0, 100), (5, 140), (10, 180), (15, 220), (20, 300), (25, 380), (30, 20), (35, 60), (60, 100),
                        (65, 140)])  # fmt: skip
    [series] = ask(store, TOKENS, 0, 70, 7)
    assert (series["name"], series["unit"]) == (f'{TOKENS}{{target="vllm-0"}}', "tokens/s")
    # From zero after the reset: 20 in 5 s, then 40 in 5 s. Over 25 s without a sample the rate is unknown.
    assert rows(series) == [flat(0, 8), flat(10, 8), flat(20, 16), (30, 6, 4, 8), gap(40), flat(60, 8)]
    # The first rate of a range is over the time since the sample before it.
    assert rows(ask(store, TOKENS, 10, 20, 1)[0]) == [flat(10, 8)]


def growing(at: int) -> float:
    """8 tokens a second; the process begins again at 1830 s and at 3630 s, after 30 s without an answer."""
    return 8.0 * (at - (0 if at < 1830 else 1830 if at < 3600 else 3630))


def put_two_hours(store: Store) -> None:
    """Samples every 5 s, none from 3600 s to 3630 s, and none for ten minutes from 5400 s on."""
    times = [at for at in range(0, 7200, 5) if not 3600 <= at < 3630 and not 5400 <= at < 6000]
    put(store, TOKENS, [(at, growing(at)) for at in times])
    store.rollup(RUN, T0 + 2 * HOUR + MINUTE)


TWO_HOURS = [
    flat(0, 8), flat(600, 8), flat(1200, 8),
    # The minute of the restart: 240 before it and 200 after it. (240 + 200 + 9 x 480) / 600.
    (1800, 7.9333, 7.3333, 8),
    flat(2400, 8), flat(3000, 8),
    # 200 tokens from 3595 s to 3655 s, then 480 a minute: 4520 / 600.
    (3600, 7.5333, 3.3333, 8),
    flat(4200, 8), flat(4800, 8), gap(5400), flat(6000, 8), flat(6600, 8),
]  # fmt: skip


def test_rates_are_the_same_from_closed_minutes_packed_samples_and_after_samples_are_deleted(store: Store) -> None:
    put_two_hours(store)
    assert rows(ask(store, TOKENS, 0, 7200, 12)[0]) == TWO_HOURS
    narrow = [flat(3580, 8), flat(3590, 8), gap(3600), flat(3630, 8), flat(3640, 8), flat(3650, 8)]
    assert rows(ask(store, TOKENS, 3580, 3660, 8)[0]) == narrow
    while store.chunks.step():
        pass
    assert rows(ask(store, TOKENS, 0, 7200, 12)[0]) == TWO_HOURS
    assert rows(ask(store, TOKENS, 3580, 3660, 8)[0]) == narrow
    store.retention.step(Retention(), T0 + DAY)
    while store.retention.step(Retention(raw=DAY), T0 + 3 * DAY):
        pass
    assert rows(ask(store, TOKENS, 0, 7200, 12)[0]) == TWO_HOURS
    # Of narrower buckets there is one rate a minute, where the minute's last sample was.
    assert rows(ask(store, TOKENS, 4200, 4380, 18)[0]) == [flat(4250, 8), flat(4310, 8), flat(4370, 8)]


def test_a_gauge_is_answered_as_reported_and_breaks_where_it_was_not(store: Store) -> None:
    put(store, WAITING, [(0, 2), (5, 4), (10, 0), (40, 6)])
    [series] = ask(store, WAITING, 0, 50, 5)
    assert series["unit"] == "requests"
    assert rows(series) == [(0, 3, 2, 4), flat(10, 0), gap(20), flat(40, 6)]
    # One that comes every 40 s has no gaps of 40 s.
    put(store, WAITING, [(at, 1) for at in range(0, 400, 40)], "slow")
    assert rows(ask(store, f'{WAITING}{{target="slow"}}', 0, 160, 16)[0]) == [flat(at, 1) for at in range(0, 160, 40)]


def test_a_histogram_is_answered_as_the_mean_of_its_observations(store: Store) -> None:
    # 2 observations of 0.5 s in minute 1, 4 of 2 s in minute 2, one of 3 s in minute 4.
    put_histogram(store, [(10, 0, 0), (70, 2, 1), (130, 6, 9), (250, 7, 12)])
    [series] = ask(store, QUEUE, 0, 300, 5)
    assert series["unit"] == "seconds"
    assert rows(series) == [flat(60, 0.5), flat(120, 2), gap(180), flat(240, 3)]
    # 12 s in 7 observations; the extremes are those of single minutes.
    assert rows(ask(store, QUEUE, 0, 300, 1)[0]) == [(0, 1.7143, 0.5, 3)]


def test_a_value_of_a_step_is_at_the_time_of_its_step(store: Store) -> None:
    put_steps(store, [(30, 1, 28.0), (60, 2, 30.0), (130, 3, 70.0)])
    [series] = ask(store, f'{STEP}{{axis="trainer"}}', 0, 180, 3)
    assert rows(series) == [flat(0, 28), flat(60, 30), flat(120, 70)]
    assert rows(ask(store, STEP, 0, 180, 1)[0]) == [(0, 42.6667, 28, 70)]
    # A counter that was pushed with steps: 300 in 30 s, 1400 in 70 s.
    put_steps(store, [(30, 1, 100), (60, 2, 400), (130, 3, 1800)], metric=TOKENS)
    assert rows(ask(store, TOKENS, 0, 180, 3)[0]) == [flat(60, 10), flat(120, 20)]


def test_which_series_a_selector_matches(store: Store) -> None:
    for target in ("vllm-0", "vllm-1"):
        for engine in ("0", "1"):
            put(store, WAITING, [(0, 1)], target, (("engine", engine),))
    put(store, "up", [(0, 1)])

    def names(*metric: str) -> list[str]:
        answer = client(store, 60).get("/api/v1/runs/run/series", params={"metric": metric}).json()
        return [series["name"].removeprefix(WAITING) for series in answer["series"]]

    one = ['{engine="0",target="vllm-1"}', '{engine="1",target="vllm-1"}']
    assert names(f'{WAITING}{{target="vllm-1"}}') == one
    assert names(f'{WAITING}{{engine="0",target="vllm-1"}}', f'{WAITING}{{target="vllm-1"}}') == one
    assert len(names(WAITING)) == 4 and names("up") == ['up{target="vllm-0"}']
    assert names(f'{WAITING}{{target="absent"}}') == [] and names(TOKENS) == []


OVER_TIME = "a metric is answered over time only: without `since`, and not by step"


@pytest.mark.parametrize(
    ("query", "code", "detail"),
    [
        ({"metric": "nope"}, 404, "no metric named 'nope'; see /api/v1/metrics"),
        ({"metric": "x" * 10_000}, 404, f"no metric named '{'x' * 80}'; see /api/v1/metrics"),
        ({"metric": "kv_cache_usage_ration"}, 404,
         "no metric named 'kv_cache_usage_ration' (did you mean kv_cache_usage_ratio?); see /api/v1/metrics"),
        ({"metric": "trainer_wait_ratio"}, 404,
         "no metric named 'trainer_wait_ratio', but a signal: use signal=; see /api/v1/metrics"),
        ({"signal": "generator_tokens_total{"}, 422,
         """not a series name: 'generator_tokens_total{'; example: kv_cache_usage_ratio{target="engine-0"}"""),
        ({"signal": "generator_requests_waiting"}, 404,
         "no signal named 'generator_requests_waiting', but a metric: use metric=; see /api/v1/runs/run/signals"),
        ({"metric": WAITING, "by": "step"}, 422, OVER_TIME),
        ({"metric": WAITING, "since": "0:0"}, 422, OVER_TIME),
        ({"metric": WAITING, "points": 1}, 422,
         "203 series match; at most 200 per request: select a target or a label"),
        ({"metric": f'{WAITING}{{half="a"}}', "points": 601}, 422,
         "100 series of 601 points; at most 60000 points per request"),
        ({"metric": QUEUE, "start": 0, "end": 6e7 + 60}, 422,
         "1 histograms of 1000001 minutes; at most 1000000 minutes per request"),
    ],
)  # fmt: skip
def test_what_is_refused_with_the_limit(store: Store, query: dict[str, Any], code: int, detail: str) -> None:
    halves = [("half", "a" if n < 100 else "b") for n in range(203)]
    keys = [SeriesKey("vllm-0", WAITING, (("engine", str(n)), half)) for n, half in enumerate(halves)]
    store.series.intern(RUN, [*keys, SeriesKey("vllm-0", QUEUE)])
    answer = client(store).get("/api/v1/runs/run/series", params=query)
    assert (answer.status_code, answer.json()) == (code, {"detail": detail})
