"""Import rules: one row per package, with its reason in the failure message."""

import ast
import re
import sys
from collections.abc import Iterator
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import NamedTuple

import pytest

ROOT = Path(__file__).parent.parent
OURS = ("collectors", "server", "dashboard", "demo", "migrations")

COLLECTOR_TYPES = {"collectors.model", "collectors.catalog"}
PURE_TYPES = COLLECTOR_TYPES | {"server.lib.matchers"}
LEAVES = {"server.lib", "server.lib.matchers"}
FORMATS = {"collectors.formats", "collectors.transport"}
PLUGINS = FORMATS | {"collectors.model", "collectors.catalog"}


class Row(NamedTuple):
    """May import: ours (packages; ``x.*``: all below x; the package itself always), libraries of note (None: any)."""

    ours: set[str]
    libraries: set[str] | None
    why: str


# Records are its structs, in every layer.
RECORDS = {"msgspec"}
RULES: dict[str, Row] = {
    # ---- layer 1
    "collectors.model": Row(set(), {"httpx"}, "types of layer 1: everything above builds on them"),
    "collectors.catalog": Row({"collectors.model"}, set(), "a table of names and units"),
    "collectors.formats": Row(PLUGINS, {"google", "httpx", "prometheus_client", "pyarrow", "yaml"}, "bytes to rows"),
    "collectors.transport": Row({"collectors.model"}, {"httpx"}, "bytes from somewhere; a format is another's matter"),
    "collectors.engine_pages": Row(PLUGINS, {"httpx"}, "one evaluator for the pages of all engines: it names none"),
    "collectors.training_logs": Row(PLUGINS, set(), "one reader for the logs of all frameworks: it names none"),
    "collectors.rollout_files": Row(PLUGINS, set(), "what readers of rollout files share"),
    "collectors.sandbox_providers": Row(PLUGINS, {"httpx"}, "what readers of providers share"),
    "collectors.generators": Row(
        PLUGINS | {"collectors.engine_pages", "collectors.training_logs"}, {"httpx"}, "plugins know what they share"
    ),
    "collectors.otlp_names": Row(PLUGINS | {"collectors.generators"}, set(), "names of metrics that are pushed"),
    "collectors.rollouts": Row(
        PLUGINS | {"collectors.rollout_files", "collectors.training_logs"}, {"yaml"},
        "plugins know what they share",
    ),
    "collectors.trainers": Row(
        PLUGINS | {"collectors", "collectors.training_logs", "collectors.rollouts", "collectors.engine_pages"},
        {"httpx", "yaml"}, "plugins know what they share",
    ),
    "collectors.sandboxes": Row(
        PLUGINS | {"collectors.sandbox_providers", "collectors.trainers"}, {"httpx"}, "plugins know what they share"
    ),
    "collectors.detect": Row({"collectors", "collectors.model", "collectors.formats"}, set(), "over every collector"),
    "collectors": Row({"collectors.model"}, {"httpx", "prometheus_client", "yaml"}, "runs without the server"),
    # ---- leaves of the server
    "server.lib.matchers": Row(set(), set(), "label matchers, for alerts and receivers alike; pure"),
    "server.lib": Row(set(), set(), "what every package may use, so it uses nothing of ours"),
    "server.alerts.model": Row({"collectors.model", "server.lib.matchers"}, set(), "a leaf: the store keeps alerts"),
    # ---- pure: values in, values out
    "server.rollouts": Row(PURE_TYPES, set(), "rules about rollouts know no store and no signal"),
    "server.signals": Row(
        PURE_TYPES | {"server.rollouts", "collectors"}, set(),
        "signals are pure: what a reader must be able to trust on paper has no I/O and no clock",
    ),
    "server.verdict": Row(
        PURE_TYPES | {"server.signals"}, set(),
        "a verdict follows from what it is shown: a proof is a table of inputs and outcomes",
    ),
    # ---- the rest, from the store up: each knows what is below it, and nothing beside it
    "server.store": Row(
        LEAVES | {"collectors.model", "server.alerts.model", "server.rollouts", "server.signals", "migrations"},
        {"sqlalchemy", "alembic", "psycopg"},
        "the store knows the records of rollouts and signals, not what they mean",
    ),
    "server.notify": Row(
        LEAVES | {"collectors.transport"}, {"httpx", "apprise"},
        "a receiver gets a notification; what an alert is, alerts decide",
    ),
    "server.alerts": Row(
        PURE_TYPES | LEAVES | {"server.alerts.model", "server.notify", "server.signals", "server.store"}, set(),
        "rules over signals, and an outbox; derive calls it, it calls nothing above the store",
    ),
    "server.ingest": Row(
        PURE_TYPES | LEAVES | {"collectors", "server.rollouts", "server.signals", "server.store"}, set(),
        "readings to rows, before any signal is evaluated",
    ),
    "server.query": Row(
        PURE_TYPES | LEAVES
        | {
            "collectors", "server.alerts", "server.alerts.model", "server.notify", "server.rollouts", "server.signals",
            "server.store", "server.verdict",
        },
        set(), "readers see the store and types; nothing that collects or derives",
    ),
    "server.push": Row(
        PURE_TYPES | LEAVES
        | {
            "collectors", "collectors.formats", "collectors.otlp_names", "collectors.sandbox_providers",
            "server.alerts", "server.ingest", "server.rollouts", "server.signals", "server.store",
        },
        None, "what clients send becomes readings; it starts no loop",
    ),
    "server.targets": Row(
        PURE_TYPES | LEAVES
        | {"collectors", "collectors.detect", "collectors.formats", "collectors.transport",
           "server.alerts", "server.ingest", "server.signals", "server.store"},
        {"httpx", "yaml"}, "which targets exist; reading them on schedule is scrape's",
    ),
    "server.derive": Row(
        PURE_TYPES | LEAVES
        | {
            "collectors", "server.alerts", "server.alerts.model", "server.ingest", "server.notify", "server.rollouts",
            "server.signals", "server.store", "server.verdict",
        },
        set(), "event time only: no request; of the collectors their ranks and intervals",
    ),
    "server.scrape": Row(
        LEAVES
        | {
            "collectors", "collectors.model", "collectors.transport", "server.alerts", "server.derive",
            "server.ingest", "server.push", "server.signals", "server.store", "server.targets",
        },
        {"httpx"}, "the run loop: reads targets and drives a run; it answers no request",
    ),
    "server.preflight": Row(
        LEAVES
        | {
            "collectors", "collectors.model", "collectors.transport", "server.query", "server.scrape",
            "server.targets",
        },
        {"httpx"}, "reads every target once, stores nothing",
    ),
    "server.api": Row(
        PURE_TYPES | LEAVES
        | {
            "collectors", "collectors.otlp_names", "server.alerts", "server.ingest", "server.preflight", "server.push",
            "server.query",
            "server.rollouts", "server.store", "server.targets",
        },
        None, "routes without logic: never scrape, never derive",
    ),
    "server.config": Row(
        PURE_TYPES | LEAVES
        | {
            "collectors", "collectors.otlp_names", "collectors.training_logs", "server.alerts", "server.alerts.model",
            "server.notify", "server.preflight", "server.push", "server.signals", "server.store", "server.targets",
            "server.verdict",
        },
        set(), "reads TOML and environment into the settings types of the packages below",
    ),
    "server.runtime": Row(
        LEAVES
        | {
            "collectors", "collectors.model", "collectors.transport",
            "server.alerts", "server.api", "server.config", "server.preflight", "server.push", "server.query",
            "server.scrape", "server.store", "server.targets",
        },
        None, "processes and roles: puts the parts together, below the command line",
    ),
    "demo": Row(set(), set(), "the demo is the outside world: it shares no line with what reads it"),
    "server.cli": Row({"collectors.*", "demo", "server.*"}, None, "commands use everything but the dashboard"),
    "server.main": Row({"collectors.*", "dashboard.*", "migrations.*", "server.*"}, None, "the composition root"),
    "server": Row(set(), set(), "the root holds packages and main.py"),
    # ---- layer 3
    "dashboard.widgets": Row({"server.query"}, None, "kinds of widgets know no page"),
    "dashboard.state": Row({"dashboard.widgets", "server.query"}, None, "what a browser shows, for any page"),
    "dashboard.shell": Row({"dashboard.state", "dashboard.widgets", "server.query"}, None, "the frame around any page"),
    "dashboard.charts": Row(
        {"dashboard.shell", "dashboard.state", "dashboard.widgets", "server.query"}, None, "charts of any page"
    ),
    "dashboard.pages": Row(
        {"dashboard.charts", "dashboard.shell", "dashboard.state", "dashboard.widgets", "server.query"},
        None, "pages compose what is below; records are shown as `server.query` returns them",
    ),
    "dashboard": Row(
        {"dashboard.*", "server.query"}, None, "a pixel can never show what the API and /metrics do not say"
    ),
    "migrations": Row({"migrations"}, {"alembic", "sqlalchemy"}, "a migration is frozen: tables.py may change, it not"),
}  # fmt: skip

# A signal's name that ends in a unit is no raw key of a log by chance.
UNIT = re.compile(r"_(ratio|total|seconds|second|versions|samples|tokens|hour|usd|steps|step)$")

NO_CLOCK_NO_IO = {
    "time", "datetime", "random", "os", "pathlib", "socket", "asyncio", "threading", "logging", "subprocess",
}  # fmt: skip
PURE = ("server/rollouts", "server/signals", "server/verdict")
# A page of the documentation is written from the registry when the module is run.
WRITES = {"server/signals/availability.py"}


def files() -> list[Path]:
    return sorted(path for folder in OURS for path in (ROOT / folder).rglob("*.py"))


def module_of(path: Path) -> str:
    return path.relative_to(ROOT).with_suffix("").as_posix().replace("/", ".").removesuffix(".__init__")


@cache
def modules() -> frozenset[str]:
    return frozenset(map(module_of, files()))


@cache
def imports(path: Path) -> tuple[str, ...]:
    """Modules and libraries that a file imports; parsed once, because several tests need it."""
    return tuple(imports_of(path.read_text("utf-8"), str(path)))


def imports_of(source: str, name: str = "") -> Iterator[str]:
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0 and node.module, f"{name}: relative import"
            for alias in node.names:
                full = f"{node.module}.{alias.name}"
                yield full if full in modules() else node.module


def rule_of(module: str) -> str:
    return max((name for name in RULES if module == name or module.startswith(f"{name}.")), key=len)


def broken(module: str, names: list[str]) -> list[str]:
    own = rule_of(module)
    ours, libraries, why = RULES[own]
    found = []
    for name in names:
        top = name.split(".")[0]
        if top in OURS:
            home = rule_of(name)
            # A bare `import server` (or `from server import x`, where x is checked separately) imports nothing else.
            allowed = home == own or home in ours or f"{top}.*" in ours or name in OURS
        else:
            allowed = libraries is None or top in {*libraries, *RECORDS} or top in sys.stdlib_module_names
        if not allowed:
            found.append(f"{module} imports {name}: {why}")
    return found


@pytest.mark.parametrize("path", files(), ids=lambda path: path.relative_to(ROOT).as_posix())
def test_imports_go_one_way(path: Path) -> None:
    assert broken(module_of(path), list(imports(path))) == []


def graph() -> dict[str, set[str]]:
    """Package -> packages that it imports."""
    found: dict[str, set[str]] = {}
    for path in files():
        own = rule_of(module_of(path))
        for name in imports(path):
            if name.split(".")[0] in OURS and (home := rule_of(name)) != own and name not in OURS:
                found.setdefault(own, set()).add(home)
    return found


def cycle(edges: dict[str, set[str]]) -> list[str]:
    try:
        TopologicalSorter(edges).prepare()
    except CycleError as error:
        return list(error.args[1])
    return []


def test_packages_have_no_cycle() -> None:
    assert cycle(graph()) == []


def test_private_modules_stay_in_their_package() -> None:
    for path in files():
        package = module_of(path) if path.name == "__init__.py" else module_of(path).rpartition(".")[0]
        for name in imports(path):
            if name.split(".")[0] in OURS and any(part.startswith("_") for part in name.split(".")):
                assert name.rpartition(".")[0] == package, f"{path}: {name} is private to its package"


def test_main_is_imported_by_no_module() -> None:
    assert [path for path in files() if "server.main" in imports(path)] == []


def test_server_names_no_collector() -> None:
    plugins = ("collectors.generators", "collectors.rollouts", "collectors.sandboxes", "collectors.trainers")
    found = {
        (module_of(path), rule_of(name))
        for path in files()
        for name in imports(path)
        if module_of(path).startswith("server.") and name.startswith(plugins)
    }
    assert found == set()


def test_layer_1_uses_no_signal_name() -> None:
    from collectors.catalog import METRICS  # noqa: PLC0415
    from collectors.model import FACTS  # noqa: PLC0415
    from server import signals  # noqa: PLC0415

    # A signal may be named like the metric it is made of.
    names = {item.name for item in signals.load() if UNIT.search(item.name)} - METRICS.keys() - FACTS.keys()
    found = set()
    for path in (ROOT / "collectors").rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Dict):
                keys = {key.value for key in node.keys if isinstance(key, ast.Constant)}
                if keys & names:
                    found.add(path.relative_to(ROOT).as_posix())
    assert found == set()


def unfit(names: list[str]) -> set[str]:
    """Modules of the standard library that pure code does not need."""
    return NO_CLOCK_NO_IO & {name.split(".")[0] for name in names}


@pytest.mark.parametrize("folder", PURE)
def test_pure_packages_have_no_clock_and_no_io(folder: str) -> None:
    for path in (ROOT / folder).rglob("*.py"):
        if path.name != "__init__.py" and path.relative_to(ROOT).as_posix() not in WRITES:
            assert not unfit(list(imports(path))), path
            calls = ("open(", "print(", "input(")
            text = path.read_text("utf-8")
            assert not [call for call in calls if re.search(rf"(?<![\w.]){re.escape(call)}", text)], path


PURE_ALERTS = (
    "group",
    "inputs",
    "model",
    "mute",
    "rules",
    "series_notation",
    "silences",
    "text",
)
"""Modules that decide about alerts: pure, like the signals, so that they can be verified by reading."""

PURE_ALERTS_IMPORT = {
    "server.alerts", "server.lib.matchers", "server.notify.model", "server.signals", "server.store.types",
}  # fmt: skip


def impure(source: str) -> list[str]:
    names = set(imports_of(source))
    allowed = {f"server.alerts.{name}" for name in PURE_ALERTS} | PURE_ALERTS_IMPORT
    ours = {
        name
        for name in names
        if name.startswith(("server", "dashboard")) and name not in allowed and not name.startswith("server.signals.")
    }
    # Times are formatted there, the clock is not read.
    clock = (NO_CLOCK_NO_IO - {"datetime"}) & {name.split(".")[0] for name in names}
    read = [word for word in ("datetime.now", "utcnow", ".today(") if word in source]
    return sorted(ours) + sorted(clock) + read


@pytest.mark.parametrize("name", PURE_ALERTS)
def test_what_decides_about_alerts_is_pure(name: str) -> None:
    assert impure((ROOT / f"server/alerts/{name}.py").read_text("utf-8")) == []


def test_impure_code_is_found() -> None:
    assert impure("import time") == ["time"]
    assert impure("from server.store import Store") == ["server.store"]
    assert impure("from datetime import datetime\ndatetime.now()") == ["datetime.now"]
    assert impure("from datetime import UTC") == []
    assert unfit(["time", "math", "collections.abc"]) == {"time"}
    assert unfit(["logging"]) == {"logging"} and unfit(["json"]) == set()


def test_violations_are_found() -> None:
    """A planted violation of each kind is found."""
    planted = {
        "collectors.trainers.x": "server.store",
        "collectors.transport.x": "collectors.formats.rows",
        "server.signals.x": "sqlalchemy",
        "server.verdict.x": "server.store",
        "server.rollouts.x": "server.signals.model",
        "server.query.x": "server.derive.driver",
        "server.api.x": "server.scrape.run_loop",
        "server.notify.x": "server.alerts.model",
        "demo.x": "collectors.model",
        "server.cli.x": "dashboard.app",
        "dashboard.pages.x": "server.store",
        "dashboard.charts.x": "dashboard.pages.verdict",
        "migrations.x": "server.store.tables",
    }
    for module, name in planted.items():
        assert len(broken(module, [name])) == 1, module
    assert cycle({"a": {"b"}, "b": {"c"}, "c": {"a"}}) and not cycle({"a": {"b"}, "b": {"c"}})


def test_sql_is_in_the_store_only() -> None:
    for path in files():
        if not path.relative_to(ROOT).as_posix().startswith(("server/store/", "migrations/")):
            assert not any(name.split(".")[0] in ("sqlalchemy", "psycopg") for name in imports(path)), path
