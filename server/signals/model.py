"""The frame of a signal: what it is given (`View`), what it answers (`Value`, `Unknown`, `NotApplicable`).

Pure: no I/O and no clock. `now` is an attribute of the view; everything a signal knows is in the view.
It does not know where the numbers came from, nor what happens to its answer.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from collectors.model import Labels
from server.rollouts.window import RolloutBook
from server.signals.observed_histograms import Pool
from server.signals.sandbox_window import SandboxBook
from server.signals.window import Gauge, StepBook

SYNC_MODES = ("sync_colocated", "sync_split")

# DESIGN section 4, "Windows": trainer signals judge the last 10 consumed steps and need 3 of them, so that
# one slow step neither makes nor hides a finding.
STEP_WINDOW = 10
STEP_MINIMUM = 3
# Engine and sandbox signals: long enough to hold a full buffer cycle, short enough to still be "now".
TICK_WINDOW_SECONDS = 300.0


@dataclass(frozen=True, slots=True)
class Value:
    """A known value in the signal's unit.

    Attributes:
        value: NaN: of these labels it is not known, while it is of others.
        why: what is to be said beside it ("upper bound: ..."); of an unknown one the reason, as of `Unknown`.
    """

    value: float
    labels: Labels = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """No value, and why: a sentence that ends in what to log or start to get one."""

    why: str


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """The run's topology has no such thing (a synchronous run has no queue)."""

    why: str


Answer = Sequence[Value] | Unknown | NotApplicable


# Kind of a target that calls us (`server.push.heartbeats`): it says that a trainer lives, and gives no numbers.
HEARTBEAT = "heartbeat"
# Below it clocks of one cluster and writers' buffers are normal.
SKEW_SECONDS = 30.0


@dataclass(frozen=True, slots=True)
class TargetHealth:
    """How a target answered last.

    Attributes:
        last_ts, last_ok_ts: event times of the last scrape and the last that succeeded (None: never).
        complete: nothing of the last answer was cut or broken, and its clock is not ahead of ours. A single value that
            its unit rules out leaves the answer complete.
        gone: no list names it any more since `last_ts`: its series end, and nobody misses it.
        problem: why the last answer failed or is incomplete, or which single values were dropped; "" for none.
    """

    name: str
    kind: str
    actor: str
    up: bool
    last_ts: float
    last_ok_ts: float | None
    interval_seconds: float
    complete: bool = True
    gone: bool = False
    problem: str = ""

    def known(self, now: float) -> bool:
        """Was it asked lately? Else nothing is known of it: we stood still, not it. Failed ones are asked rarely."""
        return now - self.last_ts <= max(15.0 if self.up else 90.0, 3 * self.interval_seconds)

    def trusted(self, now: float) -> bool:
        """Did it answer within three intervals (at least 15 s), and in full?"""
        age = now - self.last_ok_ts if self.last_ok_ts is not None else None
        return self.complete and age is not None and age <= max(15.0, 3 * self.interval_seconds)

    def answers(self, now: float) -> bool:
        """Up by an answer that is not too old."""
        return self.up and self.known(now)


@dataclass(frozen=True, slots=True)
class View:
    """Everything a signal may look at, at one instant ``now`` (epoch seconds)."""

    now: float
    mode: str
    lifecycle: str
    facts: Mapping[str, str | float]
    gauges: Mapping[str, Collection[Gauge]] = field(default_factory=dict)
    steps: StepBook = field(default_factory=StepBook)
    targets: Collection[TargetHealth] = ()
    sandboxes: SandboxBook = field(default_factory=SandboxBook)
    # When the run last began to run (or a new life of its trainer began), and when its newest step was met.
    running_since: float | None = None
    step_met: float | None = None
    # Sources' own histograms, by metric: see `observed_histograms`.
    observed: Mapping[str, Collection[Pool]] = field(default_factory=dict)
    rollouts: RolloutBook = field(default_factory=RolloutBook)
    _once: dict[str, Any] = field(default_factory=dict, compare=False)
    _fresh: dict[str, list[Gauge]] = field(default_factory=dict, compare=False)

    def once(self, name: str, make: Callable[["View"], Any]) -> Any:
        """What several signals work out of the same view: made when it is first asked for."""
        if name not in self._once:
            self._once[name] = make(self)
        return self._once[name]

    @property
    def synchronous(self) -> bool:
        return self.mode in SYNC_MODES

    def not_in_mode(self, why: str) -> NotApplicable:
        """The mode has no such thing; where the mode itself is only assumed the words say so."""
        return NotApplicable(f"{why} (mode assumed)" if self.facts.get("mode_assumed") else why)

    def fresh(self, metric: str) -> list[Gauge]:
        """Series of a metric that still report. Not to be changed: several signals ask for the same."""
        found = self._fresh.get(metric)
        if found is None:
            now = self.now
            # As `Gauge.fresh`, without a call for each of ten thousand.
            found = [gauge for gauge in self.gauges.get(metric, ()) if now - gauge.last_ts <= gauge.carry]
            self._fresh[metric] = found
        return found

    def fact(self, name: str) -> float | None:
        """A numeric fact, or None."""
        value = self.facts.get(name)
        return value if isinstance(value, (int, float)) else None


@dataclass(frozen=True, slots=True)
class Signal:
    """One derived signal: constant data and one pure function.

    Attributes:
        name: Prometheus name without the ``rollscope_`` prefix.
        inputs: catalogue metrics it reads; a step signal is computed when a row holds one of them.
        cadence: ``tick`` (state, on the 5 s grid) or ``step`` (one point per trainer step).
        hint: what to log or start when there is nothing to compute from; shown to users as is.
        records: it is also answered from rollout records: asked at a tick too, when any came since the one before.
        remember: of a signal with a memory (a fold): (memory or None, view) -> (memory, answer). The memory is bounded
            and is stored with the answer as JSON (see `memory_json`); after a restart the function gets what JSON made
            of it. Evaluating the same instant or step again changes nothing in the memory.
            ``compute`` is then what it answers without one (see `fold`).
        version: of the memory: one of another version is dropped.
        judged: it is not asked: the verdict, which sees all others, is written under its name
            (`server.derive.verdict_tracker`).
        watch, critical: bands of ``higher_is_worse`` values; None means no judgement.
    """

    name: str
    title: str
    unit: str
    actor: str
    help: str
    inputs: tuple[str, ...]
    cadence: Literal["tick", "step"]
    compute: Callable[[View], Answer]
    hint: str
    watch: float | None = None
    critical: float | None = None
    higher_is_worse: bool = True
    records: bool = False
    remember: Callable[[Any, View], tuple[Any, Answer]] | None = None
    version: int = 1
    judged: bool = False


def fold(remember: Callable[[Any, View], tuple[Any, Answer]]) -> dict[str, Any]:
    """The two functions of a signal with a memory: ``Signal(..., **fold(remember))``."""
    return {"remember": remember, "compute": lambda view: remember(None, view)[1]}


def memory_json(memory: Any) -> str:
    """A signal's memory as JSON text. Its parts are JSON values, or objects whose ``saved()`` returns JSON values."""
    return json.dumps(memory, default=lambda part: part.saved())


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter of ours that persists over our restarts: the increase of a metric, added up exactly once.

    Attributes:
        metric: an engine's cumulative counter (``of="counter"``), a per-step amount (``of="step"``), or what happens
            to a sandbox (``of="sandbox"``: ``sandbox_created``, ``sandbox_failed``, ``sandbox_spinup``) or a rollout
            (``of="rollout"``: ``rollout_left``, ``group_closed``); or a tick signal told per hour (``of="signal"``).
        by: labels of the metric to keep; all others are summed away.
        also: a source's cumulative counter of the same, which counts where no record of a single sandbox is read.
    """

    name: str
    title: str
    unit: str
    actor: str
    help: str
    metric: str
    of: Literal["counter", "step", "sandbox", "rollout", "signal"]
    by: tuple[str, ...] = ()
    version: int = 1
    also: str = ""


def is_gap(answer: Answer) -> bool:
    """Unknown or not applicable."""
    return not isinstance(answer, (list, tuple))


def unknown_reason(answer: Answer) -> str:
    """The words of a gap."""
    return "" if isinstance(answer, (list, tuple)) else answer.why  # type: ignore[union-attr]
