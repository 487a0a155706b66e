"""Targets read for real: engines over HTTP, directories on disk, and whose clock says what."""

import asyncio
import os
from collections.abc import Iterator
from email.utils import formatdate
from pathlib import Path
from threading import Event

import httpx
import pytest

from collectors.model import Reading, Sample, ScrapeError
from server.lib.clock import ScaledClock
from server.preflight import probe as probing
from server.preflight.model import Inputs, PreflightPlan, ReadTarget
from server.preflight.probe import Dates, inspect_path, parse_date, probe
from server.targets.model import RunSettings, TargetSettings
from tests.preflight.support import NOW, World, serving

CLOCK = ScaledClock(NOW)


@pytest.fixture
def world() -> World:
    return World()


@pytest.fixture
def url(world: World) -> Iterator[str]:
    with serving(world) as url:
        yield url


def read(*targets: TargetSettings, name: str = "math", **facts: str | float) -> Inputs:
    return probe([(RunSettings(name, targets, facts), PreflightPlan())], CLOCK)[0]


def vllm(url: str, name: str = "e0") -> TargetSettings:
    return TargetSettings(url, name, "vllm")


# ---- engines


def test_an_engine_is_read_and_asked_for_its_version(url: str, world: World) -> None:
    (seen,) = read(vllm(f"{url}/metrics")).seen
    assert seen.error is None and seen.reading is not None
    assert len(seen.reading.samples) > 50
    assert (seen.version, seen.skew) == ("0.11.0", 0.0)
    beside = ["GET /is_paused", "GET /weight_info", "GET /v1/models", "GET /version"]
    assert [asked for asked in world.asked if asked != "GET /server_info"] == ["GET /metrics", *beside, "GET /version"]


def test_an_engine_without_a_version_is_still_read(url: str, world: World) -> None:
    world.version = None
    (seen,) = read(vllm(f"{url}/metrics")).seen
    assert (seen.reading is not None, seen.version) == (True, "")


def test_an_engine_that_is_down_is_its_own_finding(url: str) -> None:
    up, down = read(vllm(f"{url}/metrics", "up"), vllm("http://127.0.0.1:1/metrics", "down")).seen
    assert up.error is None
    assert isinstance(down.error, ScrapeError) and down.error.kind == "unreachable"
    assert (down.reading, down.version, down.skew) == (None, "", None)


def test_an_error_page_tells_no_time(url: str, world: World) -> None:
    world.refuse = {"/metrics": 502}
    (seen,) = read(vllm(f"{url}/metrics")).seen
    assert seen.error is not None and seen.error.kind == "status"
    assert seen.skew is None


@pytest.mark.parametrize(("ahead", "skew"), [(0.0, 0.0), (90.0, 90.0), (-90.0, -89.0), (-0.5, 0.0)])
def test_clocks_are_compared_to_the_second(ahead: float, skew: float) -> None:
    """The header cuts the second: a clock that is behind by 90 s may be behind by 89."""
    with serving(World(ahead=ahead)) as url:
        (seen,) = read(vllm(f"{url}/metrics")).seen
    assert seen.skew == skew


def test_dates_narrow_each_other() -> None:
    """Two answers 0.6 s apart: 5 s ahead at least by the first, 5.4 s at most by the second."""
    clock = ScaledClock(NOW)
    dates = Dates(clock)

    async def hear(sent: float, heard: float, date: float, **headers: str) -> None:
        request = httpx.Request("GET", "http://x")
        clock.set(sent)
        await dates.sent(request)
        clock.set(heard)
        told = {"date": formatdate(date, usegmt=True), **headers}
        await dates.answered(httpx.Response(200, request=request, headers=told))

    asyncio.run(hear(NOW, NOW + 0.2, NOW + 5))
    assert (dates.least, dates.greatest) == (pytest.approx(4.8), 6.0)
    asyncio.run(hear(NOW + 0.6, NOW + 0.7, NOW + 5))
    assert (dates.least, dates.greatest) == (pytest.approx(4.8), pytest.approx(5.4))
    asyncio.run(hear(NOW, NOW, NOW - 500, age="500"))
    assert (dates.skew(), dates.greatest) == (pytest.approx(4.8), pytest.approx(5.4))  # a cache's page is of the past


@pytest.mark.parametrize("value", ["", "yesterday", "Thu, 99 Foo 2026 00:00:00 GMT", "x" * 10_000, "1 Jan 99999"])
def test_a_strange_date_is_none(value: str) -> None:
    assert parse_date(value) is None


# ---- directories


def test_a_directory_that_is_not_there_yet(tmp_path: Path) -> None:
    (seen,) = read(TargetSettings(str(tmp_path / "later"))).seen
    assert seen.target.actor == "trainer"
    assert seen.error is not None and seen.error.kind == "missing"
    assert seen.path is not None and not seen.path.exists


def test_one_target_that_cannot_be_attached_hides_no_other(url: str, tmp_path: Path) -> None:
    seen = read(TargetSettings(str(tmp_path)), vllm(f"{url}/metrics")).seen
    assert [one.error.kind if one.error else "" for one in seen] == ["not_a_run", ""]


def test_names_are_told_apart(tmp_path: Path) -> None:
    (tmp_path / "a/out").mkdir(parents=True)
    (tmp_path / "b/out").mkdir(parents=True)
    seen = read(TargetSettings(str(tmp_path / "a/out")), TargetSettings(str(tmp_path / "b/out"))).seen
    assert [one.name for one in seen] == ["out", "out-2"]


def test_the_newest_file_two_levels_down_dates_a_directory(tmp_path: Path) -> None:
    (tmp_path / "logs/deep").mkdir(parents=True)
    for name, at in (("logs/a.log", NOW + 30), ("b.log", NOW - 50), ("logs/deep/c.log", NOW + 999)):
        (tmp_path / name).write_text("x")
        os.utime(tmp_path / name, (at, at))
    for folder in ("logs/deep", "logs", "."):
        os.utime(tmp_path / folder, (NOW - 100, NOW - 100))
    assert inspect_path(tmp_path).newest == NOW + 30


def test_a_huge_directory_costs_a_bounded_look(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "ENTRIES_MAX", 3)
    for number in range(10):
        (tmp_path / str(number)).write_text("")
    assert len(list(probing._below(tmp_path))) == 3


def test_a_file_system_that_hangs_is_left_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    release = Event()
    monkeypatch.setattr(probing, "PATH_SECONDS", 0.01)
    monkeypatch.setattr(probing, "_inspect", lambda path: release.wait())
    found = inspect_path(tmp_path)
    release.set()
    assert (found.readable, found.why) == (False, "the file system does not answer")


# ---- runs


def test_a_run_goes_on_when_it_says_so_or_writes() -> None:
    def goes_on(**facts: str | float) -> bool:
        return read(**facts).running

    assert [goes_on(), goes_on(lifecycle="running"), goes_on(lifecycle="crashed")] == [False, True, False]


def test_a_directory_written_lately_is_a_run_that_goes_on(tmp_path: Path) -> None:
    (tmp_path / "x.log").write_text("x")
    for at, running in ((NOW - 700, False), (NOW - 500, True)):
        os.utime(tmp_path / "x.log", (at, at))
        os.utime(tmp_path, (NOW - 9000, NOW - 9000))
        assert read(TargetSettings(str(tmp_path))).running is running


def test_keys_and_living_neighbours() -> None:
    runs = [
        (RunSettings("math", facts={"run_name": "math-v2"}), PreflightPlan()),
        (RunSettings("code", facts={"run_name": "code-v1"}), PreflightPlan()),
        (RunSettings("old", facts={"lifecycle": "finished"}), PreflightPlan()),
    ]
    math, code, _ = probe(runs, CLOCK)
    assert (math.keys, math.alive) == ({"math", "math-v2"}, {"code", "code-v1"})
    assert code.alive == {"math", "math-v2"}


def test_what_the_user_states_goes_over_what_is_read(url: str) -> None:
    found = read(vllm(f"{url}/metrics"), has_sandbox=0.0)
    assert found.facts["has_sandbox"] == 0.0


def test_the_time_of_estimated_rows_is_no_evidence() -> None:
    reading = Reading((Sample("reward", 1.0, ts=NOW + 500),))
    assert probing._newest(reading) == NOW + 500
    assert probing._newest(Reading(reading.samples, facts={"times_estimated": 1.0})) is None


def test_a_seen_target_has_a_name() -> None:
    assert all(isinstance(one, ReadTarget) and one.name for one in read(vllm("http://127.0.0.1:1/metrics")).seen)
