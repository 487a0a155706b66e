"""The reused database: each test gets it as new, after any change by an earlier test."""

from collections.abc import Iterator

import psycopg
import pytest

from server.store import Store
from tests.store.helpers import one, put
from tests.support_postgres import Reused

pytestmark = pytest.mark.postgres

DAY = 86_400_000


@pytest.fixture
def reused(postgres_server: str, migrated_database: str) -> Iterator[Reused]:
    made = Reused(postgres_server, migrated_database)
    yield made
    made.close()


def test_the_next_test_gets_the_same_database_without_rows_partitions_or_sequences(reused: Reused) -> None:
    urls, numbers = [], []
    for _ in range(2):
        with reused.lend() as url:
            urls.append(url)
            store = Store.open(url)
            assert store.runs.all() == []
            numbers.append(one(store))
            put(store, numbers[-1], [(0, 1.0), (DAY, 2.0)])
            assert len(store.samples.after("run", -1)) == 2
            store.close()
    assert urls[0] == urls[1] and numbers == [1, 1]
    with reused.lend() as url, psycopg.connect(url) as connection:
        assert connection.execute("SELECT relname FROM pg_class WHERE relispartition").fetchall() == []
        assert connection.execute("SELECT count(*) FROM runs").fetchone() == (0,)


@pytest.mark.parametrize(
    "change",
    [
        "ALTER TABLE runs ADD COLUMN more int",
        "ALTER TABLE steps DROP CONSTRAINT steps_run_fkey",
        "CREATE INDEX more ON runs (id)",
        "DROP TABLE heartbeats",
        "UPDATE alembic_version SET version_num = '0001'",
        "DELETE FROM alembic_version",
        "CREATE TABLE large AS SELECT repeat(md5(n::text), 20) FROM generate_series(1, 40000) n",
    ],
)
def test_a_database_that_cannot_be_emptied_is_replaced(reused: Reused, change: str) -> None:
    with reused.lend() as first, psycopg.connect(first, autocommit=True) as connection:
        connection.execute(change.encode())
    with reused.lend() as second:
        Store.open(second).close()
    assert first != second


def test_open_connections_do_not_block(reused: Reused) -> None:
    with reused.lend() as first:
        left = psycopg.connect(first)
        left.execute("LOCK TABLE runs")
    with reused.lend() as second:
        Store.open(second).close()
    assert first == second
    with pytest.raises(psycopg.OperationalError):
        left.execute("SELECT 1")
    left.close()


def test_two_users_at_once_get_two_databases(reused: Reused) -> None:
    with reused.lend() as first, reused.lend() as second:
        assert first != second
    with reused.lend() as third:
        assert third == first
