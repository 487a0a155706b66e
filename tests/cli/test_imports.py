"""What a command loads: its own part only. Numbers of seconds are not tested; what costs them is."""

import subprocess
import sys

import pytest

from server.main import COMMANDS, _parser, main

LOADED = """
import sys
from server.main import _parser
heavy = ["server.config.settings", "sqlalchemy", "alembic", "fastapi", "dash", "uvicorn"]
for command in sys.argv[1:]:
    _parser(command)
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
        "migrate server.config.settings sqlalchemy alembic",
        "watch server.config.settings sqlalchemy alembic fastapi uvicorn",
    ]


WORDS = {"alerts": ["send-test", "oncall"], "export": ["rules"]}


@pytest.mark.parametrize("name", COMMANDS)
def test_only_the_chosen_command_can_be_executed(name: str) -> None:
    words = [name, *WORDS.get(name, [])]
    assert callable(_parser(name).parse_args(words).execute) and callable(_parser().parse_args(words).execute)
    assert not hasattr(_parser("").parse_args([name]), "execute")


@pytest.mark.parametrize("words", [[], ["nothing"], ["--nothing"], ["--", "nothing"], ["status", "--nothing"]])
def test_what_is_no_command_is_bad_usage(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as left:
        main(words)
    assert left.value.code == 2 and "usage: rollscope" in capsys.readouterr().err
