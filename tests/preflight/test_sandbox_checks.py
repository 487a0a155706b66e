"""Leftovers, credit, life times and images: every number by hand."""

import math
from dataclasses import replace

import pytest
from msgspec import structs

from server.preflight.model import PreflightPlan, ReadTarget, Status
from server.preflight.sandboxes import canonical, removal
from tests.preflight.support import NOW, account, check, many, refused, sandbox

DAY = 24 * 3600.0


# ---- dangling


@pytest.mark.parametrize(
    ("count", "plan", "status"),
    [
        (0, PreflightPlan(), "ok"),
        (1, PreflightPlan(), "warn"),
        (10, PreflightPlan(), "warn"),
        (11, PreflightPlan(), "fail"),
        (11, PreflightPlan(max_dangling=50), "warn"),
        (1, PreflightPlan(max_dangling=0), "fail"),
        (5, PreflightPlan(concurrency=95), "warn"),
        (5, PreflightPlan(concurrency=96), "fail"),  # 95 are free: they are in the way
    ],
)
def test_dangling(count: int, plan: PreflightPlan, status: Status) -> None:
    seen = account({"concurrent": 100.0}, records=many(count, run_key="old", requested_at=NOW - 7200))
    found = check("dangling", seen, plan=plan)
    assert (found.status, found.value, len(found.ids)) == (status, float(count), count)


def test_thirty_are_counted_twenty_are_named() -> None:
    seen = account({"concurrent": 1000.0}, records=many(30, requested_at=NOW - 7200))
    found = check("dangling", seen)
    assert found.ids == tuple(f"sb-{n}" for n in range(20))
    assert found.commands[0] == "prime sandbox delete sb-0"
    assert len(found.commands) == 20
    assert found.summary == "30 sandboxes are live without an active run (3% of the quota), the oldest for 2 h"
    assert found.details == ("30 that name no run",)


def test_whose_run_lives_does_not_dangle() -> None:
    records = (
        sandbox("own", run_key="math"),
        sandbox("other", run_key="code"),
        sandbox("alice", run_key="alice-7"),
        sandbox("gone", "terminated", run_key="old"),
        sandbox("going", "stopping", run_key="old"),
    )
    seen = account(records=records)
    alive = frozenset({"code"})
    plan = PreflightPlan(known_runs=("alice-*",))
    assert check("dangling", seen, plan=plan, alive=alive, running=True).status == "ok"
    # Before a launch what carries this run's name is left from an earlier life.
    assert check("dangling", seen, plan=plan, alive=alive).ids == ("own",)
    own = "1 of run 'math' (an earlier incarnation of this run: make sure that it no longer runs)"
    assert own in check("dangling", seen, plan=plan, alive=alive).details
    assert check("dangling", seen, alive=alive).ids == ("own", "alice")
    assert check("dangling", seen).ids == ("own", "other", "alice")


def test_a_part_of_a_listing_is_no_proof_of_order() -> None:
    assert check("dangling", account(listed=False)).status == "unknown"
    assert check("dangling", account(), refused("timeout", name="second")).status == "unknown"
    assert check("dangling", account(records=many(11), listed=False)).status == "fail"
    assert check("dangling", account(records=many(11), listed=False)).summary.startswith("at least 11 ")


def test_containers_that_nothing_calls_sandboxes_are_left_alone() -> None:
    """The host's database must not stand under a command that removes it."""
    records = (sandbox("db", provider="docker"), sandbox("old", provider="docker", run_key="old"))
    found = check("dangling", account(records=records, collector="docker"))
    assert (found.ids, found.commands) == (("old",), ("docker rm --force old",))
    assert found.details[-1] == "1 that name no run are ignored; to mark sandboxes, set the option label"
    labelled = account(records=records, collector="docker", options=(("label", "sandbox=1"),))
    assert check("dangling", labelled).ids == ("db", "old")


def test_servers_that_are_targets_of_the_run_do_not_dangle() -> None:
    seen = account(records=(sandbox("s", provider="swerex"),), listed=False, collector="swerex")
    assert check("dangling", seen).status == "not_applicable"


@pytest.mark.parametrize(
    ("provider", "options", "expected"),
    [
        ("prime", (), "prime sandbox delete 'a b'"),
        ("e2b", (), "e2b sandbox kill 'a b'"),
        ("daytona", (), "daytona delete 'a b'"),
        ("docker", (), "docker rm --force 'a b'"),
        ("kubernetes", (), "kubectl delete pod pod-1"),
        ("kubernetes", (("namespace", "rl"),), "kubectl delete pod pod-1 --namespace rl"),
        ("kubernetes", (("kind", "sandboxes"),), "kubectl delete sandboxes.agents.x-k8s.io pod-1"),
        ("rock", (), ""),
    ],
)
def test_removal(provider: str, options: tuple[tuple[str, str], ...], expected: str) -> None:
    one = sandbox("a b", provider=provider, name="pod-1")
    assert removal(account(options=options), one) == expected


@pytest.mark.parametrize("provider", ["modal", "runloop"])
def test_removal_by_an_sdk_is_one_line_of_python(provider: str) -> None:
    import shlex  # noqa: PLC0415

    words = shlex.split(removal(account(), sandbox("sb-'1", provider=provider)))
    assert words[:2] == ["python", "-c"]
    compile(words[2], "removal", "exec")
    assert repr("sb-'1") in words[2]


@pytest.mark.parametrize("key", ["--all", "-a", "sb\n--all", "sb\x1b[2J"])
def test_no_command_is_made_of_what_is_no_id(key: str) -> None:
    assert removal(account(), sandbox(key)) == ""


def test_an_id_cannot_end_the_command() -> None:
    assert removal(account(), sandbox("x; rm -rf ~")) == "prime sandbox delete 'x; rm -rf ~'"


# ---- credit


@pytest.mark.parametrize(
    ("have", "plan", "status", "need", "why"),
    [
        (300.0, PreflightPlan(concurrency=96, run_length=DAY, price=0.1), "ok", 230.4, "96 x 0.1 x 24"),
        (288.1, PreflightPlan(concurrency=96, run_length=DAY, price=0.1), "ok", 230.4, "1.25 x 230.4 = 288"),
        (287.0, PreflightPlan(concurrency=96, run_length=DAY, price=0.1), "warn", 230.4, "less than a quarter over"),
        (230.0, PreflightPlan(concurrency=96, run_length=DAY, price=0.1), "fail", 230.4, "runs dry before the end"),
        (2.0, PreflightPlan(concurrency=96, run_length=DAY), "fail", 23.04, "$0.01/h is below any price"),
        (300.0, PreflightPlan(concurrency=96, run_length=DAY), "unknown", 23.04, "no price is available"),
        (300.0, PreflightPlan(concurrency=96, price=0.1), "unknown", 230.4, "24 h are assumed"),
        (200.0, PreflightPlan(concurrency=96, price=0.1), "fail", 230.4, "... which is enough to fail"),
        (300.0, PreflightPlan(run_length=DAY, price=0.1), "unknown", 0.0, "no concurrency"),
        (9.0, PreflightPlan(), "fail", 10.0, "no price, no plan: ten is the least"),
        (9.0, PreflightPlan(min_credit=5.0), "unknown", 0.0, "configured"),
        (2.0, PreflightPlan(concurrency=1, run_length=3600.0, price=0.1), "ok", 0.1, "a known price decides alone"),
        (0.0, PreflightPlan(), "fail", None, "nothing left"),
        (-3.0, PreflightPlan(), "fail", None, "in debt"),
        (None, PreflightPlan(concurrency=96, run_length=DAY, price=0.1), "unknown", None, "not told"),
    ],
)
def test_credit(have: float | None, plan: PreflightPlan, status: Status, need: float | None, why: str) -> None:
    gauges = {"sandbox_credit_usd": have} if have is not None else {}
    found = check("credit", account(gauges=gauges), plan=plan)
    assert (found.status, found.value) == (status, have), why
    assert found.limit == (None if need is None else pytest.approx(need)), why
    assert bool(found.fix) == (status != "ok")


def test_what_burns_already_is_on_the_bill() -> None:
    """30 alive burn 3 USD/h and the plan 9.6 USD/h: 302.4 USD a day."""
    plan = PreflightPlan(concurrency=96, run_length=DAY, price=0.1)
    gauges = {"sandbox_credit_usd": 1000.0, "sandbox_cost_usd_per_hour": 3.0}
    told = check("credit", account(gauges=gauges, records=many(30)), plan=plan)
    counted = check("credit", account(gauges={"sandbox_credit_usd": 1000.0}, records=many(30)), plan=plan)
    assert told.limit == counted.limit == pytest.approx(302.4)


def test_a_price_comes_from_the_records_else_from_what_burns() -> None:
    plan = PreflightPlan(concurrency=10, run_length=3600.0)
    records = (sandbox("a", cost_usd_per_hour=0.1), sandbox("b", cost_usd_per_hour=0.5))
    gauges = {"sandbox_credit_usd": 100.0, "sandbox_cost_usd_per_hour": 0.6}
    assert check("credit", account(gauges=gauges, records=records), plan=plan).limit == pytest.approx(5.6)
    assert check("credit", account(gauges=gauges, records=many(2)), plan=plan).limit == pytest.approx(3.6)


def test_refused_for_money_is_no_credit() -> None:
    assert check("credit", refused("credit", "HTTP 402: no credit left")).status == "fail"
    assert check("credit", refused("auth")).status == "unknown"


def test_one_silent_account_leaves_the_credit_open() -> None:
    plan = PreflightPlan(concurrency=96, run_length=DAY, price=0.1)
    rich, poor = account(gauges={"sandbox_credit_usd": 1000.0}), account(gauges={"sandbox_credit_usd": 20.0})
    silent = account(name="second", collector="e2b")
    assert check("credit", rich, silent, plan=plan).status == "unknown"
    assert check("credit", poor, silent, plan=plan).status == "warn"
    assert check("credit", poor, plan=plan).status == "fail"


def test_own_machines_need_no_credit() -> None:
    assert check("credit", account(collector="docker")).status == "not_applicable"


def test_why_a_wallet_is_silent_is_shown() -> None:
    seen = account()
    assert seen.reading is not None
    told = replace(
        seen, reading=structs.replace(seen.reading, gaps=("wallet: HTTP 403: not yours", "whoami: HTTP 404"))
    )
    assert check("credit", told).details == ("prime: wallet: HTTP 403: not yours", "prime: whoami: HTTP 404")


def test_sandboxes_nobody_could_read_are_no_matter_of_money() -> None:
    seen = account({"concurrent": 100.0}, records=many(3, run_key="old"), listed=False)
    assert seen.reading is not None
    doubts = {"dropped": 2, "why_dropped": "a sandbox without an id", "partial": "listing incomplete: 3 so far"}
    seen = replace(seen, reading=structs.replace(seen.reading, **doubts))  # type: ignore[arg-type]
    words = "2 rows dropped: a sandbox without an id; listing incomplete: 3 so far"
    plan = PreflightPlan(concurrency=10)
    assert check("credit", seen, plan=plan).details == ()
    assert f"prime: {words}" in check("dangling", seen, plan=plan).details
    assert f"prime: {words}" in check("quota", seen, plan=plan).details
    reach = check("reachability", seen, plan=plan)
    assert (reach.status, reach.details) == ("warn", (f"prime: answered in 0.12 s, incompletely: {words}",))


def test_what_lives_in_an_account_is_paid_by_it_alone() -> None:
    """30 at 0.01 USD/h for the 24 h that are assumed: 7.2 USD. Whatever a second account tells."""
    poor = account(gauges={"sandbox_credit_usd": 2.0}, records=many(30))
    for other in (
        account(name="second", collector="e2b"),
        account(name="second", gauges={"sandbox_credit_usd": 1000.0}),
        refused("unreachable", name="second"),
    ):
        found = check("credit", poor, other)
        assert (found.status, found.value, found.limit) == ("fail", 2.0, pytest.approx(7.2))
        assert found.summary.startswith("prime: $2 left; $0.3/h of 30 alive x 24 h (assumed) = $7.2")
    told = account(gauges={"sandbox_credit_usd": 7.0, "sandbox_cost_usd_per_hour": 3.0}, records=many(30))
    plan = PreflightPlan(run_length=2 * 3600.0)
    assert check("credit", told, account(name="second", collector="e2b"), plan=plan).status == "unknown"
    plan = PreflightPlan(run_length=3 * 3600.0)
    assert check("credit", told, account(name="second", collector="e2b"), plan=plan).limit == pytest.approx(9.0)


# ---- life time


@pytest.mark.parametrize(
    ("ttl", "deadline", "status"),
    [
        (3600.0, 1800.0, "ok"),
        (1981.0, 1800.0, "ok"),
        (1979.0, 1800.0, "warn"),
        (1800.0, 1800.0, "fail"),
        (300.0, 1800.0, "fail"),  # the default of two providers
        (math.inf, 1800.0, "ok"),
        (3600.0, None, "unknown"),
        (None, 1800.0, "unknown"),
    ],
)
def test_sandbox_ttl(ttl: float | None, deadline: float | None, status: Status) -> None:
    found = check("sandbox_ttl", account(), plan=PreflightPlan(sandbox_ttl=ttl, rollout_deadline=deadline))
    assert found.status == status
    assert found.value == (ttl if ttl != math.inf else None)


def test_the_shortest_life_counts_and_this_runs_own_before_others() -> None:
    def lives(key: str, seconds: float, run: str) -> object:
        return sandbox(key, run_key=run, ready_at=NOW, expires_at=NOW + seconds)

    plan = PreflightPlan(rollout_deadline=1800.0)
    others = (lives("a", 300.0, "code"), lives("b", 7200.0, "code"))
    own = (lives("c", 3600.0, "math"),)
    found = check("sandbox_ttl", account(records=others), plan=plan)  # type: ignore[arg-type]
    assert (found.status, found.value) == ("fail", 300.0)
    found = check("sandbox_ttl", account(records=others + own), plan=plan)  # type: ignore[arg-type]
    assert (found.status, found.value) == ("ok", 3600.0)
    backwards = sandbox("d", ready_at=NOW, expires_at=NOW - 1)
    assert check("sandbox_ttl", account(records=(backwards,)), plan=plan).status == "unknown"


# ---- images


def started(key: str = "i", at: float = NOW - 100, **more: object) -> object:
    return sandbox(key, image="python:3.12", requested_at=at, ready_at=at + 40, **more)


@pytest.mark.parametrize(
    ("records", "status", "why"),
    [
        ((), "unknown", "never seen"),
        ((started(),), "ok", "it started"),
        ((started(image_cached=True),), "ok", "from a cache"),
        ((started(image_cached=False),), "warn", "the first one is slow"),
        ((started(image_cached=False), started("j", image_cached=True)), "ok", "cached by now"),
        ((sandbox(state="building_image", image="python:3.12"),), "warn", "on its way"),
        ((sandbox(state="failed", cause="image", image="python:3.12", requested_at=NOW),), "fail", "cannot be pulled"),
        ((sandbox(state="failed", cause="oom", image="python:3.12", requested_at=NOW),), "unknown", "not its fault"),
        (
            (started(), sandbox("k", "failed", cause="image", image="python:3.12", requested_at=NOW)),
            "fail",
            "it did, and does no more",
        ),
        (
            (started(), sandbox("k", "failed", cause="image", image="python:3.12", requested_at=NOW - 900)),
            "ok",
            "it did not, and does now",
        ),
        ((sandbox(image="python:3.11"),), "unknown", "another tag is another image"),
    ],
)
def test_images(records: tuple, status: Status, why: str) -> None:  # type: ignore[type-arg]
    found = check("images", account(records=records), plan=PreflightPlan(images=("docker.io/library/python:3.12",)))
    assert found.status == status, why
    assert found.value == float(status == "ok")


def test_images_that_nobody_named_are_unknown() -> None:
    assert check("images", account(records=(started(),))).status == "unknown"  # type: ignore[arg-type]


def test_one_bad_image_of_three_decides() -> None:
    records = (started(), sandbox("f", "failed", cause="image", image="nope", detail="ErrImagePull"))
    found = check("images", account(records=records), plan=PreflightPlan(images=("python:3.12", "nope", "new")))  # type: ignore[arg-type]
    assert (found.status, found.value, found.limit) == ("fail", 1.0, 3.0)
    assert found.details == (
        "python:3.12: 1 started from it",
        "nope: 1 sandboxes failed on it: ErrImagePull",
        "new: no sandbox has started from it yet",
    )


@pytest.mark.parametrize(
    ("short", "full"),
    [
        ("python", "docker.io/library/python:latest"),
        ("python:3.12", "docker.io/library/python:3.12"),
        ("prime/base", "docker.io/prime/base:latest"),
        ("ghcr.io/a/b:1", "ghcr.io/a/b:1"),
        ("localhost:5000/b", "localhost:5000/b:latest"),
        ("python@sha256:ab", "docker.io/library/python@sha256:ab"),
    ],
)
def test_canonical(short: str, full: str) -> None:
    assert canonical(short) == full
    assert canonical(full) == full


def test_nothing_seen_is_nothing_known() -> None:
    silent: ReadTarget = refused("unreachable", "no answer: ConnectError")
    plan = PreflightPlan(96, 2.0, 1800.0, DAY, ("python",), {"concurrent": 1000.0, "starting": 1000.0}, 0.1)
    for name in ("credit", "dangling", "images"):
        assert check(name, silent, plan=plan).status == "unknown"
