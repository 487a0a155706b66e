"""One of many values: found as they are, in one statement however many, by the index."""

from collections.abc import Iterator
from contextlib import contextmanager

from hypothesis import given
from hypothesis import strategies as st
from sqlalchemy import Engine, Select, event, select

from collectors.model import Sandbox
from server.store import Store
from server.store.bulk import among
from server.store.tables import hist, runs
from server.store.types import Batch, SandboxRow
from tests.store.helpers import T0

# What an array of PostgreSQL or JSON would take for something else.
HOSTILE = (
    *("", "NULL", "null", "a,b", "{a}", '"', '\\"', "\\", "\\\\", "a'b"),
    *(" a", "\n", "\x01", "a\tb", "ü", "🙂", "1", "%", ":a", "?"),
)


def ids(names: list[str]) -> Select[tuple[str]]:
    return select(runs.c.name).where(among(runs.c.name, names)).order_by(runs.c.name)


def found(store: Store, names: list[str]) -> set[str]:
    with store._engines.reading() as connection:
        return {str(row[0]) for row in connection.execute(ids(names))}


def with_runs(store: Store) -> None:
    for name in HOSTILE:
        store.write(Batch(name, run_fields={"lifecycle": "running"}))


def test_each_value_finds_itself_and_nothing_else(store: Store) -> None:
    with_runs(store)
    for name in HOSTILE:
        assert found(store, [name]) == {name}
    assert found(store, [*HOSTILE, "not there", *HOSTILE]) == set(HOSTILE)
    assert found(store, []) == set()


def test_any_of_them_together(store: Store) -> None:
    with_runs(store)

    @given(st.lists(st.sampled_from([*HOSTILE, "x", "a", "b", "\\a"]), max_size=30))
    def together(names: list[str]) -> None:
        assert found(store, names) == set(names) & set(HOSTILE)

    together()


@contextmanager
def statements() -> Iterator[set[str]]:
    seen: set[str] = set()

    def told(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        seen.add(statement)

    event.listen(Engine, "before_cursor_execute", told)
    yield seen
    event.remove(Engine, "before_cursor_execute", told)


def test_one_statement_for_any_number_of_rollouts_groups_and_sandboxes(store: Store) -> None:
    def ask(number: int) -> None:
        names = [f"r-{one}" for one in range(number)]
        store.rollouts.get("run", names)
        store.rollouts.members("run", [(name, 1) for name in names])
        store.rollouts.groups("run", [(name, 1) for name in names])
        store.sandboxes.get("run", [("modal", name) for name in names])
        store.sandboxes.by_id("run", names)

    with statements() as first:
        ask(3)
    # More than a statement may have parameters (SQLite 32,766, PostgreSQL 65,535).
    with statements() as more:
        for number in (1, 2, 700, 70_000):
            ask(number)
    assert more == first


def test_numbers_are_looked_up_in_the_index(store: Store) -> None:
    with store._engines.reading() as connection:
        query = select(hist.c.series).where(among(hist.c.series, [1, 2]), hist.c.minute >= T0)
        told = str(query.compile(connection.engine))
        if store.url.startswith("sqlite"):
            plan = connection.exec_driver_sql(f"EXPLAIN QUERY PLAN {told}", ("[1, 2]", T0)).all()
            assert plan[0][3] == "SEARCH hist USING PRIMARY KEY (series=? AND minute>?)"
        else:
            assert "hist.series = ANY(%(param_1)s::BIGINT[])" in told


def test_sandboxes_of_a_provider_are_its_own(store: Store) -> None:
    both = [Sandbox(provider, "same", "running") for provider in ("modal", "e2b")]
    rows = [SandboxRow.of(record, target="t", first_seen=T0 / 1000, seen_at=T0 / 1000) for record in both]
    store.write(Batch("run", sandboxes=rows))
    assert [
        Sandbox(*map(row.__getattribute__, Sandbox.__struct_fields__))
        for row in store.sandboxes.get("run", [("e2b", "same"), ("modal", "other")])
    ] == [both[1]]
    # As a provider may spell one: half a surrogate pair, and a NUL, are kept as `clean` has them.
    odd = Sandbox("e2b\0", "a\ud800b", "running")
    store.write(Batch("run", sandboxes=[SandboxRow.of(odd, target="t", first_seen=T0 / 1000, seen_at=T0 / 1000)]))
    assert [row.id for row in store.sandboxes.get("run", [("e2b\0", "a\ud800b")])] == ["a?b"]
