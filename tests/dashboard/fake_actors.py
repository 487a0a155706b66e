"""Eight engines of which one is frozen, one slow and one idle; a trainer that waits; a synchronous run; and nothing."""

import math

from msgspec import structs

from dashboard.widgets.format import series_name
from server.query.types import EngineInfo, SignalInfo, SignalNow, SignalState, StepInfo
from tests.dashboard import fake
from tests.dashboard.fake import Curve, noise, signal
from tests.dashboard.memory_reader import MemoryReader

NOW, RUN, SYNC, BARE = fake.NOW, "swe-8b", "math-sync", "nothing-yet"
NO_ENGINES = "no engine is a target yet: add its /metrics"
SYNC_WAIT = "synchronous run: the trainer and the generator take turns, so neither waits for a queue"
NO_MFU = "this trainer reports no MFU (prime-rl `perf/mfu`, TRL async `perf/mfu_wall_clock`)"
INFOS = (
    *fake.INFOS,
    SignalInfo("generator_engines", "Engines", "engines", "", NO_ENGINES, "generator"),
    SignalInfo("generator_requests_now", "Requests", "requests", "", NO_ENGINES, "generator"),
    SignalInfo("generator_requests", "Requests", "requests", "", NO_ENGINES, "generator"),
    SignalInfo("kv_concurrency_limit", "KV ceiling", "requests", "", "no engine reports its KV capacity", "generator"),
    SignalInfo("generator_preemption_ratio", "Preemptions", "ratio", "", NO_ENGINES, "generator", 0.02, 0.10),
    SignalInfo("trainer_mfu_ratio", "MFU", "ratio", "", NO_MFU, "trainer"),
    SignalInfo("trainer_step_seconds", "Trainer step", "seconds", "", "no step yet", "trainer"),
    SignalInfo("truncation_ratio", "Truncated", "ratio", "", "no lengths", "generator", 0.10, 0.30),
)
VERDICT = {
    "outcome": "generator_bound", "cause": "kv_capacity", "confidence": 0.9, "since": NOW - 900,
    "summary": "Generation limits the run: the trainer waits 62% of each step", "evidence": [], "missing": [],
}  # fmt: skip
SPEED = {
    "running": 60.0, "points": [[20.0, 1000.0], [40.0, 1600.0], [60.0, 2000.0]], "half": [50.0, 80.0, 120.0],
    "alone": [0.018, 0.017, 0.016], "fitted": True, "seats": 128.0, "best": 120.0,
}  # fmt: skip
MORE = {
    "lever": "rollouts_in_flight", "from": 480.0, "to": 960.0, "unit": "rollouts", "gain": [1.1, 1.3, 1.6],
    "cost": "setting", "side_effects": [], "why": "", "text": "Raise the rollouts in flight from 480 to 960.",
}  # fmt: skip
FROZEN, SLOW, IDLE = "vllm-3", "vllm-5", "vllm-6"


def one(name: str, unit: str, health: SignalState = "ok", why: str = "", **labels: str) -> SignalNow:
    return structs.replace(
        signal(name, unit=unit, state=health, why=why), labels=labels, name=series_name(name, labels)
    )


def engine(number: int, **more: object) -> EngineInfo:
    """One like the others: 60 requests, 120 tokens/s each, a cache that is 80% full."""
    name = f"vllm-{number}"
    made = EngineInfo(
        f'{name}{{engine="0"}}', name, {"engine": "0"}, last_ts=NOW - 3, running=61.0 + number % 3, waiting=4.0,
        kv_ratio=0.81, mean_running=60.0, mean_waiting=4.0, mean_kv_ratio=0.80, tokens_per_second=7200.0,
        preemptions_per_minute=1.5, prefix_hit_ratio=0.63, request_limit=128.0, version=412.0,
    )  # fmt: skip
    return structs.replace(made, **more)


def engines() -> list[EngineInfo]:
    made = [engine(number) for number in range(8)]
    made[3] = engine(3, tokens_per_second=0.0, preemptions_per_minute=0.0)
    made[5] = engine(5, tokens_per_second=2400.0)
    made[6] = engine(6, running=8.0, mean_running=6.0, tokens_per_second=720.0, mean_kv_ratio=0.1, kv_ratio=0.11)
    return made


TICKS: tuple[tuple[SignalNow, Curve], ...] = (
    (one("generator_engines", "engines", state="up"), lambda t: 7.0),
    (one("generator_engines", "engines", state="hung"), lambda t: 1.0),
    (one("generator_engines", "engines", state="down"), lambda t: 0.0),
    (one("generator_engine_state", "", engine="0", state="hung", target=FROZEN), lambda t: 1.0),
    (one("generator_frozen", "", "critical", target=FROZEN), lambda t: 1.0),
    (one("generator_requests_now", "requests", state="running"), lambda t: 430 + 9 * noise(t, 6)),
    (one("generator_requests_now", "requests", state="waiting"), lambda t: 32 + 3 * noise(t, 7)),
    (one("generator_requests", "requests", state="running"), lambda t: 426.0),
    (one("generator_requests", "requests", state="waiting"), lambda t: 31.5),
    (one("kv_cache_usage_ratio", "ratio", "watch"), lambda t: 0.91),
    (one("kv_cache_engine_usage_ratio", "ratio", stat="max"), lambda t: 0.95),
    (one("kv_concurrency_limit", "requests"), lambda t: 604 - (t - NOW + 3600) / 36),
    (one("kv_concurrency_limit_forecast_seconds", "seconds", why="at 3,100 tokens a sequence", bound="low"),
     lambda t: 4800.0),
    (one("kv_concurrency_limit_forecast_seconds", "seconds", why="at 3,100 tokens a sequence", bound="mid"),
     lambda t: 8100.0),
    (one("kv_concurrency_limit_forecast_seconds", "seconds", why="at 3,100 tokens a sequence", bound="high"),
     lambda t: 18000.0),
    (one("generator_tokens_per_second", "tokens/s"), lambda t: 48200 + 900 * noise(t, 5)),
    (one("generator_prompt_tokens_per_second", "tokens/s"), lambda t: 9100.0),
    (one("generator_preemption_ratio", "ratio", "watch"), lambda t: 0.05),
    (one("prefix_cache_hit_ratio", "ratio"), lambda t: 0.63),
    (one("time_to_first_token_seconds", "seconds", stat="p50"), lambda t: 0.8),
    (one("time_to_first_token_seconds", "seconds", stat="p95"), lambda t: 2.4 + noise(t, 15)),
    (one("generator_finish_ratio", "ratio", reason="abort"), lambda t: 0.02),
    (one("router_requests", "requests", state="in_flight"), lambda t: 440.0),
    (one("router_workers_now", "workers", state="registered"), lambda t: 8.0),
    (one("router_workers_now", "workers", state="healthy"), lambda t: 7.0),
    (one("gpu_fleet_utilization_ratio", "ratio", stat="mean"), lambda t: 0.93),
    (one("gpu_fleet_temperature_celsius", "celsius", stat="mean"), lambda t: 64.0),
    (one("gpu_fleet_temperature_celsius", "celsius", stat="max"), lambda t: 82.0),
    (one("gpu_fleet_temperature_celsius", "celsius", host="node-b", index="5", stat="worst"), lambda t: 82.0),
)  # fmt: skip


def step(number: int, **more: float) -> StepInfo:
    """A step of 40 s: 24 s of wait, 14 of computing, 1.5 of sync, every tenth with 5 s of a checkpoint."""
    saves = 5.0 if number % 10 == 0 else 0.0
    values = {
        "trainer_step_seconds": 40.0 + saves, "trainer_wait_seconds": 24.0, "trainer_compute_seconds": 14.0,
        "trainer_weight_sync_seconds": 1.5, "trainer_checkpoint_seconds": saves, "trainer_other_seconds": 0.5,
        "trainer_samples": 256.0, "trained_tokens": 680_000.0, "staleness_versions_mean": 2.5, "reward_mean": 0.5,
        "gradient_norm": 0.3, "clip_ratio": 0.002, "learning_rate": 1e-6, "mismatch_kl_mean": 0.002,
    }  # fmt: skip
    return StepInfo(number, NOW - 41.0 * (140 - number), 0, values | more)


STEPS: tuple[tuple[SignalNow, Curve], ...] = (
    (one("trainer_wait_ratio", "ratio", "critical"), lambda t: 0.6),
    (one("trainer_step_seconds", "seconds"), lambda t: 40.5),
    (one("trainer_phase_seconds", "seconds", phase="wait"), lambda t: 24.0),
    (one("trainer_phase_seconds", "seconds", phase="compute"), lambda t: 14.0),
    (one("trainer_overhead_seconds", "seconds", phase="weight_sync"), lambda t: 1.5),
    (one("trainer_overhead_seconds", "seconds", phase="checkpoint"), lambda t: 0.5),
    (one("trainer_overhead_seconds", "seconds", phase="other"), lambda t: 0.5),
    (one("trainer_samples_per_second", "samples/s"), lambda t: 6.3),
    (one("capacity_samples_per_second", "samples/s"), lambda t: 15.8),
    (one("trainer_mfu_ratio", "ratio", basis="busy"), lambda t: 0.22),
    (one("weight_sync_seconds", "seconds"), lambda t: 1.5),
    (one("evaluation_score", "", why="step 140; +0.02 since step 120", task="aime"), lambda t: 0.42),
    (one("evaluation_score", "", why="step 140", task="gsm8k"), lambda t: 0.91),
    (one("reward_rise", "reward", why="over 39 steps", of="total"), lambda t: 0.12),
    (one("reward_rise_tokens", "tokens"), lambda t: 26.5e6),
    (one("reward_rise_usd", "usd"), lambda t: 340.0),
    (one("weight_sync_ratio", "ratio"), lambda t: 0.037),
    (one("staleness_versions", "versions", level="trajectory", stat="mean"), lambda t: 2.5),
    (one("staleness_versions", "versions", level="trajectory", stat="max"), lambda t: 5.0),
    (one("entropy", "nats"), lambda t: 0.56 + 0.01 * math.sin(t / 300)),
    (one("reward", "reward", stat="mean"), lambda t: 0.5 + 0.02 * noise(t, 14)),
)
SYNC_STEPS: tuple[tuple[SignalNow, Curve], ...] = (
    (one("trainer_step_seconds", "seconds"), lambda t: 80.0),
    (one("trainer_phase_seconds", "seconds", phase="generation"), lambda t: 32.0),
    (one("trainer_phase_seconds", "seconds", phase="compute"), lambda t: 44.0),
    (one("trainer_overhead_seconds", "seconds", phase="weight_sync"), lambda t: 4.0),
)


def sync_step(number: int) -> StepInfo:
    values = {"trainer_step_seconds": 80.0, "generation_seconds": 32.0, "trainer_wait_seconds": 32.0,
              "trainer_compute_seconds": 44.0, "trainer_weight_sync_seconds": 4.0}  # fmt: skip
    return StepInfo(number, NOW - 80.0 * (45 - number), 0, values)


def reader(seconds: float = 3600.0) -> MemoryReader:
    made = MemoryReader(NOW, INFOS)
    made.add_run(RUN, facts=fake.FACTS | {"max_in_flight": 480.0})
    for now, curve in TICKS:
        made.append(RUN, now, fake.history(curve, 5.0, seconds))
    for now, curve in STEPS:
        made.append(RUN, now, fake.history(curve, 41.0, seconds))
    fleet = [fake.target(f"vllm-{number}", "generator", "vllm") for number in range(8)]
    made.set_targets(RUN, fake.target("trainer", "trainer", "slime"), *fleet)
    made.set_verdict(RUN, VERDICT)
    made.put_engines(RUN, *engines())
    for number, info in enumerate(engines()):
        at = [NOW - 15 * i for i in range(round(seconds / 15))][::-1]
        level = info.mean_kv_ratio or 0.0
        made.put_history(RUN, info.key, "kv", [(ts, level + 0.02 * noise(ts, number)) for ts in at])
        # Nobody counts the preemptions of the last: unknown, not none.
        if number < 7:
            made.put_history(RUN, info.key, "preemptions", [(ts, float(number)) for ts in at])
    made.put_steps(
        RUN,
        *(step(number) for number in range(101, 140)),
        step(140, trainer_step_seconds=70.0, trainer_wait_seconds=54.0),
    )
    _others(made, seconds)
    return made


def _others(made: MemoryReader, seconds: float) -> None:
    made.add_run(SYNC, facts=fake.FACTS)
    made.change(SYNC, mode="sync_colocated")
    for now, curve in SYNC_STEPS:
        made.append(SYNC, now, fake.history(curve, 80.0, seconds))
    made.silence(SYNC, one("trainer_wait_ratio", "ratio", "not_applicable", SYNC_WAIT))
    made.set_targets(SYNC, fake.target("trainer", "trainer", "verl"))
    made.put_steps(SYNC, *(sync_step(number) for number in range(6, 46)))
    made.add_run(BARE)
