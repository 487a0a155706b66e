"""Pages of rollouts: what they ask of the database, and that what was learned on the way changes no page."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event

from server.lib.clock import WallClock
from server.query import Reader, UnknownRun
from server.query.types import RolloutFilter
from server.store import Store
from server.store.rollout_pages import BadKey
from server.store.rollouts import Find, order_of
from server.store.types import Batch
from tests.store.test_rollouts import made


@contextmanager
def _asked(store: Store) -> Iterator[list[str]]:
    """Statements, but for those of cursors (which SQLite's orders have)."""
    found: list[str] = []

    def listen(_connection: Any, _cursor: Any, statement: str, *_: Any) -> None:
        if statement != "BEGIN":
            found.append(statement)

    event.listen(store._engines.read, "before_cursor_execute", listen)
    try:
        yield found
    finally:
        event.remove(store._engines.read, "before_cursor_execute", listen)


def test_a_page_asks_for_the_run_the_order_and_the_rows(store: Store) -> None:
    store.write(Batch("run", rollouts=[made(f"r{n}", seconds=1.0 * n, environment=f"e{n % 3}") for n in range(9)]))
    reader = Reader(store, WallClock())
    statements = []
    for limit in (2, 4):
        with _asked(store) as found:
            page = reader.rollouts.page("run", sort="seconds", limit=limit)
        assert [row.rollout_id for row in page.rollouts] == ["r8", "r7", "r6", "r5"][:limit]
        statements.append(found)
    assert len(statements[0]) == {"postgresql": 3, "sqlite": 2}[store.dialect]
    # However many rows: a statement that differs would be compiled and planned again.
    assert (statements[0][0], statements[0][-1]) == (statements[1][0], statements[1][-1])


def test_how_many_ids_fit_is_one_question(store: Store) -> None:
    store.write(Batch("run", rollouts=[made(f"r{n}", group_id="r") for n in range(3)]))
    with _asked(store) as found:
        assert len(store.rollouts.page("run", Find(find="r"), order_of("moved", True), "", 5)[0]) == 3
    assert sum("count(*)" in statement for statement in found) == 1


def test_a_run_that_does_not_exist_is_unknown_whatever_is_asked(store: Store) -> None:
    store.write(Batch("run", rollouts=[made("r-1")]))
    reader = Reader(store, WallClock())
    for after in ("", "no key"):
        with pytest.raises(UnknownRun):
            reader.rollouts.page("none", after=after)
    with pytest.raises(BadKey):
        reader.rollouts.page("run", after="no key")
    assert reader.rollouts.page("run", RolloutFilter(find="nobody")).rollouts == ()


@pytest.mark.parametrize("served", [0, 200])
def test_what_the_beginning_holds_tells_nothing_of_the_rest(
    store: Store, monkeypatch: pytest.MonkeyPatch, served: int
) -> None:
    """All of the first rows fit and are of few classes; then few of many; then all of one that was not met."""
    monkeypatch.setattr("server.store.rollout_pages.FEW", 0)
    monkeypatch.setattr("server.store.rollout_pages._GLANCE", 20)
    monkeypatch.setattr("server.store.rollout_pages._SERVED", served)
    first = [made(f"a{n:03}", environment=f"e{n % 2}", moved=n) for n in range(40)]
    mixed = [made(f"{'a' if n % 30 == 0 else 'b'}{n:03}", environment=f"e{n % 25}", moved=n) for n in range(40, 400)]
    last = [made(f"a{n:03}", environment="e30", moved=n) for n in range(400, 480)]
    store.write(Batch("run", rollouts=[*first, *mixed, *last]))
    whole = [*range(40), 60, 90, 120, 150, 180, 210, 240, 270, 300, 330, 360, 390, *range(400, 480)]
    found: list[str] = []
    after, order = "", order_of("moved", False)
    while after or not found:
        rows, after, complete = store.rollouts.page("run", Find(find="a"), order, after, 30)
        assert complete
        found += [row.rollout_id for row in rows]
    assert found == [f"a{n:03}" for n in whole]
