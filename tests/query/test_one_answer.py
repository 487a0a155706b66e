"""In a block of one state a question is answered once, and the next block sees what came since."""

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest
from msgspec import structs
from sqlalchemy import Engine, event

from server.lib.clock import WallClock
from server.query import Reader
from server.query.run_state import UnknownRun
from server.store import Store
from server.store.types import Batch
from tests.store.test_alerts import FIRING


@contextmanager
def reads() -> Iterator[Counter[str]]:
    """How often a table's rows were asked for."""
    seen: Counter[str] = Counter()

    def told(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        words = statement.split()
        if words[0] == "SELECT" and "FROM" in words:
            seen[words[words.index("FROM") + 1]] += 1

    event.listen(Engine, "before_cursor_execute", told)
    yield seen
    event.remove(Engine, "before_cursor_execute", told)


def test_what_a_page_asks_twice_is_read_once(store: Store) -> None:
    store.write(Batch("run", alerts=[FIRING]))
    reader = Reader(store, WallClock())
    with reads() as seen, reader.one_state():
        delta = reader.signals.since("run", reader.signals.cursor("run"))
        assert [one.name for one in reader.status("run").alerts] == [FIRING.rule]
        assert [one.name for one in reader.alerts.active("run")] == [FIRING.rule]
        assert [one.name for one in reader.alerts.active()] == [FIRING.rule]
        assert reader.alerts.history("run") == [] and delta.cursor == reader.signals.cursor("run")
    # Of the run and of all; and the history.
    assert (seen["alerts"], seen["silences"]) == (3, 2)
    with reads() as seen:
        reader.signals.cursor("run")
        reader.signals.cursor("run")
    assert seen["runs"] == 2


def test_the_next_block_sees_what_came(store: Store) -> None:
    store.write(Batch("run", alerts=[FIRING]))
    reader, other = Reader(store, WallClock()), Reader(store, WallClock())
    with reader.one_state():
        before = reader.signals.cursor("run")
        with pytest.raises(UnknownRun):
            reader.alerts.active("none")
        ended = structs.replace(FIRING, state="inactive")
        store.write(Batch("run", alerts=[ended], run_fields={"lifecycle": "running"}))
        assert len(reader.alerts.active("run")) == 1 and reader.signals.cursor("run") == before
        # Another reader's answers are its own.
        assert other.signals.cursor("run") == before
    with reader.one_state():
        assert reader.alerts.active("run") == []
    assert reader.alerts.active("run") == []
