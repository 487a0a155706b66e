"""The command blocks of the guides run as printed: against a simulated run, a real server, and real processes."""

import re
import shutil
import types
from collections.abc import Iterator

import pytest

from tests.docs.blocks import Block, blocks
from tests.docs.world import FORWARDED, World, world

RUN = [block for block in blocks() if block.is_shell and not block.not_run]
FUNCTIONS = [block for block in blocks() if block.language == "python" and 'url="http' in block.text]
"""Functions that push, with a call as their docstring. Other tests run the other Python blocks."""
NEEDED = ("jq", "openssl", "curl")
"""Tools that not every machine has. A block that calls a missing one is skipped with this reason."""
NOT_HERE = re.compile(r"http://127\.0\.0\.1:8000|^together:")
"""Output about an engine on its usual port, where a test must not listen."""


@pytest.fixture(scope="module")
def documented(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with world(tmp_path_factory.mktemp("documented")) as made:
        yield made


def stable(lines: list[str]) -> list[str]:
    """Without ports and tokens, which change with every start, and runs of spaces."""
    text = re.sub(r"(127\.0\.0\.1[:-])\d+", r"\g<1>PORT", "\n".join(lines))
    return [" ".join(line.split()) for line in re.sub(r"token=\S+", "token=...", text).splitlines()]


@pytest.mark.parametrize("block", RUN, ids=lambda block: block.name)
def test_the_commands_of_a_block_succeed_and_print_what_is_shown(documented: World, block: Block) -> None:
    missing = [tool for tool in NEEDED if re.search(rf"\b{tool} ", block.script) and shutil.which(tool) is None]
    if missing:
        pytest.skip(f"not installed: {', '.join(missing)}")
    done = documented.shell(block)
    assert done.returncode == 0, f"{block.page}:{block.line}\n{done.stdout}\n{done.stderr}"
    assert "Traceback" not in done.stderr
    if block.output:
        shown = stable([line for line in block.output if not NOT_HERE.search(line)])
        assert shown == stable([line for line in done.stdout.splitlines() if not NOT_HERE.search(line)])
    if "--push" in block.script:
        assert FORWARDED in [run["name"] for run in documented.server.get("/api/v1/runs").json()]


@pytest.mark.parametrize("block", FUNCTIONS, ids=lambda block: block.name)
def test_functions_that_push_push_their_own_example(documented: World, block: Block) -> None:
    module = types.ModuleType("example")
    exec(block.text, module.__dict__)
    (function,) = [one for one in vars(module).values() if getattr(one, "__doc__", None) and "my-run" in one.__doc__]
    call = function.__doc__.strip()
    assert call.startswith(f"{function.__name__}(") and call.endswith(")")
    answer = eval(f"{call[:-1]}, url={documented.server.url!r})", module.__dict__)
    assert b'"refused":[]' in answer
