"""The migrations and the tables say the same, on both databases."""

import sqlite3
from typing import Any

import pytest
from alembic.autogenerate import compare_metadata
from alembic.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, Engine, MetaData, inspect, text

from migrations.partitions import PARTITION_PREFIX, include_object
from server.store import Store, StoreError, migrate, schema
from server.store.engine import migration_engine, parse_url
from server.store.schema import HEAD, alembic_config
from server.store.tables import metadata
from server.store.types import Batch
from tests.store.helpers import T0, one


@pytest.fixture
def engine(store_url: str) -> Any:
    """A plain connection maker for a migrated database."""
    made = migration_engine(parse_url(store_url))
    yield made
    made.dispose()


def _catalog(connection: Connection) -> dict[str, object]:
    """Everything that inspection shows of each table, partitions left out."""
    found = inspect(connection)
    names = [n for n in found.get_table_names() if n != "alembic_version" and not n.startswith(PARTITION_PREFIX)]
    return {name: _table(found, name) for name in names}


def _table(found: Any, name: str) -> dict[str, object]:
    columns = [(c["name"], str(c["type"]), c["nullable"], str(c["default"])) for c in found.get_columns(name)]
    return {
        "columns": columns,
        "primary key": found.get_pk_constraint(name),
        "unique": sorted(found.get_unique_constraints(name), key=str),
        "foreign": sorted(found.get_foreign_keys(name), key=str),
        "indexes": sorted((_index(one) for one in found.get_indexes(name)), key=str),
    }


def _index(found: dict[str, Any]) -> dict[str, Any]:
    """The condition of a partial index as text: SQLAlchemy hands out an object that equals only itself."""
    return found | {"dialect_options": {key: str(value) for key, value in found.get("dialect_options", {}).items()}}


def test_alembic_finds_no_difference(engine: Engine, store: Store) -> None:
    store.write(Batch("run", samples=[(one(store), T0, 1.0)]))  # on PostgreSQL: a partition, which must not show
    with engine.begin() as connection:
        options = {"compare_type": True, "include_object": include_object}
        context = MigrationContext.configure(connection, opts=options)
        whole = MetaData()
        for part in metadata(connection.dialect.name):
            for table in part.tables.values():
                table.to_metadata(whole)
        assert compare_metadata(context, whole) == []


def test_the_catalogs_are_equal(engine: Engine) -> None:
    """What Alembic does not compare: keys, names, order."""
    with engine.begin() as connection:
        migrated = _catalog(connection)
        _drop_all(connection)
        for part in metadata(connection.dialect.name):
            part.create_all(connection)
        assert _catalog(connection) == migrated
    assert len(migrated) == 38


def _drop_all(connection: Connection) -> None:
    for part in metadata(connection.dialect.name):
        part.drop_all(connection)


@pytest.mark.sqlite
def test_sqlite_statements_are_equal(tmp_path: Any) -> None:
    """WITHOUT ROWID is in no catalog, only in the statement itself."""
    migrate(f"sqlite:///{tmp_path}/a.db")
    made = migration_engine(parse_url(f"sqlite:///{tmp_path}/b.db"))
    with made.begin() as connection:
        for part in metadata("sqlite"):
            part.create_all(connection)
    made.dispose()
    assert _rowid_less(f"{tmp_path}/a.db") == _rowid_less(f"{tmp_path}/b.db")
    assert "samples" in _rowid_less(f"{tmp_path}/a.db")


def _rowid_less(path: str) -> set[str]:
    connection = sqlite3.connect(path)
    rows = connection.execute("SELECT name FROM sqlite_master WHERE sql LIKE '%WITHOUT ROWID%'").fetchall()
    connection.close()
    return {name for (name,) in rows}


def test_migrating_twice_and_back(empty_url: str) -> None:
    migrate(empty_url)
    migrate(empty_url)
    made = migration_engine(parse_url(empty_url))
    with made.begin() as connection:
        from alembic import command  # noqa: PLC0415 - only here

        command.downgrade(alembic_config(connection), "base")
        assert inspect(connection).get_table_names() == ["alembic_version"]
    made.dispose()
    migrate(empty_url)
    Store.open(empty_url).close()


def test_head_is_the_newest_revision(engine: Engine) -> None:
    with engine.begin() as connection:
        assert ScriptDirectory.from_config(alembic_config(connection)).get_current_head() == HEAD


def test_an_empty_database_is_refused(empty_url: str) -> None:
    if empty_url.startswith("sqlite"):
        migration_engine(parse_url(empty_url)).connect().close()
    with pytest.raises(StoreError, match="rollscope migrate"):
        Store.open(empty_url)


@pytest.mark.parametrize(
    ("version", "said"),
    [("0012", r"schema 0012, from before the first release \(0013\)"), ("9999", "newer than this Rollscope's 0014")],
)
def test_another_version_is_refused(engine: Engine, store_url: str, version: str, said: str) -> None:
    with engine.begin() as connection:
        connection.execute(text("UPDATE alembic_version SET version_num = :v"), {"v": version})
    for attempt in (Store.open, migrate):
        with pytest.raises(StoreError, match=said):
            attempt(store_url)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("nonsense", "not a URL"),
        ("mysql://host/db", "only sqlite and postgresql"),
        ("sqlite://", "needs a file"),
        ("sqlite:///:memory:", "needs a file"),
    ],
)
def test_other_urls_are_refused(url: str, said: str) -> None:
    with pytest.raises(StoreError, match=said):
        Store.open(url)


def test_a_read_only_store_must_exist_and_cannot_write(store_url: str, tmp_path: Any) -> None:
    with pytest.raises(StoreError, match="there is no store"):
        Store.open(f"sqlite:///{tmp_path}/none.db", read_only=True)
    with pytest.raises(StoreError, match="rollscope migrate"):
        Store.open(f"sqlite:///{tmp_path}/none.db")
    assert not (tmp_path / "none.db").exists()
    store = Store.open(store_url, read_only=True)
    assert store.runs.all() == []
    with pytest.raises(StoreError, match="read-only"):
        store.ensure_run("run")
    store.close()


@pytest.mark.postgres
def test_partitions_for_any_day(postgres_store: Store) -> None:
    """Two days a century apart, written in one batch: a back-fill asks for any."""
    series = one(postgres_store)
    far = T0 + 36_525 * 86_400_000
    postgres_store.write(Batch("run", samples=[(series, T0, 1.0), (series, far, 2.0)]))
    assert postgres_store.samples.after("run", 0) == [(series, T0, 1.0), (series, far, 2.0)]


@pytest.mark.postgres
@pytest.mark.parametrize("rows", [1, 500])  # both of the bulk paths
def test_a_dropped_partition_is_made_again(postgres_store: Store, rows: int) -> None:
    """Retention drops a day while this process still believes it is there."""
    series = one(postgres_store)
    postgres_store.write(Batch("run", samples=[(series, T0, 1.0)]))
    made = migration_engine(parse_url(postgres_store.url))
    with made.begin() as connection:
        (day,) = schema.existing(connection)
        connection.execute(text(f"DROP TABLE samples_d{day}"))
    made.dispose()
    again = [(series, T0 + n, 2.0) for n in range(rows)]
    postgres_store.write(Batch("run", samples=again))
    assert postgres_store.samples.after("run", 0) == again


def test_what_is_no_database_is_explained(tmp_path: Any) -> None:
    (tmp_path / "x.db").write_bytes(b"not a database, but long enough to look" * 100)
    for attempt in (Store.open, migrate):
        with pytest.raises(StoreError, match="file is not a database"):
            attempt(f"sqlite:///{tmp_path}/x.db")


def test_a_server_that_is_not_there_is_explained_without_the_password() -> None:
    with pytest.raises(StoreError, match="cannot be opened") as refused:
        Store.open("postgresql://me:secret@127.0.0.1:1/db")
    assert "secret" not in str(refused.value)
