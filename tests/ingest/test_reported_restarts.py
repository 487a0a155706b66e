"""Restarts that are pushed: each begins one life, in whatever order it is told, and staleness across it is unknown."""

import json
from collections.abc import Sequence
from itertools import permutations

import pytest
from msgspec import structs

from collectors.model import Consumption, Event, Reading, Rollout, Target
from server.ingest.incarnations import Incarnations
from server.ingest.readings import PUSHED
from server.push.inbox import pack_records
from server.rollouts.model import RolloutRow
from server.store import Store
from server.store.types import Push
from tests.driven_run import T0, TRAINER, Bench, bench, steps
from tests.push.test_pushed_targets import lived, waiting

PUSHES = Target(PUSHED, "run", "push", "generator")
RESTART = Event("restart", "deploy-7", T0 + 100)
# Made before the restart and used after it; before it both; after it both.
MADE = {"over": (50.0, 150.0), "old": (50.0, 90.0), "new": (110.0, 150.0)}


def push(run: Bench, *events: Event, rollouts: Sequence[Rollout] = ()) -> None:
    batch, arrivals = run.ingest.records(PUSHES, Reading(rollouts=tuple(rollouts), events=events), T0 + 500)
    run._submit(batch).result()
    run.driver.feed(arrivals)


def made(*names: str) -> list[Rollout]:
    return [Rollout(name, "g", 8, version_start=7, dispatched_at=T0 + MADE[name][0]) for name in names]


def used(*names: str) -> list[Rollout]:
    return [Rollout(name, consumptions=(Consumption(9, T0 + MADE[name][1]),)) for name in names]


def staleness(store: Store) -> dict[str, int | None]:
    return {row.rollout_id: row.staleness for row in _rows(store)}


def _rows(store: Store) -> list[RolloutRow]:
    return store.rollouts.get("run", list(MADE))


def test_a_life_is_as_many_restarts_back() -> None:
    for order in permutations((100.0, 200.0, 300.0)):
        lives = Incarnations(0)
        assert [lives.begin(ts) for ts in order] == [1, 2, 3]
        assert [lives.at(ts) for ts in (50, 100, 250, 300, None)] == [0, 1, 2, 3, 3]
        assert (lives.last, lives.next(100), lives.next(300)) == (300, 200, None)
    # Older restarts than are known: numbers go on from the newest.
    assert [Incarnations(5, [200.0, 100.0]).at(ts) for ts in (50, 150, 250)] == [3, 4, 5]


@pytest.mark.parametrize("again", [False, True])
@pytest.mark.parametrize("order", list(permutations(("made", "used", "restart"))), ids="-".join)
def test_staleness_across_a_pushed_restart_is_unknown(store: Store, order: Sequence[str], again: bool) -> None:
    """In whatever order it is told of, and with Rollscope started anew after each word."""
    for what in order:
        with bench(store) as run:
            for _ in range(1 + again):
                if what == "restart":
                    push(run, RESTART)
                else:
                    push(run, rollouts=made(*MADE) if what == "made" else used(*MADE))
    assert staleness(store) == {"over": None, "old": 2, "new": 2}
    assert {row.rollout_id: "two incarnations" in row.unknown for row in _rows(store)}["over"]
    assert {len(row.consumptions) for row in _rows(store)} == {1}
    assert [event for _, event in store.runs.events("run", 0, 1 << 60)] == [RESTART]
    assert [cell[1:] for cell in store.rollouts.bins("run", "staleness", 0, 1 << 60, 60_000)] == [(2, 1), (2, 1)]


@pytest.mark.parametrize("kind", ["restart", "resume"])
def test_the_same_event_is_one_life_and_survives_a_start_of_ours(store: Store, kind: str) -> None:
    event = structs.replace(RESTART, kind=kind)
    for _ in range(2):
        with bench(store) as run:
            push(run, event, event)
            push(run, event)
            assert (run.ingest.incarnation, store.runs.incarnation("run"), store.runs.incarnation_starts("run")) == (
                1, 1, [1000 * int(T0 + 100)],
            )  # fmt: skip
    with bench(store) as run:
        push(run, Event("checkpoint", "c", T0 + 120), Event(kind, "deploy-8", T0 + 200))  # type: ignore[arg-type]
        assert store.runs.incarnation("run") == 2


def test_restarts_that_are_told_in_another_order_give_the_same_lives(store: Store) -> None:
    for at in (300.0, 100.0, 200.0):
        with bench(store) as run:
            push(run, Event("restart", f"at {at:.0f}", T0 + at))
    times = {"a": 50.0, "b": 150.0, "c": 250.0, "d": 350.0}
    with bench(store) as run:
        push(run, rollouts=[Rollout(name, dispatched_at=T0 + at) for name, at in times.items()])
    assert {row.rollout_id: row.life for row in store.rollouts.get("run", list(times))} == {
        "a": 0, "b": 1, "c": 2, "d": 3,
    }  # fmt: skip


def test_what_lives_on_when_an_older_restart_is_told_keeps_its_staleness(store: Store) -> None:
    """Its number was given before; no restart lies between its beginning and its use."""
    with bench(store) as run:
        push(run, Event("restart", "second", T0 + 105), rollouts=made("new"))
        push(run, RESTART)
        push(run, rollouts=used("new"))
    assert staleness(store) == {"new": 2}


def test_steps_after_a_pushed_restart_are_of_its_life(store: Store) -> None:
    """A step that goes back after it is the same restart, also where the steps are read first."""
    with bench(store) as run:
        run.commit(TRAINER, steps(1, 3), T0 + 95)
        push(run, RESTART)
        run.commit(TRAINER, steps(2, 4, start=T0 + 60), T0 + 190)
        assert store.runs.incarnation("run") == 1
    assert [row.step for row in store.steps.newest("run", incarnation=1)] == [2, 3, 4]


def test_a_restart_that_its_steps_gave_away_is_told_for_nothing(store: Store) -> None:
    with bench(store) as run:
        run.commit(TRAINER, steps(1, 3), T0 + 95)
        run.commit(TRAINER, steps(2, 4, start=T0 + 60), T0 + 190)
        assert store.runs.incarnation("run") == 1
    with bench(store) as run:
        push(run, RESTART)  # after the step of 90 s, before that of 120 s
        assert store.runs.incarnation("run") == 1
        push(run, Event("restart", "other", T0 + 80))  # a step followed: another one
        assert store.runs.incarnation("run") == 2


def test_it_comes_through_the_inbox(store: Store) -> None:
    lines = [{"kind": "restart", "key": "deploy-7", "ts": T0 + 100}]
    parts = [("rollouts", [{"rollout_id": "over", "version_start": 7, "dispatched_at": T0 + 50}]), ("events", lines),
             ("rollouts", [{"rollout_id": "over", "version_consumed": 9, "consumed_at": T0 + 150}])]  # fmt: skip
    for kind, items in parts:
        body = pack_records(kind, [json.dumps(item).encode() for item in items])  # type: ignore[arg-type]
        store.pushes.offer([Push("run", PUSHED, "generator", 1200.0, round(1000 * (T0 + 160)), 5, body)])
    with lived(store, 160) as run:
        run.loop._collect_pushes(run.clock.now())
    assert (waiting(store), store.runs.incarnation("run"), staleness(store)) == (0, 1, {"over": None})
