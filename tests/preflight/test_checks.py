"""Keys, reachability, engines, directories, clocks, and what does not apply."""

import pytest

from collectors.model import ErrorKind, Reading, ScrapeError, Target
from server.preflight.checks import judge, outcome
from server.preflight.model import Check, Inputs, PreflightPlan, ReadTarget, Status, number, span
from tests.preflight.support import NOW, account, check, directory, engine, inputs, refused

SANDBOX_CHECKS = {
    "credentials", "reachability", "quota", "starting_limit", "create_rate", "credit", "dangling", "sandbox_ttl",
    "images",
}  # fmt: skip
ALL_CHECKS = SANDBOX_CHECKS | {"engines", "run_directory", "clock_skew"}


@pytest.mark.parametrize(
    ("kind", "credentials", "reachability", "why"),
    [
        ("auth", "fail", "unknown", "401: nobody has seen what is behind it"),
        ("credit", "ok", "unknown", "402 is said to a key it knows"),
        ("quota", "ok", "unknown", "as is 403 for a quota"),
        ("throttled", "ok", "warn", "429: too many requests"),
        ("status", "unknown", "fail", "500"),
        ("timeout", "unknown", "fail", "it hangs"),
        ("unreachable", "unknown", "fail", "it is not there"),
        ("garbage", "unknown", "fail", "a proxy's page"),
        ("too_large", "unknown", "fail", "not what was requested"),
    ],
)
def test_refusals(kind: ErrorKind, credentials: Status, reachability: Status, why: str) -> None:
    assert check("credentials", refused(kind)).status == credentials, why
    assert check("reachability", refused(kind)).status == reachability, why


def test_each_account_is_named() -> None:
    found = check("credentials", account(), refused("auth", "HTTP 401: wrong", name="second"))
    assert (found.status, found.value, found.limit) == ("fail", 1.0, 2.0)
    assert found.details == ("prime: accepted", "second: HTTP 401: wrong")
    patient = check("reachability", refused("throttled", "HTTP 429", retry_after=30.0))
    assert patient.details == ("prime: HTTP 429; retry after 30 s",)


def test_a_suspended_account_has_no_use_for_its_key() -> None:
    assert check("credentials", account(gauges={"sandbox_account_suspended": 1.0})).status == "fail"
    assert check("credentials", account(gauges={"sandbox_account_suspended": 0.0})).status == "ok"


# ---- engines


@pytest.mark.parametrize(
    ("versions", "status", "why"),
    [
        (("0.11.0", "0.11.0"), "ok", "both of one version"),
        (("0.11.0", "0.10.2"), "fail", "one lags behind"),
        (("0.11.0", ""), "unknown", "one does not report"),
        (("", ""), "unknown", "none tells"),
        (("0.11.0", "down"), "fail", "one is down"),
        (("down", "down"), "fail", "all are"),
        ((), "unknown", "none is configured"),
    ],
)
def test_engines(versions: tuple[str, ...], status: Status, why: str) -> None:
    gone = ScrapeError("unreachable", "no answer: ConnectError")
    seen = [engine(f"e{n}", *(("", gone) if v == "down" else (v,))) for n, v in enumerate(versions)]
    found = check("engines", *seen)
    assert found.status == status, why
    assert found.value == (float(sum(v != "down" for v in versions)) if versions else None)


def test_engines_that_the_run_starts_may_be_down_but_not_differ() -> None:
    plan, gone = PreflightPlan(engines_later=True), ScrapeError("unreachable", "no answer")
    assert check("engines", engine("a", "", gone), plan=plan).status == "unknown"
    assert check("engines", engine("a", "1"), engine("b", "2"), engine("c", "", gone), plan=plan).status == "fail"


def test_a_file_of_rollouts_is_no_engine() -> None:
    records = ReadTarget(Target("runs", "math", "verifiers_rollouts", "generator", path="/outputs"), Reading(), None)
    assert check("engines", records).value is None
    found = check("engines", engine("a", "1"), records)
    assert (found.status, found.value, found.limit) == ("ok", 1.0, 1.0)


# ---- directories


@pytest.mark.parametrize(
    ("seen", "status", "why"),
    [
        (directory(), "ok", "read"),
        (directory(exists=False, readable=False, error="missing"), "warn", "before a first start"),
        (directory(readable=False, error="missing"), "fail", "no permission"),
        (directory(error="not_a_run"), "warn", "empty as yet"),
        (directory(error="garbage"), "fail", "what is there is broken"),
        (directory(why="the file system does not answer", error="timeout"), "unknown", "NFS hangs"),
    ],
)
def test_run_directory(seen: ReadTarget, status: Status, why: str) -> None:
    assert check("run_directory", seen).status == status, why


# ---- clocks


@pytest.mark.parametrize(
    ("skew", "status"),
    [(0.0, "ok"), (5.0, "ok"), (-5.0, "ok"), (5.1, "warn"), (-60.0, "warn"), (60.1, "fail"), (-61.0, "fail")],
)
def test_clock_skew(skew: float, status: Status) -> None:
    found = check("clock_skew", engine("a", skew=0.0), engine("b", skew=skew))
    assert (found.status, found.value) == (status, abs(skew))


def test_the_side_is_named() -> None:
    assert check("clock_skew", engine("a", skew=7.0)).summary == "a: its clock is 7 s ahead of this machine's"
    assert check("clock_skew", engine("a", skew=-90.0)).summary == "a: its clock is 90 s behind this machine's"


def test_who_does_not_tell_the_time_leaves_it_open() -> None:
    assert check("clock_skew").status == "unknown"
    assert check("clock_skew", engine("a", skew=0.0), engine("b")).status == "unknown"
    assert check("clock_skew", engine("a", skew=90.0), engine("b")).status == "fail"


def test_a_file_only_shows_a_clock_that_is_ahead() -> None:
    assert check("clock_skew", directory(written=NOW - 3600)).status == "unknown"
    assert check("clock_skew", directory(written=NOW + 3)).status == "unknown"
    assert (check("clock_skew", directory(written=NOW + 30)).status) == "warn"
    row = check("clock_skew", directory(written=NOW - 5, newest=NOW + 300))
    assert (row.status, row.value) == ("fail", 300.0)


# ---- all of them


def test_nothing_readable_is_unknown_and_never_ok() -> None:
    found = judge(inputs())
    assert {one.name for one in found} == ALL_CHECKS
    assert {one.status for one in found} == {"unknown"}
    assert all(one.fix for one in found)


@pytest.mark.parametrize("kind", ["auth", "timeout", "status", "garbage", "unreachable"])
def test_an_account_that_cannot_be_read_makes_nothing_ok(kind: ErrorKind) -> None:
    plan = PreflightPlan(
        96, 2.0, 1800.0, 86400.0, ("python",), {"concurrent": 1e4, "starting": 1e4, "creates_per_second": 1e3}
    )
    assert not [one.name for one in judge(inputs(refused(kind), plan=plan)) if one.status == "ok"]


def test_a_math_run_needs_no_sandbox() -> None:
    found = judge(inputs(facts={"has_sandbox": 0}))
    assert {one.name for one in found if one.status == "not_applicable"} == SANDBOX_CHECKS
    configured = judge(inputs(refused("auth"), facts={"has_sandbox": 0.0}, plan=PreflightPlan(concurrency=96)))
    assert {one.name for one in configured if one.status == "not_applicable"} == SANDBOX_CHECKS
    assert configured[0].summary == "this run needs no sandbox, though 1 sandbox targets are configured"
    assert check("quota", refused("auth"), facts={"has_sandbox": 1}).status == "unknown"


def test_the_worst_check_decides() -> None:
    def of(*statuses: Status) -> Status:
        return outcome([Check("x", status, "") for status in statuses])

    assert of("ok", "unknown", "not_applicable") == "unknown"
    assert of("ok", "warn", "unknown") == "warn"
    assert of("warn", "fail", "ok") == "fail"
    assert of() == "unknown"


def test_numbers_read_as_people_write_them() -> None:
    assert [number(x) for x in (10000.0, 0.25, 3.14159, 1234.5)] == ["10000", "0.25", "3.14", "1234"]
    assert [span(x) for x in (45.0, 1800.0, 86400.0)] == ["45 s", "30 min", "24 h"]


def test_the_inputs_are_all_there_is() -> None:
    """Same inputs, same answers: the checks read no clock and no file."""
    given: Inputs = inputs(account(), engine("a"), directory(), plan=PreflightPlan(96))
    assert judge(given) == judge(given)
