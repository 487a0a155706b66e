"""Windows kept up step by step, and answers said only where they are new, are what asking everything anew gives."""

import asyncio
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from collectors.model import Labels, Target
from server import signals
from server.derive import driver
from server.derive.deriver import Deriver
from server.derive.results import SignalResults
from server.lib.clock import ScaledClock
from server.scrape.run_loop import LoopServices, RunLoop
from server.signals import Signal
from server.signals import window as signals_window
from server.signals.aggregates import row_limit
from server.store import Store, Writer, migrate
from server.store.samples import Points
from server.store.types import Batch, PointState
from server.targets.model import Attached
from tests import recorded
from tests.derive.naive import NaiveAnswers, NaiveBook, NaiveDeriver, words_of

NOW = 1_800_000_000.0
KEPT = 6  # small, so that steps leave the windows in short examples
AXES = ("trainer", "orchestrator")
KEYS: tuple[tuple[str, Labels], ...] = (
    ("trainer_step_seconds", ()),
    ("trainer_wait_seconds", ()),
    ("trainer_weight_sync_seconds", ()),
    ("reward_mean", ()),
    ("reward_std", ()),
    ("policy_version", ()),
    ("staleness_versions_mean", ()),
    ("trainer_mfu_ratio", (("basis", "wall"),)),
    ("trainer_mfu_ratio", (("basis", "busy"),)),
    ("groups_zero_advantage_ratio", ()),
)

# (axis, steps forward, seconds forward, a new life, which keys, a value, which log)
STEPS = st.lists(
    st.tuples(
        st.sampled_from([0, 0, 0, 1]),
        st.sampled_from([1, 1, 1, 1, 1, 0, 2, -1, -4]),
        st.sampled_from([30.0, 30.0, 0.5, 0.0, -40.0, 4000.0]),
        st.sampled_from([0] * 15 + [1]),
        st.integers(0, 2 ** len(KEYS) - 1) | st.just(2 ** len(KEYS) - 1),
        st.sampled_from([0.0, 0.1, 1.0, 7.3, 1e6]),
        st.sampled_from(["a", "a", "b"]),
    ),
    max_size=30,
)


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    folder: Path = tmp_path_factory.mktemp("incremental")
    migrate(f"sqlite:///{folder}/s.db")
    opened = Store.open(f"sqlite:///{folder}/s.db")
    yield opened
    opened.close()


@pytest.fixture(autouse=True, scope="module")
def few_steps() -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(signals_window, "KEPT_STEPS", KEPT)
        yield


@settings(max_examples=60, deadline=None)
@example(
    steps=[
        (0, 1, 30.0, 0, 1023, 0.0, "a"),
        (0, 1, 30.0, 0, 0, 0.0, "a"),
        (0, 1, 0.5, 0, 0, 0.0, "a"),
        (0, 1, -40.0, 0, 1023, 0.0, "a"),
        (0, 1, 0.5, 0, 1023, 0.0, "a"),
        (0, 1, 0.5, 0, 1023, 0.0, "a"),
        (0, 1, 30.0, 0, 1023, 0.0, "a"),
    ],
    mode="async",
)
@given(steps=STEPS, mode=st.sampled_from(["async", "sync_colocated"]))
def test_incremental_answers_are_the_naive_ones(store: Store, steps: list, mode: str) -> None:
    items = [item for item in signals.load() if isinstance(item, Signal)]
    fast, naive = Deriver(items, lambda _: 15.0), NaiveDeriver(items, lambda _: 15.0)
    naive.book = NaiveBook(KEPT)
    fast.mode = naive.mode = mode
    answers, batch = SignalResults(store, "run", {item.name: item for item in items}, fast), Batch(run="run")
    expected = NaiveAnswers(words_of(naive))
    numbers, ts, life = {axis: 5 for axis in AXES}, NOW, 0
    for at, forward, seconds, reborn, mask, value, target in steps:
        axis = AXES[at]
        numbers[axis], ts, life = max(0, numbers[axis] + forward), ts + seconds, life + reborn
        values = {key: value + bit for bit, key in enumerate(KEYS) if mask >> bit & 1}
        said = fast.step(axis, life, numbers[axis], ts, target, values)
        wanted = naive.step(axis, life, numbers[axis], ts, target, values)
        assert said == wanted
        assert row_limit(fast.book) == row_limit(naive.book)
        answers.write(said, batch)
        for emission in wanted:
            expected.write(emission)
    ids = {answers.series(name, labels): (name, labels) for name, of in answers.known.items() for labels in of}
    assert [(*ids[n], stamp, v, PointState(state)) for n, stamp, v, state in batch.points] == expected.points
    answers.save(batch)
    assert len(batch.latest) == len({row.series for row in batch.latest})
    known = {key: at for name, of in answers.known.items() for labels, at in of.items() for key in [(name, labels)]}
    assert {key: at.state for key, at in known.items()} == {key: at[0] for key, at in expected.newest.items()}
    newest = {key: (at[1], at[2]) for key, at in expected.newest.items()}
    assert {ids[row.series]: (row.ts, row.value) for row in batch.latest} == newest
    assert {key: (now.ts, now.value) for name, of in answers.now().items() for labels, now in of.items()
            for key in [(name, labels)]} == {key: (ts / 1000, v) for key, (ts, v) in newest.items()}  # fmt: skip


def test_a_window_grows_by_what_comes_late() -> None:
    """A key that comes for a step which is there already counts, as does a step between two others."""
    book = signals_window.StepBook()
    one, two = ("reward_mean", ()), ("reward_std", ())
    for number in (1, 2, 4):
        book.put("trainer", 0, number, 10.0 * number, {one: 1.0})
    assert [step.number for step in book.rows(one, count=10)] == [1, 2, 4]
    assert book.rows(one, two, count=10) == []
    book.put("trainer", 0, 2, 99.0, {two: 5.0})
    assert [step.number for step in book.rows(one, two, count=10)] == [2]
    book.put("trainer", 0, 3, 30.0, {one: 1.0})
    assert [step.number for step in book.rows(one, count=3)] == [2, 3, 4]
    assert [step.number for step in book.rows(one, count=3, until=35.0)] == [1, 2, 3]
    book.put("trainer", 1, 1, 50.0, {one: 1.0})
    assert [step.number for step in book.rows(one, count=3)] == [1]


@pytest.mark.parametrize(
    ("collector", "run"), [("verl", "sync_jsonl"), ("slime", "async"), ("trl", "async"), ("prime_rl", "driven")]
)
def test_recorded_runs_are_answered_as_by_the_naive(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, collector: str, run: str
) -> None:
    """Every stored point of a whole run, tailed, ingested and derived by the run's own loop."""
    monkeypatch.setattr(signals_window, "KEPT_STEPS", 64)
    fast = _stored(tmp_path / "fast.db", collector, run)
    monkeypatch.setattr(driver, "Deriver", _naive)
    assert fast == _stored(tmp_path / "naive.db", collector, run)
    assert sum(map(len, fast.values())) > 100


def _naive(*args: Any) -> Deriver:
    deriver = NaiveDeriver(*args)
    deriver.book = NaiveBook(64)
    return deriver


def _stored(database: Path, collector: str, run: str) -> dict[tuple[str, Labels], Points]:
    migrate(f"sqlite:///{database}")
    store = Store.open(f"sqlite:///{database}")
    writer = Writer(store)
    target = Target("log", "run", collector, "trainer", path=str(recorded.TESTDATA / collector / run))
    asyncio.run(_read(RunLoop(Attached("run", (target,)), LoopServices(store, writer, ScaledClock(NOW)))))
    writer.close()
    ids = {number: (key.metric, key.labels) for number, key in store.series.listed("run") if not key.target}
    found = store.samples.points(list(ids), 0, 1 << 60)
    store.close()
    return {ids[number]: points for number, points in found.items()}


async def _read(loop: RunLoop) -> None:
    await loop.step(NOW, patient=True)
    await loop.close()
