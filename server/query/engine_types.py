"""Records of single engines and single steps; see `server.query.types`."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Literal, Protocol, get_args

EngineMetric = Literal["kv", "running", "waiting", "preemptions", "tokens"]
"""History of each engine: share of its KV cache used, requests, preemptions per minute, tokens per second."""

METRICS: tuple[EngineMetric, ...] = get_args(EngineMetric)
MOST_ENGINES = 64
"""Engines whose history is read at once: more rows than a screen can show."""
MOST_STEPS = 200


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """One engine at one time; None: the engine does not report it.

    Attributes:
        key: identifies it within its run: its target, and which of the target's engines it is.
        running, waiting, kv_ratio: its newest values, at most five minutes old.
        mean_running, mean_waiting, mean_kv_ratio: over the last five whole minutes.
        tokens_per_second, preemptions_per_minute: over those minutes.
        request_limit: requests it runs at once at most.
        held: ``paused``, ``asleep``, or "".
        last_ts: time of its newest value.
    """

    key: str
    target: str
    labels: Mapping[str, str]
    last_ts: float | None = None
    running: float | None = None
    waiting: float | None = None
    kv_ratio: float | None = None
    mean_running: float | None = None
    mean_waiting: float | None = None
    mean_kv_ratio: float | None = None
    tokens_per_second: float | None = None
    preemptions_per_minute: float | None = None
    request_limit: float | None = None
    version: float | None = None
    held: str = ""


@dataclass(frozen=True, slots=True)
class StepInfo:
    """One step of the trainer as it was logged: canonical metric (with its labels, where it has some) -> value.

    ``life``: the trainer's incarnation: 0, or the number of restarts before it.
    """

    step: int
    ts: float
    life: int
    values: Mapping[str, float] = field(default_factory=dict)


class EngineQueries(Protocol):
    """The part of `Reader` about single engines and steps."""

    def engines(self, run: str, at: float | None = None) -> list[EngineInfo]:
        """Engines by name as of a time (None: now): with data within five minutes, or whose target is down now."""

    def engine_cells(
        self, run: str, metric: EngineMetric, keys: Sequence[str], start: float, end: float, width: float
    ) -> Mapping[str, Mapping[float, float]]:
        """key -> {start of a column: mean within it}, columns on multiples of ``width``; unknown cells are left out.

        Raises `ValueError` for more than `MOST_ENGINES`.
        """

    def steps(self, run: str, last: int = 40) -> list[StepInfo]:
        """The trainer's newest steps, oldest first, at most `MOST_STEPS`; values of other axes join by step number."""
