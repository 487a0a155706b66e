"""Pages of rollouts: what they ask of the database, and that what was learned on the way changes no page."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from sqlalchemy import event

from server.lib.clock import WallClock
from server.query import Reader, UnknownRun
from server.query.rollouts import info
from server.query.types import RolloutFilter, RolloutInfo
from server.store import Store
from server.store.rollout_pages import BadKey
from server.store.rollouts import Find, order_of
from server.store.types import Batch
from tests.store.helpers import T0
from tests.store.test_rollouts import FULL, made


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


def test_a_row_of_the_table_holds_each_value_in_its_place() -> None:
    assert info(FULL) == RolloutInfo(
        rollout_id="r-1", life=3, group_id="g-1", purpose="train", environment="math", agent="solver",
        engine="engine-0", target="push", state="trained", moved_at=(T0 + 2) / 1000, seconds=4.5, prompt_tokens=11,
        response_tokens=120, loss_tokens=119, turns=2, tool_calls=3, reward=0.5, advantage=-0.25, version_start=5,
        version_finish=6, consumed=8, staleness=3, in_flight=1, in_group=1, in_queue=1, token_staleness=2.5,
        environment_staleness=0.5, environment_latest=0.25, environment_bound=True, old_state_turns=1, judged_turns=2,
        mixed=True, truncated=False, error="", unknown="why not", sampled=True, detailed=True,
        times={
            "dispatched_at": 1.001, "started_at": 2.002, "first_token_at": 3.003, "finished_at": 4.004,
            "scored_at": 5.005, "group_complete_at": 6.006, "exited_at": 6.5, "consumed_at": (T0 + 3) / 1000,
        },
        sandbox_ids=("box", "bax"), group_size=8, attempt=2, incarnation=3, difficulty="hard", version_dispatched=4,
        max_reward=1.0, solved=True, exit="trained",
    )  # fmt: skip
