"""The order of the suite: slow files start first, and each listed file exists."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.order import SLOW, TESTS, slow_first


def test_every_slow_file_exists_and_the_slowest_comes_first() -> None:
    assert [name for name in SLOW if not (TESTS / name).is_file()] == []
    assert list(SLOW.values()) == sorted(SLOW.values(), reverse=True)


def test_slow_files_come_first_then_those_with_many_tests() -> None:
    dear, few, many = TESTS / "demo/test_truth.py", TESTS / "test_few.py", TESTS / "test_many.py"
    elsewhere = Path("/elsewhere/demo/test_truth.py")
    items: list[Any] = [
        SimpleNamespace(path=path, name=name)
        for path, name in ((elsewhere, "a"), (many, "b"), (few, "c"), (dear, "d"), (many, "e"), (few, "f"), (many, "g"))
    ]
    slow_first(items)
    assert "".join(item.name for item in items) == "dbegcfa"
