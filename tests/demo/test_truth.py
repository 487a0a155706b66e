"""What Rollscope says of the demo against what the simulation knows: sockets, files, store and signals included.

The truth file holds the simulation's own integrals; no collector reads it. Each scenario has its own kind of database.
"""

import asyncio
import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from server.cli.demo import Cluster
from server.lib.clock import ScaledClock
from server.query import Reader
from server.scrape.run_loop import LoopServices, RunLoop
from server.store import Store, Writer
from server.targets.model import Attached
from server.targets.resolve import attach
from tests.demo.conftest import SECOND_IS_LONG

START = 1_800_000_000.0
# Ten of the window, one that says where it begins, one for the warm-up.
STEPS = 12
LAST = 10
Truth = list[dict[str, Any]]


def truth_of(cluster: Cluster) -> Truth:
    return [json.loads(line) for line in Path(cluster.ready["truth"]).read_text("utf-8").splitlines()]


async def drive(cluster: Cluster, loop: RunLoop, clock: ScaledClock) -> float:
    """Until the trainer has done its steps; the last grid instant is within 5 s of the last one's end.

    Answers how many were in flight by the log at that instant.
    """
    t = START
    while len(truth_of(cluster)) < STEPS:
        t += 5
        await asyncio.to_thread(cluster.advance, t)
        clock.set(t)
        await loop.step(t, patient=True)
    await loop.close()
    log = Path(cluster.ready["run_dir"], "logs/latest/orchestrator.log").read_text("utf-8")
    flight = float(re.findall(r"(\d+) inflight episodes", log)[-1])
    # One more, which nobody watches: its batch may have been shipped, and be in the records, already.
    while len(truth_of(cluster)) <= STEPS:
        t += 5
        await asyncio.to_thread(cluster.advance, t)
    return flight


Watched = tuple[dict[str, float | None], Truth]
# A run takes seconds to watch: once, for every test here only looks at it.
_RUNS: dict[str, Watched] = {}
SCENARIOS = {"sqlite": "healthy", "postgresql": "generator-bound"}


@pytest.fixture
def watched(store: Store, tmp_path: Path, store_url: str) -> Watched:
    """(value by signal name, truth rows of every completed step and of the one after it)."""
    scenario = SCENARIOS[store_url.partition(":")[0]]
    if scenario not in _RUNS:
        _RUNS[scenario] = _watch(scenario, store, tmp_path)
    return _RUNS[scenario]


def _watch(scenario: str, store: Store, tmp_path: Path) -> Watched:
    clock, writer = ScaledClock(START), Writer(store)
    with Cluster(scenario, 5, tmp_path, START) as cluster:
        run = attach(cluster.settings())
        loop = RunLoop(Attached(run.name, run.targets, run.facts), LoopServices(store, writer, clock))
        flight = asyncio.run(drive(cluster, loop, clock))
    writer.close()
    status = Reader(store, clock).status(run.name)
    assert all(target.up for target in status.trust), status.trust
    found = {signal.name: signal.value for signal in status.signals.values()} | {"the log's last word": flight}
    return found, truth_of(cluster)


def total(rows: Sequence[dict[str, Any]], key: str) -> float:
    return float(sum(row[key] for row in rows))


def over_time(rows: Sequence[dict[str, Any]], key: str) -> float:
    return float(sum(row[key] * row["step_seconds"] for row in rows)) / total(rows, "step_seconds")


@SECOND_IS_LONG
def test_every_signal_agrees_with_the_truth(watched: tuple[dict[str, float | None], Truth]) -> None:
    found, every = watched
    rows = every[:STEPS]
    last = rows[-LAST:]
    step, wait = total(last, "step_seconds"), total(last, "wait_seconds")
    exact = {
        "trainer_step_seconds": step / LAST,
        "trainer_wait_ratio": wait / step,
        'trainer_phase_seconds{phase="wait"}': wait / LAST,
        'trainer_phase_seconds{phase="compute"}': total(last, "compute_seconds") / LAST,
        'trainer_phase_seconds{phase="overhead"}': (step - wait - total(last, "compute_seconds")) / LAST,
        "weight_sync_seconds": total(last, "weight_sync_seconds") / LAST,
        "capacity_samples_per_second": total(last, "samples") / (step - wait),
        "trainer_samples_per_second": total(last, "samples") / step,
        "truncation_ratio": total(last, "truncated_ratio") / LAST,
        "policy_version": rows[-1]["policy_version"],
        "trainer_wait_seconds_total": total(rows, "wait_seconds"),
        "trainer_busy_seconds_total": total(rows, "compute_seconds"),
    }
    for name, truth in exact.items():
        assert found[name] == pytest.approx(truth, rel=1e-3, abs=1e-6), name
    near = {
        "queue_samples": over_time(last, "queue_samples"),
        'generator_requests{state="running"}': over_time(last, "requests_running"),
        "kv_cache_usage_ratio": over_time(last, "kv_usage"),
    }
    if over_time(last, "requests_waiting") > 10:  # a few requests are noise between two pages
        near['generator_requests{state="waiting"}'] = over_time(last, "requests_waiting")
    assert found['in_flight_rollouts{state="generating"}'] == found["the log's last word"]
    for name, truth in near.items():
        assert found[name] == pytest.approx(truth, rel=0.05), name


# The trainer logs these itself, and its own values come first; its newest step may be older than the newest record.
LOGGED = {'response_tokens{stat="mean"}', 'reward{stat="mean"}'}


def recorded(last: Truth) -> dict[str, float]:
    """What records tell of ten batches, each of 256 rollouts."""
    return {
        'staleness_versions{level="trajectory",stat="mean"}': total(last, "staleness_mean") / LAST,
        'staleness_versions{level="trajectory",stat="max"}': max(row["staleness_max"] for row in last),
        'zero_advantage_ratio{basis="admitted"}': total(last, "zero_advantage_ratio") / LAST,
        'zero_advantage_group_ratio{basis="admitted",cause="all_solved"}': total(last, "all_solved_ratio") / LAST,
        'zero_advantage_group_ratio{basis="admitted",cause="none_solved"}': total(last, "none_solved_ratio") / LAST,
        'response_tokens{stat="mean"}': total(last, "response_tokens_mean") / LAST,
        'response_tokens{stat="max"}': max(row["response_tokens_max"] for row in last),
        'reward{stat="mean"}': total(last, "reward_mean") / LAST,
    }


@SECOND_IS_LONG
def test_signals_from_records_agree_with_the_truth(watched: tuple[dict[str, float | None], Truth]) -> None:
    """Of the ten batches shipped last: the newest is the trainer's last step's, or the one that it has just begun."""
    found, every = watched
    windows = [recorded(every[STEPS + more - LAST : STEPS + more]) for more in (0, 1)]
    for names in (windows[0].keys() - LOGGED, LOGGED):
        told = {name: found[name] for name in names}
        wanted = [{name: window[name] for name in names} for window in windows]
        assert told in [pytest.approx(window, rel=1e-6, abs=1e-9) for window in wanted]


@SECOND_IS_LONG
def test_counters_of_the_engines_are_the_clusters_own(watched: tuple[dict[str, float | None], Truth]) -> None:
    """Counted from the first page on, 5 s in."""
    found, rows = watched[0], watched[1][:STEPS]
    rate = (rows[-1]["generation_tokens"] - rows[-11]["generation_tokens"]) / total(rows[-10:], "step_seconds")
    assert found["generator_generated_tokens_total"] == pytest.approx(rows[-1]["generation_tokens"], rel=0.02)
    assert found["generator_tokens_per_second"] == pytest.approx(rate, rel=0.05)
