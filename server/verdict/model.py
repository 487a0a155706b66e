"""Types of a verdict: outcomes, causes, evidence, limiters. The API answers the same records.

The rules are in `server.verdict.rules`, and in words in docs/concepts/verdict-rules.md.
"""

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Literal, Protocol

import msgspec
from msgspec import UNSET, Struct, UnsetType, structs

from collectors.model import Labels
from server.signals.model import SYNC_MODES, TargetState
from server.signals.window import Step

Outcome = Literal[
    "stalled", "generator_bound", "sandbox_bound", "reward_bound", "curriculum_bound", "trainer_bound",
    "overhead_bound", "orchestrator_bound", "balanced", "unknown",
]  # fmt: skip

CAUSES: Mapping[Outcome, Mapping[str, str]] = {
    "stalled": {
        "no_progress": "no step ends, and no other cause of it is visible",
        "dead_engine": "no engine answers",
        "frozen_engine": "engines run requests and generate no token",
        "dead_trainer": "the trainer's heartbeat is missing",
        "collective_timeout": "ranks of the trainer wait for each other",
        "worker_died": "a worker of the trainer ended",
    },
    "generator_bound": {
        "kv_capacity": "the KV cache is full",
        "long_tail": "most of a batch waits for its slowest rollouts",
        "preemption": "engines compute requests again for lack of cache",
        "slow_engine": "one engine is slower than the others",
        "max_num_seqs": "requests wait although the KV cache is free",
        "too_few_engines": "the engines are full or compute-bound, or some do not work",
        "drift": "rollouts are longer than in the first steps",
        "not_told": "the engines are not reported",
    },
    "sandbox_bound": {
        "spin_up": "rollouts wait until their sandbox is ready",
        "starting_limit": "the provider limits how many sandboxes start at once",
        "init_failures": "sandboxes fail",
        "quota": "the provider's quota is used up",
        "tool_time": "rollouts spend their time in tools",
    },
    "reward_bound": {"scoring": "rollouts wait for their reward"},
    "curriculum_bound": {
        "too_easy": "all rollouts of a group solve the task",
        "too_hard": "no rollout of a group solves the task",
        "equal_rewards": "the rewards of a group are equal",
    },
    "trainer_bound": {
        "compute": "the trainer computes",
        "other": "most of the step is in no reported phase",
        "open_step": "the open step is late although its batch is available",
    },
    "overhead_bound": {
        "weight_sync": "new weights are published",
        "checkpoint": "checkpoints are saved",
        "eval": "evaluations run",
    },
    "orchestrator_bound": {
        "concurrency_cap": "engines have room, nothing waits, and the number in flight is flat",
        "staleness_gate": "dispatch is held for staleness while the trainer waits",
        "prompts": "fewer rollouts are in flight than allowed",
        "tool_calls": "as `tool_time`, in a run without sandboxes",
    },
    "balanced": {},
    "unknown": {
        "missing": "a source that decides is missing",
        "incomplete": "nothing is collected, or a rule raised an error",
        "starting": "no step has ended yet",
        "paused": "the run is paused",
        "over": "the run has ended",
    },
}
"""Outcome -> cause -> its meaning; a verdict has "" if the cause is not distinguished."""

VERDICT_OUTCOMES: tuple[Outcome, ...] = tuple(CAUSES)
"""Every outcome, in the order of docs/concepts/verdict.md."""

RULES_VERSION = 10
"""Increases with every change of a rule or threshold that can change a verdict; stored with each verdict."""


class Evidence(Struct, frozen=True):
    """One fact of a verdict: a sentence and its number.

    Attributes:
        signal: name with labels, as in the status; "" if the fact follows from several signals.
        bound: the value to compare with, in the same unit.
        age_seconds: of the value; None if it is computed here.
    """

    text: str
    signal: str = ""
    value: float | None = None
    unit: str = ""
    bound: float | None = None
    age_seconds: float | None = None


class Contradiction(Struct, frozen=True):
    """Two sources that cannot both be right: a name, one sentence, and both numbers."""

    name: str
    text: str
    values: Mapping[str, float]


class Limiter(Struct, frozen=True):
    """One cause that keeps useful samples below what the trainer could compute.

    Attributes:
        factor: how much it slows down its part (>= 1).
        gain: factor of useful samples per second without it, everything else being equal (>= 1).
        share: of the gap between what the trainer could compute and what it learns from (ln factor over their sum).
    """

    outcome: Outcome
    cause: str
    factor: float
    gain: float
    share: float = 0.0
    text: str = ""


Cost = Literal["setting", "restart", "money"]
"""What a change costs: nothing but a setting while the run goes on, a restart of a part of the run, or money."""
Range = tuple[float, float, float]
"""(least, most likely, most)."""


class SideEffect(Struct, frozen=True):
    """A signal that a change moves."""

    signal: str
    before: float = msgspec.field(name="from")
    after: float = msgspec.field(name="to")


class Advice(Struct, frozen=True):
    """One change to the run.

    Attributes:
        lever: one of `server.verdict.advice.LEVERS`.
        before, after: the lever's value now and after the change, in `unit`; None: the lever has no number, or it is
            not reported.
        gain: factor of trainable samples/s, as a range; None: it does not follow from what is reported.
        why: the numbers behind it; `text`: the change as an imperative.
    """

    lever: str
    before: float | None = msgspec.field(name="from", default=None)
    after: float | None = msgspec.field(name="to", default=None)
    unit: str = ""
    gain: Range | None = None
    cost: Cost = "setting"
    side_effects: tuple[SideEffect, ...] = ()
    why: str = ""
    text: str = ""


class EngineCurve(Struct, frozen=True):
    """Tokens/s of one engine against the requests that it runs: r / (`alone` * (1 + r / `half`)).

    Attributes:
        running: requests per engine now.
        points: (requests per engine, tokens/s per engine) that the run has shown, ascending.
        half: requests at which a token takes twice as long as alone, as a range (most, likely, least).
        alone: seconds per token of a request alone, with each of `half`; None: the run has not shown a point.
        fitted: `half` follows from the points; otherwise from what engines show in general.
        seats: requests per engine that fit; None: nothing shows a limit.
        best: requests per engine from which more stop paying, within seats and staleness bound; None: not known.
    """

    running: float
    points: tuple[tuple[float, float], ...]
    half: Range
    alone: Range | None
    fitted: bool
    seats: float | None
    best: float | None


class LastVerdict(Struct, frozen=True):
    """The verdict that was withheld because it no longer describes the present."""

    outcome: Outcome
    cause: str | None
    confidence: float
    since: float | None
    summary: str
    as_of: float | None


class Verdict(Struct, frozen=True):
    """The limiter of a run and its confidence, as it is stored and as the API answers it.

    Ratios 0..1, times epoch seconds.

    Attributes:
        cause: None where no cause was identified.
        rule: the rule that applied ("V01" ...).
        confidence: 0 (a guess, or unknown) .. 1.
        completeness: share of the evidence of this mode that is available.
        since: when this outcome and cause were first found without interruption.
        summary: one sentence.
        limiters: by gain, the verdict's own first.
        advice: the changes to make, by gain per cost; advice_lacks: levers that cannot be judged, with what to log.
        numbers: the arithmetic: capacity, delivered, predicted and reported wait, gap factor, ... None: not reported.
        missing: missing signals that would decide or confirm the verdict, with what to log.
        disagreements: reported numbers that differ from what follows from other numbers.
        usd_per_hour: idle cost; None if prices or GPU counts are missing.
        usd_lacks: why the idle cost is incomplete; "" if it is complete.
        buffer: state of the queue over its window (`server.verdict.throughput`).
        contradictions: numbers of two sources that cannot both be right.
        engine_speed: how the tokens/s of an engine follow from its requests; None: no engine reports them.
        shares: of the gap, by outcome and cause; `next`: the limiter that comes next once the first is removed. Both
            follow from `limiters`.
        as_of: when it was computed; absent in the history. last: present only if the verdict is withheld.
    """

    outcome: Outcome
    cause: str | None = None
    rule: str = ""
    confidence: float = 0.0
    completeness: float = 0.0
    since: float | None = None
    summary: str = ""
    evidence: tuple[Evidence, ...] = ()
    limiters: tuple[Limiter, ...] = ()
    advice: tuple[Advice, ...] = ()
    numbers: Mapping[str, float | None] = {}
    missing: tuple[str, ...] = ()
    disagreements: tuple[str, ...] = ()
    usd_per_hour: float | None = None
    usd_lacks: str = ""
    buffer: str = ""
    rules_version: int = RULES_VERSION
    contradictions: tuple[Contradiction, ...] = ()
    engine_speed: EngineCurve | None = None
    advice_lacks: tuple[str, ...] = ()
    shares: Mapping[str, float] = {}
    next: Limiter | None = None
    as_of: float | UnsetType | None = UNSET
    last: LastVerdict | UnsetType = UNSET

    def __post_init__(self) -> None:
        if not self.limiters:
            return
        shares: dict[str, float] = {}
        for limiter in self.limiters:
            # Two limiters may have the same outcome and cause.
            name = f"{limiter.outcome}/{limiter.cause}"
            shares[name] = shares.get(name, 0.0) + limiter.share
        beyond = (limiter for limiter in self.limiters if (limiter.outcome, limiter.cause) != self.key)
        structs.force_setattr(self, "shares", shares)
        structs.force_setattr(self, "next", next(beyond, None))

    @property
    def key(self) -> tuple[Outcome, str]:
        """Outcome and cause, by which verdicts are compared."""
        return self.outcome, self.cause or ""

    @property
    def named(self) -> bool:
        """Whether it is other than unknown."""
        return self.outcome != "unknown"


def shared(limiters: tuple[Limiter, ...]) -> tuple[Limiter, ...]:
    """Returns the limiters with their shares of the log gap, by gain."""
    total = sum(log(limiter.factor) for limiter in limiters if limiter.factor > 1)
    with_shares = [
        structs.replace(limiter, share=log(limiter.factor) / total if limiter.factor > 1 else 0.0)
        for limiter in limiters
    ]
    return tuple(sorted(with_shares, key=lambda limiter: limiter.gain, reverse=True))


# ---- inputs
# The input of the rules at one instant: the newest values of all signals with their age, and the targets.


class ReportedValue(Protocol):
    """The newest value of a signal series. ``value`` None is a gap, and ``why`` its reason."""

    @property
    def ts(self) -> float: ...
    @property
    def value(self) -> float | None: ...
    @property
    def why(self) -> str: ...


@dataclass(frozen=True, slots=True)
class VerdictInput:
    """The data that the rules may use.

    Attributes:
        signals: signal -> labels -> newest value; without counters.
        stale: (signal, time of its value) -> why the value of a step signal is too old to use, or "".
        running_since: when the run last began to run; None if it never did.
        instants: counts of requests, rollouts and sandboxes by instant (`server.verdict.steps`), oldest first.
        recent: means of the instants over the judged steps.
        steps: the trainer's last steps, oldest first; they show a change of limiter before their mean does.
        first: (incarnation, number) of the first step that belongs to the present, as found before; None: not found.
        hung_since: since when at least half of the engines run requests without a token; None: they do not.
        down_since: since when no engine answers; None: some engines answer, or the time is not recorded.
    """

    now: float
    mode: str = ""
    lifecycle: str = "running"
    facts: Mapping[str, str | float] = field(default_factory=dict)
    signals: Mapping[str, Mapping[Labels, ReportedValue]] = field(default_factory=dict)
    targets: Collection[TargetState] = ()
    stale: Callable[[str, float], str] = lambda name, ts: ""
    running_since: float | None = None
    steps: Sequence[Step] = ()
    recent: Mapping[str, float] = field(default_factory=dict)
    instants: Sequence[tuple[float, Mapping[str, float]]] = ()
    first: tuple[int, int] | None = None
    hung_since: float | None = None
    down_since: float | None = None

    @property
    def synchronous(self) -> bool:
        return self.mode in SYNC_MODES

    def get(self, signal: str, **labels: str) -> float | None:
        """Returns the value of the only series with these labels, if it is reported and not too old."""
        series = self._current(signal, labels)
        return series[0][1] if len(series) == 1 else None

    def rows(self, signal: str, **labels: str) -> Iterator[tuple[dict[str, str], float]]:
        """Yields (labels, value) of every series of a signal with these labels that has a current value."""
        for key, value in self._current(signal, labels):
            yield dict(key), value

    def total(self, signal: str, **labels: str) -> float | None:
        """Returns the sum of these series; None without any."""
        series = self._current(signal, labels)
        return sum(value for _, value in series) if series else None

    def _current(self, signal: str, labels: Mapping[str, str]) -> list[tuple[Labels, float]]:
        """Returns the current series of a signal with these labels. Called a hundred times per tick."""
        series, required = self.signals.get(signal), labels.items()
        return [
            (key, newest.value)
            for key, newest in (series.items() if series else ())
            if newest.value is not None
            and (not required or all(pair in key for pair in required))
            and not self.stale(signal, newest.ts)
        ]

    def age(self, signal: str) -> float | None:
        """Returns the seconds since the newest value of a signal."""
        times = [newest.ts for newest in self.signals.get(signal, {}).values() if newest.value is not None]
        return self.now - max(times) if times else None

    def why(self, signal: str) -> str:
        """Returns why a signal has no current value."""
        series = self.signals.get(signal, {}).values()
        gaps = (self.stale(signal, newest.ts) if newest.value is not None else newest.why for newest in series)
        return next((reason for reason in gaps if reason), "")

    @property
    def fault_since(self) -> float | None:
        """Since when the fault lasts that the trainer's log reports after its newest step; None: it reports none."""
        since = self.fact("fault_since")
        return since if self.facts.get("fault_kind") and since is not None and since <= self.now else None

    def fact(self, name: str) -> float | None:
        value = self.facts.get(name)
        return value if isinstance(value, (int, float)) else None
