"""Who may import whom, with the reason in the failure."""

import ast
import re
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
OURS = {"collectors", "server", "dashboard", "migrations"}

# folder -> (what of ours it may import, what else of note it may import or None for anything, why)
RULES: dict[str, tuple[set[str], set[str] | None, str]] = {
    "collectors": (
        {"collectors"}, {"httpx", "prometheus_client", "yaml"},
        "a collector must run without the server (later: as an agent beside the trainer)",
    ),
    "server/signals": (
        {"server.signals", "collectors.model", "collectors.catalog"}, set(),
        "signals are pure: what a reader must be able to trust on paper has no I/O and no clock",
    ),
    "server/verdict": (
        {"server.verdict", "server.signals.model", "server.signals.window", "collectors.model"}, set(),
        "a verdict follows from what it is shown: a proof is a table of inputs and outcomes",
    ),
    "server/store": (
        {"server.store", "collectors.model", "migrations"}, {"sqlalchemy", "alembic", "psycopg"},
        "the store knows records, not meaning",
    ),
    "server/demo": ({"server.demo"}, set(), "the demo is the outside world: it shares no line with what reads it"),
    "server": ({"server", "collectors", "migrations"}, None, "the server serves API and alerts without a UI"),
    "dashboard": (
        {"dashboard", "server.query"}, None,
        "a pixel can never show what the API and /metrics do not say",
    ),
    "migrations": ({"migrations"}, {"alembic", "sqlalchemy"}, "a migration is frozen: tables.py may change, it not"),
}  # fmt: skip

FORBIDDEN_IN_SIGNALS = {
    "time",
    "datetime",
    "random",
    "os",
    "pathlib",
    "socket",
    "asyncio",
    "threading",
    "logging",
    "subprocess",
}


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Read once: parsing all is 4 s of work, and several tests ask."""
    return tuple(_imports(path))


def _imports(path: Path) -> Iterator[str]:
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: relative import"
            yield node.module or ""


def rule_of(path: Path) -> str:
    folder = path.relative_to(ROOT).parent.as_posix()
    return max((name for name in RULES if folder == name or folder.startswith(name + "/")), key=len)


def files() -> list[Path]:
    return sorted(path for folder in OURS for path in (ROOT / folder).rglob("*.py"))


def broken(path: Path, names: list[str]) -> list[str]:
    import sys  # noqa: PLC0415  only for the list of the standard library's names

    ours, theirs, why = RULES[rule_of(path)]
    found = []
    for name in names:
        top = name.split(".")[0]
        if top in OURS:
            allowed = any(name == one or name.startswith(one + ".") for one in ours)
        else:
            allowed = theirs is None or top in theirs or top in sys.stdlib_module_names
        if not allowed:
            found.append(f"{path.relative_to(ROOT)} imports {name}: {why}")
    return found


@pytest.mark.parametrize("path", files(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_go_one_way(path: Path) -> None:
    if path.relative_to(ROOT).as_posix() == "server/main.py":
        return  # the composition root imports everything
    assert broken(path, list(imports(path))) == []


def test_nobody_imports_main() -> None:
    assert [path for path in files() if "server.main" in imports(path)] == []


def unfit(names: list[str]) -> set[str]:
    """Modules of the standard library that what must be pure has no use for."""
    return FORBIDDEN_IN_SIGNALS & {name.split(".")[0] for name in names}


@pytest.mark.parametrize("folder", ["server/signals", "server/verdict"])
def test_signals_and_verdict_have_no_clock_and_no_io(folder: str) -> None:
    for path in (ROOT / folder).glob("*.py"):
        if path.name != "__init__.py":
            assert not unfit(list(imports(path))), path
        assert not [
            call
            for call in ("open(", "print(", "input(")
            if re.search(rf"(?<![\w.]){re.escape(call)}", path.read_text("utf-8"))
        ], path


PURE_ALERTS = (
    "frame",
    "group",
    "judge",
    "links",
    "matchers",
    "model",
    "mute",
    "notation",
    "rules",
    "silences",
    "text",
)
"""What decides about alerts: a reader must be able to trust it on paper, like the signals."""

PURE_MAY_IMPORT = {f"server.alerts.{name}" for name in PURE_ALERTS} | {
    "server", "server.alerts", "server.notify.model", "server.store.types", "server.signals", "server.signals.model",
    "server.signals.window", "collectors", "collectors.model", "collectors.catalog",
}  # fmt: skip


def impure(source: str) -> list[str]:
    names = {
        node.module if isinstance(node, ast.ImportFrom) else alias.name
        for node in ast.walk(ast.parse(source))
        if isinstance(node, (ast.Import, ast.ImportFrom))
        for alias in node.names
    }
    ours = {str(name) for name in names if str(name).split(".")[0] in OURS}
    # Times are formatted there, never asked for.
    clock = (FORBIDDEN_IN_SIGNALS - {"datetime"}) & {str(name).split(".")[0] for name in names}
    asked = [word for word in ("datetime.now", "utcnow", ".today(") if word in source]
    return sorted(ours - PURE_MAY_IMPORT) + sorted(clock) + asked


@pytest.mark.parametrize("name", PURE_ALERTS)
def test_what_decides_about_alerts_is_pure(name: str) -> None:
    assert impure((ROOT / f"server/alerts/{name}.py").read_text("utf-8")) == []


def test_purity_bites() -> None:
    assert impure("import time") == ["time"]
    assert impure("from server.store import Store") == ["server.store"]
    assert impure("from datetime import datetime\ndatetime.now()") == ["datetime.now"]
    assert impure("from datetime import UTC") == []


def test_what_is_pure_asks_no_clock() -> None:
    assert unfit(["time", "math", "collections.abc"]) == {"time"}
    assert unfit(["logging"]) == {"logging"} and unfit(["json"]) == set()


def test_the_rules_bite() -> None:
    """A planted violation of each rule is found."""
    planted = {
        "collectors/x.py": "server.store",
        "server/signals/x.py": "sqlalchemy",
        "server/verdict/x.py": "server.store",
        "server/demo/x.py": "collectors.model",
        "server/x.py": "dashboard.app",
        "dashboard/x.py": "server.store",
        "migrations/x.py": "server.store.tables",
    }
    for name, module in planted.items():
        assert len(broken(ROOT / name, [module])) == 1, name


def test_sql_is_in_the_store_only() -> None:
    for path in files():
        if not path.relative_to(ROOT).as_posix().startswith(("server/store/", "migrations/")):
            assert not any(name.split(".")[0] in ("sqlalchemy", "psycopg") for name in imports(path)), path
