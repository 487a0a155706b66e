"""Runs for the What-if page: one of 64 and 192 GPUs, one that tells nothing, one in which nobody waits for a queue."""

from server.query.types import SignalNow
from tests.dashboard.fake import NOW, POOR, signal
from tests.dashboard.memory_reader import MemoryReader

LONG, MATH = "qwen3-235b-swe", "math-sync"
FACTS: dict[str, str | float] = {
    "framework": "slime", "trainer_gpus": 64.0, "generator_gpus": 192.0, "usd_per_gpu_hour": 2.0, "group_size": 8.0,
    "max_staleness_versions": 4.0, "max_in_flight": 1024.0, "max_response_tokens": 32768.0,
}  # fmt: skip


SIGNALS = (
    signal("capacity_samples_per_second", 2.75, "samples/s"),
    signal("trainer_samples_per_second", 1.95, "samples/s"),
    signal("trainer_wait_ratio", 0.8 / 2.75, "ratio"),
    signal("trainer_step_seconds", 262.56, "seconds"),
    signal("kv_concurrency_limit", 896.0, "requests"),
    signal("zero_advantage_ratio", 0.4, "ratio", basis="completed"),
    signal("staleness_versions", 1.5, "versions", level="trajectory", stat="mean"),
    signal("response_tokens", 12000.0, "tokens", stat="mean"),
    signal("truncation_ratio", 0.06, "ratio"),
    signal("rollout_exit_ratio", 0.6, "ratio", exit="aborted_oversample"),
    signal("rollout_exit_ratio", 0.0, "ratio", exit="surplus"),
    SignalNow(
        'generator_engines{state="up"}', "generator_engines", {"state": "up"}, 24.0, "engines", "ok", 0, "", "", None
    ),
)


def reader() -> MemoryReader:
    made = MemoryReader(NOW)
    made.add_run(LONG, facts=FACTS)
    for one in SIGNALS:
        made.append(LONG, one, [(NOW - 5, one.value)])
    made.add_run(POOR)
    made.add_run(MATH)
    made.change(MATH, mode="sync_colocated")
    return made
