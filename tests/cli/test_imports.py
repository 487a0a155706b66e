"""What a command loads: its own part only. Numbers of seconds are not tested; what costs them is."""

import os
import subprocess
import sys

import pytest

from server.cli import demo
from server.derive import driver
from server.main import COMMANDS, main, program

LOADED = """
import sys
import click
from server.main import program
heavy = ["server.config.settings", "sqlalchemy", "alembic", "fastapi", "dash", "uvicorn"]
for command in sys.argv[1:]:
    program().get_command(click.Context(program()), command)
    print(command, *[name for name in heavy if name in sys.modules])
"""


def test_a_command_loads_what_it_needs_and_no_more() -> None:
    commands = ("", "status", "check", "preflight", "alerts", "export", "migrate", "watch")
    done = subprocess.run([sys.executable, "-c", LOADED, *commands], capture_output=True, text=True, check=True)
    # One after the other in one process: what one has loaded is there for the next.
    assert done.stdout.splitlines() == [
        "",
        "status server.config.settings",
        "check server.config.settings",
        "preflight server.config.settings",
        "alerts server.config.settings",
        "export server.config.settings",
        "migrate server.config.settings",
        "watch server.config.settings",
    ]


# What takes a second to import, or more.
HEAVY = {"dash", "plotly", "sqlalchemy", "alembic", "fastapi", "uvicorn", "pandas", "numpy", "grpc"}
AT_ONCE = """
import sys
from server.main import main
code = main(sys.argv[1:])
print(code, *sorted(set(sys.modules) & %r))
"""


@pytest.mark.parametrize(
    ("command", "code"),
    [(f"{name} --help", 0) for name in COMMANDS] + [
        ("up --port 99999", 2), ("up --nothing", 2), ("watch --port 99999 x", 2), ("watch x --spool y", 2),
        ("demo --speed 0", 2), ("demo --port 99999", 2), ("check --nothing", 2), ("status --url foo", 2),
        ("preflight --nothing", 2), ("alerts test", 2), ("export nothing", 2), ("runs list --store x", 2),
        ("runs prune -c /nothing", 2), ("migrate -c /nothing", 2), ("backup b -c /nothing", 2),
        ("restore b -c /nothing", 2), ("move --to x -c /nothing", 2),
    ],
)  # fmt: skip
def test_help_and_usage_errors_load_nothing_heavy(command: str, code: int) -> None:
    words = [sys.executable, "-c", AT_ONCE % HEAVY, *command.split()]
    done = subprocess.run(words, capture_output=True, text=True, check=True, env={**os.environ, "ROLLSCOPE_CONFIG": ""})
    assert done.stdout.splitlines()[-1] == str(code), done.stderr


def test_the_demo_ticks_as_a_run_does() -> None:
    assert demo.TICK_SECONDS == driver.TICK_SECONDS


def test_help_loads_no_command() -> None:
    code = "import sys; from server.main import main; main(['--help']); print([n for n in sys.modules if n in %r])"
    names = [f"server.cli.{name}" for name in COMMANDS if name != "completion"]
    done = subprocess.run([sys.executable, "-c", code % names], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_each_command_is_the_same_both_ways(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main([name, "--help"]) == 0
    printed = capsys.readouterr().out
    assert main(["help", name]) == 0
    assert capsys.readouterr().out == printed and printed.startswith(f"Usage: rollscope {name} ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["wach"], "No such command 'wach'. Did you mean 'watch'?"),
        (["up", "--prot", "1"], "Did you mean one of: '--host', '--port', '--role'?"),
        (["demo", "--scenario", "genrator-bound"], "Did you mean 'generator-bound'?"),
        (["demo", "--scenario", "helthy"], "'helthy' is not a choice. Did you mean 'healthy'?"),
        (["export", "grafna"], "'grafna' is not a choice. Did you mean 'grafana'?"),
        (["export", "nothing"], "'nothing' is not one of rules, grafana."),
        (["up", "--port", "abc"], "'--port': 'abc' is not a valid integer."),
        (["status", "--nothing"], "No such option '--nothing'."),
        (["--", "nothing"], "No such command 'nothing'."),
        (["help", "alerts", "tset"], "No such command 'tset'. Did you mean 'test'?"),
        (["help", "up", "test"], "rollscope up has no command 'test'."),
        (["completion", "csh"], "'csh' is not one of 'bash', 'zsh', 'fish'."),
    ],
)
def test_bad_usage_is_explained(arguments: list[str], message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(arguments) == 2
    found = capsys.readouterr()
    assert message in found.err and found.err.startswith("rollscope: ") and " --help\n" in found.err
    assert found.out == ""


@pytest.mark.parametrize(
    ("fault", "message"),
    [
        ("engine-crsh@10m", "no fault is named 'engine-crsh'; did you mean engine-crash?"),
        # Only faults that the scenario can have: this one has no sandboxes.
        ("sandbox-outag@10m", "no fault is named 'sandbox-outag'; known: easy-tasks, engine-crash, engine-freeze, "
         "length-drift, scoring-slow, trainer-hang, weight-sync-slow"),
    ],
)  # fmt: skip
def test_an_unknown_fault_gets_the_nearest_name(fault: str, message: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["demo", "--scenario", "healthy", "--inject", fault]) == 2
    assert capsys.readouterr().err == f"rollscope: --inject: {message}\n"


def test_without_arguments_the_help_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main([]) == 2
    assert "simulate a cluster and serve it live" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("rollscope wa", ["watch"]),
        ("rollscope alerts se", ["send-test"]),
        ("rollscope up --no-b", ["--no-browser"]),
        ("rollscope up --role w", ["web"]),
    ],
)
def test_completion(words: str, expected: list[str]) -> None:
    """As the scripts of bash, zsh and fish call the program."""
    env = {**os.environ, "COMP_WORDS": words, "COMP_CWORD": str(len(words.split()) - 1),
           "_ROLLSCOPE_COMPLETE": "bash_complete"}  # fmt: skip
    done = subprocess.run([sys.executable, "-m", "server.main"], env=env, capture_output=True, text=True, check=True)
    assert [line.partition(",")[2] for line in done.stdout.splitlines()] == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_script(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["completion", shell]) == 0
    assert f"_ROLLSCOPE_COMPLETE={shell}_complete" in capsys.readouterr().out


def test_help_is_plain_without_a_terminal_and_with_no_color() -> None:
    group = program()
    context = group.make_context("rollscope", ["help"])
    assert "\x1b[1mUsage: " in context.get_help()
    done = subprocess.run([sys.executable, "-m", "server.main", "--help"], capture_output=True, text=True, check=True)
    assert "\x1b" not in done.stdout and "Usage: rollscope" in done.stdout
