"""Room: every number by hand."""

import math

import pytest

from collectors.model import Histogram, Reading, Target
from server.preflight.model import PreflightPlan, ReadTarget, Status
from tests.preflight.support import NOW, account, check, many, refused, sandbox


@pytest.mark.parametrize(
    ("limit", "used", "planned", "status", "free", "why"),
    [
        (1000.0, 30.0, 500, "ok", 970.0, "500 of 970"),
        (1000.0, 30.0, 873, "ok", 970.0, "90 % of 970 is 873"),
        (1000.0, 30.0, 874, "warn", 970.0, "one more leaves no room for retries"),
        (1000.0, 30.0, 970, "warn", 970.0, "it just fits"),
        (1000.0, 30.0, 971, "fail", 970.0, "one too many"),
        (1000.0, 1000.0, None, "fail", 0.0, "a full quota fails any plan"),
        (1000.0, 30.0, None, "unknown", 970.0, "no plan, no answer"),
        (None, 30.0, 96, "unknown", None, "the limit is not reported"),
    ],
)
def test_quota(
    limit: float | None, used: float, planned: int | None, status: Status, free: float | None, why: str
) -> None:
    limits = {"concurrent": limit} if limit is not None else {}
    found = check("quota", account(limits, {"concurrent": used}), plan=PreflightPlan(concurrency=planned))
    assert (found.status, found.limit, found.value) == (status, free, planned), why
    assert bool(found.fix) == (status != "ok")


def test_a_configured_limit_stands_in_and_the_lower_one_holds() -> None:
    plan = PreflightPlan(concurrency=96, limits={"concurrent": 100.0})
    found = check("quota", account(used={"concurrent": 4.0}), plan=plan)
    assert (found.status, found.limit) == ("warn", 96.0)
    assert check("quota", account({"concurrent": 1000.0}, {"concurrent": 4.0}), plan=plan).limit == 96.0
    assert check("quota", account({"concurrent": 50.0}, {"concurrent": 4.0}), plan=plan).limit == 46.0


def test_what_lives_is_counted_where_the_provider_does_not() -> None:
    limits, plan = {"concurrent": 100.0}, PreflightPlan(concurrency=80)
    gone = (sandbox("x", "terminated"), sandbox("y", "stopping"))
    assert check("quota", account(limits, records=many(10) + gone), plan=plan).limit == 90.0
    part = check("quota", account(limits, records=many(10), listed=False), plan=plan)
    assert (part.status, part.limit) == ("unknown", 90.0)  # at most 90: it may be less
    assert check("quota", account(limits, records=many(21), listed=False), plan=plan).status == "fail"


def test_nobody_says_how_many_are_in_use_where_nobody_could_look() -> None:
    plan = PreflightPlan(concurrency=96, limits={"concurrent": 100.0, "starting": 10.0}, create_rate=1.0, spinup=5.0)
    down = refused("unreachable", "no answer")
    assert check("quota", down, plan=PreflightPlan(concurrency=96)).summary == (
        "96 planned, the number in use is unknown; the limit is not reported"
    )
    assert check("quota", down, plan=plan).summary == (
        "96 planned, at most 100 free: limit 100, the number in use is unknown"
    )
    assert check("starting_limit", down, plan=plan).summary.endswith(
        "at most 10 may: limit 10, the number starting now is unknown"
    )
    part = check("quota", account(records=many(7), listed=False), down, plan=plan)
    assert part.summary == "96 planned, 93 free: limit 100 - at least 7 in use"
    untold = check("quota", account(records=many(7), listed=False), plan=PreflightPlan(concurrency=96))
    assert untold.summary == "96 planned, at least 7 in use; the limit is not reported"


def test_quotas_of_two_accounts_add_up_and_one_that_is_silent_leaves_it_open() -> None:
    one, plan = account({"concurrent": 60.0}, {"concurrent": 0.0}), PreflightPlan(concurrency=96)
    two = account({"concurrent": 60.0}, {"concurrent": 10.0}, name="second")
    both = check("quota", one, two, plan=plan)
    assert (both.status, both.limit) == ("ok", 110.0)  # 90 % of 110 is 99
    assert check("quota", one, refused("timeout", name="second"), plan=plan).status == "unknown"
    assert check("quota", one, plan=plan).status == "fail"


def test_a_refusal_for_quota_is_a_full_one() -> None:
    found = check("quota", refused("quota", "HTTP 403: limit"), plan=PreflightPlan(concurrency=1))
    assert found.status == "fail"
    assert found.details == ("prime: HTTP 403: limit",)


def test_cores_count_where_a_size_is_planned() -> None:
    """Daytona counts cores, memory and disk, and no sandboxes."""
    seen = account({"cpu": 400.0, "memory_gb": 800.0}, {"cpu": 40.0, "memory_gb": 0.0}, records=many(20))
    fits = check("quota", seen, plan=PreflightPlan(concurrency=96, size={"cpu": 2.0, "memory_gb": 4.0}))
    assert fits.status == "ok"
    assert fits.details[0] == "cpu: 192 needed (2 each), 360 free of 400"
    assert check("quota", seen, plan=PreflightPlan(concurrency=96, size={"cpu": 4.0})).status == "fail"  # 384 of 360
    guess = check("quota", seen, plan=PreflightPlan(concurrency=200))  # those alive take 2 cores each: 400 of 360
    assert guess.status == "warn"
    assert guess.details[0] == "cpu: 400 needed (2 each, as the live sandboxes use), 360 free of 400"
    assert check("quota", seen, plan=PreflightPlan(concurrency=10)).status == "unknown"  # a guess passes nothing


# ---- starting


def spun(seconds: float, count: int = 100) -> tuple:  # type: ignore[type-arg]
    return tuple(
        sandbox(f"old-{n}", "terminated", requested_at=NOW - 5000, ready_at=NOW - 5000 + seconds) for n in range(count)
    )


@pytest.mark.parametrize(
    ("limit", "rate", "concurrency", "status", "need", "why"),
    [
        (128.0, 2.0, None, "ok", 80.0, "2/s x 40 s = 80; 80 % of 128 is 102"),
        (128.0, 2.6, None, "warn", 104.0, "104 is more than 80 % of 128"),
        (128.0, 3.2, None, "warn", 128.0, "it just fits"),
        (128.0, 4.0, None, "fail", 160.0, "4/s x 40 s = 160"),
        (128.0, 4.0, 100, "ok", 100.0, "never more than the plan's 100 can be starting"),
        (128.0, 4.0, 960, "fail", 160.0, "960 do not change Little's law"),
        (128.0, None, 100, "ok", 100.0, "all at once fit, whatever the rate"),
        (128.0, None, 960, "unknown", None, "without a rate nobody knows"),
        (None, 4.0, 960, "unknown", 160.0, "the limit is not reported"),
    ],
)
def test_starting_limit(
    limit: float | None, rate: float | None, concurrency: int | None, status: Status, need: float | None, why: str
) -> None:
    plan = PreflightPlan(
        concurrency=concurrency, create_rate=rate, limits={"starting": limit} if limit is not None else {}
    )
    found = check("starting_limit", account(records=spun(40.0)), plan=plan)
    assert found.status == status, why
    assert found.value == (None if need is None else pytest.approx(need)), why


def test_what_is_starting_already_takes_its_place() -> None:
    busy = tuple(sandbox(f"n-{n}", "starting", requested_at=NOW - 10) for n in range(28))
    found = check(
        "starting_limit", account({"starting": 128.0}, records=spun(40.0) + busy), plan=PreflightPlan(create_rate=2.5)
    )
    assert (found.limit, found.value, found.status) == (100.0, 100.0, "warn")


def test_the_95th_percentile_is_the_95th_of_100() -> None:
    records = tuple(
        sandbox(f"o{n}", "terminated", requested_at=NOW - 9000, ready_at=NOW - 9000 + n) for n in range(1, 101)
    )
    found = check("starting_limit", account({"starting": 1000.0}, records=records), plan=PreflightPlan(create_rate=1.0))
    assert (found.status, found.value) == ("ok", 95.0)


def test_a_wall_is_seen_before_anything_fails() -> None:
    """100 starts took 40 s, but 20 have been pending for an hour: they are in no list of finished ones."""
    stuck = tuple(sandbox(f"p-{n}", "queued", requested_at=NOW - 3600) for n in range(20))
    seen = account({"starting": 128.0}, records=spun(40.0) + stuck)
    found = check("starting_limit", seen, plan=PreflightPlan(create_rate=2.0))
    assert (found.status, found.value) == ("fail", 7200.0)
    assert "20 still pending for longer is 60 min" in found.summary
    young = tuple(sandbox(f"p-{n}", "queued", requested_at=NOW - 5) for n in range(20))
    fresh = check(
        "starting_limit", account({"starting": 128.0}, records=spun(40.0) + young), plan=PreflightPlan(create_rate=2)
    )
    assert (fresh.value, fresh.limit, fresh.status) == (80.0, 108.0, "ok")


def test_only_a_pending_one_is_a_lower_bound() -> None:
    seen = account({"starting": 1000.0}, records=(sandbox("p", "starting", requested_at=NOW - 10),))
    assert check("starting_limit", seen, plan=PreflightPlan(create_rate=1.0)).status == "unknown"
    assert check("starting_limit", seen, plan=PreflightPlan(create_rate=200.0)).status == "fail"  # 2,000 already
    assert check("starting_limit", seen, plan=PreflightPlan(create_rate=1.0, spinup=40.0)).status == "ok"


def test_a_histogram_page_beside_the_account_says_how_long() -> None:
    pages = Target("controller", "math", "agent_sandbox_metrics", "sandbox", url="http://controller")
    inside = Histogram("sandbox_spinup_seconds", (10.0, 60.0, 240.0), (50.0, 96.0, 100.0, 100.0), 3000.0)
    beyond = Histogram("sandbox_spinup_seconds", (10.0, 60.0, 240.0), (50.0, 60.0, 70.0, 100.0), 90000.0)
    quota = account({"starting": 1000.0})
    plan = PreflightPlan(create_rate=1.0)
    known = check("starting_limit", quota, ReadTarget(pages, Reading(histograms=(inside,))), plan=plan)
    assert (known.status, known.value) == ("ok", 60.0)
    wall = check("starting_limit", quota, ReadTarget(pages, Reading(histograms=(beyond,))), plan=plan)
    assert (wall.status, wall.value) == ("unknown", 240.0)
    assert "more than 4 min" in wall.summary


def test_an_account_that_also_has_histograms_is_still_one() -> None:
    """It lists sandboxes and tells no quota: the other's quota is not the whole."""
    both = Target("second", "math", "prime_sandboxes", "sandbox", url="http://second")
    spinups = Histogram("sandbox_spinup_seconds", (10.0,), (5.0, 5.0), 20.0)
    seen = ReadTarget(both, Reading(histograms=(spinups,), sandboxes=many(3), listed=("prime",)))
    assert check("quota", account({"concurrent": 1000.0}), seen, plan=PreflightPlan(concurrency=96)).status == "unknown"


# ---- creation


@pytest.mark.parametrize(
    ("limits", "plan", "status", "why"),
    [
        ({"creates_per_second": 10.0}, PreflightPlan(create_rate=5.0), "ok", "5 of 10"),
        ({"creates_per_second": 10.0}, PreflightPlan(create_rate=9.5), "warn", "bursts of 10 %"),
        ({"creates_per_second": 10.0}, PreflightPlan(create_rate=10.5), "fail", "throttled"),
        ({"creates_per_second": 10.0}, PreflightPlan(), "unknown", "no rate"),
        ({}, PreflightPlan(create_rate=5.0), "unknown", "no limit"),
        ({}, PreflightPlan(create_rate=5.0, limits={"creates_per_second": 40.0}), "ok", "configured"),
        (
            {"creates_per_hour": 3600.0, "creates_per_second": 10.0},
            PreflightPlan(create_rate=5.0),
            "warn",
            "18,000/h of 3,600",
        ),
        ({"creates_per_hour": 500.0}, PreflightPlan(concurrency=960), "fail", "not even the first batch"),
        (
            {"creates_per_hour": 1500.0},
            PreflightPlan(concurrency=960, rollout_deadline=1800.0),
            "fail",
            "each seat twice an hour: 1,920",
        ),
        ({"creates_per_hour": 2000.0}, PreflightPlan(concurrency=960, rollout_deadline=1800.0), "unknown", "no rate"),
    ],
)
def test_create_rate(limits: dict[str, float], plan: PreflightPlan, status: Status, why: str) -> None:
    assert check("create_rate", account(limits), plan=plan).status == status, why


def test_the_rate_of_others_is_taken_off() -> None:
    seen = account({"creates_per_second": 10.0}, gauges={"sandbox_creates_per_second": 4.0})
    found = check("create_rate", seen, plan=PreflightPlan(create_rate=7.0))
    assert (found.status, found.limit) == ("fail", 6.0)


def test_no_number_is_infinite() -> None:
    for name in ("quota", "starting_limit", "create_rate"):
        found = check(name, account({"starting": 10.0}), plan=PreflightPlan(create_rate=1.0))
        assert all(value is None or math.isfinite(value) for value in (found.value, found.limit))
