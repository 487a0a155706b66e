"""Whose rollout a record tells of when restarts are told of too: ids made again, groups, what is in flight."""

from collections import Counter
from collections.abc import Sequence
from itertools import permutations

import pytest
from msgspec import structs

from collectors.model import Consumption, Event, Rollout
from server.ingest.rollouts import LEFT
from server.rollouts.model import RolloutRow
from server.store import Store
from tests.driven_run import T0, bench
from tests.ingest.test_reported_restarts import RESTART, push

IDS = [f"7-{n}" for n in range(4)]


def made(begun: float, tokens: int, version: int) -> list[Rollout]:
    """A group of four that began then, ended 10 s and was used 20 s later at the next version; half are solved."""
    at = T0 + begun
    return [
        Rollout(
            name, "7", 4, dispatched_at=at, finished_at=at + 10, version_start=version, version_finish=version,
            response_tokens=tokens, reward=float(n % 2), consumptions=(Consumption(version + 1, at + 20),),
        )
        for n, name in enumerate(IDS)
    ]  # fmt: skip


FIRST, SECOND = made(0, 100, 7), made(110, 50, 3)  # before and after the restart at 100 s


def told(store: Store, *ids: str) -> dict[tuple[str, int], RolloutRow]:
    return {(row.rollout_id, row.life): row for row in store.rollouts.get("run", ids or IDS)}


@pytest.mark.parametrize("start", [False, True])
@pytest.mark.parametrize("order", ["first restart second", "restart first second", "restart second first"])
def test_ids_that_are_made_again_after_a_restart_are_other_rollouts(store: Store, order: str, start: bool) -> None:
    """With Rollscope started anew after each word, or not."""
    for words in [[one] for one in order.split()] if start else [order.split()]:
        with bench(store) as run:
            for word in words:
                if word == "restart":
                    push(run, RESTART)
                else:
                    push(run, rollouts=FIRST if word == "first" else SECOND)
    rows = told(store)
    assert {key: (row.state, row.response_tokens, row.seconds) for key, row in rows.items()} == {
        (name, life): ("trained", (100, 50)[life], 10.0) for name in IDS for life in (0, 1)
    }
    assert {row.staleness for row in rows.values()} == {1}
    groups = store.rollouts.groups("run", [("7", 0), ("7", 1)])
    assert {(one.life, one.members, one.outcome) for one in groups} == {(0, 4, "mixed"), (1, 4, "mixed")}
    left = Counter({cell[1]: cell[2] for cell in store.rollouts.bins("run", LEFT, 0, 1 << 60, 3_600_000)})
    assert sum(left.values()) == 8


def test_both_lives_of_an_id_may_be_told_in_one_batch_and_once_more(store: Store) -> None:
    with bench(store) as run:
        push(run, RESTART)
        push(run, rollouts=[*SECOND, *FIRST])
        before = told(store)
        push(run, rollouts=[*FIRST, *SECOND])
    assert told(store) == before
    assert {life: n for life, n in Counter(life for _, life in before).items()} == {0: 4, 1: 4}


PARTS = {
    "wait": Rollout("w", dispatched_at=T0 + 90), "run": Rollout("w", started_at=T0 + 110),
    "end": Rollout("w", finished_at=T0 + 120, response_tokens=9), "use": Rollout("w", consumptions=(Consumption(4),)),
}  # fmt: skip


@pytest.mark.parametrize("order", list(permutations(PARTS)), ids="-".join)
def test_what_waited_for_a_slot_over_a_restart_is_one_rollout(store: Store, order: Sequence[str]) -> None:
    """Parts without a beginning join it, and it joins them."""
    with bench(store) as run:
        push(run, RESTART)
        for name in order:
            push(run, rollouts=[PARTS[name]])
    rows = list(told(store, "w").values())
    assert [(row.state, row.seconds, row.response_tokens) for row in rows] == [("trained", 30.0, 9)]


def test_what_began_after_all_that_an_id_told_before_the_restart_is_another(store: Store) -> None:
    """The first one told no beginning; its use tells that it was over."""
    with bench(store) as run:
        push(run, RESTART)
        push(run, rollouts=[Rollout("a", version_start=9, consumptions=(Consumption(10, T0 + 20),))])
        push(run, rollouts=[Rollout("a", started_at=T0 + 110, version_start=2)])
        push(run, rollouts=[Rollout("a", consumptions=(Consumption(5, T0 + 150),))])
    assert {key: row.staleness for key, row in told(store, "a").items()} == {("a", 0): 1, ("a", 1): 3}


def test_an_id_of_the_older_life_that_is_told_after_a_late_restart_is_another(store: Store) -> None:
    """The newer one had its number before the restart was told: no number is left for the older one but the next."""
    with bench(store) as run:
        push(run, rollouts=SECOND)
        push(run, RESTART)
        push(run, rollouts=FIRST)
    rows = told(store)
    assert sorted((row.life, row.response_tokens, row.staleness) for row in rows.values()) == [
        *[(0, 50, 1)] * 4, *[(1, 100, 1)] * 4,
    ]  # fmt: skip


# ---- a restart that is told late


@pytest.mark.parametrize("start", [False, True])
def test_a_group_is_not_divided_by_a_restart_before_all_of_it(store: Store, start: bool) -> None:
    """Two of four are told, then a restart before them, then the other two, and how all of them ended."""
    members = [structs.replace(one, consumptions=(), finished_at=None, reward=None) for one in SECOND]
    words = [((), members[:2]), ((RESTART,), ()), ((), members[2:]), ((), SECOND)]
    for part in [[one] for one in words] if start else [words]:
        with bench(store) as run:
            for events, rollouts in part:
                push(run, *events, rollouts=rollouts)
    assert {key: row.state for key, row in told(store).items()} == {(name, 0): "trained" for name in IDS}
    groups = store.rollouts.groups("run", [("7", 0), ("7", 1)])
    assert [(one.life, one.members, one.done, one.outcome) for one in groups] == [(0, 4, 4, "mixed")]


def test_a_group_of_the_same_name_that_began_after_a_late_restart_is_another(store: Store) -> None:
    with bench(store) as run:
        push(run, rollouts=FIRST)
        push(run, RESTART)
        push(run, rollouts=[structs.replace(one, rollout_id=f"new-{one.rollout_id}") for one in SECOND])
    groups = store.rollouts.groups("run", [("7", 0), ("7", 1)])
    assert {(one.life, one.members) for one in groups} == {(0, 4), (1, 4)}


@pytest.mark.parametrize("start", [False, True])
def test_what_began_after_a_late_restart_is_in_flight_and_what_began_before_is_not(store: Store, start: bool) -> None:
    old = [Rollout("before", started_at=T0 + 50), *[Rollout(f"a{n}", started_at=T0 + 150 + n) for n in range(3)]]
    new = [Rollout(f"b{n}", started_at=T0 + 160 + 100 * n) for n in range(3)]  # 200 s: it is looked for the forgotten
    words: list[tuple[list[Event], list[Rollout]]] = [([], old), ([RESTART], []), ([], new)]
    for part in [[one] for one in words] if start else [words]:
        with bench(store) as run:
            for events, rollouts in part:
                push(run, *events, rollouts=rollouts)
    rows = told(store, *[one.rollout_id for one in (*old, *new)])
    assert Counter(row.state for row in rows.values()) == {"generating": 6, "ended": 1}
    assert rows[("before", 0)].state == "ended"
