"""Metrics below the level of signals: the catalogue with the series of a run. Both databases."""

from collections.abc import Iterable

import pytest
from fastapi.testclient import TestClient

from collectors.catalog import METRICS
from collectors.model import Histogram, Labels
from server.api.app import create_api
from server.lib.clock import ScaledClock
from server.query import Reader
from server.store import Store
from server.store.types import Batch, SeriesKey, StepStamp
from tests.store.helpers import HOUR, MINUTE, T0

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


def put_steps(store: Store, rows: Iterable[tuple[float, int, float]], incarnation: int = 0) -> None:
    """Durations of steps as (seconds after T0, step, value)."""
    [series] = store.series.intern(RUN, [SeriesKey("log", STEP, (), "trainer")])
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
