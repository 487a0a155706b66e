"""Rollscope's own numbers on /metrics, from the collecting thread or from another process. Both databases."""

import asyncio
import math
import pickle
import re

import pytest

from server.api.metrics import render
from server.clock import ScaledClock
from server.config.retention import RetentionSettings
from server.query import Reader
from server.runtime.collector_service import Health
from server.runtime.retention import RetentionTask
from server.runtime.self_metrics import CollectorNumbers, SelfMetrics, process_numbers
from server.store import Store, Writer
from server.store.types import Batch
from tests.driven_run import T0


def page(store: Store, health: Health) -> dict[str, float]:
    text = render(Reader(store, ScaledClock(T0)), "1", SelfMetrics(store, health.numbers)).decode()
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
        numbers.process = process_numbers()
        # As through the pipe of a collecting process.
        health.publish(pickle.loads(pickle.dumps(numbers)))
        found = page(store, health)
    finally:
        writer.close()
    assert found['tick_seconds_count{run="run"}'] == 2.0 and found['tick_seconds_sum{run="run"}'] == 2.0
    assert found["store_rows_written_total"] == 3.0 and found["store_commits_total"] == 2.0
    assert found["store_queued_rows"] == found["store_dropped_rows_total"] == found["retention_lag_seconds"] == 0.0
    kept = {kind: found[f'retention_seconds{{kind="{kind}"}}'] / 86_400 for kind in ("raw", "signals", "records")}
    assert kept == {"raw": 15.0, "signals": 90.0, "records": 90.0}
    assert found['retention_seconds{kind="rollups"}'] == math.inf
    for process in ("web", "collect"):
        assert found[f'process_cpu_seconds_total{{process="{process}"}}'] > 0
        assert found[f'process_resident_bytes{{process="{process}"}}'] > 10_000_000
        assert found[f'process_open_files{{process="{process}"}}'] >= 3
    tables = {name for name in found if name.startswith("store_table_bytes")}
    if store.dialect == "postgresql":
        assert found['store_table_bytes{table="runs"}'] > 0
    else:
        assert tables == set()


@pytest.mark.parametrize(("due", "lags"), [(True, True), (False, False)])
def test_retention_reports_since_when_it_is_behind(store: Store, due: bool, lags: bool) -> None:
    task = RetentionTask(store, RetentionSettings(), lambda: True)
    seen: list[float | None] = []
    stop = asyncio.Event()
    task._step = lambda: due  # type: ignore[method-assign]
    task.on_behind = lambda since: (seen.append(since), stop.set() if len(seen) == 3 or not due else None)  # type: ignore[func-returns-value, assignment]
    asyncio.run(task.run(stop))
    assert (seen[0] is not None) is lags and len(set(seen)) == 1
