"""The markers that `make test-fast` selects by."""

import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tests import support_postgres
from tests.browser_support import unpack
from tests.collectors import _logged
from tests.killed import run_and_kill
from tests.markers import needed
from tests.support_sdks import python_with


def logs_through_a_helper(path: Path) -> None:
    _logged.write("tensorboard", path, [])


def calls_in_a_nested_function() -> Callable[[], object]:
    return lambda: python_with("modal")


def starts_a_program() -> None:
    subprocess.run(["true"], check=True)


def kills_a_process() -> object:
    return run_and_kill


def uses_a_database() -> object:
    return support_postgres.database


def uses_the_browser() -> Path:
    return unpack()


def computes() -> int:
    return len(Path("a").parts)


@pytest.mark.parametrize(
    ("function", "markers"),
    [
        (logs_through_a_helper, {"writers"}),
        (_logged.write, {"writers"}),
        (calls_in_a_nested_function, {"sdks"}),
        (starts_a_program, {"process"}),
        (kills_a_process, {"process"}),
        (uses_a_database, {"postgres"}),
        (uses_the_browser, {"browser"}),
        (computes, set()),
    ],
)
def test_a_test_is_marked_with_what_its_helper_functions_use(function: Callable[..., Any], markers: set[str]) -> None:
    assert needed(function) == markers
