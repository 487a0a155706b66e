"""What a source is taken for, and what happens when that cannot be told."""

import shutil
import sqlite3
from contextlib import closing
from pathlib import Path

import pytest

from collectors.formats import trackio
from server.lib.errors import ConfigError
from server.main import main
from server.targets.model import RunSettings, TargetSettings
from server.targets.resolve import Ambiguous, attach, source_of
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
    trainer, *others = attached(str(path))
    assert trainer == (path.name, path.parent.name)
    assert others in ([], [(f"{path.name}-trl_traces", "trl_traces")])


def test_two_frameworks_in_one_folder_are_not_chosen_from(mixed: Path) -> None:
    with pytest.raises(Ambiguous) as caught:
        attached(str(mixed), "/nowhere")
    unclear, missing = caught.value.problems
    assert unclear == (
        f"{mixed}: logs of more than one framework: trl (trackio grpo-tiny.db with frac_reward_zero_std), "
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
    assert capsys.readouterr().err.startswith(f"rollscope: {mixed}: logs of more than one framework: trl (")


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("", "a source is empty (\"\", often a shell variable that is not set): name a run directory or a URL"),
        ("prime-rll=/x", None),
        ("verll=/x", "verll=/x: no collector is named verll: did you mean verl?; omit verll= to detect"),
        ("localhost:8000", "localhost:8000: no such file or directory: did you mean http://localhost:8000?"),
        ("gpu-node-1:8000/metrics", "gpu-node-1:8000/metrics: no such file or directory: did you mean http://gpu-node"),
        ("http:/127.0.0.1:8000", "http:/127.0.0.1:8000: no such file or directory: did you mean http://127.0.0.1:80"),
        ("[::1]:8000", "[::1]:8000: no such file or directory: did you mean http://[::1]:8000?"),
        ("foo=http://x", "foo=http://x: no collector is named foo: known: agent_sandbox_metrics, areal, areal_roll"),
    ],
)  # fmt: skip
def test_a_source_that_cannot_be_one_is_one_sentence(
    source: str, words: str | None, capsys: pytest.CaptureFixture[str]
) -> None:
    """`prime-rll` is no collector's name at all, so it is a path that is not there."""
    assert main(["check", source]) == (1 if words is None else 2)
    told = capsys.readouterr()
    if words is None:
        assert "prime-rll=/x: no such file or directory" in told.out
    else:
        assert told.err.startswith(f"rollscope: {words}") and told.err.count("\n") == 1


def _alone(folder: Path) -> Path:
    """A run directory with nothing but trackio's database."""
    (recorded,) = (TESTDATA / "trl" / "sync").rglob("*.db")
    folder.mkdir()
    return Path(shutil.copy(recorded, folder))


def test_a_locked_log_is_there(tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """Saying "nothing here" would send its user looking for what is in front of them."""
    monkeypatch.setattr(trackio, "BUSY_SECONDS", 0.01)
    database = _alone(tmp_path / "run")
    with closing(sqlite3.connect(database, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = DELETE")
        writer.execute("BEGIN EXCLUSIVE")
        assert main(["check", str(tmp_path / "run")]) == 1
        told = capsys.readouterr().out
        assert f"{database.name} is locked by another process" in told
        assert "try again when its writer has finished (`up` and `watch --wait` wait for it)" in told
        assert "what was looked for" not in told
    assert attached(str(tmp_path / "run")) == [("run", "trl")]


def test_a_lock_is_waited_for_once_however_many_ask(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trackio, "BUSY_SECONDS", 0.01)
    database = _alone(tmp_path / "run")
    opened: list[str] = []
    real = sqlite3.connect

    def connect(name: str, **more: object) -> sqlite3.Connection:
        opened.append(name)
        return real(name, **more)  # type: ignore[call-overload, no-any-return]

    with closing(sqlite3.connect(database, isolation_level=None)) as writer:
        writer.execute("PRAGMA journal_mode = DELETE")
        writer.execute("BEGIN EXCLUSIVE")
        monkeypatch.setattr(sqlite3, "connect", connect)
        with pytest.raises(ConfigError, match="is locked"):
            attached(str(tmp_path / "run"))
    assert len(opened) == 1
