"""Records what the default alert rules and `/metrics` see of the demo's scenarios and faults.

    python -m bench.alert_equality [--jobs N] [NAME...]

Writes tests/testdata/alert_equality/<name>.json: the real product follows the simulated run for 45 minutes, and every
60 s the tables of the rules and the rules' series on `/metrics` are noted. tests/alerts/test_equality.py evaluates our
rules on the tables, and Prometheus the exported ones on the series.
"""

import argparse
import asyncio
import gc
import json
import re
import tempfile
from collections.abc import Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import Any

from fastapi.testclient import TestClient
from prometheus_client.parser import text_string_to_metric_families

from bench.real_runs.play import PATIENT
from demo.faults import KINDS, Fault
from demo.process import Demo
from demo.scenarios import SCENARIOS
from server.alerts.inputs import RunFrame
from server.alerts.model import Condition, Rule
from server.alerts.settings import AlertSettings
from server.api import PROMETHEUS_PREFIX, metrics
from server.api.app import create_api
from server.api.rollouts import add_rollouts
from server.config.alerts import load_rules
from server.lib.clock import ScaledClock
from server.lib.errors import Problems
from server.query import Reader
from server.scrape.run_loop import LoopServices, RunLoop
from server.store import Store, Writer, migrate
from server.targets.model import Attached
from server.targets.resolve import attach
from tests.demo.watched import START, Posted, Same

FOLDER = Path("tests/testdata/alert_equality")
# Seconds between two reads of the targets, as long as a gauge is carried at least; a multiple of a tick.
STEP = 15.0
# Seconds between two recorded instants.
EVERY = 60.0
# Seconds of simulated time before the product is attached; the hang of `stalled` is in the followed part.
ATTACHED = 900.0
# Seconds that are followed: the hang, then the least time of a stall (1,800 s), then its alert.
FOLLOWED = 2_700.0
# Seconds from the beginning to an injected fault: signals have values by then.
FAULT = ATTACHED + 300.0
# Digits of a recorded value. No threshold of the pack has more than three.
DIGITS = 6

RUNS: Mapping[str, tuple[str, tuple[Fault, ...]]] = {
    **{name: (name, ()) for name in SCENARIOS},
    **{
        kind: ("gb300-sandbox-wall" if kind == "sandbox-outage" else "healthy", (Fault(kind, FAULT),)) for kind in KINDS
    },
}
"""Recording -> scenario and injected faults."""

GAP, ENDED = "_", "stale"
Column = list[str]


def conditions(rules: Sequence[Rule]) -> dict[str, Condition]:
    """Key of a table -> a condition that reads it."""
    return {f"{c.name} {c.of} {c.window:g} {c.summed:d}": c for rule in rules for c in rule.conditions}


def record(name: str) -> None:
    """Follows one run and writes its recording."""
    scenario, faults = RUNS[name]
    rules = load_rules({}, Problems())
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{folder}/store.db"
        migrate(url)
        with closing(Store.open(url)) as store:
            found = asyncio.run(_follow(scenario, faults, rules, Path(folder), store))
    FOLDER.mkdir(parents=True, exist_ok=True)
    (FOLDER / f"{name}.json").write_text(json.dumps(found, indent=0, sort_keys=True) + "\n")


async def _follow(
    scenario: str, faults: Sequence[Fault], rules: Sequence[Rule], folder: Path, store: Store
) -> dict[str, Any]:
    demo, clock = Demo(scenario, 1, folder / "demo", START, START + ATTACHED, faults), ScaledClock(START + ATTACHED)
    recording = _Recording(rules)
    with closing(demo), closing(Writer(store)) as writer:
        demo.advance(START + ATTACHED)
        run, reader = attach(Same(demo).settings()), Reader(store, clock)
        loop = RunLoop(
            Attached(run.name, run.targets, run.facts),
            LoopServices(store, writer, clock, AlertSettings(rules), limits=PATIENT),
        )
        api = create_api(reader, version="test", ready=lambda: None)
        add_rollouts(api, reader, store, clock)
        with TestClient(api, base_url="http://127.0.0.1") as client:
            demo.poster = Posted(client, run.name)
            while clock.now() < START + ATTACHED + FOLLOWED:
                now = clock.now() + STEP
                demo.advance(now)
                clock.set(now)
                await loop.step(now, patient=True)
                if now % EVERY == 0:
                    recording.add(now, loop, metrics.render(reader, "test").decode())
        await loop.close()
    return recording.written(run.name)


class _Recording:
    def __init__(self, rules: Sequence[Rule]) -> None:
        self._conditions = conditions(rules)
        self._names = {c.name for c in self._conditions.values()}
        self._count = 0
        self._lifecycles: Column = []
        self._tables: dict[str, dict[str, Column]] = {key: {} for key in self._conditions}
        self._page: dict[str, Column] = {}

    def add(self, now: float, loop: RunLoop, page: str) -> None:
        """Notes one instant."""
        driver = loop.pipeline.driver
        alerts, deriver, answers = driver._alerts, driver.deriver, driver._answers
        frame = RunFrame(
            now, loop.run, deriver.lifecycle, False,
            {**answers.now(), **alerts._counters(now, deriver.counter_values())},
            lambda name, ts: answers.stale(now, name, ts), deriver.gauges, deriver.health, deriver.book, deriver.shape,
            alerts._totals,
        )  # fmt: skip
        self._lifecycles.append(deriver.lifecycle)
        for key, condition in self._conditions.items():
            table = frame.table(condition)
            if table is not None:
                self._note(
                    self._tables[key],
                    {
                        ",".join(f"{name}={value}" for name, value in labels): table.values[i]
                        for i, labels in enumerate(table.labels)
                    },
                )
        self._note(self._page, dict(_series(page, self._names)))
        self._count += 1

    def _note(self, columns: dict[str, Column], values: Mapping[str, float]) -> None:
        for key in columns.keys() | values.keys():
            column = columns.setdefault(key, [])
            column += [ENDED] * (self._count - len(column))
            value = values.get(key)
            column.append(ENDED if value is None else GAP if value != value else f"{value:.{DIGITS}g}")

    def written(self, run: str) -> dict[str, Any]:
        tables = {key: _short(columns, self._count) for key, columns in self._tables.items()}
        return {
            "run": run, "every": EVERY, "count": self._count, "lifecycle": _shortened(self._lifecycles),
            "tables": tables, "page": _short(self._page, self._count),
        }  # fmt: skip


def _series(page: str, names: set[str]) -> "Sequence[tuple[str, float]]":
    """Series of the rules on a page, in PromQL's spelling."""
    wanted = names | {"run_state", "signal_state"}
    found = []
    for family in text_string_to_metric_families(page):
        for sample in family.samples:
            if sample.name.removeprefix(PROMETHEUS_PREFIX) not in wanted:
                continue
            if sample.name.endswith("signal_state") and sample.labels["signal"] not in names:
                continue
            if sample.name.endswith("_state") and not sample.value and "engine" not in sample.name:
                continue  # of a state's series only the one that is 1 is read
            labels = ",".join(f'{name}="{value}"' for name, value in sorted(sample.labels.items()) if value)
            found.append((f"{sample.name}{{{labels}}}", sample.value))
    return found


def _short(columns: Mapping[str, Column], count: int) -> dict[str, str]:
    return {key: _shortened(column + [ENDED] * (count - len(column))) for key, column in columns.items()}


def _shortened(column: Sequence[str]) -> str:
    """Equal neighbours as ``VALUE*COUNT``."""
    text = " ".join(column)
    return re.sub(r"(?<!\S)(\S+)((?: \1)+)(?!\S)", lambda m: f"{m[1]}*{1 + m[2].count(' ')}", text)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("names", nargs="*", metavar="NAME")
    parser.add_argument("--jobs", type=int, default=2)
    options = parser.parse_args(arguments)
    with ProcessPoolExecutor(options.jobs, initializer=gc.set_threshold, initargs=(200_000,)) as pool:
        list(pool.map(record, options.names or RUNS, chunksize=1))


if __name__ == "__main__":
    main()
