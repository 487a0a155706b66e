"""The README's tables are the program's own."""

import re
from pathlib import Path

import collectors
from server import notify, signals
from server.alerts.config import ALERT_KEYS
from server.alerts.rule_table import RULE_KEYS
from server.demo.faults import KINDS
from server.demo.scenarios import SCENARIOS
from server.main import _parser

ROOT = Path(__file__).parent.parent
README = (ROOT / "README.md").read_text("utf-8")


def rows(heading: str) -> list[list[str]]:
    """Cells of the first table below a heading, without its header."""
    section = README.split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines[2:]]


def test_every_collector_has_its_row() -> None:
    expected = [[c.name, c.actor, c.reads, c.versions] for c in collectors.load().values()]
    assert sorted(rows("What it reads")) == sorted(expected)


def test_every_signal_has_its_row() -> None:
    assert rows("What it derives") == [[item.name, item.unit, item.help] for item in signals.load()]


def test_every_receiver_has_its_row() -> None:
    assert rows("Alerts") == [[one.kind, one.reads] for one in notify.load().values()]


def test_every_key_of_a_rule_is_documented() -> None:
    words = (ROOT / "docs/alerts.md").read_text("utf-8")
    assert [key for key in sorted(RULE_KEYS | ALERT_KEYS) if not re.search(rf"\b{key}\b", words)] == []


def test_every_variable_is_documented() -> None:
    code = "".join(path.read_text("utf-8") for path in (ROOT / "server").rglob("*.py"))
    assert set(re.findall(r'"(ROLLSCOPE_[A-Z_]+)"', code)) <= set(re.findall(r"ROLLSCOPE_[A-Z_]+", README))


def test_every_command_has_an_example() -> None:
    actions = [action for action in _parser()._actions if action.choices and action.dest == "command"]
    commands = actions[0].choices
    assert commands is not None
    for name, parser in commands.items():  # type: ignore[union-attr]
        assert f"example: rollscope {name}" in parser.format_help().replace("\n", " ")


def test_changelog_lines_say_their_kind() -> None:
    for line in (ROOT / "CHANGELOG.md").read_text("utf-8").splitlines():
        if line.startswith("- "):
            assert re.match(r"- \[(FEATURE|CHANGE|FIX|PERF)\] \w+", line), line


def test_every_module_opens_with_what_it_is() -> None:
    for folder in ("collectors", "server", "dashboard", "migrations"):
        for path in (ROOT / folder).rglob("*.py"):
            text = path.read_text("utf-8").strip()
            assert not text or text.startswith('"""'), path


def table(page: str, heading: str) -> list[list[str]]:
    """Cells of the first table below a heading of a page in `docs`, without its header."""
    section = (ROOT / "docs" / page).read_text("utf-8").split(f"## {heading}\n", 1)[1].split("\n## ", 1)[0]
    lines = [line for line in section.splitlines() if line.startswith("|")]
    ends = next((number for number, line in enumerate(lines[2:]) if line.startswith("|--")), len(lines))
    return [[cell.strip().strip("`") for cell in line.strip("|").split("|")] for line in lines[2 : 1 + ends]]


def test_every_scenario_and_fault_of_the_demo_has_its_row() -> None:
    assert {row[0] for row in table("demo.md", "Scenarios")} == set(SCENARIOS)
    assert table("demo.md", "Faults") == [[kind, words] for kind, words in KINDS.items()]
