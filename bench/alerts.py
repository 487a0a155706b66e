"""Cost of alerting, and its latency. JSON lines: bench, figures, target, ok.

    python -m bench.alerts [--quick]

First the cost of evaluation: a real driver over SQLite with 10,000 series and 100 rules. ``alerts`` is what alerting
takes of a tick (evaluating, muting, grouping; CPU time), ``whole`` all of `advance` until it is committed; ``target``
bounds the former. Then from an engine's page to the webhook, compared with a real Prometheus with its Alertmanager on
the same crossings (`bench._crossing`; three minutes). ``--quick``: evaluation only, with fewer ticks.
"""

import argparse
import json
import random
import statistics
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count, islice
from pathlib import Path
from typing import Any

from bench import _crossing
from collectors.model import Labels
from server.alerts.settings import AlertSettings
from server.config.alerts import build
from server.derive.alerts import RunAlerts
from server.ingest.readings import Arrivals, SampleArrival
from server.lib.errors import Problems
from server.signals.model import TICK_SECONDS, TargetState
from server.store import Store, Writer, migrate
from tests.driven_run import T0, TRAINER, Bench, steps

TARGETS, SERIES, RULES = 1_000, 10_000, 100
TARGET_MS = 200.0
# Ticks before measuring: a series keeps five minutes, and ticks are cheaper until these are full.
WARM_TICKS, TICKS = 62, 30
# Series over their threshold among ten thousand, always the same ones: few alerts are the normal case.
BAD = 20

GAUGES = {
    "generator_requests_running": 100.0, "generator_requests_waiting": 100.0, "kv_cache_usage_ratio": 0.5,
    "prefix_cache_hit_ratio": 0.5, "live_sequence_tokens": 4000.0, "generator_token_throughput": 900.0,
}  # fmt: skip
COUNTERS = {
    "generator_tokens_total": 5000.0, "generator_prompt_tokens_total": 900.0, "generator_preemptions_total": 1.0,
    "generator_requests_finished_total": 4.0,
}  # fmt: skip
"""Metric -> value of a healthy target; for a counter, its increase per tick."""

WAITING = "generator_requests_waiting"
# Used by one rule only, and not crossed before all targets cross it.
BURST, BURSTS = "generator_token_throughput", 3
# A group's interval and a tick more: the next burst is a new group.
QUIET_TICKS = 14


class Cluster:
    """Returns samples of every series at an instant. Healthy values are within 10 % of the middle, bad ones 3 times it.

    Args:
        wide: ten metrics of every target; else one metric of ten engines behind every target.

    Attributes:
        everywhere: the metric that is over its threshold at every target.
    """

    def __init__(self, wide: bool) -> None:
        self._rng = random.Random(1)
        self.everywhere = ""
        self._bad = {f"engine-{n}" for n in range(0, TARGETS, TARGETS // (BAD * TARGETS // SERIES))}
        names = [f"engine-{n}" for n in range(TARGETS)]
        engines: list[Labels] = [()] if wide else [(("engine", str(n)),) for n in range(SERIES // TARGETS)]
        metrics = {**GAUGES, **COUNTERS} if wide else {WAITING: GAUGES[WAITING]}
        self._series = [(name, m, e, middle) for name in names for m, middle in metrics.items() for e in engines]
        self._totals = [0.0] * len(self._series)
        self._names = names
        assert len(self._series) == SERIES

    def at(self, t: float) -> Arrivals:
        """Returns the arrivals of a scrape of all targets."""
        samples: list[SampleArrival] = []
        for i, (name, metric, labels, middle) in enumerate(self._series):
            bad = name in self._bad if metric != BURST else metric == self.everywhere
            value = middle * ((3.0 if bad else 1.0) + self._rng.uniform(-0.1, 0.1))
            if metric in COUNTERS:
                value = self._totals[i] = self._totals[i] + value
            samples.append((t, name, metric, labels, value))
        health = [TargetState(name, "vllm", "generator", True, t, t) for name in self._names]
        return Arrivals(samples=samples, health=health)


class Timed:
    """The run's alerts, with the CPU time they took since `take` (CPU, because the machine is shared)."""

    def __init__(self, alerts: RunAlerts) -> None:
        self._alerts, self._seconds = alerts, 0.0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._alerts, name)

    def tick(self, *args: Any, **kwargs: Any) -> None:
        begun = time.thread_time()
        self._alerts.tick(*args, **kwargs)
        self._seconds += time.thread_time() - begun

    def notify(self, *args: Any) -> None:
        begun = time.thread_time()
        self._alerts.notify(*args)
        self._seconds += time.thread_time() - begun

    def take(self) -> float:
        """Returns milliseconds since the last call."""
        taken, self._seconds = 1000 * self._seconds, 0.0
        return taken


# ---- rules


def settings(wide: bool) -> AlertSettings:
    """Returns a hundred rules and a receiver that is never called: only entries of its outbox count."""
    rules = _wide_rules() if wide else _deep_rules()
    assert len(rules) == RULES
    hook = {"name": "hook", "kind": "webhook", "url": "http://127.0.0.1:9/", "group_by": ["alertname"]}
    problems = Problems()
    found = build({"default_pack": False, "rule": rules, "receiver": [hook]}, {}, problems)
    assert problems.messages == []
    return found


def _wide_rules() -> list[dict[str, Any]]:
    """Returns ten rules over everything, twenty on increases, ten with a second condition, others on some targets."""
    rules = [_gauge(f"All{n}", metric, middle) for n, (metric, middle) in enumerate(GAUGES.items())]
    rules += [_growth(f"AllGrowth{n}", metric, middle, "1m") for n, (metric, middle) in enumerate(COUNTERS.items())]
    for n in range(16):
        metric, middle = list(COUNTERS.items())[n % len(COUNTERS)]
        rules.append(_growth(f"Growth{n}", metric, middle, ("1m", "2m", "5m")[n % 3]) | _part(n))
    for n in range(10):
        also = {"metric": "generator_requests_running", "above": 1.0}
        rules.append(_gauge(f"Both{n}", WAITING, GAUGES[WAITING]) | _part(n) | {"also": [also]})
    for n in range(RULES - len(rules)):
        metric, middle = [one for one in GAUGES.items() if one[0] != BURST][n % (len(GAUGES) - 1)]
        rules.append(_gauge(f"Part{n}", metric, middle) | _part(n) | {"for": "10s"})
    return rules


def _deep_rules() -> list[dict[str, Any]]:
    """Returns ten rules over all 10,000 series of one metric, the rest on a tenth of its targets each."""
    rules = [_gauge(f"All{n}", WAITING, 100.0 + n) for n in range(10)]
    return rules + [_gauge(f"Part{n}", WAITING, 100.0) | _part(n) | {"for": "10s"} for n in range(RULES - 10)]


def _gauge(name: str, metric: str, middle: float) -> dict[str, Any]:
    return {
        "name": name, "metric": metric, "above": 2 * middle, "recover": 1.5 * middle,
        "annotations": {"summary": "$value at $label_target, over $threshold since $since"},
    }  # fmt: skip


def _growth(name: str, metric: str, per_tick: float, window: str) -> dict[str, Any]:
    ticks = {"1m": 12, "2m": 24, "5m": 60}[window]
    return {
        "name": name, "metric": metric, "increase_over": window, "above": 2 * per_tick * ticks,
        "annotations": {"summary": "$value within the window at $label_target"},
    }  # fmt: skip


def _part(n: int) -> dict[str, Any]:
    """Returns a matcher of a tenth of the targets, by a regular expression only."""
    return {"match": [f'target=~"engine-[0-9]*{n % 10}"', 'target!="engine-nobody"']}


# ---- measuring


@contextmanager
def driven(wide: bool) -> Iterator[tuple[Bench, Timed]]:
    """Yields a run in a new SQLite store, after its first ticks."""
    with tempfile.TemporaryDirectory() as folder:
        url = f"sqlite:///{Path(folder) / 'bench.db'}"
        migrate(url)
        store = Store.open(url)
        writer = Writer(store)
        try:
            run = Bench(store, writer, alerts=settings(wide))
            timed = Timed(run.driver._alerts)
            run.driver._alerts = timed  # type: ignore[assignment]
            run.commit(TRAINER, steps(1, 3, seconds=1.0, start=T0 - 10), T0 - 5)
            yield run, timed
        finally:
            writer.close()
            store.close()


def tick(run: Bench, cluster: Cluster, t: float) -> float:
    """Runs one live tick; returns milliseconds of `advance`."""
    run.driver.feed(cluster.at(t))
    begun = time.perf_counter()
    run.advance(t, live=True)
    return 1000 * (time.perf_counter() - begun)


def evaluation(wide: bool, warm: int, ticks: int) -> Iterator[dict[str, object]]:
    """Measures steady ticks with few alerts; then ticks in which a thousand alerts fire at once, and the next ones."""
    cluster = Cluster(wide)
    shape = "1,000 targets x 10 metrics" if wide else "one metric of 10,000 series"
    with driven(wide) as (run, timed):
        times = (T0 + TICK_SECONDS * n for n in count())
        for t in islice(times, warm):
            tick(run, cluster, t)
        timed.take()
        found = [(tick(run, cluster, t), timed.take()) for t in islice(times, ticks)]
        yield _line(f"tick, ms: {shape}, {RULES} rules", found, _firing(run))
        if wide:
            yield from _bursts(run, timed, cluster, times)


def _bursts(run: Bench, timed: Timed, cluster: Cluster, times: Iterator[float]) -> Iterator[dict[str, object]]:
    """All targets cross the threshold of the one rule on `BURST`: one notification for all of them."""
    first, after = [], []
    for _ in range(BURSTS):
        cluster.everywhere = BURST
        first.append((tick(run, cluster, next(times)), timed.take()))
        firing = _firing(run)
        told = json.loads(run.store.alerts.deliveries("run", 1)[0].payload)
        assert len(told["alerts"]) == TARGETS, "one notification of a thousand alerts"
        after.append((tick(run, cluster, next(times)), timed.take()))
        cluster.everywhere = ""
        for t in islice(times, QUIET_TICKS):
            tick(run, cluster, t)
        timed.take()
    yield _line("tick, ms: 1,000 alerts fire at once, one notification", first, firing)
    yield _line("tick, ms: the one after it, every value changed", after, firing)


def _firing(run: Bench) -> int:
    return sum(alert.state == "firing" for alert in run.reader.alerts.active("run"))


def _line(name: str, found: Sequence[tuple[float, float]], firing: int) -> dict[str, object]:
    whole, alerts = zip(*found, strict=True)
    middle = statistics.median(alerts)
    return {
        "bench": name, "firing": firing, "alerts": round(middle, 1), "alerts_max": round(max(alerts), 1),
        "whole": round(statistics.median(whole), 1), "target": TARGET_MS, "ok": middle <= TARGET_MS,
    }  # fmt: skip


def main() -> None:
    """Measures and prints."""
    parser = argparse.ArgumentParser(description="what alerting costs and how soon it tells")
    parser.add_argument("--quick", action="store_true", help="evaluation only, with fewer ticks")
    quick = parser.parse_args().quick
    warm, ticks = (14, 5) if quick else (WARM_TICKS, TICKS)
    for wide in (True, False):
        for line in evaluation(wide, warm, ticks):
            print(json.dumps(line), flush=True)
    for line in () if quick else _crossing.lines():
        print(json.dumps(line), flush=True)


if __name__ == "__main__":
    main()
