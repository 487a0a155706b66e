"""docs/architecture.md: every `file: function` of the walks exists, and every package has a line."""

import ast
import re
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGE = (ROOT / "docs/architecture.md").read_text("utf-8")
WALKS = re.findall(r"`([\w/.-]+\.(?:py|mjs)): ([\w.]+)`", PAGE)
MAX_LINES = 80  # so that the page can be read as a whole


@cache
def names(path: str) -> frozenset[str]:
    """Functions, classes, methods and constants of a file."""
    text = (ROOT / path).read_text("utf-8")
    if path.endswith(".mjs"):
        return frozenset(re.findall(r"\bfunction\*? (\w+)", text) + re.findall(r"\bconst (\w+) =", text))
    found = set()
    for node in ast.parse(text).body:
        if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
            found.add(node.name)
        if isinstance(node, ast.ClassDef):
            found |= {
                f"{node.name}.{one.name}"
                for one in node.body
                if isinstance(one, (ast.FunctionDef, ast.AsyncFunctionDef))
            }
        if isinstance(node, ast.Assign):
            found |= {one.id for one in node.targets if isinstance(one, ast.Name)}
    return frozenset(found)


@pytest.mark.parametrize(("path", "name"), WALKS, ids=lambda value: value)
def test_names_of_the_walks_exist(path: str, name: str) -> None:
    assert (ROOT / path).exists()
    assert name in names(path)


def test_four_walks_are_there() -> None:
    walks = PAGE.split("\n## (")[1:]
    assert [walk[0] for walk in walks] == ["a", "b", "c", "d"]
    for walk in walks:
        assert len(re.findall(r"\.(?:py|mjs): ", walk.split("\n## Glossary")[0])) >= 8
    assert len(PAGE.splitlines()) <= MAX_LINES


def test_every_package_has_a_line() -> None:
    packages = {f"{top}.{path.parent.name}" for top in ("server",) for path in (ROOT / top).glob("*/__init__.py")} | {
        path.parent.name
        for path in ROOT.glob("*/__init__.py")
        if path.parent.name in ("collectors", "dashboard", "demo", "migrations")
    }
    lines = [line for line in PAGE.splitlines() if line.startswith("| `")]
    assert {name for name in packages if not any(f"`{name}`" in line for line in lines)} == set()


def test_missing_names_are_found() -> None:
    assert "Judge.judge" in names("server/alerts/rules.py")
    assert "Judge.no_such" not in names("server/alerts/rules.py")
    assert "pull" in names("dashboard/assets/core/live.mjs")
