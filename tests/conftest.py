"""Fixtures for every test: both databases, and a last line that says what the run really touched."""

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
from tests.order import TESTS, compile_a_share, dear_first

pytest_plugins = ["tests.browser_support"]
# An assert of a helper's that fails shows its values, as one of a test's does.
pytest.register_assert_rewrite(*(f"tests.{folder.name}" for folder in TESTS.iterdir() if folder.is_dir()))

# How long an example takes says how busy the machine is, not whether the code is right.
# Few examples of each property at every run, for the suite has fifteen minutes; more when they are asked for.
EXAMPLES = int(os.environ.get("ROLLSCOPE_TEST_EXAMPLES", "25"))
settings.register_profile("ours", deadline=None, max_examples=EXAMPLES, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("ours")

SKIP = "ROLLSCOPE_TEST_SKIP"
BACKENDS = {"sqlite": "sqlite", "postgres": "postgres", "browser": "chromium"}
"""Marker -> word of the summary."""

_RAN: Counter[str] = Counter()


def _skipped() -> set[str]:
    return {word.strip() for word in os.environ.get(SKIP, "").split(",") if word.strip()}


def pytest_configure(config: pytest.Config) -> None:
    """A misspelt ROLLSCOPE_TEST_SKIP must not look like a skip."""
    if unknown := _skipped() - {"postgres", "browser"}:
        raise pytest.UsageError(f"{SKIP}: unknown {', '.join(sorted(unknown))}; it takes postgres and browser")


def pytest_sessionstart(session: pytest.Session) -> None:
    """In a fresh checkout nothing is compiled, and each worker would compile everything."""
    worker = getattr(session.config, "workerinput", None)
    if worker is not None and [Path(arg).resolve() for arg in session.config.args] == [TESTS.resolve()]:
        compile_a_share(int(worker["workerid"].removeprefix("gw")), worker["workercount"])


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What ROLLSCOPE_TEST_SKIP names is skipped in the open; nothing else ever is for a missing database.

    The order is that of the work: with `--no-loadscope-reorder` it is the one in which workers take files.
    """
    dear_first(items)
    for item in items:
        for word in _skipped():
            if item.get_closest_marker(word):
                item.add_marker(pytest.mark.skip(reason=f"{SKIP}={word}"))


def pytest_collection_finish() -> None:
    """Eight thousand collected tests are no garbage: without this each full collection would look at all of them."""
    gc.collect()
    gc.freeze()


def pytest_runtest_teardown() -> None:
    """FastAPI remembers the last 4,096 functions it looked at, and through them every app of every test, whole."""
    for remembered in vars(fastapi.dependencies.models).values():
        if hasattr(remembered, "cache_clear"):
            remembered.cache_clear()


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    """Count the tests whose body ran, whatever its outcome: here, where the reports of all workers come together."""
    if report.when == "call" and not report.skipped:
        _RAN.update(word for marker, word in BACKENDS.items() if marker in report.keywords)


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """One line: a suite that silently ran against nothing must be seen."""
    counts = ", ".join(f"{word} {_RAN[word]}" for word in BACKENDS.values())
    terminalreporter.write_line(f"ran against: {counts}")


@pytest.fixture(scope="session")
def postgres_server() -> Iterator[str]:
    """URL of the session's PostgreSQL. If it cannot start the tests that need it fail."""
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
    """A migrated SQLite database nobody writes to: copied in 1 ms, where migrating takes 80."""
    path = tmp_path_factory.mktemp("migrated") / "store.db"
    migrate(f"sqlite:///{path}")
    return path


@pytest.fixture(scope="session")
def migrated_database(postgres_server: str) -> Iterator[str]:
    """Name of a migrated PostgreSQL database nobody is connected to: the template of the tests' own."""
    with support_postgres.database(postgres_server) as url:
        migrate(url)
        yield make_url(url).database or ""


@pytest.fixture(scope="session")
def reused_database(postgres_server: str, migrated_database: str) -> Iterator[support_postgres.Reused]:
    """The migrated PostgreSQL database that tests have one after the other, each without a row."""
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
