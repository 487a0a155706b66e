"""The verdict on the command line, as an engineer would say it. Both databases."""

import json

import msgspec
import pytest
from msgspec import structs

from server.cli import status as command
from server.lib.errors import ConfigError
from server.store import Store
from server.verdict.model import Advice, Evidence, Limiter, SideEffect, Verdict, shared
from tests.derive.test_verdict_tracker import engine
from tests.driven_run import T0, bench

SPIN_UP = Limiter("sandbox_bound", "spin_up", 1.5, 1.2, text="2 min to start")
FULL = Verdict(
    "generator_bound", "long_tail", "V12", 0.86, 0.9, T0 - 720, "The trainer waits 74 % of each step for rollouts",
    (Evidence("p99 of a rollout is 3.4 x its p50", "tail_index_ratio", 3.4), Evidence("KV cache 97 % full")),
    shared((Limiter("generator_bound", "long_tail", 2.0, 1.8), SPIN_UP)),
    (Advice("oversampling", 0.4, 0.2, "ratio", (1.1, 1.3, 1.5), "setting",
            (SideEffect("staleness_versions", 2.0, 1.5),), "40% are aborted", "Cut the tail"),
     Advice("engines", 4.0, 8.0, "engines", (1.2, 1.4, 1.6), "money", (), "engines run 30 requests", "Add engines")),
    {"capacity_samples_per_second": 5.4, "trained_samples_per_second": 1.9, "gap_factor": 2.84,
                     "reported_wait_ratio": 0.74, "predicted_wait_ratio": 0.65, "kv_cache_usage_ratio": None},
    ("queue_samples: log the queue",), ("the trainer says 74 %",), 12.5,
)  # fmt: skip

TOLD = """\
verdict: generator-bound (long tail), for 12 min, high confidence (0.86)
  The trainer waits 74 % of each step for rollouts
  arithmetic:
    - samples/s: trained 1.9, capacity 5.4; the gap is a factor of 2.8
    - wait: reported 74%, predicted from arrivals 65%
    - share of the gap: generator-bound (long tail) 63%, sandbox-bound (spin up) 37%
  evidence:
    - p99 of a rollout is 3.4 x its p50
    - KV cache 97 % full
  in doubt:
    - the trainer says 74 %
  next limiter: sandbox-bound (spin up), worth 1.2x: 2 min to start
  change first: Cut the tail (1.1x to 1.5x)
  or: Add engines (1.2x to 1.6x, costs money)
  idle now: $12.50/h
  for more confidence, log:
    - queue_samples: log the queue
signals:"""


def test_status_says_it_as_an_engineer_would(store: Store) -> None:
    with bench(store, judge=lambda memory, seen: ({}, FULL)) as run:
        engine(run, 0, 0)
        found = msgspec.to_builtins(run.reader.status("run"))
        assert json.loads(command.dump(found))["verdict"] == {
            **msgspec.json.decode(msgspec.json.encode(FULL)),
            "as_of": T0,
        }
        said = command.text(found)
        assert TOLD in said
        assert "bottleneck" not in said
        assert json.loads(command.dump(found))["verdict"]["next"]["cause"] == "spin_up"


SHORT = """\
verdict: generator-bound (long tail), for 12 min, high confidence (0.86)
  The trainer waits 74 % of each step for rollouts
    - p99 of a rollout is 3.4 x its p50
    - KV cache 97 % full
  change first: Cut the tail (1.1x to 1.5x)
  idle now: $12.50/h
flagged signals:
  kv_cache_usage_ratio{stat="max"}                                 0.97 ratio      CRITICAL
  preemptions_per_second                                              2 1/s        WATCH
targets down:
  DOWN engine-3 (vllm) connection refused
alerts:
  firing for 2 min: TargetDown (critical): engine-3 does not answer
1 other signals, 1 without a value, 1 targets up: rollscope status --all"""


def signal(value: float | None, unit: str, state: str) -> dict[str, object]:
    return {"value": value, "unit": unit, "state": state, "why": "no source" if value is None else ""}


def test_the_short_status_holds_what_needs_attention() -> None:
    alert = {"name": "TargetDown", "state": "firing", "severity": "critical", "age_seconds": 120.0, "muted": "",
             "summary": "engine-3 does not answer"}  # fmt: skip
    status = {
        "run": "math", "framework": "verl", "mode": "async", "lifecycle": "running", "facts": {}, "now": T0,
        "verdict": msgspec.to_builtins(FULL), "alerts": [alert],
        "signals": {
            "preemptions_per_second": signal(2.0, "1/s", "watch"),
            "kv_cache_usage_ratio{stat=\"max\"}": signal(0.97, "ratio", "critical"),
            "trainer_step_seconds": signal(30.0, "seconds", "ok"),
            "trainer_mfu_ratio": signal(None, "ratio", "unknown"),
            "bottleneck{verdict=\"generator_bound\"}": signal(1.0, "", "ok"),
        },
        "trust": [
            {"target": "engine-3", "kind": "vllm", "up": False, "error": "connection refused"},
            {"target": "trainer", "kind": "verl", "up": True, "error": ""},
        ],
    }  # fmt: skip
    assert command.short(status) == f"math: verl, async, running\n{SHORT}"
    many = {**status, "alerts": [alert] * 7, "trust": []}
    assert command.short(many).count("TargetDown") == 5 and "  and 2 more\n" in command.short(many)


def test_an_unknown_run_is_answered_with_the_runs_there_are(store: Store) -> None:
    with bench(store, judge=lambda memory, seen: ({}, FULL)) as run:
        engine(run, 0, 0)
        with pytest.raises(ConfigError, match=r"no run is named 'rnu'; runs: run$"):
            command._chosen("rnu", [info.name for info in run.reader.runs.all()])


def test_while_nobody_collects_it_is_unknown_since_then(store: Store) -> None:
    with bench(store, judge=lambda memory, seen: ({}, FULL)) as run:
        engine(run, 0, 0)
        run.clock.set(T0 + 300)
        said = command.text(msgspec.to_builtins(run.reader.status("run")))
    assert "verdict: unknown (incomplete), for 5 min\n  nothing is collected for this run now" in said
    assert "idle now" not in said and "change first" not in said and "next limiter" not in said


def test_idle_dollars_that_are_not_all_say_what_is_missing(store: Store) -> None:
    part = structs.replace(FULL, usd_lacks="the number of GPUs is unknown: set [run.NAME.cost] generator_gpus")
    with bench(store, judge=lambda memory, seen: ({}, part)) as run:
        engine(run, 0, 0)
        said = command.text(msgspec.to_builtins(run.reader.status("run")))
    assert (
        "  idle now: at least $12.50/h (incomplete: the number of GPUs is unknown: set [run.NAME.cost] "
        "generator_gpus)\n" in said
    )


def test_a_store_that_is_not_there_is_named() -> None:
    with pytest.raises(ConfigError, match=r"no store at /nowhere/my\.db; try: rollscope demo"):
        command.fetch(None, None, "sqlite:////nowhere/my.db", None, named=False)
