"""Staleness and groups against numbers worked out by hand: one row per case, with why."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from msgspec import structs

from collectors.model import Consumption, Exit, Rollout, Turn
from server.rollouts import model as rollouts_model
from server.rollouts.environments import HINT, Environments
from server.rollouts.environments import OTHER_LIFE as OTHER_STATE
from server.rollouts.groups import completed_at, member, outcome, solved, version_complete
from server.rollouts.staleness import (
    BACKWARDS,
    CONSUMED_HINT,
    FINISH_HINT,
    ORIGIN_HINT,
    OTHER_LIFE,
    TOKEN_HINT,
    Judged,
    VersionClock,
    judge,
    uses,
)

BOX = "sb-1"


def turn(version: int | None, mutated: bool | None = True, box: str = BOX, **more: Any) -> Turn:
    return Turn(version, 1, mutated, sandbox_id=box, **more)


def rollout(**told: Any) -> Rollout:
    return Rollout("r", **told)


@dataclass(frozen=True)
class Case:
    """A record, who used the sandbox before it, when versions were published, and what follows."""

    name: str
    why: str
    record: Rollout
    expected: dict[str, Any]
    earlier: tuple[Rollout, ...] = ()
    published: tuple[tuple[int, float], ...] = ()
    group_version: int | None = None
    alone: bool = True
    uses: tuple[int | None, ...] | None = None
    life: int = 0
    earlier_life: int = 0
    tags: tuple[str, ...] = field(default=())


# Version 3 played two turns, the rollout was suspended, version 5 resumed it with its tokens and its sandbox.
RESUMED = rollout(
    version_start=3, version_finish=5, token_versions=((3, 300), (5, 100)), consumptions=(Consumption(6),),
    turns=(turn(3), turn(3), turn(5), turn(5)), sandbox_ids=(BOX,),
)  # fmt: skip

CASES = (
    Case(
        "resumed partial rollout, sandbox kept",
        "oldest kept token of 3: 6 - 3. Tokens: (300 x 3 + 100 x 1) / 400. Turns: clean, then state of 3 at 3, 5, 5: "
        "ages 0 0 2 2; the latest mutation is of 3, 3, 3, 5: ages - 0 2 0",
        RESUMED,
        {
            "staleness": 3, "in_flight": 2, "in_group": 0, "in_queue": 1, "token_staleness": 2.5,
            "environment_staleness": 1.0, "environment_latest": 0.5, "old_state_turns": 2, "judged_turns": 4,
            "environment_ages": "0:2 2:2", "mixed": True,
        },
    ),
    Case(
        "the same, reset in between",
        "the environment was made anew before version 5 went on: its turns see what 5 made alone",
        structs.replace(RESUMED, turns=(turn(3), turn(3), turn(5, reset=True), turn(5))),
        {
            "staleness": 3, "in_flight": 2, "in_group": 0, "in_queue": 1, "token_staleness": 2.5,
            "environment_staleness": 0.0, "environment_latest": 0.0, "old_state_turns": 0, "judged_turns": 4,
            "environment_ages": "0:4", "mixed": True,
        },
    ),
    Case(
        "resumed with its earlier tokens thrown away",
        "only kept tokens count: 3 produced none of them, so 6 - 5; its state is as old as before",
        structs.replace(RESUMED, token_versions=((3, 0), (5, 100))),
        {
            "staleness": 1, "in_flight": 0, "in_group": 0, "in_queue": 1, "token_staleness": 1.0,
            "environment_staleness": 1.0, "environment_latest": 0.5, "old_state_turns": 2, "judged_turns": 4,
            "environment_ages": "0:2 2:2", "mixed": False,
        },
    ),
    Case(
        "fork: state of another rollout's sandbox inherited",
        "sb-0 was changed by 2 and 4; its copy is of 2 at the oldest, 4 at the latest: at 5 the ages are 3 and 1, then "
        "3 and 0 after a change of its own",
        rollout(
            version_start=5, version_finish=5, consumptions=(Consumption(5),), started_at=200.0, loss_tokens=7,
            turns=(turn(5, forked_from="sb-0"), turn(5, forked_from="sb-0")),
        ),
        {
            "staleness": 0, "in_flight": 0, "in_group": 0, "in_queue": 0, "token_staleness": 0.0,
            "environment_staleness": 3.0, "environment_latest": 0.5, "old_state_turns": 2, "judged_turns": 2,
            "environment_ages": "3:2", "mixed": False,
        },
        earlier=(Rollout("before", started_at=100.0, turns=(turn(2, box="sb-0"), turn(4, box="sb-0"))),),
    ),
    Case(
        "sandbox kept over two rollouts",
        "the one before changed it at 2: its first turn at 4 is played on state 2 versions old, though it did nothing",
        rollout(version_start=4, version_finish=4, started_at=200.0, turns=(turn(4, mutated=False), turn(4))),
        {
            "in_flight": 0, "in_group": 0, "environment_staleness": 2.0, "environment_latest": 2.0,
            "old_state_turns": 2, "judged_turns": 2, "environment_ages": "2:2", "mixed": False,
        },
        earlier=(Rollout("before", started_at=100.0, turns=(turn(2),)),),
    ),
    Case(
        "sandbox used later by another",
        "what a rollout did that began afterwards is not what this one was played on",
        rollout(version_start=4, version_finish=4, started_at=50.0, turns=(turn(4, mutated=False),)),
        {
            "in_flight": 0, "in_group": 0, "environment_staleness": 0.0, "environment_latest": 0.0,
            "old_state_turns": 0, "judged_turns": 1, "environment_ages": "0:1", "mixed": False,
        },
        earlier=(Rollout("later", started_at=100.0, turns=(turn(2),)),),
    ),
    Case(
        "consumed twice",
        "a replayed rollout counts at each use, 4 - 2 and 7 - 2; its row speaks of the newest",
        rollout(
            version_start=2, version_finish=2, response_tokens=10,
            consumptions=(Consumption(4, 10.0), Consumption(7, 90.0)),
        ),
        {
            "staleness": 5, "in_flight": 0, "in_group": 0, "in_queue": 5, "token_staleness": 5.0, "mixed": False,
            "unknown": f"environment_state: {HINT}",
        },
        uses=(2, 5),
    ),
    Case(
        "consumed after several updates, waiting for its group and in the queue",
        "begun at 1, last token at 2, its group complete at 150 s when 4 was newest, used from 9: 8 = 1 + 2 + 5",
        rollout(
            token_versions=((1, 10), (2, 30)), version_finish=2, group_complete_at=150.0, consumptions=(Consumption(9),)
        ),
        {
            "staleness": 8, "in_flight": 1, "in_group": 2, "in_queue": 5, "token_staleness": 7.25, "mixed": True,
            "unknown": f"environment_state: {HINT}",
        },
        published=((1, 0.0), (2, 50.0), (3, 100.0), (4, 140.0), (5, 160.0)),
        alone=False,
    ),
    Case(
        "the group's completion told by its members' versions",
        "no clock: the last sibling ended at 4",
        rollout(version_start=1, version_finish=2, response_tokens=5, consumptions=(Consumption(6),)),
        {
            "staleness": 5, "in_flight": 1, "in_group": 2, "in_queue": 2, "mixed": True,
            "unknown": f"token: {TOKEN_HINT}; environment_state: {HINT}",
        },
        group_version=4,
        alone=False,
    ),
    Case(
        "restart from a checkpoint",
        "made in life 0 at 40, used in life 1 at 12: neither -28 nor 0",
        rollout(token_versions=((40, 10),), consumptions=(Consumption(12, incarnation=1),)),
        {
            "in_flight": 0, "in_group": 0, "mixed": False,
            "unknown": f"trajectory: {OTHER_LIFE}; token: {OTHER_LIFE}; environment_state: {HINT}",
        },
        uses=(None,),
    ),
    Case(
        "restart from a checkpoint that nobody tells of",
        "made by 12, used at 10: -2 is no staleness, and 0 would be a guess",
        rollout(token_versions=((12, 30), (13, 10)), consumptions=(Consumption(10, 50.0),)),
        {
            "in_flight": 1, "in_group": 0, "mixed": True,
            "unknown": f"trajectory: {BACKWARDS}; token: {BACKWARDS}; environment_state: {HINT}",
        },
        uses=(None,),
    ),
    Case(
        "restart from a checkpoint, sandbox kept",
        "its state was made in life 0: how old it is at 3 of life 1 nobody can say",
        rollout(version_start=3, version_finish=3, started_at=200.0, turns=(turn(3),)),
        {"in_flight": 0, "in_group": 0, "mixed": False},
        earlier=(Rollout("before", started_at=100.0, turns=(turn(2),)),),
        life=1,
        tags=(OTHER_STATE,),
    ),
    Case(
        "missing flags",
        "no record reports which calls changed anything: each counts, and the value is an upper bound",
        rollout(turns=(turn(3, None), turn(3, None), turn(5, None), Turn(5, 0, None, sandbox_id=BOX))),
        {
            "environment_staleness": 1.0, "environment_latest": 0.5, "environment_bound": True, "old_state_turns": 2,
            "judged_turns": 4, "environment_ages": "0:2 2:2", "mixed": True,
        },
    ),
    Case(
        "no fields at all",
        "every level says what to log",
        rollout(consumptions=(Consumption(None, 5.0),)),
        {"unknown": f"trajectory: {CONSUMED_HINT}; token: {CONSUMED_HINT}; environment_state: {HINT}"},
        uses=(None,),
    ),
    Case(
        "used, but made by nobody knows whom",
        "",
        rollout(consumptions=(Consumption(5),), turns=(Turn(sandbox_id=BOX), Turn(sandbox_id=BOX))),
        {"unknown": f"trajectory: {ORIGIN_HINT}; token: {ORIGIN_HINT}; environment_state: {HINT}"},
        uses=(None,),
    ),
    Case(
        "oldest by what is told: its start, else its dispatch",
        "version_dispatched is older than any of its tokens can be",
        rollout(version_dispatched=3, consumptions=(Consumption(5),)),
        {"staleness": 2, "unknown": f"token: {FINISH_HINT}; environment_state: {HINT}"},
    ),
    Case("not used yet", "nothing is missing: there is no staleness yet", rollout(version_start=3), {}),
)  # fmt: skip


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
def test_levels(case: Case) -> None:
    environments, clock = Environments(), VersionClock()
    for one in case.earlier:
        environments.judge(one, case.earlier_life, one.started_at or 0.0)
    for version, ts in case.published:
        clock.publish(version, ts)
    ages = environments.judge(case.record, case.life, case.record.started_at or 0.0) if case.record.turns else None
    found = judge(case.record, case.life, clock, ages, alone=case.alone, group_version=case.group_version)
    expected = Judged(**case.expected)
    for name in Judged.__struct_fields__:
        assert getattr(found, name) == pytest.approx(getattr(expected, name)), (name, case.why)
    if case.uses is not None:
        assert tuple(use.staleness for use in uses(case.record, case.life)) == case.uses
    for words in case.tags:
        assert ages is not None and ages.unknown == words


def test_a_resumed_rollout_told_twice_is_judged_alike() -> None:
    """The second telling must not find its own mutations as somebody else's."""
    environments = Environments()
    first = environments.judge(RESUMED, 0, 1.0)
    assert environments.judge(RESUMED, 0, 1.0) == first and first.mean() == 1.0


# ---- groups


def reward(*rewards: float | None, exits: tuple[Exit | None, ...] = (), **told: Any) -> list[Rollout]:
    """Members of a group of as many, scored at 10, 20, ... s."""
    causes = exits or (None,) * len(rewards)
    return [
        Rollout(f"r{n}", "g", len(rewards), reward=one, exit=cause, scored_at=10.0 * (n + 1), **told)
        for n, (one, cause) in enumerate(zip(rewards, causes, strict=True))
    ]


GROUPS: tuple[tuple[str, list[Rollout], int | None, float | None, str, int | None], ...] = (
    # name, members, size, the run's largest reward, outcome, solved
    ("some gradient", reward(1.0, 0.0, 1.0), 3, 1.0, "mixed", 2),
    ("all solved", reward(1.0, 1.0), 2, 1.0, "all_solved", 2),
    ("equal at what may be anything", reward(1.0, 1.0), 2, None, "equal_unknown", None),
    ("equal below the largest", reward(0.5, 0.5), 2, 1.0, "equal_unknown", 0),
    ("nobody got anything", reward(0.0, 0.0), 2, None, "none_solved", None),
    ("nobody, with penalties", reward(-1.0, -1.0), 2, 1.0, "none_solved", 0),
    ("the largest told by a record", reward(2.0, 2.0, max_reward=2.0), 2, None, "all_solved", 2),
    ("equal but for rounding of single precision", reward(0.1, 0.10000000149), 2, None, "equal_unknown", None),
    ("one still runs", [*reward(1.0, 1.0)[:1], Rollout("x", "g", 2, started_at=1.0)], 2, 1.0, "open", 1),
    ("complete by its own word", reward(1.0, 0.0, group_complete_at=30.0)[:2], 8, 1.0, "mixed", 1),
    ("used, but two of three were not heard of", reward(1.0, consumptions=(Consumption(4),)), 3, 1.0, "open", 1),
    ("used, of nobody knows how many", reward(1.0, 0.0, consumptions=(Consumption(4),)), None, 1.0, "mixed", 1),
    ("an advantage, but one was not heard of", reward(1.0, 1.0, advantage=0.0), 3, 1.0, "open", 2),
    ("its size not told", reward(1.0, 0.0), None, 1.0, "open", 1),
    ("lost ones are no zeros", reward(1.0, 1.0, 0.0, exits=(None, None, "infra_error")), 3, 1.0, "all_solved", 2),
    ("errors leave one", reward(1.0, 0.0, 0.0, exits=(None, "infra_error", "env_error")), 3, 1.0, "too_few_valid", 1),
    ("errors leave none", reward(None, None, exits=("infra_error", "infra_error")), 2, 1.0, "too_few_valid", None),
)  # fmt: skip


@pytest.mark.parametrize(("name", "members", "size", "top", "expected", "count"), GROUPS, ids=[g[0] for g in GROUPS])
def test_groups(
    name: str, members: list[Rollout], size: int | None, top: float | None, expected: str, count: int | None
) -> None:
    found = [member(one) for one in members]
    assert (outcome(found, size, top), solved(found, top)) == (expected, count)


def test_a_group_is_complete_with_its_last_member_and_at_its_version() -> None:
    members = [member(structs.replace(one, version_finish=n + 3)) for n, one in enumerate(reward(1.0, 0.0, 1.0))]
    assert (completed_at(members, 3), version_complete(members, 3)) == (30.0, 5)
    # Four were begun for three: it was complete when three had ended.
    assert completed_at([*members, structs.replace(members[0], ended_at=500.0)], 3) == 30.0
    assert version_complete(members[:2], 3) is None


# ---- the census


@pytest.mark.parametrize(
    ("told", "state"),
    [
        ({"dispatched_at": 1.0}, "waiting_slot"),
        ({"dispatched_at": 1.0, "started_at": 2.0}, "generating"),
        ({"started_at": 2.0, "finished_at": 3.0}, "scoring"),
        ({"finished_at": 3.0, "reward": 1.0}, "waiting_group"),
        ({"finished_at": 3.0, "reward": 1.0, "exit": "stale"}, "stale"),
        ({"finished_at": 3.0, "reward": 1.0, "purpose": "eval"}, "ended"),
        ({"finished_at": 3.0, "exit": "infra_error"}, "infra_error"),
    ],
)
def test_census(told: dict[str, Any], state: str) -> None:
    assert rollouts_model.state(rollout(**told), grouped=True, complete=False) == state


def test_a_complete_group_queues() -> None:
    assert rollouts_model.state(rollout(reward=1.0), grouped=True, complete=True) == "queued"
    assert rollouts_model.state(rollout(reward=1.0), grouped=False, complete=False) == "queued"


@pytest.mark.parametrize(
    ("kind", "state"), [("boot", "booting"), ("tool", "in_tool"), ("decode", "generating"), ("suspended", "gated")]
)
def test_open_spans_say_what_it_waits_for(kind: Any, state: str) -> None:
    from collectors.model import Span  # noqa: PLC0415  only here

    record = rollout(started_at=1.0, spans=(Span("queued", 0.0, 1.0), Span(kind, 1.0)))
    assert rollouts_model.state(record, grouped=True, complete=False) == state
    ended = structs.replace(record, spans=(Span(kind, 1.0, 2.0),))
    assert rollouts_model.state(ended, grouped=True, complete=False) == "generating"


# ---- the clock


def test_the_clock_keeps_first_times_in_any_order() -> None:
    clock = VersionClock()
    for version, ts in ((3, 30.0), (1, 10.0), (2, 25.0), (2, 20.0), (3, 31.0)):
        clock.publish(version, ts)
    assert [clock.at(ts) for ts in (9.9, 10.0, 19.9, 24.0, 30.0, 99.0)] == [None, 1, 1, 2, 3, 3]
    assert clock.per_second(0.0, 100.0) == pytest.approx(2 / 20)
    assert clock.within(15.0, 40.0) == [(20.0, 2), (30.0, 3)]


def test_a_restart_goes_back_on_the_clock() -> None:
    clock = VersionClock()
    for version, ts in ((8, 10.0), (9, 20.0), (5, 100.0), (6, 110.0)):
        clock.publish(version, ts)
    assert [clock.at(ts) for ts in (50.0, 105.0, 200.0)] == [9, 5, 6]
