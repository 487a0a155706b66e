"""Checks that the tests detect bugs: plants one bug at a time in product code and runs the tests of its package.

`python -m bench.mutants --count 60 --seed 1` draws functions at random over all packages, changes one operator, number,
condition or return value of each in a copy of the tree, and prints one JSON line per bug: caught, or survived with the
changed line. A survivor is a missing test or a change without effect: read it. A bug costs 5 to 60 CPU seconds.
"""

import argparse
import ast
import copy
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).parent.parent
COPIED = ("server", "collectors", "dashboard", "migrations", "tests", "bench", "docs")
COPIED_FILES = ("pyproject.toml", "README.md", "alembic.ini", "rollscope.py", "package.json")
# Packages and the tests that cover them. `collectors` comes last: the first prefix that matches decides.
TESTS = {
    "collectors/sandboxes": ("tests/sandboxes", "tests/collectors/test_contract.py"),
    "collectors/sandbox_providers": ("tests/sandboxes",),
    "collectors": ("tests/collectors",),
    "dashboard": ("tests/dashboard",),
    "migrations": ("tests/store",),
} | {
    f"server/{name}": (f"tests/{name}",)
    for name in (
        *("alerts", "api", "cli", "config", "derive", "ingest", "notify", "preflight", "push"),
        *("query", "runtime", "scrape", "signals", "store", "targets", "verdict"),
    )
}
# Packages without a test folder of their own.
TESTS["server/runtime"] += ("tests/forwarding",)
TESTS |= {"server/rollouts": ("tests/ingest", "tests/derive", "tests/store"), "server/discovery": ("tests/targets",)}
# Plays of the demo's cluster, not product code that a user's run depends on.
LEFT_OUT = ("demo/", "dashboard/assets/")
TIMEOUT = 900.0  # seconds for the tests of one bug; a bug that hangs its test is caught
COMPARISONS: dict[type[ast.cmpop], type[ast.cmpop]] = {
    ast.Lt: ast.LtE,
    ast.LtE: ast.Lt,
    ast.Gt: ast.GtE,
    ast.GtE: ast.Gt,
    ast.Eq: ast.NotEq,
    ast.NotEq: ast.Eq,
    ast.In: ast.NotIn,
    ast.NotIn: ast.In,
    ast.Is: ast.IsNot,
    ast.IsNot: ast.Is,
}
OPERATORS: dict[type[ast.operator], type[ast.operator]] = {
    ast.Add: ast.Sub,
    ast.Sub: ast.Add,
    ast.Mult: ast.Div,
    ast.Div: ast.Mult,
}


class Bug(NamedTuple):
    """One change of one expression: ``old`` at ``line`` (from 1) of ``path`` becomes ``new``."""

    path: str
    function: str
    line: int
    old: str
    new: str
    text: str
    """The whole changed file."""


def changed(node: ast.expr) -> ast.expr | None:
    """A copy of the expression with its operator or value changed; None where no change applies."""
    new = copy.deepcopy(node)
    match new:
        case ast.Compare(ops=[op]) if type(op) in COMPARISONS:
            new.ops = [COMPARISONS[type(op)]()]
        case ast.BinOp(op=op) if type(op) in OPERATORS and not any(text_of(side) for side in (new.left, new.right)):
            new.op = OPERATORS[type(op)]()
        case ast.BoolOp():
            new.op = ast.Or() if isinstance(new.op, ast.And) else ast.And()
        case ast.UnaryOp(op=ast.Not()):
            return new.operand
        case ast.Constant(value=int() | float() as value) if not isinstance(value, bool):
            new.value = value + 1
        case _:
            return None
    return new


def text_of(node: ast.expr) -> bool:
    return isinstance(node, ast.JoinedStr) or (isinstance(node, ast.Constant) and isinstance(node.value, str))


def expressions(function: ast.AST) -> Iterator[ast.expr]:
    """Expressions of a function's body, without decorators, annotations and messages of exceptions."""
    for child in ast.iter_child_nodes(function):
        if isinstance(child, ast.arguments | ast.Raise | ast.AnnAssign | ast.JoinedStr):
            continue
        if isinstance(child, ast.expr):
            yield child
        yield from expressions(child)


def bugs(path: Path) -> list[Bug]:
    """All bugs that can be planted in a file, one list entry for each."""
    source = path.read_text("utf-8")
    lines = source.splitlines(keepends=True)
    found = []
    for function in ast.walk(ast.parse(source)):
        if not isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        for node in expressions(function):
            if node.lineno != node.end_lineno or (new := changed(node)) is None:
                continue
            line = lines[node.lineno - 1].encode()
            old = line[node.col_offset : node.end_col_offset].decode()
            replaced = line[: node.col_offset] + f"({ast.unparse(new)})".encode() + line[node.end_col_offset :]
            text = "".join([*lines[: node.lineno - 1], replaced.decode(), *lines[node.lineno :]])
            name = str(path.relative_to(ROOT))
            found.append(Bug(name, function.name, node.lineno, old, ast.unparse(new), text))
    return found


def tests_of(path: str) -> tuple[str, ...]:
    return next((tests for prefix, tests in TESTS.items() if path.startswith(f"{prefix}/")), ())


def drawn(count: int, seed: int) -> list[Bug]:
    """``count`` bugs: packages in turn, in each a function at random and one bug of it."""
    rng = random.Random(seed)
    files: dict[str, list[Path]] = {}
    for top in ("server", "collectors", "dashboard"):
        for path in sorted((ROOT / top).rglob("*.py")):
            name = str(path.relative_to(ROOT))
            if tests_of(name) and not name.startswith(LEFT_OUT):
                files.setdefault("/".join(name.split("/")[:-1][:2]), []).append(path)
    chosen: list[Bug] = []
    packages = sorted(files)
    while len(chosen) < count:
        for package in packages:
            candidates = bugs(rng.choice(files[package]))
            if candidates and len(chosen) < count:
                function = rng.choice(sorted({bug.function for bug in candidates}))
                chosen.append(rng.choice([bug for bug in candidates if bug.function == function]))
    return chosen


def caught(bug: Bug, tree: Path) -> str | None:
    """The first test that fails with the bug planted in ``tree``, else None. The tree is restored afterwards."""
    target = tree / bug.path
    before = target.read_bytes()
    target.write_text(bug.text, "utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "-n", "0"]
    command += ["-m", "not long and not postgres and not browser and not crash", "--tb=no", *tests_of(bug.path)]
    environment = dict(os.environ) | {"PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(command, cwd=tree, env=environment, capture_output=True, text=True, timeout=TIMEOUT)
    except subprocess.TimeoutExpired:
        return "the tests hang"
    finally:
        target.write_bytes(before)
    if done.returncode == 0:
        return None
    first = next((line for line in done.stdout.splitlines() if line.startswith(("FAILED", "ERROR"))), "")
    return first.split(" - ")[0] or done.stdout[-200:] + done.stderr[-200:]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--count", type=int, default=60, help="how many bugs (default: 60)")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="rollscope-mutants-") as folder:
        tree = Path(folder)
        for name in COPIED:
            shutil.copytree(ROOT / name, tree / name, ignore=shutil.ignore_patterns("__pycache__"))
        for name in COPIED_FILES:
            if (ROOT / name).exists():
                shutil.copy(ROOT / name, tree / name)
        for name in (".venv-writers", ".venv-sdks", "node_modules"):
            if (ROOT / name).exists():
                (tree / name).symlink_to((ROOT / name).resolve())
        survived = 0
        for bug in drawn(options.count, options.seed):
            test = caught(bug, tree)
            survived += test is None
            row = {"path": bug.path, "line": bug.line, "function": bug.function, "old": bug.old, "new": bug.new}
            print(json.dumps(row | {"caught_by": test}), flush=True)
    print(json.dumps({"bugs": options.count, "caught": options.count - survived, "survived": survived}))


if __name__ == "__main__":
    main()
