"""Many runs for tests and screenshots: five with a story, and as many ordinary ones as asked for."""

import math
from typing import Any

from dashboard.widgets.format import series_name
from server.query.types import AlertInfo, SignalInfo, SignalNow, SignalState, TargetTrust
from server.verdict.model import Outcome, Verdict
from tests.dashboard.fake import NOW, noise, signal
from tests.dashboard.memory_reader import MemoryReader

STAR, SLOW, SYNC, DEAD, DONE = "qwen3-8b-swe-v41", "qwen3-8b-swe-v40", "math-7b-sync", "glm-crash", "qwen3-8b-swe-v38"
EVIL = "<img src=x onerror=\"document.title='owned'\">, run"
INFOS = (
    SignalInfo("trainer_wait_ratio", "Trainer wait", "ratio", "Share of the step the trainer waits.", "log the wait",
               "trainer", 0.15, 0.40, True, ("trainer_wait_seconds", "trainer_step_seconds"), "step"),
    SignalInfo("staleness_versions", "Staleness", "versions", "How far behind.", "log versions", "queue",
               inputs=("rollout_staleness",), cadence="step"),
    SignalInfo("reward", "Reward", "reward", "Mean reward of a step.", "log rewards", "trainer",
               inputs=("reward_mean",), cadence="step"),
    SignalInfo("generator_tokens_per_second", "Generation", "tokens/s", "Tokens a second.", "add engines", "generator",
               inputs=("generation_tokens_total",), cadence="tick"),
    SignalInfo("cost_usd_per_million_tokens", "Cost", "USD", "What a million tokens cost.", "say the price", "trainer",
               inputs=("loss_tokens",), cadence="step"),
    SignalInfo("rollouts_total", "Rollouts", "", "Counts rollouts.", "counts", "queue", inputs=("rollout_left",),
               cadence="counter"),
)  # fmt: skip


def verdict(outcome: Outcome, cause: str | None, confidence: float, since: float, summary: str) -> Verdict:
    return Verdict(outcome, cause, confidence=confidence, since=since, summary=summary)


def number(value: float, name: str, unit: str, state: Any = "ok", **labels: str) -> SignalNow:
    made = signal(name, value, unit, state, "", **labels)
    return SignalNow(series_name(name, labels), name, labels, value, unit, state, None, made.source, "", NOW)


def target(run: str, name: str, up: bool = True, error: str = "", age: float | None = 3.0, **more: Any) -> TargetTrust:
    actor = "trainer" if "log" in name else "generator"
    fields: dict[str, Any] = {"scrape_seconds": 0.02, "samples": 181, "dropped": 0, "unmapped": {}} | more
    return TargetTrust(name, run, more.pop("kind", "slime" if actor == "trainer" else "vllm"), actor, up, age, error,
                       **{key: value for key, value in fields.items() if key != "kind"})  # fmt: skip


def alert(run: str, severity: str = "critical") -> AlertInfo:
    return AlertInfo(
        run,
        "TrainerWaits",
        "firing",
        severity,
        {},
        {},
        0.7,
        "ratio",
        "trainer_wait_ratio",
        NOW - 60,
        NOW - 30,
        None,
        run,
    )


def grow(made: MemoryReader, run: str, start: float, seconds: float, step: float, wait: float) -> None:
    """A run whose wait nears ``wait``; a step ends every ``step`` seconds, the first one at ``start``."""
    count = int(seconds / step)
    times = [start + step * i for i in range(count + 1)]
    state: SignalState = "critical" if wait >= 0.4 else "watch" if wait >= 0.15 else "ok"
    curve = [max(0.01, wait * (1 - math.exp(-i / 30)) + 0.02 * noise(ts, wait)) for i, ts in enumerate(times)]
    made.append(run, signal("trainer_wait_ratio", unit="ratio", state=state), list(zip(times, curve, strict=True)))
    rewards = [(ts, 0.2 + 0.5 * (1 - math.exp(-i / 90)) - wait / 8 + 0.02 * noise(ts, 3)) for i, ts in enumerate(times)]
    reward = SignalNow(
        'reward{stat="mean"}', "reward", {"stat": "mean"}, None, "reward", "ok", None, "trainer-log", "", None
    )
    made.append(run, reward, rewards)
    lag = number(0, "staleness_versions", "versions", level="trajectory", stat="mean")
    made.append(run, lag, [(ts, 1.5 + wait + 0.1 * noise(ts, 4)) for ts in times])
    cost = number(0, "cost_usd_per_million_tokens", "USD", of="trained")
    made.append(run, cost, [(ts, 2.0 + 4 * wait) for ts in times])
    made.set_steps(run, *((ts, i) for i, ts in enumerate(times)))


def reader(ordinary: int = 0) -> MemoryReader:
    """Five runs, and ``ordinary`` more; the newest step of those that live ended at `NOW`."""
    made = MemoryReader(NOW, INFOS)
    story = (
        (STAR, "running", NOW - 7200, 7200, 40.0, 0.62),
        (SLOW, "running", NOW - 14400, 14400, 60.0, 0.31),
        (DONE, "finished", NOW - 90000, 10800, 45.0, 0.12),
        (DEAD, "crashed", NOW - 50000, 3600, 30.0, 0.22),
    )
    for name, life, start, seconds, step, wait in story:
        made.add_run(name, life, facts={"framework": "slime"})
        grow(made, name, start, seconds, step, wait)
    made.add_run(SYNC, facts={"framework": "verl"})
    made.change(SYNC, mode="sync_colocated")
    na = "a synchronous trainer does not wait"
    made.silence(SYNC, signal("trainer_wait_ratio", unit="ratio", state="not_applicable", why=na))
    made.append(
        SYNC,
        number(0, "staleness_versions", "versions", level="trajectory", stat="mean"),
        [(NOW - 600, 0.0), (NOW, 0.0)],
    )
    made.add_run(EVIL)
    made.silence(EVIL, signal("trainer_wait_ratio", unit="ratio", state="unknown", why="log <b>time/wait</b>"))
    made.set_verdict(
        STAR, verdict("generator_bound", "kv_capacity", 0.9, NOW - 720, "The trainer waits 62% of each step")
    )
    made.set_verdict(SLOW, verdict("sandbox_bound", "starting_limit", 0.6, NOW - 3600, "Sandboxes wait to start"))
    made.set_verdict(SYNC, verdict("balanced", None, 0.8, NOW - 5000, "Rates match"))
    made.set_verdict(DONE, verdict("trainer_bound", None, 0.8, NOW - 85000, "The trainer was the limit"))
    made.set_targets(
        STAR,
        target(STAR, "trainer-log", unmapped={"perf/new_key": 12, "rollout/<b>x</b>": 3}),
        target(STAR, "vllm-0"),
        target(STAR, "vllm-1", up=False, error="connection refused", age=340.0),
    )
    made.set_targets(SLOW, target(SLOW, "trainer-log"), target(SLOW, "vllm-0", dropped=40))
    made.set_targets(SYNC, target(SYNC, "late", up=False, error="", age=None, kind="unknown"))
    made.set_alerts(alert(STAR), alert(SLOW, "warning"))
    for i in range(ordinary):
        name = f"sweep-{i:03d}"
        made.add_run(
            name, "finished" if i % 3 else "running", facts={"framework": ("slime", "verl", "prime_rl")[i % 3]}
        )
        made.append(name, number(0, "trainer_wait_ratio", "ratio"), [(NOW - 60 * i, round(0.01 * (i % 40), 2))])
        made.set_verdict(name, verdict("balanced", None, 0.8, NOW - 60 * i, "Rates match"))
    return made
