"""What a look costs: shared between browsers at the same points, read anew by whoever changed something."""

import threading
from typing import Any

from dashboard.callbacks import tick
from dashboard.shell.page import RuleCache, Scope
from dashboard.state.cache import TimedCache
from dashboard.state.deltas import SentViews
from dashboard.widgets.signal_lookup import Signals, want
from tests.dashboard import fake
from tests.dashboard.memory_reader import MemoryReader


class Counting(MemoryReader):
    """How often the status was read."""

    reads = 0

    def status(self, run: str) -> Any:
        self.reads += 1
        return super().status(run)


def looked(reader: MemoryReader, shared: TimedCache, cursor: str, **more: Any) -> dict[str, Any]:
    def look(run: str, everything: bool) -> Scope:
        return Scope(reader, run, everything, None, RuleCache(), shared)

    span = [reader.now() - 3600, reader.now(), True]
    pull = {"page": 1, "key": "overview", "run": fake.RICH, "cursor": cursor, "have": "", "span": span, **more}
    return tick(look, SentViews(), pull)


def counting() -> Counting:
    reader = fake.reader()
    reader.__class__ = Counting
    assert isinstance(reader, Counting)
    return reader


def test_browsers_at_the_same_points_share_single_lock_wait() -> None:
    reader, shared = counting(), TimedCache(lambda: 0.0)
    first = looked(reader, shared, reader.cursor(fake.RICH))
    assert looked(reader, shared, reader.cursor(fake.RICH))["view"] == first["view"]
    assert reader.reads == 1


def test_who_changed_something_sees_it_at_once() -> None:
    reader = counting()
    now = [0.0]
    shared = TimedCache(lambda: now[0])
    looked(reader, shared, reader.cursor(fake.RICH))
    now[0] = 0.1
    looked(reader, shared, reader.cursor(fake.RICH), fresh=True)
    assert reader.reads == 2


def test_what_has_outlived_its_time_is_forgotten_but_never_what_is_asked_for() -> None:
    """A run's status is 0.3 MB, and each tick has one of its own."""
    now = [0.0]
    kept = TimedCache(lambda: now[0])
    for number in range(5):
        kept.get(number, 1.0, lambda: "old")
    now[0] = 10.0
    # The only one left is over its time as well: it is read again, not dropped under its reader.
    assert kept.get(4, 1.0, lambda: "new") == "new"
    assert list(kept._entries) == [4]


def test_an_answer_of_an_older_state_is_read_again_but_not_all_the_time() -> None:
    now, reads = [100.0], [0]
    kept = TimedCache(lambda: now[0])

    def read() -> int:
        now[0] += 0.2
        reads[0] += 1
        return reads[0]

    def at(seconds: float, state: str = "") -> int:
        now[0] = seconds
        return kept.get("table", 4.0, read, state)

    # A page's first load; then the news for which it stands beside other numbers.
    assert at(100.0) == 1
    assert at(102.1, "1:7") == 1
    assert at(102.3, "1:8") == 2
    # Of the same state, and of none, for as long as ever.
    assert at(106.0, "1:8") == 2
    assert at(106.4) == 2
    assert at(106.6, "1:8") == 3


def test_what_is_being_read_is_not_forgotten() -> None:
    now = [0.0]
    kept, begun, go, found = TimedCache(lambda: now[0]), threading.Event(), threading.Event(), []

    def slow() -> str:
        begun.set()
        go.wait()
        return "slow"

    reading = threading.Thread(target=lambda: found.append(kept.get("slow", 1.0, slow)))
    reading.start()
    begun.wait()
    now[0] = 10.0
    kept.get("other", 1.0, lambda: "quick")
    assert list(kept._entries) == ["slow", "other"]
    go.set()
    reading.join()
    assert found == ["slow"]


def test_signals_by_name_are_those_of_a_walk_through_all() -> None:
    signals = fake.reader().status(fake.RICH).signals.values()
    assert len(signals) > 20
    for one in signals:
        wanted = want(one.signal, **one.labels)
        assert wanted.find(Signals(signals)) == wanted.find(list(signals)) == one
    assert want("no_such_signal").explain(Signals(signals)) is None
