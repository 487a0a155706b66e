"""What a source is taken for, and what happens when that cannot be told."""

import shutil
from pathlib import Path

import pytest

from server.attach import Ambiguous, attach, source_of
from server.config import RunSettings, TargetSettings
from server.main import main
from tests.recorded import TESTDATA, runs


@pytest.fixture
def mixed(tmp_path: Path) -> Path:
    """One folder that two frameworks wrote into."""
    folder = tmp_path / "outputs"
    shutil.copytree(TESTDATA / "verl" / "sync_jsonl", folder / "a")
    shutil.copytree(TESTDATA / "trl" / "sync", folder / "b")
    return folder


def attached(*sources: str) -> list[tuple[str, str]]:
    run = attach(RunSettings("run", tuple(map(source_of, sources))))
    return [(target.name, target.collector) for target in run.targets]


@pytest.mark.parametrize("path", runs(), ids=lambda path: f"{path.parent.name}-{path.name}")
def test_every_recorded_run_is_of_one_framework(path: Path) -> None:
    assert attached(str(path)) == [(path.name, path.parent.name)]


def test_two_frameworks_in_one_folder_are_not_chosen_from(mixed: Path) -> None:
    with pytest.raises(Ambiguous) as caught:
        attached(str(mixed), "/nowhere")
    unclear, missing = caught.value.problems
    assert unclear == (
        f"{mixed}: more than one framework's: trl (trackio grpo-tiny.db with frac_reward_zero_std), "
        f"verl (jsonl sync-exp.jsonl with timing_s/step); name one: trl={mixed}, or "
        'collector = "trl" in the configuration'
    )
    assert missing == "/nowhere: no such file or directory (--wait waits for it)"


def test_the_user_says_which(mixed: Path) -> None:
    assert attached(f"trl={mixed}") == [("outputs", "trl")]
    assert attached(f"verl={mixed}") == [("outputs", "verl")]
    # Both, as two sources of one run: their names stay apart.
    assert attached(f"verl={mixed}", f"trl={mixed}") == [("outputs", "verl"), ("outputs-2", "trl")]


def test_folders_of_other_programs_keep_their_names(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert source_of("./outputs/lr=1e-6") == TargetSettings("./outputs/lr=1e-6")
    assert source_of("http://127.0.0.1:8000/metrics?a=b") == TargetSettings("http://127.0.0.1:8000/metrics?a=b")
    assert source_of("trl=./out") == TargetSettings("./out", collector="trl")
    assert source_of("trl=") == TargetSettings("trl=")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "trl=0.5").mkdir()
    assert source_of("trl=0.5") == TargetSettings("trl=0.5")


def test_waiting_does_not_help_against_two_frameworks(mixed: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["watch", str(mixed), "--wait"]) == 2
    assert capsys.readouterr().err.startswith(f"rollscope: {mixed}: more than one framework's: trl (")
