"""What is written is read back; writing it again changes nothing; all or nothing."""

import threading
from dataclasses import replace

import pytest
from msgspec import structs
from sqlalchemy.exc import DBAPIError

from collectors.model import Event, Histogram
from server.signals.model import TargetState
from server.store import Store
from server.store.types import Batch, HistogramDelta, LatestRow, PointState, SeriesKey, StepRow, StepStamp
from tests.store.helpers import FOREVER, SCRAPED, SIGNAL, T0, one, put

STEP = SeriesKey("trainer", "step_seconds", (), "trainer")
TARGET = TargetState(
    "trainer", "prime_rl", "trainer", False, T0 / 1000, T0 / 1000 - 5, "refused", "unreachable", 0.5, 3, 1, 5.0,
    {"new/key": 2},
)  # fmt: skip
NEWEST = LatestRow(2, T0, None, PointState.UNKNOWN, "log rollouts", "trainer")


def everything(store: Store) -> Batch:
    scraped, signal, step, hist = store.series.intern("run", [SCRAPED, SIGNAL, STEP, SeriesKey("engine-0", "latency")])
    return Batch(
        "run",
        samples=[(scraped, T0, 1.0), (scraped, T0 + 5_000, 2.0)],
        steps=[StepStamp("trainer", 1, 7, T0 + 60_000)],
        step_values=[(step, 1, 7, 30.5)],
        histograms=[
            (hist, T0, Histogram("latency", (1.0,), (5.0, 6.0), 9.0)),
            (hist, T0 + 5_000, Histogram("latency", (1.0,), (6.0, 9.0), 19.0)),
        ],
        events=[(T0, Event("restart", "r1", detail="again"))],
        facts={"model": "m", "group_size": 8.0},
        targets=[TARGET],
        cursors={"trainer": '{"offset": 10}'},
        points=[(signal, T0, 4.0, PointState.VALUE), (signal, T0 + 5_000, None, PointState.UNKNOWN)],
        latest=[LatestRow(signal, T0, None, PointState.UNKNOWN, "log rollouts", "trainer")],
        states={"drift": (2, "[1]")},
        counters={signal: 12.0},
        run_fields={"framework": "prime_rl", "mode": "async", "lifecycle": "running", "watermark": T0, "generation": 3},
    )


def seen(store: Store) -> dict[str, object]:
    """All that can be read, but for seqs."""
    run = store.runs.get("run")
    assert run is not None and (run.generation, run.seq) == store.runs.cursor("run")
    return {
        "run": replace(run, seq=0),
        "targets": store.runs.targets("run"),
        "cursors": store.runs.cursors("run"),
        "states": store.runs.states("run"),
        "counters": store.runs.counters("run"),
        "latest": store.runs.latest("run"),
        "steps": store.steps.newest("run"),
        "events": store.runs.events("run", 0, FOREVER),
        "samples": store.samples.after("run", 0),
        "points": store.samples.points([number for number, _ in store.series.listed("run")], 0, FOREVER),
        "histogram": store.histograms.merged("run", SeriesKey("engine-0", "latency"), 0, FOREVER),
        "incarnation": store.runs.incarnation("run"),
    }


def test_everything_comes_back(store: Store) -> None:
    batch = everything(store)
    assert store.write(batch) == 2
    scraped, signal = one(store), one(store, key=SIGNAL)
    got = seen(store)
    run = store.runs.get("run")
    assert run is not None
    assert (run.framework, run.mode, run.lifecycle, run.generation) == ("prime_rl", "async", "running", 3)
    assert (run.watermark, run.first_ts, run.last_ts) == (T0, T0, T0 + 60_000)
    assert store.runs.facts("run") == {"model": "m", "group_size": 8.0}
    assert got["targets"] == [("run", TARGET)] == store.runs.targets()
    assert got["cursors"] == {"trainer": '{"offset": 10}'}
    assert got["states"] == {"drift": (2, "[1]")}
    assert got["counters"] == {signal: 12.0}
    assert store.runs.latest("run") == [(SIGNAL, batch.latest[0])]
    assert got["steps"] == [StepRow("trainer", 1, 7, T0 + 60_000, {("step_seconds", ()): 30.5})]
    assert got["events"] == [(T0, Event("restart", "r1", T0 / 1000, "again"))]
    assert got["samples"] == [(scraped, T0, 1.0), (scraped, T0 + 5_000, 2.0)]
    assert store.samples.points([signal], 0, FOREVER) == {signal: [(T0, 4.0, 0), (T0 + 5_000, None, 1)]}
    assert got["histogram"] == [HistogramDelta((1.0,), (1.0, 2.0), 10.0, 3.0)]
    assert got["incarnation"] == 1
    assert store.samples.points_since("run", 1, 10) == [(2, signal, T0 + 5_000, None, 1)]


def test_a_retry_changes_nothing_but_seqs(store: Store) -> None:
    batch = everything(store)
    store.write(batch)
    before = seen(store)
    assert store.write(batch) == 4
    assert seen(store) == before
    assert [seq for seq, *_ in store.samples.points_since("run", 0, 10)] == [3, 4]


def test_a_failure_leaves_nothing(store: Store) -> None:
    batch = everything(store)
    batch.cursors["bad"] = None  # type: ignore[assignment]
    with pytest.raises(DBAPIError):
        store.write(batch)
    assert store.runs.get("run") is not None  # interned before
    assert store.samples.after("run", 0) == []
    assert store.runs.cursor("run") == (1, 0)
    batch.cursors.pop("bad")
    store.write(batch)
    assert len(store.samples.after("run", 0)) == 2


def test_unknown_run_field_is_an_error(store: Store) -> None:
    with pytest.raises(ValueError, match="colour"):
        store.write(Batch("run", run_fields={"colour": "red"}))


def test_the_first_sample_and_the_first_step_time_win(store: Store) -> None:
    series = one(store)
    store.write(Batch("run", samples=[(series, T0, 5.0), (series, T0, 1.0)], steps=[StepStamp("trainer", 1, 1, T0)]))
    store.write(Batch("run", samples=[(series, T0, 2.0)], steps=[StepStamp("trainer", 1, 1, T0 + 9)]))
    assert store.samples.after("run", 0) == [(series, T0, 5.0)]
    assert [row.ts for row in store.steps.newest("run")] == [T0]


def test_a_later_point_replaces_and_gets_a_new_seq(store: Store) -> None:
    series = one(store, key=SIGNAL)
    store.write(Batch("run", points=[(series, T0, 1.0, 0), (series, T0 + 1, 2.0, 0)]))
    store.write(Batch("run", points=[(series, T0, 3.0, 0), (series, T0, 4.0, 0)]))
    assert store.samples.points([series], 0, FOREVER)[series] == [(T0, 4.0, 0), (T0 + 1, 2.0, 0)]
    assert store.samples.points_since("run", 2, 10) == [(4, series, T0, 4.0, 0)]
    assert store.samples.points_since("run", 0, 1) == [(2, series, T0 + 1, 2.0, 0)]
    assert store.runs.cursor("run") == (1, 4)


@pytest.mark.parametrize("rows", [10, 500])  # both of PostgreSQL's paths
def test_only_finite_numbers_are_stored(store: Store, rows: int) -> None:
    series, signal = one(store), one(store, key=SIGNAL)
    bad = [float("nan"), float("inf"), float("-inf")]
    samples = [(series, T0 + n, bad[n] if n < 3 else 1) for n in range(rows)]
    points = [(signal, T0 + n, bad[n] if n < 3 else 1, 0) for n in range(rows)]
    store.write(Batch("run", samples=samples, points=points))
    assert len(store.samples.after("run", 0)) == rows - 3
    assert [state for _, _, state in store.samples.points([signal], 0, FOREVER)[signal]] == [1, 1, 1] + [0] * (rows - 3)


def test_a_gap_point_carries_no_number(store: Store) -> None:
    signal = one(store, key=SIGNAL)
    store.write(Batch("run", points=[(signal, T0, 7.0, PointState.NOT_APPLICABLE)]))
    assert store.samples.points([signal], 0, FOREVER)[signal] == [(T0, None, 2)]


def test_facts_merge_key_by_key(store: Store) -> None:
    store.write(Batch("run", facts={"model": "a", "group_size": 8.0}))
    store.write(Batch("run", facts={"model": "b"}))
    assert store.runs.facts("run") == {"model": "b", "group_size": 8.0}


def test_ids_are_stable_and_shared(store: Store) -> None:
    other = Store.open(store.url)
    keys = [SeriesKey("t", "m", (("n", str(n)),)) for n in range(100)]
    mine = store.series.intern("run", keys, {"m": "seconds"})
    assert other.series.intern("run", list(reversed(keys))) == list(reversed(mine))
    assert store.series.intern("run", [keys[3], keys[3]]) == [mine[3], mine[3]]
    assert len(set(mine)) == 100
    assert store.series.intern("other", keys[:1]) != mine[:1]
    assert (other.series.unit(mine[0]), other.series.find("run", keys[5])) == ("seconds", mine[5])
    assert other.series.find("run", SeriesKey("t", "m")) is None
    other.close()


def test_two_openers_intern_at_once(store: Store) -> None:
    others = [Store.open(store.url) for _ in range(4)]
    keys = [SeriesKey("t", f"m{n}", (("name", 'a "quote" ü'),)) for n in range(200)]
    answers: dict[int, list[int]] = {}

    def work(n: int) -> None:
        order = keys if n % 2 else list(reversed(keys))
        ids = others[n].series.intern("run", order)
        answers[n] = ids if n % 2 else list(reversed(ids))

    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(answers) == 4
    assert all(ids == answers[0] for ids in answers.values())
    assert dict(store.series.listed("run")) == dict(zip(answers[0], keys, strict=True))
    for other in others:
        other.close()


def test_steps_by_axis_and_incarnation(store: Store) -> None:
    loss = SeriesKey("trainer", "loss", (), "trainer")
    ids = store.series.intern("run", [loss])
    store.write(
        Batch(
            "run",
            steps=[StepStamp("trainer", 1, n, T0 + n) for n in range(10)]
            + [StepStamp("trainer", 2, n, T0 + 100 + n) for n in range(5, 8)]
            + [StepStamp("orchestrator", 2, n, T0 + 200 + n) for n in range(3)],
            step_values=[(ids[0], 2, 6, 0.5), (ids[0], 1, 6, 0.9)],
        )
    )
    assert store.runs.incarnation("run") == 2
    newest = store.steps.newest("run", last=2)
    assert [(row.axis, row.step) for row in newest] == [
        ("trainer", 6),
        ("trainer", 7),
        ("orchestrator", 1),
        ("orchestrator", 2),
    ]
    assert newest[0].values == {("loss", ()): 0.5}
    assert [row.step for row in store.steps.newest("run", "trainer", last=3, before=7, incarnation=1)] == [4, 5, 6]
    store.write(Batch("run", incarnations=[(3, T0 + 300)]))
    assert store.runs.incarnation("run") == 3
    assert store.steps.newest("run") == []
    store.write(Batch("run", incarnations=[(4, T0 + 400)]))
    assert store.runs.incarnation("run") == 4
    assert store.runs.incarnation_starts("run") == [T0, T0 + 105, T0 + 300, T0 + 400]


def test_windows_and_newest_samples(store: Store) -> None:
    series = one(store)
    quiet = one(store, key=SeriesKey("engine-1", "requests_running"))
    put(store, series, [(T0 + n * 300_000, float(n)) for n in range(10)])
    put(store, quiet, [(T0, 42.0)])
    (found,) = store.samples.window("run", ["requests_running"], T0 + 600_000, T0 + 1_500_000)
    assert found == (series, SCRAPED, [(T0 + 600_000, 2.0), (T0 + 900_000, 3.0), (T0 + 1_200_000, 4.0)])
    assert len(list(store.samples.window("run", None, 0))) == 2
    assert list(store.samples.window("run", ["other"], 0)) == []
    newest = {number: (ts, v) for number, _, ts, v in store.samples.newest("run", ["requests_running"])}
    assert newest == {series: (T0 + 2_700_000, 9.0), quiet: (T0, 42.0)}
    assert [row[0] for row in store.samples.newest("run", None, T0 + 1)] == [series]
    assert store.samples.after("run", T0 + 2_400_000) == [(series, T0 + 2_700_000, 9.0)]


def test_what_does_not_exist_reads_as_empty(store: Store) -> None:
    assert (store.runs.all(), store.runs.get("x"), store.steps.newest("x"), store.series.listed("x")) == (
        [],
        None,
        [],
        [],
    )
    assert (store.runs.cursor("x"), store.runs.incarnation("x"), store.runs.facts("x"), store.runs.cursors("x")) == (
        None,
        0,
        {},
        {},
    )
    assert store.samples.buckets(99, 0, FOREVER, 1_000) == []
    assert store.histograms.merged("x", SCRAPED, 0, FOREVER) == []
    store.rollup("x", T0)


def test_strange_text_does_not_stop_its_batch(store: Store) -> None:
    """NUL and half a surrogate pair, as a broken log line brings them."""
    strange = "a\0b\ud800c"
    key = SeriesKey("t", "m", (("path", strange),))
    (series,) = store.series.intern("run", [key])
    target = structs.replace(TARGET, error=strange, unmapped={strange: 1})
    why = LatestRow(series, T0, None, PointState.UNKNOWN, strange)
    store.write(Batch("run", events=[(T0, Event("eval", strange, None, strange))], targets=[target], latest=[why]))
    assert store.series.listed("run") == [(series, key)]
    assert store.runs.targets("run")[0][1].error == "ab?c"
    assert store.runs.latest("run")[0][1].why == "ab?c"
    assert store.runs.events("run", 0, FOREVER)[0][1].key == "ab?c"


def test_two_threads_write_at_once(store: Store) -> None:
    """Seqs are never given twice, and each new histogram layout gets one id."""
    series, signal = store.series.intern("run", [SeriesKey("t", "h"), SIGNAL])

    def work(half: int) -> None:
        for n in range(half, 40, 2):
            reading = Histogram("h", (float(n % 3 + 1),), (1.0, 2.0), 1.0)
            store.write(Batch("run", points=[(signal, T0 + n, 1.0, 0)], histograms=[(series, T0 + n, reading)]))

    threads = [threading.Thread(target=work, args=(half,)) for half in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [seq for seq, *_ in store.samples.points_since("run", 0, 100)] == list(range(1, 41))


def test_when_steps_were_told_is_bounded(store: Store) -> None:
    store.ensure_run("run")
    told = [StepStamp("trainer", 0, n, T0 + 10_000 * n) for n in range(10)]
    # Restarted: 7 and 8 are done once more.
    told += [StepStamp("trainer", 1, n, T0 + 100_000 + 10_000 * (n - 7)) for n in (7, 8)]
    store.write(Batch("run", steps=[*told, StepStamp("orchestrator", 0, 3, T0 + 41_000)]))

    def steps(start: int, end: int, most: int) -> list[tuple[int, int, int]]:
        found = store.steps.times("run", "trainer", T0 + start, T0 + end, most)
        return [(one.ts - T0, one.step, one.incarnation) for one in found]

    # The one before the time leads in.
    assert steps(35_000, 60_000, 100) == [(30_000, 3, 0), (40_000, 4, 0), (50_000, 5, 0), (60_000, 6, 0)]
    assert steps(85_000, 200_000, 100) == [(80_000, 8, 0), (90_000, 9, 0), (100_000, 7, 1), (110_000, 8, 1)]
    # Instants 0, 40 s, 80 s and 120 s after the start: the newest step at each.
    assert steps(5_000, 125_000, 6) == [(0, 0, 0), (40_000, 4, 0), (80_000, 8, 0), (110_000, 8, 1)]
    # From before the first step on: as many as asked for are all told, more are not cut off where they end.
    assert [step for _, step, _ in steps(-5_000, 45_000, 5)] == [0, 1, 2, 3, 4]
    assert steps(-5_000, 115_000, 6) == [(30_000, 3, 0), (70_000, 7, 0), (110_000, 8, 1)]
    assert steps(-90_000, -80_000, 6) == [] and store.steps.times("nobody", "trainer", 0, T0, 6) == []
