"""What the proof table is written with: parts of windows by what they show, and the form of its rows."""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from server.signals.model import TargetState
from tests.verdict.support import HEALTHY, NOW, STARVED, steps

Told = Mapping[str, float | None]

FULL: Told = {
    'generator_requests{state="running"}': 100.0, 'generator_requests{state="waiting"}': 0.0,
    'in_flight_rollouts{state="generating"}': 102.0, "kv_concurrency_limit": 104.0, "kv_cache_usage_ratio": 0.6,
}  # fmt: skip
QUIET: Told = {
    'generator_requests{state="running"}': 12.0, "kv_cache_usage_ratio": 0.1, "in_flight_ratio": 1.0,
}  # fmt: skip
BOOTING: Told = QUIET | {
    'in_flight_rollouts{state="generating"}': 12.0, 'in_flight_rollouts{state="booting"}': 40.0,
    'in_flight_rollouts{state="in_tool"}': 5.0, 'in_flight_rollouts{state="scoring"}': 0.0,
}  # fmt: skip
NO_ENGINES: Told = {"generator*": None, "kv_*": None}
NO_PLACE: Told = {"in_flight*": None}
NO_ZERO: Told = {"zero_advantage*": None}
NO_QUEUE: Told = {"queue*": None}


DROPS = [replace(row, values=row.values | {("stale_dropped_rollouts", ()): 9.0}) for row in steps(*[0.2] * 10)]


ONE_OF_TWO: Told = {'generator_engines{state="up"}': 1.0, 'generator_engines{state="hung"}': 1.0}
# Ten steps of 30 s that waited 40 %, then one that has been open for 0.2 x 30 min; two batches are there.
HANGS: tuple[Told, ...] = (HEALTHY, STARVED, {
    "trainer_stall_ratio": 0.2, "queue_samples_now": 512.0, "in_flight_ratio": 0.1,
    'generator_requests{state="running"}': 3.0, 'in_flight_rollouts{state="generating"}': 6.0,
    "kv_cache_usage_ratio": 0.05,
})  # fmt: skip
OPEN: dict[str, Any] = {"last": steps(*[0.4] * 10), "batch_samples": 256.0}
# The same steps, whose own rows report the queue: two batches, or less than one.
FED = [replace(row, values=row.values | {("queue_samples", ()): 512.0}) for row in OPEN["last"]]
HUNGRY = [replace(row, values=row.values | {("queue_samples", ()): 100.0}) for row in OPEN["last"]]
SAVES = [replace(row, values=row.values | {("trainer_checkpoint_seconds", ()): 4.0}) if row.number == 5 else row
         for row in FED]  # fmt: skip
TURNS = [replace(row, values=row.values | {("backpressure_seconds", ()): 12.0 * (row.number % 2)})
         for row in steps(*[0.0, 0.8] * 5)]  # fmt: skip
AHEAD: Told = {"trainer_wait_ratio": 0.0, "queue_batches": 1.8, 'generation_held_ratio{by="backpressure"}': 0.3}
SAVED = {("trainer_step_seconds", ()): 400.0, ("trainer_checkpoint_seconds", ()): 370.0}
LONG_ONE = [replace(row, values=row.values | SAVED) if row.number == 5 else row
            for row in steps(*[0.4] * 10)]  # fmt: skip


@dataclass(frozen=True)
class Row:
    """``sure``: at least confident (True), not confident (False), or either (None). ``stands``: said before."""

    what: str
    told: tuple[Told, ...]
    outcome: str
    cause: str
    why: str
    sure: bool | None = None
    given: dict[str, Any] = field(default_factory=dict)
    stands: str = ""


def of(what: str, *told: Told, said: str, why: str, sure: bool | None = None, stands: str = "", **given: Any) -> Row:
    outcome, _, cause = said.partition("/")
    return Row(what, told, outcome, cause, why, sure, given, stands)


def beat(up: bool) -> TargetState:
    return TargetState("beat", "heartbeat", "trainer", up, NOW - 5, NOW - 5, interval_seconds=60.0)
