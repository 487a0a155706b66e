"""`rollouts_total` and `groups_total` over orders, late exits and restarts: each once, never fewer, never lost."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from itertools import count
from pathlib import Path

import pytest
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

from collectors.model import Consumption, Reading, Rollout, Target
from server.derive.driver import RunDriver
from server.ingest.readings import Ingest
from server.store import Store, Writer, migrate
from tests.driven_run import T0

RECORDS = Target("records", "run", "push", "generator")
Counts = dict[tuple[str, str], float]


class Life:
    """Rollscope from one start to its end, collecting one run."""

    def __init__(self, store: Store, writer: Writer, run: str) -> None:
        self._writer = writer
        self._ingest = Ingest(store, run)
        self._driver = RunDriver(store, self._submit, run, lambda name: 60.0)

    def _submit(self, batch):  # type: ignore[no-untyped-def]
        future = self._writer.submit(batch, block=True)
        self._writer.flush()
        return future

    def take(self, records: Sequence[Rollout], now: float, *, dies: bool = False) -> None:
        """``dies``: after the commit, before anything follows from it."""
        batch, arrivals = self._ingest.reading(RECORDS, Reading(rollouts=tuple(records)), now, 0.01)
        self._submit(batch).result()
        if not dies:
            self._driver.feed(arrivals)

    def advance(self, t: float) -> None:
        self._driver.advance(t)

    def shown(self) -> Counts:
        return {
            (name, value.labels[0][1]): value.value
            for name, value in self._driver.deriver.counter_values()
            if name in ("rollouts_total", "groups_total")
        }


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Store]:
    path: Path = tmp_path_factory.mktemp("counters") / "store.db"
    migrate(f"sqlite:///{path}")
    found = Store.open(f"sqlite:///{path}")
    yield found
    found.close()


@pytest.fixture(scope="module")
def writer(store: Store) -> Iterator[Writer]:
    found = Writer(store, commit_seconds=0.001)
    yield found
    found.close()


def parts() -> list[Rollout]:
    """Six rollouts of three groups, in pieces whose order decides how each is first known to have left."""
    found = []
    for n in range(6):
        t = T0 + 7.0 * n
        name, group = f"r{n}", f"g{n // 2}"
        found += [
            Rollout(name, group, dispatched_at=t, version_start=n),
            Rollout(name, group, finished_at=t + 20, reward=float(n % 2), max_reward=1.0, group_size=2),
            Rollout(name, consumptions=(Consumption(n + 2, t + 40.0),)),
        ]
    found += [Rollout("r0", exit="stale", exited_at=T0 + 80), Rollout("r3", exit="infra_error", exited_at=T0 + 60)]
    found += [Rollout("r4", consumptions=(Consumption(9, T0 + 120),)), Rollout("r5", purpose="eval")]
    return found


PARTS = parts()
_numbers = count()


@st.composite
def told(draw: st.DrawFn) -> list[tuple[list[Rollout], float, str]]:
    """(parts, seconds until the next, what then happens): any order, with deaths before and after derivation."""
    pieces = draw(st.permutations(PARTS))
    cuts = sorted(draw(st.lists(st.integers(0, len(pieces)), max_size=4)))
    batches = [list(pieces[one:other]) for one, other in zip([0, *cuts], [*cuts, len(pieces)], strict=True)]
    return [
        (batch, draw(st.sampled_from([1.0, 30.0])), draw(st.sampled_from(["lives", "dies", "restarts"])))
        for batch in batches
    ]


def played(
    store: Store, writer: Writer, batches: Sequence[tuple[list[Rollout], float, str]], run: str, *, deaths: bool
) -> Counts:
    life, now, least = Life(store, writer, run), T0 + 1, Counts()
    for records, seconds, then in batches:
        life.take(records, now, dies=deaths and then == "dies")
        if not (deaths and then == "dies"):
            life.advance(now)
            assert_grown(least, life.shown())
            least = life.shown()
        if deaths and then != "lives":
            life = Life(store, writer, run)
            assert_grown(least, life.shown())
        now += seconds
    life.advance(T0 + 1000)
    assert_grown(least, life.shown())
    return life.shown()


def assert_grown(before: Counts, after: Counts) -> None:
    assert {key: (value, after.get(key, 0)) for key, value in before.items() if after.get(key, 0) < value} == {}


# An example takes half a second: a failure is shown as it was met.
@settings(max_examples=12, deadline=None, phases=[Phase.generate])
@given(batches=told())
def test_counters_never_fall_and_a_restart_changes_none(
    store: Store, writer: Writer, batches: list[tuple[list[Rollout], float, str]]
) -> None:
    run = f"run-{next(_numbers)}"
    straight = played(store, writer, batches, f"{run}-straight", deaths=False)
    assert played(store, writer, batches, f"{run}-deaths", deaths=True) == straight
    left = sum(n for (name, _), n in straight.items() if name == "rollouts_total")
    # r5 is an evaluation, which whoever told of its use first may not have known.
    assert left in (5, 6)
    stored = {
        series.metric: 0.0 for _, series in store.series.listed(run + "-deaths") if series.metric.endswith("s_total")
    }
    assert {"rollouts_total", "groups_total"} <= stored.keys()


def test_an_exit_that_is_told_after_the_use_counts_no_second_time(store: Store, writer: Writer) -> None:
    """And is what the funnel counts."""
    life = Life(store, writer, "late")
    life.take([Rollout("a", dispatched_at=T0, consumptions=(Consumption(3, T0 + 10),))], T0 + 11)
    life.advance(T0 + 20)
    life.take([Rollout("a", exit="stale", exited_at=T0 + 30)], T0 + 31)
    life.advance(T0 + 40)
    for known in (life, Life(store, writer, "late")):
        assert known.shown() == {("rollouts_total", "trained"): 1.0}
    sums = store.rollouts.sums("late", 0, 1 << 60)
    assert Counter({one.exit: one.rollouts for one in sums}) == {"stale": 1}


def test_what_moves_again_is_counted_once_over_a_restart(store: Store, writer: Writer) -> None:
    """Counted by its first use; its second one was committed and never derived."""
    life = Life(store, writer, "again")
    life.take([Rollout("a", dispatched_at=T0, consumptions=(Consumption(3, T0 + 10),))], T0 + 11)
    life.advance(T0 + 20)
    life.take([Rollout("a", consumptions=(Consumption(4, T0 + 50),))], T0 + 51, dies=True)
    life = Life(store, writer, "again")
    assert life.shown() == {("rollouts_total", "trained"): 1.0}
    life.advance(T0 + 60)
    assert life.shown() == {("rollouts_total", "trained"): 1.0}
    state = json.loads(store.runs.states("again")["rollouts_total"][1])
    assert list(state[0].values()) == [1.0]


def test_what_counted_before_the_first_tick_is_not_forgotten(store: Store, writer: Writer) -> None:
    """Two use a group that is mixed; one then turns out to have failed, and nobody lives to hear of it."""
    life = Life(store, writer, "early")
    life.take([part for part in PARTS if part.rollout_id in ("r2", "r3") and part.exit is None], T0 + 1)
    life.take([Rollout("r3", exit="infra_error", exited_at=T0 + 60)], T0 + 2, dies=True)
    counted = {("groups_total", "mixed"): 1.0, ("rollouts_total", "trained"): 1.0}
    life = Life(store, writer, "early")
    assert life.shown() == counted
    life.advance(T0 + 3)
    assert Life(store, writer, "early").shown() == counted


def test_what_was_committed_and_never_derived_counts_when_it_comes(store: Store, writer: Writer) -> None:
    life = Life(store, writer, "lost")
    life.take([Rollout("a", dispatched_at=T0, exit="stale", exited_at=T0 + 5)], T0 + 6)
    life.advance(T0 + 10)
    life.take([Rollout("b", dispatched_at=T0, exit="stale", exited_at=T0 + 15),
               Rollout("c", dispatched_at=T0, exit="stale", exited_at=T0 + 4)], T0 + 16, dies=True)  # fmt: skip
    life = Life(store, writer, "lost")
    # c left before what was derived already; b is yet to come.
    assert life.shown() == {("rollouts_total", "stale"): 2.0}
    life.advance(T0 + 20)
    assert life.shown() == {("rollouts_total", "stale"): 3.0}


def test_a_group_that_the_runs_size_closes_counts(store: Store, writer: Writer) -> None:
    """None of its members says anything new with that."""
    life = Life(store, writer, "sized")
    made = [Rollout(f"r{n}", "g", dispatched_at=T0, finished_at=T0 + 5, reward=float(n)) for n in range(2)]
    life.take(made, T0 + 6)
    life.advance(T0 + 10)
    assert life.shown() == {}
    life._ingest.facts["group_size"] = 2.0
    life.take(made, T0 + 11)
    life.advance(T0 + 20)
    assert life.shown() == {("groups_total", "mixed"): 1.0}
