"""The sandbox provider by itself: a plan small enough to follow by hand, and laws that hold for any."""

import dataclasses
from collections import Counter
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from demo.cluster import Cluster
from demo.faults import Agenda
from demo.provider import Provider, Sandbox
from demo.scenarios import SCENARIOS, SandboxPlan

NEVER = (10**9, 10**9)
# Every start takes 10 s, nothing fails, nothing straggles, no image needs more than 100 s.
PLAN = SandboxPlan(
    age_seconds=0.0, concurrency=((0.0, 10),), starting_limit=2, concurrent_limit=100, start_seconds_median=10.0,
    start_sigma=0.0, slow_share=0.0, first_straggler=NEVER, straggler_every=NEVER, image_pull_failed=0.0,
    timed_out=0.0, oom_killed=0.0, dangling=0,
)  # fmt: skip


class Account:
    """A provider with an agenda, and a diary of what it said: (time, name, ready or failed)."""

    def __init__(self, **changes: object) -> None:
        self.agenda = Agenda()
        self.provider = Provider(dataclasses.replace(PLAN, **changes), "run-1", 1, self.agenda)  # type: ignore[arg-type]
        self.provider._built.add("image")
        self.diary: list[tuple[float, str, str]] = []

    def create(self, name: str, now: float, image: str = "image") -> Sandbox:
        self.until(now)
        return self.provider.create(name, image, now, self._note(name, "ready"), self._note(name, "failed"))

    def _note(self, name: str, what: str) -> Callable[[float], None]:
        return lambda now: self.diary.append((now, name, what))

    def until(self, now: float) -> None:
        while self.agenda.next_at <= now:
            self.agenda.run_next()


def test_a_life_from_pending_to_terminated() -> None:
    account = Account()
    sandbox = account.create("a", 5.0)
    assert sandbox.status == "PROVISIONING"
    account.until(15.0)
    assert (sandbox.status, sandbox.created, sandbox.started, sandbox.ended) == ("RUNNING", 5.0, 15.0, None)
    assert account.diary == [(15.0, "a", "ready")]
    account.provider.delete(sandbox, 40.0)
    assert (sandbox.status, sandbox.started, sandbox.ended) == ("TERMINATED", 15.0, 40.0)
    assert sandbox.id not in account.provider.live
    assert account.provider.records[sandbox.id] is sandbox


def test_a_starting_slot_goes_to_the_newest_request() -> None:
    """Two slots: a and b start; c, d, e wait. At 10 s both slots are free: e and d are started, c waits on."""
    account = Account()
    made = {name: account.create(name, at) for name, at in zip("abcde", (0.0, 0.0, 1.0, 2.0, 3.0), strict=True)}
    assert [sandbox.status for sandbox in made.values()] == ["PROVISIONING"] * 2 + ["PENDING"] * 3
    account.create("f", 12.0)  # newer than c, and asked before a slot is free
    account.until(40.0)
    order = [(10.0, "a"), (10.0, "b"), (20.0, "e"), (20.0, "d"), (30.0, "f"), (30.0, "c")]
    assert account.diary == [(at, name, "ready") for at, name in order]
    assert list(account.provider.completed) == [(10.0, 10.0)] * 2 + [
        (20.0, 17.0),
        (20.0, 18.0),
        (30.0, 18.0),
        (30.0, 29.0),
    ]


def test_the_first_use_of_an_image_waits_for_its_build() -> None:
    account = Account()
    first, second = account.create("a", 0.0, "new"), account.create("b", 5.0, "new")
    assert first.build_id == second.build_id is not None
    assert account.provider.counts() == {"building_image": 2, "pending": 0, "provisioning": 0, "running": 0}
    built = account.agenda.next_at
    account.until(built)
    assert account.provider.counts() == {"building_image": 0, "pending": 0, "provisioning": 2, "running": 0}
    account.until(built + 10.0)
    assert [at for at, _, _ in account.diary] == [built + 10.0] * 2
    assert account.create("c", 1_000.0, "new").build_id is None, "built once"


@pytest.mark.parametrize(
    ("change", "kind", "at", "started"),
    [
        ({"image_pull_failed": 1.0}, "IMAGE_PULL_FAILED", 10.0, None),
        ({"timed_out": 1.0}, "TIMEOUT", 300.0, None),
        ({"oom_killed": 1.0}, "OOM_KILLED", None, 10.0),
    ],
)
def test_failures(change: dict[str, object], kind: str, at: float | None, started: float | None) -> None:
    account = Account(**change)
    sandbox = account.create("a", 0.0)
    account.until(400.0)
    assert (sandbox.status, sandbox.error_type, sandbox.started) == ("ERROR", kind, started)
    [(failed, name, what)] = account.diary
    assert (name, what) == ("a", "failed")
    assert failed == at if at is not None else 12.0 <= failed <= 19.0
    assert sandbox.ended == failed
    assert account.provider.failures == {kind: 1}
    assert account.provider.starting == 0


def test_at_the_accounts_limit_a_request_fails_with_the_quotas_words() -> None:
    account = Account(concurrent_limit=3, dangling=1)
    kept = account.create("a", 0.0)
    account.create("b", 0.0)
    refused = account.create("c", 0.0)
    account.until(0.0)
    assert (refused.status, refused.error_type, refused.ended) == ("ERROR", None, 0.0)
    assert refused.error_message == "Sandbox quota exceeded: the account is at its limit of 3 concurrent sandboxes"
    assert account.provider.failures == {"quota": 1}
    account.until(20.0)
    account.provider.delete(kept, 20.0)
    account.create("d", 23.9)
    account.until(23.9)
    assert account.provider.failures == {"quota": 2}, "its place is free only 4 s later"
    account.create("e", 24.0)
    account.until(60.0)
    assert account.diary[-1] == (34.0, "e", "ready")


def test_a_straggler_stays_pending_and_holds_no_starting_slot() -> None:
    account = Account(first_straggler=(1, 1), straggler_seconds=(4_000.0, 4_000.0))
    stuck = account.create("a", 0.0)
    account.create("b", 0.0)
    account.create("c", 0.0)
    assert account.provider.starting == 2
    account.until(3_999.0)
    assert (stuck.status, stuck.build_id) == ("PENDING", None)
    assert account.provider.pending() == [stuck]
    account.until(4_010.0)
    assert stuck.started == 4_010.0


def test_what_an_older_run_left_behind_runs_and_costs() -> None:
    account = Account(dangling=3, usd_per_hour=2.0)
    assert {sandbox.label for sandbox in account.provider.live.values()} == {PLAN.dangling_run}
    assert all(sandbox.created < sandbox.started < 0 for sandbox in account.provider.live.values() if sandbox.started)
    assert account.provider.spent_usd(1_800.0) == pytest.approx(3.0)
    assert account.provider.created == 0


def test_what_ended_long_ago_is_forgotten() -> None:
    account = Account()
    old = account.create("a", 0.0)
    account.until(10.0)
    account.provider.delete(old, 10.0)
    for at in (7_210.0, 7_211.0):
        sandbox = account.create("b", at - 10.0)
        account.until(at)
        account.provider.delete(sandbox, at)
        assert (old.id in account.provider.records) == (at == 7_210.0)
    assert account.provider.billed == 3


# -- laws ------------------------------------------------------------------------------------------------------

plans = st.builds(
    dataclasses.replace,
    st.just(PLAN),
    concurrency=st.integers(1, 60).map(lambda cap: ((0.0, 1), (200.0, cap))),
    starting_limit=st.integers(1, 20),
    concurrent_limit=st.integers(4, 80),
    start_sigma=st.floats(0.0, 1.0),
    slow_share=st.floats(0.0, 0.2),
    first_straggler=st.just((1, 30)),
    straggler_every=st.just((1, 30)),
    straggler_seconds=st.just((20.0, 300.0)),
    image_pull_failed=st.floats(0.0, 0.2),
    oom_killed=st.floats(0.0, 0.2),
    timed_out=st.floats(0.0, 0.05),
    dangling=st.integers(0, 3),
    turns_max=st.integers(3, 7),
)


@settings(max_examples=20, deadline=None)
@given(plans, st.integers(0, 99), st.lists(st.floats(0.0, 500.0), min_size=1, max_size=5).map(sorted))
def test_every_rollout_and_sandbox_is_in_exactly_one_place(plan: SandboxPlan, seed: int, when: list[float]) -> None:
    scenario = dataclasses.replace(
        SCENARIOS["gb300-sandbox-wall"], sandboxes=plan, batch_samples=16, response_tokens_median=200.0
    )
    cluster = Cluster(scenario, seed)
    orchestrator = cluster.orchestrator
    assert orchestrator.harness is not None
    provider = orchestrator.harness.provider
    for moment in when:
        cluster.advance(moment)
        census = orchestrator.census()
        assert sum(census.values()) == orchestrator.dispatched
        assert min(census.values()) >= 0
        places = ("booting", "waiting_slot", "generating", "in_tool", "scoring")
        assert sum(census[place] for place in places) == orchestrator.in_flight.value <= plan.in_flight_cap(moment)
        states = Counter(sandbox.status for sandbox in provider.records.values())
        assert states["PROVISIONING"] == provider.starting <= plan.starting_limit
        assert states["RUNNING"] == provider.running.value
        assert len(provider.live) == sum(states[name] for name in ("PENDING", "PROVISIONING", "RUNNING"))
        assert len(provider.live) <= plan.concurrent_limit + 1  # a refused one is gone within its instant
        assert states["ERROR"] == sum(provider.failures.values())
        assert sum(states.values()) == provider.created + plan.dangling
        # An agent at work has a sandbox that runs.
        at_work = sum(census[place] for place in places[1:])
        assert at_work <= states["RUNNING"] - plan.dangling
