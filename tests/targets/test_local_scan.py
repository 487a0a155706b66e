"""What a first start finds: real pages on real ports, recorded runs in folders, bounds."""

import shutil
from pathlib import Path

import pytest

from server.cli import OK
from server.main import main
from server.targets import local_scan
from server.targets.local_scan import Candidate, ScanResult, scan
from tests.e2e.test_forward import free_port
from tests.recorded import TESTDATA, runs
from tests.targets.engine import engine


@pytest.fixture(autouse=True)
def no_ray(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(local_scan, "RAY_LIST", tmp_path / "ray.json")


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A run of TRL's and one of verl's below `outputs`, beside what is no run."""
    shutil.copytree(TESTDATA / "trl" / "sync", tmp_path / "outputs" / "a run")
    shutil.copytree(TESTDATA / "verl" / "sync_jsonl", tmp_path / "outputs" / "verl")
    (tmp_path / "src").mkdir()
    (tmp_path / "src" / "notes.txt").write_text("nothing")
    return tmp_path


def test_an_engine_and_runs_are_named_with_their_commands(place: Path) -> None:
    with engine() as vllm:
        found = scan(place, (vllm.port, free_port()))
    url = f"http://127.0.0.1:{vllm.port}"
    assert found.candidates[0] == Candidate(url, "vllm", "generator", f"rollscope watch {url}")
    assert set(found.candidates[1:]) == {
        Candidate("./outputs/a run", "trl", "trainer", "rollscope watch './outputs/a run'"),
        Candidate("./outputs/verl", "verl", "trainer", "rollscope watch ./outputs/verl"),
    }
    assert (found.more, found.partial, found.together) == (0, "", "")


def test_one_run_and_its_engine_are_one_command(place: Path) -> None:
    with engine() as vllm:
        found = scan(place / "outputs" / "verl", (vllm.port,))
    assert found.together == f"rollscope watch http://127.0.0.1:{vllm.port} ."
    assert local_scan.lines(found)[-2:] == ["together:", f"  {found.together}"]


@pytest.mark.parametrize("path", runs(), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_part_of_a_run_is_not_a_run(path: Path) -> None:
    assert [one.source for one in scan(path, ()).candidates] == ["."]


@pytest.mark.parametrize("path", runs(), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_a_run_is_found_three_levels_below(path: Path, tmp_path: Path) -> None:
    """Also if its collector does not recognize the folders above the run."""
    shutil.copytree(path, tmp_path / "a" / "outputs" / "my-run")
    assert [one.source for one in scan(tmp_path, ()).candidates] == ["./a/outputs/my-run"]


def test_a_ray_list_is_named(tmp_path: Path) -> None:
    (tmp_path / "ray.json").write_text("[]")
    (found,) = scan(tmp_path, ()).candidates
    assert found.command == f"rollscope watch {tmp_path}/ray.json"


def test_the_newest_are_shown_and_the_others_counted(tmp_path: Path) -> None:
    import os  # noqa: PLC0415

    for n in range(8):
        shutil.copytree(TESTDATA / "verl" / "sync_jsonl", tmp_path / f"run-{n}")
        os.utime(tmp_path / f"run-{n}", (1000 + n, 1000 + n))
    found = scan(tmp_path, ())
    assert [one.source for one in found.candidates] == [f"./run-{n}" for n in (7, 6, 5, 4, 3, 2)]
    assert found.more == 2


def test_time_is_bounded(place: Path) -> None:
    """The clock says two seconds a look: the third folder is not looked at, and that is said."""
    clock = iter(range(0, 1000, 2))
    found = scan(place, (), lambda: float(next(clock)))
    assert found.partial == "the scan stopped after 200 folders or 4 s"
    assert local_scan.lines(ScanResult(partial="x")) == [local_scan.NOTHING, "x"]


def test_a_folder_above_runs_of_two_frameworks_is_not_listed(place: Path) -> None:
    """`rollscope watch ./outputs` would refuse it. The scan stops before it reaches the runs inside."""
    clock = iter([0.0, 1.0, 2.0, 3.0, *[9.0] * 100])
    found = scan(place, (), lambda: next(clock))
    assert found.partial and [one.source for one in found.candidates] == []


def test_asked_again_within_seconds_it_does_not_look_again(place: Path) -> None:
    now = [0.0]
    kept = local_scan.CachedScan(place, (), lambda: now[0])
    first = kept()
    shutil.rmtree(place / "outputs" / "verl")
    assert kept() is first
    now[0] = 15.1
    assert kept.pairs() == [("trl at ./outputs/a run", "rollscope watch './outputs/a run'")]


def test_watch_without_a_source_says_what_there_is(
    place: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("server.cli.serving.SCAN", local_scan.CachedScan(place / "outputs" / "verl", ()))
    assert main(["watch"]) == OK
    assert capsys.readouterr().out == "found on this machine:\n  rollscope watch .   # verl, trainer\n"


def test_the_recorded_runs_of_our_own_tests_are_not_listed(place: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (place / "outputs").rename(place / "tests")
    assert len(scan(place, ()).candidates) == 2
    monkeypatch.setattr(local_scan, "CHECKOUT", place)
    assert scan(place, ()) == ScanResult()
