"""Rollscope's own numbers on /metrics, from the collecting thread or from another process. Both databases."""

import asyncio
import itertools
import math
import pickle
import re

import pytest

from server.api.metrics import render
from server.cli.export import UNHEALTHY
from server.lib.clock import ScaledClock
from server.query import Reader
from server.runtime.collector_service import Health, RetentionTask
from server.runtime.self_metrics import CollectorNumbers, SelfMetrics, TickTotals, process_numbers
from server.store import Store, Writer
from server.store.types import Batch, OutboxRow, Push, RetentionSettings
from tests.driven_run import T0

LIMITED = RetentionSettings(max_bytes=50_000_000)
T0_MS = round(T0 * 1000)


def page(store: Store, health: Health) -> dict[str, float]:
    text = render(
        Reader(store, ScaledClock(T0)),
        "1",
        SelfMetrics(store, health.numbers, LIMITED),
    ).decode()
    rows = re.findall(r"^rollscope_(\S+) (\S+)$", text, re.M)
    return {name: float(value) for name, value in rows}


def test_steps_writes_and_processes_are_counted(store: Store) -> None:
    health, numbers, writer = Health(), CollectorNumbers(), Writer(store)
    try:
        for facts in ({"a": 1.0, "b": 2.0}, {"c": 3.0}):
            writer.submit(Batch("run", facts=facts))  # type: ignore[arg-type]
            writer.flush()
        numbers.tick("run", 0.5, writer)
        numbers.tick("run", 1.5, writer)
        numbers.process, numbers.unpacked_hours = process_numbers(), 7
        # As through the pipe of a collecting process.
        health.publish(pickle.loads(pickle.dumps(numbers)))
        found = page(store, health)
    finally:
        writer.close()
    assert found['tick_seconds_count{run="run"}'] == 2.0 and found['tick_seconds_sum{run="run"}'] == 2.0
    assert found["store_rows_written_total"] == 3.0 and found["store_commits_total"] == 2.0
    assert found["store_queued_rows"] == found["store_dropped_rows_total"] == found["retention_lag_seconds"] == 0.0
    assert found["packing_backlog_hours"] == 7.0
    kept = {kind: found[f'retention_seconds{{kind="{kind}"}}'] / 86_400 for kind in ("raw", "signals", "records")}
    assert kept == {"raw": 15.0, "signals": 90.0, "records": 90.0}
    assert found['retention_seconds{kind="rollups"}'] == math.inf
    for process in ("web", "collect"):
        assert found[f'process_cpu_seconds_total{{process="{process}"}}'] > 0
        assert found[f'process_resident_bytes{{process="{process}"}}'] > 10_000_000
        assert found[f'process_open_files{{process="{process}"}}'] >= 3


def test_tables_have_their_size(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """SQLite: one page for the rows of `runs` and one for the index of their names."""
    store.ensure_run("run")
    size = page(store, Health())['store_table_bytes{table="runs"}']
    assert size == 2 * 4096 if store.dialect == "sqlite" else size >= 3 * 8192
    monkeypatch.setattr("server.store.retention.SQLITE_SIZES_BYTES", 4096)
    found = [name for name in page(store, Health()) if name.startswith("store_table_bytes")]
    assert bool(found) is (store.dialect == "postgresql")


def test_queues_have_their_depth(store: Store) -> None:
    empty = page(store, Health())
    assert [empty[f"inbox_{unit}"] for unit in ("pushes", "rows", "bytes")] == [0.0, 0.0, 0.0]
    assert not [name for name in empty if name.startswith("outbox")]
    store.pushes.offer(
        [Push("run", "t", "trainer", 5.0, T0_MS, 3, b"12345"), Push("b", "t", "x", 5.0, T0_MS, 4, b"123456")]
    )
    rows = [OutboxRow(receiver, "group", n, T0_MS, "{}") for receiver, n in (("ops", 0), ("ops", 1), ("night", 0))]
    store.write(Batch("run", outbox=rows))
    (first,) = store.alerts.claim(T0_MS, 1000, 1, ["ops"])
    store.alerts.finish(first.id, "sent", "200", T0_MS)
    found = page(store, Health())
    assert [found[f"inbox_{unit}"] for unit in ("pushes", "rows", "bytes")] == [2.0, 7.0, 11.0]
    assert found['outbox_notifications{receiver="ops"}'] == found['outbox_notifications{receiver="night"}'] == 1.0


def test_the_rules_about_rollscope_itself_name_what_the_page_has(store: Store) -> None:
    health, writer = Health(), Writer(store)
    numbers = CollectorNumbers()
    numbers.tick("run", 0.5, writer)
    writer.close()
    health.publish(numbers)
    families = {name.partition("{")[0] for name in page(store, health)}
    named = {name for _, expr, _ in UNHEALTHY for name in re.findall(r"rollscope_(\w+)", expr)}
    assert len(named) >= len(UNHEALTHY) and named <= families, named - families


@pytest.mark.parametrize(
    ("outcome", "lags"),
    [((True, False, 7), True), ((False, True, 7), False), ((False, False, 0), False), (OSError("full"), True)],
)
def test_retention_reports_since_when_it_is_behind(
    store: Store, monkeypatch: pytest.MonkeyPatch, outcome: tuple[bool, bool, int] | OSError, lags: bool
) -> None:
    """Also when its steps fail, and not while rows are packed. It reports the hours that are not packed."""
    monkeypatch.setattr("server.runtime.collector_service.PERIOD_SECONDS", 0.0)
    monkeypatch.setattr("server.runtime.collector_service.PAUSE_SECONDS", 0.0)
    task = RetentionTask(store, RetentionSettings(), lambda: True)
    seen: list[tuple[float | None, int]] = []
    stop = asyncio.Event()

    calls = itertools.count(1)

    def step() -> tuple[bool, bool, int]:
        if next(calls) == 3:
            stop.set()
        if isinstance(outcome, OSError):
            raise outcome
        return outcome

    task._step = step  # type: ignore[method-assign]
    task.on_behind = lambda since, hours: seen.append((since, hours))
    asyncio.run(task.run(stop))
    assert len(seen) == 3 and (seen[0][0] is not None) is lags and len(set(seen)) == 1
    assert seen[0][1] == (0 if isinstance(outcome, OSError) else outcome[2])


def test_growth_and_when_the_limit_is_reached(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """30 minutes: 5 MB and 60,000 rows more; 50 - 20 = 30 MB are left at 10 MB an hour. Below ten minutes no rate."""
    health, numbers = Health(), CollectorNumbers(ticks={"run": TickTotals(10, 1.0)})
    begin = 1_700_000_000.0
    for minutes, used, rows in ((0, 15_000_000, 1_000), (0.5, 99_000_000, 1_000), (9, 18_000_000, 2_000)):
        monkeypatch.setattr("server.runtime.self_metrics.time.time", lambda at=60 * minutes: begin + at)
        numbers.rows = rows
        numbers.size(used)
    health.publish(numbers)
    assert not [name for name in page(store, health) if "per_hour" in name or "reached" in name]
    monkeypatch.setattr("server.runtime.self_metrics.time.time", lambda: begin + 1800)
    numbers.rows = 61_000
    numbers.size(20_000_000)
    health.publish(numbers)
    found = page(store, health)
    assert found["store_growth_bytes_per_hour"] == 10_000_000 and found["store_rows_per_hour"] == 120_000
    assert found["store_limit_reached_seconds"] == 3 * 3600.0
    said = Reader(store, ScaledClock(T0), own=SelfMetrics(store, health.numbers, LIMITED)).health()
    assert "grows by 10.0 MB/h, max_size 50 MB, nothing deleted by it, reached in 3.0 h at this rate" in said["store"]
    assert said["writes"] == "120,000 rows/h, 0 rows dropped since the start"
    assert said["queues"] == "0 pushes (0 rows) and 0 notifications wait"
    assert said["retention"] == "nothing overdue"
    assert said["steps"] == "0.1 s on average, of 5 s"
    # A server that only serves knows nothing of the writer.
    alone = Reader(store, ScaledClock(T0), own=SelfMetrics(store, Health().numbers, LIMITED)).health()
    assert alone.keys() >= {"store", "queues", "web"} and alone.keys().isdisjoint({"writes", "steps", "retention"})
    assert said["web"].endswith(" open files") and "collect" not in said
