"""Fixtures for every test: both databases, and a last line that says what the run really touched."""

import os
import shutil
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings
from sqlalchemy import make_url

from server.store import Store, migrate
from tests import support_postgres

pytest_plugins = ["tests.browser_support"]

# How long an example takes says how busy the machine is, not whether the code is right.
settings.register_profile("ours", deadline=None, suppress_health_check=[HealthCheck.too_slow])
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


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """What ROLLSCOPE_TEST_SKIP names is skipped in the open; nothing else ever is for a missing database."""
    for item in items:
        for word in _skipped():
            if item.get_closest_marker(word):
                item.add_marker(pytest.mark.skip(reason=f"{SKIP}={word}"))


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


@pytest.fixture(
    params=[pytest.param("sqlite", marks=pytest.mark.sqlite), pytest.param("postgres", marks=pytest.mark.postgres)]
)
def store_url(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[str]:
    """URL of a migrated database of the test's own, once per kind of database."""
    if request.param == "sqlite":
        shutil.copyfile(request.getfixturevalue("migrated_file"), tmp_path / "store.db")
        yield f"sqlite:///{tmp_path}/store.db"
        return
    server, template = request.getfixturevalue("postgres_server"), request.getfixturevalue("migrated_database")
    with support_postgres.database(server, template) as url:
        yield url


@pytest.fixture
def store(store_url: str) -> Iterator[Store]:
    """An open store of the test's own, once per kind of database."""
    opened = Store.open(store_url)
    yield opened
    opened.close()


@pytest.fixture
def postgres_store(postgres_server: str, migrated_database: str) -> Iterator[Store]:
    """An open PostgreSQL store of the test's own."""
    with support_postgres.database(postgres_server, migrated_database) as url:
        opened = Store.open(url)
        yield opened
        opened.close()
