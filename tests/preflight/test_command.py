"""`rollscope preflight` from the command line's words to its report, with Prime's own collector where it is there."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import collectors
from server.cli import preflight
from server.lib.clock import ScaledClock
from server.lib.errors import ConfigError
from server.lib.secret import Secret
from server.main import main
from server.preflight.checks import run as judged
from server.preflight.model import PreflightPlan
from server.targets.model import RunSettings, TargetSettings
from tests.preflight.support import KEY, NOW, World, prime_row, serving

CLOCK = ScaledClock(NOW)
PLAN = PreflightPlan(
    concurrency=96, create_rate=2.0, rollout_deadline=1800.0, run_length=86400.0, images=("python:3.12",)
)

needs_prime = pytest.mark.skipif(
    "prime_sandboxes" not in collectors.load(), reason="collectors/sandboxes/prime_sandboxes.py is not here yet"
)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def url(world: World) -> Iterator[str]:
    with serving(world) as url:
        yield url


def prime(url: str, key: str = KEY) -> TargetSettings:
    return TargetSettings(url, "prime", "prime_sandboxes", key=Secret(key))


def report(*targets: TargetSettings, plan: PreflightPlan = PLAN, **facts: str | float) -> dict[str, Any]:
    return judged([(RunSettings("math", targets, facts), PreflightPlan())], plan, CLOCK)


def checks(found: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {one["name"]: one for one in found["runs"][0]["checks"]}


# ---- acceptance


@needs_prime
def test_leftovers_and_an_empty_wallet_fail_and_are_named(url: str, world: World) -> None:
    """30 dangling sandboxes and 2 USD."""
    world.sandboxes = [prime_row(number, labels=("old-run",)) for number in range(30)]
    world.balance = 2.0
    found = report(prime(url))
    assert preflight.failed(found)
    by_name = checks(found)
    assert {name for name, one in by_name.items() if one["status"] == "fail"} == {"dangling", "credit"}
    dangling, credit = by_name["dangling"], by_name["credit"]
    assert (dangling["value"], dangling["ids"][0], len(dangling["ids"])) == (30.0, "sb-000", 20)
    assert dangling["commands"][0] == "prime sandbox delete sb-000"
    assert dangling["details"] == ["30 of run 'old-run'"]
    assert (credit["value"], credit["limit"]) == (2.0, pytest.approx(126 * 0.01 * 24))
    assert by_name["quota"]["limit"] == 970.0
    assert all(asked.startswith("GET ") for asked in world.asked)


@needs_prime
def test_the_same_without_any_plan(url: str, world: World) -> None:
    world.sandboxes = [prime_row(number) for number in range(30)]
    world.balance = 2.0
    found = report(prime(url), plan=PreflightPlan())
    assert {one["name"] for one in checks(found).values() if one["status"] == "fail"} == {"dangling", "credit"}
    words = preflight.text(found)
    assert "30 sandboxes are live without an active run" in words
    assert "$2 left" in words
    assert "prime sandbox delete sb-019" in words and "sb-020" not in words
    assert "... and 10 more" in words


@needs_prime
def test_a_healthy_account_passes(url: str, world: World, tmp_path: Path) -> None:
    world.sandboxes = [
        prime_row(number, "TERMINATED", ("math",), terminatedAt="2027-01-15T07:00:00+00:00") for number in range(20)
    ]
    plan = PreflightPlan(price=0.1, limits={"starting": 128.0}).over(PLAN)
    found = report(prime(url), TargetSettings(f"{url}/metrics", "e0", "vllm"), plan=plan)
    assert not preflight.failed(found)
    by_name = checks(found)
    told = {name: one["status"] for name, one in by_name.items()}
    assert told.pop("run_directory") == "unknown"
    assert set(told.values()) == {"ok"}, told
    assert by_name["starting_limit"]["value"] == 80.0  # 2/s x 40 s
    assert by_name["sandbox_ttl"]["value"] == 7200.0
    assert by_name["create_rate"]["limit"] == 10.0  # 100 in 10 s
    assert by_name["credit"]["limit"] == pytest.approx(230.4)


@needs_prime
def test_a_wrong_key_fails_and_makes_nothing_ok(url: str) -> None:
    found = report(prime(url, "wrong-key-0123456789"))
    told = {name: one["status"] for name, one in checks(found).items()}
    assert told.pop("credentials") == "fail"
    assert set(told.values()) == {"unknown"}
    assert "wrong-key" not in preflight.dump(found) + preflight.text(found)


@needs_prime
@pytest.mark.parametrize(("status", "failing"), [(402, {"credit"}), (429, set()), (500, {"reachability"})])
def test_refusals(url: str, world: World, status: int, failing: set[str]) -> None:
    world.refuse = {"/api/v1/sandbox": status}
    told = {name: one["status"] for name, one in checks(report(prime(url))).items()}
    assert {name for name, said in told.items() if said == "fail"} == failing
    assert (told["quota"], told["dangling"]) == ("unknown", "unknown")
    assert told["reachability"] == {402: "unknown", 429: "warn", 500: "fail"}[status]


@needs_prime
def test_a_wallet_this_key_may_not_see_is_unknown_and_says_so(url: str, world: World) -> None:
    world.refuse = {"/api/v1/billing/wallet": 403}
    credit = checks(report(prime(url)))["credit"]
    assert credit["status"] == "unknown"
    assert credit["details"][0].startswith("prime: wallet: HTTP 403")


@needs_prime
def test_a_second_account_makes_nothing_better(url: str, world: World) -> None:
    """30 dangling and 2 USD: one run, with an account beside it that tells no credit, fails by both."""
    world.sandboxes, world.balance = [prime_row(number, labels=("old",)) for number in range(30)], 2.0
    second = TargetSettings("http://127.0.0.1:1", "second", "e2b", key=Secret("e2b-key-0123456789"))
    by_name = checks(report(prime(url), second))
    assert (by_name["dangling"]["status"], by_name["credit"]["status"]) == ("fail", "fail")
    assert "prime: $2 left" in by_name["credit"]["summary"] and by_name["dangling"]["value"] == 30.0


@needs_prime
def test_ten_thousand_sandboxes_of_a_slow_account_come_by_many_polls(
    url: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each poll gives up after its first page."""
    monkeypatch.setattr("collectors.sandbox_providers.sweep.SHARE", 0.0)
    world.sandboxes = [prime_row(number, labels=("old",)) for number in range(10_000)]
    by_name = checks(report(prime(url)))
    assert by_name["dangling"]["value"] == 10_000.0
    assert (by_name["quota"]["status"], by_name["quota"]["limit"]) == ("fail", -9000.0)
    assert by_name["credit"]["value"] == 500.0, "what only the first poll told is kept"


@needs_prime
def test_a_listing_that_takes_too_long_is_known_in_part(
    url: str, world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("collectors.sandbox_providers.sweep.SHARE", 0.0)
    monkeypatch.setattr("server.preflight.probe.LISTING_SECONDS", 0.0)
    world.sandboxes = [prime_row(number, labels=("old",)) for number in range(250)]
    by_name = checks(report(prime(url)))
    assert by_name["reachability"]["details"][0].endswith("incompletely: listing incomplete: 100 so far")
    assert "prime: listing incomplete: 100 so far" in by_name["dangling"]["details"]
    assert by_name["dangling"]["summary"].startswith("at least 100 sandboxes")


@needs_prime
def test_a_thousand_sandboxes_come_by_pages(url: str, world: World) -> None:
    world.sandboxes = [prime_row(number, labels=("old",)) for number in range(1000)]
    by_name = checks(report(prime(url)))
    assert by_name["dangling"]["value"] == 1000.0
    assert (by_name["quota"]["status"], by_name["quota"]["limit"]) == ("fail", 0.0)


def test_nothing_configured_is_unknown_and_never_ok() -> None:
    found = judged([], PreflightPlan(), CLOCK)
    assert found["outcome"] == "unknown" and not preflight.failed(found)
    assert {one["status"] for one in found["runs"][0]["checks"]} == {"unknown"}


@pytest.mark.parametrize(
    ("config", "run"),
    [("", "(no run is configured)"), ("[run.math]\ndiscover = []\n", "math")],
    ids=["no configuration", "a run without targets"],
)
def test_a_preflight_that_checked_nothing_is_no_pass(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], config: str, run: str
) -> None:
    (tmp_path / "rollscope.toml").write_text(config)
    assert main(["preflight", "--json", "-c", str(tmp_path / "rollscope.toml")]) == 2
    told = capsys.readouterr()
    assert json.loads(told.out)["outcome"] == "unknown"
    hint = "name the run and its targets in a configuration (-c FILE)"
    assert told.err == f"rollscope: preflight: nothing of run {run} could be checked: {hint}\n"


def test_without_a_run_the_text_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "rollscope.toml").write_text("")
    assert main(["preflight", "-c", str(tmp_path / "rollscope.toml")]) == 2
    told = capsys.readouterr()
    assert told.out == ""
    assert told.err.startswith("rollscope: preflight: no run is configured: ") and told.err.count("\n") == 1


def test_a_math_run_without_sandboxes() -> None:
    by_name = checks(report(has_sandbox=0))
    assert {name for name, one in by_name.items() if one["status"] != "not_applicable"} == {
        "engines", "run_directory", "clock_skew",
    }  # fmt: skip


# ---- reports


def test_the_report_is_json_without_infinities() -> None:
    found = report(plan=PreflightPlan(sandbox_ttl=float("inf"), rollout_deadline=60.0))
    assert json.loads(preflight.dump(found))["runs"][0]["plan"]["sandbox_ttl"] == "unlimited"
    assert set(found["runs"][0]["checks"][0]) == {
        "name", "status", "summary", "fix", "value", "limit", "unit", "details", "ids", "commands",
    }  # fmt: skip


def test_a_stranger_cannot_steer_the_terminal() -> None:
    found = report(name_of("evil\x1b[2J"))
    assert "\x1b" not in preflight.text(found)
    assert "evil?[2J" in preflight.text(found)


def name_of(name: str) -> TargetSettings:
    return TargetSettings("http://127.0.0.1:1/metrics", name, "vllm")


def test_what_fails_comes_first() -> None:
    lines = preflight.text(report(name_of("engine"))).splitlines()
    assert lines[0] == "run math: the plan does not fit (1 FAIL, 0 WARN, 11 unknown, 0 ok, 0 n/a)"
    assert lines[1].split()[:2] == ["FAIL", "engines"]
    assert lines[2].strip() == "- engine: connection refused: nothing listens at this host and port"


def test_a_run_is_chosen_by_name_and_the_others_are_still_read() -> None:
    runs = [(RunSettings("math"), PreflightPlan()), (RunSettings("code"), PreflightPlan())]
    assert [one["run"] for one in judged(runs, PreflightPlan(), CLOCK)["runs"]] == ["math", "code"]
    assert [one["run"] for one in judged(runs, PreflightPlan(), CLOCK, ["code"])["runs"]] == ["code"]
    with pytest.raises(ConfigError) as error:
        judged(runs, PreflightPlan(), CLOCK, ["chess"])
    assert error.value.problems == ["preflight: no run is named 'chess'; configured: math, code"]


# ---- arguments


def plan_of(monkeypatch: pytest.MonkeyPatch, words: str) -> tuple[PreflightPlan, tuple[str, ...]]:
    """The plan and the run names that the command makes of a command line."""
    given: list[tuple[PreflightPlan, tuple[str, ...]]] = []

    def record(runs: object, plan: PreflightPlan, clock: object, names: tuple[str, ...]) -> dict[str, object]:
        given.append((plan, names))
        return {"outcome": "fail", "runs": []}

    monkeypatch.setattr("server.preflight.checks.run", record)
    assert main(["preflight", *words.split()]) == 1
    return given[0]


def test_arguments(monkeypatch: pytest.MonkeyPatch) -> None:
    words = "math --concurrency 960 --create-rate 4.5 --rollout-deadline 30m --run-length 24h --image a b --image c"
    expected = PreflightPlan(960, 4.5, 1800.0, 86400.0, ("a", "b", "c"))
    assert plan_of(monkeypatch, f"{words} --json") == (expected, ("math",))
    assert plan_of(monkeypatch, "") == (PreflightPlan(), ())
    assert plan_of(monkeypatch, "--run-length 90.5")[0].run_length == 90.5
    assert plan_of(monkeypatch, "--image a --json code") == (PreflightPlan(images=("a",)), ("code",))


@pytest.mark.parametrize(
    "words",
    [
        "--concurrency 0", "--concurrency many", "--concurrency -5", "--create-rate 0", "--create-rate nan",
        "--rollout-deadline soon", "--run-length 0", "--run-length -5",
    ],
)  # fmt: skip
def test_bad_usage_exits_2(words: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["preflight", *words.split()]) == 2
    assert words.split()[0] in capsys.readouterr().err


def test_a_directory_that_may_not_be_read_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Root may read everything, and tests may run as root: the system's answer is put in its mouth.
    monkeypatch.setattr(os, "access", lambda path, mode: False)
    assert checks(report(TargetSettings(str(tmp_path))))["run_directory"]["status"] == "fail"
