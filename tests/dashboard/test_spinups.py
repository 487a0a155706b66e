"""Spin-ups over time: columns that stand still, what a tick carries, and what is kept for all browsers."""

import json
import threading
from typing import Any

import pytest

from dashboard import callbacks
from dashboard.callbacks import cells as of_page
from dashboard.pages import by_key
from dashboard.pages.sandboxes import data
from dashboard.shell.page import Scope
from dashboard.state import url as state_url
from dashboard.state.cache import TimedCache
from dashboard.state.deltas import SentViews
from dashboard.state.url import Span
from server.query.run_state import UnknownRun
from server.signals.sandbox_spinup import EDGES
from tests.dashboard import fake_sandboxes as wall
from tests.dashboard.memory_reader import MemoryReader
from tests.dashboard.shown import shown

HOUR = Span(wall.NOW - 3600, wall.NOW, follow=True)


@pytest.fixture
def reader() -> MemoryReader:
    return wall.reader(600)


def cells(
    reader: MemoryReader, run: str = wall.WALL, span: Span | None = HOUR, key: str = "sandboxes"
) -> dict[str, Any]:
    page = by_key(key)
    assert page is not None
    return shown(of_page(page, Scope(reader, run, span=span)))


def empty(lifecycle: str = "running") -> MemoryReader:
    made = MemoryReader(wall.NOW, wall.INFOS)
    made.add_run(wall.WALL, lifecycle=lifecycle)
    return made


# The heat map.


def test_rows_are_the_edges_of_the_histogram() -> None:
    assert (*(f"{edge:g}" for edge in EDGES), "+Inf") == data.EDGES


def test_columns_hold_what_became_ready() -> None:
    made = empty()
    at = wall.NOW - 120
    for i, took in enumerate((0.5, 30.0, 31.0, 45.0, 7201.0)):
        made.put_boxes(wall.WALL, wall.ready(i, wall.NOW - at + took, took))
    made.put_boxes(wall.WALL, wall.ready(9, 300, 4, own=False))
    found = cells(made)
    column = int(at // 60)
    assert found[f"spin_ups.{column}"] == [["1", 1], ["30", 1], ["60", 2], ["+Inf", 1]]
    assert [key for key in found if key.startswith("spin_ups.") and key.rpartition(".")[2].isdigit()] == [
        f"spin_ups.{column}"
    ]
    assert (found["spin_ups.width"], found["spin_ups.most"], found["spin_ups.total"], found["spin_ups.none"]) == (
        60.0,
        2,
        5,
        "",
    )


def test_an_edge_of_tomorrow_has_its_row() -> None:
    found = data.spinup_cells({7: {"45": 1, "+Inf": 2}}, 60.0)
    assert found["spin_ups.edges"][4:9] == ["20", "30", "45", "60", "120"]  # type: ignore[index]
    assert found["spin_ups.7"] == [["45", 1], ["+Inf", 2]]


def test_columns_stand_still_while_time_goes_on(reader: MemoryReader) -> None:
    before = cells(reader)
    moved = state_url.moved(HOUR, wall.NOW + 7.3)
    assert (moved.start, moved.end) == (wall.NOW + 7.3 - 3600, wall.NOW + 7.3)
    after = cells(reader, span=moved)
    same = [key for key in before if key.startswith("spin_ups.") and before[key] == after.get(key)]
    assert len(same) >= data.COLUMNS
    assert after["spin_ups.width"] == before["spin_ups.width"] == 60.0


@pytest.mark.parametrize(
    "hostile",
    [None, [1, 2], ["x", 2, True], [5.0, 5.5, True], [9, 1, True], [0, 1e300, True], [float("nan"), 9, 1], {}],
)
def test_a_time_that_is_none_is_left_out(reader: MemoryReader, hostile: object) -> None:
    assert state_url.shown(hostile) is None
    found = callbacks.tick(look(reader), SentViews(), pull(reader, span=hostile))
    assert found["view"]["sandboxes.mode"] == "ok" and not [key for key in found["view"] if key.startswith("spin_ups.")]


# The wire.


def look(reader: MemoryReader, shared: TimedCache | None = None) -> callbacks.Looking:
    kept = shared or TimedCache()
    return lambda run, everything: Scope(reader, run, everything, shared=kept)


def pull(reader: MemoryReader, have: str = "", **changes: Any) -> dict[str, Any]:
    span, cursor = [HOUR.start, HOUR.end, True], reader.cursor(wall.WALL)
    made = {"page": 1, "key": "sandboxes", "run": wall.WALL, "cursor": cursor, "have": have, "span": span, "n": 1}
    return made | changes


def test_idle_tick_carries_nothing(reader: MemoryReader) -> None:
    views, seen = SentViews(), look(reader)
    first = callbacks.tick(seen, views, pull(reader))
    reader.clock += 2
    # A column later the first one has left, and the newest is not met yet.
    second = callbacks.tick(seen, views, pull(reader, first["have"]))
    assert second.keys() <= {"page", "cursor", "now", "have", "view"}
    assert {key for key in second.get("view", {}) if not key.startswith(("sandboxes.src", "spin_ups."))} == set()


def test_a_new_spin_up_is_its_column_and_its_numbers(reader: MemoryReader) -> None:
    views, now = SentViews(), [0.0]
    seen = look(reader, TimedCache(lambda: now[0]))
    first = callbacks.tick(seen, views, pull(reader))
    reader.put_boxes(wall.WALL, wall.ready(8005, 50, 45))
    # Kept: nothing is read again before its time.
    calls = len(reader.calls)
    callbacks.tick(seen, views, pull(reader, first["have"]))
    assert [call for call in reader.calls[calls:] if not call.startswith(("since", "status"))] == []
    now[0] += 6
    second = callbacks.tick(seen, views, pull(reader, first["have"]))
    column = int((wall.NOW - 5) // 60)
    assert set(second["view"]) == {f"spin_ups.{column}", "spin_ups.total", "sandboxes.funnel"}
    assert second["fields"] == {"card.sb_failed": {"note": "2% of 2,575 requested"}}
    assert len(json.dumps(second)) < 700


def test_new_points_come_by_slot(reader: MemoryReader) -> None:
    cursor = reader.cursor(wall.WALL)
    reader.append(wall.WALL, wall.signal_of("sandboxes", "sandboxes", state="starting"), [(wall.NOW + 5, 120.0)])
    found = callbacks.tick(look(reader), SentViews(), pull(reader, cursor=cursor))
    at = [(wall.NOW + 5) * 1000]
    assert found["points"] == {"boxes.0": [at, [120.0]], "card.sb_starting": [at, [120.0]]}


def test_first_load_brings_chart_lines_and_columns(reader: MemoryReader) -> None:
    wanted = {"path": "sandboxes", "search": f"?run={wall.WALL}", "have": [], "n": 1}
    boot = callbacks.build(look(reader), SentViews(), wanted)[0]
    assert (boot["timed"], boot["drawn"]) == (True, [*(f"boxes.{n}" for n in range(4)), "infra.1", "infra.2"])
    assert set(boot["sparks"]) == {
        "card.sb_running",
        "card.sb_starting",
        "card.sb_oldest",
        "card.sb_p95",
        "card.sb_dangling",
    }
    # The highest of its bucket, not the mean: a straggler's age at its end.
    assert boot["sparks"]["card.sb_oldest"][1][-1] == 3720.0
    assert boot["view"]["spin_ups.total"] > 2000


def test_the_end_of_a_straggler_does_not_hide_its_age() -> None:
    made = empty()
    oldest = wall.signal_of("sandbox_oldest_pending_seconds", "seconds")
    # The range is cut to the time that the run has.
    made.append(wall.WALL, oldest, [(wall.NOW - 3590, 5.0), (wall.NOW - 100, 3000.0), (wall.NOW - 95, 10.0)])
    wanted = {"path": "sandboxes", "search": f"?run={wall.WALL}&start={HOUR.start}&end={HOUR.end}", "have": [], "n": 1}
    boot = callbacks.build(look(made), SentViews(), wanted)[0]
    # Both within one bucket, of which the mean would say 1,505.
    assert boot["sparks"]["card.sb_oldest"][1] == [5.0, 3000.0]


def test_overview_has_the_third_actor(reader: MemoryReader) -> None:
    found = cells(reader, key="overview")
    numbers = [(found[f"actor.sandbox.numbers.{i}.figure"], found[f"actor.sandbox.numbers.{i}.unit"]) for i in range(3)]
    assert numbers == [("780", "running"), ("128", "starting"), ("62", "min oldest pending")]
    assert (found["actor.sandbox.sub"], found["actor.sandbox.state"]) == ("Prime", "critical")
    assert cells(reader, wall.MATH, key="overview")["actor.sandbox.sub"] == "this run uses no sandboxes"
    assert cells(reader, wall.BARE, key="overview")["actor.sandbox.sub"] == "no sandbox source"


# What is kept for all browsers.


def test_kept_reads_once_and_again_after_its_time() -> None:
    now, reads = [0.0], []
    kept = TimedCache(lambda: now[0], size=2)

    def read() -> int:
        reads.append(now[0])
        return len(reads)

    assert [kept.get("a", 4.0, read), kept.get("a", 4.0, read)] == [1, 1]
    now[0] = 4.0
    assert kept.get("a", 4.0, read) == 1
    now[0] = 4.5
    assert kept.get("a", 4.0, read) == 2
    # The one asked for longest ago goes.
    kept.get("b", 4.0, read)
    kept.get("a", 4.0, read)
    kept.get("c", 4.0, read)
    assert (kept.get("a", 4.0, read), kept.get("b", 4.0, read)) == (2, 5)


def test_kept_does_not_keep_a_failure() -> None:
    kept = TimedCache()

    def fails() -> int:
        raise UnknownRun("x")

    with pytest.raises(UnknownRun):
        kept.get("a", 60.0, fails)
    assert kept.get("a", 60.0, lambda: 3) == 3


def test_of_many_at_once_one_reads() -> None:
    kept, reads, go = TimedCache(), [], threading.Event()

    def slow() -> int:
        reads.append(1)
        assert go.wait(10)
        return 1

    threads = [threading.Thread(target=lambda: kept.get("a", 60.0, slow)) for _ in range(5)]
    for thread in threads:
        thread.start()
    # Another key does not wait for the slow one.
    assert kept.get("b", 60.0, lambda: 2) == 2
    go.set()
    for thread in threads:
        thread.join(10)
    assert len(reads) == 1
