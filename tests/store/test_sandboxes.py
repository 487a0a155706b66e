"""Sandboxes in the store: every column back as written, pages by an index, and a funnel that makes up nothing."""

import pytest
from msgspec import structs
from sqlalchemy import text

from collectors.model import Sandbox
from server.store import Store
from server.store.engine import migration_engine, parse_url
from server.store.types import Batch, SandboxRow
from tests.store.helpers import T0

AT = T0 / 1000


def row(number: int, seen: int = 0, target: str = "prime", own: bool = True, **record: object) -> SandboxRow:
    """Sandbox number n, met ``seen`` ms after T0."""
    made = Sandbox("prime", f"sb-{number}", "running", name=f"trace-{number}", requested_at=AT)
    at = (T0 + seen) / 1000
    return SandboxRow.of(structs.replace(made, **record), target=target, own=own, first_seen=at, seen_at=at)  # type: ignore[arg-type]


def put(store: Store, *rows: SandboxRow) -> None:
    store.write(Batch("run", sandboxes=list(rows)))


def ids(rows: list[SandboxRow]) -> list[str]:
    return [one.id for one in rows]


def test_every_time_comes_back_as_written(store: Store) -> None:
    whole = row(
        1, started_at=AT + 1, ready_at=AT + 2.5, first_exec_at=AT + 3.125, ended_at=AT + 9, expires_at=AT + 99,
        image="img", image_cached=False, latency_source="server", detail="d", cost_usd_per_hour=0.12,
    )  # fmt: skip
    put(store, whole, row(2))
    assert {one.id: one for one in store.sandboxes.page("run")} == {"sb-1": whole, "sb-2": row(2)}


def test_a_page_goes_on_where_the_last_one_ended(store: Store) -> None:
    """Three of them were met in one listing, and so at one instant."""
    put(store, row(1, 5), row(2, 7), row(3, 7), row(4, 7), row(5, 9))
    first = store.sandboxes.page("run", limit=2)
    assert ids(first) == ["sb-5", "sb-4"]
    second = store.sandboxes.page("run", limit=2, before=(first[-1].first_seen, first[-1].id))
    assert ids(second) == ["sb-3", "sb-2"]
    assert ids(store.sandboxes.page("run", before=(second[-1].first_seen, second[-1].id))) == ["sb-1"]


def test_found_by_a_part_of_its_name_or_id_as_it_stands(store: Store) -> None:
    put(store, row(1, name="Trace-AB%"), row(2, name="trace-abc"), row(3, id="sb_x"), row(4, name="other"))
    assert ids(store.sandboxes.page("run", find="trace-ab")) == ["sb-2", "sb-1"]
    assert ids(store.sandboxes.page("run", find="ab%")) == ["sb-1"]
    assert ids(store.sandboxes.page("run", find="B_X")) == ["sb_x"]
    assert ids(store.sandboxes.page("run", find="a\0")) == ids(store.sandboxes.page("run", find="a"))


def test_the_newest_are_read_from_an_index(store: Store, store_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is sorted: a page costs its rows, not the run's hundred thousand."""
    put(store, *(row(number, number) for number in range(2000)))
    said: list[str] = []
    engine = migration_engine(parse_url(store_url))
    with engine.begin() as connection:
        connection.execute(text("ANALYZE"))
    monkeypatch.setattr(store.sandboxes, "_engines", Explaining(engine, said))
    with pytest.raises(Explained):
        store.sandboxes.page("run", limit=100, before=(T0 + 1500, "sb-1500"))
    engine.dispose()
    plan = " ".join(said)
    assert "ix_sandboxes_page" in plan
    assert "sort" not in plan.lower() and "temp b-tree" not in plan.lower()


class Explained(Exception):
    """The statement was explained in place of being run."""


class Explaining:
    """Engines whose reads are explained."""

    def __init__(self, engine, said: list[str]) -> None:  # type: ignore[no-untyped-def]
        self._engine, self._said = engine, said

    def reading(self):  # type: ignore[no-untyped-def]
        return self

    def __enter__(self):  # type: ignore[no-untyped-def]
        return self

    def __exit__(self, *_: object) -> None:
        return None

    def execute(self, query):  # type: ignore[no-untyped-def]
        sql = str(query.compile(self._engine, compile_kwargs={"literal_binds": True}))
        word = "EXPLAIN QUERY PLAN " if self._engine.dialect.name == "sqlite" else "EXPLAIN "
        with self._engine.begin() as connection:
            self._said += [str(tuple(line)) for line in connection.exec_driver_sql(word + sql.replace("%", "%%"))]
        raise Explained


def test_first_commands_are_counted_among_those_whose_source_tells(store: Store) -> None:
    put(store, *(row(n, ready_at=AT + 5) for n in range(1, 6)))
    assert store.sandboxes.funnel("run") == {
        "requested": 5, "started": 0, "ready": 5, "first_exec": None, "first_exec_of": 0, "ended": 0, "failed": 0,
        "met_ended": 0,
    }  # fmt: skip
    # Four more by another source, three of which ran something; one is another run's.
    told = [row(n, target="traces", ready_at=AT + 5, first_exec_at=AT + 6) for n in (11, 12, 13)]
    put(store, *told, row(14, target="traces"), row(15, target="traces", own=False, first_exec_at=AT + 6))
    found = store.sandboxes.funnel("run")
    assert (found["requested"], found["ready"], found["first_exec"], found["first_exec_of"]) == (9, 8, 3, 4)


def test_the_funnel_of_nothing_is_zero_and_unknown(store: Store) -> None:
    store.ensure_run("run")
    assert store.sandboxes.funnel("run") == {
        "requested": 0, "started": 0, "ready": 0, "first_exec": None, "first_exec_of": 0, "ended": 0, "failed": 0,
        "met_ended": 0,
    }  # fmt: skip


def test_those_that_were_met_after_their_end_are_counted_apart(store: Store) -> None:
    """Four of nine: by a listing (whose second page came 5 s later), and by a source that was added afterwards."""
    put(
        store,
        row(1),
        row(2, requested_at=AT - 90, ended_at=AT - 60),
        # No end is told: it is when we met it.
        row(3, requested_at=AT - 90, ended_at=AT),
        row(4, 5000, requested_at=AT - 30, ended_at=AT + 5),
        # Met while it lived.
        row(5, requested_at=AT - 90, ended_at=AT + 100),
        # Its whole life lay between two looks.
        row(6, 15_000, requested_at=AT + 10, ended_at=AT + 12),
        row(7, own=False, requested_at=AT - 90, ended_at=AT - 60),
        row(8, 1_000_000, "e2b", requested_at=AT + 900, ended_at=AT + 950),
        row(9, 1_000_000, "e2b", requested_at=AT + 900),
    )
    found = store.sandboxes.funnel("run")
    assert (found["requested"], found["ended"], found["met_ended"]) == (8, 6, 4)
