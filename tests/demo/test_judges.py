"""The second account by itself: lives small enough to follow by hand, laws for any plan, and a run that is the same."""

import dataclasses
from collections import Counter

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demo.cluster import Cluster
from demo.faults import Agenda
from demo.provider import Judges
from demo.scenarios import SCENARIOS, JudgePlan
from demo.truth import judge_state
from tests.demo.conftest import Recorder

WALL = SCENARIOS["gb300-sandbox-wall"]
# Placed after 0.1 s, started after 3 s, at work for 20 s; nothing fails.
PLAN = JudgePlan(
    app="judges", share=1.0, place_seconds=(0.1, 0.1), start_seconds_median=3.0, start_sigma=0.0, slow_share=0.0,
    work_seconds_median=20.0, work_sigma=0.0, init_failed=0.0, oom_killed=0.0, hung=0.0, dangling=0,
)  # fmt: skip


class Account:
    def __init__(self, **changes: object) -> None:
        self.agenda = Agenda()
        plan = dataclasses.replace(PLAN, **changes)  # type: ignore[arg-type]
        self.judges = Judges(plan, "run-1", "run-0", 1, self.agenda)

    def until(self, now: float) -> None:
        while self.agenda.next_at <= now:
            self.agenda.run_next()


def test_a_life_from_queued_to_terminated() -> None:
    account = Account()
    judge = account.judges.create("trace-1", 5.0)
    seen = []
    for now in (5.0, 5.1, 8.0, 27.9):
        account.until(now)
        seen.append(judge.state)
    assert seen == ["queued", "starting", "running", "running"]
    assert account.judges.live == {judge.id: judge}
    account.until(28.0)
    assert (judge.enqueued, judge.started, judge.finished, judge.status) == (5.1, 8.0, 28.0, 3)
    assert (judge.name, judge.run, len(judge.id)) == ("trace-1", "run-1", 25)
    assert account.judges.live == {} and account.judges.records == {judge.id: judge}
    assert list(account.judges.completed) == [(8.0, 3.0)]


@pytest.mark.parametrize(
    ("change", "status", "started", "finished", "word"),
    [
        ({"init_failed": 1.0}, 5, None, (8.0, 8.0), "INIT_FAILURE"),
        ({"oom_killed": 1.0}, 10, 8.0, (10.0, 17.0), "KERNEL_OOM_KILL"),
        ({"hung": 1.0}, 4, 8.0, (308.0, 308.0), "TIMEOUT"),
        ({"work_seconds_median": 900.0}, 4, 8.0, (308.0, 308.0), "TIMEOUT"),
    ],
)
def test_what_does_not_end_as_it_should(
    change: dict[str, object], status: int, started: float | None, finished: tuple[float, float], word: str
) -> None:
    account = Account(**change)
    judge = account.judges.create("trace-1", 5.0)
    account.until(1_000.0)
    assert (judge.status, judge.started) == (status, started)
    assert judge.finished is not None and finished[0] <= judge.finished <= finished[1]
    assert account.judges.failures == {word: 1}


def test_a_share_of_the_rollouts_is_judged() -> None:
    """A quarter of 10,000, give or take four standard deviations (43)."""
    account = Account(share=0.25)
    for number in range(10_000):
        account.judges.consider(f"trace-{number}", 1.0)
    assert 2_325 < account.judges.created < 2_675


def test_what_the_older_run_left_runs_and_was_not_created_now() -> None:
    judges = Account(dangling=3).judges
    assert (judges.created, judges.counts()) == (0, {"queued": 0, "starting": 0, "running": 3})
    for judge in judges.live.values():
        assert (judge.run, judge.timeout_seconds) == ("run-0", 86_400)
        assert judge.started is not None and judge.created < judge.started < 0


def test_the_truth_of_a_moment() -> None:
    """At 10 s: one asked for at 0 s and three 3 s later that started; one at 9 s that did not."""
    account = Account(dangling=2)
    for at in (0.0, 3.0, 3.0, 3.0, 9.0):
        account.until(at)
        account.judges.create("trace", at)
    account.until(10.0)
    assert judge_state(account.judges, 10.0) == {
        "states": {"queued": 0, "starting": 1, "running": 6}, "dangling": 2, "oldest_pending_seconds": 1.0,
        "created": 5, "failures": {}, "spinups": 4, "spinup_p50_seconds": 3.0, "spinup_p95_seconds": 3.0,
        "spinup_max_seconds": 3.0,
    }  # fmt: skip


def test_what_ended_long_ago_is_forgotten() -> None:
    account = Account()
    old = account.judges.create("a", 0.0)  # over at 23 s
    account.judges.create("b", 7_199.0)  # over at 7,222 s
    account.until(7_222.0)
    assert old.id in account.judges.records
    account.judges.create("c", 7_201.0)  # over at 7,224 s
    account.until(7_224.0)
    assert old.id not in account.judges.records and len(account.judges.records) == 2


plans = st.builds(
    dataclasses.replace,
    st.just(PLAN),
    start_sigma=st.floats(0.0, 1.0),
    slow_share=st.floats(0.0, 0.3),
    work_sigma=st.floats(0.0, 2.0),
    init_failed=st.floats(0.0, 0.3),
    oom_killed=st.floats(0.0, 0.3),
    hung=st.floats(0.0, 0.3),
    dangling=st.integers(0, 3),
)


@settings(max_examples=50, deadline=None)
@given(
    plans,
    st.integers(0, 99),
    st.lists(st.floats(0.0, 500.0), min_size=1, max_size=30).map(sorted),
    st.lists(st.floats(0.0, 1_000.0), min_size=1, max_size=5).map(sorted),
)
def test_every_sandbox_is_in_exactly_one_place(
    plan: JudgePlan, seed: int, births: list[float], when: list[float]
) -> None:
    agenda = Agenda()
    judges = Judges(plan, "run-1", "run-0", seed, agenda)
    for at in births:
        agenda.plan(at, lambda now: judges.consider("trace", now))
    for moment in when:
        while agenda.next_at <= moment:
            agenda.run_next()
        over = [judge for judge in judges.records.values() if judge.status]
        assert judges.created == sum(at <= moment for at in births)
        assert len(judges.records) == judges.created + plan.dangling
        assert sum(judges.counts().values()) == len(judges.live) == len(judges.records) - len(over)
        assert sum(judges.failures.values()) == sum(judge.status != 3 for judge in over)
        assert len({judge.id for judge in judges.records.values()}) == len(judges.records)
        for judge in judges.records.values():
            times = [judge.created, judge.enqueued, judge.started, judge.finished]
            known = [time for time in times if time is not None]
            assert known == sorted(known) and known[-1] <= moment


def test_judges_are_the_plans_share_of_the_rollouts_and_change_nothing_in_the_run() -> None:
    assert WALL.sandboxes is not None and WALL.sandboxes.judges is not None
    bare = dataclasses.replace(WALL, sandboxes=dataclasses.replace(WALL.sandboxes, judges=None))
    told = []
    for scenario in (WALL, bare):
        cluster, recorder = Cluster(scenario, 3), Recorder()
        cluster.observers.append(recorder)
        cluster.advance(1_800.0)
        told.append([(step.start, step.end, step.batch.total_tokens, step.means) for step in recorder.steps])
        if scenario is WALL:
            harness = cluster.orchestrator.harness
            assert harness is not None and harness.judges is not None
            judges, census = harness.judges, cluster.orchestrator.census()
    assert told[0] == told[1] and len(told[0]) == 4
    generated = sum(census[place] for place in ("scoring", "waiting_group", "queued", "trained", "dropped"))
    assert judges.created / generated == pytest.approx(0.25, abs=0.025)
    names = Counter(judge.name for judge in judges.records.values() if judge.run == WALL.run)
    assert set(names.values()) == {1}, "a rollout is judged once"
