"""A rich and a poor run for tests and screenshots; every number follows from the time, so pictures repeat."""

import math
from collections.abc import Callable
from functools import cache

from dashboard.widgets.format import series_name
from server.query.types import SignalInfo, SignalNow, SignalState, TargetTrust
from tests.dashboard.memory_reader import MemoryReader, Point

NOW = 1_790_000_000.0
RICH, POOR, DONE = "qwen3-8b-swe-grpo", "empty-run", "old-run"

INFOS = (
    SignalInfo("trainer_wait_ratio", "Trainer wait", "ratio", "", "", "trainer", 0.15, 0.40),
    SignalInfo("zero_advantage_ratio", "Zero advantage", "ratio", "", "", "queue", 0.30, 0.50),
    SignalInfo(
        "kv_cache_usage_ratio", "KV cache", "ratio", "", "add the engines' /metrics as targets", "generator", 0.90, 0.97
    ),
    SignalInfo("queue_batches", "Queue", "batches", "", "", "queue", 1.0, 0.6, higher_is_worse=False),
)
FACTS: dict[str, str | float] = {
    "framework": "slime",
    "model": "Qwen/Qwen3-8B",
    "batch_samples": 64.0,
    "max_staleness_versions": 6.0,
    "trainer_gpus": 8.0,
    "generator_gpus": 16.0,
    "gpu_type": "H200",
}

Curve = Callable[[float], float | None]


def by_name(*signals: SignalNow) -> dict[str, SignalNow]:
    """The signals of a status."""
    return {one.name: one for one in signals}


def signal(
    name: str, value: float | None = None, unit: str = "", state: SignalState = "ok", why: str = "", **labels: str
) -> SignalNow:
    source = "vllm-0, vllm-1" if "generator" in name or "kv" in name else "trainer-log"
    return SignalNow(series_name(name, labels), name, labels, value, unit, state, None, source, why, None)


def noise(t: float, seed: float) -> float:
    """Repeatable, in -1..1."""
    wave = math.sin(t * 12.9898 + seed * 78.233) * 43758.5453
    return 2 * (wave - math.floor(wave)) - 1


def _late(t: float, centre: float = 900.0, width: float = 250.0) -> float:
    return 1 / (1 + math.exp(-(t - NOW + centre) / width))


def _wait(t: float) -> float:
    return 0.38 + 0.36 * _late(t) + 0.012 * noise(t, 1)


def _depth(t: float) -> float:
    return max(2.0, (190 + 34 * math.sin(t / 260)) * (1 - 0.93 * _late(t)) + 6 * noise(t, 2))


def _kv(t: float) -> float | None:
    # A scrape gap of five minutes: lines must break there.
    return None if 2400 < NOW - t < 2700 else min(0.985, 0.72 + 0.25 * _late(t) + 0.012 * noise(t, 3))


TICKS: tuple[tuple[SignalNow, Curve], ...] = (
    (signal("queue_samples_now", unit="samples"), _depth),
    (signal("queue_samples", unit="samples"), lambda t: 4 + 0.98 * (_depth(t) - 6 * noise(t, 2))),
    (signal("queue_batches", unit="batches", state="critical"), lambda t: _depth(t) / 64),
    (signal("kv_cache_usage_ratio", unit="ratio", state="critical"), _kv),
    (signal("sandbox_spinup_latency_seconds", unit="seconds", image="all", stat="p50"), lambda t: 12 + noise(t, 24)),
    (signal("sandbox_spinup_latency_seconds", unit="seconds", image="all", stat="p95"), lambda t: 38 + noise(t, 25)),
    (signal("sandbox_oldest_pending_seconds", unit="seconds"), lambda t: 60 + 9 * noise(t, 26)),
    (signal("generator_tokens_per_second", unit="tokens/s"), lambda t: 48200 + 900 * noise(t, 5)),
    (signal("kv_concurrency_limit", unit="requests"), lambda t: 604 - 80 * _late(t)),
)


def _labelled() -> tuple[tuple[SignalNow, Curve], ...]:
    def one(name: str, unit: str, key: str, value: str) -> SignalNow:
        made = signal(name, unit=unit)
        labels = {key: value}
        return SignalNow(series_name(name, labels), name, labels, None, unit, "ok", None, made.source, "", None)

    return (
        (one("generator_requests", "requests", "state", "running"), lambda t: 430 + 82 * _late(t) + 9 * noise(t, 6)),
        (one("generator_requests", "requests", "state", "waiting"), lambda t: 90 + 1100 * _late(t) + 25 * noise(t, 7)),
        (one("generator_requests_now", "requests", "state", "running"), lambda t: 430 + 82 * _late(t)),
        (one("generator_requests_now", "requests", "state", "waiting"), lambda t: 90 + 1100 * _late(t)),
        (one("in_flight_rollouts", "rollouts", "state", "generating"), lambda t: 1500 + 200 * _late(t)),
        (signal("rollouts_in_flight", unit="rollouts"), lambda t: 1500 + 200 * _late(t)),
        (one("time_to_first_token_seconds", "seconds", "stat", "p50"), lambda t: 0.8 + 9 * _late(t)),
        (one("time_to_first_token_seconds", "seconds", "stat", "p95"), lambda t: 2.4 + 31 * _late(t) + noise(t, 15)),
        (one("inter_token_latency_seconds", "seconds", "stat", "mean"), lambda t: 0.021 + 0.002 * noise(t, 16)),
        (one("inter_token_latency_seconds", "seconds", "stat", "p95"), lambda t: 0.034 + 0.003 * noise(t, 17)),
    )


STEPS: tuple[tuple[SignalNow, Curve], ...] = (
    (signal("trainer_wait_ratio", unit="ratio", state="critical"), _wait),
    (signal("trainer_step_seconds", unit="seconds"), lambda t: 41.2 + 2 * noise(t, 8)),
    (signal("trainer_phase_seconds", unit="seconds", phase="wait"), lambda t: 41.2 * _wait(t)),
    (signal("trainer_phase_seconds", unit="seconds", phase="compute"), lambda t: 41.2 * (0.95 - _wait(t))),
    (signal("trainer_phase_seconds", unit="seconds", phase="overhead"), lambda t: 41.2 * 0.05),
    (
        signal("staleness_versions", unit="versions", level="trajectory", stat="mean"),
        lambda t: 1.6 + 0.9 * _late(t) + 0.1 * noise(t, 9),
    ),
    (
        signal("staleness_versions", unit="versions", level="trajectory", stat="max"),
        lambda t: round(3.2 + 1.9 * _late(t) + 0.6 * noise(t, 10)),
    ),
    (
        signal("zero_advantage_ratio", unit="ratio", state="watch", basis="completed"),
        lambda t: 0.26 + 0.10 * _late(t) + 0.012 * noise(t, 11),
    ),
    (
        signal("zero_advantage_group_ratio", unit="ratio", basis="completed", cause="all_solved"),
        lambda t: 0.17 + 0.09 * _late(t) + 0.01 * noise(t, 12),
    ),
    (
        signal("zero_advantage_group_ratio", unit="ratio", basis="completed", cause="none_solved"),
        lambda t: 0.09 + 0.008 * noise(t, 13),
    ),
    (signal("reward", unit="reward", stat="mean"), lambda t: 0.41 + (t - NOW + 3600) / 18000 + 0.02 * noise(t, 14)),
    (signal("response_tokens", unit="tokens", stat="mean"), lambda t: 3000 + (t - NOW + 3600) / 3 + 90 * noise(t, 15)),
    (
        signal("response_tokens", unit="tokens", stat="p90"),
        lambda t: 6200 + (t - NOW + 3600) * 1.1 + 200 * noise(t, 16),
    ),
    (signal("truncation_ratio", unit="ratio"), lambda t: 0.034),
    (signal("response_length_drift_ratio", unit="x", state="watch"), lambda t: 1.7),
    (signal("drift_baseline", of="response_length"), lambda t: 2_400.0),
    (signal("drift_since_step", unit="step", of="response_length"), lambda t: 40.0),
    (signal("turns", unit="turns", stat="mean"), lambda t: 5 + 0.2 * noise(t, 21)),
    (signal("tool_calls", unit="calls", stat="mean"), lambda t: 20 + noise(t, 22)),
    (signal("prefill_decode_drift_ratio", unit="x"), lambda t: 1 + 0.1 * noise(t, 23)),
    (signal("policy_version", unit="version"), lambda t: 412 + math.floor((t - NOW) / 42)),
    (signal("weight_sync_seconds", unit="seconds"), lambda t: 1.9),
    (signal("trainer_samples_per_second", unit="samples/s"), lambda t: 1.95),
    (signal("capacity_samples_per_second", unit="samples/s"), lambda t: 5.4),
    (signal("trainer_mfu_ratio", unit="ratio", basis="wall"), lambda t: 0.11),
)


@cache
def curves() -> tuple[tuple[SignalNow, Curve, float], ...]:
    """(signal, curve, seconds between points)."""
    return (*((s, c, 5.0) for s, c in (*TICKS, *_labelled())), *((s, c, 42.0) for s, c in STEPS))


def target(name: str, actor: str, kind: str, up: bool = True, error: str = "", **unmapped: int) -> TargetTrust:
    return TargetTrust(name, RICH, kind, actor, up, 3.0 if up else 340.0, error, 0.02, 181, 0, unmapped)


@cache
def history(curve: Curve, step: float, seconds: float, end: float = NOW) -> tuple[Point, ...]:
    """Of a curve, which is asked once: every test has a reader of its own, with the same points."""
    count = int(seconds / step)
    return tuple((end - step * (count - i), curve(end - step * (count - i))) for i in range(count + 1))


def reader(seconds: float = 3600.0) -> MemoryReader:
    """Three runs: one with everything, one with nothing, one that is over."""
    made = MemoryReader(NOW, INFOS)
    made.add_run(RICH, facts=FACTS)
    for now, curve, step in curves():
        made.append(RICH, now, history(curve, step, seconds))
    made.set_targets(
        RICH,
        target("trainer-log", "trainer", "slime", rollout_time_extra=12, perf_new_key=3),
        target("vllm-0", "generator", "vllm"),
        target("vllm-1", "generator", "vllm", up=False, error="connection refused (10.0.0.7:8000)"),
    )
    _poor(made)
    made.add_run(DONE, lifecycle="finished", facts=FACTS)
    for now, curve, step in curves():
        made.append(DONE, now, [(ts - 3 * 3600, value) for ts, value in history(curve, step, 3600.0)])
    return made


def _poor(made: MemoryReader) -> None:
    made.add_run(POOR)
    made.silence(POOR, signal("trainer_wait_ratio", unit="ratio", state="unknown", why="log time/wait_for_batch"))
    made.silence(POOR, signal("reward", unit="reward", state="unknown", why="log reward/mean <b>each</b> step"))
    made.silence(
        POOR, signal("queue_samples", unit="samples", state="not_applicable", why="a synchronous run has no queue")
    )
