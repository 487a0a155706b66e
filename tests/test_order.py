"""The order of the suite: a dear file begins before a cheap one, and a name that is none would order nothing."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

from tests.order import SLOW, TESTS, slow_first


def test_every_dear_file_is_there_and_the_dearest_comes_first() -> None:
    assert [name for name in SLOW if not (TESTS / name).is_file()] == []
    assert list(SLOW.values()) == sorted(SLOW.values(), reverse=True)


def test_dear_files_come_first_then_those_of_many_tests() -> None:
    dear, few, many = TESTS / "demo/test_truth.py", TESTS / "test_few.py", TESTS / "test_many.py"
    elsewhere = Path("/elsewhere/demo/test_truth.py")
    items: list[Any] = [
        SimpleNamespace(path=path, name=name)
        for path, name in ((elsewhere, "a"), (many, "b"), (few, "c"), (dear, "d"), (many, "e"), (few, "f"), (many, "g"))
    ]
    slow_first(items)
    assert "".join(item.name for item in items) == "dbegcfa"
