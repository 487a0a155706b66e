"""Single engines and steps from a store: newest words, means, rates over resets, who is an engine, columns. Both
databases."""

from collections.abc import Mapping

import pytest
from fastapi import FastAPI
from fastapi.testclient import TestClient

from collectors.model import Labels
from server.api.runs import add_engines
from server.lib.clock import ScaledClock
from server.query.reader import Reader
from server.query.run_state import UnknownRun
from server.signals.model import TargetState
from server.store import Store
from server.store.types import Batch, SeriesKey, StepStamp
from tests.store.helpers import MINUTE, T0

RUN = "run"
# Ten minutes and 20 s after midnight: of the last minutes one is not closed.
NOW = T0 + 10 * MINUTE + 20_000
SCRAPES = range(T0, NOW + 1, 5000)
RANK: Labels = (("engine", "0"),)

pytestmark = pytest.mark.filterwarnings("ignore:.*httpx.*:DeprecationWarning")


def put(store: Store, target: str, metric: str, values: Mapping[int, float], labels: Labels = RANK) -> None:
    series = store.series.intern(RUN, [SeriesKey(target, metric, labels)])[0]
    store.write(
        Batch(RUN, samples=[(series, ts, value) for ts, value in values.items()], run_fields={"watermark": NOW})
    )


def engine(store: Store, name: str, running: float = 60.0, labels: Labels = RANK) -> None:
    put(store, name, "generator_requests_running", dict.fromkeys(SCRAPES, running), labels)
    put(store, name, "kv_cache_usage_ratio", {ts: 0.5 + 0.0005 * i for i, ts in enumerate(SCRAPES)}, labels)


def target(store: Store, name: str, up: bool = True) -> None:
    now = NOW / 1000
    row = TargetState(name, "vllm", "generator", up, now, now if up else now - 900, error="" if up else "refused")
    store.write(Batch(RUN, targets=[row]))


def reader(store: Store, at: int = NOW) -> Reader:
    store.rollup(RUN, NOW)
    return Reader(store, ScaledClock(at / 1000))


def test_newest_words_and_means_of_whole_minutes(store: Store) -> None:
    engine(store, "vllm-0")
    put(store, "vllm-0", "generator_requests_running", {NOW - 2000: 90.0})
    put(store, "vllm-0", "generator_tokens_total", {ts: 40.0 * i for i, ts in enumerate(SCRAPES)})
    put(store, "vllm-0", "generator_paused", {NOW: 1.0}, ())
    found = reader(store).engines.now(RUN)[0]
    assert (found.key, found.target, dict(found.labels)) == ('vllm-0{engine="0"}', "vllm-0", {"engine": "0"})
    assert (found.running, found.mean_running, found.waiting, found.held) == (60.0, 60.0, None, "paused")
    # Minutes 5 to 9: points 60 to 119 of 0.0005 each.
    assert found.mean_kv_ratio == pytest.approx(0.5 + 0.0005 * 89.5) and found.kv_ratio == pytest.approx(0.562)
    # 40 tokens in 5 s.
    assert found.tokens_per_second == pytest.approx(8.0)
    assert found.last_ts == NOW / 1000


def test_the_share_of_the_prefix_cache_is_each_engines_own(store: Store) -> None:
    """60 of 100 tokens in each interval; one that does not count has its own share; one without a lookup has none."""
    for name in ("vllm-0", "vllm-1", "vllm-2"):
        engine(store, name)
    put(store, "vllm-0", "prefix_cache_queries_total", {ts: 100.0 * i for i, ts in enumerate(SCRAPES)})
    put(store, "vllm-0", "prefix_cache_hits_total", {ts: 60.0 * i for i, ts in enumerate(SCRAPES)})
    put(store, "vllm-1", "prefix_cache_hit_ratio", dict.fromkeys(SCRAPES, 0.25))
    for metric in ("prefix_cache_queries_total", "prefix_cache_hits_total"):
        put(store, "vllm-2", metric, dict.fromkeys(SCRAPES, 7.0))
    found = [one.prefix_hit_ratio for one in reader(store).engines.now(RUN)]
    assert found == [pytest.approx(0.6), pytest.approx(0.25), None]


def test_a_counter_that_began_again_counts_from_zero(store: Store) -> None:
    engine(store, "vllm-0")
    # 2 a scrape; in minute 7 the engine is started anew.
    put(store, "vllm-0", "generator_preemptions_total",
        {ts: 2.0 * (i if ts < T0 + 7 * MINUTE else i - 84) for i, ts in enumerate(SCRAPES)})  # fmt: skip
    found = reader(store).engines.now(RUN)[0]
    # Ends of the minutes 5 to 9: 142, 166, 22 (since the start), 46, 70: 24 + 22 + 24 + 24 in 4 minutes.
    assert found.preemptions_per_minute == pytest.approx(94 / 4)


def test_who_is_an_engine_and_what_is_of_several(store: Store) -> None:
    for rank in ("0", "1"):
        put(store, "sglang", "generator_requests_running", {NOW: 30.0}, (("engine", rank),))
    put(store, "sglang", "generator_tokens_total", {ts: float(i) for i, ts in enumerate(SCRAPES)}, ())
    put(store, "sglang", "generator_policy_version", {NOW: 12.0}, ())
    put(store, "trainer", "kv_cache_usage_ratio", {NOW: 0.5}, ())
    found = reader(store).engines.now(RUN)
    assert [one.key for one in found] == ['sglang{engine="0"}', 'sglang{engine="1"}']
    # A version holds for every rank of a page, a sum of all for none.
    assert [(one.version, one.tokens_per_second) for one in found] == [(12.0, None)] * 2


def test_who_is_gone_who_is_down_and_what_was_then(store: Store) -> None:
    engine(store, "here")
    for name in ("left", "dead"):
        put(store, name, "generator_requests_running", {T0 + 60_000: 5.0})
    for name in ("here", "left"):
        target(store, name)
    target(store, "dead", up=False)
    look = reader(store)
    assert [(one.target, one.last_ts is None) for one in look.engines.now(RUN)] == [("dead", True), ("here", False)]
    then = look.engines.now(RUN, (T0 + 90_000) / 1000)
    assert [(one.target, one.running) for one in then] == [("dead", 5.0), ("here", 60.0), ("left", 5.0)]


def test_columns_of_the_heat_map(store: Store) -> None:
    engine(store, "vllm-0")
    put(store, "vllm-0", "generator_preemptions_total",
        {ts: 2.0 * i for i, ts in enumerate(SCRAPES) if not T0 + 3 * MINUTE <= ts < T0 + 4 * MINUTE})  # fmt: skip
    look, key = reader(store), 'vllm-0{engine="0"}'
    start, end = T0 / 1000 + 60, NOW / 1000
    kv = look.engines.cells(RUN, "kv", [key, "nobody"], start, end, 60.0)
    assert list(kv) == [key] and list(kv[key]) == [start + 60 * i for i in range(10)]
    # The second minute: points 12 to 23.
    assert kv[key][start] == pytest.approx(0.5 + 0.0005 * 17.5)
    preempted = look.engines.cells(RUN, "preemptions", [key], start, end, 60.0)[key]
    # 24 a minute; over the minute that is missing nobody knows when it grew, and the last one is not over.
    assert preempted == {start + 60 * i: 24.0 for i in (0, 1, 4, 5, 6, 7, 8)} | {start + 540: 10.0}
    with pytest.raises(ValueError, match="at most 64 engines at once, not 65"):
        look.engines.cells(RUN, "kv", [str(n) for n in range(65)], start, end, 60.0)
    with pytest.raises(UnknownRun):
        look.engines.now("nobody")


def step(store: Store, number: int, life: int = 0, **values: float) -> None:
    axes = {"trainer_samples": "orchestrator"}
    keys = [SeriesKey("trainer", name, (), axes.get(name, "trainer")) for name in values]
    ids = store.series.intern(RUN, keys)
    stamps = [
        StepStamp(axis, life, number, T0 + 40_000 * (number + 100 * life)) for axis in ("trainer", "orchestrator")
    ]
    told = [(series, life, number, value) for series, value in zip(ids, values.values(), strict=True)]
    store.write(Batch(RUN, steps=stamps, step_values=told))


def test_steps_as_they_were_logged(store: Store) -> None:
    for number in range(1, 6):
        step(store, number, trainer_step_seconds=40.0 + number, trainer_samples=256.0, loss_of_somebody=1.0)
    found = reader(store).steps.newest(RUN, 3)
    assert [(one.step, one.ts, one.life) for one in found] == [(n, T0 / 1000 + 40 * n, 0) for n in (3, 4, 5)]
    # What an orchestrator logs of the same step is of it.
    assert dict(found[-1].values) == {"trainer_step_seconds": 45.0, "trainer_samples": 256.0}
    store.write(Batch(RUN, incarnations=[(1, T0 + 4_000_000)]))
    step(store, 4, 1, trainer_step_seconds=50.0)
    assert [(one.step, one.life) for one in reader(store).steps.newest(RUN, 3)] == [(4, 0), (5, 0), (4, 1)]


def test_over_http(store: Store) -> None:
    engine(store, "vllm-0")
    step(store, 1, trainer_step_seconds=40.0)
    api = FastAPI()
    add_engines(api, reader(store))
    ask = TestClient(api).get
    assert ask("/api/v1/runs/run/engines").json()[0]["mean_running"] == 60.0
    history = ask(f"/api/v1/runs/run/engines/history?metric=running&start={T0 / 1000}&end={T0 / 1000 + 120}").json()
    assert history == {'vllm-0{engine="0"}': [[T0 / 1000, 60.0], [T0 / 1000 + 60, 60.0]]}
    assert ask("/api/v1/runs/run/steps?last=5").json()[0]["values"] == {"trainer_step_seconds": 40.0}
    assert ask("/api/v1/runs/run/engines/history?metric=running&start=0&end=1e10").status_code == 422
    assert ask("/api/v1/runs/run/engines/history?metric=nothing&start=0&end=60").status_code == 422
