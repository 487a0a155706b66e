"""What a verdict is: outcomes, causes, evidence, shares; and how it is stored and shown (JSON).

DESIGN section 5. Nothing here judges: see `server.verdict.rules.tuning`.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from math import log
from typing import Any, Literal

Outcome = Literal[
    "stalled", "generator_bound", "sandbox_bound", "reward_bound", "curriculum_bound", "trainer_bound",
    "overhead_bound", "orchestrator_bound", "balanced", "unknown",
]  # fmt: skip

CAUSES: Mapping[Outcome, tuple[str, ...]] = {
    "stalled": ("no_progress", "dead_engine", "frozen_engine", "missing_producer", "dead_trainer"),
    "generator_bound": (
        "kv_capacity",
        "long_tail",
        "preemption",
        "slow_engine",
        "too_few_engines",
        "drift",
        "not_told",
    ),
    "sandbox_bound": ("spin_up", "starting_limit", "init_failures", "quota", "tool_time"),
    "reward_bound": ("scoring", "verifier"),
    "curriculum_bound": ("too_easy", "too_hard", "equal_rewards"),
    "trainer_bound": ("compute", "other", "open_step"),
    "overhead_bound": ("weight_sync", "checkpoint", "eval"),
    "orchestrator_bound": ("concurrency", "staleness_gate", "prompts", "tool_calls", "not_told"),
    "balanced": (),
    "unknown": ("missing", "incomplete", "starting", "paused", "over"),
}
"""Causes each outcome may have; "" where none of them is told apart."""

OUTCOMES: tuple[Outcome, ...] = tuple(CAUSES)
"""Every outcome, in the order of DESIGN section 5."""

RULES_VERSION = 7
"""Grows with every change of a rule or a constant that can change a verdict: stored with each."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One fact behind a verdict: a sentence an engineer would say, and the number in it.

    Attributes:
        signal: name with labels, as in the status; "" when it follows from several.
        bound: what the value is held against, in the same unit.
        age_seconds: of the value; None when it is worked out here.
    """

    text: str
    signal: str = ""
    value: float | None = None
    unit: str = ""
    bound: float | None = None
    age_seconds: float | None = None


@dataclass(frozen=True, slots=True)
class Contradiction:
    """Two sources that cannot both be right: a name, one sentence, and both numbers."""

    name: str
    text: str
    values: Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Limiter:
    """One thing that keeps useful samples below what the trainer could compute.

    Attributes:
        factor: by how much it alone slows down what it slows down (>= 1).
        gain: by how much more useful samples per second there were without it, all else as it is (>= 1).
        share: of the gap between what the trainer could compute and what it learns from (ln factor over their sum).
    """

    outcome: Outcome
    cause: str
    factor: float
    gain: float
    share: float = 0.0
    text: str = ""


@dataclass(frozen=True, slots=True)
class Verdict:
    """What holds the run back, and how sure that is. Ratios 0..1, times epoch seconds.

    Attributes:
        rule: the rule that said it ("V01" ...).
        confidence: 0 (a guess, or unknown) .. 1.
        completeness: share of the evidence this mode could give that is there.
        since: when the outcome and its cause were first found, of this spell.
        summary: one sentence.
        limiters: by gain, the verdict's own first; the next one is ``limiters[1]``.
        advice: the first thing to change, as an imperative; "" when there is none.
        numbers: the arithmetic: capacity, delivered, predicted and reported wait, gap factor, ... None: not known.
        missing: what is not told and would settle or confirm it, with what to log.
        disagreements: claims of the framework that its own numbers contradict.
        contradictions: numbers of two sources that cannot both be right.
        buffer: state of the queue over its window, a word of `server.verdict.facts.queue`.
        usd_per_hour: idle money; None when prices or GPU counts are not known.
        usd_lacks: what of it is not known, so that there is more of it; "" when all is.
    """

    outcome: Outcome
    cause: str = ""
    rule: str = ""
    confidence: float = 0.0
    completeness: float = 0.0
    since: float | None = None
    summary: str = ""
    evidence: tuple[Evidence, ...] = ()
    limiters: tuple[Limiter, ...] = ()
    advice: str = ""
    numbers: Mapping[str, float | None] = field(default_factory=dict)
    missing: tuple[str, ...] = ()
    disagreements: tuple[str, ...] = ()
    usd_per_hour: float | None = None
    usd_lacks: str = ""
    buffer: str = ""
    rules_version: int = RULES_VERSION
    contradictions: tuple[Contradiction, ...] = ()

    @property
    def key(self) -> tuple[Outcome, str]:
        """What makes two verdicts the same."""
        return self.outcome, self.cause

    @property
    def next(self) -> Limiter | None:
        """The limiter that is met once the first is gone."""
        return next((one for one in self.limiters if (one.outcome, one.cause) != self.key), None)

    def to_json(self) -> dict[str, Any]:
        """The object of the status contract (DESIGN section 6), with what it leaves open beside it."""
        beyond = self.next
        return {
            "outcome": self.outcome,
            "cause": self.cause or None,
            "confidence": self.confidence,
            "since": self.since,
            "summary": self.summary,
            "evidence": [_plain(one) for one in self.evidence],
            "shares": _shares(self.limiters),
            "next": _plain(beyond) if beyond is not None else None,
            "usd_per_hour": self.usd_per_hour,
            "usd_lacks": self.usd_lacks,
            "rule": self.rule,
            "completeness": self.completeness,
            "limiters": [_plain(one) for one in self.limiters],
            "advice": self.advice,
            "numbers": dict(self.numbers),
            "missing": list(self.missing),
            "disagreements": list(self.disagreements),
            "contradictions": [_plain(one) | {"values": dict(one.values)} for one in self.contradictions],
            "buffer": self.buffer,
            "rules_version": self.rules_version,
        }


def _shares(limiters: tuple[Limiter, ...]) -> dict[str, float]:
    """Share of the gap by outcome and cause: two limiters may have both in common (tools that are told, and not)."""
    found: dict[str, float] = {}
    for one in limiters:
        name = f"{one.outcome}/{one.cause}"
        found[name] = found.get(name, 0.0) + one.share
    return found


def _plain(one: Evidence | Limiter | Contradiction) -> dict[str, Any]:
    # At every tick of every run: `asdict`, which copies whatever it may meet, takes seven times as long.
    return {name: getattr(one, name) for name in one.__slots__}


def from_json(told: Mapping[str, Any]) -> Verdict:
    """A stored verdict; what a later version added is left out."""
    plain = (
        "outcome", "rule", "confidence", "completeness", "since", "summary", "advice", "numbers", "usd_per_hour",
        "buffer",
    )  # fmt: skip
    return Verdict(
        cause=told["cause"] or "",
        evidence=tuple(Evidence(**one) for one in told["evidence"]),
        limiters=tuple(Limiter(**one) for one in told["limiters"]),
        missing=tuple(told["missing"]),
        disagreements=tuple(told["disagreements"]),
        contradictions=tuple(Contradiction(**one) for one in told.get("contradictions", ())),
        rules_version=told["rules_version"],
        usd_lacks=told.get("usd_lacks", ""),
        **{name: told[name] for name in plain},
    )


def shared(limiters: tuple[Limiter, ...]) -> tuple[Limiter, ...]:
    """The same with their shares of the log gap, by gain."""
    total = sum(log(one.factor) for one in limiters if one.factor > 1)
    found = [replace(one, share=log(one.factor) / total if one.factor > 1 else 0.0) for one in limiters]
    return tuple(sorted(found, key=lambda one: one.gain, reverse=True))
