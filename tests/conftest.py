"""Fixtures for all tests: both databases, and a summary line with the backends that the tests ran against."""

import gc
import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import fastapi.dependencies.models
import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy import make_url

from server.store import Store, migrate
from tests import support_postgres
from tests.markers import mark
from tests.order import TESTS, compile_a_share, slow_first

pytest_plugins = ["tests.browser_support"]
# A failed assert in a helper module shows its values, too.
pytest.register_assert_rewrite(*(f"tests.{folder.name}" for folder in TESTS.iterdir() if folder.is_dir()))

# No deadline: the duration of an example depends on the load of the machine. Few examples per property keep the suite
# within fifteen minutes; the variable asks for more.
EXAMPLES = int(os.environ.get("ROLLSCOPE_TEST_EXAMPLES", "25"))
settings.register_profile("ours", deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ours")

SKIP = "ROLLSCOPE_TEST_SKIP"
BACKENDS = {"sqlite": "sqlite", "postgres": "postgres", "browser": "chromium"}
"""Marker -> name in the summary."""

_RAN: Counter[str] = Counter()


def _skipped() -> set[str]:
    return {word.strip() for word in os.environ.get(SKIP, "").split(",") if word.strip()}


def pytest_configure(config: pytest.Config) -> None:
    """Rejects unknown names in ROLLSCOPE_TEST_SKIP."""
    if unknown := _skipped() - {"postgres", "browser"}:
        raise pytest.UsageError(f"{SKIP}: unknown {', '.join(sorted(unknown))}; it takes postgres and browser")


def pytest_sessionstart(session: pytest.Session) -> None:
    """Divides the compilation of a fresh checkout among the workers; otherwise each would compile everything."""
    worker = getattr(session.config, "workerinput", None)
    if worker is not None and [Path(arg).resolve() for arg in session.config.args] == [TESTS.resolve()]:
        compile_a_share(int(worker["workerid"].removeprefix("gw")), worker["workercount"])


@pytest.hookimpl(tryfirst=True)  # pytest's own hook selects by marker
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks and sorts the tests, and skips what ROLLSCOPE_TEST_SKIP names. A missing database is no reason to skip.

    With `--no-loadscope-reorder` the workers take files in this order.
    """
    slow_first(items)
    for item in items:
        mark(item)
        for word in _skipped():
            if item.get_closest_marker(word):
                item.add_marker(pytest.mark.skip(reason=f"{SKIP}={word}"))


def pytest_collection_finish() -> None:
    """Excludes the collected tests (8,000) from garbage collection: each full collection would traverse them."""
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown() -> None:
    """Clears FastAPI's caches: they hold the last 4,096 functions, and with them the app of each test."""
    for cached in vars(fastapi.dependencies.models).values():
        if hasattr(cached, "cache_clear"):
            cached.cache_clear()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Counts the tests with an executed body, with any outcome. Receives the reports of all workers."""
    if report.when == "call" and not report.skipped:
        _RAN.update(word for marker, word in BACKENDS.items() if marker in report.keywords)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Writes one line, so that a run without a backend is visible."""
    counts = ", ".join(f"{word} {_RAN[word]}" for word in BACKENDS.values())
    terminalreporter.write_line(f"ran against: {counts}")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of the session's PostgreSQL. If it cannot start, the tests that need it fail."""
    with support_postgres.server() as url:
        yield url


@pytest.fixture(
    params=[pytest.param("sqlite", marks=pytest.mark.sqlite), pytest.param("postgres", marks=pytest.mark.postgres)]
)
def empty_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a database without tables, once per kind of database."""
    if request.param == "sqlite":
        yield f"sqlite:///{tmp_path}/store.db"
        return
    with support_postgres.database(request.getfixturevalue("postgres_server")) as url:
        yield url


@pytest.fixture(scope="session")
def migrated_file(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A migrated SQLite database that no test writes to. Copying it takes 1 ms, a migration 80 ms."""
    path = tmp_path_factory.mktemp("migrated") / "store.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def migrated_database(postgres_server: str) -> Iterator[str]:
    """Name of a migrated PostgreSQL database without connections: the template of the tests' databases."""
    with support_postgres.database(postgres_server) as url:
        migrate(url)
        yield make_url(url).database or ""


@pytest.fixture(scope="session")
def reused_database(postgres_server: str, migrated_database: str) -> Iterator[support_postgres.Reused]:
    """The migrated PostgreSQL database that the tests use one after the other. It is emptied after each test."""
    reused = support_postgres.Reused(postgres_server, migrated_database)
    yield reused
    reused.close()


@pytest.fixture(
    params=[pytest.param("sqlite", marks=pytest.mark.sqlite), pytest.param("postgres", marks=pytest.mark.postgres)]
)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a migrated database of the test's own, once per kind of database."""
    if request.param == "sqlite":
        shutil.copyfile(request.getfixturevalue("migrated_file"), tmp_path / "store.db")
        yield f"sqlite:///{tmp_path}/store.db"
        return
    with request.getfixturevalue("reused_database").lend() as url:
        yield url


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """An open store of the test's own, once per kind of database."""
    opened = Store.open(store_url)
    yield opened
    opened.close()


@pytest.fixture
def postgres_store(reused_database: support_postgres.Reused) -> Iterator[Store]:
    """An open PostgreSQL store of the test's own."""
    with reused_database.lend() as url:
        opened = Store.open(url)
        yield opened
        opened.close()
