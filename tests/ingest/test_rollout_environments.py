"""Ages of environments: whoever is told first, and after a start of ours, no turn is called fresh that is not known."""

from collections.abc import Sequence
from itertools import permutations
from zlib import crc32

import pytest

from collectors.model import Consumption, Rollout, Turn
from server.ingest.rollouts import LATE, RolloutIngest
from server.rollouts import environments as rollouts_environments
from server.rollouts.environments import FORGOTTEN
from server.rollouts.model import RolloutRow
from server.store import Store
from tests.driven_run import T0, bench
from tests.ingest.test_reported_restarts import push
from tests.ingest.test_rollout_fold import TARGET


def turn(version: int, mutated: bool = True, box: str = "S", forked_from: str = "") -> Turn:
    return Turn(version, None, mutated, sandbox_id=box, forked_from=forked_from)


# Version 2 changes the sandbox; version 5 plays two turns on it, and changes it in the second: both are 3 versions old.
CHANGES = Rollout(
    "r1", dispatched_at=T0, version_start=2, version_finish=2, turns=(turn(2),),
    consumptions=(Consumption(3, T0 + 8),),
)  # fmt: skip
PLAYS = Rollout(
    "r", dispatched_at=T0 + 10, version_start=5, version_finish=5,
    turns=(turn(5, mutated=False), turn(5)),
)  # fmt: skip
USED = Rollout("r", consumptions=(Consumption(5, T0 + 20),))
WORDS = {"changes": CHANGES, "plays": PLAYS, "used": USED}


def row(store: Store, name: str = "r") -> RolloutRow:
    (found,) = store.rollouts.get("run", [name])
    return found


def age(store: Store, name: str = "r") -> tuple[float | None, str]:
    found = row(store, name)
    return found.environment_staleness, found.unknown.partition("environment_state: ")[2]


def test_neither_keeps_its_turns_when_it_left(store: Store) -> None:
    """Else they were in the store, and nothing here could go wrong."""
    assert crc32(b"r") % 8 and crc32(b"r1") % 8
    with bench(store) as run:
        push(run, rollouts=[CHANGES, PLAYS, USED])
    assert [row(store, name).turns for name in ("r", "r1")] == [(), ()]


@pytest.mark.parametrize("batches", [1, 3])
@pytest.mark.parametrize("order", list(permutations(WORDS)), ids="-".join)
def test_the_order_in_which_they_are_told_changes_nothing(store: Store, order: Sequence[str], batches: int) -> None:
    parts = [[WORDS[name] for name in order]] if batches == 1 else [[WORDS[name]] for name in order]
    with bench(store) as run:
        for part in parts:
            push(run, rollouts=part)
    assert age(store) == (3.0, "")
    assert (row(store).environment_ages, row(store).judged_turns, row(store).old_state_turns) == ("3:2", 2, 2)


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("changes plays | used", (3.0, "")),  # what was judged stands
        ("changes | plays used", (None, FORGOTTEN)),
        ("changes | plays | used", (None, FORGOTTEN)),
        ("plays | changes used", (3.0, "")),  # in flight: its turns are kept
        ("plays | changes | used", (3.0, "")),
        ("plays used | changes", (None, LATE)),
        ("plays used | changes plays", (3.0, "")),  # told again, by a file that is read from its beginning
        ("changes plays used | plays used | changes", (3.0, "")),
    ],
)
def test_after_a_start_of_ours_it_is_the_same_or_unknown(
    store: Store, order: str, expected: tuple[float | None, str]
) -> None:
    for part in order.split("|"):
        with bench(store) as run:
            push(run, rollouts=[WORDS[name] for name in part.split()])
    assert age(store) == expected


def test_a_sandbox_that_nobody_was_in_before_our_start_is_as_it_was_made(store: Store) -> None:
    with bench(store) as run:
        push(run, rollouts=[CHANGES])
    with bench(store) as run:
        push(run, rollouts=[Rollout("n", dispatched_at=T0 + 9, turns=(turn(4, box="N"), turn(6, box="N")))])
    assert age(store, "n") == (1.0, "")


def test_what_kept_its_turns_tells_after_our_start_what_it_did(store: Store) -> None:
    """It is in flight: version 3 changed the sandbox in which version 7 goes on."""
    with bench(store) as run:
        push(run, rollouts=[Rollout("k", dispatched_at=T0, turns=(turn(3),))])
    with bench(store) as run:
        push(run, rollouts=[Rollout("n", dispatched_at=T0 + 9, turns=(turn(7),))])
    assert age(store, "n") == (4.0, "")


def test_what_has_no_time_is_in_the_order_of_its_versions(store: Store) -> None:
    with bench(store) as run:
        push(run, rollouts=[Rollout("a", turns=(turn(8),)), Rollout("b", turns=(turn(2),))])
    assert (age(store, "a"), age(store, "b")) == ((6.0, ""), (0.0, ""))


def test_a_change_of_what_a_fork_was_made_of_is_one_of_the_fork(store: Store) -> None:
    """Told last: S is changed by version 2, forked into F by version 4, F is gone on with by version 9."""
    with bench(store) as run:
        push(run, rollouts=[Rollout("e", dispatched_at=T0 + 20, turns=(turn(9, box="F"),))])
        push(run, rollouts=[Rollout("f", dispatched_at=T0 + 10, turns=(turn(4, False, box="F", forked_from="S"),))])
        assert (age(store, "f")[0], age(store, "e")[0]) == (0.0, 0.0)
        push(run, rollouts=[CHANGES])
    assert (age(store, "f"), age(store, "e")) == ((2.0, ""), (7.0, ""))


def test_whose_turns_are_remembered_no_more_is_unknown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(rollouts_environments, "REMEMBERED", 1)
    ingest = RolloutIngest()
    other = Rollout("o", turns=(turn(1, box="O"),), dispatched_at=T0)
    ingest.take(TARGET, [PLAYS, USED, other], T0 + 100)
    taken = ingest.take(TARGET, [CHANGES], T0 + 101)
    (found,) = [one for one in taken.rows if one.rollout_id == "r"]
    assert (found.environment_staleness, found.judged_turns, LATE in found.unknown) == (None, None, True)
    assert found.staleness == 0


def test_a_reset_between_them_is_the_end_of_what_was_before(store: Store) -> None:
    """What an older one did reaches nobody behind a reset: nothing is judged again."""
    with bench(store) as run:
        push(run, rollouts=[Rollout("z", dispatched_at=T0 + 3, turns=(Turn(4, None, True, True, "S"),))])
        push(run, rollouts=[PLAYS, USED])
        assert age(store) == (1.0, "")
        push(run, rollouts=[CHANGES])
    assert age(store) == (1.0, "")


def test_who_began_earlier_than_was_thought_makes_both_unknown(store: Store) -> None:
    """It is told after a start of ours, and of neither the turns are kept: version 2 changed what version 5 found."""
    late = Rollout("r1", turns=CHANGES.turns, consumptions=CHANGES.consumptions)
    alone = Rollout("n", turns=(turn(4, box="N"), turn(6, box="N")), consumptions=(Consumption(7, T0 + 9),))
    with bench(store) as run:
        push(run, rollouts=[PLAYS, USED, alone])
        push(run, rollouts=[late])
        assert (age(store)[0], age(store, "r1")[0], age(store, "n")[0]) == (0.0, -3.0, 1.0)
    with bench(store) as run:
        push(run, rollouts=[Rollout("r1", dispatched_at=T0), Rollout("n", dispatched_at=T0 + 1)])
    assert (age(store), age(store, "r1"), age(store, "n")) == ((None, LATE), (None, LATE), (1.0, ""))
