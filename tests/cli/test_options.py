"""Options that all commands share: where the configuration is found, and the log's formats; `rollscope init`."""

import json
import logging
import re
import sys
import tomllib
from pathlib import Path

import pytest

from server.cli.init import STARTER
from server.config.settings import build, config_path
from server.main import main
from server.runtime.logs import JsonFormatter, TextFormatter


def test_the_first_existing_configuration_is_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    env = {"HOME": str(tmp_path / "home"), "XDG_CONFIG_HOME": str(tmp_path / "xdg")}
    monkeypatch.setattr("server.config.settings.SYSTEM", tmp_path / "etc.toml")
    candidates = [tmp_path / "etc.toml", tmp_path / "xdg/rollscope/rollscope.toml", tmp_path / "rollscope.toml"]
    assert config_path(env) is None
    for path in candidates:  # from the last resort to the first choice
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        found = config_path(env)
        assert found is not None and found.resolve() == path
    home = tmp_path / "home/.config/rollscope/rollscope.toml"
    home.parent.mkdir(parents=True)
    home.touch()
    (tmp_path / "rollscope.toml").unlink()
    assert config_path({"HOME": env["HOME"]}) == home
    assert config_path({**env, "ROLLSCOPE_CONFIG": "/missing.toml"}) == Path("/missing.toml")
    assert config_path({**env, "ROLLSCOPE_CONFIG": ""}) is None


def test_the_configuration_of_the_folder_is_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rollscope.toml").write_text("[run.here.target]\n[server]\nprot = 1\n")
    assert main(["check"]) == 2
    assert "server.prot: unknown key; did you mean port?" in capsys.readouterr().err
    monkeypatch.setenv("ROLLSCOPE_CONFIG", "missing.toml")
    assert main(["check"]) == 2
    assert capsys.readouterr().err == "rollscope: missing.toml: No such file or directory\n"


def test_sources_are_checked_without_the_runs_of_a_found_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The configured run is missing: with -c it is checked and fails."""
    monkeypatch.chdir(tmp_path)
    Path("rollscope.toml").write_text('[[run.missing.target]]\npath = "/missing"\n')
    log = tmp_path / "log.jsonl"
    log.write_text('{"step": 1, "time": 1000, "loss": 2}\n')
    assert main(["check", "--json", f"custom={log}"]) == 0
    assert main(["check", "-c", "rollscope.toml", "--json", f"custom={log}"]) == 1


# A name that is longer than a file system allows: stat fails for root, too, who may enter any folder.
TOO_LONG = "x" * 300


@pytest.mark.parametrize("command", ["check", "status", "up", "watch", "runs list", "migrate", "export rules"])
def test_a_home_that_cannot_be_searched_is_one_sentence(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("ROLLSCOPE_CONFIG", raising=False)
    monkeypatch.delenv("XDG_CONFIG_HOME", raising=False)
    monkeypatch.setenv("HOME", f"/{TOO_LONG}")
    assert main(command.split()) == 2
    assert capsys.readouterr().err == (
        f"rollscope: /{TOO_LONG}/.config/rollscope/rollscope.toml: cannot look for the configuration: File name too "
        "long; name a file with -c FILE, or set ROLLSCOPE_CONFIG to nothing to use none\n"
    )


def test_a_source_that_cannot_be_searched_is_one_sentence(capsys: pytest.CaptureFixture[str]) -> None:
    for name in (f"/{TOO_LONG}/mine", f"/{TOO_LONG}/list.json"):
        assert main(["check", name]) == 1
        assert "cannot be read: the system reports OSError" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("directory", "problem"),
    [
        ("/etc/passwd", "/etc/passwd is a file; name a directory"),
        ("/etc/passwd/demo", "/etc/passwd/demo cannot be written: Not a directory"),
        ("/proc", "/proc cannot be written: No such file or directory"),
    ],
)
def test_a_demo_needs_a_directory_that_can_be_written(
    directory: str, problem: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["demo", "--dir", directory]) == 2
    assert capsys.readouterr().err == f"rollscope: --dir: {problem}\n"


def test_a_demo_looks_for_no_configuration(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("rollscope.toml").write_text("[server]\nprot = 1\n")
    assert main(["demo", "--port", "99999"]) == 2
    assert capsys.readouterr().err == "rollscope: --port: must be between 0 and 65535\n"
    assert main(["demo", "--help"]) == 0
    assert "./rollscope.toml" not in capsys.readouterr().out


def test_init_writes_a_file_of_which_every_line_is_valid(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["init"]) == 0
    assert "rollscope check -c rollscope.toml" in capsys.readouterr().out
    assert main(["check"]) == 0
    capsys.readouterr()
    assert main(["init"]) == 2
    assert capsys.readouterr().err.startswith("rollscope: rollscope.toml already exists;")
    assert main(["init", "missing/x.toml"]) == 2
    assert capsys.readouterr().err == "rollscope: missing/x.toml: cannot be written: No such file or directory\n"
    (tmp_path / "token").write_text("0123456789abcdef")
    edited = re.sub(r"^#(?=\S)", "", STARTER, flags=re.M).replace("/etc/rollscope/token", str(tmp_path / "token"))
    settings = build(tomllib.loads(edited), {"HOME": "/x", "SLACK_WEBHOOK_URL": "https://hooks.slack.com/x"})
    (run,) = settings.runs
    assert (run.name, len(run.targets), len(run.discover)) == ("my-run", 2, 1)
    assert [receiver.kind for receiver in settings.alerts.receivers] == ["slack"]


def record(error: bool = False) -> logging.LogRecord:
    try:
        raise ValueError("boom")
    except ValueError:
        cause = sys.exc_info() if error else None
    made = logging.LogRecord("rollscope.collect", logging.WARNING, "x.py", 1, "run %s: %d", ("a", 7), cause)
    made.created = 1_800_000_000.25
    return made


def test_the_log_has_one_format_with_a_time_zone() -> None:
    text = TextFormatter().format(record())
    assert re.fullmatch(r"2027-01-1\dT\d\d:\d\d:00\.250[+-]\d\d:\d\d WARNING rollscope\.collect: run a: 7", text)
    assert json.loads(JsonFormatter().format(record())) == {
        "time": "2027-01-15T08:00:00.250+00:00", "level": "warning", "logger": "rollscope.collect",
        "message": "run a: 7",
    }  # fmt: skip
    line = JsonFormatter().format(record(error=True))
    assert "\n" not in line and "ValueError: boom" in json.loads(line)["exception"]
