"""Signals from records against numbers worked out by hand, over a book that was fed as the driver feeds it."""

from collections.abc import Sequence
from typing import Any

import pytest
from msgspec import structs

from collectors.model import Consumption, Rollout, Sandbox, Target, Turn
from server.ingest.rollouts import RolloutIngest
from server.rollouts.groups import counted_mean, counted_quantile, deviation, quantile
from server.rollouts.window import KEPT_VERSIONS, RolloutBook, Timed
from server.signals.groups import zero_advantage_environment_ratio as BY_ENVIRONMENT
from server.signals.groups import zero_advantage_group_ratio as BY_CAUSE
from server.signals.groups import zero_advantage_groups as COUNTED
from server.signals.groups import zero_advantage_low_ratio as AT_LEAST
from server.signals.groups import zero_advantage_ratio as ZERO
from server.signals.model import Answer, NotApplicable, Unknown, Value, View
from server.signals.queue import production_samples_per_second as PRODUCTION
from server.signals.recorded import basis
from server.signals.rollouts import in_flight_rollouts as IN_FLIGHT
from server.signals.rollouts import infra_failure_ratio as INFRA
from server.signals.rollouts import response_tokens as TOKENS
from server.signals.rollouts import rollout_exit_ratio as EXITS
from server.signals.staleness import discarded_rollout_ratio as DISCARDED
from server.signals.staleness import old_state_turn_ratio as OLD_STATE
from server.signals.staleness import sample_age_seconds as AGE
from server.signals.staleness import staleness_estimated_versions as ESTIMATED
from server.signals.staleness import staleness_versions as STALENESS
from server.signals.window import StepBook

T = 1_000_000.0
TARGET = Target("records", "run", "push", "generator")
TRAJECTORY = ("level", "trajectory")


def fed(*records: Rollout, **facts: float) -> RolloutBook:
    book, ingest = RolloutBook(), RolloutIngest(facts=facts)
    for arrival in ingest.take(TARGET, records, T + 10_000).arrivals:
        book.put(arrival.row, arrival.group)
    return book


def seen(book: RolloutBook, now: float = T + 1000, **facts: float) -> View:
    return View(now, "async", "running", facts, rollouts=book)


def values(answer: Answer) -> dict[tuple[tuple[str, str], ...], float]:
    assert isinstance(answer, (list, tuple)), answer
    return {value.labels: value.value for value in answer if value.value == value.value}


def why(answer: Answer) -> str:
    assert isinstance(answer, (Unknown, NotApplicable)), answer
    return answer.why


def used(name: str, version: int, made: int, **more: Any) -> Rollout:
    """Made by one version, used at another, at 10 s per version."""
    at = more.pop("at", T + 10.0 * version)
    return Rollout(name, version_start=made, version_finish=made, consumptions=(Consumption(version, at),), **more)


def test_the_window_is_the_last_ten_versions() -> None:
    # Twelve versions; the first two were 9 versions stale, the others 1.
    book = fed(*[used(f"r{v}", v, v - (9 if v < 12 else 1)) for v in range(10, 22)])
    assert values(STALENESS.compute(seen(book)))[(TRAJECTORY, ("stat", "max"))] == 1.0
    assert book.window(T).start == T + 110  # when version 11 was used


def test_a_late_use_of_a_version_long_gone_changes_nothing() -> None:
    book = fed(*[used(f"r{v}", v, v - 1) for v in range(20, 40)], used("late", 3, 0))
    assert values(STALENESS.compute(seen(book)))[(TRAJECTORY, ("stat", "max"))] == 1.0
    assert len(book._versions) == KEPT_VERSIONS


def test_a_replayed_rollout_counts_at_each_use() -> None:
    again = structs.replace(used("a", 3, 1), consumptions=tuple(Consumption(v, T + 10 * v) for v in (3, 4, 5)))
    found = values(STALENESS.compute(seen(fed(again))))  # 2, 3 and 4 versions
    assert found[(TRAJECTORY, ("stat", "mean"))] == 3.0
    assert found[(TRAJECTORY, ("stat", "p95"))] == pytest.approx(3.9)


def test_a_new_life_begins_a_new_window() -> None:
    old = [used(f"o{v}", v, v - 5, incarnation=0) for v in range(50, 60)]
    new = [used(f"n{v}", v, v - 1, incarnation=1, at=T + 700 + v) for v in range(40, 42)]
    assert why(TOKENS.compute(seen(fed(*old, *new)))).startswith("2 of the 3 consumed versions")
    third = used("n42", 42, 41, incarnation=1, at=T + 800)
    found = values(STALENESS.compute(seen(fed(*old, *new, third))))
    assert found[(TRAJECTORY, ("stat", "max"))] == 1.0


def groups(version: int, *rewards: Sequence[float], trained: Sequence[bool] = (), **more: Any) -> list[Rollout]:
    """Groups of two that were complete at 10 s per version; those not trained left as zero_advantage."""
    found = []
    for number, pair in enumerate(rewards):
        for n, reward in enumerate(pair):
            fate: dict[str, Any] = {"consumptions": (Consumption(version, T + 10.0 * version),)}
            if trained and not trained[number]:
                fate = {"exit": "zero_advantage"}
            found.append(
                Rollout(
                    f"{version}/{number}/{n}", f"{version}/{number}", 2, reward=reward, max_reward=1.0,
                    scored_at=T + 10.0 * version - 1, **fate, **more,
                )
            )  # fmt: skip
    return found


def test_after_a_refill_the_bases_differ() -> None:
    """Of five groups per version three had no gradient, and were dropped; two were trained."""
    rewards = ((1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (0.0, 0.0), (0.5, 0.5))
    book = fed(*[one for v in range(1, 5) for one in groups(v, *rewards, trained=(True, True, False, False, False))])
    assert values(ZERO.compute(seen(book))) == {
        (("basis", "completed"),): pytest.approx(0.6),
        (("basis", "admitted"),): 0.0,
    }
    found = values(BY_CAUSE.compute(seen(book)))
    shares = {
        cause: found[(("basis", "completed"), ("cause", cause))]
        for cause in ("all_solved", "none_solved", "equal_unknown")
    }
    assert shares == pytest.approx({"all_solved": 0.2, "none_solved": 0.2, "equal_unknown": 0.2})
    assert values(EXITS.compute(seen(book)))[(("exit", "zero_advantage"),)] == pytest.approx(0.6)


def test_a_share_is_shown_with_the_number_of_its_groups() -> None:
    """Two traced groups at each of three versions, one of them equal: 3 of 6, which may be 19 % of the run's."""
    book = fed(*[one for v in (8, 16, 24) for one in groups(v, (1.0, 1.0), (1.0, 0.0), sampled=True)])
    completed, admitted = (("basis", "completed"),), (("basis", "admitted"),)
    assert values(ZERO.compute(seen(book))) == {completed: 0.5, admitted: 0.5}
    assert COUNTED.compute(seen(book)) == [
        Value(6, completed, "a sample of the run's groups"), Value(6, admitted, "a sample of the run's groups"),
    ]  # fmt: skip
    # Wilson: (0.5 + 0.320 - 1.96 x sqrt(0.25 / 6 + 0.640 / 24)) / 1.640
    assert values(AT_LEAST.compute(seen(book)))[completed] == pytest.approx(0.188, abs=5e-4)


def test_the_log_stays_the_source_until_records_hold_all_that_was_consumed() -> None:
    """Eight samples a step of 1,000 tokens. Records begin with version 4: of its eight two short rollouts, then all.

    The mean of the trained samples stays the log's, because records would change its population.
    """
    steps = StepBook()
    for number in range(1, 16):
        told = {"trainer_samples": 8.0, "response_tokens_mean": 1000.0, "reward_mean": 0.5}
        steps.put("trainer", 0, number, T + 10.0 * number, {(name, ()): value for name, value in told.items()})

    def at(last: int, first: dict[int, int]) -> str:
        made = [
            used(f"{v}/{n}", v, v, response_tokens=200 if v == 4 else 1100, reward=1.0)
            for v in range(4, last + 1) for n in range(first.get(v, 8))
        ]  # fmt: skip
        view = View(T + 10.0 * last, "async", "running", {}, rollouts=fed(*made), steps=steps)
        assert values(TOKENS.compute(view))[(("stat", "mean"),)] == 1000.0
        return basis(view)

    # The window holds version 4 until version 14 was consumed; the newest version may grow, and is not judged.
    assert at(7, {4: 2}) == at(13, {4: 2}) == "log"
    assert at(14, {4: 2}) == "records"
    # Where every version holds half of the samples a rollout is two of them: ten versions are taken as they are.
    half = dict.fromkeys(range(4, 16), 4)
    assert (at(7, half), at(14, half)) == ("log", "records")


def test_what_is_aborted_or_dropped_is_discarded() -> None:
    """Of 10 rollouts that left at each version 4 were trained and 6 aborted as a surplus: a published run's 60 %."""
    made = [
        Rollout(f"{v}/{n}", finished_at=T + 10.0 * v - 1, **(
            {"consumptions": (Consumption(v, T + 10.0 * v),)} if n < 4
            else {"exit": "aborted_oversample", "exited_at": T + 10.0 * v}
        ))
        for v in range(1, 5) for n in range(10)
    ]  # fmt: skip
    assert values(DISCARDED.compute(seen(fed(*made)))) == {(): pytest.approx(0.6)}
    # Batches of trained rollouts tell nothing of the others.
    trained = fed(*[one for one in made if one.consumptions])
    assert why(DISCARDED.compute(seen(trained))).startswith("records contain trained batches only")


def test_groups_that_tell_no_time_but_their_use_are_in_by_its_version() -> None:
    """Files whose dates were lost: all were used at one instant."""
    records = [
        Rollout(f"{v}/{n}", f"g{v}", 2, reward=float(n if v > 2 else 1), consumptions=(Consumption(v, T),))
        for v in range(1, 13) for n in (0, 1)
    ]  # fmt: skip
    # Versions 1 and 2 had equal rewards, and are out of the window of ten.
    assert values(ZERO.compute(seen(fed(*records)))) == {(("basis", "completed"),): 0.0, (("basis", "admitted"),): 0.0}


def test_groups_of_one_have_no_such_share() -> None:
    alone = [used(f"r{v}", v, v, group_id=f"g{v}", group_size=1, reward=1.0) for v in range(1, 5)]
    assert isinstance(ZERO.compute(seen(fed(*alone))), NotApplicable)
    nameless = [used(f"r{v}", v, v, reward=1.0) for v in range(1, 5)]
    assert "`group_id`" in why(ZERO.compute(seen(fed(*nameless))))


def test_twenty_environments_and_the_rest_together() -> None:
    """Of 22 environments two have fewer groups, all of them without a gradient: they are shown as one."""
    records = []
    for v in (1, 2, 3):
        for n in range(22 if v < 3 else 20):
            group = groups(v, (1.0, 1.0) if n >= 20 else (1.0, 0.0), environment=f"env{n:02}", difficulty="5")
            records += [structs.replace(one, rollout_id=f"{one.rollout_id}/{n}", group_id=f"{v}/{n}") for one in group]
    found = {
        dict(labels)["environment"]: value
        for labels, value in values(BY_ENVIRONMENT.compute(seen(fed(*records)))).items()
    }
    assert found == {**{f"env{n:02}": 0.0 for n in range(20)}, "other": 1.0}


def test_no_failure_is_known_only_where_failures_are_told() -> None:
    """Files of batches tell what was trained on and what had no gradient: that none failed is not known of them."""
    batches = [used(f"r{v}", v, v - 1) for v in range(1, 5)]
    idle = Rollout("idle", exit="zero_advantage", exited_at=T + 45.0)
    assert why(INFRA.compute(seen(fed(*batches, idle)))).startswith("no record reports how a rollout failed")
    assert values(INFRA.compute(seen(fed(*batches, Rollout("s", exit="stale", exited_at=T + 45.0))))) == {(): 0.0}
    assert values(INFRA.compute(seen(fed(*batches, Rollout("runs", started_at=T + 45.0))))) == {(): 0.0}
    # One of the four trained and it.
    lost = Rollout("lost", exit="infra_error", exited_at=T + 45.0)
    assert values(INFRA.compute(seen(fed(*batches, lost)))) == {(): pytest.approx(0.2)}


def test_what_nobody_times_has_no_rate() -> None:
    """A use in each of 13 versions, 10 s apart; when they were dispatched and ended nobody tells."""
    records = [Rollout(f"r{v}", consumptions=(Consumption(v, T + 10.0 * v),)) for v in range(10, 23)]
    found = values(PRODUCTION.compute(seen(fed(*records))))
    assert found == {(("stage", "delivered"),): pytest.approx(0.1)}


def test_environments_that_nobody_names_have_no_share() -> None:
    groups = [(f"g{v}", n, used(f"r{v}{n}", v, v - 1)) for v in range(1, 5) for n in range(2)]
    records = [structs.replace(one, group_id=group, group_size=2, reward=float(n)) for group, n, one in groups]
    assert why(BY_ENVIRONMENT.compute(seen(fed(*records)))).startswith("no record names its environment")
    named = [structs.replace(one, environment="math") for one in records]
    math = (("difficulty", ""), ("environment", "math"))
    assert values(BY_ENVIRONMENT.compute(seen(fed(*named)))) == {math: 0.0}
    # Of those that some name the others are a place of their own.
    some = values(BY_ENVIRONMENT.compute(seen(fed(*named[:2], *records[2:]))))
    assert some == {math: 0.0, (("difficulty", ""), ("environment", "")): 0.0}


def test_one_turn_that_says_nothing_is_on_no_known_state() -> None:
    alone = [used(f"r{v}", v, v - 1, turns=(Turn(v - 1),)) for v in range(1, 5)]
    assert why(OLD_STATE.compute(seen(fed(*alone)))).startswith("no record of the window reports its turns")
    told = [structs.replace(one, turns=(Turn(v, tool_calls=1),)) for v, one in enumerate(alone)]
    assert values(OLD_STATE.compute(seen(fed(*told)))) == {(): 0.0}


def test_what_has_its_reward_is_not_under_way_though_no_time_tells_its_end() -> None:
    waits = [Rollout(f"w{n}", "g", 3, reward=1.0) for n in range(2)]
    assert why(IN_FLIGHT.compute(seen(fed(*waits)))).startswith("this run reports no rollouts in flight")


def test_evaluations_count_nowhere() -> None:
    book = fed(*[structs.replace(used(f"e{v}", v, 0), purpose="eval") for v in range(1, 5)])
    assert why(STALENESS.compute(seen(book))).startswith("this trainer reports no staleness")
    assert why(EXITS.compute(seen(book))).startswith("no rollout records")


def test_who_generates_in_a_sandbox_that_is_not_ready_boots() -> None:
    book = fed(*[Rollout(f"r{n}", started_at=T, sandbox_ids=(f"sb{n}",)) for n in range(3)])
    view = seen(book, now=T + 10)
    view.sandboxes.put(
        T, Sandbox("modal", "sb1", "starting"), own=True, dangling=False, created=True, became_ready=False
    )
    found = {dict(labels)["state"]: value for labels, value in values(IN_FLIGHT.compute(view)).items() if value}
    assert found == {"booting": 1.0, "generating": 2.0}


def test_a_day_later_nobody_is_in_flight() -> None:
    book = fed(Rollout("r", started_at=T))
    assert values(IN_FLIGHT.compute(seen(book, now=T + 80_000)))[(("state", "generating"),)] == 1.0
    assert not any(values(IN_FLIGHT.compute(seen(book, now=T + 90_000))).values())


def test_the_oldest_that_waits_and_the_age_at_use() -> None:
    past = [used(f"r{v}", v, v, finished_at=T + 10 * v - 4.0 * v, reward=1.0) for v in range(1, 4)]  # 4, 8, 12 s
    waits = [Rollout("w", finished_at=T + 30, reward=1.0), Rollout("x", finished_at=T + 38, reward=0.0)]
    found = values(AGE.compute(seen(fed(*past, *waits), now=T + 40)))
    assert found == {(("stat", "oldest"),): 10.0, (("stat", "p95"),): pytest.approx(11.6)}


def test_trainable_is_fresh_and_carries_a_gradient() -> None:
    """At each of 13 versions, 10 s apart: one good, one idle, one too stale."""
    records = []
    for v in range(10, 23):
        records += [
            used(f"good{v}", v, v - 1, advantage=0.5), used(f"idle{v}", v, v - 1, advantage=0.0),
            used(f"old{v}", v, v - 8, advantage=0.5),
        ]  # fmt: skip
    found = values(PRODUCTION.compute(seen(fed(*records), max_staleness_versions=4.0)))
    assert found[(("stage", "delivered"),)] == pytest.approx(0.3)
    assert found[(("stage", "trainable"),)] == pytest.approx(0.1)


def test_what_is_not_known_to_be_fresh_is_not_counted_as_fresh() -> None:
    """At each of 13 versions, 10 s apart: one fresh, one too stale, one that tells no version: half of 0.3/s."""
    records = []
    for v in range(10, 23):
        untold = Rollout(f"untold{v}", consumptions=(Consumption(v, T + 10.0 * v),), advantage=0.5)
        records += [used(f"good{v}", v, v - 1, advantage=0.5), used(f"old{v}", v, v - 8, advantage=0.5), untold]
    assert values(PRODUCTION.compute(seen(fed(*records), max_staleness_versions=4.0)))[
        (("stage", "trainable"),)
    ] == pytest.approx(0.15)


def test_a_queue_that_nobody_tells_of_is_not_empty() -> None:
    """Ten seconds in flight at 0.1 versions/s; one waits and one leaves every 10 s: one version more."""
    records = [
        used(f"r{v}", v, v - 1, dispatched_at=T + 10.0 * v - 10, finished_at=T + 10.0 * v) for v in range(10, 23)
    ]
    untimed = [structs.replace(one, consumptions=(Consumption(one.consumptions[0].version),)) for one in records]
    waits = Rollout("w", finished_at=T + 225.0, reward=1.0)
    assert values(ESTIMATED.compute(seen(fed(*records), now=T + 230))) == {(): pytest.approx(1.0)}
    assert values(ESTIMATED.compute(seen(fed(*records, waits), now=T + 230))) == {(): pytest.approx(2.0)}
    assert isinstance(ESTIMATED.compute(seen(fed(*untimed), now=T + 230)), Unknown)


def test_what_is_kept_of_the_past_is_bounded() -> None:
    timed: Timed[int] = Timed(most=100)
    for n in range(1000):
        timed.put((f"r{n}", 0), T + n, n)
    assert 40 <= sum(map(len, timed.minutes.values())) <= 100
    timed.put(("r999", 0), T + 5000, -1)  # told again, it moves
    assert [what for what in timed.within(T + 990) if what in (999, -1)] == [-1]
    timed.forget(T + 4000)
    assert list(timed.within(0)) == [-1]
    assert (timed.count(T + 4999, T + 5000), timed.count(T, T + 4999)) == (1, 0)


def test_statistics_of_counted_values_are_those_of_the_values() -> None:
    counts = {0: 3, 2: 1, 5: 6}
    listed = [0.0, 0.0, 0.0, 2.0, 5.0, 5.0, 5.0, 5.0, 5.0, 5.0]
    assert counted_mean(counts) == 3.2
    for q in (0.0, 0.3, 0.32, 0.5, 0.95, 1.0):
        assert counted_quantile(counts, q) == pytest.approx(quantile(listed, q)), q
    assert deviation([1.0, 3.0]) == 1.0


AGE_HINT = "no record reports both its end and its use: log `finished_at` (or `scored_at`) and `consumed_at`"


def at_use(book: RolloutBook) -> Value:
    answer = AGE.compute(seen(book))
    assert isinstance(answer, (list, tuple)), answer
    found: Value = answer[1]
    return found


@pytest.mark.parametrize(
    ("told", "age"),
    [
        ({}, None),  # consumed_at alone: its own end is not reported, and 0 s would be invented
        ({"finished_at": 4.0, "scored_at": 7.0}, 26.0),
        ({"scored_at": 7.0}, 23.0),
        ({"group_complete_at": 9.0}, 21.0),
        ({"reward": 1.0}, None),
    ],
)
def test_the_age_at_use_needs_the_rollouts_own_end(told: dict[str, float], age: float | None) -> None:
    since = {name: at if name == "reward" else T + at for name, at in told.items()}
    book = fed(*[used(f"r{v}", v, v - 1, at=T + 30, **since) for v in range(3)])
    p95 = at_use(book)
    assert (None if p95.value != p95.value else p95.value, p95.why) == (age, AGE_HINT if age is None else "")


def test_a_use_whose_time_is_not_told_has_no_age() -> None:
    ends = [Rollout(f"r{v}", finished_at=T + v, consumptions=(Consumption(v),)) for v in range(3)]
    p95 = at_use(fed(*ends))
    assert p95.value != p95.value and p95.why == AGE_HINT
