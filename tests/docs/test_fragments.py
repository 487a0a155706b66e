"""What the guides show and a test cannot run is read: TOML, YAML, units, and every call of the program."""

import configparser
import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import click
import pytest
import yaml

from demo.faults import KINDS
from demo.scenarios import SCENARIOS
from server.config.settings import DEFAULT_PORT, load
from server.main import program
from server.targets.local_scan import PORTS
from tests.docs.blocks import PAGES, ROOT, Block, arguments, blocks, inline
from tests.docs.world import VARIABLES, files, relocated

BLOCKS = blocks()
# Commands in the running text may stop before an argument.
INCOMPLETE = re.compile(r"requires an argument|Missing argument|requires exactly|give ")


def of(*languages: str) -> list[Block]:
    return [block for block in BLOCKS if block.language in languages and not block.not_run]


def parsed(args: list[str]) -> click.Context | None:
    """Parses the arguments as the program does, without running the command. None: an option of the program itself.

    Raises:
        click.UsageError: the program would refuse them.
    """
    if not args or args[0].startswith("-"):
        return None
    command: click.Command = program()
    context = click.Context(command, info_name="rollscope")
    while isinstance(command, click.Group):
        name, found, args = command.resolve_command(context, list(args))
        assert name is not None and found is not None
        command = found
        if not isinstance(command, click.Group):
            return command.make_context(name, list(args), parent=context)
        context = click.Context(command, parent=context, info_name=name)
    return context


def test_a_marker_has_a_reason_and_stands_above_a_block_that_would_run() -> None:
    for page in PAGES:
        marked = [block for block in BLOCKS if block.page == page and block.not_run]
        assert page.read_text("utf-8").count("\n<!-- not run") == len(marked), page
        assert [block.name for block in marked if not block.is_shell and block.language != "toml"] == []


@pytest.mark.parametrize("block", of("toml"), ids=lambda block: block.name)
def test_a_toml_block_is_a_valid_configuration(tmp_path: Path, block: Block) -> None:
    files(tmp_path, "http://127.0.0.1:1", "http://127.0.0.1/x")
    (tmp_path / "rollscope.toml").write_text(relocated(block.text, tmp_path))
    load(tmp_path / "rollscope.toml", VARIABLES)


CALLS = [(block.name, args) for block in BLOCKS for args in arguments(block.script)]


@pytest.mark.parametrize(("name", "args"), CALLS, ids=[f"{name} {' '.join(args)}" for name, args in CALLS])
def test_the_program_accepts_the_arguments_of_every_block(name: str, args: list[str]) -> None:
    parsed(args)


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_the_program_accepts_the_arguments_in_the_text(page: Path) -> None:
    for text in inline(page):
        for args in arguments(text):
            try:
                parsed(args)
            except click.UsageError as error:
                assert INCOMPLETE.search(error.format_message()), f"{text}: {error.format_message()}"


def test_shell_blocks_that_are_not_run_are_valid_shell() -> None:
    for block in BLOCKS:
        if block.is_shell and block.not_run:
            done = subprocess.run(["bash", "-n"], input=block.script, text=True, capture_output=True, check=False)
            assert done.returncode == 0, f"{block.name}: {done.stderr}"


def containers(value: Any) -> Iterator[list[str]]:
    """Arguments of the containers that run the image of the Dockerfile, whose entry point is the program."""
    if isinstance(value, dict):
        words = value.get("args") or (value.get("command") if value.get("build") == "." else None)
        if words:
            yield words
    for child in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from containers(child)


def test_arguments_of_containers_are_accepted() -> None:
    texts = {block.name: block.text for block in of("yaml")}
    texts["docker-compose.yml"] = (ROOT / "docker-compose.yml").read_text("utf-8")
    found = {name: list(containers(list(yaml.safe_load_all(text)))) for name, text in texts.items()}
    for commands in found.values():
        for args in commands:
            assert parsed(args) is not None
    assert sum("kubernetes.md" in name and len(commands) for name, commands in found.items()) == 1
    assert len(found["docker-compose.yml"]) == 2


def test_the_systemd_unit_starts_the_program() -> None:
    (block,) = of("ini")
    unit = configparser.ConfigParser(interpolation=None)
    unit.optionxform = str  # type: ignore[assignment,method-assign]
    unit.read_string(block.text)
    (args,) = arguments(unit["Service"]["ExecStart"])
    context = parsed(args)
    assert context is not None and context.info_name == "up"


def test_targets_of_make_in_the_text_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text("utf-8"), re.M))
    found = {name for page in PAGES for name in re.findall(r"`make ([a-z-]+)", page.read_text("utf-8"))}
    assert found and found <= targets


# ---- names and numbers in the text

NUMBERS = {8: "eight", 9: "nine", 10: "ten", 11: "eleven", 12: "twelve"}


def test_extras_are_named_as_they_can_be_installed() -> None:
    """Nothing is published, so the name of the package with an extra installs nothing."""
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    code = [path for name in ("collectors", "server", "dashboard") for path in (ROOT / name).rglob("*.py")]
    for path in (*code, *(ROOT / "docs").rglob("*.md"), ROOT / "README.md"):
        text = path.read_text("utf-8")
        assert "rollscope[" not in text, path
        for found in re.findall(r"uv tool install '\.\[([\w,]+)\]'", text):
            assert set(found.split(",")) <= extras.keys(), path
    install = (ROOT / "docs/get-started/install.md").read_text("utf-8")
    assert re.findall(r"^\| `(\w+)` \|", install, re.M) == sorted(extras, key=["parquet", "notify", "modal"].index)


def test_numbers_in_the_text_are_the_programs() -> None:
    readme, attach, demo = (
        " ".join((ROOT / name).read_text("utf-8").split())
        for name in ("README.md", "docs/get-started/attach.md", "docs/get-started/demo.md")
    )
    scenarios, faults = NUMBERS[len(SCENARIOS)], NUMBERS[len(KINDS)]
    assert f"{scenarios.capitalize()} scenarios and {faults} faults" in readme
    assert f"{scenarios} scenarios on " in demo and f"and {faults} faults" in demo
    assert f"<http://127.0.0.1:{DEFAULT_PORT}>" in readme
    listed = attach.split("The ports are the defaults", 1)[1].split("Folders that are part", 1)[0]
    ranges = [(int(first), int(last or first)) for first, last in re.findall(r"(\d{4,5})(?: to (\d{4,5}))?", listed)]
    assert [port for first, last in ranges for port in range(first, last + 1)] == list(PORTS)
