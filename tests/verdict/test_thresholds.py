"""Every number of the verdict stands in `thresholds.py`, with a name, a unit and a reason."""

import ast
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from server.verdict import thresholds

FOLDER = Path(thresholds.__file__).parent
FILES = sorted(set(FOLDER.rglob("*.py")) - {Path(thresholds.__file__)})

PLAIN = {0, 1, 2, 60, 3600, 1_000_000}
"""Indices, neutral elements, halves and squares of formulas, digits of `round`, seconds per minute and hour, tokens per
million tokens. A minus sign is no part of the literal."""

NAMED: Mapping[tuple[str, str], set[float]] = {
    ("model.py", "RULES_VERSION"): {10},  # a version, no threshold
    ("throughput.py", "interval"): {4},  # Wilson's formula
    ("advice.py", "RunModel"): {4},  # the discriminant
}
"""(file, function or constant) -> further numbers that stand there."""


def numbers(tree: ast.Module) -> Iterator[tuple[str, int, float]]:
    """Yields (function, class or constant of the module, line, number) of every numeric literal."""
    for part in tree.body:
        match part:
            case ast.FunctionDef(name=name) | ast.ClassDef(name=name) | ast.Assign(targets=[ast.Name(id=name)]):
                owner = name
            case ast.AnnAssign(target=ast.Name(id=name)):
                owner = name
            case _:
                owner = ""
        for node in ast.walk(part):
            if isinstance(node, ast.Constant) and type(node.value) in (int, float):
                assert isinstance(node.value, (int, float))
                yield owner, node.lineno, node.value


def stray(name: str, source: str) -> list[str]:
    return [
        f"{name}:{line}: {number!r}: give it a name, a unit and a reason in thresholds.py"
        for owner, line, number in numbers(ast.parse(source))
        if number not in PLAIN | NAMED.get((name, owner), set())
    ]


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_no_number_stands_outside_thresholds(file: Path) -> None:
    assert stray(file.name, file.read_text()) == []


def test_all_files_of_the_verdict_are_read() -> None:
    assert {"rules.py", "liveness.py", "limiters.py", "explain.py"} <= {file.name for file in FILES}


@pytest.mark.parametrize(
    "planted",
    [
        "LIMIT = 0.15",
        "LIMIT: float = 15",
        "WEIGHTS = {'wait': 0.25}",
        "def rule(wait):\n    return wait >= 0.15",
        "def rule(wait):\n    return max(-3, wait)",
        "def rule(wait):\n    return f'{wait / 0.15:.0%}'",
        "class Rule:\n    least: float = 0.15",
        "def rule(least=7): ...",
        "lambda wait: wait > 1e-9",
        "def interval(share):\n    return share > 0.4",
    ],
)
def test_a_planted_number_is_found(planted: str) -> None:
    assert len(stray("throughput.py", planted)) == 1


def test_formatting_and_trivial_numbers_are_not_found() -> None:
    source = "def text(seconds: float) -> str:\n    return f'{round(seconds / 60, 2):.3g} of {[0, True, -1][-1]}'"
    assert stray("explain.py", source) == []


def test_an_exception_holds_in_its_own_place_only() -> None:
    assert stray("throughput.py", "def interval(count):\n    return 4 * count") == []
    assert stray("throughput.py", "def spacing(count):\n    return 4 * count") != []
    assert stray("rules.py", "def interval(count):\n    return 4 * count") != []


def constants() -> dict[str, str]:
    """Returns every constant of `thresholds.py` with the text below it, "" if there is none."""
    body = ast.parse(Path(thresholds.__file__).read_text()).body
    texts: dict[str, str] = {}
    for part, after in zip(body, [*body[1:], ast.Pass()], strict=True):
        match part:
            case ast.Assign(targets=[ast.Name(id=name)]) | ast.AnnAssign(target=ast.Name(id=name)):
                is_text = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
                texts[name] = str(after.value.value) if is_text else ""  # type: ignore[attr-defined]
    return texts


def test_every_threshold_has_a_reason() -> None:
    assert [name for name, text in constants().items() if not text.strip()] == []


def test_a_threshold_in_seconds_says_so_in_its_name() -> None:
    assert [name for name, text in constants().items() if text.startswith("Second") != name.endswith("SECONDS")] == []


def test_every_threshold_is_used() -> None:
    used = {node.id for file in FILES for node in ast.walk(ast.parse(file.read_text())) if isinstance(node, ast.Name)}
    assert sorted(set(constants()) - used) == []


@pytest.mark.parametrize("weights", [thresholds.WEIGHTS, thresholds.SYNC_WEIGHTS], ids=["async", "sync"])
def test_the_weights_of_all_evidence_sum_to_one(weights: Mapping[str, float]) -> None:
    assert sum(weights.values()) == pytest.approx(1.0)
    assert sum(weights.values()) > thresholds.COMPLETE
