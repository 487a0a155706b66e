"""What must hold for any numbers: more load never helps, and what is not known is never "ok"."""

from dataclasses import fields, replace
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from collectors.model import ErrorKind
from server.preflight.checks import judge
from server.preflight.model import Inputs, PreflightPlan, ReadTarget
from tests.preflight.support import NOW, account, directory, engine, inputs, refused, sandbox

maybe = st.none() | st.floats(0, 5000)
RESOURCES = ("concurrent", "starting", "creates_per_second", "creates_per_hour", "cpu")


def told(values: dict[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in values.items() if value is not None}


quotas = st.fixed_dictionaries({name: maybe for name in RESOURCES}).map(told)
gauges = st.fixed_dictionaries(
    {"sandbox_credit_usd": maybe, "sandbox_cost_usd_per_hour": maybe, "sandbox_creates_per_second": maybe}
).map(told)
states = st.sampled_from(["queued", "starting", "running", "paused", "terminated", "failed", "unknown"])
records = st.lists(
    st.builds(
        lambda state, age, took, key: sandbox(
            repr((state, age, took, key)), state, requested_at=NOW - age, run_key=key,
            ready_at=NOW - age + took if took is not None else None,
        ),
        states, st.floats(0, 10_000), st.none() | st.floats(0, 4000), st.sampled_from(["", "math", "old"]),
    ),
    max_size=8,
).map(tuple)  # fmt: skip
accounts = st.builds(
    lambda limits, used, told, rows, listed: account(limits, used, told, rows, listed=listed),
    quotas, quotas, gauges, records, st.booleans(),
)  # fmt: skip
plans = st.builds(
    PreflightPlan,
    concurrency=st.none() | st.integers(1, 5000),
    create_rate=st.none() | st.floats(0.01, 500),
    rollout_deadline=st.none() | st.floats(1, 10_000),
    run_length=st.none() | st.floats(60, 1e6),
    price=st.none() | st.floats(0.01, 5),
    spinup=st.none() | st.floats(0.1, 4000),
    limits=quotas,
    size=st.fixed_dictionaries({"cpu": st.none() | st.floats(0.1, 16)}).map(told),
)


def statuses(given_inputs: Inputs) -> dict[str, str]:
    return {one.name: one.status for one in judge(given_inputs)}


@settings(max_examples=200, deadline=None)
@given(st.lists(accounts, min_size=1, max_size=2), plans, st.integers(1, 5000), st.integers(1, 5000))
def test_more_concurrency_never_helps(seen: list[ReadTarget], plan: PreflightPlan, some: int, more: int) -> None:
    before = statuses(inputs(*seen, plan=replace(plan, concurrency=some)))
    after = statuses(inputs(*seen, plan=replace(plan, concurrency=some + more)))
    assert not [name for name in before if before[name] == "fail" and after[name] != "fail"]
    assert not [name for name in before if before[name] in ("fail", "warn") and after[name] == "ok"]


@settings(max_examples=150, deadline=None)
@given(accounts, plans, st.floats(0.01, 100), st.floats(0.01, 100))
def test_a_faster_creation_never_helps(seen: ReadTarget, plan: PreflightPlan, some: float, more: float) -> None:
    before = statuses(inputs(seen, plan=replace(plan, create_rate=some)))
    after = statuses(inputs(seen, plan=replace(plan, create_rate=some + more)))
    assert not [name for name in before if before[name] == "fail" and after[name] != "fail"]
    assert not [name for name in before if before[name] == "warn" and after[name] == "ok"]


@settings(max_examples=150, deadline=None)
@given(st.lists(accounts, max_size=2), plans, st.sampled_from(["auth", "timeout", "unreachable", "garbage"]))
def test_an_account_that_cannot_be_read_is_never_passed_over(
    seen: list[ReadTarget], plan: PreflightPlan, kind: ErrorKind
) -> None:
    found = statuses(inputs(*seen, refused(kind, name="silent"), plan=plan))
    of_images = {"images", "sandbox_ttl"}  # one account that knows is enough
    assert not [name for name, status in found.items() if status == "ok" and name not in of_images]


# ---- a plan and an account with which everything is known, and then without one thing

GOOD_PLAN = PreflightPlan(
    concurrency=96,
    create_rate=2.0,
    rollout_deadline=1800.0,
    run_length=86400.0,
    images=("python:3.12",),
    price=0.1,
)
DONE = tuple(
    sandbox(
        f"d{n}", "terminated", image="python:3.12", requested_at=NOW - 4000, ready_at=NOW - 3960,
        expires_at=NOW - 3960 + 7200,
    )
    for n in range(20)
)  # fmt: skip
LIMITS = {"concurrent": 1000.0, "starting": 128.0, "creates_per_second": 10.0}
GOOD: dict[str, Any] = {"limits": LIMITS, "gauges": {"sandbox_credit_usd": 500.0}, "records": DONE}


def good(**changed: Any) -> ReadTarget:
    return account(**{**GOOD, **changed}, skew=0.0)


def others() -> tuple[ReadTarget, ...]:
    return engine("e", skew=0.0), directory()


def test_all_is_well_when_all_is_known_and_fits() -> None:
    assert set(statuses(inputs(good(), *others(), plan=GOOD_PLAN)).values()) == {"ok"}


def test_without_any_one_input_some_check_is_unknown_and_the_rest_stay() -> None:
    needs = {
        "concurrency": {"quota", "credit"},
        "create_rate": {"create_rate"},  # 96 starting at once would fit, whatever the rate
        "rollout_deadline": {"sandbox_ttl"},
        "run_length": {"credit"},
        "images": {"images"},
        "price": {"credit"},
    }
    for name, hit in needs.items():
        default = next(one.default for one in fields(PreflightPlan) if one.name == name)
        found = statuses(inputs(good(), *others(), plan=replace(GOOD_PLAN, **{name: default})))
        assert {one for one, status in found.items() if status == "unknown"} == hit, name
        assert {status for one, status in found.items() if one not in hit} == {"ok"}, name


def test_without_any_one_thing_read_some_check_is_unknown() -> None:
    def lost(seen: ReadTarget, *rest: ReadTarget) -> set[str]:
        found = statuses(inputs(seen, *rest, plan=GOOD_PLAN))
        assert set(found.values()) <= {"ok", "unknown"}
        return {name for name, status in found.items() if status == "unknown"}

    for resource, hit in (
        ("concurrent", {"quota"}),
        ("starting", {"starting_limit"}),
        ("creates_per_second", {"create_rate"}),
    ):
        assert lost(good(limits={k: v for k, v in LIMITS.items() if k != resource}), *others()) == hit
    assert lost(good(gauges={}), *others()) == {"credit"}
    assert lost(good(records=()), *others()) == {"sandbox_ttl", "images"}
    assert lost(good(listed=False), *others()) == {"quota", "starting_limit", "create_rate", "dangling"}
    assert lost(replace(good(), skew=None), *others()) == {"clock_skew"}
    assert lost(good(), engine("e", "", skew=0.0), directory()) == {"engines"}
    assert lost(good(), engine("e", skew=0.0)) == {"run_directory"}
    assert lost(good(), directory()) == {"engines"}


def test_no_number_is_no_number() -> None:
    """NaN compares as neither more nor less, and infinity is no limit anybody sells: both are unknown."""
    for bad in (float("nan"), float("inf")):
        limits = dict.fromkeys(LIMITS, bad)
        found = statuses(inputs(good(limits=limits, gauges={"sandbox_credit_usd": bad}), *others(), plan=GOOD_PLAN))
        unknown = {name for name, status in found.items() if status == "unknown"}
        assert unknown == {"quota", "starting_limit", "create_rate", "credit"}
    odd = (*DONE, sandbox("nan", cost_usd_per_hour=float("nan"), run_key="math"))
    plan = replace(GOOD_PLAN, price=None)
    assert statuses(inputs(good(records=odd), *others(), plan=plan))["credit"] == "unknown"
