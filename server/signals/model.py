"""Definition of a signal: its input (`View`) and its results (`Value`, `Unknown`, `NotApplicable`).

Pure: no I/O and no clock. All inputs of a signal are in the view, with `now` as an attribute.
"""

import json
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from msgspec import Struct

from collectors.model import Labels
from server.rollouts.window import RolloutBook
from server.signals.observed_histograms import Pool
from server.signals.sandbox_window import SandboxBook
from server.signals.window import Gauge, StepBook

SYNC_MODES = ("sync_colocated", "sync_split")

STATE_MODE = "state the run's `mode` in [run.NAME.facts]"
"""What to do where a value follows from the mode, and no source reports the mode."""

# Trainer signals use the last 10 consumed steps and need 3 of them, so that one slow step neither causes nor hides a
# finding.
STEP_WINDOW = 10
STEP_MINIMUM = 3
# Engine and sandbox signals: long enough to hold a full buffer cycle, short enough to still be "now".
TICK_WINDOW_SECONDS = 300.0
# Seconds of event time from one evaluation of a run to the next.
TICK_SECONDS = 5.0


@dataclass(slots=True)
class Value:
    """A known value in the signal's unit. Not frozen, because that doubles the time to create one.

    Attributes:
        value: NaN: unknown for these labels, while it is known for others.
        why: a remark ("upper bound: ..."); for an unknown value the reason, as of `Unknown`.
    """

    value: float
    labels: Labels = ()
    why: str = ""


@dataclass(frozen=True, slots=True)
class Unknown:
    """No value, with the reason: a sentence that ends with what to log or start to get one."""

    why: str


@dataclass(frozen=True, slots=True)
class NotApplicable:
    """The run's topology has no such thing (a synchronous run has no queue)."""

    why: str


Answer = Sequence[Value] | Unknown | NotApplicable


# Kind of a target that sends heartbeats (`server.push.heartbeats`): they show that a trainer runs, without metrics.
HEARTBEAT = "heartbeat"
# Seconds. Smaller differences are normal between clocks of one cluster and because of writers' buffers.
SKEW_SECONDS = 30.0


class Origin(Struct, frozen=True):
    """The discovery list that a target comes from.

    Attributes:
        source: name of the list ([[run.NAME.discover]]).
        job, labels: from the discovery list.
        key: digest of the address, because an address may contain a secret.
    """

    source: str
    job: str = ""
    labels: Labels = ()
    key: str = ""


UNKNOWN = "unknown"
"""Collector and actor of what does not answer and was never known."""

GONE = "gone"
"""`TargetState.error_kind` of a target that no list contains since `last_ts`: not down, and not missed."""

IMPLAUSIBLE = "implausible_value"
"""`TargetState.error_kind` of a complete answer, but for single values that their unit rules out."""

CORRECTED = "corrected_clock"
"""`TargetState.error_kind` of a complete answer whose times were corrected because its clock is off."""


class TargetState(Struct, frozen=True):
    """The last answer of a target. Times are epoch seconds, in whole milliseconds. Key: (run, name).

    Attributes:
        last_ts, last_ok_ts: event times of the last scrape and the last that succeeded (None: never).
        error: why the last answer failed or is incomplete, or which single values were dropped; "" for none.
        origin: None if it was configured by hand.
    """

    name: str
    collector: str
    actor: str
    up: bool
    last_ts: float
    last_ok_ts: float | None = None
    error: str = ""
    error_kind: str = ""
    scrape_seconds: float = 0.0
    samples: int = 0
    dropped: int = 0
    interval_seconds: float = 5.0
    unmapped: Mapping[str, int] = {}
    origin: Origin | None = None

    @property
    def gone(self) -> bool:
        """Whether no list contains it since `last_ts`: its series end, and it does not count as missing."""
        return self.error_kind == GONE

    @property
    def complete(self) -> bool:
        """Whether nothing of the last answer was cut or broken, and its clock is not ahead of ours."""
        return self.up and (not self.error or self.error_kind in (IMPLAUSIBLE, CORRECTED))

    @property
    def alive(self) -> bool:
        """Whether it is not up, because its metrics page fails, but the system itself answers."""
        return self.error_kind == "no_metrics"

    def known(self, now: float) -> bool:
        """Whether it was polled recently; otherwise its state is unknown. Failed targets are polled rarely."""
        return now - self.last_ts <= max(15.0 if self.up else 90.0, 3 * self.interval_seconds)

    def trusted(self, now: float) -> bool:
        """Whether it answered completely within three intervals (at least 15 s)."""
        age = now - self.last_ok_ts if self.last_ok_ts is not None else None
        return self.complete and age is not None and age <= max(15.0, 3 * self.interval_seconds)

    def answers(self, now: float) -> bool:
        """Whether it is up according to a recent answer."""
        return self.up and self.known(now)


@dataclass(frozen=True, slots=True)
class View:
    """The inputs of all signals at one instant ``now`` (epoch seconds)."""

    now: float
    mode: str
    lifecycle: str
    facts: Mapping[str, str | float]
    gauges: Mapping[str, Collection[Gauge]] = field(default_factory=dict)
    steps: StepBook = field(default_factory=StepBook)
    targets: Collection[TargetState] = ()
    sandboxes: SandboxBook = field(default_factory=SandboxBook)
    # When the run last began to run (or a new incarnation of its trainer began), and when its newest step was first
    # seen.
    running_since: float | None = None
    step_met: float | None = None
    # Sources' own histograms, by metric: see `observed_histograms`.
    observed: Mapping[str, Collection[Pool]] = field(default_factory=dict)
    rollouts: RolloutBook = field(default_factory=RolloutBook)
    _once: dict[str, Any] = field(default_factory=dict, compare=False)
    _fresh: dict[str, list[Gauge]] = field(default_factory=dict, compare=False)

    def once(self, name: str, make: Callable[["View"], Any]) -> Any:
        """A value that several signals derive from the same view: computed at the first request."""
        if name not in self._once:
            self._once[name] = make(self)
        return self._once[name]

    @property
    def synchronous(self) -> bool:
        return self.mode in SYNC_MODES

    def fresh(self, metric: str) -> list[Gauge]:
        """Series of a metric that still report. Read-only, because several signals share the list."""
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


Remember = Callable[[Any, View], tuple[Any, Answer]]


@dataclass(frozen=True, slots=True)
class Fold:
    """Decorator: a compute function with a memory. Called with a view alone, it starts without a memory.

    Attributes:
        remember: (memory or None, view) -> (memory, answer). The memory is bounded and is stored with the answer as
            JSON (see `memory_json`); after a restart the function gets what JSON made of it. Evaluating the same
            instant or step again changes nothing in the memory.
    """

    remember: Remember

    def __call__(self, view: View) -> Answer:
        return self.remember(None, view)[1]


@dataclass(frozen=True, slots=True)
class Signal:
    """One derived signal: constant data and one pure function. Written with the decorator `signal`.

    Attributes:
        name: Prometheus name without the ``rollscope_`` prefix.
        inputs: catalogue metrics it reads; a step signal is computed when a row holds one of them.
        cadence: ``tick`` (state, on the 5 s grid) or ``step`` (one point per trainer step).
        hint: what to log or start when the inputs are missing; shown to users as is.
        records: it is also computed from rollout records: at a tick too, when new records came since the last tick.
        compute: its function, or a `Fold` if the signal has a memory.
        version: of the memory; a memory of another version is dropped.
        judged: it is not computed: the verdict, which uses all other signals, is written under its name
            (`server.derive.results`).
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
    version: int = 1
    judged: bool = False

    @property
    def remember(self) -> Remember | None:
        """The function of a signal with a memory."""
        return self.compute.remember if isinstance(self.compute, Fold) else None


def signal(
    *,
    title: str,
    unit: str,
    actor: str,
    cadence: Literal["tick", "step"],
    hint: str,
    inputs: tuple[str, ...] = (),
    watch: float | None = None,
    critical: float | None = None,
    higher_is_worse: bool = True,
    records: bool = False,
    version: int = 1,
    judged: bool = False,
) -> Callable[[Callable[[View], Answer]], Signal]:
    """Decorator: makes a `Signal` of its compute function.

    The signal has the function's name; its help is the first paragraph of the docstring. The function becomes
    the signal: in its body, ``<name>.hint`` is the hint.
    """

    def make(compute: Callable[[View], Answer]) -> Signal:
        function = compute.remember if isinstance(compute, Fold) else compute
        return Signal(
            name=function.__name__,
            title=title,
            unit=unit,
            actor=actor,
            help=" ".join((function.__doc__ or "").split("\n\n")[0].split()),
            inputs=inputs,
            cadence=cadence,
            compute=compute,
            hint=hint,
            watch=watch,
            critical=critical,
            higher_is_worse=higher_is_worse,
            records=records,
            version=version,
            judged=judged,
        )

    return make


def memory_json(memory: Any) -> str:
    """A signal's memory as JSON text. Its parts are JSON values, or objects whose ``saved()`` returns JSON values."""
    return json.dumps(memory, default=lambda part: part.saved())


@dataclass(frozen=True, slots=True)
class Counter:
    """A counter that survives restarts of the server: the increase of a metric, added up exactly once.

    Attributes:
        metric: an engine's cumulative counter (``of="counter"``), a per-step amount (``of="step"``), or what happens
            to a sandbox (``of="sandbox"``: ``sandbox_created``, ``sandbox_failed``, ``sandbox_spinup``) or a rollout
            (``of="rollout"``: ``rollout_left``, ``group_closed``); or a tick signal per hour (``of="signal"``).
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
    """The reason of a gap."""
    return "" if isinstance(answer, (list, tuple)) else answer.why  # type: ignore[union-attr]


# ---- gaps
# The reason of a signal that had a value earlier and has none now.

LAST_VALUE = "; the last value was "
"""Separates the reason from the value. Readers recognise by it that the signal has a source."""
NO_CURRENT_REPORT = "no current report"


def lapsed(reason: str, value: float | None, unit: str) -> str:
    """``no step for 3 h; the last value was 66%``."""
    return reason if value is None else f"{reason}{LAST_VALUE}{_figure(value, unit)}"


def _figure(value: float, unit: str) -> str:
    if unit == "ratio":
        return f"{100 * value:.4g}%"
    return f"{value:.4g} {'s' if unit == 'seconds' else unit}".rstrip()
